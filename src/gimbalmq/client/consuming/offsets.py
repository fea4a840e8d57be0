"""Consumption progress: at the broker for a clustering group, in a local file for broadcasting.

Both keep a table in memory that consuming moves on and a timer writes away, so a crash repeats at most the
progress since the last write. Java's ``RemoteBrokerOffsetStore`` and ``LocalFileOffsetStore``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from pathlib import Path
from typing import Protocol, TypeVar, TypeVarTuple

from gimbalmq.client.instance import ClientInstance
from gimbalmq.errors import (
    QueryNotFoundError,
    RemoteProtocolError,
    RequestTimeoutError,
    ResponseError,
    RocketMQError,
)
from gimbalmq.model.queues import MessageQueue, sort_queues
from gimbalmq.protocol import fastjson
from gimbalmq.rpc import groups as group_calls

log = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class ReadFrom(Enum):
    """Where an offset is read (Java: ReadOffsetType)."""

    MEMORY = "memory"
    STORE = "store"
    MEMORY_FIRST_THEN_STORE = "memory first, then store"


class OffsetStore(Protocol):
    """What a consumer needs of its progress; give your own to keep it elsewhere."""

    async def load(self) -> None:
        """Reads what is to be known before the first queue is taken."""

    async def read(self, queue: MessageQueue, source: ReadFrom) -> int | None:
        """The offset to go on from; None if none was ever kept.

        Raises:
            RocketMQError: the store could not be asked; the queue must not be taken now.
        """

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        """Notes progress in memory."""

    def remembered(self, queue: MessageQueue) -> int | None:
        """The offset in memory."""

    async def persist(self, queue: MessageQueue, *, wait: bool = False) -> None:
        """Writes one queue's offset away; with ``wait`` it is there when this returns."""

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Writes away the offsets of the held queues and forgets those of all others."""

    def forget(self, queue: MessageQueue) -> None:
        """Removes a queue from memory."""

    def clone(self, topic: str) -> dict[MessageQueue, int]:
        """The remembered offsets of one topic; of all if ``topic`` is empty."""


class _Table:
    """The part both stores share: the table in memory."""

    def __init__(self) -> None:
        self._table: dict[MessageQueue, int] = {}

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        table = self._table
        if not increase_only or offset > table.get(queue, -1):
            table[queue] = offset

    def remembered(self, queue: MessageQueue) -> int | None:
        return self._table.get(queue)

    def forget(self, queue: MessageQueue) -> None:
        self._table.pop(queue, None)

    def clone(self, topic: str) -> dict[MessageQueue, int]:
        return {queue: offset for queue, offset in self._table.items() if not topic or queue.topic == topic}


class RemoteOffsets(_Table):
    """Progress of a clustering group, kept by each queue's broker."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        super().__init__()
        self._instance = instance
        self._group = group
        self._as_read: set[MessageQueue] = set()
        """Queues of which the broker was asked and nothing has been found out since: there is nothing to tell it, and a
        member that was silent for a while would set back others who have read on."""
        self._at_slaves: set[MessageQueue] = set()
        """Queues whose progress was last told to a slave, because there was no master."""
        self._first_commits: dict[tuple[str, str], asyncio.Future[bool]] = {}
        """By broker and topic: whether the first commit was answered, when that is known."""

    async def load(self) -> None:
        pass

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        self._as_read.discard(queue)
        super().update(queue, offset, increase_only=increase_only)

    def forget(self, queue: MessageQueue) -> None:
        self._as_read.discard(queue)
        self._at_slaves.discard(queue)
        super().forget(queue)

    async def tell_master(self, broker_name: str) -> None:
        """A master is back. What its slave was told meanwhile it has not heard, and others may soon ask it for that.

        Only that: a member that was cut off itself might set back others, who have its queues by now.
        """
        for queue in [queue for queue in self._at_slaves if queue.broker_name == broker_name]:
            try:
                await self.persist(queue)
            except RocketMQError as error:
                log.warning("progress of %s could not be told to the master that is back: %s", queue, error)

    async def read(self, queue: MessageQueue, source: ReadFrom) -> int | None:
        if source is not ReadFrom.STORE:
            known = self._table.get(queue)
            if known is not None or source is ReadFrom.MEMORY:
                return known
        offset = await self._fetch(queue)
        if offset is not None:
            self._table[queue] = offset
            self._as_read.add(queue)
        return offset

    async def persist(self, queue: MessageQueue, *, wait: bool = False) -> None:
        offset = self._table.get(queue)
        if offset is not None and queue not in self._as_read:
            await self._commit(queue, offset, wait)

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        if not queues:
            return
        held = set(queues)
        for queue, offset in list(self._table.items()):
            if queue not in held:
                self.forget(queue)
                continue
            if queue in self._as_read:
                continue
            try:
                await self._commit(queue, offset, False)
            except RocketMQError as error:
                log.warning(
                    "offset %d of %s could not be committed, next try in a while: %s", offset, queue, error
                )

    async def _fetch(self, queue: MessageQueue) -> int | None:
        found = await self._instance.locate_broker(queue.topic, queue.broker_name)
        offset = await group_calls.query_offset(self._instance, found.address, self._group, queue)
        if offset is None and found.is_slave:
            # The group may have come so far that what it has not read would be passed over.
            raise QueryNotFoundError(
                f"the master of {queue.broker_name} is gone and its slave at {found.address} knows no progress of "
                f"{self._group} in {queue}, whether or not there was any; it is known when the master is back, or "
                "set it with `gimbalmq group reset` at a new master"
            )
        return offset

    async def _commit(self, queue: MessageQueue, offset: int, wait: bool) -> None:
        found = await self._instance.locate_broker(queue.topic, queue.broker_name)
        if found.is_slave:
            self._at_slaves.add(queue)
        else:
            self._at_slaves.discard(queue)
        if not wait:
            await group_calls.update_offset_oneway(self._instance, found.address, self._group, queue, offset)
            return
        # Apache's broker makes a table for a group's first commit of a topic. Of two that come at once, each in a
        # thread of its own, it answers both and may keep one. So the others wait for the first.
        home = (queue.broker_name, queue.topic)
        first = self._first_commits.get(home)
        if first is None:
            await self._commit_first(home, found.address, queue, offset)
            return
        if not await asyncio.shield(first):
            raise RequestTimeoutError(f"{found.address} has not answered the commit before that of {queue}")
        await self._commit_answered(found.address, queue, offset)

    async def _commit_first(
        self, home: tuple[str, str], address: str, queue: MessageQueue, offset: int
    ) -> None:
        first = self._first_commits[home] = asyncio.get_running_loop().create_future()
        answered = False
        try:
            await self._commit_answered(address, queue, offset)
            answered = True
        except ResponseError:
            answered = True
            raise
        finally:
            if not answered:
                del self._first_commits[home]
            first.set_result(answered)

    async def _commit_answered(self, address: str, queue: MessageQueue, offset: int) -> None:
        limit = self._instance.config.api_timeout
        await group_calls.update_offset(self._instance, address, self._group, queue, offset, timeout=limit)


class LocalOffsets(_Table):
    """Progress of one broadcasting member, in a file.

    Args:
        folder: ``<home>/.rocketmq_offsets/<client id>/<group>``; ``local_offset_folder`` makes it.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._path = folder / "offsets.json"
        self._backup = folder / "offsets.json.bak"
        self._lock = asyncio.Lock()

    @property
    def path(self) -> Path:
        return self._path

    async def load(self) -> None:
        self._table.update(await _in_thread(self._read_file))

    async def read(self, queue: MessageQueue, source: ReadFrom) -> int | None:
        if source is not ReadFrom.STORE:
            known = self._table.get(queue)
            if known is not None or source is ReadFrom.MEMORY:
                return known
        offset = (await _in_thread(self._read_file)).get(queue)
        if offset is not None:
            self._table[queue] = offset
        return offset

    async def persist(self, queue: MessageQueue, *, wait: bool = False) -> None:
        offset = self._table.get(queue)
        if offset is not None:
            await self._merge({queue: offset})

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        held = set(queues)
        changed = {queue: offset for queue, offset in self._table.items() if queue in held}
        if changed:
            await self._merge(changed)

    async def _merge(self, changed: Mapping[MessageQueue, int]) -> None:
        async with self._lock:
            await _in_thread(self._merge_file, dict(changed))

    def _merge_file(self, changed: dict[MessageQueue, int]) -> None:
        table = self._read_file()
        table.update(changed)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".tmp")
        with fresh.open("wb") as file:
            file.write(dump_offsets(table))
            file.flush()
            os.fsync(file.fileno())
        if self._path.exists():
            os.replace(self._path, self._backup)
        os.replace(fresh, self._path)

    def _read_file(self) -> dict[MessageQueue, int]:
        for path in (self._path, self._backup):
            try:
                return parse_offsets(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, RemoteProtocolError) as error:
                log.warning("the offset file %s cannot be used, its backup is tried: %s", path, error)
        return {}


async def _in_thread(function: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Does the work of a file away from the loop, as long as there are threads for it."""
    try:
        done = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    except RuntimeError:
        # The program is ending and starts no threads any more; what was not closed is closed now.
        return function(*arguments)
    return await done


def local_offset_folder(root: str | os.PathLike[str] | None, client_id: str, group: str) -> Path:
    """Where Java keeps them (rocketmq.client.localOffsetStoreDir), so that either finds the other's file."""
    base = Path(root) if root is not None else Path.home() / ".rocketmq_offsets"
    return base / client_id / group


def dump_offsets(table: Mapping[MessageQueue, int]) -> bytes:
    """The file's text: objects in key position, as Java writes and reads them."""
    lines = []
    for queue in sort_queues(table):
        key = ",\n\t\t\t".join(
            f'"{name}":{_text(value)}' for name, value in fastjson.queue_object(queue).items()
        )
        lines.append(f"{{\n\t\t\t{key}\n\t\t}}:{table[queue]}")
    inside = ",".join(lines)
    return f'{{\n\t"offsetTable":{{{inside}\n\t}}\n}}'.encode()


def parse_offsets(data: bytes) -> dict[MessageQueue, int]:
    """Reads the file, ours or Java's.

    Raises:
        RemoteProtocolError: it is neither.
    """
    raw = fastjson.loads(data, limit=None)
    table = raw.get("offsetTable") if isinstance(raw, dict) else None
    if not isinstance(table, dict):
        raise RemoteProtocolError("the file has no offsetTable")
    try:
        return {fastjson.queue_key(key): int(value) for key, value in table.items()}
    except (TypeError, ValueError) as error:
        raise RemoteProtocolError(f"the file holds an offset that is no number: {error}") from error


def _text(value: str | int) -> str:
    return json.dumps(value, ensure_ascii=False)
