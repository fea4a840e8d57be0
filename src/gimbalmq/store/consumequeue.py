"""Consume queues: for each topic and queue, 20 bytes per message that point into the commit log.

New entries gather in memory, in the queue's *tail*, and reach their file many at a time. That is
safe because an entry can always be made again from its record: after a crash recovery does so. Ten
thousand topics of eight queues are eighty thousand of these, so a QueueLog is small and file
descriptors are borrowed from one bounded cache.

    entry number   first ......... written .................. max_offset .... next_offset
    kept in        files           tail, readable             tail, of a group not yet committed
"""

from __future__ import annotations

import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

from gimbalmq.errors import LocalProtocolError, StoreError, StoreIOError
from gimbalmq.model.queue_entry import ENTRY, ENTRY_BYTES, FILLER, FILLER_SIZE, Entry
from gimbalmq.model.record import topic_field
from gimbalmq.store.files import (
    OUT_OF_DESCRIPTORS,
    Files,
    is_number,
    store_error,
    sync_file,
    sync_names,
    translated,
)
from gimbalmq.store.syncing import SyncFailed

MAX_QUEUES = 65_536
"""Queue ids are below this; a larger one is a damaged field."""

_MANY_SYNCS = 256
"""So many files are synced by a process of their own, which takes some milliseconds to start."""
_FILES_AT_ONCE = 16
_PAUSE_SECONDS = 0.001
"""After so many files the thread that writes them rests: it takes the interpreter three times for each, so quickly that
the event loop, which gives it away in every write of its own, might wait for many of them."""


def entries_mark(queue: QueueLog, count: int) -> int:
    """What ``count`` entries of a queue add to the store's mark.

    The mark is one number for all queues and their ends. The checkpoint notes it; if the queues found at the next
    start give another one, some of them are gone.
    """
    return crc32(queue.topic_bytes, queue.queue_id) * count


class QueueLog:
    """One consume queue.

    Do not keep one across ``MessageStore.delete_topic``: ask the store again.

    Attributes:
        min_offset: first offset whose message still exists.
        max_offset: first offset that is free.
        gone: its topic was deleted; whoever still has the queue must not write it.
        min_place: where in the log the record of min_offset lies, or less: what is behind it was not deleted.
    """

    __slots__ = (
        "first",
        "gone",
        "magic",
        "max_offset",
        "min_offset",
        "min_place",
        "next_offset",
        "queue_id",
        "tail",
        "topic",
        "topic_bytes",
        "topic_field",
        "written",
    )

    def __init__(self, topic: str, queue_id: int, sibling: QueueLog | None = None) -> None:
        if sibling is None:
            try:
                self.magic, self.topic_field = topic_field(topic)
            except LocalProtocolError as error:
                raise StoreError(str(error)) from error
            self.topic, self.topic_bytes = topic, topic.encode()
        else:  # queues of a topic share its name's forms: eight queues, one copy
            self.magic, self.topic_field = sibling.magic, sibling.topic_field
            self.topic, self.topic_bytes = sibling.topic, sibling.topic_bytes
        self.queue_id = queue_id
        self.first = self.written = 0
        self.min_place = -1
        self.gone = False
        self.min_offset = self.max_offset = self.next_offset = 0
        self.tail = bytearray()

    def __repr__(self) -> str:
        return f"QueueLog({self.topic}-{self.queue_id} {self.min_offset}..{self.max_offset})"


class QueueFiles:
    """The files of all consume queues under one folder."""

    def __init__(self, root: Path, file_bytes: int, files: Files, descriptors: int) -> None:
        self.root = root
        self.file_bytes = file_bytes
        self.per_file = file_bytes // ENTRY_BYTES
        self._files = files
        self._limit = descriptors
        self._open: OrderedDict[tuple[QueueLog, int], int] = OrderedDict()
        self.unsynced: set[str] = set()
        self._aside = threading.Lock()
        self._writing: QueueLog | None = None  # by the thread that holds the lock
        self.cuts = 0
        self.last_entries: dict[QueueLog, Entry] = {}  # as found by load, until recovery is done
        self.damaged = False
        self._name_limit = 0
        # Beside the topics, not among them: Apache's broker takes each folder in there for a topic.
        self._trash = root.with_name(f"{root.name}.deleted")
        self._thrown = 0
        self.has_trash = self._trash.is_dir()

    # --- reading -----------------------------------------------------------------------------

    def read(self, queue: QueueLog, start: int, count: int) -> bytes:
        """Entries from ``start`` on: up to ``count``, fewer at a file's end. None are made up."""
        if start >= queue.written:
            position = (start - queue.written) * ENTRY_BYTES
            return bytes(queue.tail[position : position + count * ENTRY_BYTES])
        if start < queue.first:
            return b""
        within = start % self.per_file
        count = min(count, queue.written - start, self.per_file - within)
        try:
            fd = self._descriptor(queue, start - within)
            return self._files.read_at(fd, count * ENTRY_BYTES, within * ENTRY_BYTES)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise store_error(error, self._path(queue, start - within)) from error

    def iterate(self, queue: QueueLog, start: int, end: int, step: int = 4096) -> Iterator[Entry]:
        """Entries [start, end) across files."""
        while start < end:
            data = self.read(queue, start, min(step, end - start))
            if not data:
                return
            yield from ENTRY.iter_unpack(data)
            start += len(data) // ENTRY_BYTES

    def entry(self, queue: QueueLog, number: int) -> Entry | None:
        data = self.read(queue, number, 1)
        return ENTRY.unpack(data) if len(data) == ENTRY_BYTES else None

    def first_where(self, queue: QueueLog, low: int, high: int, late: Callable[[Entry], bool]) -> int:
        """First number in [low, high) whose entry is ``late``, else high; entries turn late once.

        Those that stand for nothing are not asked about: it is neither true nor false for them.
        """
        end = high
        while low < high:
            middle = (low + high) // 2
            asked, entry = self._first_real(queue, middle, high)
            # if there is none, all that is left in the upper half stands for nothing
            if asked == high or (entry is not None and late(entry)):
                high = middle
            else:
                low = asked + 1
        return self._first_real(queue, low, end)[0]

    def _first_real(self, queue: QueueLog, number: int, end: int) -> tuple[int, Entry | None]:
        """The first entry in [number, end) that stands for a record, else end; None for one that cannot be read."""
        count = 1  # mostly it is the first one
        while number < end:
            data = self.read(queue, number, min(count, end - number))
            if not data:
                return number, None
            for entry in ENTRY.iter_unpack(data):
                if entry[1] != FILLER_SIZE:
                    return number, entry
                number += 1
            count = 4096
        return end, None

    # --- writing -----------------------------------------------------------------------------

    def write_tail(self, queue: QueueLog) -> None:
        """Moves the committed part of the tail to the files.

        Raises:
            OSError: the tail is then kept whole and written again next time.
        """
        count = queue.max_offset - queue.written
        if count <= 0:
            return
        start = queue.written
        done = 0
        while done < count:
            within = (start + done) % self.per_file
            portion = min(count - done, self.per_file - within)
            base = start + done - within
            fd = self._descriptor(queue, base, create=True)
            # a copy: a view kept alive by an error's traceback would forbid the tail to grow
            piece = bytes(queue.tail[done * ENTRY_BYTES : (done + portion) * ENTRY_BYTES])
            self._files.write_at(fd, piece, within * ENTRY_BYTES)
            self.unsynced.add(self._path(queue, base))
            done += portion
        del queue.tail[: count * ENTRY_BYTES]
        queue.written += count

    def write_aside(self, queue: QueueLog, start: int, data: bytes, cuts: int) -> None:
        """Writes entries from number ``start`` on, beside the owner of the descriptors. Any thread, one at a time.

        If the owner writes the same entries meanwhile, both write the same.

        Args:
            cuts: as it was when the entries were copied: what was copied before a cut is not written behind it.
        """
        with self._aside:
            if cuts != self.cuts:
                return
            self._writing = queue
            try:
                done = 0
                while done < len(data) and not queue.gone:
                    number = start + done // ENTRY_BYTES
                    within = number % self.per_file
                    piece = data[done : done + (self.per_file - within) * ENTRY_BYTES]
                    path = self._path(queue, number - within)
                    fd = self._open_file(path, create=True)
                    try:
                        self._files.write_at(fd, piece, within * ENTRY_BYTES)
                    finally:
                        self._files.close(fd)
                    self.unsynced.add(path)
                    done += len(piece)
            finally:
                self._writing = None

    def append(self, queue: QueueLog, queue_offset: int, offset: int, size: int, tags_code: int) -> bool:
        """Adds an entry made again from its record, readable at once; False if it is there already."""
        if queue_offset < queue.next_offset:
            return False
        self.place(queue, queue_offset, offset, size, tags_code)
        queue.max_offset = queue.next_offset
        return True

    def place(self, queue: QueueLog, queue_offset: int, offset: int, size: int, tags_code: int) -> None:
        """Adds an entry that is not there yet; it is readable when ``max_offset`` has moved.

        A queue that begins late (its older files are gone) or has a hole is filled with entries that
        stand for nothing, as Java does, because an entry's place in the file is its number. The caller sees to it
        that the hole is not too large.
        """
        if queue_offset > queue.next_offset:
            if queue.next_offset == queue.first == 0 and not queue.tail:
                queue.first = queue.written = queue_offset - queue_offset % self.per_file
                queue.next_offset = queue.max_offset = queue.first
            queue.tail += FILLER * (queue_offset - queue.next_offset)
        queue.tail += ENTRY.pack(offset, size, tags_code)
        queue.next_offset = queue_offset + 1

    # --- loading and cutting -----------------------------------------------------------------

    def check_name(self, topic: str) -> None:
        """Raises StoreError if the topic cannot be a folder's name here."""
        if not self._name_limit:
            try:
                self._name_limit = os.pathconf(self.root, "PC_NAME_MAX")
            except (OSError, ValueError):
                self._name_limit = 255
        try:
            size = len(topic.encode())
        except UnicodeEncodeError:
            size = 0
        if not size or "/" in topic or "\0" in topic or topic in (".", ".."):
            raise StoreError(f"{topic!r} cannot name a folder")
        if size > self._name_limit:
            raise StoreError(
                f"{topic!r} cannot name a folder: it has {size} bytes, this file system takes {self._name_limit}"
            )

    def load(self, recorded: int, notes: list[str]) -> Iterator[QueueLog]:
        """All queues on disk, their end at the last file's last entry that could be valid.

        What cannot be a queue is left alone; a queue whose files do not fit together is removed, and ``damaged``
        says that it must be made again from the log.

        Args:
            recorded: size of the files as the checkpoint noted it; 0 if it did not.
        """
        with translated(self.root):
            self._files.make_folder(self.root)
            listed = list(self._list_queues(notes))
        self._choose_size([size for _, _, found in listed for _, size in found], recorded, notes)
        sibling: QueueLog | None = None
        for topic, queue_id, found in listed:
            if sibling is not None and sibling.topic != topic:
                sibling = None
            queue = QueueLog(topic, queue_id, sibling)
            sibling = queue
            if self._fits(queue, found, notes):
                self._measure(queue, found)
                yield queue

    def _list_queues(self, notes: list[str]) -> Iterator[tuple[str, int, list[tuple[int, int]]]]:
        with os.scandir(self.root) as entries:
            topics = sorted(entry.name for entry in entries if entry.is_dir())
        for topic in topics:
            try:
                self.check_name(topic)
            except StoreError as error:
                notes.append(f"folder in {self.root} left alone: {error}")
                continue
            with os.scandir(self.root / topic) as entries:
                ids = sorted(int(e.name) for e in entries if is_number(e.name) and e.is_dir())
            for queue_id in ids:
                if queue_id >= MAX_QUEUES:
                    notes.append(f"queue {queue_id} of {topic} left alone: ids are below {MAX_QUEUES}")
                    continue
                found = self._list_files(f"{self.root}/{topic}/{queue_id}")
                if found:
                    yield topic, queue_id, found

    def _choose_size(self, sizes: list[int], recorded: int, notes: list[str]) -> None:
        """The folder's size counts: as the checkpoint noted it, else as most files have it."""
        size = recorded
        if not size:
            likely = Counter(size for size in sizes if size % ENTRY_BYTES == 0)
            size = max(
                likely, key=lambda size: (size == self.file_bytes, likely[size]), default=self.file_bytes
            )
        if size != self.file_bytes:
            notes.append(f"queue files have {size} bytes, not {self.file_bytes}: the folder's size is used")
            self.file_bytes, self.per_file = size, size // ENTRY_BYTES

    def _list_files(self, folder: str) -> list[tuple[int, int]]:
        """(offset, size) of a queue's files, without empty ones at the end that a crash left."""
        with translated(folder), os.scandir(folder) as entries:
            found = sorted((int(e.name), e.stat().st_size) for e in entries if is_number(e.name))
            while found and found[-1][1] == 0:
                self._files.remove(f"{folder}/{found.pop()[0]:020d}")
                self.unsynced.add(f"{folder}/")
        return found

    def _fits(self, queue: QueueLog, found: list[tuple[int, int]], notes: list[str]) -> bool:
        """Whether the files are one queue; mends a last one that a crash left short, removes what is no queue."""
        start = found[0][0]
        wanted = [(start + number * self.file_bytes, self.file_bytes) for number in range(len(found))]
        if found == wanted and start % self.file_bytes == 0:
            return True
        folder = self._folder(queue)
        short = found[:-1] == wanted[:-1] and found[-1][0] == wanted[-1][0] and found[-1][1] < self.file_bytes
        with translated(folder):
            if short and start % self.file_bytes == 0:
                path = self._path(queue, found[-1][0] // ENTRY_BYTES)
                fd = self._files.open(path)
                try:
                    self._files.truncate(fd, self.file_bytes)
                finally:
                    self._files.close(fd)
                self.unsynced.add(path)
                return True
            notes.append(f"files of queue {queue.topic}-{queue.queue_id} do not fit together: made again")
            self._files.remove_folder(folder)
        self.unsynced.add(f"{folder.parent}/")
        self.damaged = True
        return False

    def _measure(self, queue: QueueLog, found: list[tuple[int, int]]) -> None:
        queue.first = found[0][0] // ENTRY_BYTES
        queue.written = queue.first + len(found) * self.per_file
        low = queue.written - self.per_file
        end = self.first_where(queue, low, queue.written, lambda e: e[0] < 0 or e[1] <= 0)
        # while the file is open: recovery asks for the last entry, and opening costs more than reading
        if end > queue.first:
            self.last_entries[queue] = self.entry(queue, end - 1) or (0, 0, 0)
        queue.written = queue.next_offset = queue.max_offset = end

    def file_end(self, queue: QueueLog) -> int:
        """First entry number behind the queue's last file."""
        return -(-queue.written // self.per_file) * self.per_file

    def cut(self, queue: QueueLog, number: int) -> None:
        """Forgets the entries from ``number`` on, in memory and on disk."""
        number = max(number, queue.first)
        base = number - number % self.per_file
        # loading stopped at the last valid entry, but files may go on behind it
        folder = self._folder(queue)
        with translated(folder):
            if folder.is_dir():
                for path in folder.iterdir():
                    if is_number(path.name) and int(path.name) > base * ENTRY_BYTES:
                        self._forget(queue, int(path.name) // ENTRY_BYTES)
                        self._files.remove(path)
                        self.unsynced.add(f"{folder}/")
            if number > base or os.path.exists(self._path(queue, base)):
                fd = self._descriptor(queue, base)
                self._files.truncate(fd, (number - base) * ENTRY_BYTES)
                self._files.truncate(fd, self.file_bytes)
                self.unsynced.add(self._path(queue, base))
        queue.tail.clear()
        queue.written = queue.next_offset = queue.max_offset = number
        queue.min_offset = min(queue.min_offset, number)
        queue.min_place = -1

    def stop_copies(self) -> None:
        """Queues are about to be cut: copies of their entries that another thread has are void."""
        with self._aside:
            self.cuts += 1

    def clear(self, queue: QueueLog) -> None:
        """Forgets all entries and files of a queue, so that it may begin anywhere."""
        for key in [key for key in self._open if key[0] is queue]:
            self._forget(*key)
        folder = self._folder(queue)
        with translated(folder):
            self._files.remove_folder(folder)
        self.unsynced.add(f"{folder.parent}/")
        queue.tail.clear()
        queue.first = queue.written = queue.min_offset = queue.max_offset = queue.next_offset = 0
        queue.min_place = -1

    def correct_min(self, queue: QueueLog, log_min: int) -> None:
        """Moves min_offset to the first entry whose record still exists."""

        low = max(queue.first, queue.min_offset)
        if low == log_min == 0:
            return
        first = self.entry(queue, low) if low < queue.max_offset else None
        if (
            first is None or first[0] < log_min or first[1] == FILLER_SIZE
        ):  # mostly nothing changed: one read, no search
            low = self.first_where(queue, low, queue.max_offset, lambda entry: entry[0] >= log_min)
            first = self.entry(queue, low) if low < queue.max_offset else None
        queue.min_offset = low
        queue.min_place = first[0] if first is not None else -1

    def drop_expired(self, queue: QueueLog) -> bool:
        """Deletes the first file if all its entries lie below min_offset, never the last one; whether it did."""
        end = queue.first + self.per_file
        if queue.gone or end > queue.min_offset or end >= queue.written:
            return False
        path = self._path(queue, queue.first)
        with translated(path):
            self._forget(queue, queue.first)
            self._files.remove(path)
            self.unsynced.add(f"{self._folder(queue)}/")
        queue.first = end
        return True

    def take_unsynced(self) -> set[str]:
        taken, self.unsynced = self.unsynced, set()
        return taken

    def sync(self, paths: set[str]) -> None:
        """Syncs files, and folders (they end with a slash), by name: so it can run beside the descriptors' owner.

        Each by itself: a sync of the whole machine is one call, but it reports no errors. Many of them by another
        process (see ``syncing``). What is left in ``paths`` after an error may not be synced.
        """
        if len(paths) >= _MANY_SYNCS:
            try:
                if self._files.sync_many(paths):
                    paths.clear()
                    return
            except SyncFailed as failure:
                if failure.opened:
                    raise StoreIOError(f"sync of {failure}") from failure
                raise failure.error from failure
        for path in list(paths):
            self._sync_one(path)
            paths.discard(path)

    def _sync_one(self, path: str) -> None:
        try:
            if path.endswith("/"):
                sync_names(self._files, path)
                return
            fd = self._files.open(path)
        except FileNotFoundError:  # its topic was deleted meanwhile
            return
        try:
            sync_file(self._files, fd, path)
        finally:
            self._files.close(fd)

    def remove_topic(self, queues: list[QueueLog], topic: str) -> None:
        gone = set(queues)
        for queue in gone:
            queue.gone = True
        if self._writing in gone:  # another thread is at it; the next one of these it will leave alone
            with self._aside:
                pass
        for key in [key for key in self._open if key[0] in gone]:
            self._files.close(self._open.pop(key))
        folder = self.root / topic
        with translated(folder):
            if folder.is_dir():
                self._throw_away(folder)
        self.unsynced.add(f"{self.root}/")

    def _throw_away(self, folder: Path) -> None:
        """Takes a folder out of the way at once; removing thousands of files would take a second."""
        try:
            if not self._thrown:
                self._files.make_folder(self._trash)
                self._thrown = max(
                    [int(name) for name in os.listdir(self._trash) if is_number(name)], default=0
                )
            self._thrown += 1
            self._files.replace(folder, self._trash / str(self._thrown))
        except OSError:  # no room for a name, or the trash is on another disk
            self._files.remove_folder(folder)
        else:
            self.has_trash = True

    def empty_trash(self) -> None:
        """Removes the files of deleted topics. Any thread, one at a time.

        Raises:
            StoreError: some are left; it can be tried again.
        """
        self.has_trash = False
        try:
            with translated(self._trash):
                for name in os.listdir(self._trash) if self._trash.is_dir() else ():
                    self._files.remove_folder(self._trash / name)
        except StoreError:
            self.has_trash = True
            raise

    def close(self) -> None:
        for fd in self._open.values():
            self._files.close(fd)
        self._open.clear()

    # --- descriptors -------------------------------------------------------------------------

    @property
    def open_descriptors(self) -> int:
        return len(self._open)

    def _descriptor(self, queue: QueueLog, base: int, *, create: bool = False) -> int:
        """The file whose first entry has number ``base``; OSError if there is none."""
        key = (queue, base)
        fd = self._open.get(key)
        if fd is not None:
            self._open.move_to_end(key)
            return fd
        path = self._path(queue, base)
        try:
            fd = self._open_file(path, create)
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS or not self._open:
                raise
            # Somebody else has taken them all. Those of ours that were not used for long do it, too.
            self._close_down_to(len(self._open) // 2)
            fd = self._open_file(path, create)
        self._close_down_to(self._limit - 1)
        self._open[key] = fd
        return fd

    def _close_down_to(self, count: int) -> None:
        while len(self._open) > count:
            self._files.close(self._open.popitem(last=False)[1])

    def _open_file(self, path: str, create: bool) -> int:
        try:
            return self._files.open(path)
        except FileNotFoundError:
            if not create:
                raise
            return self._create(path)

    def _create(self, path: str) -> int:
        folder = os.path.dirname(path)
        try:
            fd = self._files.open(path, create=True)
        except FileNotFoundError:
            self._files.make_folder(folder)
            # not "|=", which would also bind the name again: another thread may have taken the set meanwhile
            self.unsynced.update((f"{os.path.dirname(folder)}/", f"{self.root}/"))
            fd = self._files.open(path, create=True)
        self.unsynced.add(f"{folder}/")
        try:
            self._files.truncate(fd, self.file_bytes)
        except OSError:
            self._files.close(fd)
            self._files.remove(path)
            raise
        return fd

    def _forget(self, queue: QueueLog, base: int) -> None:
        fd = self._open.pop((queue, base), None)
        if fd is not None:
            self._files.close(fd)
        self.unsynced.discard(self._path(queue, base))

    def _folder(self, queue: QueueLog) -> Path:
        return self.root / queue.topic / str(queue.queue_id)

    def _path(self, queue: QueueLog, base: int) -> str:
        # a string: making Path objects would be half the cost of writing a tail
        return f"{self.root}/{queue.topic}/{queue.queue_id}/{base * ENTRY_BYTES:020d}"


class TailCopies:
    """Entries on their way to the files: copied by the queues' owner, written by another thread.

    Attributes:
        failure: why the rest could not be written, None if all was.
    """

    def __init__(self, files: QueueFiles) -> None:
        self._files = files
        self._cuts = files.cuts
        self._copies: list[tuple[QueueLog, int, bytes]] = []
        self._pause = threading.Event()  # never set: a clock for a thread
        self._done = 0
        self.failure: StoreError | None = None

    def __len__(self) -> int:
        return len(self._copies)

    def add(self, queue: QueueLog) -> None:
        count = queue.max_offset - queue.written
        if count > 0 and not queue.gone:
            self._copies.append((queue, queue.written, bytes(queue.tail[: count * ENTRY_BYTES])))

    def write(self) -> None:
        """Any thread; no checkpoint is to end before the owner has heard of it."""
        for number, (queue, start, data) in enumerate(self._copies):
            if number and number % _FILES_AT_ONCE == 0:
                self._pause.wait(_PAUSE_SECONDS)
            try:
                self._files.write_aside(queue, start, data, self._cuts)
            except OSError as error:
                self.failure = store_error(error, f"consume queue of {queue.topic}-{queue.queue_id}")
                return
            self._done += 1

    def written(self) -> Iterator[tuple[QueueLog, int]]:
        """For the owner: takes what was written from the tails; each queue, and how many entries left its memory."""
        for queue, start, data in self._copies[: self._done] if self._cuts == self._files.cuts else ():
            count = len(data) // ENTRY_BYTES
            if queue.written == start and not queue.gone:  # else the owner itself was faster
                del queue.tail[: len(data)]
                queue.written += count
                yield queue, count
