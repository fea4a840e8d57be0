"""The broker and its name servers: told at once, told again, told goodbye."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq._steps import run_through
from gimbalmq.broker.announcement import Announcement
from gimbalmq.broker.replication import sync_set
from gimbalmq.errors import TableFullError
from gimbalmq.model.queues import MessageQueue
from gimbalmq.nameserver import NameServer, NameServerConfig
from gimbalmq.protocol.bodies import DataVersion, KvTable, RegisterBrokerBody, TopicConfig
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.nameserver import PART_OF_A_TABLE, RegisterBroker
from gimbalmq.rpc import nameserver as rpc
from gimbalmq.testing import LocalCluster
from gimbalmq.transport.channel import Channel, Handlers
from gimbalmq.transport.pool import ChannelPool
from gimbalmq.transport.server import RemotingServer
from tests.broker.desk import Desk, open_desk, send_fields, turns
from tests.peers.process import free_port
from tests.support import run, until


def _large(count: int, attributes: int) -> list[TopicConfig]:
    return [TopicConfig(topic_name=f"big-{n}", attributes={"a": "x" * attributes}) for n in range(count)]


def test_parts_are_cut_by_bytes_not_by_topics(tmp_path: Path) -> None:
    """300 topics with attributes of 60 KB made a frame of 18 MB, which no name server takes."""

    async def work() -> None:
        async with double() as name_server, open_desk(tmp_path, namesrvAddr=name_server.address) as desk:
            registration = desk.broker._registration
            registration.announcements.part_bytes = 200_000
            name_server.calls.clear()
            name_server.sizes.clear()
            desk.broker.topics.put(*_large(20, 60_000), *_large(21, 700_000)[20:])
            await registration.register_all()
            told = [name for _, table in name_server.calls for name in table]
            assert {f"big-{n}" for n in range(21)} <= set(told)
            assert max(name_server.sizes) < 201_000
            # A refused part does not keep the others back.
            name_server.calls.clear()
            name_server.refused = 1
            await registration.register_all()
            told = [name for _, table in name_server.calls for name in table]
            assert {f"big-{n}" for n in range(21)} <= set(told)
            name_server.refused = 0

    run(work())


class NameServerDouble:
    """Answers registrations as a name server does, and notes them."""

    def __init__(self) -> None:
        self.calls: list[tuple[RegisterBroker, dict[str, object]]] = []
        self.versions: list[DataVersion] = []
        self.marked: list[bool] = []
        self.sizes: list[int] = []
        self.refused = 0
        """So many more registrations are answered with an error."""
        self.goodbyes = 0
        self.order = KvTable()
        self.hold: asyncio.Event | None = None
        self.deaf: set[Channel | None] = set()
        """Connections that died in silence: what comes on them is not answered."""
        self.channel: Channel | None = None
        """That of the last registration."""
        self.told: Callable[[Channel], None] = lambda channel: None
        """Called with the connection of a registration that is about to be answered."""
        handlers = Handlers()
        handlers.add(RequestCode.REGISTER_BROKER, self._register)
        handlers.add(RequestCode.UNREGISTER_BROKER, self._goodbye)
        handlers.add(RequestCode.QUERY_DATA_VERSION, self._same_version)
        self.questions = 0
        self.changed = False
        self.server = RemotingServer(handlers)

    async def _register(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        self.channel = channel
        if channel in self.deaf:
            await asyncio.Event().wait()
        body = RegisterBrokerBody.parse(request.body).topic_config_serialize_wrapper
        self.calls.append((RegisterBroker.from_ext(request.ext_fields), dict(body.topic_config_table)))
        self.versions.append(body.data_version)
        self.sizes.append(len(request.body))
        self.marked.append(PART_OF_A_TABLE.encode() in bytes(request.body))
        if self.hold is not None:
            await self.hold.wait()
        if self.refused:
            self.refused -= 1
            raise TableFullError("this name server is full")
        self.told(channel)
        return request.reply(0, None, {}, self.order.dump())

    def _goodbye(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        self.goodbyes += 1
        return request.reply()

    def _same_version(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        self.questions += 1
        return request.reply(0, None, {"changed": str(self.changed).lower()})

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"


@asynccontextmanager
async def double() -> AsyncIterator[NameServerDouble]:
    found = NameServerDouble()
    await found.server.start("127.0.0.1", 0)
    try:
        yield found
    finally:
        await found.server.close()


def test_registers_at_start_at_changes_and_periodically(tmp_path: Path) -> None:
    """S1-08, the broker's side: topic changes are reported at once, everything periodically."""

    async def work() -> None:
        async with (
            double() as names,
            open_desk(tmp_path, namesrvAddr=names.address, registerNameServerPeriod=200) as desk,
        ):
            header, topics = names.calls[0]
            assert header.broker_addr == desk.broker.address and header.broker_name == "broker-a"
            assert (header.cluster_name, header.broker_id) == ("DefaultCluster", 0)
            assert header.ha_server_addr == f"127.0.0.1:{desk.broker.ha_port}"
            assert "TBW102" in topics and "T" not in topics
            # At once, and only what changed.
            for topic, how in (("made", desk.create("made")), ("sent", desk.client.send("sent"))):
                await how
                await until(lambda topic=topic: any(topic in table for _, table in names.calls))  # type: ignore[misc]
            first = next(table for _, table in names.calls if "made" in table)
            assert "TBW102" not in first
            count = len(names.calls)
            await until(
                lambda: any("TBW102" in table and "sent" in table for _, table in names.calls[count:])
            )
        assert names.goodbyes == 1

    run(work())


def test_without_force_the_table_is_sent_only_where_it_differs(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            double() as names,
            open_desk(tmp_path, namesrvAddr=names.address, registerNameServerPeriod=100, forceRegister=False),
        ):
            await until(lambda: names.questions >= 3)
            assert len(names.calls) == 1, "the name server had the table"
            names.changed = True
            await until(lambda: len(names.calls) == 2)
            assert "TBW102" in names.calls[1][1]

    run(work())


def test_retry_topic_of_a_heartbeat_is_announced(tmp_path: Path) -> None:
    """S0-37, its last part."""

    async def work() -> None:
        async with double() as names, open_desk(tmp_path, namesrvAddr=names.address) as desk:
            await desk.client.heartbeat(group="g")
            await until(lambda: any("%RETRY%g" in table for _, table in names.calls))

    run(work())


def test_change_made_while_the_table_is_on_its_way_follows_it(tmp_path: Path) -> None:
    """The port is open before the first registration has ended; such a change once waited for the period."""

    async def work() -> None:
        async with double() as names:
            names.hold = asyncio.Event()
            desk = Desk(tmp_path, SYSTEM_CLOCK, {"namesrvAddr": names.address})
            starting = asyncio.ensure_future(desk.start())
            await until(lambda: names.calls)
            assert not starting.done()
            sending = asyncio.ensure_future(desk.client.send("early"))
            await until(lambda: "early" in desk.broker.topics)
            names.hold.set()
            await starting
            assert (await sending).code == 0
            await until(lambda: any("early" in table for _, table in names.calls))
            await desk.close()

    run(work())


def test_first_message_of_a_topic_is_answered_when_others_can_find_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with double() as names, open_desk(tmp_path, namesrvAddr=names.address) as desk:
            names.hold = asyncio.Event()
            sending = asyncio.ensure_future(desk.client.send("new"))
            await until(lambda: any("new" in table for _, table in names.calls))
            await turns()
            assert not sending.done() and len(desk.messages("new")) == 1
            # Those behind it on the same connection do not wait for it.
            assert (await desk.client.send("new")).code == 0
            names.hold.set()
            assert (await sending).code == 0

    run(work())


def test_deleted_topic_makes_a_new_version(tmp_path: Path) -> None:
    async def work() -> None:
        async with double() as names, open_desk(tmp_path, namesrvAddr=names.address) as desk:
            await desk.create("T")
            await until(lambda: any("T" in table for _, table in names.calls))
            count = len(names.calls)
            await desk.client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
            await until(lambda: len(names.calls) > count)

    run(work())


def test_name_server_that_is_away_is_told_when_it_is_back(tmp_path: Path) -> None:
    async def work() -> None:
        port = free_port()  # one that nobody is given while the name server is away
        async with NameServer(NameServerConfig(listen_port=port)) as first:
            address = first.address
            desk = Desk(tmp_path, SYSTEM_CLOCK, {"namesrvAddr": address, "registerNameServerPeriod": 100})
            await desk.start()
        pool = ChannelPool()
        await desk.create("T")
        async with NameServer(NameServerConfig(listen_port=port)):
            while "T" not in (await rpc.all_topics(pool, address)).topic_list:
                pass
            route = await rpc.route(pool, address, "T")
            assert route.broker_datas[0].broker_addrs == {0: desk.broker.address}
            await desk.close()
            assert (await rpc.all_topics(pool, address)).topic_list == [], "goodbye takes effect at once"
        await pool.close()

    run(work())


def test_a_broken_connection_is_followed_by_a_registration(tmp_path: Path) -> None:
    """A name server forgets whose connection breaks; it was told again only after the period, of 30 s here."""

    async def work() -> None:
        async with double() as name_server, open_desk(tmp_path, namesrvAddr=name_server.address) as desk:
            for _ in range(2):
                name_server.calls.clear()
                _connection(desk, name_server).close()
                await until(lambda: name_server.calls)
                _, table = name_server.calls[0]
                assert {topic.topic_name for topic in desk.broker.topics.all()} <= set(table)

    run(work())


def test_only_the_name_server_that_was_lost_gets_the_whole_table(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            double() as one,
            double() as other,
            open_desk(tmp_path, namesrvAddr=f"{one.address};{other.address}") as desk,
        ):
            one.calls.clear()
            other.calls.clear()
            _connection(desk, one).close()
            await until(lambda: one.calls)
            assert "TBW102" in one.calls[0][1]
            assert not any(table for _, table in other.calls)

    run(work())


def test_a_name_server_that_closes_at_once_again_and_again_is_told_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the connection ends before or after its registration is done with; and nothing piles up."""
    monkeypatch.setattr("gimbalmq.broker.registration._AFTER_LOSS_SECONDS", 0.02)
    times: list[float] = []

    async def work() -> None:
        async with double() as name_server, open_desk(tmp_path, namesrvAddr=name_server.address) as desk:
            loop = asyncio.get_running_loop()

            def closes(channel: Channel) -> None:
                times.append(loop.time())
                loop.call_soon(channel.close)

            name_server.told = closes
            _connection(desk, name_server).close()
            await until(lambda: len(times) == 5)
            pauses = [later - earlier for earlier, later in pairwise(times)]
            assert all(pause >= 0.02 * 2**number for number, pause in enumerate(pauses, start=1)), pauses
            assert _watchers() == 1

    run(work())


def test_a_connection_that_lasted_a_period_makes_the_next_loss_a_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gimbalmq.broker.registration._AFTER_LOSS_SECONDS", 0.02)
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        if (task := asyncio.current_task()) is not None and "connection to name server" in task.get_name():
            pauses.append(seconds)
        await sleep(seconds)

    async def work() -> None:
        async with (
            double() as name_server,
            open_desk(tmp_path, namesrvAddr=name_server.address, registerNameServerPeriod=600_000) as desk,
        ):
            monkeypatch.setattr("asyncio.sleep", noted)
            for lasts in (0.0, 0.0, 0.2):
                if lasts:
                    body = b"registerNameServerPeriod=100\n"
                    await desk.client.ok(RequestCode.UPDATE_BROKER_CONFIG, body=body)
                await sleep(lasts)  # the time itself is what counts here
                name_server.calls.clear()
                _connection(desk, name_server).close()
                await until(lambda: name_server.calls)
            assert pauses[-1] == 0.02 < pauses[-2]

    run(work())


def test_a_name_server_that_takes_long_to_come_back_is_not_waited_for_until_the_period_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gimbalmq.broker.registration._AFTER_LOSS_SECONDS", 0.02)

    async def work() -> None:
        port = free_port()
        async with NameServer(NameServerConfig(listen_port=port)) as first:
            settings = {"namesrvAddr": first.address, "registerNameServerPeriod": 600_000}
            desk = Desk(tmp_path, SYSTEM_CLOCK, settings)
            await desk.start()
        (name_server,) = desk.broker._registration._name_servers
        await until(lambda: name_server.failing)
        async with NameServer(NameServerConfig(listen_port=port)):
            await until(lambda: not name_server.failing)
            await desk.close()

    run(work())


def test_a_change_that_a_name_server_did_not_take_is_told_again_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new master that was refused once, or not answered in time, was not found before the period was over."""
    monkeypatch.setattr("gimbalmq.broker.registration._AFTER_LOSS_SECONDS", 0.02)
    monkeypatch.setattr("gimbalmq.rpc.nameserver.register_broker.__kwdefaults__", {"timeout": 0.2})

    async def work() -> None:
        async with double() as name_server, open_desk(tmp_path, namesrvAddr=name_server.address) as desk:
            connection = _connection(desk, name_server)
            for number, trouble in enumerate(("refused", "silent"), start=1):
                name_server.calls.clear()
                if trouble == "refused":
                    name_server.refused = 1
                else:
                    hold = name_server.hold = asyncio.Event()
                _change_role(desk, number)
                await until(lambda: name_server.calls)
                if trouble == "silent":
                    await until(lambda: desk.broker._registration._name_servers[0].failing)
                    name_server.hold = None
                    hold.set()
                await until(lambda: len(name_server.calls) == 2)
                header, table = name_server.calls[1]
                assert header.broker_id == number and "TBW102" in table
                await until(lambda: not desk.broker._registration._name_servers[0].failing)
            assert _connection(desk, name_server) is connection and _watchers() == 1

    run(work(), 10.0)


def test_a_connection_that_has_died_in_silence_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall has forgotten it, and says so to nobody: the kernel tries for a quarter of an hour, and so did we."""
    monkeypatch.setattr("gimbalmq.broker.registration._AFTER_LOSS_SECONDS", 0.02)
    monkeypatch.setattr("gimbalmq.rpc.nameserver.register_broker.__kwdefaults__", {"timeout": 0.1})

    async def work() -> None:
        async with double() as name_server, open_desk(tmp_path, namesrvAddr=name_server.address) as desk:
            before = name_server.channel
            name_server.deaf.add(before)
            name_server.calls.clear()
            await desk.broker._registration.register_all()
            assert not name_server.calls and _connection(desk, name_server).closed is False, "it may be slow"
            await until(lambda: name_server.calls)
            assert "TBW102" in name_server.calls[0][1] and name_server.channel is not before

    run(work(), 10.0)


def test_a_name_server_that_is_slow_now_and_then_keeps_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would forget the broker when the connection ends."""
    monkeypatch.setattr("gimbalmq.broker.registration._AFTER_LOSS_SECONDS", 0.02)
    monkeypatch.setattr("gimbalmq.rpc.nameserver.register_broker.__kwdefaults__", {"timeout": 0.1})

    async def work() -> None:
        async with double() as name_server, open_desk(tmp_path, namesrvAddr=name_server.address) as desk:
            connection = _connection(desk, name_server)
            for _ in range(3):
                name_server.deaf.add(name_server.channel)
                await desk.broker._registration.register_all()
                name_server.deaf.clear()
                name_server.calls.clear()
                await desk.broker._registration.register_all()
                assert name_server.calls
            assert _connection(desk, name_server) is connection

    run(work(), 10.0)


def test_an_older_table_does_not_arrive_behind_a_newer_one(tmp_path: Path) -> None:
    """A large table is encoded in steps. If a change overtakes it, the new topic is gone until the period is over."""

    async def work() -> None:
        async with double() as name_server, open_desk(tmp_path, namesrvAddr=name_server.address) as desk:
            registration, topics = desk.broker._registration, desk.broker.topics
            topics.put(*(TopicConfig(topic_name=f"topic-{n}") for n in range(3_000)))
            await registration.announced()
            name_server.calls.clear()
            name_server.versions.clear()
            again = asyncio.create_task(registration.register_all())
            await until(lambda: registration._name_servers[0]._turn.locked())
            topics.put(TopicConfig(topic_name="new"))
            await registration.announced()
            await again
            assert ["new" in table for _, table in name_server.calls[:2]] == [False, True]
            counters = [version.counter for version in name_server.versions]
            assert counters == sorted(counters)

    run(work())


def test_a_change_made_while_another_waits_for_its_turn_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one went out with the version of both, so the name server took no notice of the second one."""
    monkeypatch.setattr("gimbalmq.broker.registration._GATHER_SECONDS", 0.0)

    async def work() -> None:
        async with double() as name_server, open_desk(tmp_path, namesrvAddr=name_server.address) as desk:
            registration, topics = desk.broker._registration, desk.broker.topics
            topics.put(_wide("A", 4), _wide("B", 4))
            await registration.announced()
            hold = name_server.hold = asyncio.Event()
            count = len(name_server.calls)
            asking = asyncio.create_task(registration.ask_for_master())
            await until(lambda: len(name_server.calls) > count)
            topics.put(_wide("A", 5))
            await turns(10)
            topics.put(_wide("B", 9))
            await turns(10)
            hold.set()
            await registration.announced()
            await asking
            table = _taken(name_server)
            assert [table[name].write_queue_nums for name in "AB"] == [5, 9]
            await registration.register_all()
            assert _taken(name_server)["B"].write_queue_nums == 9

    run(work())


def _wide(topic: str, queues: int) -> TopicConfig:
    return TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)


def _taken(name_server: NameServerDouble) -> dict[str, TopicConfig]:
    """What a name server has after these calls: it ignores what comes with the version that it has."""
    table: dict[str, TopicConfig] = {}
    last = None
    for version, (_, told) in zip(name_server.versions, name_server.calls, strict=True):
        if version != last:
            table.update({name: config for name, config in told.items() if isinstance(config, TopicConfig)})
        last = version
    return table


def test_a_name_server_that_does_not_answer_keeps_no_other_waiting(tmp_path: Path) -> None:
    """Neither with a change nor with a change of the role; an attempt there ends after 6 s."""

    async def work() -> None:
        async with (
            double() as silent,
            double() as other,
            open_desk(tmp_path, namesrvAddr=f"{silent.address};{other.address}") as desk,
        ):
            hold = silent.hold = asyncio.Event()
            silent.calls.clear()
            asking = asyncio.create_task(desk.broker._registration.ask_for_master())
            await until(lambda: silent.calls)
            async with asyncio.timeout(5):
                desk.broker.topics.put(_wide("A", 4))
                await until(lambda: "A" in other.calls[-1][1])
                _change_role(desk, 1)
                await until(lambda: other.calls[-1][0].broker_id == 1)
            assert "TBW102" in other.calls[-1][1]
            assert len(silent.calls) == 1, "the attempt there goes on"
            hold.set()
            await asking

    run(work())


def _change_role(desk: Desk, broker_id: int) -> None:
    """As the name servers see it; the broker's other parts are not told."""
    roles = desk.broker.roles
    before, roles.now = roles.now, replace(roles.now, broker_id=broker_id)
    desk.broker._registration._role_changed(before, roles.now)


def test_a_name_server_that_is_slow_at_the_start_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looks after the connection must not take it for one that could not be told."""
    monkeypatch.setattr("gimbalmq.broker.registration._AFTER_LOSS_SECONDS", 0.02)

    async def work() -> None:
        async with double() as name_server:
            name_server.hold = asyncio.Event()
            asyncio.get_running_loop().call_later(0.2, name_server.hold.set)
            async with open_desk(tmp_path, namesrvAddr=name_server.address) as desk:
                # What the start has left to be sent goes before this.
                await desk.broker._registration.ask_for_master()
                assert sum("TBW102" in table for table in _tables(name_server)) == 1

    run(work())


def test_a_role_that_changes_while_another_is_told_is_told_although_the_table_is_the_same(
    tmp_path: Path,
) -> None:
    """With forceRegister=false the name server was only asked for its version then, and had the old role for ever."""

    async def work() -> None:
        async with (
            double() as names,
            open_desk(
                tmp_path, namesrvAddr=names.address, registerNameServerPeriod=100, forceRegister=False
            ) as desk,
        ):
            hold = names.hold = asyncio.Event()
            desk.broker.topics.put(_wide("A", 4))
            await until(lambda: "A" in names.calls[-1][1])
            _change_role(desk, 1)
            questions = names.questions
            hold.set()
            await until(lambda: names.calls[-1][0].broker_id == 1 or names.questions > questions + 1)
            assert names.calls[-1][0].broker_id == 1 and "TBW102" in names.calls[-1][1]

    run(work())


def test_a_large_table_is_made_once_for_all_who_are_told_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    encoded = Announcement._encoded

    async def noted(announcement: Announcement) -> list[bytes]:
        made.append(len(announcement.topics))
        return await encoded(announcement)

    monkeypatch.setattr(Announcement, "_encoded", noted)

    async def work() -> None:
        async with (
            double() as one,
            double() as other,
            open_desk(tmp_path, namesrvAddr=f"{one.address};{other.address}") as desk,
        ):
            registration, topics = desk.broker._registration, desk.broker.topics
            topics.put(*(TopicConfig(topic_name=f"topic-{n}") for n in range(3_000)))
            await registration.announced()
            made.clear()
            one.calls.clear()
            other.calls.clear()
            await registration.register_all()
            assert [len(table) for table in _tables(one) + _tables(other)] == [len(topics)] * 2
            assert made == [len(topics)]
            assert not registration.announcements._under_way, "it is not kept"

    run(work())


def test_a_connection_is_watched_once_whatever_happens_on_it(tmp_path: Path) -> None:
    """A change of the role, or a refusal, has the whole table sent once more."""

    async def work() -> None:
        async with double() as name_server, open_desk(tmp_path, namesrvAddr=name_server.address) as desk:
            registration = desk.broker._registration
            channel = _connection(desk, name_server)
            for _ in range(3):
                registration._role_changed(desk.broker.roles.now, desk.broker.roles.now)
                await registration.register_all()
                name_server.refused = 1
                await registration.register_all()
                assert not name_server.refused
                await registration.register_all()
            assert _connection(desk, name_server) is channel
            assert _watchers() == 1
        assert _watchers() == 0

    run(work())


def _connection(desk: Desk, name_server: NameServerDouble) -> Channel:
    channel = desk.broker._pool.existing(name_server.address)
    assert channel is not None
    return channel


def _watchers() -> int:
    return sum("connection to name server" in task.get_name() for task in asyncio.all_tasks())


def test_broker_starts_without_its_name_server(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, namesrvAddr="127.0.0.1:1;127.0.0.1:2") as desk:
            assert (await desk.client.send("T")).code == 0

    run(work())


def test_order_topics_of_the_name_server_are_marked(tmp_path: Path) -> None:
    async def work() -> None:
        async with double() as names:
            names.order = KvTable(table={"T": "broker-a:4", "unknown": "broker-a:4"})
            async with open_desk(tmp_path, namesrvAddr=names.address) as desk:
                await desk.create("T")
                await until(lambda: (found := desk.broker.topics.find("T")) is not None and found.order)
                assert "unknown" not in desk.broker.topics

    run(work())


def test_permissions_are_masked_by_the_brokers(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            double() as names,
            open_desk(tmp_path, namesrvAddr=names.address, brokerPermission=4) as desk,
        ):
            _, topics = names.calls[0]
            assert {getattr(config, "perm", None) for config in topics.values()} == {4}
            kept = desk.broker.topics.find("TBW102")
            assert kept is not None and kept.perm == 7

    run(work())


def test_goodbye_is_the_last_word(tmp_path: Path) -> None:
    """The periodic registration must not announce a broker again that has said goodbye."""

    async def work() -> None:
        async with (
            double() as names,
            open_desk(tmp_path, namesrvAddr=names.address, registerNameServerPeriod=100) as desk,
        ):
            registration = desk.broker._registration
            await registration.goodbye()
            count = len(names.calls)
            assert registration._loop is not None and registration._loop.done() and not _watchers()
            desk.broker.topics.ensure("late", 1)
            await desk.client.ok(RequestCode.GET_BROKER_RUNTIME_INFO)
            assert len(names.calls) == count

    run(work())


def test_nothing_is_sent_after_goodbye(tmp_path: Path) -> None:
    """A slave without its master asks for it every second, until after the goodbye; that registered it again."""

    async def work() -> None:
        async with double() as names, open_desk(tmp_path, namesrvAddr=names.address) as desk:
            registration = desk.broker._registration
            names.hold = asyncio.Event()
            count = len(names.calls)
            asking = asyncio.create_task(registration.ask_for_master())
            await until(lambda: len(names.calls) > count)
            await registration.goodbye()
            await asking
            count = len(names.calls)
            await registration.ask_for_master()
            await registration.register_all()
            _change_role(desk, 1)
            desk.broker.topics.put(_wide("A", 4))
            await registration.announced()
            await desk.client.ok(RequestCode.GET_BROKER_RUNTIME_INFO)
            assert (len(names.calls), names.goodbyes, _watchers()) == (count, 1, 0)
            names.hold.set()

    run(work())


def test_one_of_two_masters_dies_and_returns(tmp_path: Path) -> None:
    """S1-09: two masters with 8 queues each: 16; one dies: the other's 8; it returns: 16 again."""

    async def work() -> None:
        async with LocalCluster(
            brokers=2, store=tmp_path, properties={"registerNameServerPeriod": 100}
        ) as cluster:
            pool = ChannelPool()

            async def queues() -> list[MessageQueue]:
                route = await rpc.route(pool, cluster.namesrv, "T")
                return sorted(
                    MessageQueue("T", data.broker_name, queue_id)
                    for data in route.queue_datas
                    for queue_id in range(data.read_queue_nums)
                )

            async def wait_for(count: int) -> list[MessageQueue]:
                while len(found := await queues()) != count:
                    pass
                return found

            for broker in cluster.brokers:
                ext = send_fields("T", queue_id=0, defaultTopicQueueNums=8)
                answer = await pool.call(broker.address, RemotingCommand(310, ext, b"x"), 5.0)
                assert answer.code == 0
            assert {queue.broker_name for queue in await wait_for(16)} == {"broker-a", "broker-b"}
            await cluster.kill_broker(1)
            assert {queue.broker_name for queue in await wait_for(8)} == {"broker-a"}
            await cluster.start_broker(1)
            assert {queue.broker_name for queue in await wait_for(16)} == {"broker-a", "broker-b"}
            await pool.close()

    run(work())


def _tables(names: NameServerDouble) -> list[dict[str, object]]:
    return [table for _, table in names.calls]


def test_changes_are_marked_as_parts_and_a_deletion_is_told_by_the_whole_table(tmp_path: Path) -> None:
    """With deleteTopicWithBrokerRegistration a change of two topics, or a deletion, once wiped all routes."""

    async def work() -> None:
        config = NameServerConfig(listen_port=0, delete_topic_with_broker_registration=True)
        async with (
            double() as names,
            NameServer(config) as server,
            open_desk(tmp_path, namesrvAddr=f"{names.address};{server.address}") as desk,
        ):
            assert "TBW102" in names.calls[0][1] and not names.marked[0]
            desk.broker.topics.put(TopicConfig(topic_name="A"), TopicConfig(topic_name="B"))
            await desk.broker._registration.announced()
            assert (set(names.calls[1][1]), names.marked[1]) == ({"A", "B"}, True)
            routes = server.table
            assert all(routes.route(topic) is not None for topic in ("A", "B", "TBW102", "SELF_TEST_TOPIC"))
            await desk.client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "A"})
            await until(lambda: len(names.calls) == 3)
            assert "TBW102" in names.calls[2][1] and "A" not in names.calls[2][1] and not names.marked[2]
            await until(lambda: routes.route("A") is None)
            assert routes.route("B") is not None and routes.route("TBW102") is not None

    run(work())


def test_table_too_large_for_a_frame_goes_in_parts(tmp_path: Path) -> None:
    """From about 90,000 topics on a broker once left the routes for good."""

    async def work() -> None:
        config = NameServerConfig(listen_port=0, delete_topic_with_broker_registration=True)
        async with (
            double() as names,
            NameServer(config) as server,
            open_desk(tmp_path, namesrvAddr=f"{names.address};{server.address}") as desk,
        ):
            registration, topics = desk.broker._registration, desk.broker.topics
            registration.announcements.part_bytes = 200_000
            topics.put(*(TopicConfig(topic_name=f"topic-{n}") for n in range(3_000)))
            await registration.announced()
            assert len(run_through(server.table.all_topics())) == len(topics)
            for noted in (names.calls, names.marked, names.versions):
                noted.clear()
            # Changed since: what is not in the first part must be updated, too.
            changed = [TopicConfig(topic_name=f"topic-{n}", write_queue_nums=3) for n in (0, 2_999)]
            topics.changed = None
            topics.put(*changed)
            topics.changed = registration.topics_changed
            await registration.register_all()
            assert len(names.calls) >= 3 and all(names.marked)
            assert set().union(*_tables(names)) == {config.topic_name for config in topics.all()}
            assert sum(len(table) for table in _tables(names)) == len(topics), "each topic is in one part"
            assert names.versions[-1] == topics.version
            assert len({version.timestamp for version in names.versions}) == len(names.versions)
            for topic in ("topic-0", "topic-2999"):
                route = server.table.route(topic)
                assert route is not None and route.queue_datas[0].write_queue_nums == 3
            assert len(run_through(server.table.all_topics())) == len(topics)
            assert server.table.data_version("DefaultCluster", desk.broker.address) == topics.version
            # Unchanged: the same version throughout, so that a wiped permission stays wiped.
            server.table.wipe_write_perm("broker-a")
            names.versions.clear()
            await registration.register_all()
            assert set(names.versions) == {topics.version}
            route = server.table.route("topic-0")
            assert route is not None and route.queue_datas[0].perm == 4

    run(work())


def test_many_deletions_need_few_whole_tables(tmp_path: Path) -> None:
    async def work() -> None:
        async with double() as names, open_desk(tmp_path, namesrvAddr=names.address) as desk:
            desk.broker.topics.put(*(TopicConfig(topic_name=f"topic-{n}") for n in range(200)))
            await desk.broker._registration.announced()
            count = len(names.calls)
            for number in range(200):
                desk.broker.topics.remove(f"topic-{number}")
                await asyncio.sleep(0)
            await until(lambda: len(names.calls) > count)
            await until(lambda: "topic-199" not in names.calls[-1][1])
            assert len(names.calls) <= count + 3

    run(work())


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no such option")
def test_connections_to_other_servers_are_given_up_before_old_words_count_as_void(tmp_path: Path) -> None:
    async def work() -> None:
        async with double() as name_server, open_desk(tmp_path, namesrvAddr=name_server.address) as desk:
            transport = _connection(desk, name_server)._transport
            assert transport is not None
            made = transport.get_extra_info("socket")
            milliseconds = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert 5_000 <= milliseconds <= 1000 * (sync_set._LATE_SECONDS - 1.0)

    run(work(), 10.0)
