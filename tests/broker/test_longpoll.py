"""Pulls that wait: woken by a message that fits, by their deadline, by shutdown."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.broker.longpoll import LongPoll, Parked
from gimbalmq.model.ids import parse_offset_id
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.store.consumequeue import QueueLog
from tests.broker.desk import Client, Desk, fields, open_desk, pulled, turns
from tests.support import ManualClock, run, until

SUSPEND = 2
SUBSCRIPTION = 4


async def _parked(desk: Desk, client: Client, **options: object) -> asyncio.Future[RemotingCommand]:
    """Starts a pull and returns when the broker holds it."""
    before = len(desk.broker.long_poll)
    settings = {"flags": SUSPEND | SUBSCRIPTION, "suspend_ms": 15_000} | options
    waiting = asyncio.ensure_future(client.pull(**settings))  # type: ignore[arg-type]
    await until(lambda: len(desk.broker.long_poll) == before + 1)
    return waiting


def test_pull_is_held_and_answered_as_soon_as_a_message_arrives(tmp_path: Path) -> None:
    """S3-01: not by polling: the append itself wakes it, so it is on its way before the sender's answer.

    The clock is only held to a bound far below the 15 s it may wait: test machines are busy.
    """

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            loop = asyncio.get_running_loop()
            waiting = await _parked(desk, desk.client)
            other_queue = await _parked(desk, desk.new_client(), queue_id=1)
            sent_at = loop.time()
            await desk.new_client().send(body=b"news")
            assert len(desk.broker.long_poll) == 1, "only the other queue's is still held"
            answer = await waiting
            assert loop.time() - sent_at < 5.0
            assert [record.body for record in pulled(answer)] == [b"news"]
            assert not other_queue.done() and len(desk.broker.long_poll) == 1
            other_queue.cancel()

    run(work())


def test_with_sync_flush_a_held_pull_is_answered_when_the_disk_has_the_message(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, flushDiskType="SYNC_FLUSH") as desk:
            await desk.create("T")
            disk = threading.Event()
            flush = desk.broker.store.flush

            def slow() -> int:
                disk.wait()
                return flush()

            desk.broker.store.flush = slow  # type: ignore[method-assign]
            waiting = await _parked(desk, desk.client)
            # WAIT=false: the sender does not wait for the disk, but readers do.
            await desk.new_client().send(body=b"news", text="WAIT\x01false\x02")
            await turns()
            assert not waiting.done()
            empty = await desk.new_client().pull(flags=SUBSCRIPTION)
            assert pulled(empty) == []
            disk.set()
            assert [record.body for record in pulled(await waiting)] == [b"news"]

    run(work())


def test_every_way_of_storing_wakes(tmp_path: Path) -> None:
    """Fast, general, after a delay, committed transaction: whoever stores, those who wait hear."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            reader = desk.new_client()

            async def wakes(offset: int, text: str) -> dict[str, str]:
                waiting = await _parked(desk, reader, offset=offset)
                answer = await desk.client.send(text=text)
                clock.advance(1)
                desk.broker.delays.tick()
                if "TRAN_MSG" in text:
                    end = {"producerGroup": "p", "commitOrRollback": "8"}
                    place = parse_offset_id(fields(answer)["msgId"]).commitlog_offset
                    end |= {"tranStateTableOffset": "0", "commitLogOffset": str(place)}
                    await desk.client.ok(RequestCode.END_TRANSACTION, end)
                (record,) = pulled(await waiting)
                return record.properties

            await wakes(0, "UNIQ_KEY\x01u\x02")
            await wakes(1, "A\x01general\x02")
            await wakes(2, "UNIQ_KEY\x01u\x02DELAY\x011\x02")
            await wakes(3, "UNIQ_KEY\x01u\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02")

    run(work())


def test_message_with_another_tag_does_not_wake(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            waiting = await _parked(desk, desk.client, expression="a || b")
            sender = desk.new_client()
            for tag in ("x", "y", "z"):
                await sender.send(properties={"TAGS": tag})
            await sender.send()
            await turns()
            assert not waiting.done() and len(desk.broker.long_poll) == 1
            await sender.send(properties={"TAGS": "b"})
            answer = await waiting
            (record,) = pulled(answer)
            assert (record.properties["TAGS"], record.queue_offset) == ("b", 4)
            assert len(desk.broker.long_poll) == 0

    run(work())


def test_deadline_ends_the_wait(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            waiting = await _parked(desk, desk.client, suspend_ms=40)
            answer = await waiting
            assert answer.code == 19 and fields(answer)["nextBeginOffset"] == "0"
            # Unwanted messages came meanwhile: the answer leads behind them.
            waiting = await _parked(desk, desk.client, expression="a")
            await desk.new_client().send(properties={"TAGS": "b"})
            desk.broker.long_poll.wake_all()
            answer = await waiting
            assert answer.code == 20 and fields(answer)["nextBeginOffset"] == "1"

    run(work())


def test_short_polling_where_long_polling_is_off(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, longPollingEnable=False, shortPollingTimeMills=30) as desk:
            await desk.create("T")
            waiting = await _parked(desk, desk.client, suspend_ms=60_000)
            assert (await waiting).code == 19

    run(work())


def test_without_the_suspend_flag_nothing_waits(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            assert (await desk.client.pull(suspend_ms=60_000)).code == 19
            # Only "nothing new" waits: an offset out of range is told at once.
            assert (
                await desk.client.pull(offset=9, flags=SUSPEND | SUBSCRIPTION, suspend_ms=60_000)
            ).code == 21

    run(work())


def test_shutdown_answers_those_who_wait(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            waiting = await _parked(desk, desk.client)
            await desk.broker.close()
            assert (await waiting).code == 19

    run(work())


def test_a_reset_wakes_the_pulls_of_its_group_and_queues(tmp_path: Path) -> None:
    """They are answered as the next pull after a reset is: go to the reset place."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T", queues=2)
            for queue_id in (0, 1):
                for _ in range(3):
                    await desk.client.send(queue_id=queue_id)
            left = await _parked(desk, desk.new_client(), offset=3)  # of a member that has lost the queue
            first = await _parked(desk, desk.client, offset=3)
            second = await _parked(desk, desk.new_client(), queue_id=1, offset=3)
            other_group = await _parked(desk, desk.new_client(), offset=3, group="h")
            reset = {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true"}
            await desk.client.ok(
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset | {"queueId": "0", "offset": "1"}
            )
            answer = await first
            assert (answer.code, answer.remark) == (21, "OFFSET_RESET")
            assert fields(answer)["nextBeginOffset"] == "1"
            answer = await left
            assert (answer.code, fields(answer)["nextBeginOffset"]) == (19, "3")
            assert len(desk.broker.long_poll) == 2, "another queue's and another group's are still held"
            first = await _parked(desk, desk.client, offset=3)
            await desk.client.ok(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset | {"timestamp": "0"})
            for waiting in (first, second):
                answer = await waiting
                assert (answer.code, fields(answer)["nextBeginOffset"]) == (21, "0")
            assert not other_group.done() and len(desk.broker.long_poll) == 1
            other_group.cancel()

    run(work())


def test_pull_of_a_dead_connection_does_no_harm(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            dead = desk.new_client()
            waiting = await _parked(desk, dead)
            await dead.cut()
            await asyncio.gather(waiting, return_exceptions=True)
            alive = await _parked(desk, desk.client)
            await desk.new_client().send()
            assert (await alive).code == 0
            assert len(desk.broker.long_poll) == 0

    run(work())


def test_what_was_true_when_it_parked_is_checked_again_when_it_wakes(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            waiting = await _parked(desk, desk.client, suspend_ms=15_000)
            await desk.new_client().ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
            desk.broker.long_poll.wake_all()
            answer = await waiting
            assert answer.code == 17 and "T" in (answer.remark or "")

    run(work())


def test_entries_are_looked_at_once() -> None:
    """A waiting pull remembers how far its tags have been compared."""

    async def work() -> None:
        looked: list[int] = []
        entries = [7, 7, 3]

        def tags_since(_queue: QueueLog, offset: int) -> list[int]:
            looked.append(offset)
            return entries[offset : queue.max_offset]

        queue = QueueLog("T", 0)
        poll = LongPoll(tags_since, LiveConfig(BrokerConfig()))
        woken: list[str] = []
        poll.park(Parked(("T", 0), "g", frozenset({3}), 0, poll, lambda: woken.append("tagged")), 60)
        poll.park(Parked(("T", 0), "g", None, 1, poll, lambda: woken.append("all")), 60)
        poll.arrived([queue])
        assert not looked and not woken, "nothing has grown"
        queue.max_offset = 1
        poll.arrived([queue, QueueLog("U", 0)])
        assert (looked, woken) == ([0], [])
        queue.max_offset = 2
        poll.arrived([queue])
        assert (looked, woken) == ([0, 1], ["all"])
        queue.max_offset = 3
        poll.arrived([queue])
        assert (looked, woken, len(poll)) == ([0, 1, 2], ["all", "tagged"], 0)

    run(work())
