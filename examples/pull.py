"""Asking for messages instead of being called: poll, commit, and read again from the start.

python examples/pull.py
"""

from __future__ import annotations

import argparse
import asyncio

from gimbalmq import ConsumeFromWhere, Message, Producer, PullConsumer


async def main(namesrv: str) -> None:
    async with Producer("sensors", namesrv) as producer:
        for degrees in range(20, 30):
            await producer.send(Message("temperatures", str(degrees)))

    # Subscribed: the group shares the queues. Nothing counts as done before commit().
    async with PullConsumer(
        "averages", namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, auto_commit=False
    ) as consumer:
        consumer.subscribe("temperatures")
        values: list[int] = []
        while len(values) < 10:
            values += [int(message.body) for message in await consumer.poll(10)]
        await consumer.commit()
        print(f"{len(values)} values, average {sum(values) / len(values):g}")

    # Assigned by hand: no group to share with, and any place to read from.
    async with PullConsumer(
        "replays", namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, auto_commit=False
    ) as consumer:
        queue = (await consumer.queues("temperatures"))[0]
        consumer.assign([queue])
        first = (await consumer.poll(10))[0]
        await consumer.seek_to_begin(queue)
        again = (await consumer.poll(10))[0]
        print(f"queue {queue.queue_id}, offset {first.queue_offset}: {int(first.body)} degrees")
        print(f"queue {queue.queue_id}, offset {again.queue_offset}: {int(again.body)} degrees, read again")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", default="127.0.0.1:9876")
    asyncio.run(main(parser.parse_args().namesrv))
