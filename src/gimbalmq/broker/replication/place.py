"""What keeps a slave from its place: another slave that has its id, and why no name server names its master.

A slave does not start with an id that another one has (``masters.require_own_id``). But two may start at once, or while
no name server answers, and Apache's slaves start in any case. Then name servers list the one that told them last, and
the other one copies unseen, or finds no master. So a slave that runs looks from time to time, and says what it finds.
"""

from __future__ import annotations

import asyncio
import logging

from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.registration import Registrar
from gimbalmq.broker.replication.config import MASTER_ID
from gimbalmq.broker.replication.follower import Follower
from gimbalmq.broker.replication.masters import Held, other_holder
from gimbalmq.broker.replication.role import Roles
from gimbalmq.errors import RocketMQError
from gimbalmq.protocol.bodies import ClusterInfo
from gimbalmq.rpc import nameserver
from gimbalmq.rpc.call import Caller

log = logging.getLogger(__name__)

_SECONDS = 1.0
_LOOK_SECONDS = 7.0
"""Between looks of a slave that is well. No part of the 30 s between registrations: whoever registers last is listed,
and a look that always came just behind our own would never see the other one."""
_SEEK_SECONDS = 2.0
_MOST_NAMES = 10


class Place:
    """Looks whether a slave has its place; without a controller, which gives the ids itself.

    Attributes:
        trouble: why it has not, for people; None if all is well.
    """

    def __init__(
        self, caller: Caller, live: LiveConfig, roles: Roles, registration: Registrar, follower: Follower
    ) -> None:
        self._caller = caller
        self._live = live
        self._roles = roles
        self._registration = registration
        self._follower = follower
        self._held: Held | None = None
        self.trouble: str | None = None

    @property
    def pause(self) -> float:
        """Seconds to the next look."""
        return _SEEK_SECONDS if self._is_lost or self.trouble is not None else _LOOK_SECONDS

    @property
    def _is_lost(self) -> bool:
        """Whether this is a slave that does not know its master."""
        now = self._roles.now
        return not now.is_master and now.online and self._follower.target is None

    async def look(self) -> None:
        role, config = self._roles.now, self._live.now
        if role.is_master or not role.online or config.enable_controller_mode:
            self._held = None
            self._note(None)
            return
        known = "" if self._held is None else self._held.address
        held = await other_holder(self._caller, config, self._registration.address, known)
        lost = await self._why_lost() if self._is_lost else None
        if role == self._roles.now:
            self._held = held
            self._note("; ".join(filter(None, (lost, held and str(held)))) or None)

    def _note(self, trouble: str | None) -> None:
        if trouble is not None and trouble != self.trouble:
            log.warning("%s", trouble)
        elif trouble is None and self.trouble is not None:
            log.info("this slave has its place now")
        self.trouble = trouble

    async def _why_lost(self) -> str | None:
        """What each name server has against this slave or its master, those together that have the same."""
        addresses = self._live.now.namesrv_addresses
        reasons = await asyncio.gather(*(self._reason(address) for address in addresses))
        if not self._is_lost:
            return None
        together: dict[str, list[str]] = {}
        for address, reason in zip(addresses, reasons, strict=True):
            together.setdefault(reason, []).append(address)
        found = "; ".join(f"at {', '.join(where)} {reason}" for reason, where in together.items())
        where = found or "there is no name server to ask (namesrvAddr)"
        return f"this slave looks for the master of {self._live.now.broker_name}: {where}"

    async def _reason(self, name_server: str) -> str:
        refusal = self._registration.refusals.get(name_server)
        if refusal:
            return f"it is not registered ({refusal})"
        try:
            info = await nameserver.cluster_info(self._caller, name_server, timeout=_SECONDS)
        except RocketMQError as error:
            return f"there is no answer ({error})"
        name, role = self._live.now.broker_name, self._roles.now
        found = info.broker_addr_table.get(name)
        listed = {} if found is None else found.broker_addrs
        if MASTER_ID not in listed:
            return f"no master of {name} is registered{_others(info, name)}"
        holder = listed.get(role.broker_id)
        if holder != self._registration.address:
            return (
                f"slave {role.broker_id} is {holder}, and this one is not taken, for what is known of that one is "
                "newer (if it is gone, it is forgotten within minutes)"
                if holder
                else "this slave is not taken"
            )
        return f"the master {listed[MASTER_ID]} is registered without a port to copy from (its log says why)"


def _others(info: ClusterInfo, name: str) -> str:
    """Masters of other names: this one's may be misspelt."""
    names = sorted(
        other
        for other, broker in info.broker_addr_table.items()
        if other != name and MASTER_ID in broker.broker_addrs
    )
    if not names:
        return ""
    more = ", ..." if len(names) > _MOST_NAMES else ""
    return f", only of {', '.join(names[:_MOST_NAMES])}{more} (is --name, brokerName, right?)"
