"""A replicated broker in virtual time: two or three machines, a controller or an operator, and what befalls them.

Everything is real but the clock, the cables and the controller, which has the rules of Apache's 5.5.0. A world draws
its faults from its seed, suffers them under load, heals, and comes to rest. ``replica_checks`` looks at it all the
time. Equal seeds give equal runs.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import logging
import random
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from gimbalmq.admin.admin import Admin
from gimbalmq.broker.replication.follower import State
from gimbalmq.broker.replication.role_file import forget_role
from gimbalmq.cli.rejoin import _of_folder
from gimbalmq.client.instance import ClientInstance
from gimbalmq.errors import RocketMQError
from gimbalmq.nameserver import NameServer, NameServerConfig
from gimbalmq.protocol.bodies import TopicConfig
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.controller import RoleChange
from gimbalmq.rpc import management
from gimbalmq.store.consumequeue import QueueLog
from gimbalmq.testing import MemoryNetwork, VirtualClock
from gimbalmq.transport.pool import ChannelPool
from tests.broker.desk import send_fields
from tests.broker.replication.controller_double import ControllerDouble, Replicas
from tests.sim.machines import Machine
from tests.sim.processes import ProcessLoop
from tests.sim.replica_checks import Answer, Checks
from tests.sim.schedule import REPLICA_KINDS, Fault, Kind, draw
from tests.support import memory_folder

NAME, TOPIC, QUEUES = "broker-a", "T", 2
NAMES_HOST, CONTROLLER_HOST, CLIENT_HOST, DESK_HOST = "10.0.0.100", "10.0.0.101", "10.0.0.99", "10.0.0.98"
NAMESRV = f"{NAMES_HOST}:9876"
SLOW_SECONDS = (0.02, 0.3)
LOOK_SECONDS = 0.25
SHOW_LOOKS = 4
"""What readers see is looked at so much more rarely: it has to be read."""
SCAN_SECONDS = 0.5
PROMOTE_TRIES = 12
OPERATOR_SECONDS = 0.7
"""Between looks of an operator whether a slave needs help."""
HARMLESS_IN_THE_DARK = ("controller restarted", "replica torn", "replica reset", "slow replica")
"""What may happen while a machine that has lost power is not back with all that the others have.

With a controller everything may, except that another one loses power: then two would lack what only one has.
"""

_QUICK = {
    "brokerName": NAME,
    "namesrvAddr": NAMESRV,
    "mappedFileSizeCommitLog": 16384,
    "mappedFileSizeConsumeQueue": 20 * 300,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "slaveTimeout": 500,
    "haSendHeartbeatInterval": 500,
    "haHousekeepingInterval": 1500,
    "brokerHeartbeatInterval": 400,
    "controllerHeartBeatTimeoutMills": 1500,
    "syncBrokerMetadataPeriod": 1500,
    "checkSyncStateSetPeriod": 700,
    "syncControllerMetadataPeriod": 3000,
    "haMaxTimeSlaveNotCatchup": 1500,
    "haTransferBatchSize": 1500,
}
"""The intervals of a broker in a small ratio to each other, so that seconds show what takes minutes else."""


@dataclass(frozen=True)
class ReplicaSettings:
    """What kind of world it is.

    Attributes:
        replicas: how many machines.
        controller: whether one elects the master; else an operator promotes slaves by hand.
        options: properties of the brokers.
        needed: how many replicas, the master among them, have a message when it is answered with success.
        kept: whether what was answered with success is never lost.
        confirmed: whether readers are only shown what all of the controller's set have.
        kinds, faults, span: what may happen, how often, over how many seconds.
        patience: how many seconds it may take until all are at rest.
    """

    replicas: int = 3
    controller: bool = True
    options: tuple[tuple[str, Any], ...] = ()
    needed: int = 2
    kept: bool = True
    confirmed: bool = False
    kinds: tuple[Kind, ...] = REPLICA_KINDS
    faults: int = 6
    span: float = 8.0
    patience: float = 90.0

    @property
    def dark(self) -> bool:
        return "replica in the dark" in self.kinds


@dataclass
class ReplicaReport:
    """What became of a run."""

    seed: int
    settings: ReplicaSettings
    schedule: list[Fault]
    problems: list[str] = field(default_factory=list)
    happened: list[str] = field(default_factory=list)
    sums: Counter[str] = field(default_factory=Counter)
    settled: float | None = None
    digest: str = ""

    def __str__(self) -> str:
        return "\n".join(
            [
                f"seed {self.seed}",
                *(f"    {fault}," for fault in self.schedule),
                *self.happened,
                *(f"PROBLEM {problem}" for problem in self.problems),
            ]
        )


class ReplicaWorld:
    """One set of replicas and its surroundings.

    Attributes:
        master: by hand, the number of the machine that is to be the master; None while there is none.
    """

    def __init__(self, seed: int, settings: ReplicaSettings, folder: Path) -> None:
        loop = asyncio.get_running_loop()
        self.seed = seed
        self.settings = settings
        self.loop = loop
        self.happened: list[str] = []
        self.codes: Counter[str] = Counter()
        self.network = MemoryNetwork(seed)
        self.clock = VirtualClock(loop)
        self.namesrv = NameServer(
            NameServerConfig(listen_port=9876, bind_address=NAMES_HOST),
            network=self.network.host(NAMES_HOST),
            clock=self.clock,
        )
        self.controller = ControllerDouble(self.network.host(CONTROLLER_HOST))
        self.controller.notify = self._notify
        self.controller.altered = self._altered
        self.master: int | None = None if settings.controller else 1
        self.machines = [
            Machine(
                number,
                folder,
                seed,
                self.network,
                self.clock,
                self._properties(number),
                can_lose_power=settings.dark,
            )
            for number in range(1, settings.replicas + 1)
        ]
        self.checks = Checks(
            self.machines,
            needed=settings.needed,
            must_have=self._electable,
            may_answer=self._may_answer,
            kept=settings.kept,
        )
        for machine in self.machines:
            machine.look = partial(self.checks.watch, machine)
            machine.cutting = partial(self.checks.cuts, machine)
        self.pool = ChannelPool(network=self.network.host(CLIENT_HOST))
        self.desk = ChannelPool(network=self.network.host(DESK_HOST))
        self.admin = Admin(NAMESRV, network=self.network.host(DESK_HOST))
        connection = self.admin._connection
        connection._instance = ClientInstance(
            connection.config, "desk", clock=self.clock, rng=random.Random(f"{seed} desk")
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self._cuts: list[tuple[list[str], list[str], bool]] = []
        self._controller_down = False
        self._in_set: set[int] = set()
        self._joins_in_vain = 0.0
        """So many seconds whoever joins next is away, and the master does not hear that it has joined."""
        self._is_poor = False
        """A machine has lost power, and not all is well yet."""
        self._working = 0
        self._sent = 0
        self._sending = True

    def _properties(self, number: int) -> dict[str, str]:
        found: dict[str, Any] = {**_QUICK, **dict(self.settings.options)}
        if self.settings.controller:
            found |= {
                "enableControllerMode": "true",
                "controllerAddr": f"{CONTROLLER_HOST}:9878",
                "brokerRole": "SLAVE",
                "brokerId": -1,
            }
        elif number == self.master:
            found |= {"brokerRole": "SYNC_MASTER", "brokerId": 0}
        else:
            found |= {"brokerRole": "SLAVE", "brokerId": number}
        return {key: str(value) for key, value in found.items()}

    def note(self, text: str) -> None:
        self.happened.append(f"{self.loop.time():8.3f}  {text}")

    def spawn(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.checks.found(f"a part of the world failed: {task.exception()!r}")

    # --- what the checks ask -----------------------------------------------------------------

    @property
    def replicas(self) -> Replicas:
        return self.controller.replicas.get(NAME, Replicas())

    def _electable(self) -> list[Machine]:
        """Machines that the controller may elect; one that lost power is waited for until it has caught up."""
        if not self.settings.confirmed or self.settings.dark:
            return []
        return [machine for machine in self.machines if machine.own_id in self.replicas.in_sync]

    def _may_answer(self, machine: Machine) -> str | None:
        if self.settings.controller or machine.number == self.master:
            return None
        return f"the master is {self.master}"

    # --- life --------------------------------------------------------------------------------

    async def start(self) -> None:
        await self.namesrv.start()
        if self.settings.controller:
            await self.controller.start(CONTROLLER_HOST, 9878)
            self.spawn(self._scan())
        for machine in self.machines:
            await machine.start()
            if self.settings.controller:
                assert machine.broker is not None and machine.broker.controller_mode is not None
                await machine.broker.controller_mode.elections.joined()
        config = TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        await management.create_topic(self.desk, self.machines[0].address, config)
        await self.until(self.is_well, 30.0)
        for number in range(2):
            self.spawn(self._send_on(random.Random(f"{self.seed} sender {number}")))
        self.spawn(self._watch())
        if not self.settings.controller:
            self.spawn(self._mend_refused())

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for machine in self.machines:
            if machine.broker is not None:
                await machine.kill()
        await self.admin.close()
        await self.pool.close()
        await self.desk.close()
        if self.settings.controller:
            await self.controller.close()
        await self.namesrv.close()

    async def until(self, condition: Callable[[], object], seconds: float) -> bool:
        end = self.loop.time() + seconds
        while not condition():
            if self.loop.time() > end or self.checks.problems:
                return False
            await asyncio.sleep(0.05)
        return True

    # --- controller --------------------------------------------------------------------------

    async def _scan(self) -> None:
        while True:
            await asyncio.sleep(SCAN_SECONDS)
            self.controller.scan()

    def _altered(self) -> None:
        self.checks.joined()
        joined, self._in_set = self.replicas.in_sync - self._in_set, set(self.replicas.in_sync)
        if joined and self._joins_in_vain:
            seconds, self._joins_in_vain = self._joins_in_vain, 0.0
            self.controller.swallow.append(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET)
            gone = [machine.host for machine in self.machines if machine.own_id in joined]
            for host in gone:
                self.network.reset(host)
            others = [machine.host for machine in self.machines if machine.host not in gone]
            self.spawn(self._parted(gone, others, seconds))

    def _notify(self, name: str) -> None:
        self._in_set = set(self.replicas.in_sync)
        for address in self.controller.replicas[name].addresses.values():
            self.spawn(self._tell(address))

    async def _tell(self, address: str) -> None:
        notice = RemotingCommand(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, RoleChange().to_ext())
        if self.network.is_cut(CONTROLLER_HOST, address.partition(":")[0]):
            return
        try:
            await self.desk.oneway(address, notice)
        except RocketMQError:
            pass  # it is dead

    # --- senders -----------------------------------------------------------------------------

    async def _send_on(self, rng: random.Random) -> None:
        """Sends to whoever takes itself for the master, one at a time or several at once; nothing is sent twice."""
        while self._sending:
            masters = [
                m for m in self.machines if m.is_up and m.broker is not None and m.broker.roles.is_master
            ]
            if rng.random() < 0.03:
                masters = self.machines
            if masters:
                machine = rng.choice(masters)
                count = rng.choice((1, 1, 1, 1, 4))
                await asyncio.gather(*(self._send(machine, rng) for _ in range(count)))
            await asyncio.sleep(rng.uniform(0.0, 0.25))

    async def _send(self, machine: Machine, rng: random.Random) -> None:
        self._sent += 1
        mark = f"#{self._sent:08}#".encode()
        body = mark.ljust(rng.choice((20, 80, 300, 2500)), b".")
        request = RemotingCommand(
            RequestCode.SEND_MESSAGE_V2, send_fields(topic=TOPIC, queue_id=self._sent % QUEUES), body
        )
        try:
            answer = await self.pool.call(machine.address, request, 1.5)
        except RocketMQError as error:
            self.codes[type(error).__name__] += 1
            return
        self.codes[ResponseCode(answer.code).name] += 1
        if answer.code == ResponseCode.SUCCESS:
            fields = answer.ext_fields or {}
            self.checks.accepted(
                Answer(
                    mark,
                    int(fields["queueId"]),
                    int(fields["queueOffset"]),
                    int(fields["msgId"][-16:], 16),
                    round(self.loop.time(), 3),
                )
            )

    # --- looking -----------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            for _ in range(SHOW_LOOKS):
                await asyncio.sleep(LOOK_SECONDS)
                self.look()
            self.show()

    def show(self) -> None:
        if self.settings.confirmed:
            for machine in self.machines:
                if machine.runs:
                    self.checks.show(machine, TOPIC)

    def look(self) -> None:
        self.checks.look()
        leader = self.leader
        if leader is not None:
            self.checks.has_all(leader, self.replicas.master_epoch, f"the master {leader.number}")

    @property
    def leader(self) -> Machine | None:
        """The machine that everybody takes for the master, itself among them."""
        for machine in self.machines:
            if not machine.is_up or machine.broker is None or not machine.broker.roles.is_master:
                continue
            if not self.settings.controller:
                if machine.number == self.master:
                    return machine
            elif (
                machine.own_id == self.replicas.master
                and machine.broker.roles.now.epoch == self.replicas.master_epoch
            ):
                return machine
        return None

    def is_well(self) -> bool:
        """One master, and all others follow it."""
        if not all(machine.runs for machine in self.machines) or self.leader is None:
            return False
        if self.settings.controller and len(self.replicas.in_sync) < self.settings.replicas:
            return False
        return all(
            machine.broker is not None and machine.broker.replication.follower.state is State.FOLLOWING
            for machine in self.machines
            if machine is not self.leader
        )

    # --- what befalls it ---------------------------------------------------------------------

    async def suffer(self, schedule: Sequence[Fault]) -> None:
        begun = self.loop.time()
        for fault in schedule:
            await asyncio.sleep(max(0.0, begun + fault.at - self.loop.time()))
            self.strike(fault)
            await asyncio.sleep(0)  # what it does has begun

    def strike(self, fault: Fault) -> None:
        """Does one fault; what must be undone later is left to a task."""
        if self._is_poor and not self._is_well_again() and not self._may_befall_the_poor(fault.kind):
            return  # a machine that lost power may lack what only the others have
        rng = random.Random(f"{self.seed} {fault.at} {fault.kind}")
        machine = self.machines[min(int(fault.pick * len(self.machines)), len(self.machines) - 1)]
        kind, seconds = fault.kind, fault.seconds
        hosts = [other.host for other in self.machines if other is not machine]
        if kind in ("replica killed", "replica restarted", "replica in the dark"):
            leader = self.leader
            if leader is not None and rng.random() < 0.4:
                machine = leader  # the one that matters most
            # Power is lost by one machine at a time: the others are there, and have everything.
            if kind == "replica in the dark" and machine is leader and not self.settings.controller:
                # Started again it might lack what its slaves have; an operator promotes one of them.
                self.spawn(self._promoted(seconds, rng, kind))
            elif machine.is_up and (kind != "replica in the dark" or self.is_well()):
                self.spawn(self._away(machine, kind, seconds))
        elif kind == "replica paused":
            if machine.runs:
                self.spawn(self._paused(machine, seconds))
        elif kind == "replicas parted":
            self.spawn(self._parted([machine.host], hosts, seconds))
        elif kind == "replicas parted one way":
            one, other = ([machine.host], hosts) if rng.random() < 0.5 else (hosts, [machine.host])
            self.spawn(self._parted(one, other, seconds, one_way=True))
        elif kind == "replica alone":
            self.spawn(self._parted([machine.host], [*hosts, NAMES_HOST, CONTROLLER_HOST], seconds))
        elif kind == "controller parted":
            one, other = [machine.host], [CONTROLLER_HOST]
            if rng.random() < 0.5:
                one, other = other, one
            self.spawn(self._parted(one, other, seconds, one_way=rng.random() < 0.6))
        elif kind == "slow replica":
            self.spawn(self._slowed(machine, hosts, seconds, rng))
        elif kind == "replica reset":
            self.note(f"connections of {machine.number} break")
            self.network.reset(machine.host)
        elif kind == "replica torn":
            self.note(f"a connection of {machine.number} breaks in the middle")
            self.network.tear(machine.host, rng.random())
        elif kind == "connections forgotten":
            self.spawn(self._forgotten(machine, seconds, rng))
        elif kind == "answer lost":
            self._joins_in_vain = seconds
            if len(self.replicas.in_sync) == len(self.machines):
                self._elect(rng)  # all but one join anew
        elif kind == "election":
            self._elect(rng)
        elif kind == "controller restarted":
            self.spawn(self._without_controller(seconds))
        elif kind == "promotion" and not self.settings.controller:
            self.spawn(self._promoted(seconds, rng, rng.choice(("replica killed", "replica restarted"))))

    def _may_befall_the_poor(self, kind: Kind) -> bool:
        if self.settings.controller:
            return kind != "replica in the dark"
        return kind in HARMLESS_IN_THE_DARK

    def _is_well_again(self) -> bool:
        """Whether a machine that lost power has all again that the others have."""
        self._is_poor = not self.is_well()
        return not self._is_poor

    async def _away(self, machine: Machine, kind: str, seconds: float) -> None:
        self.note(f"{kind}: {machine.number} for {seconds} s")
        await self._end(machine, kind)
        await asyncio.sleep(seconds)
        await self._begin(machine)

    async def _end(self, machine: Machine, kind: str) -> None:
        machine.busy = True
        self._working += 1
        if kind == "replica restarted":
            await machine.stop()
        elif kind == "replica killed":
            await machine.kill()
        else:
            self._is_poor = True
            self.checks.goes_dark(machine)
            everybody = [other.host for other in self.machines if other is not machine]
            everybody += [NAMES_HOST, CONTROLLER_HOST, CLIENT_HOST, DESK_HOST]
            self._cuts.append(([machine.host], everybody, False))
            self._part_again()
            await machine.lose_power()

    async def _begin(self, machine: Machine) -> None:
        self._cuts = [cut for cut in self._cuts if not (cut[0] == [machine.host] and CLIENT_HOST in cut[1])]
        self._part_again()
        while True:
            try:
                await machine.start()
                break
            except RocketMQError as error:  # as whoever supervises it would
                self.note(f"{machine.number} does not start: {error}")
                await asyncio.sleep(0.5)
        machine.busy = False
        self._working -= 1
        self.note(f"{machine.number} is back")

    async def _paused(self, machine: Machine, seconds: float) -> None:
        self.note(f"{machine.number} pauses for {seconds} s")
        machine.process.stop(asleep=False)
        broker = machine.broker
        await asyncio.sleep(seconds)
        if machine.broker is broker and machine.process.stopped:
            machine.process.go_on()
            self.note(f"{machine.number} goes on")

    async def _parted(
        self, one: list[str], other: list[str], seconds: float, *, one_way: bool = False
    ) -> None:
        cut = (one, other, one_way)
        self.note(f"{', '.join(one)} {'to' if one_way else 'and'} {', '.join(other)} parted for {seconds} s")
        self._working += 1
        self._cuts.append(cut)
        self._part_again()
        await asyncio.sleep(seconds)
        self._cuts.remove(cut)
        self._part_again()
        self._working -= 1
        self.note(f"{', '.join(one)} and {', '.join(other)} joined")

    def _part_again(self) -> None:
        self.network.mend()
        for one, other, one_way in self._cuts:
            self.network.cut(one, other, one_way=one_way)

    async def _forgotten(self, machine: Machine, seconds: float, rng: random.Random) -> None:
        """One replica comes anew while its old connections seem to stand; mostly, sends wait for another one."""
        others = [other for other in self.machines if other is not machine and other is not self.leader]
        if others and rng.random() < 0.8:
            other = rng.choice(others)
            if other.runs:
                self.spawn(self._paused(other, seconds))
                await asyncio.sleep(rng.uniform(0.0, seconds))
        if machine.runs:
            self.note(f"only {machine.number} hears that its connections break")
            self.network.vanish(machine.host)

    async def _slowed(self, machine: Machine, hosts: list[str], seconds: float, rng: random.Random) -> None:
        lines = [(machine.host, host) for host in hosts] if rng.random() < 0.7 else []
        if not lines or rng.random() < 0.7:
            lines += [(host, machine.host) for host in hosts]
        self.note(f"{len(lines)} lines of {machine.number} slow for {seconds} s")
        self._working += 1
        for line in lines:
            self.network.slow[line] = SLOW_SECONDS
        await asyncio.sleep(seconds)
        for line in lines:
            self.network.slow.pop(line, None)
        self._working -= 1

    def _elect(self, rng: random.Random) -> None:
        if self._controller_down:
            return
        living = [number for number in sorted(self.replicas.in_sync) if self.controller.lives(NAME, number)]
        if living:
            wanted = rng.choice(living)
            self.note(f"somebody wants {wanted} to be elected")
            self.controller.elect(NAME, wanted, by_controller=False)

    async def _without_controller(self, seconds: float) -> None:
        if self._controller_down:
            return
        self.note(f"controller away for {seconds} s")
        self._controller_down = True
        self._working += 1
        await self.controller.crash()
        await asyncio.sleep(seconds)
        await self.controller.start(CONTROLLER_HOST, 9878)
        self._working -= 1
        self._controller_down = False
        self.note("controller is back")

    # --- by hand -----------------------------------------------------------------------------

    async def _promoted(self, seconds: float, rng: random.Random, kind: str) -> None:
        """Ends the master and promotes a slave, as an operator does; the old master comes back as a slave."""
        old = self.leader
        if old is None or not old.is_up or not self.is_well():
            return
        self.note(f"the master {old.number}: {kind}; a slave is to be promoted")
        await self._end(old, kind)
        self.master = None
        tries = 0
        while not await self._promote(rng):
            tries += 1
            if tries > PROMOTE_TRIES and kind != "replica in the dark":
                self.note("nobody can be promoted")
                self.master = old.number
                await self._begin(old)
                return
        await asyncio.sleep(seconds)
        old.properties |= {"brokerRole": "SLAVE", "brokerId": str(old.number)}
        if rng.random() < 0.5:
            await self._rejoin(old)
            await self._begin(old)
        else:
            forget_role(old.folder)
            if old.disk is not None:
                old.disk.begin_anew()
            await self._begin(old)

    async def _promote(self, rng: random.Random) -> bool:
        """Looks once, after a while, whether a slave can be promoted, and does so."""
        await asyncio.sleep(rng.uniform(0.02, 0.5))
        others = [machine for machine in self.machines if machine.runs]
        if len(others) < self.settings.replicas - 1:
            return False  # one that is away may have more
        try:
            promotion = await self.admin.replication.promotion(NAME)
            # What the old master alone had was not answered with success.
            dangers = [
                danger for danger in promotion.dangers if "longer when the slave last heard" not in danger
            ]
            asked = {promotion.slave.address, *(machine.address for machine in others)}
            if dangers or len(asked) != len(others):
                self.note(f"not promoted: {dangers}")
                return False
        except RocketMQError as error:
            self.note(f"not promoted: {error}")
            return False
        chosen = next(machine for machine in others if machine.address == promotion.slave.address)
        ends = {machine.number: machine.end for machine in others}
        self.master = chosen.number
        while self.leader is not chosen:
            # Whoever has begun this goes through with it: the slave may have heard it, or not.
            try:
                await self.admin.replication.promote(promotion, role="SYNC_MASTER")
            except RocketMQError as error:
                self.note(f"promotion of {chosen.number} failed: {error}")
                await asyncio.sleep(0.5)
        self.note(f"{chosen.number} is the master now; logs ended at {ends} when it was chosen")
        return True

    async def _rejoin(self, old: Machine) -> None:
        """``gimbalmq broker rejoin --cut``, as often as it takes."""
        args = argparse.Namespace(
            store=old.folder,
            config=None,
            set=list(old.properties.items()),
            name=None,
            id=old.number,
            master=None,
            cut=True,
            yes=True,
            json=True,
            namesrv=NAMESRV,
        )
        while True:
            try:
                shown = await _of_folder(self.admin, args, self.clock)
            except RocketMQError as error:
                self.note(f"rejoining {old.number}: {error}")
                await asyncio.sleep(0.5)
                continue
            self.note(f"{old.number} rejoins: {shown.data}")
            if shown.data["cut"]:
                self.checks.cuts(old, shown.data["begin"], shown.data["end"])
            break
        if old.disk is not None:
            old.disk.begin_anew()

    async def _mend_refused(self) -> None:
        """Has slaves cut what the master does not have, if that keeps them from copying it.

        That is what an old master has alone, or what one slave got after another was chosen to be promoted.
        """
        while True:
            await asyncio.sleep(OPERATOR_SECONDS)
            for machine in self.machines:
                leader = self.leader
                if leader is None or not machine.runs or machine.broker is None:
                    continue
                follower = machine.broker.replication.follower
                target = follower.target
                if (
                    follower.state is not State.REFUSED
                    or target is None
                    or target.master_address != leader.address
                ):
                    continue
                self.note(f"{machine.number} is refused and told to cut: {follower.trouble}")
                try:
                    await management.update_broker_config(self.desk, machine.address, {"haCutTailFrom": "0"})
                except RocketMQError as error:
                    self.note(f"it is not told to cut: {error}")

    # --- rest --------------------------------------------------------------------------------

    async def heal(self) -> str | None:
        """Everything comes back; says what did not, if anything."""
        settings = self.settings
        end = self.loop.time() + settings.patience
        if not await self.until(lambda: not self._working, settings.patience):
            return "faults did not end"
        for machine in self.machines:
            machine.process.go_on()
        self.note("healed")
        if not await self.until(self.is_well, end - self.loop.time()):
            return f"the replicas did not come to rest: {self._state()}"
        before = len(self.checks.answers)
        if not await self.until(lambda: len(self.checks.answers) > before + 5, end - self.loop.time()):
            return f"nothing more was answered with success: {self._state()}"
        self._sending = False
        await asyncio.sleep(1.0)
        if not await self.until(self._is_level, end - self.loop.time()):
            return f"the replicas are not level: {self._state()}"
        return None

    def _is_level(self) -> bool:
        return self.is_well() and len({machine.end for machine in self.machines}) == 1

    def _state(self) -> str:
        found = [
            f"{machine.number}: {machine.broker.replication.status()}"
            if machine.broker is not None
            else "down"
            for machine in self.machines
        ]
        return f"{'; '.join(found)}; {self.replicas if self.settings.controller else self.master}"

    def judge(self) -> None:
        self.look()
        self.show()
        self.checks.judge(TOPIC)
        if self.settings.controller:
            epochs = {
                machine.broker.controller_mode.epochs.entries
                for machine in self.machines
                if machine.broker is not None and machine.broker.controller_mode is not None
            }
            if len(epochs) > 1:
                self.checks.found(f"the lists of epochs differ: {epochs}")


class _Bugs(logging.Handler):
    """Keeps what the package says of itself that must not happen."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self.found.append(f"logged: {text}: {error!r}")
        elif "this is a bug" in text:
            self.found.append(f"logged: {text}")


def _place_in_sets(queue: QueueLog) -> int:
    """Sets of queues are in an order that does not depend on where in memory the queues lie."""
    return zlib.crc32(queue.topic_bytes) + queue.queue_id


def run_replicas(
    seed: int, settings: ReplicaSettings, schedule: Sequence[Fault] | None = None
) -> ReplicaReport:
    """Runs one world to its end.

    Args:
        schedule: instead of the one drawn from the seed.
    """
    faults = (
        draw(seed, settings.kinds, settings.faults, settings.span) if schedule is None else list(schedule)
    )
    report = ReplicaReport(seed, settings, faults)
    random.seed(seed)  # brokers that start together wait by chance
    bugs = _Bugs()
    logger = logging.getLogger("gimbalmq")
    level, spread = logger.level, logger.propagate
    logger.addHandler(bugs)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        with (
            tempfile.TemporaryDirectory(prefix="gimbalmq-sim-", dir=memory_folder()) as folder,
            asyncio.Runner(loop_factory=ProcessLoop) as runner,
            mock.patch.object(QueueLog, "__hash__", _place_in_sets),
        ):
            runner.run(_run(report, Path(folder), bugs.found))
    finally:
        logger.removeHandler(bugs)
        logger.setLevel(level)
        logger.propagate = spread
    report.problems += bugs.found
    return report


async def _run(report: ReplicaReport, folder: Path, errors: list[str]) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(
        lambda _, context: errors.append(f"loop: {context.get('message')}: {context.get('exception')!r}")
    )
    world = ReplicaWorld(report.seed, report.settings, folder)
    report.happened = world.happened
    try:
        await world.start()
        await world.suffer(report.schedule)
        last = loop.time()
        problem = await world.heal()
        if problem is None:
            report.settled = loop.time() - last
            world.judge()
        elif not world.checks.problems:
            world.checks.found(problem)
    finally:
        await world.close()
    report.problems += world.checks.problems
    report.sums = Counter(
        {
            "acknowledged": len(world.checks.answers),
            **world.codes,
        }
    )
    whole = hashlib.blake2b(digest_size=8)
    for entry in world.network.trace:
        whole.update(repr(entry).encode())
    whole.update("\n".join(world.happened).encode())
    report.digest = whole.hexdigest()
