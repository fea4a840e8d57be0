"""What servers need to let the right ones in, put together from a configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq.access.admin_requests import AccessRequests
from gimbalmq.access.audit import Audit
from gimbalmq.access.config import AccessConfig, Credentials
from gimbalmq.access.directory import Directories, Directory, OneUser
from gimbalmq.access.failures import Failures
from gimbalmq.access.gate import Gate
from gimbalmq.access.guesses import Guesses
from gimbalmq.access.needs import NeedTable
from gimbalmq.access.plain_requests import PlainRequests, ServerNames
from gimbalmq.access.table import AccessTable
from gimbalmq.access.users import User, UserType
from gimbalmq.errors import ConfigError
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.store.files import Files
from gimbalmq.transport.channel import Channel, Handlers
from gimbalmq.transport.tasks import Tasks

if TYPE_CHECKING:  # a server without such accounts does not load the reader of YAML
    from gimbalmq.access.plain_accounts import PlainAccounts

log = logging.getLogger(__name__)


class Access:
    """Users, policies, the audit log and the count of failures. A broker and a name server in one process share one.

    ``load`` reads the files, ``gate`` and ``guard`` close a server's doors, ``start`` makes the first users, ``close``
    ends it all.

    Args:
        folder: where users and policies are kept unless ``authConfigPath`` says otherwise; None keeps them in memory.
        home: the folder in which ``conf`` with the accounts of 4.x is, unless ``aclConfigPath`` says otherwise; that
            above ``folder`` if it is not given.
        of_the_run: what servers that one command has started sign their calls with if
            ``innerClientAuthenticationCredentials`` is unset: nobody else knows it, and it is kept nowhere.
    """

    def __init__(
        self,
        config: AccessConfig,
        folder: Path | None,
        home: Path | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        files: Files | None = None,
        of_the_run: Credentials | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._home = folder.parent if home is None and folder is not None else home
        self._tasks = Tasks("access")
        self._started = False
        self._folder = Path(config.auth_config_path) if config.auth_config_path else folder
        self.table = AccessTable(self._folder, files=files) if config.keeps_users else None
        """None if there are no users at all."""
        self.accounts: PlainAccounts | None = None
        """Those of 4.x; None if ``aclEnable`` is false."""
        self.inner = config.inner_credentials()
        """What a server of this object signs its own calls with."""
        self._of_the_run: OneUser | None = None
        if self.inner is None and of_the_run is not None:
            self.inner = of_the_run
            self._of_the_run = OneUser(User(of_the_run.name, of_the_run.secret, UserType.SUPER))
        self.failures = Failures(config, clock)
        self.guesses = Guesses(config, clock)
        self.audit = Audit(config, clock)

    def load(self) -> None:
        """Reads what is kept; raises ConfigError if it cannot be understood, and is closed then."""
        try:
            if self.table is not None:
                self.table.load()
            if self._config.acl_enable:
                from gimbalmq.access.plain_accounts import PlainAccounts

                self.accounts = PlainAccounts(self._accounts_path(), clock=self._clock)
        except BaseException:
            self.audit.close()
            raise

    def _accounts_path(self) -> Path:
        if self._config.acl_config_path:
            return Path(self._config.acl_config_path)
        if self._config.rocketmq_home:
            return Path(self._config.rocketmq_home) / "conf"
        if self._home is None:
            raise ConfigError(
                "aclEnable",
                True,
                "nobody has said where the accounts are: name plain_acl.yml by aclConfigPath",
            )
        return self._home / "conf"

    def gate(self, needs: NeedTable, config: AccessConfig) -> Gate | None:
        """The gate of a server; None if it checks nobody.

        Args:
            config: the server's own, of which the switches count; users and the audit log are those of this object.
        """
        if not (config.authenticates or config.authorizes):
            return None
        if self.table is None:
            raise ConfigError(
                "authenticationEnabled",
                True,
                "the server that it shares users with has none: set it there, too",
            )
        parts: list[Directory] = [self.table]
        if self._of_the_run is not None:
            parts.insert(0, self._of_the_run)
        if self.accounts is not None:
            parts.append(self.accounts)
        directory = parts[0] if len(parts) == 1 else Directories(parts)
        return Gate(directory, needs, config, self.failures, self.guesses, self.audit)

    def guard(
        self,
        handlers: Handlers,
        gate: Gate | None,
        needs: NeedTable,
        names: Callable[[], ServerNames] | None = None,
    ) -> None:
        """Puts the gate before a server's handlers, which are all there, and adds those for users and policies.

        Args:
            names: who the server is, if it answers requests about the accounts of 4.x.
        """
        handlers.gate = gate
        if self.table is not None:
            AccessRequests(self.table, gate, self._clock).install(handlers)
        if names is not None:
            PlainRequests(self.accounts, _nobody if gate is None else gate.who, names).register(handlers)
        missing = needs.missing(handlers.by_code)
        assert not missing, f"requests without a row in the table of needs: {missing}"

    async def start(self) -> None:
        """Makes the users that the configuration names, if there are none of these names, and watches the accounts.

        Raises:
            ResponseError, StoreError: they cannot be made.
        """
        if self._started:
            return
        self._started = True
        if self.accounts is not None:
            from gimbalmq.access.plain_accounts import RELOAD_SECONDS

            self._tasks.every(RELOAD_SECONDS, self.accounts.refresh, "accounts")
        if self.table is None:
            return
        first, inner = self._config.first_user(), self._config.inner_credentials()
        if first is not None:
            await self.table.ensure_super(first.name, first.secret, "initAuthenticationUser")
        if inner is not None:
            await self.table.ensure_super(inner.name, inner.secret, "innerClientAuthenticationCredentials")
            if first is None or first.name != inner.name:
                self.table.servers_own = inner.name
        self._warn(self.table)

    def _warn(self, table: AccessTable) -> None:
        config = self._config
        if config.authenticates and not table.users() and not (self.accounts and self.accounts.accounts()):
            log.warning(
                "authentication is on, and there is no user yet: every request is refused; name the first one by "
                "initAuthenticationUser"
            )
        if self._folder is None and config.authenticates:
            log.warning(
                "users and policies are kept in memory only; name a folder for them by authConfigPath"
            )
        if config.access_mode == "permissive":
            log.warning("accessMode=permissive: requests that should be refused are served and noted")
        if not config.authenticates:
            log.warning(
                "users are kept, but authentication is off: anybody may make users, Super users among them; look at "
                "them before you switch it on"
            )

    async def close(self) -> None:
        await self._tasks.close()
        self.audit.close()


def _nobody(_channel: Channel, _request: RemotingCommand) -> User | None:
    return None
