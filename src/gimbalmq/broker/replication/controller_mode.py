"""A broker whose role a controller gives: what that takes besides the elections.

It makes the broker a master of a new epoch, or a slave of the one that was elected; it keeps the epochs of the log and
the set of replicas in sync; and it has readers see what is confirmed, and sends wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

from gimbalmq._clock import Clock
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.json_file import TableThread
from gimbalmq.broker.longpoll import LongPoll
from gimbalmq.broker.replication.acknowledging import Acknowledging
from gimbalmq.broker.replication.controller import Controllers
from gimbalmq.broker.replication.doubt import log_end
from gimbalmq.broker.replication.elections import Elections, Progress
from gimbalmq.broker.replication.epochs import Epochs
from gimbalmq.broker.replication.follower import State
from gimbalmq.broker.replication.identity import IdentityFile
from gimbalmq.broker.replication.masters import Master
from gimbalmq.broker.replication.replica import Replica
from gimbalmq.broker.replication.replication import Replication
from gimbalmq.broker.replication.showing import Showing
from gimbalmq.broker.replication.switching import EpochCopy, EpochSource
from gimbalmq.broker.replication.sync_set import SyncSet
from gimbalmq.broker.replication.wholeness import Wholeness
from gimbalmq.broker.writer import Writer
from gimbalmq.errors import RocketMQError, StoreError
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.ha_epochs import Epoch
from gimbalmq.protocol.headers.replication import ExchangeHaInfo
from gimbalmq.protocol.replication_bodies import EpochEntry, EpochTable
from gimbalmq.rpc.call import Caller, ask
from gimbalmq.rpc.controller import Standing
from gimbalmq.store.consumequeue import QueueLog
from gimbalmq.store.cutting import CutReport
from gimbalmq.store.files import Files
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.tasks import Tasks

log = logging.getLogger(__name__)

_FIND_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Between questions to a new master where its log can be copied; the last one again and again."""
_TRIM_SECONDS = 10.0
_TELL_SECONDS = 0.02
_SAVE_AGAIN_SECONDS = 1.0
_WHOLE_SECONDS = 0.25
"""Between looks whether a broker in doubt has all again, and whether a master has become alone."""
_LOST_SECONDS = 0.5
_LOST_LOOKS = 10
"""A slave that has lost its master asks the controller so often in a row, and then in its usual intervals."""


class ControllerMode:
    """Java: ReplicasManager and AutoSwitchHAService.

    Args:
        wholeness: whether this broker may have lost what it had confirmed.
        flush: has the log synced.

    Attributes:
        epochs: of the log.
        elections: the controller's part.
        sync_set: of the master's term, if this broker is the master; None else.
    """

    def __init__(
        self,
        store: MessageStore,
        live: LiveConfig,
        clock: Clock,
        files: Files,
        tables: TableThread,
        caller: Caller,
        replication: Replication,
        acknowledging: Acknowledging,
        writer: Writer,
        long_poll: LongPoll,
        address: str,
        wholeness: Wholeness,
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        config, folder = live.now, Path(live.now.store_path_root_dir)
        self._store = store
        self._live = live
        self._clock = clock
        self._tables = tables
        self._caller = caller
        self._replication = replication
        self._acknowledging = acknowledging
        self._flush = flush
        self._tasks = Tasks("controller mode")
        self._saving = asyncio.Lock()
        self._showing = Showing(long_poll.arrived)
        self._confirm = store.confirm_offset
        """What a slave knows to be confirmed."""
        self._telling: asyncio.TimerHandle | None = None
        self._looks = 0
        self._unsaved = 0
        """Changes of the epochs that are not in the file yet."""
        self._cutting: asyncio.Future[CutReport] | None = None
        self.sync_set: SyncSet | None = None
        self.epochs = Epochs(Path(config.store_path_epoch_file or folder / "epochFileCheckpoint"), files)
        self.epochs.load(store.max_commitlog_offset)
        self._wholeness = wholeness
        self._marks_forgotten = False
        self.elections = Elections(
            Controllers(caller, config.controller_addresses),
            IdentityFile.of(config, files),
            live,
            clock,
            address,
            self,
            self._wholeness,
        )
        replication.source.dialect = self._source_dialect
        replication.follower.dialect = self._copy_dialect
        replication.source.on_report.append(self._reported)
        replication.source.on_leave.append(self._left)
        replication.on_cut.append(self._was_cut)
        replication.in_set = self._is_in_set
        replication.unconfirmed = lambda: 0 if self.sync_set is None else self.sync_set.waiting
        replication.election_trouble = lambda: self.elections.trouble
        writer.hold = self._hold
        # Before this broker has a role nobody knows better than the last checkpoint. What was written before there was
        # a controller is confirmed in any case.
        entries = self.epochs.entries
        before = entries[0].start if entries else store.max_commitlog_offset
        self._limit_readers(min(max(self._confirm, before), store.max_commitlog_offset))

    async def start(self) -> None:
        self._tasks.every(_TRIM_SECONDS, self._trim, "old epochs")
        self._tasks.every(_LOST_SECONDS, self._look_for_master, "a lost master")
        self._tasks.every(_WHOLE_SECONDS, self._note_wholeness, "wholeness")
        if self._wholeness.in_doubt:
            log.warning(
                "the power of this broker's machine was cut, or files of its folder are gone, so it may have lost what "
                "it had confirmed: it cannot be elected before it has been level with a master, or knows that no other "
                "replica has more"
            )
        await self.elections.start()

    async def close(self) -> None:
        await self.elections.close()
        await self._tasks.close()
        if self._wholeness.is_noted:
            self._forget_marks()
        await self._replication.follower.close()
        await self._settled()
        if self._telling is not None:
            self._telling.cancel()
        if self.sync_set is not None:
            self.sync_set.give_up()

    # --- roles -------------------------------------------------------------------------------

    def progress(self) -> Progress:
        end = self._store.max_commitlog_offset
        return Progress(self.epochs.last_epoch, end, self.confirm, log_end(self.epochs.entries, end).epoch)

    @property
    def confirm(self) -> int:
        """Up to where the log is confirmed, as far as this broker knows."""
        return self._confirm if self.sync_set is None else self.sync_set.confirm

    async def lead(self, standing: Standing) -> None:
        replication, store = self._replication, self._store
        epoch = standing.master_epoch
        if replication.roles.is_master and self.sync_set is not None:
            self.epochs.append(Epoch(epoch, store.max_commitlog_offset))
            await self._save_epochs()
            self.sync_set.take(standing.in_sync, standing.set_epoch)
            await replication.become_master(epoch=epoch, wait=True)
            return
        await replication.follower.close()
        await self._settled()
        # Nothing comes any more; what is not a whole record the store gives up when it leads.
        end = store.max_commitlog_offset
        # A term that we only heard of has bytes at another master, perhaps: ours must not count to it.
        self.epochs.cut(end + 1)
        self.epochs.drop_empty(end)
        self.epochs.append(Epoch(epoch, end))
        await self._save_epochs()
        assert self.elections.own_id is not None
        sync_set = SyncSet(self.elections.own_id, _Voters(replication), self._end, self._live, self._clock)
        # The epochs of the log do not tell: a term in which nothing was written may have none, and a file may be lost.
        goes_on = self.elections.standing is None and not standing.is_new
        sync_set.begin(standing.in_sync, standing.set_epoch, store.confirm_offset, goes_on=goes_on)
        sync_set.wish = self.elections.wish
        sync_set.confirmed = self._advanced
        self._acknowledging.in_set = lambda: sync_set.size
        self._acknowledging.confirmed = sync_set.wait
        self.sync_set = self.elections.sync_set = sync_set
        try:
            await replication.become_master(epoch=epoch, wait=True)
        except BaseException:
            self._step_down()
            raise
        self._advanced()

    def _end(self) -> int:
        return self._store.max_commitlog_offset

    async def follow(self, standing: Standing) -> None:
        replication = self._replication
        assert self.elections.own_id is not None
        self._step_down()
        before = self.elections.standing
        if before is None or before.master_address != standing.master_address or replication.roles.is_master:
            replication.master.forget()
        replication.master.only = standing.master_address
        await replication.become_slave(self.elections.own_id, epoch=standing.master_epoch)
        self._tasks.spawn(self._find_master(standing.master_address), "the master's replication port")

    def _look_for_master(self) -> None:
        """Has a slave that has lost its master ask the controller.

        The controller's notice may not come, or not be let in: controllers sign nothing, and a broker may want that.
        """
        if self._replication.roles.is_master or self._replication.follower.is_connected:
            self._looks = 0
        elif self.elections.standing is not None and self._looks < _LOST_LOOKS:
            self._looks += 1
            self.elections.notified()

    async def _note_wholeness(self) -> None:
        """Raises StoreError, and is called again."""
        if not self._store.can_sync:
            await self._wholeness.may_lose()
        elif self._wholeness.in_doubt:
            if self._is_level():
                await self._wholeness.is_whole()
                log.warning("this broker has all that its master has; it can be elected again")
        elif self.sync_set is not None and self.sync_set.is_alone:
            epoch = self.sync_set.epoch
            if self._wholeness.alone_in != epoch:
                # Others may have what was confirmed before; we must not lose it after we have said that none has.
                await self._flush()
                await self._wholeness.is_alone(epoch)
        # A note that found no room at the start is kept by now. It tells of the doubt as long as there is one, and the
        # marks would bring it back after its end.
        if self._wholeness.is_noted and not self._marks_forgotten:
            self._marks_forgotten = True
            await self._tables.run(self._forget_marks)

    def _forget_marks(self) -> None:
        """The file of the note tells the next start what these marks of the folder would tell it."""
        self._store.keep_mark = False
        self._store.forget_shorter()

    def _is_level(self) -> bool:
        """Whether we are level with the master that the controller named last, and so have all that was answered."""
        follower, standing = self._replication.follower, self.elections.standing
        return (
            follower.is_connected
            and follower.state is State.FOLLOWING
            and follower.target is not None
            and standing is not None
            and follower.target.master_address == standing.master_address
        )

    def _step_down(self) -> None:
        """What waits for confirmation by us will not be confirmed by us."""
        sync_set, self.sync_set, self.elections.sync_set = self.sync_set, None, None
        if sync_set is not None:
            self._confirm = sync_set.confirm
            self._acknowledging.confirmed = None
            self._limit_readers(self._confirm)
            sync_set.give_up()

    async def _find_master(self, address: str) -> None:
        """Asks a new master where its log can be copied, until it says so or there is another one."""
        tries = 0
        while self._replication.master.only == address and not self._replication.roles.is_master:
            try:
                answer = await ask(
                    self._caller, address, RequestCode.EXCHANGE_BROKER_HA_INFO, ExchangeHaInfo(), timeout=1.0
                )
                told = ExchangeHaInfo.from_ext(answer.ext_fields).master_ha_address
            except RocketMQError:
                told = None  # it is not up yet, or gone again; the controller will say
            if self._replication.master.only != address or self._replication.roles.is_master:
                return
            if told:
                self._replication.master.aim(Master(address, told))
                return
            if self._replication.follower.target is not None:
                return  # a name server has told
            await asyncio.sleep(_FIND_PAUSES[min(tries, len(_FIND_PAUSES) - 1)])
            tries += 1

    # --- the stream --------------------------------------------------------------------------

    def _source_dialect(self) -> EpochSource:
        return EpochSource(
            self._store,
            self.epochs,
            self.elections.own_id or -1,
            is_master=lambda: self._replication.roles.is_master,
            confirm=lambda: self.confirm,
        )

    def _copy_dialect(self) -> EpochCopy:
        assert self.elections.own_id is not None
        return EpochCopy(
            self._store,
            self.epochs,
            self.elections.own_id,
            self._live,
            self._caller,
            lambda: self._replication.master.address,
            settled=self._settled,
            cut=self._cut,
            last_common=self._replication.last_common,
            confirmed=self._told_confirm,
            noted=self._noted,
            is_saved=lambda: not self._unsaved,
        )

    async def _cut(self, offset: int) -> CutReport:
        """A cut that has begun is finished, whatever becomes of the connection that wanted it."""
        self._cutting = asyncio.ensure_future(self._replication.cut(offset))
        return await asyncio.shield(self._cutting)

    async def _settled(self) -> None:
        if self._cutting is not None and not self._cutting.done():
            await asyncio.wait([self._cutting])

    def _reported(self, slave: Replica) -> None:
        if self.sync_set is not None and _may_join(slave):
            self.sync_set.reported(slave)

    def _is_in_set(self, slave: Replica) -> bool:
        return self.sync_set is not None and slave.slave_id in self.sync_set.members

    def _left(self, slave: Replica) -> None:
        if self.sync_set is not None:
            self.sync_set.left(slave)

    # --- what is confirmed -------------------------------------------------------------------

    def _told_confirm(self, offset: int) -> None:
        """The master says that the log is confirmed up to ``offset``; for a slave."""
        if self.sync_set is None and offset > self._confirm:
            self._confirm = offset
            self._limit_readers(offset)
            self._showing.confirmed(offset)

    def _advanced(self) -> None:
        """The log is confirmed further; for a master."""
        if self.sync_set is not None:
            self._limit_readers(self.sync_set.confirm)
            self._showing.confirmed(self.sync_set.confirm)
            if self._telling is None and self._replication.source.replicas:
                self._telling = asyncio.get_running_loop().call_later(_TELL_SECONDS, self._tell_slaves)

    def _tell_slaves(self) -> None:
        """Slaves hear what is confirmed with the next packet; if none is due, with a heartbeat."""
        self._telling = None
        for slave in self._replication.source.replicas:
            if slave.sent == self._store.max_commitlog_offset:
                slave.heartbeat()

    def _limit_readers(self, offset: int) -> None:
        self._store.confirm_offset = offset
        leads_alone = self.sync_set is not None and not self._live.now.all_ack_in_sync_state_set
        self._store.reader_limit = None if leads_alone else offset

    def _hold(self, queues: Sequence[QueueLog], end: int) -> bool:
        """Whether pulls that wait for these queues are to be answered later, when the log is confirmed to ``end``."""
        if self.sync_set is not None:
            self.sync_set.advance()
        if self._store.reader_limit is None or self.confirm >= end:
            return False
        self._showing.grown(queues, end)
        return True

    # --- epochs ------------------------------------------------------------------------------

    def _noted(self) -> None:
        """A slave's epochs have changed; it reports nothing before they are in the file."""
        self._unsaved += 1
        self._tasks.spawn(self._save_noted(), "epochs")

    async def _save_noted(self) -> None:
        told = ""
        while True:
            try:
                await self._save_epochs()
                break
            except StoreError as error:
                if str(error) != told:
                    told = str(error)
                    log.warning("%s; tried again, and the master hears of nothing new until then", told)
                await asyncio.sleep(_SAVE_AGAIN_SECONDS)
        self._unsaved -= 1
        self._replication.follower.report()

    async def _save_epochs(self) -> None:
        async with self._saving:
            await self._tables.run(self.epochs.save)

    def _was_cut(self, offset: int) -> None:
        """The log was cut at ``offset``."""
        self._confirm = min(self._confirm, offset)
        self._limit_readers(self._confirm)
        self._showing.forget()

    async def _trim(self) -> None:
        before = self.epochs.entries
        self.epochs.trim(self._store.min_commitlog_offset)
        if self.epochs.entries != before:
            try:
                await self._save_epochs()
            except StoreError as error:
                log.warning("%s; tried again", error)

    def epoch_table(self) -> EpochTable:
        """1007's answer."""
        config, end = self._live.now, self._store.max_commitlog_offset
        entries = self.epochs.entries
        ends = [*(entry.start for entry in entries[1:]), end]
        return EpochTable(
            broker_id=self.elections.own_id or -1,
            broker_name=config.broker_name,
            cluster_name=config.broker_cluster_name,
            epoch_list=[
                EpochEntry(epoch=entry.epoch, start_offset=entry.start, end_offset=stop)
                for entry, stop in zip(entries, ends, strict=False)
            ],
            max_offset=end,
        )


def _may_join(slave: Replica) -> bool:
    dialect = slave.dialect
    return slave.slave_id is not None and isinstance(dialect, EpochSource) and not dialect.is_learner


class _Voters:
    """The connected slaves that may be in the set; looked at anew each time."""

    def __init__(self, replication: Replication) -> None:
        self._replication = replication

    def __iter__(self) -> Iterator[Replica]:
        return (slave for slave in self._replication.source.replicas if _may_join(slave))
