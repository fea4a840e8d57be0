"""Blocking producers, consumers and administration, for programs without an event loop of their own.

Each class has the name, the arguments and the methods of the async one, which does the work: on one event
loop, in one daemon thread that all of them share. The methods are made from the async ones (``bridge``), so
signatures and docstrings cannot drift apart.

    with Producer("shop", "127.0.0.1:9876") as producer:
        producer.send(Message("orders", b"hello"))

Threads may share an object. A blocking call from inside the loop itself (an ``async def`` handler) would
wait for itself; it raises StateError. Handlers that are plain functions run in threads and may call anything.
Ctrl-C ends a waiting call: the work is cancelled, except a ``close``, which goes on in the background.
"""

from gimbalmq.sync.admin import Admin
from gimbalmq.sync.consumer import PullConsumer, PushConsumer, QueuePullConsumer
from gimbalmq.sync.producer import Producer, TransactionProducer, reply, request

__all__ = [
    "Admin",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "QueuePullConsumer",
    "TransactionProducer",
    "reply",
    "request",
]
