"""Whom to ask: name servers, the brokers of a cluster, the brokers of a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from gimbalmq.client.config import ClientConfig
from gimbalmq.client.identity import client_id
from gimbalmq.client.instance import ClientInstance
from gimbalmq.errors import ConfigError, ConnectError, StateError, TopicRouteNotFoundError
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.route import MASTER_ID, subscribe_queues
from gimbalmq.protocol.bodies import ClusterInfo, TopicRoute
from gimbalmq.rpc import nameserver
from gimbalmq.rpc.call import Caller

T = TypeVar("T")

Place = tuple[str, str, int, str]
"""Cluster, broker name, id and address of a broker."""


class AdminConnection:
    """One client instance without heartbeats, and the addresses learned through it."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self._instance: ClientInstance | None = None

    @property
    def caller(self) -> ClientInstance:
        """Signs and sends; made at the first use, because it belongs to the running loop."""
        if self._instance is None:
            self._instance = ClientInstance(self.config, client_id(self.config))
        return self._instance

    async def close(self) -> None:
        instance, self._instance = self._instance, None
        if instance is not None:
            await instance.close()

    # -- name servers -----------------------------------------------------------------

    async def of_nameserver(self, call: Callable[[Caller, str], Awaitable[T]]) -> T:
        """Asks the name server in use."""
        caller = self.caller
        return await call(caller, await caller.nameserver())

    async def of_every_nameserver(self, call: Callable[[Caller, str], Awaitable[T]]) -> dict[str, T]:
        """Asks all of them, for what each must be told."""
        addresses = self.caller.nameservers
        answers = await asyncio.gather(*(call(self.caller, address) for address in addresses))
        return dict(zip(addresses, answers, strict=True))

    async def cluster_info(self) -> ClusterInfo:
        return await self.of_nameserver(nameserver.cluster_info)

    async def route(self, topic: str) -> TopicRoute:
        """Raises TopicRouteNotFoundError if no broker has the topic."""
        return await self.of_nameserver(lambda caller, address: nameserver.route(caller, address, topic))

    # -- brokers ----------------------------------------------------------------------

    async def places(self, cluster: str | None = None) -> list[Place]:
        """Every replica that is registered, of all clusters or one; raises ConfigError if there is no such cluster."""
        info = await self.cluster_info()
        if cluster is not None and cluster not in info.cluster_addr_table:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise ConfigError("cluster", cluster, f"no such cluster is registered; there is {known}")
        clusters = {name: of for of, names in info.cluster_addr_table.items() for name in names}
        return sorted(
            (clusters.get(name, data.cluster), name, broker_id, address)
            for name, data in info.broker_addr_table.items()
            for broker_id, address in data.broker_addrs.items()
            if cluster is None or clusters.get(name, data.cluster) == cluster
        )

    async def masters(self, *, cluster: str | None = None, broker: str | None = None) -> dict[str, str]:
        """Addresses of masters by broker name: of all, of one cluster, or one broker (name or address).

        Raises:
            ConfigError: there is no such cluster or broker; the ones there are are named.
        """
        info = await self.cluster_info()
        if cluster is not None and cluster not in info.cluster_addr_table:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise ConfigError("cluster", cluster, f"no such cluster is registered; there is {known}")
        names = info.broker_addr_table if cluster is None else info.cluster_addr_table[cluster]
        found = {
            name: address
            for name in sorted(names)
            if name in info.broker_addr_table
            and (address := info.broker_addr_table[name].broker_addrs.get(MASTER_ID)) is not None
        }
        if broker is not None:
            found = {name: address for name, address in found.items() if broker in (name, address)}
            if not found:
                known = ", ".join(sorted(info.broker_addr_table)) or "none"
                raise ConfigError("broker", broker, f"no such broker has a master; there is {known}")
        if not found and info.broker_addr_table:
            raise ConnectError(
                f"no broker has a master now, only slaves ({', '.join(sorted(info.broker_addr_table))}): try again "
                "when one is back, or make a slave the master with `gimbalmq broker promote`"
            )
        if not found:
            raise ConnectError("no broker is registered with the name server")
        return found

    async def one_broker(self, broker: str) -> tuple[str, str, int, str]:
        """Cluster, name, id and address of one broker: by name its master, by address any, also a slave.

        Raises:
            ConfigError: there is no such broker; the ones there are are named.
        """
        info = await self.cluster_info()
        clusters = {name: cluster for cluster, names in info.cluster_addr_table.items() for name in names}
        for name, data in info.broker_addr_table.items():
            for broker_id, address in data.broker_addrs.items():
                if broker == address or (broker == name and broker_id == MASTER_ID):
                    return clusters.get(name, data.cluster), name, broker_id, address
        if broker in info.broker_addr_table:
            slaves = ", ".join(sorted(info.broker_addr_table[broker].broker_addrs.values()))
            raise ConfigError("broker", broker, f"it has no master now; its slaves are {slaves}: name one")
        known = ", ".join(sorted(info.broker_addr_table)) or "none"
        raise ConfigError("broker", broker, f"no such broker is registered; there is {known}")

    async def readers(self) -> dict[str, str]:
        """Whom to ask, by broker name: the master, or the first slave of a broker whose master is gone."""
        info = await self.cluster_info()
        found = {
            name: info.broker_addr_table[name].broker_addrs[smallest]
            for name in sorted(info.broker_addr_table)
            if (smallest := min(info.broker_addr_table[name].broker_addrs, default=None)) is not None
        }
        if not found:
            raise ConnectError("no broker is registered with the name server")
        return found

    async def writers_of(self, topic: str) -> dict[str, str]:
        """Where a topic can be changed: the masters of all brokers that have it, by name.

        Raises:
            StateError: one of them has no master now; what a slave were told would be lost.
        """
        route = await self.route(topic)
        found = {data.broker_name: data.broker_addrs.get(MASTER_ID) for data in route.broker_datas}
        missing = sorted(name for name, address in found.items() if address is None)
        if missing:
            raise StateError(
                f"broker {missing[0]}, which has topic {topic}, has no master now, and a slave cannot change anything: "
                "try again when its master is back, or make a slave the master with `gimbalmq broker promote`"
            )
        return {name: address for name, address in found.items() if address is not None}

    async def brokers_of(self, topic: str) -> dict[str, str]:
        """Where a topic lies: a reachable address by broker name, the master's if there is one."""
        route = await self.route(topic)
        found = {
            data.broker_name: data.broker_addrs.get(MASTER_ID) or min(data.broker_addrs.items())[1]
            for data in route.broker_datas
            if data.broker_addrs
        }
        if not found:
            raise TopicRouteNotFoundError(f"no broker of topic {topic} is up")
        return found

    async def queues_of(self, topic: str) -> dict[MessageQueue, str]:
        """Every readable queue of a topic with its broker's address."""
        route = await self.route(topic)
        addresses = await self.brokers_of(topic)
        return {
            queue: addresses[queue.broker_name]
            for queue in subscribe_queues(topic, route)
            if queue.broker_name in addresses
        }

    async def of_each(self, addresses: Iterable[str], call: Callable[[Caller, str], Awaitable[T]]) -> list[T]:
        """The same question to several brokers at once."""
        return await asyncio.gather(*(call(self.caller, address) for address in addresses))
