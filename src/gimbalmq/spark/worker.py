"""Spark's Python processes, for tasks and for planning: how each is made ready once, and left when Spark hangs up."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_SETTLING: Final = 2  # Spark imports some of its own, pandas among it, only behind the start of a first task
_TASKS: Final = "pyspark.daemon"
_STREAMS: Final = "pyspark.sql.streaming.python_streaming_source_runner"
_begun: Counter[int] = Counter()


def settle() -> None:
    """Called as a task or a plan begins: the first of a process take what is loaded out of the collector's sight.

    Spark's worker collects garbage after each, and one collection looks at the 85,000 objects of Spark, Arrow,
    numpy and pandas, which never go: 10 to 40 ms, more than many a task takes. In a process that is somebody
    else's nothing is done.
    """
    process = os.getpid()  # a worker is forked, maybe from one that has settled
    if _begun[process] < _SETTLING and _process_is(_TASKS):
        _begun[process] += 1
        gc.collect()
        gc.freeze()


def while_spark_listens(read: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """For a reader's ``read``: if Spark hangs up instead of taking what a task gives, the process ends there.

    A query that is stopped, or that has reached its LIMIT, breaks its tasks off by closing their pipes. Spark's worker
    would then tell of the broken pipe through that pipe, print the traceback of its failure to do so, and end.
    """

    @wraps(read)
    def reading(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            yield from read(*args, **kwargs)
        except GeneratorExit as end:
            if isinstance(end.__context__, (BrokenPipeError, ConnectionResetError)) and _process_is(_TASKS):
                os._exit(0)
            raise

    return reading


def leave_if_spark_hung_up() -> None:
    """Called as a stream's planner is stopped: if Spark closed its pipe, the process ends here, for the same reason."""
    # Not its subclasses: asyncio's for an answer that was cut short is a failure that Spark must be told.
    if type(sys.exception()) is EOFError and _process_is(_STREAMS):
        os._exit(0)


def _process_is(name: str) -> bool:
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(main, "name", None) == name
