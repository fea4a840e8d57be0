"""What the store does on one thread: appends by group size, key indexing, gets of 32.

Times are CPU time of this process (user and system), which a busy machine blurs less than the clock.

python benchmarks/store_append.py [--messages N] [--folder DIR]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.model.javahash import hash_and_power
from gimbalmq.store import MessageStore, StoreConfig

QUEUES = 8
BORN = b"\x7f\x00\x00\x01\x00\x00\x30\x39"


def append(store: MessageStore, body: bytes, group_size: int, messages: int) -> tuple[float, float]:
    """Microseconds per message spent appending, and per key indexing them."""
    queues = [store.queue("BenchmarkTopic", n) for n in range(QUEUES)]
    properties = [
        b"KEYS\x01key%08d\x02UNIQ_KEY\x017F0000010000%020X\x02WAIT\x01true\x02TAGS\x01TagA\x02" % (n, n)
        for n in range(messages)
    ]
    appending = indexing = 0.0
    number = keys = 0
    while number < messages:
        stop = min(number + 4096, messages)
        started = time.process_time()
        while number < stop:
            group = store.group()
            add = group.add
            now = group.store_timestamp
            for _ in range(group_size):
                add(queues[number & 7], body, properties[number], 2598919, 0, 0, now, BORN, 0, 0)
                number += 1
                if number == messages:
                    break
            group.commit()
        appending += time.process_time() - started
        started = time.process_time()
        keys += 2 * store.build_index()
        indexing += time.process_time() - started
    started = time.process_time()
    store.flush_queues()
    appending += time.process_time() - started
    return appending / messages * 1e6, indexing / max(keys, 1) * 1e6


def gets(store: MessageStore) -> tuple[int, float]:
    """Gets of 32 messages a second, reading everything once."""
    calls = count = 0
    started = time.process_time()
    for queue_id in range(QUEUES):
        offset = 0
        while True:
            result = store.get("BenchmarkTopic", queue_id, offset, 32)
            if not result.count:
                break
            offset = result.next_offset
            calls += 1
            count += result.count
    return count, calls / (time.process_time() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--folder", default=None, help="where the store lies; default: a temporary folder")
    options = parser.parse_args()
    hash_and_power(["numpy is loaded on first use; not part of the figures"])
    print("body  group  append us/msg   appends/s   index us/key    gets(32)/s")
    for body_size in (100, 1024):
        for group_size in (1, 32, 256):
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                config = StoreConfig(root=Path(folder), index_pending_limit=1 << 30)
                store = MessageStore(config, SYSTEM_CLOCK)
                store.load()
                each, key = append(store, bytes(body_size), group_size, options.messages)
                count, rate = gets(store)
                assert count == options.messages
                store.close()
            print(f"{body_size:4} {group_size:6} {each:14.2f} {1e6 / each:11,.0f} {key:14.2f} {rate:13,.0f}")


if __name__ == "__main__":
    main()
