"""What a task does: pulls of its ranges in flight, their answers joined, decoded and cut to the range.

A pull of Apache's broker brings 32 messages. So, if there is no tag filter, consecutive pieces of a range are
asked for at once, and what an answer lacks is asked for again. Our broker brings what ``maxMsgBytes`` allows;
then two pulls under way are enough, and an answer is a batch. How much a pull brings is learnt from the
answers; nobody has to know whose broker it is.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.errors import RemoteProtocolError, ResponseError, RocketMQError, SystemBusyError, TransportError
from gimbalmq.filter.tags import parse_tags
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.messages import PullMessage, PullMessageReply
from gimbalmq.rpc.messages import PULL_ANSWERS, PULL_SUBSCRIPTION
from gimbalmq.spark.cluster import Cluster, backoff
from gimbalmq.spark.decode import decode
from gimbalmq.spark.duplicates import Duplicates
from gimbalmq.spark.offsets import Bounds, Loss, loss_error
from gimbalmq.spark.options import MAX_PULL_BYTES, SourceSettings, TopicChoice
from gimbalmq.spark.planning import Partition, QueueRange
from gimbalmq.spark.wire import Wire, process_wire

log = logging.getLogger(__name__)

MAX_COUNT: Final = 65_536
"""Messages one pull may ask for."""
JOIN_ROWS: Final = 16_384
"""An Arrow batch is sent on when it has about so many rows, or ``pullBytes``."""
_GUESSED_BYTES: Final = 512
"""Of a message, as long as a queue has given none."""
HELD_ANSWERS: Final = 32
"""Answers that must come before longer ones are tried again than the broker gave last."""

Body = bytes | bytearray | memoryview


class FetchError(RocketMQError):
    """A broker did not give what it should, however often it was asked."""


class _Answer(NamedTuple):
    """What a pull brought.

    Attributes:
        covers: offsets; not all of them need have a message.
        high: where to cut it off; None if it ends within what was asked for.
    """

    body: Body
    covers: int
    high: int | None


class _Piece:
    """A stretch of a range that is asked for by itself."""

    __slots__ = ("answers", "asked", "position", "stop")

    def __init__(self, start: int, stop: int) -> None:
        self.position = start
        self.stop = stop
        self.answers: list[_Answer] = []
        self.asked = False
        """Whether a pull for the rest of it is under way."""


class _Cursor:
    """One range being read."""

    __slots__ = ("held", "message_bytes", "next_piece", "pieces", "range", "step", "waiting")

    def __init__(self, wanted: QueueRange) -> None:
        self.range = wanted
        self.next_piece = wanted.start
        self.pieces: deque[_Piece] = deque()
        self.step: int | None = None
        """Messages a pull brings; None before the first answer."""
        self.held = 0
        self.message_bytes = 0.0
        self.waiting = 0
        """Bytes of answers whose turn has not come."""

    @property
    def queue(self) -> MessageQueue:
        return self.range.queue

    @property
    def done(self) -> bool:
        return not self.pieces and self.next_piece >= self.range.end

    def give_back_rest_of(self, piece: _Piece) -> None:
        """A piece that was longer than an answer, with nothing asked for behind it, ends where the answer did:
        its rest is then asked for in pieces of the right length, many at once."""
        if piece is self.pieces[-1]:
            piece.stop = self.next_piece = piece.position

    def learn(self, asked: int, count: int, size: int, pull_bytes: int) -> None:
        """How much to ask for, from what an answer brought."""
        self.message_bytes = max(1.0, size / max(1, count))
        fitting = max(1, int(pull_bytes / self.message_bytes))
        if count < asked:
            self.step, self.held = min(fitting, count), HELD_ANSWERS
        elif self.step is not None:
            self.held -= 1
            grown = self.step if self.held > 0 else self.step * 2
            self.step = max(1, min(fitting, grown, MAX_COUNT))


class PartitionReader:
    """Reads the ranges of one partition in order.

    Args:
        addresses: of brokers by name, as the planner knew them.
        sleep: how pauses between attempts are made.
    """

    def __init__(
        self,
        settings: SourceSettings,
        wire: Wire,
        addresses: dict[str, str],
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._wire = wire
        self._addresses = dict(addresses)
        self._sleep = sleep
        self._filter = parse_tags(settings.tags)
        self._cursors: deque[_Cursor] = deque()
        self._out: dict[str, dict[int, tuple[_Cursor, _Piece, int]]] = {}
        """Pulls under way: by address and opaque, with the number of messages asked for."""
        self._waiting = 0
        """Bytes of answers of all ranges whose turn has not come."""
        self._pauses = iter(backoff(settings))
        self._quiet = False
        self._begins = 0

    # -- batches ---------------------------------------------------------------------

    def batches(self, partition: Partition, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if self._settings.drop_duplicates:
            yield from self._without_duplicates(partition, names)
        else:
            yield from self._decoded(partition, names)

    def _decoded(self, partition: Partition, names: Sequence[str]) -> Generator[pa.RecordBatch]:
        """Answers joined to batches; short ranges of one broker share a batch."""
        # What would take a batch far beyond pullBytes begins the next.
        most = self._settings.pull_bytes * 1.25
        held: list[Body] = []
        size = rows = 0
        broker = ""
        for queue, answer in self._answers(partition):
            alone = answer.high is not None
            full = size + len(answer.body) > most or rows >= JOIN_ROWS
            if held and (alone or full or queue.broker_name != broker):
                yield self._batch(held, names, broker)
                held, size, rows = [], 0, 0
            broker = queue.broker_name
            if alone:
                yield self._batch([answer.body], names, broker, answer.high)
                continue
            held.append(answer.body)
            size += len(answer.body)
            rows += answer.covers
        if held:
            yield self._batch(held, names, broker)

    def _batch(
        self, bodies: list[Body], names: Sequence[str], broker: str, high: int | None = None
    ) -> pa.RecordBatch:
        settings = self._settings
        batch = decode(
            bodies[0] if len(bodies) == 1 else b"".join(bodies),
            names,
            broker=broker,
            high=high,
            tags=self._filter.tags,
            on_error=settings.on_decode_error,
            check_crc=settings.check_crc,
        )
        for body in bodies:  # a batch has copies of all it needs
            self._wire.buffers.give_back(body)
        return batch

    def _without_duplicates(self, partition: Partition, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Drops rows whose id came before, in the ranges or on the way back from them.

        The ranges are read side by side. A copy is then met soon after the first one, while its id is remembered.
        """
        columns = [*names, *(name for name in ("rowId", "storeTimestamp") if name not in names)]
        ranges = [wanted for wanted in partition if wanted.length]
        with ExitStack() as ends:
            # Their own connections: answers to the pulls of another range may be on their way.
            wires = [ends.enter_context(closing(Wire(self._settings.connection))) for _ in ranges]
            finding = Duplicates(
                partition, lambda back: self._look_back(wires[0], back), self._settings.duplicate_lookback
            )
            readers = [self, *map(self._with_wire, wires[1:])]
            found = [
                ends.enter_context(closing(reader._decoded((wanted,), columns)))
                for reader, wanted in zip(readers, ranges, strict=False)
            ]
            for batch in _by_time(found, columns.index("storeTimestamp")):
                keep = finding.first_copies(batch.column(columns.index("rowId")))
                kept = batch if keep.all() else batch.filter(pa.array(keep))
                yield kept.select(list(names)) if len(columns) > len(names) else kept

    def _with_wire(self, wire: Wire) -> PartitionReader:
        return PartitionReader(self._settings, wire, self._addresses, sleep=self._sleep)

    def _look_back(self, wire: Wire, back: QueueRange) -> tuple[list[pa.RecordBatch], int]:
        looking = self._with_wire(wire)
        looking._quiet = True  # what retention has taken is no loss here
        looking._begins = back.start
        return list(looking._decoded((back,), ("rowId", "storeTimestamp"))), looking._begins

    # -- bodies ----------------------------------------------------------------------

    def _answers(self, partition: Partition) -> Iterator[tuple[MessageQueue, _Answer]]:
        """What the pulls brought, in the order of the ranges and offsets."""
        self._cursors = deque(_Cursor(wanted) for wanted in partition if wanted.length)
        self._waiting = 0
        try:
            while self._cursors:
                cursor = self._cursors[0]
                self._ask()
                piece = cursor.pieces[0]
                while piece.position < piece.stop and not piece.answers:
                    self._receive(self._address(cursor.queue))
                for answer in piece.answers:
                    cursor.waiting -= len(answer.body)
                    self._waiting -= len(answer.body)
                    yield cursor.queue, answer
                piece.answers = []
                if piece.position >= piece.stop:
                    cursor.pieces.popleft()
                    if cursor.done:
                        self._cursors.popleft()
        finally:
            # A reader that stops early (LIMIT) leaves answers on their way: nobody else may read them.
            for address in [address for address, out in self._out.items() if out]:
                self._wire.drop(address)

    def _address(self, queue: MessageQueue) -> str:
        return self._addresses.get(queue.broker_name, "")

    def _ask(self) -> None:
        """Fills the pulls in flight, the first range's before the others'."""
        settings = self._settings
        under_way = sum(map(len, self._out.values()))
        frames: dict[str, list[bytes]] = {}
        room = settings.pulls_in_flight - under_way
        promised = 2.0 * settings.pull_bytes - sum(
            self._expected(cursor, asked) for out in self._out.values() for cursor, _, asked in out.values()
        )
        first = self._cursors[0]
        for cursor in self._cursors:
            if cursor is not first and (room <= 0 or promised <= self._waiting - first.waiting):
                break  # what has come for later ranges takes memory, too
            for piece in cursor.pieces:
                if not piece.asked and piece.position < piece.stop:
                    self._pull(cursor, piece, frames)
                    room -= 1
                    promised -= self._expected(cursor, min(MAX_COUNT, piece.stop - piece.position))
            while (room > 0 and promised > 0) or (cursor is first and not cursor.pieces):
                following = self._next_piece(cursor)
                if following is None:
                    break
                cursor.pieces.append(following)
                self._pull(cursor, following, frames)
                room -= 1
                promised -= self._expected(cursor, following.stop - following.position)
        for address, parts in frames.items():
            try:
                self._wire.link(address).send(b"".join(parts))
            except RocketMQError as error:
                self._failed(address, error)

    def _expected(self, cursor: _Cursor, count: int) -> float:
        """Bytes of an answer, about; all that are under way are held until the first range has been read."""
        if cursor.message_bytes:
            return count * cursor.message_bytes
        return min(count * _GUESSED_BYTES, self._settings.pull_bytes)

    def _next_piece(self, cursor: _Cursor) -> _Piece | None:
        start, end = cursor.next_piece, cursor.range.end
        if start >= end:
            return None
        if self._filter.tags is not None:
            # Nobody knows how far a filtered pull gets, so the whole range is one piece, asked for bit by bit.
            cursor.next_piece = end
            return _Piece(start, end)
        if cursor.step is None:
            if cursor.pieces:
                return None
            stop = min(end, start + MAX_COUNT)
        else:
            stop = min(end, start + cursor.step)
        cursor.next_piece = stop
        return _Piece(start, stop)

    def _pull(self, cursor: _Cursor, piece: _Piece, frames: dict[str, list[bytes]]) -> None:
        settings, queue = self._settings, cursor.queue
        count = min(MAX_COUNT, piece.stop - piece.position)
        limit = settings.pull_bytes if cursor.step is None else settings.pull_bytes * 2
        header = PullMessage(
            consumer_group=settings.pull_group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=piece.position,
            max_msg_nums=count,
            sys_flag=PULL_SUBSCRIPTION,
            subscription=settings.tags,
            expression_type="TAG",
            max_msg_bytes=min(limit, MAX_PULL_BYTES),
            bname=queue.broker_name,
        )
        command = RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext())
        address = self._address(queue)
        frames.setdefault(address, []).append(self._wire.frame(command))
        self._out.setdefault(address, {})[command.opaque] = (cursor, piece, count)
        piece.asked = True

    # -- answers ---------------------------------------------------------------------

    def _receive(self, address: str) -> None:
        """Takes the next answer from a broker; asks if nothing is under way."""
        out = self._out.get(address)
        if not out:
            self._ask()
            return
        try:
            answer = self._wire.receive(address, SYSTEM_CLOCK.monotonic() + self._settings.pull_timeout)
        except (TransportError, RemoteProtocolError) as error:
            self._failed(address, error)
            return
        found = out.pop(answer.opaque, None)
        if found is None:
            return
        cursor, piece, asked = found
        piece.asked = False
        try:
            self._take(answer, cursor, piece, asked, address)
        except ResponseError as error:
            if not error.retriable:
                raise _explained(error, cursor.queue, self._settings) from error
            self._pause(f"pulling {_told(cursor.queue)} at {piece.position}", error)
            # A slave may let nobody read (Apache's 5.x say that they are busy); its master may be back.
            if error.stale_route or isinstance(error, SystemBusyError):
                self._look_up()
        self._ask()

    def _take(
        self, answer: RemotingCommand, cursor: _Cursor, piece: _Piece, asked: int, address: str
    ) -> None:
        if answer.code not in PULL_ANSWERS:
            raise ResponseError.for_code(answer.code, answer.remark, address)
        reply = PullMessageReply.from_ext(answer.ext_fields)
        following, bounds = reply.next_begin_offset, Bounds(reply.min_offset, reply.max_offset)
        moved_on = following > piece.position
        if moved_on and answer.code == ResponseCode.SUCCESS:
            count = following - piece.position
            if self._filter.tags is None:
                cursor.learn(asked, count, len(answer.body), self._settings.pull_bytes)
            over = following > piece.stop
            piece.answers.append(_Answer(answer.body, count, piece.stop if over else None))
            cursor.waiting += len(answer.body)
            self._waiting += len(answer.body)
            piece.position = min(following, piece.stop)
            if self._filter.tags is None:
                cursor.give_back_rest_of(piece)
            self._pauses = iter(backoff(self._settings))
        elif moved_on and answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            piece.position = min(following, piece.stop)
            self._pauses = iter(backoff(self._settings))
        elif answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            # A slave that does not have the offset, and so does not know whether it is lost: only its master can say.
            behind = ResponseError(
                f"the slave has offsets {bounds.low} to {bounds.high} of it, and its master is away",
                code=answer.code,
                address=address,
            )
            self._pause(f"reading {_told(cursor.queue)} at {piece.position}", behind)
            self._look_up()
        elif not bounds.low <= piece.position <= bounds.high:
            self._lost(cursor, piece, bounds)
        else:
            # The planner saw it and it is not there: a replica that is behind, or a queue that lost its end.
            nothing = ResponseError(answer.remark or "", code=answer.code, address=address)
            try:
                self._pause(f"reading {_told(cursor.queue)} at {piece.position}", nothing)
            except FetchError:
                if piece.position < bounds.high:
                    raise
                self._lost(cursor, piece, bounds)

    def _lost(self, cursor: _Cursor, piece: _Piece, bounds: Bounds) -> None:
        loss = Loss(cursor.queue, piece.position, bounds)
        if not self._quiet:
            if self._settings.fail_on_data_loss:
                raise loss_error([loss])
            log.warning("%s; going on", loss)
        below = piece.position < bounds.low
        self._begins = max(self._begins, bounds.low)
        piece.position = min(max(piece.position, bounds.low), piece.stop) if below else piece.stop

    # -- failures --------------------------------------------------------------------

    def _failed(self, address: str, error: RocketMQError) -> None:
        """A broker that is gone for the moment: all its pulls are made again, where it is then."""
        self._give_up(address)
        cursor = self._cursors[0]
        self._pause(f"pulling {_told(cursor.queue)} from {address or 'its broker'}", error)
        self._look_up()

    def _give_up(self, address: str) -> None:
        """No answer from there counts any more."""
        self._wire.drop(address)
        for _, piece, _ in self._out.pop(address, {}).values():
            piece.asked = False

    def _pause(self, what: str, error: RocketMQError) -> None:
        pause = next(self._pauses, None)
        if pause is None:
            raise FetchError(
                f"{what} failed after {self._settings.fetch_retries + 1} attempts: {error}; check that the "
                "broker runs and can be reached from Spark's executors, or raise fetchRetries"
            ) from error
        log.warning("%s failed, once more in %g s: %s", what, pause, error)
        self._sleep(pause)

    def _look_up(self) -> None:
        """Asks where the brokers are now; who is nowhere is looked for where it was."""
        queues = [cursor.queue for cursor in self._cursors]
        topics = TopicChoice(named=tuple(dict.fromkeys(queue.topic for queue in queues)))
        # One attempt: the pull that failed is what is tried again.
        cluster = Cluster(replace(self._settings, topics=topics, fetch_retries=0), self._wire)
        try:
            cluster.queues()
        except RocketMQError as error:
            log.warning("the route could not be asked for: %s", error)
            return
        for name, address in cluster.addresses(queues).items():
            before = self._addresses.get(name, "")
            if address and address != before:
                self._addresses[name] = address
                self._give_up(before)  # nobody would look for answers there


def _by_time(ranges: Iterable[Iterator[pa.RecordBatch]], column: int) -> Iterator[pa.RecordBatch]:
    """Batches of several ranges, about as they were stored: the range that is furthest behind is read on.

    Args:
        column: which one is the store time.
    """
    heap = [(-1, number, batches) for number, batches in enumerate(ranges)]
    while heap:
        reached, number, batches = heap[0]
        batch = next(batches, None)
        if batch is None:
            heapq.heappop(heap)
            continue
        yield batch
        stored = pc.max(batch.column(column).cast(pa.int64())).as_py()
        heapq.heapreplace(heap, (reached if stored is None else max(reached, stored), number, batches))


def _told(queue: MessageQueue) -> str:
    return f"queue {queue.queue_id} of {queue.topic} at {queue.broker_name}"


def _explained(error: ResponseError, queue: MessageQueue, settings: SourceSettings) -> RocketMQError:
    remedy = {
        int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST): f"create the consumer group {settings.pull_group}",
        int(ResponseCode.NO_PERMISSION): "let the group, or the accessKey, read the topic",
    }.get(error.code, "see the broker's log")
    return FetchError(f"{_told(queue)} cannot be pulled: {error}; {remedy}")


def read_partition(
    settings: SourceSettings, partition: Partition, addresses: dict[str, str], names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, over the connections of this process."""
    reader = PartitionReader(settings, process_wire(settings.connection), addresses)
    return reader.batches(partition, names)
