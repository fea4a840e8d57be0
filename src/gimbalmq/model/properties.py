"""Names of message properties, and the text they travel in.

``name U+0001 value U+0002`` repeated. Some versions write the last separator and some do
not: both are read, and we write it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NAME_END = "\x01"
PROPERTY_END = "\x02"
ZEROS: Final = "\0" * 512
"""No message may have this in its properties. In a log it is a disk's sector that was never written, and recovery ends
the log before such a record."""

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
UNIQ_KEY = "UNIQ_KEY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
TRAN_MSG = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME = "CONSUME_START_TIME"
TRANSACTION_ID = "__transactionId__"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRAN_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
CLUSTER = "CLUSTER"
INSTANCE_ID = "INSTANCE_ID"
SHARDING_KEY = "__SHARDINGKEY"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
MESSAGE_TYPE = "MSG_TYPE"
TTL = "TTL"
ARRIVE_TIME = "ARRIVE_TIME"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_DELETE_UNIQ_KEY = "TIMER_DEL_UNIQKEY"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"

DELAYS: Final = (DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""The ways in which a sender may ask for a delay."""


def parse(text: str) -> dict[str, str]:
    """Reads the text; items without a name or a value vanish, as they do in Java."""
    found: dict[str, str] = {}
    for item in text.split(PROPERTY_END):
        name, separator, value = item.partition(NAME_END)
        if separator and name and value:
            found[name] = value
    return found


def dump(properties: Mapping[str, str]) -> str:
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])


def find(text: str, name: str) -> str | None:
    """One property straight out of the text, without reading the rest (``record.find_property`` for text)."""
    mark = name + NAME_END
    at = text.rfind(mark)
    while at >= 0:
        if not at or text[at - 1] == PROPERTY_END:
            start = at + len(mark)
            end = text.find(PROPERTY_END, start)
            value = text[start:] if end < 0 else text[start:end]
            if value:
                return value
        at = text.rfind(mark, 0, at)
    return None
