"""A store that follows another one, and what two such stores have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gimbalmq.model.flags import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from gimbalmq.model.ids import pack_host
from gimbalmq.model.javahash import java_hash
from gimbalmq.model.record import encode_properties
from gimbalmq.model.topics import SCHEDULE_TOPIC
from gimbalmq.store import MessageStore
from gimbalmq.store.files import Files
from tests.store.helpers import BORN, NOON, FakeClock, open_store, put

V6 = pack_host("2001:db8::17", 4711)
LONG_TOPIC = "L" * 200
ALWAYS = 1 << 60


def follower(root: Path, files: Files | None = None, **options: Any) -> MessageStore:
    store = open_store(root, FakeClock(), files, **options)
    store.follow()
    return store


def log_of(store: MessageStore, start: int | None = None) -> bytes:
    """All bytes of a store's log, as a master would send them."""
    offset = store.min_commitlog_offset if start is None else start
    parts = []
    while piece := store.log_bytes(offset, 1 << 20):
        parts.append(bytes(piece))
        offset += len(piece)
    return b"".join(parts)


def queues_of(store: MessageStore) -> dict[tuple[str, int], tuple[int, list[tuple[int, int, int]]]]:
    """Every queue that has messages: its first offset, and all entries."""
    found = {}
    for topic in store.topics():
        for queue_id in store.queue_ids(topic):
            queue = store.queue(topic, queue_id)
            entries = store.entries(topic, queue_id, 0, ALWAYS)
            if entries:
                found[topic, queue_id] = (queue.min_offset, entries)
    return found


def keyed(store: MessageStore, keys: Iterable[tuple[str, str]]) -> list[list[bytes]]:
    return [store.query_by_key(topic, key, 64, 0, ALWAYS).records for topic, key in keys]


KEYS = [("A", "k1"), ("A", "k2"), ("B", "k1"), ("A", "never"), (SCHEDULE_TOPIC, "k1"), ("T", "k1")]


def assert_same(slave: MessageStore, master: MessageStore) -> None:
    assert slave.max_commitlog_offset == master.max_commitlog_offset
    assert log_of(slave) == log_of(master, slave.min_commitlog_offset)
    assert queues_of(slave) == queues_of(master)
    assert keyed(slave, KEYS) == keyed(master, KEYS)


def send(slave: MessageStore, master: MessageStore, sizes: Iterator[int]) -> None:
    """The master's log from where the slave is, in packets of these sizes."""
    while slave.received_offset < master.max_commitlog_offset:
        offset = slave.received_offset
        slave.receive(offset, master.log_bytes(offset, next(sizes)))


def always(size: int) -> Iterator[int]:
    while True:
        yield size


def fill_all_kinds(store: MessageStore, rounds: int = 12) -> None:
    """Records of every kind, over several files: batches, delayed, transactions, IPv6 hosts, long topics, deletions."""
    for number in range(rounds):
        group = store.group()
        for part in range(4):  # a batch
            queue = store.queue("A", part % 2)
            text = encode_properties(
                {"TAGS": f"t{part}", "KEYS": f"k{number % 4} extra", "UNIQ_KEY": f"u{number}"}
            )
            group.add(queue, b"batch %d" % number, text, java_hash(f"t{part}"), part, 0, NOON, BORN, 0, 0)
        group.commit()
        delayed = encode_properties({"DELAY": str(number % 3 + 1), "KEYS": "k1"})
        group = store.group()
        code = group.store_timestamp + store.config.delay_levels_ms[number % 3 + 1]
        group.add(store.queue(SCHEDULE_TOPIC, number % 3), b"later", delayed, code, 0, 0, NOON, BORN, 0, 0)
        group.commit()
        half, _ = put(store, "T", 0, b"half %d" % number, sys_flag=TRANSACTION_PREPARED, KEYS="k1")
        put(
            store,
            "T",
            0,
            b"done",
            sys_flag=TRANSACTION_COMMIT if number % 2 else TRANSACTION_ROLLBACK,
            KEYS="k1",
        )
        group = store.group()
        text = encode_properties({"KEYS": "k1"})
        group.add(store.queue("B", 3), b"six" * number, text, 0, 0, 0, NOON, V6, 1, ~half)
        group.add(store.queue(LONG_TOPIC, 1), b"v2", b"", 0, 0, 0, NOON, BORN, 0, 0)
        group.commit()
        put(store, "gone", number % 2, bytes(range(256)) * (number % 4))
        if number % 5 == 3:
            store.delete_topic("gone")
