"""A run of everything that changes files, and what must be true of the folder after a crash at any moment of it.

A broker works in virtual time on a RecordedDisk, so equal runs do the same operations. ``Run`` notes at which
operation each thing was promised; ``check`` opens what a crash left and compares.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gimbalmq.broker import json_file
from gimbalmq.broker.broker import Broker
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.model import topics
from gimbalmq.model.ids import parse_offset_id
from gimbalmq.model.queue_entry import FILLER_SIZE
from gimbalmq.model.record import Record, decode_record
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.management import DeleteTopic
from gimbalmq.protocol.headers.messages import EndTransaction, SendMessageReply, SendMessageV2
from gimbalmq.testing.disk import RecordedDisk
from gimbalmq.testing.loop import EPOCH_MS, VirtualClock, VirtualLoop
from gimbalmq.testing.network import MemoryNetwork
from gimbalmq.transport.pool import ChannelPool

QUEUES = 2
COMMIT, ROLLBACK = 8, 12
NEVER = 1 << 60
_AFTERWARDS_SECONDS = 40.0


@dataclass
class Message:
    """One message and what became of it, in operations of the disk."""

    body: bytes = field(repr=False)
    number: int
    topic: str
    kind: str
    asked: int
    end: int = 0
    promised: int = NEVER
    end_asked: int = NEVER
    """Of a half message: when its end was asked for."""
    how: int = 0
    delete_asked: int = NEVER
    delete_promised: int = NEVER
    dropped: int = NEVER
    """When retention may have begun to remove it."""


@dataclass
class Run:
    """What was promised when."""

    messages: list[Message] = field(default_factory=list)
    flushed: list[tuple[int, int]] = field(default_factory=list)
    """(operation, offset): from then on the log was durable up to there."""

    def durable_end(self, moment: int) -> int:
        return max((offset for at, offset in self.flushed if at <= moment), default=0)


def broker_config(folder: Path, flush: str) -> BrokerConfig:
    config, unknown = BrokerConfig.from_properties(
        {
            "brokerName": "b",
            "bindAddress": "10.0.0.11",
            "brokerIP1": "10.0.0.11",
            "listenPort": "10911",
            "storePathRootDir": str(folder),
            "flushDiskType": flush,
            "mappedFileSizeCommitLog": "8192",
            "mappedFileSizeConsumeQueue": "200",
            "maxHashSlotNum": "16",
            "maxIndexNum": "64",
            "flushConsumerOffsetInterval": "3000",
            "flushDelayOffsetInterval": "3000",
            "transactionCheckInterval": "3600000",  # a check stores open halves anew
        }
    )
    assert not unknown
    return config


@contextmanager
def _all_files_on(disk: RecordedDisk) -> Iterator[None]:
    """The tables under config/ go through the same disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_file, "Files", lambda: disk)
        yield


def in_virtual_time(main: Any, epoch_ms: int) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main(VirtualClock(runner.get_loop(), epoch_ms)))


class _Driver:
    """A client of the broker that keeps the accounts."""

    def __init__(self, broker: Broker, disk: RecordedDisk, pool: ChannelPool, run: Run) -> None:
        self._broker = broker
        self._disk = disk
        self._pool = pool
        self._run = run
        self._count = 0

    async def _call(self, request: RemotingCommand) -> RemotingCommand:
        answer = await self._pool.call(self._broker.address, request, 10.0)
        assert answer.code == ResponseCode.SUCCESS, answer
        self.note_flushed()
        return answer

    def note_flushed(self) -> None:
        self._run.flushed.append((self._disk.now, self._broker.store.flushed_offset))

    async def send(
        self, topic: str, kind: str = "plain", size: int = 60, queue_id: int | None = None, **properties: str
    ) -> tuple[Message, Any]:
        self._count += 1
        body = b"%d " % self._count + b"x" * size
        message = Message(body, self._count, topic, kind, self._disk.now)
        self._run.messages.append(message)
        properties = {"UNIQ_KEY": f"u{self._count}", "KEYS": f"k{self._count}", "TAGS": "t", **properties}
        header = SendMessageV2(
            producer_group="p",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=QUEUES,
            queue_id=self._count % QUEUES if queue_id is None else queue_id,
            sys_flag=4 if kind == "half" else 0,
            born_timestamp=EPOCH_MS,
            flag=0,
            properties="".join(f"{name}\x01{value}\x02" for name, value in properties.items()),
        )
        answer = await self._call(RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.to_ext(), body))
        message.end = self._broker.store.max_commitlog_offset
        message.promised = self._disk.now
        return message, SendMessageReply.from_ext(answer.ext_fields)

    async def sends(self, topic: str, count: int, **options: Any) -> None:
        for _ in range(count):
            await self.send(topic, **options)

    async def half(self, topic: str, how: int = 0) -> None:
        message, reply = await self.send(topic, "half", TRAN_MSG="true", PGROUP="p")
        if not how:
            return
        header = EndTransaction(
            producer_group="p",
            tran_state_table_offset=reply.queue_offset,
            commit_log_offset=parse_offset_id(reply.msg_id).commitlog_offset,
            commit_or_rollback=how,
            msg_id=reply.transaction_id,
        )
        message.end_asked, message.how = self._disk.now, how
        await self._call(RemotingCommand(RequestCode.END_TRANSACTION, header.to_ext()))

    async def delete(self, topic: str) -> None:
        asked = self._disk.now
        gone = [m for m in self._run.messages if m.topic == topic and m.kind == "plain"]
        gone = [m for m in gone if m.delete_asked == NEVER]
        for message in gone:
            message.delete_asked = asked
        await self._call(RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic(topic).to_ext()))
        for message in gone:
            message.delete_promised = self._disk.now

    async def retain(self) -> None:
        """Removes all files but the last, as if they were old; timers that wait there are put again first."""
        asked = self._disk.now
        for _ in range(10):
            if self._broker.store.delete_expired(4 * 10**12, manual=True).commitlog_files:
                break
            await asyncio.sleep(1)
        else:
            raise AssertionError("nothing was removed")
        for message in self._run.messages:
            if message.end <= self._broker.store.min_commitlog_offset:
                message.dropped = min(message.dropped, asked)


async def _work(disk: RecordedDisk, clock: VirtualClock, flush: str, run: Run, rounds: int) -> None:
    network = MemoryNetwork()
    broker = Broker(
        broker_config(disk.root, flush), network=network.host("10.0.0.11"), clock=clock, files=disk
    )
    await broker.start()
    pool = ChannelPool(network=network.host("10.0.0.99"))
    driver = _Driver(broker, disk, pool, run)
    for number in range(rounds):
        await driver.sends("Stays", 12, size=500)
        await driver.sends("Goes", 7)
        await driver.sends("Stays", 14, size=500)
        await driver.retain()
        await driver.send("Late", "delayed", DELAY="1")
        await driver.send("Late", "delayed", DELAY="3")
        await driver.send("Late", "delayed", TIMER_DELAY_SEC="2")
        await driver.send("Late", "delayed", TIMER_DELAY_SEC="14")
        await driver.half("Done")
        await driver.half("Done", COMMIT)
        await driver.half("Done", ROLLBACK)
        await driver.delete("Goes")
        await driver.sends("Goes", 3)
        await asyncio.sleep(4 + number)
        driver.note_flushed()
        await driver.sends("Goes", 2)
        await driver.delete("Goes")
        await asyncio.sleep(8)
        driver.note_flushed()
        await driver.sends("Goes", 4)
    await pool.close()
    await broker.close()
    driver.note_flushed()


def record(folder: Path, flush: str, rounds: int) -> tuple[RecordedDisk, Run]:
    disk, run = RecordedDisk(folder), Run()
    with _all_files_on(disk):
        in_virtual_time(lambda clock: _work(disk, clock, flush, run, rounds), EPOCH_MS)
    return disk, run


# --- after the crash -------------------------------------------------------------------------------


def check(folder: Path, run: Run, moment: int, flush: str, *, power_lost: bool) -> None:
    """Opens what a crash before operation ``moment`` left, waits until everything is due, and compares."""
    safe_end = run.durable_end(moment) if power_lost and flush == "ASYNC_FLUSH" else NEVER
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):  # nobody cuts the power now
            patch.setattr(os, name, lambda _: None, raising=False)
        found, halves = in_virtual_time(lambda clock: _look(folder, flush, clock), EPOCH_MS + 100_000)
    problems = []
    for message in run.messages:
        count = found[message.topic, message.body]
        promised = message.promised <= moment and message.end <= safe_end
        gone = min(message.delete_asked, message.dropped) < moment
        least, most = (1 if promised and not gone else 0), 1
        if message.asked >= moment or message.delete_promised <= moment:
            most = 0
        if message.kind == "delayed":
            most *= 2  # the progress is saved now and then: what was delivered since comes again
        elif message.kind == "half":
            waiting = halves[message.body]
            asked = message.end_asked
            committing = message.how == COMMIT and asked < moment
            ending = message.how == ROLLBACK and asked < moment
            if promised and not gone and not waiting and not count and not ending:
                problems.append(f"{message} neither waits nor is there")
            if waiting > 1:
                problems.append(f"{message} waits {waiting} times")
            least, most = 0, 1 if committing else 0
        if not least <= count <= most:
            problems.append(f"{message} is there {count} times, not {least} to {most}")
    assert not problems, "\n".join(problems)


async def _look(
    folder: Path, flush: str, clock: VirtualClock
) -> tuple[Counter[tuple[str, bytes]], Counter[bytes]]:
    network = MemoryNetwork()
    broker = Broker(broker_config(folder, flush), network=network.host("10.0.0.11"), clock=clock)
    await broker.start()
    try:
        await asyncio.sleep(_AFTERWARDS_SECONDS)
        pool = ChannelPool(network=network.host("10.0.0.99"))
        driver = _Driver(broker, RecordedDisk(folder / "unused"), pool, Run())
        for topic in (
            "Stays",
            "Goes",
        ):  # it goes on from there; a topic found without configuration may have one queue
            await driver.sends(topic, 2, queue_id=0)
        await pool.close()
        found: Counter[tuple[str, bytes]] = Counter()
        halves: Counter[bytes] = Counter()
        for topic in broker.store.topics():
            for queue_id in broker.store.queue_ids(topic):
                for record in _records(broker, topic, queue_id):
                    found[topic, record.body] += 1
        settled = {int(body) for topic, body in found if topic == topics.OP_HALF_TOPIC}
        for record in _records(broker, topics.HALF_TOPIC, 0):
            if record.queue_offset not in settled:
                halves[record.body] += 1
        return found, halves
    finally:
        await broker.close()


def _records(broker: Broker, topic: str, queue_id: int) -> list[Record]:
    """All of a queue, which has no hole, no double and nothing that cannot be read."""
    store = broker.store
    queue = store.find_queue(topic, queue_id)
    if queue is None:
        return []
    records = []
    entries = store.entries(topic, queue_id, 0, queue.max_offset)
    assert len(entries) == queue.max_offset - queue.min_offset, f"{queue}: {len(entries)} entries"
    for number, (offset, size, _) in enumerate(entries, start=queue.min_offset):
        assert size != FILLER_SIZE, f"{queue} has a hole at {number}"
        raw = store.record_at(offset)
        assert raw is not None and len(raw) == size, f"{queue}: entry {number} leads nowhere"
        found = decode_record(raw, check_crc=True)
        assert (found.topic, found.queue_id, found.queue_offset) == (topic, queue_id, number)
        records.append(found)
    return records
