"""What is known of routes and brokers, and the name servers it comes from."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, NamedTuple

from gimbalmq.client.config import ClientConfig
from gimbalmq.client.members import ConsumerMember, ProducerMember
from gimbalmq.errors import ConnectError, RequestTimeoutError, RocketMQError, TopicRouteNotFoundError
from gimbalmq.model.flags import PERM_WRITE
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.route import MASTER_ID, broker_addresses, same_route, subscribe_queues
from gimbalmq.protocol.bodies import BrokerData, QueueData, TopicRoute
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.rpc import nameserver as nameserver_calls
from gimbalmq.transport.network import split_address
from gimbalmq.transport.pool import ChannelPool

log = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS = 0.5
"""Routes are not asked for more often than this because a replica accepts no connection."""
_MASTERLESS_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)
"""When the route of a broker without a master is looked at again; after them the poll of all routes goes on alone."""


class BrokerAddress(NamedTuple):
    address: str
    is_slave: bool


class Routes(ABC):
    """The part of a client instance that knows where topics and brokers are.

    Attributes:
        producers, consumers: members by group; consumers are told of changed routes.
        route_listeners: called with (topic, route) on each change of a route, after the consumers.
    """

    def __init__(self, config: ClientConfig, pool: ChannelPool, rng: random.Random) -> None:
        self.config = config
        self.pool = pool
        self.rng = rng
        self.producers: dict[str, ProducerMember] = {}
        self.consumers: dict[str, ConsumerMember] = {}
        self.route_listeners: list[Callable[[str, TopicRoute], None]] = []
        self._loop = asyncio.get_running_loop()
        self._nameservers = list(config.addresses)
        self.rng.shuffle(self._nameservers)
        self._nameserver_count = self.rng.randrange(999)
        self._nameserver: str | None = None
        self._routes: dict[str, TopicRoute] = {}
        self._subscribe: dict[str, tuple[MessageQueue, ...]] = {}
        self._brokers: dict[str, dict[int, str]] = {}
        self._asking: dict[tuple[str, str | None], asyncio.Task[bool]] = {}
        self._unreachable: set[str] = set()
        """Addresses of replicas that did not accept a connection, and have accepted none since."""
        self._looked_at = -math.inf
        self._masterless: set[str] = set()
        """Brokers whose last route named no master, or a slave that stands in for it."""
        self._masterless_watch: asyncio.Task[None] | None = None

    @abstractmethod
    async def call(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        """One signed request."""

    @abstractmethod
    async def oneway(self, address: str, command: RemotingCommand) -> None:
        """One signed request that nobody answers."""

    @abstractmethod
    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None] | None:
        """Work in the background, as long as we run."""

    @abstractmethod
    def _route_taken(self) -> None:
        """A route is new or different; there may be brokers that have not heard of us."""

    # -- name servers -----------------------------------------------------------------

    async def nameserver(self) -> str:
        """The name server in use: kept while its connection lives, else the next in the ring.

        Raises:
            ConnectError: none of them accepts.
        """
        if self._nameserver is not None and self.pool.existing(self._nameserver) is not None:
            return self._nameserver
        failure: ConnectError | None = None
        for _ in self._nameservers:
            address = self._nameservers[self._nameserver_count % len(self._nameservers)]
            self._nameserver_count += 1
            try:
                await self.pool.channel(address)
            except ConnectError as error:
                failure = error
                continue
            if self._nameserver != address:
                log.info("name server is now %s", address)
            self._nameserver = address
            return address
        raise ConnectError(f"no name server accepts a connection: {failure}") from failure

    @property
    def nameservers(self) -> tuple[str, ...]:
        """All of them, for calls that go to every one."""
        return tuple(self._nameservers)

    # -- routes -----------------------------------------------------------------------

    def route(self, topic: str) -> TopicRoute | None:
        """The route as last heard; None if none has been."""
        return self._routes.get(topic)

    def subscribe_queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """The queues a topic's consumers share, sorted, as last heard; None if no route is known."""
        queues = self._subscribe.get(topic)
        if queues is None:
            route = self._routes.get(topic)
            if route is None:
                return None
            queues = self._subscribe[topic] = subscribe_queues(topic, route)
        return queues

    async def fetch_subscribe_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """As ``subscribe_queues``, asking a name server first; raises TopicRouteNotFoundError."""
        await self.refresh_route(topic)
        return self.subscribe_queues(topic) or ()

    async def refresh_route(
        self, topic: str, *, default_topic: str | None = None, default_queue_nums: int = 4
    ) -> bool:
        """Asks a name server for a route; callers that ask together share one question.

        Args:
            default_topic: ask for this topic instead and use its route, its queue numbers cut to
                ``default_queue_nums``: what a producer does for a topic nobody has created.

        Returns:
            Whether the route has changed.

        Raises:
            TopicRouteNotFoundError: the name server knows none; what was known stays in use.
            TransportError: no name server answered.
        """
        key = (topic, default_topic)
        asking = self._asking.get(key)
        if asking is None:
            asking = self._loop.create_task(self._ask_route(topic, default_topic, default_queue_nums))
            self._asking[key] = asking
            asking.add_done_callback(lambda task: self._asked(key, task))
        return await asyncio.shield(asking)

    def _asked(self, key: tuple[str, str | None], task: asyncio.Task[bool]) -> None:
        self._asking.pop(key, None)
        if not task.cancelled():
            task.exception()  # every caller may have given up; asyncio would complain of an unread error

    async def _ask_route(self, topic: str, default_topic: str | None, default_queue_nums: int) -> bool:
        address = await self.nameserver()
        try:
            route = await nameserver_calls.route(
                self, address, default_topic or topic, timeout=self.config.api_timeout
            )
        except RequestTimeoutError:
            # Java closes a connection that lets a call time out, so the next call tries the next server.
            self.pool.drop(address)
            raise
        if default_topic is not None:
            for data in route.queue_datas:
                count = min(default_queue_nums, data.read_queue_nums)
                data.read_queue_nums = data.write_queue_nums = count
        return self._take_route(topic, route)

    def _take_route(self, topic: str, route: TopicRoute) -> bool:
        if same_route(self._routes.get(topic), route):
            return False
        self._routes[topic] = route
        self._subscribe.pop(topic, None)
        self._brokers.update(broker_addresses(route))
        self._note_masters(route)
        log.info("route of %s: %s", topic, ", ".join(_told(route)) or "no queues")
        for consumer in list(self.consumers.values()):
            consumer.route_changed(topic, route)
        for listener in list(self.route_listeners):
            listener(topic, route)
        self._route_taken()
        return True

    def known_topics(self) -> set[str]:
        """Topics that members want routes of."""
        topics: set[str] = set()
        for producer in self.producers.values():
            topics.update(producer.publish_topics())
        for consumer in self.consumers.values():
            topics.update(consumer.subscribed_topics())
        return topics

    async def _poll_routes(self) -> None:
        await self._refresh_all(sorted(self.known_topics()))

    async def _refresh_all(self, topics: Collection[str]) -> None:
        outcomes = await asyncio.gather(
            *(self.refresh_route(topic) for topic in topics), return_exceptions=True
        )
        for topic, outcome in zip(topics, outcomes, strict=True):
            if isinstance(outcome, TopicRouteNotFoundError):
                log.debug("%s", outcome)
            elif isinstance(outcome, RocketMQError):
                log.warning("the route of %s could not be asked for: %s", topic, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    # -- replicas that come and go ----------------------------------------------------

    def _reached(self, address: str) -> None:
        self._unreachable.discard(address)

    def _not_reached(self, address: str) -> None:
        """Nobody accepts there. Of a broker with several replicas the name server may know by now who is left.

        A broker without replicas is left to the poll: it may be starting anew, and its queues need not move for that.
        """
        names = {
            name
            for name, replicas in self._brokers.items()
            if len(replicas) > 1 and address in replicas.values()
        }
        if not names:
            return
        self._unreachable.add(address)
        now = self._loop.time()
        if now - self._looked_at >= LOOK_AGAIN_SECONDS:
            self._looked_at = now
            self._spawn(self._refresh_routes_of(names), "routes of a broker that lost a replica")

    def _note_masters(self, route: TopicRoute) -> None:
        writable = {data.broker_name for data in route.queue_datas if data.perm & PERM_WRITE}
        for data in route.broker_datas:
            stands_in = data.enable_acting_master and data.broker_name not in writable
            if data.broker_addrs and (stands_in or MASTER_ID not in data.broker_addrs):
                self._masterless.add(data.broker_name)
            else:
                self._masterless.discard(data.broker_name)
        watch = self._masterless_watch
        if self._masterless and (watch is None or watch.done()):
            self._masterless_watch = self._spawn(self._until_masters_are_back(), "routes without a master")

    async def _until_masters_are_back(self) -> None:
        """A master that is back is to be found soon, above all if it was away for a moment only."""
        for pause in _MASTERLESS_PAUSES:
            await asyncio.sleep(min(pause, self.config.poll_namesrv_interval))
            if not self._masterless:
                return
            await self._refresh_routes_of(frozenset(self._masterless))

    async def _refresh_routes_of(self, names: Collection[str]) -> None:
        """Asks for the routes that name one of these brokers."""
        topics = [
            topic
            for topic in sorted(self.known_topics())
            if (route := self._routes.get(topic)) is not None
            and any(data.broker_name in names for data in route.broker_datas)
        ]
        await self._refresh_all(topics)

    # -- brokers ----------------------------------------------------------------------

    @property
    def brokers(self) -> Mapping[str, Mapping[int, str]]:
        """Broker name to address by broker id."""
        return self._brokers

    def master_address(self, broker_name: str) -> str | None:
        """Where messages are written and locks taken (Java: findBrokerAddressInPublish)."""
        replicas = self._brokers.get(broker_name)
        return replicas.get(MASTER_ID) if replicas else None

    def send_address(self, broker_name: str) -> str | None:
        """As ``master_address``, the fast port where ``vip_channel`` is on."""
        address = self.master_address(broker_name)
        return self.fast_address(address) if address is not None and self.config.vip_channel else address

    def find_broker(
        self, broker_name: str, broker_id: int = MASTER_ID, *, only_this: bool = False
    ) -> BrokerAddress | None:
        """A replica of a broker to read from (Java: findBrokerAddressInSubscribe).

        Not there: for a slave the next id, and unless ``only_this`` any replica at all.
        """
        replicas = self._brokers.get(broker_name)
        if not replicas:
            return None
        address = replicas.get(broker_id)
        if address is None and broker_id != MASTER_ID:
            address = replicas.get(broker_id + 1)
        if address is not None:
            return BrokerAddress(address, broker_id != MASTER_ID)
        if only_this:
            return None
        other, address = next(iter(replicas.items()))
        return BrokerAddress(address, other != MASTER_ID)

    def find_reader(self, broker_name: str, broker_id: int) -> BrokerAddress | None:
        """As ``find_broker``, for reading messages: a replica that accepts no connection is passed over if there is
        one that may; the name server may take minutes to drop a machine that is gone."""
        found = self.find_broker(broker_name, broker_id)
        if found is None or found.address not in self._unreachable:
            return found
        for other, address in sorted(self._brokers[broker_name].items()):
            if address not in self._unreachable:
                return BrokerAddress(address, other != MASTER_ID)
        return found

    async def locate_broker(
        self, topic: str, broker_name: str, broker_id: int = MASTER_ID, *, only_this: bool = False
    ) -> BrokerAddress:
        """As ``find_broker``, looking at the topic's route once more where nothing is known.

        Raises:
            TopicRouteNotFoundError: the broker is nowhere.
        """
        found = self.find_broker(broker_name, broker_id, only_this=only_this)
        if found is None:
            await self.refresh_route(topic)
            found = self.find_broker(broker_name, broker_id, only_this=only_this)
        if found is None:
            raise TopicRouteNotFoundError(f"the broker {broker_name} of topic {topic} does not exist")
        return found

    async def any_broker_of(self, topic: str) -> str:
        """An address of a random broker of the topic, its master if it has one.

        Raises:
            TopicRouteNotFoundError: the topic has no broker.
        """
        address = self._random_broker(topic)
        if address is None:
            await self.refresh_route(topic)
            address = self._random_broker(topic)
        if address is None:
            raise TopicRouteNotFoundError(f"no broker serves topic {topic}")
        return address

    def _random_broker(self, topic: str) -> str | None:
        route = self._routes.get(topic)
        able: list[BrokerData] = [data for data in route.broker_datas if data.broker_addrs] if route else []
        if not able:
            return None
        replicas = self.rng.choice(able).broker_addrs
        return replicas.get(MASTER_ID) or self.rng.choice(sorted(replicas.values()))

    def replicas_beside(self, address: str) -> list[str]:
        """Addresses of the other replicas of the broker at this one."""
        for replicas in self._brokers.values():
            if address in replicas.values():
                return sorted(other for other in replicas.values() if other != address)
        return []

    def fast_address(self, address: str) -> str:
        """The address for calls that may use the fast port, by the ``vip_channel`` option."""
        if not self.config.vip_channel:
            return address
        host, port = split_address(address)
        return f"{host}:{port - 2}"

    def _drop_offline_brokers(self) -> None:
        named = {
            address
            for route in self._routes.values()
            for data in route.broker_datas
            for address in data.broker_addrs.values()
        }
        for name, replicas in list(self._brokers.items()):
            kept = {broker_id: address for broker_id, address in replicas.items() if address in named}
            if kept:
                self._brokers[name] = kept
            else:
                log.info("broker %s is in no route any more", name)
                del self._brokers[name]
                self._masterless.discard(name)
        self._unreachable &= named


def _told(route: TopicRoute) -> list[str]:
    def one(data: QueueData) -> str:
        return f"{data.broker_name} r{data.read_queue_nums} w{data.write_queue_nums} perm {data.perm}"

    return [one(data) for data in route.queue_datas]
