"""Consumed offsets, resets, and where queues begin and end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gimbalmq.broker.consumer_offsets import ConsumerOffsets
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from tests.broker.desk import Client, fields, open_desk, pulled
from tests.support import ManualClock, run

NOT_FOUND = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


def _queue(group: str = "g", topic: str = "T", queue_id: int = 0, **more: str) -> dict[str, str]:
    return {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), **more}


async def _commit(client: Client, offset: int, **where: object) -> None:
    ext = _queue(**where) | {"commitOffset": str(offset)}  # type: ignore[arg-type]
    await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, ext)


async def _query(client: Client, **where: object) -> int:
    answer = await client.ok(RequestCode.QUERY_CONSUMER_OFFSET, _queue(**where))  # type: ignore[arg-type]
    return int(fields(answer)["offset"])


def test_offsets_are_kept_per_group_topic_and_queue(tmp_path: Path) -> None:
    """S1-17; the last writer wins, a smaller value too."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            await desk.create("U")
            client = desk.client
            for _ in range(8):
                for topic, queue_id in (("T", 0), ("T", 1), ("U", 0)):
                    await client.send(topic, queue_id=queue_id)
            await _commit(client, 5)
            await _commit(client, 6, queue_id=1)
            await _commit(client, 7, topic="U")
            await _commit(client, 8, group="h")
            assert await _query(client) == 5
            assert await _query(client, queue_id=1) == 6
            assert await _query(client, topic="U") == 7
            assert await _query(client, group="h") == 8
            await client.tell(RequestCode.UPDATE_CONSUMER_OFFSET, _queue() | {"commitOffset": "3"})
            assert await _query(client) == 3
            await desk.restart()
            assert await _query(client) == 3
            assert await _query(client, group="h") == 8

    run(work())


def test_answer_for_a_group_that_has_no_offset(tmp_path: Path) -> None:
    """S2-35 the stored one if there is one; S2-36 0 where offset 0 is still in memory; S2-37 else 22.

    S2-38, the broker's half: on a young topic a new group is told 0, so it starts there whatever
    CONSUME_FROM_LAST_OFFSET says.
    """

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            client = desk.client

            async def refused(**more: str) -> None:
                answer = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, _queue(**more))  # type: ignore[arg-type]
                assert (answer.code, answer.remark) == (ResponseCode.QUERY_NOT_FOUND, NOT_FOUND)

            assert await _query(client) == 0  # no message yet: as 4.9 answers
            await refused(setZeroIfNotFound="false")
            await client.send()
            assert await _query(client) == 0
            await refused(setZeroIfNotFound="false")
            assert await _query(client, setZeroIfNotFound="true") == 0
            store = desk.broker.store
            in_memory = store.is_in_memory
            store.is_in_memory = lambda _offset: False  # type: ignore[method-assign, assignment]
            await refused()
            store.is_in_memory = in_memory  # type: ignore[method-assign]
            await client.send()
            queue = store.find_queue("T", 0)
            assert queue is not None
            queue.min_offset = 1
            await refused()
            await _commit(client, 0)
            assert await _query(client) == 0

    run(work())


def test_commits_that_make_no_sense_are_refused_by_name(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, autoCreateSubscriptionGroup=False) as desk:
            client, ok = desk.client, {"commitOffset": "1"}
            answer = await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, _queue() | ok)
            assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST and "[g]" in (answer.remark or "")
            await client.ok(25, None, b"autoCreateSubscriptionGroup=true")
            answer = await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, _queue() | ok)
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST and " T " in (answer.remark or "")
            await desk.create("T")
            for wrong in (
                {"commitOffset": "-1"},
                {"commitOffset": str(1 << 63)},
                {"queueId": "-2"},
                {"queueId": "4"},
                {"queueId": "1000000000000"},
            ):
                answer = await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, _queue() | ok | wrong)
                assert answer.code == ResponseCode.INVALID_PARAMETER
                assert all(value in (answer.remark or "") for value in wrong.values())
            assert desk.broker.offsets.document() == {"offsetTable": {}}

    run(work())


def test_reset_moves_the_group_once(tmp_path: Path) -> None:
    """222 leaves a mark: commits are answered 0 and ignored until the next pull of the queue, which
    is answered 21 with the reset offset and takes the mark away."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T", 2)
            client = desk.client
            for _ in range(5):
                await client.send()
            await _commit(client, 5)
            ext = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
            body = await client.json(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext | {"offset": "2"})
            table = {fastjson.queue_key(key): offset for key, offset in body["offsetTable"].items()}
            assert {queue.queue_id: offset for queue, offset in table.items()} == {0: 2, 1: 0}
            assert await _query(client) == 2
            await _commit(client, 5)
            assert await _query(client) == 2
            answer = await client.pull(offset=5, flags=4 | 2 | 1, commit=5, suspend_ms=60_000)
            assert answer.code == 21
            assert fields(answer) | {"minOffset": "0", "maxOffset": "5"} == fields(answer)
            assert fields(answer)["nextBeginOffset"] == "2"
            assert await _query(client) == 2
            # The mark is gone, the other queue's is not.
            assert (await client.pull(offset=5)).code == 19
            await _commit(client, 4)
            assert await _query(client) == 4
            assert (await client.pull(queue_id=1, offset=0)).code == 21
            assert (await client.pull(queue_id=1, offset=0)).code == 19

    run(work())


def test_reset_by_time_force_and_range(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T", 1)
            client, start = desk.client, clock.wall
            for _ in range(5):
                await client.send()
                clock.advance(10)

            async def reset(force: bool = True, **ext: object) -> int:
                header = {"topic": "T", "group": "g", "timestamp": "-1", "isForce": str(force).lower()}
                texts = {key: str(value) for key, value in ext.items()}
                body = await client.json(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header | texts)
                (offset,) = body["offsetTable"].values()
                return int(offset)

            await _commit(client, 3)
            assert await reset(timestamp=start + 15_000) == 2
            assert await reset(timestamp=0) == 0
            assert await reset(timestamp=-1) == 5, "-1 means the end"
            assert await reset(timestamp=start + 99_000) == 5
            assert await reset(offset=99) == 5
            await client.pull()
            await _commit(client, 3)
            # Without force it only goes back.
            assert await reset(force=False, timestamp=-1) == 3
            assert await reset(force=False, timestamp=start + 5_000) == 1

    run(work())


def test_reset_that_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            ext = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}

            async def refused(code: int, word: str, **more: str) -> None:
                answer = await desk.client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext | more)
                assert answer.code == code and word in (answer.remark or "")

            await refused(ResponseCode.TOPIC_NOT_EXIST, "T")
            await desk.create("T", 2)
            await refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "g")
            await desk.client.heartbeat(group="g")
            await refused(ResponseCode.INVALID_PARAMETER, "queueId 2", queueId="2")

    run(work())


def test_ends_of_a_queue_and_offset_by_time(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            client, start = desk.client, clock.wall
            where = {"topic": "T", "queueId": "0"}

            async def number(code: int, name: str = "offset", **more: object) -> int:
                texts = {key: str(value) for key, value in more.items()}
                return int(fields(await client.ok(code, where | texts))[name])

            assert await number(RequestCode.GET_MAX_OFFSET) == await number(RequestCode.GET_MIN_OFFSET) == 0
            assert await number(RequestCode.GET_EARLIEST_MSG_STORETIME, "timestamp") == -1
            for _ in range(3):
                await client.send()
                clock.advance(10)
            assert await number(RequestCode.GET_MAX_OFFSET) == 3
            assert await number(RequestCode.GET_MIN_OFFSET) == 0
            assert await number(RequestCode.GET_EARLIEST_MSG_STORETIME, "timestamp") == start
            search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            for moment, lower, upper in (
                (-5, 0, 0),
                (0, 0, 0),
                (5, 1, 0),
                (10, 1, 1),
                (20, 2, 2),
                (25, 3, 2),
            ):
                timestamp = start + moment * 1000
                assert await number(search, timestamp=timestamp) == lower
                assert await number(search, timestamp=timestamp, boundaryType="LOWER") == lower
                assert await number(search, timestamp=timestamp, boundaryType="upper") == upper

    run(work())


def test_offsets_in_the_file_are_apaches(tmp_path: Path) -> None:
    async def save() -> None:
        offsets = ConsumerOffsets(tmp_path)
        offsets.commit("g", "T", 1, 7)
        offsets.commit("g", "T", 0, 5)
        await offsets.finish()

    run(save())
    found = json.loads((tmp_path / "consumerOffset.json").read_text())
    assert found.pop("dataVersion").keys() == {"counter", "stateVersion", "timestamp"}
    assert found == {"offsetTable": {"T@g": {"0": 5, "1": 7}}}
    (tmp_path / "consumerOffset.json").write_text(
        '{"offsetTable":{"%RETRY%g@g":{0:3,12:4}},"dataVersion":{}}'
    )
    again = ConsumerOffsets(tmp_path)
    again.load()
    assert again.queues("g", "%RETRY%g") == {0: 3, 12: 4}
    assert (again.topics_of("g"), again.groups_of("%RETRY%g"), again.all_groups()) == (
        {"%RETRY%g"},
        {"g"},
        {"g"},
    )


def test_forgetting_a_topic_or_a_group_takes_marks_and_pulls_along(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(tmp_path)
    for topic, group in (("T", "g"), ("U", "g"), ("T", "h")):
        offsets.commit(group, topic, 0, 1)
        offsets.note_pull(group, topic, 0, 2)
        offsets.reset(group, topic, 0, 1)
    offsets.forget_topic("U")
    offsets.forget_group("h")
    assert offsets.document() == {"offsetTable": {"T@g": {"0": 1}}}
    assert [offsets.pulled(g, t, 0) for t, g in (("T", "g"), ("U", "g"), ("T", "h"))] == [2, -1, -1]
    assert [offsets.take_reset(g, t, 0) for t, g in (("T", "g"), ("U", "g"), ("T", "h"))] == [1, None, None]


@pytest.mark.parametrize("code", [14, 15, 29, 30, 31, 32])
def test_header_without_queue_is_refused_by_name(tmp_path: Path, code: int) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            answer = await desk.client.ask(code, {"topic": "T", "consumerGroup": "g"})
            assert answer.code == 1 and "queueId" in (answer.remark or "")

    run(work())


def test_queue_of_a_topic_that_had_more_can_still_be_committed(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T", 4)
            await desk.client.send(queue_id=3)
            await desk.create("T", 2)
            await _commit(desk.client, 1, queue_id=3)
            assert await _query(desk.client, queue_id=3) == 1

    run(work())


def test_offsets_ahead_of_a_log_that_lost_its_end_go_back_to_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Offsets are on disk every five seconds, messages every half second: a loss of power may keep the later ones."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            for _ in range(3):
                await desk.client.send()
            await _commit(desk.client, 2)
            await _commit(desk.client, 3, group="h")
            desk.broker.offsets.commit("g", "T", 1, 500)
            desk.broker.offsets.commit("h", "T", 0, 500)
            await desk.restart()
            assert await _query(desk.client) == 2
            assert await _query(desk.client, queue_id=1) == 0
            assert await _query(desk.client, group="h") == 3
            await desk.client.send(body=b"new")
            (found,) = pulled(await desk.client.pull(group="h", offset=3))
            assert found.body == b"new"

    run(work())
    assert "group h had consumed queue 0 of T up to 500, which now ends at 3" in caplog.text


def test_refused_offset_is_answered_with_the_remedy(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, maxConsumerOffsetBytes=1024) as desk:
            await desk.create("T")
            answers = [
                await desk.client.ask(
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    {"consumerGroup": f"g{number}", "topic": "T", "queueId": "0", "commitOffset": "0"},
                )
                for number in range(5)
            ]
            assert [answer.code for answer in answers] == [0, 0, 1, 1, 1]
            assert "raise it" in (answers[-1].remark or "")

    run(work())
