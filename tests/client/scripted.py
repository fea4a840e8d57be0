"""A cluster that does what a test says: real sockets, real frames, answers written in the test.

What a broker receives is kept as it came; what it answers to a send is ``on_send``'s affair. Nothing
is stored and nothing is clever, so a test shows what the client does, not what a broker would make of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self

from gimbalmq.model.batch import split_batch
from gimbalmq.model.ids import offset_id, pack_host
from gimbalmq.protocol.bodies import BrokerData, Heartbeat, QueueData, TopicRoute
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.transport.channel import Answer, Channel, Handlers
from gimbalmq.transport.network import Network
from gimbalmq.transport.server import RemotingServer

HOST = "127.0.0.1"

OnSend = Callable[[Channel, RemotingCommand], Answer | Awaitable[Answer]]


class ScriptedBroker:
    """One broker; ``requests`` holds all it received, in order."""

    def __init__(
        self, name: str, broker_id: int = 0, *, host: str = HOST, network: Network | None = None
    ) -> None:
        self.name = name
        self.broker_id = broker_id
        self.host = host
        self.requests: list[RemotingCommand] = []
        self.channels: list[Channel] = []
        self.on_send: OnSend = lambda channel, request: self.stored(request)
        self.on_heartbeat: OnSend = lambda channel, request: request.reply()
        self.on_goodbye: OnSend = lambda channel, request: request.reply()
        self.next_offset = 0
        handlers = Handlers()
        handlers.opened = self.channels.append
        for code in (
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.SEND_BATCH_MESSAGE,
            RequestCode.SEND_REPLY_MESSAGE_V2,
        ):
            handlers.add(code, self._send)
        handlers.add(RequestCode.HEART_BEAT, self._heartbeat)
        handlers.add(RequestCode.UNREGISTER_CLIENT, self._goodbye)
        handlers.add(RequestCode.END_TRANSACTION, self._plain)
        self.handlers = handlers
        self.server = RemotingServer(handlers, network=network)

    async def start(self, port: int = 0) -> Self:
        await self.server.start(self.host, port)
        return self

    async def close(self) -> None:
        await self.server.close()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.server.port}"

    def of(self, code: int) -> list[RemotingCommand]:
        """What came of one code."""
        return [request for request in self.requests if request.code == code]

    @property
    def sends(self) -> list[RemotingCommand]:
        return self.of(RequestCode.SEND_MESSAGE_V2)

    @property
    def heartbeats(self) -> list[Heartbeat]:
        return [Heartbeat.parse(request.body) for request in self.of(RequestCode.HEART_BEAT)]

    def stored(self, request: RemotingCommand, code: int = 0) -> RemotingCommand:
        """The answer of a broker that has stored the message."""
        fields = request.ext_fields or {}
        place = self.next_offset
        batch = request.code == RequestCode.SEND_BATCH_MESSAGE
        self.next_offset += len(split_batch(bytes(request.body))) if batch else 1
        host = pack_host(HOST, self.server.port)
        return request.reply(
            code,
            ext_fields={
                "msgId": ",".join(offset_id(host, at * 1000) for at in range(place, self.next_offset)),
                "queueId": fields["e"],
                "queueOffset": str(place),
                "transactionId": "tx",
                "MSG_REGION": "DefaultRegion",
                "TRACE_ON": "true",
            },
        )

    def _send(self, channel: Channel, request: RemotingCommand) -> Answer | Awaitable[Answer]:
        self.requests.append(request)
        return self.on_send(channel, request)

    def _heartbeat(self, channel: Channel, request: RemotingCommand) -> Answer | Awaitable[Answer]:
        self.requests.append(request)
        return self.on_heartbeat(channel, request)

    def _goodbye(self, channel: Channel, request: RemotingCommand) -> Answer | Awaitable[Answer]:
        self.requests.append(request)
        return self.on_goodbye(channel, request)

    def _plain(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        self.requests.append(request)
        return request.reply()


class ScriptedNameServer:
    """One name server; ``routes`` is what it knows, ``asked`` what it was asked for."""

    def __init__(self, *, host: str = HOST, network: Network | None = None) -> None:
        self.host = host
        self.routes: dict[str, TopicRoute] = {}
        self.asked: list[str] = []
        self.silent = False
        handlers = Handlers()
        handlers.add(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)
        self.server = RemotingServer(handlers, network=network)

    async def start(self) -> Self:
        await self.server.start(self.host, 0)
        return self

    async def close(self) -> None:
        await self.server.close()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.server.port}"

    def _route(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        topic = (request.ext_fields or {})["topic"]
        self.asked.append(topic)
        if self.silent:
            return None
        route = self.routes.get(topic)
        if route is None:
            return request.reply(17, f"No topic route info in name server for the topic: {topic}")
        return request.reply(body=route.dump())


class ScriptedCluster:
    """A name server and brokers: ``async with ScriptedCluster("a", "b") as cluster``."""

    def __init__(self, *names: str, network: Network | None = None) -> None:
        self.nameserver = ScriptedNameServer(network=network)
        self.brokers = {name: ScriptedBroker(name, network=network) for name in names or ("broker-a",)}

    async def __aenter__(self) -> Self:
        await self.nameserver.start()
        for broker in self.brokers.values():
            await broker.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.gather(self.nameserver.close(), *(broker.close() for broker in self.brokers.values()))

    @property
    def namesrv(self) -> str:
        return self.nameserver.address

    @property
    def broker(self) -> ScriptedBroker:
        return next(iter(self.brokers.values()))

    def add_topic(
        self,
        topic: str = "T",
        *,
        write: int = 4,
        read: int | None = None,
        perm: int = 6,
        slaves: bool = False,
    ) -> TopicRoute:
        """A topic on all brokers; the name server says so from now on."""
        route = TopicRoute(
            broker_datas=[
                BrokerData(broker_name=name, broker_addrs={0: broker.address}, cluster="c")
                for name, broker in self.brokers.items()
            ],
            queue_datas=[
                QueueData(
                    broker_name=name,
                    perm=perm,
                    read_queue_nums=write if read is None else read,
                    write_queue_nums=write,
                )
                for name in self.brokers
            ],
        )
        self.nameserver.routes[topic] = route
        return route

    def all_sends(self) -> list[str]:
        """Broker names of all sends received, broker by broker."""
        return [name for name, broker in self.brokers.items() for _ in broker.sends]


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Waits in small steps until the condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
