"""Counters and rates: what brokerStatus, statsAll and Prometheus show.

A counter only grows. A sample of every counter is kept each ten seconds, and a rate is the
difference of two samples; nothing is computed while messages flow.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gimbalmq._clock import Clock

SAMPLE_SECONDS = 10.0
_MINUTE, _HOUR, _DAY = 6, 360, 8640
"""Windows in samples."""


@dataclass(slots=True)
class Counter:
    """One thing counted: how many times, and how much."""

    times: int = 0
    value: int = 0
    samples: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=_HOUR + 1))
    hours: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=25))

    def add(self, value: int = 1, times: int = 1) -> None:
        self.value += value
        self.times += times

    def sample(self, now: float, hourly: bool) -> None:
        self.samples.append((now, self.times, self.value))
        if hourly:
            self.hours.append((now, self.times, self.value))

    def window(self, samples: int, now: float) -> dict[str, float | int]:
        """Sum, rate and average over the last so many samples, up to this moment."""
        history = self.hours if samples > _HOUR else self.samples
        count = samples // _HOUR if samples > _HOUR else samples
        if not history:
            return {"avgpt": 0.0, "sum": 0, "tps": 0.0}
        then, times, value = history[max(0, len(history) - 1 - count)]
        seconds = max(now - then, 1e-3)
        gained, calls = self.value - value, self.times - times
        return {
            "avgpt": round(gained / calls, 2) if calls else 0.0,
            "sum": gained,
            "tps": round(gained / seconds, 2),
        }


class Stats:
    """All counters of a broker, by name and key (Java: BrokerStatsManager)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.boot_ms = clock.wall_ms()
        self._items: dict[tuple[str, str], Counter] = {}
        self._got: dict[tuple[str, str], tuple[Counter, Counter]] = {}
        self._round = 0
        self.put_total = Counter()
        self.put_bytes = Counter()
        self.get_found = Counter()
        self.get_miss = Counter()
        self.get_transferred = Counter()
        self._broker = (
            self.put_total,
            self.put_bytes,
            self.get_found,
            self.get_miss,
            self.get_transferred,
        )
        self.sample()

    def item(self, name: str, key: str) -> Counter:
        counter = self._items.get((name, key))
        if counter is None:
            counter = self._items[name, key] = Counter()
            counter.sample(self._clock.monotonic(), hourly=True)
        return counter

    def find(self, name: str, key: str) -> Counter | None:
        return self._items.get((name, key))

    def items(self, name: str) -> dict[str, Counter]:
        # A copy first: the metrics' thread asks this while the loop adds counters.
        return {key: counter for (kind, key), counter in self._items.items() if kind == name}

    def put(self, topic: str, count: int, size: int) -> None:
        self.put_total.add(count, count)
        self.put_bytes.add(size, count)
        self.item("TOPIC_PUT_NUMS", topic).add(count, count)
        self.item("TOPIC_PUT_SIZE", topic).add(size, count)

    def got(self, topic: str, group: str, count: int, size: int) -> None:
        """One pull's messages; by plain sums, because it is asked so often."""
        counters = self._got.get((topic, group))
        if counters is None:
            key = f"{topic}@{group}"
            counters = self.item("GROUP_GET_NUMS", key), self.item("GROUP_GET_SIZE", key)
            self._got[topic, group] = counters
        found, transferred, (nums, sizes) = self.get_found, self.get_transferred, counters
        found.times += 1
        found.value += 1
        transferred.times += 1
        transferred.value += count
        nums.times += 1
        nums.value += count
        sizes.times += 1
        sizes.value += size

    def forget_topic(self, topic: str) -> None:
        self._got.clear()
        for key in list(self._items):
            if key[1] == topic or key[1].startswith(topic + "@"):
                del self._items[key]

    def sample(self) -> None:
        """Called every ten seconds."""
        now = self._clock.monotonic()
        hourly = self._round % _HOUR == 0
        self._round += 1
        for counter in (*self._broker, *self._items.values()):
            counter.sample(now, hourly)

    def view(self, counter: Counter) -> dict[str, dict[str, float | int]]:
        """As VIEW_BROKER_STATS_DATA answers."""
        now = self._clock.monotonic()
        return {
            "statsDay": counter.window(_DAY, now),
            "statsHour": counter.window(_HOUR, now),
            "statsMinute": counter.window(_MINUTE, now),
        }

    def rates(self, counter: Counter) -> str:
        """Per second over 10 s, a minute and 10 minutes, as the runtime table writes them."""
        now = self._clock.monotonic()
        return " ".join(str(float(counter.window(samples, now)["tps"])) for samples in (1, _MINUTE, 60))
