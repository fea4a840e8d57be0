"""Which servers a change of users or policies reaches, and what each of them said.

Slaves here copy it from their masters, but Apache's do not, and nothing else is copied from server to server. So every
broker is told, master and slave, and every name server that keeps users. The first server that is told decides whether
the change can be made at all; what later ones say against it is gathered, because the change has then begun.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from gimbalmq.admin.connection import AdminConnection
from gimbalmq.admin.views import AccessChange
from gimbalmq.errors import ConfigError, ConnectError, RequestCodeNotSupportedError, RocketMQError
from gimbalmq.model.route import MASTER_ID
from gimbalmq.rpc.call import Caller
from gimbalmq.transport.network import split_address

T = TypeVar("T")
Call = Callable[[Caller, str], Awaitable[T]]


@dataclass(frozen=True, slots=True)
class _Server:
    address: str
    is_nameserver: bool = False


class AccessServers:
    """Servers that keep users: brokers, and name servers of ours."""

    def __init__(self, connection: AdminConnection) -> None:
        self._at = connection

    async def read(self, call: Call[T], *, broker: str | None = None, cluster: str | None = None) -> T:
        """Asks one master, or the server that is named."""
        found = await self._brokers(broker, cluster)
        return await call(self._at.caller, found[0].address)

    async def change(
        self,
        call: Call[None],
        *,
        broker: str | None = None,
        cluster: str | None = None,
        done_already: Call[bool] | None = None,
    ) -> AccessChange:
        """Tells every server, or those that are named.

        Args:
            broker: name of a broker, whose master and slaves are told, or one server's address.
            cluster: only brokers of this cluster, and the name servers.
            done_already: whether a server that refuses has what is wanted. The broker and the name server of one
                process have one table, so the second of them may be late.

        Raises:
            RocketMQError: the first server could not be told.
        """
        servers = await self._brokers(broker, cluster)
        if broker is None:
            servers += [_Server(address, is_nameserver=True) for address in self._at.caller.nameservers]
        told: list[str] = []
        without: list[str] = []
        problems: dict[str, str] = {}
        for server in servers:
            try:
                await call(self._at.caller, server.address)
            except RequestCodeNotSupportedError:
                if not server.is_nameserver:
                    raise _keeps_no_users(server.address) from None
                without.append(server.address)
                continue
            except RocketMQError as error:
                if not told:
                    raise
                if done_already is None or not await self._holds(done_already, server.address):
                    problems[server.address] = str(error)
                    continue
            told.append(server.address)
        return AccessChange(tuple(told), tuple(without), problems)

    async def _holds(self, question: Call[bool], address: str) -> bool:
        try:
            return await question(self._at.caller, address)
        except RocketMQError:
            return False

    async def _brokers(self, broker: str | None, cluster: str | None) -> list[_Server]:
        """Masters first, each by its name."""
        if broker is not None and _is_address(broker):
            return [_Server(broker)]
        info = await self._at.cluster_info()
        if cluster is not None and cluster not in info.cluster_addr_table:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise ConfigError("cluster", cluster, f"no such cluster is registered; there is {known}")
        names = info.broker_addr_table if cluster is None else info.cluster_addr_table[cluster]
        if broker is not None and broker not in names:
            known = ", ".join(sorted(names)) or "none"
            raise ConfigError("broker", broker, f"no such broker is registered; there is {known}")
        found = [
            (broker_id != MASTER_ID, name, broker_id, address)
            for name in sorted(names if broker is None else [broker])
            if name in info.broker_addr_table
            for broker_id, address in info.broker_addr_table[name].broker_addrs.items()
        ]
        if not found:
            raise ConnectError("no broker is registered with the name server")
        return [_Server(address) for *_, address in sorted(found)]


def _keeps_no_users(address: str) -> RocketMQError:
    return RequestCodeNotSupportedError(
        "it keeps no users; start it with authenticationEnabled=true (Apache's brokers: 5.3 or newer)",
        address=address,
    )


def _is_address(text: str) -> bool:
    try:
        split_address(text)
    except ConfigError:
        return False
    return True
