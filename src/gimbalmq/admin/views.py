"""What administration shows: plain frozen values, the same for tables, JSON and the dashboard."""

from __future__ import annotations

from dataclasses import dataclass, field

from gimbalmq.errors import ResponseError
from gimbalmq.model.queues import MessageQueue


@dataclass(frozen=True, slots=True)
class BrokerView:
    """One broker process as it describes itself (mqadmin clusterList, brokerStatus).

    Attributes:
        broker_id: 0 for the master.
        put_tps, get_tps: messages a second over the last ten seconds.
        runtime: everything the broker tells, under its own names; empty if it did not answer.
        problem: why it did not answer.
        refused: it answered that the asker may not know.
    """

    cluster: str
    broker: str
    broker_id: int
    address: str
    version: str = ""
    put_tps: float = 0.0
    get_tps: float = 0.0
    disk_used: float = 0.0
    boot_ms: int = 0
    runtime: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    refused: bool = False


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic and how it is spread.

    Attributes:
        kind: normal, retry, dead-letter or system.
        queues: readable queues over all brokers.
    """

    topic: str
    kind: str
    brokers: tuple[str, ...] = ()
    read_queues: int = 0
    write_queues: int = 0
    perm: str = ""
    order: bool = False


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue's ends (mqadmin topicStatus)."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_update_ms: int

    @property
    def count(self) -> int:
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class ClientView:
    """One connected client (mqadmin consumerConnection, producerConnection)."""

    client_id: str
    address: str
    language: str
    version: str


@dataclass(frozen=True, slots=True)
class GroupConnections:
    """Who is in a consumer group, and what they want."""

    group: str
    members: tuple[ClientView, ...]
    consume_type: str = ""
    message_model: str = ""
    consume_from: str = ""
    subscriptions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """A group's place in one queue (mqadmin consumerProgress).

    Attributes:
        owner: client id of the member that holds the queue; "" where nobody does or nobody was asked.
        last_ms: when the last consumed message was stored.
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    last_ms: int
    owner: str = ""

    @property
    def lag(self) -> int:
        return self.broker_offset - self.consumer_offset


@dataclass(frozen=True, slots=True)
class GroupProgress:
    group: str
    queues: tuple[QueueProgress, ...]
    tps: float = 0.0

    @property
    def lag(self) -> int:
        return sum(item.lag for item in self.queues)


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One line of a list of groups.

    Attributes:
        problem: what an operator should know: not read by anybody, members that subscribe unequally.
    """

    group: str
    members: int
    message_model: str
    consume_type: str
    topics: tuple[str, ...]
    lag: int
    tps: float
    problem: str = ""


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """One queue of a reset: where the group stands, and where it would go on."""

    queue: MessageQueue
    before: int | None
    after: int
    lag: int

    @property
    def moved(self) -> int:
        return self.after - (self.before or 0)


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """A group's dead letters, counted."""

    group: str
    topic: str
    count: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class UserView:
    """A user (mqadmin getUser).

    Attributes:
        source_ips: where it may come from; empty means everywhere.
        certificate: of the client that may be it; None means any, or none.
        password: None unless the server told it.
    """

    name: str
    type: str
    status: str
    source_ips: tuple[str, ...] = ()
    certificate: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class AclEntryView:
    """One line of a policy, in the words of the server."""

    policy_type: str
    resource: str
    actions: tuple[str, ...]
    source_ips: tuple[str, ...]
    decision: str


@dataclass(frozen=True, slots=True)
class AclView:
    """A user's policies (mqadmin getAcl)."""

    user: str
    entries: tuple[AclEntryView, ...]


@dataclass(frozen=True, slots=True)
class AccessChange:
    """Where users or policies were changed.

    Attributes:
        servers: addresses of those that did it.
        without: name servers that keep no users.
        problems: what the others said, by address.
    """

    servers: tuple[str, ...]
    without: tuple[str, ...] = ()
    problems: dict[str, str] = field(default_factory=dict)

    def raise_problems(self) -> None:
        """Raises ResponseError if a server did not do it."""
        if self.problems:
            raise ResponseError("; ".join(f"{address}: {said}" for address, said in self.problems.items()))
