"""Whom a reader is told to ask next, and what a slave says of offsets that it does not have."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from gimbalmq.broker.handlers import pull as pull_handlers
from gimbalmq.broker.replication.role import Kind, Role
from gimbalmq.protocol.bodies import GroupConfig
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import BINARY_HEADER, JSON_HEADER
from tests.broker.desk import Desk, fields, open_desk, pull_fields
from tests.support import run, until

HOST = b"\x7f\0\0\1\0\0\0\1"
SUSPEND, SUBSCRIPTION, COMMIT = 2, 4, 1


async def _set_up(desk: Desk, messages: int = 0) -> None:
    """A topic, and a group that reads at 5, and at 7 if it is slow."""
    await desk.create("T")
    group = GroupConfig(group_name="g", broker_id=5, which_broker_when_consume_slowly=7)
    await desk.client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, group.dump())
    _append(desk, messages)


def _append(desk: Desk, count: int) -> None:
    """So many messages, as they come to a slave: no send is their cause."""
    store = desk.broker.store
    with store.group() as group:
        for _ in range(count):
            group.add(store.queue("T", 0), b"body", b"", 3, 0, 0, 0, HOST, 0, 0)
    desk.broker.long_poll.arrived([store.queue("T", 0)])


def _be_slave(desk: Desk, *, acting: bool = False) -> None:
    """From here on the broker is a slave for whoever reads."""
    desk.broker.roles.now = Role(Kind.SLAVE, 1, acting=acting)


def _told(answer: object, name: str) -> int:
    return int(fields(answer)[name])  # type: ignore[arg-type]


# --- whom to ask next ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "enabled", "told"), [(40, True, 5), (0, True, 7), (0, False, 0), (40, False, 0)]
)
def test_suggestion_is_the_groups_if_slaves_may_be_read(
    tmp_path: Path, ratio: int, enabled: bool, told: int
) -> None:
    """S3-18: whichBrokerWhenConsumeSlowly if what was found is behind the part of the log that is in memory, else
    brokerId; the master without slaveReadEnable. Every way to answer says the same."""

    async def work() -> None:
        async with open_desk(tmp_path, accessMessageInMemoryMaxRatio=ratio, slaveReadEnable=enabled) as desk:
            await _set_up(desk, 600)
            for encoding in (JSON_HEADER, BINARY_HEADER):
                for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
                    answer = await desk.client.ask(code, pull_fields("T", 0, 0), encoding=encoding)
                    assert (answer.code, _told(answer, "suggestWhichBrokerId")) == (0, told)
            # Hundreds in one go.
            answer = await desk.client.pull(count=500, maxMsgBytes="1000000")
            assert (_told(answer, "nextBeginOffset"), _told(answer, "suggestWhichBrokerId")) == (500, told)
            # Nothing that the reader wants.
            answer = await desk.client.pull(expression="other")
            assert (answer.code, _told(answer, "suggestWhichBrokerId")) == (20, told)
            # At the end there is nothing to be behind with.
            answer = await desk.client.pull(offset=600)
            assert (answer.code, _told(answer, "suggestWhichBrokerId")) == (19, 5 if enabled else 0)

    run(work())


def test_slave_reads_can_be_switched_on_at_run_time(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await _set_up(desk, 1)
            assert _told(await desk.client.pull(), "suggestWhichBrokerId") == 0
            await desk.client.ok(RequestCode.UPDATE_BROKER_CONFIG, None, b"slaveReadEnable=true\n")
            assert _told(await desk.client.pull(), "suggestWhichBrokerId") == 5

    run(work())


# --- at a slave ------------------------------------------------------------------------------------


@pytest.mark.parametrize("enabled", [True, False])
def test_slave_answers_whoever_asks(tmp_path: Path, enabled: bool) -> None:
    """As 4.9's: slaveReadEnable decides whom readers are sent to, not whether a slave serves them."""

    async def work() -> None:
        async with open_desk(tmp_path, slaveReadEnable=enabled) as desk:
            await _set_up(desk, 3)
            _be_slave(desk)
            answer = await desk.client.pull()
            assert (answer.code, _told(answer, "nextBeginOffset")) == (0, 3)
            assert _told(answer, "suggestWhichBrokerId") == (5 if enabled else 0)

    run(work())


def test_slave_does_not_correct_offsets_unless_told_to(tmp_path: Path) -> None:
    """What is out of range here may be in range at the master: 20 instead of 21, at the offset that was asked for, and
    the group's replica. offsetCheckInSlave has it do what a master does."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await _set_up(desk, 6)
            queue = desk.broker.store.find_queue("T", 0)
            assert queue is not None
            queue.min_offset = 2

            async def outcome(offset: int, queue_id: int = 0) -> tuple[int, int, int]:
                answer = await desk.client.pull(offset=offset, queue_id=queue_id)
                return answer.code, _told(answer, "nextBeginOffset"), _told(answer, "suggestWhichBrokerId")

            moved = [(21, 2, 0), (21, 6, 0), (21, 0, 0)]
            places = ((1, 0), (9, 0), (9, 1))
            assert [await outcome(*place) for place in places] == moved
            _be_slave(desk)
            assert [await outcome(*place) for place in places] == [(20, 1, 5), (20, 9, 5), (20, 9, 5)]
            assert await outcome(6) == (19, 6, 0)
            await desk.client.ok(RequestCode.UPDATE_BROKER_CONFIG, None, b"offsetCheckInSlave=true\n")
            assert [await outcome(*place) for place in places] == moved

    run(work())


@pytest.mark.parametrize("offset", [3, 4])
def test_pulls_at_a_slave_wait_for_what_comes_from_the_master(tmp_path: Path, offset: int) -> None:
    """At its end, and behind it: the reader was further than the slave is."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await _set_up(desk, 3)
            _be_slave(desk)
            waiting = asyncio.ensure_future(
                desk.client.pull(offset=offset, flags=SUSPEND | SUBSCRIPTION, suspend_ms=20_000)
            )
            await until(lambda: len(desk.broker.long_poll) == 1)
            _append(desk, 2)
            answer = await waiting
            assert (answer.code, _told(answer, "nextBeginOffset")) == (0, 5)

    run(work())


@pytest.mark.parametrize(("offset", "low"), [(9, 0), (1, 2)])
def test_reader_out_of_range_does_not_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int, low: int
) -> None:
    """With the master dead, its clients come back to the slave at once; so the slave keeps the question for a while."""
    monkeypatch.setattr(pull_handlers, "OUT_OF_RANGE_SECONDS", 0.2)

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await _set_up(desk, 6)
            queue = desk.broker.store.find_queue("T", 0)
            assert queue is not None
            queue.min_offset = low
            _be_slave(desk)
            begun = time.monotonic()
            answer = await desk.client.pull(offset=offset, flags=SUSPEND | SUBSCRIPTION, suspend_ms=20_000)
            assert 0.15 <= time.monotonic() - begun < 5
            assert (answer.code, _told(answer, "nextBeginOffset")) == (20, offset)
            # Who does not want to wait does not.
            begun = time.monotonic()
            assert (await desk.client.pull(offset=offset)).code == 20
            assert time.monotonic() - begun < 0.15

    run(work())


def test_only_a_master_and_who_stands_in_for_it_note_progress_of_pulls(tmp_path: Path) -> None:
    """S3-19."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await _set_up(desk, 3)
            _be_slave(desk)
            await desk.client.pull(flags=COMMIT | SUBSCRIPTION, commit=2)
            assert desk.broker.offsets.get("g", "T", 0) == -1
            _be_slave(desk, acting=True)
            await desk.client.pull(flags=COMMIT | SUBSCRIPTION, commit=2)
            assert desk.broker.offsets.get("g", "T", 0) == 2

    run(work())
