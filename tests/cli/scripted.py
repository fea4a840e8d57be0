"""A name server, and brokers and controllers that answer what a test tells them to; they keep what they were told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from gimbalmq.nameserver.config import NameServerConfig
from gimbalmq.nameserver.server import NameServer
from gimbalmq.protocol import properties_text
from gimbalmq.protocol.bodies import RegisterBrokerBody
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.nameserver import BrokerIdentity, RegisterBroker
from gimbalmq.protocol.replication_bodies import HaClient, HaStatus
from gimbalmq.rpc import nameserver
from gimbalmq.transport.channel import Channel, Handlers
from gimbalmq.transport.pool import ChannelPool
from gimbalmq.transport.server import RemotingServer

T = TypeVar("T")


class Scripted:
    """A server with fixed answers.

    Attributes:
        answers: by request: a body, ext-fields with a body, an error to raise, or a coroutine function to await.
        told: requests it got, with their ext-fields and bodies.
    """

    def __init__(self, answers: Mapping[int, Any]) -> None:
        self.answers = dict(answers)
        self.told: list[tuple[int, dict[str, str], bytes]] = []
        handlers = Handlers()
        for code in RequestCode:
            handlers.add(code, self._answer)
        self.server = RemotingServer(handlers)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def of(self, code: int) -> list[tuple[dict[str, str], bytes]]:
        return [(fields, body) for told, fields, body in self.told if told == code]

    async def _answer(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        self.told.append((request.code, dict(request.ext_fields or {}), bytes(request.body)))
        answer = self.answers.get(request.code)
        if callable(answer):
            answer = await answer()
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            return request.reply(3, f"request type {request.code} not supported")
        fields, body = answer if isinstance(answer, tuple) else ({}, answer)
        return request.reply(0, None, fields, body)


class ScriptedCluster:
    """On a loop in a thread of its own, for commands that block."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._servers: list[Scripted] = []

    def __enter__(self) -> Self:
        self._thread.start()
        config = NameServerConfig(bind_address="127.0.0.1", listen_port=0)
        self._names = NameServer(config)
        self.run(self._names.start())
        self._pool = self.run(self._new_pool())
        return self

    async def _new_pool(self) -> ChannelPool:
        return ChannelPool()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self._pool.close())
        for server in self._servers:
            self.run(server.server.close())
        self.run(self._names.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def namesrv(self) -> str:
        return self._names.address

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def server(self, answers: Mapping[int, Any]) -> Scripted:
        """One that is not registered."""

        async def start() -> Scripted:
            made = Scripted(answers)
            await made.server.start("127.0.0.1", 0)
            return made

        made = self.run(start())
        self._servers.append(made)
        return made

    def broker(self, name: str, broker_id: int, answers: Mapping[int, Any]) -> Scripted:
        """One that is registered."""
        made = self.server(answers)
        self.register(name, broker_id, made.address)
        return made

    def register(self, name: str, broker_id: int, address: str) -> None:
        self.run(self.registers(name, broker_id, address))

    async def registers(self, name: str, broker_id: int, address: str) -> None:
        header = RegisterBroker(
            broker_name=name, broker_addr=address, cluster_name="DefaultCluster", broker_id=broker_id
        )
        await nameserver.register_broker(self._pool, self.namesrv, header, RegisterBrokerBody())

    def unregister(self, name: str, broker_id: int, address: str) -> None:
        header = BrokerIdentity(
            broker_name=name, broker_addr=address, cluster_name="DefaultCluster", broker_id=broker_id
        )
        self.run(nameserver.unregister_broker(self._pool, self.namesrv, header, timeout=5.0))


def as_master(end: int, **status: Any) -> dict[int, Any]:
    """Answers of a master."""
    made = HaStatus(master=True, master_commit_log_max_offset=end, **status)
    return {RequestCode.GET_BROKER_HA_STATUS: made.dump(), RequestCode.GET_BROKER_CONFIG: _config("0")}


def as_slave(end: int, state: str | None = "seeking", **status: Any) -> dict[int, Any]:
    """Answers of a slave that may be told to change its role."""
    made = HaStatus(ha_client_runtime_info=HaClient(max_offset=end, state=state, **status))
    return {
        RequestCode.GET_BROKER_HA_STATUS: made.dump(),
        RequestCode.GET_BROKER_CONFIG: _config("1"),
        RequestCode.UPDATE_BROKER_CONFIG: b"",
    }


def _config(broker_id: str) -> bytes:
    return properties_text.dumps(
        {"brokerName": "broker-a", "brokerClusterName": "DefaultCluster", "brokerId": broker_id}
    )
