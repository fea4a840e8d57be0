"""Progress in memory, at the broker and in the local file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from gimbalmq.client.config import ClientConfig
from gimbalmq.client.consuming.offsets import (
    LocalOffsets,
    ReadFrom,
    RemoteOffsets,
    dump_offsets,
    local_offset_folder,
    parse_offsets,
)
from gimbalmq.client.routes import BrokerAddress
from gimbalmq.errors import ConnectError, RemoteProtocolError
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.groups import QueryConsumerOffset, UpdateConsumerOffset

Q0 = MessageQueue("T", "broker-a", 0)
Q1 = MessageQueue("T", "broker-a", 1)
R0 = MessageQueue("%RETRY%g", "broker-a", 0)


class Shelf:
    """A broker's offsets."""

    def __init__(self, **known: int) -> None:
        self.known: dict[MessageQueue, int] = {}
        self.commits: list[tuple[MessageQueue, int, bool]] = []
        self.broken = False
        self.config = ClientConfig(namesrv="127.0.0.1:9876")

    async def locate_broker(self, topic: str, broker_name: str) -> BrokerAddress:
        if self.broken:
            raise ConnectError("down")
        return BrokerAddress("127.0.0.1:10911", is_slave=False)

    async def call(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        if command.code == RequestCode.QUERY_CONSUMER_OFFSET:
            asked = QueryConsumerOffset.from_ext(command.ext_fields)
            found = self.known.get(MessageQueue(asked.topic, "broker-a", asked.queue_id))
            if found is None:
                return command.reply(ResponseCode.QUERY_NOT_FOUND, "not found")
            return command.reply(ext_fields={"offset": str(found)})
        self._commit(command, wait=True)
        return command.reply()

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        self._commit(command, wait=False)

    def _commit(self, command: RemotingCommand, *, wait: bool) -> None:
        told = UpdateConsumerOffset.from_ext(command.ext_fields)
        queue = MessageQueue(told.topic, "broker-a", told.queue_id)
        self.commits.append((queue, told.commit_offset, wait))
        self.known[queue] = told.commit_offset


def remote(shelf: Shelf) -> RemoteOffsets:
    return RemoteOffsets(cast(Any, shelf), "g")


def test_updates_may_be_held_to_growing() -> None:
    """S3-25: increase-only never lowers the value; without it, it is set."""
    store = remote(Shelf())
    store.update(Q0, 8, increase_only=True)
    store.update(Q0, 5, increase_only=True)
    assert store.remembered(Q0) == 8
    store.update(Q0, 5, increase_only=False)
    assert store.remembered(Q0) == 5


def test_read_modes() -> None:
    """S2-32: memory only (missing is None), store only, memory first; a store read is remembered."""

    async def scenario() -> None:
        shelf = Shelf()
        shelf.known[Q0] = 40
        store = remote(shelf)
        assert await store.read(Q0, ReadFrom.MEMORY) is None
        assert await store.read(Q0, ReadFrom.MEMORY_FIRST_THEN_STORE) == 40
        assert await store.read(Q0, ReadFrom.MEMORY) == 40
        store.update(Q0, 50, increase_only=True)
        assert await store.read(Q0, ReadFrom.MEMORY_FIRST_THEN_STORE) == 50
        assert await store.read(Q0, ReadFrom.STORE) == 40
        assert store.remembered(Q0) == 40

    asyncio.run(scenario())


def test_not_found_and_failure_are_told_apart() -> None:
    """S2-33: not found is None (Java: -1); any other failure is raised (Java: -2)."""

    async def scenario() -> None:
        shelf = Shelf()
        store = remote(shelf)
        assert await store.read(Q0, ReadFrom.STORE) is None
        shelf.broken = True
        with pytest.raises(ConnectError):
            await store.read(Q0, ReadFrom.STORE)

    asyncio.run(scenario())


def test_persisting_all_sends_held_queues_and_forgets_the_others() -> None:
    """S3-26: offsets live in memory and are sent when the timer says so."""

    async def scenario() -> None:
        shelf = Shelf()
        store = remote(shelf)
        store.update(Q0, 3, increase_only=True)
        store.update(Q1, 4, increase_only=True)
        assert shelf.commits == []
        await store.persist_all([Q0])
        assert shelf.commits == [(Q0, 3, False)]
        assert store.remembered(Q1) is None
        shelf.broken = True
        await store.persist_all([Q0])
        assert store.remembered(Q0) == 3

    asyncio.run(scenario())


class ForgetfulShelf(Shelf):
    """Like Apache's broker, it makes a topic's table anew for each commit that comes while there is none yet."""

    async def call(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        new = not self.known
        await asyncio.sleep(0)
        if new:
            self.known = {}
        return await super().call(address, command, timeout)


def test_first_commits_of_a_topic_do_not_overtake_each_other() -> None:
    """Apache's broker answers two at once and keeps one of them."""
    shelf = ForgetfulShelf()
    store = remote(shelf)

    async def scenario() -> None:
        for queue, offset in ((Q0, 6), (Q1, 3)):
            store.update(queue, offset, increase_only=False)
        await asyncio.gather(*(store.persist(queue, wait=True) for queue in (Q0, Q1)))

    asyncio.run(scenario())
    assert shelf.known == {Q0: 6, Q1: 3}


def test_one_queue_is_persisted_and_forgotten() -> None:
    """S2-24: at removal the offset is written away and leaves memory."""

    async def scenario() -> None:
        shelf = Shelf()
        store = remote(shelf)
        store.update(Q0, 3, increase_only=True)
        await store.persist(Q0, wait=True)
        await store.persist(Q1)
        store.forget(Q0)
        assert shelf.commits == [(Q0, 3, True)]
        assert store.clone("") == {}

    asyncio.run(scenario())


JAVA_FILE = b"""{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":0,
\t\t\t"topic":"T"
\t\t}:9,{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":1,
\t\t\t"topic":"T"
\t\t}:12
\t}
}"""


def test_the_local_file_is_javas() -> None:
    """S3-05: object keys, pretty printed as fastjson does; both directions."""
    assert parse_offsets(JAVA_FILE) == {Q0: 9, Q1: 12}
    assert dump_offsets({Q1: 12, Q0: 9}) == JAVA_FILE
    assert parse_offsets(
        b'{"offsetTable":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":3,\\"topic\\":\\"T\\"}":5}}'
    ) == {MessageQueue("T", "b", 3): 5}
    with pytest.raises(RemoteProtocolError):
        parse_offsets(b"[]")


def test_local_progress_survives_and_merges(tmp_path: Path) -> None:
    """S3-09 (local progress): held queues are merged into what the file has; a backup stays beside it."""

    async def scenario() -> None:
        store = LocalOffsets(local_offset_folder(tmp_path, "1.2.3.4@DEFAULT", "g"))
        assert store.path == tmp_path / "1.2.3.4@DEFAULT" / "g" / "offsets.json"
        await store.load()
        assert await store.read(Q0, ReadFrom.STORE) is None
        store.update(Q0, 3, increase_only=True)
        store.update(Q1, 4, increase_only=True)
        await store.persist_all([Q0, Q1])
        store.update(Q0, 7, increase_only=True)
        await store.persist(Q0)
        again = LocalOffsets(store.path.parent)
        await again.load()
        assert again.clone("T") == {Q0: 7, Q1: 4}
        assert store.path.with_name("offsets.json.bak").exists()
        store.path.write_bytes(b"torn")
        third = LocalOffsets(store.path.parent)
        await third.load()
        assert third.clone("T") == {Q0: 3, Q1: 4}

    asyncio.run(scenario())


def test_clone_gives_one_topic() -> None:
    store = remote(Shelf())
    store.update(Q0, 1, increase_only=True)
    store.update(R0, 2, increase_only=True)
    assert store.clone("T") == {Q0: 1}
    assert store.clone("") == {Q0: 1, R0: 2}
