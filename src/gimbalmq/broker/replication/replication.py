"""Replication of one broker: the stream in both directions, copies of tables, and changes of the role at run time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.broker.longpoll import LongPoll
from gimbalmq.broker.registration import Registrar
from gimbalmq.broker.replication.config import ASYNC_MASTER, MASTER_ID, SLAVE, SYNC_MASTER
from gimbalmq.broker.replication.copying import CopiedMaster
from gimbalmq.broker.replication.follower import State
from gimbalmq.broker.replication.heard import HeardOfMaster
from gimbalmq.broker.replication.masters import (
    Master,
    other_holder,
    other_master,
    require_no_other,
    require_own_id,
)
from gimbalmq.broker.replication.place import Place
from gimbalmq.broker.replication.rejoining import last_common
from gimbalmq.broker.replication.replica import Replica
from gimbalmq.broker.replication.role import Kind, Role, Roles
from gimbalmq.broker.replication.role_file import RoleFile
from gimbalmq.broker.replication.services import MasterServices
from gimbalmq.broker.replication.source import HaSource
from gimbalmq.broker.replication.status import ReplicationStatus, slave_status
from gimbalmq.errors import CopyRefusedError, ListenError, RocketMQError, StateError, StoreError
from gimbalmq.store.cutting import CutReport
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.pool import ChannelPool
from gimbalmq.transport.tasks import Tasks, uninterrupted
from gimbalmq.transport.turns import Turns

log = logging.getLogger(__name__)

_SEEK_SECONDS = 1.0
_LET_GO_SECONDS = 1.0
_LOOK_SECONDS = 0.02
_HA_PORT_DISTANCE = 1


class Replication:
    """Java: the parts of BrokerController, HAService and ReplicasManager that a change of the role concerns.

    Attributes:
        roles: the role in force.
        source: where slaves copy this broker's log.
        master: whom this broker copies while it is a slave.
        follower: copies the master's log.
        in_set: with a controller, whether a slave is in its set of replicas in sync.
        unconfirmed: with a controller, how many sends wait until all of the set have what they stored.
        election_trouble: with a controller, why this broker has no part in elections just now, if it has none.
        heard: what this broker last heard of its master.
        place: whether a slave has its id to itself, and why it finds no master.
        table_trouble: at a slave, why a table of its master is not copied, if one is not.
        on_cut: told of the offset at which our log has been cut.
    """

    def __init__(
        self,
        store: MessageStore,
        live: LiveConfig,
        pool: ChannelPool,
        turns: Turns,
        roles: Roles,
        role_file: RoleFile,
        registration: Registrar,
        services: MasterServices,
        long_poll: LongPoll,
        source: HaSource,
        master: CopiedMaster,
        heard: HeardOfMaster,
    ) -> None:
        self._store = store
        self._live = live
        self._pool = pool
        self._turns = turns
        self._role_file = role_file
        self._registration = registration
        self._services = services
        self._long_poll = long_poll
        self._tasks = Tasks("replication")
        self._changing = asyncio.Lock()
        self._listens = False
        self.roles = roles
        self.source = source
        self.master = master
        self.follower = master.follower
        self.heard = heard
        self.place = Place(pool, live, roles, registration, master.follower)
        self.in_set: Callable[[Replica], bool] | None = None
        self.unconfirmed: Callable[[], int] = lambda: 0
        self.election_trouble: Callable[[], str | None] = lambda: None
        self.table_trouble: Callable[[], str | None] = lambda: None
        self.on_cut: list[Callable[[int], None]] = []
        if not live.now.enable_controller_mode:  # a controller knows who is in sync
            master.on_copying.append(heard.aim)
        roles.watch(self._inherit)
        roles.watch(heard.role_changed)

    # -- life --------------------------------------------------------------------------------

    async def listen(self, config: BrokerConfig) -> None:
        """Opens the port that slaves copy from.

        Raises:
            ListenError: it is taken, and the broker was told to use it (haListenPort) or needs slaves (SYNC_MASTER).
                Any other broker works without it, and only logs that nobody can copy it.
        """
        port = config.ha_listen_port or (config.listen_port and config.listen_port + _HA_PORT_DISTANCE)
        try:
            await self.source.start(config.bind_address, port)
            self._listens = True
        except ListenError as error:
            if config.ha_listen_port or config.broker_role == SYNC_MASTER:
                raise
            log.warning("no slave can copy this broker: %s; name another port with haListenPort", error)

    @property
    def ha_address(self) -> str:
        """Where slaves copy this broker's log, as name servers are told; empty if nobody can."""
        return f"{self._live.now.broker_ip2}:{self.source.port}" if self._listens else ""

    async def require_place(self, own_address: str) -> None:
        """Raises ConfigError if another broker is the master, or the slave, that this one is to be."""
        config = self._live.now
        if self.roles.is_master:
            await require_no_other(self._pool, config, own_address)
        elif not config.enable_controller_mode:
            await require_own_id(self._pool, config, own_address)
        self.roles.has_place = True

    async def start(self) -> None:
        """Begins to copy the master, if this is a slave; the name servers have been told of this broker."""
        if not self.roles.is_master and self.roles.now.online:
            await self._copy()
        await self.heard.start()
        self._tasks.every(_SEEK_SECONDS, self._seek, "master", first=0.0)
        self._tasks.every(lambda: self.place.pause, self.place.look, "place", first=_SEEK_SECONDS)

    async def go_online(self) -> None:
        """Serves from now on, and has name servers told so; for a broker that has asked the others first."""
        async with self._changing:
            role = replace(self.roles.now, online=True)
            if role.is_master:
                self._store.lead()
                await self._turns.run(self._services.go_on(promoted=True))
            self.roles.change(role)
            log.info("this broker is online as %s", role)
            if not role.is_master:
                await self._copy()

    async def copy(self, master: Master) -> None:
        """Begins to copy that master, before this slave is online."""
        async with self._changing:
            self.master.aim(master)
            await self._copy()

    async def act(self, acting: bool) -> None:
        """Has this slave stand in for its master, which is gone, or lets that be again."""
        async with self._changing:
            role = self.roles.now
            if role.is_master or role.acting == acting:
                return
            self.roles.change(replace(role, acting=acting))
            if acting:
                log.warning("the master is gone: this slave stands in for it, read only")
                self.master.tell(
                    None
                )  # a master that comes back may know less than we have learned meanwhile
                self.master.progress.settle()
                self.master.progress.forget()
                if self._live.now.enable_remote_escape:
                    await self._turns.run(self._services.stand_in())
            else:
                log.warning("the master is back: this slave stands in for it no more")
                await self._services.stop_standing_in()
                self._services.forget_locks()
                self._long_poll.wake_all()
                self.master.tell(self.master.address or None)

    async def close(self) -> None:
        await self._tasks.close()
        await self.heard.close()
        await self._services.close()
        await self.follower.close()
        await self.source.close()

    def _inherit(self, before: Role, now: Role) -> None:
        """The slaves of the master before us may come to us at any moment, and with them the old master itself."""
        if now.is_master and not before.is_master:
            self.source.headcount.note(self.heard.slaves)

    # -- the master --------------------------------------------------------------------------

    async def _seek(self) -> None:
        """What a slave does every second."""
        if self.roles.is_master or not self.roles.now.online or self._changing.locked():
            return
        if not self.follower.is_connected:
            await self._registration.ask_for_master()
        if self.follower.state is State.REFUSED and self._live.now.ha_cut_tail_from >= 0:
            await self._cut_tail()
        await self.master.look()
        if not self.roles.is_master:
            self.master.progress.settle()

    def keep(self, limit: int) -> int:
        """Asked before the log's files below ``limit`` go: a slave deletes what its master has deleted.

        Before a master deletes files it stores again what still waits in them, such as timers. A slave cannot do that.
        """
        if self.roles.is_master:
            return limit
        if self.master.begin is None or self._changing.locked():
            return self._store.min_commitlog_offset
        return min(limit, self.master.begin)

    # -- changes of the role -----------------------------------------------------------------

    async def change(self, config: BrokerConfig, *, forced: bool = False) -> None:
        """Takes the role of a configuration by hand: brokerRole and brokerId.

        Args:
            forced: a slave becomes the master although another master lives.

        Raises:
            StateError: a controller gives the roles here, or there would be two masters, or two slaves of one id.
            StoreError: the store could not change over; the role is the old one.
        """
        if config.enable_controller_mode:
            raise StateError(
                "the controller gives this broker its role: ask it to elect another master "
                "(gimbalmq broker elect), or start the broker with enableControllerMode=false"
            )
        if config.broker_role == SLAVE:
            await self._require_id(config)
            await self.become_slave(config.broker_id)
        else:
            if not self.roles.is_master and not forced:
                await self._require_no_master()
            await self.become_master(wait=config.broker_role == SYNC_MASTER)

    async def _require_id(self, config: BrokerConfig) -> None:
        """Nobody else may have the id of a slave; a master may, for a slave may change places with it."""
        own = self._registration.address
        if self.roles.is_master and await other_master(self._pool, self._live.now, own) is None:
            return  # two slaves of one id say so if it stays like that
        held = await other_holder(self._pool, config, own)
        if held is not None:
            raise StateError(str(held))

    async def _require_no_master(self) -> None:
        target = self.follower.target
        known = "" if target is None else target.master_address
        found = await other_master(self._pool, self._live.now, self._registration.address, known)
        if found is None and not await self._is_let_go():
            found = known
        if found is not None:
            raise StateError(
                f"{found} is the master of {self._live.now.broker_name} and lives: there would be two, and what one of "
                "them takes is lost later. Stop it first; gimbalmq broker promote --force does it all the same"
            )

    async def _is_let_go(self) -> bool:
        """Whether the stream of the log has ended; a master that was killed a moment ago may not be missed yet."""
        try:
            async with asyncio.timeout(_LET_GO_SECONDS):
                while self.follower.is_connected:  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            return False
        return True

    async def become_master(self, *, epoch: int = 0, wait: bool | None = None) -> None:
        """Makes this broker the master; one that is the master already only gets the new epoch and ``wait``.

        The caller has made sure that there is no other master.

        Args:
            epoch: of the new term, if there is a controller.
            wait: whether sends wait for slaves (SYNC_MASTER); by default as the configuration says.

        Raises:
            StoreError: the store could not change over; the broker is a slave as before.
        """
        async with self._changing:
            role = Role(Kind.MASTER, MASTER_ID, epoch=epoch)
            if not self.roles.is_master:
                log.info("becoming the master; the log ends at %d", self._store.max_commitlog_offset)
                await self._take_over()
            self._swap(MASTER_ID, self._master_role(wait))
            self.follower.aim(None, None)
            self._services.new_term(epoch)
            self.roles.change(role)
            log.warning("this broker is the %s from now on", role)
            await self._keep_role()

    def _master_role(self, wait: bool | None) -> str:
        config = self._live.now
        if wait is None:
            wait = config.enable_controller_mode or config.broker_role == SYNC_MASTER
        return SYNC_MASTER if wait else ASYNC_MASTER

    async def _take_over(self) -> None:
        self.master.tell(None)
        await self._services.stop_standing_in()
        await self.follower.close()
        self.master.progress.settle()
        self.master.progress.forget()
        try:
            self._store.lead()
            self._services.work_on_copies(False)
            await self._turns.run(self._services.go_on(promoted=True))
        except BaseException:
            self._services.rest()
            self._store.follow()
            await self._copy()
            raise
        self.source.drop_all()
        self.master.begin = None

    async def become_slave(self, broker_id: int, *, epoch: int = 0) -> None:
        """Makes this broker a slave; from the first moment on it takes nothing but what its master has.

        Args:
            broker_id: its id, 1 or more.
            epoch: of the master, if there is a controller.
        """
        assert broker_id > MASTER_ID
        async with self._changing:
            role = Role(Kind.SLAVE, broker_id, epoch=epoch)
            was_master = self.roles.is_master
            self._swap(broker_id, SLAVE)
            self.roles.change(role)
            if was_master:
                self._services.rest()
                self._store.follow()
                self.source.drop_all()
                # What waits may be cut away, and then others have other bytes up to the same offset.
                self.source.acks.give_up()
                self.master.forget_named()
                self._long_poll.wake_all()
                log.warning("this broker is a %s from now on", role)
            await self._copy()
            await self._keep_role()

    async def _copy(self) -> None:
        """What a slave does: its log and its tables are copies."""
        self._services.work_on_copies(True)
        self.master.aim_at_named()
        await self.follower.start()
        self.master.tell(self.master.address or None)

    def _swap(self, broker_id: int, role: str) -> None:
        self._live.swap(replace(self._live.now, broker_id=broker_id, broker_role=role))

    async def _keep_role(self) -> None:
        """A role that was given by hand is kept for the next start; what a controller says is not."""
        if self._live.now.enable_controller_mode:
            return
        try:
            await self._role_file.save(self._live.now)
        except StoreError as error:
            log.error(
                "the role of this broker cannot be saved: %s; after a restart it would be the old one, so change "
                "brokerRole and brokerId in its configuration",
                error,
            )

    # -- a tail that the master does not have ------------------------------------------------

    async def _cut_tail(self) -> None:
        """Cuts what the master does not have, because the operator has said so (haCutTailFrom)."""
        target = self.follower.target
        if target is None:
            return
        async with self._changing:
            allowed = self._live.now.ha_cut_tail_from
            if self.roles.is_master or allowed < 0:
                return
            await self.follower.close()
            try:
                common = await self.last_common(target.master_address)
                if common < allowed:
                    log.error(
                        "nothing is cut: our log parts from that of %s at %d, and haCutTailFrom=%d is behind that",
                        target.master_address,
                        common,
                        allowed,
                    )
                elif common < self._store.max_commitlog_offset:
                    await uninterrupted(self._cut_at(common))
            except CopyRefusedError as error:
                log.error("nothing is cut: %s", error)
            except RocketMQError as error:
                log.warning("nothing is cut yet: %s; tried again", error)
                return
            finally:
                await self.follower.start()
            self._live.swap(replace(self._live.now, ha_cut_tail_from=-1))

    async def _cut_at(self, offset: int) -> None:
        """To be finished also if this broker is closed: the queues are cut first, and the log would keep the rest."""
        await self.cut(offset)

    async def last_common(self, master: str) -> int:
        """The offset behind the last record that our log has in common with a master's (``rejoining``)."""
        return await last_common(self._store, self._pool, master, self._turns)

    async def cut(self, offset: int) -> CutReport:
        """Cuts our log, which is a slave's, and says what is lost.

        Raises:
            StoreError: it cannot be cut there, or the disk failed.
        """
        try:
            report = await self._turns.run(self._store.cut_steps(offset))
        finally:
            # Whoever copies this slave has what was cut. If it went on from there, its log would be another one, and
            # nobody would notice: both would have the same last record.
            self.source.drop_all()
        lost = ", ".join(f"{topic}: {count}" for topic, count in sorted(report.topics.items())[:100])
        log.warning(
            "cut our log from %d to %d, which the master does not have: %d records are lost (%s)",
            report.begin,
            report.end,
            report.records,
            lost,
        )
        self.master.progress.forget()
        self._services.distrust()
        for hear in self.on_cut:
            hear(offset)
        return report

    @property
    def waiting(self) -> int:
        """Sends that wait for slaves."""
        return self.source.acks.waiting + self.unconfirmed()

    # -- for tools ---------------------------------------------------------------------------

    def status(self) -> ReplicationStatus:
        store, follower = self._store, self.follower
        slaves = tuple(slave_status(slave, self.source.now, self.in_set) for slave in self.source.replicas)
        if self.roles.is_master:
            return ReplicationStatus(
                self.roles.now,
                store.max_commitlog_offset,
                trouble=self.election_trouble(),
                slaves=slaves,
                slave_count=self.source.slaves,
            )
        target = follower.target
        return ReplicationStatus(
            self.roles.now,
            store.received_offset,
            master=self.master.address,
            master_ha="" if target is None else target.ha_address,
            state=str(follower.state),
            # Both, for a slave that finds no master may itself be what the controller waits for.
            trouble="; ".join(filter(None, (follower.trouble, self.place.trouble, self.election_trouble())))
            or self.table_trouble(),
            lag=follower.lag,
            bytes_per_second=follower.bytes_per_second,
            last_read_ms=follower.last_read_ms,
            last_write_ms=follower.last_write_ms,
            master_role=self.heard.role,
            master_slaves=self.heard.slaves,
            slaves=slaves,
        )
