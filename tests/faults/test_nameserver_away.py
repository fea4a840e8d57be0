"""The name server is away: whoever has a route goes on."""

from __future__ import annotations

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
from tests.peers.process import free_port
from tests.robustness.load import Account
from tests.support import run

pytestmark = pytest.mark.timeout(LIMIT)


def test_sending_and_consuming_go_on_without_a_name_server() -> None:
    """And when it is back, empty, on its old address, newcomers find the brokers again."""

    async def work() -> None:
        account = Account()
        port = free_port()  # one that nobody is given while the name server is away
        async with LocalCluster(
            brokers=2,
            properties={"registerNameServerPeriod": 500},
            namesrv_properties={"listenPort": port},
        ) as cluster:
            await make_topic(*(broker.address for broker in cluster.brokers))
            namesrv = cluster.namesrv
            async with (
                Producer("p", namesrv, poll_namesrv_interval=0.2, send_timeout=SEND_SECONDS) as producer,
                consuming(namesrv, account, poll_namesrv_interval=0.2),
                Stream(producer, account) as stream,
            ):
                await more(account, 100, "with a name server")
                await cluster.nameserver.close()
                await more(account, 300, "without one")
                async with name_server(port):
                    async with Producer("late", namesrv) as late, Stream(late, account, "late") as other:
                        await more(account, 200, "with a new one")
                        # It finds nobody until a broker has registered again.
                        await happens(
                            lambda: any(body.startswith(b"late") for body in account.acknowledged),
                            "a message of the newcomer was acknowledged",
                        )
                        await other.stop()
                    await stream.stop()
                    await all_found(account)
                    assert stream.failed == 0

    run(work(), WORK_SECONDS)
