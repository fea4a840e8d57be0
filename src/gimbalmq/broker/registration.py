"""Announcing the broker to its name servers: at a change, soon after a lost connection, every 30 s, and goodbye.

A change is sent as the changed topics only, as Apache 5.x does: ten thousand topics made in a
row would otherwise send their growing table ten thousand times. A name server gets the whole
table first on every connection, so one that was restarted never sees only a part.

A table too large for one frame goes in parts, as with Apache's enableSplitRegistration. Parts and
changes are marked, so that a name server with deleteTopicWithBrokerRegistration, Apache's or
ours, does not take them for the whole. Only a whole table in one frame tells of deleted topics.

A name server updates what it has only if the data version differs from the last one it was told.
So the parts of a changed table have versions of their own, and the last one has the table's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.replication.role import Role, Roles
from gimbalmq.broker.topics import Topics
from gimbalmq.errors import ResponseError, RocketMQError
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.bodies import DataVersion, TopicConfig
from gimbalmq.protocol.headers.nameserver import (
    PART_OF_A_TABLE,
    BrokerIdentity,
    RegisterBroker,
    RegisterBrokerReply,
)
from gimbalmq.rpc import nameserver
from gimbalmq.transport.channel import Channel
from gimbalmq.transport.pool import ChannelPool
from gimbalmq.transport.tasks import Tasks

log = logging.getLogger(__name__)

_GATHER_SECONDS = 0.005
_PATIENCE_SECONDS = 2.0
_AFTER_DELETION_SECONDS = 1.0
_AFTER_LOSS_SECONDS = 1.0
_ROWS_AT_ONCE = 250
_BYTES_AT_ONCE = 256 * 1024
_MAX_ROW_BYTES = 66 * 1024
"""Of a topic in a registration; a file that was edited may have more attributes than we take from anybody."""
PART_BYTES = 8 * 1024 * 1024
"""Largest body of a registration; a name server takes frames of 16 MB."""


@dataclass(slots=True)
class _Known:
    """A name server that has the whole table: by which connection, and as of which version."""

    channel: Channel
    version: DataVersion


@dataclass(slots=True)
class _Announcement:
    """Topics on their way, encoded once for all name servers."""

    version: DataVersion
    topics: list[TopicConfig]
    whole: bool
    parts: list[bytes] | None = None
    """Rows of the table in each part."""


class Registrar:
    """Java: BrokerOuterAPI.registerBrokerAll and its timer.

    Attributes:
        address: where clients reach the broker.
        ha_address: where slaves copy its log.
        answered: called with a name server's address and its answer, which says who the master is.
    """

    def __init__(
        self, pool: ChannelPool, topics: Topics, live: LiveConfig, tasks: Tasks, roles: Roles
    ) -> None:
        self._pool = pool
        self._topics = topics
        self._live = live
        self._tasks = tasks
        self._roles = roles
        self.address = ""
        self.ha_address = ""
        self.answered: Callable[[str, RegisterBrokerReply], None] | None = None
        self.part_bytes = PART_BYTES
        self._changed: dict[str, TopicConfig] = {}
        self._wake = asyncio.Event()
        self._whole_at = self._last_whole = 0.0
        """Loop time of the next and of the last registration of the whole table."""
        self._known: dict[str, _Known] = {}
        self._keepers: dict[str, asyncio.Task[object]] = {}
        self._failing: set[str] = set()
        self._turn = asyncio.Lock()
        """Of announcements: an older table must not arrive behind a newer one."""
        self._changes = self._changes_told = 0
        self._told = asyncio.Condition()
        self._loop: asyncio.Task[object] | None = None
        roles.watch(self._role_changed)

    async def start(self, address: str, ha_address: str = "") -> None:
        """Registers everywhere once, then keeps doing so in the background."""
        self.address, self.ha_address = address, ha_address
        if not self._live.now.namesrv_addresses:
            return
        # Listens first: what changes while the whole table is on its way must follow it.
        self._topics.changed = self.topics_changed
        await self.register_all()
        self._loop = self._tasks.spawn(self._run(), "registration")

    def topics_changed(self, configs: list[TopicConfig]) -> None:
        """Topics are new or different; an empty list says that one was deleted."""
        for config in configs:
            self._changed[config.topic_name] = config
        if configs:
            self._changes += 1
        else:
            # Only the whole table says that a topic is gone; a thousand deletions in a row need few of them.
            self._whole_at = min(self._whole_at, self._last_whole + _AFTER_DELETION_SECONDS)
        self._wake.set()

    def _role_changed(self, before: Role, now: Role) -> None:
        """All name servers are told the whole table at once, in the name of the new role."""
        self._known.clear()
        self._whole_at = 0.0
        self._wake.set()

    async def ask_for_master(self) -> None:
        """Has name servers say who the master is: that is in their answers to a registration, here without topics."""
        await self._everywhere({})

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
        loop = asyncio.get_running_loop()
        while True:
            if self._whole_at <= loop.time():
                await self.register_all()
            try:
                # Not wait_for: it loses a cancellation that comes together with the event.
                async with asyncio.timeout_at(self._whole_at):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()
            if self._changed:
                await asyncio.sleep(_GATHER_SECONDS)
                changed, self._changed = self._changed, {}
                await self._everywhere(changed)

    async def register_all(self) -> None:
        """The whole table to every name server."""
        self._changed.clear()
        self._last_whole = asyncio.get_running_loop().time()
        self._whole_at = self._last_whole + self._live.now.register_name_server_period / 1000
        await self._everywhere(None)

    async def _everywhere(self, changed: dict[str, TopicConfig] | None) -> None:
        for address in self._live.now.namesrv_addresses:
            keeper = self._keepers.get(address)
            if keeper is None or keeper.done():
                keeping = self._keep_known(address)
                self._keepers[address] = self._tasks.spawn(keeping, "connection to name server")
        covered = await self._announce(changed)
        if covered is not None:
            async with self._told:
                self._changes_told = max(covered, self._changes_told)
                self._told.notify_all()

    async def _announce(self, changed: dict[str, TopicConfig] | None, only: str | None = None) -> int | None:
        """Tells one name server, or all, what changed, or of all topics; returns up to which change, unless offline."""
        async with self._turn:
            if not self._roles.now.online:
                return None
            covered, version = self._changes, self._topics.version
            whole = _Announcement(version, self._topics.all(), whole=True)
            part = whole if changed is None else _Announcement(version, list(changed.values()), whole=False)
            addresses = self._live.now.namesrv_addresses if only is None else [only]
            await asyncio.gather(*(self._register(address, whole, part) for address in addresses))
            return covered

    async def _keep_known(self, address: str) -> None:
        """Tells a name server again that has forgotten this broker or could not be told, less often each time.

        A name server forgets a broker whose connection breaks: no route has it, and no tool knows of it.
        """
        loop = asyncio.get_running_loop()
        pause = _AFTER_LOSS_SECONDS
        while address in self._live.now.namesrv_addresses:
            known, since = self._known.get(address), loop.time()
            if known is not None:
                await known.channel.wait_closed()
            period = self._live.now.register_name_server_period / 1000
            if loop.time() - since >= period:
                pause = _AFTER_LOSS_SECONDS
            await asyncio.sleep(pause)
            known = self._known.get(address)
            if known is None or known.channel.closed:
                pause = max(pause, min(2 * pause, period))
                await self._announce(None, address)

    async def _register(self, address: str, whole: _Announcement, part: _Announcement) -> None:
        channel, known = self._pool.existing(address), self._known.get(address)
        chosen = part if known is not None and known.channel is channel else whole
        if (
            chosen.whole
            and not self._live.now.force_register
            and await self._up_to_date(address, chosen.version)
        ):
            return
        try:
            await self._send(address, chosen, same=known is not None and known.version == chosen.version)
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
        if live is not None and (chosen.whole or (known is not None and known.channel is live)):
            self._known[address] = _Known(live, chosen.version)
        else:
            self._known.pop(address, None)

    async def _send(self, address: str, announcement: _Announcement, *, same: bool) -> None:
        """Raises RocketMQError if the name server did not take all of it; parts after a refused one are sent too."""
        config, role = self._live.now, self._roles.now
        refusal: ResponseError | None = None
        if announcement.parts is None:
            announcement.parts = await self._encoded(announcement.topics)
        parts = announcement.parts
        for number, rows in enumerate(parts, start=1):
            version = announcement.version
            if number < len(parts) and not same:
                version = replace(version, timestamp=version.timestamp + number)
            body = _body(version, rows, config.broker_name, part=not announcement.whole or len(parts) > 1)
            header = RegisterBroker(
                broker_name=config.broker_name,
                broker_addr=self.address,
                cluster_name=config.broker_cluster_name,
                ha_server_addr=self.ha_address,
                broker_id=role.broker_id,
                enable_acting_master=config.enable_slave_acting_master,
                heartbeat_timeout_millis=(
                    config.broker_not_active_timeout_millis
                    if config.enable_slave_acting_master
                    else config.channel_expired_timeout
                ),
            )
            try:
                reply, order = await nameserver.register_broker(self._pool, address, header, body)
            except ResponseError as error:
                refusal = error
                continue
            if number == len(parts) and role == self._roles.now:
                if self.answered is not None:
                    self.answered(address, reply)
                if order.table and role.is_master:
                    self._topics.mark_ordered(order.table)
        if refusal is not None:
            raise refusal

    async def _encoded(self, topics: list[TopicConfig]) -> list[bytes]:
        """Rows of a topic table, in parts that fit a frame; everybody has a turn in between."""
        parts: list[bytes] = []
        rows: list[bytes] = []
        size = stepped = 0
        for number, topic in enumerate(topics):
            text = self._row(topic)
            if rows and size + len(text) > self.part_bytes:
                parts.append(b",".join(rows))
                rows, size = [], 0
            rows.append(text)
            size += len(text) + 1
            stepped += len(text)
            if number % _ROWS_AT_ONCE == _ROWS_AT_ONCE - 1 or stepped >= _BYTES_AT_ONCE:
                stepped = 0
                await asyncio.sleep(0)
        return [*parts, b",".join(rows)]

    def _row(self, topic: TopicConfig) -> bytes:
        text = fastjson.dumps({topic.topic_name: self._masked(topic)})[1:-1]
        if len(text) <= _MAX_ROW_BYTES:
            return text
        # No name server needs them.
        return fastjson.dumps({topic.topic_name: replace(self._masked(topic), attributes={})})[1:-1]

    def _masked(self, topic: TopicConfig) -> TopicConfig:
        """A broker without a permission has no topic with it."""
        permission = self._live.now.broker_permission
        return topic if permission & 6 == 6 else replace(topic, perm=topic.perm & permission)

    async def _up_to_date(self, address: str, version: DataVersion) -> bool:
        """Whether a name server has this very table; asking refreshes our liveness there."""
        known = self._known.get(address)
        if known is None or known.channel is not self._pool.existing(address):
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
            broker_id=self._roles.now.broker_id,
        )

    async def goodbye(self) -> None:
        """Takes the broker out of every name server, at shutdown."""
        tasks = [*self._keepers.values(), *([] if self._loop is None else [self._loop])]
        for task in tasks:
            task.cancel()  # else it might announce the broker again
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self.address:
            return
        for address in self._live.now.namesrv_addresses:
            try:
                await nameserver.unregister_broker(self._pool, address, self._identity(), timeout=1.0)
            except RocketMQError as error:
                log.info("name server %s was not told of the shutdown: %s", address, error)


def _body(version: DataVersion, rows: bytes, broker_name: str, *, part: bool) -> bytes:
    """The JSON of a registration (Java: RegisterBrokerBody)."""
    mappings = {PART_OF_A_TABLE: {"bname": broker_name, "topic": PART_OF_A_TABLE}} if part else {}
    return b"".join(
        (
            b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":',
            version.dump(),
            b',"topicConfigTable":{',
            rows,
            b'},"topicQueueMappingInfoMap":',
            fastjson.dumps(mappings),
            b"}}",
        )
    )
