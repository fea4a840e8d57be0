"""The Python process that Spark keeps for its tasks, made ready once for many of them."""

from __future__ import annotations

import gc
import os
from collections import Counter
from typing import Final

from pyspark import TaskContext

_SETTLING: Final = 2  # Spark imports some of its own, pandas among it, only behind the start of a first task
_tasks: Counter[int] = Counter()


def settle() -> None:
    """Called as a task begins: the first of a process take what is loaded out of the garbage collector's sight.

    Spark's worker collects garbage after every task, and one collection looks at the 85,000 objects of Spark,
    Arrow, numpy and pandas, which never go: 10 to 40 ms, more than many a task takes. Outside of a task, where
    the process is somebody else's, nothing is done.
    """
    process = os.getpid()  # a worker is forked, maybe from one that has settled
    if _tasks[process] < _SETTLING and TaskContext.get() is not None:
        _tasks[process] += 1
        gc.collect()
        gc.freeze()
