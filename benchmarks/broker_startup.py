"""From the start of name server and broker to the first accepted send: a new store, a warm disk cache.

Apache's two processes are started at the same moment, which is the best it can do on an empty machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.report import Options, Row, main
from benchmarks.subjects import chosen, one


def run(options: Options) -> list[Row]:
    row = Row("start to first accepted send", "s", goal=("<=", 0.1))
    end = Row("clean stop", "s")
    names = chosen(options.only)
    for turn in range(options.rounds + 1):
        for name in names:
            with one(name) as subject:
                took = subject.start()
                if turn == 0:
                    end.add(name, subject.stop())
            if turn or options.quick:  # the first turn fills the disk cache
                row.add(name, took)
    return [row, end]


if __name__ == "__main__":
    main(run, __doc__, "startup")
