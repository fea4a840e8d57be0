"""Masters and slaves of one broker name, each Apache's (4.9.7, 5.5.0) or ours, as processes on loopback.

A `ReplicaSet` has a name server and a broker name; `master` and `slave` start replicas of any kind. All of them have
the same small files, and Apache's replicas the short intervals that their stream may have.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from tests.peers.apache import ApacheBroker
from tests.peers.folders import Comparison, same
from tests.peers.ours import OurBroker, OurNameServer
from tests.peers.process import Process
from tests.peers.traffic import Traffic, log_end

Kind = Literal["4.9.7", "5.5.0", "ours"]
OLD: Kind = "4.9.7"
NEW: Kind = "5.5.0"
OURS: Kind = "ours"
Replica = ApacheBroker | OurBroker

FILE_BYTES = 256 * 1024
SLOTS = 1000

SMALL: Mapping[str, object] = {
    "mappedFileSizeCommitLog": FILE_BYTES,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": SLOTS,
    "maxIndexNum": 4000,
    "messageDelayLevel": "1s 2s 1s 1s 1s 1s 3s 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    "brokerIP2": "127.0.0.1",
    # A report or a heartbeat every half second, and an end of silence after three: else 5 s and 20 s.
    "haSendHeartbeatInterval": 500,
    "haHousekeepingInterval": 3000,
    "slaveReadEnable": "true",
}
_LISTENS_EVERYWHERE = {"bindAddress": "0.0.0.0"}
"""So that messages may come from an IPv6 address; Java takes it for all addresses of both kinds."""


class ReplicaSet:
    """Replicas of one broker; use it as a context manager: all that it started is killed at its end."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        namesrv: str | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        self.folder = folder
        self.name = name
        self.extra = dict(extra or {})
        self.processes: list[Process] = []
        self.replicas: list[Replica] = []
        self._own = OurNameServer(folder / "namesrv") if namesrv is None else None
        self.namesrv = namesrv or (self._own.address if self._own else "")

    def __enter__(self) -> Self:
        if self._own is not None:
            self._own.start()
            self.processes.append(self._own)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self.processes):
            process.kill()

    def replica(
        self,
        kind: Kind,
        broker_id: int = 0,
        *,
        role: str | None = None,
        store: Path | None = None,
        port: int | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> Replica:
        """One that is not started yet; without a role it is ASYNC_MASTER or, if its id is not 0, SLAVE."""
        number = len(self.replicas) + 1
        folder = self.folder / f"{kind}-{broker_id}-{number}"
        settings: dict[str, object] = {
            **SMALL,
            **_LISTENS_EVERYWHERE,
            "brokerName": self.name,
            "brokerId": broker_id,
            "brokerRole": role or ("SLAVE" if broker_id else "ASYNC_MASTER"),
            **self.extra,
            **(extra or {}),
        }
        made: Replica
        if kind == OURS:
            made = OurBroker(folder, namesrv=self.namesrv, store=store, port=port, extra=settings)
        else:
            made = ApacheBroker(
                kind, folder, namesrv=self.namesrv, store=store, port=port, extra=settings, heap="384m"
            )
        self.replicas.append(made)
        self.processes.append(made)
        return made

    def master(self, kind: Kind, **options: object) -> Replica:
        made = self.replica(kind, **options)  # type: ignore[arg-type]
        made.start()
        return made

    def slave(self, kind: Kind, broker_id: int = 1, **options: object) -> Replica:
        made = self.replica(kind, broker_id, **options)  # type: ignore[arg-type]
        made.start()
        return made


def start_all(*replicas: Process) -> None:
    """Side by side: a JVM's start is mostly waiting."""
    with ThreadPoolExecutor(len(replicas)) as pool:
        for each in [pool.submit(replica.start) for replica in replicas]:
            each.result()


def caught_up(master: Replica, *slaves: Replica, seconds: float = 60.0) -> None:
    """Returns when the slaves say that their logs end where the master's ends."""
    deadline = time.monotonic() + seconds
    while True:
        ends = [log_end(each.address) for each in (master, *slaves)]
        if len(set(ends)) == 1:
            return
        assert time.monotonic() < deadline, (
            f"after {seconds:.0f} s the logs end at {ends}, the first is the master's"
        )
        time.sleep(0.05)


def copied(master: Replica, *slaves: Replica, seconds: float = 60.0, **options: object) -> list[Comparison]:
    """Waits until the slaves have caught up, and compares their folders with the master's while all of them run."""
    caught_up(master, *slaves, seconds=seconds)
    return [
        same(master.store, slave.store, slots=SLOTS, **options)  # type: ignore[arg-type]
        for slave in slaves
    ]


@contextmanager
def killed(*replicas: Replica) -> Iterator[None]:
    """At the end, whatever happens: a slave that is left would acknowledge what later tests send."""
    try:
        yield
    finally:
        for replica in replicas:
            replica.kill()


@contextmanager
def paused(replica: Process) -> Iterator[None]:
    """The process does nothing, and its connections stay open."""
    os.kill(replica.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(replica.pid, signal.SIGCONT)


def keep(store: Path, target: Path) -> Path:
    """A copy of a stopped broker's folder."""
    return Path(shutil.copytree(store, target, ignore=shutil.ignore_patterns("lock")))


def traffic(replica: Replica, topic: str) -> Traffic:
    return Traffic(replica.address, topic).ready()
