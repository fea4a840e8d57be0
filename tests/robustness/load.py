"""Load and accounting for the tests that hurt the broker: what was acknowledged, what is found."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gimbalmq.errors import RocketMQError
from gimbalmq.model.record import iter_records
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.messages import PullMessage, PullMessageReply, SendMessageV2
from gimbalmq.transport.pool import ChannelPool
from tests.peers.process import free_port

TOPIC = "Load"
QUEUES = 4
SOURCE = Path(__file__).resolve().parents[2] / "src"


@dataclass
class Account:
    """Messages by body; the point is that ``lost`` stays empty."""

    acknowledged: set[bytes] = field(default_factory=set)
    found: list[bytes] = field(default_factory=list)

    @property
    def lost(self) -> set[bytes]:
        return self.acknowledged - set(self.found)

    @property
    def repeated(self) -> int:
        return len(self.found) - len(set(self.found))

    def __str__(self) -> str:
        return (
            f"acknowledged {len(self.acknowledged)}, found {len(self.found)}, "
            f"lost {len(self.lost)}, repeated {self.repeated}"
        )


class BrokerProcess:
    """``gimbalmq broker`` as a process of its own, so that it can be killed.

    It comes back on the port it had, so that must not be one that others are given while it is away.
    """

    def __init__(self, store: Path, *settings: str) -> None:
        self.store = store
        self._settings = settings
        self.port = free_port()
        self.address = ""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "gimbalmq", "broker", "--port", str(self.port)]
        command += ["--store", str(self.store), "--log-level", "error"]
        for setting in self._settings:
            command += ["--set", setting]
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert "ready" in line, f"the broker did not start: {line!r}"
        self.address = next(word for word in line.replace(",", " ").split() if word.count(":") == 1)

    def kill(self) -> None:
        """As kill -9 does: no last word."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._wait()

    def _wait(self) -> None:
        assert self._process is not None
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


def send_request(body: bytes, queue_id: int, topic: str = TOPIC) -> RemotingCommand:
    header = SendMessageV2(
        producer_group="load",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=QUEUES,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties=f"UNIQ_KEY\x01{body.hex()}\x02KEYS\x01{body.decode()}\x02TAGS\x01t\x02",
    )
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.to_ext(), body)


async def send_until_broken(address: str, names: Iterable[bytes], account: Account, window: int = 64) -> None:
    """Keeps ``window`` sends in flight until the names end or the broker is gone."""
    pool = ChannelPool()
    source = iter(names)
    refused = 0

    async def worker(queue_id: int) -> None:
        nonlocal refused
        for body in source:
            try:
                answer = await pool.call(address, send_request(body, queue_id), 10.0)
            except RocketMQError:
                return
            if answer.code == ResponseCode.SUCCESS:
                account.acknowledged.add(body)
            else:
                refused += 1

    await asyncio.gather(*(worker(number % QUEUES) for number in range(window)))
    await pool.close()


async def read_everything(address: str, account: Account, topic: str = TOPIC) -> None:
    pool = ChannelPool()
    account.found.clear()
    for queue_id in range(QUEUES):
        offset = 0
        while True:
            header = PullMessage(
                consumer_group="reader",
                topic=topic,
                queue_id=queue_id,
                queue_offset=offset,
                max_msg_nums=32,
                sys_flag=4,
                subscription="*",
            )
            answer = await pool.call(address, RemotingCommand(11, header.to_ext()), 10.0)
            if answer.code != ResponseCode.SUCCESS:
                break
            for record in iter_records(bytes(answer.body), check_crc=True):
                assert record.queue_offset == offset, "a queue has a gap"
                offset += 1
                account.found.append(record.body)
            assert PullMessageReply.from_ext(answer.ext_fields).next_begin_offset == offset
    await pool.close()
