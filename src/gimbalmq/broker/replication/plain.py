"""The stream of masters and slaves without a controller, as brokers of 4.x and 5.x speak it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from gimbalmq.broker.replication.dialects import MasterLine, SlaveLine
from gimbalmq.errors import RemoteProtocolError
from gimbalmq.protocol.ha import LogPiece, PacketReader, ReportReader, encode_head, encode_report, join_pieces
from gimbalmq.store.message_store import MessageStore

_NO_END = 1 << 62


class PlainSource:
    """The master's part. A slave does not say who it is."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._reports = ReportReader()

    def take(self, line: SlaveLine, data: bytes) -> int | None:
        return self._reports.feed(data)

    def begin(self, report: int) -> int:
        """An empty slave gets the last file only, as with Apache's masters. One that wants more asks for it."""
        if report:
            return report
        end = self._store.max_commitlog_offset
        return max(end - end % self._store.log.segments.size, self._store.min_commitlog_offset)

    def packet_end(self, offset: int) -> int:
        return _NO_END

    def head(self, offset: int, size: int) -> bytes:
        return encode_head(offset, size)


class PlainCopy:
    """The slave's part.

    Args:
        agree: finds out whether our log continues the master's; returns what is reported first.
        last_file_only: an empty slave is content with the master's last file.
    """

    def __init__(self, agree: Callable[[], Awaitable[int]], *, last_file_only: bool = False) -> None:
        self._agree = agree
        self._last_file_only = last_file_only
        self._packets = PacketReader()
        self._first = 0
        self._begun = False

    @property
    def may_report(self) -> bool:
        return True

    async def open(self, line: MasterLine) -> None:
        self._first = await self._agree()
        line.write(encode_report(self._first))

    def feed(self, data: bytes) -> Iterator[LogPiece]:
        if self._begun:
            one = self._packets.whole(data)
            return join_pieces(self._packets.feed(data)) if one is None else iter((one,))
        return self._check_first(join_pieces(self._packets.feed(data)))

    def _check_first(self, pieces: Iterator[LogPiece]) -> Iterator[LogPiece]:
        """The master may have gone on to its next file since it was asked where its log ends."""
        for piece in pieces:
            if not self._begun and not self._first and piece.offset and not self._last_file_only:
                raise RemoteProtocolError(
                    f"the master's log has come to {piece.offset} before we could ask for its beginning: asking again"
                )
            self._begun = True
            yield piece

    def report(self, end: int) -> bytes:
        # An empty slave has asked for the master's first file, and has nothing yet.
        return encode_report(max(end, self._first))
