"""Messages of one order stay in order: one sharding key is one queue, and a queue is read in order.

python examples/ordered.py
"""

from __future__ import annotations

import argparse
import asyncio
from collections import defaultdict

from gimbalmq import ConsumeFromWhere, Message, MessageView, Producer, PushConsumer

STEPS = ("created", "paid", "packed", "shipped")
ORDERS = ("A", "B", "C", "D", "E")


async def main(namesrv: str) -> None:
    seen: dict[str, list[str]] = defaultdict(list)
    done = asyncio.Event()
    consumer = PushConsumer("warehouse", namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)

    # ordered=True: each queue's messages one after the other; different queues at the same time.
    @consumer.subscribe("steps", ordered=True)
    async def on_step(message: MessageView) -> None:
        order = message.sharding_key or ""
        seen[order].append(message.body.decode())
        if sum(map(len, seen.values())) == len(STEPS) * len(ORDERS):
            done.set()

    async with Producer("shop-floor", namesrv) as producer, consumer:
        for step in STEPS:
            for order in ORDERS:
                await producer.send(Message("steps", step, sharding_key=order))
        await asyncio.wait_for(done.wait(), 30)
    for order in ORDERS:
        print(f"order {order}: {' > '.join(seen[order])}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", default="127.0.0.1:9876")
    asyncio.run(main(parser.parse_args().namesrv))
