"""Versions of tables, and which rows changed between two of them: a slave need not ask for whole tables."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Set
from typing import Generic, TypeVar

from gimbalmq._clock import Clock
from gimbalmq.errors import ProtocolError
from gimbalmq.protocol.bodies import DataVersion

K = TypeVar("K", bound=Hashable)

_MOST_ROWS = 50_000
"""That are remembered; who has an older version is given the whole table."""


def next_version(version: DataVersion, clock: Clock, state_version: int | None = None) -> DataVersion:
    """The version after a change; ``state_version`` is a master's epoch, if a controller gave it one."""
    return DataVersion(
        counter=version.counter + 1,
        state_version=version.state_version if state_version is None else state_version,
        timestamp=clock.wall_ms(),
    )


def is_as_new(version: DataVersion, other: DataVersion) -> bool:
    """Whether a table of this version is at least as new as one of the other (Java: DataVersion.compare)."""
    return (version.state_version, version.counter, version.timestamp) >= (
        other.state_version,
        other.counter,
        other.timestamp,
    )


def version_of(text: str | None) -> DataVersion | None:
    """A version out of a request's header; None if the sender has none."""
    if not text or not text.strip():
        return None
    try:
        return DataVersion.parse(text)
    except ProtocolError:
        return None  # then the whole table is what it needs


class History(Generic[K]):
    """The last changes of a table, version by version."""

    def __init__(self, most_rows: int = _MOST_ROWS) -> None:
        self._most_rows = most_rows
        self._changes: deque[tuple[DataVersion, tuple[K, ...]]] = deque()
        """The version before a change, and the rows that changed."""
        self._numbers: dict[DataVersion, int] = {}
        self._first = 0
        """The number of the first in ``_changes``."""
        self._rows = 0

    def note(self, before: DataVersion, keys: Iterable[K]) -> None:
        """These rows are different now, or gone."""
        rows = tuple(keys)
        self._numbers[before] = self._first + len(self._changes)
        self._changes.append((before, rows))
        self._rows += len(rows) + 1
        while self._rows > self._most_rows:
            oldest, gone = self._changes.popleft()
            if self._numbers.get(oldest) == self._first:
                del self._numbers[oldest]
            self._first += 1
            self._rows -= len(gone) + 1

    def since(self, version: DataVersion, now: DataVersion) -> Set[K] | None:
        """Which rows have changed from one version to the present one; None if nobody remembers."""
        if version == now:
            return frozenset()
        number = self._numbers.get(version)
        if number is None:
            return None
        found: set[K] = set()
        for index in range(number - self._first, len(self._changes)):
            found.update(self._changes[index][1])
        return found

    def clear(self) -> None:
        """The table became another; nothing leads to it from before."""
        self._changes.clear()
        self._numbers.clear()
        self._first = self._rows = 0
