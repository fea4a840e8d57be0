"""A broker's life with a controller, over real sockets; roles are only noted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.broker.json_file import TableThread
from gimbalmq.broker.replication.controller import Controllers
from gimbalmq.broker.replication.elections import Elections, Progress
from gimbalmq.broker.replication.identity import Applied, IdentityFile
from gimbalmq.broker.replication.sync_set import SyncSet
from gimbalmq.broker.replication.wholeness import Wholeness
from gimbalmq.errors import ConfigError, ConnectError, StoreIOError
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.rpc.controller import Standing
from gimbalmq.store.files import Files
from gimbalmq.transport.network import split_address
from gimbalmq.transport.pool import ChannelPool
from tests.broker.replication.controller_double import ControllerDouble
from tests.peers.process import free_port
from tests.support import run, until

NAME = "broker-a"


class Slave:
    def __init__(self, slave_id: int, acked: int) -> None:
        self.slave_id: int | None = slave_id
        self.acked = acked


class Broker:
    """Takes roles as a broker would, and notes them."""

    give_up: float | None = None

    def __init__(self, number: int, folder: Path, controllers: list[str]) -> None:
        config = BrokerConfig(
            store_path_root_dir=str(folder),
            broker_name=NAME,
            all_ack_in_sync_state_set=True,
            enable_controller_mode=True,
            controller_addr=";".join(controllers),
            broker_heartbeat_interval=50,
            sync_broker_metadata_period=5_000,
            check_sync_state_set_period=100,
        )
        self.live = LiveConfig(config)
        self.pool = ChannelPool(give_up_seconds=self.give_up)
        self.tables = TableThread()
        self.address = f"127.0.0.1:{20_000 + number}"
        self.roles: list[tuple[str, Standing]] = []
        self.epoch = -1
        self.end = 100 * number
        self.slaves: list[Slave] = []
        self.fails = 0
        identity = IdentityFile(folder / "brokerIdentity", config.broker_cluster_name, NAME)
        self.elections = Elections(
            Controllers(self.pool, config.controller_addresses),
            identity,
            self.live,
            SYSTEM_CLOCK,
            self.address,
            self,
            Wholeness(folder / "config", Files(), self.tables, was_closed=True),
        )

    def progress(self) -> Progress:
        return Progress(self.epoch, self.end, self.end, self.epoch)

    async def lead(self, standing: Standing) -> None:
        if self.fails:
            self.fails -= 1
            raise StoreIOError("the disk is gone")
        assert self.elections.own_id is not None
        sync_set = SyncSet(self.elections.own_id, self.slaves, lambda: self.end, self.live, SYSTEM_CLOCK)
        sync_set.begin(standing.in_sync, standing.set_epoch, self.end, goes_on=False)
        sync_set.wish = self.elections.wish
        self.elections.sync_set = sync_set
        self.epoch = standing.master_epoch
        self.roles.append(("master", standing))

    async def follow(self, standing: Standing) -> None:
        self.elections.sync_set = None
        self.roles.append(("slave", standing))

    @property
    def role(self) -> str:
        return self.roles[-1][0] if self.roles else ""

    async def close(self) -> None:
        await self.elections.close()
        await self.pool.close()
        self.tables.close()


@asynccontextmanager
async def broker(number: int, folder: Path, *controllers: str, joins: bool = True) -> AsyncIterator[Broker]:
    made = Broker(number, folder / str(number), list(controllers))
    (folder / str(number)).mkdir(exist_ok=True)
    await made.elections.start()
    try:
        if joins:
            await made.elections.joined()
        yield made
    finally:
        await made.close()


def test_the_first_is_master_the_second_its_slave(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            ControllerDouble() as double,
            broker(1, tmp_path, double.address) as first,
            broker(2, tmp_path, double.address) as second,
        ):
            assert (first.role, second.role) == ("master", "slave")
            assert (first.elections.own_id, second.elections.own_id) == (1, 2)
            standing = second.roles[0][1]
            assert standing == Standing(1, first.address, 1, frozenset((1,)), 1)
            assert first.roles[0][1] == replace(standing, is_new=True)
            text = (tmp_path / "2" / "brokerIdentity").read_text()
            assert text == f"DefaultCluster#{NAME}#2"
            assert not (tmp_path / "2" / "brokerIdentity-temp").exists()
            beat = double.alive[NAME][2]
            assert (beat.max_offset, beat.heartbeat_timeout_mills) == (200, 10_000)
            assert first.elections.trouble is None

    run(work())


def test_a_restart_keeps_the_id(tmp_path: Path) -> None:
    async def work() -> None:
        async with ControllerDouble() as double:
            async with broker(1, tmp_path, double.address):
                async with broker(2, tmp_path, double.address) as second:
                    assert second.elections.own_id == 2
                async with broker(2, tmp_path, double.address) as second:
                    assert second.elections.own_id == 2
            assert double.count(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID) == 2

    run(work())


def test_a_crash_between_the_two_questions_for_an_id_costs_none(tmp_path: Path) -> None:
    async def work() -> None:
        async with ControllerDouble() as double:
            double.swallow.append(RequestCode.CONTROLLER_APPLY_BROKER_ID)
            async with broker(1, tmp_path, double.address, joins=False):
                await until(lambda: NAME in double.replicas)
            assert (tmp_path / "1" / "brokerIdentity-temp").exists()
            async with broker(1, tmp_path, double.address) as again:
                assert again.elections.own_id == 1
            assert list(double.replicas[NAME].codes) == [1]

    run(work())


def test_an_id_that_somebody_else_has_is_given_up(tmp_path: Path) -> None:
    async def work() -> None:
        async with ControllerDouble() as double:
            (tmp_path / "1").mkdir()
            identity = IdentityFile(tmp_path / "1" / "brokerIdentity", "DefaultCluster", NAME)
            identity.apply(Applied(1, "127.0.0.1:1;1"))
            async with broker(2, tmp_path, double.address), broker(1, tmp_path, double.address) as late:
                assert late.elections.own_id == 2

    run(work())


def test_the_death_of_the_master_makes_the_slave_master(tmp_path: Path) -> None:
    async def work() -> None:
        async with ControllerDouble() as double, broker(2, tmp_path, double.address, joins=False) as second:
            await second.elections.joined()
            async with broker(1, tmp_path, double.address) as other:
                # The set has the master only; it asks for the slave that has everything.
                double.notify = lambda _: other.elections.notified()
                second.slaves.append(Slave(2, second.end))
                assert second.elections.sync_set is not None
                second.elections.sync_set.reported(second.slaves[0])
                await until(lambda: double.replicas[NAME].in_sync == {1, 2})
                await until(lambda: second.elections.sync_set and second.elections.sync_set.members == {1, 2})
                await second.pool.close()
                await until(lambda: other.role == "master")
                assert other.roles[-1][1].master_epoch == 2
                assert other.roles[-1][1].in_sync == {2}

    run(work())


def test_an_election_by_hand_changes_both_roles(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            ControllerDouble() as double,
            broker(1, tmp_path, double.address) as first,
            broker(2, tmp_path, double.address) as second,
        ):
            double.replicas[NAME].in_sync = {1, 2}
            double.replicas[NAME].set_epoch += 1
            assert double.elect(NAME, 2)
            first.elections.notified()
            second.elections.notified()
            await until(lambda: (first.role, second.role) == ("slave", "master"))
            assert first.roles[-1][1].master_address == second.address

    run(work())


def test_a_notice_alone_changes_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with ControllerDouble() as double, broker(1, tmp_path, double.address) as first:
            asked = double.count(RequestCode.CONTROLLER_GET_REPLICA_INFO)
            first.elections.notified()
            await until(lambda: double.count(RequestCode.CONTROLLER_GET_REPLICA_INFO) > asked)
            assert len(first.roles) == 1

    run(work())


def test_roles_stay_as_they_are_without_a_controller(tmp_path: Path) -> None:
    async def work() -> None:
        double = await ControllerDouble().start()
        async with broker(1, tmp_path, double.address) as first:
            await double.close()
            first.elections.notified()
            await until(lambda: first.elections.trouble is not None)
            assert first.role == "master" and len(first.roles) == 1
            assert first.elections.trouble is not None and double.address in first.elections.trouble

    run(work())


def test_nobody_is_elected_without_a_controller(tmp_path: Path) -> None:
    async def work() -> None:
        nowhere = f"127.0.0.1:{free_port()}"
        async with broker(1, tmp_path, nowhere, joins=False) as alone:
            await until(lambda: nowhere in (alone.elections.trouble or ""))
            assert not alone.roles
            double = ControllerDouble()
            await double.start(port=int(nowhere.rpartition(":")[2]))
            await alone.elections.joined()
            assert alone.role == "master"
            await double.close()

    run(work())


def test_questions_go_to_the_controller_that_leads(tmp_path: Path) -> None:
    async def work() -> None:
        async with ControllerDouble() as leader, ControllerDouble() as other:
            other.leads, other.leader_address = False, leader.address
            async with broker(1, tmp_path, other.address, leader.address) as first:
                assert first.role == "master"
                assert NAME in other.alive, "the next leader must know who lives"
                # Leadership moves, and with it what is known.
                other.replicas, other.leads, other.leader_address = leader.replicas, True, other.address
                leader.leads, leader.leader_address = False, other.address
                asked = other.count(RequestCode.CONTROLLER_GET_REPLICA_INFO)
                refused = leader.count(RequestCode.CONTROLLER_GET_REPLICA_INFO)
                first.elections.notified()
                await until(lambda: other.count(RequestCode.CONTROLLER_GET_REPLICA_INFO) > asked)
                assert leader.count(RequestCode.CONTROLLER_GET_REPLICA_INFO) == refused + 1
                await until(lambda: first.elections.trouble is None)

    run(work())


@pytest.mark.parametrize("denial", [None, ResponseCode.SYSTEM_ERROR, ResponseCode.CONTROLLER_NOT_LEADER])
def test_a_lost_answer_about_the_set_is_asked_again(
    denial: ResponseCode | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with (
            ControllerDouble() as double,
            broker(1, tmp_path, double.address) as first,
            broker(2, tmp_path, double.address),
        ):
            sync_set = first.elections.sync_set
            assert sync_set is not None
            first.slaves.append(Slave(2, first.end))
            if denial is None:
                double.swallow.append(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET)
            else:
                # So a controller answers that has to wait too long for the others, or is voted out meanwhile.
                double.deny[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = denial
            sync_set.reported(first.slaves[0])
            await until(lambda: double.replicas[NAME].in_sync == {1, 2})
            # The controller took it; we do not know that.
            assert sync_set.members == {1} and sync_set.counted == {1, 2}
            slave = first.slaves.pop()
            sync_set.left(slave)
            first.end += 50
            sync_set.advance()
            assert sync_set.confirm == first.end - 50
            # What comes next is refused for its old epoch; asking for the set brings the truth, and then the wish.
            await until(lambda: sync_set.members == {1} and not sync_set.is_uncertain)
            assert double.replicas[NAME].in_sync == {1} and double.replicas[NAME].set_epoch == 3
            assert sync_set.confirm == first.end

    monkeypatch.setattr("gimbalmq.rpc.controller.alter_sync_state_set.__kwdefaults__", {"timeout": 0.3})
    run(work())


def test_a_question_about_the_set_that_arrives_late_is_counted_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the next one, that the set is as it was, told nothing of the one before."""

    async def work() -> None:
        async with (
            ControllerDouble() as double,
            broker(1, tmp_path, double.address) as first,
            broker(2, tmp_path, double.address),
        ):
            sync_set = first.elections.sync_set
            assert sync_set is not None
            first.slaves.append(Slave(2, first.end))
            arrives = double.late[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = asyncio.Event()
            sync_set.reported(first.slaves[0])
            await until(lambda: RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET not in double.late)
            sync_set.left(first.slaves.pop())
            first.end += 50
            # Its set is still the one we know, so what is asked then changes nothing.
            asked = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
            await until(lambda: double.count(asked) == 3 or not sync_set.is_uncertain)
            sync_set.advance()
            assert sync_set.confirm == first.end - 50, "the other may still get into the set, and be elected"
            arrives.set()
            await until(lambda: double.replicas[NAME].in_sync == {1, 2})
            await until(lambda: sync_set.members == {1} and not sync_set.is_uncertain)
            assert double.replicas[NAME].in_sync == {1} and double.replicas[NAME].set_epoch == 3
            assert sync_set.confirm == first.end

    monkeypatch.setattr("gimbalmq.rpc.controller.alter_sync_state_set.__kwdefaults__", {"timeout": 0.3})
    run(work())


@pytest.mark.parametrize("body", [b"{", b"", b'{"syncStateSet":[1],"syncStateSetEpoch":2}'])
def test_an_answer_about_the_set_that_cannot_be_is_one_that_is_lost(tmp_path: Path, body: bytes) -> None:
    """The master asked nothing any more then, and a dead slave was waited for until the next start; or it took a set
    without the slave for granted."""

    async def work() -> None:
        async with (
            ControllerDouble() as double,
            broker(1, tmp_path, double.address) as first,
            broker(2, tmp_path, double.address),
        ):
            sync_set = first.elections.sync_set
            assert sync_set is not None
            first.slaves.append(Slave(2, first.end))
            double.garble[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = body
            sync_set.reported(first.slaves[0])
            await until(lambda: double.replicas[NAME].in_sync == {1, 2} and not double.garble)
            await until(lambda: first.elections.trouble or sync_set.epoch > 1)
            sync_set.left(first.slaves.pop())
            first.end += 50
            sync_set.advance()
            assert sync_set.confirm == first.end - 50, "it may be in the set"
            await until(lambda: double.replicas[NAME].in_sync == {1} and sync_set.confirm == first.end)

    run(work(), 20.0)


def test_a_member_that_the_controller_was_made_to_forget_is_not_waited_for(tmp_path: Path) -> None:
    """The set's epoch stays the same then, and so the master never believed that the member was out of it."""

    async def work() -> None:
        async with (
            ControllerDouble() as double,
            broker(1, tmp_path, double.address) as first,
            broker(2, tmp_path, double.address),
            broker(3, tmp_path, double.address),
        ):
            sync_set = first.elections.sync_set
            assert sync_set is not None
            first.slaves.append(Slave(2, first.end))
            sync_set.reported(first.slaves[0])
            await until(lambda: sync_set.members == {1, 2})
            double.clean(NAME, 2)
            sync_set.left(first.slaves.pop())
            first.end += 50
            sync_set.advance()
            await until(lambda: sync_set.confirm == first.end and not sync_set.is_uncertain)
            assert sync_set.members == {1}
            # And others join as before.
            first.slaves.append(Slave(3, first.end))
            sync_set.reported(first.slaves[0])
            await until(lambda: sync_set.members == double.replicas[NAME].in_sync == {1, 3})

    run(work())


@pytest.mark.parametrize("why", ["not heard", "forgotten"])
def test_a_slave_that_the_controller_does_not_take_keeps_no_other_one_out_of_the_set(
    tmp_path: Path, why: str
) -> None:
    async def work() -> None:
        async with (
            ControllerDouble() as double,
            broker(1, tmp_path, double.address) as first,
            broker(2, tmp_path, double.address) as second,
            broker(3, tmp_path, double.address),
        ):
            sync_set = first.elections.sync_set
            assert sync_set is not None
            # Its log is copied, and the controller does not know it (any more).
            if why == "forgotten":
                double.clean(NAME, 2)
            else:
                await second.elections.close()
                double.missed(NAME, 2)
            first.slaves.append(Slave(2, first.end))
            sync_set.reported(first.slaves[0])
            await until(lambda: double.count(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET) > 0)
            first.slaves.append(Slave(3, first.end))
            sync_set.reported(first.slaves[1])
            await until(lambda: sync_set.members == double.replicas[NAME].in_sync == {1, 3})

    run(work(), 20.0)


def test_members_whom_the_controller_does_not_hear_stay_if_nobody_else_can_join(tmp_path: Path) -> None:
    """They have everything, and sends need them (minInSyncReplicas)."""

    async def work() -> None:
        async with (
            ControllerDouble() as double,
            broker(1, tmp_path, double.address) as first,
            broker(2, tmp_path, double.address) as second,
            broker(3, tmp_path, double.address) as third,
        ):
            sync_set = first.elections.sync_set
            assert sync_set is not None
            first.slaves.append(Slave(2, first.end))
            sync_set.reported(first.slaves[0])
            await until(lambda: sync_set.members == {1, 2})
            for number, unheard in ((2, second), (3, third)):
                await unheard.elections.close()
                double.missed(NAME, number)
            first.slaves.append(Slave(3, first.end))
            sync_set.reported(first.slaves[1])
            # When the next one is asked all that followed the first one is over.
            asked = double.count(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET)
            await until(lambda: double.count(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET) >= asked + 2)
            assert sync_set.members == double.replicas[NAME].in_sync == {1, 2}

    run(work(), 20.0)


def test_a_role_that_cannot_be_taken_is_tried_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with ControllerDouble() as double, broker(1, tmp_path, double.address, joins=False) as first:
            first.fails = 1
            await first.elections.joined()
            assert [role for role, _ in first.roles] == ["master"]

    run(work())


def test_a_controller_that_lost_its_data_is_not_believed(tmp_path: Path) -> None:
    async def work() -> None:
        async with ControllerDouble() as double:
            async with broker(1, tmp_path, double.address) as first:
                first.epoch = 9
                first.elections.standing = None
                await first.elections.look()
                assert len(first.roles) == 1
                assert "epoch 1" in (first.elections.trouble or "")
            double.replicas.clear()
            async with broker(1, tmp_path, double.address, joins=False) as again:
                await until(lambda: "does not know id 1" in (again.elections.trouble or ""))
                assert "remove brokerIdentity" in (again.elections.trouble or "")

    run(work())


def test_who_does_not_have_everything_is_not_elected(tmp_path: Path) -> None:
    async def work() -> None:
        async with ControllerDouble() as double, broker(2, tmp_path, double.address, joins=False) as second:
            double.refuse[RequestCode.CONTROLLER_ELECT_MASTER] = ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
            await until(
                lambda: "none of those that have everything lives" in (second.elections.trouble or "")
            )
            assert not second.roles

    run(work())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Other#broker-a#1", "belongs to Other#broker-a"),
        ("DefaultCluster#broker-a#0", "1, 2"),
        ("DefaultCluster#broker-a", "not cluster#name#id"),
    ],
)
def test_a_folder_of_another_broker_stops_the_start(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "brokerIdentity").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        IdentityFile(tmp_path / "brokerIdentity", "DefaultCluster", NAME).given()


def test_an_empty_identity_is_none(tmp_path: Path) -> None:
    (tmp_path / "brokerIdentity").write_text("")
    assert IdentityFile(tmp_path / "brokerIdentity", "DefaultCluster", NAME).given() is None


def test_all_controllers_gone_is_said_with_their_addresses() -> None:
    async def work() -> None:
        pool = ChannelPool()
        ports = [free_port(), free_port()]
        controllers = Controllers(pool, [f"127.0.0.1:{port}" for port in ports])
        with pytest.raises(ConnectError, match="no controller leads") as error:
            await controllers.find_leader()
        assert all(str(port) in str(error.value) for port in ports)
        await pool.close()

    run(work())


def test_heartbeats_do_not_wait_for_a_controller_that_is_gone(tmp_path: Path) -> None:
    async def work() -> None:
        async with ControllerDouble() as double:
            gone = f"127.0.0.1:{free_port()}"
            async with broker(1, tmp_path, gone, double.address) as first:
                double.alive.clear()
                await until(lambda: NAME in double.alive)
                assert first.role == "master"

    run(work())


class Line:
    """A way to the controller. Connections that die on it stay open, and what is written there goes nowhere."""

    def __init__(self, target: str) -> None:
        self._target = split_address(target)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def laid(self) -> AsyncIterator[str]:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        listening.bind(("127.0.0.1", 0))
        server = await asyncio.start_server(self._connected, sock=listening, limit=16)
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.close()
            self.die()
            for end in self._ends:
                end.transport.abort()
            await asyncio.gather(*(end.wait_closed() for end in self._ends), return_exceptions=True)

    def die(self) -> None:
        """The connections of now die; those that are made later live."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._ends += [writer, far_writer]
        for source, target in ((reader, far_writer), (far_reader, writer)):
            self._tasks.add(asyncio.create_task(self._pump(source, target)))

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            target.write(data)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no such option")
def test_a_dead_connection_to_the_controller_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall has forgotten it, and says so to nobody: the kernel tries for a quarter of an hour."""
    monkeypatch.setattr(Broker, "give_up", 0.5)

    async def work() -> None:
        async with ControllerDouble() as double:
            line = Line(double.address)
            async with line.laid() as address:
                double.leader_address = address
                async with broker(1, tmp_path, address) as first:
                    line.die()
                    double.forget_connections()
                    double.heard.clear()
                    await until(lambda: double.heard)
                    await first.elections.look()
                    assert first.elections.trouble is None

    run(work(), 30.0)
