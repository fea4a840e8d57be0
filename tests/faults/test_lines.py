"""Connections that are cut in the middle of a frame, stall, or are slow."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from gimbalmq.client.producer import Producer
from gimbalmq.errors import RequestTimeoutError
from gimbalmq.model.message import Message
from gimbalmq.testing import LocalCluster
from tests.faults.ground import (
    LIMIT,
    SEND_SECONDS,
    TOPIC,
    WORK_SECONDS,
    Stream,
    all_found,
    consuming,
    happens,
    make_topic,
    more,
)
from tests.faults.proxy import Proxy, Way
from tests.robustness.load import Account
from tests.support import run

pytestmark = [
    pytest.mark.timeout(LIMIT),
    pytest.mark.skipif(sys.platform != "linux", reason="needs a second loopback address"),
]

NEAR = "127.0.0.2"
"""Where brokers say they are, and their proxies wait."""


@asynccontextmanager
async def cluster_behind_proxies(brokers: int) -> AsyncIterator[tuple[LocalCluster, list[Proxy]]]:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(
            LocalCluster(brokers=brokers, properties={"brokerIP1": NEAR})
        )
        proxies = [
            await stack.enter_async_context(Proxy(NEAR, broker.port, ("127.0.0.1", broker.port)))
            for broker in cluster.brokers
        ]
        await make_topic(*(f"127.0.0.1:{broker.port}" for broker in cluster.brokers))
        yield cluster, proxies


def stored(cluster: LocalCluster) -> int:
    """Messages of the topic in all stores."""
    return sum(
        queue.max_offset
        for broker in cluster.brokers
        for number in range(4)
        if (queue := broker.store.find_queue(TOPIC, number)) is not None
    )


@pytest.mark.parametrize("way", ["to server", "to client"])
def test_a_frame_cut_in_the_middle_loses_nothing(way: Way) -> None:
    """Half a request is no message; half an answer is no acknowledgement, and the send is made again."""

    async def work() -> None:
        account = Account()
        async with (
            cluster_behind_proxies(1) as (cluster, (proxy,)),
            Producer("p", cluster.namesrv, send_timeout=SEND_SECONDS) as producer,
            consuming(cluster.namesrv, account, persist_interval=0.2),
            Stream(producer, account) as stream,
        ):
            for size in (1, 3, 4, 7, 8, 40, 100, 199):
                await more(account, 10, "between two cuts")
                cuts = proxy.cuts
                proxy.cut_inside(way, size)
                await happens(lambda: proxy.cuts > cuts, f"a frame was cut after {size} bytes")  # noqa: B023
            await more(account, 10, "after the last cut")
            await stream.stop()
            await all_found(account)
            assert stored(cluster) >= len(account.acknowledged)
            assert set(account.found) == account.acknowledged
            assert stream.failed == 0

    run(work(), WORK_SECONDS)


def test_every_connection_cut_again_and_again_loses_nothing() -> None:
    async def work() -> None:
        account = Account()
        async with (
            cluster_behind_proxies(2) as (cluster, proxies),
            Producer("p", cluster.namesrv, send_timeout=SEND_SECONDS) as producer,
            consuming(cluster.namesrv, account, persist_interval=0.2),
            Stream(producer, account) as stream,
        ):
            for number in range(10):
                await more(account, 20, "between two cuts")
                proxies[number % 2].cut()
            await more(account, 20, "after the last cut")
            await stream.stop()
            await all_found(account)
            assert stream.failed == 0

    run(work(), WORK_SECONDS)


def test_a_send_to_a_slow_broker_ends_when_its_time_is_up() -> None:
    """The timeout is that of the whole call: not of one attempt, and not of a connection."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        async with (
            cluster_behind_proxies(1) as (cluster, (proxy,)),
            Producer("p", cluster.namesrv, send_timeout=SEND_SECONDS) as producer,
        ):
            await producer.send(Message(TOPIC, b"first"))
            proxy.stall()
            # By attempts the second would be 6 s, and by the producer's own timeout both.
            for limit in (0.2, 2.0):
                begun = loop.time()
                with pytest.raises(RequestTimeoutError):
                    await producer.send(Message(TOPIC, b"slow"), timeout=limit)
                assert limit <= loop.time() - begun < limit + 3.0
            proxy.resume()
            # What was under way arrives: a timeout says that the outcome is unknown, not that it failed.
            await happens(lambda: stored(cluster) == 3, "the stalled sends arrived")
            proxy.delay = 0.1
            assert (await producer.send(Message(TOPIC, b"late"), timeout=5.0)).queue.topic == TOPIC

    run(work(), WORK_SECONDS)


def test_a_broker_that_was_slow_once_is_avoided_for_a_while() -> None:
    async def work() -> None:
        account = Account()
        async with (
            cluster_behind_proxies(2) as (cluster, proxies),
            Producer("p", cluster.namesrv, latency_fault=True, send_timeout=SEND_SECONDS) as producer,
            consuming(cluster.namesrv, account),
        ):
            for number in range(8):
                await producer.send(Message(TOPIC, b"warm-%d" % number))
            proxies[0].stall()
            failed = 0
            for number in range(40):
                body = b"m-%d" % number
                try:
                    result = await producer.send(Message(TOPIC, body), timeout=2.0)
                except RequestTimeoutError:
                    failed += 1
                else:
                    account.acknowledged.add(body)
                    assert result.queue.broker_name == "broker-b"
            assert failed <= 2, f"{failed} of 40 sends went to the broker that does not answer"
            proxies[0].resume()
            await all_found(account)

    run(work(), WORK_SECONDS)


def test_where_a_broker_refuses_connections_the_retry_goes_to_the_other() -> None:
    async def work() -> None:
        account = Account()
        async with (
            cluster_behind_proxies(2) as (cluster, proxies),
            Producer("p", cluster.namesrv, send_timeout=SEND_SECONDS) as producer,
            consuming(cluster.namesrv, account),
            Stream(producer, account) as stream,
        ):
            await more(account, 20, "with both")
            await cluster.kill_broker(0)
            proxies[0].cut()
            await more(account, 100, "with one")
            await cluster.start_broker(0)
            await more(account, 50, "with both again")
            await stream.stop()
            await all_found(account)
            assert stream.failed == 0

    run(work(), WORK_SECONDS)
