"""A broker's store folder, read where it lies: which bytes of the commit log hold what is asked for.

Nothing here writes, locks or needs the broker to be down. The one question that takes care is where the
log ends: behind the last whole record there may be half of one, zeros, or what an older run left. The
end is found as recovery finds it, walking from a place that is known to be good (the last record a
consume queue points to, our checkpoint) to the first record that is not whole.

A piece of a file is read by the task whose piece its records *start* in. Both neighbours of a border
look for the first true record start at or behind it, so they agree on it whatever lies there.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gimbalmq.errors import ConfigError, DataLossError
from gimbalmq.model.queue_entry import ENTRY, ENTRY_BYTES, FILLER_SIZE, entry_dtype
from gimbalmq.model.record import MAGIC_BLANK, MAGIC_START, check_record
from gimbalmq.spark.decode import find_record_start
from gimbalmq.store.checkpoint import Checkpoint
from gimbalmq.store.dispatcher import read_found
from gimbalmq.store.files import translated

_NAME: Final = re.compile(r"\d{20}")
_BLANK: Final = MAGIC_BLANK.to_bytes(4, "big")
_ZEROS_STEP: Final = 1 << 20
_BISECT_BELOW: Final = 1 << 20
_SAMPLES: Final = 64

CLOCK_SLACK_MS: Final = 10_000
"""Store times ascend along the log but for clocks that were set back: by so much nothing is missed."""

QUEUES_BELOW: Final = 0.5
"""Wanted topics with less than this part of the log's bytes are read through their queue entries.

A wanted record costs about the same either way: a scan takes it where it lies, following entries copies
it out first. But a scan also looks at each record nobody wants, at two thirds of the price. Measured, a
tenth of the log is read six times sooner by its entries, nine tenths equally soon; from half on, a disk's
liking for reading straight on decides.
"""


class LogFile(NamedTuple):
    """One file of a commit log; its first byte has physical offset ``base``."""

    path: str
    base: int
    size: int


@dataclass(frozen=True, slots=True)
class ScanRange:
    """Records that start at bytes [low, high) of a file.

    Attributes:
        end: where the file's valid records end; a record may reach behind ``high``, none behind this.
    """

    path: str
    base: int
    low: int
    high: int
    end: int


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Entries [first, last) of a consume queue whose records lie at physical offsets [low, high)."""

    folder: str
    first: int
    last: int
    low: int
    high: int


class MappedFile:
    """A file as memory, for reading."""

    def __init__(self, path: str) -> None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise DataLossError(
                f"{path} is gone, probably expired in a running broker: run the query again, and set "
                "startingTimestamp so that it keeps clear of the oldest files"
            ) from None
        try:
            with translated(path):
                self.map = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        self.view = memoryview(self.map)

    def close(self) -> None:
        try:
            self.view.release()
            self.map.close()
        except BufferError:
            pass  # someone still looks at a part of it; the last to look away closes it

    def __enter__(self) -> memoryview:
        return self.view

    def __exit__(self, *_: object) -> None:
        self.close()


class StoreFolder:
    """What is known of one store folder, when it is opened.

    Args:
        path: a broker's ``storePathRootDir``, or a folder that holds commit-log files only.

    Attributes:
        files: the commit log's, ascending.
        end: physical offset behind the last valid record.

    Raises:
        ConfigError: there are no commit-log files.
    """

    def __init__(self, path: str) -> None:
        self.root = Path(path)
        folder = self.root / "commitlog"
        if not folder.is_dir():
            folder = self.root
        with translated(folder):
            if not folder.is_dir():
                raise ConfigError("path", path, "no such folder; give a broker's storePathRootDir")
            self.files = _list_files(folder)
        if not self.files and folder == self.root:
            raise ConfigError(
                "path",
                path,
                "neither it nor a folder commitlog in it has commit-log files; "
                "give a broker's storePathRootDir",
            )
        self.clean = not (self.root / "abort").exists()
        self.checkpoint = Checkpoint.load(self.root / "checkpoint")
        self.end = self._find_end()

    # --- topics --------------------------------------------------------------------------------

    def topics(self) -> list[str] | None:
        """Topics that have queues; None if the folder has no consume queues to tell."""
        folder = self.root / "consumequeue"
        if not folder.is_dir():
            return None
        with translated(folder):
            return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())

    def queues(self, topic: str) -> list[Queue]:
        folder = self.root / "consumequeue" / topic
        if not folder.is_dir():
            return []
        with translated(folder):
            ids = sorted(int(name) for name in os.listdir(folder) if name.isdigit())
        found = (Queue(str(folder / str(queue_id)), queue_id) for queue_id in ids)
        return [queue for queue in found if queue.last > queue.first]

    # --- the end of the log --------------------------------------------------------------------

    def _find_end(self) -> int:
        if not self.files:
            return 0
        trusted = self._last_in_queues()
        if self.checkpoint.safe_offset >= 0:
            trusted = max(
                trusted, min(self.checkpoint.safe_offset, self.files[-1].base + self.files[-1].size)
            )
        if trusted > self.files[0].base:
            return self._walk(trusted)
        return self._last_sound()

    def _last_in_queues(self) -> int:
        """Where the last record ends that a queue points to and that is whole; -1: there is none."""
        last: list[tuple[int, int]] = []
        for topic in self.topics() or ():
            for queue in self.queues(topic):
                place, size = queue.entry(queue.last - 1)
                if size != FILLER_SIZE:
                    last.append((place, size))
        for place, size in sorted(last, reverse=True):
            file = self.file_at(place)
            if file is not None:
                with MappedFile(file.path) as view:
                    if _is_whole(view, place - file.base, file.base):
                        return place + size
        return -1

    def _walk(self, start: int) -> int:
        """The first physical offset from ``start`` on where no whole record lies."""
        end = start
        for file in self.files:
            if not file.base <= start < file.base + file.size:
                continue
            with MappedFile(file.path) as view:
                position = start - file.base
                while position + 8 <= file.size and view[position + 4 : position + 8] != _BLANK:
                    if not _is_whole(view, position, file.base):
                        return file.base + position
                    position += int.from_bytes(view[position : position + 4], "big")
            end = start = file.base + file.size
        return end

    def _last_sound(self) -> int:
        """The same without anything to start from: behind the last record that is whole."""
        for file in reversed(self.files):
            mapped = MappedFile(file.path)
            with mapped as view:
                at = mapped.map.rfind(MAGIC_START, 0, _data_end(view))
                while at >= 0:
                    if at >= 4 and _is_whole(view, at - 4, file.base):
                        return file.base + at - 4 + int.from_bytes(view[at - 4 : at], "big")
                    at = mapped.map.rfind(MAGIC_START, 0, at + 2)
        return self.files[0].base

    def file_at(self, offset: int) -> LogFile | None:
        for file in self.files:
            if file.base <= offset < file.base + file.size:
                return file
        return None

    # --- ranges --------------------------------------------------------------------------------

    def scans(self, low_ms: int | None = None, high_ms: int | None = None) -> list[ScanRange]:
        """One range for each file, cut to the times asked for as far as that is sure."""
        found: list[ScanRange] = []
        live = [file for file in self.files if file.base < self.end]
        times = [_first_time(file, self._end_in(file)) for file in live]
        for number, file in enumerate(live):
            # The next file's first record is no older than this file's last.
            following = times[number + 1] if number + 1 < len(live) else None
            if low_ms is not None and following is not None and following < low_ms - CLOCK_SLACK_MS:
                continue
            first = times[number]
            if high_ms is not None and first is not None and first >= high_ms + CLOCK_SLACK_MS:
                continue
            end = self._end_in(file)
            low, high = 0, end
            if low_ms is not None or high_ms is not None:
                with MappedFile(file.path) as view:
                    if low_ms is not None:
                        low = _position_of(view, file.base, end, low_ms - CLOCK_SLACK_MS)
                    if high_ms is not None:
                        high = _position_of(view, file.base, end, high_ms + CLOCK_SLACK_MS, behind=True)
            if low < high:
                found.append(ScanRange(file.path, file.base, low, high, end))
        return found

    def _end_in(self, file: LogFile) -> int:
        return min(file.size, self.end - file.base)

    def queues_end(self) -> int:
        """Physical offset below which every record has its queue entries on disk."""
        if self.clean:
            return self.end
        if self.checkpoint.safe_offset >= 0:
            return min(self.checkpoint.safe_offset, self.end)
        # Java's checkpoint says when, not where.
        sure_ms = self.checkpoint.min_ms
        for file in reversed([file for file in self.files if file.base < self.end]):
            with MappedFile(file.path) as view:
                found = _time_at(view, file.base, self._end_in(file), 0)
                if found is not None and found[1] < sure_ms:
                    return file.base + _position_of(
                        view, file.base, self._end_in(file), sure_ms - CLOCK_SLACK_MS
                    )
        return self.files[0].base if self.files else 0


class Queue:
    """One consume queue's files, as they are on disk.

    Attributes:
        first, last: numbers of the entries that are there, ``last`` not among them.
    """

    def __init__(self, folder: str, queue_id: int) -> None:
        self.folder = folder
        self.queue_id = queue_id
        with translated(folder):
            names = sorted(name for name in os.listdir(folder) if _NAME.fullmatch(name))
            sizes = [os.stat(f"{folder}/{name}").st_size for name in names]
        self._files = [
            (f"{folder}/{name}", int(name) // ENTRY_BYTES, size // ENTRY_BYTES)
            for name, size in zip(names, sizes, strict=True)
            if size >= ENTRY_BYTES
        ]
        self.first = self.last = 0
        if self._files:
            self.first = self._files[0][1]
            _, start, count = self._files[-1]
            self.last = self._first_where(start, start + count, lambda place, size: place < 0 or size <= 0)

    def _first_where(self, low: int, high: int, late: Callable[[int, int], bool]) -> int:
        """The first number in [low, high) whose entry is ``late``, else high; entries turn late once."""
        with self._reading() as entry:
            while low < high:
                middle = (low + high) // 2
                if late(*entry(middle)):
                    high = middle
                else:
                    low = middle + 1
        return low

    def entry(self, number: int) -> tuple[int, int]:
        """Place and size of the record an entry stands for."""
        with self._reading() as entry:
            return entry(number)

    @contextmanager
    def _reading(self) -> Iterator[Callable[[int], tuple[int, int]]]:
        """A function that reads entries, each file opened once."""
        opened: dict[str, int] = {}

        def entry(number: int) -> tuple[int, int]:
            for path, start, count in self._files:
                if start <= number < start + count:
                    fd = opened.get(path)
                    if fd is None:
                        fd = opened[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    raw = os.pread(fd, ENTRY_BYTES, (number - start) * ENTRY_BYTES)
                    return ENTRY.unpack(raw)[:2] if len(raw) == ENTRY_BYTES else (0, 0)
            return 0, 0

        try:
            with translated(self.folder):
                yield entry
        finally:
            for fd in opened.values():
                os.close(fd)

    def between(self, low: int, high: int) -> EntryRange:
        """The entries whose records lie at physical offsets [low, high)."""

        def reaches(place: int, size: int) -> bool:
            return size != FILLER_SIZE and place >= low

        def exceeds(place: int, size: int) -> bool:
            return size != FILLER_SIZE and place >= high

        first = self._first_where(self.first, self.last, reaches)
        last = self._first_where(first, self.last, exceeds)
        return EntryRange(self.folder, first, last, low, high)

    def mean_size(self, wanted: EntryRange) -> float:
        """Bytes of a record, about: of a few entries spread over the range."""
        numbers = np.linspace(wanted.first, wanted.last - 1, min(_SAMPLES, wanted.last - wanted.first))
        with self._reading() as entry:
            sizes = [size for number in numbers if 0 < (size := entry(int(number))[1]) < FILLER_SIZE]
        return sum(sizes) / len(sizes) if sizes else 0.0


def read_entries(wanted: EntryRange) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places and sizes of the records a range of entries stands for."""
    queue = Queue(wanted.folder, 0)
    places: list[NDArray[np.int64]] = []
    sizes: list[NDArray[np.int64]] = []
    for path, start, count in queue._files:
        low, high = max(wanted.first, start), min(wanted.last, start + count)
        if low < high:
            with translated(path):
                found = np.fromfile(path, entry_dtype(), high - low, offset=(low - start) * ENTRY_BYTES)
            places.append(found["place"].astype(np.int64))
            sizes.append(found["size"].astype(np.int64))
    if not places:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    place, size = np.concatenate(places), np.concatenate(sizes)
    real = (place >= wanted.low) & (place < wanted.high) & (size > 0) & (size != FILLER_SIZE)
    return place[real], size[real]


def split_scans(scans: Sequence[ScanRange], piece_bytes: int) -> Iterator[ScanRange]:
    """Ranges of at most ``piece_bytes``, those of a file about equally long."""
    for scan in scans:
        length = scan.high - scan.low
        pieces = -(-length // piece_bytes)
        borders = [scan.low + length * number // pieces for number in range(pieces + 1)]
        for low, high in pairwise(borders):
            yield ScanRange(scan.path, scan.base, low, high, scan.end)


def steps(view: memoryview, scan: ScanRange, step_bytes: int) -> Iterator[tuple[int, int]]:
    """Parts of a range that hold whole records, each about ``step_bytes`` long."""
    data = view[: scan.end]
    low = scan.low
    if low > 0:
        found = find_record_start(data, low, base=scan.base)
        if found is None:
            return  # whoever has the last record before it reads to the end
        low = found
    while low < scan.high:
        border = min(low + step_bytes, scan.high)
        found = scan.end if border >= scan.end else find_record_start(data, border, base=scan.base)
        high = scan.end if found is None else found
        yield low, high
        low = high


# --- looking into files --------------------------------------------------------------------------


def _list_files(folder: Path) -> list[LogFile]:
    found = [
        LogFile(entry.path, int(entry.name), entry.stat().st_size)
        for entry in os.scandir(folder)
        if _NAME.fullmatch(entry.name)
    ]
    return sorted((file for file in found if file.size), key=lambda file: file.base)


def _is_whole(view: memoryview, position: int, base: int) -> bool:
    """Whether recovery would keep the record here: sound, and not fading out into zeros."""
    if check_record(view, position, commitlog_offset=base + position) is not None:
        return False
    found = read_found(view, position, base + position)
    if not (found.properties.endswith(b"\0") or found.topic.endswith("\0")):
        return True
    # The CRC covers the body only: a record torn behind it passes, but ends in what was never written.
    end = position + found.size
    return any(view[end : end + 64])


def _data_end(view: memoryview) -> int:
    """Behind the last byte that is not zero."""
    end = len(view)
    while end > 0:
        start = max(0, end - _ZEROS_STEP)
        chunk = np.frombuffer(view[start:end], np.uint8)
        if chunk.any():
            return start + int(np.flatnonzero(chunk)[-1]) + 1
        end = start
    return 0


def _first_time(file: LogFile, end: int) -> int | None:
    with MappedFile(file.path) as view:
        found = _time_at(view, file.base, end, 0)
    return None if found is None else found[1]


def _time_at(view: memoryview, base: int, end: int, position: int) -> tuple[int, int] | None:
    """Start and store time of the first record at or behind a position."""
    data = view[:end]
    if position == 0 and check_record(data, 0, commitlog_offset=base, check_crc=False) is None:
        start: int | None = 0
    else:
        start = find_record_start(data, position, base=base)
    if start is None:
        return None
    return start, read_found(data, start, base + start).store_timestamp


def _position_of(view: memoryview, base: int, end: int, time_ms: int, *, behind: bool = False) -> int:
    """A position before (or, ``behind``, at or after) the first record that late; close, not exact."""
    low, high = 0, end
    while high - low > _BISECT_BELOW:
        middle = (low + high) // 2
        found = _time_at(view, base, end, middle)
        if found is None or found[1] >= time_ms:
            high = middle
        else:
            low = max(found[0], middle)
    return high if behind else low
