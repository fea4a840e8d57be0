"""Reading whole queues with large pulls, as a batch job does: what a message costs the broker.

One reader, one pull at a time, each asking for 65,536 messages and 8 MB (`maxMsgBytes`). Messages that were sent
round-robin lie scattered in the log, those of a topic with one queue beside each other. Apache's broker answers
with 32 messages whatever is asked.
"""

from __future__ import annotations

import socket
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.loadgen.runner import Load, run_c
from benchmarks.report import Options, Row, main
from benchmarks.subjects import awake, chosen, encode, measure, running
from benchmarks.warming import MOST_MESSAGES, warm
from tests.peers.process import HOST

CASES = (  # topics and queues of each, bytes in a body
    ("16 queues in turn, 100 B", 2, 8, 100),
    ("1 queue, 100 B", 1, 1, 100),
    ("16 queues in turn, 1 KB", 2, 8, 1024),
)
MAX_BYTES = 8 * 1024 * 1024
MAX_COUNT = 65_536


class Reader:
    """Pulls and looks at nothing but the next offset; what it receives goes to one buffer."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(16 << 20))
        self.pulls = self.bytes = 0

    def close(self) -> None:
        self._socket.close()

    def pull(self, topic: str, queue: int, offset: int) -> int:
        """The next offset; the old one at the queue's end."""
        fields: dict[str, object] = {
            "consumerGroup": "bulk_group",
            "topic": topic,
            "queueId": queue,
            "queueOffset": offset,
            "maxMsgNums": MAX_COUNT,
            "maxMsgBytes": MAX_BYTES,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        self._socket.sendall(encode(11, fields))
        self._fill(8)
        length, header = (int.from_bytes(self._buffer[at : at + 4], "big") for at in (0, 4))
        self._fill(length - 4)
        text = bytes(self._buffer[: header & 0xFFFFFF])
        self.pulls += 1
        self.bytes += length
        if b'"code":0,' not in text:
            assert b'"code":19,' in text, text
            return offset
        return int(text.partition(b'"nextBeginOffset":"')[2].partition(b'"')[0])

    def _fill(self, size: int) -> None:
        at = 0
        while at < size:
            got = self._socket.recv_into(self._buffer[at:size])
            if not got:
                raise ConnectionError("closed by the broker")
            at += got


def read_queues(port: int, places: list[tuple[str, int]], seconds: float) -> Load:
    """Reads all queues from their start, over and over, until the time is up."""
    reader = Reader(port)
    begun = time.monotonic()
    messages, offsets = 0, dict.fromkeys(places, 0)
    while time.monotonic() - begun < seconds:
        for place, offset in offsets.items():
            moved = reader.pull(*place, offset)
            messages += moved - offset
            offsets[place] = moved if moved > offset else 0
    reader.close()
    taken = time.monotonic() - begun
    return Load(messages / taken, reader.bytes / taken / 1e6, messages, raw={"pulls": reader.pulls})


def run(options: Options) -> list[Row]:
    rows: list[Row] = []
    filling = int(options.pick(1_000_000, 100_000))
    with running(chosen(options.only)) as subjects:
        for what, topics, queues, body in CASES:
            name = f"bulk{queues}x{body}x"
            names = [f"{name}{number:05d}" for number in range(topics)] if topics > 1 else [name]
            places = [(topic, queue) for topic in names for queue in range(queues)]
            rate, cost = Row(f"{what}: read", "1/s"), Row(f"{what}: broker CPU each", "us")
            rows += [rate, cost]
            for subject in subjects.values():
                with awake(subject):
                    subject.create_topics(names, queues=queues)
                    shape = {
                        "topic": name,
                        "topics": topics,
                        "queues": queues,
                        "connections": 4,
                        "window": 400,
                    }
                    run_c("send", port=subject.port, body=body, count=filling, **shape)
                    window = partial(read_queues, subject.port, places, options.pick(2, 1))
                    # Messages, not requests: there are 32 in an answer of Apache's.
                    limits = {"most_messages": 32 * MOST_MESSAGES, "most_seconds": 30}
                    warm(subject, what, window, quick=options.quick, **limits)
            for _ in range(options.rounds):
                for subject in subjects.values():
                    reading = partial(read_queues, subject.port, places, options.pick(4, 2))
                    load = measure(subject, reading, options.tries)
                    rate.add(subject.name, load.per_second)
                    cost.add(subject.name, load.subject_cpu / load.ok * 1e6)
    return rows


if __name__ == "__main__":
    main(run, __doc__, "bulk")
