"""The cable between a slave and its master's replication port: it counts bytes, and cuts, stalls or alters them.

It knows the stream's form, so a fault can be put at a place that means something: inside a report, in a packet's
header, in a record, at the end of a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Self, TypeVar

T = TypeVar("T")
Way = Literal["to master", "to slave"]

REPORT_BYTES = 8
HEAD_BYTES = 12
_HEAD = struct.Struct(">qi")
_CHUNK = 64 * 1024


@dataclass
class Packet:
    """A master's packet on its way: the offset it says, and its bytes."""

    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)

    def encoded(self) -> bytes:
        return _HEAD.pack(self.offset, len(self.data)) + self.data


class Cut(Exception):
    """Pass these bytes, then break the connection; the next one is whole, unless all are to be cut."""

    def __init__(self, data: bytes = b"", *, again: bool = False) -> None:
        super().__init__()
        self.data = data
        self.again = again


@dataclass
class Passed:
    """What went through in all connections.

    Attributes:
        connections: how many there were.
        reports: what slaves reported, in order.
        packets: offset and size of each of the master's packets.
    """

    connections: int = 0
    reports: list[int] = field(default_factory=list)
    packets: list[tuple[int, int]] = field(default_factory=list)
    bytes: dict[Way, int] = field(default_factory=lambda: {"to master": 0, "to slave": 0})


class Cable:
    """Forwards connections of slaves to a master's replication port, packet by packet.

    Attributes:
        on_packet: given each whole packet of the master, says which bytes go on; raises Cut to break the connection.
        on_report: the same for each report of a slave.
        open: cleared, nothing passes, and nothing is lost.
        plugged: while False, connections are refused.
    """

    def __init__(self, master: tuple[str, int], *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._master = master
        self._at = (host, port)
        self._listener: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self.passed = Passed()
        self.open = asyncio.Event()
        self.open.set()
        self.plugged = True
        self.cuts = 0
        self.on_packet: Callable[[Packet], bytes] = Packet.encoded
        self.on_report: Callable[[int], bytes] = struct.Struct(">q").pack

    @property
    def address(self) -> str:
        assert self._listener is not None
        host, port = self._listener.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, *self._at)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        self.open.set()
        self.cut()
        for link in list(self._links):
            await link.ended.wait()

    def cut(self) -> None:
        """Breaks every connection, now."""
        for link in list(self._links):
            link.abort()

    def pass_all(self) -> None:
        """No more faults."""
        self.on_packet = Packet.encoded
        self.on_report = struct.Struct(">q").pack
        self.plugged = True
        self.open.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer)
        self._links.add(link)
        try:
            if not self.plugged:
                return
            self.passed.connections += 1
            far_reader, link.far = await asyncio.open_connection(*self._master)
            await asyncio.gather(
                self._reports(reader, link.far, link), self._packets(far_reader, writer, link)
            )
        except (OSError, asyncio.IncompleteReadError):
            pass  # the master is away, or a side has gone
        finally:
            link.abort()
            for side in (writer, link.far):
                if side is not None:
                    with contextlib.suppress(OSError):
                        await side.wait_closed()
            self._links.discard(link)
            link.ended.set()

    async def _reports(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, link: _Link) -> None:
        try:
            while True:
                (end,) = struct.unpack(">q", await source.readexactly(REPORT_BYTES))
                self.passed.reports.append(end)
                await self._forward("to master", self.on_report, end, target)
        finally:
            link.abort()

    async def _packets(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, link: _Link) -> None:
        try:
            while True:
                offset, size = _HEAD.unpack(await source.readexactly(HEAD_BYTES))
                packet = Packet(offset, await source.readexactly(size))
                self.passed.packets.append((offset, size))
                await self._forward("to slave", self.on_packet, packet, target)
        finally:
            link.abort()

    async def _forward(
        self, way: Way, decide: Callable[[T], bytes], what: T, target: asyncio.StreamWriter
    ) -> None:
        await self.open.wait()
        try:
            data = decide(what)
        except Cut as cut:
            self.cuts += 1
            if not cut.again:
                self.pass_all()
            target.write(cut.data)
            await target.drain()
            # What was written is to arrive: an abort would throw it away.
            target.close()
            self.passed.bytes[way] += len(cut.data)
            raise ConnectionResetError from None
        target.write(data)
        self.passed.bytes[way] += len(data)
        await target.drain()


class _Link:
    """One connection through the cable."""

    def __init__(self, near: asyncio.StreamWriter) -> None:
        self.near = near
        self.far: asyncio.StreamWriter | None = None
        self.ended = asyncio.Event()

    def abort(self) -> None:
        """At once, unless it is being closed already: then what was written still goes."""
        for side in (self.near, self.far):
            if side is not None and not side.is_closing():
                side.transport.abort()
