"""Whether a store takes messages, and if it does not, why.

A lack of room on the disk, of descriptors or of memory passes. Any other error of a write, and every error of a sync,
lasts until a restart. If the disk is fuller than it should be, messages are refused too, but not those that let
files go. Any thread may meet trouble, so what goes together is changed under a lock.
"""

from __future__ import annotations

import threading

from gimbalmq.errors import DiskFullError, ResourceShortageError, StoreError, StoreIOError
from gimbalmq.store.files import passes

_KINDS: tuple[type[StoreError], ...] = (DiskFullError, ResourceShortageError, StoreIOError, StoreError)


class Trouble:
    """What keeps a store from taking messages.

    Attributes:
        reason: why no messages are taken, None while they are.
        failure: the error behind the reason, None if it is only that the disk is too full.
        sync_failure: a sync failed, and why; it never goes away, because a later sync would claim what is lost.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.failure: StoreError | None = None
        self.sync_failure: str | None = None
        self._too_full = False
        self._judging = threading.Lock()  # for moments: the failure and its reason go together

    @property
    def passes(self) -> bool:
        """Whether messages may be taken again without a restart."""
        return self.failure is None or passes(self.failure)

    def check(self, *, making_room: bool) -> None:
        """Raises what a group is refused with, if it is.

        Args:
            making_room: what is stored lets files go, so a disk that is too full for others will do.

        Raises:
            DiskFullError, ResourceShortageError, StoreIOError: with the reason.
        """
        failure = self.failure
        if self.reason is None or (making_room and self._too_full and failure is None):
            return
        kind = type(failure) if isinstance(failure, StoreIOError | ResourceShortageError) else DiskFullError
        raise kind(f"the store is read-only: {self.reason}")

    def write_failed(self, error: StoreError) -> None:
        """A write failed, so no more are taken."""
        reason = str(error)
        with self._judging:
            if self.failure is None or isinstance(error, StoreIOError):
                # one without a traceback, which would keep all that it passed alive
                self.failure = next(kind for kind in _KINDS if isinstance(error, kind))(reason)
                self.reason = reason

    def sync_failed(self, error: StoreError) -> None:
        """The same of a sync."""
        self.write_failed(error)
        if isinstance(error, StoreIOError):
            self.sync_failure = str(error)

    def check_syncs(self) -> None:
        """Raises StoreIOError if a sync has failed: what the kernel dropped then is missing, and no other says so."""
        if self.sync_failure is not None:
            raise StoreIOError(self.sync_failure)

    def over(self, failure: StoreError | None, too_full: str | None) -> bool:
        """A probe succeeded after ``failure``; False if another thread has met another one meanwhile.

        Args:
            too_full: in which words the disk is too full, None if it is not.
        """
        with self._judging:
            if self.failure is not failure:
                return False
            self.failure = None
            self._set_too_full(too_full)
        return True

    def judge(self, too_full: str | None) -> None:
        """Sets or lifts the refusal on an overfull disk, unless there is other trouble."""
        with self._judging:
            if self.reason is None or (self._too_full and self.failure is None):
                self._set_too_full(too_full)

    def _set_too_full(self, too_full: str | None) -> None:
        self._too_full = too_full is not None
        self.reason = too_full
