"""The process of one broker of ``gimbalmq server --brokers N``; ``supervisor`` starts it and talks with it."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from gimbalmq.cli.children import end_with_parent
from gimbalmq.cli.output import sentence, start_logging
from gimbalmq.cli.pipes import (
    Birth,
    Failed,
    Metrics,
    Ready,
    Said,
    encode,
    next_frame,
    read_frame,
    write_frame,
)
from gimbalmq.cli.serve import ServePlan, run
from gimbalmq.errors import ConfigError, RocketMQError
from gimbalmq.transport.tasks import Tasks

if TYPE_CHECKING:
    from gimbalmq.broker.broker import Broker

log = logging.getLogger(__name__)

_FAILED, _MISUSED = 1, 2


class Parent:
    """The command that has started this broker."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._tasks = Tasks("pipe")
        self._is_gone = False

    def say(self, what: Said) -> None:
        """Returns when the pipe has it; a command that is gone need not hear it."""
        with suppress(OSError):
            write_frame(self._descriptor, encode(what))

    def ready(self, broker: Broker, line: str) -> None:
        self.say(Ready(line, broker.port))
        self._tasks.spawn(self._answer(broker), "questions")

    async def close(self) -> None:
        await self._tasks.close()

    async def _answer(self, broker: Broker) -> None:
        """Tells the metrics to the command; ends the broker when the command is gone."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb", buffering=0)
        )
        try:
            while (question := await next_frame(reader)) is not None:
                try:
                    found = Metrics(int.from_bytes(question, "big"), await broker.metrics.read())
                    await asyncio.to_thread(self.say, found)
                except Exception:
                    # The next question must be heard, and so must the end of the pipe.
                    log.exception("the metrics could not be told")
        finally:
            transport.close()
        self.gone()

    def gone(self, *_: object) -> None:
        """Ends the broker as a signal does, once: a second one would end it before it has closed its store."""
        if not self._is_gone:
            self._is_gone = True
            signal.raise_signal(signal.SIGTERM)


def main() -> int:
    """Serves until a signal, or until the command that started it is gone; the exit code."""
    parent = Parent(os.dup(1))
    os.dup2(2, 1)  # whatever is printed belongs to the log
    signal.signal(signal.SIGUSR1, parent.gone)
    end_with_parent(signal.SIGUSR1)  # if it is gone already, stdin has ended
    told = read_frame(0)
    if told is None:
        return _FAILED
    birth: Birth = pickle.loads(told)
    start_logging(birth.log_level, birth.log_file, birth.config.broker_name)
    plan = ServePlan(broker=birth.config, of_the_run=birth.of_the_run, parent=parent, debug=birth.debug)
    try:
        return run(plan)
    except (RocketMQError, OSError) as error:
        code = _MISUSED if isinstance(error, ConfigError) else _FAILED
        parent.say(Failed(sentence(error), code))
        return code
    except Exception as error:
        parent.say(
            Failed(f"stopped by a bug, {type(error).__name__}: {error} (--debug shows where)", _FAILED)
        )
        if birth.debug:
            raise
        return _FAILED


if __name__ == "__main__":
    sys.exit(main())
