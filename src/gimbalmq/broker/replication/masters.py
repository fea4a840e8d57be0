"""Who the master is, as the name servers say; and whether there is one already, for a broker that starts as one."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from gimbalmq.broker.config import BrokerConfig
from gimbalmq.broker.replication.config import MASTER_ID, SLAVE
from gimbalmq.errors import ConfigError, ResponseError, RocketMQError
from gimbalmq.protocol.headers.nameserver import RegisterBrokerReply
from gimbalmq.rpc import management, nameserver
from gimbalmq.rpc.call import Caller

log = logging.getLogger(__name__)

_SECONDS = 1.0


class Master(NamedTuple):
    """Where a master is reached: by clients, and by slaves that copy its log."""

    address: str
    ha_address: str


class NamedMasters:
    """The masters that name servers have named in their last answers to a registration."""

    def __init__(self) -> None:
        self._named: dict[str, Master] = {}

    def heard(self, name_server: str, answer: RegisterBrokerReply, own_address: str) -> None:
        """An answer; one that names nobody, or ourselves, takes back what was said before."""
        address = answer.master_addr or ""
        if address and address != own_address and answer.ha_server_addr:
            self._named[name_server] = Master(address, answer.ha_server_addr)
        else:
            self._named.pop(name_server, None)

    def best(self, name_servers: Sequence[str]) -> Master | None:
        """The one that most of them name; of those with as many votes, the one that is named first in their order."""
        votes = Counter(self._named[name] for name in name_servers if name in self._named)
        return votes.most_common(1)[0][0] if votes else None

    def forget(self) -> None:
        self._named.clear()


async def require_no_other(caller: Caller, config: BrokerConfig, own_address: str) -> None:
    """For a broker that starts as a master: nobody else may be it.

    A slave may have become the master while this one was down. Two masters of one name would each have messages that
    the other does not have, and a name server shows but one of them.

    Raises:
        ConfigError: another master of this name lives.
    """
    address = await other_master(caller, config, own_address)
    if address is not None:
        raise ConfigError(
            "brokerRole",
            config.broker_role,
            f"{address} is the master of {config.broker_name} now, and two would part their messages: start this "
            "one with brokerRole=SLAVE and a brokerId of its own, or stop that one first; if they are meant to be "
            "two brokers, give each a brokerName of its own",
        )


async def other_master(caller: Caller, config: BrokerConfig, own_address: str, known: str = "") -> str | None:
    """Address of another master of this name that answers; None if there is none.

    Args:
        known: one that name servers need not list.
    """
    named = await asyncio.gather(
        *(_named_master(caller, address, config.broker_name) for address in config.namesrv_addresses)
    )
    for address in dict.fromkeys([*named, known]):
        if address and address != own_address and await _leads(caller, address, config.broker_name):
            return address
    return None


async def _named_master(caller: Caller, name_server: str, broker_name: str) -> str:
    try:
        info = await nameserver.cluster_info(caller, name_server, timeout=_SECONDS)
    except RocketMQError:
        return ""
    found = info.broker_addr_table.get(broker_name)
    return "" if found is None else found.broker_addrs.get(MASTER_ID, "")


async def _leads(caller: Caller, address: str, broker_name: str) -> bool:
    try:
        config = await management.broker_config(caller, address, timeout=_SECONDS)
    except ResponseError as error:
        log.info("%s, which is named as the master, does not say what it is: %s", address, error)
        return True
    except RocketMQError:
        return False
    return config.get("brokerName") == broker_name and config.get("brokerRole") != SLAVE
