"""One connection of a slave to its master: takes in what comes, a turn at a time, and reports how far the log is."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from typing import Protocol, cast

from gimbalmq.broker.replication.dialects import CopyDialect
from gimbalmq.errors import ConnectionLostError, RemoteProtocolError, RocketMQError
from gimbalmq.protocol.ha import LogPiece

log = logging.getLogger(__name__)

_TURN_SECONDS = 0.003
_TURN_BYTES = 2 << 20
"""Then others have their turn."""
_LARGE_READ = 64 * 1024
"""Behind so many bytes there are more: they are waited for until the end of the turn."""
_FED_BYTES = 1 << 20
"""Looked at together: many records cost little more than few."""


class LinkOwner(Protocol):
    """Whose connection it is (``follower.Follower``)."""

    master_end: int
    """Where the master's log ended when that was last heard."""

    @property
    def now(self) -> float:
        """The clock's seconds."""
        ...

    def take(self, piece: LogPiece) -> int:
        """Stores the first bytes of a piece of the log; how many.

        Raises:
            RocketMQError: it does not fit, and the connection ends.
        """
        ...

    def took(self, link: MasterLink) -> None:
        """A turn of taking in is over."""
        ...

    def read_some(self) -> None: ...

    def wrote_some(self) -> None: ...


class MasterLink(asyncio.Protocol):
    """One connection.

    Attributes:
        is_open: our log was found to continue the master's, and what comes is stored.
        last_read, last_write: when something last came and went, in the clock's seconds.
        ended: done with what ended the connection.
    """

    def __init__(self, owner: LinkOwner, dialect: CopyDialect) -> None:
        self._owner = owner
        self._dialect = dialect
        self._transport: asyncio.Transport | None = None
        self._backlog: deque[bytes] = deque()
        self._pieces: Iterator[LogPiece] = iter(())
        self._rest: LogPiece | None = None
        self._again: asyncio.Handle | None = None
        self._writable = True
        self._reported = -1
        self.is_open = False
        self.compared = -1
        """Where the record lies that was last found to be the master's, too."""
        self.last_read = self.last_write = owner.now
        self.ended: asyncio.Future[RocketMQError] = asyncio.get_running_loop().create_future()

    @property
    def master_end(self) -> int:
        return self._owner.master_end

    @master_end.setter
    def master_end(self, end: int) -> None:
        self._owner.master_end = end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Reports leave at once; uvloop would keep them until the end of its turn.
        self._transport.set_write_buffer_limits(0)

    def data_received(self, data: bytes) -> None:
        self.last_read = self._owner.now
        self._owner.read_some()
        self._backlog.append(data)
        if self._again is not None:
            return
        if len(data) < _LARGE_READ:
            self._work()
        else:
            self._again = asyncio.get_running_loop().call_soon(self._work)

    def eof_received(self) -> None:
        return None  # the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(ConnectionLostError("the master has closed the connection" if exc is None else str(exc)))

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._owner.took(self)  # what could not be reported meanwhile

    def _work(self) -> None:
        """Takes in what came; what takes long goes on in the next turn, and nothing more is read until then."""
        self._again = None
        owner, begun, count = self._owner, self._owner.now, 0
        try:
            while not self.ended.done():
                piece = self._rest or next(self._pieces, None)
                if piece is None:
                    if not self._backlog:
                        break
                    self._pieces = self._dialect.feed(self._next_bytes())
                    continue
                taken = owner.take(piece)
                count += taken
                data = piece.data[taken:]
                self._rest = LogPiece(piece.offset + taken, data) if data else None
                if count >= _TURN_BYTES or owner.now - begun >= _TURN_SECONDS:
                    self._again = asyncio.get_running_loop().call_soon(self._work)
                    break
        except RocketMQError as error:
            self.end(error)
            return
        except Exception as error:
            log.exception("what the master sent could not be stored")
            self.end(RemoteProtocolError(f"what the master sent could not be stored: {error!r}"))
            return
        if self._transport is not None and not self._transport.is_closing():
            if self._again is not None:
                self._transport.pause_reading()
            elif not self._transport.is_reading():
                self._transport.resume_reading()
        owner.took(self)

    def _next_bytes(self) -> bytes:
        """What came first, joined from several reads."""
        parts, size = [], 0
        while self._backlog and size < _FED_BYTES:
            parts.append(self._backlog.popleft())
            size += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def report(self, end: int, *, again: bool = False) -> None:
        """Tells the master how far we are, if it does not know or has not heard of us for long."""
        if self._writable and self._dialect.may_report and (again or end > self._reported):
            self._reported = end
            self.write(self._dialect.report(end))

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self.last_write = self._owner.now
            self._owner.wrote_some()
            self._transport.write(data)

    def end(self, error: RocketMQError | None) -> None:
        """Ends the connection for this reason."""
        if not self.ended.done():
            self.ended.set_result(error or ConnectionLostError("the connection was given up"))
        self.is_open = False
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self._backlog.clear()
        self._rest = None
        if self._transport is not None:
            self._transport.abort()
