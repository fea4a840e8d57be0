"""Whether a replica may have lost what it had confirmed, kept for its next start (``config/wholeness.json``).

What a process has written survives its end, and not the end of its machine's power. So a broker is in doubt if it was
not closed properly and the machine has been started since, or if its folder was emptied, or the end of a log that was
on the disk is gone. It stays in doubt, over restarts with and without a controller, until it has been level with a
master, or knows that no other replica has more (``doubt``).

A master that was alone in the set has lost nothing that others have. So it notes, when its log is on the disk, that it
is alone, and in which set: as long as the controller still has that set, nobody else has answered anything.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

from gimbalmq.broker.json_file import JsonFile, TableThread
from gimbalmq.errors import StoreError, StoreIOError
from gimbalmq.store.files import Files

log = logging.getLogger(__name__)


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
        is_shorter: the log lacks what was on the disk.
        is_empty: the log is empty, and a controller knows this broker from before.
        is_known: a controller knows this broker from before. If not, the sets of the file are those of another one.

    Attributes:
        in_doubt: whether another replica may have what this one had confirmed and lost.
        alone_in: epoch of the set in which this broker was alone, and had all of its log on the disk.
        is_noted: whether the file tells of this start. If it does not, the store must not look closed at the next one.
    """

    def __init__(
        self,
        folder: Path,
        files: Files,
        thread: TableThread,
        *,
        was_closed: bool,
        is_shorter: bool = False,
        is_empty: bool = False,
        is_known: bool = True,
    ) -> None:
        self._file = JsonFile(folder / "wholeness.json", files)
        self._thread = thread
        self._boot = files.boot_id()
        try:
            found = self._file.load(_read)
            noted = found or _Noted(in_doubt=is_empty)
        except StoreIOError as error:
            log.warning("%s; whatever it said, this broker may have lost what it had confirmed", error)
            found = noted = _Noted(in_doubt=True)
        self._is_replica = is_known or found is not None
        same_boot = self._boot is not None and noted.boot == self._boot
        self.in_doubt = noted.in_doubt or is_shorter or not (was_closed or same_boot)
        # Only what was not on the disk yet is lost in a power cut; of a shorter log others may have more.
        self.alone_in = noted.alone_in if is_known and not is_shorter else None
        self.is_noted = False
        self._may_lose = False

    async def begin(self) -> None:
        """Has the file tell of this start. A crash before that leaves the boot before in it, and so the doubt.

        So only a doubt must be kept. A broker without one has its role also if the disk is full.

        Raises:
            StoreError: the doubt cannot be kept.
        """
        try:
            await self._save(self.in_doubt, self.alone_in)
        except StoreError as error:
            if self.in_doubt:
                raise
            log.warning("%s; if this process is killed, this broker takes it for a power cut", error)

    def keep(self) -> None:
        """Has the file tell of this start if a controller has ever known this folder, also if none is used now.

        A run without a controller may be closed properly; what was lost before it is still lost when the controller is
        back. A log that is shorter than it was is noticed by one start only, however that one ends.

        Raises:
            StoreError: the doubt cannot be kept.
        """
        if not self._is_replica:
            return
        try:
            self._file.save(self._document(self.in_doubt, self.alone_in))
            self.is_noted = True
        except StoreError:
            if self.in_doubt:
                raise

    async def is_whole(self) -> None:
        """The doubt is over; raises StoreError if that cannot be kept, and then it is not."""
        await self._save(False, self.alone_in)
        self.in_doubt = False

    async def is_alone(self, set_epoch: int) -> None:
        """All of the log up to when the set had shrunk is on the disk; raises StoreError if that cannot be kept."""
        await self._save(self.in_doubt, set_epoch)
        self.alone_in = set_epoch

    async def may_lose(self) -> None:
        """A sync has failed: what was written may be gone at the next start, also if the machine runs on.

        Raises:
            StoreError: that cannot be kept.
        """
        if not self._may_lose:
            self._may_lose = True  # at once: the doubt may end while this is saved, and is saved behind it
            try:
                await self._save(True, self.alone_in)
            except BaseException:
                self._may_lose = False
                raise

    async def _save(self, in_doubt: bool, alone_in: int | None) -> None:
        document = self._document(in_doubt, alone_in)
        await self._thread.run(lambda: self._file.save(document))
        self.is_noted = True

    def _document(self, in_doubt: bool, alone_in: int | None) -> dict[str, object]:
        return {"aloneInSetEpoch": alone_in, "boot": self._boot, "inDoubt": in_doubt or self._may_lose}
