"""The event loop behind all blocking objects of a process, in one daemon thread."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from gimbalmq.errors import StateError

T = TypeVar("T")

_EXIT_SECONDS = 10.0
"""How long the end of the program waits for objects that nobody has closed."""

_SIGNAL_SECONDS = 0.2
"""How long the main thread waits before it looks for signals."""


class _Closable(Protocol):
    def close(self) -> Coroutine[Any, Any, None]: ...


class LoopThread:
    """An event loop that runs in a daemon thread until the program ends.

    Attributes:
        started: what is to be closed when the program ends.
        forked: this is a child process, which has the memory of the loop but not its thread.
    """

    def __init__(self) -> None:
        self.loop = _new_loop()
        self.started: set[_Closable] = set()
        self.forked = False
        self._thread = threading.Thread(target=self._serve, name="gimbalmq-sync", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    @property
    def is_current(self) -> bool:
        """Whether the caller is on the loop itself, which must not wait."""
        return threading.current_thread() is self._thread

    def begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self.is_current:
            work.close()
            raise StateError(
                "a blocking call on the event loop would wait for itself: in an `async def` handler use the "
                "async classes of gimbalmq, or make the handler a plain function"
            )
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Does the work on the loop and waits for it; Ctrl-C cancels it."""
        future = self.begin(work)
        try:
            return result_of(future)
        except BaseException:
            future.cancel()  # nothing, unless this thread was interrupted
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Calls a plain function on the loop, where nothing changes under its hands."""

        async def work() -> T:
            return function()

        return self.run(work())

    def end(self) -> None:
        """Closes what is still open, then the loop: for the end of the program."""
        if not self._close_all():
            self._close_all()  # those that were cut short wait for no handler any more
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_EXIT_SECONDS)
        if not self._thread.is_alive():
            self.loop.close()

    def _close_all(self) -> bool:
        """Whether everything was closed in time."""
        closing = [self.begin(item.close()) for item in list(self.started)]
        _, late = concurrent.futures.wait(closing, _EXIT_SECONDS)
        for future in late:
            future.cancel()
        return not late


def result_of(future: concurrent.futures.Future[T]) -> T:
    """Waits for a result. Ctrl-C ends the wait, also if another thread than the main one is sent the signal.

    Python looks at signals in the main thread only, and while that waits for a lock without a limit, a signal that
    another thread has received does not wake it.
    """
    if threading.current_thread() is threading.main_thread():
        while not future.done():
            try:
                return future.result(_SIGNAL_SECONDS)
            except TimeoutError:
                continue  # of this wait, or of the work, which is done then
    return future.result()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


_lock = threading.Lock()
_current: LoopThread | None = None


def loop_thread() -> LoopThread:
    """The one of this process, started on first use."""
    global _current
    with _lock:
        if _current is None:
            _current = LoopThread()
        return _current


def _forget_after_fork() -> None:
    """A child process starts a loop of its own."""
    global _lock, _current
    if _current is not None:
        _current.forked = True
    _lock, _current = threading.Lock(), None


def _end_with_program() -> None:
    if _current is not None:
        _current.end()


os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(_end_with_program)
