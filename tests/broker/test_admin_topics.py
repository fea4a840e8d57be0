"""Administration of topics: 17, 18, 21, 202, 215, 300, 305, 316, 321, 343, 351."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gimbalmq.model import topics as names
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from tests.broker.desk import open_desk, topic_fields
from tests.support import ManualClock, run


def test_topic_is_made_changed_shown_and_kept(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            client = desk.client
            await desk.create("T", 8, attributes="+message.type=NORMAL,+a=1", topicSysFlag=2)
            shown = await client.json(RequestCode.GET_TOPIC_CONFIG, {"topic": "T", "lo": "true"})
            assert shown == {
                "attributes": {"message.type": "NORMAL", "a": "1"},
                "order": False,
                "perm": 6,
                "readQueueNums": 8,
                "topicFilterType": "SINGLE_TAG",
                "topicName": "T",
                "topicSysFlag": 2,
                "writeQueueNums": 8,
            }
            # When it is answered it is on file.
            stored = json.loads((tmp_path / "config" / "topics.json").read_text())
            assert stored["topicConfigTable"]["T"] == shown
            before = desk.broker.topics.version.counter
            await desk.create("T", 3, perm=4, order=True, attributes="-a")
            assert desk.broker.topics.version.counter == before + 1
            await desk.restart()
            shown = await client.json(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})
            assert (shown["readQueueNums"], shown["perm"], shown["order"]) == (3, 4, True)
            assert shown["attributes"] == {"message.type": "NORMAL"}
            everything = await client.json(RequestCode.GET_ALL_TOPIC_CONFIG)
            assert everything["topicConfigTable"]["T"] == shown
            assert everything["dataVersion"]["counter"] == before + 1

    run(work())


def test_many_topics_in_one_request_all_or_none(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:

            def body(*topics: str) -> bytes:
                configs = [
                    {"topicName": t, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6} for t in topics
                ]
                return json.dumps({"topicConfigList": configs}).encode()

            await desk.client.ok(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, body("A", "B"))
            assert "A" in desk.broker.topics and "B" in desk.broker.topics
            answer = await desk.client.ask(
                RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, body("C", "no good")
            )
            assert answer.code == ResponseCode.INVALID_PARAMETER and "no good" in (answer.remark or "")
            assert "C" not in desk.broker.topics

    run(work())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"topic": "a/b"}, ["a/b", "illegal"]),
        ({"topic": ""}, ["blank"]),
        ({"topic": "x" * 128}, ["127"]),
        ({"topic": "TBW102"}, ["TBW102", "system"]),
        ({"topic": "rmq_sys_mine"}, ["rmq_sys_mine"]),
        ({"topic": "DefaultCluster"}, ["DefaultCluster"]),
        ({"readQueueNums": "-1"}, ["readQueueNums of topic T is -1", "0 to"]),
        ({"writeQueueNums": "70000"}, ["writeQueueNums of topic T is 70000"]),
        ({"perm": "64"}, ["perm of topic T is 64", "6 for both"]),
        ({"attributes": "a=1"}, ["'a=1'", "+key=value"]),
    ],
)
def test_topic_that_cannot_be_made(tmp_path: Path, change: dict[str, str], words: list[str]) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            before = desk.broker.topics.version
            answer = await desk.client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T") | change)
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert all(word in (answer.remark or "") for word in words), answer.remark
            assert desk.broker.topics.version == before

    run(work())


def test_deleted_topic_is_gone_with_its_messages_and_offsets(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            client = desk.client
            await desk.create("T")
            await client.send(body=b"old")
            await client.ok(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"},
            )
            await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
            assert "T" not in desk.broker.topics and desk.broker.offsets.topics_of("g") == set()
            assert desk.broker.stats.find("TOPIC_PUT_NUMS", "T") is None
            assert (
                "T" not in json.loads((tmp_path / "config" / "topics.json").read_text())["topicConfigTable"]
            )
            for code in (RequestCode.GET_TOPIC_CONFIG, RequestCode.GET_TOPIC_STATS_INFO):
                answer = await client.ask(code, {"topic": "T"})
                assert answer.code == ResponseCode.TOPIC_NOT_EXIST and "T" in (answer.remark or "")
            # The fast way's memory of it is gone too: the new one starts afresh.
            await desk.create("T")
            await client.send(body=b"new")
            assert desk.bodies("T") == [b"new"] and desk.messages("T")[0].queue_offset == 0
            await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "never there"})
            for topic in (" ", names.SCHEDULE_TOPIC, "broker-a"):
                answer = await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
                assert answer.code == ResponseCode.INVALID_PARAMETER

    run(work())


def test_stats_of_a_topic_have_a_row_for_every_queue(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T", 2, readQueueNums=3)
            await desk.client.send(queue_id=1)
            clock.advance(5)
            await desk.client.send(queue_id=1)
            body = await desk.client.json(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
            rows = {fastjson.queue_key(key): row for key, row in body["offsetTable"].items()}
            assert {queue.queue_id for queue in rows} == {0, 1, 2}
            assert {(queue.topic, queue.broker_name) for queue in rows} == {("T", "broker-a")}
            found = {queue.queue_id: row for queue, row in rows.items()}
            assert found[0] == {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0}
            assert found[1] == {"lastUpdateTimestamp": clock.wall, "maxOffset": 2, "minOffset": 0}
            assert isinstance(body["topicPutTps"], float)

    run(work())


def test_system_topics_and_their_shapes(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, traceTopicEnable=True) as desk:
            await desk.create("T")
            body = await desk.client.json(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
            shapes = {
                "TBW102": (8, 7),
                "SELF_TEST_TOPIC": (1, 6),
                "OFFSET_MOVED_EVENT": (1, 6),
                "BenchmarkTest": (1024, 6),
                "DefaultCluster": (16, 7),
                "broker-a": (1, 7),
                "SCHEDULE_TOPIC_XXXX": (18, 6),
                "DefaultCluster_REPLY_TOPIC": (1, 6),
                "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
                "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
                "RMQ_SYS_TRACE_TOPIC": (1, 6),
                "rmq_sys_wheel_timer": (1, 6),
                "TRANS_CHECK_MAX_TIME_TOPIC": (1, 6),
            }
            assert set(body["topicList"]) == set(shapes)
            for topic, (queues, perm) in shapes.items():
                config = desk.broker.topics.find(topic)
                assert config is not None, topic
                assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (
                    queues,
                    queues,
                    perm,
                )

    run(work())


def test_who_consumes_a_topic_and_what_a_group_consumes(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            await desk.client.heartbeat(group="online", topics={"T": "*"})
            await desk.client.ok(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                {"consumerGroup": "past", "topic": "T", "queueId": "0", "commitOffset": "1"},
            )
            body = await desk.client.json(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"})
            assert body == {"groupList": ["online", "past"]}
            body = await desk.client.json(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "past"})
            assert body["topicList"] == ["T"]

    run(work())


def test_entries_of_a_consume_queue(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            for _ in range(5):
                await desk.client.send()
            ext = {"topic": "T", "queueId": "0", "index": "1", "count": "3", "consumerGroup": "g"}
            await desk.client.heartbeat(group="g", topics={"T": "a"})
            body = await desk.client.json(RequestCode.QUERY_CONSUME_QUEUE, ext)
            assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 5)
            assert [row["physicOffset"] for row in body["queueData"]] == [
                record.commitlog_offset for record in desk.messages("T")[1:4]
            ]
            assert body["subscriptionData"]["subString"] == "a"
            answer = await desk.client.ask(RequestCode.QUERY_CONSUME_QUEUE, ext | {"queueId": "3"})
            assert answer.code == 1 and "3@T" in (answer.remark or "")

    run(work())


def test_queues_of_topics_nobody_knows_are_swept(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            await desk.client.send()
            desk.broker.store.queue("orphan", 0)
            desk.broker.store.queue(names.SCHEDULE_TOPIC, 0)
            await desk.client.ok(RequestCode.CLEAN_UNUSED_TOPIC)
            assert set(desk.broker.store.topics()) == {"T", names.SCHEDULE_TOPIC}

    run(work())
