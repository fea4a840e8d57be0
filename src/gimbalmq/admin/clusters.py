"""Clusters and brokers: who is there, how they are, how they are set."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gimbalmq.admin.connection import AdminConnection
from gimbalmq.admin.views import BrokerView
from gimbalmq.errors import NoPermissionError, RocketMQError
from gimbalmq.rpc import management


class ClusterAdmin:
    """``admin.clusters``: brokers and name servers."""

    def __init__(self, connection: AdminConnection) -> None:
        self._at = connection

    async def brokers(self) -> list[BrokerView]:
        """Every broker of every cluster; one that does not answer says so in ``problem``."""
        info = await self._at.cluster_info()
        clusters = {name: cluster for cluster, names in info.cluster_addr_table.items() for name in names}
        places = [
            (clusters.get(name, data.cluster), name, broker_id, address)
            for name, data in info.broker_addr_table.items()
            for broker_id, address in data.broker_addrs.items()
        ]
        return await asyncio.gather(*(self._look(*place) for place in sorted(places)))

    async def _look(self, cluster: str, name: str, broker_id: int, address: str) -> BrokerView:
        try:
            runtime = await management.runtime_info(self._at.caller, address)
        except NoPermissionError as error:
            return BrokerView(cluster, name, broker_id, address, problem=error.remark, refused=True)
        except RocketMQError as error:
            return BrokerView(cluster, name, broker_id, address, problem=str(error))
        return BrokerView(
            cluster,
            name,
            broker_id,
            address,
            version=runtime.get("brokerVersionDesc", ""),
            put_tps=_first_number(runtime.get("putTps")),
            # Apache's 4.x spells it so; 5.x writes both.
            get_tps=_first_number(runtime.get("getTransferredTps") or runtime.get("getTransferedTps")),
            disk_used=_first_number(runtime.get("commitLogDiskRatio")),
            boot_ms=int(_first_number(runtime.get("bootTimestamp"))),
            runtime=runtime,
        )

    async def broker(self, broker: str) -> BrokerView:
        """One broker: a master by name, or any by address."""
        return await self._look(*await self._at.one_broker(broker))

    async def config(self, broker: str) -> dict[str, str]:
        """A broker's settings under RocketMQ's keys: a master's by name, or any by address."""
        _, _, _, address = await self._at.one_broker(broker)
        return await management.broker_config(self._at.caller, address)

    async def set_config(
        self, settings: Mapping[str, str], *, broker: str | None = None, cluster: str | None = None
    ) -> list[str]:
        """Changes settings of one broker, or of all masters of a cluster or altogether; the brokers changed.

        A slave is changed if its address is named.
        """
        if broker is not None:
            _, _, _, address = await self._at.one_broker(broker)
            changed = {broker: address}
        else:
            changed = await self._at.masters(cluster=cluster)
        await self._at.of_each(
            changed.values(),
            lambda caller, address: management.update_broker_config(caller, address, settings),
        )
        return list(changed)

    async def nameserver_config(self) -> dict[str, dict[str, str]]:
        """Each name server's settings."""
        return await self._at.of_every_nameserver(management.nameserver_config)

    async def set_nameserver_config(self, settings: Mapping[str, str]) -> list[str]:
        """Changes settings of every name server; their addresses."""
        return list(
            await self._at.of_every_nameserver(
                lambda caller, address: management.update_nameserver_config(caller, address, settings)
            )
        )

    async def set_writable(self, broker: str, writable: bool) -> dict[str, int]:
        """Takes a broker out of rotation for producers, or back (mqadmin wipeWritePerm, addWritePerm).

        Returns:
            How many topics each name server changed.
        """
        ((name, _),) = (await self._at.masters(broker=broker)).items()
        change = management.add_write_perm if writable else management.wipe_write_perm
        return await self._at.of_every_nameserver(lambda caller, address: change(caller, address, name))


def _first_number(text: str | None) -> float:
    """Rates come as the averages over 10, 60 and 600 seconds, separated by blanks."""
    words = (text or "").split()
    try:
        return float(words[0]) if words else 0.0
    except ValueError:
        return 0.0
