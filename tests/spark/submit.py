"""Spark drivers as processes of their own: a test process has room for one Spark, and nobody kills that.

``jobs`` is what runs in them. A job prints its result as one line of JSON; what Spark says goes to a file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.cli.commands import ROOT, environment
from tests.peers.process import tail

STARVED = b"Python worker failed to connect back"
"""Spark gives the Python process of a stream ten seconds to start, and no setting changes that. It connects before
it has loaded anything of ours, so this says that the machine was busy and nothing else."""

PATIENCE = 240.0
"""How long a job may take on a machine that has other things to do."""


def spark_environment(folder: Path) -> dict[str, str]:
    """What Spark's processes are started with: our sources, loopback, and a folder for what they leave behind."""
    return environment() | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
    }


class Job:
    """One function of ``jobs`` in a process of its own.

    As a context manager it is killed at the end, with every process that it started.
    """

    def __init__(self, name: str, folder: Path, *, master: str = "local[2]", **arguments: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "driver.log"
        told = json.dumps({"master": master, "folder": str(folder)} | arguments)
        with self._log.open("ab") as log:
            self._begin = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.jobs", name, told],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env=spark_environment(folder),
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def starved(self) -> bool:
        """Whether it ended by itself because Spark could not start a process in time."""
        return not self.running and STARVED in self._log.read_bytes()[self._begin :]

    def result(self, patience: float = PATIENCE) -> Any:
        """What the job found, once it has ended."""
        try:
            out, _ = self._process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job goes on and on:\n{self.said()}") from None
        assert self._process.returncode == 0, f"status {self._process.returncode}:\n{self.said()}"
        return json.loads(out)

    def said(self) -> str:
        return tail(self._log, 80)

    def kill(self) -> None:
        """As ``kill -9`` of the driver: Python and Java at once, so that neither has a last word.

        Python workers are in a group of their own, and go when they notice.
        """
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
