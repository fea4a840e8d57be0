"""Hostile peers beside a legal one: they get the protocol's error or are closed, it notices nothing."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gimbalmq.errors import RocketMQError
from gimbalmq.protocol.codes import ResponseCode
from gimbalmq.protocol.command import BINARY_HEADER, RemotingCommand
from gimbalmq.protocol.frames import Frame, FrameReader
from gimbalmq.protocol.serializers import decode_command, encode_frame
from gimbalmq.testing import LocalCluster
from gimbalmq.transport.pool import ChannelPool
from tests.robustness.load import Account, read_everything, send_request

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "frames.jsonl"


def golden_requests() -> list[bytes]:
    lines = map(json.loads, GOLDEN.read_text().splitlines())
    return [bytes.fromhex(line["request"]) for line in lines if line["to"] == "broker"]


@asynccontextmanager
async def legal_client(cluster: LocalCluster) -> AsyncIterator[Account]:
    """Sends all the while; in the end every message it was promised must be there."""
    account = Account()
    stop = asyncio.Event()
    pool = ChannelPool()
    address = cluster.broker.address

    async def send() -> None:
        number = 0
        while not stop.is_set():
            body = b"legal%06d" % number
            answer = await pool.call(address, send_request(body, number % 4), 10.0)
            assert answer.code == ResponseCode.SUCCESS, answer
            account.acknowledged.add(body)
            number += 1
            await asyncio.sleep(0)

    sender = asyncio.create_task(send())
    try:
        yield account
    finally:
        stop.set()
        await sender
        await pool.close()
    await read_everything(address, account)
    assert account.acknowledged
    assert not account.lost, account


async def say(address: str, data: bytes, *, wait: float = 0.5) -> bytes | None:
    """Sends raw bytes; what came back until the peer closed (None) or fell silent."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    received = b""
    try:
        writer.write(data)
        await writer.drain()
        while True:
            chunk = await asyncio.wait_for(reader.read(65536), wait)
            if not chunk:
                return received or None
            received += chunk
    except TimeoutError:
        return received
    except ConnectionError:
        return None
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except (ConnectionError, OSError):
            pass


def with_cluster(scene: Callable[[LocalCluster, Account], Awaitable[None]], seconds: float = 90.0) -> None:
    async def work() -> None:
        async with LocalCluster() as cluster, legal_client(cluster) as account:
            await scene(cluster, account)

    asyncio.run(asyncio.wait_for(work(), seconds))


def frame(length: int, header_word: int, rest: bytes = b"") -> bytes:
    return struct.pack(">II", length & 0xFFFFFFFF, header_word & 0xFFFFFFFF) + rest


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(frame(0, 0), id="length 0"),
        pytest.param(frame(3, 0), id="length 3"),
        pytest.param(frame(-1, 0), id="length -1"),
        pytest.param(frame(-(2**31), 0), id="length -2^31"),
        pytest.param(frame(2**31 - 1, 0), id="length 2^31-1"),
        pytest.param(frame(16_777_216, 0), id="one byte too long"),
        pytest.param(frame(10, 7, bytes(6)), id="header longer than the frame"),
        pytest.param(frame(20, 0xFFFFFF, bytes(16)), id="header of 16 MB in 20 bytes"),
        pytest.param(frame(8, 9 << 24 | 4, b"{}{}"), id="unknown header encoding"),
        pytest.param(frame(8, 4, b"nope"), id="no JSON"),
        pytest.param(frame(6, 2, b"[]"), id="no object"),
        pytest.param(frame(6, 1 << 24 | 2, b"ab"), id="binary header cut off"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="HTTP"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32), id="TLS hello"),
    ],
)
def test_illegal_frame_closes_its_connection_and_no_other(data: bytes) -> None:
    async def scene(cluster: LocalCluster, _account: Account) -> None:
        assert await say(cluster.broker.address, data, wait=20.0) is None
        assert await say(cluster.namesrv, data, wait=20.0) is None

    with_cluster(scene)


def test_unknown_codes_and_wrong_headers_are_answered() -> None:
    async def scene(cluster: LocalCluster, _account: Account) -> None:
        pool = ChannelPool()
        for kind in (0, BINARY_HEADER):
            for code in (-1, 0, 1, 999, 9999, 32767):
                request = RemotingCommand(code, {"x": "y"}, serialize_type=kind)
                answer = await pool.call(cluster.broker.address, request, 5.0)
                assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                assert str(code) in (answer.remark or "")
        wrong: list[dict[str, str] | None] = [None, {}, {"topic": "T"}, {"queueId": "x", "topic": "T"}]
        for code in sorted(cluster.broker.handlers.by_code):
            for fields in wrong:
                for body in (b"", b"{", b"[]", b"null", b'{"a":', b"\xff\xfe", b'{"offsetTable":3}'):
                    request = RemotingCommand(code, fields, body)
                    if code == 37:
                        continue  # an unknown transaction end is not answered, by protocol
                    answer = await pool.call(cluster.broker.address, request, 10.0)
                    assert answer.code >= 0
        await pool.close()

    with_cluster(scene)


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bytes_of_real_requests_hurt_nobody_else(seed: int) -> None:
    """Java's own frames with bytes changed, cut, doubled and joined."""
    rng = random.Random(seed)
    requests = golden_requests()

    def mutate() -> bytes:
        data = bytearray(rng.choice(requests))
        for _ in range(rng.randrange(1, 12)):
            position = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[position] = rng.randrange(256)
                case 1:
                    data[position] ^= 1 << rng.randrange(8)
                case 2:
                    del data[position : position + rng.randrange(1, 9)]
                    data = data or bytearray(b"\0")
                case _:
                    data[position:position] = rng.randbytes(rng.randrange(1, 9))
        if rng.random() < 0.5 and len(data) > 8:
            # With a right length word the damage reaches the parts behind the framing.
            data[:4] = (len(data) - 4).to_bytes(4, "big")
        return bytes(data)

    async def scene(cluster: LocalCluster, _account: Account) -> None:
        for _ in range(40):
            flood = b"".join(mutate() for _ in range(rng.randrange(1, 6)))
            await say(cluster.broker.address, flood, wait=0.02)
            await say(cluster.namesrv, flood, wait=0.01)

    with_cluster(scene)


def test_malformed_properties_are_stored_or_refused_but_never_break_the_store() -> None:
    texts = [
        "",
        "\x01",
        "\x02",
        "\x01\x02",
        "UNIQ_KEY",
        "UNIQ_KEY\x01",
        "UNIQ_KEY\x01\x02",
        "UNIQ_KEY\x01a\x02UNIQ_KEY\x01b",
        "TAGS\x01\x02UNIQ_KEY\x01a",
        "UNIQ_KEY\x01\U0001f600é\x02KEYS\x01" + "k " * 500,
        "UNIQ_KEY\x01a\x02DELAY\x01x\x02",
        "UNIQ_KEY\x01a\x02DELAY\x01-5\x02",
        "UNIQ_KEY\x01a\x02DELAY\x0199999\x02",
        "UNIQ_KEY\x01a\x02TIMER_DELIVER_MS\x01nan\x02",
        "UNIQ_KEY\x01a\x02TIMER_DELAY_SEC\x01999999999999\x02",
        "UNIQ_KEY\x01a\x02TRAN_MSG\x01true\x02",
        'UNIQ_KEY\x01"},"flag":2,"x":{"y":"\x02',
        "UNIQ_KEY\x01a\x02X\x01" + "y" * 32760 + "\x02",
        "UNIQ_KEY\x01a\x02X\x01" + "y" * 100_000 + "\x02",
    ]

    async def scene(cluster: LocalCluster, _account: Account) -> None:
        pool = ChannelPool()
        stored = 0
        for number, text in enumerate(texts):
            request = send_request(b"odd%d" % number, 0, topic="Odd")
            request.ext_fields = {**(request.ext_fields or {}), "i": text}
            answer = await pool.call(cluster.broker.address, request, 10.0)
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.MESSAGE_ILLEGAL), (text[:40], answer)
            assert answer.ext_fields is not None
            stored += answer.code == ResponseCode.SUCCESS
        assert stored >= 10
        odd = Account()
        await read_everything(cluster.broker.address, odd, topic="Odd")
        assert odd.found
        await pool.close()

    with_cluster(scene)


def test_half_frames_and_silent_peers_hold_no_memory_and_block_nobody() -> None:
    """Slow peers give a byte at a time; half-open ones promise 16 MB and say nothing more."""

    async def scene(cluster: LocalCluster, account: Account) -> None:
        host, _, port = cluster.broker.address.rpartition(":")
        promise = frame(16_000_000, 100)
        writers = []
        for _ in range(200):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(promise)
            writers.append(writer)
        request = encode_frame(send_request(b"slow", 0))
        reader, slow = await asyncio.open_connection(host, int(port))
        for position in range(len(request)):
            slow.write(request[position : position + 1])
            await slow.drain()
            await asyncio.sleep(0)
        received = FrameReader()
        frames: list[Frame] = []
        while not frames:
            frames = received.feed(await reader.read(65536))
        assert decode_command(*frames[0]).code == ResponseCode.SUCCESS
        before = len(account.acknowledged)
        while len(account.acknowledged) < before + 50:  # noqa: ASYNC110
            await asyncio.sleep(0)
        slow.close()
        for writer in writers:
            writer.transport.abort()

    with_cluster(scene)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_ten_thousand_idle_connections() -> None:
    """They cost little and a legal client beside them is served."""
    count = 10_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * count + 500:
        count = max(100, (hard - 500) // 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    async def scene(cluster: LocalCluster, account: Account) -> None:
        host, _, port = cluster.broker.address.rpartition(":")
        loop = asyncio.get_running_loop()
        before = resident_bytes()
        idle = []
        for _ in range(count):
            transport, _ = await loop.create_connection(asyncio.Protocol, host, int(port))
            idle.append(transport)
        grown = (resident_bytes() - before) / count
        print(f"\n{count} idle connections, {grown:.0f} bytes each with both ends in one process")
        assert grown < 50_000
        done = len(account.acknowledged)
        while len(account.acknowledged) < done + 100:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for transport in idle:
            transport.abort()

    try:
        with_cluster(scene)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_peer_that_never_reads_is_not_served_without_bound() -> None:
    async def scene(cluster: LocalCluster, account: Account) -> None:
        pool = ChannelPool()
        for number in range(40):
            await pool.call(
                cluster.broker.address, send_request(b"%d" % number + bytes(100_000), 0, "Big"), 10
            )
        host, _, port = cluster.broker.address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1)
        pull = {
            "consumerGroup": "g",
            "topic": "Big",
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "4",
            "subscription": "*",
        }
        before = resident_bytes()
        writer.write(b"".join(encode_frame(RemotingCommand(11, pull, opaque=n)) for n in range(5000)))
        done = len(account.acknowledged)
        while len(account.acknowledged) < done + 300:  # noqa: ASYNC110
            await asyncio.sleep(0)
        # 5000 answers are a gigabyte; a few are all that may wait.
        assert resident_bytes() - before < 200_000_000
        writer.transport.abort()
        await pool.close()

    with_cluster(scene)


def test_connection_that_breaks_in_mid_frame_leaves_nothing_behind() -> None:
    async def scene(cluster: LocalCluster, _account: Account) -> None:
        request = encode_frame(send_request(b"broken", 0))
        for cut in range(1, len(request), 7):
            host, _, port = cluster.broker.address.rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(request[:cut])
            writer.transport.abort()
        pool = ChannelPool()
        with pytest.raises(RocketMQError):
            await pool.call("127.0.0.1:1", RemotingCommand(1), 1.0)
        await pool.close()

    with_cluster(scene)
