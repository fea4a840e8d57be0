"""From async to blocking: methods and iterators that wait for those of the async classes."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from gimbalmq.sync.loop import LoopThread

P = ParamSpec("P")
T = TypeVar("T")


class Blocking(Protocol):
    """What these methods need of the object they belong to."""

    _async: Any

    def _running(self) -> LoopThread: ...


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """A method that runs the async one to its end."""

    def wait(self: Blocking, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._running().run(method(self._async, *args, **kwargs))

    functools.update_wrapper(wait, method)
    return wait


def reading(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """A method that iterates over what the async one yields."""

    def items(self: Blocking, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return items_of(self._running(), method(self._async, *args, **kwargs))

    functools.update_wrapper(items, method)
    return items


def items_of(thread: LoopThread, items: AsyncIterator[T]) -> Iterator[T]:
    async def following() -> tuple[T] | None:
        try:
            return (await anext(items),)
        except StopAsyncIteration:
            return None

    try:
        while (found := thread.run(following())) is not None:
            yield found[0]
    finally:
        # Not waited for: a generator may be ended by the garbage collector, in any thread.
        if isinstance(items, AsyncGenerator) and not thread.forked:
            asyncio.run_coroutine_threadsafe(_end(items), thread.loop)


async def _end(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()
