"""A message that waits for an answer to itself.

python examples/request_reply.py
"""

from __future__ import annotations

import argparse
import asyncio

from gimbalmq import (
    Admin,
    Message,
    MessageView,
    Producer,
    PushConsumer,
    RequestTimeoutError,
    reply,
    request,
)


async def main(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.topics.create("sums", queues=4)
    async with Producer("askers", namesrv) as asker, Producer("answerers", namesrv) as answerer:
        consumer = PushConsumer("calculators", namesrv)

        @consumer.subscribe("sums")
        async def on_sum(message: MessageView) -> None:
            left, _, right = message.body.decode().partition("+")
            await reply(answerer, message, str(int(left) + int(right)))

        async with consumer:
            answer = await request(asker, Message("sums", b"20+22"), timeout=10)
            print(f"20+22 is {answer.body.decode()}")
        try:
            await request(asker, Message("sums", b"1+2"), timeout=1)
        except RequestTimeoutError as error:
            print(f"nobody is there: {error}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", default="127.0.0.1:9876")
    asyncio.run(main(parser.parse_args().namesrv))
