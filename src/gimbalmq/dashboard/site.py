"""The dashboard's settings, who is there, and with whose rights each page asks the cluster."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any

from nicegui import Client, ui

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq.admin.admin import Admin
from gimbalmq.dashboard.accounts import KEYS, Account, Accounts, WrongLoginError, asks_for_users
from gimbalmq.dashboard.login_limits import LoginLimits
from gimbalmq.dashboard.observer import Observer, not_allowed
from gimbalmq.dashboard.sessions import Session, Sessions
from gimbalmq.errors import NoPermissionError, RocketMQError

log = logging.getLogger(__name__)

LOGIN_KEY = "login"
"""Under which name the cookie has the session's token."""
SWEEP_SECONDS = 5.0
SHOW_OUT_SECONDS = 2.0
RECHECK_SECONDS = 60.0
"""Between two looks whether the cluster still takes the users who are logged in."""


class Door(Enum):
    """Whom the dashboard lets in."""

    OPEN = "open"
    """Everybody who reaches the port; it then listens on this machine only, and has no keys to the cluster."""
    PASSWORD = "password"
    """Who knows the dashboard's own password; all act with the keys that the dashboard was started with."""
    USERS = "users"
    """Users of the cluster, each with their own rights."""


LoginSession = Session[Account]


class Site:
    """The dashboard's settings, and who is there.

    Args:
        options: further options of ``Admin``.
        user, password: of the one login of ``Door.PASSWORD``.
        idle, longest: seconds until a login ends: without anything being done, and whatever is done.

    Attributes:
        door: whom it lets in.
        house: the account that all viewers share; None if each has their own.
        read_only: nothing can be changed through the page, whoever asks.
        redriving: one redrive at a time, or two viewers would send the same letters twice.
    """

    def __init__(
        self,
        namesrv: str,
        options: Mapping[str, Any] | None = None,
        *,
        door: Door = Door.OPEN,
        user: str = "admin",
        password: str | None = None,
        read_only: bool = False,
        idle: float = 1800.0,
        longest: float = 43_200.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        options = options or {}
        if door is Door.OPEN:  # no key may be used by whoever happens to come along
            options = {name: value for name, value in options.items() if name not in KEYS}
        self.namesrv = namesrv
        self.options = options
        self.door = door
        self.user = user
        self.read_only = read_only
        self.longest = longest
        self.redriving = asyncio.Lock()
        self.limits = LoginLimits(clock)
        self.accounts = Accounts(namesrv, options)
        self.sessions: Sessions[Account] = Sessions(clock, idle=idle, longest=longest, ended=self._ended)
        self.house = None if door is Door.USERS else Account(namesrv, options)
        self._password = password

    def start(self) -> None:
        if self.house is not None:
            self.house.start()

    async def close(self) -> None:
        for session in self.sessions:
            self.sessions.end(session)
        if self.house is not None:
            await self.house.close()
        await self.accounts.close()

    async def look_after(self) -> None:
        """Ends sessions whose time is over, or whose users the cluster takes no more; runs until it is cancelled."""
        checked = 0.0
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sessions.sweep()
            if self.door is Door.USERS and self.house is not None:  # users turned up; see refused()
                house, self.house = self.house, None
                await house.close()
            checked += SWEEP_SECONDS
            if checked >= RECHECK_SECONDS:
                checked = 0.0
                try:
                    await self.recheck()
                except Exception:  # or nobody would be looked at any more
                    log.exception("users cannot be looked at again")

    async def recheck(self) -> None:
        for account in {session.account for session in self.sessions if session.account is not self.house}:
            if not await self.accounts.still_right(account):
                log.warning("user %s is let in no more", account.user)
                for session in self.sessions:
                    if session.account is account:
                        self.sessions.end(session)

    async def log_in(self, user: str, secret: str) -> LoginSession:
        """A new session.

        Raises:
            WrongLoginError: name and secret are not right; NotCheckedError, RocketMQError: see ``Accounts.log_in``.
        """
        if self.door is Door.USERS:
            return self.sessions.begin(user, await self.accounts.log_in(user, secret))
        if self.house is None or not self.knows(user, secret):
            raise WrongLoginError
        return self.sessions.begin(user, self.house)

    def knows(self, user: str, password: str) -> bool:
        """Compared in constant time, so that a wrong one tells nothing of the right one."""
        if self._password is None:
            return False
        return hmac.compare_digest(user.encode(), self.user.encode()) & hmac.compare_digest(
            password.encode(), self._password.encode()
        )

    def _ended(self, session: LoginSession) -> None:
        if session.account is not self.house:
            self.accounts.release(session.account)
        # Pages that are open, in whatever tab, go with the session.
        for client in list(Client.instances.values()):
            if client.request.session.get(LOGIN_KEY) == session.token:
                _show_out(client)

    async def refused(self) -> None:
        """A request without keys was refused. If the cluster turns out to have users, everybody logs in from now on.

        A broker also refuses with the same code what its settings forbid, so it is asked once more.
        """
        if await asks_for_users(self.namesrv, self.options) and self.door is Door.OPEN:
            log.warning("the cluster asks for users; pages need a login from now on")
            self.door = Door.USERS
            for client in list(Client.instances.values()):
                _show_out(client)

    def viewer(self) -> Viewer:
        """Who has asked for the page that is being built."""
        return self.viewer_of(ui.context.client.request.session.get(LOGIN_KEY))

    def viewer_of(self, token: object) -> Viewer:
        if self.door is Door.OPEN:
            return Viewer(self, None)
        return Viewer(self, self.sessions.find(token))


def _show_out(client: Client) -> None:
    """Sends a browser to the login, and empties its page whether it goes or not: a page can show again what it has."""

    def empty() -> None:
        if client.id in Client.instances:
            client.remove_all_elements()

    client.open("/login")
    asyncio.get_running_loop().call_later(SHOW_OUT_SECONDS, empty)


class Viewer:
    """Who looks at one page: everything a page asks of the cluster is asked with their rights."""

    def __init__(self, site: Site, session: LoginSession | None) -> None:
        self.site = site
        self.session = session

    @property
    def user(self) -> str:
        return "" if self.session is None else self.session.user

    @property
    def is_there(self) -> bool:
        """Whether they may still look: the page outlives the login."""
        if self.session is None:
            return self.site.door is Door.OPEN
        return self.site.sessions.lives(self.session)

    @property
    def _account(self) -> Account:
        account = self.site.house if self.session is None else self.session.account
        if not self.is_there or account is None:
            raise PermissionError("the login has ended; log in again")
        return account

    @property
    def admin(self) -> Admin:
        return self._account.admin

    @property
    def observer(self) -> Observer:
        return self._account.observer

    @property
    def read_only(self) -> str:
        """Why nothing can be changed; "" if it can."""
        if self.site.read_only:
            return "This dashboard is read-only."
        if not self._account.may_act:
            return f"{self.user} may look only: what changes things is for Super users."
        return ""

    def must_be_writable(self) -> None:
        """The last guard before every change, whatever the page showed."""
        if self.site.read_only:
            raise PermissionError(
                "this dashboard is read-only; start it without --read-only to change things"
            )
        if self.read_only:
            raise PermissionError(self.read_only)

    def did_something(self) -> None:
        """Puts off the end of an idle login."""
        if self.session is not None:
            self.site.sessions.use(self.session)

    async def problem_of(self, work: Callable[[], Awaitable[object]]) -> str:
        """Runs what may fail; "" or why it did."""
        try:
            await work()
        except NoPermissionError as error:
            if self.site.door is Door.OPEN:
                await self.site.refused()
            return not_allowed("" if self.session is None else self.session.account.user, error)
        except (RocketMQError, PermissionError) as error:
            return str(error) or type(error).__name__
        except Exception as error:  # a page must not end because of a bug in what it shows
            log.exception("a page met an error that nobody expected")
            return f"{type(error).__name__}: {error}"
        return ""
