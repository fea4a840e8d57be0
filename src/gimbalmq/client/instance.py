"""The part that all producers, consumers and admin objects of one client id share.

It owns the connections, knows the routes and the brokers' addresses, sends the heartbeats and takes
the requests brokers make of clients to the group they mean. A consumer registers an object of the
shape ``ConsumerMember``, a producer one of the shape ``ProducerMember``; the instance calls them back
and never looks inside.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol, TypeVar

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq.client.config import ClientConfig
from gimbalmq.client.identity import client_id as make_client_id
from gimbalmq.client.identity import id_generator
from gimbalmq.errors import (
    ConnectError,
    RequestTimeoutError,
    ResponseError,
    RocketMQError,
    StateError,
    TopicRouteNotFoundError,
)
from gimbalmq.model import properties as names
from gimbalmq.model.message import MessageView, decode_views
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.route import MASTER_ID, broker_addresses, same_route, subscribe_queues
from gimbalmq.protocol.bodies import BrokerData, ConsumerData, Heartbeat, ProducerData, QueueData, TopicRoute
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers import groups as group_headers
from gimbalmq.protocol.headers import management as management_headers
from gimbalmq.protocol.headers import messages as message_headers
from gimbalmq.protocol.signing import Signer
from gimbalmq.protocol.status_bodies import (
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    ConsumerStatusBody,
    QueueOffsets,
)
from gimbalmq.rpc import groups as group_calls
from gimbalmq.rpc import nameserver as nameserver_calls
from gimbalmq.transport.channel import Channel, Handlers
from gimbalmq.transport.network import split_address
from gimbalmq.transport.pool import ChannelPool
from gimbalmq.transport.tasks import Tasks

log = logging.getLogger(__name__)

FIRST_ROUTE_POLL = 0.01
FIRST_HEARTBEAT = 1.0
GREET_DELAY = 0.1
LOG_EVERY_HEARTBEAT = 20
_REJOIN_PAUSES = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 15.0)


class ProducerMember(Protocol):
    """A producer as the instance sees it."""

    def publish_topics(self) -> Iterable[str]:
        """Topics whose routes it wants kept fresh."""
        ...

    def route_changed(self, topic: str, route: TopicRoute) -> None:
        """A route is new or different."""
        ...

    async def check_transaction(
        self, address: str, message: MessageView, header: message_headers.CheckTransactionState
    ) -> None:
        """39: a broker asks what became of a transaction; answer it with 37."""
        ...


class ConsumerMember(Protocol):
    """A consumer as the instance sees it."""

    def heartbeat_data(self) -> ConsumerData:
        """Its part of the next heartbeat."""
        ...

    def subscribed_topics(self) -> Iterable[str]:
        """Topics whose routes it wants kept fresh, its retry topic included."""
        ...

    def route_changed(self, topic: str, route: TopicRoute) -> None:
        """A route is new or different (called for every topic of the instance)."""
        ...

    def wake_rebalance(self) -> None:
        """40: some group of this instance has changed; look again, soon."""
        ...

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """220: go on from these offsets."""
        ...

    async def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """221: progress by queue of one topic."""
        ...

    async def running_info(self, jstack: bool) -> ConsumerRunningInfo:
        """307."""
        ...

    async def consume_directly(self, message: MessageView, broker_name: str | None) -> ConsumeDirectlyResult:
        """309: run the handler on this message now."""
        ...


class BrokerAddress(NamedTuple):
    address: str
    is_slave: bool


_instances: dict[str, ClientInstance] = {}
_M = TypeVar("_M")


class ClientInstance:
    """One per client id in a process (Java: MQClientInstance).

    It is itself a ``rpc.call.Caller``: pass it to the functions of ``rpc``, and requests are signed.

    Attributes:
        client_id: ``ip@pid#nanoseconds``, or as the instance name says.
        config: of whoever came first.
        tasks: background work that ends with the instance.
        broker_versions: version number by broker name and address, from heartbeat answers.
        replies: futures of request messages by correlation id.
        unique_ids: maker of message ids.
        rng: every random choice of the instance.
        route_listeners: called with (topic, route) on each change of a route, after the members.
    """

    def __init__(
        self,
        config: ClientConfig,
        client_id: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> None:
        self.config = config
        self.client_id = client_id
        self.clock = clock
        self.rng = rng or random.Random()
        self.unique_ids = id_generator(config)
        self.broker_versions: dict[str, dict[str, int]] = {}
        self.replies: dict[str, asyncio.Future[MessageView]] = {}
        self.route_listeners: list[Callable[[str, TopicRoute], None]] = []
        self.tasks = Tasks(f"client {client_id}")
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._signer = (
            Signer(config.access_key, config.secret_key, config.security_token)
            if config.access_key is not None and config.secret_key is not None
            else None
        )
        handlers = Handlers(answer_unknown=False)
        handlers.closed = self._channel_closed
        self._add_handlers(handlers)
        self.pool = ChannelPool(
            handlers, network=config.network, tls=config.tls, connect_timeout=config.connect_timeout
        )
        self._nameservers = list(config.addresses)
        self.rng.shuffle(self._nameservers)
        self._nameserver_count = self.rng.randrange(999)
        self._nameserver: str | None = None
        self._producers: dict[str, ProducerMember] = {}
        self._consumers: dict[str, ConsumerMember] = {}
        self._others: set[int] = set()
        self._routes: dict[str, TopicRoute] = {}
        self._subscribe: dict[str, tuple[MessageQueue, ...]] = {}
        self._brokers: dict[str, dict[int, str]] = {}
        self._asking: dict[tuple[str, str | None], asyncio.Task[bool]] = {}
        self._heartbeat_running = False
        self._heartbeat_wanted = False
        self._heartbeat_count = 0
        self._greeting = False
        self._greeted: set[str] = set()
        self._rejoining: set[str] = set()
        self._channel_addresses: dict[int, str] = {}
        self._started = False

    # -- life -------------------------------------------------------------------------

    @classmethod
    def shared(
        cls,
        config: ClientConfig,
        *,
        keep_instance_name: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> ClientInstance:
        """The instance of the config's client id: the one there is, or a new one.

        Args:
            keep_instance_name: see ``identity.client_id``; broadcasting consumers say True.
        """
        name = make_client_id(config, keep_instance_name=keep_instance_name)
        found = _instances.get(name)
        # An event loop that ended without close() leaves an instance nobody can use.
        if found is not None and not found.closed and found._loop is asyncio.get_running_loop():
            return found
        made = cls(config, name, clock=clock, rng=rng)
        _instances[name] = made
        return made

    async def start(self) -> None:
        """Starts polling and heartbeats; a second call does nothing."""
        if self.closed:
            raise StateError(f"client instance {self.client_id} is closed")
        if self._started:
            return
        self._started = True
        self.tasks.every(
            self.config.poll_namesrv_interval, self._poll_routes, "routes", first=FIRST_ROUTE_POLL
        )
        self.tasks.every(self.config.heartbeat_interval, self._beat, "heartbeat", first=FIRST_HEARTBEAT)

    def register_producer(self, group: str, member: ProducerMember) -> None:
        """Raises StateError where the group has a producer in this instance already."""
        self._register(self._producers, "producer", group, member)

    def register_consumer(self, group: str, member: ConsumerMember) -> None:
        """Raises StateError where the group has a consumer in this instance already."""
        self._register(self._consumers, "consumer", group, member)

    def _register(self, table: dict[str, _M], kind: str, group: str, member: _M) -> None:
        if self.closed:
            raise StateError(f"client instance {self.client_id} is closed")
        if group in table:
            raise StateError(
                f"the {kind} group {group} has been created before in client instance {self.client_id}; "
                "give the second one another group or another instance_name"
            )
        table[group] = member

    async def unregister_producer(self, group: str) -> None:
        """Takes leave of all brokers; the last member to leave closes the instance."""
        if self._producers.pop(group, None) is not None:
            await self._say_goodbye(producer_group=group)
        await self.close_if_unused()

    async def unregister_consumer(self, group: str) -> None:
        """Takes leave of all brokers; the last member to leave closes the instance."""
        if self._consumers.pop(group, None) is not None:
            await self._say_goodbye(consumer_group=group)
        await self.close_if_unused()

    def hold(self, owner: object) -> None:
        """Keeps the instance open for someone who is neither producer nor consumer (admin objects)."""
        self._others.add(id(owner))

    async def release(self, owner: object) -> None:
        self._others.discard(id(owner))
        await self.close_if_unused()

    async def close_if_unused(self) -> None:
        if not (self._producers or self._consumers or self._others):
            await self.close()

    async def close(self) -> None:
        """Ends everything; members should have left before."""
        if self.closed:
            return
        self.closed = True
        if _instances.get(self.client_id) is self:
            del _instances[self.client_id]
        for future in self.replies.values():
            if not future.done():
                future.set_exception(StateError("the client was closed before the reply came"))
        self.replies.clear()
        for asking in list(self._asking.values()):
            asking.cancel()
        await self.tasks.close()
        await self.pool.close()

    async def _say_goodbye(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        async def leave(address: str) -> None:
            try:
                await group_calls.unregister(
                    self,
                    address,
                    self.client_id,
                    producer_group=producer_group,
                    consumer_group=consumer_group,
                    timeout=self.config.api_timeout,
                )
            except RocketMQError as error:
                log.warning("unregistering at %s failed: %s", address, error)

        addresses = dict.fromkeys(
            address for replicas in self._brokers.values() for address in replicas.values() if address
        )
        # A broker we have no connection to does not know us, or has noticed that we are gone.
        known = [address for address in addresses if self.pool.existing(address) is not None]
        await asyncio.gather(*(leave(address) for address in known))

    # -- calls ------------------------------------------------------------------------

    async def call(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        """One signed request; the timeout covers the connecting too."""
        if self._signer is not None:
            self._signer.sign(command)
        channel = self.pool.existing(address)
        if channel is None:
            deadline = self._loop.time() + timeout
            channel = await self.channel(address, timeout)
            timeout = max(0.001, deadline - self._loop.time())
        return await channel.call(command, timeout)

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        if self._signer is not None:
            self._signer.sign(command)
        (await self.channel(address, self.config.connect_timeout)).oneway(command)

    async def channel(self, address: str, timeout: float) -> Channel:
        """The connection to an address; raises ConnectError. Requests on it are the caller's to sign."""
        channel = self.pool.existing(address)
        if channel is not None:
            return channel
        try:
            async with asyncio.timeout(timeout):
                channel = await self.pool.channel(address)
        except TimeoutError as error:
            raise ConnectError(f"{address} did not accept a connection within {timeout:g} s") from error
        self._channel_addresses[id(channel)] = address
        return channel

    @property
    def signer(self) -> Signer | None:
        return self._signer

    def fast_address(self, address: str) -> str:
        """The address for calls that may use the fast port, by the ``vip_channel`` option."""
        if not self.config.vip_channel:
            return address
        host, port = split_address(address)
        return f"{host}:{port - 2}"

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
        """The route as last heard; None where none has been."""
        return self._routes.get(topic)

    def subscribe_queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """The queues a topic's consumers share, sorted, as last heard; None where no route is known."""
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
        log.info("route of %s: %s", topic, ", ".join(_told(route)) or "no queues")
        for producer in list(self._producers.values()):
            producer.route_changed(topic, route)
        for consumer in list(self._consumers.values()):
            consumer.route_changed(topic, route)
        for listener in list(self.route_listeners):
            listener(topic, route)
        if self._started and not self.closed and not self._greeting:
            self._greeting = True
            self.tasks.spawn(self._greet(), "greet new brokers")
        return True

    async def _greet(self) -> None:
        """A broker that has just appeared should not wait half a minute to hear of us.

        After a moment, not at once: a consumer that starts sends its own heartbeat and waits for it.
        """
        await asyncio.sleep(GREET_DELAY)
        self._greeting = False
        if any(address not in self._greeted for _, address in self.heartbeat_targets()):
            await self.heartbeat()

    def known_topics(self) -> set[str]:
        """Topics that members want routes of."""
        topics: set[str] = set()
        for producer in self._producers.values():
            topics.update(producer.publish_topics())
        for consumer in self._consumers.values():
            topics.update(consumer.subscribed_topics())
        return topics

    async def _poll_routes(self) -> None:
        topics = sorted(self.known_topics())
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

    # -- heartbeats -------------------------------------------------------------------

    def _has_members(self) -> bool:
        return bool(self._producers or self._consumers)

    async def _beat(self) -> None:
        self._drop_offline_brokers()
        await self.heartbeat()

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

    def heartbeat_body(self) -> Heartbeat:
        return Heartbeat(
            client_id=self.client_id,
            consumer_data_set=[member.heartbeat_data() for member in self._consumers.values()],
            producer_data_set=[ProducerData(group_name=group) for group in self._producers],
        )

    def heartbeat_targets(self) -> list[tuple[str, str]]:
        """(broker name, address) of who is to hear of us: with producers only, masters alone."""
        return [
            (name, address)
            for name, replicas in self._brokers.items()
            for broker_id, address in replicas.items()
            if broker_id == MASTER_ID or self._consumers
        ]

    async def heartbeat(self) -> bool:
        """One heartbeat to all brokers, at the same time.

        Returns:
            False where nothing was sent: nobody is registered here, or another is under way. If that
            one had left before what it should say changed, it is followed by one that says it.
        """
        if not self._has_members():
            return False
        if self._heartbeat_running:
            self._heartbeat_wanted = True
            return False
        self._heartbeat_running = True
        try:
            body = self.heartbeat_body().dump()
            while True:
                self._heartbeat_wanted = False
                targets = self.heartbeat_targets()
                await asyncio.gather(*(self._beat_one(name, address, body) for name, address in targets))
                said, body = body, self.heartbeat_body().dump()
                if not self._heartbeat_wanted or said == body or self.closed:
                    return True
        finally:
            self._heartbeat_running = False

    async def _beat_one(self, broker_name: str, address: str, body: bytes) -> bool:
        try:
            version = await group_calls.heartbeat(self, address, body, timeout=self.config.heartbeat_timeout)
        except RocketMQError as error:
            log.warning("heartbeat to broker %s at %s failed: %s", broker_name, address, error)
            return False
        self.broker_versions.setdefault(broker_name, {})[address] = version
        self._greeted.add(address)
        if self._heartbeat_count % LOG_EVERY_HEARTBEAT == 0:
            log.info("heartbeat to broker %s at %s succeeded", broker_name, address)
        self._heartbeat_count += 1
        return True

    def _channel_closed(self, channel: Channel) -> None:
        """A broker forgets the members of a broken connection: tell it anew, soon."""
        address = self._channel_addresses.pop(id(channel), None)
        if address is not None:
            self._greeted.discard(address)
        if (
            address is None
            or self.closed
            or not self._started
            or address in self._rejoining
            or not any(address == target for _, target in self.heartbeat_targets())
        ):
            return
        self._rejoining.add(address)
        self.tasks.spawn(self._rejoin(address), f"rejoin {address}")

    async def _rejoin(self, address: str) -> None:
        try:
            for pause in _REJOIN_PAUSES:
                await asyncio.sleep(pause)
                names_of = [name for name, target in self.heartbeat_targets() if target == address]
                if not names_of or not self._has_members():
                    return
                if self._heartbeat_running:
                    continue
                self._heartbeat_running = True
                try:
                    if await self._beat_one(names_of[0], address, self.heartbeat_body().dump()):
                        return
                finally:
                    self._heartbeat_running = False
        finally:
            self._rejoining.discard(address)

    # -- requests from brokers --------------------------------------------------------

    def _add_handlers(self, handlers: Handlers) -> None:
        handlers.add(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._on_members_changed)
        handlers.add(RequestCode.CHECK_TRANSACTION_STATE, self._on_check_transaction)
        handlers.add(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._on_reset_offsets)
        handlers.add(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self._on_consumer_status)
        handlers.add(RequestCode.GET_CONSUMER_RUNNING_INFO, self._on_running_info)
        handlers.add(RequestCode.CONSUME_MESSAGE_DIRECTLY, self._on_consume_directly)
        handlers.add(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._on_reply)

    def _on_members_changed(self, channel: Channel, request: RemotingCommand) -> None:
        group = group_headers.GroupOnly.from_ext(request.ext_fields).consumer_group
        log.info("%s says that the members of group %s changed", channel.address, group)
        for member in list(self._consumers.values()):
            member.wake_rebalance()

    def _on_check_transaction(self, channel: Channel, request: RemotingCommand) -> None:
        header = message_headers.CheckTransactionState.from_ext(request.ext_fields)
        views = decode_views(bytes(request.body), broker_name=header.bname or "")
        if not views:
            log.warning("%s asks about a transaction without its message", channel.address)
            return
        message = views[0]
        group = message.all_properties.get(names.PRODUCER_GROUP, "")
        member = self._producers.get(group)
        if member is None:
            log.warning("%s asks about a transaction of group %r, which is not here", channel.address, group)
            return
        address = self._channel_addresses.get(id(channel), channel.address)
        self.tasks.spawn(member.check_transaction(address, message, header), "check transaction")

    def _on_reset_offsets(self, channel: Channel, request: RemotingCommand) -> None:
        header = management_headers.ResetOffset.from_ext(request.ext_fields)
        log.info("%s resets group %s on %s", channel.address, header.group, header.topic)
        member = self._consumers.get(header.group)
        if member is not None:
            offsets = QueueOffsets.parse(request.body).queues if request.body else {}
            self.tasks.spawn(member.reset_offsets(header.topic, offsets), "reset offsets")

    async def _on_consumer_status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = management_headers.ConsumerStatus.from_ext(request.ext_fields)
        member = self._consumers.get(header.group)
        offsets = await member.consumer_status(header.topic) if member is not None else {}
        return request.reply(body=ConsumerStatusBody.of_queues(offsets).dump())

    async def _on_running_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = management_headers.RunningInfo.from_ext(request.ext_fields)
        member = self._consumer(header.consumer_group)
        return request.reply(body=(await member.running_info(bool(header.jstack_enable))).dump())

    async def _on_consume_directly(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = management_headers.ConsumeDirectly.from_ext(request.ext_fields)
        member = self._consumer(header.consumer_group)
        views = decode_views(bytes(request.body), broker_name=header.broker_name or "")
        if not views:
            raise ResponseError("the request has no message")
        return request.reply(body=(await member.consume_directly(views[0], header.broker_name)).dump())

    def _consumer(self, group: str) -> ConsumerMember:
        member = self._consumers.get(group)
        if member is None:
            raise ResponseError(f"The Consumer Group <{group}> not exist in this consumer")
        return member

    def _on_reply(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = message_headers.ReplyMessage.from_ext(request.ext_fields)
        properties = names.parse(header.properties or "")
        properties[names.ARRIVE_TIME] = str(self.clock.wall_ms())
        view = MessageView.build(
            header.topic,
            bytes(request.body),
            queue=MessageQueue(header.topic, "", header.queue_id),
            properties=properties,
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            store_timestamp=header.store_timestamp,
            reconsume_times=header.reconsume_times or 0,
        )
        correlation_id = properties.get(names.CORRELATION_ID)
        waiting = self.replies.pop(correlation_id, None) if correlation_id is not None else None
        if waiting is None or waiting.done():
            log.warning("a reply to %s came, which nobody waits for (any more)", correlation_id)
            return request.reply(ResponseCode.SYSTEM_ERROR, "nobody waits for this reply")
        waiting.set_result(view)
        return request.reply()


def _told(route: TopicRoute) -> list[str]:
    def one(data: QueueData) -> str:
        return f"{data.broker_name} r{data.read_queue_nums} w{data.write_queue_nums} perm {data.perm}"

    return [one(data) for data in route.queue_datas]
