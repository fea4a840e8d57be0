"""One connection of a slave: what is taken in together, and when the master hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from gimbalmq.broker.replication import link as module
from gimbalmq.broker.replication.link import MasterLink
from gimbalmq.protocol.ha import LogPiece
from tests.support import run


class Line(asyncio.Transport):
    """Keeps what is written, and whether it is read from."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.reading = True
        self.kept: int | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.kept = high

    def is_closing(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None:
        self.reading = False


class Store:
    """Owner and dialect in one: every byte is of the log, and at most ``most`` are taken at once."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.most = most
        self.master_end = 0
        self.now = 0.0
        self.may_report = True
        self.taken: list[int] = []
        self.fed: list[int] = []

    @property
    def end(self) -> int:
        return sum(self.taken)

    def feed(self, data: bytes) -> Iterator[LogPiece]:
        self.fed.append(len(data))
        yield LogPiece(self.end, memoryview(data))

    def take(self, piece: LogPiece) -> int:
        assert piece.offset == self.end
        self.taken.append(min(self.most, len(piece.data)))
        return self.taken[-1]

    def took(self, link: MasterLink) -> None:
        link.report(self.end)

    def report(self, end: int) -> bytes:
        return b"%d" % end

    async def open(self, line: object) -> None: ...

    def read_some(self) -> None: ...

    def wrote_some(self) -> None: ...


def linked(store: Store) -> tuple[MasterLink, Line]:
    link, line = MasterLink(store, store), Line()
    link.connection_made(line)
    return link, line


def test_a_small_read_is_reported_at_once() -> None:
    async def work() -> None:
        store = Store()
        link, line = linked(store)
        link.data_received(b"x" * 100)
        assert line.written == [b"100"] and line.reading

    run(work())


def test_large_reads_of_one_turn_are_taken_in_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGE_READ", 100)
    monkeypatch.setattr(module, "_FED_BYTES", 250)

    async def work() -> None:
        store = Store()
        link, line = linked(store)
        for size in (100, 100, 60, 120):
            link.data_received(b"x" * size)
        assert store.taken == []
        await asyncio.sleep(0)
        assert store.fed == store.taken == [260, 120]
        assert line.written == [b"380"] and line.reading

    run(work())


def test_what_the_store_leaves_comes_again_in_later_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TURN_BYTES", 60)

    async def work() -> None:
        store = Store(most=30)
        link, line = linked(store)
        link.data_received(b"x" * 100)
        assert (store.taken, line.written, line.reading) == ([30, 30], [b"60"], False)
        await asyncio.sleep(0)
        assert (store.taken, line.written, line.reading) == ([30, 30, 30, 10], [b"60", b"100"], True)
        assert store.fed == [100]
        link.data_received(b"y" * 5)
        assert line.written[-1] == b"105"

    run(work())


def test_the_end_forgets_what_was_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TURN_BYTES", 1)

    async def work() -> None:
        store = Store(most=30)
        link, _ = linked(store)
        link.data_received(b"x" * 100)
        link.end(None)
        await asyncio.sleep(0)
        assert store.taken == [30] and link.ended.done()

    run(work())


def test_nothing_is_reported_before_the_dialect_allows_it() -> None:
    async def work() -> None:
        store = Store()
        link, line = linked(store)
        store.may_report = False
        link.data_received(b"x" * 100)
        assert line.written == []
        store.may_report = True
        link.data_received(b"x")
        assert line.written == [b"101"]

    run(work())


def test_reports_leave_at_once_and_one_that_could_not_is_made_up_for() -> None:
    async def work() -> None:
        store = Store()
        link, line = linked(store)
        assert line.kept == 0
        link.pause_writing()
        link.data_received(b"x" * 100)
        assert line.written == []
        link.is_open = True
        link.resume_writing()
        assert line.written == [b"100"]

    run(work())
