"""What a slave keeps of what its master said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.broker.json_file import TableThread
from gimbalmq.broker.replication.heard import HeardOfMaster
from gimbalmq.broker.replication.role import Kind, Role
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.replication_bodies import HaStatus
from gimbalmq.store.files import Files
from tests.support import run, until


class Master:
    """Says what it is told to say."""

    def __init__(self, slaves: int, end: int) -> None:
        self.slaves = slaves
        self.end = end

    async def call(self, address: str, request: RemotingCommand, *_: Any, **__: Any) -> RemotingCommand:
        status = HaStatus(
            master=True,
            broker_role="SYNC_MASTER",
            slaves=self.slaves,
            master_commit_log_max_offset=self.end,
        )
        return request.reply(body=status.dump())


def test_a_slave_that_has_gone_counts_until_we_have_all_that_it_may_have(tmp_path: Path) -> None:
    """It may be the only one with a message that was answered a moment ago."""

    async def work() -> None:
        thread, master, received = TableThread(Files()), Master(2, 100), [100]
        caller: Any = master
        heard = HeardOfMaster(tmp_path, Files(), thread, caller, SYSTEM_CLOCK, lambda: received[0])
        heard.aim("master:1")
        await heard.look()
        assert (heard.role, heard.slaves) == ("SYNC_MASTER", 2)
        master.slaves, master.end = 1, 150
        await heard.look()
        assert heard.slaves == 2
        received[0] = 150
        await heard.look()
        assert heard.slaves == 1
        # What it heard before its own term is not there after a restart, either.
        slave, own = Role(Kind.SLAVE, 1), Role(Kind.MASTER, 0)
        heard.role_changed(slave, own)
        again = HeardOfMaster(tmp_path, Files(), thread, caller, SYSTEM_CLOCK, lambda: 0)

        def loaded() -> tuple[str, int]:
            again.load()
            return again.role, again.slaves

        await until(lambda: loaded() == ("", -1))
        await heard.close()
        thread.close()

    run(work())
