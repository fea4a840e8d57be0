"""A broker process is killed with -9 and comes back, under a live producer and a live consumer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gimbalmq.client.producer import Producer
from gimbalmq.testing import LocalCluster
from tests.faults.ground import (
    LIMIT,
    SEND_SECONDS,
    WORK_SECONDS,
    Stream,
    all_found,
    consuming,
    happens,
    make_topic,
    more,
    name_server,
)
from tests.robustness.load import Account, BrokerProcess
from tests.support import run

pytestmark = pytest.mark.timeout(LIMIT)

SMALL_FILES = ("mappedFileSizeCommitLog=4194304", "mappedFileSizeConsumeQueue=20000", "maxHashSlotNum=1000")


def test_the_only_broker_is_killed_twice_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """Sends fail while it is away; what it had acknowledged is there when it is back, and goes on."""

    async def work() -> None:
        account = Account()
        async with name_server() as server:
            broker = BrokerProcess(tmp_path / "store", f"namesrvAddr={server.address}", *SMALL_FILES)
            await asyncio.to_thread(broker.start)
            try:
                await make_topic(broker.address)
                async with (
                    Producer("p", server.address, send_timeout=1.0) as producer,
                    consuming(server.address, account, persist_interval=0.5),
                    Stream(producer, account) as stream,
                ):
                    for _ in range(2):
                        await more(account, 150, "before the kill")
                        failed = stream.failed
                        await asyncio.to_thread(broker.kill)
                        await happens(lambda: stream.failed > failed, "a send failed")  # noqa: B023
                        await asyncio.to_thread(broker.start)
                        await more(account, 50, "after the restart")
                        consumed = len(set(account.found))
                        await happens(lambda: len(set(account.found)) > consumed, "consuming went on")  # noqa: B023
                    await stream.stop()
                    await all_found(account)
            finally:
                await asyncio.to_thread(broker.stop)

    run(work(), WORK_SECONDS)


def test_with_a_second_broker_sending_goes_on_while_the_first_is_dead(tmp_path: Path) -> None:
    """No send fails: each retry goes to the broker that lives."""

    async def work() -> None:
        account = Account()
        async with LocalCluster() as cluster:
            other = BrokerProcess(
                tmp_path / "store", f"namesrvAddr={cluster.namesrv}", "brokerName=broker-x", *SMALL_FILES
            )
            await asyncio.to_thread(other.start)
            try:
                await make_topic(cluster.broker.address, other.address)
                async with (
                    Producer("p", cluster.namesrv, send_timeout=SEND_SECONDS) as producer,
                    consuming(cluster.namesrv, account, persist_interval=0.5),
                    Stream(producer, account) as stream,
                ):
                    await more(account, 100, "with both")
                    await asyncio.to_thread(other.kill)
                    await more(account, 100, "with one of them dead")
                    await asyncio.to_thread(other.start)
                    await more(account, 100, "with both again")
                    await stream.stop()
                    await all_found(account)
                    assert stream.failed == 0
            finally:
                await asyncio.to_thread(other.stop)

    run(work(), WORK_SECONDS)
