"""Peers nobody wants: one sends garbage, one asks for much and never reads."""

from __future__ import annotations

import asyncio
import json
import random
import struct

from gimbalmq.protocol.codes import RequestCode
from gimbalmq.testing.network import HostNetwork

# Codes whose success would change the world that is being watched are left to the tests of single requests.
_CODES = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.PULL_MESSAGE,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.HEART_BEAT,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.END_TRANSACTION,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.QUERY_MESSAGE,
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
)
_FIELDS = (
    *("topic", "queueId", "queueOffset", "consumerGroup", "maxMsgNums", "sysFlag", "offset", "msgId", "key"),
    *("producerGroup", "commitLogOffset", "tranStateTableOffset", "a", "b", "e", "f", "g", "i", "timestamp"),
)
_VALUES = (
    *("", "0", "-1", "9223372036854775807", "99999999999999999999", "x", "\0", "junk", "NaN"),
    *("1e400", "null"),
)


class _Mute(asyncio.Protocol):
    """Takes what comes and says nothing."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport


async def _connected(network: HostNetwork, address: str) -> asyncio.Transport:
    host, _, port = address.rpartition(":")
    protocol = await network.connect(_Mute, host, int(port), 3.0)
    assert isinstance(protocol, _Mute)
    return protocol.transport


def frame(code: int, fields: dict[str, str], body: bytes = b"", opaque: int = 1) -> bytes:
    header = json.dumps(
        {"code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": opaque, "version": 401}
    ).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def garbage(rng: random.Random) -> bytes:
    """Something that is not, or not quite, a request."""
    choice = rng.random()
    if choice < 0.2:
        return rng.randbytes(rng.randint(1, 400))
    fields = {rng.choice(_FIELDS): rng.choice(_VALUES) for _ in range(rng.randint(0, 6))}
    fields.setdefault("consumerGroup", "junk")
    whole = frame(rng.choice(_CODES), fields, rng.randbytes(rng.randint(0, 60)), rng.randrange(1 << 31))
    if choice < 0.6:
        return whole
    damaged = bytearray(whole)
    for _ in range(rng.randint(1, 5)):
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    return bytes(damaged[: rng.randint(1, len(damaged))]) if choice < 0.8 else bytes(damaged)


async def send_garbage(network: HostNetwork, address: str, rng: random.Random, seconds: float) -> None:
    """For some seconds, on connection after connection; some stay half open till the end."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        transport = await _connected(network, address)
        loop.call_at(end, transport.abort)
        for _ in range(rng.randint(1, 20)):
            transport.write(garbage(rng))
            await asyncio.sleep(rng.uniform(0.0, 0.2))
            if transport.is_closing():
                break
        if rng.random() < 0.5:
            transport.abort()


async def pull_and_not_read(network: HostNetwork, address: str, topic: str, seconds: float) -> None:
    """Many pulls of everything, parked ones too, whose answers are never read."""
    transport = await _connected(network, address)
    transport.pause_reading()
    fields = {
        "consumerGroup": "stopped",
        "topic": topic,
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    try:
        for opaque in range(120):
            offset = "0" if opaque % 2 else "100000"
            fields |= {"queueOffset": offset, "queueId": str(opaque % 2)}
            transport.write(frame(RequestCode.PULL_MESSAGE, fields, opaque=opaque))
        await asyncio.sleep(seconds)
    finally:
        transport.abort()
