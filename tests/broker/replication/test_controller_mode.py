"""Brokers with a controller: real sockets, real stores, a scripted controller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gimbalmq.broker.broker import Broker
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.broker.replication.follower import State
from gimbalmq.errors import ResponseError
from gimbalmq.nameserver import NameServer, NameServerConfig
from gimbalmq.protocol.bodies import TopicConfig
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.ha_epochs import Epoch
from gimbalmq.protocol.headers.controller import RoleChange
from gimbalmq.protocol.replication_bodies import EpochTable
from gimbalmq.rpc import management
from gimbalmq.transport.pool import ChannelPool
from tests.broker.desk import send_fields
from tests.broker.replication.controller_double import ControllerDouble
from tests.support import run, until

NAME = "broker-a"
TOPIC = "T"


class Set:
    """A name server, a controller, and replicas by number; what is sent is noted by its answer."""

    def __init__(self, folder: Path, namesrv: str) -> None:
        self.folder = folder
        self.namesrv = namesrv
        self.notices: list[asyncio.Future[None]] = []
        self.controller = ControllerDouble()
        self.pool = ChannelPool()
        self.brokers: dict[int, Broker] = {}
        self.accepted: list[bytes] = []
        self._sent = 0

    async def start(self, number: int, **options: object) -> Broker:
        config, _ = BrokerConfig.from_properties(
            {
                "storePathRootDir": str(self.folder / str(number)),
                "brokerName": NAME,
                "bindAddress": "127.0.0.1",
                "listenPort": "0",
                "namesrvAddr": self.namesrv,
                "enableControllerMode": "true",
                "controllerAddr": self.controller.address,
                "brokerRole": "SLAVE",
                "brokerId": "-1",
                "allAckInSyncStateSet": "true",
                "mappedFileSizeCommitLog": "1048576",
                "brokerHeartbeatInterval": "100",
                "checkSyncStateSetPeriod": "200",
                "slaveTimeout": "1500",
                **{key: str(value) for key, value in options.items()},
            }
        )
        broker = self.brokers[number] = Broker(config)
        await broker.start()
        assert broker.controller_mode is not None
        await broker.controller_mode.elections.joined()
        return broker

    async def kill(self, number: int) -> None:
        await self.brokers.pop(number).abandon()

    def notify(self, name: str) -> None:
        for address in self.controller.replicas[name].addresses.values():
            self._tell(address)

    def _tell(self, address: str) -> None:
        async def tell() -> None:
            try:
                notice = RemotingCommand(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, RoleChange().to_ext())
                await self.pool.oneway(address, notice)
            except Exception:
                pass  # it is dead

        self.notices.append(asyncio.ensure_future(tell()))

    @property
    def master(self) -> Broker:
        return next(broker for broker in self.brokers.values() if broker.roles.is_master)

    async def in_sync(self, *ids: int) -> None:
        await until(lambda: self.controller.replicas[NAME].in_sync == set(ids))
        mode = self.master.controller_mode
        assert mode is not None and mode.sync_set is not None
        sync_set = mode.sync_set
        await until(lambda: sync_set.members == set(ids))

    async def send(self, broker: Broker, count: int = 1, size: int = 100) -> list[int]:
        """Sends messages one after the other; answers their codes."""
        codes = []
        for _ in range(count):
            self._sent += 1
            body = f"{self._sent:08}".encode().ljust(size, b".")
            request = RemotingCommand(
                RequestCode.SEND_MESSAGE_V2, send_fields(topic=TOPIC, queue_id=self._sent % 4), body
            )
            answer = await self.pool.call(broker.address, request, 5.0)
            codes.append(answer.code)
            if answer.code == ResponseCode.SUCCESS:
                self.accepted.append(body)
        return codes

    async def topic(self) -> None:
        config = TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4)
        await management.create_topic(self.pool, self.master.address, config)


@asynccontextmanager
async def replicas(folder: Path, *numbers: int, **options: object) -> AsyncIterator[Set]:
    namesrv = NameServer(NameServerConfig(listen_port=0, bind_address="127.0.0.1"))
    await namesrv.start()
    made = Set(folder, f"127.0.0.1:{namesrv.port}")
    await made.controller.start()
    made.controller.notify = made.notify
    try:
        for number in numbers:
            await made.start(number, **options)
        await made.topic()
        yield made
    finally:
        for broker in made.brokers.values():
            await broker.close()
        await asyncio.gather(*made.notices)
        await made.pool.close()
        await made.controller.close()
        await namesrv.close()


def stored(broker: Broker) -> list[bytes]:
    """Bodies of all messages that readers of this broker see."""
    bodies = []
    for queue_id in broker.store.queue_ids(TOPIC):
        queue = broker.store.find_queue(TOPIC, queue_id)
        assert queue is not None
        for offset, _, _ in broker.store.entries(TOPIC, queue_id, 0, queue.max_offset):
            record = broker.store.record_at(offset)
            assert record is not None
            bodies.append(bytes(record))
    return bodies


def has_all(broker: Broker, bodies: list[bytes]) -> bool:
    records = b"".join(stored(broker))
    return all(body in records for body in bodies)


def epochs(broker: Broker) -> tuple[Epoch, ...]:
    assert broker.controller_mode is not None
    return broker.controller_mode.epochs.entries


def test_sends_wait_for_all_of_the_set(tmp_path: Path) -> None:
    async def work() -> None:
        async with replicas(tmp_path, 1, 2) as made:
            first, second = made.brokers[1], made.brokers[2]
            assert first.roles.is_master and not second.roles.is_master
            await made.in_sync(1, 2)
            assert await made.send(first, 20) == [0] * 20
            # What was answered is there without waiting.
            assert has_all(second, made.accepted)
            assert second.store.max_commitlog_offset == first.store.max_commitlog_offset
            assert epochs(first) == epochs(second) == (Epoch(1, 0),)
            assert await made.send(second) == [ResponseCode.SERVICE_NOT_AVAILABLE]

    run(work(), 20.0)


def test_the_slave_goes_on_when_the_master_dies(tmp_path: Path) -> None:
    async def work() -> None:
        async with replicas(tmp_path, 1, 2) as made:
            await made.in_sync(1, 2)
            await made.send(made.brokers[1], 10)
            await made.kill(1)
            second = made.brokers[2]
            await until(lambda: second.roles.is_master)
            assert second.roles.now.epoch == 2
            assert await made.send(second, 5) == [0] * 5
            assert has_all(second, made.accepted)
            assert [entry.epoch for entry in epochs(second)] == [1, 2]
            first = await made.start(1)
            assert not first.roles.is_master
            await made.in_sync(1, 2)
            assert has_all(first, made.accepted) and epochs(first) == epochs(second)

    run(work(), 20.0)


def test_an_old_master_cuts_what_nobody_else_has(tmp_path: Path) -> None:
    async def work() -> None:
        async with replicas(tmp_path, 1, 2) as made:
            await made.in_sync(1, 2)
            first, second = made.brokers[1], made.brokers[2]
            await made.send(first, 3)
            # The slave is gone for the master and not for the controller: nothing more is confirmed.
            await second.replication.follower.close()
            made.controller.refuse[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = 2001
            codes = await made.send(first, 1)
            assert codes == [ResponseCode.FLUSH_SLAVE_TIMEOUT] or codes == [0]
            lost = first.store.max_commitlog_offset - second.store.max_commitlog_offset
            assert lost > 0
            made.controller.replicas[NAME].in_sync = {1, 2}
            await made.kill(1)
            await until(lambda: second.roles.is_master)
            made.accepted = [body for body in made.accepted if body in b"".join(stored(second))]
            await made.send(second, 4)
            first = await made.start(1)
            await made.in_sync(1, 2)
            assert _log(first) == _log(second)
            assert epochs(first) == epochs(second)

    run(work(), 20.0)


def _log(broker: Broker) -> bytes:
    store = broker.store
    at, data = store.min_commitlog_offset, b""
    while at < store.max_commitlog_offset:
        piece = bytes(store.log_bytes(at, 1 << 20))
        data += piece
        at += len(piece)
    return data


def test_a_term_without_data_does_not_hide_that_logs_differ(tmp_path: Path) -> None:
    """Apache's brokers would take the two logs for the same: epoch and start are equal, and bytes are not."""

    async def work() -> None:
        async with replicas(tmp_path, 1, 2) as made:
            await made.in_sync(1, 2)
            first, second = made.brokers[1], made.brokers[2]
            await made.send(first, 2)
            await second.replication.follower.close()
            made.controller.refuse[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = 2001
            await made.send(first, 1, size=200)
            made.controller.replicas[NAME].in_sync = {1, 2}
            await made.kill(1)
            await until(lambda: second.roles.is_master)
            mode = second.controller_mode
            assert mode is not None
            # As if the new term had begun where the old one did: it leaves no entry.
            mode.epochs.cut(1)
            await made.send(second, 5, size=70)
            first = await made.start(1)
            await made.in_sync(1, 2)
            assert _log(first) == _log(second)

    run(work(), 20.0)


def test_the_controllers_death_changes_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with replicas(tmp_path, 1, 2) as made:
            await made.in_sync(1, 2)
            await made.controller.close()
            assert await made.send(made.brokers[1], 5) == [0] * 5
            assert made.brokers[1].roles.is_master and has_all(made.brokers[2], made.accepted)

    run(work(), 20.0)


def test_a_slave_that_leaves_is_waited_for_until_the_controller_knows(tmp_path: Path) -> None:
    async def work() -> None:
        async with replicas(tmp_path, 1, 2) as made:
            await made.in_sync(1, 2)
            await made.kill(2)
            assert await made.send(made.brokers[1]) == [0]
            assert made.controller.replicas[NAME].in_sync == {1}

    run(work(), 20.0)


def test_readers_see_what_is_confirmed(tmp_path: Path) -> None:
    async def work() -> None:
        async with replicas(tmp_path, 1, 2) as made:
            await made.in_sync(1, 2)
            first, second = made.brokers[1], made.brokers[2]
            await made.send(first, 4)
            await second.replication.follower.close()
            made.controller.refuse[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = 2001
            confirmed = first.store.max_commitlog_offset
            sending = asyncio.ensure_future(made.send(first, 1))
            await until(lambda: first.store.max_commitlog_offset > confirmed)
            assert first.store.reader_limit == confirmed
            assert (
                sum(
                    first.store.readable_max(queue)
                    for queue_id in range(4)
                    if (queue := first.store.find_queue(TOPIC, queue_id)) is not None
                )
                == 4
            )
            await sending
            await until(lambda: first.store.reader_limit == first.store.max_commitlog_offset)

    run(work(), 20.0)


def test_epochs_are_told(tmp_path: Path) -> None:
    async def work() -> None:
        async with replicas(tmp_path, 1) as made:
            await made.send(made.brokers[1])
            answer = await made.pool.call(
                made.brokers[1].address, RemotingCommand(RequestCode.GET_BROKER_EPOCH_CACHE), 3.0
            )
            table = EpochTable.parse(answer.body)
            assert (table.broker_id, table.broker_name) == (1, NAME)
            end = made.brokers[1].store.max_commitlog_offset
            assert [(e.epoch, e.start_offset, e.end_offset) for e in table.epoch_list] == [(1, 0, end)]

    run(work(), 20.0)


def test_a_slave_behind_by_files_catches_up_and_joins(tmp_path: Path) -> None:
    async def work() -> None:
        async with replicas(tmp_path, 1) as made:
            await made.send(made.brokers[1], 60, size=50_000)
            second = await made.start(2)
            await made.in_sync(1, 2)
            assert second.store.min_commitlog_offset == 0
            await until(lambda: second.replication.follower.state is State.FOLLOWING)
            assert _log(second) == _log(made.brokers[1])

    run(work(), 20.0)


def test_a_restart_of_all_finds_everything(tmp_path: Path) -> None:
    async def work() -> None:
        async with replicas(tmp_path, 1, 2) as made:
            await made.in_sync(1, 2)
            await made.send(made.brokers[1], 10)
            await made.kill(2)
            await made.send(made.brokers[1], 2)
            await made.kill(1)
            # Only 1 has everything; 2 waits for it.
            late = asyncio.ensure_future(made.start(2))
            await until(lambda: "none of those that have everything" in _trouble(made.brokers.get(2)))
            assert not made.brokers[2].roles.is_master
            first = await made.start(1)
            assert first.roles.is_master
            await late
            await made.in_sync(1, 2)
            assert has_all(made.brokers[2], made.accepted)

    run(work(), 20.0)


def _trouble(broker: Broker | None) -> str:
    if broker is None or getattr(broker, "controller_mode", None) is None:
        return ""
    assert broker.controller_mode is not None
    return broker.controller_mode.elections.trouble or ""


def test_a_role_cannot_be_given_by_hand(tmp_path: Path) -> None:
    async def work() -> None:
        async with replicas(tmp_path, 1) as made:
            try:
                await management.update_broker_config(
                    made.pool, made.brokers[1].address, {"brokerRole": "SLAVE", "brokerId": "1"}
                )
            except ResponseError as error:
                assert "controller" in error.remark
            else:
                raise AssertionError("the role was changed by hand")

    run(work(), 20.0)
