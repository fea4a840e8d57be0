"""A consumer's balance events, and where its queues stand, as JSON lines: what the balance report is made from.

    consumer = PushConsumer("billing", namesrv)
    async with Recorder(consumer, "balance/billing-1.jsonl"), consumer:
        ...

One file for each member. Every line has ``record`` (the event's class, or ``Position``), ``at_ms``, ``group`` and
``member``; those about a queue have ``topic``, ``broker`` and ``queue_id``; the rest are the event's own fields.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgspec

from gimbalmq.client.consumer import Consumer
from gimbalmq.client.consuming.offsets import ReadFrom
from gimbalmq.client.events import BalanceEvent
from gimbalmq.errors import ConfigError, RocketMQError, StateError

log = logging.getLogger(__name__)

POSITION = "Position"
"""A line that is no event: ``offset`` done of ``newest``, ``lag`` between them."""


class Recorder:
    """Appends to a file until closed. Enter it before the consumer, so that it hears the end too.

    Args:
        every: seconds between two looks at the positions; 0 writes events only.
    """

    def __init__(self, consumer: Consumer[Any], file: str | Path, *, every: float = 5.0) -> None:
        if not 0 <= every < 86_400:
            raise ConfigError("every", every, "use seconds, 0 to 86399; 0 writes events only")
        self._consumer = consumer
        self._path = Path(file)
        self._every = every
        self._file: BinaryIO | None = None
        self._stop_events: Any = None
        self._looking: asyncio.Task[None] | None = None
        self._member = consumer.group

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def start(self) -> None:
        """Raises OSError: the file cannot be written."""
        if self._file is not None:
            raise StateError("the recorder has been started already")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Whole lines, written at once: whoever reads the file meanwhile sees no half one.
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
        self._stop_events = self._consumer.on_event(self._on_event)
        if self._every:
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
            self._looking = None
        if self._stop_events is not None:
            self._stop_events()
            self._stop_events = None
        if self._file is not None:
            self._file.close()
            self._file = None

    async def look(self) -> None:
        """Writes the positions of all held queues now."""
        consumer = self._consumer
        lines = []
        for queues in consumer.assignment.values():
            for queue in queues:
                newest = await consumer.max_offset(queue)
                offset = await consumer.offsets.read(queue, ReadFrom.MEMORY_FIRST_THEN_STORE)
                if offset is not None:
                    own = {"offset": offset, "newest": newest, "lag": max(0, newest - offset)}
                    lines.append(self._line(POSITION, consumer.clock.wall_ms(), {"queue": queue, **own}))
        self._write(b"".join(lines))

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            if self._consumer.running:
                try:
                    await self.look()
                except (RocketMQError, OSError) as error:
                    log.warning("positions were not recorded this time: %s", error)

    def _on_event(self, event: BalanceEvent) -> None:
        own = msgspec.structs.asdict(event)
        at_ms = own.pop("at_ms")
        del own["group"]
        self._write(self._line(type(event).__name__, at_ms, own))

    def _line(self, record: str, at_ms: int, own: dict[str, Any]) -> bytes:
        with contextlib.suppress(StateError):  # the last events come when the consumer is closed already
            self._member = self._consumer.client_id
        line: dict[str, Any] = {
            "record": record,
            "at_ms": at_ms,
            "group": self._consumer.group,
            "member": self._member,
        }
        queue = own.pop("queue", None)
        if queue is not None:
            line |= {"topic": queue.topic, "broker": queue.broker_name, "queue_id": queue.queue_id}
        return msgspec.json.encode(line | own) + b"\n"

    def _write(self, data: bytes) -> None:
        if self._file is not None and data:
            self._file.write(data)
