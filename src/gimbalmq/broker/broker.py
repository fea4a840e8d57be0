"""The broker: builds the parts, owns their lifetime, holds the handler table."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq._steps import run_through
from gimbalmq.access.access import Access
from gimbalmq.access.gate import Gate
from gimbalmq.access.needs import NeedTable
from gimbalmq.access.plain_requests import ServerNames
from gimbalmq.access.policies import Rules
from gimbalmq.broker.clients import SIGNS_SCAN_SECONDS, Consumers, Member, Producers
from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.broker.consumer_offsets import ConsumerOffsets
from gimbalmq.broker.creations import Creations
from gimbalmq.broker.delay_levels import DelayLevels
from gimbalmq.broker.flush import GroupCommit
from gimbalmq.broker.groups import Groups
from gimbalmq.broker.handlers.admin_broker import BrokerAdminHandlers
from gimbalmq.broker.handlers.admin_groups import GroupAdminHandlers
from gimbalmq.broker.handlers.admin_topics import TopicAdminHandlers
from gimbalmq.broker.handlers.clients import ClientHandlers
from gimbalmq.broker.handlers.controller import ControllerHandlers
from gimbalmq.broker.handlers.members import MemberHandlers
from gimbalmq.broker.handlers.offsets import OffsetHandlers
from gimbalmq.broker.handlers.pull import PullHandlers
from gimbalmq.broker.handlers.query import QueryHandlers
from gimbalmq.broker.handlers.replication import ReplicationHandlers
from gimbalmq.broker.handlers.send import SendHandlers
from gimbalmq.broker.handlers.send_back import SendBackHandlers
from gimbalmq.broker.handlers.send_fast import FastSendHandlers
from gimbalmq.broker.handlers.tables import TableHandlers
from gimbalmq.broker.json_file import TableThread
from gimbalmq.broker.locks import QueueLocks
from gimbalmq.broker.longpoll import LongPoll
from gimbalmq.broker.metrics import MetricsServer
from gimbalmq.broker.redelivery import Deliverer
from gimbalmq.broker.registration import Registrar
from gimbalmq.broker.replication.acknowledging import Acknowledging
from gimbalmq.broker.replication.acting import ActingMode
from gimbalmq.broker.replication.controller_mode import ControllerMode
from gimbalmq.broker.replication.copying import CopiedMaster
from gimbalmq.broker.replication.escape import Escape
from gimbalmq.broker.replication.follower import Follower
from gimbalmq.broker.replication.heard import HeardOfMaster
from gimbalmq.broker.replication.identity import IdentityFile
from gimbalmq.broker.replication.progress import CopiedProgress
from gimbalmq.broker.replication.reading import ReadRules
from gimbalmq.broker.replication.refusals import SlaveRefusals
from gimbalmq.broker.replication.replication import Replication
from gimbalmq.broker.replication.role import Role, Roles
from gimbalmq.broker.replication.role_file import RoleFile
from gimbalmq.broker.replication.services import MasterServices
from gimbalmq.broker.replication.source import HaSource
from gimbalmq.broker.replication.tables import TableCopies
from gimbalmq.broker.replication.taking_back import TakingBack
from gimbalmq.broker.replication.wholeness import Wholeness
from gimbalmq.broker.request_modes import RequestModes
from gimbalmq.broker.stats import SAMPLE_SECONDS, Stats
from gimbalmq.broker.stored import stored_topic
from gimbalmq.broker.timers import SAVE_SECONDS, Timers
from gimbalmq.broker.topics import Topics
from gimbalmq.broker.transactions import Transactions
from gimbalmq.broker.upkeep import Upkeep
from gimbalmq.broker.writer import Writer
from gimbalmq.errors import ConfigError, ListenError, StateError, StoreError
from gimbalmq.model.ids import UniqueIdGenerator
from gimbalmq.protocol.signing import Signer
from gimbalmq.store.consumequeue import QueueLog
from gimbalmq.store.files import Files
from gimbalmq.store.message_store import MessageStore
from gimbalmq.store.results import RecoveryReport
from gimbalmq.transport.channel import Handlers
from gimbalmq.transport.descriptors import budget
from gimbalmq.transport.limits import Load
from gimbalmq.transport.network import AsyncioNetwork, Network
from gimbalmq.transport.pool import GIVE_UP_SECONDS, ChannelPool
from gimbalmq.transport.server import RemotingServer
from gimbalmq.transport.tasks import Tasks
from gimbalmq.transport.tls import RELOAD_SECONDS, ServerTls
from gimbalmq.transport.turns import Turns
from gimbalmq.transport.watchdog import LoopWatchdog

log = logging.getLogger(__name__)

_QUEUE_FLUSH_SECONDS = 1.0
_TRASH_SECONDS = 1.0
_CHECKPOINT_SECONDS = 10.0
_SCAN_SECONDS = 10.0
_FAST_PORT_DISTANCE = 2
_TICK_SECONDS = 0.1


class Broker:
    """A RocketMQ broker (Java: BrokerController).

    ``await start()`` recovers the store, listens, and registers with the name servers;
    ``await close()`` undoes it in the reverse order and leaves a clean folder.

    Args:
        watchdog: of the loop the broker runs on, if somebody watches it; its findings are shown.
        access: users that it shares with a name server; who gives it has loaded it, and closes it. Without it the
            broker has its own.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        network: Network | None = None,
        clock: Clock = SYSTEM_CLOCK,
        files: Files | None = None,
        watchdog: LoopWatchdog | None = None,
        access: Access | None = None,
    ) -> None:
        if not config.store_path_root_dir:
            raise ConfigError("storePathRootDir", "", "name the folder the broker keeps its data in")
        self.live = LiveConfig(config)
        self.handlers = Handlers()
        self.store_path = Path(config.store_path_root_dir)
        self.recovery: RecoveryReport | None = None
        self._network = network or AsyncioNetwork()
        self._clock = clock
        self._files = files or Files()
        self._watchdog = watchdog
        self._shared_access = access
        self._started = False

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def ha_port(self) -> int:
        """The port that slaves copy the log from."""
        return self.source.port

    @property
    def address(self) -> str:
        """Where clients reach it, as the name servers are told."""
        return f"{self.live.now.broker_ip1}:{self.port}"

    async def start(self) -> None:
        """Raises StoreLockedError, StoreIOError, ListenError or ConfigError, each saying what to do."""
        if self._started:
            raise StateError("the broker was started already")
        config = self.live.now
        self._tls = tls = ServerTls(config)
        self._tasks = Tasks("broker")
        self.load = Load(config, clock=self._clock)
        self._server = RemotingServer(self.handlers, tls=tls, network=self._network, load=self.load)
        self._fast_server = RemotingServer(self.handlers, tls=tls, network=self._network, load=self.load)
        # The port is in every record and id, so it is taken before the store is opened.
        await self._server.start(config.bind_address, config.listen_port)
        try:
            self._build(config)
        except BaseException:
            await self._server.close()
            raise
        self._started = True
        try:
            # Until then everybody is refused.
            await self.access.start()
            if config.metrics_prom_exporter_port:
                await self.metrics.start(
                    config.metrics_bind_address,
                    config.metrics_prom_exporter_port,
                    token=config.read_metrics_token(),
                )
            await self._start_fast_port(config)
            await self.replication.listen(self.live.now)
            await self.replication.require_place(self.address)
            self._schedule()
            await self._registration.start(self.address, self.replication.ha_address)
            await self.replication.start()
            if self.controller_mode is not None:
                await self.controller_mode.start()
            if self.acting_mode is not None:
                await self.acting_mode.start()
        except BaseException:
            await self.close()
            raise

    def _build(self, config: BrokerConfig) -> None:
        """The parts, from the store up; each gets what it needs and no more."""
        clock, live = self._clock, self.live
        folder = self.store_path / "config"
        store_config = config.store_config(self.port, budget())
        store_host = store_config.store_host
        self.store = MessageStore(store_config, clock, self._files)
        self.recovery = self.store.load()
        # If this start fails, the next one must find it so, too (``wholeness``).
        self.store.keep_mark = not self.recovery.clean
        try:
            self._tables = TableThread(self._files)
            wholeness = self._note_start(config, self.recovery)
            role_file = RoleFile(folder, self._files, self._tables, config)
            live.now = config = role_file.load(config)
            self.roles = Roles(Role.configured(config))
            self.roles.has_place = False
            self.stats = Stats(clock, config.max_stats_items)
            self.topics = Topics(folder, live, clock, self._tables)
            self.groups = Groups(folder, live, clock, self._tables)
            self.offsets = ConsumerOffsets(folder, self._tables, live, clock)
            self.request_modes = RequestModes(folder, self._tables)
            self.consumers = Consumers(clock)
            self.producers = Producers(clock)
            self.locks = QueueLocks(clock, live=live)
            self.long_poll = LongPoll(self._tags_since, live)
            self.commit = GroupCommit(self.store)
            self.source = HaSource(self.store, live, self._network, clock, self._tls)
            self.acknowledging = Acknowledging(live, self.commit, self.source.acks)
            self._turns = Turns(clock)
            self.upkeep = Upkeep(self.store, self.commit, self._turns, live, clock)
            self.writer = Writer(self.store, live, self.long_poll, self.stats, clock, self.commit)
            deliverer = Deliverer(self.store, self.writer, self._queues_of)
            self.delays = DelayLevels(folder, self.store, self.writer, deliverer, clock)
            self.timers = Timers(self.store_path, self.store, deliverer, self.stats, clock)
            self.store.keepers += [self._keep, self.delays.keep, self.timers.keep]
            self.transactions = Transactions(
                self.store, self.writer, self.producers, self.offsets, self._turns, live, store_host, clock
            )
            self.access = self._shared_access or self._own_access(config, folder)
            inner = self.access.inner
            signer = None if inner is None else Signer(inner.name, inner.secret)
            self._pool = ChannelPool(
                network=self._network,
                tls=self._tls.client,
                signer=signer,
                give_up_seconds=GIVE_UP_SECONDS,
            )
            services = MasterServices(
                self.store,
                self.topics,
                self.offsets,
                self.locks,
                deliverer,
                self.delays,
                self.timers,
                self.transactions,
                self.groups,
                Escape(live, self._pool, clock),
            )
            for part in (
                self.topics,
                self.groups,
                self.offsets,
                self.request_modes,
                self.delays,
                self.timers,
            ):
                part.load()
            if self.roles.is_master and self.roles.now.online:
                run_through(services.go_on())
            else:
                self.store.follow()
            needs = NeedTable.of_broker(Rules(config.authorization_rules), config.broker_cluster_name)
            needs.topic_at = partial(stored_topic, self.store)
            gate = self.access.gate(needs, config)
            if gate is not None:
                self.transactions.show_only_if(partial(_may_see, gate, needs))
                self.timers.delete_only_in_own_topic(gate.is_strict)
        except BaseException:
            self.store.close()
            raise
        self._registration = Registrar(self._pool, self.topics, live, self._tasks, self.roles)
        progress = CopiedProgress(self.store, self.offsets, self.delays, self.timers)
        store = self.store
        heard = HeardOfMaster(
            folder, self._files, self._tables, self._pool, clock, lambda: store.received_offset
        )
        heard.load()
        follower = Follower(
            self.store,
            live,
            self._network,
            self._pool,
            clock,
            self.writer.arrived,
            lambda: self._pool.tls if live.now.ha_tls_enable else None,
        )
        self.replication = Replication(
            self.store,
            live,
            self._pool,
            self._turns,
            self.roles,
            role_file,
            self._registration,
            services,
            self.long_poll,
            self.source,
            CopiedMaster(live, self._pool, self.roles, self._registration, progress, follower),
            heard,
        )
        self.copies = TableCopies(
            self.store,
            self.topics,
            self.groups,
            self.offsets,
            self.request_modes,
            progress,
            self.access,
            self.stats,
            self._pool,
            self._turns,
            live,
            clock,
        )
        self.replication.master.on_copying.append(self.copies.aim)
        self.replication.table_trouble = lambda: self.copies.trouble
        self.controller_mode: ControllerMode | None = None
        if config.enable_controller_mode:
            self.controller_mode = ControllerMode(
                self.store,
                live,
                clock,
                self._files,
                self._tables,
                self._pool,
                self.replication,
                self.acknowledging,
                self.writer,
                self.long_poll,
                self.address,
                wholeness,
                self.commit.flush,
            )
        # Behind all others who hear of reports: what they have settled is answered at once.
        self.source.on_report.append(lambda _: self.load.flush())
        self.acting_mode: ActingMode | None = None
        if config.enable_slave_acting_master and not config.enable_controller_mode:
            self.acting_mode = ActingMode(
                self.store,
                live,
                self._pool,
                self.replication,
                TakingBack(self.offsets, self.delays, self.timers, self._turns, self._pool),
                self.topics,
                self.acknowledging,
                lambda: self.address,
            )
        self.metrics = MetricsServer(
            self.store,
            self.stats,
            self.topics,
            self.offsets,
            self.consumers,
            self.producers,
            self.long_poll,
            self._turns,
            self.replication,
            self._watchdog,
        )
        unique_ids = UniqueIdGenerator(store_host[:-4], os.getpid(), id(self) & 0x7FFFFFFF)
        creations = Creations(self.topics, self.groups, live)
        clients = ClientHandlers(
            self.consumers,
            self.producers,
            self.topics,
            self.groups,
            self.locks,
            self.long_poll,
            creations,
            live,
            gate,
        )
        self.notices = clients.notices
        self._expel_silent = clients.expel_silent
        for family in (
            SendHandlers(
                self.store,
                self.writer,
                self.topics,
                creations,
                self.locks,
                self.transactions,
                self.acknowledging,
                live,
                self.stats,
                store_host,
                unique_ids,
                self._registration.announced,
                clock,
            ),
            FastSendHandlers(
                self.store, self.writer, self.topics, self.acknowledging, live, self.stats, store_host, gate
            ),
            SendBackHandlers(
                self.store,
                self.writer,
                self.topics,
                self.producers,
                creations,
                live,
                self.stats,
                store_host,
                self.acknowledging,
                clock,
            ),
            PullHandlers(
                self.store,
                self.topics,
                self.groups,
                creations,
                self.consumers,
                self.offsets,
                self.long_poll,
                live,
                self.stats,
                ReadRules(live, self.roles),
                gate,
            ),
            clients,
            OffsetHandlers(self.store, self.offsets, self.topics, creations),
            QueryHandlers(self.store, self.transactions, self.upkeep),
            TopicAdminHandlers(
                self.store,
                self.topics,
                self.offsets,
                self.consumers,
                live,
                self.stats,
                self._turns,
                self._registration.announced,
                self.acknowledging,
            ),
            GroupAdminHandlers(
                self.store,
                self.topics,
                self.groups,
                self.offsets,
                self.consumers,
                self.producers,
                self.locks,
                self.long_poll,
                live,
                self.stats,
                self._turns,
            ),
            ReplicationHandlers(self.store, self.replication, live, lambda: self.address),
            TableHandlers(
                self.store,
                self.topics,
                self.groups,
                self.offsets,
                self.delays,
                self.timers,
                self.request_modes,
                self._turns,
            ),
            BrokerAdminHandlers(
                self.store,
                live,
                self.stats,
                self.delays,
                self.timers,
                self.long_poll,
                self.upkeep,
                clock,
                self.replication,
                self._watchdog,
            ),
            ControllerHandlers(self.controller_mode),
            MemberHandlers(self.acting_mode),
        ):
            family.register(self.handlers)
        SlaveRefusals(self.roles, live, lambda: self.replication.master.address).install(self.handlers)
        self.access.guard(
            self.handlers,
            gate,
            needs,
            lambda: ServerNames(config.broker_name, self.address, config.broker_cluster_name),
        )

    def _note_start(self, config: BrokerConfig, recovery: RecoveryReport) -> Wholeness:
        """Has the folder tell of this start, before anything of it can fail."""
        identity = IdentityFile.of(config, self._files)
        try:
            is_known = identity.given() is not None
        except (ConfigError, StoreError):
            if config.enable_controller_mode:
                raise
            is_known = True  # whoever it says it is, it is a controller's
        wholeness = Wholeness(
            self.store_path / "config",
            self._files,
            self._tables,
            was_closed=recovery.clean,
            is_shorter=recovery.is_shorter,
            is_empty=is_known and self.store.max_commitlog_offset == 0,
            is_known=is_known,
        )
        try:
            wholeness.keep()
            self.store.forget_shorter()
            self.store.keep_mark = config.enable_controller_mode and not recovery.clean
        except StoreError as error:
            log.warning(
                "%s; make room there. Until the next start this folder will look as after a crash", error
            )
            self.store.keep_mark = True
        return wholeness

    def _own_access(self, config: BrokerConfig, folder: Path) -> Access:
        access = Access(config, folder, self.store_path, clock=self._clock, files=self._files)
        access.load()
        return access

    def _tags_since(self, queue: QueueLog, offset: int) -> list[int]:
        entries = self.store.entries(queue.topic, queue.queue_id, offset, queue.max_offset - offset)
        return [tags_code for _, _, tags_code in entries]

    def _keep(self, limit: int) -> int:
        return self.replication.keep(limit)

    def _queues_of(self, topic: str) -> int:
        found = self.topics.find(topic)
        return 0 if found is None else max(found.read_queue_nums, found.write_queue_nums)

    async def _start_fast_port(self, config: BrokerConfig) -> None:
        """Old clients send to port - 2; without it everybody else still works."""
        if config.listen_port <= _FAST_PORT_DISTANCE:
            return
        try:
            await self._fast_server.start(config.bind_address, config.listen_port - _FAST_PORT_DISTANCE)
        except ListenError as error:
            log.warning("no VIP port for clients older than 4.5.1: %s", error)

    def _schedule(self) -> None:
        every = self._tasks.every
        live = self.live
        every(lambda: live.now.flush_interval_commit_log / 1000, self.upkeep.sync_log, "flush")
        every(_QUEUE_FLUSH_SECONDS, self.upkeep.write_behind, "queue files", first=0.0)
        every(_TRASH_SECONDS, self.upkeep.empty_trash, "deleted topics")
        every(_CHECKPOINT_SECONDS, self.upkeep.checkpoint, "checkpoint")
        every(_TICK_SECONDS, self._deliver_due, "what falls due")
        every(SAVE_SECONDS, lambda: self.timers.save(self.commit.flush), "timers' progress")
        every(lambda: live.now.transaction_check_interval / 1000, self.transactions.check, "transactions")
        every(lambda: live.now.flush_consumer_offset_interval / 1000, self._save_offsets, "consumer offsets")
        every(lambda: live.now.flush_delay_offset_interval / 1000, self._save_delays, "delay offsets")
        every(_SCAN_SECONDS, self._expire_clients, "silent clients")
        every(SIGNS_SCAN_SECONDS, self._expel_silent, "hung clients")
        every(RELOAD_SECONDS, self._reload_certificates, "certificates")
        every(SAMPLE_SECONDS, self._sample, "statistics")
        every(
            lambda: live.now.clean_resource_interval / 1000,
            self.upkeep.clean,
            "clean-up",
            first=min(60.0, live.now.clean_resource_interval / 1000),
        )

    def _deliver_due(self) -> Awaitable[None] | None:
        """Delivers delayed messages; nearly always none is due, and then no coroutine is made."""
        return _go_on(self._tick) if self._tick() else None

    def _tick(self) -> bool:
        more = False
        try:
            more = self.delays.tick()
        finally:  # what fails with one kind of delay must not stop the other
            more = self.timers.tick() or more
        return more

    async def _reload_certificates(self) -> None:
        if await self._tls.reload():
            self._pool.tls = self._tls.client

    async def _sample(self) -> None:
        await self._turns.run(self.stats.round())

    def _save_offsets(self) -> None:
        self.transactions.note_durable_progress()
        self.offsets.save()

    async def _close_transactions(self) -> None:
        self.store.flush()
        self.transactions.note_durable_progress()

    async def _save_delays(self) -> None:
        """What was delivered is durable before it is noted as delivered."""
        document = self.delays.document()
        await self.commit.flush()
        await self._tables.run(lambda: self.delays.save(document))

    async def _close_delays(self) -> None:
        self.store.flush()
        self.delays.save(self.delays.document())

    async def _close_timers(self) -> None:
        self.timers.close()

    def _expire_clients(self) -> None:
        seconds = self.live.now.channel_expired_timeout / 1000
        for channel in {*self.consumers.expire(seconds), *self.producers.expire(seconds)}:
            log.info("closing %s: no heartbeat for %.0f s", channel.address, seconds)
            channel.abort()
        self.locks.expire()

    async def close(self) -> None:
        """Leaves the name servers, answers what waits, saves everything, unlocks the folder."""
        if not self._started:
            return
        self._started = False
        await self.metrics.close()
        self.topics.changed = None
        await self._registration.goodbye()
        self.long_poll.wake_all()
        await self.long_poll.all_woken()
        await self._stop_serving()
        for save in (
            self.topics.saving.finish,
            self.groups.saving.finish,
            self.request_modes.saving.finish,
            self._close_transactions,
            self.offsets.finish,
            self._close_delays,
            self._close_timers,
        ):
            try:
                await save()
            except StoreError as error:
                log.error("shutdown: %s", error)
        self._tables.close()
        self.store.close()
        await self._close_access()

    async def _close_access(self) -> None:
        if self._shared_access is None:
            await self.access.close()

    async def abandon(self) -> None:
        """Ends as a crash would, as far as a process can do that to a part of itself.

        What was written to files stays, as it does in the system's cache; what was only in
        memory is gone, nobody is told, and the abort marker remains.
        """
        if not self._started:
            return
        self._started = False
        await self.metrics.close()
        self.topics.changed = None
        for saving in (self.topics.saving, self.groups.saving, self.request_modes.saving, self.offsets):
            await saving.abandon()
        for server in (self._server, self._fast_server):
            server.abort_all()
        self.handlers.abandon()
        await self._stop_serving()
        self._tables.close()
        self.timers.abandon()
        self.store.abandon()
        await self._close_access()

    async def _stop_serving(self) -> None:
        await self._server.close()
        await self._fast_server.close()
        await self.copies.close()
        if self.controller_mode is not None:
            await self.controller_mode.close()
        if self.acting_mode is not None:
            await self.acting_mode.close()
        await self.replication.close()
        await self._tasks.close()
        await self._pool.close()
        await self.upkeep.close()
        await self.commit.close()


async def _go_on(work: Callable[[], bool]) -> None:
    """Calls ``work`` again as long as it says there is more, and lets everybody else have the loop before each call."""
    while True:
        await asyncio.sleep(0)
        if not work():
            return


def _may_see(gate: Gate, needs: NeedTable, topic: str, producer: Member) -> bool:
    """Who may send to a topic may be asked what became of a message to it."""
    return gate.allows(producer.channel, producer.user, needs.of_send(topic))
