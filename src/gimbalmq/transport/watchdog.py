"""The watchdog: notices when the event loop was kept from its work, and by what.

A thread of its own looks at the loop every few milliseconds. If the loop waits for events there is nothing
to do, and the loop is not woken. If it works, the thread has it call ``_answer`` as soon as it can and takes the
time: an answer that is long in coming means that one turn of the loop was long. Meanwhile the
thread looks at the stack of the loop's thread, which is the only witness of what took the time.

A pause is measured from the thread's first look at it, so up to one look (``_LOOK_SECONDS``) too short. If the
interpreter lock was held all the time (a long call into C), the thread could not look at all; then the pause is
counted from when it should have looked.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import selectors
import sys
import threading
import traceback
from dataclasses import dataclass
from types import CodeType, FrameType

from gimbalmq._clock import SYSTEM_CLOCK

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.02
"""Each look takes the interpreter from the loop and gives it back; at 10 ms that was 5 % of a busy broker's time."""
_QUIET_SECONDS = 10.0
_MOST_FRAMES = 24


@dataclass(frozen=True, slots=True)
class Pause:
    """One turn of the loop that took too long.

    Attributes:
        seconds: at least so long.
        stack: what the loop's thread did when it was seen, outermost call first.
    """

    seconds: float
    stack: str


class LoopWatchdog:
    """Watches the running loop from ``start`` to ``close``; real time only, never a virtual loop.

    Args:
        count_from: pauses from so many seconds on are counted ...
        log_from: ... and from so many on logged, with the stack; at most one line in ten seconds.
        look_every: seconds between two looks; shorter ones measure more exactly and cost more.

    Attributes:
        pauses: how many were counted.
        longest: the longest of them, None before the first.
    """

    def __init__(
        self, count_from: float = 0.02, log_from: float = 0.1, *, look_every: float = _LOOK_SECONDS
    ) -> None:
        self.pauses = 0
        self.longest: Pause | None = None
        self._count_from = count_from
        self._log_from = log_from
        self._look_every = look_every
        self._clock = SYSTEM_CLOCK  # the loop's real time is what is watched, whatever a server is told
        self._ended = threading.Event()
        self._answered = 0.0
        self._asked = False
        self._silent_until = 0.0
        self._unlogged = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """To be called on the loop that is to be watched."""
        loop = asyncio.get_running_loop()
        waiting = set() if isinstance(loop, asyncio.BaseEventLoop) else _outer_codes(sys._getframe())
        self._thread = threading.Thread(
            target=self._watch,
            args=(loop, threading.get_ident(), waiting),
            name="watchdog",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _answer(self) -> None:
        self._answered = self._clock.monotonic()
        self._asked = False

    # --- the thread --------------------------------------------------------------------------

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int, waiting: set[CodeType]) -> None:
        now = self._clock.monotonic
        due = now() + self._look_every
        while not self._ended.wait(max(0.0, due - now())):
            begun = now()
            frame = sys._current_frames().get(thread)
            if frame is not None and not _waits(frame, waiting):
                # Late by a whole pause: nobody could run, so the loop could not either.
                since = begun if begun - due < self._count_from else due
                stack = _tell(frame) if since < begun else ""
                del frame  # it would keep the locals of whatever it was alive
                try:
                    self._time_one(loop, thread, since, stack)
                except RuntimeError:  # the loop is closed
                    return
            due = now() + self._look_every

    def _time_one(self, loop: asyncio.AbstractEventLoop, thread: int, since: float, stack: str) -> None:
        now = self._clock.monotonic
        self._asked = True
        loop.call_soon_threadsafe(self._answer)
        while self._asked:
            if self._ended.wait(self._look_every):
                return
            if self._asked and not stack and now() - since >= self._count_from:
                frame = sys._current_frames().get(thread)
                stack = _tell(frame) if frame is not None else ""
                del frame
        seconds = self._answered - since
        if seconds >= self._count_from:
            self._note(Pause(seconds, stack))

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
        log.warning(
            "the event loop stood still for %.0f ms%s in\n%s", pause.seconds * 1000, more, pause.stack
        )


def _outer_codes(frame: FrameType) -> set[CodeType]:
    """Code that runs the loop.

    A loop written in C has no frame of its own, so the frame of its caller is on top while it waits.
    """
    found: set[CodeType] = set()
    outer = frame.f_back
    while outer is not None:
        if not outer.f_code.co_flags & (inspect.CO_COROUTINE | inspect.CO_GENERATOR):
            found.add(outer.f_code)
        outer = outer.f_back
    return found


def _waits(frame: FrameType, waiting: set[CodeType]) -> bool:
    code = frame.f_code
    return code in waiting or code.co_filename == selectors.__file__


def _tell(frame: FrameType) -> str:
    lines = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=_MOST_FRAMES)
    lines.reverse()
    return "".join(lines.format()).rstrip()
