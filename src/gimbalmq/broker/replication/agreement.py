"""Whether our log continues a master's: asked at the master's ordinary port, so Apache's masters can be asked, too.

The stream itself does not tell. It has offsets only, and two logs that have parted may be equally long. So a slave
asks for the bounds of the master's log (request 28), and for the master's record at the place of our own last one (33),
which must be the same byte for byte. A record holds when and where it was stored, so logs that have parted
never agree again.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gimbalmq.errors import CopyRefusedError, RemoteProtocolError, ResponseError
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.headers.messages import ViewMessage
from gimbalmq.rpc.call import Caller, ask
from gimbalmq.rpc.management import runtime_info
from gimbalmq.store.message_store import MessageStore

_SECONDS = 3.0
_CUT = (
    "stop this slave; gimbalmq broker rejoin --store DIR says what would be lost, and cuts it off with --cut"
)
_EMPTY_THE_FOLDER = "stop this slave, empty its store folder and start it: it copies everything anew"


class Verdict(enum.Enum):
    """How our log and a master's fit together."""

    EMPTY = "empty"
    """We have nothing yet."""
    CONTINUES = "continues"
    AHEAD = "ahead"
    """We have what the master does not have."""
    BEHIND = "behind"
    """The master has deleted what comes next."""
    DIFFERENT = "different"
    """There is another record at the place of our last one."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What a comparison found.

    Attributes:
        ours: where our log ends.
        begin, end: where the master's log begins and ends.
        place: where the record lies that was compared, if one was.
    """

    verdict: Verdict
    ours: int
    begin: int
    end: int
    place: int | None = None

    def problem(self, master: str) -> str | None:
        """Why nothing may be copied, and what to do; None if it may."""
        if self.verdict is Verdict.AHEAD:
            return (
                f"our log ends at {self.ours}, that of the master {master} at {self.end}: it does not have our last "
                f"{self.ours - self.end} bytes. If they are wanted, this broker is the one to be master "
                f"(gimbalmq broker promote); else {_CUT}"
            )
        if self.verdict is Verdict.BEHIND and self.place is not None:
            return (
                f"our last record lies at {self.place}, and the log of the master {master} begins at {self.begin}: "
                f"whether ours continues it can no longer be told; {_EMPTY_THE_FOLDER}"
            )
        if self.verdict is Verdict.BEHIND:
            return (
                f"our log ends at {self.ours}, that of the master {master} begins at {self.begin}: what comes next was "
                f"deleted there; {_EMPTY_THE_FOLDER}"
            )
        if self.verdict is Verdict.DIFFERENT:
            return (
                f"our log, which ends at {self.ours}, and that of the master {master}, which ends at {self.end}, "
                f"have different records at {self.place}: from some place before that on they are not copies of each "
                f"other. To keep what both have, {_CUT}. Or {_EMPTY_THE_FOLDER}"
            )
        return None


async def bounds(caller: Caller, master: str) -> tuple[int, int]:
    """Where a master's log begins and ends."""
    table = await runtime_info(caller, master, timeout=_SECONDS)
    try:
        return int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
    except (KeyError, ValueError):
        raise RemoteProtocolError(
            f"{master} does not say where its commit log begins and ends: it is no broker"
        ) from None


async def record_of(caller: Caller, master: str, offset: int) -> bytes | None:
    """The master's record at an offset of its log; None if none begins there."""
    header = ViewMessage(offset=offset, raw=True)
    try:
        answer = await ask(caller, master, RequestCode.VIEW_MESSAGE_BY_ID, header, timeout=_SECONDS)
    except ResponseError as error:
        if error.code == ResponseError.default_code:
            return None
        raise
    return bytes(answer.body)


async def compare(store: MessageStore, caller: Caller, master: str) -> Agreement:
    """Compares our log with a master's.

    Raises:
        TransportError, ResponseError, RemoteProtocolError: the master could not be asked.
    """
    begin, end = await bounds(caller, master)
    ours = store.received_offset
    last = store.last_record()
    if last is None and ours == 0:
        return Agreement(Verdict.EMPTY, ours, begin, end)
    if ours > end:
        return Agreement(Verdict.AHEAD, ours, begin, end)
    if ours < begin:
        return Agreement(Verdict.BEHIND, ours, begin, end)
    if last is None:
        return Agreement(Verdict.CONTINUES, ours, begin, end)
    place, record = last
    if place < begin:
        # Our end is just where the master's log begins, so nothing is missing, but nothing can be compared either.
        return Agreement(Verdict.BEHIND, ours, begin, end, place)
    same = await record_of(caller, master, place) == record
    return Agreement(Verdict.CONTINUES if same else Verdict.DIFFERENT, ours, begin, end, place)


async def agree(
    store: MessageStore, caller: Caller, master: str, *, last_file_only: bool = False
) -> tuple[int, Agreement]:
    """What a slave reports first, and what was found.

    A master that is told 0 sends its last file, and never those before it. So an empty slave reports where the master's
    log begins. If that is 0, it fetches the first record and reports where that ends.

    Raises:
        CopyRefusedError: our log does not continue the master's.
        TransportError, ResponseError, RemoteProtocolError: the master could not be asked.
    """
    found = await compare(store, caller, master)
    problem = found.problem(master)
    if problem is not None:
        raise CopyRefusedError(problem)
    if found.verdict is not Verdict.EMPTY or last_file_only or found.end == 0:
        return found.ours, found
    if found.begin:
        return found.begin, found
    record = await record_of(caller, master, 0)
    if record is None:
        raise CopyRefusedError(
            f"the log of the master {master} has no record at its beginning, 0, and ends at {found.end}: it is damaged"
        )
    if store.received_offset == 0:
        store.receive(0, record)
    return store.received_offset, found
