"""Receives what examples/produce.py sent; ends when nothing has come for three seconds.

    python examples/produce.py
    python examples/consume.py

Run it in two terminals at once, then produce: the two share the queues, and each message reaches one.
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import suppress

from gimbalmq import ConsumeFromWhere, MessageView, PushConsumer


async def main(namesrv: str, quiet: float) -> None:
    consumer = PushConsumer(
        "billing",
        namesrv,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,  # a new group begins with the oldest message
    )
    came = asyncio.Event()
    count = 0

    # Tags: "*" is all. The handler may also be a plain function; it then runs in a thread.
    @consumer.subscribe("orders", "new || paid")
    async def on_order(message: MessageView) -> None:
        nonlocal count
        count += 1
        country = message.properties.get("country", "")
        print(f"queue {message.queue_id}  {message.tags:4}  {message.body.decode()} {country}".rstrip())
        came.set()  # returning is success; an exception has the message delivered again later

    async with consumer:
        held = [queue.queue_id for queue in consumer.assignment.get("orders", [])]
        print(f"{consumer.client_id} reads queues {held}")
        while True:
            came.clear()
            try:
                await asyncio.wait_for(came.wait(), quiet)
            except TimeoutError:
                break
    print(f"{count} messages; the next run goes on from here")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--namesrv", default="127.0.0.1:9876")
    parser.add_argument("--quiet", type=float, default=3.0, metavar="SECONDS")
    words = parser.parse_args()
    with suppress(KeyboardInterrupt):  # Ctrl-C has closed the consumer
        asyncio.run(main(words.namesrv, words.quiet))
