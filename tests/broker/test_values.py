"""Wrong values are refused where they come in, and mended where a file has them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gimbalmq._options import options
from gimbalmq._steps import run_through
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.broker.tables_text import json_object
from gimbalmq.broker.values import MAX_RETRY_QUEUES
from gimbalmq.errors import ResponseError
from gimbalmq.model.queues import MessageQueue
from gimbalmq.nameserver.registration import reading
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.bodies import GroupConfig, RegisterBrokerBody, TopicConfig
from gimbalmq.protocol.codes import OUR_VERSION, RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers import groups, management, messages
from gimbalmq.protocol.headers.base import Header
from gimbalmq.protocol.headers.nameserver import RegisterBroker
from gimbalmq.store.consumequeue import MAX_QUEUES
from tests.broker.desk import Desk, open_desk, pulled, topic_fields
from tests.support import run


def _registers(desk: Desk) -> None:
    """The broker's table is one that our name server takes."""
    header = RegisterBroker(
        broker_name="b", broker_addr="127.0.0.1:1", cluster_name="C", ha_server_addr="", broker_id=0
    )
    body = RegisterBrokerBody(topic_config_serialize_wrapper=desk.broker.topics.table()).dump()
    run_through(reading(header, body, OUR_VERSION))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("retryQueueNums", -1),
        ("retryQueueNums", MAX_RETRY_QUEUES + 1),
        ("retryQueueNums", 2**31 - 1),
        ("retryQueueNums", 10**40),
        ("retryMaxTimes", -2),
        ("retryMaxTimes", 2**31),
        ("brokerId", -1),
        ("whichBrokerWhenConsumeSlowly", -1),
        ("consumeTimeoutMinute", -1),
        ("consumeTimeoutMinute", 2**31),
        ("groupSysFlag", -1),
        ("attributes", {"a": "b" * 70_000}),
        ("attributes", {"$ref": "x"}),
        ("attributes", {"@type": "x"}),
        ("groupRetryPolicy", {"type": {"$ref": "$.nowhere"}}),
        ("subscriptionDataSet", [{"a": [{"@type": "x"}]}]),
        ("groupRetryPolicy", {"a": json.loads("[" * 60 + "]" * 60)}),
        ("groupRetryPolicy", {"a": json.loads("[" * 800 + "]" * 800)}),
        ("subscriptionDataSet", json.loads('{"a":' * 100 + "1" + "}" * 100)),
    ],
)
def test_group_with_a_wrong_value_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    """-1 retry queues made a retry topic whose broker no name server registers; 2,147,483,647 hung every report."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            for text, code in (
                ({"groupName": "g", key: value}, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP),
                (
                    {"groupConfigList": [{"groupName": "h"}, {"groupName": "g", key: value}]},
                    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
                ),
            ):
                answer = await desk.client.ask(code, None, json.dumps(text).encode())
                assert answer.code == ResponseCode.INVALID_PARAMETER
                assert key in (answer.remark or "") and "use" in (answer.remark or "")
            assert desk.broker.groups.known("g") is None and desk.broker.groups.known("h") is None
            await desk.client.heartbeat(group="g")
            _registers(desk)

    run(work())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("readQueueNums", "-1"),
        ("readQueueNums", str(MAX_QUEUES + 1)),
        ("writeQueueNums", str(2**31 - 1)),
        ("perm", "-1"),
        ("perm", "8"),
        ("topicSysFlag", "-1"),
        ("topicFilterType", "NO_TAG"),
        ("attributes", "+a=" + "b" * 70_000),
        ("attributes", "+$ref=x"),
        ("attributes", "+a=b,+@type=x"),
    ],
)
def test_topic_with_a_wrong_value_is_refused(tmp_path: Path, key: str, value: str) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            ext = topic_fields("T") | {key: value}
            answer = await desk.client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert key in (answer.remark or "") and "use" in (answer.remark or "")
            assert "T" not in desk.broker.topics

    run(work())


@pytest.mark.parametrize(
    "text", [b"NaN", b"Infinity", b"-Infinity", b"1e308", b'"many"', b"null", b"[1]", b"9" * 5000]
)
def test_text_that_is_no_number_is_refused_in_plain_words(tmp_path: Path, text: bytes) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            for code, body in (
                (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"g","retryQueueNums":%b}'),
                (
                    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
                    b'{"topicConfigList":[{"topicName":"T","readQueueNums":%b}]}',
                ),
            ):
                answer = await desk.client.ask(code, None, body % text)
                remark = answer.remark or ""
                assert answer.code != 0 and ("JSON at character" in remark or "the body is no" in remark), (
                    remark
                )
            assert desk.broker.groups.known("g") is None and "T" not in desk.broker.topics

    run(work())


def test_files_with_absurd_values_are_mended_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            await desk.client.heartbeat(group="g")
            await desk.client.send()
            await desk.broker.close()
            for name, table, row in (
                (
                    "topics.json",
                    "topicConfigTable",
                    {"readQueueNums": 2**31 - 1, "writeQueueNums": -7, "perm": 99},
                ),
                (
                    "subscriptionGroup.json",
                    "subscriptionGroupTable",
                    {"retryQueueNums": -1, "retryMaxTimes": 10**30},
                ),
            ):
                path = tmp_path / "config" / name
                document = json.loads(path.read_text())
                document[table]["T" if "T" in document[table] else "g"] |= row
                path.write_text(json.dumps(document))
            await desk.start()
            topic, group = desk.broker.topics.find("T"), desk.broker.groups.known("g")
            assert topic is not None and group is not None
            assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (MAX_QUEUES, 0, 7)
            assert (group.retry_queue_nums, group.retry_max_times) == (0, 2**31 - 1)
            _registers(desk)
            assert desk.bodies("T") == [b"body"]

    run(work())
    for words in ("readQueueNums of topic T of topics.json is 2147483647", "retryQueueNums of group g"):
        assert words in caplog.text


async def _turns_of(work: Awaitable[RemotingCommand]) -> tuple[RemotingCommand, int]:
    """An answer, and how often the loop turned while it was made."""
    turns = 0

    async def watch() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    watcher = asyncio.create_task(watch())
    try:
        return await work, turns
    finally:
        watcher.cancel()


def test_reports_on_a_topic_with_many_queues_are_made_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 65,536 queues each of them held the loop for most of a second."""
    monkeypatch.setattr("gimbalmq.transport.turns._SLICE_SECONDS", 0.0)  # each step has a turn of its own

    async def work() -> None:
        queues = 4096
        async with open_desk(tmp_path) as desk:
            await desk.create("T", queues)
            desk.broker.offsets.commit("g", "T", 5, 0)
            desk.broker.groups.find("g")
            reset = {"group": "g", "topic": "T", "timestamp": "0", "isForce": "true"}
            for code, ext in (
                (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}),
                (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"}),
                (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
                (RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "g"}),
                (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset),
            ):
                answer, turns = await _turns_of(desk.client.ask(code, ext))
                assert answer.code == 0 and bytes(answer.body).count(b'"queueId"') == queues
                assert turns >= queues // 256, code

    run(work())


def test_list_of_ten_thousand_groups_is_taken_in_one_request(tmp_path: Path) -> None:
    """Java writes some 390 bytes for each; 2 MB were read."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            full = json.loads(GroupConfig(group_name="x", attributes={"a": "b" * 20}).dump())
            rows = [full | {"groupName": f"group-{n}"} for n in range(10_000)]
            body = json.dumps({"groupConfigList": rows}).encode()
            assert len(body) > 3_900_000
            await desk.client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, body)
            assert desk.broker.groups.known("group-9999") is not None
            answer = await desk.client.ask(
                RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, b" " * (8 * 1024 * 1024 + 1)
            )
            assert answer.code == 1 and "use several requests" in (answer.remark or "")
            row = b'{"topicConfigList":[{"topicName":"A","attributes":{"a":"%b"}}]}' % (b"x" * 200_000)
            answer = await desk.client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, row)
            assert answer.code == 1 and "may have 131072" in (answer.remark or "")
            # Java's own dialect, with an object that stands there twice.
            body = (
                b'{"topicConfigList":[{"topicName":"A","attributes":{"a":"b"},readQueueNums:3},'
                b'{"topicName":"B","attributes":{"$ref":"$.topicConfigList[0].attributes"}}]}'
            )
            await desk.client.ok(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, body)
            for name in "AB":
                found = desk.broker.topics.find(name)
                assert found is not None and found.attributes == {"a": "b"}
            for wrong in (
                b'{"topicConfigList":5}',
                b"[]",
                b'{"topicConfigList":[5]}',
                b'{"topicConfigList":null}',
            ):
                answer = await desk.client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, wrong)
                assert answer.code == 1 and "the body" in (answer.remark or "")

    run(work())


def test_encoding_in_steps_gives_what_encoding_at_once_gives() -> None:
    for count in (0, 1, 63, 64, 65, 700):
        table = {
            fastjson.queue_text(MessageQueue("T", "b", n)) if n % 2 else f"k{n}": {"a": n, "b": [n]}
            for n in range(count)
        }
        for queue_keys in (False, True):
            made = run_through(json_object(table.items(), queue_keys=queue_keys))
            assert made == fastjson.dumps(table, queue_keys=queue_keys)


def test_a_table_that_no_frame_can_hold_is_given_up_while_it_is_built() -> None:
    walked = 0

    def rows() -> Iterator[tuple[str, str]]:
        nonlocal walked
        for walked in range(1_000):
            yield str(walked), "x" * 100_000

    with pytest.raises(ResponseError, match="larger than the largest frame"):
        run_through(json_object(rows()))
    assert walked < 300


def test_reports_asked_for_at_once_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request was a piece of work of its own: a hundred of them took a hundred steps in each turn of the loop."""
    monkeypatch.setattr("gimbalmq.transport.turns._SLICE_SECONDS", 0.0)
    encoded = 0
    dumps = fastjson.dumps

    def counting(value: object, *, queue_keys: bool = False) -> bytes:
        nonlocal encoded
        encoded += isinstance(value, dict) and len(value) == 64
        return dumps(value, queue_keys=queue_keys)

    monkeypatch.setattr("gimbalmq.broker.tables_text.fastjson.dumps", counting)

    async def work() -> None:
        nonlocal encoded
        async with open_desk(tmp_path) as desk:
            desk.broker.topics.put(*(TopicConfig(topic_name=f"t{n}") for n in range(640)))
            others = [desk.new_client() for _ in range(4)]
            asked = asyncio.gather(
                *(
                    client.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
                    for client in (desk.client, *others)
                    for _ in range(5)
                )
            )
            most = 0
            while not asked.done():
                encoded = 0
                await asyncio.sleep(0)
                most = max(most, encoded)
            assert all(bytes(answer.body).count(b'"topicName":"t') == 640 for answer in await asked)
            assert most == 1

    run(work())


def test_tables_of_topics_groups_and_offsets_are_whole(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            desk.broker.topics.put(*(TopicConfig(topic_name=f"t{n}") for n in range(300)))
            for number in range(300):
                desk.broker.groups.find(f"g{number}")
                desk.broker.offsets.commit(f"g{number}", f"t{number}", 0, number)
            shown = await desk.client.ok(RequestCode.GET_ALL_TOPIC_CONFIG)
            assert fastjson.loads(bytes(shown.body)) == fastjson.loads(desk.broker.topics.table().dump())
            shown = await desk.client.ok(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            assert fastjson.loads(bytes(shown.body)) == fastjson.loads(desk.broker.groups.table().dump())
            shown = await desk.client.ok(RequestCode.GET_ALL_CONSUMER_OFFSET)
            rows = fastjson.loads(bytes(shown.body))
            assert rows.pop("dataVersion")["counter"] > 0
            assert rows == desk.broker.offsets.document()
            shown = await desk.client.ok(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
            everything = fastjson.loads(bytes(shown.body), limit=None)
            assert len(everything["consumeStatsList"]) == 300

    run(work())


_ODD = (
    "",
    "-1",
    "0",
    "1",
    str(1 << 31),
    str(1 << 63),
    str(10**30),
    "1e308",
    "NaN",
    "x",
    "\u0661",
    "ü" * 300,
    "\0",
    "true",
)
_ODD_BODIES = (
    b"",
    b"{}",
    b"[]",
    b"null",
    b'"x"',
    b"\xff\xfe",
    b'{"a":' * 300,
    b'{"groupName":1e400}',
    b'{"consumerDataSet":[{"groupName":null}]}',
    b'{"mqSet":[{"topic":"T","brokerName":"b","queueId":1e40}]}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"subVersion":1e300}]}]}',
    b"fileReservedTime=NaN",
)


@pytest.mark.parametrize("seed", range(3))
def test_odd_values_of_every_request_are_answered_in_the_protocols_words(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """No handler meets a value that it has not thought of: that would be logged as a failed request."""
    random = Random(seed)
    names = sorted(
        {
            name
            for module in (groups, management, messages)
            for kind in vars(module).values()
            if isinstance(kind, type) and issubclass(kind, Header)
            for name in kind.__struct_encode_fields__
        }
    )

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            await desk.client.send()
            await desk.client.heartbeat(group="g")
            for code in sorted(desk.broker.handlers.by_code):
                for _ in range(4):
                    few = random.random() < 0.5
                    ext = {name: random.choice(("0", "1") if few else _ODD) for name in names}
                    for odd in random.sample(names, 4):
                        ext[odd] = random.choice(_ODD)
                    for name in ("topic", "b", "group", "consumerGroup", "destGroup"):
                        if random.random() < 0.7:
                            ext[name] = "T" if name in ("topic", "b") else "g"
                    request = RemotingCommand(code, ext, random.choice(_ODD_BODIES))
                    await desk.client.pool.oneway(desk.broker.address, request)
            await desk.client.ok(RequestCode.GET_BROKER_RUNTIME_INFO)
            assert (await desk.client.send()).code == 0

    run(work())
    failed = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not failed, [(record.getMessage(), record.exc_info) for record in failed]


def test_largest_message_that_can_be_allowed_can_be_pulled(tmp_path: Path) -> None:
    """One that is taken and fits no frame would stop its queue for every consumer."""

    async def work() -> None:
        size = options(BrokerConfig)["max_message_size"].high
        async with open_desk(tmp_path, maxMessageSize=size) as desk:
            await desk.create("T")
            sent = await desk.client.send(body=bytes(size), properties={"pad": "p" * 32_600})
            assert sent.code == 0
            (found,) = pulled(await desk.client.pull())
            assert len(found.body) == size
            shown = await desk.client.ok(
                RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(found.commitlog_offset)}
            )
            assert len(shown.body) > size

    run(work())
