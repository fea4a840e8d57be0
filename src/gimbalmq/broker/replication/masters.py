"""Who the master is, as the name servers say; and whether the place is taken that a broker is to have.

Name servers list one address for each id of a name, and go on listing one that has died in silence for two minutes. So
whoever is listed is asked whether it lives and has that place.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
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


async def require_own_id(caller: Caller, config: BrokerConfig, own_address: str) -> None:
    """For a broker that starts as a slave: nobody else may have its id.

    Name servers would list the newcomer in the place of the other one, or ignore it, and say so to neither.

    Raises:
        ConfigError: another slave of this name and id lives.
    """
    held = await other_holder(caller, config, own_address)
    if held is not None:
        raise ConfigError("brokerId", config.broker_id, str(held))


class Held(NamedTuple):
    """The id of a slave is another one's: who that is, and an id that nobody has."""

    address: str
    broker_name: str
    broker_id: int
    free: int

    def __str__(self) -> str:
        return (
            f"{self.address} is slave {self.broker_id} of {self.broker_name} and lives, and name servers list one "
            f"address for an id: give this one another --slave (brokerId), such as {self.free}, or stop that one"
        )


async def other_master(caller: Caller, config: BrokerConfig, own_address: str, known: str = "") -> str | None:
    """Address of another master of this name that answers; None if there is none.

    Args:
        known: one that name servers need not list.
    """
    tables = await _tables(caller, config)
    for address in dict.fromkeys([*(table.get(MASTER_ID, "") for table in tables), known]):
        if address and address != own_address and await _leads(caller, address, config.broker_name):
            return address
    return None


async def other_holder(
    caller: Caller, config: BrokerConfig, own_address: str, known: str = ""
) -> Held | None:
    """Another slave of this name that answers and has the id of the configuration; None if there is none.

    Args:
        known: the address of one that name servers need not list.
    """
    tables = await _tables(caller, config)
    number = config.broker_id
    for address in dict.fromkeys([*(table.get(number, "") for table in tables), known]):
        if address and address != own_address and await _holds(caller, address, config, own_address):
            taken = {number for table in tables for number in table}
            free = next(one for one in count(MASTER_ID + 1) if one not in taken | {number})
            return Held(address, config.broker_name, number, free)
    return None


async def _tables(caller: Caller, config: BrokerConfig) -> list[Mapping[int, str]]:
    """The addresses of this name by id, as each name server lists them that answers."""
    tables = await asyncio.gather(
        *(_listed(caller, address, config.broker_name) for address in config.namesrv_addresses)
    )
    return list(tables)


async def _listed(caller: Caller, name_server: str, broker_name: str) -> Mapping[int, str]:
    try:
        info = await nameserver.cluster_info(caller, name_server, timeout=_SECONDS)
    except RocketMQError:
        return {}
    found = info.broker_addr_table.get(broker_name)
    return {} if found is None else found.broker_addrs


async def _leads(caller: Caller, address: str, broker_name: str) -> bool:
    return await _says(
        caller,
        address,
        lambda config: config.get("brokerName") == broker_name and config.get("brokerRole") != SLAVE,
    )


async def _holds(caller: Caller, address: str, own: BrokerConfig, own_address: str) -> bool:
    _, _, port = address.rpartition(":")
    return await _says(
        caller,
        address,
        lambda config: (
            config.get("brokerName") == own.broker_name
            and config.get("brokerRole") == SLAVE
            and config.get("brokerId") == str(own.broker_id)
            # A broker that was started again with another brokerIP1 is still listed, and answers, at the one before.
            and f"{config.get('brokerIP1')}:{port}" != own_address
        ),
    )


async def _says(caller: Caller, address: str, holds: Callable[[Mapping[str, str]], bool]) -> bool:
    """Whether a broker that is listed in some place lives, and by its configuration has that place."""
    try:
        config = await management.broker_config(caller, address, timeout=_SECONDS)
    except ResponseError as error:
        log.info("%s, which name servers list, does not say what it is: %s", address, error)
        return True
    except RocketMQError:
        return False
    return holds(config)
