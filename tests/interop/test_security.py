"""Our clients, command line and Spark against Apache's brokers with access control, both generations of it.

5.5.0 has users and policies, 4.9.7 its access file; `apache_access` says who may do what. A broker that is told nothing
of TLS serves it too, with a certificate it made up.
"""

from __future__ import annotations

import contextlib
import io
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'gimbalmq[spark]'")

from pyspark.sql import SparkSession

from gimbalmq import ConsumeFromWhere, Message, TransactionState, sync
from gimbalmq.cli.main import main
from gimbalmq.errors import ResponseError, RocketMQError, SendFailedError, TopicRouteNotFoundError
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.transport.tls import client_tls
from tests.interop.apache_access import (
    CLOSED,
    COPIED,
    DISABLED,
    ELSEWHERE,
    GUARDED,
    ORDERS,
    READER,
    ROOT,
    WORKER,
)
from tests.interop.apache_cluster import NEWEST, OLDEST, SEND_SECONDS, ApacheServer
from tests.peers.driver import eventually
from tests.peers.frames import Keys
from tests.spark.conftest import spark

__all__ = ["spark"]

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
pytest_plugins = ["tests.interop.apache_fixtures"]

FIRST = ConsumeFromWhere.FIRST_OFFSET
WRONG = Keys(WORKER.access, "87654321")
STRANGER = Keys("stranger-user", "12345678")

# Who is refused a send, where, and in which words.
REFUSED = [
    (NEWEST, None, GUARDED, "username cannot be null"),
    (NEWEST, WRONG, GUARDED, "check signature failed"),
    (NEWEST, STRANGER, GUARDED, "User:stranger-user is not found"),
    (NEWEST, DISABLED, GUARDED, "User:disabled-user is disabled"),
    (NEWEST, WORKER, CLOSED, "no permission to access Topic:closed from 127.0.0.1, no matched policies"),
    (NEWEST, READER, GUARDED, "no permission to access Topic:guarded"),
    (NEWEST, ELSEWHERE, GUARDED, "no permission to access Topic:guarded from 127.0.0.1"),
    (OLDEST, None, GUARDED, "No accessKey is configured"),
    (OLDEST, WRONG, GUARDED, "Check signature failed for accessKey=worker-user"),
    (OLDEST, STRANGER, GUARDED, "No acl config for stranger-user"),
    (OLDEST, WORKER, CLOSED, "No default permission for topic:closed"),
    (OLDEST, READER, GUARDED, "No default permission for topic:guarded"),
]


@dataclass(frozen=True)
class Guarded:
    """A broker that lets in whom it knows, with messages of `sent` in its topic `GUARDED`."""

    server: ApacheServer
    sent: Sequence[bytes]

    @property
    def namesrv(self) -> str:
        return self.server.namesrv


def signed(keys: Keys | None) -> dict[str, Any]:
    return {} if keys is None else {"access_key": keys.access, "secret_key": keys.secret}


def spark_options(keys: Keys) -> dict[str, str]:
    return {"accessKey": keys.access, "secretKey": keys.secret}


@pytest.fixture(scope="module")
def guards(guarded_servers: Callable[[str], ApacheServer]) -> Callable[[str], Guarded]:
    """A broker of a version, once a producer with the right keys has sent through TLS what the tests read."""
    filled: dict[str, Guarded] = {}

    def get(version: str) -> Guarded:
        if version not in filled:
            server = guarded_servers(version)
            bodies = [f"secret {number} 密".encode() for number in range(40)]
            options: dict[str, Any] = {"send_timeout": SEND_SECONDS, **signed(WORKER)}
            with sync.Producer("keyed", server.namesrv, tls=client_tls(verify=False), **options) as producer:
                for number, body in enumerate(bodies):
                    message = Message(GUARDED, body, tags="T", keys=f"键{number}", properties={"a b": "c=d"})
                    producer.send(message)
            filled[version] = Guarded(server, bodies)
        return filled[version]

    return get


@pytest.fixture(params=[NEWEST, OLDEST])
def guarded(request: pytest.FixtureRequest, guards: Callable[[str], Guarded]) -> Guarded:
    return guards(request.param)


def test_what_is_signed_is_taken_and_given(guarded: Guarded) -> None:
    found: list[bytes] = []
    with sync.PullConsumer(
        "readers", guarded.namesrv, consume_from_where=FIRST, **signed(READER)
    ) as consumer:
        consumer.assign(consumer.queues(GUARDED))
        while len(found) < len(guarded.sent):
            found += [bytes(view.body) for view in consumer.poll(5)]
    assert sorted(found) == sorted(guarded.sent)


def test_a_group_reads_retries_and_decides_transactions_with_signed_requests(guarded: Guarded) -> None:
    """Heartbeats, locks of nobody else, pulls, commits, send-backs, half messages, outcomes and check-backs."""
    keys = signed(WORKER)
    seen: list[str] = []
    arrived = threading.Condition()

    def handle(message: MessageView) -> bool:
        with arrived:
            seen.append(body := message.body.decode())
            arrived.notify_all()
            return body != "again" or seen.count(body) > 1

    def undecided(_: Message) -> TransactionState:
        return TransactionState.UNKNOWN

    def decided(message: Message | MessageView) -> TransactionState:
        return TransactionState.ROLLBACK if b"back" in message.body else TransactionState.COMMIT

    options: dict[str, Any] = {"send_timeout": SEND_SECONDS, **keys}
    with sync.TransactionProducer("deciders", guarded.namesrv, check=decided, **options) as producer:
        producer.send(Message(ORDERS, "again"))
        consumer = sync.PushConsumer("workers", guarded.namesrv, consume_from_where=FIRST, **keys)
        consumer.subscribe(ORDERS, handler=handle)
        with consumer:
            producer.send_in_transaction(Message(ORDERS, "committed"), decided)
            producer.send_in_transaction(Message(ORDERS, "rolled back"), decided)
            producer.send_in_transaction(Message(ORDERS, "asked about"), undecided)
            with arrived:
                complete = ["again", "again", "asked about", "committed"]
                arrived.wait_for(lambda: len(seen) >= len(complete), 60)
    assert sorted(seen) == complete


@pytest.mark.parametrize(("version", "keys", "topic", "why"), REFUSED)
def test_nobody_else_gets_in(
    guards: Callable[[str], Guarded], version: str, keys: Keys | None, topic: str, why: str
) -> None:
    with (
        sync.Producer("strangers", guards(version).namesrv, **signed(keys)) as producer,
        pytest.raises(SendFailedError, match=why) as refusal,
    ):
        producer.send(Message(topic, b"no"))
    assert keys is None or keys.secret not in str(refusal.value)


@pytest.mark.parametrize(("version", "topic"), [(NEWEST, CLOSED), (OLDEST, CLOSED)])
def test_what_is_closed_cannot_be_read_either(
    guards: Callable[[str], Guarded], version: str, topic: str
) -> None:
    guarded = guards(version)
    with sync.Producer("owners", guarded.namesrv, send_timeout=SEND_SECONDS, **signed(ROOT)) as producer:
        producer.send(Message(topic, b"not for everybody"))
    queue = MessageQueue(topic, guarded.server.broker_name, 0)
    with sync.QueuePullConsumer("workers", guarded.namesrv, **signed(WORKER)) as consumer:

        def refusal() -> RocketMQError:
            with pytest.raises(RocketMQError) as caught:
                consumer.pull(queue, 0)
            return caught.value

        # Apache's broker answers the first send to a topic before name servers know the topic.
        found = eventually(refusal, lambda error: not isinstance(error, TopicRouteNotFoundError), "a route")
    assert isinstance(found, ResponseError)
    assert re.search(f"permission (to access Topic|for topic):{topic}|permission .*{topic}", str(found))


def run_line(*words: str) -> tuple[int, str]:
    """Exit code of our command line, and everything it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main([*words])
    return code, out.getvalue()


def test_the_command_line_signs_what_it_asks(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    def line(keys: Keys | None, *words: str) -> tuple[int, str]:
        monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "" if keys is None else keys.access)
        monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "" if keys is None else keys.secret)
        return run_line(*words, "-n", guarded.namesrv)

    made = f"made-{guarded.server.version.replace('.', '-')}"
    code, printed = line(ROOT, "topic", "create", made, "--queues", "2")
    assert code == 0, printed
    code, printed = eventually(
        lambda: line(ROOT, "message", "send", made, "by an administrator"),
        lambda found: found[0] == 0,
        "a route",
    )
    code, printed = line(WORKER, "topic", "stats", GUARDED)
    assert code == 0, printed
    for keys, words in (
        (WORKER, ("topic", "create", "never-made", "--queues", "2")),
        (WORKER, ("message", "send", made, "by a worker")),
        (READER, ("message", "send", GUARDED, "by a reader")),
        (WRONG, ("topic", "stats", GUARDED)),
        (STRANGER, ("topic", "stats", GUARDED)),
        (None, ("topic", "stats", GUARDED)),
    ):
        code, printed = line(keys, *words)
        assert code == 1, (keys, words, printed)
        assert keys is None or keys.secret not in printed


def test_spark_signs_what_it_asks_for_and_what_it_writes(spark: SparkSession, guarded: Guarded) -> None:
    sent = guarded.sent
    for tls in ("off", "trust"):
        options = {"namesrv": guarded.namesrv, "tls": tls, **spark_options(WORKER)}
        rows = spark.read.format("rocketmq").options(**options).load(GUARDED)
        assert sorted(bytes(row.body) for row in rows.collect()) == sorted(sent)
        written = rows.select("body", "key").write.format("rocketmq")
        written.options(topic=COPIED, **options).mode("append").save()
    copies = spark.read.format("rocketmq").options(**options).load(COPIED)
    assert sorted(bytes(row.body) for row in copies.collect()) == sorted([*sent, *sent])


# 4.9 does not look who sends a batch, as long as it is signed.
SPARK_REFUSED = {
    NEWEST: ("check signature failed", READER, "no permission to access Topic:guarded"),
    OLDEST: ("Check signature failed for accessKey=worker-user", STRANGER, "No acl config for stranger-user"),
}


def test_spark_says_who_was_refused_and_tells_no_secret(spark: SparkSession, guarded: Guarded) -> None:
    unsigned, writer, unwritten = SPARK_REFUSED[guarded.server.version]
    reader = spark.read.format("rocketmq").options(namesrv=guarded.namesrv, fetchRetries=0)
    with pytest.raises(Exception, match=unsigned) as refusal:
        reader.options(**spark_options(WRONG)).load(GUARDED).collect()
    assert WRONG.secret not in str(refusal.value)
    rows = spark.createDataFrame([(b"no",)], "body binary").write.format("rocketmq").mode("append")
    options = {"namesrv": guarded.namesrv, "topic": GUARDED, **spark_options(writer)}
    with pytest.raises(Exception, match=unwritten) as refusal:
        rows.options(**options).save()
    assert writer.secret not in str(refusal.value)
