"""The id of a slave is its own, and a slave that finds no master says where it looks, and why there is none.

Everything runs in virtual time, over a network in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gimbalmq.broker.broker import Broker
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.broker.replication.follower import State
from gimbalmq.errors import ConfigError, InvalidParameterError
from gimbalmq.rpc import management
from tests.broker.replication.pairs import FILE, Pair, pair

HOST = "10.0.0.13"
NAMESERVER = "10.0.0.1"


@asynccontextmanager
async def newcomer(pair: Pair, folder: Path, **properties: object) -> AsyncIterator[Broker]:
    """Another slave of broker-a, on a machine of its own."""
    host = str(properties.get("bindAddress", HOST))
    config, unknown = BrokerConfig.from_properties(
        {
            "brokerName": "broker-a",
            "brokerRole": "SLAVE",
            "brokerId": "1",
            "bindAddress": host,
            "brokerIP1": host,
            "brokerIP2": host,
            "listenPort": "10911",
            "mappedFileSizeCommitLog": str(FILE),
            "namesrvAddr": pair.cluster.namesrv,
            "storePathRootDir": str(folder),
            **{key: str(value) for key, value in properties.items()},
        }
    )
    assert not unknown
    broker = Broker(config, network=pair.network.host(host), clock=pair.clock)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()


def trouble(broker: Broker) -> str:
    return broker.replication.status().trouble or ""


def follows(broker: Broker) -> bool:
    return broker.replication.follower.state is State.FOLLOWING


def test_a_slave_does_not_start_with_the_id_of_one_that_lives(tmp_path: Path) -> None:
    async def body(pair: Pair) -> None:
        with pytest.raises(ConfigError) as refused:
            async with newcomer(pair, tmp_path):
                pass
        text = str(refused.value)
        assert f"{pair.slave.address} is slave 1 of broker-a" in text and "such as 2" in text, text
        assert (await pair.addresses())[1] == pair.slave.address and not trouble(pair.slave)
        async with newcomer(pair, tmp_path, brokerId=2) as other:
            await pair.until(lambda: follows(other))
            assert len(await pair.addresses()) == 3
            await asyncio.sleep(60.0)
            assert not trouble(other) and not trouble(pair.slave)

    pair(body)


def test_a_slave_may_move_while_the_name_server_still_lists_where_it_was(tmp_path: Path) -> None:
    """Its machine went dark, so nobody has told the name server that it is gone."""

    async def body(pair: Pair) -> None:
        before = pair.slave
        pair.network.vanish("10.0.0.12")
        await before.abandon()
        assert (await pair.addresses())[1] == before.address
        async with newcomer(pair, tmp_path) as moved:
            await pair.until(lambda: follows(moved))
            assert (await pair.addresses())[1] == moved.address and not trouble(moved)
        pair.cluster._slots[1].broker = None

    pair(body)


def test_a_slave_that_is_told_another_id_by_hand_does_not_take_one_of_a_living_slave(tmp_path: Path) -> None:
    async def body(pair: Pair) -> None:
        async with newcomer(pair, tmp_path, brokerId=2) as other:
            with pytest.raises(InvalidParameterError, match=f"{pair.slave.address} is slave 1 of broker-a"):
                await pair.set(other, brokerId=1)
            assert other.roles.now.broker_id == 2
            await pair.set(other, brokerId=3)
            assert other.roles.now.broker_id == 3

    pair(body)


def test_two_slaves_of_one_id_that_are_found_later_both_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(pair: Pair) -> None:
        pair.network.cut(HOST, NAMESERVER)
        with caplog.at_level(logging.WARNING):
            async with newcomer(pair, tmp_path) as other:
                pair.network.mend()
                await pair.until(lambda: trouble(other) and trouble(pair.slave), 300.0)
                assert f"{pair.slave.address} is slave 1 of broker-a" in trouble(other)
                assert f"{other.address} is slave 1 of broker-a" in trouble(pair.slave)
                await pair.until(lambda: follows(other) and follows(pair.slave))
            said = [
                record.getMessage() for record in caplog.records if "is slave 1 of" in record.getMessage()
            ]
            assert len(said) == 2, said
        await pair.until(lambda: not trouble(pair.slave), 60.0)

    pair(body)


def test_a_slave_whom_the_name_server_ignores_says_who_has_its_id(tmp_path: Path) -> None:
    """After a promotion a registration with older tables does not replace one with newer ones."""

    async def body(pair: Pair) -> None:
        holder = pair.slave
        pair.master.topics.new_term(5)
        await pair.until(lambda: holder.topics.version.state_version == 5)
        await asyncio.sleep(31.0)
        pair.network.cut(HOST, NAMESERVER)
        async with newcomer(pair, tmp_path) as other:
            pair.network.mend()
            await pair.until(lambda: f"{holder.address} is slave 1 of broker-a" in trouble(other))
            assert "looks for the master of broker-a" in trouble(other)
            assert f"at {pair.cluster.namesrv}" in trouble(other)
            # It dies, and nobody tells the name server.
            pair.network.vanish("10.0.0.12")
            await holder.abandon()
            pair.cluster._slots[1].broker = None
            await pair.until(lambda: "forgotten within minutes" in trouble(other))
            await pair.until(lambda: "and lives" not in trouble(other))
            await pair.until(lambda: follows(other) and not trouble(other), 300.0)

    pair(body)


def test_a_slave_with_a_misspelt_name_says_whose_master_it_looks_for_and_where(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(pair: Pair) -> None:
        async with newcomer(pair, tmp_path, brokerName="broker-b") as lost:
            await pair.until(lambda: "broker-b" in trouble(lost), 10.0)
            text = trouble(lost)
            assert pair.cluster.namesrv in text and "broker-a" in text and "brokerName" in text, text
            assert [record for record in caplog.records if "no master of broker-b" in record.getMessage()]

    pair(body)


def test_a_slave_whose_registration_is_refused_says_by_whom_and_why(tmp_path: Path) -> None:
    async def body(pair: Pair) -> None:
        async with newcomer(pair, tmp_path, brokerId=2) as refused:
            await pair.until(lambda: "maxBrokerNums" in trouble(refused), 10.0)
            assert pair.cluster.namesrv in trouble(refused) and "broker-a" in trouble(refused)

    pair(body, namesrv={"maxBrokerNums": 2})


def test_a_slave_that_reaches_no_name_server_says_so(tmp_path: Path) -> None:
    async def body(pair: Pair) -> None:
        pair.network.cut(HOST, NAMESERVER)
        async with newcomer(pair, tmp_path, brokerId=2) as alone:
            await pair.until(lambda: pair.cluster.namesrv in trouble(alone))
            assert "the master of broker-a" in trouble(alone)
            pair.network.mend()
            await pair.until(lambda: follows(alone))
            await pair.until(lambda: not trouble(alone))

    pair(body)


def test_an_old_master_that_is_told_to_be_a_slave_does_not_take_the_id_of_a_living_slave(
    tmp_path: Path,
) -> None:
    """If no other master is there yet, it may: the two change places."""

    async def body(pair: Pair) -> None:
        old = pair.master
        async with newcomer(pair, tmp_path, brokerId=2) as second:
            await pair.until(lambda: follows(second))
            await management.update_broker_config(
                pair.pool,
                pair.slave.address,
                {"brokerRole": "ASYNC_MASTER", "brokerId": "0"},
                forces_role=True,
            )
            with pytest.raises(InvalidParameterError, match=f"{second.address} is slave 2 of .* such as 1"):
                await pair.set(old, brokerRole="SLAVE", brokerId=2)
            await pair.set(old, brokerRole="SLAVE", brokerId=1)
            await pair.until(lambda: follows(old))

    pair(body)
