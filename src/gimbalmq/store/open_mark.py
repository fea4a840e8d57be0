"""The file ``abort``: it lies in a store's folder while the store is open, so a crash leaves it there."""

from __future__ import annotations

import os
from pathlib import Path

from gimbalmq.store.files import Files, sync_file, sync_names, translated

_PROBE_BYTES = 1 << 20


class OpenMark:
    """The mark of one folder. Without it nothing may be appended.

    Attributes:
        is_set: whether it is durably there.
    """

    def __init__(self, root: Path, files: Files) -> None:
        self._root = root
        self._path = root / "abort"
        self._files = files
        self.is_set = False

    def was_left(self) -> bool:
        """Whether the last run did not close the folder."""
        return self._path.exists()

    def set(self) -> None:
        """Durably, before anything is changed: a power loss must not make the folder look closed."""
        with translated(self._path):
            fd = self._files.open(self._path, create=True)
            try:
                self._files.truncate(fd, 0)
                self._files.write_at(fd, str(os.getpid()).encode(), 0)
                sync_file(self._files, fd, self._path)
            finally:
                self._files.close(fd)
            sync_names(self._files, self._root)
        self.is_set = True

    def remove(self) -> None:
        with translated(self._path):
            self._files.remove(self._path)

    def probe_disk(self) -> None:
        """Tries whether the folder's disk takes writes, and sets the mark if it could not be set before.

        Raises:
            OSError, StoreError: it does not.
        """
        path = self._root / ".space-probe"
        fd = self._files.open(path, create=True)
        try:
            self._files.allocate(fd, 0, _PROBE_BYTES)
            self._files.write_at(fd, b"\0", 0)
        finally:
            self._files.close(fd)
            self._files.remove(path)
        if not self.is_set:
            self.set()
