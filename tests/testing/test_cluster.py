"""A cluster in the test's own process, on its loop, in a thread, and in virtual time."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from gimbalmq.errors import ConfigError, RocketMQError, StateError
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.rpc import nameserver as rpc
from gimbalmq.testing import LocalCluster, MemoryNetwork, VirtualClock, run_virtual
from gimbalmq.transport.network import Network
from gimbalmq.transport.pool import ChannelPool
from tests.support import run, until


async def _send(
    pool: ChannelPool, address: str, topic: str, body: bytes, timeout: float = 3.0
) -> RemotingCommand:
    """One message into queue 0, by hand: this level is below the client."""
    fields = {
        "producerGroup": "pg",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "0",
        "properties": "",
    }
    answer = await pool.call(address, RemotingCommand(RequestCode.SEND_MESSAGE, fields, body), timeout)
    assert answer.code == 0, answer
    return answer


async def _max_offset(pool: ChannelPool, address: str, topic: str) -> int:
    fields = {"topic": topic, "queueId": "0"}
    answer = await pool.call(address, RemotingCommand(RequestCode.GET_MAX_OFFSET, fields), 3.0)
    assert answer.code == 0, answer
    return int((answer.ext_fields or {})["offset"])


async def _brokers(pool: ChannelPool, namesrv: str) -> list[str]:
    return sorted((await rpc.cluster_info(pool, namesrv)).broker_addr_table)


def test_cluster_is_registered_when_it_is_entered() -> None:
    async def main() -> Path:
        async with LocalCluster(brokers=2) as cluster:
            pool = ChannelPool()
            assert await _brokers(pool, cluster.namesrv) == ["broker-a", "broker-b"]
            assert [broker.live.now.broker_name for broker in cluster.brokers] == ["broker-a", "broker-b"]
            await _send(pool, cluster.broker.address, "T", b"hello")
            await pool.close()
            return cluster.folder

    assert not asyncio.run(main()).exists()


def test_kept_store_survives_the_cluster(tmp_path: Path) -> None:
    async def once() -> int:
        async with LocalCluster(store=tmp_path) as cluster:
            pool = ChannelPool()
            await _send(pool, cluster.broker.address, "T", b"hello")
            found = await _max_offset(pool, cluster.broker.address, "T")
            await pool.close()
            return found

    assert asyncio.run(once()) == 1
    assert asyncio.run(once()) == 2
    assert not (tmp_path / "broker-a" / "abort").exists()


def test_restarted_broker_keeps_address_and_messages() -> None:
    async def main() -> None:
        async with LocalCluster() as cluster:
            pool = ChannelPool()
            before = cluster.broker.address
            await _send(pool, before, "T", b"hello")
            await cluster.restart_broker()
            assert cluster.broker.address == before
            assert cluster.broker.recovery is not None and cluster.broker.recovery.clean
            assert await _max_offset(pool, before, "T") == 1
            await pool.close()

    asyncio.run(main())


@pytest.mark.parametrize("in_memory", [False, True])
def test_moved_broker_has_another_address_and_its_messages(in_memory: bool) -> None:
    async def main(network: MemoryNetwork | None) -> None:
        async with LocalCluster(network=network) as cluster:
            pool = ChannelPool(network=None if network is None else network.host("10.0.0.99"))
            before = cluster.broker.address
            await _send(pool, before, "T", b"one")
            with pytest.raises(StateError, match="broker-a is running: stop it first"):
                cluster.move_broker()
            await cluster.kill_broker()
            cluster.move_broker()
            await cluster.start_broker()
            assert cluster.broker.address != before
            assert await _max_offset(pool, cluster.broker.address, "T") == 1
            route = await rpc.route(pool, cluster.namesrv, "T")
            assert route.broker_datas[0].broker_addrs == {0: cluster.broker.address}
            await pool.close()

    if in_memory:
        run_virtual(lambda clock: main(MemoryNetwork()))
    else:
        asyncio.run(main(None))


def test_killed_broker_leaves_a_folder_to_recover_and_a_name_server_that_noticed() -> None:
    async def main() -> None:
        async with LocalCluster() as cluster:
            pool = ChannelPool()
            address = cluster.broker.address
            for _ in range(10):
                await _send(pool, address, "T", b"hello")
            await cluster.kill_broker()
            assert cluster.brokers == []
            with pytest.raises(StateError):
                _ = cluster.broker
            assert (cluster.folder / "broker-a" / "abort").exists()
            assert await _brokers(pool, cluster.namesrv) == []
            with pytest.raises(RocketMQError):
                await _send(pool, address, "T", b"nobody there")
            broker = await cluster.start_broker()
            assert broker.recovery is not None and not broker.recovery.clean
            assert await _max_offset(pool, address, "T") == 10
            await pool.close()

    asyncio.run(main())


def test_misspelt_properties_are_refused() -> None:
    async def main() -> None:
        async with LocalCluster(properties={"autoCreateTopicEnabled": False}):
            raise AssertionError("must not start")

    with pytest.raises(ConfigError, match="autoCreateTopicEnabled"):
        asyncio.run(main())


def test_in_thread_serves_blocking_callers() -> None:
    with LocalCluster.in_thread(properties={"autoCreateTopicEnable": True}) as cluster:

        async def talk() -> int:
            pool = ChannelPool()
            await _send(pool, cluster.broker.address, "T", b"hello")
            found = await _max_offset(pool, cluster.broker.address, "T")
            await pool.close()
            return found

        assert asyncio.run(talk()) == 1
        cluster.restart_broker()
        assert asyncio.run(talk()) == 2
        cluster.kill_broker()
        cluster.start_broker()
        assert asyncio.run(talk()) == 3
        cluster.stop_broker()
        folder = cluster.folder
    assert not folder.exists()
    with pytest.raises(StateError):
        cluster.restart_broker()


def test_failed_start_in_thread_raises_and_leaves_no_thread() -> None:
    cluster = LocalCluster.in_thread(properties={"flushDiskType": "MAYBE"})
    with pytest.raises(ConfigError):
        cluster.start()
    assert cluster._thread is None


# -- virtual time --------------------------------------------------------------------


def test_a_whole_cluster_lives_in_virtual_time(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> float:
        network = MemoryNetwork(seed=4)
        async with LocalCluster(brokers=2, network=network, clock=clock, store=tmp_path) as cluster:
            view: Network = network.host("10.0.0.99")
            pool = ChannelPool(network=view)
            assert await _brokers(pool, cluster.namesrv) == ["broker-a", "broker-b"]
            await _send(pool, cluster.broker.address, "T", b"hello")
            await asyncio.sleep(600)
            assert await _brokers(pool, cluster.namesrv) == ["broker-a", "broker-b"]
            assert await _max_offset(pool, cluster.broker.address, "T") == 1
            await pool.close()
        return clock.monotonic()

    assert run_virtual(main) > 600


def test_a_broker_behind_a_cut_cable_is_dropped_and_comes_back(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        network = MemoryNetwork(seed=9)
        async with LocalCluster(network=network, clock=clock, store=tmp_path) as cluster:
            pool = ChannelPool(network=network.host("10.0.0.99"))
            network.cut("10.0.0.1", "10.0.0.11")
            await asyncio.sleep(100)
            assert await _brokers(pool, cluster.namesrv) == ["broker-a"]
            await asyncio.sleep(30)  # 120 s of silence and one look
            assert await _brokers(pool, cluster.namesrv) == []
            network.mend()
            await asyncio.sleep(60)
            assert await _brokers(pool, cluster.namesrv) == ["broker-a"]
            await pool.close()

    run_virtual(main)


def _run(seed: int, folder: Path) -> list[tuple[float, str, str, str]]:
    network = MemoryNetwork(seed=seed, delay=(0.001, 0.1), loss=0.02)

    async def main(clock: VirtualClock) -> None:
        async with LocalCluster(network=network, clock=clock, store=folder) as cluster:
            pool = ChannelPool(network=network.host("10.0.0.99"))
            for number in range(10):
                await _send(pool, cluster.broker.address, "T", bytes(number + 1), 60.0)
            await asyncio.sleep(60)
            await pool.close()

    run_virtual(main)
    return network.trace


def test_equal_seeds_give_equal_cluster_runs(tmp_path: Path) -> None:
    first = _run(21, tmp_path / "a")
    assert first == _run(21, tmp_path / "b")
    assert first != _run(22, tmp_path / "c")


def test_slaves_have_what_their_masters_have_when_they_are_in_step() -> None:
    async def main() -> None:
        async with LocalCluster(brokers=2, replicas=2) as cluster:
            assert [broker.live.now.broker_id for broker in cluster.brokers] == [0, 1, 0, 1]
            pool = ChannelPool()
            for index in (0, 1):
                await _send(pool, cluster.replica(index).address, "T", b"hello")
            await cluster.in_step()
            for index in (0, 1):
                master, slave = cluster.replica(index), cluster.replica(index, 1)
                assert master.live.now.broker_name == slave.live.now.broker_name
                end = master.store.max_commitlog_offset
                assert slave.store.max_commitlog_offset == end > 0
                assert slave.store_path.name == f"{master.store_path.name}-1"
            with pytest.raises(ConfigError, match="use one of broker-a, broker-b with an id of 0 to 1"):
                await cluster.kill_broker(("broker-c", 0))
            with pytest.raises(ConfigError, match="use one of broker-a, broker-b with an id of 0 to 1"):
                await cluster.kill_broker(("broker-a", 2))
            await cluster.kill_broker(("broker-b", 1))
            await _send(pool, cluster.replica(1).address, "T", b"alone")
            await cluster.in_step()  # one that is down is not waited for
            with pytest.raises(StateError, match="is not running"):
                cluster.replica(1, 1)
            await cluster.start_broker(("broker-b", 1))
            await cluster.in_step()
            slave = cluster.replica(1, 1)
            slave.store.receive = lambda offset, data, written=None: []  # type: ignore[method-assign]
            await _send(pool, cluster.replica(1).address, "T", b"not taken")
            with pytest.raises(TimeoutError, match="broker-b, slave 1 has its log up to"):
                await cluster.in_step(0.2)
            await pool.close()

    asyncio.run(main())


def test_a_slave_takes_its_masters_place_and_the_master_comes_back_as_its_slave() -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match="replicas"):
            LocalCluster(replicas=0)
        async with LocalCluster(replicas=2) as cluster:
            old, new = ("broker-a", 0), ("broker-a", 1)
            pool = ChannelPool()
            await _send(pool, cluster.find(old).address, "T", b"before")
            await cluster.in_step()
            address, ha_port = cluster.find(old).address, cluster.find(old).ha_port
            await cluster.kill_broker(old)
            await cluster.promote_broker(new, wait=True)
            assert (
                cluster.find(new).roles.is_master and cluster.find(new).live.now.broker_role == "SYNC_MASTER"
            )
            await cluster.demote_broker(old, 2)
            await cluster.start_broker(old)
            assert (cluster.find(old).address, cluster.find(old).ha_port) == (address, ha_port)
            await until(lambda: cluster.find(new).source.acks.connected)
            await _send(pool, cluster.find(new).address, "T", b"after")
            await cluster.in_step()
            role = cluster.find(old).roles.now
            assert (role.is_master, role.broker_id) == (False, 2)
            assert (
                cluster.find(old).store.max_commitlog_offset
                == cluster.find(new).store.max_commitlog_offset
                > 0
            )
            await pool.close()

    asyncio.run(main())


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux lets a port be kept beside who listens there later"
)
@pytest.mark.parametrize("how", ["kill_broker", "stop_broker"])
def test_nobody_takes_the_ports_of_a_broker_while_it_ends(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That may take long, and whoever listens on any free port would be given them."""

    async def work() -> None:
        async with LocalCluster() as cluster:
            broker = cluster.brokers[0]
            ports, ended = (broker.port, broker.ha_port), asyncio.Event()
            close = broker.copies.close

            async def slow() -> None:
                await ended.wait()
                await close()

            monkeypatch.setattr(broker.copies, "close", slow)
            ending = asyncio.ensure_future(getattr(cluster, how)())
            slot = cluster._slots[0]
            await until(lambda: broker.port in slot.held)
            assert not ending.done()
            ended.set()
            await ending
            assert slot.held.keys() == set(ports)
            await cluster.start_broker()
            assert (cluster.brokers[0].port, cluster.brokers[0].ha_port) == ports and not slot.held

    run(work())
