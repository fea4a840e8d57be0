"""Many connected consumers from one process: each heartbeats and keeps one pull parked at the broker.

    python benchmarks/crowd.py --port P --clients 5000

Prints ``ready N`` when all have joined and their pulls wait, and goes on until its input ends; then prints one line of
JSON. Raw connections, groups of ten, spread over addresses of the loopback network so that neither ports nor a
limit by address is met. Apache's own clients would take a JVM thread or more for each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import struct
import sys
import time
from pathlib import Path
from typing import cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.subjects import encode
from tests.peers.process import HOST

GROUP_SIZE = 10
BY_ADDRESS = 100
JOINING = 64
HEARTBEAT_SECONDS = 30.0
SUSPEND_MILLIS = 15_000
FAR_AWAY = 0
_HEARTBEAT, _PULL = 1, 2


class Member(asyncio.Protocol):
    """One consumer."""

    def __init__(self, number: int, topic: str, queues: int) -> None:
        self.group = f"crowd_{number // GROUP_SIZE}"
        self.answers = self.refused = 0
        self.joined = asyncio.get_running_loop().create_future()
        self.closed = False
        self._topic = topic
        self._offset = FAR_AWAY
        self._buffer = b""
        version = time.time_ns() // 1_000_000
        subscription: dict[str, object] = {"classFilterMode": False, "codeSet": [], "expressionType": "TAG"}
        subscription |= {"subString": "*", "subVersion": version, "tagsSet": [], "topic": topic}
        consumer: dict[str, object] = {"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET"}
        consumer |= {"consumeType": "CONSUME_PASSIVELY"}
        consumer |= {"groupName": self.group, "messageModel": "CLUSTERING", "unitMode": False}
        body = {
            "clientID": f"10.0.0.2@{number}",
            "consumerDataSet": [{**consumer, "subscriptionDataSet": [subscription]}],
            "producerDataSet": [],
        }
        self._heartbeat = encode(34, {}, json.dumps(body).encode(), _HEARTBEAT)
        self._pull = {
            "consumerGroup": self.group,
            "topic": topic,
            "queueId": number % queues,
            "maxMsgNums": 32,
            "sysFlag": 2,
            "commitOffset": 0,
            "suspendTimeoutMillis": SUSPEND_MILLIS,
            "subscription": "*",
            "subVersion": version,
            "expressionType": "TAG",
        }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.heartbeat()

    def heartbeat(self) -> None:
        if not self.closed:
            self._transport.write(self._heartbeat)

    def _ask(self) -> None:
        self._transport.write(encode(11, {**self._pull, "queueOffset": self._offset}, opaque=_PULL))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 8:
            length, word = struct.unpack_from(">II", self._buffer)
            if len(self._buffer) < 4 + length:
                return
            header = json.loads(self._buffer[8 : 8 + (word & 0xFFFFFF)])
            self._buffer = self._buffer[4 + length :]
            if header.get("flag", 0) & 1:
                self._answered(header)

    def _answered(self, header: dict[str, object]) -> None:
        code, fields = header["code"], header.get("extFields")
        if header["opaque"] == _HEARTBEAT:
            if code != 0:
                self.refused += 1
            if not self.joined.done():
                self.joined.set_result(None)
                self._ask()
            return
        self.answers += 1
        if code in (0, 19, 20, 21) and isinstance(fields, dict):
            self._offset = int(fields.get("nextBeginOffset", self._offset))
            self._ask()
        else:
            self.refused += 1
            asyncio.get_running_loop().call_later(1.0, self._ask_again)

    def _ask_again(self) -> None:
        if not self.closed:
            self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if not self.joined.done():
            self.joined.set_result(None)


async def crowd(port: int, clients: int, topic: str, queues: int) -> None:
    loop = asyncio.get_running_loop()
    members: list[Member] = []
    turn = asyncio.Semaphore(JOINING)
    failed = 0

    async def join(number: int) -> None:
        nonlocal failed
        async with turn:
            source = f"127.0.{1 + number // BY_ADDRESS // 250}.{1 + number // BY_ADDRESS % 250}"
            try:
                _, member = await asyncio.wait_for(
                    loop.create_connection(
                        lambda: Member(number, topic, queues), HOST, port, local_addr=(source, 0)
                    ),
                    30,
                )
                await asyncio.wait_for(member.joined, 30)
                members.append(member)
            except (OSError, TimeoutError):
                failed += 1

    await asyncio.gather(*(join(number) for number in range(clients)))
    await asyncio.sleep(1.0)
    print(f"ready {sum(not member.closed for member in members)}", flush=True)
    ended = loop.run_in_executor(None, sys.stdin.read)
    beat = 0
    while not ended.done():
        # Spread over the interval, as clients that started at different times are.
        await asyncio.wait([ended], timeout=HEARTBEAT_SECONDS / 100)
        for member in members[beat::100]:
            member.heartbeat()
        beat = (beat + 1) % 100
    result = {
        "connected": sum(not member.closed for member in members),
        "failed": failed,
        "lost": sum(member.closed for member in members),
        "refused": sum(member.refused for member in members),
        "answers": sum(member.answers for member in members),
    }
    print(json.dumps(result), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--topic", default="crowd")
    parser.add_argument("--queues", type=int, default=4)
    asked = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        import uvloop
    except ImportError:
        asyncio.run(crowd(asked.port, asked.clients, asked.topic, asked.queues))
    else:
        uvloop.run(crowd(asked.port, asked.clients, asked.topic, asked.queues))


if __name__ == "__main__":
    main()
