"""Messages that wait a moment for company and then leave together, in one request (``auto_batch``).

Each message keeps what it would have had alone: its id, its own result, its error, its place behind those that were
sent before it to the same queue. Messages that no queue was chosen for share a batch if they agree in topic, in waiting
for the flush, and in the rules for further attempts; the batch goes to the next queue. Those that are bound to a
queue have one batch for each queue, which leaves when the one before has its answer: Apache's brokers work on several
requests of a connection at once, and store them in any order. Meanwhile it stays open for others, so that a broker that
is far away gets few large batches and not a line of small ones. What cannot be in a batch leaves by itself; if it is
bound, it leaves behind the batch of its queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any, Final, TypeVar

from gimbalmq.client.config import ProducerConfig
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.sending.batch import ID_BYTES, Batch, BatchOfMany, Kind, Many
from gimbalmq.client.sending.lines import Lines, PlaceInLine
from gimbalmq.client.sending.loop import Sending
from gimbalmq.client.sending.prepare import Prepared, refusal, stamp
from gimbalmq.client.sending.rules import ONCE, Rules
from gimbalmq.errors import (
    MessageIllegalError,
    RequestTimeoutError,
    ResponseError,
    RocketMQError,
    StateError,
)
from gimbalmq.model import properties as names
from gimbalmq.model.batch import ITEM_BYTES
from gimbalmq.model.message import Message
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.record import MAX_PROPERTIES
from gimbalmq.model.results import SendResult
from gimbalmq.model.topics import RETRY_PREFIX

_T = TypeVar("_T")

_ALONE: Final = frozenset({*names.DELAYS, names.TRAN_MSG, names.MESSAGE_TYPE, names.CORRELATION_ID})
"""Messages with one of these leave alone: brokers take no delayed ones or halves in batches, and requests and replies
have somebody who waits for them."""

_FLAGS: Final = 2**31
"""A message's flag is a signed number of 32 bits within a batch; alone it travels as text."""


class Batches:
    """The batches of one producer (Java: ProduceAccumulator).

    Args:
        awaited, soon: the rules for further attempts of messages that are bound to no queue, by how they were sent.

    Attributes:
        held: bytes of messages that are without an answer.
    """

    def __init__(
        self,
        sending: Sending,
        instance: ClientInstance,
        config: ProducerConfig,
        *,
        awaited: Rules,
        soon: Rules,
    ) -> None:
        self._sending = sending
        self._now_ms = instance.clock.wall_ms
        self._unique_ids = instance.unique_ids
        self._attempts = sending.attempts
        self._group = config.group
        self._limit = config.send_timeout
        self._delay = config.batch_max_delay
        self._most_bytes = min(config.batch_max_bytes, config.max_message_size)
        self._small = min(config.compress_over, self._most_bytes)
        self._taken_below = 0 if config.trace else self._small
        self._most_held = config.total_batch_max_bytes
        self._awaited = awaited
        self._soon = soon
        self._loop = asyncio.get_running_loop()
        self._new_future = self._loop.create_future
        self._open: dict[Kind, Batch] = {}
        """Of messages that are bound to no queue."""
        self._bound: dict[MessageQueue, Batch] = {}
        self._lines = Lines()
        """Bound batches without an answer, by queue. Each leaves when the one before has one."""
        self._stored: dict[MessageQueue, float] = {}
        """Of the queues with such a line, when it last got on."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._unfinished: set[asyncio.Task[Any]] = set()
        self._closing = False
        self._flushing = False
        self.held = 0

    # -- room -----------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether a further message has to wait, for bytes or for its turn."""
        attempts = self._attempts
        return self.held >= self._most_held or attempts.count >= attempts.most or bool(self._waiting)

    async def wait_room(self, limit: float | None) -> None:
        """Waits until there is room for one more message, and counts it as under way.

        Args:
            limit: seconds; None waits as long as it takes.

        Raises:
            RequestTimeoutError: there was none in time.
        """
        if self.full:
            self.flush()  # what waits for company takes up the room
        attempts = self._attempts
        ends = None if limit is None else self._loop.time() + limit
        if attempts.count < attempts.most:
            attempts.count += 1
        else:
            await attempts.wait_turn(limit)
        try:
            if self.held >= self._most_held or self._waiting:
                await self._wait_bytes(ends, limit)
        except BaseException:
            attempts.landed()
            raise

    def give_back(self) -> None:
        """Undoes ``wait_room``: the turn and the room are the next one's."""
        self._attempts.landed()
        self._let_in()

    async def _wait_bytes(self, ends: float | None, limit: float | None) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout_at(ends):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():
                self._let_in()  # the room came in the same moment: it is the next one's
            if isinstance(error, TimeoutError):
                raise RequestTimeoutError(
                    f"{self.held} bytes are without an answer, total_batch_max_bytes is {self._most_held}, and no "
                    f"room came within {limit:g} s; this message was not sent"
                ) from error
            raise

    def _let_in(self) -> None:
        """Wakes whoever has waited longest for bytes; who is let in lets in the next, once its own are counted."""
        while self._waiting and self.held < self._most_held:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def hold(self, size: int, sent: asyncio.Future[SendResult]) -> None:
        """Counts the bytes of a message that leaves by itself."""
        self.held += size
        sent.add_done_callback(partial(self._let_go, size))

    def _let_go(self, size: int, sent: asyncio.Future[SendResult]) -> None:
        self.held -= size
        self._let_in()

    # -- gathering ------------------------------------------------------------------------

    def take(self, message: Message, awaited: bool) -> asyncio.Future[SendResult] | None:
        """Puts a message that no queue was chosen for into the batch that is open for its like.

        The short way, for nearly all messages of who sends many: there is such a batch, and the message has room in it.

        Returns:
            None if it must go the long way, by ``prepare``: also if its key binds it, or if it is traced.
        """
        batch = self._open.get((message.topic, message.wait_store_ok, awaited))
        if batch is None:
            return None
        body = message.body
        length = len(body)
        attempts = self._attempts
        if (
            attempts.count >= attempts.most
            or self.held >= self._most_held
            or self._waiting
            or not 0 < length < self._taken_below
        ):
            return None
        size = batch.plain_bytes + length
        if (
            message.properties
            or message.tags
            or message.keys
            or message.flag
            or message.system
            or message.delay_level
            or message.msg_id is not None
            or message.sharding_key is not None
            or message.deliver_at is not None
            or message.delay is not None
        ):
            msg_id, size = self._note_rest(message, batch)
            if not size:
                return None
        elif batch.size + size > self._most_bytes:
            return None
        else:
            message.msg_id = msg_id = next(self._unique_ids.run, "") or self._unique_ids.next(self._now_ms())
        future: asyncio.Future[SendResult] = self._new_future()
        self.held += size
        attempts.count += 1
        batch.size += size
        batch.bodies.append(body)
        batch.ids.append(msg_id)
        batch.futures.append(future)
        return future

    def take_many(self, messages: Iterator[Message], many: Many) -> Message | None:
        """``take`` for messages that come with one call, as many as go the short way.

        Returns:
            The first that must go the long way; None if all are taken.
        """
        attempts, ids, outcomes = self._attempts, self._unique_ids, many.outcomes
        for message in messages:
            batch = many.batch
            try:
                wait = message.wait_store_ok
            except AttributeError as error:
                many.tell(place := many.add(), refusal(message, error, f"item {place}"))
                continue
            body = message.body
            length = len(body)
            if (
                batch is None
                or batch.timer is None
                or batch.kind[0] != message.topic
                or batch.kind[1] is not wait
                or attempts.count >= attempts.most
                or self.held >= self._most_held
                or self._waiting
                or not 0 < length < self._taken_below
            ):
                return message
            size = batch.plain_bytes + length
            if (
                message.properties
                or message.tags
                or message.keys
                or message.flag
                or message.system
                or message.delay_level
                or message.msg_id is not None
                or message.sharding_key is not None
                or message.deliver_at is not None
                or message.delay is not None
            ):
                msg_id, size = self._note_rest(message, batch)
                if not size:
                    return message
            elif batch.size + size > self._most_bytes:
                return message
            else:
                message.msg_id = msg_id = next(ids.run, "") or ids.next(self._now_ms())
            self.held += size
            attempts.count += 1
            batch.size += size
            batch.bodies.append(body)
            batch.ids.append(msg_id)
            batch.places.append(len(outcomes))
            outcomes.append(None)
        return None

    def _note_rest(self, message: Message, batch: Batch) -> tuple[str, int]:
        """The id and the size of a message that has more than its body; the batch, which takes it next, is told.

        Returns:
            No size if the batch has no room for it, or it must go the long way.
        """
        if message.sharding_key is not None or not self.fits(message):
            return "", 0
        msg_id, rest = stamp(message, self._unique_ids.next, self._now_ms())
        property_bytes = ID_BYTES + len(msg_id) + len(rest)
        size = ITEM_BYTES + len(message.body) + property_bytes
        if (
            batch.size + size > self._most_bytes
            or property_bytes > MAX_PROPERTIES
            or not (rest.isascii() and msg_id.isascii())
        ):
            return "", 0
        place = len(batch.ids)
        batch.rests[place] = rest
        if message.flag:
            batch.flags[place] = message.flag
        return msg_id, size

    def fits(self, message: Message) -> bool:
        """Whether a message may be in a batch; a large one, each compressed one among them, gains nothing by it."""
        return (
            0 < len(message.body) < self._small
            and -_FLAGS <= message.flag < _FLAGS
            and not message.delayed
            and _ALONE.isdisjoint(message.system_properties)
            and not message.topic.startswith(RETRY_PREFIX)
        )

    def put(
        self, prepared: Prepared, queue: MessageQueue | None, *, size: int, wait: bool, awaited: bool
    ) -> asyncio.Future[SendResult]:
        """Puts a message, which fits and is counted as under way, into the batch of its like, which it may begin.

        Args:
            size: bytes that it takes in a request, see ``item_bytes``.
        """
        batch = self._with_room((prepared.topic, wait, awaited), queue, prepared.born_ms, size)
        future: asyncio.Future[SendResult] = self._new_future()
        batch.futures.append(future)
        self._add(batch, prepared, size)
        return future

    def put_of_many(self, prepared: Prepared, many: Many, place: int, *, size: int, wait: bool) -> None:
        """``put`` for a message that is bound to no queue and came with others, in one call."""
        batch = self._with_room((prepared.topic, wait, many), None, prepared.born_ms, size)
        assert isinstance(batch, BatchOfMany)
        many.batch = batch
        batch.places.append(place)
        self._add(batch, prepared, size)

    def _with_room(self, kind: Kind, queue: MessageQueue | None, born_ms: int, size: int) -> Batch:
        """The batch that a message goes into."""
        batch = self._open.get(kind) if queue is None else self._bound.get(queue)
        if batch is None:
            return self._begin(kind, queue, born_ms)
        if batch.size + size > self._most_bytes or batch.kind[1] != kind[1]:
            self._send(batch)
            return self._begin(kind, queue, born_ms)
        return batch

    def _add(self, batch: Batch, prepared: Prepared, size: int) -> None:
        if prepared.flag:
            batch.flags[len(batch.ids)] = prepared.flag
        rest = prepared.properties[ID_BYTES + len(prepared.msg_id) :]
        plain_size = batch.plain_bytes + len(prepared.body)
        if size != plain_size or rest != batch.plain or not prepared.msg_id.isascii():
            batch.rests[len(batch.ids)] = rest
        batch.bodies.append(prepared.body)
        batch.ids.append(prepared.msg_id)
        batch.size += size
        self.held += size
        if self._closing:
            self._send(batch)
        elif (self._waiting or self._attempts.crowded) and not self._flushing:
            # Those that wait for room or for a turn wait for these; some may come in the same turn of the loop.
            self._flushing = True
            self._loop.call_soon(self.flush)
        if self._waiting:
            self._let_in()

    def _begin(self, kind: Kind, queue: MessageQueue | None, born_ms: int) -> Batch:
        letters = self._unique_ids.length
        batch: Batch
        if isinstance(kind[2], Many):
            batch = BatchOfMany(kind[2], kind, self._awaited, self._limit, born_ms, id_letters=letters)
        else:
            rules = ONCE if queue is not None else self._awaited if kind[2] else self._soon
            batch = Batch(kind, queue, rules, self._limit, born_ms, id_letters=letters)
        batch.timer = self._loop.call_later(self._delay, self._gathered, batch)
        if queue is None:
            self._unique_ids.end_run()  # its time may be hours ago, if this message had an id
            self._open[kind] = batch
        else:
            self._bound[queue] = batch
        return batch

    def put_alone(
        self, prepared: Prepared, queue: MessageQueue | None, *, size: int, limit: float
    ) -> asyncio.Future[SendResult]:
        """Sends by itself a message that is bound, behind those that were bound to its queue before."""
        assert queue is not None, "what is bound to no queue need not go behind others"
        before = self._bound.get(queue)
        if before is not None:
            self._send(before)
        future: asyncio.Future[SendResult] = self._loop.create_future()
        self.held += size
        batch = Batch((prepared.topic, True, False), queue, ONCE, limit, prepared.born_ms, alone=prepared)
        batch.size = size
        batch.bodies.append(prepared.body)
        batch.ids.append(prepared.msg_id)
        batch.futures.append(future)
        self._send(batch)
        if self._waiting:
            self._let_in()
        return future

    def own(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """A task that ``close`` waits for."""
        task = self._sending.own(work)
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        return task

    # -- leaving --------------------------------------------------------------------------

    def flush(self) -> None:
        """All that waits for company leaves."""
        self._flushing = False
        for batch in (*self._open.values(), *self._bound.values()):
            self._send(batch)

    def flush_many(self, many: Many) -> None:
        """What waits for company though no more of its call will come leaves."""
        unbound = [batch for batch in self._open.values() if batch.kind[2] is many]
        bound = [batch for batch in self._bound.values() if many.awaits(batch.futures)]
        for batch in unbound + bound:
            self._send(batch)

    async def close(self) -> None:
        """Flushes, and returns when all have their answers or the time for it is up."""
        self._closing = True
        ends = self._loop.time() + self._limit
        self.flush()
        while self._unfinished and (left := ends - self._loop.time()) > 0:
            await asyncio.wait(self._unfinished, timeout=left)

    def _gathered(self, batch: Batch) -> None:
        """The batch has waited long enough for company."""
        if batch.queue is None or batch.queue not in self._lines:
            self._send(batch)
            return
        batch.ready = self._loop.time()
        batch.timer = self._loop.call_later(batch.limit, self._send, batch)

    def _send(self, batch: Batch) -> None:
        """The batch is closed and on its way."""
        if batch.timer is not None:
            batch.timer.cancel()
            batch.timer = None
            if batch.queue is None:
                del self._open[batch.kind]
            else:
                del self._bound[batch.queue]
        place = None
        if batch.queue is not None:
            place = self._lines.join(batch.queue)
        task = self.own(self._deliver(batch, place))
        task.add_done_callback(partial(self._ended, batch, len(batch.ids), batch.size, place))

    def _ended(
        self, batch: Batch, messages: int, size: int, place: PlaceInLine | None, task: asyncio.Task[None]
    ) -> None:
        """The batch has its answer, or none will come."""
        if place is not None:
            place.leave()
            if place.left.done():
                self._got_on(batch.queue)
            else:  # it has given up, and is not the first
                place.left.add_done_callback(lambda _: self._got_on(batch.queue))
        if task.cancelled():
            batch.fail(StateError(f"producer {self._group} was closed before the answer came"))
        self.held -= size
        self._attempts.landed(messages)
        self._let_in()

    def _got_on(self, queue: MessageQueue | None) -> None:
        """A line is shorter by one; if it is empty, what has waited for that leaves."""
        if queue is None or queue in self._lines:
            return
        batch = self._bound.get(queue)
        if batch is not None and batch.ready:
            self._send(batch)
        else:
            self._stored.pop(queue, None)

    async def _come_first(
        self, queue: MessageQueue, place: PlaceInLine, limit: float, started: float
    ) -> float:
        """Waits for the answers to what was bound to the queue before.

        Returns:
            From when on the time limit counts: as long as the queue's line gets on, waiting in it is no reason to fail.

        Raises:
            RequestTimeoutError: it has not got on for so long.
        """
        while True:
            started = max(started, self._stored.get(queue, 0.0))
            left = started + limit - self._loop.time()
            if await place.come_first(max(0.0, left)):
                return max(started, self._stored.get(queue, 0.0))
            if left <= 0:
                raise RequestTimeoutError(
                    f"what was sent before to queue {queue.queue_id} of {queue.topic} at {queue.broker_name} has had "
                    f"no answer for {limit:g} s; this message was not sent"
                )

    async def _deliver(self, batch: Batch, place: PlaceInLine | None) -> None:
        started = batch.ready or self._loop.time()
        try:
            if place is not None:
                assert batch.queue is not None, "only what is bound stands in a line"
                started = await self._come_first(batch.queue, place, batch.limit, started)
            batch.drop_cancelled()
            if len(batch.ids) > 1:
                await self._deliver_together(batch, started)
            elif batch.ids:
                await self._deliver_each(batch, started)
        except Exception as error:  # of ours, too: somebody waits for each of these messages
            batch.fail(error)

    async def _deliver_together(self, batch: Batch, started: float) -> None:
        try:
            result = await self._sending.deliver(
                batch.request(), batch.rules, batch.limit, started=started, chosen=batch.queue
            )
        except MessageIllegalError:
            # Nothing is stored. What the broker does not like may be one of them, and only that one shall fail.
            await self._deliver_each(batch, started)
        else:
            self._note_stored(batch)
            batch.settle(result)

    async def _deliver_each(self, batch: Batch, started: float) -> None:
        """One after the other. As long as the broker answers, waiting for those before is no reason to fail."""
        for place in range(len(batch.ids)):
            if not batch.awaits(place):
                continue
            try:
                result = await self._sending.deliver(
                    batch.message(place), batch.rules, batch.limit, started=started, chosen=batch.queue
                )
            except RocketMQError as error:
                answered = isinstance(error, ResponseError)
                batch.tell(place, error)
            else:
                answered = True
                self._note_stored(batch)
                batch.tell(place, result)
            if answered:
                started = self._loop.time()

    def _note_stored(self, batch: Batch) -> None:
        if batch.queue is not None:
            self._stored[batch.queue] = self._loop.time()


def item_bytes(prepared: Prepared) -> tuple[int, bool]:
    """The bytes that a message takes in a batch, and whether its properties fit there."""
    properties = prepared.properties
    length = len(properties) if properties.isascii() else len(properties.encode())
    return ITEM_BYTES + len(prepared.body) + length, length <= MAX_PROPERTIES
