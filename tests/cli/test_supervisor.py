"""``gimbalmq server --brokers 2``: one name server, brokers that are processes, and everything over all of them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gimbalmq import Message
from gimbalmq import Producer as AsyncProducer
from gimbalmq.access.config import Credentials
from gimbalmq.access.table import AccessTable
from gimbalmq.access.users import UserType
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.broker.metrics_page import Family
from gimbalmq.cli.main import main
from gimbalmq.cli.pipes import Birth, Metrics, Said, write_frame
from gimbalmq.cli.supervised import Parent
from gimbalmq.cli.supervisor import BrokerFailedError, Brokers, SupervisedBroker, give_users, merged
from gimbalmq.errors import NoPermissionError
from gimbalmq.sync import Admin, Producer
from gimbalmq.testing.loop import VirtualClock, run_virtual
from tests.cli.commands import Server, gimbalmq, serving
from tests.peers.process import free_port


def eventually(what: Callable[[], object], seconds: float = 30) -> None:
    """Waits in steps for something that other processes do."""
    pause = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if what():
            return
        pause.wait(0.02)
    raise AssertionError("it did not happen")


def processes(server: Server) -> dict[str, int]:
    """Of the brokers, by name."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            parent = int(re.search(r"(?m)^PPid:\s+(\d+)", (folder / "status").read_text())[1])  # type: ignore[index]
        except OSError:
            continue
        if parent == server.process.pid:
            found[words[-2]] = int(folder.name)
    return found


def is_gone(pid: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


@dataclass
class Running:
    server: Server
    store: Path
    namesrv: str
    metrics_port: int
    lines: list[str] = field(default_factory=list)

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=20) as answer:
            rows = [line.rpartition(" ") for line in answer.read().decode().splitlines()]
        return {name: float(value) for name, _, value in rows if not name.startswith("#")}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two brokers in the folder that one broker had before; at the end they must end cleanly."""
    store = tmp_path_factory.mktemp("two") / "store"
    with serving("server", "--namesrv-port", 0, "--port", 0, "--store", store) as one:
        namesrv = one.ready_address()
        one.ready()
        with Producer("before", namesrv) as producer:
            producer.send(Message("old", b"of one broker"))
        assert one.end() == 0
    metrics = free_port()
    words = ("--brokers", 2, "--namesrv-port", 0, "--port", 0, "--store", store, "--metrics-port", metrics)
    with serving("server", *words) as server:
        namesrv = server.ready_address()
        lines = sorted((server.ready(), server.ready()))
        assert server.ready() == "all 2 brokers ready"
        yield Running(server, store, namesrv, metrics, lines)
        brokers = processes(server).values()
        server.process.send_signal(signal.SIGTERM)
        for pid in brokers:  # systemd signals all processes of a service, and the command signals its brokers
            with suppress(ProcessLookupError):  # the command's own signal was quicker
                os.kill(pid, signal.SIGTERM)
        assert server.wait() == 0
        assert not (store / "abort").exists() and not (store / "broker-b" / "abort").exists()
        assert not processes(server)


def test_each_broker_says_where_it_is_and_the_first_has_the_folder_of_before(two: Running) -> None:
    first, second = two.lines
    assert first.startswith("broker broker-a ready on 127.0.0.1:") and f"store {two.store}," in first
    assert second.startswith("broker broker-b ready on ") and f"store {two.store / 'broker-b'}," in second
    with Admin(two.namesrv) as admin:
        assert [item.max_offset for item in admin.topics.stats("old") if item.max_offset] == [1]


def test_topics_span_the_brokers(two: Running, capsys: pytest.CaptureFixture[str]) -> None:
    async def used() -> set[str]:
        async with AsyncProducer("spanning", two.namesrv) as producer:
            sent = await asyncio.gather(*(producer.send(Message("by-itself", b"x")) for _ in range(16)))
        return {result.queue.broker_name for result in sent}

    assert asyncio.run(used()) == {"broker-a", "broker-b"}
    assert main(["-n", two.namesrv, "topic", "create", "asked-for", "--queues", "4"]) == 0
    assert capsys.readouterr().out == "Topic asked-for with 4 queues is on broker-a, broker-b.\n"


def test_one_page_has_the_metrics_of_all(two: Running) -> None:
    with Admin(two.namesrv) as admin, Producer("counted", two.namesrv) as producer:
        admin.topics.create("counted", queues=1)
        sent = Counter(producer.send(Message("counted", b"x")).queue.broker_name for _ in range(16))
    found = two.metrics()
    assert (
        found['rocketmq_broker_up{broker="broker-a"}'] == found['rocketmq_broker_up{broker="broker-b"}'] == 1
    )
    rows = [
        f'rocketmq_messages_in_total{{broker="{name}",topic="counted"}}' for name in ("broker-a", "broker-b")
    ]
    assert [found[row] for row in rows] == [sent["broker-a"], sent["broker-b"]] and len(sent) == 2


def test_one_log_whose_lines_say_which_broker(two: Running) -> None:
    places = re.findall(r"(?m)^[-0-9]+ [.:0-9]+ [A-Z]+ +(\S+) \S+: ", two.server.errors)
    assert {"server", "broker-a", "broker-b"} == set(places)
    assert len(places) == len(two.server.errors.splitlines())


def test_a_killed_broker_comes_back_with_its_messages_while_a_producer_goes_on(two: Running) -> None:
    stop = threading.Event()
    stored: list[str] = []
    before = two.metrics()['rocketmq_broker_restarts_total{broker="broker-b"}']

    def send() -> None:
        with Producer("going-on", two.namesrv, retry_times=20) as producer:
            while not stop.is_set():
                stored.append(producer.send(Message("going-on", b"x")).queue.broker_name)

    with Admin(two.namesrv) as admin:
        admin.topics.create("going-on", queues=2)
        sender = threading.Thread(target=send)
        sender.start()
        try:
            eventually(lambda: "broker-b" in stored)
            old = processes(two.server)["broker-b"]
            os.kill(old, signal.SIGKILL)
            eventually(lambda: "again: broker broker-b ready" in two.server.errors)
            known = len(stored)
            eventually(lambda: "broker-b" in stored[known:], seconds=60)
        finally:
            stop.set()
            sender.join()
        assert processes(two.server)["broker-b"] != old
        assert sum(item.max_offset for item in admin.topics.stats("going-on")) >= len(stored)
        address = f"{admin.clusters.brokers()[1].address}"
    assert "broker-b has ended (SIGKILL); it is started again now" in two.server.errors
    assert two.metrics()['rocketmq_broker_restarts_total{broker="broker-b"}'] == before + 1
    assert address in next(line for line in two.lines if "broker-b" in line), "it keeps its port"


# -- ends --------------------------------------------------------------------------------


def start_two(store: Path) -> tuple[object, ...]:
    return ("server", "--brokers", 2, "--namesrv-port", 0, "--port", 0, "--store", store)


def test_brokers_end_with_a_command_that_is_killed(tmp_path: Path) -> None:
    metrics = free_port()
    with serving(*start_two(tmp_path), "--metrics-port", metrics) as server:
        for _ in range(4):
            server.ready()
        # It has threads from now on, and the kernel tells the end of each.
        urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=20).close()
        pids = processes(server).values()
        assert len(pids) == 2
        server.process.kill()
        eventually(lambda: all(map(is_gone, pids)))
    assert not (tmp_path / "abort").exists() and not (tmp_path / "broker-b" / "abort").exists()


def test_a_second_signal_ends_brokers_that_hang(tmp_path: Path) -> None:
    with serving(*start_two(tmp_path)) as server:
        for _ in range(4):
            server.ready()
        pids = processes(server)
        os.kill(pids["broker-b"], signal.SIGSTOP)
        try:
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: is_gone(pids["broker-a"]))
            assert server.process.poll() is None, "it waits for the other one"
            assert server.end() == 1
            eventually(lambda: is_gone(pids["broker-b"]))
        finally:
            with suppress(ProcessLookupError):
                os.kill(pids["broker-b"], signal.SIGKILL)


def test_a_broker_that_cannot_start_ends_the_command(tmp_path: Path) -> None:
    port = free_port(groups=3) + 14  # the second of two, ten apart, which need three neighbours each
    with socket.create_server(("127.0.0.1", port)):
        words = ("--brokers", 2, "--namesrv-port", 0, "--port", port - 10, "--store", tmp_path)
        done = gimbalmq("server", *words, "--log-level", "error")
    assert done.returncode == 1
    assert done.stderr == (
        f"gimbalmq: broker-b: cannot listen on 127.0.0.1:{port}: address already in use; "
        "choose another port or stop the process that has it\n"
    )
    assert "all" not in done.stdout
    assert not (tmp_path / "abort").exists()


def test_users_and_tls_are_those_of_one_broker(tmp_path: Path) -> None:
    """A user made while there was one broker is known to the second and to the name server, and a new one to all."""
    mine, alice = tmp_path / "mq" / "client.toml", tmp_path / "alice.toml"
    words = ("server", "--secure", tmp_path / "mq", "--namesrv-port", free_port(), "--port", 0)
    with serving(*words) as server:
        while not server.next_line(30).startswith("  export "):
            pass
        assert (
            main(["user", "create", "alice", "--new-client-file", str(alice), "--client-file", str(mine)])
            == 0
        )
        assert server.end() == 0
    with serving(*words, "--brokers", 2) as server:
        for _ in range(4):
            server.ready()
        assert (
            main(["acl", "allow", "alice", "Topic:orders", "--actions", "Pub", "--client-file", str(mine)])
            == 0
        )
        with Admin(client_file=mine) as admin:
            admin.topics.create("orders", queues=1)
        with Producer("senders", client_file=alice) as sender:
            used = {sender.send(Message("orders", b"x")).queue.broker_name for _ in range(4)}
        assert used == {"broker-a", "broker-b"}
        with Admin(client_file=alice) as stranger, pytest.raises(NoPermissionError):
            stranger.topics.create("mine")
        assert server.end() == 0
        assert "Traceback" not in server.errors and " ERROR " not in server.errors


# -- parts -------------------------------------------------------------------------------


def birth(name: str, store: Path) -> Birth:
    config = BrokerConfig(broker_name=name, store_path_root_dir=str(store))
    return Birth(config, Credentials("run", "secret"), "info", None, False)


class Falling(SupervisedBroker):
    """Serves for so many seconds each time, and fails to start if that is None."""

    def __init__(self, given: Birth, clock: VirtualClock, lives: list[float | None]) -> None:
        super().__init__(given)
        self.clock = clock
        self.lives = lives
        self.starts: list[float] = []

    async def start(self) -> str:
        self.starts.append(self.clock.monotonic())
        if len(self.lives) and self.lives[0] is None:
            self.lives.pop(0)
            raise BrokerFailedError(self.name, "no room", 1)
        return "broker ready"

    async def wait(self) -> str:
        await asyncio.sleep(self.lives.pop(0) or 0.0 if self.lives else 10_000.0)
        return "SIGKILL"


def test_pauses_between_starts_grow_until_a_broker_is_steady(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        brokers = Brokers([birth("broker-a", tmp_path)], clock=clock)
        falling = Falling(birth("broker-a", tmp_path), clock, [1, 1, None, None, 1, 1, 1, 1, 1, 100, 1])
        brokers.all[0] = falling
        await brokers.start()
        await asyncio.sleep(1_000)
        gaps = [later - one for one, later in zip(falling.starts, falling.starts[1:], strict=False)]
        # The life of each, a second or nothing, and the pause behind it; after 100 s it counts as steady.
        assert [round(gap) for gap in gaps] == [1, 2, 2, 4, 9, 17, 31, 31, 31, 100, 2]
        await brokers.close()

    run_virtual(work)


def test_rows_of_all_brokers_are_in_one_family() -> None:
    one = [
        Family("gauge", "topic_number", "Topics", (), [((), 3.0)]),
        Family("counter", "in", "", ("topic",), []),
    ]
    other = [Family("counter", "in", "", ("topic",), [(("t",), 5.0)])]
    assert merged({"broker-a": one, "broker-b": other}) == [
        Family("gauge", "topic_number", "Topics", ("broker",), [(("broker-a",), 3.0)]),
        Family("counter", "in", "", ("broker", "topic"), [(("broker-b", "t"), 5.0)]),
    ]
    assert one[0].labels == (), "what was told stays as it was"


def test_a_server_gets_the_users_of_the_first_broker(tmp_path: Path) -> None:
    first = BrokerConfig(store_path_root_dir=str(tmp_path / "a"), authentication_enabled=True)
    folder = tmp_path / "b" / "config"

    async def work() -> None:
        await give_users(first, folder, "broker-b")
        assert not folder.exists(), "there are none yet"
        (tmp_path / "a" / "config").mkdir(parents=True)
        given = AccessTable(tmp_path / "a" / "config")
        await given.ensure_super("admin", "secret-of-admin", "x")
        folder.mkdir(parents=True)
        stale = AccessTable(folder)
        await stale.ensure_super("deleted-meanwhile", "secret-of-other", "x")
        await give_users(first, folder, "broker-b")
        table = AccessTable(folder)
        table.load()
        assert [(user.name, user.type) for user in table.users().values()] == [("admin", UserType.SUPER)]

    asyncio.run(work())


def test_a_broker_whose_metrics_fail_once_hears_the_next_question(monkeypatch: pytest.MonkeyPatch) -> None:
    questions, theirs = os.pipe()
    told: list[Said] = []

    class Once:
        def __init__(self) -> None:
            self.metrics = self
            self.failed = False

        async def read(self) -> list[Family]:
            if not self.failed:
                self.failed = True
                raise ValueError("a name that no text can hold")
            return []

    async def work() -> None:
        opened = os.fdopen
        monkeypatch.setattr(os, "fdopen", lambda _, *words, **how: opened(questions, *words, **how))
        parent = Parent(-1)
        monkeypatch.setattr(parent, "say", told.append)
        monkeypatch.setattr(parent, "gone", lambda: None)
        for number in (1, 2):
            write_frame(theirs, number.to_bytes(8, "big"))
        os.close(theirs)
        await parent._answer(Once())  # type: ignore[arg-type]

    asyncio.run(work())
    assert told == [Metrics(2, [])]
