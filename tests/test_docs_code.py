"""What the pages show is what the code does: snippets on Spark, commands without a cluster, pictures, options, imports.

The snippets that need no Spark are typed by test_docs_typed.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gimbalmq import Message, sync
from gimbalmq.testing import LocalCluster
from tests.cli.commands import environment, gimbalmq

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = ["produce.md", "consume.md", "order.md", "retry.md", "transactions.md", "balancing.md"]
SPARK_PAGES = ["spark.md"]
_BLOCK = re.compile(r"^```(python|text|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PUBLIC_MODULES = {
    "gimbalmq",
    "gimbalmq.sync",
    "gimbalmq.testing",
    "gimbalmq.spark",
    "gimbalmq.errors",
    "gimbalmq.client.events",
}
"""Those that docs/api.md names."""


def _blocks(page: str) -> list[tuple[str, str, int]]:
    """(kind, text, line) of each block."""
    text = (DOCS / page).read_text()
    return [(m[1], m[2], text.count("\n", 0, m.start()) + 2) for m in _BLOCK.finditer(text)]


@pytest.mark.spark
@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", SPARK_PAGES)
def test_spark_snippets_print_what_the_page_says(page: str, tmp_path: Path) -> None:
    """In a process of their own, because a process has one Spark."""
    blocks = _blocks(page)
    end = "-- end of block --"
    script, expected = [], []
    for index, (kind, text, _) in enumerate(blocks):
        if kind == "python":
            script += [text, f"print({end!r}, flush=True)"]
            following = blocks[index + 1 : index + 2]
            expected.append(following[0][1] if following and following[0][0] == "text" else "")
    assert script
    with LocalCluster.in_thread() as cluster:
        done = subprocess.run(
            [sys.executable, "-c", "\n".join(script).replace("127.0.0.1:9876", cluster.namesrv)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment() | {"SPARK_LOCAL_IP": "127.0.0.1"},
            timeout=380,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(f"{end}\n") == [*expected, ""], page


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_first_spark_programs_show_the_topic(tmp_path: Path) -> None:
    """One after the other in one process: most of the time that each takes by itself is Spark's start."""
    end = "-- end of program --"
    script = []
    for page in ("../README.md", "../README.zh-CN.md", "start.md"):
        (program,) = [text for kind, text, _ in _blocks(page) if kind == "python" and "pyspark" in text]
        script += [program, f"print({end!r}, flush=True)"]
    with LocalCluster.in_thread() as cluster:
        with sync.Producer("shop", cluster.namesrv) as producer:
            producer.send(Message("orders", b"hello", tags="new", keys="order-1"))
        done = subprocess.run(
            [sys.executable, "-c", "\n".join(script).replace("127.0.0.1:9876", cluster.namesrv)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment() | {"SPARK_LOCAL_IP": "127.0.0.1"},
            timeout=380,
        )
    assert done.returncode == 0, done.stderr
    shown = done.stdout.split(end)
    assert len(shown) == 4 and all("order-1" in each for each in shown[:3]), done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_commands_print_what_the_page_says(page: str) -> None:
    for kind, text, line in _blocks(page):
        if kind == "console":
            command, _, expected = text.partition("\n")
            assert command.startswith("$ gimbalmq "), f"{page}, line {line}"
            done = gimbalmq(*command.split()[2:])
            assert done.stdout.rstrip() == expected.rstrip(), f"{page}, line {line}: {done.stderr}"


def test_pictures_are_those_the_command_draws(tmp_path: Path) -> None:
    small = ("--queues", 64, "--members", 8, "--strategies", "AVG,CONSISTENT_HASH,STICKY")
    for name, words in (("balance-day.svg", ()), ("balance-small.svg", small)):
        file = tmp_path / name
        assert gimbalmq("balance", "simulate", "--no-resizes", *words, "--svg", file).returncode == 0
        assert file.read_text() == (DOCS / "images" / name).read_text(), f"draw docs/images/{name} again"


@pytest.mark.parametrize("page", PAGES)
def test_options_named_in_pages_exist(page: str) -> None:
    """First columns of the tables of options, and settings written as ``name=value``."""
    from dataclasses import fields

    from gimbalmq.client.config import ProducerConfig
    from gimbalmq.client.consumer_config import (
        PullConsumerConfig,
        PushConsumerConfig,
        QueuePullConsumerConfig,
    )

    known = {
        item.name
        for kind in (ProducerConfig, PushConsumerConfig, PullConsumerConfig, QueuePullConsumerConfig)
        for item in fields(kind)
    }
    text = (DOCS / page).read_text()
    for table in re.findall(r"\| option \|.*?\n\n", text + "\n\n", re.DOTALL):
        for row in table.splitlines()[2:]:
            for name in re.findall(r"`(\w+)`", row.split("|")[1] if row.startswith("|") else ""):
                assert name in known, name


@pytest.mark.parametrize(
    "file",
    [*DOCS.glob("*.md"), *DOCS.parent.glob("README*.md"), *(DOCS.parent / "examples").glob("*.py")],
    ids=lambda file: file.name,
)
def test_pages_and_examples_import_what_is_public(file: Path) -> None:
    """docs/api.md says what may be imported; whatever else is shown to readers would break under their hands."""
    imported = re.findall(r"^\s*(?:from|import) (gimbalmq[\w.]*)", file.read_text(), re.MULTILINE)
    assert set(imported) <= _PUBLIC_MODULES
