"""Calls of group membership: heartbeats, members, offsets, queue locks."""

from __future__ import annotations

from collections.abc import Iterable

from gimbalmq.errors import QueryNotFoundError, ResponseError
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.bodies import (
    CheckClientConfig,
    ConsumerIdList,
    Heartbeat,
    LockReply,
    LockRequest,
    QueueObject,
    Subscription,
)
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers import groups as headers
from gimbalmq.rpc.call import Caller, ask, tell


class _MaxOffset(headers.QueueOnly):
    committed: bool | None = None


async def heartbeat(caller: Caller, address: str, body: bytes, *, timeout: float = 3.0) -> int:
    """34 HEART_BEAT; the broker's version number. The body is dumped once for all brokers."""
    return (await heartbeat_reply(caller, address, body, None, timeout=timeout))[0]


async def heartbeat_reply(
    caller: Caller,
    address: str,
    body: bytes,
    header: headers.HeartbeatRequest | None,
    *,
    timeout: float = 3.0,
) -> tuple[int, headers.HeartbeatReply]:
    """34 HEART_BEAT with what brokers of this library say to it; the broker's version number first."""
    answer = await caller.call(address, heartbeat_request(body, header), timeout)
    return read_heartbeat(answer, address)


def heartbeat_request(body: bytes, header: headers.HeartbeatRequest | None) -> RemotingCommand:
    return RemotingCommand(RequestCode.HEART_BEAT, None if header is None else header.to_ext(), body)


def read_heartbeat(answer: RemotingCommand, address: str) -> tuple[int, headers.HeartbeatReply]:
    """What a heartbeat was answered; raises ResponseError if it was refused."""
    if answer.code:
        raise ResponseError.for_code(answer.code, answer.remark, address)
    return answer.version, headers.HeartbeatReply.from_ext(answer.ext_fields)


async def heartbeat_data(caller: Caller, address: str, data: Heartbeat, *, timeout: float = 3.0) -> int:
    return await heartbeat(caller, address, data.dump(), timeout=timeout)


async def unregister(
    caller: Caller,
    address: str,
    client_id: str,
    *,
    producer_group: str | None = None,
    consumer_group: str | None = None,
    timeout: float = 3.0,
) -> None:
    """35 UNREGISTER_CLIENT."""
    header = headers.UnregisterClient(
        client_id=client_id, producer_group=producer_group, consumer_group=consumer_group
    )
    await ask(caller, address, RequestCode.UNREGISTER_CLIENT, header, timeout=timeout)


async def check_client_config(
    caller: Caller,
    address: str,
    client_id: str,
    group: str,
    subscription: Subscription,
    *,
    namespace: str | None = None,
    timeout: float = 3.0,
) -> None:
    """46 CHECK_CLIENT_CONFIG: whether the broker can filter so; raises ResponseError if not."""
    body = CheckClientConfig(
        client_id=client_id, group=group, namespace=namespace, subscription_data=subscription
    )
    await ask(caller, address, RequestCode.CHECK_CLIENT_CONFIG, None, body.dump(), timeout=timeout)


async def member_ids(caller: Caller, address: str, group: str, *, timeout: float = 3.0) -> list[str]:
    """38 GET_CONSUMER_LIST_BY_GROUP: client ids as the broker lists them; ResponseError when it has none."""
    answer = await ask(
        caller,
        address,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        headers.GroupOnly(consumer_group=group),
        timeout=timeout,
    )
    return ConsumerIdList.parse(answer.body).consumer_id_list


# --- offsets -------------------------------------------------------------------------------------


async def query_offset(
    caller: Caller,
    address: str,
    group: str,
    queue: MessageQueue,
    *,
    set_zero_if_not_found: bool | None = None,
    timeout: float = 5.0,
) -> int | None:
    """14 QUERY_CONSUMER_OFFSET: the group's place in a queue; None if it has none."""
    header = headers.QueryConsumerOffset(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        set_zero_if_not_found=set_zero_if_not_found,
        bname=queue.broker_name or None,
    )
    try:
        answer = await ask(caller, address, RequestCode.QUERY_CONSUMER_OFFSET, header, timeout=timeout)
    except QueryNotFoundError:
        return None
    return headers.OffsetReply.from_ext(answer.ext_fields).offset


def _update_header(group: str, queue: MessageQueue, queue_offset: int) -> headers.UpdateConsumerOffset:
    return headers.UpdateConsumerOffset(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        commit_offset=queue_offset,
        bname=queue.broker_name or None,
    )


async def update_offset(
    caller: Caller, address: str, group: str, queue: MessageQueue, queue_offset: int, *, timeout: float = 5.0
) -> None:
    """15 UPDATE_CONSUMER_OFFSET, answered."""
    header = _update_header(group, queue, queue_offset)
    await ask(caller, address, RequestCode.UPDATE_CONSUMER_OFFSET, header, timeout=timeout)


async def update_offset_oneway(
    caller: Caller, address: str, group: str, queue: MessageQueue, queue_offset: int
) -> None:
    """15 UPDATE_CONSUMER_OFFSET, one-way: what consumers do every 5 s."""
    await tell(
        caller, address, RequestCode.UPDATE_CONSUMER_OFFSET, _update_header(group, queue, queue_offset)
    )


async def max_offset(
    caller: Caller, address: str, queue: MessageQueue, *, committed: bool | None = None, timeout: float = 3.0
) -> int:
    """30 GET_MAX_OFFSET: one past the newest message."""
    header = _MaxOffset(
        topic=queue.topic,
        queue_id=queue.queue_id,
        committed=committed,
        bname=queue.broker_name or None,
    )
    answer = await ask(caller, address, RequestCode.GET_MAX_OFFSET, header, timeout=timeout)
    return headers.OffsetReply.from_ext(answer.ext_fields).offset


def _queue_header(queue: MessageQueue) -> headers.QueueOnly:
    return headers.QueueOnly(topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name or None)


async def min_offset(caller: Caller, address: str, queue: MessageQueue, *, timeout: float = 3.0) -> int:
    """31 GET_MIN_OFFSET: the oldest message still there."""
    answer = await ask(caller, address, RequestCode.GET_MIN_OFFSET, _queue_header(queue), timeout=timeout)
    return headers.OffsetReply.from_ext(answer.ext_fields).offset


async def search_offset(
    caller: Caller,
    address: str,
    queue: MessageQueue,
    timestamp_ms: int,
    *,
    boundary: str | None = None,
    timeout: float = 3.0,
) -> int:
    """29 SEARCH_OFFSET_BY_TIMESTAMP: the first offset stored at or after a time; boundary lower or upper."""
    header = headers.SearchOffset(
        topic=queue.topic,
        queue_id=queue.queue_id,
        timestamp=timestamp_ms,
        boundary_type=boundary,
        bname=queue.broker_name or None,
    )
    answer = await ask(caller, address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, timeout=timeout)
    return headers.OffsetReply.from_ext(answer.ext_fields).offset


# --- locks ---------------------------------------------------------------------------------------


def _lock_body(group: str, client_id: str, queues: Iterable[MessageQueue]) -> bytes:
    return LockRequest(
        client_id=client_id,
        consumer_group=group,
        mq_set=[
            QueueObject(broker_name=queue.broker_name, queue_id=queue.queue_id, topic=queue.topic)
            for queue in queues
        ],
    ).dump()


async def lock_queues(
    caller: Caller,
    address: str,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    *,
    timeout: float = 1.0,
) -> set[MessageQueue]:
    """41 LOCK_BATCH_MQ: those of the queues that are now ours for 60 s."""
    body = _lock_body(group, client_id, queues)
    return _locked(await ask(caller, address, RequestCode.LOCK_BATCH_MQ, None, body, timeout=timeout))


async def take_over_locks(
    caller: Caller,
    address: str,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    *,
    timeout: float = 1.0,
) -> set[MessageQueue] | None:
    """41 to a broker of this library, for those queues too whose holder is no member any more; others: None."""
    body = _lock_body(group, client_id, queues)
    header = headers.LockQueues(take_over=True)
    answer = await ask(caller, address, RequestCode.LOCK_BATCH_MQ, header, body, timeout=timeout)
    return _locked(answer) if headers.LockQueues.from_ext(answer.ext_fields).take_over else None


def _locked(answer: RemotingCommand) -> set[MessageQueue]:
    return {
        MessageQueue(item.topic, item.broker_name, item.queue_id)
        for item in LockReply.parse(answer.body).lock_ok_mq_set
    }


async def unlock_queues(
    caller: Caller,
    address: str,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    *,
    timeout: float = 1.0,
) -> None:
    """42 UNLOCK_BATCH_MQ, answered."""
    body = _lock_body(group, client_id, queues)
    await ask(caller, address, RequestCode.UNLOCK_BATCH_MQ, None, body, timeout=timeout)


async def unlock_queues_oneway(
    caller: Caller, address: str, group: str, client_id: str, queues: Iterable[MessageQueue]
) -> None:
    """42 UNLOCK_BATCH_MQ, one-way."""
    await tell(caller, address, RequestCode.UNLOCK_BATCH_MQ, None, _lock_body(group, client_id, queues))
