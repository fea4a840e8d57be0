"""What a worker does while it has no task: it pulls what the next micro-batch begins with, and keeps it for its task.

A batch of rows is written into memory that other processes can open (memfd), and a link to it is laid into a folder of
Spark's that all its workers have. The task whose range begins there takes the link away and maps the memory: who takes
it away has it, and nobody else. Whatever goes wrong on the way is no error. The task then pulls itself, and says what
is wrong.

What lies there is bounded for each worker (``pullAheadBytes``) and is given up after some seconds. If the worker ends,
the kernel frees it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import mmap
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import pyarrow as pa

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.model.queues import MessageQueue
from gimbalmq.spark.ahead import Ahead, is_of
from gimbalmq.spark.fetch import PartitionReader
from gimbalmq.spark.options import LEAST_PULL_BYTES, SourceSettings
from gimbalmq.spark.planning import Partition, QueueRange
from gimbalmq.spark.wire import Wire

log = logging.getLogger(__name__)

REST_SECONDS: Final = 0.01
"""A worker that has had no task for so long is taken to have none of this batch any more."""
KEPT_SECONDS: Final = 10.0
"""How long what was pulled waits for its task."""
MOST_HELD: Final = 256
"""Batches that wait for their tasks in one worker: each has a descriptor, which its tasks need, too."""
_MOST_IN_VAIN: Final = 64
_LOOK_SECONDS: Final = 1.0
_WAIT_SECONDS: Final = 0.2
_MEMORY: Final = "gimbalmq-ahead"
_PLACE: Final = b"place"
_STOP: Final = b"stop"


# --- the folder ----------------------------------------------------------------------------------


def here(ahead: Ahead | None) -> Ahead | None:
    """The same with its folder as it is called here; None if this process is not one of that Spark's workers."""
    local = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    if ahead is None or not local or not is_of(ahead.spark):
        return None
    return ahead._replace(folder=os.path.join(local, ahead.folder))


def _place(folder: str, queue: MessageQueue, start: int) -> bytes:
    return repr((folder, tuple(queue), start)).encode()


def _path(folder: str, queue: MessageQueue, start: int) -> str:
    return os.path.join(folder, hashlib.blake2b(_place(folder, queue, start), digest_size=12).hexdigest())


def _query(folder: str) -> str:
    """The folder of a query, which has one for each batch in it."""
    return os.path.dirname(folder)


def _make_folder(folder: str) -> None:
    """Makes the folder of a batch, and removes those of batches that have been read.

    Spark's own folder is not made: if it is gone, Spark has ended, and nobody would remove it again.
    """
    query, number = os.path.split(folder)
    for each in (query, folder):
        with contextlib.suppress(FileExistsError):
            os.mkdir(each, 0o700)
    for other in os.listdir(query):
        if int(other) < int(number) - 1:  # tasks that run now look into the last one
            shutil.rmtree(os.path.join(query, other), ignore_errors=True)


def _begun(folder: str, head: Partition) -> str:
    """The name of the mark that a task has begun to read this: pulling more of it ahead is of no use."""
    return _path(folder, head[0].queue, head[0].start) + ".begun"


def lay(folder: str, batch: pa.RecordBatch, wanted: QueueRange) -> tuple[str, int]:
    """Lays a batch down that covers a range; its link, and what holds its memory."""
    metadata = {_PLACE: _place(folder, wanted.queue, wanted.start), _STOP: str(wanted.end).encode()}
    held = os.memfd_create(_MEMORY, os.MFD_CLOEXEC)
    try:
        with (
            open(held, "wb", closefd=False) as file,
            pa.ipc.new_stream(file, batch.schema.with_metadata(metadata)) as writer,
        ):
            writer.write_batch(batch)
        path = _path(folder, wanted.queue, wanted.start)
        os.symlink(f"/proc/{os.getpid()}/fd/{held}", path)
    except BaseException:
        os.close(held)
        raise
    return path, held


def take(folder: str, wanted: QueueRange) -> tuple[pa.RecordBatch, int] | None:
    """What was laid down for the beginning of a range, and where that ends; None if there is nothing."""
    path = _path(folder, wanted.queue, wanted.start)
    try:
        # A link may outlive what it leads to, and its number may be anything's by then: a terminal's, a large file's.
        if not os.readlink(os.readlink(path)).startswith(f"/memfd:{_MEMORY}"):
            return None
        held = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        os.unlink(path)
        mapped = mmap.mmap(held, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ)
        reader = pa.ipc.open_stream(pa.py_buffer(mapped))
        told = reader.schema.metadata or {}
        if told.get(_PLACE) != _place(folder, wanted.queue, wanted.start):
            return None  # it may be that of another query, with other columns
        batch, stop = reader.read_next_batch(), int(told[_STOP])
    except (OSError, ValueError, KeyError, pa.ArrowException):
        return None
    finally:
        os.close(held)
    if stop <= wanted.end:
        return batch.replace_schema_metadata(None), stop
    if batch.num_rows != stop - wanted.start:
        return None  # which of its rows lie beyond the range only another pull can tell
    return batch.slice(0, wanted.end - wanted.start).replace_schema_metadata(None), wanted.end


def take_head(folder: str, partition: Partition) -> tuple[list[pa.RecordBatch], Partition]:
    """All that was laid down for the beginning of a partition, and what is left of the partition."""
    with contextlib.suppress(OSError, ValueError):
        _make_folder(folder)
        os.close(os.open(_begun(folder, partition), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    taken: list[pa.RecordBatch] = []
    for number, wanted in enumerate(partition):
        left = wanted
        while left.length:
            found = take(folder, left)
            if found is None:
                return taken, (left, *partition[number + 1 :])
            batch, stop = found
            taken.append(batch)
            left = QueueRange(left.queue, stop, left.end)
    return taken, ()


# --- the worker ----------------------------------------------------------------------------------


class Work(NamedTuple):
    """What a task that has ended leaves to its worker."""

    settings: SourceSettings
    names: Sequence[str]
    ahead: Ahead


class _Held(NamedTuple):
    path: str
    memory: int
    size: int
    since: float


class Puller:
    """Pulls ahead in a thread, whenever its process has no task; one for each process."""

    def __init__(self, now: Callable[[], float] = SYSTEM_CLOCK.monotonic) -> None:
        self._now = now
        self._changed = threading.Condition()
        self._turn = 0
        """Counts the tasks that began: pulling ends with the next one."""
        self._work: Work | None = None
        self._pulling = False
        self._thread: threading.Thread | None = None
        self._held: list[_Held] = []
        self._in_vain: deque[str] = deque(maxlen=_MOST_IN_VAIN)
        """Folders of queries whose batches are so far apart that what was pulled had to be given up."""

    def task_begins(self) -> None:
        """Ends pulling; what is being laid down is finished first, because this task may be the one that it is for."""
        with self._changed:
            self._turn += 1
            self._work = None
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._pulling, _WAIT_SECONDS)

    def task_ended(self, work: Work) -> None:
        """Has it done, unless another task begins at once."""
        with self._changed:
            self._work = work
            self._changed.notify_all()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="gimbalmq-ahead", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the machine has no thread to give: the task has done its work
                    self._work = None
                    log.debug("nothing is pulled ahead: %s", error)
                    return
                self._thread = thread

    def wait_until_done(self, seconds: float) -> bool:
        """Whether all that it was told has been pulled or given up within that time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pulling and self._work is None, seconds)

    @property
    def held_bytes(self) -> int:
        return sum(held.size for held in self._held)

    # -- in the thread -----------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._work is None:
                    self._changed.wait(_LOOK_SECONDS)
                turn, work = self._turn, self._work
                if work is not None:
                    if self._changed.wait_for(lambda: self._turn != turn, REST_SECONDS):  # noqa: B023
                        continue
                    self._pulling, self._work = True, None
                elif not self._held:
                    self._thread = None
                    return
            try:
                self._let_go()
                if work is not None:
                    self._pull(work, lambda: self._turn != turn)  # noqa: B023
            except Exception as error:
                log.debug("pulling ahead ended: %s", error)
            finally:
                with self._changed:
                    self._pulling = False
                    self._changed.notify_all()

    def _let_go(self) -> None:
        """Frees what was taken, and what nobody came for."""
        latest = self._now() - KEPT_SECONDS
        kept: list[_Held] = []
        for held in self._held:
            if held.since <= latest:
                with contextlib.suppress(OSError):
                    os.unlink(held.path)
                    query = _query(os.path.dirname(held.path))
                    if query not in self._in_vain:
                        self._in_vain.append(query)
            elif os.path.lexists(held.path):
                kept.append(held)
                continue
            with contextlib.suppress(OSError):
                os.close(held.memory)
        self._held = kept

    def _pull(self, work: Work, over: Callable[[], bool]) -> None:
        if _query(work.ahead.folder) in self._in_vain:
            return
        _make_folder(work.ahead.folder)
        wire = Wire(work.settings.connection)
        # One attempt, and every doubt ends it: the task knows what to do about it, and whom to tell.
        # Several batches must fit, or what was pulled would be more than may be held.
        some = min(work.settings.pull_bytes, max(LEAST_PULL_BYTES, work.settings.pull_ahead_bytes // 8))
        settings = replace(work.settings, fetch_retries=0, fail_on_data_loss=True, pull_bytes=some)
        try:
            for head in work.ahead.heads:
                claim = _path(work.ahead.folder, head[0].queue, head[0].start) + ".claim"
                try:
                    os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
                except FileExistsError:
                    continue  # another worker has it
                reader = PartitionReader(settings, wire, work.ahead.addresses)
                laid, room = self._pull_head(reader, head, work, over)
                if not laid:
                    os.unlink(claim)
                if not room or over():
                    return
        finally:
            wire.close()

    def _pull_head(
        self, reader: PartitionReader, head: Partition, work: Work, over: Callable[[], bool]
    ) -> tuple[int, bool]:
        """Lays down what a partition begins with: how many batches that were, and whether there is room for more."""
        folder, most = work.ahead.folder, work.settings.pull_ahead_bytes
        begun = _begun(folder, head)
        laid = 0
        for wanted in head:
            at = wanted.start
            for batch, stop in reader.placed((wanted,), work.names):
                if self.held_bytes + batch.nbytes > most or len(self._held) >= MOST_HELD:
                    return laid, False
                if os.path.exists(begun):
                    return laid, True
                path, memory = lay(folder, batch, QueueRange(wanted.queue, at, stop))
                self._held.append(_Held(path, memory, batch.nbytes, self._now()))
                at = stop
                laid += 1
                if over():
                    return laid, True
        return laid, True


_pullers: dict[int, Puller] = {}


def process_puller() -> Puller:
    """The one of this process: a forked child has none of its parent's threads."""
    return _pullers.setdefault(os.getpid(), Puller())
