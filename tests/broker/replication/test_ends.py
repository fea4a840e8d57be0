"""Each end of the stream against a peer that says anything: over real sockets."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.broker.replication.dialects import MasterLine
from gimbalmq.broker.replication.follower import State
from gimbalmq.broker.replication.plain import PlainCopy
from gimbalmq.protocol.ha import HEAD_BYTES, encode_head, encode_report
from gimbalmq.transport.network import AsyncioNetwork
from tests.broker.replication.scene import MasterEnd, SlaveEnd, assert_same, fill, log_of, until
from tests.support import run

FILE = 4096


class RawSlave:
    """Says what the test wants it to say."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    async def packet(self) -> tuple[int, bytes]:
        head = await self.reader.readexactly(HEAD_BYTES)
        size = int.from_bytes(head[8:], "big")
        return int.from_bytes(head[:8], "big"), await self.reader.readexactly(size)

    def pause(self) -> None:
        cast(asyncio.Transport, self.writer.transport).pause_reading()

    def go_on(self) -> None:
        cast(asyncio.Transport, self.writer.transport).resume_reading()

    async def ended(self) -> bytes:
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionResetError:
            pass


@asynccontextmanager
async def master_end(
    folder: Path, properties: Mapping[str, object] | None = None, file_bytes: int = FILE
) -> AsyncIterator[MasterEnd]:
    master = MasterEnd(folder / "master", AsyncioNetwork(), SYSTEM_CLOCK, properties, file_bytes=file_bytes)
    await master.start()
    try:
        yield master
    finally:
        await master.stop()


@asynccontextmanager
async def raw_slave(master: MasterEnd) -> AsyncIterator[RawSlave]:
    slave = RawSlave(*await asyncio.open_connection("127.0.0.1", master.source.port))
    try:
        yield slave
    finally:
        await slave.close()


# -- the master's ----------------------------------------------------------------------------


def test_master_is_silent_until_the_first_report_is_whole(tmp_path: Path) -> None:
    async def work() -> None:
        async with master_end(tmp_path, {"haSendHeartbeatInterval": 20}) as master:
            fill(master.store, 3)
            async with raw_slave(master) as slave:
                report = encode_report(0)
                slave.say(report[:5])
                await until(lambda: master.source.replicas)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await slave.reader.read(1)
                assert not master.source.acks.connected
                slave.say(report[5:])
                offset, data = await slave.packet()
                assert offset == 0 and data == log_of(master.store, 0, master.store.max_commitlog_offset)

    run(work())


@pytest.mark.parametrize("start", [1, 100, 700, FILE - 8, FILE, FILE + 1, 2 * FILE])
def test_packets_begin_where_the_slave_says_and_end_with_a_file(start: int, tmp_path: Path) -> None:
    async def work() -> None:
        async with master_end(tmp_path) as master:
            fill(master.store, 40)
            end = master.store.max_commitlog_offset
            async with raw_slave(master) as slave:
                slave.say(encode_report(start))
                at, got = start, b""
                while at < end:
                    offset, data = await slave.packet()
                    assert offset == at and 0 < len(data) <= 700
                    assert offset // FILE == (offset + len(data) - 1) // FILE
                    at, got = at + len(data), got + data
                assert got == log_of(master.store, start, end)

    run(work())


def test_slave_that_has_everything_is_told_so_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with master_end(tmp_path) as master:
            fill(master.store, 3)
            end = master.store.max_commitlog_offset
            async with raw_slave(master) as slave, asyncio.timeout(4):  # sooner than the heartbeats' interval
                slave.say(encode_report(end))
                assert await slave.packet() == (end, b"")

    run(work())


def test_empty_slave_gets_the_last_file(tmp_path: Path) -> None:
    """As with Apache's masters; slaves of ours ask for the rest."""

    async def work() -> None:
        async with master_end(tmp_path) as master:
            fill(master.store, 40)
            end = master.store.max_commitlog_offset
            async with raw_slave(master) as slave:
                slave.say(encode_report(0))
                assert (await slave.packet())[0] == end - end % FILE > 0

    run(work())


def test_merged_reports_count_as_their_last(tmp_path: Path) -> None:
    async def work() -> None:
        async with master_end(tmp_path) as master:
            fill(master.store, 3)
            async with raw_slave(master) as slave:
                slave.say(encode_report(100))
                await slave.packet()
                slave.say(encode_report(150), encode_report(200), encode_report(250)[:4])
                await until(lambda: master.source.replicas[0].acked == 200)
                slave.say(encode_report(250)[4:])
                await until(lambda: master.source.replicas[0].acked == 250)

    run(work())


def beyond(master: MasterEnd) -> int:
    return master.store.max_commitlog_offset + 1


@pytest.mark.parametrize(
    ("reports", "words"),
    [
        ([beyond], "1 bytes that this master does not have"),
        ([lambda _: 100], "ours begins at 4096"),
        ([lambda _: -1], "it is no slave"),
        ([lambda _: int.from_bytes(b"GET / HT", "big")], "this master does not have"),
        ([lambda _: 5000, lambda _: 4999], "has lost what it had confirmed"),
    ],
)
def test_impossible_report_is_refused_and_never_counted(
    reports: list[Callable[[MasterEnd], int]],
    words: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        async with master_end(tmp_path) as master:
            fill(master.store, 40)
            master.store.flush()
            for segment in master.store.log.drop_first(1):
                master.store.log.segments.discard(segment)
            waits = master.source.acks.wait(master.store.max_commitlog_offset, 1)
            async with raw_slave(master) as slave:
                for number, report in enumerate(reports):
                    if number:
                        await slave.packet()
                    slave.say(encode_report(report(master)))
                await slave.ended()
                await until(lambda: not master.source.replicas)
            assert not waits.ended and words in caplog.text
            assert caplog.text.count("is refused") == 1
            # The next one is served.
            async with raw_slave(master) as slave:
                slave.say(encode_report(master.store.max_commitlog_offset))
                assert await waits

    run(work())


def test_report_of_bytes_that_were_never_sent_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with master_end(
            tmp_path, {"haFlowControlEnable": "true", "maxHaTransferByteInSecond": 1000}
        ) as master:
            fill(master.store, 40)
            async with raw_slave(master) as slave:
                slave.say(encode_report(1))
                await slave.packet()
                slave.say(encode_report(master.store.max_commitlog_offset))
                await slave.ended()
            assert "somebody else writes there" in caplog.text

    run(work())


def test_slave_that_reads_nothing_costs_no_memory(tmp_path: Path) -> None:
    async def work() -> None:
        async with master_end(tmp_path, {"haTransferBatchSize": 32768}, 8 << 20) as master:
            fill(master.store, 10)
            async with raw_slave(master) as slave:
                slave.pause()
                slave.say(encode_report(1))
                await until(lambda: master.source.replicas and master.source.replicas[0].sent > 1)
                replica = master.source.replicas[0]
                transport = replica._transport
                assert transport is not None
                for _ in range(12):
                    fill_bytes(master, 1 << 20)
                    await asyncio.sleep(0)
                await until(lambda: not replica._writable)
                assert transport.get_write_buffer_size() <= 256 * 1024 + 32768 + 9 * HEAD_BYTES
                assert replica.sent < master.store.max_commitlog_offset
                # It reads again, and gets the rest.
                slave.go_on()
                end = master.store.max_commitlog_offset
                at = 1
                while at < end:
                    offset, data = await slave.packet()
                    assert offset == at
                    at += len(data)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(work())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def fill_bytes(master: MasterEnd, size: int) -> None:
    group = master.store.group()
    queue = master.store.queue("large", 0)
    for _ in range(size // 3500):
        group.add(queue, b"x" * 3500, b"", 0, 0, 0, 0, b"\x7f\0\0\1\0\0\0\1", 0, 0)
    group.commit()


def test_flow_control_keeps_the_rate(tmp_path: Path) -> None:
    async def work() -> None:
        limits = {"haFlowControlEnable": "true", "maxHaTransferByteInSecond": 20_000}
        async with master_end(tmp_path, limits) as master:
            fill(master.store, 40)
            end = master.store.max_commitlog_offset
            async with raw_slave(master) as slave:
                loop = asyncio.get_running_loop()
                begun = loop.time()
                slave.say(encode_report(1))
                at = 1
                while at < end:
                    offset, data = await slave.packet()
                    at = offset + len(data)
                assert loop.time() - begun > (end / 20_000) * 0.7

    run(work())


@pytest.mark.parametrize(
    ("properties", "admitted"),
    [
        ({}, True),
        ({"haAllowedAddresses": "10.0.0.0/8"}, False),
        ({"haAllowedAddresses": "10.0.0.0/8;127.0.0.1"}, True),
    ],
)
def test_only_allowed_addresses_copy_the_log(
    properties: dict[str, object], admitted: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with master_end(tmp_path, properties) as master:
            fill(master.store, 3)
            async with raw_slave(master) as slave:
                slave.say(encode_report(1))
                if admitted:
                    await slave.packet()
                else:
                    assert await slave.ended() == b"" and not master.source.replicas
            assert ("haAllowedAddresses" in caplog.text) != admitted

    run(work())


@pytest.mark.parametrize(
    ("properties", "host", "admitted"),
    [
        ({}, "10.0.0.9", True),
        ({"authenticationEnabled": "true"}, "10.0.0.9", False),
        ({"authenticationEnabled": "true"}, "127.0.0.1", True),
        ({"authenticationEnabled": "true", "haAllowedAddresses": "10.0.0.9"}, "10.0.0.9", True),
        (
            {"tls.server.mode": "enforcing", "tls.server.certPath": "c", "tls.server.keyPath": "k"},
            "10.0.0.9",
            False,
        ),
        ({"tls.server.mode": "permissive"}, "10.0.0.9", True),
    ],
)
def test_a_log_that_is_not_for_everybody_goes_to_named_machines_only(
    properties: dict[str, object], host: str, admitted: bool, tmp_path: Path
) -> None:
    async def work() -> None:
        async with master_end(tmp_path, properties) as master:
            replica = master.source._new_replica()
            assert master.source._admits(replica, host) == admitted
            assert (replica in master.source.replicas) == admitted

    run(work())


def test_ended_connections_leave_nothing_behind(tmp_path: Path) -> None:
    async def work() -> None:
        async with master_end(tmp_path) as master:
            fill(master.store, 3)
            for _ in range(20):
                async with raw_slave(master) as slave:
                    slave.say(encode_report(1))
                    await slave.packet()
                    assert master.store.appended is not None
                await until(lambda: not master.source.replicas)
            assert master.store.appended is None

    run(work())


# -- the slave's -----------------------------------------------------------------------------


class RawMaster:
    """Sends what the test wants it to send; its ordinary port is a real master's."""

    def __init__(self, true: MasterEnd) -> None:
        self.true = true
        self._writers: list[asyncio.StreamWriter] = []
        self.lines: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def start(self) -> None:
        self.server = await asyncio.start_server(
            lambda reader, writer: self.lines.put_nowait((reader, writer)), "127.0.0.1", 0
        )
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def next_line(self) -> tuple[int, asyncio.StreamReader, asyncio.StreamWriter]:
        """The next connection of the slave, with its first report."""
        reader, writer = await self.lines.get()
        self._writers.append(writer)
        return int.from_bytes(await reader.readexactly(8), "big"), reader, writer

    def packet(self, offset: int, size: int) -> bytes:
        return encode_head(offset, size) + log_of(self.true.store, offset, offset + size)

    async def stop(self) -> None:
        self.server.close()
        await self.server.wait_closed()
        while not self.lines.empty():
            self._writers.append(self.lines.get_nowait()[1])
        for writer in self._writers:
            writer.close()
            try:
                await writer.wait_closed()
            except ConnectionError:
                pass


@asynccontextmanager
async def raw_master(
    folder: Path, properties: Mapping[str, object] | None = None
) -> AsyncIterator[tuple[RawMaster, SlaveEnd]]:
    async with master_end(folder) as true:
        fill(true.store, 40)
        master = RawMaster(true)
        await master.start()
        slave = SlaveEnd(folder / "slave", AsyncioNetwork(), SYSTEM_CLOCK, properties)
        slave.follower.aim(master.address, true.address)
        await slave.follower.start()
        try:
            yield master, slave
        finally:
            await slave.stop()
            await master.stop()


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda end: (end - 100, 100), id="replayed packet"),
        pytest.param(lambda end: (end - 50, 100), id="half replayed packet"),
        pytest.param(lambda end: (end + 1, 100), id="gap of a byte"),
        pytest.param(lambda end: (FILE * 2, 100), id="gap of files"),
        pytest.param(lambda end: (end + 1, 0), id="heartbeat of another place"),
        pytest.param(lambda end: (end - 1, 0), id="heartbeat of a place before"),
    ],
)
def test_packet_of_another_place_is_not_taken(
    wrong: Callable[[int], tuple[int, int]], tmp_path: Path
) -> None:
    async def work() -> None:
        async with raw_master(tmp_path) as (master, slave):
            first, reader, writer = await master.next_line()
            assert first == slave.store.max_commitlog_offset > 0  # the first record was fetched
            writer.write(master.packet(first, 800))
            end = first + 800
            while int.from_bytes(await reader.readexactly(8), "big") < end:
                pass
            writer.write(master.packet(*wrong(end)))
            async with asyncio.timeout(10):  # before silence would end it
                assert len(await reader.read()) % 8 == 0  # the slave has closed
            writer.close()
            again, reader, writer = await master.next_line()
            # What it has of a record that is not whole is given up, and nothing else.
            assert first <= again <= end and again == slave.store.max_commitlog_offset
            size = min(FILE, master.true.store.max_commitlog_offset) - again
            writer.write(master.packet(again, size))
            await until(lambda: slave.store.max_commitlog_offset == again + size)
            assert_same(master.true.store, slave.store)
            writer.close()

    run(work())


def test_empty_slave_reports_what_it_has_asked_for_until_it_has_more() -> None:
    """A report of 0 would say that it has lost something, and ask for the last file only."""

    class Lines:
        said = b""
        master_end = 0

        def write(self, data: bytes) -> None:
            self.said += data

    async def agree() -> int:
        return FILE

    async def work() -> None:
        copy, line = PlainCopy(agree), Lines()
        await copy.open(line)
        assert line.said == encode_report(FILE) == copy.report(0)
        assert copy.report(FILE + 1) == encode_report(FILE + 1)

    run(work())


def test_damaged_bytes_are_refused_by_place(tmp_path: Path) -> None:
    async def work() -> None:
        async with raw_master(tmp_path) as (master, slave):
            first, reader, writer = await master.next_line()
            packet = bytearray(master.packet(first, 800))
            packet[HEAD_BYTES + 90] ^= 0xFF
            writer.write(packet)
            await reader.read()
            writer.close()
            await until(lambda: slave.follower.state is State.REFUSED)
            assert f"commit-log offset {first} " in str(slave.follower.trouble)
            assert slave.store.max_commitlog_offset == slave.store.received_offset == first

    run(work())


def test_port_of_something_else_is_left_alone(tmp_path: Path) -> None:
    async def work() -> None:
        async with raw_master(tmp_path) as (master, slave):
            first, reader, writer = await master.next_line()
            writer.write(b"\xff" * 40)
            await reader.read()
            writer.close()
            await until(lambda: "replication port" in str(slave.follower.trouble))
            assert slave.store.max_commitlog_offset == first

    run(work())


def test_slave_that_cannot_report_goes_on_and_reports_later(tmp_path: Path) -> None:
    """A master that does not read costs the slave no memory."""

    async def work() -> None:
        async with raw_master(tmp_path, {"haSendHeartbeatInterval": 10}) as (master, slave):
            first, reader, writer = await master.next_line()
            end = master.true.store.max_commitlog_offset
            at = first
            while at < end:
                size = min(100, end - at, FILE - at % FILE)
                writer.write(master.packet(at, size))
                at += size
            await until(lambda: slave.store.max_commitlog_offset == end)
            assert_same(master.true.store, slave.store)
            while int.from_bytes(await reader.readexactly(8), "big") < end:
                pass
            writer.close()

    run(work())


def test_nothing_is_reported_before_the_logs_were_compared(tmp_path: Path) -> None:
    async def work() -> None:
        async with raw_master(tmp_path) as (master, slave):
            first, _, writer = await master.next_line()
            assert master.true.asked == [28, 33]
            assert first == len(master.true.store.record_at(0) or b"")
            assert slave.follower.master_end == master.true.store.max_commitlog_offset
            writer.close()
            await master.next_line()
            assert master.true.asked == [28, 33, 28, 33]

    run(work())


def test_what_comes_before_the_slave_notices_that_it_may_copy_is_reported(tmp_path: Path) -> None:
    """Else a send would wait for the slave's next heartbeat."""
    silent = {"haSendHeartbeatInterval": 600_000, "haHousekeepingInterval": 900_000}

    async def work() -> None:
        async with raw_master(tmp_path, silent) as (master, slave):

            class Late(PlainCopy):
                async def open(self, line: MasterLine) -> None:
                    await super().open(line)
                    before = slave.store.received_offset
                    await until(lambda: slave.store.received_offset == before + 800)

            slave.follower.dialect = lambda: Late(slave.follower._agree)
            first, reader, writer = await master.next_line()
            writer.write(master.packet(first, 800))
            async with asyncio.timeout(10):
                assert int.from_bytes(await reader.readexactly(8), "big") == first + 800
            writer.close()

    run(work())
