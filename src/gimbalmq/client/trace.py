"""Message trace: how each send went, told in messages that Java's tools read.

A trace message's body is lines of fields: U+0001 between fields, U+0002 after each line. Its keys
are the traced messages' ids and keys, so that ``queryMsgTraceById`` finds it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from gimbalmq.client.instance import ClientInstance
from gimbalmq.errors import RocketMQError
from gimbalmq.model import properties as names
from gimbalmq.model.ids import parse_offset_id
from gimbalmq.model.message import Message
from gimbalmq.model.results import SendResult

if TYPE_CHECKING:
    from gimbalmq.client.producer import Producer

log = logging.getLogger(__name__)

BATCH_LINES = 100
MAX_TRACE_BYTES = 128_000
MAX_WAITING = 2048
FLUSH_SECONDS = 0.5

NORMAL, HALF, COMMITTED, DELAYED, ORDERED = range(5)
"""Message types by Java's ordinal (MessageType)."""


class TraceLine(NamedTuple):
    text: str
    keys: tuple[str, ...]


def _line(*fields: object) -> str:
    return "\x01".join("null" if field is None else _text(field) for field in fields) + "\x02"


def _text(field: object) -> str:
    return str(field).lower() if isinstance(field, bool) else str(field)


def message_type(properties: Mapping[str, str]) -> int:
    if names.TRAN_MSG in properties:
        return HALF
    if properties.keys() & set(names.DELAYS):
        return DELAYED
    return ORDERED if names.SHARDING_KEY in properties else NORMAL


def sent_line(
    message: Message,
    *,
    msg_id: str,
    body_bytes: int,
    group: str,
    region: str,
    store_host: str,
    offset_msg_id: str | None,
    begin_ms: int,
    cost_ms: int,
    success: bool,
) -> TraceLine:
    """``Pub``: a message was sent, or not."""
    known = message.all_properties()
    text = _line(
        "Pub",
        begin_ms,
        region,
        group,
        message.topic,
        msg_id,
        message.tags or "",
        known.get(names.KEYS, ""),
        store_host,
        body_bytes,
        cost_ms,
        message_type(known),
        offset_msg_id,
        success,
    )
    return TraceLine(text, (msg_id, *message.keys))


class Tracer:
    """Gathers trace lines and sends them in the background (Java: AsyncTraceDispatcher).

    A trace must never hold up or fail what it traces: when lines come faster than they leave, the
    surplus is dropped and counted.
    """

    def __init__(self, producer: Producer, instance: ClientInstance, topic: str) -> None:
        self._producer = producer
        self._instance = instance
        self._topic = topic
        self._lines: list[TraceLine] = []
        self._flushing = asyncio.Lock()
        self.dropped = 0
        self._task = instance.tasks.every(FLUSH_SECONDS, self.flush, "trace")

    def add(self, line: TraceLine) -> None:
        if len(self._lines) >= MAX_WAITING:
            self.dropped += 1
            return
        self._lines.append(line)

    def sent(
        self, message: Message, msg_id: str, body_bytes: int, result: SendResult | None, cost_ms: int
    ) -> None:
        if result is not None and not result.trace_on:
            return
        self.add(
            sent_line(
                message,
                msg_id=msg_id,
                body_bytes=body_bytes,
                group=self._producer.group,
                region=result.region_id if result else "",
                store_host=_store_host(result),
                offset_msg_id=result.offset_msg_id if result else None,
                begin_ms=self._instance.clock.wall_ms() - cost_ms,
                cost_ms=cost_ms,
                success=result is not None,
            )
        )

    async def flush(self) -> None:
        """Sends what has gathered."""
        async with self._flushing:
            while self._lines:
                batch = _take(self._lines)
                keys = dict.fromkeys(key for line in batch for key in line.keys)
                try:
                    message = Message(self._topic, "".join(line.text for line in batch), keys=list(keys))
                    await self._producer.send(message)
                except RocketMQError as error:
                    log.warning("%d trace lines are lost: %s", len(batch), error)
                except asyncio.CancelledError:
                    self._lines[:0] = batch  # another flush may still send them
                    raise

    async def close(self) -> None:
        """Sends what has gathered, within the time of one send: a silent broker must not hold up the end."""
        self._task.cancel()
        limit = self._producer.config.send_timeout
        try:
            async with asyncio.timeout(limit):
                await self.flush()
        except TimeoutError:
            log.warning("%d trace lines are lost: they did not leave within %g s", len(self._lines), limit)


def _take(lines: list[TraceLine]) -> list[TraceLine]:
    """The first lines that make one message; they leave the list."""
    size = count = 0
    for line in lines[:BATCH_LINES]:
        size += len(line.text)
        if count and size > MAX_TRACE_BYTES:
            break
        count += 1
    batch = lines[:count]
    del lines[:count]
    return batch


def _store_host(result: SendResult | None) -> str:
    if result is None or not result.offset_msg_id:
        return ""
    try:
        place = parse_offset_id(result.offset_msg_id.partition(",")[0])
    except ValueError:
        return ""
    return f"{place.ip}:{place.port}"
