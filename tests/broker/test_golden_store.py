"""Folders that Apache's brokers wrote, opened by a broker of ours and looked at as clients do.

Made by tests/peers/record_store.py with 4.9.7 and 5.5.0; the JSON beside each archive is what Java's
own clients sent to it and received from it.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gimbalmq.model import topics as names
from gimbalmq.model.compression import decompress
from gimbalmq.model.javahash import tag_hash
from gimbalmq.model.record import Record, decode_record
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.store.timer_files import TimerCheck
from tests.broker.desk import Desk, fields, open_desk, pulled
from tests.support import ManualClock, run

GOLDEN = Path(__file__).parent.parent / "golden"
VERSIONS = ["4_9_7", "5_5_0"]
KEYS = "mappedFileSizeCommitLog mappedFileSizeConsumeQueue maxHashSlotNum maxIndexNum brokerName brokerClusterName"


@asynccontextmanager
async def javas(version: str, folder: Path) -> AsyncIterator[tuple[Desk, dict[str, Any]]]:
    """Our broker on Java's folder, an hour after Java closed it."""
    with tarfile.open(GOLDEN / f"store_{version}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    told: dict[str, Any] = json.loads((GOLDEN / f"store_{version}.json").read_text())
    settings = {key: told["settings"][key] for key in KEYS.split()}
    newest = max(message["store_timestamp"] for message in told["received"])
    async with open_desk(folder, ManualClock(wall_ms=newest + 3_600_000), **settings) as desk:
        yield desk, told


def _check(record: Record, message: dict[str, Any]) -> None:
    body = decompress(record.body, record.sys_flag) if record.sys_flag & 1 else record.body
    assert body.decode() == message["body"]
    assert record.properties == message["properties"]
    for ours, javas_ in (
        ("topic", "topic"),
        ("queue_id", "queue_id"),
        ("queue_offset", "queue_offset"),
        ("commitlog_offset", "commitlog_offset"),
        ("flag", "flag"),
        ("born_timestamp", "born_timestamp"),
        ("store_timestamp", "store_timestamp"),
        ("reconsume_times", "reconsume_times"),
        ("prepared_transaction_offset", "transaction_offset"),
        ("total_size", "store_size"),
    ):
        assert getattr(record, ours) == message[javas_], ours
    assert record.sys_flag & ~1 == message["system_flag"] & ~1
    assert f"{record.store_host[0]}:{record.store_host[1]}" == message["store_host"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_message_java_received_comes_from_us(tmp_path: Path, version: str) -> None:
    async def work() -> None:
        async with javas(version, tmp_path) as (desk, told):
            report = desk.broker.recovery
            assert report is not None and report.clean and report.truncated_bytes == 0
            assert report.redispatched == 0, "checkpoint and queues are taken as Java left them"
            wanted = {(m["topic"], m["queue_id"], m["queue_offset"]): m for m in told["received"]}
            assert len(wanted) == len(told["received"]) > 200
            for topic, queues in told["topics"].items():
                for queue_id in range(queues):
                    offset = 0
                    while (answer := await desk.client.pull(topic, queue_id, offset, group="ours")).code == 0:
                        for record in pulled(answer):
                            _check(record, wanted.pop((topic, queue_id, record.queue_offset)))
                        offset = int(fields(answer)["nextBeginOffset"])
            assert not wanted

    run(work())


@pytest.mark.parametrize("version", VERSIONS)
def test_messages_are_found_by_id_key_and_time(tmp_path: Path, version: str) -> None:
    async def work() -> None:
        async with javas(version, tmp_path) as (desk, told):
            some = [m for m in told["received"] if m["topic"] != "golden-roll"]
            some += [m for m in told["received"] if m["topic"] == "golden-roll"][::20]
            for message in some:
                ext = {"offset": str(message["commitlog_offset"]), "topic": message["topic"]}
                answer = await desk.client.ok(RequestCode.VIEW_MESSAGE_BY_ID, ext)
                _check(decode_record(bytes(answer.body), check_crc=True), message)
                for key in [*(message["keys"] or "").split(), message["message_id"]]:
                    ext = {"topic": message["topic"], "key": key, "maxNum": "64", "beginTimestamp": "0"}
                    ext |= {"endTimestamp": str(2**63 - 1), "_UNIQUE_KEY_QUERY": "false"}
                    found = pulled(await desk.client.ok(RequestCode.QUERY_MESSAGE, ext))
                    assert message["commitlog_offset"] in {record.commitlog_offset for record in found}
                where = {"topic": message["topic"], "queueId": str(message["queue_id"])}
                ext = where | {"timestamp": str(message["store_timestamp"])}
                answer = await desk.client.ok(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)
                assert int(fields(answer)["offset"]) <= message["queue_offset"]
                entry = desk.broker.store.entries(
                    message["topic"], message["queue_id"], message["queue_offset"], 1
                )
                tag = tag_hash(message["tags"]) if message["tags"] else 0
                assert entry == [(message["commitlog_offset"], message["store_size"], tag)]

    run(work())


@pytest.mark.parametrize("version", VERSIONS)
def test_javas_metadata_is_ours(tmp_path: Path, version: str) -> None:
    async def work() -> None:
        async with javas(version, tmp_path) as (desk, told):
            # From the archive: the broker under test may write its own files at any moment.
            def document(name: str) -> Any:
                with tarfile.open(GOLDEN / f"store_{version}.tar.xz") as archive:
                    member = archive.extractfile(f"config/{name}")
                    assert member is not None
                    return fastjson.loads(member.read())

            topics = document("topics.json")["topicConfigTable"]
            assert told["topics"].items() <= {t: c["writeQueueNums"] for t, c in topics.items()}.items()
            shown = await desk.client.json(RequestCode.GET_ALL_TOPIC_CONFIG)
            for topic, settings in topics.items():
                assert settings.items() <= shown["topicConfigTable"][topic].items(), topic
            assert shown["dataVersion"]["counter"] == document("topics.json")["dataVersion"]["counter"]
            groups = document("subscriptionGroup.json")["subscriptionGroupTable"]
            shown = await desk.client.json(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            assert "golden-group" in groups
            for group, settings in groups.items():
                assert settings.items() <= shown["subscriptionGroupTable"][group].items(), group
            table = document("consumerOffset.json")["offsetTable"]
            shown = await desk.client.json(RequestCode.GET_ALL_CONSUMER_OFFSET)
            assert table.items() <= shown["offsetTable"].items()
            for topic, queues in told["committed"]["golden-reader"].items():
                for queue_id, offset in queues.items():
                    # Otherwise a queue without messages is answered with 0, as by 4.9.
                    ext = {"consumerGroup": "golden-reader", "topic": topic, "queueId": queue_id}
                    ext["setZeroIfNotFound"] = "false"
                    answer = await desk.client.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext)
                    if offset < 0:
                        assert answer.code == ResponseCode.QUERY_NOT_FOUND
                    else:
                        assert int(fields(answer)["offset"]) == offset
            shown = await desk.client.json(RequestCode.GET_ALL_DELAY_OFFSET)
            assert document("delayOffset.json")["offsetTable"].items() <= shown["offsetTable"].items()

    run(work())


@pytest.mark.parametrize("version", VERSIONS)
def test_what_java_left_open_is_finished_by_us(tmp_path: Path, version: str) -> None:
    """A message for two hours later, a half without an end; and new messages go behind Java's."""

    async def work() -> None:
        async with javas(version, tmp_path) as (desk, told):
            assert isinstance(desk.clock, ManualClock)
            (waiting,) = desk.messages(names.SCHEDULE_TOPIC, 17)
            real = (waiting.properties["REAL_TOPIC"], int(waiting.properties["REAL_QID"]))
            before = len(desk.messages(*real))
            desk.broker.delays.tick()
            assert len(desk.messages(*real)) == before, "only an hour has passed; the rest Java delivered"
            desk.clock.advance(3600)
            desk.broker.delays.tick()
            assert desk.messages(*real)[-1].body == waiting.body
            producer = desk.new_client()
            await producer.heartbeat(producer="golden-transactions")
            await desk.broker.transactions.check()
            (question,) = await producer.heard_code(RequestCode.CHECK_TRANSACTION_STATE)
            asked = decode_record(bytes(question.body))
            (open_one,) = [
                s["result"]["message_id"]
                for s in told["sent"]
                if s["way"] == "transaction" and s["result"]["local_state"] == "UNKNOW"
            ]
            assert asked.properties["UNIQ_KEY"] == open_one and asked.topic == "golden-orders"
            end = {"producerGroup": "golden-transactions", "commitOrRollback": "8"}
            names_ = ("tranStateTableOffset", "commitLogOffset", "msgId")
            end |= {name: fields(question)[name] for name in names_}
            await producer.ok(RequestCode.END_TRANSACTION, end)
            assert desk.messages("golden-orders", asked.queue_id)[-1].body == asked.body
            answer = await desk.client.send("golden-roll", b"ours", properties={"KEYS": "ours"})
            assert fields(answer)["queueOffset"] == "220"
            await desk.restart()
            assert desk.broker.recovery is not None and desk.broker.recovery.clean
            assert desk.bodies("golden-roll")[-1] == b"ours" and len(desk.messages("golden-roll")) == 221
            desk.broker.delays.tick()
            await desk.broker.transactions.check()
            assert len(desk.messages(*real)) == before + 1

    run(work())


def test_timers_of_apaches_folder_come_once_and_at_their_time(tmp_path: Path) -> None:
    """Each of the three that Apache had delivered came a second time."""
    with tarfile.open(GOLDEN / "timers_5_5_0.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    check = TimerCheck.load(tmp_path / "config" / "timercheck")
    assert check is not None and check.marks_from == -1

    async def work() -> None:
        clock = ManualClock(wall_ms=check.read_ms + 1000)
        settings = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 120_000}
        async with open_desk(tmp_path, clock, **settings) as desk:

            def bodies() -> list[bytes]:
                while desk.broker.timers.tick():
                    pass
                return sorted(body for queue in range(8) for body in desk.bodies("TimerT", queue))

            delivered = [b"at once", b"short-1", b"short-2", b"short-3"]
            assert bodies() == delivered and len(desk.broker.timers) == 4
            dues = {
                record.body: int(record.properties["TIMER_DELIVER_MS"])
                for record in desk.messages(names.TIMER_TOPIC)
            }
            for body, count in ((b"long-3600", 2), (b"long-7200", 1), (b"long-250000", 1)):
                # The farthest waits in two stages, and so do we, by Apache's mark.
                while dues[body] - clock.wall > 86_400_000:
                    clock.advance(43_200)
                    assert bodies() == delivered
                clock.advance((dues[body] - clock.wall - 1) / 1000)
                assert bodies() == delivered
                clock.advance(0.001)
                delivered = sorted([*delivered, *[body] * count])
                assert bodies() == delivered
            await desk.restart()
            clock.advance(864_000)
            assert bodies() == delivered and len(desk.broker.timers) == 0

    run(work())
