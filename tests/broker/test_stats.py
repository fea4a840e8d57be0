"""Counters and their rates, on a clock that only the test moves."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest

from gimbalmq.broker.stats import SAMPLE_SECONDS, Stats
from tests.support import ManualClock, Unwalked


def _pass(stats: Stats, clock: ManualClock, samples: int, per_sample: int = 0) -> None:
    for _ in range(samples):
        if per_sample:
            stats.put("T", per_sample, per_sample * 100)
        clock.advance(SAMPLE_SECONDS)
        stats.sample()


def test_rates_over_ten_seconds_a_minute_and_ten() -> None:
    clock = ManualClock()
    stats = Stats(clock)
    _pass(stats, clock, 60, per_sample=50)
    ten, minute, ten_minutes = (float(text) for text in stats.rates(stats.put_total).split())
    assert (ten, minute, ten_minutes) == (5.0, 5.0, 5.0)
    _pass(stats, clock, 6)
    ten, minute, ten_minutes = (float(text) for text in stats.rates(stats.put_total).split())
    assert (ten, minute, ten_minutes) == (0.0, 0.0, 4.5)


def test_view_over_a_minute_an_hour_and_a_day() -> None:
    clock = ManualClock()
    stats = Stats(clock)
    stats.put("T", 10, 1000)
    counter = stats.find("TOPIC_PUT_NUMS", "T")
    size = stats.find("TOPIC_PUT_SIZE", "T")
    assert counter is not None and size is not None
    assert stats.view(counter)["statsMinute"]["sum"] == 10, "what has just happened is seen at once"
    assert stats.view(size)["statsMinute"]["avgpt"] == 100.0
    _pass(stats, clock, 7)
    view = stats.view(counter)
    assert (view["statsMinute"]["sum"], view["statsHour"]["sum"], view["statsDay"]["sum"]) == (0, 10, 10)
    _pass(stats, clock, 361)
    view = stats.view(counter)
    assert (view["statsHour"]["sum"], view["statsDay"]["sum"]) == (0, 10)
    assert view["statsHour"] == {"avgpt": 0.0, "sum": 0, "tps": 0.0}
    _pass(stats, clock, 25 * 360)
    assert stats.view(counter)["statsDay"]["sum"] == 0


def test_a_counter_keeps_a_day_and_no_more() -> None:
    clock = ManualClock()
    stats = Stats(clock)
    _pass(stats, clock, 30 * 360, per_sample=1)
    counter = stats.find("TOPIC_PUT_NUMS", "T")
    assert counter is not None
    day = stats.view(counter)["statsDay"]
    assert day["sum"] == pytest.approx(24 * 360, abs=361)
    assert day["tps"] == pytest.approx(0.1, abs=0.005)
    assert counter.notes is not None and len(counter.notes) <= 3 * 128


@pytest.mark.parametrize("seed", range(6))
def test_thinned_notes_give_the_sums_that_all_samples_give(seed: int) -> None:
    """Against a list of every sample: windows begin at the round asked for, or at the unit before it."""
    random = Random(seed)
    clock = ManualClock()
    stats = Stats(clock)
    counter = stats.item("TOPIC_PUT_SIZE", "T")
    samples = [(0, 0)]
    for _ in range(random.choice((400, 3000, 12_000))):
        if random.random() < random.choice((0.01, 0.5, 1.0)):
            counter.add(random.randrange(1000), random.randrange(1, 5))
        clock.advance(SAMPLE_SECONDS)
        stats.sample()
        samples.append((counter.times, counter.value))
        if random.random() < 0.02:
            newest = len(samples) - 1
            view = stats.view(counter)
            for name, first in (
                ("statsMinute", newest - 6),
                ("statsHour", (newest - 360) // 6 * 6),
                ("statsDay", newest // 360 * 360 - 8640),
            ):
                times, value = samples[max(0, first)]
                assert view[name]["sum"] == counter.value - value, (name, newest)
                calls = counter.times - times
                assert view[name]["avgpt"] == (round((counter.value - value) / calls, 2) if calls else 0.0)
                seconds = (newest - max(0, first)) * SAMPLE_SECONDS
                assert view[name]["tps"] == pytest.approx(
                    (counter.value - value) / max(seconds, 1e-3), abs=0.01
                )


def _bytes_a_topic(rounds: int, busy: bool) -> float:
    clock = ManualClock()
    stats = Stats(clock)
    topics = 20
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(rounds):
            for topic in range(topics):
                if busy or not number:
                    stats.put(f"topic-{topic}", 1000 + topic, 100_000)
            clock.advance(SAMPLE_SECONDS)
            stats.sample()
        return (tracemalloc.get_traced_memory()[0] - before) / topics
    finally:
        tracemalloc.stop()


def test_statistics_of_a_topic_take_little_memory() -> None:
    assert _bytes_a_topic(400, busy=False) < 1000  # 59 KB when every sample was kept
    assert _bytes_a_topic(800, busy=True) < 8000  # 106 KB


def test_statistics_are_bounded_and_idle_ones_make_room() -> None:
    clock = ManualClock()
    stats = Stats(clock, max_items=4)
    stats.put("old", 1, 10)
    stats.put("busy", 1, 10)
    with_room = len(stats)
    for number in range(100):
        stats.put(f"new-{number}", 1, 10)
        stats.got(f"new-{number}", "g", 1, 10)
    assert len(stats) == with_room == 4
    assert stats.find("TOPIC_PUT_NUMS", "new-1") is None and stats.find("GROUP_GET_NUMS", "new-1@g") is None
    assert stats.put_total.value == 102 and stats.get_transferred.value == 100, "totals count all"
    for _ in range(26 * 360):
        stats.put("busy", 1, 10)
        clock.advance(SAMPLE_SECONDS)
        stats.sample()
    assert stats.find("TOPIC_PUT_NUMS", "old") is None
    stats.put("new-1", 3, 10)
    found = stats.find("TOPIC_PUT_NUMS", "new-1")
    assert found is not None and found.value == 3
    stats.forget_topic("busy")
    assert len(stats) == 2


def test_round_over_many_counters_comes_in_short_steps() -> None:
    stats = Stats(ManualClock())
    for number in range(10_000):
        stats.put(f"topic-{number}", 1, 10)
        stats.got(f"topic-{number}", f"group-{number}", 1, 10)
    assert sum(1 for _ in stats.round()) >= 40_000 // 2048 - 4
    assert all(counter.noted == counter.times for counter in stats.items("GROUP_GET_SIZE").values())


def test_what_a_group_got() -> None:
    stats = Stats(ManualClock())
    stats.got("T", "g", 4, 400)
    stats.got("T", "g", 2, 100)
    assert stats.get_found.value == 2 and stats.get_transferred.value == 6
    found = stats.items("GROUP_GET_SIZE")
    assert {key: (counter.value, counter.times) for key, counter in found.items()} == {"T@g": (500, 2)}


def test_topic_is_forgotten_with_its_groups_but_not_its_namesakes() -> None:
    stats = Stats(ManualClock())
    for topic in ("T", "T2"):
        stats.put(topic, 1, 1)
        stats.got(topic, "g", 1, 1)
    stats.forget_topic("T")
    assert set(stats.items("TOPIC_PUT_NUMS")) == {"T2"}
    assert set(stats.items("GROUP_GET_NUMS")) == {"T2@g"}
    assert stats.put_total.value == 2
    stats.got("T2", "h", 1, 1)
    stats.forget_group("g")
    assert set(stats.items("GROUP_GET_NUMS")) == {"T2@h"} and set(stats.items("TOPIC_PUT_NUMS")) == {"T2"}
    assert len(stats) == 4


def test_a_topic_or_group_is_forgotten_without_a_walk_over_all() -> None:
    stats = Stats(ManualClock())
    for number in range(3):
        stats.put(f"T{number}", 1, 1)
        for group in ("g", f"g{number}"):
            stats.got(f"T{number}", group, 1, 1)
    stats._kinds = {name: Unwalked(kind) for name, kind in stats._kinds.items()}
    stats._got = Unwalked(stats._got)
    stats.forget_topic("T0")
    stats.forget_group("g1")
    stats.forget_group("nobody")
    left = {key for key in ("T0", "T1", "T2") if stats.find("TOPIC_PUT_NUMS", key)}
    left |= {
        key
        for key in ("T0@g", "T0@g0", "T1@g", "T1@g1", "T2@g", "T2@g2")
        if stats.find("GROUP_GET_NUMS", key)
    }
    assert left == {"T1", "T2", "T1@g", "T2@g", "T2@g2"} and len(stats) == 10
    stats.got("T0", "g", 5, 1)
    found = stats.find("GROUP_GET_NUMS", "T0@g")
    assert found is not None and found.value == 5, "what is forgotten begins anew"
    for group in ("g", "g2"):
        stats.forget_group(group)
    for topic in ("T1", "T2"):
        stats.forget_topic(topic)
    assert len(stats) == 0 and not stats._groups_of and not stats._topics_of


def test_counters_of_the_broker_itself_do_not_go_with_a_topic_of_their_name() -> None:
    stats = Stats(ManualClock())
    mine = stats.item("TIMER_ENQUEUE_NUMS", "timers")
    stats.put("timers", 1, 1)
    stats.forget_topic("timers")
    assert stats.find("TIMER_ENQUEUE_NUMS", "timers") is mine and len(stats) == 1
