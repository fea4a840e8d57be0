"""What master and slave say on the replication port: bytes in, values out.

    slave to master    8      int64 end of the slave's log
    master to slave    12     int64 offset of the first byte, int32 count
                       count  bytes of the commit log; none is a heartbeat

There are no frames around it, and either side may get it in any pieces. A packet begins and ends anywhere in the log,
also inside a record. So its bytes are handed on as they come: nobody holds a packet in memory until it is whole.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from gimbalmq.errors import RemoteProtocolError

T = TypeVar("T")

_REPORT = struct.Struct(">q")
_HEAD = struct.Struct(">qi")

REPORT_BYTES = _REPORT.size
HEAD_BYTES = _HEAD.size


class LogPiece(NamedTuple):
    """Bytes of the master's log, and where they belong; without bytes it is where the next ones will belong."""

    offset: int
    data: memoryview


def encode_report(end: int) -> bytes:
    return _REPORT.pack(end)


def encode_head(offset: int, size: int) -> bytes:
    """What stands before ``size`` bytes of the log."""
    return _HEAD.pack(offset, size)


class ReportReader:
    """Reads a slave's reports; each says all that the earlier ones said, so the last one counts."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> int | None:
        """The last report that is whole with these bytes; None if none is.

        Raises:
            RemoteProtocolError: no log ends there.
        """
        data = self._rest + data if self._rest else data
        whole = len(data) // REPORT_BYTES * REPORT_BYTES
        self._rest = data[whole:]
        if not whole:
            return None
        (end,) = _REPORT.unpack_from(data, whole - REPORT_BYTES)
        if end < 0:
            raise RemoteProtocolError(f"a slave reports {end} as the end of its log: it is no slave")
        return int(end)


class PacketReader:
    """Reads a master's packets, a piece at a time."""

    __slots__ = ("_head", "_left", "_offset")

    def __init__(self) -> None:
        self._head = b""
        self._offset = 0
        self._left = 0

    def feed(self, data: bytes) -> Iterator[LogPiece]:
        """The pieces of log in these bytes, in order; go through them before the next bytes come.

        Raises:
            RemoteProtocolError: what came is no packet, and nothing behind it can be trusted.
        """
        view = memoryview(data)
        while view:
            if self._left:
                piece, view = view[: self._left], view[self._left :]
                offset = self._offset
                self._offset += len(piece)
                self._left -= len(piece)
                yield LogPiece(offset, piece)
                continue
            missing = HEAD_BYTES - len(self._head)
            self._head += view[:missing]
            view = view[missing:]
            if len(self._head) < HEAD_BYTES:
                return
            self._offset, self._left = _HEAD.unpack(self._head)
            self._head = b""
            if self._offset < 0 or self._left < 0:
                raise RemoteProtocolError(
                    f"a packet of {self._left} bytes at offset {self._offset} of the log: that is no replication port"
                )
            if not self._left:
                yield LogPiece(self._offset, view[:0])

    def whole(self, data: bytes) -> LogPiece | None:
        """The piece if these bytes are one packet, as most are that a slave waits for; nothing happens if not."""
        if self._left or self._head or len(data) <= HEAD_BYTES:
            return None
        offset, size = _HEAD.unpack_from(data)
        if offset < 0 or size != len(data) - HEAD_BYTES:
            return None
        return LogPiece(offset, memoryview(data)[HEAD_BYTES:])


def join_pieces(pieces: Iterator[LogPiece]) -> Iterator[LogPiece]:
    """The same bytes in fewer pieces: those that follow each other become one, because a store takes many at less cost.

    An error comes behind the pieces that came before it.
    """
    return join_runs(pieces, _follows, _join)


def join_runs(
    items: Iterator[T], follows: Callable[[T, T], bool], join: Callable[[list[T]], T]
) -> Iterator[T]:
    """The items, with those joined of which each follows the one before it; an error comes behind them."""
    run: list[T] = []
    try:
        for item in items:
            if run and not follows(run[-1], item):
                yield _one(run, join)
                run = []
            run.append(item)
    except RemoteProtocolError:
        if run:
            yield _one(run, join)
        raise
    if run:
        yield _one(run, join)


def _one(run: list[T], join: Callable[[list[T]], T]) -> T:
    return run[0] if len(run) == 1 else join(run)


def _follows(before: LogPiece, piece: LogPiece) -> bool:
    return bool(before.data and piece.data) and before.offset + len(before.data) == piece.offset


def _join(run: list[LogPiece]) -> LogPiece:
    return LogPiece(run[0].offset, memoryview(b"".join(piece.data for piece in run)))
