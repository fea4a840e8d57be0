"""The command as a user runs it: a child process, its lines, its end."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]


def environment(home: Path | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    kept["PYTHONPATH"] = str(ROOT / "src")
    if home is not None:
        kept["GIMBALMQ_HOME"] = str(home)
    return kept


def gimbalmq(
    *words: object, timeout: float = 60, flags: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs a command that ends by itself."""
    command = [sys.executable, *flags, "-m", "gimbalmq", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment())


class Server:
    """A command that runs until told."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: queue.Queue[str] = queue.Queue()
        self._errors: list[str] = []
        assert process.stdout is not None and process.stderr is not None
        out, err = process.stdout, process.stderr
        self._threads = [
            threading.Thread(target=self._read, args=(out,), daemon=True),
            threading.Thread(target=lambda: self._errors.extend(err), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, out: IO[str]) -> None:
        for line in out:
            self._lines.put(line.rstrip("\n"))
        self._lines.put("ended")

    def next_line(self, timeout: float) -> str:
        """The next line on stdout; raises queue.Empty."""
        return self._lines.get(timeout=timeout)

    def ready(self, timeout: float = 60) -> str:
        """The next line on stdout, which says that something is ready."""
        try:
            line = self.next_line(timeout)
        except queue.Empty:
            raise AssertionError(f"no ready line; stderr: {self.errors}") from None
        if "ready" not in line:
            self._threads[1].join(5)
        assert "ready" in line, f"{line}; stderr: {self.errors}"
        return line

    def ready_address(self) -> str:
        found = re.search(r" on (\S+?:\d+)", self.ready())
        assert found is not None
        return found.group(1)

    @property
    def errors(self) -> str:
        return "".join(self._errors)

    def end(self, number: signal.Signals = signal.SIGTERM, timeout: float = 60) -> int:
        """Sends a signal and waits; the exit code."""
        self.process.send_signal(number)
        return self.wait(timeout)

    def wait(self, timeout: float = 60) -> int:
        """The exit code of a server that was told to end."""
        code = self.process.wait(timeout)
        for thread in self._threads:
            thread.join(5)
        return code

    def close(self) -> None:
        """Kills it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join(5)
        assert self.process.stdout is not None and self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()

    def memory_mb(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("no VmRSS")


@contextmanager
def serving(*words: object, home: Path | None = None, code: str | None = None) -> Iterator[Server]:
    """A server command (or a script in its place) that is killed at the end if it still runs."""
    script = ["-c", code] if code is not None else ["-m", "gimbalmq"]
    process = subprocess.Popen(
        [sys.executable, *script, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(home),
    )
    server = Server(process)
    try:
        yield server
    finally:
        server.close()
