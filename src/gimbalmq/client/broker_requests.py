"""Requests that brokers make of clients, taken to the member they mean."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

from gimbalmq._clock import Clock
from gimbalmq.client.members import ConsumerMember, ProducerMember
from gimbalmq.errors import ResponseError
from gimbalmq.model import properties as names
from gimbalmq.model.message import MessageView, decode_views
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers import groups as group_headers
from gimbalmq.protocol.headers import management as management_headers
from gimbalmq.protocol.headers import messages as message_headers
from gimbalmq.protocol.status_bodies import ConsumerStatusBody, QueueOffsets
from gimbalmq.transport.channel import Channel, Handlers
from gimbalmq.transport.pool import ChannelPool
from gimbalmq.transport.tasks import Tasks

log = logging.getLogger(__name__)


class RequestHost(Protocol):
    """The client instance, as these requests need it."""

    @property
    def clock(self) -> Clock: ...
    @property
    def tasks(self) -> Tasks: ...
    @property
    def pool(self) -> ChannelPool: ...
    @property
    def producers(self) -> Mapping[str, ProducerMember]: ...
    @property
    def consumers(self) -> Mapping[str, ConsumerMember]: ...
    @property
    def replies(self) -> dict[str, asyncio.Future[MessageView]]: ...


class BrokerRequests:
    """Java: ClientRemotingProcessor."""

    def __init__(self, host: RequestHost) -> None:
        self._host = host

    def register(self, handlers: Handlers) -> None:
        handlers.add(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._on_members_changed)
        handlers.add(RequestCode.CHECK_TRANSACTION_STATE, self._on_check_transaction)
        handlers.add(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._on_reset_offsets)
        handlers.add(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self._on_consumer_status)
        handlers.add(RequestCode.GET_CONSUMER_RUNNING_INFO, self._on_running_info)
        handlers.add(RequestCode.CONSUME_MESSAGE_DIRECTLY, self._on_consume_directly)
        handlers.add(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._on_reply)

    def _on_members_changed(self, channel: Channel, request: RemotingCommand) -> None:
        group = group_headers.GroupOnly.from_ext(request.ext_fields).consumer_group
        log.info("%s says that the members of group %s changed", channel.address, group)
        for member in list(self._host.consumers.values()):
            member.wake_rebalance()

    def _on_check_transaction(self, channel: Channel, request: RemotingCommand) -> None:
        header = message_headers.CheckTransactionState.from_ext(request.ext_fields)
        views = decode_views(bytes(request.body), broker_name=header.bname or "")
        if not views:
            log.warning("%s asks about a transaction without its message", channel.address)
            return
        message = views[0]
        group = message.all_properties.get(names.PRODUCER_GROUP, "")
        member = self._host.producers.get(group)
        if member is None:
            log.warning("%s asks about a transaction of group %r, which is not here", channel.address, group)
            return
        address = self._host.pool.address_of(channel) or channel.address
        self._host.tasks.spawn(member.check_transaction(address, message, header), "check transaction")

    def _on_reset_offsets(self, channel: Channel, request: RemotingCommand) -> None:
        header = management_headers.ResetOffset.from_ext(request.ext_fields)
        log.info("%s resets group %s on %s", channel.address, header.group, header.topic)
        member = self._host.consumers.get(header.group)
        if member is not None:
            offsets = QueueOffsets.parse(request.body).queues if request.body else {}
            self._host.tasks.spawn(member.reset_offsets(header.topic, offsets), "reset offsets")

    async def _on_consumer_status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = management_headers.ConsumerStatus.from_ext(request.ext_fields)
        member = self._host.consumers.get(header.group)
        offsets = await member.consumer_status(header.topic) if member is not None else {}
        return request.reply(body=ConsumerStatusBody.of_queues(offsets).dump())

    async def _on_running_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = management_headers.RunningInfo.from_ext(request.ext_fields)
        member = self._consumer(header.consumer_group)
        return request.reply(body=(await member.running_info(bool(header.jstack_enable))).dump())

    async def _on_consume_directly(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = management_headers.ConsumeDirectly.from_ext(request.ext_fields)
        member = self._consumer(header.consumer_group)
        views = decode_views(bytes(request.body), broker_name=header.broker_name or "")
        if not views:
            raise ResponseError("the request has no message")
        return request.reply(body=(await member.consume_directly(views[0], header.broker_name)).dump())

    def _consumer(self, group: str) -> ConsumerMember:
        member = self._host.consumers.get(group)
        if member is None:
            raise ResponseError(f"The Consumer Group <{group}> not exist in this consumer")
        return member

    def _on_reply(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = message_headers.ReplyMessage.from_ext(request.ext_fields)
        properties = names.parse(header.properties or "")
        properties[names.ARRIVE_TIME] = str(self._host.clock.wall_ms())
        view = MessageView.build(
            header.topic,
            bytes(request.body),
            queue=MessageQueue(header.topic, "", header.queue_id),
            properties=properties,
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            store_timestamp=header.store_timestamp,
            reconsume_times=header.reconsume_times or 0,
        )
        correlation_id = properties.get(names.CORRELATION_ID)
        waiting = self._host.replies.pop(correlation_id, None) if correlation_id is not None else None
        if waiting is None or waiting.done():
            log.warning("a reply to %s came, which nobody waits for (any more)", correlation_id)
            return request.reply(ResponseCode.SYSTEM_ERROR, "nobody waits for this reply")
        waiting.set_result(view)
        return request.reply()
