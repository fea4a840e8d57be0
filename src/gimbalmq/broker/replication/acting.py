"""A slave that stands in for a master which is gone, read only (enableSlaveActingMaster).

The living brokers of a name are looked up at the name servers every second. The one with the smallest id stands in if
it is a slave: it gives locks, and the offsets committed at it count. A broker that starts asks the others first, before
name servers are told of it: a slave waits until it copies the master, and a master takes back what its slaves have
learned meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.replication.acknowledging import Acknowledging
from gimbalmq.broker.replication.config import MASTER_ID
from gimbalmq.broker.replication.masters import Master
from gimbalmq.broker.replication.members import beat, members
from gimbalmq.broker.replication.replication import Replication
from gimbalmq.broker.replication.taking_back import TakingBack
from gimbalmq.broker.topics import Topics
from gimbalmq.errors import RocketMQError, TransportError
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.headers.replication import ExchangeHaInfo
from gimbalmq.rpc.call import Caller, ask
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.network import split_address
from gimbalmq.transport.tasks import Tasks

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 1.0
_ASK_SECONDS = 3.0
_CONNECT_SECONDS = 10.0
_LOOK_SECONDS = 0.05


class ActingMode:
    """Java: BrokerPreOnlineService, and what BrokerController does when the smallest id changes.

    Args:
        address: where clients reach this broker.

    Attributes:
        living: how many brokers of the name live, this one among them.
        trouble: why this broker is not online yet; None if it is.
    """

    def __init__(
        self,
        store: MessageStore,
        live: LiveConfig,
        caller: Caller,
        replication: Replication,
        taking_back: TakingBack,
        topics: Topics,
        acknowledging: Acknowledging,
        address: Callable[[], str],
    ) -> None:
        self._live = live
        self._caller = caller
        self._replication = replication
        self._taking_back = taking_back
        self._topics = topics
        self._address = address
        self._first_end = store.max_commitlog_offset
        self._tasks = Tasks("acting master")
        self._woken = asyncio.Event()
        self.living = 1
        self.trouble: str | None = None
        acknowledging.living = lambda: self.living

    async def start(self) -> None:
        self._tasks.spawn(self._come_online(), "coming online")
        self._tasks.every(lambda: self._live.now.broker_heartbeat_interval / 1000, self._beat, "heartbeats")
        self._tasks.spawn(self._watch(), "members")

    async def close(self) -> None:
        await self._tasks.close()

    # -- coming online -----------------------------------------------------------------------

    async def _come_online(self) -> None:
        while not self._replication.roles.now.online:
            try:
                await self._ask_others()
            except RocketMQError as error:
                if str(error) != self.trouble:
                    log.warning(
                        "not online yet: %s; tried again every second (skipPreOnline=true goes without)",
                        error,
                    )
                self.trouble = str(error)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            self.trouble = None
            await self._replication.go_online()

    async def _ask_others(self) -> None:
        """Returns when this broker may serve; raises RocketMQError if not yet."""
        found = await members(self._caller, self._live.now)
        if found is None:
            raise TransportError("no name server says which brokers of this name live")
        role, own = self._replication.roles.now, self._address()
        others = {
            number: address
            for number, address in sorted(found.items())
            if address != own and number != role.broker_id
        }
        if role.is_master:
            for address in others.values():
                await self._meet_slave(address)
        elif MASTER_ID in others:
            await self._meet_master(others[MASTER_ID])

    async def _meet_slave(self, address: str) -> None:
        """Tells a slave where its master is, and takes back what it has learned."""
        replication = self._replication
        header = ExchangeHaInfo(
            master_ha_address=replication.ha_address,
            master_flush_offset=self._first_end,
            master_address=self._address(),
        )
        await ask(self._caller, address, RequestCode.EXCHANGE_BROKER_HA_INFO, header, timeout=_ASK_SECONDS)
        host, _ = split_address(address)

        def is_connected() -> bool:
            return any(
                replica.acked >= 0 and split_address(replica.address)[0] == host
                for replica in replication.source.replicas
            )

        await self._until(is_connected, lambda: f"slave {address} does not copy this master's log")
        await self._taking_back.take(address)

    async def _meet_master(self, address: str) -> None:
        answer = await ask(
            self._caller,
            address,
            RequestCode.EXCHANGE_BROKER_HA_INFO,
            ExchangeHaInfo(),
            timeout=_ASK_SECONDS,
        )
        ha_address = ExchangeHaInfo.from_ext(answer.ext_fields).master_ha_address
        if not ha_address:
            return
        await self._replication.copy(Master(address, ha_address))
        follower = self._replication.follower
        await self._until(
            lambda: follower.is_connected,
            lambda: f"the log of the master {address} cannot be copied: {follower.trouble}",
        )

    async def _until(self, condition: Callable[[], bool], trouble: Callable[[], str]) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + _CONNECT_SECONDS
        while not condition():
            if loop.time() >= until:
                raise TransportError(trouble())
            await asyncio.sleep(_LOOK_SECONDS)

    # -- who is there ------------------------------------------------------------------------

    async def _beat(self) -> None:
        role = self._replication.roles.now
        if role.online:
            await beat(self._caller, self._live.now, self._address(), role.broker_id, self._topics.version)

    def look_soon(self) -> None:
        """A name server says that the members have changed."""
        self._woken.set()

    async def _watch(self) -> None:
        while True:
            try:
                await self.look()
            except RocketMQError as error:
                log.info("the members of this broker's name are not known now: %s", error)
            self._woken.clear()
            try:
                async with asyncio.timeout(self._live.now.sync_broker_member_group_period / 1000):
                    await self._woken.wait()
            except TimeoutError:
                pass

    async def look(self) -> None:
        """Who lives, and whether this broker stands in."""
        if not self._replication.roles.now.online:
            return
        found = await members(self._caller, self._live.now)
        role = self._replication.roles.now
        if found is None or role.broker_id not in found or not role.online:
            return  # what is not known changes nothing
        self.living = len(found)
        if not role.is_master:
            await self._replication.act(min(found) == role.broker_id)
