"""The watchdog: notices when the event loop was kept from its work, and by what.

The loop calls ``_beat`` every few milliseconds. If a beat comes late, one turn of the loop was at least so long (of
asyncio's own loop, which looks at its timers last, two turns together). What took the time only another thread can
see, while it lasts, on the stack of the loop's thread. So one looks when a beat is late by most of what is logged,
and sleeps otherwise: each time it wakes up it takes the interpreter from the loop, and a busy machine may be long in
giving it back.

A pause is measured from when the beat was due, so up to one beat too short. A process that was stopped had one, too,
whatever its loop did. If the interpreter lock was held all the time (a long call into C), the thread looks when that is
over, before the loop goes on.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from dataclasses import dataclass
from types import FrameType

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.errors import StateError

log = logging.getLogger(__name__)

_BEAT_SECONDS = 0.02
_LOOK_AFTER = 0.75
"""A beat that is late by so much of what is logged is looked at, because it may be about to be logged."""
_QUIET_SECONDS = 10.0
_MOST_FRAMES = 24


@dataclass(frozen=True, slots=True)
class Pause:
    """One turn of the loop that took too long.

    Attributes:
        seconds: at least so long.
        stack: what the loop's thread did when it was seen, outermost call first; empty if nobody saw it, as with pauses
            that are too short to be logged.
    """

    seconds: float
    stack: str


class LoopWatchdog:
    """Watches the running loop from ``start`` to ``close``; real time only, never a virtual loop.

    Args:
        count_from: pauses from so many seconds on are counted ...
        log_from: ... and from so many on logged, with the stack; at most one line in ten seconds.

    Attributes:
        pauses: how many were counted.
        longest: the longest of them, None before the first.
    """

    def __init__(self, count_from: float = 0.02, log_from: float = 0.1) -> None:
        self.pauses = 0
        self.longest: Pause | None = None
        self._count_from = count_from
        self._log_from = log_from
        self._clock = SYSTEM_CLOCK  # the loop's real time is what is watched, whatever a server is told
        self._ended = threading.Event()
        self._due = 0.0
        self._seen: tuple[float, str] = (0.0, "")
        """When a beat was due that did not come, and the stack of then."""
        self._next: asyncio.TimerHandle | None = None
        self._silent_until = 0.0
        self._unlogged = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """To be called once, on the loop that is to be watched."""
        if self._thread is not None or self._ended.is_set():
            raise StateError("this watchdog was started already: make another one")
        loop = asyncio.get_running_loop()
        self._expect_beat(loop)
        self._thread = threading.Thread(
            target=self._watch, args=(loop, threading.get_ident()), name="watchdog", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    # --- on the loop -------------------------------------------------------------------------

    def _expect_beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = self._clock.monotonic() + _BEAT_SECONDS
        self._next = loop.call_later(_BEAT_SECONDS, self._beat, loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        due, late = self._due, self._clock.monotonic() - self._due
        try:
            if late >= self._count_from:
                looked_at, stack = self._seen
                self._note(Pause(late, stack if looked_at == due else ""))
        finally:
            self._expect_beat(loop)

    def _note(self, pause: Pause) -> None:
        self.pauses += 1
        longest = self.longest
        if longest is None or pause.seconds > longest.seconds:
            self.longest = pause
        if pause.seconds < self._log_from:
            return
        now = self._clock.monotonic()
        if now < self._silent_until:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more since the last such line)" if self._unlogged else ""
        self._silent_until, self._unlogged = now + _QUIET_SECONDS, 0
        what = f" in\n{pause.stack}" if pause.stack else "; nobody saw why"
        log.warning("the event loop stood still for %.0f ms%s%s", pause.seconds * 1000, more, what)

    # --- the thread --------------------------------------------------------------------------

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        now, patience = self._clock.monotonic, self._log_from * _LOOK_AFTER
        while not self._ended.wait(max(0.0, self._due + patience - now())):
            due = self._due
            if now() - due < patience:
                continue
            if loop.is_closed():
                return
            frame = sys._current_frames().get(thread)
            if frame is not None:
                self._seen = due, _tell(frame)
            del frame  # it would keep the locals of whatever it was alive
            while self._due == due and not loop.is_closed():
                if self._ended.wait(patience):
                    return


def _tell(frame: FrameType) -> str:
    lines = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=_MOST_FRAMES)
    lines.reverse()
    return "".join(lines.format()).rstrip()
