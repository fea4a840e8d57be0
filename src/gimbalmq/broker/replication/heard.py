"""What a slave last heard of its master, for whoever promotes it: whether sends waited, and how many slaves there were.

A new master must promise what the old one did. And one of several slaves may have been the only one with a message that
was answered, so a tool that promotes another one has to know how many there were. Both are kept in a file, because a
slave may be started again while its master is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gimbalmq._clock import Clock
from gimbalmq.broker.json_file import JsonFile, TableThread
from gimbalmq.broker.replication.config import ASYNC_MASTER, SYNC_MASTER
from gimbalmq.broker.replication.headcount import Headcount
from gimbalmq.broker.replication.role import Role
from gimbalmq.errors import RequestCodeNotSupportedError, RocketMQError, StoreError
from gimbalmq.rpc import management, replication
from gimbalmq.rpc.call import Caller
from gimbalmq.store.files import Files
from gimbalmq.transport.tasks import Tasks

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_ROLE_SECONDS = 10.0
"""Between questions to a master of Apache's, whose role is only found among all of its configuration."""
_SECONDS = 3.0

_Heard = tuple[str, int]
_NOTHING: _Heard = ("", -1)


def _read(document: Any) -> _Heard:
    return str(document["masterRole"]), int(document["masterSlaves"])


class HeardOfMaster:
    """Asks the master every second while it is copied.

    Args:
        received: where our own log ends.

    Attributes:
        role: ASYNC_MASTER or SYNC_MASTER; empty if the master has never said.
        slaves: how many copied the master in the minute before it was last heard; -1 if that is not known, as with a
            master of 4.9.
    """

    def __init__(
        self,
        folder: Path,
        files: Files,
        thread: TableThread,
        caller: Caller,
        clock: Clock,
        received: Callable[[], int],
    ) -> None:
        self._file = JsonFile(folder / "heardOfMaster.json", files)
        self._thread = thread
        self._caller = caller
        self._clock = clock
        self._received = received
        self._tasks = Tasks("heard of the master")
        self._master: str | None = None
        self._role_until = 0.0
        self._headcount = Headcount(clock)
        self.role, self.slaves = _NOTHING

    def load(self) -> None:
        try:
            self.role, self.slaves = self._file.load(_read) or _NOTHING
            self._headcount.note(self.slaves)
        except (StoreError, KeyError, TypeError, ValueError) as error:
            log.warning("what was heard of the master is not known any more: %s", error)

    def aim(self, master: str | None) -> None:
        """The master that is copied from now on; None if nobody is."""
        if master != self._master:
            self._master, self._role_until = master, 0.0
            self._tasks.spawn(self.look(), "first question")

    async def start(self) -> None:
        self._tasks.every(_LOOK_SECONDS, self.look, "questions")

    async def close(self) -> None:
        await self._tasks.close()

    def role_changed(self, before: Role, now: Role) -> None:
        """What a broker heard before it was the master itself is of no use later."""
        if now.is_master and (self.role, self.slaves) != _NOTHING:
            self.role, self.slaves = _NOTHING
            self._headcount.forget()
            self._tasks.spawn(self.keep(*_NOTHING), "forgetting")

    async def look(self) -> None:
        """Asks, and keeps what is new; a master that does not answer has said the last word before."""
        master = self._master
        if not master:
            return
        try:
            role, slaves = await self._ask(master)
        except RocketMQError:
            return
        if master == self._master and (role, slaves) != (self.role, self.slaves):
            await self.keep(role, slaves)

    async def keep(self, role: str, slaves: int) -> None:
        """Takes what the master said."""
        self.role, self.slaves = role, slaves
        try:
            await self._thread.run(lambda: self._file.save({"masterRole": role, "masterSlaves": slaves}))
        except StoreError as error:
            log.warning("what was heard of the master cannot be kept: %s", error)

    async def _ask(self, master: str) -> _Heard:
        try:
            status = await replication.ha_status(self._caller, master, timeout=_SECONDS)
        except RequestCodeNotSupportedError:
            return await self._ask_role(master), -1
        if not status.master:
            return self.role, self.slaves
        role = status.broker_role or await self._ask_role(master)
        self._headcount.note(len(status.ha_connection_info) if status.slaves is None else status.slaves)
        slaves = self._headcount.most
        if self._received() < status.master_commit_log_max_offset:
            # One that has just gone may be the only one that has what we lack, and that may have been answered.
            slaves = max(slaves, self.slaves)
        return role, slaves

    async def _ask_role(self, master: str) -> str:
        now = self._clock.monotonic()
        if now < self._role_until:
            return self.role
        self._role_until = now + _ROLE_SECONDS
        config = await management.broker_config(self._caller, master, timeout=_SECONDS)
        role = config.get("brokerRole", "")
        return role if role in (ASYNC_MASTER, SYNC_MASTER) else self.role
