"""The KV table: the only thing a name server remembers over a restart.

Name spaces of keys and values, in practice the order configuration of topics. Every change
rewrites the file whole: to a temporary one beside it, which then takes its name, so that a
crash leaves the old table or the new one and never half of either.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from gimbalmq.errors import ConfigError, RemoteProtocolError, StoreIOError
from gimbalmq.protocol import fastjson

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""Name space whose keys are topics and whose values are ``brokerName:queueNums;...``."""


class KvConfig:
    """The table and its file (Java: KVConfigManager)."""

    def __init__(self, path: str | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._table: dict[str, dict[str, str]] = {}

    def load(self) -> None:
        """Reads the file, where there is one.

        Raises:
            ConfigError: it cannot be read or holds something else.
        """
        if self._path is None:
            return
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(
                "kvConfigPath", str(self._path), f"cannot be read: {error.strerror or error}"
            ) from error
        if data.strip():
            self._table = _parse(data, str(self._path))

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """A copy of one name space; None where nothing was ever put there."""
        table = self._table.get(namespace)
        return None if table is None else dict(table)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Raises StoreIOError, and changes nothing, where the file cannot be written."""
        self._replace(namespace, {**self._table.get(namespace, {}), key: value})

    def delete(self, namespace: str, key: str) -> bool:
        """Whether the key was there; its name space stays, as in Java."""
        table = self._table.get(namespace)
        if table is None or key not in table:
            return False
        self._replace(namespace, {name: value for name, value in table.items() if name != key})
        return True

    def _replace(self, namespace: str, table: dict[str, str]) -> None:
        changed = {**self._table, namespace: table}
        if self._path is not None:
            write_atomically(self._path, fastjson.dumps({"configTable": changed}))
        self._table = changed


def _parse(data: bytes, path: str) -> dict[str, dict[str, str]]:
    remedy = "repair the file or move it away"
    try:
        raw = fastjson.loads(data)
    except RemoteProtocolError as error:
        raise ConfigError("kvConfigPath", path, f"is no KV table ({error}); {remedy}") from error
    spaces = raw.get("configTable") if isinstance(raw, dict) else None
    if not isinstance(spaces, dict) or not all(isinstance(table, dict) for table in spaces.values()):
        raise ConfigError("kvConfigPath", path, f'has no object of objects under "configTable"; {remedy}')
    return {
        str(space): {str(key): str(value) for key, value in table.items()} for space, table in spaces.items()
    }


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces a file; after a crash it is the old one or the new one.

    Raises:
        StoreIOError: the disk refused.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise StoreIOError(f"{path} cannot be written: {error.strerror or error}") from error
