"""The stream with epochs, packet by packet: what a master says to a slave, and what a slave makes of a master."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.broker.replication import agreement
from gimbalmq.broker.replication.agreement import Agreement, Verdict
from gimbalmq.broker.replication.epochs import Epochs
from gimbalmq.broker.replication.switching import EpochCopy, EpochSource
from gimbalmq.errors import RemoteProtocolError, ReplicaRefusedError
from gimbalmq.protocol.ha_epochs import Epoch, FromMaster, MasterHandshake, Report, SlaveHandshake, Transfer
from gimbalmq.store.message_store import MessageStore
from gimbalmq.testing.loop import VirtualClock, run_virtual
from tests.store.helpers import open_store, put


class Line:
    """The other end of a connection."""

    def __init__(self) -> None:
        self.slave_id: int | None = None
        self.master_end = 0
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data


@contextmanager
def store_with(folder: Path, records: int) -> Iterator[MessageStore]:
    store = open_store(folder)
    try:
        for number in range(records):
            put(store, "T", 0, f"message {number}".encode())
        yield store
    finally:
        store.close()


def source(store: MessageStore, *entries: tuple[int, int], master: bool = True) -> EpochSource:
    epochs = Epochs(store.config.root / "epochs")
    for entry in entries:
        assert epochs.append(Epoch(*entry))
    return EpochSource(store, epochs, 1, is_master=lambda: master, confirm=lambda: 77)


def test_a_handshake_is_answered_once_with_all_epochs(tmp_path: Path) -> None:
    with store_with(tmp_path, 3) as store:
        end, line = store.max_commitlog_offset, Line()
        master = source(store, (1, 0), (3, 100))
        hello = SlaveHandshake(2).encode()
        assert master.take(line, hello[:9]) is None and not line.written
        assert master.take(line, hello[9:]) is None
        assert line.slave_id == 2
        answer = MasterHandshake(end, [Epoch(1, 0), Epoch(3, 100)])
        assert list(FromMaster().feed(line.written)) == [answer]
        # Apache's slave asks again if it has not read all of it; a second answer would end the connection.
        assert master.take(line, hello) is None
        assert line.written == answer.encode()
        assert master.take(line, Report(5).encode() + Report(end).encode()) == end


def test_strangers_are_refused(tmp_path: Path) -> None:
    with store_with(tmp_path, 1) as store:
        with pytest.raises(RemoteProtocolError, match="before it has said who it is"):
            source(store, (1, 0)).take(Line(), Report(0).encode())
        with pytest.raises(ReplicaRefusedError, match="Remove brokerIdentity"):
            source(store, (1, 0)).take(Line(), SlaveHandshake(1).encode())
        with pytest.raises(ReplicaRefusedError, match="not the master"):
            source(store, (1, 0), master=False).take(Line(), SlaveHandshake(2).encode())
        with pytest.raises(RemoteProtocolError, match="reports -1"):
            master = source(store, (1, 0))
            master.take(Line(), SlaveHandshake(2).encode() + Report(-1).encode())


def test_where_an_empty_slave_begins(tmp_path: Path) -> None:
    with store_with(tmp_path, 3) as store:
        master = source(store, (1, 0))
        master.take(Line(), SlaveHandshake(2).encode())
        assert master.begin(0) == store.min_commitlog_offset == 0
        assert master.begin(33) == 33
        last = source(store, (1, 0))
        last.take(Line(), SlaveHandshake(2, from_last_file=True).encode())
        end = store.max_commitlog_offset
        assert last.begin(0) == end - end % store.log.segments.size


def test_a_packet_belongs_to_one_epoch(tmp_path: Path) -> None:
    with store_with(tmp_path, 3) as store:
        master = source(store, (2, 50), (3, 100))
        assert master.packet_end(0) == 50, "written before there was a controller"
        assert master.packet_end(50) == master.packet_end(99) == 100
        assert master.packet_end(100) > store.max_commitlog_offset
        for offset, epoch in ((0, (2, 50)), (99, (2, 50)), (100, (3, 100))):
            (packet,) = FromMaster().feed(master.head(offset, 0))
            assert packet == Transfer(offset, Epoch(*epoch), 77)


def copy_of(store: MessageStore, epochs: Epochs, confirmed: list[int]) -> EpochCopy:
    async def settled() -> None: ...

    return EpochCopy(
        store,
        epochs,
        2,
        LiveConfig(BrokerConfig(store_path_root_dir=str(store.config.root))),
        None,  # type: ignore[arg-type]
        lambda: "master",
        settled=settled,
        cut=None,  # type: ignore[arg-type]
        last_common=None,  # type: ignore[arg-type]
        confirmed=confirmed.append,
        noted=lambda: None,
        is_saved=lambda: True,
    )


def test_a_term_without_bytes_gives_way_to_the_masters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else bytes of the master's term would count to ours, and the next master would have us cut them off."""

    async def work(clock: VirtualClock) -> None:
        with store_with(tmp_path, 3) as store:
            store.follow()
            end = store.max_commitlog_offset
            epochs = Epochs(tmp_path / "epochs")
            assert epochs.append(Epoch(1, 0)) and epochs.append(Epoch(2, end))

            async def compare(*_: object) -> Agreement:
                return Agreement(Verdict.CONTINUES, end, 0, end)

            monkeypatch.setattr(agreement, "compare", compare)
            epochs.save()
            copy = copy_of(store, epochs, [])
            copy._noted = epochs.save
            await copy._agree(MasterHandshake(end, [Epoch(1, 0), Epoch(3, end)]))
            after_crash = Epochs(epochs.path)
            after_crash.load(
                end + 100
            )  # bytes of the master's term are on the disk, and that term is not noted yet
            assert list(after_crash.entries) == [(1, 0)]
            copy._is_open = True
            list(copy.feed(Transfer(end, Epoch(3, end), 0).encode()))
            assert list(epochs.entries) == [(1, 0), (3, end)]

    run_virtual(work)


def test_a_slave_takes_bytes_epochs_and_what_is_confirmed(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        with store_with(tmp_path, 0) as store:
            store.follow()
            confirmed: list[int] = []
            epochs = Epochs(tmp_path / "epochs")
            copy = copy_of(store, epochs, confirmed)
            early = Transfer(0, Epoch(1, 0), 0)
            with pytest.raises(RemoteProtocolError, match="before we have said"):
                list(copy.feed(early.encode()))
            hello = MasterHandshake(500, [Epoch(1, 0)])
            assert list(copy.feed(hello.encode())) == []
            with pytest.raises(RemoteProtocolError, match="twice"):
                list(copy.feed(hello.encode()))
            copy._is_open = True
            # Apache's master says -1 while it does not know where to begin.
            assert list(copy.feed(Transfer(-1, Epoch(1, 0), 0).encode())) == []
            assert list(epochs.entries) == [(1, 0)]
            pieces, may_report = [], []
            for piece in copy.feed(Transfer(0, Epoch(4, 60), 900, b"abc").encode()):
                pieces.append(piece)
                may_report.append(copy.may_report)
            assert [(piece.offset, bytes(piece.data)) for piece in pieces] == [(0, b"abc")]
            assert may_report == [False] and copy.may_report, "first the epoch is noted"
            for _ in copy.feed(Transfer(3, Epoch(4, 60), 900, b"def").encode()):
                assert copy.may_report
            assert list(epochs.entries) == [(1, 0), (4, 60)]
            assert confirmed == [0, 0, 0], "never more than we have"

    run_virtual(work)


def test_nothing_is_reported_before_the_epochs_are_in_their_file(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        with store_with(tmp_path, 0) as store:
            copy = copy_of(store, Epochs(tmp_path / "epochs"), [])
            copy._is_saved = lambda: False
            assert not copy.may_report

    run_virtual(work)
