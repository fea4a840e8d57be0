"""Spark's process: what it is started with, its lines as they come, and its end."""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

from gimbalmq.cli.output import announce, complain
from gimbalmq.cli.pipeline.progress import Progress
from gimbalmq.errors import ConfigError
from gimbalmq.spark.java import ensure_java
from gimbalmq.spark.pipelines import DEFAULTS, runner
from gimbalmq.spark.pipelines.runner import PORT

_REDRAW: Final = 0.2
_END_SECONDS: Final = 15.0


def command(args: argparse.Namespace, spec: Path) -> list[str]:
    words = [sys.executable, "-m", "gimbalmq.spark.pipelines.runner", str(spec)]
    words += ["--dry-run"] if args.dry_run else []
    words += ["--full-refresh-all"] if args.full_refresh_all else []
    for option, lists in (("--full-refresh", args.full_refresh), ("--refresh", args.refresh)):
        for name in (name.strip() for text in lists for name in text.split(",")):
            words += [option, name] if name else []
    return words


def environment(args: argparse.Namespace, folder: Path) -> dict[str, str]:
    """Everything that must be settled before Spark starts travels in the environment."""
    if args.remote is not None:
        if not args.remote.startswith("sc://"):
            raise ConfigError("--remote", args.remote, "use sc://HOST:PORT; for other masters --master")
        if args.conf:
            raise ConfigError("--conf", "=".join(args.conf[0]), "that server has started; set it there")
        return {**os.environ, "SPARK_REMOTE": args.remote}
    ensure_java(announce)
    variables = dict(os.environ)
    variables.pop("SPARK_REMOTE", None)
    master = args.master or variables.get("MASTER") or "local[*]"
    port = _free_port()
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.connect.grpc.binding.port": str(port),
        **_java_options(args, folder),
    }
    if master.startswith("local"):
        conf["spark.connect.grpc.binding.address"] = "127.0.0.1"
        # A laptop's own name may lead nowhere; what runs in one process need not be found by others.
        variables.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    words = []
    if (folder / DEFAULTS).is_file():
        words += ["--properties-file", str(folder / DEFAULTS)]
    given = [pair for pair in args.conf if pair[0] != _JAVA_OPTIONS]
    for key, value in [*conf.items(), *given]:
        words += ["--conf", f"{key}={value}"]
    variables |= {
        "PYSPARK_SUBMIT_ARGS": shlex.join([*words, "pyspark-shell"]),
        "SPARK_API_MODE": "connect",
        "MASTER": master,
        PORT: str(port),
    }
    return variables


_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"


def _java_options(args: argparse.Namespace, folder: Path) -> dict[str, str]:
    """Ours, before what the project and the user say."""
    logging = Path(runner.__file__).with_name("log4j2.properties")
    options = [f"-Dlog4j2.configurationFile={logging.as_uri()}", f"-Dderby.stream.error.file={os.devnull}"]
    if (folder / DEFAULTS).is_file():
        text = (folder / DEFAULTS).read_text(encoding="utf-8")
        options += re.findall(rf"^{re.escape(_JAVA_OPTIONS)}[ \t=:]+(.*?)\s*$", text, re.MULTILINE)
    options += [value for key, value in args.conf if key == _JAVA_OPTIONS]
    return {_JAVA_OPTIONS: " ".join(options)}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def runs_here(args: argparse.Namespace, variables: dict[str, str]) -> bool:
    """Whether Spark runs on this machine and sees what this process sees."""
    return args.remote is None and variables.get("MASTER", "").startswith("local")


# -- its life ------------------------------------------------------------------------


def run_spark(
    command: list[str], variables: dict[str, str], folder: Path, log: TextIO, told: Progress
) -> int:
    """Runs Spark to its end; the code it ended with. None of its processes is left, whatever happens.

    Raises:
        KeyboardInterrupt: somebody pressed Ctrl-C.
    """

    def stop(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    pressed = 0

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal pressed
        pressed += 1
        if pressed == 1:
            raise KeyboardInterrupt
        # No exception: it could come at any line of the ending, which would then be left half done.
        spark.kill()

    spark = _Spark(command, variables, folder, log)
    terminated = signal.signal(signal.SIGTERM, stop)
    interrupted = signal.getsignal(signal.SIGINT)
    if interrupted is not signal.SIG_IGN:  # as in a shell's background
        signal.signal(signal.SIGINT, interrupt)
    try:
        for line in spark.lines():
            if line is None:
                told.draw()
                continue
            log.write(f"{line}\n")
            log.flush()
            told.take(line)
        return spark.process.wait()
    except KeyboardInterrupt:
        complain("interrupted: ending Spark, which takes some seconds (Ctrl-C again ends it at once)")
        raise
    finally:
        told.rest()
        spark.end()
        log.flush()
        signal.signal(signal.SIGTERM, terminated)
        signal.signal(signal.SIGINT, interrupted)


class _Spark:
    """The runner, the JVM that it starts, and the workers of that: one session of processes.

    A session of their own, because Ctrl-C at a terminal reaches everything in the foreground at once, and the
    JVM passes over it: it would outlive the others and keep the project's catalog to itself.
    """

    def __init__(self, command: list[str], variables: dict[str, str], folder: Path, log: TextIO) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._waiting.put(line.rstrip("\n"))

    def lines(self) -> Iterator[str | None]:
        """Lines as they come, None when there has been none for a moment.

        Ends with the runner, not with the pipe: Spark's JVM holds that open a little longer.
        """
        while True:
            ended = self.process.poll() is not None
            try:
                yield self._waiting.get(timeout=_REDRAW)
            except queue.Empty:
                if ended:
                    return
                yield None

    def end(self) -> None:
        """Ends what still runs. When the runner has gone its JVM goes by itself; both get some seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self.process.poll() is None:
                self.process.terminate()
                self.process.wait(_END_SECONDS)
            # The JVM and its workers hold the other end of the pipe: its end is theirs.
            self._reader.join(_END_SECONDS)
        if self.process.poll() is None or self._reader.is_alive():
            self.kill()
            self.process.wait()
            self._reader.join(_END_SECONDS)

    def kill(self) -> None:
        """Ends all of them at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
