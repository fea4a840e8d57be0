"""Java clients of both generations with access keys and TLS against our secured servers."""

from __future__ import annotations

import pytest

from tests.interop.apache_access import (
    CLOSED,
    DISABLED,
    ELSEWHERE,
    GUARDED,
    ORDERS,
    READER,
    WORKER,
    tell,
    topic_frame,
)
from tests.interop.secured import BOUND, Secured, secured
from tests.peers.driver import JavaClient, JavaError, JavaProducer, Outgoing, eventually
from tests.peers.frames import Keys

__all__ = ["secured"]

pytestmark = pytest.mark.interop

NO_PERMISSION = 16

REFUSED = [
    (None, GUARDED, "username cannot be null"),
    (Keys(WORKER.access, "87654321"), GUARDED, "check signature failed"),
    (Keys("stranger-user", "12345678"), GUARDED, "User:stranger-user is not found"),
    (DISABLED, GUARDED, "User:disabled-user is disabled"),
    (WORKER, CLOSED, "no permission to access Topic:closed from 127.0.0.1, no matched policies"),
    (READER, GUARDED, "no permission to access Topic:guarded"),
    (ELSEWHERE, GUARDED, "no permission to access Topic:guarded from 127.0.0.1"),
    (BOUND, GUARDED, "127.0.0.1"),
]


@pytest.mark.parametrize("tls", [True, False])
def test_a_java_producer_and_readers_do_what_their_users_may(
    java: JavaClient, secured: Secured, tls: bool
) -> None:
    worker, reader = secured.login(WORKER, tls=tls), secured.login(READER, tls=tls)
    producer = java.producer("keyed", namesrv=secured.namesrv, login=worker)
    name = f"{java.version} {'TLS' if tls else 'plain'}"
    bodies = {f"{name} {number} 密".encode() for number in range(20)}
    producer.send(
        *(Outgoing(GUARDED, body, tags="T", keys="键", properties={"a b": "c=d"}) for body in bodies)
    )
    producer.send_async(Outgoing(GUARDED, b"async"))
    producer.send_batch(*(Outgoing(GUARDED, b"batch %d" % number) for number in range(3)))
    consumer = java.lite_pull(f"lite-{java.name('g')}", namesrv=secured.namesrv, login=reader)
    consumer.assign(consumer.fetch_queues(GUARDED))
    found: set[bytes] = set()
    eventually(lambda: found.update(m.body for m in consumer.poll(0.5)), lambda _: bodies <= found, name)
    consumer.abandon()


@pytest.mark.parametrize("orderly", [False, True])
def test_a_java_group_reads_retries_and_decides_transactions(
    java: JavaClient, secured: Secured, orderly: bool
) -> None:
    """Heartbeats, locks, pulls, commits, send-backs, half messages, outcomes and check-backs, all of them signed."""
    login = secured.login(WORKER)
    group = f"workers-{java.version.replace('.', '-')}-{'orderly' if orderly else 'concurrent'}"
    # A consumer of 4.9 looks for the queues of its retry topic every 20 s.
    tell(secured.broker, [topic_frame(f"%RETRY%{group}", 1)])
    producer = java.producer(f"p-{group}", namesrv=secured.namesrv, transactional=True, login=login)
    consumer = java.push(
        group, ORDERS, tags=group, namesrv=secured.namesrv, failures=1, orderly=orderly, login=login
    )
    producer.send_in_transaction(
        Outgoing(ORDERS, b"committed", tags=group, properties={"local": "commit"}),
        Outgoing(ORDERS, b"rolled back", tags=group, properties={"local": "rollback"}),
        Outgoing(ORDERS, b"asked about", tags=group, properties={"local": "unknown", "check": "commit"}),
    )
    # Each fails once and is given again.
    bodies = [message.body for message in consumer.wait_for(4)]
    assert sorted(bodies) == [b"asked about", b"asked about", b"committed", b"committed"]
    consumer.abandon()


@pytest.mark.parametrize(("keys", "topic", "why"), REFUSED)
def test_nobody_else_gets_in(
    java: JavaClient, secured: Secured, keys: Keys | None, topic: str, why: str
) -> None:
    producer = _producer(java, secured, keys)
    with pytest.raises(JavaError, match=why) as refusal:
        producer.send(Outgoing(topic, b"no"))
    assert refusal.value.code == NO_PERMISSION
    producer.abandon()


def _producer(java: JavaClient, secured: Secured, keys: Keys | None) -> JavaProducer:
    return java.producer(
        "strangers", namesrv=secured.namesrv, login=secured.login(keys, tls=False), retries=0
    )
