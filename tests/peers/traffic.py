"""Messages of every kind for a broker of any kind, written byte by byte in `frames`.

A `Traffic` sends to one address; what was answered with success is in `accepted`. Each body is unique.
"""

from __future__ import annotations

import itertools
import json
import struct
import threading
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from tests.peers.frames import Answer, Frame, ask, one

OK, FLUSH_DISK_TIMEOUT, SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT = 0, 10, 11, 12

_UPDATE_AND_CREATE_TOPIC, _RUNTIME_INFO, _UPDATE_BROKER_CONFIG = 17, 28, 25
_SEND, _SEND_BATCH, _END_TRANSACTION = 310, 320, 37
_PREPARED, _COMMIT, _ROLLBACK = 4, 8, 12
_MOST_SEND_SECONDS = 30.0

_numbers = itertools.count(1)


def runtime(address: str) -> dict[str, str]:
    """What a broker says of itself (request 28); one of 4.9 cannot say it in its first second."""
    deadline = time.monotonic() + 10.0
    while (answer := one(address, Frame(_RUNTIME_INFO), timeout=10.0)).code:
        assert time.monotonic() < deadline, answer
        time.sleep(0.1)
    table = json.loads(answer.body)["table"]
    return {str(name): str(value) for name, value in table.items()}


def log_end(address: str) -> int:
    """Where a broker's commit log ends, as it says."""
    return int(runtime(address)["commitLogMaxOffset"])


def configure(address: str, **settings: object) -> Answer:
    """Change settings of a running broker (request 25)."""
    lines = "".join(f"{name}={value}\n" for name, value in settings.items())
    return one(address, Frame(_UPDATE_BROKER_CONFIG, body=lines.encode()), timeout=10.0)


def create_topic(address: str, topic: str, queues: int = 4) -> Answer:
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    return one(address, Frame(_UPDATE_AND_CREATE_TOPIC, fields), timeout=10.0)


def properties_text(properties: Mapping[str, str]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def send_frame(
    topic: str,
    body: bytes,
    *,
    queue_id: int = 0,
    sys_flag: int = 0,
    properties: Mapping[str, str] | None = None,
    batch: bool = False,
) -> Frame:
    """SEND_MESSAGE_V2, whose fields have letters for names."""
    named = {"UNIQ_KEY": f"{next(_numbers):032X}", **(properties or {})}
    fields = {
        "a": "traffic",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": str(sys_flag),
        "g": str(int(time.time() * 1000)),
        "h": "0",
        "i": properties_text(named),
        "j": "0",
        "k": "false",
        "m": "true" if batch else "false",
    }
    return Frame(_SEND_BATCH if batch else _SEND, fields, body)


def batch_body(bodies: Iterable[bytes]) -> bytes:
    """The messages of a batch, each with properties of its own."""
    parts = []
    for body in bodies:
        text = properties_text(
            {"UNIQ_KEY": f"{next(_numbers):032X}", "TAGS": "batch", "WAIT": "true"}
        ).encode()
        size = 4 + 4 + 4 + 4 + 4 + len(body) + 2 + len(text)
        parts.append(
            struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body + struct.pack(">h", len(text)) + text
        )
    return b"".join(parts)


class Traffic:
    """Sends to one broker and one topic.

    Attributes:
        accepted: bodies that were answered with success, in the order of their answers.
        answers: how often each code came.
    """

    def __init__(self, address: str, topic: str, *, queues: int = 4) -> None:
        self.address = address
        self.topic = topic
        self.queues = queues
        self.accepted: list[bytes] = []
        self.answers: dict[int, int] = {}

    def ready(self) -> Self:
        """Creates the topic."""
        answer = create_topic(self.address, self.topic, self.queues)
        assert answer.code == 0, answer
        return self

    def _take(self, frames: list[tuple[bytes, Frame]], **options: object) -> list[Answer]:
        answers = ask(self.address, [frame for _, frame in frames], **options)  # type: ignore[arg-type]
        for (body, _), answer in zip(frames, answers, strict=True):
            self.answers[answer.code] = self.answers.get(answer.code, 0) + 1
            if answer.code == OK:
                self.accepted.append(body)
        return answers

    def _body(self, size: int, label: str = "m") -> bytes:
        text = f"{label}-{next(_numbers):08d}-".encode()
        return text + bytes(32 + number % 90 for number in range(max(0, size - len(text))))

    def plain(self, count: int, *, size: int = 100, **properties: str) -> list[Answer]:
        """Messages with tags and keys, over all queues."""
        frames = []
        for number in range(count):
            body = self._body(size)
            named = {"TAGS": f"t{number % 3}", "KEYS": f"k{next(_numbers)} shared-{number % 7}", **properties}
            frames.append(
                (body, send_frame(self.topic, body, queue_id=number % self.queues, properties=named))
            )
        return self._take(frames)

    def bytes(self, total: int, *, size: int = 1000) -> None:
        """About so many bytes of log."""
        self.plain(max(1, total // (size + 250)), size=size)

    def batches(self, count: int, *, size: int = 100) -> None:
        frames = []
        for number in range(count):
            body = batch_body(self._body(size, "batch") for _ in range(10))
            frames.append((body, send_frame(self.topic, body, queue_id=number % self.queues, batch=True)))
        assert all(answer.code == OK for answer in self._take(frames))

    def delayed(self, count: int, *, level: int = 1) -> None:
        self.plain(count, DELAY=str(level))

    def halves(self) -> None:
        """Three transactions: one committed, one rolled back, one left open."""
        for outcome in (_COMMIT, _ROLLBACK, None):
            key = f"{next(_numbers):032X}"
            properties = {"UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": "traffic", "KEYS": f"tx{outcome}"}
            body = self._body(80, "half")
            frame = send_frame(self.topic, body, sys_flag=_PREPARED, properties=properties)
            (answer,) = self._take([(body, frame)])
            assert answer.code == OK, answer
            if outcome is None:
                continue
            place = int(answer.fields["msgId"][-16:], 16)
            fields = {
                "topic": self.topic,
                "producerGroup": "traffic",
                "tranStateTableOffset": answer.fields["queueOffset"],
                "commitLogOffset": str(place),
                "commitOrRollback": str(outcome),
                "fromTransactionCheck": "false",
                "msgId": key,
                "transactionId": key,
            }
            ended = one(self.address, Frame(_END_TRANSACTION, fields), timeout=10.0)
            assert ended.code == OK, ended

    def from_v6(self, count: int = 5) -> None:
        """Messages whose sender has an IPv6 address: longer records. The broker must listen on all interfaces."""
        port = self.address.rsplit(":", 1)[1]
        frames = []
        for _ in range(count):
            body = self._body(100, "v6")
            frames.append((body, send_frame(self.topic, body, properties={"TAGS": "v6", "KEYS": "v6"})))
        answers = ask(f"::1:{port}", [frame for _, frame in frames], source="::1")
        assert all(answer.code == OK for answer in answers), answers

    def every_kind(self) -> None:
        """Plain, large, batched, delayed and half messages, committed and rolled back."""
        self.plain(20, size=10)
        self.plain(3, size=60_000)
        self.batches(4)
        self.delayed(6)
        self.halves()


class Load:
    """Sends without end in a thread of its own, until it is told to stop.

    Attributes:
        failed: sends that found no server.
    """

    def __init__(self, traffic: Traffic, *, size: int = 500, chunk: int = 16, pause: float = 0.02) -> None:
        self.traffic = traffic
        self._pause = pause
        self.failed = 0
        self.error: BaseException | None = None
        self._size = size
        self._chunk = chunk
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.traffic.plain(self._chunk, size=self._size)
                self._stopping.wait(self._pause)
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(_MOST_SEND_SECONDS)
        if error is None:
            assert not self._thread.is_alive(), "the load did not end"
            assert self.error is None, self.error

    def wait_for_bytes(self, count: int, *, seconds: float = 60.0) -> None:
        """Returns when the log has grown by so many bytes."""
        wanted = log_end(self.traffic.address) + count
        deadline = time.monotonic() + seconds
        while log_end(self.traffic.address) < wanted:
            assert self.error is None, self.error
            assert time.monotonic() < deadline, f"the log did not grow by {count} bytes in {seconds:.0f} s"
            time.sleep(0.02)
