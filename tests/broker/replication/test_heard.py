"""What a slave keeps of what its master said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.broker.json_file import TableThread
from gimbalmq.broker.replication.heard import HeardOfMaster
from gimbalmq.broker.replication.role import Kind, Role
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.replication_bodies import HaConnection, HaStatus
from gimbalmq.store.files import Files
from tests.support import ManualClock, run, until


class Master:
    """Says what it is told to say.

    Attributes:
        slaves: how many it says that it has; None if it is Apache's, which lists them.
        asked: called when it is asked.
    """

    def __init__(self, slaves: int | None, end: int, connections: int = 0) -> None:
        self.slaves = slaves
        self.end = end
        self.connections = connections
        self.asked: Callable[[], object] = lambda: None

    async def call(self, address: str, request: RemotingCommand, *_: Any, **__: Any) -> RemotingCommand:
        self.asked()
        status = HaStatus(
            master=True,
            broker_role="SYNC_MASTER",
            slaves=self.slaves,
            ha_connection_info=[HaConnection() for _ in range(self.connections)],
            master_commit_log_max_offset=self.end,
        )
        return request.reply(body=status.dump())


def test_a_slave_that_has_gone_counts_until_we_have_all_that_it_may_have(tmp_path: Path) -> None:
    """It may be the only one with a message that was answered a moment ago."""

    async def work() -> None:
        thread, master, received, clock = TableThread(Files()), Master(2, 100), [100], ManualClock()
        caller: Any = master
        heard = HeardOfMaster(tmp_path, Files(), thread, caller, clock, lambda: received[0])
        heard.aim("master:1")
        await heard.look()
        assert (heard.role, heard.slaves) == ("SYNC_MASTER", 2)
        master.slaves, master.end = 1, 150
        await heard.look()
        clock.advance(100)
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


def test_a_slave_whose_connection_broke_counts_for_a_minute(tmp_path: Path) -> None:
    """It is back soon, and gets what we do not get if we are cut off by then: nobody tells us of either."""

    async def work() -> None:
        thread, master, clock = TableThread(Files()), Master(2, 100), ManualClock()
        caller: Any = master
        heard = HeardOfMaster(tmp_path, Files(), thread, caller, clock, lambda: 100)
        heard.aim("master:1")
        await heard.look()
        for said, seconds, counted in ((1, 59, 2), (2, 1, 2), (1, 57, 2), (1, 3, 1), (0, 1, 1), (0, 60, 0)):
            master.slaves = said
            await heard.look()
            clock.advance(seconds)
            await heard.look()
            assert heard.slaves == counted, (said, seconds)
        # A slave that is started again has not forgotten it, and counts from then on.
        master.slaves = 2
        await heard.look()
        again = HeardOfMaster(tmp_path, Files(), thread, caller, clock, lambda: 100)
        again.load()
        master.slaves = 1
        again.aim("master:1")
        await again.look()
        assert again.slaves == 2
        for one in (heard, again):
            await one.close()
        thread.close()

    run(work())


def test_slaves_are_counted_by_their_connections_if_the_master_does_not_say_how_many(tmp_path: Path) -> None:
    async def work() -> None:
        thread = TableThread(Files())
        apaches: Any = Master(None, 100, connections=3)
        heard = HeardOfMaster(tmp_path, Files(), thread, apaches, SYSTEM_CLOCK, lambda: 100)
        heard.aim("master:1")
        await heard.look()
        assert (heard.role, heard.slaves) == ("SYNC_MASTER", 3)
        await heard.close()
        thread.close()

    run(work())


def test_an_answer_of_a_master_that_is_not_copied_any_more_is_not_kept(tmp_path: Path) -> None:
    async def work() -> None:
        thread, master = TableThread(Files()), Master(2, 100)
        caller: Any = master
        heard = HeardOfMaster(tmp_path, Files(), thread, caller, SYSTEM_CLOCK, lambda: 100)
        heard._master = "old:1"
        master.asked = lambda: setattr(heard, "_master", "new:1")
        await heard.look()
        assert (heard.role, heard.slaves) == ("", -1)
        await heard.look()
        assert (heard.role, heard.slaves) == ("SYNC_MASTER", 2)
        await heard.close()
        thread.close()

    run(work())
