"""A group that hardly notices its members come and go: few queues move, and no message comes twice.

python examples/sticky_lease.py

Every member needs the same strategy and the same handover. `gimbalmq balance preview` shows beforehand
what a change would move.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter

from gimbalmq import ConsumeFromWhere, Message, MessageView, Producer, PushConsumer

TOPIC, MESSAGES = "clicks", 600


async def main(namesrv: str) -> None:
    received: Counter[bytes] = Counter()
    complete = asyncio.Event()

    async def handle(message: MessageView) -> None:
        received[message.body] += 1
        if len(received) == MESSAGES:
            complete.set()

    async def join(name: str) -> PushConsumer:
        consumer = PushConsumer(
            "counters",
            namesrv,
            member_name=name,  # a fixed name: after a restart it gets the queues it had
            strategy="STICKY",
            handover="lease",
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        )
        consumer.subscribe(TOPIC, "*", handle)
        await consumer.start()
        return consumer

    async def show(what: str) -> None:
        """Waits until every queue has a reader and nobody has two more than another, then prints who reads what."""
        for _ in range(600):
            held = {consumer.config.member_name: consumer.assignment for consumer in members}
            counts = [sum(map(len, queues.values())) for queues in held.values()]
            numbers = {
                name: sorted(queue.queue_id for queue in queues.get(TOPIC, []))
                for name, queues in held.items()
            }
            if sum(map(len, numbers.values())) == 8 and max(counts) - min(counts) <= 1:
                print(f"{what:12} {'   '.join(f'{name} {ids}' for name, ids in numbers.items())}")
                return
            await asyncio.sleep(0.05)
        raise SystemExit(f"{what}: the queues were not shared out within 30 s")

    async with Producer("browsers", namesrv, default_topic_queue_nums=8) as producer:

        async def produce() -> None:
            for number in range(1, MESSAGES):
                await producer.send(Message(TOPIC, f"{id(received)}-{number}"))
                await asyncio.sleep(0.005)

        await producer.send(Message(TOPIC, f"{id(received)}-0"))
        producing = asyncio.ensure_future(produce())
        members = [await join("ada"), await join("ben")]
        await show("two members")
        members.append(await join("cem"))
        await show("cem joins")
        await members.pop(0).close()
        await show("ada leaves")
        await producing
        await asyncio.wait_for(complete.wait(), 30)
        for member in members:
            await member.close()
    twice = sum(count > 1 for count in received.values())
    print(f"{len(received)} messages received, {twice} of them twice")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--namesrv", default="127.0.0.1:9876")
    asyncio.run(main(parser.parse_args().namesrv))
