"""Every program under examples/ runs as it stands against `gimbalmq server` and says what it promises."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import environment, serving

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = tmp_path_factory.mktemp("examples")
    quick = ("--set", "transactionTimeOut=300", "--set", "transactionCheckInterval=300")
    with serving("server", "--namesrv-port", 0, "--port", 0, "--store", store, *quick) as server:
        address = server.ready_address()
        server.ready()
        yield address
        assert server.end() == 0


def _run(name: str, namesrv: str, *words: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "--namesrv", namesrv, *words],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_produce_then_consume(namesrv: str) -> None:
    produced = _run("produce.py", namesrv)
    assert produced[0].startswith("stored  SEND_OK, queue ")
    assert "batch   2 messages" in produced[2] and "soon    1000 messages in 4 queues" in produced[3]
    *lines, last = _run("consume.py", namesrv, "--quiet", "2")
    assert any(line.endswith("reads queues [0, 1, 2, 3]") for line in lines)
    bodies = sorted(line.split("  ")[2].strip() for line in lines if line.startswith("queue"))
    expected = [f"order {number}" for number in (1, "2 NL", "3, a second late", 4, 5, 7)]
    assert bodies == expected, "bulk messages have a tag nobody asked for"
    assert last.startswith("6 messages")
    assert _run("consume.py", namesrv, "--quiet", "0.5")[-1].startswith("0 messages")


def test_blocking(namesrv: str) -> None:
    assert sorted(_run("blocking.py", namesrv)) == ["hello Ada", "hello Edsger", "hello Grace"]


def test_ordered(namesrv: str) -> None:
    assert _run("ordered.py", namesrv) == [f"order {o}: created > paid > packed > shipped" for o in "ABCDE"]


def test_retry_ends_among_the_dead_letters(namesrv: str) -> None:
    *tries, dead = _run("retry.py", namesrv)
    assert sorted(tries) == [
        "to ada, try 1: failed",
        "to ada, try 2: sent",
        "to nobody, try 1: failed",
        "to nobody, try 2: failed",
        "to nobody, try 3: failed",
    ]
    assert dead == "dead letter: to nobody, from topic mails"


def test_transactions(namesrv: str) -> None:
    told = _run("transactions.py", namesrv)
    assert "transfer 3: the broker asks; it was booked" in told
    assert sorted(line for line in told if line.endswith("arrived")) == [
        "transfer 1: arrived",
        "transfer 3: arrived",
    ]


def test_pull(namesrv: str) -> None:
    average, first, again = _run("pull.py", namesrv)
    assert average == "10 values, average 24.5"
    assert re.fullmatch(r"queue 0, offset 0: 2\d degrees", first)
    assert again == f"{first}, read again"


def test_request_reply(namesrv: str) -> None:
    first, second = _run("request_reply.py", namesrv)
    assert first == "20+22 is 42"
    assert second.startswith("nobody is there")


def test_sticky_lease_delivers_nothing_twice(namesrv: str) -> None:
    *shares, last = _run("sticky_lease.py", namesrv)
    assert [line[:11].strip() for line in shares] == ["two members", "cem joins", "ada leaves"]
    assert last == "600 messages received, 0 of them twice"


def test_demo_experiments_show_who_owns_what(namesrv: str) -> None:
    """S4: 16 queues with one, two and three consumers, one killed; more consumers than queues."""
    lines = [line.strip() for line in _run("demo_experiments.py", namesrv)]
    assert [line.rsplit(maxsplit=1)[1] for line in lines if line.startswith("anna ") and "■" in line] == [
        "16", "8", "6", "8", "1", "1", "2", "1", "1"
    ]  # fmt: skip
    assert "ben is killed (kill -9)" in lines
    assert [line.split()[0] for line in lines if line.endswith("waits")] == ["ben", "carla"]


def test_every_example_is_tested() -> None:
    tested = set(re.findall(r'_run\("(\w+\.py)"', Path(__file__).read_text()))
    parts_of_others = {"demo.py", "demo_member.py"}
    assert {file.name for file in EXAMPLES.glob("*.py")} - tested == parts_of_others, "demo.py: make demo"
