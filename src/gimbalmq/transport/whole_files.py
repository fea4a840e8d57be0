"""Small files: written whole, so that nobody sees half of one, or sees it before its mode is set; read; and watched."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from gimbalmq.errors import ConfigError

PRIVATE = 0o600
PUBLIC = 0o644

_MOST_SECRET_BYTES = 4096


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


def read_secret(path: str | os.PathLike[str], option: str, otherwise: str = "") -> str:
    """The secret that is all a file holds, without blanks around it.

    Args:
        option: what named the file.
        otherwise: what else to say if the file cannot be read.

    Raises:
        ConfigError: the file cannot be read or does not hold one line of text. The error shows nothing of it.
    """
    try:
        with open(Path(path).expanduser(), "rb") as file:
            raw = file.read(_MOST_SECRET_BYTES + 1)
        secret = raw.decode().strip()
    except OSError as error:
        raise ConfigError(
            option, str(path), f"cannot be read: {error.strerror or error}{otherwise}"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(option, str(path), "it is not UTF-8; put the secret into it, in one line") from None
    if not secret:
        raise ConfigError(option, str(path), "it is empty; put the secret into it")
    if len(raw) > _MOST_SECRET_BYTES or not secret.isprintable():
        raise ConfigError(option, str(path), "it must hold the secret, one line, and nothing else")
    return secret
