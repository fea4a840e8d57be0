"""The brokers under test, behind one face: start, create topics, freeze, weigh, stop.

Fairness is the point of this file:

- Apache runs with the collector and compilers its own scripts choose (G1, both compilers) and a 2 GB heap,
  not with the interop tests' quick-start flags, and with its default configuration (1 GB log files,
  asynchronous flush). Only `-XX:+AlwaysPreTouch` is left out: it would start later and weigh more with it.
- There are two of Apache's brokers, 5.5.0 and 4.9.7, because the older is the faster one in some things.
- Ours runs as a user starts it: `python -m gimbalmq server`, defaults.
- Nobody writes logs: Apache's logging is switched off in the way of each version, ours is told to log errors only.
- Both write to folders on the same disk. While one is measured the other is frozen (SIGSTOP), so that two
  warm brokers can be measured in turn without either paying for the other.
- No memory is free (`memory.py`), as on a machine that has run for a day: what a hypervisor takes to hand it out is
  nobody's.
- What other processes on the machine took meanwhile is recorded with every figure; a disturbed measurement is
  repeated, and the least disturbed one counts.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from benchmarks.loadgen.runner import CannotMeasure, Load
from benchmarks.memory import fill_cache
from benchmarks.security import OPEN, Security, people, signed
from tests.peers import apache
from tests.peers.process import HOST, PeerError, free_port, tail

ROOT = Path(__file__).resolve().parents[1]

# As bin/runserver.sh and bin/runbroker.sh of Apache RocketMQ say for Java 9 and later, heaps apart.
G1 = (
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-OmitStackTraceInFastThrow",
    "-XX:-UseLargePages",
)
OPENINGS = (
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.lang.reflect=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
)


# ---- the wire, as little of it as a benchmark needs ----


_administrator = False  # whether requests are signed; set while secured brokers run


def encode(code: int, fields: Mapping[str, object], body: bytes = b"", opaque: int = 1) -> bytes:
    """One request frame with a JSON header."""
    if _administrator:
        fields = signed(fields, body)
    header: dict[str, object] = {"code": code}
    if fields:
        header["extFields"] = {name: str(value) for name, value in fields.items()}
    header |= {
        "flag": 0,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": 513,
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body


class Wire:
    """A blocking connection to a broker or a name server."""

    def __init__(self, port: int, timeout: float = 60.0) -> None:
        self._socket = socket.create_connection((HOST, port), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def _read(self, length: int) -> bytes:
        while len(self._buffer) < length:
            piece = self._socket.recv(1 << 16)
            if not piece:
                raise ConnectionError("closed by the server")
            self._buffer += piece
        taken, self._buffer = self._buffer[:length], self._buffer[length:]
        return taken

    def write(self, frames: bytes) -> None:
        self._socket.sendall(frames)

    def answer(self) -> tuple[dict[str, Any], bytes]:
        """The next answer: its header and its body."""
        while True:
            length, word = struct.unpack(">II", self._read(8))
            header_length = word & 0xFFFFFF
            header: dict[str, Any] = json.loads(self._read(header_length))
            body = self._read(length - 4 - header_length)
            if header.get("flag", 0) & 1:
                return header, body

    def call(self, code: int, fields: Mapping[str, object], body: bytes = b"") -> dict[str, Any]:
        self.write(encode(code, fields, body))
        return self.answer()[0]


def send_request(topic: str, queue: int = 0) -> bytes:
    """A send (310) of one small message."""
    now = time.time_ns()
    fields: dict[str, object] = {
        "a": "bench_group",
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": queue,
        "f": 0,
        "g": now // 1_000_000,
        "h": 0,
        "i": f"UNIQ_KEY\x010A000002{now:024X}\x02WAIT\x01true\x02",
        "j": 0,
        "k": "false",
        "m": "false",
        "n": "broker-a",
    }
    return encode(310, fields, b"hello")


def topic_request(topic: str, queues: int, opaque: int) -> bytes:
    """UPDATE_AND_CREATE_TOPIC (17) as mqadmin sends it."""
    fields: dict[str, object] = {
        "readQueueNums": queues,
        "perm": 6,
        "writeQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topic": topic,
        "attributes": "",
        "force": "false",
        "defaultTopic": "TBW102",
        "order": "false",
        "topicSysFlag": 0,
    }
    return encode(17, fields, opaque=opaque)


def topic_list_request(topics: Sequence[str], queues: int) -> bytes:
    """UPDATE_AND_CREATE_TOPIC_LIST (18), Apache 5.3 and later."""
    shape = {"order": False, "perm": 6, "readQueueNums": queues, "topicFilterType": "SINGLE_TAG"}
    shape |= {"topicSysFlag": 0, "writeQueueNums": queues, "attributes": {}}
    listed = [{**shape, "topicName": topic} for topic in topics]
    return encode(18, {}, json.dumps({"topicConfigList": listed}).encode())


# ---- processes ----


@dataclass(frozen=True)
class Memory:
    """MB of a subject's processes. Pages of memory-mapped files are part of `rss` and not of `anonymous`."""

    rss: float
    pss: float
    anonymous: float


def memory_of(pids: Sequence[int]) -> Memory:
    """Sum over processes and their descendants, from /proc."""
    rss = pss = anonymous = 0
    for pid in _with_descendants(pids):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("Rss", "Pss", "Anonymous"):
                kilobytes = int(value.split()[0])
                rss += kilobytes if name == "Rss" else 0
                pss += kilobytes if name == "Pss" else 0
                anonymous += kilobytes if name == "Anonymous" else 0
    return Memory(rss / 1024, pss / 1024, anonymous / 1024)


def cpu_seconds_of(pids: Sequence[int]) -> float:
    """CPU time used so far by processes and their descendants."""
    ticks = 0
    for pid in _with_descendants(pids):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _with_descendants(pids: Sequence[int]) -> list[int]:
    found: list[int] = []
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        for task in Path(f"/proc/{pid}/task").iterdir():
            waiting += map(int, (task / "children").read_text().split())
    return found


APACHE = ("5.5.0", "4.9.7")
"""Apache's versions that Maven Central has in full; the newest, and the newest of those before 5."""
apache_heap = "2g"  # of a broker; set by --heap

_SILENT = '<configuration><root level="OFF"/></configuration>\n'


def silent_home(folder: Path) -> tuple[Path, list[str]]:
    """A ROCKETMQ_HOME in which Apache's servers log nothing, and the options of Java that this takes.

    4.9 reads a file for each program there; 5.x reads the one that an option names, which its own scripts set, too.
    """
    home = apache.prepare_home(folder)
    for file in (home / "conf").glob("logback_*.xml"):
        file.write_text(_SILENT)
    silent = home / "conf" / "silent.xml"
    silent.write_text(_SILENT)
    return home, [
        f"-Duser.home={home}",
        f"-Drmq.logback.configurationFile={silent}",
        "-Drocketmq.client.logUseSlf4j=true",
    ]


class Subject:
    """A name server and a broker: what ours and Apache's have in common."""

    def __init__(self, folder: Path, name: str = "ours") -> None:
        self.folder = folder
        self.name = name
        self.store = folder / "store"
        self.log = folder / "output.log"
        self.port = free_port()
        self.namesrv_port = free_port()
        self.namesrv = f"{HOST}:{self.namesrv_port}"
        self.settings: tuple[str, ...] = ()  # of ours: KEY=VALUE beside the defaults
        self.options: tuple[str, ...] = ()  # of ours: words of the command line
        self.log_level = "error"  # of ours
        self.security = OPEN
        self._children: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True, exist_ok=True)

    def commands(self) -> list[tuple[list[str], dict[str, str]]]:
        """Command line and extra environment of each process, in order."""
        raise NotImplementedError

    def launch(self) -> float:
        """Start the processes and return at once; the monotonic time of the start."""
        begun = time.monotonic()
        with self.log.open("ab") as log:
            for command, environment in self.commands():
                child = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment},
                    start_new_session=True,
                )
                self._children.append(child)
        return begun

    def start(self, topic: str = "warm") -> float:
        """Start it; seconds from the start of the first process to the first accepted send."""
        begun = self.launch()
        deadline = begun + 90
        while True:
            try:
                with Wire(self.port, 30.0) as wire:
                    wire.write(send_request(topic))
                    if wire.answer()[0]["code"] == 0:
                        return time.monotonic() - begun
                time.sleep(0.1 if self.security else 0)  # brokers slow down those whom they do not know yet
            except (OSError, ConnectionError):
                pass
            for child in self._children:
                if child.poll() is not None:
                    self.kill()
                    raise PeerError(f"{self.name} ended with status {child.returncode}:\n{tail(self.log)}")
            if time.monotonic() > deadline:
                self.kill()
                raise PeerError(f"{self.name} accepts no send:\n{tail(self.log)}")
            time.sleep(0.003)

    def stop(self) -> float:
        """End the processes, the broker first, and wait until they are gone; the seconds it took."""
        begun = time.monotonic()
        self.resume()
        for child in reversed(self._children):
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
                try:
                    child.wait(60)
                except subprocess.TimeoutExpired:
                    self.kill()
                    raise PeerError(f"{self.name} did not stop in 60 s:\n{tail(self.log)}") from None
        self._children.clear()
        return time.monotonic() - begun

    def kill(self) -> None:
        """End it at once: its folder is thrown away, and a clean stop of Apache's broker takes 20 s."""
        # With all that they started: a frozen process does not notice that its parent is gone.
        self._signal(signal.SIGKILL)
        for child in self._children:
            child.wait()
        self._children.clear()

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    def _signal(self, number: signal.Signals) -> None:
        for child in self._children:
            if child.poll() is None:
                for pid in _with_descendants([child.pid]):
                    with suppress(ProcessLookupError):  # one that ended with its parent
                        os.kill(pid, number)

    def freeze(self) -> None:
        """Stop its clock: it uses no processor until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def memory(self) -> Memory:
        return memory_of(self.pids)

    def cpu_seconds(self) -> float:
        return cpu_seconds_of(self.pids)

    def settle_people(self) -> None:
        """The user who sends, if the broker wants to know who does."""
        with Wire(self.port) as wire:
            for code, fields, body in people() if self.security.auth else []:
                answer = wire.call(code, fields, body)
                if answer["code"] != 0:
                    raise PeerError(f"{self.name} makes no user: {answer}")

    def create_topics(self, names: Sequence[str], queues: int = 4, budget: float = 15.0) -> float:
        """Create topics one by one (request 17, 32 in flight) and return how many a second.

        What is left after `budget` seconds is created by lists (request 18): Apache's broker writes its whole
        table to disk and to the name server for every single topic.
        """
        window, sent, begun = 32, 0, time.monotonic()
        with Wire(self.port, 300.0) as wire:
            while sent < len(names) and time.monotonic() - begun < budget:
                wire.write(topic_request(names[sent], queues, sent))
                sent += 1
                if sent > window:
                    self._expect(wire)
            for _ in range(min(window, sent)):
                self._expect(wire)
            rate = sent / (time.monotonic() - begun)
            for start in range(sent, len(names), 1000):
                wire.write(topic_list_request(names[start : start + 1000], queues))
                self._expect(wire)
        return rate

    def _expect(self, wire: Wire) -> None:
        header, _ = wire.answer()
        if header["code"] != 0:
            raise PeerError(f"{self.name} refuses a topic: {header}")


class Apache(Subject):
    """One of Apache's versions; its name is the version."""

    def commands(self) -> list[tuple[list[str], dict[str, str]]]:
        classpath = apache.fetch(self.name)
        home, silent = silent_home(self.folder / "home")
        environment = {"ROCKETMQ_HOME": str(home)}
        namesrv = apache.write_properties(
            self.folder / "namesrv.properties", {"listenPort": self.namesrv_port, "bindAddress": HOST}
        )
        broker = apache.write_properties(
            self.folder / "broker.properties",
            {
                "brokerClusterName": "DefaultCluster",
                "brokerName": "broker-a",
                "brokerId": 0,
                "brokerIP1": HOST,
                "bindAddress": HOST,
                "listenPort": self.port,
                "namesrvAddr": self.namesrv,
                "storePathRootDir": self.store,
                "storePathCommitLog": self.store / "commitlog",
                **self.security.keys(),
            },
        )
        tls = {**self.security.tls_keys(self.folder)}
        if tls:
            tls["tls.test.mode.enable"] = "false"

        def java(heap: str, main: str, file: Path) -> list[str]:
            return [
                *("java", "-server", f"-Xms{heap}", f"-Xmx{heap}", *G1, *OPENINGS),
                *("-XX:MaxDirectMemorySize=2g", *silent),
                *(f"-D{key}={text}" for key, text in tls.items()),
                *("-Djava.net.preferIPv4Stack=true", "-cp", classpath, main, "-c", str(file)),
            ]

        return [
            (java("512m", "org.apache.rocketmq.namesrv.NamesrvStartup", namesrv), environment),
            (java(apache_heap, "org.apache.rocketmq.broker.BrokerStartup", broker), environment),
        ]


class Ours(Subject):
    def commands(self) -> list[tuple[list[str], dict[str, str]]]:
        command = [sys.executable, "-m", "gimbalmq", "server", "--log-level", self.log_level, *self.options]
        command += ["--namesrv-port", str(self.namesrv_port), "--port", str(self.port)]
        command += ["--store", str(self.store)]
        for setting in self.settings:
            command += ["--set", setting]
        for key, text in {**self.security.keys(), **self.security.tls_keys(self.folder)}.items():
            command += ["--set", f"{key}={text}"]
        return [(command, {"PYTHONPATH": str(ROOT / "src")})]


def subject_of(name: str, folder: Path) -> Subject:
    """Ours, or one of Apache's versions; not started."""
    return (Apache if name in APACHE else Ours)(folder, name)


def why_not(name: str) -> str | None:
    """Why a subject cannot run here, or None."""
    if name in APACHE:
        for program in ("java", "mvn"):
            if shutil.which(program) is None:
                return f"{program} is not installed"
        try:
            apache.fetch(name)
        except (PeerError, OSError, subprocess.TimeoutExpired) as error:
            return str(error).splitlines()[0]
        return None
    probe = [sys.executable, "-m", "gimbalmq", "server", "--help"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(probe, cwd=ROOT, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        return f"`python -m gimbalmq server` does not run: {done.stderr.strip()[-200:]}"
    return None


def chosen(only: str | None, versions: Sequence[str] = APACHE) -> list[str]:
    """The subjects that can be measured, ours first; says on stderr which cannot and why.

    Args:
        only: `ours`, `apache` for these versions of it, or one version.
    """
    wanted = {None: ["ours", *versions], "apache": [*versions]}.get(only, [str(only)])
    names: list[str] = []
    for name in wanted:
        reason = why_not(name)
        if reason is None:
            names.append(name)
        else:
            print(f"{name}: not measured: {reason}", file=sys.stderr)
    if not names:
        raise CannotMeasure("nothing to measure")
    return names


_turn: IO[str] | None = None  # open while this process has its turn


def take_turn() -> None:
    """Wait until no other benchmark runs on this machine, and keep the turn until this process ends.

    Two at once would measure each other. A terminated benchmark must not leave servers behind either: SIGTERM
    becomes an exception, so that every `with` is left in order.
    """
    global _turn
    if _turn is not None:
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    _turn = (Path(tempfile.gettempdir()) / "gimbalmq-bench.lock").open("a")
    try:
        fcntl.flock(_turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("waiting for another benchmark to end", file=sys.stderr, flush=True)
        fcntl.flock(_turn, fcntl.LOCK_EX)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for stores, on the disk that holds the temporary files, gone afterwards."""
    take_turn()
    with tempfile.TemporaryDirectory(prefix="gimbalmq-bench-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@contextmanager
def one(name: str) -> Iterator[Subject]:
    """One subject on a new folder, not started; gone at the end."""
    with scratch_folder() as folder:
        subject = subject_of(name, folder / name)
        try:
            yield subject
        finally:
            subject.kill()


@contextmanager
def running(names: Sequence[str], security: Security = OPEN) -> Iterator[dict[str, Subject]]:
    """Subjects started on new folders, then all frozen: measure each inside `awake`."""
    global _administrator
    with scratch_folder() as folder:
        subjects = {name: subject_of(name, folder / name) for name in names}
        _administrator = security.auth
        try:
            for subject in subjects.values():
                subject.security = security
                subject.start()
                subject.settle_people()
                subject.freeze()
            yield subjects
        finally:
            _administrator = False
            for subject in subjects.values():
                subject.kill()


@contextmanager
def awake(subject: Subject) -> Iterator[Subject]:
    """Let one frozen subject run, on a disk that has nothing left to write for anyone else."""
    settle_machine()
    subject.resume()
    time.sleep(0.2)
    try:
        yield subject
    finally:
        subject.freeze()


def settle_machine() -> None:
    """Leave no bytes to be written for whoever was measured before, and no memory that a hypervisor must hand out."""
    os.sync()
    fill_cache()


DISTURBED = 0.25  # cores taken by others that make a measurement worth repeating
patience = 0.0  # seconds to wait for a quiet machine before a measurement; set by --patience
foreign_cores: list[float] = []  # what others took during each measurement that counted


def measure(subject: Subject, load: Callable[[], Load], tries: int) -> Load:
    """Wake the subject and put a load on it; repeat while others disturb it, and keep the quietest try."""
    best: Load | None = None
    for _ in range(tries):
        await_quiet()
        with awake(subject):
            begun = time.monotonic()
            machine, own, generator = _busy_seconds(), subject.cpu_seconds(), _children_seconds()
            seen = load()
            seen.subject_cpu = subject.cpu_seconds() - own
            known = seen.subject_cpu + _children_seconds() - generator
            seen.foreign_cores = max(0.0, _busy_seconds() - machine - known) / (time.monotonic() - begun)
        if best is None or seen.foreign_cores < best.foreign_cores:
            best = seen
        if best.foreign_cores <= DISTURBED:
            break
    assert best is not None, "at least one try"
    foreign_cores.append(best.foreign_cores)
    return best


def await_quiet() -> None:
    """Wait, at most as long as `--patience` says, until the other processes leave the machine alone."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        before = _busy_seconds()
        time.sleep(1.0)
        if _busy_seconds() - before <= DISTURBED / 2:
            return


def _busy_seconds() -> float:
    # user, nice, system, irq, softirq: processes are charged for the interrupts they meet, so those count too
    ticks = list(map(int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9]))
    return sum(ticks[:3] + ticks[5:7]) / os.sysconf("SC_CLK_TCK")


def _children_seconds() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF))
    return sum(used.ru_utime + used.ru_stime for used in both)
