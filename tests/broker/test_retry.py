"""Messages sent back by consumers, and where they end."""

from __future__ import annotations

from pathlib import Path

import pytest

from gimbalmq.model.ids import parse_offset_id
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.record import Record
from gimbalmq.protocol.bodies import GroupConfig
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from tests.broker.desk import Answer, Desk, fields, open_desk, pulled
from tests.support import ManualClock, run

DELAYS = [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]


async def _send_back(desk: Desk, record: Record, level: int = 0, version: int = 493, **more: str) -> Answer:
    ext = {"offset": str(record.commitlog_offset), "group": "g", "delayLevel": str(level), **more}
    return await desk.client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext, version=version)


async def _one(desk: Desk) -> Record:
    await desk.create("T")
    await desk.client.send(body=b"hard", properties={"TAGS": "t", "KEYS": "k"}, flag=3)
    return desk.messages("T")[0]


def test_sent_back_message_waits_in_the_retry_topic(tmp_path: Path) -> None:
    """S3-33: it gets %RETRY%group and level 3 + times already retried.

    S3-34: it shows in the retry topic only after its delay, for the same group, and knows its origin.
    """

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            first = await _one(desk)
            assert (await _send_back(desk, first)).code == 0
            made = desk.broker.topics.find("%RETRY%g")
            assert made is not None and (made.write_queue_nums, made.perm) == (1, 6)
            (kept,) = desk.messages("SCHEDULE_TOPIC_XXXX", 2)
            assert kept.properties["DELAY"] == "3"
            clock.advance(9.999)
            desk.broker.delays.tick()
            assert (await desk.client.pull("%RETRY%g")).code == ResponseCode.PULL_NOT_FOUND
            clock.advance(0.001)
            desk.broker.delays.tick()
            (again,) = pulled(await desk.client.pull("%RETRY%g"))
            assert (again.topic, again.body, again.flag) == ("%RETRY%g", b"hard", 3)
            assert (again.born_timestamp, again.born_host) == (first.born_timestamp, first.born_host)
            assert again.reconsume_times == 1
            assert again.properties["RETRY_TOPIC"] == "T"
            assert (again.properties["TAGS"], again.properties["KEYS"]) == ("t", "k")
            origin = parse_offset_id(again.properties["ORIGIN_MESSAGE_ID"])
            assert origin.commitlog_offset == first.commitlog_offset

    run(work())


def test_sixteen_retries_then_the_dead_letters(tmp_path: Path) -> None:
    """Attempts 1 to 16 take levels 3 to 18; the 17th failure is final."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            record = first = await _one(desk)
            for attempt, seconds in enumerate(DELAYS):
                assert (await _send_back(desk, record)).code == 0
                clock.advance(seconds - 0.001)
                desk.broker.delays.tick()
                assert len(desk.messages("%RETRY%g")) == attempt
                clock.advance(0.001)
                desk.broker.delays.tick()
                record = desk.messages("%RETRY%g")[attempt]
                assert record.reconsume_times == attempt + 1
                assert record.properties["RETRY_TOPIC"] == "T"
                origin = parse_offset_id(record.properties["ORIGIN_MESSAGE_ID"])
                assert origin.commitlog_offset == first.commitlog_offset
            assert (await _send_back(desk, record)).code == 0
            made = desk.broker.topics.find("%DLQ%g")
            assert made is not None and (made.write_queue_nums, made.perm) == (1, 6)
            (dead,) = desk.messages("%DLQ%g")
            assert dead.body == b"hard" and "DELAY" not in dead.properties
            assert len(desk.messages("%RETRY%g")) == 16

    run(work())


def test_who_says_how_often(tmp_path: Path) -> None:
    """The request's maxReconsumeTimes from version 121 on, else the group's retryMaxTimes."""

    async def work() -> None:
        async with open_desk(tmp_path, ManualClock()) as desk:
            record = await _one(desk)
            config = GroupConfig(group_name="g", retry_max_times=1)
            await desk.client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config.dump())
            await _send_back(desk, record, maxReconsumeTimes="0")
            assert len(desk.messages("%DLQ%g")) == 1
            await _send_back(desk, record, maxReconsumeTimes="0", version=100)
            assert len(desk.messages("%DLQ%g")) == 1, "too old for the field to count"
            await _send_back(desk, record)
            assert len(desk.messages("SCHEDULE_TOPIC_XXXX", 2)) == 2

    run(work())


def test_level_of_the_request(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, ManualClock()) as desk:
            record = await _one(desk)
            await _send_back(desk, record, level=-1)
            assert len(desk.messages("%DLQ%g")) == 1, "-1 gives it up at once"
            await _send_back(desk, record, level=7)
            assert len(desk.messages("SCHEDULE_TOPIC_XXXX", 6)) == 1
            await _send_back(desk, record, level=44)
            assert len(desk.messages("SCHEDULE_TOPIC_XXXX", 17)) == 1

    run(work())


def test_refusals(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, autoCreateSubscriptionGroup=False) as desk:
            record = await _one(desk)
            answer = await _send_back(desk, record)
            assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            assert "g" in (answer.remark or "") and "autoCreateSubscriptionGroup=true" in (
                answer.remark or ""
            )
            config = GroupConfig(group_name="g")
            await desk.client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config.dump())
            record.commitlog_offset += 1
            answer = await _send_back(desk, record)
            assert (
                answer.code == 1
                and answer.remark == f"look message by offset failed, {record.commitlog_offset}"
            )
            record.commitlog_offset -= 1
            await desk.client.ok(RequestCode.UPDATE_BROKER_CONFIG, None, b"brokerPermission=4\n")
            assert (await _send_back(desk, record)).code == ResponseCode.NO_PERMISSION
            await desk.client.ok(RequestCode.UPDATE_BROKER_CONFIG, None, b"brokerPermission=6\n")
            config.retry_queue_nums = 0
            await desk.client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config.dump())
            end = desk.broker.store.max_commitlog_offset
            assert (await _send_back(desk, record)).code == 0
            assert desk.broker.store.max_commitlog_offset == end, "no retry queues: nothing is stored"

    run(work())


def test_client_that_sends_to_the_retry_topic_itself(tmp_path: Path) -> None:
    """The fallback of a consumer whose send-back failed, and of ordered consumers that give up."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.client.heartbeat(group="g")

            async def send(**options: object) -> Answer:
                answer = await desk.client.send("%RETRY%g", **options)  # type: ignore[arg-type]
                assert answer.code == 0
                return answer

            await send(reconsumeTimes=16)
            assert len(desk.messages("%RETRY%g")) == 1
            answer = await send(reconsumeTimes=17, properties={"DELAY": "3"})
            assert len(desk.messages("%DLQ%g")) == 1 and fields(answer)["queueId"] == "0"
            await send(reconsumeTimes=3, maxReconsumeTimes=2)
            assert len(desk.messages("%DLQ%g")) == 2
            # A failed message of a transaction is no new transaction.
            tx = {"DELAY": "3", "TRAN_MSG": "true", "PGROUP": "p"}
            await send(reconsumeTimes=1, properties=tx)
            assert len(desk.messages("SCHEDULE_TOPIC_XXXX", 2)) == 1
            assert desk.messages("RMQ_SYS_TRANS_HALF_TOPIC") == []
            desk.broker.locks.lock("g", "c", [MessageQueue("T", "broker-a", 0)])
            await send()
            assert len(desk.messages("%DLQ%g")) == 3, "an ordered consumer's goes to the dead letters"
            clock.advance(61)
            await send()
            assert len(desk.messages("%DLQ%g")) == 3

    run(work())


@pytest.mark.parametrize("topic", ["%RETRY%nobody", "%RETRY%"])
def test_retry_topic_of_no_group(tmp_path: Path, topic: str) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, autoCreateSubscriptionGroup=False) as desk:
            answer = await desk.client.send(topic)
            assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    run(work())


def test_sent_back_is_counted(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            record = await _one(desk)
            await _send_back(desk, record)
            body = await desk.client.json(
                RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "SNDBCK_PUT_NUMS", "statsKey": "T@g"}
            )
            assert body["statsMinute"]["sum"] == 1

    run(work())


def test_retries_go_to_queues_that_the_retry_topic_has(tmp_path: Path) -> None:
    """The group's number may have been raised since the topic was made: nobody pulls from other queues."""

    async def work() -> None:
        async with open_desk(tmp_path, ManualClock()) as desk:
            first = await _one(desk)
            await desk.client.heartbeat(group="g")
            settings = GroupConfig(group_name="g", retry_queue_nums=1000)
            await desk.client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, settings.dump())
            for _ in range(5):
                assert (await _send_back(desk, first)).code == 0
            kept = desk.messages("SCHEDULE_TOPIC_XXXX", 2)
            assert [record.properties["REAL_QID"] for record in kept] == ["0"] * 5

    run(work())


def test_statistics_of_messages_sent_back_are_of_topics(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, ManualClock()) as desk:
            await desk.create("T")
            for number in range(5):
                await desk.client.send(properties={"RETRY_TOPIC": f"anything-{number}"})
                assert (await _send_back(desk, desk.messages("T")[number])).code == 0
            counters = desk.broker.stats.items("SNDBCK_PUT_NUMS")
            assert {key: counter.value for key, counter in counters.items()} == {"T@g": 5}

    run(work())
