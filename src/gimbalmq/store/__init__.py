"""Messages on disk in Apache RocketMQ's layout: commit log, consume queues, key index."""

from gimbalmq.store.append import AppendGroup
from gimbalmq.store.config import StoreConfig, parse_delay_levels
from gimbalmq.store.consumequeue import QueueLog
from gimbalmq.store.cutting import CutReport
from gimbalmq.store.message_store import MessageStore
from gimbalmq.store.results import CleanReport, GetResult, GetStatus, QueryResult, RecoveryReport

__all__ = [
    "AppendGroup",
    "CleanReport",
    "CutReport",
    "GetResult",
    "GetStatus",
    "MessageStore",
    "QueryResult",
    "QueueLog",
    "RecoveryReport",
    "StoreConfig",
    "parse_delay_levels",
]
