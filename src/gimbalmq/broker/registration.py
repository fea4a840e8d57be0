"""Announcing the broker to its name servers: at once on a change, every 30 s, and goodbye.

A change is sent as the changed topics only, as Apache 5.x does: ten thousand topics made in a
row would otherwise send their growing table ten thousand times. A name server gets the whole
table first on every connection, so one that was restarted never sees only a part.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.metadata import Topics
from gimbalmq.errors import RocketMQError
from gimbalmq.protocol.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicTable
from gimbalmq.protocol.headers.nameserver import BrokerIdentity, RegisterBroker
from gimbalmq.rpc import nameserver
from gimbalmq.transport.channel import Channel
from gimbalmq.transport.pool import ChannelPool
from gimbalmq.transport.tasks import Tasks

log = logging.getLogger(__name__)

_GATHER_SECONDS = 0.005
_PATIENCE_SECONDS = 2.0


class Registration:
    """Java: BrokerOuterAPI.registerBrokerAll and its timer."""

    def __init__(self, pool: ChannelPool, topics: Topics, live: LiveConfig, tasks: Tasks) -> None:
        self._pool = pool
        self._topics = topics
        self._live = live
        self._tasks = tasks
        self.address = ""
        self._changed: dict[str, TopicConfig] = {}
        self._wake = asyncio.Event()
        self._known: dict[str, Channel] = {}
        """The connection by which a name server got the whole table."""
        self._failing: set[str] = set()
        self._changes = self._changes_told = 0
        self._told = asyncio.Condition()
        self._loop: asyncio.Task[object] | None = None

    async def start(self, address: str) -> None:
        """Registers everywhere once, then keeps doing so in the background."""
        self.address = address
        if not self._live.now.namesrv_addresses:
            return
        # Listens first: what changes while the whole table is on its way must follow it.
        self._topics.changed = self.topics_changed
        await self.register_all()
        self._loop = self._tasks.spawn(self._run(), "registration")

    def topics_changed(self, configs: Iterable[TopicConfig]) -> None:
        for config in configs:
            self._changed[config.topic_name] = config
        self._changes += 1
        self._wake.set()

    async def announced(self) -> None:
        """Returns when the topics changed so far are in their file and the name servers know them.

        A name server that cannot be reached is not waited for longer than a moment: the next
        registration tells it.
        """
        await self._topics.saving.saved()
        wanted = self._changes
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS), self._told:
                await self._told.wait_for(lambda: self._changes_told >= wanted)
        except TimeoutError:
            log.warning("a name server was not told of a topic within %g s", _PATIENCE_SECONDS)

    async def _run(self) -> None:
        while True:
            period = self._live.now.register_name_server_period / 1000
            try:
                # Not wait_for: it loses a cancellation that comes together with the event.
                async with asyncio.timeout(period):
                    await self._wake.wait()
            except TimeoutError:
                await self.register_all()
                continue
            await asyncio.sleep(_GATHER_SECONDS)
            self._wake.clear()
            changed, self._changed = self._changed, {}
            await self._everywhere(changed)

    async def register_all(self) -> None:
        """The whole table to every name server."""
        self._changed.clear()
        await self._everywhere(None)

    async def _everywhere(self, changed: dict[str, TopicConfig] | None) -> None:
        covered = self._changes
        await asyncio.gather(
            *(self._register(address, changed) for address in self._live.now.namesrv_addresses)
        )
        async with self._told:
            self._changes_told = max(covered, self._changes_told)
            self._told.notify_all()

    async def _register(self, address: str, changed: dict[str, TopicConfig] | None) -> None:
        config = self._live.now
        channel = self._pool.existing(address)
        whole = changed is None or channel is None or self._known.get(address) is not channel
        table = self._topics.table()
        if whole and not config.force_register and await self._up_to_date(address, table.data_version):
            return
        chosen = table.topic_config_table if whole or changed is None else changed
        body = RegisterBrokerBody(
            topic_config_serialize_wrapper=TopicTable(
                data_version=table.data_version,
                topic_config_table={name: self._masked(topic) for name, topic in chosen.items()},
            )
        )
        header = RegisterBroker(
            broker_name=config.broker_name,
            broker_addr=self.address,
            cluster_name=config.broker_cluster_name,
            ha_server_addr=f"{config.broker_ip2}:{int(self.address.rpartition(':')[2]) + 1}",
            broker_id=config.broker_id,
            enable_acting_master=False,
            heartbeat_timeout_millis=config.channel_expired_timeout,
        )
        try:
            _, order = await nameserver.register_broker(self._pool, address, header, body)
        except RocketMQError as error:
            if address not in self._failing:
                self._failing.add(address)
                log.warning("name server %s cannot be told of this broker: %s", address, error)
            self._known.pop(address, None)
            return
        if address in self._failing:
            self._failing.discard(address)
            log.info("name server %s knows this broker again", address)
        live = self._pool.existing(address)
        if live is not None and whole:
            self._known[address] = live
        if order.table:
            self._topics.mark_ordered(order.table)

    def _masked(self, topic: TopicConfig) -> TopicConfig:
        """A broker without a permission has no topic with it."""
        permission = self._live.now.broker_permission
        if permission & 6 == 6:
            return topic
        return TopicConfig(
            topic_name=topic.topic_name,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            perm=topic.perm & permission,
            topic_sys_flag=topic.topic_sys_flag,
            order=topic.order,
            attributes=topic.attributes,
        )

    async def _up_to_date(self, address: str, version: DataVersion) -> bool:
        """Whether a name server has this very table; asking refreshes our liveness there."""
        if self._known.get(address) is None or self._known[address] is not self._pool.existing(address):
            return False
        try:
            return not await nameserver.query_data_version(self._pool, address, self._identity(), version)
        except RocketMQError:
            return False

    def _identity(self) -> BrokerIdentity:
        config = self._live.now
        return BrokerIdentity(
            broker_name=config.broker_name,
            broker_addr=self.address,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )

    async def goodbye(self) -> None:
        """Takes the broker out of every name server, at shutdown."""
        if self._loop is not None:
            # Else it might announce the broker again.
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        if not self.address:
            return
        for address in self._live.now.namesrv_addresses:
            try:
                await nameserver.unregister_broker(self._pool, address, self._identity(), timeout=1.0)
            except RocketMQError as error:
                log.info("name server %s was not told of the shutdown: %s", address, error)
