"""Queue locks of ordered consumers."""

from __future__ import annotations

from pathlib import Path

import pytest

from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.broker.locks import QueueLocks
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.bodies import ConsumerData, Heartbeat, LockRequest, QueueObject
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.headers.groups import HeartbeatReply, HeartbeatRequest
from tests.broker.desk import Client, open_desk
from tests.support import ManualClock, run

Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


def test_lock_is_taken_renewed_refused_and_taken_over() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock)
    assert locks.lock("g", "a", [Q0, Q1]) == [Q0, Q1]
    assert locks.lock("g", "b", [Q0]) == []
    assert locks.lock("other", "b", [Q0]) == [Q0], "groups do not meet"
    clock.advance(60)
    assert locks.lock("g", "b", [Q0]) == [], "60 s exactly is not yet over"
    assert locks.lock("g", "a", [Q0]) == [Q0]
    clock.advance(0.001)
    assert locks.lock("g", "b", [Q0, Q1]) == [Q1], "only the one not renewed has run out"
    assert locks.lock("g", "a", [Q0, Q1]) == [Q0]


def test_the_lock_of_one_that_is_no_member_is_given_to_a_member_that_asks_for_that(tmp_path: Path) -> None:
    """Not to one that does not, as Java's do not; and never a member's."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            await desk.client.heartbeat("b", group="g")

            async def granted(client_id: str, **ext: str) -> bool:
                body = LockRequest(
                    client_id=client_id,
                    consumer_group="g",
                    mq_set=[QueueObject(topic="T", broker_name="broker-a", queue_id=0)],
                ).dump()
                answer = await desk.client.json(RequestCode.LOCK_BATCH_MQ, ext or None, body)
                return bool(answer["lockOKMQSet"])

            assert await granted("gone")
            assert not await granted("b")
            assert await granted("b", takeOver="true")
            assert not await granted("c", takeOver="true")
            assert not await granted("gone")

    run(work())


def test_only_the_owner_unlocks() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock)
    locks.lock("g", "a", [Q0])
    locks.unlock("g", "b", [Q0])
    locks.unlock("nobody", "a", [Q0])
    assert locks.lock("g", "b", [Q0]) == []
    locks.unlock("g", "a", [Q0, Q1])
    assert not locks.any_locked("g")
    assert locks.lock("g", "b", [Q0]) == [Q0]


def test_a_group_is_locked_while_one_lock_lives() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock)
    assert not locks.any_locked("g")
    locks.lock("g", "a", [Q0])
    clock.advance(60)
    assert locks.any_locked("g")
    clock.advance(0.001)
    assert not locks.any_locked("g")
    locks.lock("g", "a", [Q0])
    locks.forget("g")
    assert not locks.any_locked("g")


def _body(client_id: str, *queues: int) -> bytes:
    wanted = [QueueObject(topic="T", broker_name="broker-a", queue_id=queue) for queue in queues]
    return LockRequest(client_id=client_id, consumer_group="g", mq_set=wanted).dump()


async def _lock(client: Client, client_id: str, *queues: int) -> list[int]:
    body = await client.json(RequestCode.LOCK_BATCH_MQ, None, _body(client_id, *queues))
    return sorted(queue["queueId"] for queue in body["lockOKMQSet"])


def test_locks_over_the_wire(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            await desk.client.heartbeat(group="g")
            assert await _lock(desk.client, "a", 0, 1) == [0, 1]
            assert await _lock(desk.client, "b", 1, 2) == [2]
            assert await _lock(desk.client, "b") == []
            await desk.client.ok(RequestCode.UNLOCK_BATCH_MQ, None, _body("b", 1))
            assert await _lock(desk.client, "b", 1) == [], "not b's to release"
            await desk.client.tell(RequestCode.UNLOCK_BATCH_MQ, None, _body("a", 1))
            assert await _lock(desk.client, "b", 1) == [1]
            clock.advance(61)
            assert await _lock(desk.client, "b", 0, 1) == [0, 1]
            answer = await desk.client.ask(RequestCode.LOCK_BATCH_MQ, None, b"[]")
            assert answer.code == ResponseCode.SYSTEM_ERROR and "LockRequest" in (answer.remark or "")
            # In memory only: a restarted broker knows no locks.
            await desk.restart()
            assert await _lock(desk.client, "c", 0) == [0]

    run(work())


def test_locks_are_bounded_and_those_held_are_renewed(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    locks = QueueLocks(clock, live=LiveConfig(BrokerConfig(max_queue_locks=3)))
    queues = [MessageQueue("T", "b", number) for number in range(5)]
    assert locks.lock("g", "c", queues) == queues[:3]
    assert locks.lock("h", "c", queues[:1]) == [] and len(locks) == 3
    assert len([record for record in caplog.records if "maxQueueLocks" in record.message]) == 1
    clock.advance(50)
    assert locks.lock("g", "c", queues) == queues[:3], "what is held is renewed"
    locks.unlock("g", "c", queues[:1])
    assert locks.lock("h", "c", queues) == queues[:1]
    clock.advance(120)
    locks.expire()
    assert locks.lock("h", "c", queues) == queues[:3]


def test_heartbeats_tell_for_a_while_that_a_restart_has_forgotten_the_locks_of_a_group(
    tmp_path: Path,
) -> None:
    """A member that joins now must not take a lock before its holder has asked for it again."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:

            async def told(*groups: str) -> int | None:
                data = [ConsumerData(group_name=group) for group in groups]
                answer = await desk.client.ask(
                    RequestCode.HEART_BEAT,
                    HeartbeatRequest(liveness_millis=3000).to_ext(),
                    Heartbeat(client_id="c", consumer_data_set=data).dump(),
                )
                return HeartbeatReply.from_ext(answer.ext_fields).uptime_millis

            assert await told("g") is None, "a group that is new has had no locks"
            await desk.restart()
            clock.advance(2.5)
            assert await told("g") == 2500
            assert await told("other") is None
            assert await told("other", "g") == 2500
            clock.advance(58)
            assert await told("g") is None, "they would have ended by now"

    run(work())
