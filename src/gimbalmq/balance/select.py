"""Which queue a producer sends one message to.

The plain rule is rotation. Each caller (a thread in Java, any hashable here) has its own counter per
topic, with a random start, so that callers neither wait for each other nor all begin at the same
queue. On a retry the queues of the broker that just failed are passed over. What is known about slow
and failing brokers is added in ``latency``. Besides, a message may be bound to a queue by the hash of
a key, or by a function of the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from random import Random
from typing import TypeVar

from gimbalmq.errors import ConfigError, NoWritableQueueError
from gimbalmq.model.javahash import java_hash
from gimbalmq.model.queues import MessageQueue

_POSITIVE = 0x7FFFFFFF
_M = TypeVar("_M")
_A = TypeVar("_A")


class Rotation:
    """A counter per caller (ThreadLocalIndex).

    >>> rotation = Rotation(Random(), start=5)
    >>> rotation.next("a"), rotation.next("a"), rotation.next("b")
    (5, 6, 5)
    """

    def __init__(self, rng: Random, *, start: int | None = None) -> None:
        """Args:
        rng: draws the first value of each caller.
        start: the first value of every caller instead.
        """
        self._rng = rng
        self._start = start
        self._next: dict[Hashable, int] = {}

    def next(self, caller: Hashable = None) -> int:
        """The caller's count, then one more; never negative, also when it wraps at 2**31."""
        count = self._next.get(caller)
        if count is None:
            count = self._rng.getrandbits(31) if self._start is None else self._start & _POSITIVE
        self._next[caller] = (count + 1) & _POSITIVE
        return count

    def restart(self, rng: Random, caller: Hashable = None) -> None:
        """Continue at a random place."""
        self._next[caller] = rng.getrandbits(31)


class PublishQueues:
    """The queues a topic can be sent to, with their rotation (TopicPublishInfo).

    Args:
        topic: for messages.
        queues: in the order of the route.
        write_queue_counts: queues that may be written, by broker name; counted from ``queues`` if absent.
        rotation: the counters of this topic, not shared with another.
    """

    def __init__(
        self,
        topic: str,
        queues: Sequence[MessageQueue],
        rotation: Rotation,
        *,
        write_queue_counts: Mapping[str, int] | None = None,
    ) -> None:
        if not queues:
            raise NoWritableQueueError(f"topic {topic} has no queue that may be written")
        self.topic = topic
        self.queues = tuple(queues)
        self.rotation = rotation
        if write_queue_counts is None:
            counted: dict[str, int] = {}
            for queue in self.queues:
                counted[queue.broker_name] = counted.get(queue.broker_name, 0) + 1
            write_queue_counts = counted
        self.write_queue_counts = write_queue_counts

    def next_queue(self, caller: Hashable = None) -> MessageQueue:
        """Plain rotation. Queues A0..A3, B0..B3: after A0 comes A1, after B3 again A0."""
        return self.queues[self.rotation.next(caller) % len(self.queues)]

    def next_queue_where(
        self, accept: Callable[[MessageQueue], bool], caller: Hashable = None
    ) -> MessageQueue | None:
        """The first accepted queue in rotation, each looked at once; every look moves the counter."""
        for _ in self.queues:
            queue = self.next_queue(caller)
            if accept(queue):
                return queue
        return None

    def next_queue_avoiding(self, last_broker: str | None, caller: Hashable = None) -> MessageQueue:
        """The rule while the latency switch is off.

        Args:
            last_broker: the broker of the attempt that failed, None at the first attempt. With A0, A1,
                B0, B1 and A failed, B0 follows. If there is no other broker, plain rotation.
        """
        if last_broker is not None:
            other = self.next_queue_where(lambda queue: queue.broker_name != last_broker, caller)
            if other is not None:
                return other
        return self.next_queue(caller)


def select_by_hash(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """The queue of a key (SelectMessageQueueByHash): abs(Java's hashCode) mod the number of queues.

    "a" hashes to 97: of 4 queues it gets number 1. Messages with equal keys stay in order.
    """
    if not queues:
        raise ConfigError("queues", list(queues), "must not be empty")
    return queues[abs(java_hash(key)) % len(queues)]


def select_by_function(
    queues: Sequence[MessageQueue],
    choose: Callable[[Sequence[MessageQueue], _M, _A], MessageQueue],
    message: _M,
    argument: _A,
) -> MessageQueue:
    """The caller's choice (MessageQueueSelector), checked: it must be one of the topic's queues."""
    chosen = choose(queues, message, argument)
    if chosen not in queues:
        raise ConfigError("selector", chosen, "must return one of the queues it was given")
    return chosen
