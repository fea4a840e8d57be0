"""Calls that carry messages: send, pull, send back, end a transaction, look up."""

from __future__ import annotations

from gimbalmq.errors import QueryNotFoundError, ResponseError
from gimbalmq.model.message import MessageView, decode_views
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import PullResult, PullStatus
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers import messages as headers
from gimbalmq.rpc.call import Caller, ask

STORED = (0, 10, 11, 12)
"""Codes of a send's answer that all mean "the message is stored"."""

PULL_COMMIT_OFFSET = 1
PULL_SUSPEND = 2
PULL_SUBSCRIPTION = 4
PULL_LITE = 16

_PULL_STATUS = {
    0: PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MSG,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCHED_MSG,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_ILLEGAL,
}
PULL_ANSWERS = tuple(_PULL_STATUS)


async def send(
    caller: Caller,
    address: str,
    header: headers.SendMessageV2,
    body: bytes,
    *,
    timeout: float = 3.0,
) -> RemotingCommand:
    """310 SEND_MESSAGE_V2, or 320 if the header says batch; any answer that means "stored".

    (Clients that send take the short way of client/sending/frames.)
    """
    code = RequestCode.SEND_BATCH_MESSAGE if header.batch else RequestCode.SEND_MESSAGE_V2
    return await ask(caller, address, code, header, body, timeout=timeout, accept=STORED)


async def pull(
    caller: Caller,
    address: str,
    header: headers.PullMessage,
    queue: MessageQueue,
    *,
    timeout: float = 30.0,
) -> PullResult:
    """11 PULL_MESSAGE, or 361 if the header has the lite bit.

    Raises:
        ResponseError: any code but found, not found, retry at once and offset moved.
    """
    code = RequestCode.LITE_PULL_MESSAGE if header.sys_flag & PULL_LITE else RequestCode.PULL_MESSAGE
    answer = await ask(caller, address, code, header, timeout=timeout, accept=PULL_ANSWERS)
    result = pull_result(answer, queue)
    at_end = result.max_offset <= header.queue_offset == result.next_offset
    if result.status is PullStatus.NO_MATCHED_MSG and at_end:
        # Slaves say "once more" behind the end of what they have; there is nothing that could match.
        result.status = PullStatus.NO_NEW_MSG
    return result


def pull_result(answer: RemotingCommand, queue: MessageQueue) -> PullResult:
    """A pull's answer, decoded; its code must be one of ``PULL_ANSWERS``."""
    reply = headers.PullMessageReply.from_ext(answer.ext_fields)
    found = answer.code == ResponseCode.SUCCESS
    return PullResult(
        _PULL_STATUS[answer.code],
        reply.next_begin_offset,
        reply.min_offset,
        reply.max_offset,
        reply.suggest_which_broker_id,
        decode_views(bytes(answer.body), queue) if found else [],
    )


async def send_back(caller: Caller, address: str, header: headers.SendBack, *, timeout: float = 5.0) -> None:
    """36 CONSUMER_SEND_MSG_BACK: the broker stores the message again for a later try."""
    await ask(caller, address, RequestCode.CONSUMER_SEND_MSG_BACK, header, timeout=timeout)


async def end_transaction(
    caller: Caller, address: str, header: headers.EndTransaction, *, remark: str | None = None
) -> None:
    """37 END_TRANSACTION, one-way as Java sends it."""
    await caller.oneway(address, RemotingCommand(RequestCode.END_TRANSACTION, header.to_ext(), remark=remark))


async def view_message(
    caller: Caller,
    address: str,
    commitlog_offset: int,
    *,
    topic: str | None = None,
    broker_name: str = "",
    timeout: float = 3.0,
) -> MessageView:
    """33 VIEW_MESSAGE_BY_ID: the record at a commit-log offset."""
    answer = await ask(
        caller,
        address,
        RequestCode.VIEW_MESSAGE_BY_ID,
        headers.ViewMessage(offset=commitlog_offset, topic=topic),
        timeout=timeout,
    )
    views = decode_views(bytes(answer.body), broker_name=broker_name)
    if not views:
        raise ResponseError(f"no message lies at {commitlog_offset}", address=address)
    return views[0]


async def query_message(
    caller: Caller,
    address: str,
    topic: str,
    key: str,
    *,
    max_count: int = 32,
    begin_ms: int = 0,
    end_ms: int = 0x7FFFFFFFFFFFFFFF,
    unique: bool = False,
    broker_name: str = "",
    timeout: float = 9.0,
) -> list[MessageView]:
    """12 QUERY_MESSAGE: messages by key, or by unique id; hashes that clash are sorted out here."""
    try:
        answer = await ask(
            caller,
            address,
            RequestCode.QUERY_MESSAGE,
            headers.QueryMessage(
                topic=topic,
                key=key,
                max_num=max_count,
                begin_timestamp=begin_ms,
                end_timestamp=end_ms,
                unique_key_query=unique,
            ),
            timeout=timeout,
        )
    except QueryNotFoundError:
        return []
    views = decode_views(bytes(answer.body), broker_name=broker_name)
    if unique:
        return [view for view in views if view.msg_id == key]
    return [view for view in views if key in view.keys]
