"""Small files: written whole, so that nobody sees half of one, or sees it before its mode is set; and their changes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

PRIVATE = 0o600
PUBLIC = 0o644


def write_whole(path: Path, content: str | bytes, mode: int = PRIVATE) -> None:
    """Puts a file in the place of the one that may be there, at once or not at all; raises OSError."""
    descriptor, made = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # its mode is 0600
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(content.encode() if isinstance(content, str) else content)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(made, mode)
        os.replace(made, path)
    except BaseException:
        os.unlink(made)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


Stamp = tuple[int, int, int]


def stamp_of(path: str) -> Stamp | None:
    """What is another after the file was replaced or changed; None if there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
