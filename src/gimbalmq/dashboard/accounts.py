"""With whose rights a page asks the cluster.

If the cluster has users, each of them who is logged in has connections and a history of their own, and the cluster
itself decides about every request. Nothing that one user was told is ever shown to another.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import Any

from gimbalmq.admin.admin import Admin
from gimbalmq.admin.connection import AdminConnection
from gimbalmq.client.config import ClientConfig
from gimbalmq.dashboard.observer import Observer
from gimbalmq.errors import ConnectError, NoPermissionError, ResponseError, RocketMQError
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.rpc import access, groups
from gimbalmq.rpc.call import ask

log = logging.getLogger(__name__)

MOST_NAME = 255
MOST_SECRET = 1024
KEYS = ("access_key", "secret_key", "security_token")
SUPER = "super"
REFUSAL_SECONDS = 15.0
"""The longest that a broker is waited for which may refuse a login."""
PATIENCE_SECONDS = 8.0
"""And one that may refuse to tell something; brokers delay refusals by up to 5 seconds unless told otherwise."""


class WrongLoginError(Exception):
    """No enabled user has this name and this secret. It says no more, so that nobody learns who there is."""


class NotCheckedError(Exception):
    """The cluster serves wrong secrets, so a login would prove nothing."""


class Account:
    """One user's connections and history.

    Attributes:
        user: the user's name; "" if the dashboard knows no users.
        may_act: whether pages let the viewer change things; the cluster decides besides.
    """

    def __init__(
        self, namesrv: str, options: Mapping[str, Any], *, user: str = "", may_act: bool = True
    ) -> None:
        self.user = user
        self.may_act = may_act
        self.admin = Admin(namesrv, **options)
        self.observer = Observer(self.admin, user=user)

    def start(self) -> None:
        self.observer.start()

    async def close(self) -> None:
        await self.observer.close()
        await self.admin.close()


class Accounts:
    """Users of the cluster who are logged in, each once, however many sessions they have."""

    def __init__(self, namesrv: str, options: Mapping[str, Any]) -> None:
        self._namesrv = namesrv
        # The keys of whoever started the dashboard are nobody else's.
        self._options = {name: value for name, value in options.items() if name not in KEYS}
        self._held: dict[tuple[str, str], tuple[Account, int]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._held)

    async def log_in(self, user: str, secret: str) -> Account:
        """The account of a user whose secret this is; give it back with ``release``.

        Raises:
            WrongLoginError: the cluster does not know them together.
            NotCheckedError: the cluster does not check secrets.
            RocketMQError: the cluster cannot be asked.
        """
        if not (0 < len(user) <= MOST_NAME and 0 < len(secret) <= MOST_SECRET and user.isprintable()):
            raise WrongLoginError
        is_super = await verify(self._namesrv, self._options, user, secret)
        account, count = self._held.get((user, secret), (None, 0))
        if account is None:
            own = {
                **self._options,
                "access_key": user,
                "secret_key": secret,
                # Refusals come late, and must not look as if nobody had answered.
                "api_timeout": max(self._options.get("api_timeout", 0.0), PATIENCE_SECONDS),
            }
            account = Account(self._namesrv, own, user=user)
            account.start()
        account.may_act = is_super
        self._held[user, secret] = account, count + 1
        return account

    async def still_right(self, account: Account) -> bool:
        """Whether the cluster still takes the secret; yes if it cannot be asked: then it tells nothing, either."""
        key = self._key(account)
        if key is None:
            return False
        try:
            account.may_act = await verify(
                self._namesrv, self._options, *key, again=True, was_super=account.may_act
            )
        except (WrongLoginError, NotCheckedError):
            return False
        except RocketMQError as error:
            log.debug("user %s cannot be looked at again: %s", account.user, error)
        return True

    def release(self, account: Account) -> None:
        """One session less; the last one closes the connections and forgets the secret."""
        key = self._key(account)
        if key is None:
            return
        count = self._held[key][1] - 1
        if count:
            self._held[key] = account, count
            return
        del self._held[key]
        task = asyncio.get_running_loop().create_task(account.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _key(self, account: Account) -> tuple[str, str] | None:
        return next((key for key, (held, _) in self._held.items() if held is account), None)

    async def close(self) -> None:
        held, self._held = self._held, {}
        await asyncio.gather(*(account.close() for account, _ in held.values()), *self._closing)


async def verify(
    namesrv: str,
    options: Mapping[str, Any],
    user: str,
    secret: str,
    *,
    again: bool = False,
    was_super: bool = True,
) -> bool:
    """Asks a broker whether the secret is the user's; whether the user is a Super one.

    The broker is asked for next to nothing (to forget a client there is not), which every enabled user may do. It is
    asked once with the secret and then with a wrong one: a broker that takes both does not check them, because
    authentication is off or this machine is in a white list.

    Args:
        again: the user was verified before; the wrong secret is left out, because brokers note every refusal.
        was_super: False means that nobody need ask whether the user is a Super one, which brokers refuse others.

    Raises:
        WrongLoginError, NotCheckedError, RocketMQError: see ``Accounts.log_in``.
    """
    given = ClientConfig.of(namesrv=namesrv, **{**options, "access_key": user, "secret_key": secret})
    # A broker takes its time for refusals, so that guessing is slow.
    given = given.with_options(api_timeout=max(given.api_timeout, REFUSAL_SECONDS))
    right = AdminConnection(given)
    wrong = AdminConnection(given.with_options(secret_key=secrets.token_urlsafe(24)))
    try:
        failure: RocketMQError = ConnectError("no broker answers")
        for address in (await _brokers(right)).values():
            try:
                if not await _let_in(right, address):
                    raise WrongLoginError
                if not again and await _let_in(wrong, address):
                    raise NotCheckedError(
                        f"{address} does not check secrets: switch authenticationEnabled on and accessMode=permissive "
                        "off, and take this machine off the white lists"
                    )
                return was_super and await _is_super(right, address, user)
            except RocketMQError as error:
                failure = error
        raise failure
    finally:
        await asyncio.gather(right.close(), wrong.close())


async def asks_for_users(namesrv: str, options: Mapping[str, Any]) -> bool | None:
    """Whether the cluster refuses requests without a signature; None if it does not answer."""
    keyless = {name: value for name, value in options.items() if name not in KEYS}
    nobody = AdminConnection(ClientConfig.of(namesrv=namesrv, **keyless))
    try:
        answers = await asyncio.gather(
            *(_let_in(nobody, address) for address in (await nobody.masters()).values()),
            return_exceptions=True,
        )
    except NoPermissionError:
        return True
    except RocketMQError:
        return None
    finally:
        await nobody.close()
    if False in answers:
        return True
    return False if True in answers else None


async def _brokers(connection: AdminConnection) -> dict[str, str]:
    try:
        return await connection.masters()
    except NoPermissionError:
        raise WrongLoginError from None


async def _let_in(connection: AdminConnection, address: str) -> bool:
    """Whether a broker serves these credentials at all."""
    nobody = f"dashboard-{secrets.token_hex(8)}"
    try:
        await groups.unregister(connection.caller, address, nobody, timeout=connection.config.api_timeout)
    except ResponseError as error:
        # 1 is what brokers before 5.3 say.
        if error.code in (ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR):
            return False
        raise
    return True


async def _is_super(connection: AdminConnection, address: str, user: str) -> bool:
    caller, timeout = connection.caller, connection.config.api_timeout
    try:
        found = await access.user(caller, address, user, timeout=timeout)
        if found is None:
            # An account of plain_acl.yml, of which only this request for administrators tells the kind.
            await ask(caller, address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO, timeout=timeout)
            return True
    except ResponseError:
        return False  # one who may not even read their own entry
    return (found.user_type or "").lower() == SUPER
