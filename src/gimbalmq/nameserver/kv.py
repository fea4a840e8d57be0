"""The KV table: the only thing a name server remembers over a restart.

Name spaces of keys and values, in practice the order configuration of topics. Every change
rewrites the file whole: to a temporary one beside it, which then takes its name, so that a
crash leaves the old table or the new one and never half of either. A thread does that, one
change after the other; a change that has begun is finished, though who asked for it may be gone.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from gimbalmq.errors import (
    ConfigError,
    InvalidParameterError,
    RemoteProtocolError,
    StoreIOError,
    TableFullError,
)
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.bodies import KvTable
from gimbalmq.protocol.codes import ResponseCode
from gimbalmq.transport.tasks import uninterrupted
from gimbalmq.transport.whole_files import write_whole

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""Name space whose keys are topics and whose values are ``brokerName:queueNums;...``."""

MAX_TEXT_CHARACTERS = 32_767
"""Of a name space, a key or a value: what one field of a header carries."""


class KvStore:
    """The table and its file (Java: KVConfigManager).

    Attributes:
        max_entries: keys of all name spaces together; ``put`` adds no more.
        max_bytes: characters of all their names and values together; likewise.
    """

    def __init__(
        self, path: str | None = None, *, max_entries: int = 10_000, max_bytes: int = 4 << 20
    ) -> None:
        self._path = None if path is None else Path(path)
        self._table: dict[str, dict[str, str]] = {}
        self._bodies: dict[str, bytes] = {}
        self._entries = self._bytes = 0
        self._changing = asyncio.Lock()
        self.max_entries = max_entries
        self.max_bytes = max_bytes

    def load(self) -> None:
        """Reads the file, if there is one.

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
            self._take(_parse(data, str(self._path)))

    def _take(self, table: dict[str, dict[str, str]]) -> None:
        self._table = table
        self._bodies.clear()
        self._entries = sum(len(entries) for entries in table.values())
        self._bytes = sum(
            len(space) + sum(len(key) + len(value) for key, value in entries.items())
            for space, entries in table.items()
        )

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """A copy of one name space; None if nothing was ever put there."""
        table = self._table.get(namespace)
        return None if table is None else dict(table)

    def body(self, namespace: str) -> bytes | None:
        """One name space as the body of an answer; None if nothing was ever put there."""
        table = self._table.get(namespace)
        if table is None:
            return None
        found = self._bodies.get(namespace)
        if found is None:
            found = self._bodies[namespace] = KvTable(table=table).dump()
        return found

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Sets a value.

        Raises:
            InvalidParameterError: one of the texts is too long.
            TableFullError: the table would grow beyond its bounds.
            StoreIOError: the file cannot be written; nothing has changed then.
        """
        for what, text in (("namespace", namespace), ("key", key), ("value", value)):
            if len(text) > MAX_TEXT_CHARACTERS:
                raise InvalidParameterError(
                    f"the {what} has {len(text)} characters; {MAX_TEXT_CHARACTERS} are allowed",
                    code=ResponseCode.SYSTEM_ERROR,
                )
            if what != "value" and text in fastjson.MAGIC_KEYS:
                raise InvalidParameterError(
                    f"the {what} is {text}, which Java's readers of JSON take for their own; use another",
                    code=ResponseCode.SYSTEM_ERROR,
                )
        async with self._changing:
            table = self._table.get(namespace, {})
            if key not in table and self._entries >= self.max_entries:
                raise TableFullError(
                    f"key {key[:100]} is not put: there are {self._entries} and maxKvConfigNums is "
                    f"{self.max_entries}; delete some or raise it"
                )
            grown = self._bytes + len(value)
            grown += 0 if namespace in self._table else len(namespace)
            grown += len(key) if key not in table else -len(table[key])
            # A value that becomes shorter is always taken: the bound may be newer than the table.
            if grown > max(self.max_bytes, self._bytes):
                raise TableFullError(
                    f"key {key[:100]} is not put: the table would have {grown} characters and maxKvConfigSize "
                    f"is {self.max_bytes}; delete some or raise it"
                )
            await uninterrupted(self._replace(namespace, {**table, key: value}))

    async def delete(self, namespace: str, key: str) -> bool:
        """Whether the key was there; its name space stays, as in Java.

        Raises:
            StoreIOError: the file cannot be written; nothing has changed then.
        """
        async with self._changing:
            table = self._table.get(namespace)
            if table is None or key not in table:
                return False
            left = {name: value for name, value in table.items() if name != key}
            await uninterrupted(self._replace(namespace, left))
            return True

    async def _replace(self, namespace: str, table: dict[str, str]) -> None:
        changed = {**self._table, namespace: table}
        if self._path is not None:
            path = self._path
            await asyncio.to_thread(lambda: write_atomically(path, fastjson.dumps({"configTable": changed})))
        self._take(changed)


def _parse(data: bytes, path: str) -> dict[str, dict[str, str]]:
    remedy = "repair the file or move it away"
    try:
        raw = fastjson.loads(data, limit=None)
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
        write_whole(path, data)
    except OSError as error:
        raise StoreIOError(f"{path} cannot be written: {error.strerror or error}") from error
