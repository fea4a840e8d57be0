"""Which broker serves which topic, with how many queues.

Two tables of the same queue data: by topic and broker name, and by broker name and topic. Of a broker that goes only
the second is dropped at once, because it may have any number of topics. Queue data that is not in it any more does not
count; ``sweep`` takes it out of the first table bit by bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gimbalmq._steps import Steps
from gimbalmq.model.flags import PERM_WRITE
from gimbalmq.model.route import MASTER_ID
from gimbalmq.model.topics import SELF_TEST_TOPIC
from gimbalmq.nameserver.queue_mappings import QueueMappings
from gimbalmq.nameserver.registration import Registration
from gimbalmq.protocol.bodies import QueueData

ROWS_AT_ONCE = 500
"""Topics handled in one step."""

_SWEEP_ROWS = 2_000


@dataclass(frozen=True, slots=True)
class TableLimits:
    """How much the tables take from whoever comes; see NameServerConfig."""

    brokers: int = 1_000
    topics: int = 200_000
    routes: int = 1_000_000


class ServedTopics:
    """The topics of all brokers."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._served: dict[str, dict[str, QueueData]] = {}
        self.mappings = QueueMappings()
        self._routes = 0
        self._unswept: deque[tuple[str, dict[str, QueueData]]] = deque()
        self.limits = TableLimits()

    def served_by(self, name: str) -> dict[str, QueueData]:
        """By topic; empty if the broker serves none."""
        return self._served.get(name, {})

    # -- topics come -----------------------------------------------------------------

    def no_room(self, topic: str, routes: int = 1) -> str | None:
        """Why a topic cannot be served by so many more brokers, or None."""
        if topic not in self._topics and len(self._topics) >= self.limits.topics:
            known = len(self._topics)
            return f"this name server knows {known} topics and maxTopicNums is {self.limits.topics}; raise it"
        if self._routes + routes > self.limits.routes:
            return (
                f"this name server holds {self._routes} topics of brokers and maxRouteNums is {self.limits.routes}; "
                "raise it"
            )
        return None

    def take(
        self, registration: Registration, refused: list[str], *, changed: bool, delete_missing: bool
    ) -> Steps[None]:
        """Takes what has room; why something was ``refused`` is added there."""
        name = registration.broker_name
        served = self._served.setdefault(name, {})
        if delete_missing and _is_whole(registration):
            missing = served.keys() - registration.topics.keys()
            for number, topic in enumerate(missing):
                self.remove([topic], [name])
                if number % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
                    yield
        stand_in = registration.broker_id != MASTER_ID and bool(registration.enable_acting_master)
        full, count = None, 0
        for number, (topic, config) in enumerate(registration.topics.items()):
            if topic not in served and (problem := self.no_room(topic)) is not None:
                full, count = problem, count + 1
            elif changed or topic not in served:
                self.serve(
                    topic,
                    QueueData(
                        broker_name=name,
                        perm=config.perm & ~PERM_WRITE if stand_in else config.perm,
                        read_queue_nums=config.read_queue_nums,
                        topic_sys_flag=config.topic_sys_flag,
                        write_queue_nums=config.write_queue_nums,
                    ),
                )
            if number % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
                yield
        if full is not None:
            refused.append(f"{count} topics of broker {name} are not registered: {full}")
        if changed:
            yield from self.mappings.take(registration, refused)

    def serve(self, topic: str, queues: QueueData) -> None:
        """The queue data's broker serves the topic from now on."""
        served = self._served.setdefault(queues.broker_name, {})
        self._routes += topic not in served
        served[topic] = queues
        self._topics.setdefault(topic, {})[queues.broker_name] = queues

    # -- topics go -------------------------------------------------------------------

    def drop_broker(self, name: str) -> None:
        """Nothing that the broker serves counts any more; ``sweep`` is to follow."""
        served = self._served.pop(name, {})
        self._routes -= len(served)
        self._unswept.append((name, served))

    @property
    def unswept(self) -> set[str]:
        """Names of brokers that are gone, and whose topics are not all out of the table yet."""
        return {name for name, _ in self._unswept}

    def sweep(self) -> bool:
        """Takes some of the topics of brokers that are gone out of the table; True if there are more."""
        for _ in range(_SWEEP_ROWS):
            while self._unswept and not self._unswept[0][1]:
                self._unswept.popleft()
            if not self._unswept:
                return False
            name, left = self._unswept[0]
            topic, gone = left.popitem()
            queues = self._topics.get(topic, {})
            # The broker may be back, with queue data of its own.
            if queues.get(name) is gone:
                del queues[name]
                self.mappings.forget(topic, name)
                if not queues:
                    del self._topics[topic]
        return bool(self._unswept)

    def remove(self, topics: Iterable[str], broker_names: Iterable[str]) -> None:
        """These brokers serve these topics no more."""
        names = list(broker_names)
        for topic in topics:
            queues = self._topics.get(topic, {})
            for name in names:
                queues.pop(name, None)
                self._routes -= self._served.get(name, {}).pop(topic, None) is not None
                self.mappings.forget(topic, name)
            if not queues:
                self._topics.pop(topic, None)

    # -- answers ---------------------------------------------------------------------

    def brokers_of(self, topic: str) -> list[str]:
        """Names of all that serve or have served it."""
        return list(self._topics.get(topic, ()))

    def counting(self, topic: str) -> dict[str, QueueData]:
        """A topic's queue data without that of brokers that are gone but not yet swept."""
        queues = self._topics.get(topic, {})
        if not self._unswept:
            return queues
        return {name: data for name, data in queues.items() if self._served.get(name, {}).get(topic) is data}

    def names(self) -> Steps[list[str]]:
        """In no particular order, as in Java: to sort many names would take too long."""
        if self._unswept:
            return (yield from self.chosen(lambda _: True))
        return list(self._topics)

    def chosen(self, wanted: Callable[[dict[str, QueueData]], bool]) -> Steps[list[str]]:
        """Topics whose queue data, by broker name, is as wanted."""
        found = []
        for number, topic in enumerate(list(self._topics)):
            queues = self.counting(topic)
            if queues and wanted(queues):
                found.append(topic)
            if number % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
                yield
        return found


def _is_whole(registration: Registration) -> bool:
    """Whether a table lists all topics of its broker, so that one it does not list is gone.

    An update has only the topics that changed: one, or several without those that every broker has. Brokers of ours
    mark their updates, as Apache's name server understands it. Static topics Apache leaves alone.
    """
    return (
        not registration.part
        and not registration.queue_mappings
        and len(registration.topics) != 1
        and SELF_TEST_TOPIC in registration.topics
    )
