"""Apache's controllers: which there are, which replicas they count as in sync, elections, their settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from gimbalmq.admin.connection import AdminConnection
from gimbalmq.admin.replica_views import ControllerView, ElectedView, ReplicaMember, SyncStateView
from gimbalmq.errors import (
    ConfigError,
    ConnectError,
    RequestCodeNotSupportedError,
    RocketMQError,
    TransportError,
)
from gimbalmq.protocol.replication_bodies import ReplicaIdentity
from gimbalmq.rpc import management
from gimbalmq.rpc import replication as calls
from gimbalmq.rpc.call import Caller

T = TypeVar("T")

_USUAL_CLUSTER = "DefaultCluster"


class ControllerAdmin:
    """``admin.controllers``: those who elect masters."""

    def __init__(self, connection: AdminConnection) -> None:
        self._at = connection

    async def addresses(self, broker: str | None = None) -> str:
        """The controllers that brokers were told of, ``host:port;host:port``, by the first of them that knows any.

        Raises:
            ConfigError: none does.
        """
        for _, name, _, address in await self._at.places():
            if broker not in (None, name):
                continue
            try:
                config = await management.broker_config(self._at.caller, address)
            except RocketMQError:
                continue  # another one may know
            if config.get("controllerAddr"):
                return config["controllerAddr"]
        raise ConfigError("--controller", "", "no broker names a controller; give its address, host:port")

    async def show(self, controllers: str) -> ControllerView:
        """What the first controller that answers says of the controllers."""
        found = await self._of_controller(controllers, calls.controller_metadata)
        pairs = (peer.partition(":") for peer in (found.peers or "").split(";") if peer)
        return ControllerView(
            found.group or "",
            found.controller_leader_id or "",
            found.controller_leader_address or "",
            found.is_leader,
            {name: address for name, _, address in pairs},
        )

    async def sync_state(
        self, controllers: str, broker: str | None = None, *, cluster: str | None = None
    ) -> list[SyncStateView]:
        """Which replicas have all that is acknowledged, as the controller that leads knows it."""
        names = [broker] if broker else sorted({place[1] for place in await self._at.places(cluster)})
        leader = await self._leader(controllers)
        table = await calls.sync_state(self._at.caller, leader, names)
        return [
            SyncStateView(
                name,
                -1 if info.master_broker_id is None else info.master_broker_id,
                info.master_address or "",
                info.master_epoch,
                info.sync_state_set_epoch,
                tuple(map(_member, info.in_sync_replicas)),
                tuple(map(_member, info.not_in_sync_replicas)),
            )
            for name, info in sorted(table.replicas_info_table.items())
        ]

    async def elect(
        self, controllers: str, broker: str, broker_id: int, *, cluster: str | None = None
    ) -> ElectedView:
        """Has the controller that leads make one replica of the set the master.

        Args:
            broker_id: the controller's id of the replica.
            cluster: of the broker; by default what the name servers say.
        """
        leader = await self._leader(controllers)
        cluster = cluster or await self._cluster_of(broker)
        reply, body = await calls.elect_master(self._at.caller, leader, cluster, broker, broker_id)
        group = body.broker_member_group
        return ElectedView(
            broker,
            -1 if reply.master_broker_id is None else reply.master_broker_id,
            reply.master_address or "",
            reply.master_epoch or 0,
            reply.sync_state_set_epoch or 0,
            dict(group.broker_addrs) if group is not None else {},
        )

    async def config(self, controllers: str) -> dict[str, dict[str, str]]:
        """Each controller's settings."""
        addresses = _addresses(controllers)
        found = await self._at.of_each(addresses, calls.controller_config)
        return dict(zip(addresses, found, strict=True))

    async def set_config(self, controllers: str, settings: dict[str, str]) -> list[str]:
        """Changes settings of every controller that is named; their addresses."""
        addresses = _addresses(controllers)
        await self._at.of_each(
            addresses,
            lambda caller, address: calls.update_controller_config(caller, address, settings),
        )
        return addresses

    async def clean(
        self,
        controllers: str,
        broker: str,
        *,
        cluster: str | None = None,
        ids: str | None = None,
        living: bool = False,
    ) -> None:
        """Has the controller forget replicas: those with these ids, ``1;2``, or all of the broker."""
        leader = await self._leader(controllers)
        cluster = cluster or await self._cluster_of(broker)
        await calls.clean_broker_data(
            self._at.caller, leader, broker, cluster=cluster, ids=ids, living=living
        )

    async def _cluster_of(self, broker: str) -> str:
        """Cluster of a name; the usual one if no broker of that name is registered any more."""
        found = (cluster for cluster, name, _, _ in await self._at.places() if name == broker)
        return next(found, _USUAL_CLUSTER)

    async def _leader(self, controllers: str) -> str:
        found = await self.show(controllers)
        if not found.leader:
            raise ConnectError(f"no controller of {controllers} leads; are more than half of them up?")
        return found.leader

    async def _of_controller(self, controllers: str, call: Callable[[Caller, str], Awaitable[T]]) -> T:
        """Asks one after the other until one answers."""
        problems = []
        for address in _addresses(controllers):
            try:
                return await call(self._at.caller, address)
            except RequestCodeNotSupportedError:
                raise ConfigError(
                    "controller", address, "this is no controller; give its address, such as 127.0.0.1:9878"
                ) from None
            except TransportError as error:
                problems.append(str(error))
        raise ConnectError("; ".join(problems))


def _addresses(controllers: str) -> list[str]:
    found = [address.strip() for address in controllers.split(";") if address.strip()]
    for address in found:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigError("controller", address, "use host:port;host:port, such as 127.0.0.1:9878")
    if not found:
        raise ConfigError("controller", controllers, "name the controllers, host:port;host:port")
    return found


def _member(replica: ReplicaIdentity) -> ReplicaMember:
    return ReplicaMember(replica.broker_id, replica.broker_address or "", replica.alive)
