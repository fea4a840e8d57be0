"""Administration of the broker itself, and messages by id and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from gimbalmq.broker.broker import Broker
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.errors import ConfigError, ListenError, StateError, StoreLockedError
from gimbalmq.model.ids import parse_offset_id
from gimbalmq.protocol import fastjson, properties_text
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from tests.broker.desk import broker_config, fields, open_desk, pulled
from tests.support import ManualClock, run

TOOLS_READ = [
    "brokerVersionDesc",
    "putTps",
    "getTransferredTps",
    "getTransferedTps",
    "sendThreadPoolQueueSize",
    "pullThreadPoolQueueSize",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "pageCacheLockTimeMills",
    "earliestMessageTimeStamp",
    "commitLogDiskRatio",
    "brokerActive",
    "timerReadBehind",
    "timerOffsetBehind",
    "timerCongestNum",
    "timerEnqueueTps",
    "timerDequeueTps",
    "msgPutTotalYesterdayMorning",
    "msgPutTotalTodayMorning",
    "msgPutTotalTodayNow",
    "msgGetTotalYesterdayMorning",
    "msgGetTotalTodayMorning",
    "msgGetTotalTodayNow",
    "bootTimestamp",
    "runtime",
    "commitLogMinOffset",
    "commitLogMaxOffset",
    "dispatchBehindBytes",
    "remainHowManyDataToFlush",
    "putMessageTimesTotal",
    "getFoundTps",
    "getMissTps",
    "getTotalTps",
    "consumeQueueDiskRatio",
    "scheduleMessageOffset_2",
]

GET, UPDATE = RequestCode.GET_BROKER_CONFIG, RequestCode.UPDATE_BROKER_CONFIG


def test_configuration_is_shown_and_changed_under_apaches_keys(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            answer = await desk.client.ok(GET)
            shown = properties_text.loads(bytes(answer.body).decode())
            assert shown["brokerName"] == "broker-a" and shown["autoCreateTopicEnable"] == "true"
            assert shown["brokerIP1"] == "127.0.0.1" and shown["tls.server.mode"] == "permissive"
            assert fastjson.loads(fields(answer)["version"])["counter"] == 0
            await desk.client.ok(UPDATE, None, b"maxMessageSize=10\nautoCreateTopicEnable=false\n")
            answer = await desk.client.ok(GET)
            assert properties_text.loads(bytes(answer.body).decode())["maxMessageSize"] == "10"
            assert fastjson.loads(fields(answer)["version"])["counter"] == 1
            assert (await desk.client.send("new")).code == ResponseCode.TOPIC_NOT_EXIST
            await desk.create("T")
            assert (await desk.client.send(body=b"x" * 11)).code == ResponseCode.MESSAGE_ILLEGAL

    run(work())


def test_settings_that_are_refused_say_which_and_why(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            before = desk.broker.live.now
            for text, code, words in (
                (b"brokerName=x", 29, ["brokerName='x'", "when the server starts"]),
                (b"maxMessageSize=much", 29, ["maxMessageSize='much'", "number"]),
                (b"maxMessageSize=0", 29, ["maxMessageSize=0", "1 to 16711680"]),
                (b"traceOn=perhaps", 29, ["traceOn='perhaps'", "true or false"]),
                (b"deleteWhen=noon", 29, ["deleteWhen='noon'", "04"]),
                (b"tls.server.mode=enforcing", 29, ["tls.server.mode", "starts"]),
                (b"flushConsumerOffsetInterval=0", 29, ["flushConsumerOffsetInterval=0", "1 to"]),
                (b"noSuchThing=1", 29, ["noSuchThing"]),
                (b"brokerConfigPath=/etc", 16, ["brokerConfigPath"]),
                (b"configBlackList=x", 16, ["configBlackList"]),
                (b"a=\\u12", 29, ["line 1"]),
                (b"traceOn=false\nmaxMessageSize=-1", 29, ["maxMessageSize"]),
            ):
                answer = await desk.client.ask(UPDATE, None, text)
                assert answer.code == code, (text, answer)
                assert all(word in (answer.remark or "") for word in words), (text, answer.remark)
                assert desk.broker.live.now == before, "all or nothing"
            # What is so already may be said again, and one known key carries an unknown one.
            await desk.client.ok(UPDATE, None, b"brokerName=broker-a\nmessageIndexEnable=true\n")
            await desk.client.ok(UPDATE, None, b"noSuchThing=1\ntraceOn=false\n")
            assert not desk.broker.live.now.trace_on

    run(work())


def test_retention_changed_at_run_time_reaches_the_store(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, cleanResourceInterval=60_000) as desk:
            await desk.client.ok(UPDATE, None, b"fileReservedTime=5\ndeleteWhen=01;02\n")
            await desk.client.ok(UPDATE, None, b"diskMaxUsedSpaceRatio=50\ncleanFileForciblyEnable=false\n")
            await desk.broker.upkeep.clean()
            config = desk.broker.store.config
            assert (config.file_reserved_hours, config.delete_when_hours) == (5, frozenset({1, 2}))
            assert (config.disk_max_used_ratio, config.clean_forcibly) == (0.5, False)

    run(work())


def test_runtime_table_has_what_the_tools_read(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock, flushIntervalCommitLog=60_000) as desk:
            await desk.create("T")
            clock.advance(86_400 + 3_600 + 60 + 1)
            for _ in range(3):
                await desk.client.send()
            await desk.client.pull()
            await desk.client.send(properties={"DELAY": "2"})
            table = (await desk.client.json(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
            assert all(isinstance(value, str) for value in table.values())
            assert set(TOOLS_READ) <= table.keys()
            for key in ("putTps", "getTransferredTps", "getFoundTps"):
                assert len([float(number) for number in table[key].split(" ")]) == 3
            assert table["putMessageTimesTotal"] == table["msgPutTotalTodayNow"] == "4"
            assert table["msgGetTotalTodayNow"] == "3"
            assert table["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
            assert table["commitLogMaxOffset"] == str(desk.broker.store.max_commitlog_offset)
            assert table["earliestMessageTimeStamp"] == str(clock.wall)
            assert table["scheduleMessageOffset_2"] == "0,1"
            assert table["writable"] == "true"
            desk.broker.store.trouble.reason = "the disk is full"
            table = (await desk.client.json(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
            assert (table["writable"], table["readOnlyReason"]) == ("false", "the disk is full")
            desk.broker.store.trouble.reason = None

    run(work())


def test_statistics_over_the_wire(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            for _ in range(6):
                await desk.client.send(body=b"12345")
            await desk.client.pull(count=4)
            clock.advance(10)

            async def view(name: str, key: str) -> dict[str, float]:
                body = await desk.client.json(
                    RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key}
                )
                assert set(body) == {"statsDay", "statsHour", "statsMinute"}
                minute: dict[str, float] = body["statsMinute"]
                return minute

            assert await view("TOPIC_PUT_NUMS", "T") == {"avgpt": 1.0, "sum": 6, "tps": 0.6}
            assert (await view("TOPIC_PUT_SIZE", "T"))["sum"] == 30
            assert (await view("GROUP_GET_NUMS", "T@g"))["sum"] == 4
            assert (await view("GROUP_GET_SIZE", "T@g"))["sum"] > 4 * 5
            assert (await view("BROKER_PUT_NUMS", "DefaultCluster"))["sum"] == 6
            assert (await view("BROKER_GET_NUMS", "DefaultCluster"))["sum"] == 4
            answer = await desk.client.ask(
                RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "X"}
            )
            assert answer.code == 1 and "<TOPIC_PUT_NUMS> <X>" in (answer.remark or "")

    run(work())


def test_clean_up_on_request_leaves_live_messages(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            await desk.client.send()
            for code in (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.DELETE_EXPIRED_COMMITLOG):
                await desk.client.ok(code)
            assert len(desk.messages("T")) == 1

    run(work())


def test_message_by_id_and_by_key(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            start = clock.wall
            for number in range(5):
                answer = await desk.client.send(
                    body=b"%d" % number, text=f"UNIQ_KEY\x01U{number}\x02KEYS\x01shared k{number}\x02"
                )
                clock.advance(1)
            place = parse_offset_id(fields(answer)["msgId"]).commitlog_offset
            found = await desk.client.ok(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(place), "topic": "T"})
            assert bytes(found.body) == desk.broker.store.record_at(place)
            missing = await desk.client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(place + 1)})
            assert missing.code == 1 and str(place + 1) in (missing.remark or "")

            async def bodies(
                key: str, most: int = 64, unique: bool = False, end: int = 1 << 60
            ) -> list[bytes]:
                ext = {"topic": "T", "key": key, "maxNum": str(most), "beginTimestamp": "0"}
                ext |= {"endTimestamp": str(end), "_UNIQUE_KEY_QUERY": str(unique).lower()}
                answer = await desk.client.ask(RequestCode.QUERY_MESSAGE, ext)
                if answer.code == ResponseCode.QUERY_NOT_FOUND:
                    return []
                assert sorted(fields(answer)) == ["indexLastUpdatePhyoffset", "indexLastUpdateTimestamp"]
                return sorted(record.body for record in pulled(answer))

            assert await bodies("shared") == [b"0", b"1", b"2", b"3", b"4"]
            assert len(await bodies("shared", most=2)) == 2
            assert await bodies("k3") == [b"3"]
            assert await bodies("U4", most=0, unique=True) == [b"4"], "a unique key needs no number"
            assert await bodies("shared", end=start) == [b"0"]
            assert await bodies("absent") == []

    run(work())


def test_unknown_request_is_refused_by_number(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            answer = await desk.client.ask(9999)
            assert answer.code == 3 and "9999" in (answer.remark or "")

    run(work())


# -- life of the broker ----------------------------------------------------------------------


def test_a_broker_needs_a_folder_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="storePathRootDir"):
        Broker(BrokerConfig())

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            with pytest.raises(StateError, match="started already"):
                await desk.broker.start()
            second = Broker(broker_config(tmp_path))
            with pytest.raises(StoreLockedError, match=str(tmp_path)):
                await second.start()
            await second.close()
            # The first one is not disturbed.
            assert (await desk.client.send("new")).code == 0

    run(work())


def test_port_that_is_taken(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path / "a") as desk:
            second = Broker(broker_config(tmp_path / "b", listenPort=desk.broker.port))
            with pytest.raises(ListenError, match=str(desk.broker.port)):
                await second.start()
            # Nothing was begun: the folder is not even there.
            assert not (tmp_path / "b" / "abort").exists()

    run(work())


def test_start_that_fails_late_leaves_nothing_open(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path / "a") as desk:
            port = desk.broker.port
            second = Broker(broker_config(tmp_path / "b", metricsPromExporterPort=port))
            with pytest.raises(ListenError, match=f"{port}.*metricsPromExporterPort"):
                await second.start()
            assert not (tmp_path / "b" / "abort").exists(), "closed cleanly"
            third = Broker(broker_config(tmp_path / "b"))
            await third.start()
            await third.close()

    run(work())


def test_fast_port_serves_the_same_requests(tmp_path: Path) -> None:
    """Clients before 4.5.1 send to port - 2."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            port = desk.broker.port
            await desk.restart(listenPort=port)
            assert desk.broker.port == port
            if desk.broker._fast_server._listener is None:
                pytest.skip(f"port {port - 2} is in use by somebody else")
            answer = await desk.client.pool.call(f"127.0.0.1:{port - 2}", _runtime(), 5.0)
            assert answer.code == 0

    run(work())


def _runtime() -> RemotingCommand:
    return RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)
