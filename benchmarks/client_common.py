"""What the client benchmarks share: one broker for both clients, the command line, goals that are plain numbers.

In their tables `ours` is this project's client and `Apache` is Apache's Java client, both on the broker that
`--broker` names. The default is both brokers, one after the other, because they answer different questions: on
two cores Apache's broker leaves its own client little processor (14-24 k async sends/s there, 78-104 k on our
broker), so a ratio measured on it alone says more about two JVMs sharing a machine than about the clients.

Java's client runs as `loadgen.runner.run_java` runs it, with the JVM's own choice of collector and compilers; ours
in a process of its own, under uvloop where that is installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import subjects, warming
from benchmarks.broker_javaclient import await_route
from benchmarks.loadgen.runner import (
    HERE,
    JAVA_VERSION,
    CannotMeasure,
    Load,
    LoadFailed,
    arguments,
    read_result,
)
from benchmarks.report import Options, Row, disturbance, parser, plain_table, settle, write_json
from benchmarks.subjects import APACHE, ROOT, Subject, chosen, running
from tests.peers import apache

ENVIRONMENT = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


@dataclass
class Limit(Row):
    """A row whose goal is a number for our own figure, not for the ratio."""

    @property
    def reached(self) -> bool | None:
        value = self.value("ours")
        if self.goal is None or value is None:
            return None
        bound, limit = self.goal
        return value >= limit if bound == ">=" else value <= limit


@dataclass(frozen=True)
class Plan:
    """What a client benchmark is told."""

    options: Options
    broker: str

    def clients(self) -> list[str]:
        """Which clients to measure: ours, and Java's where it can run."""
        only = self.options.only
        found = [name for name in ("ours", "apache") if only in (None, name)]
        if "apache" in found and (reason := apache.available()) is not None:
            print(f"Java's client: not measured: {reason}", file=sys.stderr)
            found.remove("apache")
        if not found:
            raise CannotMeasure("nothing to measure")
        return found


@contextmanager
def one_broker(plan: Plan, topics: dict[str, int]) -> Iterator[Subject]:
    """The broker, running and then frozen, with these topics (name: queues)."""
    with running(chosen("ours" if plan.broker == "ours" else APACHE[0])) as found:
        (subject,) = found.values()
        with subjects.awake(subject):
            for name, queues in topics.items():
                subject.create_topics([name], queues=queues)
            for name in topics:
                await_route(subject, name)
        yield subject


def in_turn(clients: list[str], turn: int) -> list[str]:
    """The clients in the order of one round: whoever was first is last in the next."""
    return clients if turn % 2 == 0 else clients[::-1]


def run_ours(mode: str, *, namesrv: str, **options: object) -> Load:
    """Our client as a load: `async`, `sync`, `consume` or `decode` of `client_load.py`."""
    command = [sys.executable, "-m", "benchmarks.client_load", mode]
    command += arguments({"namesrv": namesrv, **options})
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, cwd=ROOT, env={**os.environ, **ENVIRONMENT}
    )
    try:
        return read_result(done.stdout)
    except LoadFailed as error:
        raise LoadFailed(f"our client, {mode}: {error}\n{done.stderr[-1500:]}") from None


def run_java_consumer(mode: str, *, home: Path, **options: object) -> Load:
    """Java's client: `consume` with batches of its own for pull and handler, or `decode`."""
    command = ["java", "-Xms512m", "-Xmx512m", "-XX:-UsePerfData", f"-Duser.home={home}"]
    command += ["-Djava.net.preferIPv4Stack=true", "-Drocketmq.client.logUseSlf4j=true"]
    command += ["-cp", build_java_consumer(), "ClientConsume", mode, *arguments(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    try:
        return read_result(done.stdout)
    except LoadFailed as error:
        raise LoadFailed(f"Java client, {mode}: {error}\n{done.stderr[-1500:]}") from None


def build_java_consumer() -> str:
    """The class path of ClientConsume with the Java client behind it."""
    if shutil.which("javac") is None:
        raise CannotMeasure("no javac: the Java client cannot be measured")
    source = HERE / "ClientConsume.java"
    libraries = apache.fetch(JAVA_VERSION)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    classes = apache.cache_root() / f"clientconsume-{digest}"
    if not classes.is_dir():
        with tempfile.TemporaryDirectory(dir=classes.parent, prefix=".clientconsume-") as scratch:
            command = ["javac", "-nowarn", "-cp", libraries, "-d", f"{scratch}/classes", str(source)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if done.returncode != 0:
                raise CannotMeasure(f"ClientConsume.java does not compile:\n{done.stderr[-2000:]}")
            Path(scratch, "classes").rename(classes)
    return f"{classes}:{libraries}"


def main(run: Callable[[Plan], list[Row]], text: str | None, name: str) -> None:
    """The command line of one client benchmark."""
    made = parser(text)
    made.add_argument(
        "--broker",
        choices=["both", "apache", "ours"],
        default="both",
        help="whose broker serves both clients",
    )
    asked = made.parse_args()
    settle(asked)
    rows: list[Row] = []
    for broker in ("apache", "ours") if asked.broker == "both" else (asked.broker,):
        try:
            measured = run(Plan(Options(asked.quick, asked.only), broker))
        except CannotMeasure as error:
            print(f"{broker} broker: skipped: {error}")
            continue
        print(f"\n== both clients on {'our' if broker == 'ours' else 'Apache' + chr(39) + 's'} broker")
        print(plain_table(measured))
        print(warming.warmth())
        print(f"load average {os.getloadavg()[0]:.1f}; {disturbance()}", flush=True)
        for row in measured:
            row.what = f"{broker} broker: {row.what}"
        rows += measured
    if asked.json:
        write_json(asked.json, {name: rows}, {})
