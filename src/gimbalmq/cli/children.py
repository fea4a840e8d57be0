"""Servers that a command starts as processes of their own: how they begin, and that they end with it."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import IO

END_SECONDS = 30.0
_PARENT_DIED = 1
"""PR_SET_PDEATHSIG of Linux."""


async def start_child(
    *words: str,
    stdin: int = asyncio.subprocess.DEVNULL,
    stderr: IO[bytes] | None = None,
    first: Callable[[], None] | None = None,
) -> asyncio.subprocess.Process:
    """Starts this Python with these words; what the process writes to its stdout can be read.

    Args:
        stderr: where its log goes; None is where that of this process goes.
        first: what the process does before it is another program. That is not safe if this one has threads.
    """
    return await asyncio.create_subprocess_exec(
        *(sys.executable, *words),
        stdin=stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,  # Ctrl-C is for this command, which ends them in order
        preexec_fn=first,
    )


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Has the kernel send this process a signal if the one that has started it is killed; only Linux can.

    The signal comes once for each thread that the other process had.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PARENT_DIED, number)


async def end_child(process: asyncio.subprocess.Process, seconds: float | None = END_SECONDS) -> None:
    """Ends it cleanly, or by force if that takes too long; None waits as long as it takes."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def how_it_ended(code: int) -> str:
    """The end of a process in words."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
