"""Counters and rates: what brokerStatus, statsAll and Prometheus show.

A counter only grows. Every ten seconds the counters that have grown since note their values, and a rate is the
difference to what was noted some time ago. Nothing is computed while messages flow, and an idle counter notes nothing.

What is noted gets thinner with age: each round for a minute, one a minute for an hour, one an hour for a day. Times of
rounds are kept once for all counters.
"""

from __future__ import annotations

import logging
from array import array

from gimbalmq._clock import Clock
from gimbalmq._steps import Steps

log = logging.getLogger(__name__)

SAMPLE_SECONDS = 10.0
MAX_ITEMS = 200_000
"""Default of maxStatsItems."""

_MINUTE, _HOUR, _DAY = 6, 360, 8640
"""Windows in rounds."""

_STEP = 2048
"""Counters between two turns of the loop."""

_OF_TOPICS = "TOPIC_"
"""Kinds of counters that are kept for each topic begin with it."""

_ROUNDS = _DAY + _HOUR + 1
_NOTES = 128
"""As many notes are kept before old ones are thinned out; about 90 are left then."""


class Counter:
    """One thing counted: how many times, and how much."""

    __slots__ = ("born", "born_round", "noted", "notes", "times", "value")

    def __init__(self, born: float = 0.0, born_round: int = 0) -> None:
        self.times = 0
        self.value = 0
        self.born = born
        self.born_round = born_round
        self.noted = 0
        """``times`` of the last note."""
        self.notes: array[int] | None = None
        """Round, times and value, again and again, oldest first."""

    def add(self, value: int = 1, times: int = 1) -> None:
        self.value += value
        self.times += times

    def note(self, number: int) -> None:
        """Notes the values of a round; to be called if they have changed since the last."""
        self.noted = self.times
        notes = self.notes
        if notes is None:
            notes = self.notes = array("q")
        notes.extend((number, self.times, self.value))
        if len(notes) > 3 * _NOTES:
            self.notes = _thinned(notes, number)

    def idle_since(self) -> int:
        """The round in which it last grew."""
        return self.notes[-3] if self.notes else self.born_round

    def at(self, number: int) -> tuple[int, int]:
        """Times and value when a round was noted."""
        notes = self.notes or ()
        for place in range(len(notes) - 3, -1, -3):
            if notes[place] <= number:
                return notes[place + 1], notes[place + 2]
        return 0, 0


def _thinned(notes: array[int], newest: int) -> array[int]:
    """Only the notes that a window may still begin with."""
    kept: array[int] = array("q")
    for place in range(0, len(notes), 3):
        number = notes[place]
        following = notes[place + 3] if place + 3 < len(notes) else newest + 1
        # A note holds from its round to the one before the next note's. Is there a round among them, a multiple of
        # its age's unit, that a window begins with?
        last = following - 1
        age = newest - last
        unit = 1 if age <= 2 * _MINUTE else _MINUTE if age <= _HOUR + _MINUTE else _HOUR
        if age <= _ROUNDS and last // unit * unit >= number:
            kept.extend(notes[place : place + 3])
    return kept


class Stats:
    """All counters of a broker, by name and key (Java: BrokerStatsManager).

    Args:
        max_items: so many counters are kept. Beyond, those idle for a day go, and if there are none, what is new is
            counted in the totals only.
    """

    def __init__(self, clock: Clock, max_items: int = MAX_ITEMS) -> None:
        self._clock = clock
        self.boot_ms = clock.wall_ms()
        self._max_items = max_items
        self._kinds: dict[str, dict[str, Counter]] = {}
        self._got: dict[tuple[str, str], tuple[Counter, Counter]] = {}
        self._groups_of: dict[str, dict[str, None]] = {}
        self._topics_of: dict[str, dict[str, None]] = {}
        """Topics and groups that have counters together: nothing is forgotten by a walk over all."""
        self._count = 0
        self._round = 0
        self._round_times = array("d", bytes(8 * _ROUNDS))
        self._nowhere: Counter | None = None
        now = clock.monotonic()
        self._round_times[0] = now
        self.put_total = Counter(now)
        self.put_bytes = Counter(now)
        self.get_found = Counter(now)
        self.get_miss = Counter(now)
        self.get_transferred = Counter(now)
        self._broker = (
            self.put_total,
            self.put_bytes,
            self.get_found,
            self.get_miss,
            self.get_transferred,
        )

    def __len__(self) -> int:
        return self._count

    def item(self, name: str, key: str) -> Counter:
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = {}
        counter = kind.get(key)
        if counter is None:
            if self._count >= self._max_items:
                return self._without_room()
            counter = kind[key] = Counter(self._clock.monotonic(), self._round)
            self._count += 1
            topic, at, group = key.partition("@")
            if at:
                self._groups_of.setdefault(topic, {})[group] = None
                self._topics_of.setdefault(group, {})[topic] = None
        return counter

    def _without_room(self) -> Counter:
        if self._nowhere is None:
            log.warning(
                "%d statistics are kept, and no more: new topics and groups have none of their own; "
                "raise maxStatsItems",
                self._max_items,
            )
            self._nowhere = Counter()
        return self._nowhere

    def find(self, name: str, key: str) -> Counter | None:
        return self._kinds.get(name, {}).get(key)

    def items(self, name: str) -> dict[str, Counter]:
        return dict(self._kinds.get(name, {}))

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
            if counters[1] is not self._nowhere:
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
        groups = list(self._groups_of.get(topic, ()))
        for name, kind in self._kinds.items():
            if name.startswith(_OF_TOPICS):
                self._drop(kind, topic)
            for group in groups:
                self._drop(kind, f"{topic}@{group}")
        self._nowhere = None

    def forget_group(self, group: str) -> None:
        topics = list(self._topics_of.get(group, ()))
        for kind in self._kinds.values():
            for topic in topics:
                self._drop(kind, f"{topic}@{group}")
        self._nowhere = None

    def _drop(self, kind: dict[str, Counter], key: str) -> None:
        if kind.pop(key, None) is None:
            return
        self._count -= 1
        topic, at, group = key.partition("@")
        if not at:
            return
        self._got.pop((topic, group), None)
        if any(key in other for other in self._kinds.values()):
            return
        for index, outer, inner in ((self._groups_of, topic, group), (self._topics_of, group, topic)):
            del index[outer][inner]
            if not index[outer]:
                del index[outer]

    def sample(self) -> None:
        """A round, at once."""
        for _ in self.round():
            pass

    def round(self) -> Steps[None]:
        """A round, a step at a time; to be called every ten seconds."""
        number = self._round + 1
        self._round_times[number % _ROUNDS] = self._clock.monotonic()
        self._round = number
        for counter in self._broker:
            if counter.times != counter.noted:
                counter.note(number)
        full = self._count >= self._max_items
        for kind in list(self._kinds.values()):
            idle: list[str] = []
            for begun, (key, counter) in enumerate(list(kind.items())):
                if counter.times != counter.noted:
                    counter.note(number)
                elif full and number - counter.idle_since() > _DAY + _HOUR:
                    idle.append(key)
                if begun % _STEP == _STEP - 1:
                    yield
            for begun, key in enumerate(idle):
                self._drop(kind, key)
                self._nowhere = None
                if begun % _STEP == _STEP - 1:
                    yield

    def _window(self, counter: Counter, rounds: int) -> dict[str, float | int]:
        """Sum, rate and average over the last so many rounds, up to this moment."""
        unit = 1 if rounds <= _MINUTE else _MINUTE if rounds <= _HOUR else _HOUR
        first = (self._round - rounds) // unit * unit if unit < _HOUR else self._round // unit * unit - rounds
        if first <= counter.born_round:
            then, times, value = counter.born, 0, 0
        else:
            then = self._round_times[first % _ROUNDS]
            times, value = counter.at(first)
        seconds = max(self._clock.monotonic() - then, 1e-3)
        gained, calls = counter.value - value, counter.times - times
        return {
            "avgpt": round(gained / calls, 2) if calls else 0.0,
            "sum": gained,
            "tps": round(gained / seconds, 2),
        }

    def view(self, counter: Counter) -> dict[str, dict[str, float | int]]:
        """As VIEW_BROKER_STATS_DATA answers."""
        return {
            "statsDay": self._window(counter, _DAY),
            "statsHour": self._window(counter, _HOUR),
            "statsMinute": self._window(counter, _MINUTE),
        }

    def rates(self, counter: Counter) -> str:
        """Per second over 10 s, a minute and 10 minutes, as the runtime table writes them."""
        return " ".join(str(float(self._window(counter, rounds)["tps"])) for rounds in (1, _MINUTE, 60))
