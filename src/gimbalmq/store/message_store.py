"""MessageStore: the face of the package (Java's ``DefaultMessageStore``).

One thread appends, reads and runs the background steps. Another may only run ``flush``, ``KeyQuery.search``,
``TailCopies.write``, ``empty_trash``, ``reserve_room`` and the functions that the steps return, because these take as
long as the disk pleases. Long work comes in steps (``_steps``), so that the one thread can do other things in between.

What is where, from a message's point of view:

    group.add     built in memory                 nobody sees it
    group.commit  in the commit log's file        readable: log position and max_offset have moved
    flush_queues  its queue entry is on file      (until then in the queue's tail)
    build_index   found by key
    flush         survives loss of power
    checkpoint    recovery need not look at it again
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gimbalmq._clock import Clock
from gimbalmq._steps import Steps, run_through
from gimbalmq.errors import ResourceShortageError, StateError, StoreError, StoreFollowsError, StoreIOError
from gimbalmq.store.append import AppendGroup, IndexItem, KeyRun
from gimbalmq.store.checkpoint import BegunCheckpoint, Checkpoint, Checkpoints
from gimbalmq.store.commitlog import CommitLog
from gimbalmq.store.config import StoreConfig
from gimbalmq.store.consumequeue import MAX_QUEUES, QueueFiles, QueueLog, TailCopies, entries_mark
from gimbalmq.store.cutting import CutReport, Cutting
from gimbalmq.store.deletions import Deletion, add_deletion
from gimbalmq.store.dispatcher import Dispatcher
from gimbalmq.store.expiry import Expiry, Keeper
from gimbalmq.store.files import (
    Files,
    FolderLock,
    disk_usage,
    passes,
    physical_memory,
    store_error,
    translated,
)
from gimbalmq.store.following import Following, LiveDispatcher
from gimbalmq.store.index import KeyIndex
from gimbalmq.store.log_room import LogRoom
from gimbalmq.store.open_mark import OpenMark
from gimbalmq.store.reader import Reader
from gimbalmq.store.reading import StoreReading
from gimbalmq.store.recovery import Recovery
from gimbalmq.store.results import CleanReport, QueryResult, RecoveryReport
from gimbalmq.store.retention import files_to_drop
from gimbalmq.store.tails import QueueTails
from gimbalmq.store.trouble import Trouble

_INDEX_STEP = 512
"""Records indexed in one step: about a millisecond."""
_QUEUES_AT_ONCE = 32
"""Queues written at once if nobody can wait for steps: about a millisecond, too."""
_INDEX_TIMES = 8
"""A commit indexes at most so many times the records that it brings, or a step: few sends do not wait for thousands."""
_MOST_INDEX_BATCHES = 16
"""A commit that finds so many times ``index_pending_limit`` records waiting indexes them, whatever it takes."""


class MessageStore(StoreReading):
    """Messages of all topics in one folder.

    Args:
        config: where and how.
        clock: gives store timestamps.
        files: the file system; tests pass one that fails.
    """

    def __init__(self, config: StoreConfig, clock: Clock, files: Files | None = None) -> None:
        self.config = config
        self._clock = clock
        self._files = files or Files()
        self._lock = FolderLock(config.root)
        self._checkpoint_path = config.root / "checkpoint"
        self.keepers: list[Keeper] = []
        """Asked before the log's files below an offset go: below which offset they may go already."""
        self.appended: Callable[[], None] | None = None
        """Called whenever the log has grown."""
        self._reset()

    def _reset(self) -> None:
        config, files = self.config, self._files
        self.log = CommitLog(
            config.root / "commitlog", config.commitlog_file_bytes, files, config.log_files_open
        )
        self._room = LogRoom(self.log, files)
        self._queue_files = QueueFiles(
            config.root / "consumequeue", config.queue_file_bytes, files, config.queue_file_descriptors
        )
        self._index: KeyIndex | None = None
        if config.message_index_enable:
            self._index = KeyIndex(
                config.root / "index", config.index_slots, config.index_entries, files, self._clock.wall_ms
            )
        memory = config.physical_memory_bytes or physical_memory()
        self._reader = Reader(config, self.log, self._queue_files, int(memory * config.memory_ratio))
        self._topics: dict[str, dict[int, QueueLog]] = {}
        self.trouble = Trouble()
        self._tails = QueueTails(self._queue_files, self.trouble)
        self._checkpoints = Checkpoints(
            self._checkpoint_path, files, self.log, self._queue_files, self._tails, self._index, self.trouble
        )
        self._last_timestamp = 0
        self._loaded = False
        self._takes_groups = False
        self._following: Following | None = None
        self._open_group: AppendGroup | None = None
        self._expiry = Expiry(self.log, self._queue_files, self._index)
        self._mark = OpenMark(config.root, files)
        self.keep_mark = False
        """Whether ``close`` leaves the folder marked as not closed, because nobody has noted yet that it was so."""

    # --- life --------------------------------------------------------------------------------

    def load(self) -> RecoveryReport:
        """Locks the folder, recovers what is in it and makes the store usable.

        Raises:
            StoreLockedError: somebody else has the folder.
            StoreError: the folder cannot be understood, or the disk failed.
        """
        if self._loaded:
            raise StateError("the store is loaded already")
        with translated(self.config.root):
            self._files.make_folder(self.config.root)
        self._lock.acquire()
        try:
            report = RecoveryReport(clean=not self._mark.was_left())
            try:
                self._mark.set()
            except StoreError as error:
                if not passes(error):
                    raise
                self.trouble.write_failed(error)
            with translated(self.config.root):
                self._recover(report)
            self._room.begin()
            self._loaded = self._takes_groups = True
            noted = self._checkpoints.saved.safe_offset
            if not report.clean or report.redispatched or noted != self.log.position:
                try:
                    self.checkpoint()
                except StoreError as error:
                    if not passes(error):
                        raise
            if self.read_only_reason is not None:
                report.notes.append(f"read-only for now: {self.read_only_reason}")
        except BaseException:
            self.abandon()
            raise
        return report

    def _recover(self, report: RecoveryReport) -> None:
        point = self._checkpoints.load()
        known = None if report.clean or point.safe_offset < 0 else point.safe_offset
        report.notes += self.log.segments.load(point.log_file_bytes, known)
        for queue in self._queue_files.load(point.queue_file_bytes, report.notes):
            self._topics.setdefault(queue.topic, {})[queue.queue_id] = queue
        if self._index is not None:
            self._index.load(report.notes)
        if not len(self.log.segments):
            # without a log the rest points nowhere
            for topic in list(self._topics):
                report.notes.append(f"removed the queues of {topic}: there is no commit log")
                self._queue_files.remove_topic(list(self._topics.pop(topic).values()), topic)
            if self._index is not None:
                self._index.forget_behind(0)
            self._note_shorter(report, point)
            return
        dispatcher = Dispatcher(
            self.queue,
            self._forget_topic,
            self._queue_files,
            self._index,
            self.config.delay_levels_ms,
            index_batch=self.config.index_pending_limit,
        )
        recovery = Recovery(self.log, self._queue_files, self._index, point, report)
        recovery.run(lambda: list(self._all_queues()), dispatcher)
        self._note_shorter(report, point)
        self._tails.count(
            self._all_queues(), dispatcher.unwritten
        )  # nothing unwritten, unless the disk is full
        if dispatcher.failure is not None:
            self.trouble.write_failed(dispatcher.failure)
        self._last_timestamp = recovery.last_timestamp
        self.log.segments.keep_from = self.log.flushed
        self._expiry.trimmed_to = self.log.min_offset

    def _note_shorter(self, report: RecoveryReport, point: Checkpoint) -> None:
        report.is_shorter = point.is_end_lost or self.log.position < point.safe_offset
        self._checkpoints.is_end_lost = report.is_shorter

    def forget_shorter(self) -> None:
        """It is noted elsewhere that the log was shorter than it had been; until then every start finds it so.

        Checkpoints say it, which need no room on a full disk. If one cannot be written now, the next one is.
        """
        try:
            self._checkpoints.forget_end_lost()
        except StoreError:
            pass

    def close(self) -> None:
        """Writes and syncs everything, marks the folder as closed properly unless it is told not to, unlocks it.

        Raises:
            StoreError: something could not be written; the next start then recovers the folder.
        """
        if not self._loaded:
            return
        try:
            self.abort_group()
            self.checkpoint()
            try:
                self.empty_trash()
            except StoreError:
                pass  # the next start tries again
            whole = self.trouble.failure is None and self._checkpoints.half_cut is None
            if whole and not self.keep_mark:
                self._mark.remove()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Lets go of the folder as a crash would: nothing is written, the abort marker stays."""
        self._expiry.abandon()
        self.log.close()
        self._queue_files.close()
        if self._index is not None:
            self._index.close()
        self._lock.release()
        self._reset()

    # --- appending ---------------------------------------------------------------------------

    def queue(self, topic: str, queue_id: int) -> QueueLog:
        """The queue, made if there is none; nothing is on disk before its first entry."""
        queues = self._topics.get(topic)
        if queues is None:
            self._queue_files.check_name(topic)
            queues = {}
        queue = queues.get(queue_id)
        if queue is None:
            if not 0 <= queue_id < MAX_QUEUES:
                raise StoreError(f"queue id {queue_id} of {topic}: ids are 0 to {MAX_QUEUES - 1}")
            queue = QueueLog(topic, queue_id, next(iter(queues.values()), None))
            self._topics.setdefault(topic, queues)[queue_id] = queue
        return queue

    def group(self, *, making_room: bool = False) -> AppendGroup:
        """Begins a group; only one at a time.

        Args:
            making_room: what is stored lets files go, so a disk that is too full for others will do.

        Raises:
            DiskFullError, ResourceShortageError, StoreIOError: the store is read-only, for the reason given.
            StoreFollowsError: the store follows a master.
            StateError: not loaded, or another group is open.
        """
        if self.trouble.reason is not None:
            self.trouble.check(making_room=making_room)
        if self._open_group is not None:
            raise StateError("another group is open")
        if not self._takes_groups:
            raise self._why_no_groups()
        group = self._open_group = AppendGroup(self, self._clock.wall_ms())
        return group

    def _why_no_groups(self) -> Exception:
        if self._following is not None:
            return StoreFollowsError("the store copies a master's log and takes no messages of its own")
        return StateError("the store is not loaded")

    def abort_group(self) -> None:
        """Forgets the group that is open, if there is one: for whoever began it and cannot end it any more."""
        if self._open_group is not None:
            self._open_group.abort()

    def group_closed(self) -> None:
        """For AppendGroup only."""
        self._open_group = None

    def committed(
        self, touched: list[QueueLog], index: list[IndexItem | KeyRun] | None, timestamp: int
    ) -> None:
        """For AppendGroup only: the records are in the log; now show them."""
        self._open_group = None
        self._last_timestamp = timestamp
        try:
            if self.appended is not None:  # first of all: slaves have it while we go on
                self.appended()
        finally:  # a queue that were not shown now would never be
            self._show(touched, index)

    def _show(self, touched: list[QueueLog], index: list[IndexItem | KeyRun] | None) -> None:
        limit = self.config.queue_tail_bytes
        tails = self._tails
        try:
            for queue in touched:
                added = queue.next_offset - queue.max_offset
                tails.unwritten += added
                tails.mark += entries_mark(queue, added)
                queue.max_offset = queue.next_offset
                tails.dirty.add(queue)
            for queue in touched:
                if len(queue.tail) > limit:
                    tails.write(queue)
            if index and self._index is not None:
                self._index.add(index)
                self._index_some(self._index, index)
            if tails.unwritten * 20 > self.config.queue_tails_total_bytes:
                tails.write_some(_QUEUES_AT_ONCE)
        except StoreError:
            pass  # noted as read_only_reason; the messages themselves are safe in the log
        except MemoryError:
            self.trouble.write_failed(ResourceShortageError("queue entries or keys: out of memory"))

    def _index_some(self, index: KeyIndex, added: list[IndexItem | KeyRun]) -> None:
        """Keeps the records that wait for the index few, even if the steps that should do it do not keep up."""
        limit = self.config.index_pending_limit
        if index.waiting > limit and not index.waits_for_file:
            count = sum(len(item) if type(item) is KeyRun else 1 for item in added)
            self.build_index(min(limit, max(_INDEX_STEP, _INDEX_TIMES * count)))
        while index.waiting > limit * _MOST_INDEX_BATCHES:
            self.build_index(limit)

    @property
    def read_only_reason(self) -> str | None:
        """Why no messages are taken, None while they are."""
        return self.trouble.reason

    @property
    def trouble_passes(self) -> bool:
        """Whether a store that is read-only may come back without a restart."""
        return self.trouble.passes

    def probe_writable(self) -> bool:
        """Whether groups are taken; tries the disk if they are not because of something that passes."""
        if self.trouble.reason is None:
            return True
        if not self.trouble.passes:
            return False
        failure = self.trouble.failure
        try:
            too_full = self._too_full()
            if failure is None and too_full is not None:
                return False
            self._mark.probe_disk()
        except (OSError, StoreError):
            return False
        if not self.trouble.over(failure, too_full):
            return False
        try:
            self.flush_queues(_QUEUES_AT_ONCE)
            self.build_index(_INDEX_STEP)
        except StoreError:
            return False
        return too_full is None

    # --- following ---------------------------------------------------------------------------

    @property
    def is_following(self) -> bool:
        return self._following is not None

    def follow(self) -> None:
        """From now on the store takes bytes of a master's log (``receive``), and no groups."""
        if not self._loaded or self._open_group is not None:
            raise StateError("a group is open" if self._loaded else "the store is not loaded")
        if self._following is None:
            dispatcher = LiveDispatcher(
                self.queue,
                self._forget_topic,
                self._queue_files,
                self._index,
                self.config.delay_levels_ms,
                self._tails,
                self.committed,
            )
            dispatcher.last_timestamp = self._last_timestamp
            self._following = Following(self.log, dispatcher, self.trouble)
            self._takes_groups = False

    def lead(self) -> None:
        """From now on the store takes groups; of what it has received a record that is not whole is given up.

        Raises:
            StoreIOError: a cut has not ended, so queues lack entries of records that the log has.
        """
        if (half_cut := self._checkpoints.half_cut) is not None:
            raise StoreIOError(
                f"the store cannot lead: the disk stopped a cut of its log at offset {half_cut} half-way. "
                "See what is wrong with the disk, then restart this broker: a start makes its queues whole"
            )
        if self._following is not None:
            self._following.end()
            self._following = None
            self._takes_groups = True

    def _follower(self) -> Following:
        if self._following is None:
            raise StateError("the store leads: only one that follows takes bytes of a log, or is cut")
        return self._following

    @property
    def received_offset(self) -> int:
        """End of the bytes we have: at a store that follows it may lie inside a record."""
        return self.log.position if self._following is None else self._following.received

    def receive(
        self,
        offset: int,
        data: bytes | bytearray | memoryview,
        written: Callable[[], None] = lambda: None,
    ) -> list[QueueLog]:
        """Takes bytes of the master's log; whole records are readable at once. The queues that grew.

        Of many records the last may not be taken, so that a call takes a few milliseconds: ``received_offset`` tells
        where to go on. An empty store begins with them; they must be a file's first ones then.

        Args:
            offset: of the first byte: ``received_offset``.
            written: called when the log has whole records of them, before these get their queue entries.

        Raises:
            OutOfStepError: they are not the next ones; nothing happened.
            DamagedCopyError: they are no log. The records before the damage were taken, and no byte from it on.
            DiskFullError, ResourceShortageError, StoreIOError: nothing of it happened; the store is read-only.
        """
        return self._follower().receive(offset, data, written)

    def forget_partial(self) -> None:
        """Gives up received bytes of a record that is not whole: the rest may come from another master."""
        self._follower().forget_partial()

    def log_bytes(self, offset: int, most: int) -> memoryview:
        """Bytes of the log from ``offset`` on: at most so many, within one file, none at the end. Let go of them soon.

        Raises:
            OutOfStepError: the log begins behind the offset, or ends before it.
        """
        return self.log.bytes_at(offset, most)

    def last_record(self) -> tuple[int, bytes] | None:
        """Where the last whole record lies, and its bytes; None if there is none."""
        place = self.log.last_place()
        data = self.log.record_at(place) if place >= 0 else None
        return None if data is None else (place, data)

    def cut(self, offset: int) -> CutReport:
        """Takes back all records from ``offset`` on, durably; only a store that follows is cut.

        Raises:
            OutOfStepError: the offset is outside the log.
            StoreError: no record begins there, or the disk failed; then it is to be tried again.
        """
        return run_through(self.cut_steps(offset))

    def cut_steps(self, offset: int) -> Steps[CutReport]:
        """``cut`` in steps; nothing may be received meanwhile."""
        follower = self._follower()
        cutting = Cutting(
            self.log,
            self._queue_files,
            self._tails,
            self._index,
            self._checkpoints,
            self._all_queues,
            self.queue,
            self._forget_topic,
            self.config.delay_levels_ms,
        )
        follower.end()
        return (yield from cutting.steps(offset))

    @property
    def reader_limit(self) -> int | None:
        """Readers get only records that end at this offset of the log or before it; None: all."""
        return self._reader.limit

    @reader_limit.setter
    def reader_limit(self, offset: int | None) -> None:
        self._reader.limit = offset

    # --- background --------------------------------------------------------------------------

    def flush(self) -> int:
        """Syncs the commit log; the offset below which it is durable. Any thread.

        Raises:
            StoreIOError: the store is read-only for good: after a failed sync the kernel may have dropped what
                it held, and a second sync would falsely succeed.
            ResourceShortageError: no descriptor to do it with; it can be tried again.
        """
        self.trouble.check_syncs()
        try:
            return self.log.flush()
        except StoreError as error:
            self.trouble.sync_failed(error)
            raise

    @property
    def wants_room(self) -> bool:
        """Whether ``reserve_room`` has something to do."""
        return self._room.wanted

    def reserve_room(self) -> None:
        """Reserves room for the log, so that appends need not wait for the file system. Any thread, one at a time."""
        self._room.reserve()

    @property
    def can_sync(self) -> bool:
        """False once a sync has failed: the next one would claim what is lost."""
        return self.trouble.sync_failure is None

    def flush_queues(self, max_queues: int | None = None) -> int:
        """Writes queue entries that are only in memory to their files; how many queues had some.

        Args:
            max_queues: stop after so many, to keep the caller's loop responsive.

        Raises:
            StoreError: the disk failed; entries stay in memory, the store is read-only.
        """
        return self._tails.write_some(max_queues)

    def build_index(self, limit: int | None = None) -> int:
        """Puts the keys of waiting records into the index; how many records, at most ``limit``.

        Raises:
            StoreError: the disk failed; the records still wait, the store is read-only.
        """
        if self._index is None:
            return 0
        try:
            return self._index.build(limit)
        except OSError as error:
            failure = store_error(error, "key index")
            self.trouble.write_failed(failure)
            raise failure from error

    def query_by_key(self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int) -> QueryResult:
        """Records of the topic with this key (KEYS or UNIQ_KEY) stored in [begin, end], newest first."""
        self.build_index()
        query = run_through(self.query(topic, key, max_num, begin_ms, end_ms))
        while not query.done:
            query.search()
            run_through(query.check())
        return self.answered(query)

    @property
    def queues_in_memory(self) -> int:
        """How many queues have entries that are only in memory."""
        return len(self._tails.dirty)

    def copy_tails(self, least: int = 1) -> Steps[TailCopies]:
        """Copies of entries that are only in memory, for another thread to write; then ``tails_written``.

        Args:
            least: of queues that have at least so many of them.
        """
        return self._tails.copies(least)

    def tails_written(self, copies: TailCopies) -> Steps[None]:
        """Forgets from memory what the copies brought to the files.

        Raises:
            StoreError: not all of it; the rest stays in memory, the store is read-only.
        """
        return self._tails.written(copies)

    def index_waiting(self) -> Steps[None]:
        """``build_index`` in steps, for the records that wait now."""
        left = self._index.waiting if self._index is not None else 0
        while left > 0 and (done := self.build_index(min(left, _INDEX_STEP))):
            left -= done
            yield

    def prepare_index(self) -> Callable[[], None] | None:
        """A function for another thread that makes the next index file, if it will be needed soon.

        The function raises StoreError.
        """
        return self._index.prepare_file() if self._index is not None else None

    def checkpoint(self) -> None:
        """Makes all that is committed durable, queues and index too, and notes it for recovery."""
        run_through(self.checkpoint_steps(self.begin_checkpoint()))()

    def begin_checkpoint(self) -> BegunCheckpoint:
        """A checkpoint of what is committed now. Do not begin another before this one has ended."""
        self.trouble.check_syncs()
        self.log.note_end()
        return self._checkpoints.begin(self._last_timestamp)

    def checkpoint_steps(self, begun: BegunCheckpoint) -> Steps[Callable[[], None]]:
        """The part of ``checkpoint`` for the store's thread; the function returned runs in any one.

        Writes whatever tails nobody has written since it began.
        """
        return self._checkpoints.steps(begun, lambda: self.build_index(_INDEX_STEP), self.flush)

    @property
    def confirm_offset(self) -> int:
        """Up to where all replicas have the log, as the checkpoint notes it; may be set."""
        return self._checkpoints.confirm

    @confirm_offset.setter
    def confirm_offset(self, offset: int) -> None:
        self._checkpoints.confirm = offset

    @property
    def master_flushed_offset(self) -> int:
        """Up to where a slave's master had its log when it began, as the checkpoint notes it; may be set."""
        return self._checkpoints.master_flushed

    @master_flushed_offset.setter
    def master_flushed_offset(self, offset: int) -> None:
        self._checkpoints.master_flushed = offset

    def delete_expired(self, now_ms: int, *, manual: bool = False) -> CleanReport:
        """Removes old files: of the log, then what in queues and index pointed there.

        Also sets or lifts the refusal of writes on an overfull disk.
        """
        if self.can_sync:
            self.flush()  # a file that is not synced is not deleted
        report, remove = run_through(self.expire_steps(now_ms, manual=manual))
        if remove is not None:
            remove()
        self.judge_disk()
        return report

    def expire_steps(
        self, now_ms: int, *, manual: bool = False
    ) -> Steps[tuple[CleanReport, Callable[[], None] | None]]:
        """Forgets old files. The function returned removes them, in any thread; ``judge_disk`` is to follow.

        What an error left undone is done the next time.
        """
        ages = self.log.segments.modified_ms(self.config.delete_files_per_round + 1)
        expired = files_to_drop(ages, now_ms, self._usage(), self.config, manual=manual)
        drop = self._expiry.may_go(expired, self.keepers)
        report = yield from self._expiry.steps(drop, self._all_queues)
        return report, self._expiry.remove if self._expiry.has_forgotten else None

    def judge_disk(self) -> None:
        """Sets or lifts the refusal of writes on an overfull disk."""
        self.trouble.judge(self._too_full())

    def _too_full(self) -> str | None:
        usage = self._usage()
        return f"the disk is {usage:.0%} full" if usage > self.config.disk_reject_ratio else None

    def delete_topic(self, topic: str) -> bool:
        """Forgets a topic's queues; its records stay in the log until it rolls, its files until ``empty_trash``.

        The deletion is a record itself: durable as soon as the log is flushed, and before any message that
        comes later.

        Returns:
            Whether there was anything to forget.

        Raises:
            DiskFullError, StoreIOError: the record could not be written, and nothing happened.
        """
        if self._open_group is not None:
            raise StateError("a group is open")
        if self._following is not None:
            raise self._why_no_groups()
        queues = self._topics.get(topic)
        if queues is None:
            return False
        mark = sum(entries_mark(queue, queue.max_offset) for queue in queues.values())
        if mark:
            with self.group() as group:
                add_deletion(group, Deletion(topic, mark))
        self._forget_topic(topic)
        return True

    def drop_queues(self, topic: str) -> bool:
        """While following a master whose log does not tell of deletions (Apache's): forgets a topic's queues.

        If the whole log has to be read again, they come back, and have to be dropped again.

        Returns:
            Whether there was anything to forget.
        """
        if not self.is_following:
            raise StateError("a store that leads deletes topics by a record of its log")
        return bool(self._forget_topic(topic))

    def _forget_topic(self, topic: str) -> list[QueueLog]:
        queues = list(self._topics.pop(topic, {}).values())
        for queue in queues:
            self._tails.forget(queue)
        if queues:
            self._queue_files.remove_topic(queues, topic)
        return queues

    @property
    def has_trash(self) -> bool:
        """Whether files of deleted topics are still on the disk."""
        return self._queue_files.has_trash

    def empty_trash(self) -> None:
        """Removes files of deleted topics; raises StoreError. Any thread, one at a time."""
        self._queue_files.empty_trash()

    @property
    def files(self) -> Files:
        """The file system, for what else is kept in the folder."""
        return self._files

    def _all_queues(self) -> Iterator[QueueLog]:
        for queues in self._topics.values():
            yield from queues.values()

    def _usage(self) -> float:
        if self.config.disk_usage is not None:
            return self.config.disk_usage()
        with translated(self.config.root):
            return disk_usage(self.config.root)
