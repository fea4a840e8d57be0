"""A client that does its worst: ``python -m tests.faults.hostile BROKER NAMESRV --seed 1``.

It talks to a broker and a name server on the loopback in every way that peers must not, and in ways that they may
but nobody should. What it sends is decided by the seed; how much is bounded by ``--rounds`` and ``--seconds``. It
names no topic, group or broker of the well-behaved clients beside it, because without access control a legal request
of an operator may delete what it names.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import itertools
import json
import pkgutil
import random
import socket
import struct
import sys
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.protocol import headers
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import BINARY_HEADER, JSON_HEADER, RemotingCommand
from gimbalmq.protocol.frames import MAX_FRAME_BYTES, FrameReader
from gimbalmq.protocol.headers.base import Header
from gimbalmq.protocol.serializers import decode_command, encode_frame
from gimbalmq.transport.tls import TlsPipe, client_tls
from tests.golden.frames import exchanges

HOST = "127.0.0.1"
PATIENCE = 0.6
"""Seconds for an answer; some requests have none."""
AT_ONCE = 64
"""Requests of one attack under way at a time."""

NUMBERS: tuple[str, ...] = ("0", "-1", "1", "2147483647", "2147483648", "-2147483648", "4294967296")
NUMBERS += ("9223372036854775807", "9223372036854775808", "-9223372036854775809", "1" + "0" * 400)
NUMBERS += ("1e9", "NaN", "0x10", " 7", "٣", "", "true", "null", "3.5", "-0")
NAMES: tuple[str, ...] = (
    "",
    " ",
    ".",
    "..",
    "../../etc/passwd",
    "a/b",
    "a\\b",
    "a\x00b",
    "%RETRY%",
    "%DLQ%",
    "*",
    "|",
    "^",
)
NAMES += (
    "hostile",
    "n" * 127,
    "n" * 128,
    "n" * 255,
    "n" * 256,
    "n" * 32767,
    "%RETRY%" + "n" * 250,
    "密" * 127,
)
NAMES += ("TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "%SYS%x")
NAMES += ("\ud7ff\U0001f680", "x\x01y\x02z", "{", '"', "SELF_TEST_TOPIC", "RMQ_SYS_TRACE_TOPIC")
NAMES += ('{"', '{"x', '{"topic":"t","queueId":0}', "$ref", "\\u0024ref", "@type", "..@x")
TEXTS: tuple[str, ...] = (
    NUMBERS + NAMES + ("TAG", "SQL92", "a || b || c", "a IS NULL", "(" * 5000, "x" * 100_000, "true", "false")
)
TEXTS += ("+$ref=x", '+{"x=1', "+\\u0024ref=x", '{"$ref":"$"}', "+a=" + "x" * 60_000)
TEXTS += ("K\x01v\x02", "\x01" * 2000, "\x02" * 2000, "DELAY\x01" + "9" * 30 + "\x02", "DELAY\x0119\x02")
TEXTS += (
    "TIMER_DELIVER_MS\x01-5\x02",
    "TIMER_DELAY_SEC\x019999999999\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01x\x02",
)
TEXTS += (
    "KEYS\x01" + " ".join(f"k{n}" for n in range(3000)) + "\x02",
    "INNER_NUM\x01-3\x02INNER_BASE\x01z\x02",
)


def absurd_bodies(rng: random.Random) -> list[bytes]:
    deep = 100_000
    return [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"[" * deep,
        b'{"a":' * deep,
        b"{" + b"0:{" * deep,
        b"[" * 200 + b"]" * 200,
        b'{"a":1,' * 20_000,
        b'{"clientID":5,"consumerDataSet":[null,{},{"groupName":7}],"producerDataSet":{}}',
        b'{"clientID":"h","producerDataSet":[{"groupName":"g"}],"consumerDataSet":[{"groupName":"",'
        b'"consumeType":"X","subscriptionDataSet":[{"topic":"","subString":"' + b"a||" * 20_000 + b'"}]}]}',
        b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"t","brokerName":"b","queueId":1e99}]}',
        b'{"offsetTable":{{"topic":"t","brokerName":"b","queueId":0}:99999999999999999999}}',
        b'{"offsetTable":' * 50_000,
        b"9" * 100_000,
        rng.randbytes(5000),
        zlib.compress(bytes(64 << 20), 9),
        zlib.compress(b"[" * (8 << 20), 9),
        struct.pack(">iiiii", -1, 0, 0, 0, 0) + rng.randbytes(50),
        struct.pack(">iiiii", 0x7FFFFFFF, 0, 0, 0, 0x7FFFFFFF) + rng.randbytes(50),
        b"listenPort=-1\nfileReservedTime=-1\nmaxMessageSize=99999999999\nflushDiskType=NEVER\n",
        "\ufeff密".encode() * 1000,
        b"\xff\xfe\xfd",
    ]


@dataclass
class Deeds:
    """What was done, for the log of a test."""

    counts: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)


class Hostile:
    """Attacks on one broker and one name server."""

    def __init__(self, broker: str, namesrv: str, seed: int, rounds: int) -> None:
        self.targets = {"broker": _split(broker), "namesrv": _split(namesrv)}
        self.seed = seed
        self.rounds = rounds
        self.deeds = Deeds()

    def attacks(self) -> list[Callable[[random.Random], Awaitable[None]]]:
        return [
            self.mutants,
            self.absurd,
            self.wrong_frames,
            self.half_open,
            self.slow,
            self.connection_flood,
            self.topic_flood,
            self.group_flood,
            self.offset_flood,
            self.parked_pulls,
            self.not_reading,
            self.reports_at_once,
            self.large_requests,
            self.tls_garbage,
            self.tls_rogues,
        ]

    async def run(self, seconds: float) -> Deeds:
        """All attacks at once, each ``rounds`` times, until the time is up."""

        async def repeated(number: int, attack: Callable[[random.Random], Awaitable[None]]) -> None:
            for turn in range(self.rounds):
                # One seed for each attack and round: how far the others are changes nothing.
                try:
                    await attack(random.Random(f"{self.seed}/{number}/{turn}"))
                except (OSError, TimeoutError) as error:  # refused or ended, as a server may
                    self.deeds.troubles[f"{attack.__name__}: {error}"] += 1

        try:
            async with asyncio.timeout(seconds):
                await self._prepare()
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                for number, attack in enumerate(self.attacks()):
                    group.create_task(repeated(number, attack), name=attack.__name__)
        except TimeoutError:
            self.deeds.counts["ended by the clock"] += 1
        return self.deeds

    async def _prepare(self) -> None:
        """Gives the topics of recorded requests some messages, so that mutants of those reach further."""
        seeds = [fields for found in golden_seeds().values() for fields, _ in found]
        topics = {
            fields[name] for fields in seeds for name in ("topic", "b", "originTopic") if name in fields
        }
        plain = sorted(topic for topic in topics | {"hostile"} if topic.isalnum())
        await self._pipeline(
            [send(topic, queue_id, b"x" * 50) for topic in plain for queue_id in range(4)], "preparing"
        )

    # -- requests ----------------------------------------------------------------------

    async def mutants(self, rng: random.Random) -> None:
        """Every request code with fields and bodies that are wrong in all ways, in both header encodings."""
        seeds = golden_seeds()
        bodies = absurd_bodies(rng)
        every_field = all_fields()
        work = []
        for code in rng.sample([*map(int, RequestCode), -1, 32767, 32768, 2**31 - 1], len(RequestCode) + 4):
            for kind in (JSON_HEADER, BINARY_HEADER):
                for _ in range(3):
                    known = seeds.get(code)
                    fields, body = rng.choice(known) if known else ({}, b"")
                    command = mutated(rng, code, kind, fields or dict(every_field), body, bodies)
                    receiver = "namesrv" if code in NAMESRV_CODES else "broker"
                    if rng.random() < 0.1:
                        receiver = "broker" if receiver == "namesrv" else "namesrv"
                    work.append((receiver, rng.random(), command))
        flip = random.Random(rng.random())

        async def one(receiver: str, chance: float, command: RemotingCommand) -> None:
            try:
                data = encode_frame(command)
            except Exception:  # what our encoder cannot write is written by wrong_frames
                return
            if chance < 0.1:
                data = flipped(flip, data)
            await self.say(receiver, data, "mutants")

        await self._spread([partial(one, *job) for job in work])

    async def absurd(self, rng: random.Random) -> None:
        """Every absurd body with every request that has one: deep JSON, bombs, batches that are none."""
        seeds, every_field = golden_seeds(), all_fields()
        work = []
        for code, (number, body) in itertools.product(WITH_BODY, enumerate(absurd_bodies(rng))):
            if rng.random() < 0.5:  # the other half in another round
                continue
            known = seeds.get(code)
            fields = dict(rng.choice(known)[0] if known else every_field)
            if code in (103, 104):
                fields |= {"compressed": "true", "bodyCrc32": str(zlib.crc32(body))}
            if code in SENDS:
                fields["f" if code in (310, 320) else "sysFlag"] = "1"
            command = _numbered(RemotingCommand(code, fields, body), number)
            receiver = "namesrv" if code in NAMESRV_CODES else "broker"
            work.append(partial(self.say, receiver, encode_frame(command), "absurd bodies"))
        await self._spread(rng.sample(work, len(work)))

    async def wrong_frames(self, rng: random.Random) -> None:
        """Lengths and encodings that cannot be."""
        frames = [
            b"",
            b"\x00",
            struct.pack(">II", 0, 0),
            struct.pack(">II", 4, 0xFFFFFFFF),
            struct.pack(">II", 0x7FFFFFFF, 0),
            struct.pack(">II", 0xFFFFFFFF, 0),
            struct.pack(">II", MAX_FRAME_BYTES, 10) + bytes(100_000),
            struct.pack(">II", 100, 200) + bytes(92),
            struct.pack(">II", 100, 0x05000010) + bytes(96),
            struct.pack(">II", 8, 4) + b"{}{}",
            struct.pack(">II", 4 + 60_000, 60_000) + b"[" * 60_000,
            struct.pack(">II", 4 + 60_000, 60_000) + b'{"extFields":' * 4_615 + b"12345",
            struct.pack(">II", 4 + 30, 0x01000000 | 30) + b"\xff" * 30,
            struct.pack(">II", 4 + 21, 0x01000000 | 21)
            + struct.pack(">hbhiiii", 11, 0, 0, 1, 0, 0x7FFFFFFF, 0),
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
            b"\x0d\x0a\x0d\x0a\x00\x0d\x0aQUIT\x0a" + bytes(50),
            *(rng.randbytes(rng.randrange(1, 4000)) for _ in range(20)),
        ]
        await self._spread(
            [
                partial(self.say, to, data, "wrong frames")
                for to, data in itertools.product(self.targets, frames)
            ]
        )

    # -- connections ---------------------------------------------------------------------

    async def half_open(self, rng: random.Random) -> None:
        """Connections that stop in mid frame or say nothing at all, and stay."""
        frame = encode_frame(pull("hostile", 0, 0))
        writers = []
        for number in range(150):
            found = await self._open(rng.choice(list(self.targets)))
            if found is not None:
                writers.append(found[1])
                if number % 3:
                    found[1].write(frame[: rng.randrange(len(frame))])
                self.deeds.counts["half open"] += 1
        await asyncio.sleep(2.0)
        for writer in writers:
            writer.transport.abort()

    async def slow(self, rng: random.Random) -> None:
        """Requests byte by byte."""

        async def one() -> None:
            async with self._connected("broker") as (_, writer):
                for byte in encode_frame(pull("hostile", 0, 0))[: rng.randrange(50, 200)]:
                    writer.write(bytes((byte,)))
                    await asyncio.sleep(0.01)
                self.deeds.counts["slow"] += 1

        await asyncio.gather(*(one() for _ in range(10)))

    async def connection_flood(self, rng: random.Random) -> None:
        """Connections made and broken, some of them with a reset."""
        for _ in range(10):
            opened = [await self._open(rng.choice(list(self.targets))) for _ in range(40)]
            for found in opened:
                if found is None:
                    continue
                self.deeds.counts["connections"] += 1
                if rng.random() < 0.5:
                    sock = found[1].get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                found[1].transport.abort()
            await asyncio.sleep(0.1)

    async def not_reading(self, rng: random.Random) -> None:
        """Asks for much and reads nothing of it."""
        questions = [
            RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG),
            RemotingCommand(RequestCode.GET_BROKER_CONFIG),
            RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO),
            RemotingCommand(RequestCode.GET_ALL_CONSUMER_OFFSET),
            RemotingCommand(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
            pull("hostile", 0, 0, suspend=0),
        ]
        async with self._connected("broker") as (_, big):
            for number in range(20):  # something to pull
                big.write(encode_frame(send("hostile", 0, b"%d" % number + bytes(100_000))))
            await self._drained(big)
            await asyncio.sleep(0.2)
        writers = []
        for _ in range(6):
            found = await self._open("broker")
            if found is None:
                continue
            found[0]._transport.pause_reading()  # type: ignore[attr-defined]
            for number in range(200):
                found[1].write(encode_frame(_numbered(rng.choice(questions), number)))
            self.deeds.counts["questions nobody reads"] += 200
            writers.append(found[1])
        await asyncio.sleep(2.0)
        for writer in writers:
            writer.transport.abort()

    async def reports_at_once(self, rng: random.Random) -> None:
        """Hundreds of requests for whole tables in one write, whose answers are read late or never."""
        codes = {"broker": (21, 201, 43, 317, 203), "namesrv": (206, 106, 224, 105)}

        async def one(receiver: str) -> None:
            async with self._connected(receiver) as (reader, writer):
                commands = (
                    RemotingCommand(rng.choice(codes[receiver]), {"consumerGroup": "g"}, opaque=n)
                    for n in range(400)
                )
                writer.write(b"".join(map(encode_frame, commands)))
                await asyncio.sleep(rng.random())
                for _ in range(rng.randrange(20)):
                    if not await reader.read(65536):
                        break
                self.deeds.counts["connections with 400 reports asked for at once"] += 1

        await self._spread([partial(one, receiver) for receiver in ("broker", "namesrv") for _ in range(10)])

    async def large_requests(self, rng: random.Random) -> None:
        """Requests of some MB that take long or wait for others, one behind the other."""
        body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{' + b" " * (4 << 20)

        async def one(receiver: str, code: int) -> None:
            async with self._connected(receiver) as (_, writer):
                fields = {"consumerGroup": "g", "clientId": "c", "brokerName": "h", "clusterName": "h"}
                fields |= {"brokerAddr": "10.9.9.9:1", "haServerAddr": "10.9.9.9:2", "brokerId": "0"}
                for _ in range(rng.randrange(1, 6)):
                    writer.write(encode_frame(RemotingCommand(code, fields, body)))
                    async with asyncio.timeout(5):
                        await writer.drain()
                self.deeds.counts["connections with large requests"] += 1

        await self._spread(
            [partial(one, *pair) for pair in (("broker", 307), ("namesrv", 103)) for _ in range(6)]
        )

    async def tls_garbage(self, rng: random.Random) -> None:
        hello = TlsPipe(client_tls(verify=False), server_side=False).start()
        samples = [
            b"\x16" + rng.randbytes(300),
            b"\x16\x03\x01\xff\xff" + rng.randbytes(70_000),
            hello[: rng.randrange(1, len(hello))],
            hello + rng.randbytes(2000),
            hello + hello,
            b"\x16\x03\x01\x00\x01\x01" * 50_000,
            flipped(rng, hello),
        ]
        await self._spread(
            [
                partial(self.say, to, data, "TLS garbage")
                for to, data in itertools.product(self.targets, samples)
            ]
        )

    async def tls_rogues(self, rng: random.Random) -> None:
        """Peers that go wrong after a good handshake: garbage, a goodbye and then more, a hello once again."""

        async def one(receiver: str, number: int) -> None:
            async with self._connected(receiver) as (reader, writer):
                pipe = TlsPipe(client_tls(verify=False), server_side=False)
                writer.write(pipe.start())
                async with asyncio.timeout(5.0):
                    while not pipe.established and (data := await reader.read(65536)):
                        writer.write(pipe.receive(data)[1])
                if not pipe.established:
                    return
                self.deeds.counts["TLS rogues"] += 1
                request = encode_frame(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
                ways: list[Callable[[], bytes]] = [
                    lambda: pipe.send(request) + rng.randbytes(500),
                    lambda: pipe.send(request) + pipe.farewell() + rng.randbytes(200_000),
                    lambda: TlsPipe(client_tls(verify=False), server_side=False).start(),
                    lambda: pipe.send(flipped(rng, request)),
                    lambda: flipped(rng, pipe.send(request)),
                    lambda: pipe.send(request * 500),
                ]
                writer.write(ways[number % len(ways)]())
                await self._drained(writer)
                await asyncio.sleep(0.3)

        await self._spread([partial(one, to, number) for to in self.targets for number in range(18)])

    # -- floods --------------------------------------------------------------------------

    async def topic_flood(self, rng: random.Random) -> None:
        """Topics by sends and by requests of their own."""
        names = [f"flood-{self.seed}-{rng.randrange(10**9)}-{number}" for number in range(150)]

        def create(name: str) -> RemotingCommand:
            fields = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "16", "writeQueueNums": "16"}
            fields |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
            return RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

        await self._pipeline(
            [create(name) if rng.random() < 0.5 else send(name, 0, b"x") for name in names], "topics"
        )

    async def group_flood(self, rng: random.Random) -> None:
        """Groups, subscriptions and members by heartbeats."""

        def beat(number: int) -> RemotingCommand:
            mark = f"{self.seed}-{rng.randrange(10**9)}"
            groups = [
                {
                    "groupName": f"flood-{mark}-{index}",
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                    "unitMode": False,
                    "subscriptionDataSet": [
                        {
                            "topic": "hostile",
                            "subString": "a || b" + "x" * rng.randrange(500),
                            "tagsSet": ["a"],
                            "codeSet": [97],
                            "subVersion": 1,
                        }
                    ],
                }
                for index in range(20)
            ]
            body = {
                "clientID": f"{HOST}@{mark}-{number}",
                "consumerDataSet": groups,
                "producerDataSet": [{"groupName": f"p-{mark}-{index}"} for index in range(20)],
            }
            return RemotingCommand(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())

        await self._pipeline([beat(number) for number in range(20)], "heartbeats")

    async def offset_flood(self, rng: random.Random) -> None:
        """Offsets of groups, topics and queues that do not exist."""

        def commit() -> RemotingCommand:
            fields = {
                "consumerGroup": f"nobody-{rng.randrange(10**9)}",
                "topic": rng.choice(("hostile", f"nothing-{rng.randrange(10**9)}")),
                "queueId": rng.choice(NUMBERS[:7]),
                "commitOffset": rng.choice(NUMBERS[:9]),
            }
            return RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields)

        await self._pipeline([commit() for _ in range(500)], "offsets")

    async def parked_pulls(self, rng: random.Random) -> None:
        """Pulls that wait for ever, some on connections that end meanwhile."""
        opened = []
        for number in range(8):
            found = await self._open("broker")
            if found is None:
                continue
            opened.append(found[1])
            for opaque in range(250):
                parked = pull("hostile", opaque % 8, 1 << 40 if opaque % 2 else 10**6, suspend=2**62)
                found[1].write(encode_frame(_numbered(parked, opaque)))
            self.deeds.counts["parked pulls"] += 250
            await asyncio.sleep(0.05)
            if number % 2:
                opened.pop().transport.abort()
        await asyncio.sleep(1.0)
        for writer in opened:
            writer.transport.abort()

    # -- the wire ------------------------------------------------------------------------

    async def say(self, receiver: str, data: bytes, what: str) -> None:
        """Sends bytes and waits a moment for whatever comes back; it must be frames, if anything."""
        found = await self._open(receiver)
        if found is None:
            return
        reader, writer = found
        self.deeds.counts[what] += 1
        frames = FrameReader()
        is_tls = data[:1] == b"\x16"
        try:
            writer.write(data)
            async with asyncio.timeout(PATIENCE):
                await writer.drain()
                while chunk := await reader.read(262_144):
                    answers = [] if is_tls else [decode_command(*frame) for frame in frames.feed(chunk)]
                    self.deeds.counts.update(f"{what}: answered {answer.code}" for answer in answers)
                    if answers:
                        break
        except (TimeoutError, OSError):
            pass
        finally:
            writer.transport.abort()

    async def _pipeline(self, commands: Sequence[RemotingCommand], what: str) -> None:
        """Requests one after the other on one connection, with a little patience for the answers."""
        async with self._connected("broker") as (reader, writer):

            async def read() -> None:
                frames, count = FrameReader(), 0
                while count < len(commands) and (data := await reader.read(262_144)):
                    for frame in frames.feed(data):
                        count += 1
                        answer = decode_command(*frame)
                        self.deeds.counts[f"{what}: answered {answer.code}"] += 1

            reading = asyncio.create_task(read())
            for number, command in enumerate(commands):
                writer.write(encode_frame(_numbered(command, number)))
                if number % 10 == 9:
                    await self._drained(writer)
                    await asyncio.sleep(0.02)
            self.deeds.counts[what] += len(commands)
            await asyncio.wait({reading}, timeout=2.0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _drained(self, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(1.0):
                await writer.drain()
        except (TimeoutError, OSError):
            pass

    async def _open(self, receiver: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        host, port = self.targets[receiver]
        assert host == HOST, "only servers on the loopback are treated like this"
        try:
            async with asyncio.timeout(5.0):
                return await asyncio.open_connection(host, port)
        except (TimeoutError, OSError) as error:
            self.deeds.troubles[f"{receiver}: {type(error).__name__}"] += 1
            return None

    @asynccontextmanager
    async def _connected(
        self, receiver: str
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        found = await self._open(receiver)
        if found is None:
            raise ConnectionError(f"{receiver} cannot be reached")
        try:
            yield found
        except OSError:
            self.deeds.counts["connections the server ended"] += 1
        finally:
            found[1].transport.abort()

    async def _spread(self, work: Sequence[Callable[[], Awaitable[None]]]) -> None:
        jobs = iter(work)

        async def worker() -> None:
            for job in jobs:
                await job()

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


# -- what is sent ------------------------------------------------------------------------

NAMESRV_CODES = {
    *range(100, 107),
    205,
    206,
    216,
    217,
    219,
    224,
    304,
    311,
    312,
    313,
    318,
    319,
    322,
    327,
    901,
    904,
    907,
}

_FOR_OTHERS = ("quiet", "Quiet")
"""How names of the well-behaved begin."""


def golden_seeds() -> dict[int, list[tuple[dict[str, str], bytes]]]:
    """Fields and body of recorded requests, by code."""
    found: dict[int, list[tuple[dict[str, str], bytes]]] = {}
    for exchange in exchanges():
        (frame,) = FrameReader().feed(exchange.request)
        command = decode_command(*frame)
        found.setdefault(command.code, []).append((dict(command.ext_fields or {}), bytes(command.body)))
    return found


def all_fields() -> dict[str, str]:
    """Every field that any request knows, so that a code without a recorded request gets what it needs."""
    for module in pkgutil.iter_modules(headers.__path__):
        importlib.import_module(f"{headers.__name__}.{module.name}")
    names = {name for known in _subclasses(Header) for name in known.__struct_encode_fields__}
    likely = {"perm": "6", "order": "false", "compressed": "true", "topicFilterType": "SINGLE_TAG"}
    return {
        name: likely.get(name, "hostile" if name.lower().endswith(_TEXT_ENDS) else "1")
        for name in sorted(names)
    }


_TEXT_ENDS = (
    "topic",
    "group",
    "name",
    "addr",
    "id",
    "key",
    "namespace",
    "subscription",
    "properties",
    "value",
)


def _subclasses(known: type[Header]) -> list[type[Header]]:
    return [found for child in known.__subclasses__() for found in (child, *_subclasses(child))]


def mutated(
    rng: random.Random, code: int, kind: int, fields: dict[str, str], body: bytes, bodies: list[bytes]
) -> RemotingCommand:
    """A request with some of its fields, its body or its flags made absurd."""
    fields = dict(fields)
    for name in rng.sample(sorted(fields), min(len(fields), rng.choice((0, 1, 1, 1, 1, 2, 5, 40)))):
        likely = NUMBERS if fields[name].lstrip("-").isdecimal() else NAMES
        fields[name] = rng.choice(likely if rng.random() < 0.7 else TEXTS)
    if fields and rng.random() < 0.1:
        del fields[rng.choice(sorted(fields))]
    if rng.random() < 0.1:
        fields |= {f"more{number}": "x" for number in range(rng.choice((1, 3000)))}
    chance = rng.random()
    if chance < 0.25:
        body = rng.choice(bodies)
    elif body and chance < 0.4:
        body = flipped(rng, body)
    if code in SENDS and rng.random() < 0.5:
        fields["f" if code in (310, 320) else "sysFlag"] = rng.choice(
            ("1", "257", "513", "769", "8", "12", "-1")
        )
    command = RemotingCommand(code, fields, body)
    command.serialize_type = kind
    command.opaque = rng.choice((0, 1, -1, 2**31 - 1))
    command.flag = 0 if rng.random() < 0.9 else rng.choice((1, 2, 3, 2**31 - 1, -1))
    command.version = rng.choice((0, 317, 493, 32767, -1))
    command.remark = rng.choice((None, None, "x" * 1000))
    assert not any(value.startswith(_FOR_OTHERS) for value in fields.values())
    return command


SENDS = {10, 36, 310, 320, 324, 325}

WITH_BODY = (10, 25, 34, 35, 41, 42, 43, 46, 103, 104, 200, 217, 221, 303, 310, 318, 320, 322, 324, 325, 401)
"""Codes whose handlers read a body, and some that might."""


def flipped(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def send(topic: str, queue_id: int, body: bytes) -> RemotingCommand:
    fields = {"a": "hostile", "b": topic, "c": "TBW102", "d": "8", "e": str(queue_id), "f": "0", "g": "1"}
    fields |= {"h": "0", "i": "", "j": "0", "k": "false"}
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, body)


def pull(topic: str, queue_id: int, offset: int, *, suspend: int = 60_000) -> RemotingCommand:
    fields = {
        "consumerGroup": "hostile",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "maxMsgBytes": str(8 << 20),
        "sysFlag": "6" if suspend else "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": str(suspend),
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return RemotingCommand(RequestCode.PULL_MESSAGE, fields)


def _numbered(command: RemotingCommand, opaque: int) -> RemotingCommand:
    command.opaque = opaque
    return command


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("broker")
    parser.add_argument("namesrv")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    begun = SYSTEM_CLOCK.monotonic()
    deeds = asyncio.run(Hostile(args.broker, args.namesrv, args.seed, args.rounds).run(args.seconds))
    for name, count in sorted((*deeds.counts.items(), *deeds.troubles.items())):
        print(f"{name}: {count}")
    print(f"{SYSTEM_CLOCK.monotonic() - begun:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
