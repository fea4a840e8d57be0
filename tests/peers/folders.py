"""Two store folders side by side: is one the copy of the other?

The files are read as they lie on the disk, those of stopped brokers and of running ones, Apache's and ours alike;
nothing here goes through our store. `differences` says where the copy departs from its master:

- log: the bytes are equal from the copy's first byte to the nearer of the two ends;
- queues: each record in that range that belongs into a queue has its entry there, both folders have the same entries,
  and nothing is there twice;
- index: a question for any key gives the same records of that range in both folders.

A running broker of ours writes queue entries and keys once a second, so a comparison of running brokers is repeated
until it finds nothing (`same`).
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gimbalmq.model.flags import enters_index, enters_queue
from gimbalmq.model.javahash import java_hash, tag_hash
from gimbalmq.model.record import BLANK_BYTES, MAGIC_BLANK, START, Record, check_record, decode_record

QueueName = tuple[str, int]
Entry = tuple[int, int, int]

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""An entry of this topic holds the time of delivery instead of the tag's hash."""

_ENTRY = struct.Struct(">qiq")
_FILLER_SIZE = 0x7FFFFFFF
_INDEX_HEADER = struct.Struct(">qqqqii")
_INDEX_ENTRY = struct.Struct(">iqii")
_NUMBER_LETTERS = 20
_SHOWN = 5


@dataclass(frozen=True)
class Found:
    """A record and its place."""

    place: int
    size: int
    record: Record

    @property
    def end(self) -> int:
        return self.place + self.size

    @property
    def queue(self) -> QueueName:
        return self.record.topic, self.record.queue_id

    @property
    def tags_code(self) -> int | None:
        """What its queue entry must hold; None if that is a time."""
        if self.record.topic == SCHEDULE_TOPIC:
            return None
        tag = self.record.properties.get("TAGS")
        return tag_hash(tag) if tag else 0

    @property
    def keys(self) -> list[str]:
        properties = self.record.properties
        keys = properties.get("KEYS", "").split(" ")
        return [key for key in (properties.get("UNIQ_KEY", ""), *keys) if key]


@dataclass
class Log:
    """The commit log of a folder: all its files, up to the first place that holds no whole record."""

    folder: Path
    file_bytes: int
    begin: int = 0
    end: int = 0
    records: list[Found] = field(default_factory=list)
    reason: str = "no file"
    blanks: list[tuple[int, int]] = field(default_factory=list)
    """Empty ends of files: where they begin and end."""

    @classmethod
    def read(cls, store: Path) -> Log:
        folder = store / "commitlog"
        files = numbered(folder)
        if not files:
            return cls(folder, 0)
        size = files[0].stat().st_size
        log = cls(folder, size, int(files[0].name), int(files[0].name))
        for file in files:
            if int(file.name) != log.end or not log._walk(file):
                break
        return log

    def _walk(self, file: Path) -> bool:
        """Takes a file's records; False if the log ends in it."""
        base = int(file.name)
        with opened(file) as data:
            at = self.end - base
            while at + BLANK_BYTES <= len(data):
                size, magic = START.unpack_from(data, at)
                if magic == MAGIC_BLANK:
                    break
                why = check_record(data, at, commitlog_offset=base + at)
                if why is not None:
                    self.reason = why
                    return False
                self.records.append(Found(base + at, size, decode_record(data, at)))
                at += size
                self.end = base + at
            if at < len(data):
                self.blanks.append((base + at, base + len(data)))
            self.end = base + len(data)
            return True

    def raw(self, begin: int, end: int) -> bytes:
        """From the files as they are; what is behind the last file is missing."""
        parts = []
        while begin < end:
            base = begin - begin % self.file_bytes
            file = self.folder / f"{base:020d}"
            if not file.exists():
                break
            with opened(file) as data:
                parts.append(bytes(data[begin - base : min(end - base, len(data))]))
            begin = base + self.file_bytes
        return b"".join(parts)

    def between(self, begin: int, end: int) -> Iterator[Found]:
        return (found for found in self.records if begin <= found.place and found.end <= end)

    def bodies(self, topic: str) -> dict[int, list[bytes]]:
        """What each queue of a topic holds, in the order of the log."""
        found: dict[int, list[bytes]] = {}
        for each in self.records:
            if each.record.topic == topic and enters_queue(each.record.sys_flag):
                found.setdefault(each.record.queue_id, []).append(each.record.body)
        return found


@contextmanager
def opened(file: Path) -> Iterator[memoryview]:
    with file.open("rb") as handle:
        if not file.stat().st_size:
            yield memoryview(b"")
            return
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
            yield view


def numbered(folder: Path) -> list[Path]:
    """Files whose names are offsets, in order."""
    if not folder.is_dir():
        return []
    return sorted(
        file for file in folder.iterdir() if len(file.name) == _NUMBER_LETTERS and file.name.isdigit()
    )


@dataclass
class Queues:
    """The entries of all queues by their numbers, those for which there is no message left out."""

    entries: dict[QueueName, dict[int, Entry]] = field(default_factory=dict)

    @classmethod
    def read(cls, store: Path) -> Queues:
        found = cls()
        root = store / "consumequeue"
        for topic in sorted(root.iterdir()) if root.is_dir() else ():
            for queue in sorted(topic.iterdir()):
                found.entries[topic.name, int(queue.name)] = _entries(queue)
        return found

    def between(self, queue: QueueName, begin: int, end: int) -> dict[int, Entry]:
        entries = self.entries.get(queue, {})
        return {
            number: entry
            for number, entry in entries.items()
            if begin <= entry[0] and entry[0] + entry[1] <= end
        }


def _entries(folder: Path) -> dict[int, Entry]:
    """Up to the first place without an entry. Behind its end a file of Apache's may hold what was cut: there places
    do not grow."""
    entries: dict[int, Entry] = {}
    last = -1
    for file in numbered(folder):
        data = file.read_bytes()
        number = int(file.name) // _ENTRY.size
        for at in range(0, len(data) - _ENTRY.size + 1, _ENTRY.size):
            place, size, code = _ENTRY.unpack_from(data, at)
            if size <= 0 or place < 0:
                return entries
            if size != _FILLER_SIZE:
                if place <= last:
                    return entries
                entries[number] = (place, size, code)
                last = place
            number += 1
    return entries


def read_index(store: Path, slots: int) -> list[tuple[int, int]]:
    """Hash and place of every key that a question can find: those that a chain leads to."""
    found: list[tuple[int, int]] = []
    folder = store / "index"
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if file.name.isdigit():
            with opened(file) as data:
                found += _chained(data, slots)
    return found


def _chained(data: memoryview, slots: int) -> Iterator[tuple[int, int]]:
    count = _INDEX_HEADER.unpack_from(data)[5]
    entries_at = _INDEX_HEADER.size + slots * 4
    heads = struct.unpack_from(f">{slots}i", data, _INDEX_HEADER.size)
    for head in heads:
        number, limit = head, count
        while 0 < number < limit:
            key_hash, place, _, previous = _INDEX_ENTRY.unpack_from(
                data, entries_at + number * _INDEX_ENTRY.size
            )
            yield key_hash, place
            number, limit = previous, number


def key_hash(topic: str, key: str) -> int:
    value = abs(java_hash(f"{topic}#{key}"))
    return value if value <= 0x7FFFFFFF else 0


@dataclass
class Comparison:
    """What was compared, and what differs.

    Attributes:
        master: offsets at which the master's log begins and ends.
        copy: those of the copy.
        compared: the range that both have.
        records: whole ones in that range.
        differences: in words, at most a few of each kind; empty if there are none.
    """

    master: tuple[int, int]
    copy: tuple[int, int]
    compared: tuple[int, int]
    records: int = 0
    differences: list[str] = field(default_factory=list)

    @property
    def level(self) -> bool:
        """Whether both logs end at the same place."""
        return self.master[1] == self.copy[1]

    def __str__(self) -> str:
        text = (
            f"master {self.master[0]}..{self.master[1]}, copy {self.copy[0]}..{self.copy[1]}, "
            f"compared {self.compared[0]}..{self.compared[1]} ({self.records} records)"
        )
        return "\n  ".join([text, *self.differences])


def compare(
    master: Path,
    copy: Path,
    *,
    slots: int = 1000,
    queues: bool = True,
    index: bool = True,
    deleted: frozenset[str] = frozenset(),
) -> Comparison:
    """Compare a copy's folder with its master's.

    Args:
        slots: `maxHashSlotNum` of both.
        queues: whether to compare queue entries.
        index: whether to compare the key index. Apache's broker that opens a killed broker's folder drops the newest
            index file and fills it only in part.
        deleted: topics without queues, because a broker of ours deleted them.
    """
    one, other = Log.read(master), Log.read(copy)
    begin, end = max(one.begin, other.begin), min(one.end, other.end)
    result = Comparison((one.begin, one.end), (other.begin, other.end), (begin, end))
    if begin >= end:
        return result
    if one.file_bytes != other.file_bytes:
        result.differences.append(f"files of {one.file_bytes} and {other.file_bytes} bytes")
        return result
    result.differences += _log_differences(one, other, begin, end)
    if result.differences:
        return result
    records = list(one.between(begin, end))
    result.records = len(records)
    if queues:
        result.differences += _queue_differences(master, copy, records, begin, end, deleted)
    if index:
        result.differences += _index_differences(master, copy, records, begin, end, slots, deleted)
    return result


def _log_differences(one: Log, other: Log, begin: int, end: int) -> Iterator[str]:
    size = one.file_bytes
    for base in range(begin - begin % size, end, size):
        low, high = max(base, begin), min(base + size, end)
        left, right = one.raw(low, high), other.raw(low, high)
        if left == right:
            continue
        at = next((at for at in range(min(len(left), len(right))) if left[at] != right[at]), len(right))
        around = next((found for found in one.records if found.place <= low + at < found.end), None)
        where = f"byte {low + at - around.place} of the record at {around.place}" if around else "no record"
        yield f"log: from offset {low + at} on ({where}): {left[at : at + 16].hex()} and {right[at : at + 16].hex()}"
        return


def _queue_differences(
    master: Path, copy: Path, records: list[Found], begin: int, end: int, deleted: frozenset[str]
) -> list[str]:
    one, other = Queues.read(master), Queues.read(copy)
    found: list[str] = []
    expected: dict[QueueName, dict[int, Found]] = {}
    for record in records:
        if enters_queue(record.record.sys_flag) and record.record.topic not in deleted:
            expected.setdefault(record.queue, {})[record.record.queue_offset] = record
    for queue in sorted({*one.entries, *other.entries, *expected}):
        if queue[0] in deleted:
            continue
        wanted = expected.get(queue, {})
        both = [("master", one.between(queue, begin, end)), ("copy", other.between(queue, begin, end))]
        for name, entries in both:
            found += _wrong_entries(f"{name}'s queue {queue[0]}-{queue[1]}", entries, wanted)
        unequal = [
            number
            for number in both[0][1].keys() & both[1][1].keys()
            if both[0][1][number] != both[1][1][number]
        ]
        found += [
            f"queue {queue[0]}-{queue[1]} at {number}: {both[0][1][number]} and {both[1][1][number]}"
            for number in sorted(unequal)[:_SHOWN]
        ]
    return found


def _wrong_entries(name: str, entries: dict[int, Entry], wanted: dict[int, Found]) -> Iterator[str]:
    missing = sorted(wanted.keys() - entries.keys())
    if missing:
        yield f"{name}: {len(missing)} of {len(wanted)} entries are missing, the first at {missing[0]}"
    more = sorted(entries.keys() - wanted.keys())
    if more:
        yield f"{name}: {len(more)} entries without a record, the first at {more[0]}: {entries[more[0]]}"
    shown = 0
    for number in sorted(entries.keys() & wanted.keys()):
        record, entry = wanted[number], entries[number]
        code = entry[2] if record.tags_code is None else record.tags_code
        if entry != (record.place, record.size, code) and shown < _SHOWN:
            shown += 1
            yield f"{name} at {number}: {entry}, the record wants {(record.place, record.size, code)}"


def _index_differences(
    master: Path,
    copy: Path,
    records: list[Found],
    begin: int,
    end: int,
    slots: int,
    deleted: frozenset[str],
) -> list[str]:
    wanted = {
        (key_hash(record.record.topic, key), record.place): (record.record.topic, key)
        for record in records
        if enters_index(record.record.sys_flag) and record.record.topic not in deleted
        for key in record.keys
    }
    found: list[str] = []
    both: list[set[tuple[int, int]]] = []
    for name, folder in (("master", master), ("copy", copy)):
        answers = [item for item in read_index(folder, slots) if begin <= item[1] < end]
        both.append(set(answers))
        missing = [item for item in wanted if item not in both[-1]]
        if missing:
            topic, key = wanted[missing[0]]
            found.append(
                f"{name}'s index: {len(missing)} of {len(wanted)} keys are missing, "
                f"the first is {key!r} of {topic} at {missing[0][1]}"
            )
    # Brokers of 5.5 index tags as well, so only answers to questions for these keys are compared. A key that is there
    # twice for one record gives that record once.
    hashes = {item[0] for item in wanted}
    for name, extra in (("master", both[0] - both[1]), ("copy", both[1] - both[0])):
        more = {item for item in extra if item[0] in hashes and item not in wanted}
        if more:
            found.append(f"only the {name}'s index has {len(more)} answers, the first at {min(more)[1]}")
    return found


def same(
    master: Path,
    copy: Path,
    *,
    seconds: float = 20.0,
    level: bool = True,
    least: int = 1,
    queues: bool = True,
    index: bool = True,
    slots: int = 1000,
    deleted: frozenset[str] = frozenset(),
) -> Comparison:
    """Compare until there is no difference, and fail with the last ones.

    Args:
        seconds: for how long; 0 looks once, which is right if both brokers are stopped.
        level: whether both logs must end at the same place.
        least: of records that were compared.
    """
    deadline = time.monotonic() + seconds
    while True:
        seen = compare(master, copy, slots=slots, queues=queues, index=index, deleted=deleted)
        good = not seen.differences and seen.records >= least and (seen.level or not level)
        if good:
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"{copy} is not the copy of {master}: {seen}")
        time.sleep(0.1)
