"""What a route means to producers and consumers."""

from __future__ import annotations

from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.route import (
    broker_addresses,
    publish_queues,
    same_route,
    subscribe_queues,
    write_queue_counts,
)
from gimbalmq.protocol.bodies import BrokerData, QueueData, TopicRoute


def route() -> TopicRoute:
    return TopicRoute(
        broker_datas=[
            BrokerData(broker_name="b", broker_addrs={0: "h:2"}),
            BrokerData(broker_name="a", broker_addrs={0: "h:1", 1: "h:11"}),
            BrokerData(broker_name="slave-only", broker_addrs={1: "h:3"}),
            BrokerData(broker_name="read-only", broker_addrs={0: "h:4"}),
            BrokerData(broker_name="write-only", broker_addrs={0: "h:5"}),
        ],
        queue_datas=[
            QueueData(broker_name="b", perm=6, read_queue_nums=1, write_queue_nums=2),
            QueueData(broker_name="a", perm=6, read_queue_nums=2, write_queue_nums=1),
            QueueData(broker_name="slave-only", perm=6, read_queue_nums=1, write_queue_nums=1),
            QueueData(broker_name="read-only", perm=4, read_queue_nums=1, write_queue_nums=1),
            QueueData(broker_name="write-only", perm=2, read_queue_nums=1, write_queue_nums=1),
            QueueData(broker_name="gone", perm=2, read_queue_nums=1, write_queue_nums=1),
        ],
    )


def pairs(queues: tuple[MessageQueue, ...]) -> list[tuple[str, int]]:
    assert all(queue.topic == "T" for queue in queues)
    return [(queue.broker_name, queue.queue_id) for queue in queues]


def test_producers_write_to_writable_brokers_that_have_a_master() -> None:
    """S3-02: writeQueueNums of writable routes."""
    assert pairs(publish_queues("T", route())) == [("a", 0), ("b", 0), ("b", 1), ("write-only", 0)]


def test_consumers_read_every_readable_queue() -> None:
    """S3-02: readQueueNums of readable routes; no master is needed."""
    assert pairs(subscribe_queues("T", route())) == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
        ("read-only", 0),
        ("slave-only", 0),
    ]


def test_ordered_topics_are_listed_as_configured() -> None:
    ordered = route()
    ordered.order_topic_conf = "b:2;a:1; broken ;c:x"
    assert pairs(publish_queues("T", ordered)) == [("b", 0), ("b", 1), ("a", 0)]


def test_order_of_a_routes_parts_is_no_change() -> None:
    one, other = route(), route()
    other.queue_datas.reverse()
    other.broker_datas.reverse()
    assert same_route(one, other) and same_route(None, None)
    assert not same_route(one, None) and not same_route(None, one)
    other.queue_datas[0].perm = 4
    assert not same_route(one, other)
    moved = route()
    moved.broker_datas[0].broker_addrs[0] = "h:99"
    assert not same_route(one, moved)
    ordered = route()
    ordered.order_topic_conf = "a:1"
    assert not same_route(one, ordered)


def test_tables_by_broker_name() -> None:
    assert broker_addresses(route())["a"] == {0: "h:1", 1: "h:11"}
    assert write_queue_counts(route())["b"] == 2
