"""NameServer: builds the parts, listens, and drops brokers that fall silent."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq.access.access import Access
from gimbalmq.access.gate import Gate
from gimbalmq.access.needs import NeedTable
from gimbalmq.errors import StateError
from gimbalmq.nameserver.config import NameServerConfig
from gimbalmq.nameserver.handlers import NameServerRequests
from gimbalmq.nameserver.kv import KvStore
from gimbalmq.nameserver.route_table import RouteTable
from gimbalmq.nameserver.settings import Settings
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.transport.channel import Channel, Handlers
from gimbalmq.transport.limits import Load
from gimbalmq.transport.network import Network
from gimbalmq.transport.server import RemotingServer
from gimbalmq.transport.tasks import Tasks
from gimbalmq.transport.tls import RELOAD_SECONDS, ServerTls

log = logging.getLogger(__name__)


class NameServer:
    """A name server (Java: NamesrvController).

    Use it as ``async with NameServer(config) as server`` or with ``start()`` and ``close()``.
    Once closed it cannot start again: build a new one.

    Args:
        access: users that it shares with a broker; who gives it has loaded it, and closes it. Without it the name
            server has its own.
    """

    def __init__(
        self,
        config: NameServerConfig | None = None,
        *,
        network: Network | None = None,
        clock: Clock = SYSTEM_CLOCK,
        access: Access | None = None,
    ) -> None:
        self._settings = Settings(config or NameServerConfig())
        self._network = network
        self._clock = clock
        self._tasks = Tasks("name server")
        self._remoting: RemotingServer | None = None
        self._shared_access = access
        self.access: Access | None = None
        self._closed = False
        self._sweeping = False
        self.table = RouteTable()

    @property
    def config(self) -> NameServerConfig:
        """The configuration in force, changes by request included."""
        return self._settings.config

    @property
    def port(self) -> int:
        if self._remoting is None:
            raise StateError("the name server has no port before start()")
        return self._remoting.port

    @property
    def address(self) -> str:
        """Where clients and brokers on this machine find it."""
        host = self.config.bind_address
        return f"{'127.0.0.1' if host in ('', '0.0.0.0', '::') else host}:{self.port}"

    async def start(self) -> None:
        """Reads the KV file and listens.

        Raises:
            ConfigError: the KV file or one of users is broken, or a certificate cannot be loaded.
            ListenError: the port is taken.
        """
        if self._remoting is not None or self._closed:
            raise StateError("the name server was started before")
        config = self.config
        kv = KvStore(config.kv_config_path)
        kv.load()
        try:
            await self._start(config, kv)
        except BaseException:
            await self._close_access()
            raise

    async def _start(self, config: NameServerConfig, kv: KvStore) -> None:
        handlers = Handlers()
        access = await self._open_access(config)
        needs = NeedTable.of_nameserver(routes_public=config.routes_public)
        gate = access.gate(needs, config)
        proven = None if gate is None or gate.is_permissive else partial(_proven, gate)
        requests = NameServerRequests(self.table, kv, self._settings, self._clock, proven)
        requests.install(handlers)
        handlers.closed = requests.disconnected
        access.guard(handlers, gate, needs)
        self.table.swept_later = self._sweep_later
        tls = ServerTls(config)
        load = Load(config, clock=self._clock)
        remoting = RemotingServer(handlers, tls=tls, network=self._network, load=load)
        await remoting.start(config.bind_address, config.listen_port)
        self._remoting = remoting
        self._settings.config = replace(config, listen_port=remoting.port)
        self._tasks.every(
            lambda: self.config.scan_not_active_broker_interval / 1000,
            self.drop_silent_brokers,
            "broker expiry",
        )
        self._tasks.every(RELOAD_SECONDS, tls.reload, "certificates")
        log.info("name server listens on %s", self.address)

    async def _open_access(self, config: NameServerConfig) -> Access:
        if self._shared_access is not None:
            self.access = self._shared_access
            return self._shared_access
        folder = None if config.kv_config_path is None else Path(config.kv_config_path).parent
        self.access = access = Access(config, folder, folder, clock=self._clock)
        access.load()
        await access.start()
        return access

    async def close(self) -> None:
        """Stops listening and closes all connections; brokers and clients will notice."""
        self._closed = True
        await self._tasks.close()
        if self._remoting is not None:
            await self._remoting.close()
        await self._close_access()

    async def _close_access(self) -> None:
        if self.access is not None and self._shared_access is None:
            await self.access.close()

    async def __aenter__(self) -> NameServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def drop_silent_brokers(self) -> None:
        """One look for brokers whose time is over; the expiry loop's step."""
        for gone in self.table.expire(self._clock.monotonic()):
            if isinstance(gone.connection, Channel):
                gone.connection.abort()

    def _sweep_later(self) -> None:
        if not self._sweeping:
            self._sweeping = True
            asyncio.get_running_loop().call_soon(self._sweep)

    def _sweep(self) -> None:
        self._sweeping = False
        if self.table.sweep():
            self._sweep_later()


def _proven(gate: Gate, channel: Channel, request: RemotingCommand) -> bool:
    """Whether a request carries the credentials of a server or an administrator.

    One that the gate has let pass as a trusted server's may still carry a signature that somebody else has made.
    """
    user, shown = gate.who(request), channel.peer_certificate
    return (
        user is not None
        and user.is_super
        and user.may_come_from(channel.host)
        and user.may_present(*((None, None) if shown is None else (shown.name or None, shown.fingerprint)))
    )
