"""Memory of name server and broker together: idle after one message, and after many.

`proportional` (PSS) counts a page shared between processes once. Apache has heaps of 2 GB and 512 MB, whose
pages count only once touched.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.loadgen.runner import run_c
from benchmarks.report import Options, Row, main
from benchmarks.subjects import chosen, one


def run(options: Options) -> list[Row]:
    idle = Row("idle memory, resident", "MB", goal=("<=", 0.1))
    shared = Row("idle memory, proportional", "MB")
    own = Row("idle memory, without mapped files", "MB")
    rows = [idle, shared, own]
    counts = (100_000,) if options.quick else (100_000, 1_000_000)
    after = {count: Row(f"after {count:,} messages, without mapped files", "MB") for count in counts}
    whole = {count: Row(f"after {count:,} messages, resident", "MB") for count in counts}
    for name in chosen(options.only):
        with one(name) as subject:
            subject.start()
            time.sleep(options.pick(6, 2))
            memory = subject.memory()
            idle.add(name, memory.rss)
            shared.add(name, memory.pss)
            own.add(name, memory.anonymous)
            sent = 0
            for count in counts:
                shape = {"topic": "warm", "connections": 4, "window": 400}
                run_c("send", port=subject.port, count=count - sent, **shape)
                sent = count
                time.sleep(2)
                memory = subject.memory()
                after[count].add(name, memory.anonymous)
                whole[count].add(name, memory.rss)
    return [*rows, *after.values(), *whole.values()]


if __name__ == "__main__":
    main(run, __doc__, "memory")
