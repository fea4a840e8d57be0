"""The stream of brokers with a controller: a handshake by epochs, then the log with its epochs and what is confirmed.

A slave's log may hold more than the new master's: what the old master had written and nobody else had. The handshake
names the master's epochs, and the slave cuts its log to where both agree. With ``allAckInSyncStateSet`` nothing that
was answered is cut: whoever became master had it.

Epochs alone can lie. A term in which nothing was written leaves no entry at Apache's brokers, so two replicas may have
written different bytes in the same epoch. Therefore the slave also compares its last record with the master's, and if
they differ, it looks in that epoch for the last record that both have and cuts there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence

from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.replication import agreement
from gimbalmq.broker.replication.dialects import MasterLine, SlaveLine
from gimbalmq.broker.replication.epochs import Epochs, common_end, with_ends
from gimbalmq.errors import (
    CopyRefusedError,
    DiskFullError,
    RemoteProtocolError,
    ReplicaRefusedError,
    RequestTimeoutError,
    ResourceShortageError,
    StoreError,
    StoreIOError,
)
from gimbalmq.protocol.ha import LogPiece
from gimbalmq.protocol.ha_epochs import (
    Epoch,
    FromMaster,
    FromSlave,
    MasterHandshake,
    Report,
    SlaveHandshake,
    join_transfers,
    transfer_header,
)
from gimbalmq.rpc.call import Caller
from gimbalmq.store.cutting import CutReport
from gimbalmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

_NO_END = 1 << 62
_HANDSHAKE_SECONDS = 5.0
_NO_EPOCH = Epoch(-1, 0)


class EpochSource:
    """The master's part of one connection.

    Attributes:
        is_learner: the slave never counts as in sync.
    """

    def __init__(
        self,
        store: MessageStore,
        epochs: Epochs,
        own_id: int,
        *,
        is_master: Callable[[], bool],
        confirm: Callable[[], int],
    ) -> None:
        self._store = store
        self._is_master = is_master
        self._epochs = epochs
        self._own_id = own_id
        self._confirm = confirm
        self._packets = FromSlave()
        self._who: SlaveHandshake | None = None

    @property
    def is_learner(self) -> bool:
        return self._who is not None and self._who.is_learner

    def take(self, line: SlaveLine, data: bytes) -> int | None:
        report = None
        for packet in self._packets.feed(data):
            if isinstance(packet, Report):
                if self._who is None:
                    raise RemoteProtocolError("a slave reports before it has said who it is")
                if packet.offset < 0:
                    raise RemoteProtocolError(f"a slave reports {packet.offset} as the end of its log")
                report = packet.offset
            elif self._who is None:
                self._greet(line, packet)
            # One that asks again has not read our answer yet; a second one would be an error to it.
        return report

    def _greet(self, line: SlaveLine, packet: SlaveHandshake) -> None:
        if packet.broker_id == self._own_id:
            raise ReplicaRefusedError(
                f"it says that its id is {packet.broker_id}, which is this master's: one of the two folders is a copy "
                "of the other. Remove brokerIdentity from the slave's folder"
            )
        if not self._is_master():
            raise ReplicaRefusedError("this broker is not the master; the controller tells it who is")
        self._who = packet
        line.slave_id = packet.broker_id
        line.write(MasterHandshake(self._store.max_commitlog_offset, self._epochs.entries).encode())

    def begin(self, report: int) -> int:
        """A slave without any data gets the whole log, or our last file if it wants no more."""
        if report:
            return report
        begin, end = self._store.min_commitlog_offset, self._store.max_commitlog_offset
        if self._who is not None and self._who.from_last_file:
            return max(end - end % self._store.log.segments.size, begin)
        return begin

    def packet_end(self, offset: int) -> int:
        """A packet belongs to one epoch."""
        now = self._epochs.at(offset)
        if now is None:
            # It was written before there was a controller.
            first = self._epochs.entries[0] if self._epochs.entries else None
            return _NO_END if first is None else first.start
        following = self._epochs.after(now.epoch)
        return _NO_END if following is None else following.start

    def head(self, offset: int, size: int) -> bytes:
        epoch = self._epochs.at(offset)
        if epoch is None:
            epoch = self._epochs.entries[0] if self._epochs.entries else _NO_EPOCH
        return transfer_header(size, offset, epoch, self._confirm())


class EpochCopy:
    """The slave's part of one connection.

    Args:
        master: the ordinary address of the master that is copied.
        settled: returns when a cut that an earlier connection has begun is done.
        cut: cuts the store's log and says what is lost.
        last_common: finds the end of the last record that our log has in common with a master's.
        confirmed: called with what the master says is confirmed, when we have the bytes that came with it.
        noted: called when there is a new epoch to be saved.
        is_saved: whether all epochs that were noted are in the file.
    """

    def __init__(
        self,
        store: MessageStore,
        epochs: Epochs,
        own_id: int,
        live: LiveConfig,
        caller: Caller,
        master: Callable[[], str],
        *,
        settled: Callable[[], Awaitable[None]],
        cut: Callable[[int], Awaitable[CutReport]],
        last_common: Callable[[str], Awaitable[int]],
        confirmed: Callable[[int], None],
        noted: Callable[[], None],
        is_saved: Callable[[], bool],
    ) -> None:
        self._store = store
        self._epochs = epochs
        self._own_id = own_id
        self._live = live
        self._caller = caller
        self._master = master
        self._settled = settled
        self._cut = cut
        self._last_common = last_common
        self._confirmed = confirmed
        self._noted = noted
        self._is_saved = is_saved
        self._packets = FromMaster()
        self._answer: asyncio.Future[MasterHandshake] = asyncio.get_running_loop().create_future()
        self._is_open = False
        self._notes_epoch = False

    @property
    def may_report(self) -> bool:
        """Bytes of a new epoch do not count before the epoch is in the file.

        If our process ended with only one of both, these bytes would count to the epoch before. A master that has lost
        power would take us for one that has less, and the next one would have us cut them.
        """
        return not self._notes_epoch and self._is_saved()

    async def open(self, line: MasterLine) -> None:
        config = self._live.now
        hello = SlaveHandshake(self._own_id, config.sync_from_last_file, config.async_learner)
        line.write(hello.encode())
        try:
            async with asyncio.timeout(_HANDSHAKE_SECONDS):
                answer = await self._answer
        except TimeoutError:
            raise RequestTimeoutError(
                f"the master {self._master()} did not answer our handshake within {_HANDSHAKE_SECONDS:g} s; "
                "is it a broker with a controller (enableControllerMode)?"
            ) from None
        line.master_end = answer.end
        await self._agree(answer)
        self._is_open = True
        line.write(self.report(self._store.received_offset))

    def feed(self, data: bytes) -> Iterator[LogPiece]:
        for packet in join_transfers(self._packets.feed(data)):
            if isinstance(packet, MasterHandshake):
                if self._answer.done():
                    raise RemoteProtocolError("the master answers our handshake twice")
                self._answer.set_result(packet)
                continue
            if not self._is_open:
                raise RemoteProtocolError("the master sends its log before we have said where ours ends")
            if packet.offset >= 0:  # Apache's master says -1 while it does not know where to begin
                self._notes_epoch = packet.epoch.epoch > self._epochs.last_epoch
                yield LogPiece(packet.offset, memoryview(packet.data))
            if packet.epoch.epoch > self._epochs.last_epoch and self._epochs.append(packet.epoch):
                self._noted()
            self._notes_epoch = False
            self._confirmed(min(packet.confirm, self._store.max_commitlog_offset))

    def report(self, end: int) -> bytes:
        return Report(end).encode()

    # --- up to where we agree ----------------------------------------------------------------

    async def _agree(self, answer: MasterHandshake) -> None:
        """Cuts our log to where it is the master's.

        Raises:
            CopyRefusedError: they have nothing in common, or the master has deleted what we need.
            TransportError, ResponseError: the master could not be asked.
        """
        store, epochs = self._store, self._epochs
        await self._settled()
        known = epochs.entries
        if store.last_record() is None and store.received_offset == 0:
            epochs.cut(0)
        else:
            await self._cut_to_common(answer)
        # A term of which we have no bytes may have no bytes at the master, either, and another one may begin there. The
        # next packet says which. The file must not name it, either: after a crash what comes now would count to it.
        epochs.cut(store.max_commitlog_offset + 1)
        epochs.drop_empty(store.max_commitlog_offset)
        if not epochs.entries and answer.epochs:
            epochs.append(answer.epochs[0])  # packets do not name it if it has no bytes
        if epochs.entries != known:
            self._noted()

    async def _cut_to_common(self, answer: MasterHandshake) -> None:
        store, known = self._store, self._epochs.entries
        end = store.max_commitlog_offset
        shared = common_end(with_ends(known, end), with_ends(answer.epochs, answer.end))
        if shared is None:
            if known and end > answer.end:
                raise CopyRefusedError(self._nothing_in_common(answer))
        elif shared[1] < end:
            try:
                await self._cut_to(shared[1], f"the master's epoch {shared[0].epoch} ends there")
            except CopyRefusedError:
                # None of our records ends there: it is damaged, or another master has written in this epoch, too.
                await self._cut_to_last_common(answer, shared[0])
                return
        found = await agreement.compare(store, self._caller, self._master())
        if found.verdict is agreement.Verdict.DIFFERENT:
            if shared is None:
                raise CopyRefusedError(self._nothing_in_common(answer))
            await self._cut_to_last_common(answer, shared[0])
            return
        problem = found.problem(self._master())
        if problem is not None:
            raise CopyRefusedError(problem)

    async def _cut_to_last_common(self, answer: MasterHandshake, epoch: Epoch) -> None:
        place = await self._last_common(self._master())
        if place < epoch.start:
            raise CopyRefusedError(self._nothing_in_common(answer))
        await self._cut_to(place, f"epoch {epoch.epoch} has other records there at the master")

    def _nothing_in_common(self, answer: MasterHandshake) -> str:
        ours, theirs = _listed(self._epochs.entries), _listed(answer.epochs)
        return (
            f"our log, of epochs {ours} and {self._store.max_commitlog_offset} bytes, and that of the master "
            f"{self._master()}, of epochs {theirs} and {answer.end} bytes, have no epoch in common: they are not "
            "replicas of each other. If nothing of ours is wanted, stop this broker, empty its folder except for "
            "brokerIdentity, and start it again: it copies everything anew"
        )

    async def _cut_to(self, offset: int, why: str) -> None:
        """Cuts, and says why; a log that cannot be cut there, except for trouble with the disk, is not copied on."""
        log.warning("our log is cut at %d: %s", offset, why)
        try:
            await self._cut(offset)
        except (StoreIOError, DiskFullError, ResourceShortageError):
            raise  # the disk's; it is tried again
        except StoreError as error:
            raise CopyRefusedError(
                f"our log should be cut at {offset}, because {why}, and cannot be: {error}. Empty the folder except "
                "for brokerIdentity, and everything is copied anew"
            ) from error
        self._epochs.cut(offset)
        self._noted()


def _listed(epochs: Sequence[Epoch]) -> str:
    return ", ".join(f"{epoch}-{start}" for epoch, start in epochs) or "none"
