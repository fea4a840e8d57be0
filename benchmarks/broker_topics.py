"""Growth with 1, 100 and 10,000 topics of 4 queues: creation, memory, restart, sends spread over all of them.

One broker grows: topics are created, each new one gets a message, memory is weighed. With all of them there it is
restarted, then warmed, and sends are measured over all, some and one of the topics.

Messages go to one queue of each topic: a broker that keeps a file open for each queue in use (Apache's does)
would meet the usual limit of open files with all 40,000.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.loadgen.runner import run_c
from benchmarks.report import Options, Row, main
from benchmarks.subjects import APACHE, Subject, awake, chosen, measure, running
from benchmarks.warming import warm

QUEUES = 4


def label(count: int) -> str:
    return f"{count:,} topic{'s' if count > 1 else ''}"


def spread(count: int) -> dict[str, object]:
    """Generator options for sends over the first `count` topics."""
    topic = "topic" if count > 1 else "topic00000"
    return {"topic": topic, "topics": count, "queues": 1}


def grow(subject: Subject, known: int, count: int) -> float:
    """From `known` to `count` topics, a message in each; topics created a second."""
    rate = subject.create_topics([f"topic{number:05d}" for number in range(known, count)], QUEUES)
    run_c("send", port=subject.port, connections=1, window=32, count=count, **spread(count))
    return rate


def run(options: Options) -> list[Row]:
    counts = (1, 100) if options.quick else (1, 100, 10_000)
    created = {count: Row(f"{label(count)}: created", "1/s") for count in counts[1:]}
    own = {count: Row(f"{label(count)}: memory without mapped files", "MB") for count in counts}
    whole = {count: Row(f"{label(count)}: memory, resident", "MB") for count in counts}
    restart = Row(f"{label(counts[-1])}: restart to first accepted send", "s")
    rate = {count: Row(f"{label(count)}: sends over all", "1/s") for count in counts}
    with running(chosen(options.only, APACHE[:1])) as subjects:  # 4.9 makes topics one by one only
        for name, subject in subjects.items():
            with awake(subject):
                known = 0
                for count in counts:
                    creation = grow(subject, known, count)
                    if known:
                        created[count].add(name, creation)
                    known = count
                    memory = subject.memory()
                    own[count].add(name, memory.anonymous)
                    whole[count].add(name, memory.rss)
                subject.stop()
                restart.add(name, subject.start("topic00000"))
                shape = {"connections": 4, "window": 2000, **spread(100)}
                shape["count"] = int(options.pick(250_000, 50_000))
                window = partial(run_c, "send", port=subject.port, **shape)
                warm(subject, "sends to 100 topics", window, quick=options.quick)
        for count in reversed(counts):
            for name, subject in subjects.items():
                shape = {"connections": 4, "window": 2000, **spread(count)}
                shape |= {"seconds": options.pick(4, 2), "warmup": options.pick(2, 1)}
                load = measure(subject, partial(run_c, "send", port=subject.port, **shape), options.tries)
                rate[count].add(name, load.per_second)
    return [*created.values(), *own.values(), *whole.values(), restart, *rate.values()]


if __name__ == "__main__":
    main(run, __doc__, "topics")
