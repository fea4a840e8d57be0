"""Numbers that belong to a topic, a group and a queue."""

from __future__ import annotations

from collections.abc import Iterator

PAIR_BYTES = 500
"""About what a topic and a group take together, with their first queue and both indexes."""
QUEUE_BYTES = 100
"""About what each further queue takes."""


class Pairs:
    """One number for each queue of a topic and group; no question walks over the whole table.

    Attributes:
        table: by topic and group, then by queue id. For reading only.
        size: about how many bytes it takes.
    """

    def __init__(self) -> None:
        self.table: dict[tuple[str, str], dict[int, int]] = {}
        self.size = 0
        self._by_group: dict[str, dict[str, dict[int, int]]] = {}
        self._by_topic: dict[str, dict[str, dict[int, int]]] = {}

    def needs(self, topic: str, group: str, queue_id: int) -> int:
        """About how many bytes it takes to put a number there."""
        queues = self.table.get((topic, group))
        if queues is None:
            return PAIR_BYTES
        return 0 if queue_id in queues else QUEUE_BYTES

    def put(self, topic: str, group: str, queue_id: int, number: int) -> None:
        queues = self.table.get((topic, group))
        if queues is None:
            self.put_all(topic, group, {queue_id: number})
            return
        if queue_id not in queues:
            self.size += QUEUE_BYTES
        queues[queue_id] = number

    def put_all(self, topic: str, group: str, numbers: dict[int, int]) -> None:
        """Takes the place of all that a topic and group had."""
        before = self.table.get((topic, group))
        self.size += bytes_of(numbers) - (0 if before is None else bytes_of(before))
        self.table[topic, group] = numbers
        self._by_group.setdefault(group, {})[topic] = numbers
        self._by_topic.setdefault(topic, {})[group] = numbers

    def take(self, topic: str, group: str, queue_id: int) -> int | None:
        """The number, which is gone then; None if there is none."""
        queues = self.table.get((topic, group))
        number = None if queues is None else queues.get(queue_id)
        if queues is None or number is None:
            return None
        if len(queues) == 1:
            self._drop(topic, group)
        else:
            del queues[queue_id]
            self.size -= QUEUE_BYTES
        return number

    def rows(self) -> Iterator[tuple[str, str, dict[int, int]]]:
        """Topic, group and numbers by queue, group by group; the table may change between two rows."""
        for group in list(self._by_group):
            for topic in self.topics_of(group):
                numbers = self.table.get((topic, group))
                if numbers is not None:
                    yield topic, group, numbers

    def topics_of(self, group: str) -> set[str]:
        return set(self._by_group.get(group, ()))

    def groups_of(self, topic: str) -> set[str]:
        return set(self._by_topic.get(topic, ()))

    def topic_count(self, group: str) -> int:
        return len(self._by_group.get(group, ()))

    def all_groups(self) -> set[str]:
        return set(self._by_group)

    def forget_group(self, group: str) -> bool:
        """Whether there was anything to forget."""
        topics = self.topics_of(group)
        for topic in topics:
            self._drop(topic, group)
        return bool(topics)

    def forget_topic(self, topic: str) -> bool:
        groups = self.groups_of(topic)
        for group in groups:
            self._drop(topic, group)
        return bool(groups)

    def drop(self, topic: str, group: str) -> None:
        """Forgets all that a topic and group have, if anything."""
        if (topic, group) in self.table:
            self._drop(topic, group)

    def _drop(self, topic: str, group: str) -> None:
        self.size -= bytes_of(self.table.pop((topic, group)))
        for index, outer, inner in ((self._by_group, group, topic), (self._by_topic, topic, group)):
            del index[outer][inner]
            if not index[outer]:
                del index[outer]


def bytes_of(numbers: dict[int, int]) -> int:
    return PAIR_BYTES + QUEUE_BYTES * max(0, len(numbers) - 1)
