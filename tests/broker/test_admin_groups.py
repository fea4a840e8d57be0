"""Administration of groups: settings, progress, connections, live clients."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gimbalmq.broker.handlers import admin_groups
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.bodies import GroupConfig
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.status_bodies import ConsumerStatusBody
from tests.broker.desk import Client, Desk, fields, open_desk
from tests.support import ManualClock, run


async def _commit(client: Client, topic: str, queue_id: int, offset: int, group: str = "g") -> None:
    ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
    await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, ext)


def test_settings_of_a_group_can_be_changed_and_are_kept(tmp_path: Path) -> None:
    """S1-19."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            client = desk.client
            answer = await client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"})
            assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST and "[g]" in (answer.remark or "")
            await client.heartbeat(group="g")
            shown = await client.json(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"})
            assert shown == {
                "attributes": {},
                "brokerId": 0,
                "consumeBroadcastEnable": True,
                "consumeEnable": True,
                "consumeFromMinEnable": True,
                "consumeMessageOrderly": False,
                "consumeTimeoutMinute": 15,
                "groupName": "g",
                "groupRetryPolicy": {"type": "CUSTOMIZED"},
                "groupSysFlag": 0,
                "notifyConsumerIdsChangedEnable": True,
                "retryMaxTimes": 16,
                "retryQueueNums": 1,
                "whichBrokerWhenConsumeSlowly": 1,
            }
            shown |= {"retryMaxTimes": 3, "consumeEnable": False}
            await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, json.dumps(shown).encode())
            stored = json.loads((tmp_path / "config" / "subscriptionGroup.json").read_text())
            assert stored["subscriptionGroupTable"]["g"]["retryMaxTimes"] == 3
            both = {"groupConfigList": [{"groupName": "x"}, {"groupName": "y"}]}
            await client.ok(
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, json.dumps(both).encode()
            )
            await desk.restart()
            table = await client.json(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            assert table["subscriptionGroupTable"]["g"] | shown == table["subscriptionGroupTable"]["g"]
            assert {"x", "y", "TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS"} <= table["subscriptionGroupTable"].keys()
            assert (await client.pull("TBW102")).code == ResponseCode.NO_PERMISSION

    run(work())


@pytest.mark.parametrize(("name", "word"), [("a b", "a b"), ("", "blank"), ("x" * 249, "248")])
def test_group_with_a_bad_name(tmp_path: Path, name: str, word: str) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            body = GroupConfig(group_name=name).dump()
            answer = await desk.client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
            assert answer.code == ResponseCode.INVALID_PARAMETER and word in (answer.remark or "")
            # Nor does a heartbeat make it.
            assert (await desk.client.heartbeat(group=name)).code == 0
            assert desk.broker.consumers.groups() == []

    run(work())


def test_deleting_a_group_with_and_without_its_offsets(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            client = desk.client
            await desk.create("T")
            for flag, kept in (("none", {"T"}), ("removeOffset", set()), ("cleanOffset", set())):
                await _commit(client, "T", 0, 3)
                desk.broker.locks.lock("g", "c", [MessageQueue("T", "broker-a", 0)])
                await client.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", flag: "true"})
                assert desk.broker.groups.known("g") is None
                assert desk.broker.offsets.topics_of("g") == kept
                assert not desk.broker.locks.any_locked("g")

    run(work())


def _rows(body: dict[str, Any]) -> dict[tuple[str, int], dict[str, int]]:
    keys = {fastjson.queue_key(key): row for key, row in body["offsetTable"].items()}
    return {(queue.topic, queue.queue_id): row for queue, row in keys.items()}


def test_progress_of_a_group(tmp_path: Path) -> None:
    """S1-18: for each queue the broker's offset, the consumer's, and so the difference."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            client = desk.client
            await desk.create("T", 2)
            await desk.create("U", 1)
            for _ in range(5):
                await client.send()
                clock.advance(1)
            await _commit(client, "T", 0, 3)
            await _commit(client, "U", 0, 0)
            await client.pull(offset=0, count=4)
            body = await client.json(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"})
            rows = _rows(body)
            assert set(rows) == {("T", 0), ("T", 1), ("U", 0)}
            assert rows["T", 0] == {
                "brokerOffset": 5,
                "consumerOffset": 3,
                "lastTimestamp": clock.wall - 3000,
                "pullOffset": 4,
            }
            assert rows["T", 1] == dict.fromkeys(rows["T", 1], 0)
            assert isinstance(body["consumeTps"], float)
            for ext in ({"topic": "U"}, {"topicList": "U;"}):
                body = await client.json(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", **ext})
                assert set(_rows(body)) == {("U", 0)}
            # While the group is online, topics it no longer subscribes are left out.
            await client.heartbeat(group="g", topics={"T": "*"})
            body = await client.json(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"})
            assert {topic for topic, _ in _rows(body)} == {"T"}

    run(work())


def test_progress_of_all_groups_names_the_real_port(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T", 1)
            for _ in range(5):
                await desk.client.send()
            await _commit(desk.client, "T", 0, 3)
            await _commit(desk.client, "T", 0, 1, "h")
            body = await desk.client.json(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
            assert body["brokerAddr"] == desk.broker.address
            assert body["totalDiff"] == 2 + 4
            assert [list(item) for item in body["consumeStatsList"]] == [["g"], ["h"]]

    run(work())


def test_time_span_of_what_waits(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T", 1)
            start = clock.wall
            for _ in range(3):
                await desk.client.send()
                clock.advance(10)
            await _commit(desk.client, "T", 0, 1)
            body = await desk.client.json(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "g"})
            assert body["consumeTimeSpanSet"] == [
                {
                    "consumeTimeStamp": start,
                    "delayTime": 10_000,
                    "maxTimeStamp": start + 20_000,
                    "messageQueue": {"brokerName": "broker-a", "queueId": 0, "topic": "T"},
                    "minTimeStamp": start,
                }
            ]
            answer = await desk.client.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "X", "group": "g"})
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST and "X" in (answer.remark or "")

    run(work())


def test_offsets_of_all_groups_copied_and_compared(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            client = desk.client
            for topic in ("T", "U"):
                await desk.create(topic)
            await client.heartbeat(group="g", topics={})
            await _commit(client, "T", 0, 3)
            await _commit(client, "U", 1, 4)
            await _commit(client, "%RETRY%g", 0, 9)
            await client.ok(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g", "destGroup": "h"})
            assert desk.broker.offsets.queues("h", "T") == {0: 3}
            assert desk.broker.offsets.queues("h", "U") == {1: 4}
            assert desk.broker.offsets.queues("h", "%RETRY%g") == {}
            await client.ok(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g", "destGroup": "i", "topic": "U"})
            assert desk.broker.offsets.topics_of("i") == {"U"}
            body = await client.json(RequestCode.GET_ALL_CONSUMER_OFFSET)
            assert body["offsetTable"]["T@g"] == {"0": 3}
            await _commit(client, "T", 0, 7, "h")
            ext = {"compareGroup": "g", "topic": "T", "filterGroups": "x,y"}
            body = await client.json(RequestCode.QUERY_CORRECTION_OFFSET, ext)
            assert body == {"correctionOffsets": {"0": 7}}
            body = await client.json(RequestCode.QUERY_CORRECTION_OFFSET, ext | {"filterGroups": "h"})
            assert body == {"correctionOffsets": {}}

    run(work())


def test_connections_of_groups_nobody_is_in(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            answer = await desk.client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
            assert (answer.code, answer.remark) == (206, "the consumer group[g] not online")
            answer = await desk.client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"})
            assert answer.code == 1 and "[p]" in (answer.remark or "")
            await desk.client.heartbeat("c1", producer="p")
            body = await desk.client.json(RequestCode.GET_ALL_PRODUCER_INFO)
            (row,) = body["data"]["p"]
            assert (row["clientId"], row["remoteIP"], row["language"]) == ("c1", "127.0.0.1", "JAVA")

    run(work())


def test_subscription_of_a_group(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.client.heartbeat(group="g", topics={"T": "a"})
            ask = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER
            body = await desk.client.json(ask, {"group": "g", "topic": "T"})
            assert (body["group"], body["topic"], body["subscriptionData"]["subString"]) == ("g", "T", "a")
            body = await desk.client.json(ask, {"group": "g", "topic": "U"})
            assert body == {"group": "g", "topic": "U"}

    run(work())


# -- relayed to live consumers ---------------------------------------------------------------


async def _consumer(desk: Desk, client_id: str = "c1") -> Client:
    consumer = desk.new_client()
    await consumer.heartbeat(client_id, group="g")
    return consumer


def test_running_info_is_asked_of_the_client(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            one, two = await _consumer(desk, "c1"), await _consumer(desk, "c2")
            two.answers[307] = b'{"properties":{"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"}}'
            ext = {"consumerGroup": "g", "clientId": "c2", "jstackEnable": "false"}
            answer = await desk.client.ok(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
            assert bytes(answer.body) == two.answers[307]
            (request,) = await two.heard_code(307)
            assert fields(request) == ext and not [r for r in one.heard if r.code == 307]
            for client_id in ("c9", ""):
                answer = await desk.client.ask(
                    RequestCode.GET_CONSUMER_RUNNING_INFO, ext | {"consumerGroup": "h", "clientId": client_id}
                )
                assert answer.code == 1 and f"<h> <{client_id}> not online" in (answer.remark or "")

    run(work())


def test_client_too_old_or_too_slow_to_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_groups, "_RELAY_SECONDS", 0.05)

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            old = desk.new_client()
            body = b'{"clientID":"old","consumerDataSet":[{"groupName":"o"}],"producerDataSet":[]}'
            await old.ask(RequestCode.HEART_BEAT, None, body, version=10)
            ext = {"consumerGroup": "o", "clientId": "old"}
            answer = await desk.client.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
            assert (
                answer.code == 1 and "<old>" in (answer.remark or "") and "upgrade" in (answer.remark or "")
            )
            await _consumer(desk, "slow")
            ext = {"consumerGroup": "g", "clientId": "slow"}
            answer = await desk.client.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
            assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT and "slow" in (answer.remark or "")

    run(work())


def test_client_that_breaks_off_while_it_is_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            consumer = await _consumer(desk)
            ext = {"consumerGroup": "g", "clientId": "c1"}
            asking = asyncio.ensure_future(desk.client.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, ext))
            await consumer.heard_code(307)
            await consumer.cut()
            answer = await asking
            assert answer.code == 1 and "consumer c1 went away" in (answer.remark or "")

    run(work())
    assert "request 307 failed" not in caplog.text


def test_message_is_consumed_directly(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            told = fields(await desk.client.send(body=b"again"))
            consumer = await _consumer(desk)
            consumer.answers[309] = b'{"consumeResult":"CR_SUCCESS"}'
            ext = {"consumerGroup": "g", "clientId": "c1", "msgId": told["msgId"]}
            answer = await desk.client.ok(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
            assert bytes(answer.body) == consumer.answers[309]
            (request,) = await consumer.heard_code(309)
            assert bytes(request.body) == desk.broker.store.record_at_queue("T", 0, 0)
            assert fields(request) == ext | {"brokerName": "broker-a"}
            answer = await desk.client.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext | {"msgId": "XYZ"})
            assert answer.code == ResponseCode.INVALID_PARAMETER and "'XYZ'" in (answer.remark or "")
            nowhere = told["msgId"][:-1] + "1"
            answer = await desk.client.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext | {"msgId": nowhere})
            assert answer.code == 1 and nowhere in (answer.remark or "")

    run(work())


def test_consumers_are_asked_how_far_they_are(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            for client_id in ("c1", "c2"):
                consumer = await _consumer(desk, client_id)
                key = fastjson.queue_text(MessageQueue("T", "broker-a", 0))
                consumer.answers[221] = fastjson.dumps({"messageQueueTable": {key: 7}}, queue_keys=True)
            ext = {"topic": "T", "group": "g"}
            body = await desk.client.json(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ext)
            assert set(body["consumerTable"]) == {"c1", "c2"}
            assert list(body["consumerTable"]["c1"].values()) == [7]
            body = await desk.client.json(
                RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ext | {"clientAddr": "c2"}
            )
            assert set(body["consumerTable"]) == {"c2"}
            # As Java writes it, and longer than what strangers may send.
            queues = {MessageQueue("T", "broker-a", n): n for n in range(1200)}
            consumer.answers[221] = ConsumerStatusBody.of_queues(queues).dump()
            answer = await desk.client.ok(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ext)
            assert ConsumerStatusBody.parse(answer.body).clients["c2"] == queues
            answer = await desk.client.ask(
                RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "none"}
            )
            assert answer.code == 206

    run(work())
