"""A message that fails comes again, and after its last try lies among the dead letters.

python examples/retry.py
"""

from __future__ import annotations

import argparse
import asyncio

from gimbalmq import (
    ConsumeContext,
    ConsumeFromWhere,
    Message,
    MessageQueue,
    MessageView,
    Producer,
    PullConsumer,
    PushConsumer,
)
from gimbalmq.errors import TopicRouteNotFoundError

GROUP = "mailers"


async def main(namesrv: str) -> None:
    tries: asyncio.Queue[str] = asyncio.Queue()
    consumer = PushConsumer(
        GROUP,
        namesrv,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        max_reconsume_times=2,  # the default is 16, spread over nearly five hours
    )

    @consumer.subscribe("mails")
    async def send_mail(message: MessageView, context: ConsumeContext) -> None:
        text = f"{message.body.decode()}, try {message.reconsume_times + 1}"
        context.delay_level = 1  # again after a second; left alone the broker chooses 10 s, 30 s, 1 min, ...
        if message.tags == "broken" or message.reconsume_times == 0:
            await tries.put(f"{text}: failed")
            raise ConnectionError("the mail server does not answer")
        await tries.put(f"{text}: sent")

    async with Producer("writers", namesrv) as producer, consumer:
        await producer.send(Message("mails", b"to ada", tags="good"))
        await producer.send(Message("mails", b"to nobody", tags="broken"))
        for _ in range(5):  # two tries of the first, three of the second
            print(await asyncio.wait_for(tries.get(), 60))

    # Dead letters are an ordinary topic, %DLQ% and the group's name; read it with queues of your own.
    async with PullConsumer(
        "undertakers", namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
    ) as reader:
        reader.assign(await dead_letter_queues(reader))
        for message in await reader.poll(10):
            print(f"dead letter: {message.body.decode()}, from topic {message.original_topic}")
        await reader.commit()


async def dead_letter_queues(reader: PullConsumer) -> tuple[MessageQueue, ...]:
    """The broker makes the topic with the first dead letter; name servers hear of it a moment later."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await reader.queues(f"%DLQ%{GROUP}")
            except TopicRouteNotFoundError:
                await asyncio.sleep(0.1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", default="127.0.0.1:9876")
    asyncio.run(main(parser.parse_args().namesrv))
