"""A slave's tables are its master's: our pair over real sockets, and Apache's answers given by a double."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.access.users import User, UserType
from gimbalmq.broker.broker import Broker
from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.broker.consumer_offsets import ConsumerOffsets
from gimbalmq.broker.groups import Groups
from gimbalmq.broker.json_file import TableThread
from gimbalmq.broker.pairs import Pairs
from gimbalmq.broker.replication import tables as tables_module
from gimbalmq.broker.replication.config import ASYNC_MASTER, SYNC_MASTER
from gimbalmq.broker.replication.heard import HeardOfMaster
from gimbalmq.broker.replication.role_file import RoleFile
from gimbalmq.broker.replication.tables import _Seen
from gimbalmq.broker.topics import Topics
from gimbalmq.errors import ResponseError, StateError
from gimbalmq.model import topics as names
from gimbalmq.protocol.access_bodies import UserBody
from gimbalmq.protocol.bodies import DataVersion, GroupConfig, TopicConfig
from gimbalmq.protocol.codes import RequestCode as Code
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.replication_bodies import HaStatus, TimerCheckpoint
from gimbalmq.protocol.signing import Signer
from gimbalmq.rpc import access as rpc
from gimbalmq.rpc.call import ask
from gimbalmq.store.files import Files
from gimbalmq.store.timer_files import TimerCheck
from gimbalmq.testing import LocalCluster, RecordedDisk
from gimbalmq.transport.pool import ChannelPool
from tests.broker.desk import send_fields
from tests.support import ManualClock, run, until

WITHIN = 1.0
"""Seconds; a busy machine is allowed some more."""


class Pair:
    """A master, its slave, and requests to either."""

    def __init__(self, cluster: LocalCluster, signer: Signer | None = None) -> None:
        self.cluster = cluster
        self.pool = ChannelPool(signer=signer)

    @property
    def master(self) -> Broker:
        return self.cluster.find(("broker-a", 0))

    @property
    def slave(self) -> Broker:
        return self.cluster.find(("broker-a", 1))

    async def ask(
        self, broker: Broker, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        return await self.pool.call(broker.address, RemotingCommand(code, fields, body), 5.0)

    async def told(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """The master does something."""
        answer = await self.ask(self.master, code, fields, body)
        assert answer.code == 0, answer

    async def same(self) -> None:
        """The tables of both are equal, after a while."""
        master, slave = self.master, self.slave
        await until(
            lambda: (
                slave.topics.version == master.topics.version
                and slave.groups.version == master.groups.version
                and slave.offsets.version == master.offsets.version
            )
        )
        assert {one.topic_name: one for one in slave.topics.all()} == {
            one.topic_name: one for one in master.topics.all()
        }
        assert slave.groups.table() == master.groups.table()
        await until(lambda: _plain(slave) == _plain(master))
        await until(lambda: slave.copies.troubles == {})


def _plain(broker: Broker) -> dict[str, Any]:
    """Offsets but for those of transactions, which wait for the log."""
    return {key: row for key, row in broker.offsets.rows() if not key.endswith(f"@{names.TRANS_GROUP}")}


@asynccontextmanager
async def pair(signer: Signer | None = None, **properties: object) -> AsyncIterator[Pair]:
    async with LocalCluster(replicas=2, properties=properties, namesrv_properties={}) as cluster:
        found = Pair(cluster, signer)
        try:
            yield found
        finally:
            await found.pool.close()


async def _within(condition: Callable[[], object], seconds: float = WITHIN) -> float:
    began = SYSTEM_CLOCK.monotonic()
    await until(condition)
    took = SYSTEM_CLOCK.monotonic() - began
    assert took < seconds + 0.5, f"{took:.2f} s"
    return took


def test_every_change_at_the_master_is_at_the_slave_within_a_second() -> None:
    async def work() -> None:
        async with pair() as two:
            master, slave = two.master, two.slave
            await two.same()
            await two.told(17, {**_topic("T"), "readQueueNums": "3"})
            await two.told(200, None, b'{"groupName":"g","retryQueueNums":2}')
            await two.told(15, _commit("g", "T", 0))
            await _within(lambda: slave.offsets.get("g", "T", 0) == 0)
            await two.same()
            assert slave.topics.find("T") == master.topics.find("T")
            assert slave.groups.known("g") == master.groups.known("g")
            await two.told(353, {"group": "g", "topic": "T", "readable": "false"})
            await _within(lambda: not slave.groups.may_read("g", "T"))
            for number in range(3):
                answer = await two.ask(master, 310, send_fields("T"), b"body")
                assert answer.code == 0, answer
                await two.told(15, _commit("g", "T", number + 1))
            await _within(lambda: slave.offsets.get("g", "T", 0) == 3)
            later = {"TIMER_DELIVER_MS": f"{SYSTEM_CLOCK.wall_ms() + 3_600_000}"}
            assert (await two.ask(master, 310, send_fields("T", properties=later), b"body")).code == 0
            await until(lambda: len(master.timers) == 1)
            await two.told(207, {"groupName": "g", "cleanOffset": "true"})
            await _within(lambda: slave.groups.known("g") is None and slave.offsets.get("g", "T", 0) == -1)
            # A deleted topic disappears, with its queues: the log tells of those.
            assert slave.store.queue_ids("T")
            await two.told(215, {"topic": "T"})
            await _within(lambda: "T" not in slave.topics and not slave.store.queue_ids("T"))
            await two.same()
            assert slave.copies.rounds > 3
            # A master that comes back is told by a slave how far timers had come (60), from its last question on.
            await until(lambda: slave.timers.progress().read_ms)
            checkpoint = TimerCheckpoint.decode((await two.ask(slave, 60)).body)
            assert checkpoint.last_timer_queue_offset == slave.timers.progress().fill_until
            assert slave.timers.progress().queue_offset == 0

    run(work())


def test_only_changes_travel_and_nothing_if_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: dict[int, list[int]] = {}

    async def counted(caller: Any, address: str, code: int, *rest: Any, **more: Any) -> RemotingCommand:
        answer = await ask(caller, address, code, *rest, **more)
        sizes.setdefault(code, []).append(len(answer.body))
        return answer

    monkeypatch.setattr(f"{tables_module.__name__}.ask", counted)

    async def work() -> None:
        async with pair() as two:
            master, slave = two.master, two.slave
            for number in range(1200):
                master.topics.adopt(TopicConfig(topic_name=f"T{number}"))
                master.groups.put(GroupConfig(group_name=f"g{number}"))
                master.offsets.commit(f"g{number}", f"T{number}", 0, 0)
            await two.same()
            # In pages, because a table of thousands is too long for one turn of the loop.
            assert len(sizes[Code.GET_ALL_TOPIC_CONFIG]) >= 3
            rounds = slave.copies.rounds
            await until(lambda: slave.copies.rounds > rounds + 1)
            for code in (21, 201, 43):
                assert sizes[code].pop() < 250, f"{code}: {sizes[code]}"
                sizes[code].clear()
            master.topics.adopt(TopicConfig(topic_name="one"))
            master.groups.put(GroupConfig(group_name="one"))
            master.offsets.commit("one", "one", 0, 0)
            master.topics.remove("T7")
            await two.same()
            assert "one" in slave.topics and "T7" not in slave.topics
            for code in (21, 201, 43):
                assert max(sizes[code]) < 900, f"{code}: {sizes[code]}"
            # What is changed at the slave alone is the master's again.
            slave.offsets.commit("one", "one", 0, 1)
            slave.topics.adopt(TopicConfig(topic_name="stray"))
            await until(lambda: slave.offsets.get("one", "one", 0) == 0 and "stray" not in slave.topics)
            await two.same()

    run(work(), seconds=120)


def test_clients_create_nothing_at_a_slave() -> None:
    async def work() -> None:
        async with pair() as two:
            await two.same()
            body = json.dumps(
                {
                    "clientID": "c",
                    "consumerDataSet": [
                        {"groupName": "g", "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}
                    ],
                }
            ).encode()
            assert (await two.ask(two.slave, 34, None, body)).code == 0
            assert two.slave.groups.known("g") is None and "%RETRY%g" not in two.slave.topics
            await two.told(34, None, body)
            await until(lambda: two.slave.groups.known("g") is not None and "%RETRY%g" in two.slave.topics)

    run(work())


def test_a_restarted_master_or_slave_is_copied_again() -> None:
    async def work() -> None:
        async with pair() as two:
            await two.told(17, _topic("A"))
            await two.same()
            await two.cluster.kill_broker(("broker-a", 1))
            await two.told(17, _topic("B"))
            await two.told(215, {"topic": "A"})
            await two.cluster.start_broker(("broker-a", 1))
            await two.same()
            assert "B" in two.slave.topics and "A" not in two.slave.topics
            await two.cluster.kill_broker(("broker-a", 0))
            await until(lambda: "tables" in two.slave.copies.troubles)
            await two.cluster.start_broker(("broker-a", 0))
            await two.told(17, _topic("C"))
            await until(lambda: "C" in two.slave.topics)
            await two.same()

    run(work())


def test_what_a_slave_tells_of_itself_and_whom_it_believes() -> None:
    async def work() -> None:
        async with pair() as two:
            await two.same()
            await until(lambda: two.slave.replication.status().state == "following")
            answer = await two.ask(two.master, 907)
            status = HaStatus.parse(answer.body)
            assert status.master and len(status.ha_connection_info) == status.in_sync_slave_nums == 1
            await two.told(17, _topic("T"))
            answer = await two.ask(two.master, 310, send_fields("T"), b"body")
            assert answer.code == 0, answer
            end = two.master.store.max_commitlog_offset
            await until(lambda: two.slave.store.max_commitlog_offset == end)
            status = HaStatus.parse((await two.ask(two.slave, 907)).body)
            client = status.ha_client_runtime_info
            assert not status.master and client.max_offset == end and client.activated
            assert client.master_addr == two.master.replication.ha_address
            assert client.last_read_timestamp and client.last_write_timestamp
            # Where to copy from is asked of a master; a slave has nothing to say.
            assert not (await two.ask(two.slave, 906)).ext_fields
            wrong = await two.ask(two.slave, 906, {"masterHaAddress": "nowhere"})
            assert wrong.code != 0 and "use host:port" in (wrong.remark or "")
            claim = {
                "masterHaAddress": two.master.replication.ha_address,
                "masterAddress": two.master.address,
                "masterFlushOffset": "77",
            }
            assert (await two.ask(two.slave, 906, claim)).code == 0
            assert two.slave.copies.master == two.master.address
            assert two.slave.store.master_flushed_offset == 77
            assert (await two.ask(two.slave, 908, {"masterFlushOffset": "99"})).code == 0
            assert two.slave.store.master_flushed_offset == 99

    run(work())


# -- users and policies ------------------------------------------------------------------

SERVERS = '{"accessKey":"servers","secretKey":"secret-of-servers"}'
SECURED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"admin","password":"secret-of-admin"}',
    "innerClientAuthenticationCredentials": SERVERS,
}
ADMIN = Signer("admin", "secret-of-admin")


def test_users_and_policies_are_copied_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def work() -> None:
        async with pair(ADMIN, **SECURED) as two:
            master, slave = two.master.access.table, two.slave.access.table
            assert master is not None and slave is not None and master is not slave
            await two.same()
            user = UserBody(username="ann", password="secret-of-ann")
            await rpc.create_user(two.pool, two.master.address, user)
            entry = {"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}
            policy = {"subject": "User:ann", "policies": [{"entries": [entry]}]}
            await two.told(3006, {"subject": "User:ann"}, json.dumps(policy).encode())
            await _within(lambda: slave.acl("ann") is not None)
            assert slave.users() == master.users() and slave.acls() == master.acls()
            # A tool tells every broker; who was told by the master already says yes.
            await rpc.create_user(two.pool, two.slave.address, user)
            # What is changed at the slave alone does not stay.
            await rpc.delete_user(two.pool, two.slave.address, "ann")
            await until(lambda: slave.user("ann") is not None and slave.acl("ann") is not None)
            await rpc.delete_user(two.pool, two.master.address, "ann")
            await _within(lambda: slave.user("ann") is None and slave.acl("ann") is None)
            revision, rounds = slave.revision, two.slave.copies.rounds
            await until(lambda: two.slave.copies.rounds > rounds + 1)
            assert slave.revision == revision, "nothing is written if nothing has changed"
            folder = two.slave.store_path / "config"
            assert "ann" not in (folder / "users.json").read_text()

    run(work())
    assert "secret-of" not in caplog.text


def test_users_of_a_master_that_this_broker_could_not_ask_with_are_not_taken() -> None:
    async def work() -> None:
        async with pair(ADMIN, **SECURED) as two:
            slave = two.slave.access.table
            assert slave is not None
            await two.same()
            before = dict(slave.users())
            master = two.master.access.table
            assert master is not None
            # As if both had started with other credentials of the same name.
            users = dict(before)
            users["servers"] = User("servers", "another-secret", UserType.SUPER)
            users["mallory"] = User("mallory", "m", UserType.SUPER)
            await two.slave.copies._users._take(slave, _servers(), "m:1", before, dict(slave.acls()))
            with pytest.raises(Exception, match="give both brokers the same credentials") as caught:
                await two.slave.copies._users._take(slave, _servers(), "m:1", users, {})
            assert "another-secret" not in str(caught.value)
            assert slave.users() == before

    run(work())


def test_a_master_that_checks_nobody_gives_nobody_its_users() -> None:
    """And a slave that checks nobody does not ask for them."""

    async def work() -> None:
        keeps = {"authenticationMetadataProvider": "local", "innerClientAuthenticationCredentials": SERVERS}
        async with pair(ADMIN, **keeps) as two:
            master, slave = two.master.access.table, two.slave.access.table
            assert master is not None and slave is not None
            await two.same()
            await rpc.create_user(
                two.pool, two.master.address, UserBody(username="eve", password="secret-of-eve")
            )
            rounds = two.slave.copies.rounds
            await until(lambda: two.slave.copies.rounds > rounds + 1)
            assert slave.user("eve") is None
            copies = two.slave.copies._users
            copies._own = _servers()  # as if it checked signatures
            with pytest.raises(Exception, match="does not check who sends requests"):
                await copies.copy(two.master.address, is_ours=True)
            assert slave.user("eve") is None

    run(work())


def _servers() -> Any:
    own = BrokerConfig.from_properties(SECURED)[0].inner_credentials()
    assert own is not None
    return own


# -- Apache's master ----------------------------------------------------------------------


class ApacheMaster:
    """Answers as Apache's broker does, from tables that a test sets."""

    def __init__(self, *, pages: bool) -> None:
        self.pages = pages
        self.topics = {f"A{number}": TopicConfig(topic_name=f"A{number}") for number in range(1201)}
        self.groups = {f"a{number}": GroupConfig(group_name=f"a{number}") for number in range(501)}
        self.offsets: dict[str, dict[int, int]] = {"A1@a1": {0: 5}}
        self.version = DataVersion(counter=1, timestamp=5)
        self.log_end = 0
        self.asked: list[int] = []

    async def call(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        self.asked.append(command.code)
        fields = dict(command.ext_fields or {})
        body: bytes
        reply: dict[str, str] | None = None
        if command.code == 21:
            body, reply = self._page(
                self.topics, "topicConfigTable", fields, "topicSeq", "maxTopicNum", "totalTopicNum"
            )
        elif command.code == 201:
            body, reply = self._page(
                self.groups, "subscriptionGroupTable", fields, "groupSeq", "maxGroupNum", "totalGroupNum"
            )
        elif command.code == 43:
            rows = ",".join(
                f'"{key}":{{{",".join(f"{queue}:{offset}" for queue, offset in row.items())}}}'
                for key, row in self.offsets.items()
            )
            version = f'"dataVersion":{self.version.dump().decode()},' if self.pages else ""
            body = f'{{{version}"offsetTable":{{{rows}}}}}'.encode()
        elif command.code == 45:
            body = b'{"offsetTable":{3:7}}'
        elif command.code == 28:
            body = json.dumps(
                {"table": {"commitLogMinOffset": "0", "commitLogMaxOffset": f"{self.log_end}"}}
            ).encode()
        elif self.pages and command.code == 60:
            body = b"".join(number.to_bytes(8, "big") for number in (90_000, 0, 4, 5, 0, 0, 0))
        elif self.pages and command.code == 402:
            body = b'{"messageRequestModeMap":{"A1":{"a1":{"mode":"POP"}}}}'
        else:
            return command.reply(3, "request type not supported")
        return command.reply(ext_fields=reply, body=body)

    def _page(
        self,
        rows: Mapping[str, Any],
        name: str,
        fields: Mapping[str, str],
        seq: str,
        most: str,
        total: str,
    ) -> tuple[bytes, dict[str, str] | None]:
        keys = sorted(rows)
        reply = None
        if self.pages:
            version = fields.get("dataVersion") or "{}"
            start = int(fields[seq]) if DataVersion.parse(version) == self.version else 0
            keys = keys[start : start + int(fields[most])]
            reply = {total: f"{len(rows)}"}
        table = b",".join(b'"%b":%b' % (key.encode(), rows[key].dump()) for key in keys)
        return b'{"dataVersion":%b,"%b":{%b}}' % (self.version.dump(), name.encode(), table), reply

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        raise AssertionError("nothing is told one-way")


@asynccontextmanager
async def copying(apache: ApacheMaster) -> AsyncIterator[tuple[Broker, Any, Any]]:
    """A slave of ours whose copies are asked of the double, a round at a time."""
    async with pair() as two:
        slave = two.slave
        await two.same()
        slave.copies.aim(None)
        await slave.replication.follower.close()
        slave.copies._caller = apache
        slave.copies._users._own = None
        seen = tables_module._Seen()
        apache.log_end = slave.store.max_commitlog_offset
        yield slave, seen, lambda: slave.copies.round("apache:1", seen)


@pytest.mark.parametrize("release", ["4.9", "5.x"])
def test_tables_of_apaches_master_replace_ours(release: str) -> None:
    async def work() -> None:
        apache = ApacheMaster(pages=release == "5.x")
        async with copying(apache) as (slave, seen, round_):
            await round_()
            assert slave.copies.troubles == {} and seen.is_ours is False
            known = {config.topic_name for config in slave.topics.all()}
            assert apache.topics.keys() <= known and "A1200" in known
            assert all(names.is_system_topic(topic) or "broker-a" in topic or "DefaultCluster" in topic
                       for topic in known - apache.topics.keys())  # fmt: skip
            assert apache.groups.keys() <= slave.groups.table().subscription_group_table.keys()
            assert slave.topics.version == slave.groups.version == apache.version
            assert _plain(slave) == {"A1@a1": {"0": 5}}
            assert slave.delays.document()["offsetTable"] == {"3": 7}
            if release == "5.x":
                check = slave.timers.progress()
                # Ten seconds are taken off as long as nothing older is known; of the two offsets the smaller counts.
                assert (check.filled_from_ms, check.fill_until) == (80_000, 4)
                assert slave.request_modes.table().message_request_mode_map["A1"]["a1"] == {"mode": "POP"}
            # Offsets change without a new version; what is gone is gone.
            apache.offsets = {"A2@a1": {3: 9}}
            del apache.topics["A7"]
            apache.version = DataVersion(counter=2, timestamp=6)
            await round_()
            assert _plain(slave) == {"A2@a1": {"3": 9}} and "A7" not in slave.topics
            count = apache.asked.count(21)
            await round_()
            assert apache.asked.count(21) == count + 1, "one page tells that nothing has changed"

    run(work())


def test_progress_waits_for_the_log() -> None:
    async def work() -> None:
        apache = ApacheMaster(pages=True)
        async with copying(apache) as (slave, _, round_):
            apache.log_end = slave.store.max_commitlog_offset + 1
            apache.offsets = {f"{names.HALF_TOPIC}@{names.TRANS_GROUP}": {0: 9}, "A1@a1": {0: 6}}
            await round_()
            assert slave.delays.document()["offsetTable"] == {}, (
                "what was delivered may not be in our log yet"
            )
            assert slave.offsets.get(names.TRANS_GROUP, names.HALF_TOPIC, 0) != 9
            assert slave.offsets.get("a1", "A1", 0) == 6
            apache.log_end -= 1
            await round_()
            # The first answer still waits for its place in the log, and this one stands behind it.
            assert slave.delays.document()["offsetTable"] == {}
            slave.copies._progress.forget()
            await round_()
            assert slave.delays.document()["offsetTable"] == {"3": 7}
            assert slave.offsets.get(names.TRANS_GROUP, names.HALF_TOPIC, 0) == 9

    run(work())


def test_queues_of_topics_that_apache_deleted_are_dropped() -> None:
    async def work() -> None:
        async with pair() as two:
            await two.told(17, _topic("gone"))
            await two.told(17, _topic("new"))
            for topic in ("gone", "new"):
                assert (await two.ask(two.master, 310, send_fields(topic), b"body")).code == 0
            slave = two.slave
            await until(lambda: slave.store.queue_ids("gone") and slave.store.queue_ids("new"))
            slave.copies.aim(None)
            slave.topics.replace({"else": TopicConfig(topic_name="else")}, DataVersion(counter=1))
            last = slave.store.entries("new", 0, 0, 1)[0][0]
            # A master that has never named them may not know them yet.
            await slave.copies._drop_queues(last + 1, _Seen(is_ours=False))
            assert slave.store.queue_ids("gone") and slave.store.queue_ids("new")
            seen = _Seen(is_ours=False, listed={"gone", "new"})
            # All of the one lay in our log when the master was asked; of the other something came later.
            await slave.copies._drop_queues(last, seen)
            assert not slave.store.queue_ids("gone") and slave.store.queue_ids("new")
            await slave.copies._drop_queues(last + 1, seen)
            assert not slave.store.queue_ids("new")
            with pytest.raises(StateError, match="by a record of its log"):
                two.master.store.drop_queues("new")
            assert slave.store.queue_ids(names.OP_HALF_TOPIC) == two.master.store.queue_ids(
                names.OP_HALF_TOPIC
            )

    run(work())


def test_a_round_that_a_master_refuses_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with copying(ApacheMaster(pages=False)) as (slave, _, _):
            copies, asked = slave.copies, 0

            async def refused_once(master: str, seen: object) -> None:
                nonlocal asked
                asked += 1
                if asked == 1:
                    raise ResponseError("java.util.NoSuchElementException")

            monkeypatch.setattr(copies, "round", refused_once)
            copies.aim("apache:1")
            await until(lambda: "NoSuchElement" in copies.troubles.get("tables", ""))
            await until(lambda: asked == 2 and not copies.troubles)

    run(work())


def test_a_master_without_topics_is_not_believed() -> None:
    async def work() -> None:
        apache = ApacheMaster(pages=True)
        apache.topics.clear()
        async with copying(apache) as (slave, _, round_):
            count = len(slave.topics)
            await round_()
            assert "not even its own" in slave.copies.troubles["topics"]
            slave.replication.follower.trouble = None
            assert "the master's topics cannot be copied" in (slave.replication.status().trouble or "")
            assert len(slave.topics) == count and slave.groups.known("a1") is not None

    run(work())


def test_a_table_that_changes_while_it_is_read_is_read_again() -> None:
    async def work() -> None:
        apache = ApacheMaster(pages=True)
        async with copying(apache) as (slave, _, round_):
            call, changes = apache.call, 0

            async def changing(address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
                nonlocal changes
                if command.code == 21 and dict(command.ext_fields or {})["topicSeq"] != "0" and changes < 3:
                    changes += 1
                    apache.topics[f"N{changes}"] = TopicConfig(topic_name=f"N{changes}")
                    apache.version = DataVersion(counter=10 + changes, timestamp=5)
                return await call(address, command, timeout)

            apache.call = changing  # type: ignore[method-assign]
            await round_()
            assert changes == 3 and {"N1", "N2", "N3", "A0", "A1200"} <= {
                config.topic_name for config in slave.topics.all()
            }
            assert slave.topics.version == apache.version

    run(work())


def test_how_far_timers_have_come_is_believed_after_a_while() -> None:
    clock = ManualClock()
    copies = tables_module.TableCopies.__new__(tables_module.TableCopies)
    copies._clock = clock
    timers: Any = tables_module._Seen().timers
    checks = [TimerCheck(read_ms=100_000 + 5000 * number, queue_offset=number) for number in range(6)]
    found = []
    for check in checks:
        found.append(copies._aged(timers, check))
        clock.advance(5)
    assert [check.read_ms for check in found] == [90_000, 90_000, 100_000, 105_000, 110_000, 115_000]
    assert [check.queue_offset for check in found] == [0, 0, 0, 1, 2, 3]
    assert len(timers) == 3


# -- crashes ------------------------------------------------------------------------------


def test_a_crash_while_a_copied_table_is_saved_leaves_the_old_or_the_new_one(tmp_path: Path) -> None:
    """Whenever the process or the machine ends; of files, of which each has its own order of steps."""
    live = LiveConfig(BrokerConfig())
    disk = RecordedDisk(tmp_path / "live")
    folder = disk.root / "config"

    def opened(root: Path) -> tuple[Topics, Groups, ConsumerOffsets]:
        tables = Topics(root, live, SYSTEM_CLOCK), Groups(root, live, SYSTEM_CLOCK), ConsumerOffsets(root)
        for table in tables:
            table.load()
        return tables

    slave = BrokerConfig(broker_role="SLAVE", broker_id=1)
    caller: Any = None

    def content(root: Path) -> tuple[Any, ...]:
        topics, groups, offsets = opened(root)
        heard = HeardOfMaster(root, Files(), TableThread(Files()), caller, SYSTEM_CLOCK, lambda: 0)
        heard.load()
        return (
            RoleFile(root, Files(), TableThread(Files()), slave).load(slave).broker_role,
            (heard.role, heard.slaves),
            (topics.version.counter, "old" in topics, "new" in topics),
            (groups.version.counter, groups.known("old") is not None, groups.known("new") is not None),
            (offsets.version.counter, dict(offsets.rows())),
        )

    async def work() -> int:
        thread = TableThread(disk)
        topics = Topics(folder, live, SYSTEM_CLOCK, thread)
        groups = Groups(folder, live, SYSTEM_CLOCK, thread)
        offsets = ConsumerOffsets(folder, thread)
        heard = HeardOfMaster(folder, disk, thread, caller, SYSTEM_CLOCK, lambda: 0)

        async def take(name: str, counter: int) -> None:
            version = DataVersion(counter=counter, timestamp=5)
            topics.replace({name: TopicConfig(topic_name=name)}, version)
            groups.replace({name: GroupConfig(group_name=name)}, {}, version)
            pairs = Pairs()
            pairs.put(name, name, 0, counter)
            offsets.replace(pairs, version)
            for saving in (topics.saving, groups.saving, offsets._saving):
                await saving.saved()
            role = SYNC_MASTER if name == "new" else ASYNC_MASTER
            await RoleFile(folder, disk, thread, slave).save(replace(slave, broker_role=role, broker_id=0))
            await heard.keep(role, counter)

        await take("old", 1)
        begin = disk.now
        await take("new", 2)
        thread.close()
        return begin

    begin = run(work())
    tables = ((1, True, False), (1, True, False), (1, {"old@old": {"0": 1}}))
    old: tuple[Any, ...] = (ASYNC_MASTER, (ASYNC_MASTER, 1), *tables)
    tables = ((2, False, True), (2, False, True), (2, {"new@new": {"0": 2}}))
    new: tuple[Any, ...] = (SYNC_MASTER, (SYNC_MASTER, 2), *tables)
    seen: set[str] = set()
    for moment in range(begin, disk.now + 1):
        for kind in ("killed", "power"):
            root = tmp_path / f"{kind}-{moment}"
            if kind == "killed":
                disk.killed(moment, root)
            else:
                disk.power_lost(moment, root, seed=moment)
            for found, before, after in zip(content(root / "config"), old, new, strict=True):
                assert found in (before, after), f"{kind} at {moment}: {found}"
                seen.add("old" if found == before else "new")
    assert seen == {"old", "new"} and content(folder) == new


def _topic(name: str) -> dict[str, str]:
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }


def _commit(group: str, topic: str, offset: int) -> dict[str, str]:
    return {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": f"{offset}"}
