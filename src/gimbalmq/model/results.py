"""What calls come back with. Outcomes are values; only failures are exceptions."""

from __future__ import annotations

from enum import Enum, IntEnum

import msgspec

from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue


class SendStatus(IntEnum):
    """The message is stored in every case; the value is the response code that says how safely."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Where a message went (Java: SendResult).

    Attributes:
        status: how safely it is stored.
        msg_id: the sender's unique id; of a batch, all of them joined by commas.
        queue: the queue it lies in.
        queue_offset: its place there; of a batch, the first one's.
        offset_msg_id: the broker's id of the stored record (comma separated for a batch).
        transaction_id: set for half messages.
        region_id: the broker's region.
        trace_on: whether the broker wants this message traced.
    """

    status: SendStatus
    msg_id: str
    queue: MessageQueue
    queue_offset: int
    offset_msg_id: str = ""
    transaction_id: str | None = None
    region_id: str = "DefaultRegion"
    trace_on: bool = True


class TransactionState(IntEnum):
    """What became of a local transaction; the value is the wire's (Java: LocalTransactionState)."""

    COMMIT = 8
    ROLLBACK = 12
    UNKNOWN = 0


class TransactionResult(msgspec.Struct, frozen=True):
    """A half message's send and what the local transaction said of it."""

    send: SendResult
    state: TransactionState


class PullStatus(Enum):
    """Java's names."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


class PullResult(msgspec.Struct):
    """One pull's answer (Java: PullResultExt).

    Attributes:
        next_offset: where the next pull starts.
        min_offset, max_offset: the queue's ends at the broker.
        suggested_broker_id: the replica the broker wants asked next.
        messages: empty unless FOUND. Brokers choose by the hash of a tag; consumers look at the tag itself.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int = 0
    messages: list[MessageView] = msgspec.field(default_factory=list)
