"""Heartbeats: how brokers learn who we are, and stay sure of it.

All brokers hear of us every 30 s; one that has just appeared, whose connection was made anew, or that says it
does not know us, hears at once. Brokers of this library answer that they watch for signs of life, and then hear
of us every few seconds too, from the event loop: a process that hangs falls silent.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from gimbalmq._clock import Clock
from gimbalmq.client.config import ClientConfig
from gimbalmq.client.members import ConsumerMember, ProducerMember
from gimbalmq.errors import RocketMQError
from gimbalmq.model.route import MASTER_ID
from gimbalmq.protocol.bodies import Heartbeat, ProducerData
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.groups import HeartbeatReply, HeartbeatRequest
from gimbalmq.rpc import groups as group_calls
from gimbalmq.rpc.call import Caller
from gimbalmq.transport.channel import Channel
from gimbalmq.transport.pool import ChannelPool
from gimbalmq.transport.tasks import Tasks

log = logging.getLogger(__name__)

FIRST_HEARTBEAT = 1.0
GREET_DELAY = 0.1
INTRODUCE_SECONDS = 1.0
"""How often one broker hears of us because it says that it does not know us."""
LOG_EVERY_ROUND = 20
"""A round that says which brokers answered, then so many that do not."""
_IDLE_SECONDS = 3.0
_REJOIN_PAUSES = (0.0, 0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 15.0)


class HeartbeatHost(Caller, Protocol):
    """The client instance, as heartbeats need it."""

    @property
    def client_id(self) -> str: ...
    @property
    def config(self) -> ClientConfig: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def tasks(self) -> Tasks: ...
    @property
    def pool(self) -> ChannelPool: ...
    @property
    def closed(self) -> bool: ...
    @property
    def brokers(self) -> Mapping[str, Mapping[int, str]]: ...
    @property
    def producers(self) -> Mapping[str, ProducerMember]: ...
    @property
    def consumers(self) -> Mapping[str, ConsumerMember]: ...

    def sign(self, command: RemotingCommand) -> None: ...

    async def channel(self, address: str, timeout: float, *, greet: bool = True) -> Channel: ...


class _Said(NamedTuple):
    """One heartbeat: its bytes, and which version of each group's subscriptions it tells."""

    body: bytes
    versions: dict[str, dict[str, int]]
    header: HeartbeatRequest | None


class Heartbeats:
    """The heartbeats of a client instance.

    Attributes:
        broker_versions: version number by broker name and address, from the answers.
    """

    def __init__(self, host: HeartbeatHost) -> None:
        self._host = host
        self.broker_versions: dict[str, dict[str, int]] = {}
        self._running = False
        self._wanted = False
        self._rounds = 0
        self._told_failing: set[str] = set()
        self._greeting = False
        self._greeted: set[str] = set()
        self._lost: set[str] = set()
        self._masters: dict[str, str] = {}
        self._away: set[str] = set()
        self._up_since: dict[str, float] = {}
        self._rejoining: set[str] = set()
        self._introducing: dict[str, asyncio.Task[bool]] = {}
        self._introduced: dict[str, float] = {}
        self._acknowledged: dict[str, float] = {}
        self._versions: dict[str, dict[str, dict[str, int]]] = {}
        self._watching: dict[str, str] = {}
        self._expulsions: dict[str, dict[str, str]] = {}
        self._signing: set[str] = set()
        self._under_way: dict[str, set[asyncio.Future[RemotingCommand] | asyncio.Future[None]]] = {}

    def start(self) -> None:
        self._host.tasks.every(self._liveness_pause, self._sign_of_life, "signs of life")

    # -- what is said, and to whom -----------------------------------------------------

    def _has_members(self) -> bool:
        return bool(self._host.producers or self._host.consumers)

    def body(self) -> Heartbeat:
        host = self._host
        return Heartbeat(
            client_id=host.client_id,
            consumer_data_set=[member.heartbeat_data() for member in host.consumers.values()],
            producer_data_set=[ProducerData(group_name=group) for group in host.producers],
        )

    def _say(self) -> _Said:
        beat = self.body()
        versions = {
            data.group_name: {item.topic: item.sub_version for item in data.subscription_data_set}
            for data in beat.consumer_data_set
        }
        liveness = self._liveness()
        header = HeartbeatRequest(liveness_millis=int(liveness * 1000)) if liveness else None
        return _Said(beat.dump(), versions, header)

    def targets(self) -> list[tuple[str, str]]:
        """(broker name, address) of who is to hear of us: with producers only, masters alone."""
        return [
            (name, address)
            for name, replicas in self._host.brokers.items()
            for broker_id, address in replicas.items()
            if broker_id == MASTER_ID or self._host.consumers
        ]

    def _name_of(self, address: str) -> str | None:
        return next((name for name, target in self.targets() if target == address), None)

    def version_known(self, address: str, group: str, topic: str) -> int:
        """The newest version of a subscription that a broker has heard of; 0 if it has of none.

        A pull that names a newer one is refused (code 25), so pulls name this one.
        """
        return self._versions.get(address, {}).get(group, {}).get(topic, 0)

    # -- to all brokers ----------------------------------------------------------------

    async def to_all(self) -> bool:
        """One heartbeat to all brokers, at the same time.

        Returns:
            False if nothing was sent: nobody is registered here, or another is under way. If that
            one had left before what it should say changed, it is followed by one that says it.
        """
        if not self._has_members():
            return False
        if self._running:
            self._wanted = True
            return False
        self._running = True
        self._told_failing.clear()
        tell_success = self._rounds % LOG_EVERY_ROUND == 0
        self._rounds += 1
        try:
            said = self._say()
            while True:
                self._wanted = False
                await asyncio.gather(
                    *(
                        self._beat_one(name, address, said, tell_success=tell_success)
                        for name, address in self.targets()
                    )
                )
                tell_success = False
                before, said = said, self._say()
                if not self._wanted or before == said or self._host.closed:
                    return True
        finally:
            self._running = False

    def greet_new_soon(self) -> None:
        """A broker that has just appeared should not wait half a minute to hear of us.

        After a moment, not at once: a consumer that starts sends its own heartbeat and waits for it.
        """
        if not self._greeting:
            self._greeting = True
            self._host.tasks.spawn(self._greet_new(), "greet new brokers")

    async def _greet_new(self) -> None:
        await asyncio.sleep(GREET_DELAY)
        self._greeting = False
        if any(address not in self._greeted for _, address in self.targets()):
            await self.to_all()
        for _, address in self.targets():
            if address not in self._greeted and not self._host.closed:
                self._rejoin_soon(address)

    # -- to one broker -----------------------------------------------------------------

    async def _beat_one(
        self,
        broker_name: str,
        address: str,
        said: _Said,
        *,
        tell_success: bool = False,
        longest: float = math.inf,
    ) -> bool:
        host = self._host
        timeout = min(host.config.heartbeat_timeout, longest)
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._note(address, answered)
        try:
            await host.channel(address, timeout, greet=False)
            version, reply = await group_calls.heartbeat_reply(
                host, address, said.body, said.header, timeout=timeout
            )
        except RocketMQError as error:
            self._failed(broker_name, address, error)
            return False
        finally:
            answered.set_result(None)
        if tell_success:
            log.info("heartbeat to broker %s at %s succeeded", broker_name, address)
        self._heard(broker_name, address, said, version, reply)
        return True

    def _failed(self, broker_name: str, address: str, error: RocketMQError) -> None:
        """Says so once a round for each broker; in between a broker is also tried every few seconds."""
        level = logging.DEBUG if address in self._told_failing else logging.WARNING
        self._told_failing.add(address)
        log.log(level, "heartbeat to broker %s at %s failed: %s", broker_name, address, error)

    def _note(self, address: str, answer: asyncio.Future[RemotingCommand] | asyncio.Future[None]) -> None:
        under_way = self._under_way.setdefault(address, set())
        under_way.add(answer)
        answer.add_done_callback(under_way.discard)

    async def answered(self, address: str, limit: float) -> None:
        """Until a broker has answered every heartbeat that is on its way to it, at most so many seconds.

        Before a goodbye: brokers handle the two in different threads, and a heartbeat that is handled last
        makes a member of one that has left, until nobody has heard of it for two minutes.
        """
        under_way = self._under_way.get(address)
        if under_way:
            await asyncio.wait(set(under_way), timeout=limit)

    def _heard(
        self, broker_name: str, address: str, said: _Said, version: int, reply: HeartbeatReply
    ) -> None:
        """A broker has answered a heartbeat."""
        host = self._host
        self.broker_versions.setdefault(broker_name, {})[address] = version
        self._greeted.add(address)
        self._acknowledged[address] = host.clock.monotonic()
        self._versions[address] = said.versions
        if reply.liveness_millis:
            self._watching[address] = broker_name
        else:
            self._watching.pop(address, None)
        self._look_for_expulsions(broker_name, address, reply.expelled_groups or "")
        self._lost.discard(address)
        if self._is_master(broker_name, address):
            if reply.uptime_millis is not None:
                self._up_since[broker_name] = host.clock.monotonic() - reply.uptime_millis / 1000
            self._master_heard(broker_name, address)

    def _master_heard(self, broker_name: str, address: str) -> None:
        """A master has answered. One that is at another address than before was restarted, whatever became of
        the old connection."""
        before = self._masters.get(broker_name)
        self._masters[broker_name] = address
        if before is not None and before != address:
            self._lost.discard(before)
            self._master_lost(broker_name)
        if broker_name in self._away:
            self._away.discard(broker_name)
            for member in list(self._host.consumers.values()):
                member.connection_back(broker_name)

    def _master_lost(self, broker_name: str) -> None:
        if broker_name not in self._away:
            self._away.add(broker_name)
            for member in list(self._host.consumers.values()):
                member.connection_lost(broker_name)

    def knows_master(self, broker_name: str, address: str) -> bool:
        """Whether a broker's master at this address has answered a heartbeat, and its connection not broken since."""
        return self._masters.get(broker_name) == address and broker_name not in self._away

    def up_since(self, broker_name: str) -> float:
        """Monotonic time at which a master was started, if it said so: it may have forgotten what it knew before."""
        return self._up_since.get(broker_name, -math.inf)

    def _look_for_expulsions(self, broker_name: str, address: str, told: str) -> None:
        """Broker and we count how often it has given us up; an answer that told so may have been lost."""
        known = self._expulsions.setdefault(address, {})
        for part in filter(None, told.split(",")):
            group, _, count = part.partition("=")
            if known.get(group) != count:
                known[group] = count
                member = self._host.consumers.get(group)
                if member is not None:
                    member.expelled(broker_name)

    def _is_master(self, broker_name: str, address: str) -> bool:
        return self._host.brokers.get(broker_name, {}).get(MASTER_ID) == address

    async def introduce(self, address: str, since: float) -> bool:
        """Has a broker hear of us that said it does not know us; those who ask together share one heartbeat.

        Args:
            since: when the request left that it refused.

        Returns:
            Whether it has heard of us after that: the request may be made again.
        """
        now = self._host.clock.monotonic()
        if self._acknowledged.get(address, -math.inf) >= since:
            return True
        running = self._introducing.get(address)
        if running is None:
            name = self._name_of(address)
            if name is None or now - self._introduced.get(address, -math.inf) < INTRODUCE_SECONDS:
                return False
            self._introduced[address] = now
            log.info("%s does not know us any more; it hears of us at once", address)
            running = self._host.tasks.spawn(self._beat_one(name, address, self._say()), "introduce")
            self._introducing[address] = running
            running.add_done_callback(lambda _: self._introducing.pop(address, None))
        return await asyncio.shield(running)

    # -- connections that break and come back ------------------------------------------

    def connected(self, address: str, channel: Channel) -> None:
        """A connection was made: where it replaces one that broke, the broker hears of us before all else."""
        name = self._name_of(address)
        if name is None or not self._has_members():
            return
        if address not in self._lost and not (name in self._away and self._is_master(name, address)):
            return
        said = self._say()
        request = group_calls.heartbeat_request(said.body, said.header)
        self._host.sign(request)
        answer = channel.start_call(request, self._host.config.heartbeat_timeout)
        self._note(address, answer)
        self._host.tasks.spawn(self._connected(name, address, said, answer), "greet again")

    async def _connected(
        self, name: str, address: str, said: _Said, answer: asyncio.Future[RemotingCommand]
    ) -> None:
        try:
            version, reply = group_calls.read_heartbeat(await answer, address)
        except RocketMQError as error:
            self._failed(name, address, error)
        else:
            self._heard(name, address, said, version, reply)

    def disconnected(self, address: str) -> None:
        """A broker forgets the members of a broken connection: tell it anew, at once and soon."""
        known = address in self._greeted
        self._greeted.discard(address)
        self._versions.pop(address, None)
        self._watching.pop(address, None)
        self._expulsions.pop(address, None)
        if self._host.closed:
            return
        if known:
            for broker_name, master in self._masters.items():
                if master == address:  # though the route may name another one by now
                    self._master_lost(broker_name)
        name = self._name_of(address)
        if name is None:
            return
        if known:
            self._lost.add(address)
        self._rejoin_soon(address)

    def _rejoin_soon(self, address: str) -> None:
        if address not in self._rejoining:
            self._rejoining.add(address)
            self._host.tasks.spawn(self._rejoin(address), f"rejoin {address}")

    async def _rejoin(self, address: str) -> None:
        try:
            for pause in _REJOIN_PAUSES:
                await asyncio.sleep(pause)
                name = self._name_of(address)
                if name is None or not self._has_members() or address in self._greeted:
                    return
                if await self._beat_one(name, address, self._say()):
                    return
        finally:
            self._rejoining.discard(address)

    # -- signs of life -----------------------------------------------------------------

    def _liveness(self) -> float:
        """The shortest interval that a member wants, 0 if none does."""
        wanted = [member.liveness_interval for member in self._host.consumers.values()]
        return min((seconds for seconds in wanted if seconds > 0), default=0.0)

    def _liveness_pause(self) -> float:
        return self._liveness() or _IDLE_SECONDS

    @property
    def watching(self) -> Mapping[str, str]:
        """Address to name of the brokers that watch for our signs of life."""
        return self._watching

    def _sign_of_life(self) -> None:
        """To each broker that watches, whole heartbeats: one that gave us up has us again with the next.

        Those that are in no route at present are told too: they live, and others may ask them who we are.
        """
        if not self._liveness():
            return
        said: _Said | None = None
        for address, name in self._watching.items():
            if address not in self._signing:
                said = said or self._say()
                self._signing.add(address)
                self._host.tasks.spawn(self._sign(name, address, said), "sign of life")

    async def _sign(self, name: str, address: str, said: _Said) -> None:
        try:
            # Through before the next one is due: whatever the line, one is always on its way.
            await self._beat_one(name, address, said, longest=0.9 * self._liveness_pause())
        finally:
            self._signing.discard(address)
