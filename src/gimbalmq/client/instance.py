"""The part that all producers and consumers of one client id share; an admin object has one of its own.

It owns the connections and the members; what is known of routes and brokers is in ``routes``, the heartbeats
are in ``heartbeats``, and the requests brokers make of clients in ``broker_requests``. A consumer registers
an object of the shape ``ConsumerMember``, a producer one of the shape ``ProducerMember``; the instance calls
them back and never looks inside.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq.client.broker_requests import BrokerRequests
from gimbalmq.client.config import ClientConfig
from gimbalmq.client.heartbeats import FIRST_HEARTBEAT, Heartbeats
from gimbalmq.client.identity import client_id as make_client_id
from gimbalmq.client.identity import id_generator
from gimbalmq.client.members import ConsumerMember, ProducerMember
from gimbalmq.client.routes import BrokerAddress, Routes
from gimbalmq.errors import (
    ConnectError,
    RocketMQError,
    StateError,
)
from gimbalmq.model.message import MessageView
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.signing import Signer
from gimbalmq.rpc import groups as group_calls
from gimbalmq.transport.channel import Channel, Handlers
from gimbalmq.transport.pool import ChannelPool
from gimbalmq.transport.tasks import Ending, Tasks

__all__ = ["BrokerAddress", "ClientInstance", "ConsumerMember", "ProducerMember"]

log = logging.getLogger(__name__)

FIRST_ROUTE_POLL = 0.01


_instances: dict[str, ClientInstance] = {}
_M = TypeVar("_M")


class ClientInstance(Routes):
    """One per client id in a process (Java: MQClientInstance).

    It is itself a ``rpc.call.Caller``: pass it to the functions of ``rpc``, and requests are signed.

    Attributes:
        client_id: ``ip@pid#nanoseconds``, or as the instance name says.
        config: of whoever came first.
        tasks: background work that ends with the instance.
        heartbeats: how brokers hear of us.
        replies: futures of request messages by correlation id.
        unique_ids: maker of message ids.
        rng: every random choice of the instance.
        route_listeners: called with (topic, route) on each change of a route, after the consumers.
    """

    def __init__(
        self,
        config: ClientConfig,
        client_id: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> None:
        handlers = Handlers(answer_unknown=False)
        handlers.closed = self._channel_closed
        pool = ChannelPool(
            handlers, network=config.network, tls=config.tls, connect_timeout=config.connect_timeout
        )
        super().__init__(config, pool, rng or random.Random())
        self.client_id = client_id
        self.clock = clock
        self.unique_ids = id_generator(config)
        self.replies: dict[str, asyncio.Future[MessageView]] = {}
        self.tasks = Tasks(f"client {client_id}")
        self.closed = False
        self._signer = (
            Signer(config.access_key, config.secret_key, config.security_token)
            if config.access_key is not None and config.secret_key is not None
            else None
        )
        BrokerRequests(self).register(handlers)
        self._others: set[int] = set()
        self.heartbeats = Heartbeats(self)
        self._started = False
        self._ending = Ending()

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
        self.heartbeats.start()

    def register_producer(self, group: str, member: ProducerMember) -> None:
        """Raises StateError if the group has a producer in this instance already."""
        self._register(self.producers, "producer", group, member)

    def register_consumer(self, group: str, member: ConsumerMember) -> None:
        """Raises StateError if the group has a consumer in this instance already."""
        self._register(self.consumers, "consumer", group, member)

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
        if self.producers.pop(group, None) is not None:
            await self._say_goodbye(producer_group=group)
        await self.close_if_unused()

    async def unregister_consumer(self, group: str) -> None:
        """Takes leave of all brokers; the last member to leave closes the instance."""
        if self.consumers.pop(group, None) is not None:
            await self._say_goodbye(consumer_group=group)
        await self.close_if_unused()

    def hold(self, owner: object) -> None:
        """Keeps the instance open for someone who is neither producer nor consumer."""
        self._others.add(id(owner))

    async def release(self, owner: object) -> None:
        self._others.discard(id(owner))
        await self.close_if_unused()

    async def close_if_unused(self) -> None:
        if not (self.producers or self.consumers or self._others):
            await self.close()

    async def close(self) -> None:
        """Ends everything; members should have left before."""
        self.closed = True  # before anything is waited for: who starts meanwhile gets an instance of its own
        if _instances.get(self.client_id) is self:
            del _instances[self.client_id]
        await self._ending.run(self._end)

    async def _end(self) -> None:
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
            limit = self.config.api_timeout
            deadline = self._loop.time() + limit
            await self.heartbeats.answered(address, limit)
            try:
                await group_calls.unregister(
                    self,
                    address,
                    self.client_id,
                    producer_group=producer_group,
                    consumer_group=consumer_group,
                    timeout=max(0.001, deadline - self._loop.time()),
                )
            except RocketMQError as error:
                log.warning("unregistering at %s failed: %s", address, error)

        addresses = dict.fromkeys(
            address for replicas in self._brokers.values() for address in replicas.values() if address
        )
        addresses.update(dict.fromkeys(self.heartbeats.watching))
        # A broker we have no connection to does not know us, or has noticed that we are gone.
        known = [address for address in addresses if self.pool.existing(address) is not None]
        await asyncio.gather(*(leave(address) for address in known))

    # -- calls ------------------------------------------------------------------------

    def sign(self, command: RemotingCommand) -> None:
        """Where the config has keys."""
        if self._signer is not None:
            self._signer.sign(command)

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

    async def channel(self, address: str, timeout: float, *, greet: bool = True) -> Channel:
        """The connection to an address; raises ConnectError. Requests on it are the caller's to sign.

        Args:
            greet: where it replaces one that broke, a heartbeat goes first: its broker has forgotten us.
        """
        channel = self.pool.existing(address)
        if channel is not None:
            return channel
        try:
            async with asyncio.timeout(timeout):
                channel = await self.pool.channel(address)
        except TimeoutError as error:
            self._not_reached(address)
            raise ConnectError(f"{address} did not accept a connection within {timeout:g} s") from error
        except ConnectError:
            self._not_reached(address)
            raise
        self._reached(address)
        if greet:
            self.heartbeats.connected(address, channel)
        return channel

    @property
    def signer(self) -> Signer | None:
        return self._signer

    # -- heartbeats -------------------------------------------------------------------

    async def _beat(self) -> None:
        self._drop_offline_brokers()
        await self.heartbeat()

    @property
    def broker_versions(self) -> Mapping[str, Mapping[str, int]]:
        """Version number by broker name and address, from heartbeat answers."""
        return self.heartbeats.broker_versions

    async def heartbeat(self) -> bool:
        """One heartbeat to all brokers; see ``Heartbeats.to_all``."""
        return await self.heartbeats.to_all()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None] | None:
        if self._started and not self.closed:
            return self.tasks.spawn(work, name)
        work.close()
        return None

    def _route_taken(self) -> None:
        if self._started and not self.closed:
            self.heartbeats.greet_new_soon()

    def _channel_closed(self, channel: Channel) -> None:
        address = self.pool.address_of(channel)
        if address is not None and self._started and not self.closed:
            self.heartbeats.disconnected(address)
