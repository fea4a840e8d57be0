"""What brokers ask of a consumer: to go on from other offsets (220), or to run its handler on a message (309)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gimbalmq.client import events
from gimbalmq.client.consumer_config import PushConsumerConfig
from gimbalmq.client.consuming.duplicates import Duplicates
from gimbalmq.client.consuming.engine import Engine
from gimbalmq.client.consuming.handlers import ConsumeContext, ConsumeResult, Listeners
from gimbalmq.client.consuming.held_queue import READING
from gimbalmq.client.consuming.polled import Polled
from gimbalmq.client.consuming.threads import HandlerThreads
from gimbalmq.errors import ResponseError
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.topics import RETRY_PREFIX
from gimbalmq.protocol.status_bodies import ConsumeDirectlyResult


class PushRequests:
    """Requests to a consumer that calls handlers."""

    def __init__(
        self,
        engine: Engine,
        config: PushConsumerConfig,
        listeners: Listeners,
        threads: HandlerThreads,
        duplicates: Duplicates,
        *,
        ordered: bool,
    ) -> None:
        self._engine = engine
        self._config = config
        self._listeners = listeners
        self._threads = threads
        self._duplicates = duplicates
        self._ordered = ordered

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """220: stops, waits for what runs, sets the offsets, goes on."""
        engine, ground = self._engine, self._engine.ground
        with engine.suspension():
            concerned = [
                item
                for queue, item in engine.holdings.table.items()
                if queue.topic == topic and queue in offsets
            ]
            for item in concerned:
                if not item.dropped:
                    engine.holdings.drop(item, "its offset is being reset")
                item.empty()
            await asyncio.sleep(self._config.reset_delay)
            for item in concerned:
                offset = offsets[item.queue]
                ground.offsets.update(item.queue, offset, increase_only=False)
                ground.events.emit(
                    events.OffsetReset(
                        group=ground.group, queue=item.queue, offset=offset, reason="reset by request"
                    )
                )
                await engine.holdings.discard(item.queue, "its offset was reset")
                self._duplicates.forget(item.queue)

    async def consume_directly(self, message: MessageView, broker_name: str | None) -> ConsumeDirectlyResult:
        """309: runs the handler on one message and tells what it said; progress is not touched."""
        if message.topic.startswith(RETRY_PREFIX):
            message.topic = message.original_topic
        listener = self._listeners.of(message) or self._listeners.only
        if listener is None:
            raise ResponseError(f"no handler for topic {message.topic} in this consumer")
        context = ConsumeContext(MessageQueue(message.topic, broker_name or "", message.queue_id))
        clock = self._engine.ground.clock
        began = clock.monotonic()
        outcome = await self._threads.handle(listener, [message], context)
        return ConsumeDirectlyResult(
            auto_commit=context.auto_commit,
            consume_result="CR_THROW_EXCEPTION" if outcome.error else _DIRECT_RESULTS[outcome.result],
            order=self._ordered,
            remark=outcome.error,
            spent_time_mills=int((clock.monotonic() - began) * 1000),
        )


_DIRECT_RESULTS = {
    ConsumeResult.SUCCESS: "CR_SUCCESS",
    ConsumeResult.LATER: "CR_LATER",
    ConsumeResult.COMMIT: "CR_COMMIT",
    ConsumeResult.ROLLBACK: "CR_ROLLBACK",
}


class PullRequests:
    """Requests to a consumer that is asked for messages."""

    def __init__(self, engine: Engine, polled: Polled) -> None:
        self._engine = engine
        self._polled = polled

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """220: seeks to the offsets and commits them."""
        ground = self._engine.ground
        concerned = [
            held
            for queue, held in self._engine.holdings.table.items()
            if queue.topic == topic and queue in offsets and held.state is READING
        ]
        for held in concerned:
            offset = offsets[held.queue]
            self._polled.move(held, offset)
            held.done_to(offset)
            ground.events.emit(
                events.OffsetReset(
                    group=ground.group, queue=held.queue, offset=offset, reason="reset by request"
                )
            )
            self._engine.puller.start(held, offset)
        await asyncio.gather(*(held.commit() for held in concerned))

    async def consume_directly(self, message: MessageView, broker_name: str | None) -> ConsumeDirectlyResult:
        raise ResponseError("a pull consumer has no handler to run")


class CallerRequests:
    """Requests to a consumer whose caller reads the queues."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """220: notes the offsets as the caller's progress and commits them; where he reads, he decides himself."""
        ground = self._engine.ground
        concerned = [
            held
            for queue, held in self._engine.holdings.table.items()
            if queue.topic == topic and queue in offsets and held.state is READING
        ]
        for held in concerned:
            held.position = offsets[held.queue]
            held.done_to(held.position)
            ground.events.emit(
                events.OffsetReset(
                    group=ground.group, queue=held.queue, offset=held.position, reason="reset by request"
                )
            )
        await asyncio.gather(*(held.commit() for held in concerned))

    async def consume_directly(self, message: MessageView, broker_name: str | None) -> ConsumeDirectlyResult:
        raise ResponseError("a pull consumer has no handler to run")
