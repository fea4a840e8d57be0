"""A consumer process of the demo: joins a group, consumes, leaves when told to end.

python examples/demo_member.py NAMESRV GROUP TOPIC NAME
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from gimbalmq import ConsumeFromWhere, MessageView, PushConsumer


async def main(namesrv: str, group: str, topic: str, name: str) -> None:
    consumer = PushConsumer(
        group,
        namesrv,
        client_file=os.environ.get("GIMBALMQ_CLIENT_FILE"),
        instance_name=name,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    )

    @consumer.subscribe(topic)
    async def handle(message: MessageView) -> None:
        await asyncio.sleep(0.001)

    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with consumer:
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
