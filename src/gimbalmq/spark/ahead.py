"""What the next micro-batch will read, told to the tasks of this one, so that workers pull while Spark plans.

Between two micro-batches Spark writes its checkpoint, and workers wait for tasks. If messages wait, too, a worker pulls
what the next batch begins with (``pulled_ahead``). Nobody knows which worker gets which task then. So what was pulled
is laid down in a folder that all workers see, as links to memory of the worker that pulled it.

That is done if driver and tasks are one JVM (``local[n]``). On a cluster a task may run on any machine: most of what
was pulled ahead would be on another one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from gimbalmq.spark.planning import Partition

MOST_HEADS: Final = 32
"""Partitions of the next batch that workers may begin with."""
_MOST_RANGES: Final = 8
_JVM: Final = "java"


class Process(NamedTuple):
    """A process of this machine; its number may come again, its start in ticks does not."""

    number: int
    started: int


class Ahead(NamedTuple):
    """What may be pulled ahead; travels to the tasks.

    Attributes:
        folder: where it is laid down, below a folder that Spark deletes when it ends.
        heads: what the first partitions of the next batch will read first.
        addresses: of brokers by name.
        spark: the JVM that the planner belongs to.
    """

    folder: str
    heads: tuple[Partition, ...]
    addresses: dict[str, str]
    spark: Process


class Expectations:
    """The planner's part: a folder for each batch of one query."""

    def __init__(self) -> None:
        self._spark = spark_above() if hasattr(os, "memfd_create") else None
        self._query = f"gimbalmq-ahead-{secrets.token_hex(8)}"
        self._number = 0

    def expect(self, partitions: Sequence[Partition], addresses: dict[str, str]) -> Ahead | None:
        """What may be pulled of these; None if nothing should be."""
        if self._spark is None:
            return None
        self._number += 1
        heads = tuple(partition[:_MOST_RANGES] for partition in partitions[:MOST_HEADS])
        return Ahead(f"{self._query}/{self._number}", heads, addresses, self._spark)


def spark_above() -> Process | None:
    """The JVM that started this process, or the process that started it; None if there is none to be seen."""
    for process, name in _above():
        if name == _JVM:
            return process
    return None


def is_of(spark: Process) -> bool:
    """Whether this process belongs to that JVM."""
    return _is_of(os.getpid(), spark)


@lru_cache(maxsize=16)
def _is_of(_number: int, spark: Process) -> bool:
    return any(process == spark for process, _ in _above())


def _above() -> list[tuple[Process, str]]:
    """The processes above this one, and their names, as far as the machine tells."""
    found: list[tuple[Process, str]] = []
    number = os.getppid()
    with contextlib.suppress(OSError, ValueError, IndexError):
        while number > 1:
            head, _, tail = Path(f"/proc/{number}/stat").read_text().rpartition(")")
            fields = tail.split()
            found.append((Process(number, int(fields[19])), head.partition("(")[2]))
            number = int(fields[1])
    return found
