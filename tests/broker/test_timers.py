"""Timers and levels when things go wrong: crashes, clocks, retention, a full store, impossible messages."""

from __future__ import annotations

import dataclasses
import errno
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from gimbalmq.broker.redelivery import Deliverer
from gimbalmq.broker.writer import Draft
from gimbalmq.errors import DiskFullError, ResourceShortageError, StoreError, StoreIOError
from gimbalmq.model import topics as names
from gimbalmq.model.record import Record
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.store import timer_wheel
from gimbalmq.store.files import Files
from gimbalmq.store.timer_files import TimerCheck
from tests.broker.desk import Desk, open_desk
from tests.support import ManualClock, SlowClock, run

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
HOUR = 3600
NEVER_PROBED: dict[str, object] = {"flushIntervalCommitLog": 60_000}
"""A store that a test made read-only stays so."""


def _tick(desk: Desk) -> None:
    while desk.broker.delays.tick() or desk.broker.timers.tick():
        pass


def _put(desk: Desk, body: bytes, properties: dict[str, str], topic: str = "T", queue_id: int = 0) -> None:
    desk.broker.writer.put(Draft(topic, queue_id, body, properties, 0, 0, 1, HOST))


async def _kill(desk: Desk) -> None:
    """As kill -9: nothing is saved."""
    await desk.broker.abandon()
    await desk.start()


DELAYS = pytest.mark.parametrize("delay", [{"TIMER_DELAY_SEC": "5"}, {"DELAY": "2"}], ids=["timer", "level"])


@DELAYS
@pytest.mark.parametrize("saved", [False, True])
def test_what_was_delivered_before_a_kill_does_not_come_again(
    tmp_path: Path, delay: dict[str, str], saved: bool
) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            for number in range(100):
                _put(desk, b"%d" % number, dict(delay))
            if saved:
                _tick(desk)
                await desk.broker.timers.save(desk.broker.commit.flush)
                await desk.broker._save_delays()
            clock.advance(5)
            desk.broker.delays.tick()
            desk.broker.timers.tick()
            assert len(desk.messages("T")) == 100
            for _ in range(2):
                await _kill(desk)
                clock.advance(10)
                _tick(desk)
                assert desk.bodies("T") == [b"%d" % number for number in range(100)]

    run(work())


@DELAYS
def test_what_was_delivered_before_a_kill_is_known_until_it_is_passed(
    tmp_path: Path, delay: dict[str, str]
) -> None:
    """Messages of several seconds; a clock set back keeps them waiting; and progress is saved meanwhile."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            _put(desk, b"1", dict(delay))
            _tick(desk)
            await desk.broker.timers.save(desk.broker.commit.flush)
            await desk.broker._save_delays()
            for number in (2, 3, 4):
                clock.advance(1)
                _put(desk, b"%d" % number, dict(delay))
            for _ in range(5):
                clock.advance(1)
                _tick(desk)
            expected = [b"1", b"2", b"3", b"4"]
            assert desk.bodies("T") == expected
            clock.wall -= 6000
            await _kill(desk)
            for _ in range(3):
                _put(desk, b"soon", {"TIMER_DELAY_SEC": "1"})
                _put(desk, b"soon", {"DELAY": "1"})
                expected += [b"soon"] * 2
                for _ in range(2):
                    clock.advance(1)
                    _tick(desk)
                    await desk.broker.timers.save(desk.broker.commit.flush)
                    await desk.broker._save_delays()
                assert desk.bodies("T") == expected
                await _kill(desk)
            clock.advance(20)
            _tick(desk)
            assert desk.bodies("T") == expected
            await desk.broker.timers.save(desk.broker.commit.flush)
            await desk.broker._save_delays()
            assert not desk.broker.timers._progress.known and not desk.broker.delays._delivered
            end = desk.broker.store.max_commitlog_offset
            assert desk.broker.timers._check().marks_from == end
            assert desk.broker.delays._saved[1] == end

    run(work())


def test_timers_in_the_queue_behind_the_note_are_taken_in_after_a_kill(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            _put(desk, b"saved", {"TIMER_DELAY_SEC": "5"})
            _tick(desk)
            await desk.broker.timers.save(desk.broker.commit.flush)
            _put(desk, b"entered", {"TIMER_DELAY_SEC": "6"})
            _tick(desk)
            _put(desk, b"only in the queue", {"TIMER_DELAY_SEC": "7"})
            await _kill(desk)
            assert desk.broker.timers.offsets_behind == 2
            _tick(desk)
            assert len(desk.broker.timers) == 3
            clock.advance(10)
            _tick(desk)
            assert desk.bodies("T") == [b"saved", b"entered", b"only in the queue"]

    run(work())


def test_kill_between_two_deliveries_of_one_second_repeats_none_and_loses_none(tmp_path: Path) -> None:
    async def work() -> None:
        clock = SlowClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            for number in range(200):
                _put(desk, b"%d" % number, {"TIMER_DELIVER_MS": str(clock.wall + 1000)})
            _tick(desk)
            await desk.broker.timers.save(desk.broker.commit.flush)
            clock.advance(1)
            while len(desk.messages("T")) < 64:
                assert desk.broker.timers.tick()
            assert len(desk.messages("T")) < 200
            await _kill(desk)
            _tick(desk)
            assert desk.bodies("T") == [b"%d" % number for number in range(200)]

    run(work())


def test_one_far_timer_and_many_near_ones_leave_nothing_behind(tmp_path: Path) -> None:
    """Delivered timers behind an open one were kept in a set, and written as JSON, for as long as it was open."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            _put(desk, b"far", {"TIMER_DELAY_SEC": str(72 * HOUR)})
            for _ in range(20):
                for number in range(50):
                    _put(desk, b"%d" % number, {"TIMER_DELAY_SEC": "1"})
                _tick(desk)
                clock.advance(2)
                _tick(desk)
                await desk.broker.timers.save(desk.broker.commit.flush)
            timers = desk.broker.timers
            assert len(desk.messages("T")) == 1000 and len(timers) == 1
            assert not timers._progress.known and timers._delivery.slot is None
            assert timers._log.waiting == 0 and timers._wheel.changes == 0
            assert (tmp_path / "config" / "timercheck").stat().st_size == 4096
            assert (tmp_path / "timerwheel").stat().st_blocks * 512 < 200_000, "the wheel is sparse"

    run(work())


def test_many_due_at_once_are_delivered_in_pieces(tmp_path: Path) -> None:
    """A million for the same moment kept the loop for 15 s."""

    async def work() -> None:
        clock = SlowClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T", 2)
            for _ in range(500):
                _put(desk, b"timer", {"TIMER_DELAY_SEC": "5"})
                _put(desk, b"level", {"DELAY": "2"}, queue_id=1)
            pieces = 0
            while desk.broker.timers.tick():
                pieces += 1
                assert desk.broker.timers._progress.queue_offset <= pieces * 128
            assert pieces > 3
            clock.advance(6)
            for queue_id, tick in ((0, desk.broker.timers.tick), (1, desk.broker.delays.tick)):
                before = 0
                while tick():
                    after = len(desk.messages("T", queue_id))
                    assert after - before <= 160, "one piece"
                    before = after
                assert before > 200 and len(desk.messages("T", queue_id)) == 500

    run(work())


def test_pulls_and_sends_go_on_while_many_are_delivered(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            for _ in range(3000):
                _put(desk, b"timer", {"TIMER_DELAY_SEC": "5"})
            _tick(desk)
            desk.broker.timers._delivery._clock = SlowClock(clock.now + 6, clock.wall + 6000)
            before = len(desk.messages("T"))
            while len(desk.messages("T")) == before:
                await desk.client.ok(RequestCode.GET_BROKER_RUNTIME_INFO)
            assert len(desk.messages("T")) < 3000, "the answer came while deliveries were under way"

    run(work())


@DELAYS
@pytest.mark.parametrize("forced", [False, True])
def test_retention_never_takes_what_is_still_due(tmp_path: Path, delay: dict[str, str], forced: bool) -> None:
    """72 h were accepted whatever fileReservedTime said, and the file went after that."""
    long = {"TIMER_DELAY_SEC": str(48 * HOUR)} if "DELAY" not in delay else {"DELAY": "1"}

    async def work() -> None:
        clock = ManualClock()
        settings = {"mappedFileSizeCommitLog": 8192, "fileReservedTime": 24, "messageDelayLevel": "2d"}
        async with open_desk(tmp_path, clock, **settings) as desk:
            await desk.create("T")
            await desk.create("other")
            _put(desk, b"pay me in two days", dict(long))
            for _ in range(200):
                _put(desk, bytes(200), {}, "other")
            _tick(desk)
            assert _clean(desk, clock, forced) == 0, "not before it is safe"
            assert desk.broker.store.min_commitlog_offset == 0
            await _settle(desk)
            clean = _clean(desk, clock, forced)
            assert clean > 2 and desk.broker.store.min_commitlog_offset > 0
            await _kill(desk)
            clock.advance(48 * HOUR - 1)
            _tick(desk)
            assert desk.bodies("T") == []
            clock.advance(1)
            _tick(desk)
            assert desk.bodies("T") == [b"pay me in two days"]
            clock.advance(72 * HOUR)
            _tick(desk)
            assert len(desk.messages("T")) == 1

    run(work())


def _clean(desk: Desk, clock: ManualClock, forced: bool) -> int:
    store = desk.broker.store
    later = clock.wall_ms() if forced else clock.wall_ms() + 10 * 365 * 24 * HOUR * 1000
    usage = 0.87 if forced else 0.1
    store.config = dataclasses.replace(store.config, disk_usage=lambda: usage)
    return store.delete_expired(later, manual=True).commitlog_files


async def _settle(desk: Desk) -> None:
    """What was put again is entered, durable and noted."""
    for _ in range(2):
        _tick(desk)
        await desk.broker.timers.save(desk.broker.commit.flush)


def test_file_stays_while_its_timers_cannot_be_put_again(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock, mappedFileSizeCommitLog=8192, **NEVER_PROBED) as desk:
            await desk.create("T")
            await desk.create("other")
            for number in range(40):
                _put(desk, b"%d" % number, {"TIMER_DELAY_SEC": "100"})
            for _ in range(200):
                _put(desk, bytes(200), {}, "other")
            _tick(desk)
            desk.broker.store.trouble.reason = "a test"
            for _ in range(3):
                assert _clean(desk, clock, True) == 0
                await _settle(desk)
            desk.broker.store.trouble.reason = None
            assert _clean(desk, clock, True) == 0
            await _settle(desk)
            assert _clean(desk, clock, True) > 2
            clock.advance(100)
            _tick(desk)
            assert sorted(desk.bodies("T"), key=int) == [b"%d" % number for number in range(40)]

    run(work())


@DELAYS
def test_disk_that_is_too_full_for_clients_takes_what_makes_room(
    tmp_path: Path, delay: dict[str, str]
) -> None:
    """Else one timer in the oldest file would keep the disk full for as long as it waits."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock, mappedFileSizeCommitLog=8192) as desk:
            await desk.create("T")
            await desk.create("other")
            _put(desk, b"x", dict(delay))
            for _ in range(200):
                _put(desk, bytes(200), {}, "other")
            _tick(desk)
            store = desk.broker.store
            usage = [0.95]
            store.config = dataclasses.replace(store.config, disk_usage=lambda: usage[0])
            for _ in range(4):
                store.delete_expired(clock.wall_ms())
                await _settle(desk)
            assert store.read_only_reason is not None and store.min_commitlog_offset > 0
            usage[0] = 0.5
            store.delete_expired(clock.wall_ms())
            clock.advance(5)
            _tick(desk)
            assert desk.bodies("T") == [b"x"]

    run(work())


@pytest.mark.parametrize("then", ["killed", "due", "finished and saved"])
def test_timers_that_were_put_again_come_once(tmp_path: Path, then: str) -> None:
    """Each has two places then: marks tell it after a kill, memory before the move is over, one offset after that."""

    async def work() -> None:
        clock = SlowClock()
        async with open_desk(tmp_path, clock, mappedFileSizeCommitLog=65_536) as desk:
            await desk.create("T")
            await desk.create("other")
            for number in range(150):
                _put(desk, b"%d" % number, {"TIMER_DELAY_SEC": "100"})
            for _ in range(500):
                _put(desk, bytes(400), {}, "other")
            _tick(desk)
            await desk.broker.timers.save(desk.broker.commit.flush)
            timers = desk.broker.timers
            queue = desk.broker.store.find_queue(names.TIMER_TOPIC, 0)
            assert queue is not None and queue.max_offset == 150
            assert timers.keep(65_536) == 0
            assert timers._moves.move_on() and 150 < queue.max_offset < 300
            if then == "killed":
                await _kill(desk)
            elif then == "due":
                clock.advance(101)
                while timers._enter_new() or timers._delivery.deliver_due():
                    pass
            elif then == "finished and saved":
                _tick(desk)
                await timers.save(desk.broker.commit.flush)
                clock.advance(50)
                _tick(desk)
                assert not timers._progress.known and timers._progress.moved_below == 65_536
            clock.advance(100)
            _tick(desk)
            assert sorted(desk.bodies("T"), key=int) == [b"%d" % number for number in range(150)]

    run(work())


def test_what_was_delivered_is_not_put_again_after_the_clock_was_set_back(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            due = str(clock.wall + 5000)
            _put(desk, b"delivered", {"TIMER_DELIVER_MS": due})
            _put(desk, b"waits", {"TIMER_DELAY_SEC": "100"})
            clock.advance(6)
            _tick(desk)
            await desk.broker.timers.save(desk.broker.commit.flush)
            clock.wall -= 30_000
            _tick(desk)
            _put(desk, b"of the same second", {"TIMER_DELIVER_MS": due})
            _tick(desk)
            timers = desk.broker.timers
            limit = desk.broker.store.max_commitlog_offset
            assert timers.keep(limit) < limit
            _tick(desk)
            assert timers._progress.moved_below == limit
            clock.advance(200)
            _tick(desk)
            assert desk.bodies("T") == [b"delivered", b"of the same second", b"waits"]

    run(work())


def _poison(clock: ManualClock) -> Iterator[tuple[str, dict[str, str]]]:
    due = str(clock.wall + 1000)
    yield "no place", {"TIMER_OUT_MS": due}
    yield "gone", {"TIMER_OUT_MS": due, "REAL_TOPIC": "never-made", "REAL_QID": "0"}
    yield "no folder", {"TIMER_OUT_MS": due, "REAL_TOPIC": "a/b", "REAL_QID": "0"}
    yield "too long", {"TIMER_OUT_MS": due, "REAL_TOPIC": "x" * 300, "REAL_QID": "0"}
    yield "the broker's", {"TIMER_OUT_MS": due, "REAL_TOPIC": names.SCHEDULE_TOPIC, "REAL_QID": "77"}
    yield "itself", {"TIMER_OUT_MS": due, "REAL_TOPIC": names.TIMER_TOPIC, "REAL_QID": "0"}
    yield "no number", {"TIMER_OUT_MS": due, "REAL_TOPIC": "T", "REAL_QID": "²"}
    yield "negative", {"TIMER_OUT_MS": due, "REAL_TOPIC": "T", "REAL_QID": "-1"}


def test_messages_that_cannot_be_delivered_cost_only_themselves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            _put(desk, b"first", {"TIMER_DELAY_SEC": "1"})
            bad = list(_poison(clock))
            for name, properties in bad:
                _put(desk, name.encode(), properties, names.TIMER_TOPIC)
                level = {**properties, "DELAY": "1"}
                desk.broker.writer.delay_levels[1] = 1000
                _put(desk, name.encode(), level, names.SCHEDULE_TOPIC)
            _put(desk, b"last", {"TIMER_DELAY_SEC": "1"})
            clock.advance(3)
            with caplog.at_level(logging.ERROR):
                _tick(desk)
            assert desk.bodies("T") == [b"first", b"last"] and len(desk.broker.timers) == 0
            lines = [r for r in caplog.records if "passed over" in r.getMessage()]
            assert len(lines) >= len(bad)
            assert set(desk.broker.store.topics()) == {"T", names.TIMER_TOPIC, names.SCHEDULE_TOPIC}

    run(work())


def test_queue_that_is_gone_becomes_one_that_is_there(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T", 2)
            due = str(clock.wall + 1000)
            properties = {"TIMER_OUT_MS": due, "REAL_TOPIC": "T", "REAL_QID": "99999999999"}
            _put(desk, b"x", properties, names.TIMER_TOPIC)
            clock.advance(1)
            _tick(desk)
            assert desk.bodies("T", 1) == [b"x"]

    run(work())


def test_draft_that_can_never_be_stored_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            deliverer = Deliverer(desk.broker.store, desk.broker.writer, lambda topic: 4)
            drafts = [
                Draft("T", 0, b"a", {}, 0, 0, 1, HOST),
                Draft("T", 0, b"long", {"P": "x" * 33_000}, 0, 0, 1, HOST),
                Draft("T", 0, b"b", {}, 0, 0, 1, HOST),
                Draft("T", 1 << 40, b"absurd", {}, 0, 0, 1, HOST),
                Draft("T", 0, b"c", {}, 1 << 40, 0, 1, HOST),
                Draft("T", 0, b"d", {}, 0, 0, 1, HOST),
            ]
            assert deliverer.put(drafts) == 6
            assert desk.bodies("T") == [b"a", b"b", b"d"]

    run(work())


@pytest.mark.parametrize("delay", [{"TIMER_DELAY_SEC": "5"}, {"DELAY": "1"}], ids=["timer", "level"])
def test_delayed_message_is_refused_if_it_could_not_be_stored_again(
    tmp_path: Path, delay: dict[str, str]
) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            answer = await desk.client.send(properties={**delay, "BIG": "x" * 32_600})
            assert answer.code == 13 and "at most 32639 fit" in (answer.remark or "")

    run(work())


@pytest.mark.parametrize(
    ("properties", "wanted"),
    [
        ({"TIMER_DELIVER_MS": str(1 << 63)}, "at most 18 digits"),
        ({"TIMER_DELIVER_MS": str(10**18 - 1)}, "max delay"),
        ({"TIMER_DELAY_SEC": str(10**18 - 1)}, "max delay"),
        ({"TIMER_DELAY_SEC": "9" * 5000}, "at most 18 digits"),
        ({"TIMER_DELAY_MS": "1_000"}, "at most 18 digits"),
        ({"TIMER_DELAY_MS": "１"}, "at most 18 digits"),
        ({"TIMER_DELAY_SEC": "1.5"}, "at most 18 digits"),
        ({"TIMER_DELAY_SEC": ""}, None),
        ({"DELAY": "x"}, "at most 18 digits"),
        ({"DELAY": "9" * 30}, "at most 18 digits"),
        ({"TIMER_DELAY_SEC": "-5"}, None),
        ({"TIMER_DELIVER_MS": "-5"}, None),
        ({"TIMER_DELIVER_MS": "0"}, None),
    ],
)
def test_absurd_delays_are_refused_and_past_ones_are_now(
    tmp_path: Path, properties: dict[str, str], wanted: str | None
) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            answer = await desk.client.send(properties=properties)
            if wanted is None:
                assert answer.code == 0 and len(desk.messages("T")) == 1
            else:
                assert answer.code == 13 and wanted in (answer.remark or "")
                assert desk.broker.store.max_commitlog_offset == 0

    run(work())


def test_timer_with_a_level_waits_once(tmp_path: Path) -> None:
    """The level wins, and the timer's property does not make it wait again afterwards."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            _put(desk, b"x", {"DELAY": "1", "TIMER_DELAY_SEC": "100"})
            clock.advance(1)
            _tick(desk)
            assert desk.bodies("T") == [b"x"]

    run(work())


def test_level_that_is_no_longer_configured_is_still_delivered(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock, messageDelayLevel="1s 5s 10s") as desk:
            await desk.create("T")
            _put(desk, b"x", {"DELAY": "3"})
            await desk.restart(messageDelayLevel="1s")
            clock.advance(9)
            _tick(desk)
            assert desk.bodies("T") == []
            clock.advance(1)
            _tick(desk)
            assert desk.bodies("T") == [b"x"]

    run(work())


@pytest.mark.parametrize("step", [-30 * 86_400, -HOUR, -2])
def test_clock_set_back_neither_delivers_early_nor_keeps_a_timer(tmp_path: Path, step: int) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            _put(desk, b"done", {"TIMER_DELAY_SEC": "1"})
            clock.advance(5)
            _tick(desk)
            clock.wall += step * 1000
            _tick(desk)
            _put(desk, b"soon", {"TIMER_DELAY_SEC": "3"})
            _tick(desk)
            clock.advance(2.9)
            _tick(desk)
            assert desk.bodies("T") == [b"done"]
            clock.advance(0.1)
            _tick(desk)
            assert desk.bodies("T") == [b"done", b"soon"]
            await desk.restart()
            for _ in range(3):
                clock.advance(HOUR)
                _tick(desk)
            assert desk.bodies("T") == [b"done", b"soon"], "nothing twice when the time comes again"

    run(work())


@pytest.mark.parametrize("days", [1, 13, 15, 40])
def test_timers_of_a_broker_that_was_down_for_days_come_once(tmp_path: Path, days: int) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            for seconds in (10, 20, 86_400):
                _put(desk, b"%d" % seconds, {"TIMER_DELAY_SEC": str(seconds)})
            await desk.broker.close()
            clock.advance(days * 86_400)
            await desk.start()
            _put(desk, b"new", {"TIMER_DELAY_SEC": "30"})
            _tick(desk)
            assert desk.bodies("T") == [b"10", b"20", b"86400"]
            clock.advance(30)
            _tick(desk)
            assert desk.bodies("T") == [b"10", b"20", b"86400", b"new"]

    run(work())


def test_delay_longer_than_half_the_wheel_waits_in_stages(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock, timerMaxDelaySec=30 * 86_400) as desk:
            await desk.create("T")
            _put(desk, b"month", {"TIMER_DELAY_SEC": str(30 * 86_400)})
            for day in range(30):
                _tick(desk)
                assert desk.bodies("T") == [], f"day {day}"
                clock.advance(86_400)
            _tick(desk)
            assert desk.bodies("T") == [b"month"]

    run(work())


def test_lost_wheel_is_filled_again_from_the_queue(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            for seconds in (1, 2, 50, 60):
                _put(desk, b"%d" % seconds, {"TIMER_DELAY_SEC": str(seconds)})
            clock.advance(10)
            _tick(desk)
            await desk.broker.close()
            (tmp_path / "timerwheel").unlink()
            await desk.start()
            _tick(desk)
            assert desk.bodies("T") == [b"1", b"2"] and len(desk.broker.timers) == 2
            clock.advance(60)
            _tick(desk)
            assert desk.bodies("T") == [b"1", b"2", b"50", b"60"]

    run(work())


def test_deleted_timer_does_not_come(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            due = str(clock.wall + 5000)
            for key in ("a", "b"):
                _put(desk, key.encode(), {"TIMER_DELIVER_MS": due, "UNIQ_KEY": key})
            _put(desk, b"recall", {"TIMER_DELIVER_MS": due, "TIMER_DEL_UNIQKEY": "T+a"})
            clock.advance(5)
            _tick(desk)
            assert desk.bodies("T") == [b"b"] and len(desk.broker.timers) == 0

    run(work())


def test_nothing_is_delivered_before_a_note_says_how_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the note a kill would bring it again."""

    async def work() -> None:
        clock = ManualClock()
        real = Files.open

        def no_descriptors(self: Files, path: Path | str, *, create: bool = False) -> int:
            if "timercheck" in str(path) or "delayOffset" in str(path):
                raise OSError(errno.EMFILE, "a test")
            return real(self, path, create=create)

        with monkeypatch.context() as patch:
            patch.setattr(Files, "open", no_descriptors)
            desk = Desk(tmp_path, clock, {})
            await desk.start()
        try:
            await desk.create("T")
            _put(desk, b"timer", {"TIMER_DELAY_SEC": "1"})
            _put(desk, b"level", {"DELAY": "1"})
            clock.advance(5)
            _tick(desk)
            assert desk.bodies("T") == []
            await desk.broker.timers.save(desk.broker.commit.flush)
            await desk.broker._save_delays()
            _tick(desk)
            assert sorted(desk.bodies("T")) == [b"level", b"timer"]
            await _kill(desk)
            _tick(desk)
            assert sorted(desk.bodies("T")) == [b"level", b"timer"]
        finally:
            await desk.close()

    run(work())


@pytest.mark.parametrize("kind", [DiskFullError, ResourceShortageError, StoreIOError])
def test_store_in_trouble_costs_no_delayed_message(tmp_path: Path, kind: type[StoreError]) -> None:
    """Those due while there was no descriptor were passed over."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock, **NEVER_PROBED) as desk:
            await desk.create("T")
            for number in range(40):
                _put(desk, b"timer %d" % number, {"TIMER_DELAY_SEC": "1"})
                _put(desk, b"level %d" % number, {"DELAY": "1"})
            clock.advance(2)
            store = desk.broker.store
            store.trouble.failure, store.trouble.reason = kind("a test"), "a test"
            _tick(desk)
            assert desk.bodies("T") == []
            store.trouble.failure, store.trouble.reason = None, None
            _tick(desk)
            expected = {b"%b %d" % (sort, number) for sort in (b"timer", b"level") for number in range(40)}
            assert sorted(desk.bodies("T")) == sorted(expected)

    run(work())


def test_record_that_cannot_be_read_for_now_is_delivered_later_and_the_others_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            for number in range(6):
                _put(desk, b"%d" % number, {"TIMER_DELAY_SEC": "1"})
            _tick(desk)
            real = Deliverer.record
            short = True

            def record(self: Deliverer, offset: int, topic: str) -> Record | None:
                found = real(self, offset, topic)
                if short and found is not None and found.body == b"3":
                    raise ResourceShortageError("a test")
                return found

            monkeypatch.setattr(Deliverer, "record", record)
            clock.advance(1)
            for _ in range(3):
                with pytest.raises(ResourceShortageError):
                    _tick(desk)
                assert desk.bodies("T") == [b"0", b"1", b"2"]
            short = False
            clock.advance(3)
            _tick(desk)
            assert desk.bodies("T") == [b"%d" % number for number in range(6)]

    run(work())


def test_refusing_store_is_not_asked_again_and_again(tmp_path: Path) -> None:
    """However long a try took: the next comes with the next tick."""

    async def work() -> None:
        clock = SlowClock()
        async with open_desk(tmp_path, clock, **NEVER_PROBED) as desk:
            await desk.create("T")
            for _ in range(100):
                _put(desk, b"x", {"TIMER_DELAY_SEC": "1"})
                _put(desk, b"x", {"DELAY": "1"})
            _tick(desk)
            clock.advance(5)
            desk.broker.store.trouble.reason = "a test"
            delivery = desk.broker.timers._delivery
            while delivery.slot is None or not delivery.slot.refused:
                desk.broker.timers.tick()
            for _ in range(5):
                assert not desk.broker.timers.tick() and not desk.broker.delays.tick()
            desk.broker.store.trouble.reason = None
            _tick(desk)
            assert len(desk.messages("T")) == 200

    run(work())


def test_broker_without_timers_writes_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            note = (tmp_path / "config" / "timercheck").stat().st_mtime_ns
            for _ in range(5):
                _put(desk, b"x", {})
                clock.advance(10)
                _tick(desk)
                await desk.broker.timers.save(desk.broker.commit.flush)
            assert (tmp_path / "config" / "timercheck").stat().st_mtime_ns == note
            assert not (tmp_path / "timerwheel").exists()

    run(work())


def test_runtime_table_shows_how_timers_are_doing(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock, **NEVER_PROBED) as desk:
            await desk.create("T")
            _tick(desk)
            for seconds in (5, 5, 60):
                _put(desk, b"x", {"TIMER_DELAY_SEC": str(seconds)})

            async def shown() -> list[float]:
                table = (await desk.client.json(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
                keys = ("ReadBehind", "OffsetBehind", "CongestNum", "EnqueueTps", "DequeueTps")
                return [float(table[f"timer{key}"]) for key in keys]

            desk.broker.store.trouble.reason = "a test"
            _tick(desk)
            clock.advance(10)
            _tick(desk)
            assert await shown() == [5.0, 0.0, 3.0, 0.3, 0.0], "five seconds late, three wait"
            desk.broker.store.trouble.reason = None
            _tick(desk)
            assert await shown() == [0.0, 0.0, 1.0, 0.3, 0.2]

    run(work())


def test_note_of_progress_survives_a_round_trip_and_foreign_hands(tmp_path: Path) -> None:
    path = tmp_path / "config" / "timercheck"
    check = TimerCheck(1_700_000_000_000, 520, 10, 4711, 99, 3, 7)
    check.save(path, Files())
    assert TimerCheck.load(path) == check
    data = bytearray(path.read_bytes())
    data[16:24] = (11).to_bytes(8, "big")  # Java went on
    path.write_bytes(data)
    assert TimerCheck.load(path) == TimerCheck(1_700_000_000_000, 520, 11)
    path.write_bytes(b"short")
    assert TimerCheck.load(path) is None


def test_wheel_has_the_size_that_apache_expects() -> None:
    assert timer_wheel.WHEEL_BYTES == 38_707_200
