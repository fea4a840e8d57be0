"""Long work in short steps.

A generator that yields where somebody else may have the thread for a while: everything it works on is whole
there, and it counts on nothing it saw before, because others append, delete and clean meanwhile. The broker
runs a few milliseconds of it at a time; who has time runs it through.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]


def run_through(steps: Steps[T]) -> T:
    """All steps, one after the other."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
