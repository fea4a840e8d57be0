"""A cluster inside the process: the servers' own classes, on free ports, in a folder that goes away.

``LocalCluster`` lives on the caller's event loop; ``LocalCluster.in_thread()`` puts one on a loop
in a thread of its own, for blocking tests and for any number of loops elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq._options import Configuration, did_you_mean, options_by_key
from gimbalmq.access.access import Access
from gimbalmq.broker.broker import Broker
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.errors import ConfigError, StateError
from gimbalmq.nameserver.config import NameServerConfig
from gimbalmq.nameserver.server import NameServer
from gimbalmq.testing.network import MemoryNetwork
from gimbalmq.testing.security import ADMIN, ClusterSecurity

T = TypeVar("T")

Which = int | tuple[str, int]
"""A broker of a cluster: its number, or its name and the id it was started with."""

_MOST_REPLICAS = 9
_LOOK_SECONDS = 0.01

HOST = "127.0.0.1"
NAMESERVER_HOST = "10.0.0.1"
"""Where the name server lives in a MemoryNetwork; brokers are 10.0.0.11, 10.0.0.12, ..., slaves too."""

SMALL = {
    "mappedFileSizeCommitLog": str(64 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 3000),
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
}
"""File sizes for tests: a store of a few messages needs no gigabyte, not even a sparse one."""


_HOLD_SECONDS = 0.001


@dataclass(slots=True)
class _Slot:
    config: BrokerConfig
    broker: Broker | None = None
    held: dict[int, socket.socket] = field(default_factory=dict)
    """By port."""

    def hold_ports(self) -> None:
        """Keeps the ports of a broker that is down, or another's listening on any free port might take them.

        Linux lets a server listen beside a socket that is only bound, where both allow reuse; connections to it are
        refused. As long as the broker itself listens, its port cannot be kept.
        """
        if sys.platform != "linux":
            return
        for port in {self.config.listen_port, self.config.ha_listen_port} - self.held.keys():
            held = socket.socket()
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                held.bind((self.config.bind_address, port))
            except OSError:  # taken already, or no address of IPv4: then it is as if it were not held
                held.close()
            else:
                self.held[port] = held

    def free_ports(self) -> None:
        for held in self.held.values():
            held.close()
        self.held.clear()


class LocalCluster:
    """A name server and brokers on this event loop.

    Args:
        brokers: how many, named broker-a, broker-b, ...; or their names.
        replicas: how many brokers each name has: a master (id 0) and its slaves (1, 2 ...), each with a folder and
            ports of its own. They are numbered name by name: with two names and three replicas the slaves of the
            second name are 4 and 5, or ("broker-b", 1) and ("broker-b", 2).
        properties: RocketMQ's broker keys, for all of them; ``tls.*`` reach the name server too.
        namesrv_properties: RocketMQ's name server keys.
        store: a folder that is kept; without it everything is deleted at the end.
        secure: whether it asks for users and their policies, and speaks nothing but TLS; ``client_options`` and
            ``client_file`` let clients in.
        users: names of ordinary users and what each may do, actions by resource, such as
            ``{"shop": {"Topic:orders": "Pub"}}``; a secure cluster has an administrator, ``admin``, besides.
        network: run in memory; with a VirtualClock and its loop, in virtual time.
        clock: what the servers read the time from.
    """

    def __init__(
        self,
        *,
        brokers: int | Sequence[str] = 1,
        replicas: int = 1,
        properties: Mapping[str, object] | None = None,
        namesrv_properties: Mapping[str, object] | None = None,
        store: Path | None = None,
        secure: bool = False,
        users: Mapping[str, Mapping[str, str]] | None = None,
        network: MemoryNetwork | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        names = (
            [f"broker-{chr(ord('a') + index)}" for index in range(brokers)]
            if isinstance(brokers, int)
            else brokers
        )
        if not 1 <= len(names) <= 26 or len(set(names)) < len(names):
            raise ConfigError("brokers", brokers, "use 1 to 26, or as many different names")
        if not 1 <= replicas <= _MOST_REPLICAS:
            raise ConfigError("replicas", replicas, f"use 1, a master alone, to {_MOST_REPLICAS}")
        if users and not secure:
            raise ConfigError("users", ", ".join(users), "only a secure cluster has users: say secure=True")
        self._secure = secure
        self._users = dict(users or {})
        self._security: ClusterSecurity | None = None
        self._access: Access | None = None
        self._properties = _texts(properties)
        self._namesrv_properties = _texts(namesrv_properties)
        self._names = tuple(names)
        self._replicas = replicas
        self._kept = store
        self._network = network
        self._clock = clock
        self._folder: Path | None = None
        self._nameserver: NameServer | None = None
        self._slots: list[_Slot] = []

    @staticmethod
    def in_thread(**options: Any) -> ThreadCluster:
        """The same for blocking callers; takes the arguments of LocalCluster (no clock, no network)."""
        return ThreadCluster(**options)

    # -- what users read -------------------------------------------------------------

    @property
    def namesrv(self) -> str:
        """``host:port`` of the name server: what clients are given."""
        return self.nameserver.address

    @property
    def nameserver(self) -> NameServer:
        if self._nameserver is None:
            raise StateError("the cluster is not running")
        return self._nameserver

    @property
    def broker(self) -> Broker:
        """The first running broker."""
        running = self.brokers
        if not running:
            raise StateError("no broker of the cluster is running")
        return running[0]

    @property
    def brokers(self) -> list[Broker]:
        """The running brokers."""
        return [slot.broker for slot in self._slots if slot.broker is not None]

    @property
    def folder(self) -> Path:
        """Where the stores lie: one folder for each broker name, and one for each slave, such as broker-a-1."""
        if self._folder is None:
            raise StateError("the cluster is not running")
        return self._folder

    def client_options(self, user: str | None = None) -> dict[str, Any]:
        """Options that any client is given: name servers and, if the cluster is secure, who asks and whom to believe.

        Args:
            user: of a secure cluster; its administrator by default.
        """
        if self._security is None and user is None:
            return {"namesrv": self.namesrv}
        return self._secured().client_options(user or ADMIN, self.namesrv)

    def client_file(self, user: str | None = None) -> Path:
        """The same as a client file of a secure cluster, for commands and for Spark."""
        return self._secured().client_file(user or ADMIN, self.namesrv)

    def _secured(self) -> ClusterSecurity:
        if self._security is None:
            raise StateError("the cluster has no users: make it with secure=True")
        return self._security

    # -- life ------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Starts the name server, then the brokers; all are registered when it returns."""
        if self._folder is not None:
            raise StateError("the cluster was started before")
        self._folder = self._kept or Path(tempfile.mkdtemp(prefix="gimbalmq-"))
        try:
            await self._start_all()
        except BaseException:
            await self.close()
            raise

    async def _start_all(self) -> None:
        host = HOST if self._network is None else NAMESERVER_HOST
        shared = {key: text for key, text in self._properties.items() if key.startswith("tls.")}
        if self._secure:
            hosts = (
                ()
                if self._network is None
                else (host, *map(self._host_of, range(len(self._names) * self._replicas)))
            )
            self._security = ClusterSecurity(self.folder / "security", self._users, hosts)
            shared = self._security.properties | shared
        keys = {"bindAddress": host, "listenPort": "0", **shared, **self._namesrv_properties}
        config, unknown = NameServerConfig.from_properties(keys)
        _refuse(unknown, NameServerConfig)
        if self._security is not None:
            # One table for all servers, in memory: a new cluster has new users.
            self._access = Access(config, None, clock=self._clock)
            self._access.load()
            await self._access.start()
            await self._security.make_users(self._access)
        self._nameserver = NameServer(
            config,
            network=None if self._network is None else self._network.host(host),
            clock=self._clock,
            access=self._access,
        )
        await self._nameserver.start()
        for name in self._names:
            for broker_id in range(self._replicas):
                index = len(self._slots)
                self._slots.append(_Slot(self._broker_config(index, name, broker_id)))
                await self.start_broker(index)

    def _host_of(self, index: int) -> str:
        return HOST if self._network is None else f"10.0.0.{11 + index}"

    def _broker_config(self, index: int, name: str, broker_id: int) -> BrokerConfig:
        host = self._host_of(index)
        keys = {
            "brokerName": name,
            "bindAddress": host,
            "brokerIP1": host,
            "brokerIP2": host,
            "listenPort": "0",
            "namesrvAddr": self.namesrv,
            "storePathRootDir": str(self.folder / (f"{name}-{broker_id}" if broker_id else name)),
            **SMALL,
            **({} if self._security is None else self._security.properties),
            **self._properties,
            **({"brokerRole": "SLAVE", "brokerId": str(broker_id)} if broker_id else {}),
        }
        config, unknown = BrokerConfig.from_properties(keys)
        _refuse(unknown, BrokerConfig)
        return config

    async def close(self) -> None:
        """Closes everything cleanly and removes the temporary folder."""
        for slot in reversed(self._slots):
            broker, slot.broker = slot.broker, None
            if broker is not None:
                await broker.close()
            slot.free_ports()
        nameserver, self._nameserver = self._nameserver, None
        if nameserver is not None:
            await nameserver.close()
        access, self._access = self._access, None
        if access is not None:
            await access.close()
        self._security = None
        self._slots.clear()
        folder, self._folder = self._folder, None
        if folder is not None and self._kept is None:
            shutil.rmtree(folder, ignore_errors=True)

    # -- what tests do to it ---------------------------------------------------------

    def number_of(self, which: Which) -> int:
        """The number of a broker that is named by its name and the id it was started with."""
        if isinstance(which, int):
            return which
        name, broker_id = which
        if name not in self._names or not 0 <= broker_id < self._replicas:
            raise ConfigError(
                "broker",
                which,
                f"use one of {', '.join(self._names)} with an id of 0 to {self._replicas - 1}",
            )
        return self._names.index(name) * self._replicas + broker_id

    def find(self, which: Which) -> Broker:
        """A broker that runs."""
        slot = self._slots[self.number_of(which)]
        if slot.broker is None:
            raise StateError(f"{slot.config.broker_name} (id {slot.config.broker_id}) is not running")
        return slot.broker

    def replica(self, index: int = 0, broker_id: int = 0) -> Broker:
        """A broker that runs: of the ``index``-th name, the one that was started with this id."""
        return self.find((self._names[index], broker_id))

    async def in_step(self, seconds: float = 10.0) -> None:
        """Waits until every running slave has all that its running master has written.

        Raises:
            TimeoutError: one still lacks something; the text says which, and how much.
        """
        late = self._late()
        deadline = self._clock.monotonic() + seconds
        while late:
            if self._clock.monotonic() > deadline:
                raise TimeoutError(f"not in step after {seconds:g} s: {'; '.join(late)}")
            await asyncio.sleep(_LOOK_SECONDS)
            late = self._late()

    def _late(self) -> list[str]:
        masters = {broker.live.now.broker_name: broker for broker in self.brokers if broker.roles.is_master}
        found = []
        for broker in self.brokers:
            name = broker.live.now.broker_name
            if broker.roles.is_master or name not in masters:
                continue
            end, has = masters[name].store.max_commitlog_offset, broker.store.max_commitlog_offset
            if has != end:
                who = f"{name}, slave {broker.roles.now.broker_id}"
                found.append(f"{who} has its log up to {has}, its master up to {end}")
        return found

    async def start_broker(self, index: Which = 0) -> Broker:
        """Starts a broker that is not running, on the port and folder it had."""
        index = self.number_of(index)
        slot = self._slots[index]
        if slot.broker is not None:
            raise StateError(f"{slot.config.broker_name} is running")
        broker = self._new_broker(index, slot.config)
        await broker.start()
        slot.free_ports()
        slot.broker = broker
        # Clients hold addresses: a broker comes back where it was.
        slot.config = replace(slot.config, listen_port=broker.port, ha_listen_port=broker.ha_port)
        return broker

    async def promote_broker(self, index: Which, *, wait: bool = False) -> None:
        """Makes a slave the master. Whoever is the master must be down, or the cluster has two.

        Args:
            wait: its sends wait for slaves (SYNC_MASTER).
        """
        await self.find(index).replication.become_master(wait=wait)

    async def demote_broker(self, index: Which, broker_id: int) -> None:
        """Makes a master a slave, with this id; one that is down is a slave when it is started again."""
        slot = self._slots[self.number_of(index)]
        if slot.broker is None:
            slot.config = replace(slot.config, broker_role="SLAVE", broker_id=broker_id)
        else:
            await slot.broker.replication.become_slave(broker_id)

    def _new_broker(self, index: int, config: BrokerConfig) -> Broker:
        network = None if self._network is None else self._network.host(config.bind_address)
        return Broker(config, network=network, clock=self._clock, access=self._access)

    async def stop_broker(self, index: Which = 0) -> None:
        """Closes a broker cleanly."""
        slot = self._slots[self.number_of(index)]
        broker, slot.broker = slot.broker, None
        if broker is not None:
            await self._end(slot, broker.close())

    def move_broker(self, index: Which = 0) -> None:
        """Has a broker that is down come back elsewhere: at another port, in a MemoryNetwork on another host."""
        slot = self._slots[self.number_of(index)]
        if slot.broker is not None:
            raise StateError(f"{slot.config.broker_name} is running: stop it first")
        slot.free_ports()
        slot.config = replace(slot.config, listen_port=0, ha_listen_port=0)
        if self._network is not None:
            ten, zero, net, number = slot.config.bind_address.split(".")
            host = f"{ten}.{zero}.{int(net) + 1}.{number}"
            slot.config = replace(slot.config, bind_address=host, broker_ip1=host, broker_ip2=host)

    async def restart_broker(self, index: Which = 0) -> Broker:
        """Closes a broker cleanly if it runs, and starts it again."""
        await self.stop_broker(index)
        return await self.start_broker(index)

    async def kill_broker(self, index: Which = 0) -> None:
        """Ends a broker as a crash would: connections break, nothing is flushed or unregistered."""
        slot = self._slots[self.number_of(index)]
        broker, slot.broker = slot.broker, None
        if broker is not None:
            await self._end(slot, broker.abandon())

    async def _end(self, slot: _Slot, work: Coroutine[Any, Any, None]) -> None:
        """Ends a broker, and keeps its ports from the moment on at which it listens no more: the rest may take long."""
        if self._network is not None:
            await work
            return
        ending = asyncio.ensure_future(work)
        try:
            while not ending.done():
                slot.hold_ports()
                await asyncio.wait([ending], timeout=_HOLD_SECONDS)
        finally:
            await ending
            slot.hold_ports()


class ThreadCluster:
    """A LocalCluster on a loop in its own thread; its methods block."""

    def __init__(self, **options: Any) -> None:
        self._cluster = LocalCluster(**options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def namesrv(self) -> str:
        return self._cluster.namesrv

    @property
    def broker(self) -> Broker:
        """The first running broker: read its address and port, but await nothing of it here."""
        return self._cluster.broker

    @property
    def brokers(self) -> list[Broker]:
        return self._cluster.brokers

    @property
    def folder(self) -> Path:
        return self._cluster.folder

    def client_options(self, user: str | None = None) -> dict[str, Any]:
        """See LocalCluster."""
        return self._cluster.client_options(user)

    def client_file(self, user: str | None = None) -> Path:
        """See LocalCluster."""
        return self._cluster.client_file(user)

    def start(self) -> None:
        if self._thread is not None:
            raise StateError("the cluster was started before")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gimbalmq-cluster", daemon=True)
        self._thread.start()
        try:
            self._call(self._cluster.start())
        except BaseException:
            self._end_thread()
            raise

    def close(self) -> None:
        if self._thread is not None:
            try:
                self._call(self._cluster.close())
            finally:
                self._end_thread()

    def replica(self, index: int = 0, broker_id: int = 0) -> Broker:
        """See LocalCluster."""
        return self._cluster.replica(index, broker_id)

    def in_step(self, seconds: float = 10.0) -> None:
        """See LocalCluster."""
        self._call(self._cluster.in_step(seconds))

    def start_broker(self, index: Which = 0) -> None:
        self._call(self._cluster.start_broker(index))

    def stop_broker(self, index: Which = 0) -> None:
        self._call(self._cluster.stop_broker(index))

    def restart_broker(self, index: Which = 0) -> None:
        self._call(self._cluster.restart_broker(index))

    def kill_broker(self, index: Which = 0) -> None:
        self._call(self._cluster.kill_broker(index))

    def move_broker(self, index: Which = 0) -> None:
        self._cluster.move_broker(index)

    def promote_broker(self, index: Which, *, wait: bool = False) -> None:
        """See LocalCluster."""
        self._call(self._cluster.promote_broker(index, wait=wait))

    def demote_broker(self, index: Which, broker_id: int) -> None:
        """See LocalCluster."""
        self._call(self._cluster.demote_broker(index, broker_id))

    def find(self, which: Which) -> Broker:
        """A broker that runs: read its address and port, but await nothing of it here."""
        return self._cluster.find(which)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise StateError("the cluster is not running")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end_thread(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None:
            return
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result(5.0)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _texts(properties: Mapping[str, object] | None) -> dict[str, str]:
    """Property values as files have them: True is ``true``."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in (properties or {}).items()
    }


def _refuse(unknown: list[str], configuration: type[Configuration]) -> None:
    """A test that sets a key nobody reads tests nothing."""
    if unknown:
        asked = did_you_mean(unknown[0], options_by_key(configuration))
        raise ConfigError("properties", ", ".join(unknown), f"not an option here{asked}")
