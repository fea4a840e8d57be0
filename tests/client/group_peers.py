"""A name server and brokers for consumers: they do as the test says and note what they are asked.

They are ``RemotingServer``s with handlers of some lines each: just enough of a broker to be consumed from,
and every answer can be replaced. They run on real sockets, or on a network in memory in virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.pull_consumer import PullConsumer
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.client.queue_pull_consumer import QueuePullConsumer
from gimbalmq.errors import ResponseError
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.record import encode_properties, encode_record
from gimbalmq.protocol.bodies import (
    BrokerData,
    ClientConnection,
    ConsumerConnections,
    ConsumerIdList,
    Heartbeat,
    LockReply,
    LockRequest,
    QueueData,
    QueueObject,
    Subscription,
    TopicRoute,
)
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.testing import MemoryNetwork, VirtualClock, run_virtual
from gimbalmq.transport.channel import Channel, Handlers
from gimbalmq.transport.network import Network
from gimbalmq.transport.server import RemotingServer

Override = Callable[[RemotingCommand], RemotingCommand | None]


class Asked(NamedTuple):
    """One request a server got."""

    code: int
    fields: dict[str, str]
    body: bytes
    at: float
    oneway: bool


class Peer:
    """A port that notes requests and lets the test answer them."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.asked: list[Asked] = []
        self.overrides: dict[int, Override] = {}
        self.handlers = Handlers()
        self.server: RemotingServer | None = None
        self.address = ""

    def on(self, code: int, handler: Callable[[Channel, RemotingCommand], Any]) -> None:
        def handle(channel: Channel, request: RemotingCommand) -> Any:
            fields = dict(request.ext_fields or {})
            self.asked.append(
                Asked(request.code, fields, bytes(request.body), self.clock.monotonic(), request.is_oneway)
            )
            override = self.overrides.get(code)
            if override is not None:
                answer = override(request)
                if answer is not None:
                    return answer
            return handler(channel, request)

        self.handlers.add(code, handle)

    def of(self, code: int) -> list[Asked]:
        """Requests of one code, in the order they came."""
        return [asked for asked in self.asked if asked.code == code]

    def codes(self) -> list[int]:
        return [asked.code for asked in self.asked]

    async def start(self, host: str, network: Network | None) -> None:
        self.server = RemotingServer(self.handlers, network=network)
        await self.server.start(host, 0)
        self.address = f"{host}:{self.server.port}"

    async def close(self) -> None:
        if self.server is not None:
            await self.server.close()
            self.server = None


class GroupBroker(Peer):
    """Queues in memory, members by heartbeat, offsets and locks by request."""

    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(clock)
        self.name = name
        self.queues: dict[tuple[str, int], list[bytes]] = {}
        self.first: dict[tuple[str, int], int] = {}
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.members: dict[str, dict[Channel, str]] = {}
        self.subscriptions: dict[str, dict[str, Subscription]] = {}
        self.locks: dict[tuple[str, str, int], str] = {}
        self.notify_changes = True
        self.waiting: dict[tuple[str, int], list[asyncio.Future[None]]] = {}
        self.suggest_broker_id = 0
        self.handlers.closed = self._gone
        code = RequestCode
        self.on(code.HEART_BEAT, self._heartbeat)
        self.on(code.UNREGISTER_CLIENT, self._unregister)
        self.on(code.GET_CONSUMER_LIST_BY_GROUP, self._list)
        self.on(code.GET_CONSUMER_CONNECTION_LIST, self._connections)
        self.on(code.PULL_MESSAGE, self._pull)
        self.on(code.QUERY_CONSUMER_OFFSET, self._query_offset)
        self.on(code.UPDATE_CONSUMER_OFFSET, self._update_offset)
        self.on(code.GET_MAX_OFFSET, self._max_offset)
        self.on(code.GET_MIN_OFFSET, self._min_offset)
        self.on(code.SEARCH_OFFSET_BY_TIMESTAMP, self._search)
        self.on(code.LOCK_BATCH_MQ, self._lock)
        self.on(code.UNLOCK_BATCH_MQ, self._unlock)
        self.on(code.CONSUMER_SEND_MSG_BACK, lambda channel, request: request.reply())
        self.on(code.SEND_MESSAGE_V2, self._send)
        self.on(code.CHECK_CLIENT_CONFIG, lambda channel, request: request.reply())

    # -- what tests do -----------------------------------------------------------------

    def put(
        self, topic: str, queue_id: int, *bodies: str | bytes, tags: str | None = None, **properties: str
    ) -> None:
        """Stores messages and wakes the pulls that wait for them."""
        log = self.queues.setdefault((topic, queue_id), [])
        for body in bodies:
            offset = len(log) + self.first.get((topic, queue_id), 0)
            known = {"UNIQ_KEY": f"ID-{topic}-{queue_id}-{offset}", **properties}
            if tags is not None:
                known["TAGS"] = tags
            log.append(
                encode_record(
                    topic=topic,
                    body=body.encode() if isinstance(body, str) else body,
                    properties=encode_properties(known),
                    queue_id=queue_id,
                    queue_offset=offset,
                    commitlog_offset=1000 * queue_id + offset,
                    store_timestamp=self.clock.wall_ms(),
                )
            )
        for waiter in self.waiting.pop((topic, queue_id), []):
            if not waiter.done():
                waiter.set_result(None)

    def max_offset(self, topic: str, queue_id: int) -> int:
        key = (topic, queue_id)
        return len(self.queues.get(key, [])) + self.first.get(key, 0)

    def committed(self, queue: MessageQueue, group: str = "g") -> int | None:
        return self.offsets.get((group, queue.topic, queue.queue_id))

    def from_start(self, *queues: MessageQueue, group: str = "g") -> None:
        """Gives the group progress 0, so that it reads what is there."""
        for queue in queues:
            self.offsets[(group, queue.topic, queue.queue_id)] = 0

    def clients(self, group: str) -> list[str]:
        return list(self.members.get(group, {}).values())

    def tell(self, group: str, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        """One-way request to every member of a group."""
        for channel in self.members.get(group, {}):
            channel.oneway(RemotingCommand(code, fields, body))

    async def ask(self, group: str, code: int, fields: dict[str, str], body: bytes = b"") -> RemotingCommand:
        """A request to the first member of a group."""
        channel = next(iter(self.members[group]))
        return await channel.call(RemotingCommand(code, fields, body), 5.0)

    def notify(self, group: str) -> None:
        self.tell(group, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})

    # -- handlers ----------------------------------------------------------------------

    def _heartbeat(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        data = Heartbeat.parse(request.body)
        for consumer in data.consumer_data_set:
            table = self.members.setdefault(consumer.group_name, {})
            new = channel not in table
            table[channel] = data.client_id
            known = self.subscriptions.get(consumer.group_name, {})
            self.subscriptions[consumer.group_name] = {
                item.topic: item for item in consumer.subscription_data_set
            }
            changed = set(known) != {item.topic for item in consumer.subscription_data_set}
            if (new or changed) and self.notify_changes:
                self.notify(consumer.group_name)
        return request.reply()

    def _unregister(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        group = (request.ext_fields or {}).get("consumerGroup")
        if group is not None and self.members.get(group, {}).pop(channel, None) is not None:
            self.notify(group)
        return request.reply()

    def _gone(self, channel: Channel) -> None:
        for group, table in self.members.items():
            if table.pop(channel, None) is not None:
                self.notify(group)

    def _list(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        group = (request.ext_fields or {})["consumerGroup"]
        ids = self.clients(group)
        if not ids:
            return request.reply(1, f"no consumer for this group, {group}")
        return request.reply(body=ConsumerIdList(consumer_id_list=ids).dump())

    def _connections(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        group = (request.ext_fields or {})["consumerGroup"]
        found = ConsumerConnections(
            connection_set=[
                ClientConnection(client_addr=member.address, client_id=client, language="PYTHON", version=1)
                for member, client in self.members.get(group, {}).items()
            ],
            subscription_table=self.subscriptions.get(group, {}),
        )
        return request.reply(body=found.dump())

    async def _pull(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        fields = request.ext_fields or {}
        topic, queue_id = fields["topic"], int(fields["queueId"])
        offset, flags = int(fields["queueOffset"]), int(fields["sysFlag"])
        if flags & 1:
            self.offsets[(fields["consumerGroup"], topic, queue_id)] = int(fields["commitOffset"])
        if offset == self.max_offset(topic, queue_id) and flags & 2:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting.setdefault((topic, queue_id), []).append(waiter)
            await asyncio.wait([waiter], timeout=int(fields["suspendTimeoutMillis"]) / 1000)
        first, end = self.first.get((topic, queue_id), 0), self.max_offset(topic, queue_id)
        if offset < first or offset > end:
            return request.reply(21, "OFFSET", self._ends(first if offset < first else end, first, end))
        records = self.queues.get((topic, queue_id), [])[offset - first :][: int(fields["maxMsgNums"])]
        ends = self._ends(offset + len(records), first, end)
        if not records:
            return request.reply(19, "OFFSET_OVERFLOW_ONE", ends)
        return request.reply(0, "FOUND", ends, b"".join(records))

    def _ends(self, following: int, first: int, end: int) -> dict[str, str]:
        return {
            "suggestWhichBrokerId": str(self.suggest_broker_id),
            "nextBeginOffset": str(following),
            "minOffset": str(first),
            "maxOffset": str(end),
        }

    def _query_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        fields = request.ext_fields or {}
        found = self.offsets.get((fields["consumerGroup"], fields["topic"], int(fields["queueId"])))
        if found is None:
            return request.reply(22, "Not found")
        return request.reply(ext_fields={"offset": str(found)})

    def _update_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        fields = request.ext_fields or {}
        key = (fields["consumerGroup"], fields["topic"], int(fields["queueId"]))
        self.offsets[key] = int(fields["commitOffset"])
        return request.reply()

    def _max_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        fields = request.ext_fields or {}
        end = self.max_offset(fields["topic"], int(fields["queueId"]))
        return request.reply(ext_fields={"offset": str(end)})

    def _min_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        fields = request.ext_fields or {}
        first = self.first.get((fields["topic"], int(fields["queueId"])), 0)
        return request.reply(ext_fields={"offset": str(first)})

    def _search(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return request.reply(ext_fields={"offset": "2"})

    def _lock(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        asked = LockRequest.parse(request.body)
        granted: list[QueueObject] = []
        for item in asked.mq_set:
            key = (asked.consumer_group, item.topic, item.queue_id)
            if self.locks.setdefault(key, asked.client_id) == asked.client_id:
                granted.append(item)
        return request.reply(body=LockReply(lock_ok_mq_set=granted).dump())

    def _unlock(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        asked = LockRequest.parse(request.body)
        for item in asked.mq_set:
            key = (asked.consumer_group, item.topic, item.queue_id)
            if self.locks.get(key) == asked.client_id:
                del self.locks[key]
        return request.reply()

    def _send(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return request.reply(ext_fields={"msgId": "X", "queueId": "0", "queueOffset": "0"})


class GroupCluster:
    """A scripted name server and brokers; consumers made here use its network and clock."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, network: MemoryNetwork | None = None) -> None:
        self.clock = clock
        self.network = network
        self.nameserver = Peer(clock)
        self.nameserver.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)
        self.brokers: dict[str, GroupBroker] = {}
        self.topics: dict[str, dict[str, int]] = {}
        self.perms: dict[tuple[str, str], int] = {}
        self.replicas: dict[str, dict[int, str]] = {}
        self.stand_ins_allowed = False
        self.consumers: list[PushConsumer | PullConsumer | QueuePullConsumer] = []
        self._hosts = 0
        self._client_hosts: dict[str, str] = {}

    def _host(self) -> tuple[str, Network | None]:
        if self.network is None:
            return "127.0.0.1", None
        self._hosts += 1
        name = f"10.0.0.{self._hosts}"
        return name, self.network.host(name)

    async def start(self, *names: str) -> None:
        await self.nameserver.start(*self._host())
        for name in names or ("broker-a",):
            await self.add_broker(name)

    async def add_broker(self, name: str) -> GroupBroker:
        broker = GroupBroker(name, self.clock)
        await broker.start(*self._host())
        self.brokers[name] = broker
        return broker

    async def move_broker(self, name: str) -> GroupBroker:
        """A broker is killed and comes back on another host, with its messages and offsets and without its locks."""
        old = self.brokers[name]
        await old.close()
        new = await self.add_broker(name)
        new.queues, new.first, new.offsets = old.queues, old.first, old.offsets
        return new

    @property
    def broker(self) -> GroupBroker:
        return next(iter(self.brokers.values()))

    def topic(self, name: str, queues: int, *brokers: str) -> list[MessageQueue]:
        """Gives a topic so many queues on each of the brokers; all of them where none is named."""
        self.topics[name] = dict.fromkeys(brokers or self.brokers, queues)
        return [
            MessageQueue(name, broker, number) for broker in self.topics[name] for number in range(queues)
        ]

    def _route(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        topic = (request.ext_fields or {})["topic"]
        counts = self.topics.get(topic)
        if counts is None:
            raise ResponseError("No topic route info in name server for the topic: " + topic, code=17)
        route = TopicRoute(
            broker_datas=[
                BrokerData(
                    broker_addrs=self.replicas.get(name) or {0: self.brokers[name].address},
                    broker_name=name,
                    cluster="C",
                    enable_acting_master=self.stand_ins_allowed,
                )
                for name in counts
            ],
            queue_datas=[
                QueueData(
                    broker_name=name,
                    perm=self.perms.get((topic, name), 6),
                    read_queue_nums=count,
                    write_queue_nums=count,
                )
                for name, count in counts.items()
            ],
        )
        return request.reply(body=route.dump())

    def client_options(self, name: str) -> dict[str, Any]:
        if self.network is None:
            return {"client_ip": "127.0.0.1", "instance_name": name}
        return {
            "client_ip": "10.1.0.1",
            "instance_name": name,
            "network": self.network.host(self.client_host(name)),
        }

    def client_host(self, name: str) -> str:
        """Where a member lives in the network in memory."""
        return self._client_hosts.setdefault(name, f"10.2.0.{len(self._client_hosts) + 1}")

    def push(self, name: str = "c1#1", group: str = "g", **options: Any) -> PushConsumer:
        """A push consumer whose client id ends in ``@name``; start it with ``launch``."""
        return PushConsumer(group, self.nameserver.address, **self.client_options(name), **options)

    def pull(self, name: str = "c1#1", group: str = "g", **options: Any) -> PullConsumer:
        return PullConsumer(group, self.nameserver.address, **self.client_options(name), **options)

    def queue_pull(self, name: str = "c1#1", group: str = "g", **options: Any) -> QueuePullConsumer:
        return QueuePullConsumer(group, self.nameserver.address, **self.client_options(name), **options)

    async def launch(self, consumer: PushConsumer | PullConsumer | QueuePullConsumer) -> None:
        self.consumers.append(consumer)
        instance = ClientInstance.shared(
            consumer.config, keep_instance_name=consumer.config.broadcasting, clock=self.clock
        )
        await consumer.start(instance=instance)

    async def close(self) -> None:
        for consumer in self.consumers:
            await consumer.close()
        for broker in self.brokers.values():
            await broker.close()
        await self.nameserver.close()


Scenario = Callable[[GroupCluster], Coroutine[Any, Any, None]]


def in_virtual_time(scenario: Scenario, *brokers: str) -> None:
    """Runs a scenario with scripted servers on a network in memory, where an hour takes no time."""

    async def main(clock: VirtualClock) -> None:
        cluster = GroupCluster(clock, MemoryNetwork())
        await cluster.start(*brokers)
        try:
            async with asyncio.timeout(100_000):
                await scenario(cluster)
        finally:
            await cluster.close()

    run_virtual(main)


async def on_sockets(scenario: Scenario, *brokers: str) -> None:
    """The same on real sockets, in real time."""
    cluster = GroupCluster()
    await cluster.start(*brokers)
    try:
        await scenario(cluster)
    finally:
        await cluster.close()


async def until(condition: Callable[[], object], step: float = 0.005) -> None:
    """Waits in small steps for a condition; the test's time limit ends a vain wait."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(step)
