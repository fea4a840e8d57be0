"""One of our push consumers as a process that is told what to do, the twin of `tests/peers/java/PushClient.java`.

    python -m benchmarks.client_member NAMESRV GROUP TOPIC HANDOVER HANDLER_MS

Commands on standard input, one a line, each answered by one line of JSON: `start`, `queues`, `received`, `leave`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from typing import Any, Literal

from gimbalmq.client.consumer_config import ConsumeFromWhere
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.model.message import MessageView


class Member:
    """The consumer and what its handler was given: number, queue, when (nanoseconds)."""

    def __init__(
        self, namesrv: str, group: str, topic: str, handover: Literal["java", "lease"], ms: int
    ) -> None:
        self._topic = topic
        self._seconds = ms / 1000
        self._received: list[tuple[int, int, int]] = []
        self._consumer = PushConsumer(
            group,
            namesrv,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            handover=handover,
            # As the Java members are set: tests/peers/java/Client.java.
            heartbeat_interval=1.0,
            poll_namesrv_interval=1.0,
            persist_interval=0.5,
        )
        self._consumer.subscribe(topic, "*", handler=self._handle)

    async def _handle(self, message: MessageView) -> None:
        self._received.append((int(message.body), message.queue_id, time.monotonic_ns()))
        await asyncio.sleep(self._seconds)

    async def obey(self, command: str) -> Any:
        if command == "start":
            await self._consumer.start()
            return time.monotonic_ns()
        if command == "queues":
            return [queue.queue_id for queue in self._consumer.assignment.get(self._topic, [])]
        if command == "received":
            return self._received
        assert command == "leave", command
        await self._consumer.close()
        return time.monotonic_ns()


async def serve(member: Member) -> None:
    loop = asyncio.get_running_loop()
    commands: asyncio.Queue[str] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(commands.put_nowait, line.strip())
        loop.call_soon_threadsafe(commands.put_nowait, "")

    threading.Thread(target=read, daemon=True).start()
    print(json.dumps("ready"), flush=True)
    while command := await commands.get():
        print(json.dumps(await member.obey(command)), flush=True)


async def main(namesrv: str, group: str, topic: str, handover: Literal["java", "lease"], ms: str) -> None:
    await serve(Member(namesrv, group, topic, handover, int(ms)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))  # type: ignore[arg-type]
