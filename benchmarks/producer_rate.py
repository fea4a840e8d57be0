"""Sends a second of our producer against a running cluster, and what each costs in processor time.

    python benchmarks/producer_rate.py 127.0.0.1:9876 [--topic BenchmarkTest] [--seconds 5] [--json]

Four ways to send: ``send_soon`` with a window, ``send`` in as many tasks, ``send`` one after the other,
and batches. The broker usually shares the machine, so the processor time of this process alone is the
figure that tells what the client costs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from gimbalmq.client.producer import Producer
from gimbalmq.model.message import Message
from gimbalmq.model.results import SendResult


@dataclass
class Figure:
    way: str
    body: int
    per_second: float
    cpu_us: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    errors: int = 0


class Load:
    """One way to send, for a while."""

    def __init__(self, producer: Producer, topic: str, body: int, seconds: float, window: int) -> None:
        self.producer = producer
        self.topic = topic
        self.body = b"x" * body
        self.seconds = seconds
        self.window = window
        self.sent = 0
        self.errors = 0
        self.latencies: list[float] = []

    def message(self) -> Message:
        return Message(self.topic, self.body)

    async def soon(self) -> None:
        """A window of futures; each answer starts the next send."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.seconds
        finished = loop.create_future()
        out = 0

        def start() -> None:
            nonlocal out
            out += 1
            self.producer.send_soon(self.message()).add_done_callback(answered)

        def answered(future: asyncio.Future[SendResult]) -> None:
            nonlocal out
            out -= 1
            if future.exception() is None:
                self.sent += 1
            else:
                self.errors += 1
            if loop.time() < end:
                start()
            elif out == 0 and not finished.done():
                finished.set_result(None)

        for _ in range(self.window):
            start()
        await finished

    async def tasks(self) -> None:
        await asyncio.gather(*(self._one_by_one(time_each=False) for _ in range(self.window)))

    async def one(self) -> None:
        await self._one_by_one(time_each=True)

    async def _one_by_one(self, *, time_each: bool) -> None:
        send, now = self.producer.send, time.perf_counter
        end = now() + self.seconds
        while (begun := now()) < end:
            try:
                await send(self.message())
            except Exception:
                self.errors += 1
                continue
            self.sent += 1
            if time_each:
                self.latencies.append(now() - begun)

    async def batches(self) -> None:
        end = time.perf_counter() + self.seconds

        async def worker() -> None:
            while time.perf_counter() < end:
                await self.producer.send_batch([self.message() for _ in range(100)])
                self.sent += 100

        await asyncio.gather(*(worker() for _ in range(4)))


async def measure(load: Load, way: str, run: Callable[[], Awaitable[None]]) -> Figure:
    begun, cpu = time.perf_counter(), time.process_time()
    await run()
    spent, used = time.perf_counter() - begun, time.process_time() - cpu
    latencies = sorted(load.latencies)
    return Figure(
        way,
        len(load.body),
        load.sent / spent,
        used / max(1, load.sent) * 1e6,
        statistics.median(latencies) * 1000 if latencies else None,
        latencies[int(len(latencies) * 0.99)] * 1000 if latencies else None,
        load.errors,
    )


async def run(namesrv: str, topic: str, bodies: list[int], seconds: float, window: int) -> list[Figure]:
    figures: list[Figure] = []
    async with Producer("producer_rate", namesrv, max_in_flight=window * 2) as producer:
        await producer.send(Message(topic, b"first"))
        for body in bodies:
            for way in ("soon", "tasks", "one", "batches"):
                load = Load(producer, topic, body, seconds, window)
                figures.append(await measure(load, way, getattr(load, way)))
    return figures


def fast_run(work: Coroutine[Any, Any, list[Figure]]) -> list[Figure]:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("namesrv")
    parser.add_argument("--topic", default="BenchmarkTest")
    parser.add_argument("--body", type=int, action="append", help="bytes; may be given again (100 and 1024)")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--window", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    work = run(given.namesrv, given.topic, given.body or [100, 1024], given.seconds, given.window)
    for figure in fast_run(work):
        if given.json:
            print(json.dumps(asdict(figure)))
            continue
        tail = "" if figure.p50_ms is None else f", p50 {figure.p50_ms:.2f} ms, p99 {figure.p99_ms:.2f} ms"
        failed = f", {figure.errors} FAILED" if figure.errors else ""
        print(
            f"{figure.way:8} {figure.body:5} B  {figure.per_second:10,.0f} /s  "
            f"{figure.cpu_us:6.1f} us of CPU each{tail}{failed}"
        )


if __name__ == "__main__":
    main()
