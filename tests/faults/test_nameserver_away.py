"""The name server is away: whoever has a route goes on."""

from __future__ import annotations

from gimbalmq.client.producer import Producer
from gimbalmq.testing import LocalCluster
from tests.faults.ground import Stream, all_found, consuming, make_topic, more, name_server
from tests.robustness.load import Account
from tests.support import run


def test_sending_and_consuming_go_on_without_a_name_server() -> None:
    """And when it is back, empty, on its old address, newcomers find the brokers again."""

    async def work() -> None:
        account = Account()
        async with LocalCluster(brokers=2, properties={"registerNameServerPeriod": 500}) as cluster:
            await make_topic(*(broker.address for broker in cluster.brokers))
            namesrv = cluster.namesrv
            async with (
                Producer("p", namesrv, poll_namesrv_interval=0.2) as producer,
                consuming(namesrv, account, poll_namesrv_interval=0.2),
                Stream(producer, account) as stream,
            ):
                await more(account, 100, "with a name server")
                await cluster.nameserver.close()
                await more(account, 300, "without one")
                async with name_server(int(namesrv.rpartition(":")[2])):
                    async with Producer("late", namesrv) as late, Stream(late, account, "late") as other:
                        await more(account, 200, "with a new one")
                        await other.stop()
                    await stream.stop()
                    await all_found(account)
                    assert stream.failed == 0
                    assert any(body.startswith(b"late") for body in account.acknowledged)

    run(work(), 60.0)
