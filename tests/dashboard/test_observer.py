"""What the dashboard remembers of a group, without a page: samples, changes, reasons, colours."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gimbalmq.admin.views import GroupProgress, QueueProgress
from gimbalmq.balance.compare import Move
from gimbalmq.client.events import Events, QueueStarted, QueueTaken, RoundFinished, RoundStarted
from gimbalmq.dashboard import charts
from gimbalmq.dashboard.observer import (
    EVERY_MEMBER,
    REFUSED_EVERY,
    SAMPLE_MS,
    SAMPLES,
    SETTLING_MS,
    Change,
    GroupHistory,
    Observer,
    Sample,
    belongs_to,
    change_between,
    explained,
    together,
)
from gimbalmq.errors import ConnectError, NoPermissionError
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.fastjson import queue_text
from gimbalmq.protocol.status_bodies import ConsumerRunningInfo, ProcessQueueInfo
from tests.support import ManualClock, run, until

Q0, Q1, Q2 = (MessageQueue("orders", "broker-a", number) for number in range(3))
RETRY = MessageQueue("%RETRY%g", "broker-a", 0)


def sample(at_ms: int, owners: dict[MessageQueue, str], *members: str, **places: Any) -> Sample:
    return Sample(at_ms, members or tuple(sorted(set(owners.values()))), owners, **places)


def taken(reason: str, **more: object) -> dict[str, object]:
    return {"type": "QueueTaken", "reason": reason, **more}


def test_equal_samples_are_no_change() -> None:
    assert change_between(sample(1, {Q0: "a"}), sample(2, {Q0: "a"})) is None


def test_a_change_names_members_and_moves() -> None:
    before = sample(1, {Q0: "a", Q1: "a"})
    after = sample(2, {Q0: "a", Q1: "b", Q2: "b"}, "b")
    assert change_between(before, after) == Change(2, ("b",), ("a",), (Move(Q1, "a", "b"), Move(Q2, "", "b")))


def test_reasons_are_the_most_frequent_and_the_pause_is_the_longest() -> None:
    events: list[dict[str, object]] = [
        taken("members changed"),
        taken("start"),
        taken("members changed"),
        {"type": "QueueSkipped", "reason": "locked"},
        {"type": "QueueStarted", "paused": 0.2},
        {"type": "QueueStarted", "paused": 0.7},
        {"type": "QueueStarted", "paused": "much"},
    ]
    found = explained(Change(1), events)
    assert found.reasons == ("members changed", "start")
    assert found.paused == 0.7
    assert explained(Change(1), []).paused is None


def test_parts_of_one_change_become_one() -> None:
    first = Change(1000, ("b",), (), (Move(Q0, "a", ""),), ("members changed",), 0.1)
    rest = Change(2000, (), (), (Move(Q0, "", "b"), Move(Q1, "a", "b")), ("members changed", "start"), 0.3)
    assert belongs_to(rest, first)
    assert together(first, rest) == Change(
        1000, ("b",), (), (Move(Q0, "a", "b"), Move(Q1, "a", "b")), ("members changed", "start"), 0.3, 2000
    )
    back = together(Change(1, moves=(Move(Q0, "a", ""),)), Change(2, moves=(Move(Q0, "", "a"),)))
    assert back.moves == ()


def test_another_member_after_queues_moved_is_another_change() -> None:
    first = Change(1000, ("b",), (), (Move(Q0, "a", "b"),))
    assert not belongs_to(Change(2000, ("c",)), first)
    assert belongs_to(Change(2000, ("c",)), Change(1000, ("b",)))
    assert not belongs_to(Change(1001 + SETTLING_MS, (), (), (Move(Q1, "a", "b"),)), first)


def test_queues_let_go_for_a_member_that_is_seen_later_are_one_change_with_it() -> None:
    let_go = Change(1000, (), (), (Move(Q1, "a", ""),))
    taken = Change(2000, ("b",), (), (Move(Q1, "", "b"),))
    assert belongs_to(taken, let_go)
    assert together(let_go, taken).moves == (Move(Q1, "a", "b"),)
    assert not belongs_to(taken, Change(1000, (), ("a",), let_go.moves))
    assert not belongs_to(taken, Change(1000, (), (), (*let_go.moves, Move(Q2, "a", "c"))))


def test_a_history_explains_changes_with_what_is_new_whatever_the_clocks_say() -> None:
    history = GroupHistory()
    old = taken("long ago", at_ms=99_999_999)
    history.take(sample(0, {Q0: "a"}), [old])
    assert not history.changes
    history.take(sample(1000, {Q0: "b"}, "a", "b"), [old, taken("members changed", at_ms=5)])
    (change,) = history.changes
    assert change.reasons == ("members changed",)
    assert change.paused is None
    history.take(sample(2000, {Q0: "b"}, "a", "b"), [old, {"type": "QueueStarted", "paused": 0.25}])
    (change,) = history.changes
    assert change.paused == 0.25
    later = 2000 + 2 * SETTLING_MS
    history.take(sample(later, {Q0: "b"}, "a", "b"), [])
    history.take(sample(later + 1, {Q0: "b"}, "a", "b"), [{"type": "QueueStarted", "paused": 9}])
    assert history.changes[-1].paused == 0.25


def test_a_history_is_bounded_and_keeps_the_newest() -> None:
    history = GroupHistory()
    for number in range(2 * SAMPLES):
        history.take(sample(number * SAMPLE_MS, {Q0: "a"}))
    assert len(history.samples) == SAMPLES
    assert history.last.at_ms == (2 * SAMPLES - 1) * SAMPLE_MS
    for _ in range(10):
        history.take(sample(history.last.at_ms + SAMPLE_MS // 10, {Q0: "a"}))
    first, second = list(history.samples)[-2:]
    assert second.at_ms - first.at_ms <= SAMPLE_MS


def test_equal_samples_share_their_memory() -> None:
    history = GroupHistory()
    for number in range(3):
        history.take(sample(number * SAMPLE_MS, {Q0: "a"}, ends={Q0: 7}, done={Q0: 5}))
    first, second, third = history.samples
    assert first.owners is second.owners is third.owners
    assert first.ends is second.ends
    assert first.done is second.done


def test_members_keep_their_colours() -> None:
    history = GroupHistory()
    history.take(sample(0, {Q0: "b", Q1: "c"}))
    assert history.numbers == {"b": 0, "c": 1}
    history.take(sample(1, {}, "a", "b", "c"))
    assert history.numbers == {"a": 2, "b": 0, "c": 1}
    history.take(sample(2, {}, "a", "c", "d"))
    assert history.numbers == {"a": 2, "c": 1, "d": 0}


def test_rates_are_over_the_last_ten_seconds() -> None:
    history = GroupHistory()
    assert history.rates() == {}
    for second in range(0, 60, 2):
        done = second * 10 if second < 30 else 300 + (second - 30) * 100
        history.take(sample(second * 1000, {Q0: "a"}, ends={Q0: 9999}, done={Q0: done}))
    assert history.rates() == {Q0: 100.0}


def test_lag_never_falls_below_zero_and_needs_an_offset() -> None:
    found = sample(0, {}, ends={Q0: 10, Q1: 5, Q2: 5}, done={Q0: 4, Q1: 6})
    assert found.lag == 6
    assert [found.lag_of(queue) for queue in found.queues] == [6, 0, 0]


def test_a_consumer_tells_its_last_events_within_bounds() -> None:
    events = Events()
    events.emit(RoundStarted(group="g", reason="schedule"))
    events.emit(RoundFinished(group="g", reason="schedule", balanced=True, kept=(Q0, Q1)))
    assert events.recent_json() == "[]"
    events.emit(
        RoundFinished(
            group="g", at_ms=7, reason="members changed", balanced=True, changed=("orders",), kept=(Q0,)
        )
    )
    for number in range(500):
        queue = MessageQueue("orders", "broker-a", number)
        events.emit(QueueTaken(group="g", at_ms=8, queue=queue, offset=0, reason="members changed"))
        events.emit(QueueStarted(group="g", at_ms=9, queue=queue, paused=0.5))
    told = json.loads(events.recent_json())
    assert told[0]["type"] == "RoundFinished"
    assert told[0]["reason"] == "members changed"
    assert told[0]["kept"] == []
    assert told[-1] == {
        "type": "QueueStarted",
        "group": "g",
        "at_ms": 9,
        "queue": ["orders", "broker-a", 499],
        "paused": 0.5,
    }
    assert len(told) <= 32
    for number in range(50):
        events.emit(QueueTaken(group="g", queue=Q0, offset=number, reason="x" * 2000))
    assert len(events.recent_json().encode()) <= 8192
    assert json.loads(events.recent_json())


class Group:
    """What the observer asks of ``Admin``: one member answers, one hangs, as one does that was stopped."""

    def __init__(self) -> None:
        self.groups = self
        self.hangs = False

    async def member_ids(self, group: str) -> list[str]:
        return ["h@quick", "h@slow"]

    async def running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        if client_id == "h@slow" and self.hangs:
            await asyncio.Event().wait()
        queue = Q0 if client_id == "h@quick" else Q1
        events = [taken("members changed", at_ms=1)]
        return ConsumerRunningInfo(
            mq_table={queue_text(queue): ProcessQueueInfo(), queue_text(RETRY): ProcessQueueInfo()},
            user_consumer_info={"gimbalmq.events": json.dumps(events), "else": "{"},
        )

    async def progress(self, group: str) -> GroupProgress:
        return GroupProgress(group, (QueueProgress(Q0, 10, 4, 0), QueueProgress(RETRY, 1, 1, 0)))


def test_a_member_that_hangs_keeps_what_it_held_and_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gimbalmq.dashboard.observer.ANSWER_WITHIN", 0.05)

    async def work() -> None:
        group = Group()
        observer = Observer(group)  # type: ignore[arg-type]
        history = observer.history("g")
        await observer.look("g")
        assert history.last.owners == {Q0: "h@quick", Q1: "h@slow"}
        assert not history.last.silent
        assert history.last.lag == 6
        group.hangs = True
        await observer.look("g")
        assert history.last.owners == {Q0: "h@quick", Q1: "h@slow"}
        assert history.last.silent == ("h@slow",)
        assert not history.changes

    run(work())


def test_what_goes_wrong_is_kept_until_it_works_again() -> None:
    class Broken(Group):
        async def progress(self, group: str) -> GroupProgress:
            if self.hangs:
                raise self.error
            return await super().progress(group)

        error: Exception = ConnectError("the name server is away")

    async def work() -> None:
        group = Broken()
        observer = Observer(group)  # type: ignore[arg-type]
        history = observer.history("g")
        await observer.look("g")
        seen = history.last
        group.hangs = True
        group.member_ids = _nobody  # type: ignore[method-assign]
        for error, told in ((group.error, "the name server is away"), (KeyError("bug"), "KeyError: 'bug'")):
            group.error = error
            version = history.version
            await observer.look("g")
            assert history.problem == told
            assert history.version > version
            assert history.last is seen
        group.hangs = False
        await observer.look("g")
        assert history.problem == ""

    run(work())


def test_what_is_refused_is_forgotten_and_not_asked_for_at_every_look() -> None:
    """Rights can be taken away; and the cluster notes every refusal."""

    class Guarded(Group):
        asked = 0

        async def names(self) -> list[str]:
            return ["g"]

        async def progress(self, group: str) -> GroupProgress:
            self.asked += 1
            if self.hangs:
                raise NoPermissionError("User:eve has no permission to access Group:g")
            return await super().progress(group)

    async def work() -> None:
        group, clock = Guarded(), ManualClock()
        observer = Observer(group, user="eve", clock=clock, every=0.001, pass_every=0.001)  # type: ignore[arg-type]
        history = observer.history("g")
        history.lookers = 1
        await observer.look("g")
        assert history.samples and history.numbers
        group.hangs = True
        group.member_ids = _nobody  # type: ignore[method-assign]
        await observer.look("g")
        assert history.problem == "not allowed for eve: User:eve has no permission to access Group:g"
        assert not history.samples and not history.changes and not history.numbers
        group.asked = 0
        observer.start()
        await asyncio.sleep(0.05)
        history.lookers = 0
        await asyncio.sleep(0.05)
        assert group.asked == 0
        clock.advance(REFUSED_EVERY)
        await until(lambda: group.asked > 0)
        await observer.close()

    run(work())


async def _nobody(group: str) -> list[str]:
    return []


def test_what_everybody_reads_is_everybodys_and_never_moves() -> None:
    class Broadcasting(Group):
        members: tuple[str, ...] = ("h@quick", "h@slow")

        async def member_ids(self, group: str) -> list[str]:
            return list(self.members)

        async def running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
            return ConsumerRunningInfo(
                mq_table={queue_text(queue): ProcessQueueInfo() for queue in (Q0, Q1)},
                properties={"messageModel": "BROADCASTING"},
            )

    async def work() -> None:
        group = Broadcasting()
        observer = Observer(group)  # type: ignore[arg-type]
        history = observer.history("g")
        await observer.look("g")
        assert history.last.owners == {Q0: EVERY_MEMBER, Q1: EVERY_MEMBER}
        cells = charts.ownership(history.last)["series"][0]["data"]
        assert sorted(cell["value"] for cell in cells) == [[0, 0, 1], [0, 1, 1], [1, 0, 1], [1, 1, 1]]
        group.members = ("h@quick",)
        await observer.look("g")
        (change,) = history.changes
        assert (change.left, change.moves) == (("h@slow",), ())

    run(work())


# -- what is drawn ---------------------------------------------------------------------


def test_the_picture_shows_where_queues_are_and_were() -> None:
    history = GroupHistory()
    history.take(sample(0, {Q0: "h@a", Q1: "h@a"}, "h@a", "h@b"))
    history.take(sample(1000, {Q0: "h@a", Q1: "h@b"}, "h@a", "h@b"))
    options = charts.ownership(history.last, history.numbers, history.changes)
    assert options["xAxis"]["data"] == ["a", "b"]
    assert options["yAxis"]["data"] == ["broker-a/0", "broker-a/1"]
    cells = options["series"][0]["data"]
    assert [cell["value"] for cell in cells] == [[0, 0, 1], [1, 1, 1], [0, 1, 0]]
    assert cells[2]["itemStyle"]["borderType"] == "dashed"
    assert cells[2]["itemStyle"]["borderColor"] == cells[0]["itemStyle"]["color"]
    later = sample(1001 + charts.MOVED_MS, {Q0: "h@a", Q1: "h@b"}, "h@a", "h@b")
    assert len(charts.ownership(later, history.numbers, history.changes)["series"][0]["data"]) == 2


def test_names_are_shortened_only_where_they_stay_apart() -> None:
    assert charts.short_names(["h@a", "h@b", "new"]) == {"h@a": "a", "h@b": "b", "new": "new"}
    assert charts.short_names(["h@a", "i@a"]) == {"h@a": "h@a", "i@a": "i@a"}
    assert charts.short_names(["h@a", "a"]) == {"h@a": "h@a", "a": "a"}
    other = MessageQueue("refunds", "broker-a", 0)
    assert list(charts.queue_names([Q0, other]).values()) == ["orders/broker-a/0", "refunds/broker-a/0"]


def test_names_are_never_keys_of_a_plot() -> None:
    """Keys that begin with a colon are code in the browser."""
    evil = ":alert(1)"
    found = sample(0, {MessageQueue(evil, evil, 0): evil}, ends={MessageQueue(evil, evil, 0): 1})
    for options in (
        charts.ownership(found),
        charts.lag_lines([found, found]),
        charts.rate_lines([found, found]),
    ):
        assert evil not in set(_keys(options))


def _keys(options: object) -> list[str]:
    if isinstance(options, dict):
        return [*options, *(key for value in options.values() for key in _keys(value))]
    return [key for value in options for key in _keys(value)] if isinstance(options, list) else []


def test_long_histories_are_thinned_evenly() -> None:
    samples = [sample(number * 2000, {}) for number in range(1000)]
    kept = charts.thinned(samples, 100)
    assert len(kept) <= 100
    assert (kept[0], kept[-1]) == (samples[0], samples[-1])
    assert charts.thinned(samples[:5], 100) == samples[:5]


def test_rate_lines_are_differences() -> None:
    samples = [
        sample(second * 1000, {}, ends={Q0: second * 10}, done={Q0: second * 5}) for second in range(0, 6, 2)
    ]
    options = charts.rate_lines(samples)
    found = {line["name"]: [value for _, value in line["data"]] for line in options["series"]}
    assert found == {"written": [10.0, 10.0], "consumed": [5.0, 5.0], "broker-a/0": [5.0, 5.0]}
    assert charts.rate_lines([])["series"][0]["data"] == []
    assert charts.lag_lines([])["series"][0]["data"] == []
