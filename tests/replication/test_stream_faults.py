"""The stream of the log is cut, stalled and altered at every kind of place: the copy ends up equal to the master.

Sends of these tests wait for the slave, so what was answered with success is in its log whatever happened to the
connection.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from gimbalmq.broker.replication import follower
from tests.peers.folders import Log
from tests.replication.cable import HEAD_BYTES, REPORT_BYTES, Cut, Packet
from tests.replication.pair import FILE_BYTES, PACKET, Pair, happens, pair
from tests.support import run

SECONDS = 60.0


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two connections: else they grow to 5 s."""
    monkeypatch.setattr(follower, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(follower, "_LONGEST_PAUSE_SECONDS", 0.05)


def report(end: int) -> bytes:
    return struct.pack(">q", end)


async def fault(both: Pair, place: Callable[[], None], *, size: int = 300) -> None:
    """Sets a fault, sends until it has happened, and lets the slave catch up.

    While the slave is away sends are stored, and answered with 11.
    """
    cuts = both.cable.cuts
    place()
    while both.cable.cuts == cuts:
        assert set(await both.send(10, size=size)) <= {0, 11}
    await both.level()
    await both.followed()
    assert await both.send(1) == [0]


@pytest.mark.parametrize("which", ["first", "later"])
def test_a_report_cut_after_any_of_its_bytes_loses_nothing(which: str, tmp_path: Path) -> None:
    """`first` is the report that a connection begins with."""

    async def work() -> None:
        async with pair(tmp_path) as both:
            for passed in range(REPORT_BYTES):

                def cut(end: int, passed: int = passed) -> bytes:
                    raise Cut(report(end)[:passed])

                def place(cut: Callable[[int], bytes] = cut) -> None:
                    both.cable.on_report = cut
                    if which == "first":
                        both.cable.cut()

                await fault(both, place)
            await both.end_and_compare(least=len(both.accepted))

    run(work(), SECONDS)


_PLACES: dict[str, Callable[[Packet], int | None]] = {
    "before the header": lambda packet: 0,
    "after a byte": lambda packet: 1,
    "inside the offset": lambda packet: 5,
    "inside the size": lambda packet: 10,
    "between header and body": lambda packet: HEAD_BYTES if packet.data else None,
    "after a byte of a record": lambda packet: HEAD_BYTES + 1 if packet.data else None,
    "inside a record": lambda packet: HEAD_BYTES + len(packet.data) // 2 if len(packet.data) > 1 else None,
    "before the last byte": lambda packet: HEAD_BYTES + len(packet.data) - 1 if packet.data else None,
    "behind a packet": lambda packet: HEAD_BYTES + len(packet.data) if packet.data else None,
    "at a file's end": lambda packet: (
        HEAD_BYTES + len(packet.data) if packet.data and packet.end % FILE_BYTES == 0 else None
    ),
    "before a file's last byte": lambda packet: (
        HEAD_BYTES + len(packet.data) - 1 if packet.data and packet.end % FILE_BYTES == 0 else None
    ),
}


def test_a_packet_cut_at_any_kind_of_place_loses_nothing(tmp_path: Path) -> None:
    """Records of 3 kB go in several packets, those of 300 bytes several in one."""

    async def work() -> None:
        async with pair(tmp_path) as both:
            for size in (300, 3000):
                for where in _PLACES.values():

                    def cut(packet: Packet, where: Callable[[Packet], int | None] = where) -> bytes:
                        passed = where(packet)
                        if passed is None:
                            return packet.encoded()
                        raise Cut(packet.encoded()[:passed])

                    def place(cut: Callable[[Packet], bytes] = cut) -> None:
                        both.cable.on_packet = cut

                    await fault(both, place, size=size)
            assert max(size for _, size in both.cable.passed.packets) <= PACKET
            await both.end_and_compare(least=len(both.accepted))

    run(work(), SECONDS)


def test_a_cut_inside_a_blank_tail_loses_nothing(tmp_path: Path) -> None:
    """Records of 3 kB leave up to 3 kB of a file empty: several packets that hold no record."""

    async def work() -> None:
        async with pair(tmp_path) as both:
            cuts: list[int] = []

            def cut(packet: Packet) -> bytes:
                if packet.data and not any(packet.data) and len(cuts) < 5 and packet.offset not in cuts:
                    cuts.append(packet.offset)
                    raise Cut(packet.encoded()[: HEAD_BYTES + len(packet.data) // 2], again=True)
                return packet.encoded()

            both.cable.on_packet = cut
            while len(cuts) < 5:
                assert set(await both.send(4, size=3000)) <= {0, 11}
                await both.level()
            await both.end_and_compare(least=len(both.accepted))
            blanks = Log.read(both.folder("slave")).blanks
            assert all(any(begin < place < end for begin, end in blanks) for place in cuts)

    run(work(), SECONDS)


def test_a_cut_after_every_byte_of_a_record_loses_nothing(tmp_path: Path) -> None:
    """Byte by byte: each connection brings one byte more of the log than the one before it did."""

    async def work() -> None:
        async with pair(tmp_path) as both:
            assert await both.send(1) == [0]
            passed = HEAD_BYTES

            def cut(packet: Packet) -> bytes:
                nonlocal passed
                if not packet.data:
                    return packet.encoded()
                passed += 1
                raise Cut(packet.encoded()[:passed], again=passed < HEAD_BYTES + 40)

            both.cable.on_packet = cut
            sending = asyncio.create_task(both.send(8, size=40))
            await both.level()
            assert set(await sending) == {0}
            await both.end_and_compare(least=9)

    run(work(), SECONDS)


def test_a_replayed_packet_is_not_taken_twice(tmp_path: Path) -> None:
    async def work() -> None:
        async with pair(tmp_path) as both:
            replayed = 0

            def twice(packet: Packet) -> bytes:
                nonlocal replayed
                if packet.data and replayed < 5:
                    replayed += 1
                    return packet.encoded() * 2
                return packet.encoded()

            both.cable.on_packet = twice
            while replayed < 5:
                assert set(await both.send(5)) <= {0, 11}
                await both.level()
            await both.end_and_compare(least=len(both.codes))

    run(work(), SECONDS)


def test_a_gap_in_the_stream_ends_the_connection_and_is_filled(tmp_path: Path) -> None:
    async def work() -> None:
        async with pair(tmp_path) as both:
            assert await both.send(1) == [0]
            lost = 0

            def lose(packet: Packet) -> bytes:
                nonlocal lost
                if packet.data and lost < 5:
                    lost += 1
                    return b""
                return packet.encoded()

            both.cable.on_packet = lose
            while lost < 5:
                assert set(await both.send(5)) <= {0, 11}
                await both.level()
            await both.end_and_compare(least=len(both.codes))

    run(work(), SECONDS)


@pytest.mark.parametrize("at", [4, 30, 95])
def test_damaged_bytes_are_not_stored_and_not_acknowledged(at: int, tmp_path: Path) -> None:
    """A byte of the magic, of the place or of the body is flipped on the way. The slave says so, tries again later, and
    has it right then."""

    async def work() -> None:
        async with pair(tmp_path, slaveTimeout=300) as both:
            assert await both.send(1) == [0]
            done = False

            def flip(packet: Packet) -> bytes:
                nonlocal done
                if packet.data and not done:
                    done = True
                    data = bytearray(packet.data)
                    data[at] ^= 0xFF
                    return Packet(packet.offset, bytes(data)).encoded()
                raise Cut(again=True)

            both.cable.on_packet = flip
            before = both.slave.store.received_offset
            (code,) = await both.send(1)
            assert done and code == 12
            assert both.slave.store.received_offset == before
            both.cable.pass_all()
            await both.level()
            await both.followed()
            assert await both.send(1) == [0]
            await both.end_and_compare(least=3)

    run(work(), SECONDS)


@pytest.mark.parametrize("way", ["both ways", "to the slave only"])
def test_a_stalled_connection_is_given_up_and_made_again(way: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with pair(tmp_path) as both:
            assert await both.send(1) == [0]
            connections = both.cable.passed.connections
            if way == "both ways":
                both.cable.open.clear()
            else:
                both.cable.on_packet = lambda packet: b""
            sending = asyncio.create_task(both.send(5))
            await happens(lambda: both.cable.passed.connections > connections, "there was another connection")
            both.cable.pass_all()
            assert set(await sending) == {0}
            await both.end_and_compare(least=6)

    run(work(), SECONDS)


@pytest.mark.parametrize("lie", [1, 1 << 40])
def test_a_report_beyond_the_masters_end_acknowledges_nothing(lie: int, tmp_path: Path) -> None:
    """The slave gets nothing, and says that it has more than there is: no send is answered with success."""

    async def work() -> None:
        async with pair(tmp_path, slaveTimeout=700) as both:
            assert await both.send(1) == [0]
            both.cable.on_packet = lambda packet: b"" if packet.data else packet.encoded()
            both.cable.on_report = lambda end: report(end + lie)
            codes = await both.send(5)
            assert 0 not in codes
            assert both.slave.store.max_commitlog_offset < both.master.store.max_commitlog_offset
            both.cable.pass_all()
            both.cable.cut()
            await both.level()
            await both.followed()
            assert await both.send(1) == [0]
            await both.end_and_compare(least=7)

    run(work(), SECONDS)


def test_a_report_before_the_masters_first_file_acknowledges_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The slave has everything, and says that it lacks what the master has deleted."""

    async def work() -> None:
        async with pair(tmp_path, slaveTimeout=700) as both:
            while both.master.store.max_commitlog_offset < 2 * FILE_BYTES:
                assert set(await both.send(20, size=300)) == {0}
            both.master.store.flush()  # a file that is not synced is not dropped
            (first,) = both.master.store.log.drop_first(1)
            both.master.store.log.segments.discard(first)
            both.cable.on_report = lambda end: report(100)
            both.cable.cut()
            await happens(lambda: f"ours begins at {FILE_BYTES}" in caplog.text, "the report was refused")
            assert 0 not in await both.send(5)
            both.cable.pass_all()
            await both.level()
            await both.followed()
            assert await both.send(1) == [0]

    run(work(), SECONDS)
