"""Headers of sending, pulling, sending back, transactions and queries."""

from __future__ import annotations

from msgspec import field

from gimbalmq.protocol.headers.base import Header


class SendMessage(Header):
    """10 SEND_MESSAGE and 324 SEND_REPLY_MESSAGE (Java: SendMessageRequestHeader)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str = ""
    reconsume_times: int | None = None
    unit_mode: bool | None = None
    max_reconsume_times: int | None = None
    batch: bool | None = None
    bname: str | None = None


class SendMessageV2(Header):
    """310, 320 and 325: the same fields under one-letter names."""

    producer_group: str = field(name="a")
    topic: str = field(name="b")
    default_topic: str = field(name="c")
    default_topic_queue_nums: int = field(name="d")
    queue_id: int = field(name="e")
    sys_flag: int = field(name="f")
    born_timestamp: int = field(name="g")
    flag: int = field(name="h")
    properties: str = field(name="i", default="")
    reconsume_times: int | None = field(name="j", default=None)
    unit_mode: bool | None = field(name="k", default=None)
    max_reconsume_times: int | None = field(name="l", default=None)
    batch: bool | None = field(name="m", default=None)
    bname: str | None = field(name="n", default=None)
    first_id_only: bool | None = field(name="firstMsgIdOnly", default=None)
    """Ours: of a batch the sender reads no message id but the first one's. Apache's brokers name them all."""


class SendMessageReply(Header):
    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None


class PullMessage(Header):
    """11 PULL_MESSAGE and 361 LITE_PULL_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    commit_offset: int = 0
    suspend_timeout_millis: int = 0
    subscription: str | None = None
    sub_version: int = 0
    expression_type: str | None = None
    max_msg_bytes: int | None = None
    bname: str | None = None


class PullMessageReply(Header):
    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int


class SendBack(Header):
    """36 CONSUMER_SEND_MSG_BACK."""

    offset: int
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: int | None = None
    bname: str | None = None


class EndTransaction(Header):
    """37 END_TRANSACTION; commit_or_rollback is 8, 12 or 0."""

    producer_group: str
    tran_state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: int
    msg_id: str | None = None
    from_transaction_check: bool | None = None
    transaction_id: str | None = None
    topic: str | None = None
    bname: str | None = None


class CheckTransactionState(Header):
    """39 CHECK_TRANSACTION_STATE, broker to producer."""

    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None
    bname: str | None = None


class ReplyMessage(Header):
    """326 PUSH_REPLY_MESSAGE_TO_CLIENT."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool | None = None
    born_host: str = ""
    store_host: str = ""
    store_timestamp: int = 0


class ViewMessage(Header):
    """33 VIEW_MESSAGE_BY_ID.

    Attributes:
        raw: ours: any record, also one that is no message of a queue; a slave compares its log by that.
    """

    offset: int
    topic: str | None = None
    raw: bool | None = None


class QueryMessage(Header):
    """12 QUERY_MESSAGE."""

    topic: str
    key: str
    max_num: int
    begin_timestamp: int
    end_timestamp: int
    unique_key_query: bool | None = field(name="_UNIQUE_KEY_QUERY", default=None)


class QueryMessageReply(Header):
    index_last_update_timestamp: int
    index_last_update_phyoffset: int
