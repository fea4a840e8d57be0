"""Long work in short steps.

Such work is a generator that yields after a millisecond or less, and returns its result. Others have the thread at
each yield. So all that the work changes is whole then, and the work trusts nothing that it read before: others may
have changed it. ``transport.turns`` runs steps on an event loop; ``run_through`` is for callers with time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]


def run_through(steps: Steps[T]) -> T:
    """Runs all steps without a pause and returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def for_each(work: Callable[[T], object], items: Iterable[T], *, at_once: int = 16) -> Steps[None]:
    """Calls ``work`` with each of the items, so many in a step."""
    for number, item in enumerate(items, 1):
        work(item)
        if number % at_once == 0:
            yield
