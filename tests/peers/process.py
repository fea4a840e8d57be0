"""One child process with its output in a file: start, wait for a line, stop for good.

Nothing here knows RocketMQ. A server that does not come up raises `PeerError` with the end of what it printed,
so that a failing test says why instead of timing out in silence.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

HOST = "127.0.0.1"


class PeerError(RuntimeError):
    """A counterpart could not be fetched, built, started or stopped."""


def tail(file: Path, lines: int = 40) -> str:
    """The last lines of a text file, or a note that there is none; logback's talk about itself is left out."""
    if not file.exists():
        return f"({file.name}: nothing written)"
    every = file.read_text("utf-8", "replace").splitlines()
    return "\n".join([line for line in every if " |-" not in line][-lines:])


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _claim(port: int) -> bool:
    """Keep a port bound, without listening, until this process ends."""
    claim = socket.socket()
    try:
        claim.bind((HOST, port))
    except OSError:
        claim.close()
        return False
    claim.detach()  # the descriptor stays open, and no object is left to warn of that
    return True


def free_port(groups: int = 1) -> int:
    """A port that is free together with its neighbours, and given to nobody else while this process lives.

    With more than one group, the numbers up to 8 * groups - 3 behind it are its own as well, but for each that is 3
    more than a multiple of 8.

    A Java broker also listens on its port - 2 (the fast port) and + 1 (replication), so those must be free too. The
    numbers lie below Linux's ephemeral range, where outgoing connections would take them meanwhile. A server may
    start long after its port was chosen, or end and come back: a claim on a number beside it, which no server
    uses, tells every other call, in this process or another, that the group is taken.
    """
    for _ in range(200):
        port = random.randrange(12_000, 32_000, 8)
        starts = range(port, port + 8 * groups, 8)
        # Of a whole row of groups every number is needed, of a single one those beside the port.
        needed = (-2, -1, 0, 1) if groups == 1 else (-2, -1, 0, 1, 2, 4, 5)
        if all(_claim(start + 3) and all(_free(start + step) for step in needed) for start in starts):
            return port
    raise PeerError("no free group of ports between 12000 and 32000")


class Process:
    """A child process.

    As a context manager it is killed at the end; call `stop()` inside where a clean end matters.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        ready: str,
        environment: Mapping[str, str] | None = None,
        start_timeout: float = 120.0,
        stop_timeout: float = 90.0,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self._ready = ready
        self._environment = dict(environment or {})
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._child: subprocess.Popen[bytes] | None = None
        self._log_file: IO[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int:
        if self._child is None:
            raise PeerError(f"{self.name} is not running")
        return self._child.pid

    def start(self) -> Self:
        """Start it and wait until it prints the ready text."""
        if self.running:
            raise PeerError(f"{self.name} is running already")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._log_file = self.log.open("ab")
        begin = self._log_file.tell()
        self._child = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=self._log_file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **self._environment},
            start_new_session=True,
        )
        deadline = time.monotonic() + self._start_timeout
        while not self._said(self._ready.encode(), begin):
            if self._child.poll() is not None:
                code = self._child.returncode
                self._forget()
                raise PeerError(f"{self.name} ended with status {code} at start:\n{tail(self.log)}")
            if time.monotonic() > deadline:
                self.kill()
                raise PeerError(f"{self.name} not ready in {self._start_timeout:.0f} s:\n{tail(self.log)}")
            time.sleep(0.03)
        return self

    def _said(self, text: bytes, begin: int) -> bool:
        with self.log.open("rb") as file:
            file.seek(begin)
            return text in file.read()

    def stop(self) -> None:
        """Ask it to end (SIGTERM) and wait until it is gone; kill it when it does not go."""
        child = self._child
        if child is None:
            return
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(self._stop_timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise PeerError(
                    f"{self.name} did not stop in {self._stop_timeout:.0f} s:\n{tail(self.log)}"
                ) from None
        self._forget()

    def kill(self) -> None:
        """End it at once (SIGKILL), as a crash would."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        self._forget()

    def _forget(self) -> None:
        self._child = None
        if self._log_file is not None:
            self._log_file.close()
            self._log_file = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Killed, not stopped: a Java broker takes up to 13 s to stop, and no test needs that unless it says so."""
        self.kill()
