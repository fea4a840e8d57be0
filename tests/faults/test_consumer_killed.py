"""Consumer processes: one is killed, the others go on where it was."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from gimbalmq.client.producer import Producer
from gimbalmq.testing import LocalCluster
from tests.faults.ground import (
    LIMIT,
    SEND_SECONDS,
    WORK_SECONDS,
    MemberProcess,
    Stream,
    happens,
    make_topic,
    more,
)
from tests.robustness.load import Account
from tests.support import run

pytestmark = pytest.mark.timeout(LIMIT)

QUEUES = 4


@pytest.mark.parametrize("handover", ["java", "lease"])
def test_the_queues_of_a_killed_process_are_taken_over_at_once(handover: str) -> None:
    """The closed connection tells the broker, and the broker the others: nobody waits for a timer."""

    async def work() -> None:
        account = Account()
        async with LocalCluster() as cluster:
            await make_topic(cluster.broker.address, queues=QUEUES)
            members = [MemberProcess(cluster.namesrv, handover=handover) for _ in range(2)]
            await asyncio.gather(*(member.start() for member in members))
            try:
                async with (
                    Producer("p", cluster.namesrv, send_timeout=SEND_SECONDS) as producer,
                    Stream(producer, account) as stream,
                ):
                    await happens(
                        lambda: [len(member.queues()) for member in members] == [2, 2],
                        "the queues were shared",
                    )
                    await more(account, 200, "with both")
                    await members[0].end(signal.SIGKILL)
                    killed = time.monotonic()
                    await happens(lambda: len(members[1].queues()) == QUEUES, "the other took over")
                    seconds = time.monotonic() - killed
                    await more(account, 100, "with one")
                    await stream.stop()
                    await happens(
                        lambda: account.acknowledged <= {*members[0].found(), *members[1].found()},
                        "everything was consumed",
                    )
                account.found = members[0].found() + members[1].found()
                print(f"\n{handover}: taken over after {seconds:.2f} s; {account}")
                assert not account.lost
                # By timers it would be 20 s, and 60 s where a lock has to end; a busy machine may need seconds.
                assert seconds < 15.0
            finally:
                for member in members:
                    await member.end(signal.SIGTERM)

    run(work(), WORK_SECONDS)


def test_a_process_that_is_told_to_end_leaves_nothing_to_be_done_twice() -> None:
    """SIGTERM is a planned change: with leases every message is consumed exactly once."""

    async def work() -> None:
        account = Account()
        async with LocalCluster() as cluster:
            await make_topic(cluster.broker.address, queues=QUEUES)
            members = [MemberProcess(cluster.namesrv, handover="lease") for _ in range(2)]
            await asyncio.gather(*(member.start() for member in members))
            try:
                async with (
                    Producer("p", cluster.namesrv, send_timeout=SEND_SECONDS) as producer,
                    Stream(producer, account) as stream,
                ):
                    await more(account, 200, "with both")
                    await members[0].end(signal.SIGTERM)
                    await more(account, 100, "with one")
                    await stream.stop()
                    await happens(
                        lambda: account.acknowledged <= {*members[0].found(), *members[1].found()},
                        "everything was consumed",
                    )
                account.found = members[0].found() + members[1].found()
                print(f"\n{account}")
                assert not account.lost
                assert account.repeated == 0
            finally:
                for member in members:
                    await member.end(signal.SIGTERM)

    run(work(), WORK_SECONDS)


@pytest.mark.parametrize("handover", ["java", "lease"])
def test_a_process_that_is_stopped_is_noticed_in_seconds_and_joins_again(handover: str) -> None:
    """SIGSTOP: its connections stand and nothing comes of it, as where an event loop is blocked."""

    async def work() -> None:
        account = Account()
        async with LocalCluster() as cluster:
            await make_topic(cluster.broker.address, queues=QUEUES)
            members = [MemberProcess(cluster.namesrv, handover=handover) for _ in range(2)]
            await asyncio.gather(*(member.start() for member in members))
            try:
                async with Producer("p", cluster.namesrv) as producer, Stream(producer, account) as stream:
                    await happens(
                        lambda: [len(member.queues()) for member in members] == [2, 2],
                        "the queues were shared",
                    )
                    await more(account, 100, "with both")
                    members[0].send(signal.SIGSTOP)
                    stopped = time.monotonic()
                    await happens(lambda: len(members[1].queues()) == QUEUES, "the other took over")
                    seconds = time.monotonic() - stopped
                    await more(account, 100, "with one")
                    members[0].send(signal.SIGCONT)
                    await happens(
                        lambda: [len(member.queues()) for member in members] == [2, 2],
                        "the queues were shared again",
                    )
                    await more(account, 100, "with both again")
                    await stream.stop()
                    await happens(
                        lambda: account.acknowledged <= {*members[0].found(), *members[1].found()},
                        "everything was consumed",
                    )
                print(f"\n{handover}: taken over after {seconds:.2f} s")
                assert not account.acknowledged - {*members[0].found(), *members[1].found()}
                # Three seconds of silence, and five of grace for leases; by the broker's own rule it would be 120.
                assert seconds < 60.0
            finally:
                for member in members:
                    member.send(signal.SIGCONT)
                    await member.end(signal.SIGTERM)

    run(work(), 120.0)
