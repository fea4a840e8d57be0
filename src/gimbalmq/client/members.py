"""What a client instance sees of the producers and consumers that share it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.bodies import ConsumerData, TopicRoute
from gimbalmq.protocol.headers import messages as message_headers
from gimbalmq.protocol.status_bodies import ConsumeDirectlyResult, ConsumerRunningInfo


class ProducerMember(Protocol):
    """A producer as the instance sees it."""

    def publish_topics(self) -> Iterable[str]:
        """Topics whose routes it wants kept fresh."""
        ...

    async def check_transaction(
        self, address: str, message: MessageView, header: message_headers.CheckTransactionState
    ) -> None:
        """39: a broker asks what became of a transaction; answer it with 37."""
        ...


class ConsumerMember(Protocol):
    """A consumer as the instance sees it."""

    @property
    def liveness_interval(self) -> float:
        """How often brokers of this library are to hear of us, in seconds; 0 is not at all."""
        ...

    def heartbeat_data(self) -> ConsumerData:
        """Its part of the next heartbeat."""
        ...

    def subscribed_topics(self) -> Iterable[str]:
        """Topics whose routes it wants kept fresh, its retry topic included."""
        ...

    def route_changed(self, topic: str, route: TopicRoute) -> None:
        """A route is new or different (called for every topic of the instance)."""
        ...

    def connection_lost(self, broker_name: str) -> None:
        """The connection to a master broke; it may have been restarted."""
        ...

    def connection_back(self, broker_name: str) -> None:
        """The master knows us again, after its connection broke."""
        ...

    def expelled(self, broker_name: str) -> None:
        """A broker took us for hung, told the group that we are gone, and knows us again now."""
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
