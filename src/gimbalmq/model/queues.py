"""One queue of a topic, and the order every member of a group must agree on.

Members of a group compute their shares independently, so they must sort queues and client ids
exactly alike, Java clients included. Java compares strings by UTF-16 code unit. Python compares by
code point, which differs only if a character beyond U+FFFF (two surrogates, D800..DFFF, in Java)
is compared with one in U+E000..U+FFFF. For ASCII the two agree, and that is the fast path here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


def java_string_key(text: str) -> bytes:
    """A sort key that orders strings as ``String.compareTo`` does."""
    return text.encode("utf-16-be", "surrogatepass")


class MessageQueue(NamedTuple):
    """A queue: ``MessageQueue`` in Java too.

    Compares by topic, broker name (both by UTF-16 code unit), then queue id as a number.

    >>> str(MessageQueue("TopicA", "broker-a", 0))
    'MessageQueue [topic=TopicA, brokerName=broker-a, queueId=0]'
    """

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        # Java's toString, to the byte: CONSISTENT_HASH hashes this text.
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, queueId={self.queue_id}]"

    def __lt__(self, other: tuple[Any, ...]) -> bool:
        return _key(self) < _key(other)

    def __le__(self, other: tuple[Any, ...]) -> bool:
        return _key(self) <= _key(other)

    def __gt__(self, other: tuple[Any, ...]) -> bool:
        return _key(self) > _key(other)

    def __ge__(self, other: tuple[Any, ...]) -> bool:
        return _key(self) >= _key(other)


def _key(queue: tuple[Any, ...]) -> tuple[bytes, bytes, int]:
    topic, broker_name, queue_id = queue
    return java_string_key(topic), java_string_key(broker_name), queue_id


def sort_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """The queues in the order all members use. Same as ``sorted``, several times faster."""
    listed = list(queues)
    if all(queue.topic.isascii() and queue.broker_name.isascii() for queue in listed):
        listed.sort(key=tuple)
    else:
        listed.sort(key=_key)
    return listed


def sort_client_ids(client_ids: Iterable[str]) -> list[str]:
    """The ids in the order all members use; duplicates stay.

    >>> sort_client_ids(["10.0.0.2@1", "10.0.0.10@1"])
    ['10.0.0.10@1', '10.0.0.2@1']
    """
    listed = list(client_ids)
    if all(map(str.isascii, listed)):
        listed.sort()
    else:
        listed.sort(key=java_string_key)
    return listed
