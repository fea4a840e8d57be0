"""Counters and their rates, on a clock that only the test moves."""

from __future__ import annotations

import pytest

from gimbalmq.broker.stats import SAMPLE_SECONDS, Stats
from tests.support import ManualClock


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
    assert len(counter.samples) <= 361 and len(counter.hours) <= 25
    day = stats.view(counter)["statsDay"]
    assert day["sum"] == pytest.approx(24 * 360, abs=361)
    assert day["tps"] == pytest.approx(0.1, abs=0.005)


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
