"""Sends messages in every way there is.

    gimbalmq server            (in another terminal)
    python examples/produce.py

What it sends is for examples/consume.py.
"""

from __future__ import annotations

import argparse
import asyncio

from gimbalmq import Message, Producer


async def main(namesrv: str) -> None:
    async with Producer("shop", namesrv) as producer:
        # One message: the call returns when the broker has stored it.
        result = await producer.send(Message("orders", b"order 1", tags="new", keys="1"))
        print(f"stored  {result.status.name}, queue {result.queue.queue_id}, offset {result.queue_offset}")
        print(f"its id  {result.msg_id}")

        # Properties travel with the message; consumers can filter by tag.
        await producer.send(Message("orders", b"order 2", tags="paid", properties={"country": "NL"}))

        # Delivered later: after a delay level of the broker (1 is one second), or at a time of your own.
        await producer.send(Message("orders", b"order 3, a second late", tags="new", delay_level=1))

        # Several in one request: stored together, in one queue.
        (batch,) = await producer.send_batch(
            Message("orders", f"order {number}".encode(), tags="new") for number in (4, 5)
        )
        print(f"batch   {batch.msg_id.count(',') + 1} messages in queue {batch.queue.queue_id}")

        # Many: each call returns a future at once, thousands may be on their way.
        futures = [producer.send_soon(Message("orders", b"order 6", tags="bulk")) for _ in range(1000)]
        results = await asyncio.gather(*futures)
        print(f"soon    {len(results)} messages in {len({one.queue for one in results})} queues")

        # Fire and forget: quick, and lost without a word if something is wrong.
        await producer.send_oneway(Message("orders", b"order 7", tags="new"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--namesrv", default="127.0.0.1:9876")
    asyncio.run(main(parser.parse_args().namesrv))
