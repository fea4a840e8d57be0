"""A master and its slave: replicated sends, catching up, and what a slave costs its master.

Three pairs, each a name server, a master and a slave as processes of their own: ours, Apache 5.5.0 and Apache 4.9.7.
Each is measured in turn while the others are frozen, by the same generator (4 connections, 2000 requests in flight).

- "async": the master answers at once. A send counts when the slave has it: the time runs until both logs are equally
  long, so a slave that cannot follow shows in the figure.
- "waiting": SYNC_MASTER, each answer waits for one slave. 5.5.0 gets inSyncReplicas=2, because it waits for nobody
  without it. Answers other than 0 do not count, and are shown.
- Catching up: the slave's process is killed, the master gets messages of 1 KB, the slave comes back. MB a second from
  its first new byte to the last.
- Cost: processor time of the master's process for a message of 100 B with a slave, and without one.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import warming
from benchmarks.loadgen.runner import Load, run_c
from benchmarks.report import Options, Row, main
from benchmarks.subjects import (
    G1,
    OPENINGS,
    ROOT,
    Subject,
    Wire,
    awake,
    chosen,
    cpu_seconds_of,
    encode,
    measure,
    scratch_folder,
    silent_home,
)
from tests.peers import apache
from tests.peers.process import HOST, PeerError, free_port

NEW, OURS = "5.5.0", "ours"
SHAPE: Mapping[str, object] = {"topic": "send", "queues": 8, "connections": 4, "window": 2000}
BODIES = {"100 B": 100, "1 KB": 1024}
LAG_SECONDS = 60.0
HEAP = "1g"
Goal = tuple[Literal[">=", "<="], float] | None


class Pair(Subject):
    """A name server, a master and a slave."""

    def __init__(self, folder: Path, name: str, *, waits: bool) -> None:
        super().__init__(folder, name)
        self.waits = waits
        self.slave_port = free_port()
        self._starts: list[int | None] = [None, 0, 1]  # the name server, brokers by their ids

    def _settings(self, broker_id: int) -> dict[str, object]:
        master = "SYNC_MASTER" if self.waits else "ASYNC_MASTER"
        return {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": broker_id,
            "brokerRole": "SLAVE" if broker_id else master,
            "brokerIP1": HOST,
            "brokerIP2": HOST,
            # One that 4.9 needs: else its slave says nothing for 5 s after each connection.
            "haSendHeartbeatInterval": 1000,
            **({"inSyncReplicas": 2} if self.waits and self.name == NEW else {}),
        }

    def commands(self) -> list[tuple[list[str], dict[str, str]]]:
        return [self._name_server() if part is None else self._broker(part) for part in self._starts]

    def _name_server(self) -> tuple[list[str], dict[str, str]]:
        if self.name == OURS:
            return self._python("namesrv", "--port", self.namesrv_port)
        file = apache.write_properties(
            self.folder / "namesrv.properties", {"listenPort": self.namesrv_port, "bindAddress": HOST}
        )
        return self._java("256m", "org.apache.rocketmq.namesrv.NamesrvStartup", file)

    def _broker(self, broker_id: int) -> tuple[list[str], dict[str, str]]:
        port = self.slave_port if broker_id else self.port
        store = self.folder / f"store-{broker_id}"
        file = self.folder / f"broker-{broker_id}.properties"
        if self.name == OURS:
            apache.write_properties(file, self._settings(broker_id))
            words = ("broker", "--port", port, "--namesrv", self.namesrv, "--store", store, "-c", file)
            return self._python(*words)
        places = {
            "listenPort": port,
            "bindAddress": HOST,
            "namesrvAddr": self.namesrv,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
        }
        apache.write_properties(file, {**self._settings(broker_id), **places})
        return self._java(HEAP, "org.apache.rocketmq.broker.BrokerStartup", file)

    def _python(self, *words: object) -> tuple[list[str], dict[str, str]]:
        command = [sys.executable, "-m", "gimbalmq", *map(str, words), "--log-level", self.log_level]
        return command, {"PYTHONPATH": str(ROOT / "src")}

    def _java(self, heap: str, main_class: str, file: Path) -> tuple[list[str], dict[str, str]]:
        home, silent = silent_home(self.folder / "home")
        command = ["java", "-server", f"-Xms{heap}", f"-Xmx{heap}", *G1, *OPENINGS]
        command += ["-XX:MaxDirectMemorySize=1g", *silent, "-Djava.net.preferIPv4Stack=true"]
        command += ["-cp", apache.fetch(self.name), main_class, "-c", str(file)]
        return command, {"ROCKETMQ_HOME": str(home)}

    @property
    def master_pid(self) -> int:
        return self._children[1].pid

    def await_slave(self, seconds: float = LAG_SECONDS) -> float:
        """Waits until both logs are equally long; the seconds it took."""
        begun = time.monotonic()
        while True:
            ends = log_end(self.port), log_end(self.slave_port)
            if ends[0] == ends[1] is not None:
                return time.monotonic() - begun
            if time.monotonic() - begun > seconds:
                raise PeerError(f"{self.name}: the slave is at {ends[1]}, the master at {ends[0]}")
            time.sleep(0.02)

    def kill_slave(self) -> None:
        slave = self._children.pop()
        slave.kill()
        slave.wait()

    def start_slave(self) -> None:
        self._starts = [1]
        self.launch()


def log_end(port: int) -> int | None:
    """Where a broker's log ends; None while it does not answer."""
    try:
        with Wire(port, 5.0) as wire:
            wire.write(encode(28, {}))
            _, body = wire.answer()
        return int(json.loads(body)["table"]["commitLogMaxOffset"])
    except (OSError, ValueError, KeyError):
        return None


@contextmanager
def pairs(names: list[str], *, waits: bool) -> Iterator[dict[str, Pair]]:
    """Pairs on new folders whose slaves follow, then all frozen."""
    with scratch_folder() as folder:
        found = {name: Pair(folder / name, name, waits=waits) for name in names}
        try:
            for pair in found.values():
                pair.start()
                pair.await_slave()
                pair.create_topics(["send"], queues=8)
                pair.freeze()
            yield found
        finally:
            for pair in found.values():
                pair.kill()


class Rows:
    """A row for each figure, in the order in which they came."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}

    def add(self, what: str, unit: str, name: str, value: float, goal: Goal = None) -> None:
        self._rows.setdefault(what, Row(what, unit, goal=goal)).add(name, value)

    def all(self) -> list[Row]:
        return list(self._rows.values())


def run(options: Options) -> list[Row]:
    names = chosen(options.only)
    rows = Rows()
    seconds = options.pick(4, 2)
    with pairs(names, waits=False) as found:
        warm(found, options)
        for _ in range(options.rounds):
            for what, body in BODIES.items():
                for name, pair in found.items():
                    load = measure(pair, partial(replicated, pair, body, seconds), options.tries)
                    rows.add(f"async sends, {what}, at both", "1/s", name, load.per_second, (">=", 1.5))
                    cpu = load.cpu_us
                    rows.add(f"async sends, {what}: CPU of the pair", "us", name, cpu)
                    rows.add(f"async sends, {what}: other answers", "1/s", name, load.refused / seconds)
        cost(found, rows, seconds)
        catch_up(found, rows, int(options.pick(300, 60)))
    with pairs(names, waits=True) as found:
        warm(found, options)
        for _ in range(options.rounds):
            for what, body in BODIES.items():
                for name, pair in found.items():
                    load_of = partial(
                        run_c, "send", port=pair.port, **SHAPE, body=body, seconds=seconds, warmup=1
                    )
                    load = measure(pair, load_of, options.tries)
                    rows.add(f"waiting sends, {what}", "1/s", name, load.per_second, (">=", 1.5))
                    cpu = load.cpu_us
                    rows.add(f"waiting sends, {what}: CPU of the pair", "us", name, cpu)
                    rows.add(f"waiting sends, {what}: other answers", "1/s", name, load.refused / seconds)
            for clients in (1, 32):
                shape = {**SHAPE, "connections": min(clients, 8), "window": clients}
                for name, pair in found.items():
                    load_of = partial(
                        run_c, "send", port=pair.port, **shape, body=1024, seconds=seconds, warmup=1
                    )
                    load = measure(pair, load_of, options.tries)
                    what = f"waiting sends, 1 KB, {clients} at a time"
                    rows.add(f"{what}: p50", "us", name, load.p50_us)
                    rows.add(f"{what}: p99", "us", name, load.p99_us, ("<=", 1.0))
    return rows.all()


def warm(found: dict[str, Pair], options: Options) -> None:
    for pair in found.values():
        with awake(pair):
            count = int(options.pick(250_000, 60_000))
            window = partial(run_c, "send", port=pair.port, **SHAPE, count=count)
            warming.warm(pair, "waiting sends" if pair.waits else "async sends", window, quick=options.quick)
            pair.await_slave()


def replicated(pair: Pair, body: int, seconds: float) -> Load:
    """Sends, and the wait for the slave: what both have, by the time that took."""
    begun = time.monotonic()
    load = run_c("send", port=pair.port, **SHAPE, body=body, seconds=seconds, warmup=0)
    pair.await_slave()
    load.per_second = load.ok / (time.monotonic() - begun)
    return load


def cost(found: dict[str, Pair], rows: Rows, seconds: float) -> None:
    """With a slave, and without: its process is killed for that, and stays so."""
    for name, pair in found.items():
        with awake(pair):
            for what in ("with a slave", "without"):
                if what == "without":
                    pair.kill_slave()
                    time.sleep(1.0)
                before = cpu_seconds_of([pair.master_pid])
                load = run_c("send", port=pair.port, **SHAPE, body=100, seconds=seconds, warmup=0)
                if what == "with a slave":
                    pair.await_slave()
                used = cpu_seconds_of([pair.master_pid]) - before
                rows.add(f"master's CPU for a send, 100 B, {what}", "us", name, used / load.ok * 1e6)


def catch_up(found: dict[str, Pair], rows: Rows, megabytes: int) -> None:
    """A slave that was away for so many megabytes of messages."""
    for name, pair in found.items():
        with awake(pair):
            run_c("send", port=pair.port, **SHAPE, body=1024, count=megabytes * 1000, seconds=60)
            end = log_end(pair.port)
            assert end is not None
            pair.start_slave()
            first: tuple[float, int] | None = None
            begin, deadline = None, time.monotonic() + LAG_SECONDS
            while True:
                now, at = time.monotonic(), log_end(pair.slave_port)
                if at is not None and begin is None:
                    begin = at
                if at is not None and begin is not None and at > begin and first is None:
                    first = now, at
                if at == end and first is not None:
                    break
                if now > deadline:
                    raise PeerError(f"{name}: the slave is at {at}, the master at {end}")
                time.sleep(0.05)  # asking costs the slave time, too
            rows.add("catching up", "MB/s", name, (end - first[1]) / max(now - first[0], 0.001) / 1e6)


if __name__ == "__main__":
    main(run, __doc__, "replication")
