"""Unmodified Java clients under remote control: the Python half of `java/Driver.java`.

One `JavaClient` is one JVM with one release of Apache's client library. It makes producers and consumers, which
are used like local objects:

    with JavaClient("5.5.0", folder, namesrv=address) as java:
        producer = java.producer("group")
        result = producer.send(Outgoing("topic", b"body", tags="a"))
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeVar
from urllib.parse import urlencode

from tests.peers.apache import compile_driver, java, prepare_home
from tests.peers.process import PeerError, tail

T = TypeVar("T")

# How long to look for what must come. Nobody waits so long unless something is wrong; a test that means a short
# time says so.
PATIENCE = 60.0

_TOPIC_NOT_EXIST = 17


class JavaError(RuntimeError):
    """A Java client threw: the simple name of its class, its text and, if a broker refused, the response code."""

    def __init__(self, kind: str, message: str, code: int | None) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.code = code


@dataclass(frozen=True)
class Login:
    """As whom Java clients and mqadmin speak: their keys, and a file of tls.client.* settings for TLS.

    mqadmin finds its keys as an operator gives them, in conf/tools.yml.
    """

    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    tls: Path | None = None

    def arguments(self) -> list[tuple[str, object]]:
        return [("accessKey", self.access_key), ("secretKey", self.secret_key), ("tls", self.tls)]


ANYBODY = Login()


def tls_settings(
    file: Path, *, trust: Path | str = "", certificate: Path | str = "", key: Path | str = ""
) -> Path:
    """Write the TLS settings of a Java client; without an authority to trust it believes every server.

    Each file names every setting, because Apache's client remembers the last one of those that a file leaves out.
    """
    settings = {
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true" if trust else "false",
        "tls.client.trustCertPath": trust,
        "tls.client.certPath": certificate,
        "tls.client.keyPath": key,
        "tls.client.keyPassword": "",
    }
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return file


@dataclass(frozen=True)
class Outgoing:
    """A message to send."""

    topic: str
    body: bytes
    tags: str | None = None
    keys: str | None = None
    delay_level: int | None = None
    flag: int | None = None
    order: str | None = None
    queue: Queue | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def query(self) -> str:
        fields: list[tuple[str, object]] = [
            ("topic", self.topic),
            ("body", base64.b64encode(self.body).decode()),
            ("tags", self.tags),
            ("keys", self.keys),
            ("delay", self.delay_level),
            ("flag", self.flag),
            ("order", self.order),
        ]
        if self.queue is not None:
            fields += [("broker", self.queue.broker), ("queue", self.queue.queue_id)]
        fields += [("property", _query(name=name, value=value)) for name, value in self.properties.items()]
        return urlencode([(name, value) for name, value in fields if value is not None])


@dataclass(frozen=True, order=True)
class Queue:
    """A message queue, in the order Java sorts them."""

    topic: str
    broker: str
    queue_id: int


@dataclass(frozen=True)
class Sent:
    """Java's SendResult."""

    status: str
    message_id: str
    offset_id: str | None
    broker: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None
    region_id: str | None
    local_state: str | None


@dataclass(frozen=True)
class Received:
    """Java's MessageExt as a listener or a poll saw it."""

    topic: str
    broker: str | None
    queue_id: int
    queue_offset: int
    commitlog_offset: int
    message_id: str
    offset_id: str
    keys: str | None
    tags: str | None
    body: bytes
    flag: int
    system_flag: int
    reconsume_times: int
    store_size: int
    born_timestamp: int
    store_timestamp: int
    store_host: str
    transaction_offset: int
    properties: Mapping[str, str]
    at_nanos: int = 0

    @classmethod
    def of(cls, shown: Mapping[str, Any]) -> Received:
        return cls(**{**shown, "body": base64.b64decode(shown["body"])})


@dataclass(frozen=True)
class TransactionEvent:
    """A call of the transaction listener: `local` or `check`; a check shows the message it was given."""

    event: str
    transaction_id: str
    body: bytes
    message: Received | None


def _query(**values: object) -> str:
    return urlencode({name: value for name, value in values.items() if value is not None})


def _queues(shown: Iterable[Sequence[Any]]) -> list[Queue]:
    return [Queue(topic, broker, queue_id) for topic, broker, queue_id in shown]


def eventually(
    probe: Callable[[], T],
    good: Callable[[T], bool],
    what: str,
    *,
    timeout: float = PATIENCE,
    every: float = 0.05,
) -> T:
    """Call `probe` until `good` says yes and return that value; fail with the last value after the deadline."""
    deadline = time.monotonic() + timeout
    while True:
        value = probe()
        if good(value):
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout:.0f} s; last seen {value!r}")
        time.sleep(every)


class JavaClient:
    """One JVM with Apache's client library of one version."""

    def __init__(
        self, version: str, folder: Path, *, namesrv: str, heap: str = "384m", options: tuple[str, ...] = ()
    ) -> None:
        self.version = version
        self._options = options
        self.namesrv = namesrv
        self.log = folder / f"client-{version}.err"
        self._home = prepare_home(folder)
        self._heap = heap
        self._child: subprocess.Popen[str] | None = None
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._log_file: IO[bytes] | None = None
        self._numbers = itertools.count(1)
        self._clients: dict[str, _Remote] = {}
        # Answers have no numbers: a call that was given up in another thread must have had its own first.
        self._turn = threading.Lock()

    def start(self) -> Self:
        command = java(
            compile_driver(self.version), self._home, "Driver", heap=self._heap, options=self._options
        )
        self._log_file = self.log.open("ab")
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log_file,
            text=True,
            env={**os.environ, "ROCKETMQ_HOME": str(self._home)},
            start_new_session=True,
        )
        threading.Thread(target=self._read, args=(self._child.stdout,), daemon=True).start()
        self._answer(120.0)
        return self

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._answers.put(line)
        self._answers.put("")

    def _answer(self, timeout: float) -> Any:
        try:
            line = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise PeerError(
                f"Java client {self.version}: no answer in {timeout:.0f} s:\n{self.trouble()}"
            ) from None
        if not line:
            raise PeerError(f"Java client {self.version} ended:\n{self.trouble()}")
        answer = json.loads(line)
        if "error" in answer:
            raise JavaError(answer["error"], answer["message"], answer["code"])
        return answer["ok"]

    @property
    def library_log(self) -> Path:
        """Where Apache's client library logs: 5.x takes the broker's logging set-up when that is in the class path."""
        name = "rocketmq_client.log" if self.version.startswith("4.") else "broker_default.log"
        return self._home / "logs" / "rocketmqlogs" / name

    def trouble(self) -> str:
        """What the JVM printed last and what the client library logged last."""
        return f"{tail(self.log)}\n--- {self.library_log.name}\n{tail(self.library_log)}"

    def call(self, verb: str, arguments: Sequence[tuple[str, object]], *, timeout: float = 90.0) -> Any:
        """One command to the driver and its answer."""
        assert self._child is not None and self._child.stdin is not None, "the Java client is not running"
        query = urlencode([(name, value) for name, value in arguments if value is not None])
        with self._turn:
            self._child.stdin.write(f"{verb}\t{query}\n")
            self._child.stdin.flush()
            return self._answer(timeout)

    def stop(self) -> None:
        """End the JVM without shutting its clients down: for the broker, their connections break."""
        if self._child is None:
            return
        self._child.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                stream.close()
        self._child = None
        if self._log_file is not None:
            self._log_file.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def name(self, kind: str) -> str:
        return f"{kind}-{next(self._numbers)}"

    def admin(
        self, *arguments: str, namesrv: str | None = None, tolerant: bool = False, login: Login = ANYBODY
    ) -> str:
        """What an mqadmin command prints; raises `JavaError` if it printed a stack trace, unless tolerant."""
        words = [*arguments, "-n", namesrv or self.namesrv]
        keys = self._home / "conf" / "tools.yml"
        if login.access_key is not None:
            told = {"accessKey": login.access_key, "secretKey": login.secret_key}
            keys.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in told.items()))
        try:
            printed = self.call("admin", [*(("argument", word) for word in words), ("tls", login.tls)])
        finally:
            keys.unlink(missing_ok=True)
        # The first command makes 5.x's logback describe its whole configuration.
        out = "".join(line for line in printed["out"].splitlines(keepends=True) if " |-" not in line)
        if not tolerant and ("Exception" in printed["err"] or "Exception" in out):
            raise JavaError("mqadmin", out + printed["err"], None)
        return out

    def try_admin(self, *arguments: str, namesrv: str | None = None, login: Login = ANYBODY) -> str | None:
        """As `admin`, but nothing when the command failed."""
        try:
            return self.admin(*arguments, namesrv=namesrv, login=login)
        except JavaError:
            return None

    def producer(
        self,
        group: str,
        *,
        namesrv: str | None = None,
        transactional: bool = False,
        compress_over: int | None = None,
        retries: int | None = None,
        undecided: bool = False,
        login: Login = ANYBODY,
    ) -> JavaProducer:
        """Start a producer; an undecided one answers every check of a transaction with "unknown"."""
        name = self.name("producer")
        client_id = self.call(
            "producer",
            [
                ("name", name),
                ("instance", name),
                ("group", group),
                ("namesrv", namesrv or self.namesrv),
                ("transactional", "true" if transactional else None),
                ("compressOver", compress_over),
                ("retries", retries),
                ("undecided", "true" if undecided else None),
                *login.arguments(),
            ],
        )
        return JavaProducer(self, name, client_id)

    def push(
        self,
        group: str,
        *topics: str,
        namesrv: str | None = None,
        tags: str = "*",
        sql: str | None = None,
        orderly: bool = False,
        broadcasting: bool = False,
        from_where: str = "CONSUME_FROM_FIRST_OFFSET",
        failures: int = 0,
        max_reconsume_times: int = -1,
        batch: int = 1,
        threads: int = 4,
        handler_ms: int = 0,
        circle: bool = False,
        instance: str | None = None,
        login: Login = ANYBODY,
    ) -> JavaPushConsumer:
        """Start a push consumer whose handler fails each message `failures` times (-1: always)."""
        name = self.name("push")
        expression = {"sql": sql} if sql else {"tags": tags}
        client_id = self.call(
            "push",
            [
                ("name", name),
                ("instance", instance or name),
                ("group", group),
                ("namesrv", namesrv or self.namesrv),
                *(("subscription", _query(topic=topic, **expression)) for topic in topics),
                ("orderly", "true" if orderly else None),
                ("model", "BROADCASTING" if broadcasting else None),
                ("from", from_where),
                ("failures", failures),
                ("maxReconsumeTimes", max_reconsume_times),
                ("batch", batch),
                ("threads", threads),
                ("handlerMillis", handler_ms),
                ("circle", "true" if circle else None),
                *login.arguments(),
            ],
        )
        return JavaPushConsumer(self, name, client_id)

    def lite_pull(
        self,
        group: str,
        *topics: str,
        namesrv: str | None = None,
        tags: str = "*",
        manual_commit: bool = False,
        login: Login = ANYBODY,
    ) -> JavaLitePullConsumer:
        """Start a lite pull consumer; without topics it waits for `assign`."""
        name = self.name("lite")
        client_id = self.call(
            "litepull",
            [
                ("name", name),
                ("instance", name),
                ("group", group),
                ("namesrv", namesrv or self.namesrv),
                *(("subscription", _query(topic=topic, tags=tags)) for topic in topics),
                ("manualCommit", "true" if manual_commit else None),
                *login.arguments(),
            ],
        )
        return JavaLitePullConsumer(self, name, client_id)

    def shutdown(self, *clients: _Remote, background: bool = False) -> None:
        """Shut several clients down at the same time: one alone may take three seconds (5.x).

        Where nothing depends on the end of it, it may go on in the background.
        """
        names = [("name", client.name) for client in clients]
        self.call("shutdown", [*names, ("background", "true" if background else None)])
        for client in clients:
            self._clients.pop(client.name, None)

    def abandon_all(self) -> None:
        """Shut down every client still running, in the background."""
        if self._clients:
            self.shutdown(*self._clients.values(), background=True)

    def adopt(self, client: _Remote) -> None:
        self._clients[client.name] = client


class _Remote:
    """A client living in the JVM."""

    def __init__(self, owner: JavaClient, name: str, client_id: str) -> None:
        self.owner = owner
        self.name = name
        self.client_id = client_id
        owner.adopt(self)

    def shutdown(self) -> None:
        self.owner.shutdown(self)

    def abandon(self) -> None:
        """Shut it down in the background."""
        self.owner.shutdown(self, background=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


class JavaProducer(_Remote):
    """DefaultMQProducer or TransactionMQProducer."""

    def _send(self, mode: str, messages: Iterable[Outgoing]) -> list[Sent | None]:
        arguments: list[tuple[str, object]] = [("name", self.name), ("mode", mode)]
        arguments += [("message", message.query()) for message in messages]
        return [shown and Sent(**shown) for shown in self.owner.call("send", arguments)]

    def send(self, *messages: Outgoing) -> list[Sent]:
        """One after the other, each waiting for its answer. A message with an order key goes by its hash, one with
        a queue to that queue, any other by rotation."""
        results: list[Sent] = []
        for mode, group in itertools.groupby(messages, _mode):
            results += [sent for sent in self._send(mode, group) if sent is not None]
        return results

    def send_async(self, *messages: Outgoing) -> list[Sent]:
        """All at once; waits for every callback."""
        return [sent for sent in self._send("async", messages) if sent is not None]

    def send_oneway(self, *messages: Outgoing) -> None:
        self._send("oneway", messages)

    def send_batch(self, *messages: Outgoing) -> Sent:
        """As one batch: ids and offsets are joined by commas in the one result."""
        (sent,) = self._send("batch", messages)
        assert sent is not None
        return sent

    def send_in_transaction(self, *messages: Outgoing) -> list[Sent]:
        return [sent for sent in self._send("transaction", messages) if sent is not None]

    def transaction_events(self) -> list[TransactionEvent]:
        return [
            TransactionEvent(
                noted["event"],
                noted["transaction_id"],
                base64.b64decode(noted["body"]),
                Received.of(noted["message"]) if noted["message"] else None,
            )
            for noted in self.owner.call("transactions", [("name", self.name)])
        ]

    def queues(self, topic: str) -> list[Queue]:
        """The queues the producer would write to: none while the name server knows no route."""
        try:
            return _queues(self.owner.call("publishqueues", [("name", self.name), ("topic", topic)]))
        except JavaError as error:
            if error.code != _TOPIC_NOT_EXIST:
                raise
            return []


def _mode(message: Outgoing) -> str:
    if message.queue is not None:
        return "queue"
    return "sync" if message.order is None else "ordered"


class JavaPushConsumer(_Remote):
    """DefaultMQPushConsumer."""

    def __init__(self, owner: JavaClient, name: str, client_id: str) -> None:
        super().__init__(owner, name, client_id)
        self._received: list[Received] = []

    def received(self) -> list[Received]:
        """Every message the listener was given so far, in that order."""
        fresh = self.owner.call("received", [("name", self.name), ("from", len(self._received))])
        self._received += map(Received.of, fresh)
        return list(self._received)

    def wait_for(self, count: int, *, timeout: float = PATIENCE) -> list[Received]:
        """Wait until the listener was called for at least so many messages."""
        what = f"{count} messages at {self.name}"
        return eventually(self.received, lambda got: len(got) >= count, what, timeout=timeout)

    def wait_until_done(self, topic: str, count: int) -> None:
        """Wait until so many messages of a topic are behind this member, which holds all its queues from offset 0.

        The listener is called before Java counts a message as consumed. A shutdown in between would leave it to be
        consumed again, and that is right; where a test means a clean end, this comes first.
        """
        what = f"{count} messages of {topic} done at {self.name}"
        eventually(lambda: self._position(topic), lambda done: done >= count, what)

    def _position(self, topic: str) -> int:
        return int(self.owner.call("position", [("name", self.name), ("topic", topic)]))

    def queues(self, topic: str | None = None) -> list[Queue]:
        """The queues this member holds now: of one topic, or all."""
        held = _queues(self.owner.call("queues", [("name", self.name)]))
        return [queue for queue in held if topic is None or queue.topic == topic]


class JavaLitePullConsumer(_Remote):
    """DefaultLitePullConsumer."""

    def _act(self, action: str, *arguments: tuple[str, object]) -> Any:
        return self.owner.call("litepulling", [("name", self.name), ("action", action), *arguments])

    def poll(self, timeout: float = 1.0) -> list[Received]:
        return [Received.of(shown) for shown in self._act("poll", ("timeout", int(timeout * 1000)))]

    def poll_for(self, count: int, *, timeout: float = PATIENCE) -> list[Received]:
        """Poll until so many messages came."""
        got: list[Received] = []
        deadline = time.monotonic() + timeout
        while len(got) < count:
            assert time.monotonic() < deadline, f"{self.name} polled {len(got)} of {count} in {timeout:.0f} s"
            got += self.poll(0.5)
        return got

    def fetch_queues(self, topic: str) -> list[Queue]:
        return _queues(self._act("fetch", ("topic", topic)))

    def assign(self, queues: Iterable[Queue]) -> None:
        self._act(
            "assign", *(("queues", _query(topic=q.topic, broker=q.broker, queue=q.queue_id)) for q in queues)
        )

    def assignment(self) -> list[Queue]:
        return _queues(self._act("assignment"))

    def seek(self, queue: Queue, queue_offset: int) -> None:
        self._act("seek", *_place(queue), ("offset", queue_offset))

    def commit(self) -> None:
        self._act("commit")

    def committed(self, queue: Queue) -> int:
        return int(self._act("committed", *_place(queue)))

    def offset_for_timestamp(self, queue: Queue, timestamp_ms: int) -> int:
        return int(self._act("offsetForTimestamp", *_place(queue), ("timestamp", timestamp_ms)))


def _place(queue: Queue) -> tuple[tuple[str, object], ...]:
    return (("topic", queue.topic), ("broker", queue.broker), ("queue", queue.queue_id))
