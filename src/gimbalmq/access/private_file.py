"""Files with secrets in them: only the owner can read one, and after a crash it is the old one or the new one.

A table of users has no backup to fall back to, as there is for topics and groups: an older text would bring back users
that were deleted. A file that cannot be read stops the start of a server instead.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from gimbalmq.errors import ConfigError, ProtocolError
from gimbalmq.protocol import fastjson
from gimbalmq.store.files import Files, store_error

log = logging.getLogger(__name__)


class PrivateFile:
    """One JSON document, mode 0600."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self.path = path
        self._files = files or Files()

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
        try:
            write_private(self._files, self.path, chain(fastjson.pretty_pieces(document), (b"\n",)))
        except OSError as error:
            raise store_error(error, f"{self.path} cannot be written") from error


def write_private(files: Files, path: Path, pieces: Iterable[bytes]) -> None:
    """Puts a text in the place of a file's: the old one or the new one is there at every moment, for its owner only.

    It is durable when this returns; raises OSError.
    """
    target = path.resolve()  # what a link points to is changed, not the link
    aside = target.with_name(f"{target.name}.tmp")
    if not target.parent.exists():
        files.make_folder(target.parent)
        files.sync_folder(target.parent.parent)
    files.remove(aside)  # of a crash; it may have another mode
    fd = files.create_private(aside)
    try:
        position = 0
        for piece in pieces:
            # Each write lets other threads run, so the event loop waits for one piece at most.
            files.write_at(fd, piece, position)
            position += len(piece)
        files.sync(fd)
    finally:
        files.close(fd)
    _keep_owner(target, aside)
    files.replace(aside, target)
    files.sync_folder(target.parent)


def _keep_owner(target: Path, aside: Path) -> None:
    """A server that runs as root must not take the file away from the account that it belonged to."""
    if os.geteuid() == 0 and target.exists():
        owner = target.stat()
        os.chown(aside, owner.st_uid, owner.st_gid)
