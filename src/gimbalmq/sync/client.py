"""What the blocking producers and consumers share: a life in the shared loop."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from gimbalmq.client.consumer import Consumer as AsyncConsumer
from gimbalmq.client.producer import Producer as AsyncProducer
from gimbalmq.errors import StateError
from gimbalmq.sync.bridge import items_of
from gimbalmq.sync.loop import LoopThread, loop_thread, result_of

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A", bound="AsyncProducer | AsyncConsumer[Any]")


def on_loop(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """A method that calls the plain one of the async class: on the loop, or at once before the start."""

    def call(self: BlockingClient[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._do(lambda: method(self._async, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


class BlockingClient(Generic[A]):
    """What all four share: the async object, and a life in the shared loop."""

    _kind = ""

    def __init__(self, wrapped: A) -> None:
        self._async = wrapped
        self._thread: LoopThread | None = None
        self._closed = False

    @property
    def group(self) -> str:
        return self._async.group

    @property
    def client_id(self) -> str:
        """``ip@pid#number``, or as the instance name says."""
        return self._running().call(lambda: self._async.client_id)

    def start(self) -> None:
        """Starts the async object on the shared loop; see its ``start`` for what can go wrong."""
        if self._thread is not None:
            raise StateError(f"{self._kind} {self.group} has been started before")
        thread = self._thread = loop_thread()
        try:
            thread.run(self._async.start())
        except BaseException as error:
            self._thread = None
            closing = thread.begin(self._async.close())
            if isinstance(error, Exception):  # else interrupted: leave at once, and let the loop tidy up
                result_of(closing)
            raise
        self._closed = False
        thread.started.add(self._async)

    def close(self) -> None:
        """Ends it as the async object's ``close`` does; a second call does nothing.

        If Ctrl-C interrupts it, the rest is done in the background; a repeated call waits for its end.
        """
        self._end(self._async.close)

    def _end(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        thread = self._thread
        if thread is None:
            return
        self._closed = True
        if not thread.forked:  # else the connections are the parent's
            result_of(thread.begin(work()))
            thread.started.discard(self._async)
        self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._end(lambda: self._async.__aexit__(*exc))

    def _running(self) -> LoopThread:
        thread = self._thread
        if thread is None:
            if self._closed:
                raise StateError(f"{self._kind} {self.group} has been closed")
            raise StateError(
                f"{self._kind} {self.group} has not been started: use it in `with`, or call start()"
            )
        if thread.forked:
            raise StateError(f"{self._kind} {self.group} was started before a fork; make one in each process")
        return thread

    def _do(self, function: Callable[[], T]) -> T:
        if self._thread is None and not self._closed:
            return function()
        return self._running().call(function)

    def _iterate(self, begin: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
        thread = self._running()
        return items_of(thread, thread.call(begin))
