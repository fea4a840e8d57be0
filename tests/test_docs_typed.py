"""The pages typed by a newcomer: in order, into one environment, beside one running server.

What a page leaves behind (topics, groups with progress, a consumer that still runs) is there when the next is typed. A
shell gets the commands behind ``$``; a Python block under a line that names a file becomes that file; all other Python
blocks are pasted, line by line, into ``python -m asyncio``, in which a blank line ends a statement. The output must be
what the page shows.
"""

from __future__ import annotations

import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from tests.cli.commands import Server, environment, serving
from tests.peers.process import free_port

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = (
    "start.md",
    "produce.md",
    "consume.md",
    "order.md",
    "retry.md",
    "transactions.md",
    "balancing.md",
    "testing.md",
    "tools.md",
)
_QUICK = ("--set", "transactionTimeOut=200", "--set", "transactionCheckInterval=200")
"""Not what a newcomer types: transactions.md would wait half a minute."""

_NOT_TYPED = re.compile(r"pip install|python3 -m venv|\. env/|gimbalmq dashboard|python read\.py")
"""Other tests do these: test_wheel.py, tests/dashboard, test_docs_code.py."""

_BLOCK = re.compile(
    r"(?:^(?P<title>[^\n]*):\n\n)?^```(?P<kind>python|console)\n(?P<text>.*?)^```\n(?:\n```text\n(?P<shown>.*?)^```\n)?"
    r"|(?P<indented>(?:^    \$ [^\n]*\n(?:(?:    [^\n]*)?\n(?!\n*[^ \n]))*(?:    [^\n]*\n)*))",
    re.MULTILINE | re.DOTALL,
)


class Typed(NamedTuple):
    """One thing to type: ``what`` is "paste", "file" or "command"."""

    what: str
    text: str
    shown: str
    line: int
    name: str = ""


def _steps(page: str) -> Iterator[Typed]:
    whole = (DOCS / page).read_text()
    for found in _BLOCK.finditer(whole):
        line = whole.count("\n", 0, found.start()) + 1
        if found["indented"] is not None:
            yield from _commands(re.sub("^    ", "", found["indented"], flags=re.MULTILINE), line)
        elif found["kind"] == "console":
            if (
                page != "balancing.md"
            ):  # test_docs_code.py compares those, which ask no cluster, letter by letter
                yield from _commands(found["text"], line)
        elif name := re.search(r"`(\w+\.py)`[^`]*(?:`[^`]*`[^`]*)?$", found["title"] or ""):
            yield Typed("file", found["text"], "", line, name[1])
        else:
            yield Typed("paste", found["text"], found["shown"] or "", line)


def _commands(text: str, line: int) -> Iterator[Typed]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield Typed("command", command, shown.strip("\n"), line)


# -- what may differ between two readers ------------------------------------------------------------

_VARIES = [
    (r"[0-9A-F]{32}", "[0-9A-F]{32}"),
    (r"\d+\.\d+\.\d+\.\d+@\d+#\d+", r"\S+@\d+#\d+"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}|(?<= )-$", r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}|-)"),
    (r"broker-a/\d+ at \d+", r"broker-a/\d+ at \d+"),
    (r"SEND_OK \d \d", r"SEND_OK [0-3] [01]"),
    (r"passed in [\d.]+s", r"passed in [\d.]+s"),
    (r"consumed [\d.]+/s", r"consumed [\d.]+/s"),
    (r"(?<=broker-a) +\d+ +\d+ +\d+(?= +\d)", r" +\d+ +\d+ +\d+"),
    (r"-{3,}", "-+"),
    (r" {2,}", " +"),
]


def _pattern(shown: str) -> re.Pattern[str]:
    """Of a line: what varies may; the rest is as it stands. ``...`` stands for any lines."""
    if shown == "...":
        return re.compile(".*", re.DOTALL)
    found, at = "", 0
    for part in re.finditer("|".join(f"({varies})" for varies, _ in _VARIES), shown):
        found += re.escape(shown[at : part.start()]) + _VARIES[(part.lastindex or 1) - 1][1]
        at = part.end()
    return re.compile(found + re.escape(shown[at:]))


def _is_shown(printed: str, shown: str, *, any_order: bool = False) -> bool:
    lines = shown.splitlines()
    told = printed.strip("\n").splitlines()
    if any_order:
        lines, told = sorted(lines), sorted(told)
    if "..." not in lines:
        return len(lines) == len(told) and all(
            _pattern(line).fullmatch(text.rstrip()) for line, text in zip(lines, told, strict=True)
        )
    whole = "\n".join(_pattern(line).pattern for line in lines).replace(".*", "(?s:.*)")
    return re.fullmatch(whole, "\n".join(text.rstrip() for text in told)) is not None


# -- where it is typed ------------------------------------------------------------------------------


class Prompt:
    """``python -m asyncio``; it shows no prompts and, as the pages, no values of expressions."""

    _END = "-- the block has ended --"

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self._errors = folder / "prompt-errors.txt"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "asyncio"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=env,
                cwd=folder,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        self.paste("import sys; sys.ps1 = sys.ps2 = ''; sys.displayhook = lambda value: None\n")

    def _read(self, out: IO[str]) -> None:
        for line in out:
            self._lines.put(line)
        self._lines.put("")

    def paste(self, text: str) -> tuple[str, str]:
        """What is printed, and what is complained of."""
        assert self._process.stdin is not None
        before = self._errors.stat().st_size
        self._process.stdin.write(f"{text}\nprint({self._END!r})\n")
        self._process.stdin.flush()
        printed = ""
        while True:
            try:
                line = self._lines.get(timeout=60)
            except queue.Empty:
                return f"{printed}(and nothing more within 60 s)", self._errors.read_text()[before:]
            if not line or line.rstrip("\n").endswith(self._END):
                return printed + line.partition(self._END)[0], self._errors.read_text()[before:]
            printed += line

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        self._process.stdout.close()


class Desk:
    """A folder, a shell, and the programs that were left running."""

    def __init__(self, folder: Path, namesrv: str, ready: list[str]) -> None:
        self.folder = folder
        self.namesrv = namesrv
        self.ready = ready
        self.running: list[Server] = []
        commands = folder / "bin"
        commands.mkdir()
        for name, module in (("gimbalmq", "-m gimbalmq"), ("python", "")):
            (commands / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n')
            (commands / name).chmod(0o755)
        self.env = environment(folder / "home") | {
            "PATH": f"{commands}:{os.environ['PATH']}",
            "NAMESRV_ADDR": namesrv,
            "COLUMNS": "80",
        }

    def own(self, text: str) -> str:
        return text.replace("127.0.0.1:9876", self.namesrv)

    def type(self, step: Typed) -> str | None:
        """Types a command; what is wrong with its output."""
        if _NOT_TYPED.search(step.text):
            return None
        if step.text.startswith("gimbalmq server"):
            forms = [
                re.sub(r"\d+\.\d+\.\d+\.\d+:\d+|store \S+|\d+\.\d\d s", ".+", line)
                for line in step.shown.splitlines()
            ]
            return None if all(map(re.fullmatch, forms, self.ready)) else f"the server says {self.ready}"
        if step.text == "python consume.py":
            return self._leave_running(step)
        deadline = time.monotonic() + (60 if "progress" in step.text else 0)  # consumers commit every 5 s
        while True:
            done = self.run(step.text)
            if done.returncode == 0 and _is_shown(done.stdout, step.shown):
                return None
            if time.monotonic() > deadline:
                return f"{done.stdout}{done.stderr}"

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", command],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.env,
            timeout=60,
        )

    def _leave_running(self, step: Typed) -> str | None:
        process = subprocess.Popen(
            shlex.split(step.text),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.env,
        )
        server = Server(process)
        self.running.append(server)
        printed: list[str] = []
        try:
            while len(printed) < len(step.shown.splitlines()):
                printed.append(server.next_line(60))
        except queue.Empty:
            pass
        text = "\n".join(printed)
        return None if _is_shown(text, step.shown, any_order=True) else text + server.errors

    def end(self) -> None:
        for server in self.running:
            server.close()


@pytest.mark.timeout(300)
def test_a_newcomer_types_the_pages_in_order(tmp_path: Path) -> None:
    wrong: list[str] = []
    with ExitStack() as stack:
        words = ("--namesrv-port", 0, "--port", 0, "--store", tmp_path / "store")
        server = stack.enter_context(serving("server", *words, *_QUICK))
        ready = [server.ready(), server.ready()]
        desk = Desk(tmp_path, ready[0].rpartition(" ")[2], ready)
        stack.callback(desk.end)
        for page in PAGES:
            began = time.monotonic()
            steps = list(_steps(page))
            assert steps, page
            prompt: Prompt | None = None
            for step in steps:
                where = f"{page}, line {step.line}"
                if step.what == "file":
                    (tmp_path / step.name).write_text(desk.own(step.text))
                elif step.what == "command":
                    problem = desk.type(step)
                    if problem is not None:
                        wrong.append(f"{where}: $ {step.text}\n{problem}\ninstead of\n{step.shown}")
                else:
                    if prompt is None:
                        prompt = Prompt(desk.env, tmp_path)
                        stack.callback(prompt.close)
                    printed, errors = prompt.paste(desk.own(step.text))
                    raised = "SyntaxError" in errors or "IndentationError" in errors
                    raised = raised or (page != "retry.md" and "Traceback" in errors)
                    if printed != step.shown or raised or "another subscription" in errors:
                        wrong.append(
                            f"{where}: pasted\n{step.text}\n{printed}{errors}\ninstead of\n{step.shown}"
                        )
            if prompt is not None:
                prompt.close()
            print(f"{page}: {time.monotonic() - began:.1f} s")
        wrong += _ctrl_c(desk.running[0])
        assert server.end() == 0
    assert not wrong, "\n\n".join(wrong)


# -- a page with a cluster of its own ---------------------------------------------------------------


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.timeout(300)
def test_a_newcomer_types_the_page_of_replication(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a cluster of its own, whose master is killed: the page's addresses, folder and process are the test's."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where the cluster makes its folder
    namesrv = free_port(groups=4)
    port = namesrv + 14  # ports of brokers are ten apart, and need three neighbours each
    cluster_step, *steps = _steps("replication.md")
    words = [*cluster_step.text.split()[1:], "--namesrv-port", str(namesrv), "--port", str(port)]
    wrong: list[str] = []
    with serving(*words) as cluster:
        ready: list[str] = []
        while "Ctrl-C ends all servers." not in ready:
            ready.append(cluster.next_line(60))
        desk = Desk(tmp_path, f"127.0.0.1:{namesrv}", [])
        folder = re.search(r"Its files are in (\S+),", ready[0])
        pid = re.search(r"broker-a master +\S+ +(\d+)", "\n".join(ready))
        assert folder and pid, ready
        own = {
            "127.0.0.1:10911": f"127.0.0.1:{port}",
            "127.0.0.1:10921": f"127.0.0.1:{port + 10}",
            "127.0.0.1:9876": f"127.0.0.1:{namesrv}",
            "/tmp/gimbalmq-u2mb8x1d": folder[1],
            "kill -9 4711": f"kill -9 {pid[1]}",
        }

        def ours(text: str) -> str:
            for theirs, mine in own.items():
                text = text.replace(theirs, mine)
            return text

        if not _is_shown("\n".join(ready), ours(cluster_step.shown)):
            wrong.append("\n".join(ready))
        topics = Path(folder[1]) / "broker-a-1" / "config" / "topics.json"
        for step in steps:
            if "kill -9" in step.text:
                # A person takes longer than the second within which the slave hears of the topic.
                _wait_until(lambda: topics.exists() and '"orders"' in topics.read_text())
            # Slaves need a moment to find their master, and to miss it.
            deadline = time.monotonic() + (60 if "ha-status" in step.text else 0)
            while True:
                done = desk.run(ours(step.text))
                if _is_shown(done.stdout, ours(step.shown)) and not done.stderr:
                    break
                if time.monotonic() > deadline:
                    wrong.append(
                        f"line {step.line}: $ {step.text}\n{done.stdout}{done.stderr}\ninstead of\n{step.shown}"
                    )
                    break
        assert "has ended (SIGKILL)" in cluster.next_line(60)
        assert cluster.end(signal.SIGINT) == 0, cluster.errors
    assert not Path(folder[1]).exists()
    assert not wrong, "\n\n".join(wrong)


def _ctrl_c(consumer: Server) -> list[str]:
    """The consumer of start.md, which still runs, is ended as the page says."""
    code = consumer.end(signal.SIGINT)
    if code == 0 and not consumer.errors:
        return []
    return [f"Ctrl-C ends start.md's consumer with {code}\n{consumer.errors}"]
