"""Sending, the fast way: a run of ordinary messages (310) off one socket read.

Ordinary messages to known topics are nearly all traffic. They are appended in one group and answered in one write, and
the header of each is decoded once, straight into a struct (send_header.py); or, if many are alike, all of them at once
(send_runs.py, and send_answers.py for their answers). Whatever asks for more than being stored (a new topic, a delay, a
transaction, a retry, another encoding) goes the plain way (send.py), one message at a time; all ways end in the same
store and the same answer.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import msgspec

from gimbalmq.access.gate import Gate, NotAdmitted
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.handlers.send import ORDINARY_FLAGS, cluster_property, trace_fields
from gimbalmq.broker.handlers.send_header import SEND, SendHeader, admitted, decode_header
from gimbalmq.broker.replication.acknowledging import Acknowledging
from gimbalmq.broker.stats import Stats
from gimbalmq.broker.topics import Topics
from gimbalmq.broker.writer import Writer
from gimbalmq.errors import StoreError
from gimbalmq.model import properties as prop
from gimbalmq.model import topics as names
from gimbalmq.model.flags import PERM_WRITE
from gimbalmq.model.javahash import tag_hash
from gimbalmq.model.record import MAX_PROPERTIES
from gimbalmq.protocol.codes import OUR_VERSION, RequestCode, ResponseCode
from gimbalmq.protocol.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand
from gimbalmq.protocol.frames import Frame
from gimbalmq.store.append import AppendGroup
from gimbalmq.store.consumequeue import QueueLog
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.channel import Channel, Handlers

if TYPE_CHECKING:
    from gimbalmq.broker.handlers.send_answers import AnswerLetters
    from gimbalmq.broker.handlers.send_runs import HeaderPart, Ordinary, Shapes
    from gimbalmq.store.vectors import Numbers

log = logging.getLogger(__name__)

_UNIQUE = f"{prop.UNIQ_KEY}\x01"
_UNIQUE_LENGTH = len(_UNIQUE)
_NOT_ORDINARY = ~ORDINARY_FLAGS

_LEAST_RUN = 64
"""So many messages at once are taken by vectors; fewer sooner one by one."""

_MOST_SKIPPED = 64
"""So many runs of a connection are passed over at most, after one whose messages were like no others."""

_Answered = tuple[int, int, str, bool, int, int]
"""Opaque, queue id, unique key, waits for the disk or slaves, commit-log offset, queue offset."""

_PLAIN_PER_RUN = 32
"""So many frames of a run may go the plain way, which takes ten times as long, before others have their turn."""

_Tail = tuple[bool, bytes, int, bool]
"""Of the properties behind the unique key: whether they are ordinary, their bytes, tags code, WAIT."""

_TAILS_KEPT = 4096
_TAIL_LENGTH_KEPT = 512
"""Long ones seldom repeat, and a peer that sends only such must not fill our memory."""


class FastSendHandlers:
    """Takes runs of raw 310 frames; what is not ordinary among them it gives back to the channel."""

    def __init__(
        self,
        store: MessageStore,
        writer: Writer,
        topics: Topics,
        acknowledging: Acknowledging,
        live: LiveConfig,
        stats: Stats,
        store_host: bytes,
        gate: Gate | None = None,
    ) -> None:
        self._store = store
        self._writer = writer
        self._topics = topics
        self._acknowledging = acknowledging
        self._live = live
        self._stats = stats
        self._gate = gate
        self._id_prefix = store_host.hex().upper()
        self._queues: dict[tuple[str, int], QueueLog] = {}
        """Queues that ordinary messages may go to, as found under the tables and the configuration of then."""
        self._queues_of = (-1, -1)
        self._tails: dict[str, _Tail] = {}
        self._shapes: Shapes | None = None
        self._unlike: WeakKeyDictionary[Channel, tuple[int, int]] = WeakKeyDictionary()
        """Connections whose messages were like no others: how many runs are passed over now, how many the next time."""
        self._answer_head = ""
        self._cluster_property = cluster_property(live.now)

    def register(self, handlers: Handlers) -> None:
        handlers.add_batch(RequestCode.SEND_MESSAGE_V2, self.batch, checks=self._gate is not None)

    def batch(self, channel: Channel, frames: list[Frame]) -> int:
        """A run of 310 frames of one connection, in order; how many of them are done."""
        try:
            return self._take(channel, frames)
        except BaseException:  # out of memory, for one: a group that stayed open would refuse all others
            self._store.abort_group()
            raise

    def _take(self, channel: Channel, frames: list[Frame]) -> int:
        config = self._live.now
        sync = self._acknowledging.waits
        refused = sync and self._acknowledging.refusal() is not None
        limit = config.max_message_size
        host = channel.peer_bytes
        if self._queues_of != (self._topics.generation, self._live.version):
            self._queues.clear()
            self._queues_of = (self._topics.generation, self._live.version)
            region, trace = json.dumps(config.region_id), str(config.trace_on).lower()
            self._answer_head = (
                f'"extFields":{{"MSG_REGION":{region},"TRACE_ON":"{trace}","msgId":"{self._id_prefix}'
            )
        queues, gate = self._queues, self._gate
        taken = 0
        if gate is None and len(frames) >= _LEAST_RUN and self._may_be_alike(channel):
            while len(frames) - taken >= _LEAST_RUN:
                number = self._take_run(channel, frames[taken:] if taken else frames, sync, refused)
                if not number:
                    break
                taken += number
        group: AppendGroup | None = None
        done: list[_Answered] = []
        counts: dict[str, list[int]] = {}
        counted, count = "", [0, 0]
        plain = 0
        for number, frame in enumerate(frames[taken:] if taken else frames, taken + 1):
            body = frame[2]
            queue = None
            try:
                header = decode_header(frame[1]) if gate is None else admitted(gate, channel, frame)
                reading = self._read(header)
                if reading is not None and 0 < len(body) <= limit:
                    unique_at, unique_end, tail = reading
                    fields = header.extFields
                    text = fields.i
                    topic = fields.b
                    if not (refused and tail[3]):  # the plain way says why
                        key = (topic, fields.e)
                        queue = queues.get(key) or self._find_queue(key)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, NotAdmitted):
                pass
            if queue is not None and group is None:
                try:
                    group = self._store.group()
                except StoreError:
                    # The plain way says it to the client in the protocol's words.
                    queue = None
            placed = None
            if queue is not None and group is not None:
                try:
                    placed = group.add(
                        queue,
                        body,
                        text[:unique_end].encode() + tail[1],
                        tail[2],
                        fields.h,
                        fields.f,
                        fields.g,
                        host,
                        fields.j,
                        0,
                    )
                except (StoreError, struct.error):
                    pass  # it fits no record; the plain way says why, and the group so far stands
            if placed is None:
                if group is not None:
                    self._finish(channel, group, done, counts)
                    group, done, counted = None, [], ""
                channel.handle_frame(frame)
                plain += 1
                if plain == _PLAIN_PER_RUN:
                    return number
                continue
            if topic != counted:
                count = counts.setdefault(topic, [0, 0])
                counted = topic
            count[0] += 1
            count[1] += len(body)
            if not header.flag & ONEWAY_FLAG:
                unique = text[unique_at + _UNIQUE_LENGTH : unique_end]
                waits = sync and tail[3]
                done.append((header.opaque, fields.e, unique, waits, *placed))
        if group is not None:
            self._finish(channel, group, done, counts)
        return len(frames)

    def _read(self, header: SendHeader) -> tuple[int, int, _Tail] | None:
        """Of one that asks for nothing but being stored: where its unique key begins and ends, and what follows."""
        fields = header.extFields
        text = fields.i
        unique_at = text.find(_UNIQUE)
        unique_end = text.find("\x02", unique_at)
        if (
            header.code == SEND
            and not fields.m
            and not fields.f & _NOT_ORDINARY
            and unique_at >= 0
            and unique_end > unique_at + _UNIQUE_LENGTH
            and len(text) < MAX_PROPERTIES // 4
            and prop.ZEROS not in text
        ):
            end = text[unique_end:]
            tail = self._tails.get(end) or self._read_tail(end)
            if tail[0] and (not unique_at or _ordinary_head(text[:unique_at])):
                return unique_at, unique_end, tail
        return None

    def _take_run(self, channel: Channel, frames: list[Frame], sync: bool, refused: bool) -> int:
        """Takes the first frames by vectors if most of them are like others; how many, or 0."""
        # Here, not above: a broker without messages has no use for numpy.
        from gimbalmq.broker.handlers import send_runs
        from gimbalmq.store.append_vectors import add_run

        if self._shapes is None:
            self._shapes = send_runs.Shapes(self._ordinary)
        _, headers, bodies = zip(*frames, strict=True)
        found = self._shapes.sort(headers)
        if found is None:
            skipped = self._unlike.get(channel, (0, 1))[1]
            self._unlike[channel] = skipped, min(2 * skipped, _MOST_SKIPPED)
            return 0
        if self._unlike:
            self._unlike.pop(channel, None)
        if refused and any(part.first.waits for part in found.parts):
            return 0
        sizes = send_runs.sizes_of(bodies)
        count = send_runs.first_outside(sizes, self._live.now.max_message_size)
        singles: list[tuple[int, Ordinary]] = []
        for number in found.others:
            if number >= count:
                break
            single = self._ordinary(headers[number])
            if single is None or (refused and single.waits):
                count = number  # the plain way takes it
                break
            singles.append((number, single))
        parts = found.before(count)
        if count < _LEAST_RUN or not parts:  # those that are alike may all come later
            return 0
        sends = send_runs.Sends(parts, singles, bodies[:count], sizes[:count])
        run = sends.run(self._queue_of, channel.peer_bytes)
        if run is None:
            return 0
        try:
            group = self._store.group()
        except StoreError:
            return 0  # as below: the plain way says why
        try:
            places, offsets = add_run(group, run)
        except (StoreError, struct.error):  # it fits no record
            group.abort()
            return 0
        touched = self._commit(channel, group, sends.opaques)
        if touched is None:
            return count
        for topic, (number, size) in sends.counts().items():
            self._stats.put(topic, number, size)
        answered = [part for part in sends.parts if not part.first.header.flag & ONEWAY_FLAG]
        kept = [part for part in answered if part.first.waits] if sync else []
        now = [part for part in answered if not part.first.waits] if sync else answered

        def made(parts: list[HeaderPart]) -> list[Callable[[int], bytes]]:
            return [
                partial(self._run_answers, letters, places[chosen], offsets[chosen])
                for letters, chosen in send_runs.joined_letters(parts)
            ]

        done: list[_Answered] = []
        if singles:
            numbers = [number for number, _ in singles]
            placed = zip(places[numbers].tolist(), offsets[numbers].tolist(), strict=True)
            for (_, single), (place, offset) in zip(singles, placed, strict=True):
                of = single.header
                if not of.flag & ONEWAY_FLAG:
                    done.append(
                        (of.opaque, of.extFields.e, single.unique, sync and single.waits, place, offset)
                    )
        self._answer(channel, done, made(now), made(kept), sum(map(len, kept)))
        self._writer.arrived(touched)
        return count

    def _may_be_alike(self, channel: Channel) -> bool:
        """Whether to look: looking in vain costs half of what is gained otherwise."""
        skips, next_time = self._unlike.get(channel, (0, 0)) if self._unlike else (0, 0)
        if skips:
            self._unlike[channel] = skips - 1, next_time
        return not skips

    def _queue_of(self, key: tuple[str, int]) -> QueueLog | None:
        return self._queues.get(key) or self._find_queue(key)

    def _ordinary(self, raw: bytes) -> Ordinary | None:
        """What a header means for the store, if that is all it asks for."""
        from gimbalmq.broker.handlers.send_runs import Ordinary

        try:
            header = decode_header(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        reading = self._read(header)
        if reading is None:
            return None
        unique_at, unique_end, tail = reading
        text = header.extFields.i
        unique_at += _UNIQUE_LENGTH
        properties = text[:unique_end].encode() + tail[1]
        before = len(text[:unique_at].encode())
        return Ordinary(header, properties, before, text[unique_at:unique_end], tail[2], tail[3])

    def _read_tail(self, text: str) -> _Tail:
        """Properties from the end of the unique key on; they repeat, so each is read once."""
        if len(self._tails) >= _TAILS_KEPT:
            self._tails.clear()
        ordinary = _no_special(text) and f"\x02{_UNIQUE}" not in text
        closed = text if text[-1] == "\x02" else text + "\x02"
        tag = prop.find(text, prop.TAGS)
        waits = prop.find(text, prop.WAIT) != "false"
        tail = (
            ordinary,
            (closed + self._cluster_property).encode() if ordinary else b"",
            tag_hash(tag) if tag else 0,
            waits,
        )
        if len(text) <= _TAIL_LENGTH_KEPT:
            self._tails[text] = tail
        return tail

    def _find_queue(self, key: tuple[str, int]) -> QueueLog | None:
        """The queue of a topic that needs no further thought; None sends the message the plain way."""
        topic, queue_id = key
        config = self._topics.find(topic)
        if (
            config is not None
            and config.perm & PERM_WRITE
            and self._live.now.broker_permission & PERM_WRITE
            and 0 <= queue_id < max(config.write_queue_nums, config.read_queue_nums)
            and topic not in names.FORBIDDEN_TO_SEND
            and topic != names.TIMER_TOPIC
            and names.topic_problem(topic) is None
            and not topic.startswith(names.RETRY_PREFIX)
        ):
            queue = self._queues[key] = self._store.queue(topic, queue_id)
            return queue
        return None

    def _finish(
        self,
        channel: Channel,
        group: AppendGroup,
        done: list[_Answered],
        counts: dict[str, list[int]],
    ) -> None:
        """Commits a group and answers its messages, now or when the disk and the slaves have them."""
        touched = self._commit(channel, group, lambda: [item[0] for item in done])
        if touched is None:
            counts.clear()
            return
        for topic, (count, size) in counts.items():
            self._stats.put(topic, count, size)
        counts.clear()
        self._answer(channel, done, [], [], 0)
        self._writer.arrived(touched)

    def _answer(
        self,
        channel: Channel,
        done: list[_Answered],
        now: list[Callable[[int], bytes]],
        kept: list[Callable[[int], bytes]],
        waiting: int,
    ) -> None:
        """Answers messages, now or when the disk and the slaves have them.

        Args:
            done: each says whether it waits.
            now, kept: make the answers of those that do not wait, and of those that do.
            waiting: so many answers ``kept`` makes.
        """
        waits = [item for item in done if item[3]]
        if waits:
            done = [item for item in done if not item[3]]
            kept = [*kept, partial(self._answers, waits)]
        if kept:
            later = kept[0] if len(kept) == 1 else lambda code: b"".join([make(code) for make in kept])
            self._answer_when_kept(channel, waiting + len(waits), later)
        for make in now:
            channel.send_bytes(make(ResponseCode.SUCCESS))
        if done:
            channel.send_bytes(self._answers(done, ResponseCode.SUCCESS))

    def _commit(
        self, channel: Channel, group: AppendGroup, opaques: Callable[[], Iterable[int]]
    ) -> list[QueueLog] | None:
        """The queues that grew; None if the messages could not be stored, which their senders are told then."""
        try:
            return group.commit()
        except StoreError as error:
            log.error("messages of %s could not be stored: %s", channel.address, error)
            for opaque in opaques():
                channel.send(
                    RemotingCommand(
                        ResponseCode.SERVICE_NOT_AVAILABLE,
                        trace_fields(self._live.now),
                        opaque=opaque,
                        flag=RESPONSE_FLAG,
                        remark=f"service not available now: {error}",
                    )
                )
            return None

    def _answer_when_kept(self, channel: Channel, count: int, answers: Callable[[int], bytes]) -> None:
        """Answers messages when the disk and the slaves have them, with the code that they get then."""
        code = self._acknowledging.settle(self._store.max_commitlog_offset)
        if isinstance(code, ResponseCode):
            channel.send_bytes(answers(code))
        else:
            channel.began(count)
            code.then(partial(self._answer_later, channel, count, answers))

    def _answer_later(
        self, channel: Channel, count: int, answers: Callable[[int], bytes], code: ResponseCode
    ) -> None:
        try:
            channel.send_bytes(answers(code))
        finally:
            channel.finished(count)

    def _answers(self, done: list[_Answered], code: int) -> bytes:
        """The answers of a group as bytes, from a template: encoding each would cost more than storing it."""
        head = self._head(code)
        parts: list[str] = []
        prefixes = _FRAME_PREFIXES
        for opaque, queue_id, unique, _, commitlog_offset, queue_offset in done:
            if not (unique.isascii() and unique.isalnum()):
                unique = json.dumps(unique)[1:-1]
            header = (
                f"{head}{commitlog_offset:016X}{_QUEUE_ID}{queue_id}{_QUEUE_OFFSET}{queue_offset}"
                f"{_TRANSACTION}{unique}{_OPAQUE}{opaque}{_END}"
            )
            length = len(header)
            parts += (prefixes[length] if length < 1024 else _prefix(length), header)
        # All of it is ASCII but the length words, so one encoding of the whole serves.
        return "".join(parts).encode("latin-1")

    def _run_answers(self, letters: AnswerLetters, places: Numbers, offsets: Numbers, code: int) -> bytes:
        from gimbalmq.broker.handlers.send_answers import AnswerTexts, answers

        texts = AnswerTexts(self._head(code), _QUEUE_ID, _QUEUE_OFFSET, _TRANSACTION, _OPAQUE, _END)
        return answers(texts, letters, places, offsets)

    def _head(self, code: int) -> str:
        return f'{{"code":{code:d},{self._answer_head}'


_QUEUE_ID = '","queueId":"'
_QUEUE_OFFSET = '","queueOffset":"'
_TRANSACTION = '","transactionId":"'
_OPAQUE = f'"}},"flag":{RESPONSE_FLAG},"language":"PYTHON","opaque":'
_END = f',"serializeTypeCurrentRPC":"JSON","version":{OUR_VERSION}}}'
"""What stands between the values of an answer."""


def _prefix(header_bytes: int) -> str:
    return ((header_bytes + 4).to_bytes(4, "big") + header_bytes.to_bytes(4, "big")).decode("latin-1")


_FRAME_PREFIXES = tuple(map(_prefix, range(1024)))
"""Length words of a frame without body, as text, by the length of its header."""


def _no_special(text: str) -> bool:
    """Nothing in these properties asks for more than being stored; a false alarm only costs time."""
    return (
        "DELAY\x01" not in text
        and "TIMER_" not in text
        and "TRAN_MSG\x01" not in text
        and "CLUSTER\x01" not in text
        and "\x01\x02" not in text
        and text[-1] != "\x01"
    )


def _ordinary_head(text: str) -> bool:
    """The same of what stands before the unique key; what decides elsewhere must stand behind it."""
    return text[-1] == "\x02" and "TAGS\x01" not in text and "WAIT\x01" not in text and _no_special(text)
