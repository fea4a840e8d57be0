"""What a route means to a producer and to a consumer (Java: MQClientInstance's topicRouteData2…).

The functions take anything shaped like the wire's route (``protocol.bodies.TopicRoute``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from gimbalmq.model.flags import PERM_READ, PERM_WRITE
from gimbalmq.model.queues import MessageQueue, java_string_key, sort_queues

MASTER_ID = 0


class QueueDataLike(Protocol):
    @property
    def broker_name(self) -> str: ...
    @property
    def perm(self) -> int: ...
    @property
    def read_queue_nums(self) -> int: ...
    @property
    def write_queue_nums(self) -> int: ...


class BrokerDataLike(Protocol):
    @property
    def broker_name(self) -> str: ...
    @property
    def broker_addrs(self) -> Mapping[int, str]: ...


class RouteLike(Protocol):
    @property
    def order_topic_conf(self) -> str | None: ...
    @property
    def queue_datas(self) -> Sequence[QueueDataLike]: ...
    @property
    def broker_datas(self) -> Sequence[BrokerDataLike]: ...


def publish_queues(topic: str, route: RouteLike) -> tuple[MessageQueue, ...]:
    """Where a topic may be written, in the order producers rotate through.

    An ordered topic's list is the name server's ``broker:count;…`` word for word; else it is every
    writable broker that has a master, by name.
    """
    if route.order_topic_conf:
        return tuple(_ordered_queues(topic, route.order_topic_conf))
    masters = {broker.broker_name for broker in route.broker_datas if MASTER_ID in broker.broker_addrs}
    return tuple(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in sorted(route.queue_datas, key=lambda data: java_string_key(data.broker_name))
        if data.perm & PERM_WRITE and data.broker_name in masters
        for queue_id in range(data.write_queue_nums)
    )


def _ordered_queues(topic: str, text: str) -> list[MessageQueue]:
    queues: list[MessageQueue] = []
    for item in text.split(";"):
        broker_name, colon, count = item.strip().rpartition(":")
        if colon and count.isdigit():
            queues += (MessageQueue(topic, broker_name, queue_id) for queue_id in range(int(count)))
    return queues


def subscribe_queues(topic: str, route: RouteLike) -> tuple[MessageQueue, ...]:
    """What a topic's consumers share: every readable queue, master or not, sorted."""
    return tuple(
        sort_queues(
            {
                MessageQueue(topic, data.broker_name, queue_id)
                for data in route.queue_datas
                if data.perm & PERM_READ
                for queue_id in range(data.read_queue_nums)
            }
        )
    )


def broker_addresses(route: RouteLike) -> dict[str, dict[int, str]]:
    """Broker name to addresses by broker id."""
    return {broker.broker_name: dict(broker.broker_addrs) for broker in route.broker_datas}


def write_queue_counts(route: RouteLike) -> dict[str, int]:
    """Broker name to the number of queues it has for writing."""
    return {data.broker_name: data.write_queue_nums for data in route.queue_datas}


def same_route(one: RouteLike | None, other: RouteLike | None) -> bool:
    """Whether two routes say the same, in whatever order."""
    if one is None or other is None:
        return one is other
    return (
        (one.order_topic_conf or "") == (other.order_topic_conf or "")
        and _queue_facts(one) == _queue_facts(other)
        and _broker_facts(one) == _broker_facts(other)
    )


def _queue_facts(route: RouteLike) -> list[tuple[str, int, int, int]]:
    return sorted(
        (data.broker_name, data.perm, data.read_queue_nums, data.write_queue_nums)
        for data in route.queue_datas
    )


def _broker_facts(route: RouteLike) -> list[tuple[str, list[tuple[int, str]]]]:
    return sorted((broker.broker_name, sorted(broker.broker_addrs.items())) for broker in route.broker_datas)
