"""Spark keeps Python processes for tasks and for planning; here each of them is made ready once."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from typing import Final

_SETTLING: Final = 2  # Spark imports some of its own, pandas among it, only behind the start of a first task
_begun: Counter[int] = Counter()


def settle() -> None:
    """Called as a task or a plan begins: the first of a process take what is loaded out of the collector's sight.

    Spark's worker collects garbage after each, and one collection looks at the 85,000 objects of Spark, Arrow,
    numpy and pandas, which never go: 10 to 40 ms, more than many a task takes. In a process that is somebody
    else's nothing is done.
    """
    process = os.getpid()  # a worker is forked, maybe from one that has settled
    if _begun[process] < _SETTLING and _is_sparks():
        _begun[process] += 1
        gc.collect()
        gc.freeze()


def _is_sparks() -> bool:
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(main, "name", None) == "pyspark.daemon"
