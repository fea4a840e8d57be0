"""A JSON file with secrets in it: only its owner can read it, and after a crash it is the old one or the new one.

There is no backup to fall back to, as there is for topics and groups: an older text would bring back users that were
deleted. A file that cannot be read stops the start of a server instead.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gimbalmq.errors import ConfigError, ProtocolError
from gimbalmq.protocol import fastjson
from gimbalmq.store.files import Files, store_error

log = logging.getLogger(__name__)


class PrivateFile:
    """One document, mode 0600."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self.path = path
        self._files = files or Files()
        self._aside = path.with_name(path.name + ".tmp")

    def load(self) -> Any:
        """The document; None if there is no file.

        Raises:
            ConfigError: the file cannot be read. The error tells nothing of what is in it.
        """
        try:
            text = self.path.read_bytes()
            self._hide()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self.broken(f"cannot be read: {error.strerror or error}") from error
        try:
            return fastjson.loads(text, limit=None)
        except ProtocolError:
            # The reader's words would show what stands near the mistake, which may be a password.
            raise self.broken("is no JSON") from None

    def _hide(self) -> None:
        mode = stat.S_IMODE(self.path.stat().st_mode)
        if not mode & 0o077:
            return
        try:
            os.chmod(self.path, 0o600)
        except OSError as error:
            raise self.broken(
                f"has mode {mode:03o}, so others may read its secrets, and that cannot be changed: {error.strerror}",
                "have its owner change the mode to 600",
            ) from error
        log.warning("%s had mode %03o and holds secrets; it has mode 600 now", self.path, mode)

    def broken(
        self, why: str, remedy: str = "mend it, or move it away and create its users anew"
    ) -> ConfigError:
        """The error for a file that cannot be used."""
        return ConfigError("authConfigPath", str(self.path), f"the file {why}; {remedy}")

    def save(self, document: Mapping[str, object]) -> None:
        """Durable when it returns. It takes long; a thread should do it.

        Raises:
            StoreError: the disk refused; the old file is still there.
        """
        files = self._files
        try:
            if not self.path.parent.exists():
                files.make_folder(self.path.parent)
                files.sync_folder(self.path.parent.parent)
            files.remove(self._aside)  # of a crash; it may have another mode
            fd = files.create_private(self._aside)
            try:
                position = 0
                for piece in fastjson.pretty_pieces(document):
                    # Each write lets other threads run, so the event loop waits for one piece at most.
                    files.write_at(fd, piece, position)
                    position += len(piece)
                files.write_at(fd, b"\n", position)
                files.sync(fd)
            finally:
                files.close(fd)
            files.replace(self._aside, self.path)
            files.sync_folder(self.path.parent)
        except OSError as error:
            raise store_error(error, f"{self.path} cannot be written") from error
