"""Whether a replica may have lost what it had confirmed, kept for its next start (``config/wholeness.json``).

What a process has written survives its end, and not the end of its machine's power. So a broker is in doubt if it was
not closed properly and the machine has been started since, or if its folder was emptied. It stays in doubt, over
restarts, until it has been level with a master, or knows that no other replica has more (``doubt``).

A master that was alone in the set has lost nothing that others have. So it notes, when its log is on the disk, that it
is alone, and in which set: as long as the controller still has that set, nobody else has answered anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from gimbalmq.broker.json_file import JsonFile, TableThread
from gimbalmq.store.files import Files


class _Noted(NamedTuple):
    in_doubt: bool = False
    boot: str | None = None
    alone_in: int | None = None


def _read(document: Any) -> _Noted:
    boot, alone_in = document.get("boot"), document.get("aloneInSetEpoch")
    return _Noted(
        bool(document.get("inDoubt")),
        None if boot is None else str(boot),
        None if alone_in is None else int(alone_in),
    )


class Wholeness:
    """What the file says, and what it is to say.

    Args:
        folder: of the file.
        was_closed: the store was closed properly before this start.
        is_empty: the log is empty, and a controller knows this broker from before.

    Attributes:
        in_doubt: whether another replica may have what this one had confirmed and lost.
        alone_in: epoch of the set in which this broker was alone, and had all of its log on the disk.
    """

    def __init__(
        self, folder: Path, files: Files, thread: TableThread, *, was_closed: bool, is_empty: bool = False
    ) -> None:
        self._file = JsonFile(folder / "wholeness.json", files)
        self._thread = thread
        self._boot = files.boot_id()
        noted = self._file.load(_read) or _Noted(in_doubt=is_empty)
        same_boot = self._boot is not None and noted.boot == self._boot
        self.in_doubt = noted.in_doubt or not (was_closed or same_boot)
        self.alone_in = noted.alone_in

    async def begin(self) -> None:
        """Has the file tell of this start. A crash before that leaves the boot before in it, and so the doubt."""
        await self._save(self.in_doubt, self.alone_in)

    async def is_whole(self) -> None:
        """The doubt is over; raises StoreError if that cannot be kept, and then it is not."""
        await self._save(False, self.alone_in)
        self.in_doubt = False

    async def is_alone(self, set_epoch: int) -> None:
        """All of the log up to when the set had shrunk is on the disk; raises StoreError if that cannot be kept."""
        await self._save(self.in_doubt, set_epoch)
        self.alone_in = set_epoch

    async def _save(self, in_doubt: bool, alone_in: int | None) -> None:
        document = {"aloneInSetEpoch": alone_in, "boot": self._boot, "inDoubt": in_doubt}
        await self._thread.run(lambda: self._file.save(document))
