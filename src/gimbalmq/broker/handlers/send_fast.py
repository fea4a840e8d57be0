"""Sending, the fast way: a run of ordinary messages (310) off one socket read.

Ordinary messages to known topics are nearly all traffic. They are appended in one group and answered in one write, and
the header of each is decoded once, straight into a struct. Whatever asks for more than being stored (a new topic, a
delay, a transaction, a retry, another encoding) goes the plain way (send.py), one message at a time; both ways end
in the same store and the same answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from functools import partial

import msgspec

from gimbalmq.access.gate import Gate, NotAdmitted
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.handlers.send import ORDINARY_FLAGS, cluster_property, trace_fields
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
from gimbalmq.protocol.signing import text_verified
from gimbalmq.store.append import AppendGroup
from gimbalmq.store.consumequeue import QueueLog
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.channel import Channel, Handlers

log = logging.getLogger(__name__)

_SEND = int(RequestCode.SEND_MESSAGE_V2)
_UNIQUE = f"{prop.UNIQ_KEY}\x01"
_UNIQUE_LENGTH = len(_UNIQUE)
_NOT_ORDINARY = ~ORDINARY_FLAGS


class _FastFields(msgspec.Struct, gc=False):
    b: str
    e: int
    f: int
    g: int
    h: int
    i: str = ""
    j: int = 0
    m: bool = False


class _FastHeader(msgspec.Struct, gc=False):
    code: int
    opaque: int
    extFields: _FastFields
    flag: int = 0


class _SignedFields(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """Every field that clients send, as text: the signature is over all of them, in the order of their names.

    One that is missing adds nothing to what is signed, and neither does an empty text. A send with any other field
    goes the plain way.
    """

    AccessKey: str
    Signature: str
    b: str
    e: str
    f: str
    g: str
    h: str
    SecurityToken: str = ""
    a: str = ""
    bname: str = ""
    c: str = ""
    d: str = ""
    i: str = ""
    j: str = ""
    k: str = ""
    l: str = ""  # noqa: E741
    m: str = ""
    n: str = ""
    ns: str = ""
    nsd: str = ""
    oway: str = ""


class _SignedHeader(msgspec.Struct, gc=False):
    code: int
    opaque: int
    extFields: _SignedFields
    flag: int = 0


_decode_fast = msgspec.json.Decoder(_FastHeader, strict=False).decode
_decode_signed = msgspec.json.Decoder(_SignedHeader).decode

_NUMBERS = {str(number): number for number in range(1024)}
"""Queue ids and flags of sends that go the fast way; the plain way reads the others."""
_MOST_DIGITS = 18


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
        self._answer_head = ""
        self._answer_tail = f',"serializeTypeCurrentRPC":"JSON","version":{OUR_VERSION}}}'
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
            self._answer_head = f'"extFields":{{"MSG_REGION":{region},"TRACE_ON":"{trace}","msgId":"'
        queues, tails, gate = self._queues, self._tails, self._gate
        group: AppendGroup | None = None
        done: list[_Answered] = []
        counts: dict[str, list[int]] = {}
        counted, count = "", [0, 0]
        plain = 0
        for number, frame in enumerate(frames, 1):
            body = frame[2]
            queue = None
            try:
                header = _decode_fast(frame[1]) if gate is None else _admitted(gate, channel, frame)
                fields = header.extFields
                text = fields.i
                topic = fields.b
                key = (topic, fields.e)
                unique_at = text.find(_UNIQUE)
                unique_end = text.find("\x02", unique_at)
                if (
                    header.code == _SEND
                    and not fields.m
                    and not fields.f & _NOT_ORDINARY
                    and unique_at >= 0
                    and unique_end > unique_at + _UNIQUE_LENGTH
                    and 0 < len(body) <= limit
                    and len(text) < MAX_PROPERTIES // 4
                ):
                    end = text[unique_end:]
                    tail = tails.get(end) or self._read_tail(end)
                    if refused and tail[3]:
                        pass  # the plain way says why
                    elif tail[0] and (not unique_at or _ordinary_head(text[:unique_at])):
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
        try:
            touched = group.commit()
        except StoreError as error:
            log.error("%d messages could not be stored: %s", len(done), error)
            for opaque, *_ in done:
                channel.send(
                    RemotingCommand(
                        ResponseCode.SERVICE_NOT_AVAILABLE,
                        trace_fields(self._live.now),
                        opaque=opaque,
                        flag=RESPONSE_FLAG,
                        remark=f"service not available now: {error}",
                    )
                )
            counts.clear()
            return
        for topic, (count, size) in counts.items():
            self._stats.put(topic, count, size)
        counts.clear()
        waiting = [item for item in done if item[3]] if self._acknowledging.waits else []
        if waiting:
            done = [item for item in done if not item[3]]
            code = self._acknowledging.settle(self._store.max_commitlog_offset)
            if isinstance(code, ResponseCode):
                channel.send_bytes(self._answers(waiting, code))
            else:
                channel.began(len(waiting))
                code.add_done_callback(partial(self._answer_later, channel, waiting))
        if done:
            channel.send_bytes(self._answers(done, ResponseCode.SUCCESS))
        self._writer.arrived(touched)

    def _answer_later(
        self, channel: Channel, done: list[_Answered], code: asyncio.Future[ResponseCode]
    ) -> None:
        try:
            channel.send_bytes(self._answers(done, code.result()))
        finally:
            channel.finished(len(done))

    def _answers(self, done: list[_Answered], code: int) -> bytes:
        """The answers of a group as bytes, from a template: encoding each would cost more than storing it."""
        head = f'{{"code":{code:d},{self._answer_head}{self._id_prefix}'
        tail = self._answer_tail
        parts: list[str] = []
        prefixes = _FRAME_PREFIXES
        for opaque, queue_id, unique, _, commitlog_offset, queue_offset in done:
            if not (unique.isascii() and unique.isalnum()):
                unique = json.dumps(unique)[1:-1]
            header = (
                f'{head}{commitlog_offset:016X}","queueId":"{queue_id}","queueOffset":"{queue_offset}",'
                f'"transactionId":"{unique}"}},"flag":{RESPONSE_FLAG},"language":"PYTHON","opaque":{opaque}{tail}'
            )
            length = len(header)
            parts += (prefixes[length] if length < 1024 else _prefix(length), header)
        # All of it is ASCII but the length words, so one encoding of the whole serves.
        return "".join(parts).encode("latin-1")


def _admitted(gate: Gate, channel: Channel, frame: Frame) -> _FastHeader:
    """The header of a signed send that the gate lets pass.

    It is read once: what was signed is what is used.
    """
    header = _decode_signed(frame[1])
    of = header.extFields
    key = gate.sender_key(channel, of.AccessKey, of.b)
    if key is None or header.code != _SEND:
        raise NotAdmitted
    text = (
        f"{of.AccessKey}{of.SecurityToken}{of.a}{of.b}{of.bname}{of.c}{of.d}{of.e}{of.f}{of.g}{of.h}{of.i}"
        f"{of.j}{of.k}{of.l}{of.m}{of.n}{of.ns}{of.nsd}{of.oway}"
    )
    born = of.g
    if (
        not text_verified(text, frame[2], of.Signature, key)
        or len(born) > _MOST_DIGITS
        or not (born.isascii() and born.isdigit())
        or of.m not in ("", "false")
    ):
        raise NotAdmitted
    try:
        fields = _FastFields(
            of.b, _NUMBERS[of.e], _NUMBERS[of.f], int(born), _NUMBERS[of.h], of.i, _NUMBERS[of.j or "0"]
        )
    except KeyError:
        raise NotAdmitted from None
    return _FastHeader(_SEND, header.opaque, fields, header.flag)


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
