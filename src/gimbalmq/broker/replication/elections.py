"""A broker's life with a controller: an id, registration, heartbeats, and the role that the controller gives.

1. The broker starts as nobody: no name server knows it, sends are refused.
2. It finds the controller that leads, gets an id if it has none, and registers.
3. If there is no master, it asks for an election. Then it takes the role that the answer says.
4. From then on it sends heartbeats and asks every few seconds who the master is. A greater epoch means a new master.
   A notice from the controller (1008) is a reason to ask at once; what the notice says is not believed, for anybody
   could send one.
5. A master asks the controller to change the set of replicas in sync (``sync_set``).

A broker that may have lost the end of its log sends no heartbeats and does not lead, until it has been level with a
master, or the others have told how far their logs go (``doubt``).

Nothing here elects. While no controller is heard the roles stay as they are. A master that has lost sight of its
controllers goes on: with ``allAckInSyncStateSet`` nobody can be elected who lacks what it has answered.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass
from typing import Protocol

from gimbalmq._clock import Clock
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.replication.controller import Controllers
from gimbalmq.broker.replication.doubt import Doubt, LogEnd
from gimbalmq.broker.replication.identity import Applied, IdentityFile
from gimbalmq.broker.replication.sync_set import SyncSet
from gimbalmq.broker.replication.wholeness import Wholeness
from gimbalmq.errors import ConnectError, ResponseError, RocketMQError, TransportError
from gimbalmq.protocol.codes import ResponseCode
from gimbalmq.protocol.headers.controller import AlterSyncStateSet, ElectMaster, RegisterAtController
from gimbalmq.protocol.headers.replication import BrokerHeartbeat
from gimbalmq.protocol.replication_bodies import ReplicasInfo
from gimbalmq.rpc import controller, replication
from gimbalmq.rpc.controller import Standing
from gimbalmq.transport.tasks import Tasks

log = logging.getLogger(__name__)

_START_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Between tries to join; the last one again and again."""
_ALTER_PAUSE = 0.5
"""After a question about the set that was not granted."""
_NOT_AS_WE_KNOW = (
    ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
    ResponseCode.CONTROLLER_INVALID_MASTER,
    ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
)
_NOT_TAKEN = (ResponseCode.CONTROLLER_INVALID_REPLICAS, ResponseCode.CONTROLLER_BROKER_NOT_ALIVE)
"""The set was the one we know, and somebody who is wished cannot be in it."""
_SET_NOT_CHANGED = (
    ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
    ResponseCode.CONTROLLER_INVALID_MASTER,
    *_NOT_TAKEN,
)
"""After any other code the set may be the wished one all the same: a controller that waits for the others too long, or
is voted out meanwhile, says no, and what it began may still be done."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a heartbeat tells of the log.

    Attributes:
        written_epoch: of its last byte; ``epoch`` may have none yet.
    """

    epoch: int
    end: int
    confirm: int
    written_epoch: int


class RoleTaker(Protocol):
    """Who makes the broker a master or a slave."""

    def progress(self) -> Progress: ...

    async def lead(self, standing: Standing) -> None:
        """Makes the broker the master of a new epoch, or keeps it so; raises StoreError if it cannot be."""
        ...

    async def follow(self, standing: Standing) -> None:
        """Makes the broker a slave of the master named; raises StoreError if it cannot be."""
        ...


class Elections:
    """The controller's part in a broker's life.

    Args:
        address: where the controller and the others reach this broker.
        taker: takes the roles.
        wholeness: whether this broker has all that it ever had.

    Attributes:
        own_id: what the controller calls this broker; None before it said so.
        standing: what the role in force was taken from; None before the first one.
        trouble: why the broker has no part in elections just now, for people.
        sync_set: of this broker while it is the master; whoever takes the role makes it.
    """

    def __init__(
        self,
        controllers: Controllers,
        identity: IdentityFile,
        live: LiveConfig,
        clock: Clock,
        address: str,
        taker: RoleTaker,
        wholeness: Wholeness,
    ) -> None:
        self.own_id = identity.given()
        self.standing: Standing | None = None
        self.trouble: str | None = "no controller has been asked yet"
        self.sync_set: SyncSet | None = None
        self._controllers = controllers
        self._identity = identity
        self._live = live
        self._clock = clock
        self._address = address
        self._taker = taker
        self._tasks = Tasks("elections")
        self._taking = asyncio.Lock()
        self._wish = asyncio.Event()
        self._look_now = asyncio.Event()
        self._joined = asyncio.Event()
        self._is_beating = False
        self._has_begun = False
        self._said: str | None = None
        """What was logged last. A broker in doubt takes its role without trouble, and then has the same trouble with
        its log again; that is logged once."""
        self._refusal: str | None = None
        """The last one of a set, until one is granted."""
        self._wholeness = wholeness
        self._doubt = Doubt(wholeness, controllers, live, clock, self._own_end, self._tell, self._elect)

    @property
    def master_epoch(self) -> int:
        return 0 if self.standing is None else self.standing.master_epoch

    @property
    def is_master(self) -> bool:
        return self.standing is not None and self.standing.master_id == self.own_id

    async def start(self) -> None:
        """Begins to join, in the background."""
        self._tasks.spawn(self._live_on(), "joining")

    async def close(self) -> None:
        await self._tasks.close()

    async def joined(self) -> None:
        """Returns when the broker has its first role."""
        await self._joined.wait()

    def notified(self) -> None:
        """The controller says that roles have changed: it is asked at once."""
        self._look_now.set()

    def wish(self) -> None:
        """The set of replicas in sync should be another."""
        self._wish.set()

    # --- joining -----------------------------------------------------------------------------

    async def _live_on(self) -> None:
        tries = 0
        while True:
            try:
                await self._join()
                break
            except RocketMQError as error:
                self._note_trouble(_explained(error, self.own_id, self._live.now.broker_name))
            except Exception as error:
                # A broker must not stay without a role for ever because of one bad answer.
                log.exception("joining failed and is tried again")
                self.trouble = repr(error)
            pause = _START_PAUSES[min(tries, len(_START_PAUSES) - 1)]
            tries += 1
            # Brokers that start together must not ask for the same id again and again.
            await asyncio.sleep(pause * random.uniform(0.7, 1.3))
        self._joined.set()
        config = self._live
        self._tasks.every(
            lambda: config.now.sync_controller_metadata_period / 1000, self._find_leader, "leader"
        )
        self._tasks.every(
            lambda: config.now.check_sync_state_set_period / 1000, self._check_set, "replicas in sync"
        )
        self._tasks.spawn(self._watch(), "who is master")
        self._tasks.spawn(self._keep_set(), "set of replicas")

    async def _join(self) -> None:
        if not self._has_begun:
            await self._wholeness.begin()
            self._has_begun = True
        await self._controllers.find_leader()
        if self.own_id is None:
            self.own_id = await self._identify()
        standing = await self._register()
        if self._wholeness.in_doubt:
            # The answer to a registration names no master that the controller does not hear. That one can still tell us
            # what we lack, so the controller is asked for it.
            standing = await self._replica_info()
        if not self._is_beating:
            # An election needs brokers that live, and the first heartbeat must come before it.
            await self._beat()
            self._tasks.every(
                lambda: self._live.now.broker_heartbeat_interval / 1000, self._beat, "heartbeats"
            )
            self._is_beating = True
        await self._settle(standing)

    async def _settle(self, standing: Standing) -> None:
        """Has a master elected if there is none, and takes the role that follows."""
        if self._wholeness.in_doubt and standing.master_id in (None, self.own_id):
            assert self.own_id is not None
            standing = await self._doubt.end(self.own_id)
        if standing.master_id is None:
            # Nobody is the master. Before we ask for an election the controller must know that we live.
            await self._beat()
            standing = await self._elect()
        await self._take(standing)

    def _own_end(self) -> LogEnd:
        progress = self._taker.progress()
        return LogEnd(progress.written_epoch, progress.end)

    async def _identify(self) -> int:
        """Gets an id. What is asked for is in a file before, so that a crash cannot cost one."""
        config, identity = self._live.now, self._identity
        names = (config.broker_cluster_name, config.broker_name)
        applied = identity.applied()
        if applied is None:
            number = await self._controllers.ask(lambda on, at: controller.next_broker_id(on, at, *names))
            applied = Applied(number, f"{self._address};{self._clock.wall_ms()}")
            identity.apply(applied)
        wanted = applied
        try:
            await self._controllers.ask(
                lambda on, at: controller.apply_broker_id(on, at, *names, wanted.broker_id, wanted.check_code)
            )
        except ResponseError:
            identity.forget_applied()  # somebody else has it; the next try asks for another
            raise
        identity.give(wanted.broker_id)
        log.info("the controller gave this broker the id %d", wanted.broker_id)
        return wanted.broker_id

    async def _register(self) -> Standing:
        assert self.own_id is not None
        config = self._live.now
        header = RegisterAtController(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=self.own_id,
            broker_address=self._address,
            invoke_time=self._clock.wall_ms(),
        )
        return await self._controllers.ask(lambda on, at: controller.register(on, at, header))

    async def _elect(self) -> Standing:
        assert self.own_id is not None
        config = self._live.now
        header = ElectMaster(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=self.own_id,
            invoke_time=self._clock.wall_ms(),
        )
        return await self._controllers.ask(lambda on, at: controller.elect(on, at, header))

    # --- running -----------------------------------------------------------------------------

    async def _beat(self) -> None:
        if not self._wholeness.in_doubt:
            await self._tell()

    async def _tell(self) -> None:
        """One heartbeat."""
        config, progress = self._live.now, self._taker.progress()
        header = BrokerHeartbeat(
            cluster_name=config.broker_cluster_name,
            broker_addr=self._address,
            broker_name=config.broker_name,
            broker_id=self.own_id,
            epoch=progress.epoch,
            max_offset=progress.end,
            confirm_offset=progress.confirm,
            heartbeat_timeout_mills=config.controller_heart_beat_timeout_mills,
            election_priority=config.broker_election_priority,
        )
        await self._controllers.heartbeat(header, config.send_heartbeat_timeout_millis / 1000)

    async def _find_leader(self) -> None:
        try:
            await self._controllers.find_leader()
        except TransportError as error:
            self._note_trouble(_explained(error, self.own_id, self._live.now.broker_name))

    async def _watch(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._live.now.sync_broker_metadata_period / 1000):
                    await self._look_now.wait()
            except TimeoutError:
                pass
            self._look_now.clear()
            try:
                await self.look()
            except RocketMQError as error:
                self._note_trouble(_explained(error, self.own_id, self._live.now.broker_name))
            except Exception as error:
                log.exception("the controller's answer could not be used; it is asked again")
                self.trouble = repr(error)

    async def look(self) -> None:
        """Asks who the master is, and takes the role that follows from it."""
        try:
            standing = await self._replica_info()
        except ResponseError as error:
            if error.code != ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
                raise
            standing = await self._register()
        await self._settle(standing)
        if self._wholeness.in_doubt:
            assert self.own_id is not None
            await self._doubt.compare(self.own_id)

    async def _replica_info(self) -> Standing:
        name = self._live.now.broker_name
        return await self._controllers.ask(lambda on, at: controller.replica_info(on, at, name))

    async def _take(self, standing: Standing) -> None:
        async with self._taking:
            before = self.standing
            if standing.master_id is None or standing.master_epoch < self.master_epoch:
                return
            if before is not None and standing.master_epoch == before.master_epoch:
                if self.is_master and self.sync_set is not None:
                    self.sync_set.take(standing.in_sync, standing.set_epoch)
                self._no_trouble()
                return
            last = self._taker.progress().epoch
            if standing.master_epoch < last:
                self._note_trouble(
                    f"the controller speaks of epoch {standing.master_epoch}, and our log has epoch {last}: it has "
                    "lost its data, or it is another controller. Give it its folder back (controllerStorePath)"
                )
                return
            if standing.master_id == self.own_id:
                await self._taker.lead(standing)
            else:
                await self._taker.follow(standing)
            self.standing = standing
            self._no_trouble()
            log.info(
                "epoch %d: the master is %d at %s, this broker is %s",
                standing.master_epoch,
                standing.master_id,
                standing.master_address,
                self.own_id,
            )
        self._wish.set()

    # --- the set -----------------------------------------------------------------------------

    def _check_set(self) -> None:
        if self.is_master and self.sync_set is not None:
            self.sync_set.check()
            if self.sync_set.is_uncertain:
                self._wish.set()

    async def _keep_set(self) -> None:
        """One question at a time."""
        while True:
            await self._wish.wait()
            self._wish.clear()
            standing, sync_set = self.standing, self.sync_set
            if standing is None or sync_set is None or not self.is_master:
                continue
            wished = sync_set.wished()
            if wished == sync_set.members and not sync_set.is_uncertain:
                continue
            if not await self._alter(sync_set, wished, standing.master_epoch):
                await asyncio.sleep(_ALTER_PAUSE)
                self._wish.set()

    async def _alter(
        self, sync_set: SyncSet, wished: frozenset[int], master_epoch: int, *, all_heard: bool = False
    ) -> bool:
        """Asks for another set; False if it has to be asked again.

        Args:
            all_heard: the controller has just said that it hears everybody who is wished.
        """
        assert self.own_id is not None
        header = AlterSyncStateSet(
            broker_name=self._live.now.broker_name,
            master_broker_id=self.own_id,
            master_epoch=master_epoch,
            invoke_time=self._clock.wall_ms(),
        )
        known = sync_set.epoch
        before = sync_set.asking(wished)
        try:
            granted = await self._controllers.ask(
                lambda on, at: controller.alter_sync_state_set(on, at, header, wished, known)
            )
        except ConnectError as error:
            sync_set.not_asked(before)
            self._note_trouble(_explained(error, self.own_id, self._live.now.broker_name))
            return False
        except ResponseError as error:
            equal = error.code == ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
            if equal and wished == sync_set.members:
                sync_set.unchanged(before)
                return not sync_set.is_uncertain
            if error.code in _SET_NOT_CHANGED:
                sync_set.refused(before)
            refusal = f"the controller does not take {sorted(wished)} as replicas in sync: {error}"
            if refusal != self._refusal:  # it may be asked for long
                self._refusal = refusal
                log.warning("%s", refusal)
            if equal or error.code in _NOT_AS_WE_KNOW:
                self._look_now.set()  # the controller knows another set, or another master
            unheard = error.code in _NOT_TAKEN and not all_heard
            if unheard and await self._alter_without_unheard(sync_set, master_epoch):
                return True
            if sync_set.is_uncertain and error.code in _NOT_TAKEN:
                # As long as somebody is wished whom it does not take, this alone tells what became of older questions.
                await self._alter(sync_set, sync_set.members, master_epoch)
            return False
        except RocketMQError as error:  # no answer, or one that cannot be read
            self._note_trouble(f"{error}; whether {sorted(wished)} are the replicas in sync is not known")
            return False
        if sync_set is self.sync_set and sync_set.take(granted.sync_state_set, granted.sync_state_set_epoch):
            log.info("replicas in sync: %s", sorted(sync_set.members))
        self._refusal = None
        self._no_trouble()
        return True

    async def _alter_without_unheard(self, sync_set: SyncSet, master_epoch: int) -> bool:
        """Asks for a set without those whom the controller does not hear, or does not know.

        It takes no set with such a one. Sends would wait for a member that is gone, and nobody else could join. Whoever
        is not heard cannot be elected, either, and joins again when that has changed.
        """
        assert self.own_id is not None
        name = self._live.now.broker_name
        try:
            table = await self._controllers.ask(lambda on, at: replication.sync_state(on, at, [name]))
        except RocketMQError:
            return False
        known = table.replicas_info_table.get(name, ReplicasInfo())
        replicas = [*known.in_sync_replicas, *known.not_in_sync_replicas]
        heard = {self.own_id, *(replica.broker_id for replica in replicas if replica.alive)}
        # Who has gone meanwhile is not wished any more: whoever is asked for must have been counted all the time.
        wanted = sync_set.wished()
        wished, members = wanted & heard, sync_set.members
        # A member that still has everything may have to make room for another one, but not for nobody.
        loses = members <= wanted and len(wished) < len(members)
        if sync_set is not self.sync_set or wished == members or loses:
            return False
        return await self._alter(sync_set, wished, master_epoch, all_heard=True)

    # --- what people are told ----------------------------------------------------------------

    def _note_trouble(self, text: str) -> None:
        if text != self._said:
            log.warning("%s", text)
        self.trouble = self._said = text

    def _no_trouble(self) -> None:
        self.trouble = None
        if not self._wholeness.in_doubt:
            self._said = None


def _explained(error: Exception, own_id: int | None, name: str) -> str:
    """An error of the controller with what to do."""
    if isinstance(error, ConnectError):
        return f"{error}; roles, and the set of replicas in sync, stay as they are"
    if isinstance(error, ResponseError):
        if error.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
            return (
                f"the controller does not know id {own_id} of {name}, which it gave this broker: it has lost its data, "
                "or it is another controller. Give it its folder back (controllerStorePath); if it is to begin anew, "
                "stop all replicas, remove brokerIdentity from their folders, and start the one with the longest log"
            )
        if error.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED:
            return (
                f"no replica of {name} can be elected: none of those that have everything lives. Start them; this "
                f"broker, {own_id}, is not one of them ({error.remark})"
            )
    return str(error)
