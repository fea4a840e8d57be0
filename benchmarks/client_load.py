"""Our client as a load, the twin of `loadgen/ClientLoad.java` and `ClientConsume.java`; prints one line of JSON.

python -m benchmarks.client_load async   --namesrv A --topic T --window 2000 --body 100 --seconds 5 [--autobatch 1]
python -m benchmarks.client_load many    --namesrv A --topic T --window 4000 --body 100 --seconds 5
python -m benchmarks.client_load sync    --namesrv A --topic T --threads 8 --body 100 --seconds 4 --warmup 1
python -m benchmarks.client_load consume --namesrv A --topic T --count 300000 --batch 32 [--plain]
python -m benchmarks.client_load decode  --namesrv A --file F --seconds 3 [--read]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from gimbalmq.client.consumer_config import ConsumeFromWhere
from gimbalmq.client.producer import Producer
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.model.message import Message, MessageView, decode_views
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import SendResult

Result = dict[str, object]


async def send_async(asked: argparse.Namespace) -> Result:
    """A window of futures; each answer starts the next send."""
    body = b"x" * asked.body
    options: dict[str, Any] = {"retry_times_async": 0, "auto_batch": bool(asked.autobatch)}
    async with Producer("bench_python", asked.namesrv, send_timeout=10.0, **options) as producer:
        await producer.publish_queues(asked.topic)
        await producer.send(Message(asked.topic, body))
        loop = asyncio.get_running_loop()
        begin = loop.time() + asked.warmup
        end = begin + asked.seconds
        finished = loop.create_future()
        out = good = bad = 0
        counted = [0, 0.0, 0.0]  # sends before the measured time, its begin, processor time at its begin
        measured = [0.0, 0.0, 0.0]

        def start() -> None:
            nonlocal out
            out += 1
            producer.send_soon(Message(asked.topic, body)).add_done_callback(answered)

        def answered(future: asyncio.Future[SendResult]) -> None:
            nonlocal out, good, bad
            out -= 1
            if future.exception() is None:
                good += 1
            else:
                bad += 1
            now = loop.time()
            if now < end:
                if not counted[1] and now >= begin:
                    counted[:] = [good, now, time.process_time()]
                start()
            else:
                if not measured[1]:
                    measured[:] = [good - counted[0], now - counted[1], time.process_time() - counted[2]]
                if out == 0 and not finished.done():
                    finished.set_result(None)

        for _ in range(asked.window):
            start()
        await finished
    sent, took, used = measured
    return {
        "mode": "async",
        "ok": int(sent),
        "codes": {"0": good, "1": bad},
        "per_second": sent / took,
        "generator_cpu": {"user_us_each": used / max(1, sent) * 1e6},
    }


async def send_many(asked: argparse.Namespace) -> Result:
    """Two tasks, each with half a window of messages in one call."""
    body = b"x" * asked.body
    topic, half = asked.topic, asked.window // 2
    async with Producer("bench_python", asked.namesrv, send_timeout=10.0, retry_times=0) as producer:
        await producer.publish_queues(topic)
        now = time.perf_counter
        begin = now() + asked.warmup
        end = begin + asked.seconds
        sent, bad = 0, 0
        counted = measured = (
            0,
            0.0,
            0.0,
        )  # sends, time and processor time when the measured time begins and ends

        async def calls() -> None:
            nonlocal sent, bad, counted, measured
            while not measured[1]:
                results = await producer.send_many(
                    [Message(topic, body) for _ in range(half)], return_exceptions=True
                )
                good = sum(type(result) is SendResult for result in results)
                sent += good
                bad += half - good
                if not counted[1] and now() >= begin:
                    counted = (sent, now(), time.process_time())
                elif now() >= end:
                    measured = (sent, now(), time.process_time())

        await asyncio.gather(calls(), calls())
    count, took, used = (after - before for before, after in zip(counted, measured, strict=True))
    return {
        "mode": "many",
        "ok": int(count),
        "codes": {"0": sent, "1": bad},
        "per_second": count / took,
        "generator_cpu": {"user_us_each": used / max(1, count) * 1e6},
    }


async def send_sync(asked: argparse.Namespace) -> Result:
    """As many tasks as Java has threads, each waiting for its answer."""
    body = b"x" * asked.body
    times: list[float] = []
    bad = 0
    used = 0.0
    async with Producer("bench_python", asked.namesrv, send_timeout=10.0, retry_times=0) as producer:
        await producer.publish_queues(asked.topic)
        begin = time.perf_counter() + asked.warmup
        end = begin + asked.seconds

        async def one() -> None:
            nonlocal bad, used
            now = time.perf_counter
            while (begun := now()) < end:
                try:
                    await producer.send(Message(asked.topic, body))
                except Exception:
                    bad += 1
                    continue
                if begun >= begin:
                    if not times:
                        used = time.process_time()
                    times.append(now() - begun)

        await asyncio.gather(*(one() for _ in range(asked.threads)))
        used = time.process_time() - used
    times.sort()
    count = len(times)
    latency = {"p50": times[count // 2] * 1e6, "p99": times[int(count * 0.99)] * 1e6, "max": times[-1] * 1e6}
    return {
        "mode": "sync",
        "ok": count,
        "codes": {"0": count, "1": bad},
        "per_second": count / asked.seconds,
        "latency_us": latency,
        "generator_cpu": {"user_us_each": used / count * 1e6},
    }


async def consume(asked: argparse.Namespace) -> Result:
    """A push consumer with handlers of single messages (batch 1) or lists; the first quarter is warm-up."""
    options: dict[str, Any] = {"consume_message_batch_max_size": asked.batch, "pull_batch_size": 32}
    consumer = PushConsumer(
        f"bench_python_{time.time_ns()}",
        asked.namesrv,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        **options,
    )
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    skip, count = asked.count // 4, asked.count
    seen = size = skipped = 0
    began = used = took = 0.0

    def tick(more: int) -> None:
        nonlocal seen, skipped, began, used, took
        seen += more
        if not began and seen >= skip:
            began, used, skipped = time.perf_counter(), time.process_time(), seen
        elif not took and seen >= count:
            took, used = time.perf_counter() - began, time.process_time() - used
            loop.call_soon_threadsafe(done.set)

    def on_one(message: MessageView) -> None:
        nonlocal size
        size += len(message.body)
        tick(1)

    def on_many(messages: list[MessageView]) -> None:
        nonlocal size
        for message in messages:
            size += len(message.body)
        tick(len(messages))

    async def on_one_async(message: MessageView) -> None:
        on_one(message)

    async def on_many_async(messages: list[MessageView]) -> None:
        on_many(messages)

    handler: Callable[..., Any]
    if asked.batch == 1:
        handler = on_one if asked.plain else on_one_async
    else:
        handler = on_many if asked.plain else on_many_async
    consumer.subscribe(asked.topic, "*", handler=handler)
    async with consumer:
        async with asyncio.timeout(120):
            await done.wait()
        measured = count - skipped
    return {
        "mode": "consume",
        "ok": measured,
        "seconds": took,
        "per_second": measured / took,
        "generator_cpu": {"user_us_each": used / measured * 1e6},
    }


async def decode(asked: argparse.Namespace) -> Result:
    """The records of one pull answer, again and again; `--read` also looks at what a handler may look at."""
    body = Path(asked.file).read_bytes()
    queue = MessageQueue("T", "broker-a", 0)
    count = 0
    begun, used = time.perf_counter(), time.process_time()
    while (took := time.perf_counter() - begun) < asked.seconds:
        for _ in range(50):
            views = decode_views(body, queue)
            count += len(views)
            if asked.read:
                for view in views:
                    _ = view.body, view.msg_id, view.tags, view.properties, view.store_timestamp
    return {
        "mode": "decode",
        "ok": count,
        "seconds": took,
        "per_second": count / took,
        "generator_cpu": {"user_us_each": (time.process_time() - used) / count * 1e6},
    }


MODES: dict[str, Callable[[argparse.Namespace], Coroutine[Any, Any, Result]]] = {
    "async": send_async,
    "many": send_many,
    "sync": send_sync,
    "consume": consume,
    "decode": decode,
}


def fast_run(work: Coroutine[Any, Any, Result]) -> Result:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    result: Result = uvloop.run(work)
    return result


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("mode", choices=list(MODES))
    made.add_argument("--namesrv", required=True)
    made.add_argument("--topic", default="")
    made.add_argument("--file", default="")
    numbers = {"body": 100, "window": 2000, "threads": 1, "count": 100_000, "batch": 32, "autobatch": 0}
    for name, value in numbers.items():
        made.add_argument(f"--{name}", type=int, default=value)
    for name, seconds in {"seconds": 5.0, "warmup": 1.0}.items():
        made.add_argument(f"--{name}", type=float, default=seconds)
    made.add_argument("--plain", action="store_true", help="plain functions, in threads")
    made.add_argument("--read", action="store_true")
    asked = made.parse_args()
    try:
        result = fast_run(MODES[asked.mode](asked))
    except TimeoutError:
        result = {"error": "the messages did not arrive in 120 s"}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
