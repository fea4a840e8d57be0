"""The seam between connections on the replication port and what is said on them.

``replica`` (the master's end) and ``follower`` (the slave's) know sockets, clocks and the store. What the bytes mean is
known by a dialect, one object for each connection and end: the plain one is in ``plain``, that of brokers with a
controller has epochs and a handshake.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from gimbalmq.protocol.ha import LogPiece


class SlaveLine(Protocol):
    """The master's end of a connection, as a dialect sees it (``replica.Replica``)."""

    slave_id: int | None
    """Which broker the slave is, if the dialect tells."""

    def write(self, data: bytes) -> None: ...


class SourceDialect(Protocol):
    """How a master speaks with one slave. Until the slave's first report it says nothing but what ``take`` writes."""

    def take(self, line: SlaveLine, data: bytes) -> int | None:
        """Reads what the slave says: the last end of its log that it reports in these bytes, if there is one.

        Raises:
            ReplicaRefusedError: this is no slave of ours; the connection ends.
            RemoteProtocolError: what it says cannot be understood; the connection ends, too.
        """
        ...

    def begin(self, report: int) -> int:
        """Where the log is sent from, after a first report."""
        ...

    def packet_end(self, offset: int) -> int:
        """A packet that begins at this offset goes no further than the one returned."""
        ...

    def head(self, offset: int, size: int) -> bytes:
        """What stands before ``size`` bytes of the log; without bytes it is a heartbeat."""
        ...


class MasterLine(Protocol):
    """The slave's end of a connection, as a dialect sees it (in ``follower``)."""

    master_end: int
    """Where the master's log ends, as far as it is known."""

    def write(self, data: bytes) -> None: ...


class CopyDialect(Protocol):
    """How a slave speaks with its master."""

    @property
    def may_report(self) -> bool:
        """False while what was stored last must not be reported: something has to be noted first, such as its epoch."""
        ...

    async def open(self, line: MasterLine) -> None:
        """All that comes before the log; when it returns the master has been told where the log goes on.

        What the master says meanwhile reaches ``feed``.

        Raises:
            CopyRefusedError: our log does not continue the master's.
            TransportError, ResponseError: the master could not be asked.
        """
        ...

    def feed(self, data: bytes) -> Iterator[LogPiece]:
        """The pieces of log in these bytes; each is in the store before the next one is asked for.

        Raises:
            RemoteProtocolError, CopyRefusedError: and the connection ends.
        """
        ...

    def report(self, end: int) -> bytes:
        """What tells the master that our log ends there."""
        ...
