"""Delays by level and to the moment, on a clock that only the test moves."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gimbalmq.broker.broker import Broker
from gimbalmq.broker.redelivery import redelivery
from gimbalmq.errors import StoreIOError
from gimbalmq.model import topics as names
from gimbalmq.model.javahash import tag_hash
from gimbalmq.model.record import decode_record, encode_record
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.testing import LocalCluster
from gimbalmq.transport.pool import ChannelPool
from tests.broker.desk import Desk, fields, open_desk, send_fields
from tests.support import ManualClock, run

SECONDS = [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]


def _tick(desk: Desk) -> None:
    desk.broker.delays.tick()
    desk.broker.timers.tick()


def test_each_level_delivers_after_its_delay_and_not_before(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T", 18)
            start = clock.now
            for level in range(1, 19):
                answer = await desk.client.send(
                    body=b"%d" % level, queue_id=level - 1, properties={"DELAY": str(level), "TAGS": "t"}
                )
                assert answer.code == 0 and fields(answer)["queueId"] == str(level - 1)
            assert desk.messages("T", 0) == []
            for level, seconds in enumerate(SECONDS, 1):
                clock.advance(start + seconds - clock.now - 0.001)
                _tick(desk)
                assert desk.messages("T", level - 1) == [], f"level {level} came early"
                clock.advance(0.001)
                _tick(desk)
                assert desk.bodies("T", level - 1) == [b"%d" % level], f"level {level} did not come"

    run(work())


def test_how_a_delayed_message_is_kept_and_what_comes_out(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            await desk.client.send(
                body=b"later",
                queue_id=2,
                properties={"DELAY": "3", "TAGS": "t", "K": "v"},
                flag=9,
                bornTimestamp=5,
            )
            (kept,) = desk.messages(names.SCHEDULE_TOPIC, 2)
            assert (kept.properties["REAL_TOPIC"], kept.properties["REAL_QID"]) == ("T", "2")
            (entry,) = desk.broker.store.entries(names.SCHEDULE_TOPIC, 2, 0, 1)
            assert entry[2] == clock.wall + 10_000, "the entry holds the due time where others hold the tag"
            clock.advance(10)
            _tick(desk)
            (out,) = desk.messages("T", 2)
            assert (out.body, out.flag, out.born_timestamp, out.born_host) == (b"later", 9, 5, kept.born_host)
            assert out.store_timestamp == clock.wall
            assert out.properties["K"] == "v" and out.properties["WAIT"] == "false"
            assert out.properties["UNIQ_KEY"] == kept.properties["UNIQ_KEY"]
            assert not {"DELAY", "REAL_TOPIC", "REAL_QID"} & out.properties.keys()
            (entry,) = desk.broker.store.entries("T", 2, 0, 1)
            assert entry[2] == tag_hash("t")

    run(work())


def test_level_above_the_highest_is_cut_and_below_one_is_none(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock, messageDelayLevel="1s 3s") as desk:
            await desk.create("T")
            await desk.client.send(body=b"cut", properties={"DELAY": "99"})
            await desk.client.send(body=b"none", properties={"DELAY": "0"})
            await desk.client.send(body=b"less", properties={"DELAY": "-3"})
            assert desk.bodies("T") == [b"none", b"less"]
            assert desk.messages(names.SCHEDULE_TOPIC, 1)[0].properties["DELAY"] == "2"
            clock.advance(3)
            _tick(desk)
            assert desk.bodies("T") == [b"none", b"less", b"cut"]

    run(work())


def test_many_of_one_level_come_in_order(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            wanted = [b"%d" % n for n in range(150)]
            for body in wanted:
                await desk.client.send(body=body, properties={"DELAY": "1"})
            clock.advance(1)
            _tick(desk)
            assert desk.bodies("T") == wanted
            body = await desk.client.json(RequestCode.GET_ALL_DELAY_OFFSET)
            assert body["offsetTable"]["1"] == 150
            table = (await desk.client.json(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
            assert table["scheduleMessageOffset_1"] == "150,150"

    run(work())


def test_clock_set_back_keeps_a_message_for_its_level_and_no_longer(tmp_path: Path) -> None:
    """A due time further away than now + delay shows that the clock was set back: the delay counts from then."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            await desk.client.send(body=b"before", properties={"DELAY": "3"})
            clock.wall -= 3_600_000
            _tick(desk)
            await desk.client.send(body=b"after", properties={"DELAY": "3"})
            clock.advance(9.9)
            _tick(desk)
            assert desk.bodies("T") == [], "ten seconds are not over"
            clock.advance(0.1)
            _tick(desk)
            assert desk.bodies("T") == [b"before", b"after"]

    run(work())


def test_levels_go_on_after_a_restart_without_a_second_delivery(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            for body, level in ((b"first", "1"), (b"second", "3")):
                await desk.client.send(body=body, properties={"DELAY": level})
            clock.advance(1)
            _tick(desk)
            await desk.restart()
            stored = json.loads((tmp_path / "config" / "delayOffset.json").read_text())
            assert stored["offsetTable"]["1"] == 1
            _tick(desk)
            assert desk.bodies("T") == [b"first"]
            clock.advance(9)
            _tick(desk)
            assert desk.bodies("T") == [b"first", b"second"]

    run(work())


def test_stored_progress_outside_the_queue_is_corrected(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        (tmp_path / "config").mkdir()
        (tmp_path / "config" / "delayOffset.json").write_text('{"offsetTable":{1:500}}')
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            desk.broker.store.queue(names.SCHEDULE_TOPIC, 0)
            _tick(desk)
            await desk.client.send(properties={"DELAY": "1"})
            clock.advance(1)
            _tick(desk)
            assert len(desk.messages("T")) == 1

    run(work())


def test_delivery_that_fails_is_tried_again(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock, flushIntervalCommitLog=60_000) as desk:
            await desk.create("T")
            await desk.client.send(body=b"level", properties={"DELAY": "1"})
            await desk.client.send(body=b"timer", properties={"TIMER_DELAY_MS": "500"})
            clock.advance(1)
            desk.broker.store.trouble.reason = "a test"
            for _ in range(3):
                assert not desk.broker.delays.tick() and not desk.broker.timers.tick(), (
                    "nothing to do for now"
                )
            assert desk.bodies("T") == []
            desk.broker.store.trouble.reason = None
            _tick(desk)
            assert sorted(desk.bodies("T")) == [b"level", b"timer"]

    run(work())


@pytest.mark.parametrize(
    ("name", "value"),
    [("TIMER_DELAY_SEC", "90"), ("TIMER_DELAY_MS", "90000"), ("TIMER_DELIVER_MS", "+90000")],
)
def test_timer_delivers_at_its_moment(tmp_path: Path, name: str, value: str) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            due = clock.wall + 90_000
            text = str(due) if value.startswith("+") else value
            answer = await desk.client.send(body=b"later", queue_id=3, properties={name: text, "TAGS": "t"})
            assert answer.code == 0
            (kept,) = desk.messages(names.TIMER_TOPIC)
            assert (kept.properties["TIMER_OUT_MS"], kept.properties["REAL_TOPIC"]) == (str(due), "T")
            clock.advance(89.999)
            _tick(desk)
            assert desk.messages("T", 3) == [] and len(desk.broker.timers) == 1
            clock.advance(0.001)
            _tick(desk)
            (out,) = desk.messages("T", 3)
            assert out.body == b"later" and out.properties["TAGS"] == "t"
            assert not [key for key in out.properties if key.startswith(("TIMER_", "REAL_"))]
            assert len(desk.broker.timers) == 0

    run(work())


def test_timers_fall_due_in_order_of_time_not_of_arrival(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            for seconds in (30, 10, 20, 0, -5):
                await desk.client.send(
                    body=b"%d" % seconds, properties={"TIMER_DELIVER_MS": str(clock.wall + seconds * 1000)}
                )
            assert desk.bodies("T") == [b"0", b"-5"], "a moment that has passed is now"
            clock.advance(60)
            _tick(desk)
            assert desk.bodies("T") == [b"0", b"-5", b"10", b"20", b"30"]

    run(work())


def test_level_wins_over_timer(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            await desk.client.send(properties={"DELAY": "1", "TIMER_DELAY_SEC": "100"})
            assert desk.messages(names.TIMER_TOPIC) == []
            assert len(desk.messages(names.SCHEDULE_TOPIC, 0)) == 1

    run(work())


def test_timers_survive_a_clean_restart_and_are_delivered_once(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            for seconds in (50, 10, 40, 20):
                await desk.client.send(body=b"%d" % seconds, properties={"TIMER_DELAY_SEC": str(seconds)})
            clock.advance(20)
            _tick(desk)
            assert desk.bodies("T") == [b"10", b"20"]
            await desk.restart()
            _tick(desk)
            assert desk.bodies("T") == [b"10", b"20"] and len(desk.broker.timers) == 2
            clock.advance(30)
            _tick(desk)
            assert desk.bodies("T") == [b"10", b"20", b"40", b"50"]
            await desk.restart()
            _tick(desk)
            assert len(desk.messages("T")) == 4

    run(work())


def test_no_delayed_message_is_lost_in_a_crash(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with LocalCluster(store=tmp_path, clock=clock) as cluster:
            pool = ChannelPool()
            for body, properties in ((b"level", {"DELAY": "1"}), (b"timer", {"TIMER_DELAY_SEC": "1"})):
                await pool.call(cluster.broker.address, _request(body, properties), 5.0)
            await cluster.kill_broker()
            clock.advance(2)
            broker = await cluster.start_broker()
            broker.delays.tick()
            broker.timers.tick()
            found = [broker.store.record_at_queue("T", 0, offset) for offset in range(2)]
            assert sorted(decode_record(raw).body for raw in found if raw) == [b"level", b"timer"]
            await pool.close()

    run(work())


def _request(body: bytes, properties: dict[str, str]) -> RemotingCommand:
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, send_fields("T", 0, properties), body)


def test_timers_can_be_switched_off(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, timerWheelEnable=False, timerMaxDelaySec=10) as desk:
            await desk.create("T")
            answer = await desk.client.send(properties={"TIMER_DELAY_SEC": "5"})
            assert answer.code == 13 and "timerWheelEnable=true" in (answer.remark or "")
            answer = await desk.client.send(properties={"TIMER_DELAY_SEC": "11"})
            assert answer.code == 13 and "10s" in (answer.remark or "")

    run(work())


@pytest.mark.parametrize(
    "properties", [b"", b"REAL_TOPIC\x01T\x02", b"REAL_TOPIC\x01T\x02REAL_QID\x01x\x02", b"REAL_QID\x011\x02"]
)
def test_kept_message_that_names_no_real_place_is_passed_over(properties: bytes) -> None:
    raw = encode_record(topic=names.SCHEDULE_TOPIC, body=b"x", properties=properties)
    assert redelivery(decode_record(raw)) is None


def test_what_fails_with_delay_levels_does_not_stop_timers() -> None:
    def broken() -> bool:
        raise StoreIOError("a queue file cannot be read")

    ticks: list[bool] = []
    broker: Any = SimpleNamespace(
        delays=SimpleNamespace(tick=broken), timers=SimpleNamespace(tick=lambda: ticks.append(True))
    )
    with pytest.raises(StoreIOError):
        Broker._tick(broker)
    assert ticks
