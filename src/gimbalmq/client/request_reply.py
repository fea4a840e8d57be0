"""Request and reply over topics: a message that waits for an answer to itself.

The request carries a correlation id and the asker's client id. Whoever consumes it sends a reply
message through any broker the asker is connected to; that broker pushes it on (request 326).
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from gimbalmq.client.producer import Producer, Selector
from gimbalmq.client.sending.prepare import refusal
from gimbalmq.errors import MessageIllegalError, RequestTimeoutError
from gimbalmq.model import properties as names
from gimbalmq.model.message import Message, MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import SendResult

_BUSY_SECONDS = 0.02

REPLY_TOPIC_SUFFIX = "REPLY_TOPIC"


async def request(
    producer: Producer,
    message: Message,
    *,
    timeout: float = 3.0,
    queue: MessageQueue | None = None,
    selector: Selector | None = None,
    argument: Any = None,
) -> MessageView:
    """Sends a message and waits for the reply to it (Java: DefaultMQProducer.request).

    Raises:
        RequestTimeoutError: nobody replied in time.
    """
    instance = producer.instance
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    correlation_id = str(uuid.uuid4())
    try:
        known = message.system_properties
    except AttributeError as error:
        raise refusal(message, error) from None
    known[names.CORRELATION_ID] = correlation_id
    known[names.REPLY_TO_CLIENT] = instance.client_id
    known[names.TTL] = str(round(timeout * 1000))
    waiting: asyncio.Future[MessageView] = loop.create_future()
    instance.replies[correlation_id] = waiting
    try:
        async with asyncio.timeout_at(deadline):
            await _introduce(producer, message.topic)
        await producer.send(message, queue=queue, selector=selector, argument=argument, timeout=timeout)
        async with asyncio.timeout_at(deadline):
            return await waiting
    except TimeoutError as error:
        if isinstance(error, RequestTimeoutError):
            raise
        raise RequestTimeoutError(
            f"the request {correlation_id} to {message.topic} had no reply within {timeout:g} s"
        ) from error
    finally:
        instance.replies.pop(correlation_id, None)


async def _introduce(producer: Producer, topic: str) -> None:
    """The reply comes down the connection of a heartbeat, so every broker of the topic must have had one."""
    instance = producer.instance
    brokers = {queue.broker_name for queue in await producer.publish_queues(topic)}
    while not brokers <= instance.broker_versions.keys():
        if await instance.heartbeat():
            # A broker that has not answered even now is not waited for: the message may go to another.
            return
        await asyncio.sleep(_BUSY_SECONDS)


def reply_message(request_message: MessageView, body: bytes | str) -> Message:
    """The reply to a request that was received (Java: MessageUtil.createReplyMessage).

    Raises:
        MessageIllegalError: the message is no request.
    """
    cluster = request_message.get(names.CLUSTER)
    correlation_id = request_message.get(names.CORRELATION_ID)
    reply_to = request_message.get(names.REPLY_TO_CLIENT)
    if cluster is None or correlation_id is None or reply_to is None:
        raise MessageIllegalError(
            f"message {request_message.msg_id} is no request: it has no cluster, correlation id or asker"
        )
    message = Message(f"{cluster}_{REPLY_TOPIC_SUFFIX}", body)
    known = message.system_properties
    known[names.MESSAGE_TYPE] = "reply"
    known[names.CORRELATION_ID] = correlation_id
    known[names.REPLY_TO_CLIENT] = reply_to
    ttl = request_message.get(names.TTL)
    if ttl is not None:
        known[names.TTL] = ttl
    return message


async def reply(producer: Producer, request_message: MessageView, body: bytes | str) -> SendResult:
    """Replies to a request that was received."""
    return await producer.send(reply_message(request_message, body))
