"""A broker and a name server among hostile clients, as a process of their own.

Beside the attacks of ``hostile`` a producer and a consumer work as they should. Their times are printed; only the
long form, which has the machine to itself, asserts them.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gimbalmq import ConsumeFromWhere, Message, MessageView
from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.admin.admin import Admin
from gimbalmq.client.producer import Producer
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.errors import RocketMQError
from gimbalmq.testing.cluster import SMALL
from tests.cli.commands import Server, serving
from tests.faults.ground import LIMIT, ROOT, happens
from tests.peers.process import free_port
from tests.robustness.load import Account
from tests.transport.wiring import Certificate, self_signed

TOPIC = "Quiet"
MOST_MB = 300
"""Anonymous memory of the process, the issue of the long form; the files it maps are the system's to give and take."""

COMPLAINTS = re.compile(
    r"Traceback|failed and goes on|Exception in callback|never retrieved|request -?\d+ failed"
)
"""Lines of the server's log that nobody's request may cause."""


@dataclass
class Quiet:
    """What the well-behaved clients saw."""

    account: Account = field(default_factory=Account)
    times: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    peak_mb: float = 0.0

    @property
    def p99_ms(self) -> float:
        times = sorted(self.times)
        return times[len(times) * 99 // 100] * 1000

    def __str__(self) -> str:
        slowest = max(self.times) * 1000
        return (
            f"{self.account}; sends p99 {self.p99_ms:.1f} ms, slowest {slowest:.1f} ms; "
            f"{len(self.failures)} failed; {self.peak_mb:.0f} MB"
        )


def anonymous_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no RssAnon")


@contextmanager
def server_of(folder: Path, certificate: Certificate, ports: tuple[int, int], flush: str) -> Iterator[Server]:
    keys = {
        **SMALL,
        "brokerName": "quiet",
        "brokerClusterName": "QuietCluster",
        "flushDiskType": flush,
        "tls.server.certPath": certificate.cert_path,
        "tls.server.keyPath": certificate.key_path,
    }
    settings = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    words = ("--port", ports[0], "--namesrv-port", ports[1], "--store", folder / "store")
    with serving("server", *words, *settings) as server:
        server.ready()
        server.ready()
        yield server


@asynccontextmanager
async def at_work(namesrv: str, quiet: Quiet, server: Server) -> AsyncIterator[None]:
    """A producer that sends all the while, a consumer that counts, an eye on the memory."""
    stop = asyncio.Event()

    async def note(message: MessageView) -> None:
        quiet.account.found.append(message.body)

    async def produce(producer: Producer) -> None:
        number = 0
        while not stop.is_set():
            body = b"quiet-%06d" % number
            number += 1
            begun = SYSTEM_CLOCK.monotonic()
            try:
                await producer.send(Message(TOPIC, body))
            except RocketMQError as error:
                quiet.failures.append(str(error))
            else:
                quiet.account.acknowledged.add(body)
            quiet.times.append(SYSTEM_CLOCK.monotonic() - begun)
            await asyncio.sleep(0.005)

    async def weigh() -> None:
        while not stop.is_set():
            quiet.peak_mb = max(quiet.peak_mb, anonymous_mb(server.process.pid))
            await asyncio.sleep(0.1)

    consumer = PushConsumer("QuietGroup", namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe(TOPIC, "*", note)
    async with Producer("QuietProducers", namesrv, send_timeout=20.0) as producer, consumer:
        tasks = [asyncio.create_task(produce(producer)), asyncio.create_task(weigh())]
        try:
            yield
            await happens(lambda: len(quiet.times) >= 100, "a hundred messages were sent")
        finally:
            stop.set()
            await asyncio.gather(*tasks)
        await happens(lambda: not quiet.account.lost, f"everything acknowledged was consumed: {quiet}")


async def attack(broker: str, namesrv: str, *, seed: int, rounds: int, seconds: float) -> str:
    """The hostile client, in a process of its own; what it says it did."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.hostile", broker, namesrv),
        *("--seed", str(seed), "--rounds", str(rounds), "--seconds", str(seconds)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    try:
        async with asyncio.timeout(seconds + 60):
            out, err = await process.communicate()
    except BaseException:
        process.kill()
        raise
    assert process.returncode == 0, err.decode()
    return out.decode()


async def read_again(namesrv: str, account: Account) -> None:
    """What a new group finds after a restart."""
    account.found.clear()
    group = f"QuietReaders{os.urandom(4).hex()}"
    async with Admin(namesrv) as admin:
        # By hand: after ten minutes of attacks the broker creates no more groups for clients.
        await admin.groups.create(group)
    consumer = PushConsumer(group, namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)

    async def note(message: MessageView) -> None:
        account.found.append(message.body)

    consumer.subscribe(TOPIC, "*", note)
    async with consumer:
        await happens(
            lambda: not account.lost, f"everything acknowledged was there after a restart: {account}"
        )


def complaints(server: Server) -> list[str]:
    lines = server.errors.splitlines()
    found = [index for index, line in enumerate(lines) if COMPLAINTS.search(line)]
    return ["\n".join(lines[max(0, index - 2) : index + 25]) for index in found[:5]]


def pauses(server: Server) -> list[str]:
    """When the server's loop stood still for long, and where."""
    found: list[str] = []
    for line in server.errors.splitlines():
        if "the event loop stood still" in line:
            found.append(line.partition("stood still ")[2])
        elif found and (place := re.match(r'  File ".*/gimbalmq/(.*)", line (\d+), in (\w+)', line)):
            found[-1] = f"{found[-1].split(' in ')[0]} in {place[1]}:{place[2]} {place[3]}"
    return found


def siege(tmp_path: Path, flush: str, *, seed: int, rounds: int, seconds: float) -> Quiet:
    """Attacks beside quiet clients; then the process is killed, starts again, is told to end and starts again."""
    certificate = self_signed(tmp_path)
    ports = free_port(), free_port()
    broker, namesrv = (f"127.0.0.1:{port}" for port in ports)
    quiet = Quiet()

    async def work(server: Server) -> None:
        async with Admin(namesrv) as admin:
            await admin.topics.create(TOPIC, queues=4)
        async with at_work(namesrv, quiet, server):
            print(await attack(broker, namesrv, seed=seed, rounds=rounds, seconds=seconds))

    with server_of(tmp_path, certificate, ports, flush) as server:
        try:
            asyncio.run(work(server))
        except BaseException:
            print(quiet.failures[:5], server.process.poll(), server.errors[-5000:], sep="\n")
            raise
        assert server.process.poll() is None, server.errors[-3000:]
        print(quiet, *pauses(server), sep="\n")
        assert complaints(server) == []
        server.end(signal.SIGKILL)
    assert quiet.failures == []
    assert not quiet.account.lost, quiet
    assert quiet.peak_mb < MOST_MB, quiet
    for _ in range(2):
        with server_of(tmp_path, certificate, ports, flush) as server:
            asyncio.run(read_again(namesrv, quiet.account))
            assert server.end() == 0
            assert complaints(server) == []
    return quiet


@pytest.mark.timeout(LIMIT)
def test_hostile_clients_hurt_nobody_else(tmp_path: Path) -> None:
    siege(tmp_path, "ASYNC_FLUSH", seed=1, rounds=1, seconds=60)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_ten_minutes_among_hostile_clients(tmp_path: Path, flush: str) -> None:
    quiet = siege(tmp_path, flush, seed=2, rounds=100_000, seconds=600)
    assert quiet.p99_ms < 100, quiet
