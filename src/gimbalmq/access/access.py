"""What servers need to let the right ones in, put together from a configuration."""

from __future__ import annotations

import logging
from pathlib import Path

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq.access.admin_requests import AccessRequests
from gimbalmq.access.audit import Audit
from gimbalmq.access.config import AccessConfig
from gimbalmq.access.directory import Directories, Directory
from gimbalmq.access.failures import Failures
from gimbalmq.access.gate import Gate
from gimbalmq.access.needs import NeedTable
from gimbalmq.access.table import AccessTable
from gimbalmq.errors import ConfigError
from gimbalmq.store.files import Files
from gimbalmq.transport.channel import Handlers
from gimbalmq.transport.tasks import Tasks

log = logging.getLogger(__name__)


class Access:
    """Users, policies, the audit log and the count of failures. A broker and a name server in one process share one.

    ``load`` reads the files, ``gate`` and ``guard`` close a server's doors, ``start`` makes the first users, ``close``
    ends it all.

    Args:
        folder: where users and policies are kept unless ``authConfigPath`` says otherwise; None keeps them in memory.
        home: the folder of the server's data, in which ``conf`` is looked for unless ``aclConfigPath`` names another.
    """

    def __init__(
        self,
        config: AccessConfig,
        folder: Path | None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        files: Files | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._tasks = Tasks("access")
        self._started = False
        kept = Path(config.auth_config_path) if config.auth_config_path else folder
        self.table = AccessTable(kept, files=files) if config.keeps_users else None
        """None if there are no users at all."""
        self.failures = Failures(config, clock)
        self.audit = Audit(config, clock)

    def load(self) -> None:
        """Reads what is kept; raises ConfigError if it cannot be understood."""
        if self.table is not None:
            self.table.load()

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
        return Gate(self._directory(self.table), needs, config, self.failures, self.audit)

    def guard(self, handlers: Handlers, gate: Gate | None, needs: NeedTable) -> None:
        """Puts the gate before a server's handlers, which are all there, and adds those for users and policies."""
        handlers.gate = gate
        if self.table is not None:
            AccessRequests(self.table, gate, self._clock).install(handlers)
        missing = needs.missing(handlers.by_code)
        assert not missing, f"requests without a row in the table of needs: {missing}"

    def _directory(self, table: AccessTable) -> Directory:
        parts: list[Directory] = [table]
        return table if len(parts) == 1 else Directories(parts)

    async def start(self) -> None:
        """Makes the users that the configuration names, if there are none of these names.

        Raises:
            ConfigError, StoreError: they cannot be made.
        """
        if self._started:
            return
        self._started = True
        if self.table is None:
            return
        first, inner = self._config.first_user(), self._config.inner_credentials()
        if first is not None:
            await self.table.ensure_super(first.name, first.secret, "initAuthenticationUser")
        if inner is not None:
            await self.table.ensure_super(inner.name, inner.secret, "innerClientAuthenticationCredentials")
        if self._config.authenticates and not self.table.users():
            log.warning(
                "authentication is on, and there is no user yet: every request is refused. Name the first one by "
                "initAuthenticationUser"
            )

    async def close(self) -> None:
        await self._tasks.close()
        self.audit.close()
