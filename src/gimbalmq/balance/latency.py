"""Brokers to avoid for a while, and how a producer uses that (``sendLatencyFaultEnable``).

After every attempt the broker's record is rewritten: how long the attempt took, and until when the
broker is to be avoided. Slow answers cost a little avoidance, errors much. The switch is off by
default; then nothing is recorded and ``PublishQueues.next_queue_avoiding`` is the rule.

RocketMQ has had three rules, all kept here by name, since users compare behaviour across releases:

``seed``  (up to 4.7.1)      rotate to an available broker, but on a retry only to the one that has
                             just failed. So the first retry sticks to the failed broker: with no
                             other record, it is also the best one known. This is a bug, and it is
                             reproduced exactly.
``4.8``   (4.8.0 to 5.1.3)   rotate to any available broker. A failed one is avoided for 10 minutes.
``5.1.4`` (from 5.1.4)       milder table; rotate to an available broker other than the last, else to a
                             reachable one other than the last, else to any.

When the first two find no available broker they rotate over the better half of all records.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import dataclass
from random import Random

from gimbalmq.balance.select import PublishQueues, Rotation
from gimbalmq.errors import ConfigError
from gimbalmq.model.queues import MessageQueue

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FaultRule:
    """One historical form (MQFaultStrategy).

    Attributes:
        latencies_ms: thresholds; the highest one reached counts.
        avoid_ms: how long to avoid the broker, per threshold. Below the first: not at all.
        failure_ms: the latency a failed attempt is taken for.
    """

    name: str
    latencies_ms: tuple[int, ...]
    avoid_ms: tuple[int, ...]
    failure_ms: int

    def avoidance_ms(self, latency_ms: float, *, failed: bool = False) -> int:
        """550 ms earns 30 s by the ``seed`` rule, a failure 600 s."""
        reached = bisect_right(self.latencies_ms, self.failure_ms if failed else latency_ms)
        return self.avoid_ms[reached - 1] if reached else 0


_OLD = ((50, 100, 550, 1000, 2000, 3000, 15000), (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000), 30_000)
_NEW = ((50, 100, 550, 1800, 3000, 5000, 15000), (0, 0, 2000, 5000, 6000, 10_000, 30_000), 10_000)
RULES = {
    "seed": FaultRule("seed", *_OLD),
    "4.8": FaultRule("4.8", *_OLD),
    "5.1.4": FaultRule("5.1.4", *_NEW),
}
DEFAULT_RULE = "5.1.4"


@dataclass(slots=True)
class FaultItem:
    """What is known about one broker (LatencyFaultToleranceImpl.FaultItem)."""

    broker_name: str
    latency_ms: float = 0
    available_from_ms: float = 0
    reachable: bool = True

    def is_available(self, now_ms: float) -> bool:
        return now_ms >= self.available_from_ms

    def rank(self, now_ms: float) -> tuple[bool, float, float]:
        """Sort key, best first: available, then low latency, then early return."""
        return not self.is_available(now_ms), self.latency_ms, self.available_from_ms


class FaultTable:
    """Records by broker name (LatencyFaultTolerance)."""

    def __init__(self, rng: Random, *, start: int | None = None) -> None:
        """``rng`` and ``start``: first value of the counter over the better half, as in ``Rotation``."""
        self.items: dict[str, FaultItem] = {}
        self._picks = Rotation(rng, start=start)

    def update(
        self,
        broker_name: str,
        latency_ms: float,
        avoid_ms: float,
        *,
        now_ms: float,
        reachable: bool = True,
        only_forward: bool = False,
    ) -> None:
        """Rewrite a record.

        Args:
            only_forward: never bring the end of an avoidance nearer (from 5.1.4 on).
        """
        item = self.items.setdefault(broker_name, FaultItem(broker_name))
        item.latency_ms = latency_ms
        item.reachable = reachable
        until = now_ms + avoid_ms
        if not only_forward:
            item.available_from_ms = until
        elif avoid_ms > 0:
            item.available_from_ms = max(item.available_from_ms, until)

    def is_available(self, broker_name: str, now_ms: float) -> bool:
        """A broker without record is available."""
        item = self.items.get(broker_name)
        return item is None or item.is_available(now_ms)

    def is_reachable(self, broker_name: str) -> bool:
        item = self.items.get(broker_name)
        return item is None or item.reachable

    def remove(self, broker_name: str) -> None:
        self.items.pop(broker_name, None)

    def pick_one_at_least(
        self, now_ms: float, *, rng: Random | None = None, caller: Hashable = None
    ) -> str | None:
        """Some broker even if all are to be avoided: rotate over the better half.

        Of 4 records the best 2 in turn; of 1 that one; of none None.

        Args:
            rng: shuffles first, so that equal records are picked at random.
        """
        ranked = list(self.items.values())
        if not ranked:
            return None
        if rng is not None:
            rng.shuffle(ranked)
        ranked.sort(key=lambda item: item.rank(now_ms))
        half = len(ranked) // 2
        return ranked[self._picks.next(caller) % half if half else 0].broker_name


class FaultStrategy:
    """Queue selection with or without the table (MQFaultStrategy).

    Args:
        enabled: the switch ``sendLatencyFaultEnable``.
        rule: ``"seed"``, ``"4.8"`` or ``"5.1.4"``.
        table: the records; one table serves all topics of a producer.
    """

    def __init__(self, table: FaultTable, *, enabled: bool = False, rule: str = DEFAULT_RULE) -> None:
        if rule not in RULES:
            raise ConfigError("rule", rule, f"one of {', '.join(RULES)}")
        self.table = table
        self.enabled = enabled
        self.rule = RULES[rule]

    def record(
        self, broker_name: str, latency_ms: float, *, failed: bool, now_ms: float, reachable: bool = True
    ) -> None:
        """Note an attempt (updateFaultItem). The stored latency is always the measured one.

        Args:
            failed: the broker or the connection to it is at fault (``isolation``).
            reachable: False if the broker could not be reached; only the ``5.1.4`` rule looks at it.
        """
        if self.enabled:
            self.table.update(
                broker_name,
                latency_ms,
                self.rule.avoidance_ms(latency_ms, failed=failed),
                now_ms=now_ms,
                reachable=reachable,
                only_forward=self.rule.name == "5.1.4",
            )

    def select(
        self,
        topic: PublishQueues,
        *,
        now_ms: float,
        rng: Random,
        last_broker: str | None = None,
        caller: Hashable = None,
    ) -> MessageQueue:
        """The queue for one attempt; ``last_broker`` is that of the attempt before, None at the first."""
        if not self.enabled:
            return topic.next_queue_avoiding(last_broker, caller)
        if self.rule.name == "5.1.4":
            return self._select_other(topic, now_ms, rng, last_broker, caller)
        try:
            chosen = self._select_available(topic, now_ms, rng, last_broker, caller)
        except Exception:  # a faulty table must never stop a send: Java's rule too
            log.exception("topic %s: selection by latency failed, rotating instead", topic.topic)
            chosen = None
        return chosen if chosen is not None else topic.next_queue(caller)

    def _select_available(
        self, topic: PublishQueues, now_ms: float, rng: Random, last_broker: str | None, caller: Hashable
    ) -> MessageQueue | None:
        """The rules ``seed`` and ``4.8``. One count is drawn, then the list is walked from there."""
        sticks = self.rule.name == "seed" and last_broker is not None
        first = topic.rotation.next(caller)
        for step in range(len(topic.queues)):
            queue = topic.queues[(first + step) % len(topic.queues)]
            if sticks and queue.broker_name != last_broker:
                continue
            if self.table.is_available(queue.broker_name, now_ms):
                return queue
        picked = self.table.pick_one_at_least(
            now_ms, rng=rng if self.rule.name == "seed" else None, caller=caller
        )
        if picked is None:
            return None
        writable = topic.write_queue_counts.get(picked, 0)
        if writable <= 0:
            self.table.remove(picked)
            return None
        model = topic.next_queue(caller)
        return MessageQueue(model.topic, picked, topic.rotation.next(caller) % writable)

    def _select_other(
        self, topic: PublishQueues, now_ms: float, rng: Random, last_broker: str | None, caller: Hashable
    ) -> MessageQueue:
        """The rule ``5.1.4``."""
        if last_broker is not None:
            topic.rotation.restart(rng, caller)

        def available(queue: MessageQueue) -> bool:
            return queue.broker_name != last_broker and self.table.is_available(queue.broker_name, now_ms)

        def reachable(queue: MessageQueue) -> bool:
            return queue.broker_name != last_broker and self.table.is_reachable(queue.broker_name)

        return (
            topic.next_queue_where(available, caller)
            or topic.next_queue_where(reachable, caller)
            or topic.next_queue(caller)
        )
