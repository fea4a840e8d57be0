"""Announcing the broker to its name servers: at a change, soon after a lost connection, every 30 s, and goodbye.

A change is sent as the changed topics only, as Apache 5.x does: ten thousand topics made in a
row would otherwise send their growing table ten thousand times. A name server gets the whole
table first on every connection, so one that was restarted never sees only a part.

A table too large for one frame goes in parts, as with Apache's enableSplitRegistration. Parts and
changes are marked, so that a name server with deleteTopicWithBrokerRegistration, Apache's or
ours, does not take them for the whole. Only a whole table in one frame tells of deleted topics.

A name server updates what it has only if the data version differs from the last one it was told.
So the parts of a changed table have versions of their own, and the last one has the table's.
For the same reason nobody is told a version without all that had changed by then.

Each name server has a turn of its own: one that is silent keeps nobody waiting but itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from gimbalmq.broker.announcement import Announcement, Announcements, body
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.replication.role import Role, Roles
from gimbalmq.broker.topics import Topics
from gimbalmq.errors import RequestTimeoutError, ResponseError, RocketMQError
from gimbalmq.protocol.bodies import DataVersion, TopicConfig
from gimbalmq.protocol.headers.nameserver import BrokerIdentity, RegisterBroker, RegisterBrokerReply
from gimbalmq.rpc import nameserver
from gimbalmq.transport.channel import Channel
from gimbalmq.transport.pool import ChannelPool
from gimbalmq.transport.tasks import Tasks

log = logging.getLogger(__name__)

_GATHER_SECONDS = 0.005
_PATIENCE_SECONDS = 2.0
_AFTER_DELETION_SECONDS = 1.0
_AFTER_LOSS_SECONDS = 1.0


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
        self.announcements = Announcements(topics, live)
        self._name_servers: list[_NameServer] = []
        """Nobody before the start, and nobody any more after goodbye."""
        self._whole_at = self._last_whole = 0.0
        """Loop time of the next and of the last registration of the whole table."""
        self._sooner = asyncio.Event()
        self._attempted = asyncio.Event()
        """Set when a name server was told or could not be told, and another one takes its place."""
        self._loop: asyncio.Task[object] | None = None
        roles.watch(self._role_changed)

    async def start(self, address: str, ha_address: str = "") -> None:
        """Registers everywhere once, then keeps doing so in the background."""
        self.address, self.ha_address = address, ha_address
        addresses = dict.fromkeys(self._live.now.namesrv_addresses)
        if not addresses:
            return
        calls = _Calls(self._pool, self._topics, self._live, self._roles, self)
        self._name_servers = [
            _NameServer(name_server, calls, self._tasks, self._note_attempt) for name_server in addresses
        ]
        # Listens first: what changes while the whole table is on its way must follow it.
        self._topics.changed = self.topics_changed
        rounds = self._tell_all()
        for name_server in self._name_servers:
            name_server.keep()
        self._loop = self._tasks.spawn(self._run(), "registration")
        await _over(rounds)

    @property
    def refusals(self) -> dict[str, str]:
        """Name servers that refused this broker the last time, and what they said."""
        return {one.address: one.refusal for one in self._name_servers if one.refusal}

    def topics_changed(self, configs: list[TopicConfig]) -> None:
        """Topics are new or different; an empty list says that one was deleted."""
        if configs:
            for name_server in self._name_servers:
                name_server.tell(config.topic_name for config in configs)
        else:
            # Only the whole table says that a topic is gone; a thousand deletions in a row need few of them.
            self._whole_at = min(self._whole_at, self._last_whole + _AFTER_DELETION_SECONDS)
            self._sooner.set()

    def _role_changed(self, before: Role, now: Role) -> None:
        """All name servers are told the whole table at once, in the name of the new role."""
        if self._name_servers:
            self._tell_all()

    async def ask_for_master(self) -> None:
        """Has name servers say who the master is: that is in their answers to a registration, here without topics.

        One that does not answer is not waited for longer than a moment: another one may say it the next time.
        """
        rounds = [name_server.ask() for name_server in self._name_servers]
        await _over(rounds, _PATIENCE_SECONDS)

    async def announced(self) -> None:
        """Returns when the topics changed so far are in their file and the name servers know them.

        A name server that cannot be reached is not waited for longer than a moment: the next
        registration tells it.
        """
        await self._topics.saving.saved()
        wanted = [(name_server, name_server.changes) for name_server in self._name_servers]
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while any(name_server.told < changes for name_server, changes in wanted):
                    await self._attempted.wait()
        except TimeoutError:
            log.warning("a name server was not told of a topic within %g s", _PATIENCE_SECONDS)

    def _note_attempt(self) -> None:
        self._attempted.set()
        self._attempted = asyncio.Event()

    async def _run(self) -> None:
        while True:
            try:
                # Not wait_for: it loses a cancellation that comes together with the event.
                async with asyncio.timeout_at(self._whole_at):
                    await self._sooner.wait()
            except TimeoutError:
                self._tell_all()
            self._sooner.clear()

    async def register_all(self) -> None:
        """The whole table to every name server."""
        await _over(self._tell_all())

    def _tell_all(self) -> list[asyncio.Task[object]]:
        self._last_whole = asyncio.get_running_loop().time()
        self._whole_at = self._last_whole + self._live.now.register_name_server_period / 1000
        return [name_server.tell_all() for name_server in self._name_servers]

    async def goodbye(self) -> None:
        """Takes the broker out of every name server, at shutdown; from here on none is told of it again."""
        leaving, self._name_servers = self._name_servers, []
        tasks = [task for name_server in leaving for task in name_server.tasks]
        tasks += [] if self._loop is None else [self._loop]
        for task in tasks:
            task.cancel()  # else it might announce the broker again
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(name_server.leave() for name_server in leaving))


async def _over(rounds: Iterable[asyncio.Task[object]], seconds: float | None = None) -> None:
    """Waits for attempts to tell name servers something. Who is cancelled here takes none of them with it."""
    waiting = list(rounds)
    if waiting:
        await asyncio.wait(waiting, timeout=seconds)


@dataclass(slots=True)
class _Known:
    """A name server has the whole table: by which connection, as of which version, in the name of which role."""

    channel: Channel
    version: DataVersion
    role: Role


class _NameServer:
    """One name server: what it knows, what it is to be told, and the task that tells it.

    Attributes:
        changes: how many times topics have changed.
        told: how many of these changes it was told, or could not be told.
        failing: it could not be told the last time.
        refusal: what it said then if it answered; empty else.
        tasks: those that run now.
    """

    def __init__(self, address: str, calls: _Calls, tasks: Tasks, attempted: Callable[[], None]) -> None:
        self.address = address
        self.changes = self.told = 0
        self.failing = False
        self.refusal = ""
        self.tasks: set[asyncio.Task[object]] = set()
        self._calls = calls
        self._tasks = tasks
        self._attempted = attempted
        self._known: _Known | None = None
        self._changed: dict[str, None] = {}
        """Names of topics, in order."""
        self._asked = self._all = False
        self._turn = asyncio.Lock()
        """Of announcements: an older table must not arrive behind a newer one."""
        self._watch: asyncio.Future[None] | None = None
        """Over when the connection by which it knows this broker has ended."""
        self._unanswered: Channel | None = None
        """The connection on which it gave no answer the last time."""
        self._next: asyncio.Task[object] | None = None
        """It has not begun to tell, so all that is due now is in it."""

    def keep(self) -> None:
        """From here on a lost connection is followed by a registration."""
        self._spawn(self._keep_known(), "connection to name server")

    def tell(self, topics: Iterable[str]) -> asyncio.Task[object]:
        """Topics are new or different."""
        self._changed.update(dict.fromkeys(topics))
        self.changes += 1
        return self._soon()

    def tell_all(self) -> asyncio.Task[object]:
        """It is told the whole table."""
        self._all = True
        return self._soon()

    def ask(self) -> asyncio.Task[object]:
        """It is told something, so that it answers."""
        self._asked = True
        return self._soon()

    async def leave(self) -> None:
        """The broker says goodbye to it."""
        try:
            await self._calls.unregister(self.address)
        except RocketMQError as error:
            log.info("name server %s was not told of the shutdown: %s", self.address, error)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[object]:
        task = self._tasks.spawn(work, name)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _soon(self) -> asyncio.Task[object]:
        if self._next is None:
            self._next = self._spawn(self._round(), "registration at a name server")
        return self._next

    async def _round(self) -> None:
        """Tells it what is due, if anything still is when its turn has come."""
        if self._changed and not (self._all or self._asked):
            await asyncio.sleep(_GATHER_SECONDS)
        async with self._turn:
            self._next = None
            if not self._calls.role.online or not self._is_due():
                return
            told = self.changes
            try:
                told = await self._tell()
            except RocketMQError as error:
                self._note_failure(error)
                if isinstance(error, RequestTimeoutError):
                    self._note_silence()
            finally:
                self.told = told
                self._attempted()

    def _is_due(self) -> bool:
        known = self._known
        return bool(
            self._changed
            or self._asked
            or self._all
            or known is None
            or known.channel is not self._calls.existing(self.address)
        )

    def _note_failure(self, error: RocketMQError) -> None:
        self.refusal = str(error) if isinstance(error, ResponseError) else ""
        if not self.failing:
            self.failing = True
            log.warning("name server %s cannot be told of this broker: %s", self.address, error)
        if self._watch is not None:
            self._watch.cancel()  # that its connection lives is not enough

    def _note_silence(self) -> None:
        """Gives up a connection on which two attempts had no answer: it may have died, and nobody need have said so.

        The kernel would go on with it for a quarter of an hour, and the name server forgets this broker in two minutes.
        After one attempt the name server may be slow; it forgets whose connection ends.
        """
        channel = self._calls.existing(self.address)
        if channel is not None and channel is self._unanswered:
            channel.abort()
        self._unanswered = channel

    def _note_success(self) -> None:
        self._unanswered = None
        self.refusal = ""
        if self.failing:
            self.failing = False
            log.info("name server %s knows this broker again", self.address)

    async def _tell(self) -> int:
        """Returns how many changes it has been told now; raises RocketMQError if it did not take all."""
        known, self._known = self._known, None
        whole = self._all
        self._asked = self._all = False
        channel = await self._calls.channel(self.address)
        role = self._calls.role
        if not role.online:
            return self.told
        if known is not None and (known.channel is not channel or known.role != role):
            known = None
        # Nothing is awaited here: the rows must be those of the version, and a change that comes later is told later.
        news = self._calls.news(None if whole or known is None else tuple(self._changed))
        told = self.changes
        self._changed.clear()
        if known is None or not await self._calls.is_needless(self.address, news):
            same = known is not None and known.version == news.version
            await self._calls.register(self.address, news, role, same=same)
            self._note_success()
        if self._calls.existing(self.address) is channel:
            self._known = _Known(channel, news.version, role)
        return told

    async def _keep_known(self) -> None:
        """Tells it again if it has forgotten this broker or could not be told, less often each time.

        A name server forgets a broker whose connection breaks: no route has it, and no tool knows of it.
        """
        loop = asyncio.get_running_loop()
        pause = _AFTER_LOSS_SECONDS
        while True:
            known, since = await self._settled(), loop.time()
            if known is not None:
                await self._lost(known)
            period = self._calls.period
            if loop.time() - since >= period:
                pause = _AFTER_LOSS_SECONDS
            await asyncio.sleep(pause)
            known = await self._settled()
            if known is None or known.channel.closed:
                pause = max(pause, min(2 * pause, period))
                await _over([self._soon()])

    async def _lost(self, known: _Known) -> None:
        """Returns when the connection has ended, or the name server could not be told of something."""
        watch = self._watch = asyncio.ensure_future(known.channel.wait_closed())
        try:
            await asyncio.wait([watch])
        finally:
            watch.cancel()

    async def _settled(self) -> _Known | None:
        """What it knows when nothing is on its way to it."""
        async with self._turn:
            return self._known


class _Calls:
    """What name servers are asked, in the broker's name."""

    def __init__(
        self, pool: ChannelPool, topics: Topics, live: LiveConfig, roles: Roles, registrar: Registrar
    ) -> None:
        self._pool = pool
        self._topics = topics
        self._live = live
        self._roles = roles
        self._registrar = registrar
        self.existing = pool.existing
        self.channel = pool.channel
        self.news = registrar.announcements.current

    @property
    def role(self) -> Role:
        return self._roles.now

    @property
    def period(self) -> float:
        """Seconds from one registration of the whole table to the next."""
        return self._live.now.register_name_server_period / 1000

    async def register(self, address: str, news: Announcement, role: Role, *, same: bool) -> None:
        """Raises RocketMQError if the name server did not take all of it; parts after a refused one are sent too."""
        config = self._live.now
        refusal: ResponseError | None = None
        parts = await news.parts()
        for number, rows in enumerate(parts, start=1):
            version = news.version
            if number < len(parts) and not same:
                version = replace(version, timestamp=version.timestamp + number)
            text = body(version, rows, config.broker_name, part=not news.whole or len(parts) > 1)
            header = RegisterBroker(
                broker_name=config.broker_name,
                broker_addr=self._registrar.address,
                cluster_name=config.broker_cluster_name,
                ha_server_addr=self._registrar.ha_address,
                broker_id=role.broker_id,
                enable_acting_master=config.enable_slave_acting_master,
                heartbeat_timeout_millis=(
                    config.broker_not_active_timeout_millis
                    if config.enable_slave_acting_master
                    else config.channel_expired_timeout
                ),
            )
            try:
                reply, order = await nameserver.register_broker(self._pool, address, header, text)
            except ResponseError as error:
                refusal = error
                continue
            if number == len(parts) and role == self._roles.now:
                if self._registrar.answered is not None:
                    self._registrar.answered(address, reply)
                if order.table and role.is_master:
                    self._topics.mark_ordered(order.table)
        if refusal is not None:
            raise refusal

    async def is_needless(self, address: str, news: Announcement) -> bool:
        """Whether a name server has this very table and need not be told; asking refreshes our liveness there."""
        if not news.whole or self._live.now.force_register:
            return False
        try:
            return not await nameserver.query_data_version(
                self._pool, address, self._identity(), news.version
            )
        except RocketMQError:
            return False

    async def unregister(self, address: str) -> None:
        await nameserver.unregister_broker(self._pool, address, self._identity(), timeout=1.0)

    def _identity(self) -> BrokerIdentity:
        config = self._live.now
        return BrokerIdentity(
            broker_name=config.broker_name,
            broker_addr=self._registrar.address,
            cluster_name=config.broker_cluster_name,
            broker_id=self._roles.now.broker_id,
        )
