"""Pulling: the checks in order, the table of outcomes, limits and filters."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gimbalmq.model.javahash import tag_hash
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.bodies import GroupConfig
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import BINARY_HEADER, JSON_HEADER, RemotingCommand
from gimbalmq.protocol.headers.messages import PullMessage
from gimbalmq.protocol.serializers import encode_frame
from gimbalmq.rpc import messages
from tests.broker.desk import Desk, fields, open_desk, pull_fields, pulled, turns
from tests.support import run, until

FOUR = ["maxOffset", "minOffset", "nextBeginOffset", "suggestWhichBrokerId"]


async def _fill(desk: Desk, count: int, tag: str | None = None, body: bytes = b"body") -> None:
    for _ in range(count):
        await desk.client.send(body=body, properties={"TAGS": tag} if tag else None)


async def _group(desk: Desk, **settings: bool) -> None:
    config = GroupConfig(group_name="g", **settings)  # type: ignore[arg-type]
    await desk.client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config.dump())


def test_refusals_come_in_apaches_order(tmp_path: Path) -> None:
    """Each pull below is wrong in everything that follows too, so the first check must speak."""

    async def work() -> None:
        async with open_desk(tmp_path, autoCreateSubscriptionGroup=False) as desk:
            client = desk.client
            wrong = {"topic": "none", "queue_id": 9, "flags": 0, "expression": None}

            async def code(**changes: object) -> tuple[int, str]:
                answer = await client.pull(**(wrong | changes))  # type: ignore[arg-type]
                return answer.code, answer.remark or ""

            await client.ok(RequestCode.UPDATE_BROKER_CONFIG, None, b"brokerPermission=2\n")
            assert (await code())[0] == ResponseCode.NO_PERMISSION
            await client.ok(RequestCode.UPDATE_BROKER_CONFIG, None, b"brokerPermission=6\n")
            answer, remark = await code()
            assert answer == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            assert "[g]" in remark and "autoCreateSubscriptionGroup=true" in remark
            await _group(desk, consume_enable=False)
            assert await code() == (ResponseCode.NO_PERMISSION, "subscription group no permission, g")
            await _group(desk)
            answer, remark = await code()
            assert answer == ResponseCode.TOPIC_NOT_EXIST and "none" in remark
            await desk.create("none", 2, perm=2)
            assert await code() == (
                ResponseCode.NO_PERMISSION,
                "the topic[none] pulling message is forbidden",
            )
            await desk.create("none", 2)
            answer, remark = await code()
            assert answer == ResponseCode.INVALID_PARAMETER
            assert "queueId[9]" in remark and "readQueueNums:[2]" in remark
            assert (await code(queue_id=-1))[0] == ResponseCode.INVALID_PARAMETER
            answer, remark = await code(queue_id=1)
            assert answer == ResponseCode.SUBSCRIPTION_NOT_EXIST and "group info not exist: g" in remark
            await client.heartbeat(group="g", topics={"other": "*"})
            answer, remark = await code(queue_id=1)
            assert answer == ResponseCode.SUBSCRIPTION_NOT_EXIST and "subscription not exist: none" in remark
            await client.heartbeat(group="g", topics={"none": "*"}, sub_version=5)
            answer, remark = await code(queue_id=1, sub_version=6)
            assert answer == ResponseCode.SUBSCRIPTION_NOT_LATEST and "5" in remark and "6" in remark
            assert (await code(queue_id=1, sub_version=5))[0] == ResponseCode.PULL_NOT_FOUND
            await _group(desk, consume_broadcast_enable=False)
            await client.heartbeat(group="g", topics={"none": "*"}, message_model="BROADCASTING")
            answer, remark = await code(queue_id=1)
            assert answer == ResponseCode.NO_PERMISSION and "broadcast" in remark

    run(work())


def test_expression_in_the_header(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            answer = await desk.client.pull(expression=" || ")
            assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
            assert "TagA || TagB" in (answer.remark or "")
            answer = await desk.client.pull(expression="a = 1", expressionType="SQL92")
            assert answer.code == 1 and "SQL92" in (answer.remark or "")
            for kind in ("TAG", ""):
                answer = await desk.client.pull(expression="", expressionType=kind)
                assert answer.code == ResponseCode.PULL_NOT_FOUND

    run(work())


def test_group_shut_out_of_one_topic(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            await desk.create("U")
            mask = {"group": "g", "topic": "T"}
            body = await desk.client.json(
                RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, {**mask, "readable": "false"}
            )
            assert body == {"group": "g", "topic": "T", "readable": False}
            assert (await desk.client.pull("T")).code == ResponseCode.NO_PERMISSION
            assert (await desk.client.pull("U")).code == ResponseCode.PULL_NOT_FOUND
            assert (await desk.client.pull("T", group="other")).code == ResponseCode.PULL_NOT_FOUND
            await desk.restart()
            assert (await desk.client.pull("T")).code == ResponseCode.NO_PERMISSION
            await desk.client.json(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, {**mask, "readable": "true"})
            assert (await desk.client.pull("T")).code == ResponseCode.PULL_NOT_FOUND

    run(work())


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
def test_outcome_by_offset(tmp_path: Path, code: int) -> None:
    """S3-17: the broker checks the offset against the queue's min and max and answers accordingly.

    S3-18: every answer, whatever its outcome, carries suggestWhichBrokerId: the master (0) unless slaves may be read,
    of which tests/broker/replication/test_reading.py tells.
    """

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            client = desk.client

            async def outcome(offset: int, queue_id: int = 0) -> tuple[int, str | None, list[int]]:
                answer = await client.pull(offset=offset, queue_id=queue_id, code=code)
                told = fields(answer)
                assert sorted(told) == FOUR and told["suggestWhichBrokerId"] == "0"
                places = [int(told[name]) for name in ("nextBeginOffset", "minOffset", "maxOffset")]
                return answer.code, answer.remark, places

            assert await outcome(0, 1) == (19, "NO_MATCHED_LOGIC_QUEUE", [0, 0, 0])
            assert await outcome(5, 1) == (21, "NO_MATCHED_LOGIC_QUEUE", [0, 0, 0])
            desk.broker.store.queue("T", 2)
            assert await outcome(0, 2) == (19, "NO_MESSAGE_IN_QUEUE", [0, 0, 0])
            assert await outcome(5, 2) == (21, "NO_MESSAGE_IN_QUEUE", [0, 0, 0])
            await _fill(desk, 6, "t")
            queue = desk.broker.store.find_queue("T", 0)
            assert queue is not None
            queue.min_offset = 2  # as after the clean-up of an old file
            assert await outcome(1) == (21, "OFFSET_TOO_SMALL", [2, 2, 6])
            assert await outcome(2) == (0, "FOUND", [6, 2, 6])
            assert await outcome(6) == (19, "OFFSET_OVERFLOW_ONE", [6, 2, 6])
            assert await outcome(7) == (21, "OFFSET_OVERFLOW_BADLY", [6, 2, 6])
            answer = await client.pull(offset=2, expression="other", code=code)
            assert (answer.code, answer.remark) == (20, "NO_MATCHED_MESSAGE")
            assert sorted(fields(answer)) == FOUR and fields(answer)["nextBeginOffset"] == "6"

    run(work())


def test_found_records_leave_as_they_are_stored(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            await _fill(desk, 5)
            answer = await desk.client.pull(offset=1, count=3)
            raws = [desk.broker.store.record_at_queue("T", 0, offset) for offset in (1, 2, 3)]
            assert bytes(answer.body) == b"".join(raw or b"" for raw in raws)
            assert [record.queue_offset for record in pulled(answer)] == [1, 2, 3]
            assert fields(answer)["nextBeginOffset"] == "4"

    run(work())


def test_how_much_one_pull_brings(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            await _fill(desk, 40)
            assert len(pulled(await desk.client.pull(count=100))) == 32
            assert len(pulled(await desk.client.pull(count=7))) == 7
            assert len(pulled(await desk.client.pull(count=0))) == 1
            size = len(desk.broker.store.record_at_queue("T", 0, 0) or b"")
            assert len(pulled(await desk.client.pull(maxMsgBytes=str(3 * size)))) == 3
            assert len(pulled(await desk.client.pull(maxMsgBytes="1"))) == 1, "the first is always taken"
            await _fill(desk, 4, body=b"x" * 100_000)
            assert len(pulled(await desk.client.pull(offset=40))) == 2, "262144 bytes at most"
            await _fill(desk, 2, body=b"x" * 300_000)
            assert len(pulled(await desk.client.pull(offset=44))) == 1

    run(work())


def _append(desk: Desk, count: int, body: bytes = b"body", others: int = 0) -> int:
    """So many messages behind the broker's back, each with others of another queue behind it; a record's size."""
    store = desk.broker.store
    with store.group() as group:
        for _ in range(count):
            for queue_id in (0, *[1] * others):
                group.add(store.queue("T", queue_id), body, b"", 0, 0, 0, 0, b"\x7f\0\0\1\0\0\0\1", 0, 0)
    return len(store.record_at_queue("T", 0, 0) or b"")


@pytest.mark.parametrize("encoding", [JSON_HEADER, BINARY_HEADER])
@pytest.mark.parametrize("others", [0, 3])
def test_reader_that_says_how_many_bytes_it_takes_gets_them(
    tmp_path: Path, encoding: int, others: int
) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, mappedFileSizeCommitLog=1 << 20) as desk:
            await desk.create("T")
            size = _append(desk, 3000, others=others)

            async def pull(count: int, offset: int = 0, **more: str) -> tuple[int, int]:
                ext = pull_fields("T", 0, offset, count=count) | more
                answer = await desk.client.ask(RequestCode.PULL_MESSAGE, ext, encoding=encoding)
                records = pulled(answer)
                assert [r.queue_offset for r in records] == list(range(offset, offset + len(records)))
                assert int(fields(answer)["nextBeginOffset"]) == offset + len(records)
                return len(records), len(answer.body)

            assert await pull(100_000, maxMsgBytes="8000000") == (3000, 3000 * size)
            assert await pull(100_000, 2990, maxMsgBytes="8000000") == (10, 10 * size)
            assert await pull(1000, 7, maxMsgBytes="8000000") == (1000, 1000 * size)
            assert await pull(100_000, maxMsgBytes=str(500 * size)) == (500, 500 * size)
            assert await pull(100_000, maxMsgBytes=str(501 * size - 1)) == (500, 500 * size)
            assert await pull(32, maxMsgBytes="262144") == (32, 32 * size)  # as Java 5.x sends it
            assert await pull(0, maxMsgBytes="262144") == (1, size)
            assert await pull(100_000, maxMsgBytes="1") == (1, size)
            # Nothing said, in each of the ways there are: Apache's limits.
            assert await pull(100_000) == (32, 32 * size)
            for nothing in ("0", "-1", "2147483647"):
                assert await pull(100_000, maxMsgBytes=nothing) == (32, 32 * size)

    run(work())


def test_large_pull_by_rpc(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            _append(desk, 500)
            header = PullMessage(
                consumer_group="g",
                topic="T",
                queue_id=0,
                queue_offset=100,
                max_msg_nums=10_000,
                max_msg_bytes=1_000_000,
                sys_flag=messages.PULL_SUBSCRIPTION,
                subscription="*",
            )
            queue = MessageQueue("T", "broker-a", 0)
            found = await messages.pull(desk.client.pool, desk.broker.address, header, queue)
            assert [view.queue_offset for view in found.messages] == list(range(100, 500))
            assert found.next_offset == 500
            header.max_msg_bytes = None
            found = await messages.pull(desk.client.pool, desk.broker.address, header, queue)
            assert len(found.messages) == 32

    run(work())


def test_ceilings_of_a_large_pull(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, maxPullMsgNums=200, mappedFileSizeCommitLog=1 << 20) as desk:
            await desk.create("T")
            size = _append(desk, 1000)

            async def count() -> int:
                return len(pulled(await desk.client.pull(count=100_000, maxMsgBytes="8000000")))

            assert await count() == 200
            change = f"maxPullMsgNums=700\nmaxPullMsgBytes={300 * size + 5}\n".encode()
            await desk.client.ok(RequestCode.UPDATE_BROKER_CONFIG, None, change)
            assert await count() == 300
            await desk.client.ok(RequestCode.UPDATE_BROKER_CONFIG, None, b"maxPullMsgBytes=8388608\n")
            assert await count() == 700
            refused = await desk.client.ask(
                RequestCode.UPDATE_BROKER_CONFIG, None, b"maxPullMsgBytes=20000000\n"
            )
            assert refused.code != 0, "no frame could carry it"

    run(work())


def test_large_pull_that_waited(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            waiting = asyncio.ensure_future(
                desk.client.pull(flags=4 | 2, count=1000, suspend_ms=20_000, maxMsgBytes="1000000")
            )
            await until(lambda: len(desk.broker.long_poll) == 1)
            _append(desk, 99)
            await desk.client.send()
            assert len(pulled(await waiting)) == 100

    run(work())


def test_reader_that_reads_no_answers_is_given_no_more(tmp_path: Path) -> None:
    """Answers that nobody takes do not gather in the broker's memory, however many pulls came at once."""

    async def work() -> None:
        async with open_desk(tmp_path, mappedFileSizeCommitLog=4 << 20) as desk:
            await desk.create("T")
            size = _append(desk, 1000, body=bytes(2000))
            pulls = 60
            ext = pull_fields("T", 0, 0, count=1000) | {"maxMsgBytes": "8000000"}
            frames = [
                encode_frame(RemotingCommand(RequestCode.PULL_MESSAGE, ext, opaque=number))
                for number in range(pulls)
            ]
            host, _, port = desk.broker.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"".join(frames))
            served = desk.broker.stats.get_found
            await until(lambda: served.times > 0)
            await turns(200)
            assert served.times < pulls // 2
            for number in range(pulls):
                length = int.from_bytes(await reader.readexactly(4), "big")
                answer = await reader.readexactly(length)
                assert b'"opaque":%d,' % number in answer[:400] and length > 1000 * size
            writer.close()
            await writer.wait_closed()

    run(work())


def test_large_pull_with_tags(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            store = desk.broker.store
            with store.group() as group:
                for number in range(2000):
                    code = tag_hash("a") if number % 4 == 0 else tag_hash("b")
                    group.add(store.queue("T", 0), b"x", b"", code, 0, 0, 0, b"\x7f\0\0\1\0\0\0\1", 0, 0)
            answer = await desk.client.pull(count=5000, expression="a", maxMsgBytes="1000000")
            assert [record.queue_offset for record in pulled(answer)] == list(range(0, 2000, 4))
            assert fields(answer)["nextBeginOffset"] == "2000"
            answer = await desk.client.pull(count=5000, expression="c", maxMsgBytes="1000000")
            assert (answer.code, fields(answer)["nextBeginOffset"]) == (20, "2000")
            answer = await desk.client.pull(count=1500, expression="c", maxMsgBytes="1000000")
            assert (answer.code, fields(answer)["nextBeginOffset"]) == (20, "1500")

    run(work())


def test_tags_are_filtered_by_hash(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            for tag in ("a", "b", "Aa", "c", "BB"):
                await desk.client.send(properties={"TAGS": tag})
            await desk.client.send()

            async def tags(expression: str) -> list[str | None]:
                found = pulled(await desk.client.pull(expression=expression))
                return [record.properties.get("TAGS") for record in found]

            assert await tags("a || c") == ["a", "c"]
            assert await tags("*") == ["a", "b", "Aa", "c", "BB", None]
            # "Aa" and "BB" have one hash; the client looks at the tag itself.
            assert await tags("Aa") == ["Aa", "BB"]
            await desk.client.heartbeat(group="g", topics={"T": "b"})
            answer = await desk.client.pull(flags=0, expression=None)
            assert [record.properties["TAGS"] for record in pulled(answer)] == ["b"]

    run(work())


def test_scan_of_unwanted_messages_ends_and_moves_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            store = desk.broker.store
            with store.group() as group:
                for _ in range(900):
                    group.add(store.queue("T", 0), b"x", b"", 5, 0, 0, 0, b"\x7f\0\0\1\0\0\0\1", 0, 0)
            answer = await desk.client.pull(expression="wanted")
            assert answer.code == 20 and fields(answer)["nextBeginOffset"] == "800"
            answer = await desk.client.pull(offset=800, expression="wanted")
            assert answer.code == 20 and fields(answer)["nextBeginOffset"] == "900"

    run(work())


def test_pull_brings_the_groups_offset_along(tmp_path: Path) -> None:
    """S3-19: the master stores the offset of a pull with the commit flag, and only with it."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            await _fill(desk, 3)
            await desk.client.pull(flags=4, commit=2)
            assert desk.broker.offsets.get("g", "T", 0) == -1
            await desk.client.pull(flags=4 | 1, commit=2)
            assert desk.broker.offsets.get("g", "T", 0) == 2
            # Also with a pull that waits; its waking does not store a second time.
            waiting = asyncio.ensure_future(
                desk.client.pull(flags=4 | 2 | 1, offset=3, commit=3, suspend_ms=20_000)
            )
            await until(lambda: desk.broker.offsets.get("g", "T", 0) == 3)
            await desk.client.ok(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"},
            )
            await desk.client.send()
            assert (await waiting).code == 0
            assert desk.broker.offsets.get("g", "T", 0) == 1

    run(work())


def test_header_that_lacks_a_field_is_refused_by_name(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            answer = await desk.client.ask(RequestCode.PULL_MESSAGE, {"consumerGroup": "g", "topic": "T"})
            assert answer.code == 1 and "queueId" in (answer.remark or "")

    run(work())
