"""Names too long for a folder are refused at every way in, before anything is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gimbalmq.model import topics as names
from gimbalmq.protocol.bodies import GroupConfig, TopicConfig
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from tests.broker.desk import Desk, open_desk, pull_fields, send_fields, topic_fields
from tests.support import run

LONG = "g" * 249
"""A group whose retry topic has 256 letters."""


async def _still_works(desk: Desk) -> None:
    """Sends go on, the queues reach their files, and the folder opens again."""
    assert desk.broker.store.read_only_reason is None
    desk.broker.store.flush_queues()
    assert (await desk.client.send()).code == 0
    await desk.restart()
    assert desk.broker.store.read_only_reason is None
    assert desk.bodies("T")[-1] == b"body"
    known = [config.topic_name for config in desk.broker.topics.all()]
    assert all(len(name.encode()) <= names.MAX_NAME_BYTES for name in known)


@pytest.mark.parametrize("group", [LONG, "g" * 255, "ü" * 200])
@pytest.mark.parametrize("level", ["-1", "0", "3"])
def test_message_sent_back_for_a_group_with_a_long_name(tmp_path: Path, group: str, level: str) -> None:
    """The dead letters of 255 letters were a folder that no file system takes: the store never opened again."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            await desk.client.send()
            ext = {"offset": "0", "group": group, "delayLevel": level}
            answer = await desk.client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
            assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            assert "248" in (answer.remark or "") or "illegal" in (answer.remark or "")
            assert desk.broker.groups.known(group) is None
            await _still_works(desk)

    run(work())


def test_longest_group_retries_and_buries(tmp_path: Path) -> None:
    async def work() -> None:
        group = "g" * names.MAX_GROUP_LENGTH
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            await desk.client.send(body=b"hard")
            for level in ("-1", "1"):
                ext = {"offset": "0", "group": group, "delayLevel": level}
                await desk.client.ok(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
            await desk.client.heartbeat(group=group)
            assert (await desk.client.send(names.retry_topic(group), body=b"direct")).code == 0
            assert desk.bodies(names.dlq_topic(group)) == [b"hard"]
            await _still_works(desk)
            assert desk.bodies(names.dlq_topic(group)) == [b"hard"]
            assert desk.bodies(names.retry_topic(group))[0] == b"direct"

    run(work())


@pytest.mark.parametrize(
    "topic",
    [
        names.RETRY_PREFIX + LONG,
        names.DLQ_PREFIX + "g" * 251,
        "t" * 128,
        "..",
        "a/b",
        "a\0b",
        "ü" * 127,
        "\U0001f600",
    ],
)
def test_every_request_with_a_topic_no_folder_can_be(tmp_path: Path, topic: str) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            client = desk.client
            count = len(desk.broker.topics)
            for answer in (
                await client.send(topic),
                await client.send(topic, code=RequestCode.SEND_MESSAGE),
                await client.send(topic, code=RequestCode.SEND_BATCH_MESSAGE, batch=True),
                await client.send(topic, properties={"DELAY": "1"}),
                await client.send(topic, properties={"TRAN_MSG": "true", "PGROUP": "p"}),
                await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic)),
                await client.ask(
                    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
                    None,
                    json.dumps({"topicConfigList": [{"topicName": "fine"}, {"topicName": topic}]}).encode(),
                ),
            ):
                assert answer.code == ResponseCode.INVALID_PARAMETER, answer
            for code, ext in (
                (RequestCode.PULL_MESSAGE, pull_fields(topic, 0, 0)),
                (
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    {"consumerGroup": "g", "topic": topic, "queueId": "0", "commitOffset": "1"},
                ),
                (
                    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                    {"group": "g", "topic": topic, "timestamp": "0", "isForce": "true"},
                ),
                (
                    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
                    {"group": "g", "topic": topic, "readable": "false"},
                ),
            ):
                assert (await client.ask(code, ext)).code == ResponseCode.TOPIC_NOT_EXIST, code
            await client.ok(
                RequestCode.CLONE_GROUP_OFFSET,
                {"srcGroup": "g", "destGroup": "h", "topic": topic, "offline": "false"},
            )
            assert len(desk.broker.topics) == count
            assert desk.broker.offsets.document() == {"offsetTable": {}}
            await _still_works(desk)

    run(work())


@pytest.mark.parametrize("group", [LONG, "a/b", "ü", "a@b", "\0"])
def test_every_request_with_a_group_no_folder_can_be(tmp_path: Path, group: str) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            client = desk.client
            await client.heartbeat(group=group)
            assert desk.broker.consumers.groups() == []
            body = json.dumps({"groupName": group}).encode()
            listed = json.dumps({"groupConfigList": [{"groupName": "fine"}, {"groupName": group}]}).encode()
            for code, text in (
                (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body),
                (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, listed),
            ):
                assert (await client.ask(code, None, text)).code == ResponseCode.INVALID_PARAMETER
            for code, ext in (
                (RequestCode.PULL_MESSAGE, pull_fields("T", 0, 0, group)),
                (
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    {"consumerGroup": group, "topic": "T", "queueId": "0", "commitOffset": "1"},
                ),
                (
                    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                    {"group": group, "topic": "T", "timestamp": "0", "isForce": "true"},
                ),
                (
                    RequestCode.CLONE_GROUP_OFFSET,
                    {"srcGroup": "g", "destGroup": group, "topic": "T", "offline": "false"},
                ),
                (
                    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
                    {"group": group, "topic": "T", "readable": "false"},
                ),
            ):
                answer = await client.ask(code, ext)
                assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, (code, answer)
            assert desk.broker.groups.known(group) is None and desk.broker.groups.known("fine") is None
            assert desk.broker.offsets.document() == {"offsetTable": {}}
            await _still_works(desk)

    run(work())


def test_tables_of_another_broker_may_have_longer_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Apache takes groups of 255 letters: its folder opens, and what cannot be stored is refused."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            await desk.client.send()
            group, dead = "g" * 255, names.DLQ_PREFIX + "g" * 255
            desk.broker.groups.put(GroupConfig(group_name=group))
            desk.broker.topics.put(TopicConfig(topic_name=dead, read_queue_nums=1, write_queue_nums=1))
            await desk.restart()
            assert dead in desk.broker.topics and desk.broker.groups.known(group) is not None
            for level in ("-1", "1"):
                ext = {"offset": "0", "group": group, "delayLevel": level}
                answer = await desk.client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
                assert answer.code == ResponseCode.INVALID_PARAMETER and "255" in (answer.remark or "")
            answer = await desk.client.ask(RequestCode.SEND_MESSAGE_V2, send_fields(dead), b"x")
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert (await desk.client.heartbeat(group=group)).code == ResponseCode.INVALID_PARAMETER
            assert desk.broker.store.find_queue(dead, 0) is None
            assert (await desk.client.send()).code == 0
            await desk.restart()
            assert len(desk.bodies("T")) == 2

    run(work())
    assert "topics.json" in caplog.text and "subscriptionGroup.json" in caplog.text
