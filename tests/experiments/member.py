"""The consumer program of the experiments: one member of a group, which tells on stdout what happens to it.

    python -m tests.experiments.member NAMESRV GROUP TOPIC

Lines are JSON: its client id, the queues it holds whenever they change, each message, each complaint. It ends
when its stdin does.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Collection

from gimbalmq import ConsumeFromWhere, MessageQueue, MessageView, PushConsumer
from gimbalmq.client.events import BalanceEvent, UnequalSubscriptions


def tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


async def main(namesrv: str, group: str, topic: str) -> None:
    consumer = PushConsumer(
        group,
        namesrv,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        # Java waits up to 30 s where these wait for a moment; the experiments show the same sooner.
        poll_namesrv_interval=0.5,
        heartbeat_interval=1.0,
        check_group_interval=0.5,
        exception_delay=0.05,
    )

    @consumer.subscribe(topic)
    async def on_message(message: MessageView) -> None:
        tell(got=message.body.decode(), queue=message.queue_id, offset=message.queue_offset)

    def on_queues(
        changed: str, every: Collection[MessageQueue], mine: Collection[MessageQueue], reason: str
    ) -> None:
        if changed == topic:
            tell(holds=sorted(queue.queue_id for queue in mine), of=len(every))

    def on_event(event: BalanceEvent) -> None:
        if isinstance(event, UnequalSubscriptions):
            tell(unequal=[event.ours, event.theirs])

    consumer.on_queues_changed(on_queues)
    consumer.on_event(on_event)
    async with consumer:
        tell(client_id=consumer.client_id, strategy=consumer.config.allocate_strategy().name)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
