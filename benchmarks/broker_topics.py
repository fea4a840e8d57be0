"""Growth with 1, 100 and 10,000 topics of 4 queues: creation, memory, sends spread over all of them, restart.

Messages go to one queue of each topic: a broker that keeps a file open for each queue in use (Apache's does)
would meet the usual limit of open files with all 40,000.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.loadgen.runner import run_c
from benchmarks.report import Options, Row, main
from benchmarks.subjects import chosen, one

QUEUES = 4


def run(options: Options) -> list[Row]:
    names = chosen(options.only)
    counts = (1, 100) if options.quick else (1, 100, 10_000)
    rows: list[Row] = []
    for count in counts:
        label = f"{count:,} topic{'s' if count > 1 else ''}"
        creation = Row(f"{label}: created", "1/s")
        memory = Row(f"{label}: memory, one message in each, without mapped files", "MB")
        whole = Row(f"{label}: memory, resident", "MB")
        rate = Row(f"{label}: sends over all", "1/s")
        restart = Row(f"{label}: restart to first accepted send", "s")
        rows += [creation, memory, whole, rate]
        if count != 100:
            rows.append(restart)
        for name in names:
            with one(name) as subject:
                subject.start()
                topics = [f"topic{number:05d}" for number in range(count)] if count > 1 else ["topic"]
                creation.add(name, subject.create_topics(topics, QUEUES))
                shape = {"topic": "topic", "topics": count, "queues": 1}
                run_c("send", port=subject.port, connections=1, window=32, count=count, **shape)
                weighed = subject.memory()
                memory.add(name, weighed.anonymous)
                whole.add(name, weighed.rss)
                seconds = options.pick(4, 2)
                load = run_c(
                    "send",
                    port=subject.port,
                    connections=4,
                    window=2000,
                    seconds=seconds,
                    warmup=options.pick(6, 1),
                    **shape,
                )
                rate.add(name, load.per_second)
                if restart in rows:
                    subject.stop()
                    restart.add(name, subject.start(topics[0]))
    return rows


if __name__ == "__main__":
    main(run, __doc__, "topics")
