"""Transactions: a half message, the local transaction, and its outcome told to the broker.

The half message is stored where no consumer sees it. The outcome decides whether it is delivered or
dropped; if the outcome never arrives the broker asks (request 39) and ``check`` answers. So the
outcome itself may be sent one-way: a lost one only costs the time until the question.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from gimbalmq.client.config import ProducerConfig, check_value
from gimbalmq.client.producer import Producer
from gimbalmq.client.sending.prepare import refusal
from gimbalmq.errors import RocketMQError
from gimbalmq.model import properties as names
from gimbalmq.model.ids import parse_offset_id
from gimbalmq.model.message import Message, MessageView
from gimbalmq.model.results import SendResult, SendStatus, TransactionResult, TransactionState
from gimbalmq.protocol.headers import messages as headers
from gimbalmq.rpc import messages as calls
from gimbalmq.transport.tasks import ends_task

log = logging.getLogger(__name__)

Outcome = TransactionState | None
Local = Callable[[Message], Outcome | Awaitable[Outcome]]
Check = Callable[[MessageView], Outcome | Awaitable[Outcome]]


class TransactionProducer(Producer):
    """Sends messages that take effect only if a local transaction does (Java: TransactionMQProducer).

    Args:
        check: what became of the transaction of this message? Asked by brokers that did not hear.
            ``async def``, or a plain function, which runs in a thread.
        check_concurrency: how many such questions are worked on at a time.
    """

    def __init__(
        self,
        group: str = "",
        namesrv: str | list[str] | tuple[str, ...] = "",
        *,
        check: Check,
        check_concurrency: int = 1,
        config: ProducerConfig | None = None,
        **options: Any,
    ) -> None:
        super().__init__(group, namesrv, config=config, **options)
        check_value("check_concurrency", check_concurrency, int, (1, 65_535))
        self._check = check
        self._checking = asyncio.Semaphore(check_concurrency)

    async def send_in_transaction(
        self, message: Message, local: Local, *, timeout: float | None = None
    ) -> TransactionResult:
        """Sends a half message, runs the local transaction, tells the broker its outcome.

        Args:
            local: the transaction; gets the message, returns its state. None, and an exception
                (which is logged and told to the broker), count as UNKNOWN: the broker will ask.

        Raises:
            RocketMQError: the half message could not be sent; ``local`` was not run.
        """
        try:
            known = message.system_properties
        except AttributeError as error:
            raise refusal(message, error) from None
        message.delay_level = 0
        known[names.TRAN_MSG] = "true"
        known[names.PRODUCER_GROUP] = self.group
        result = await self.send(message, timeout=timeout)
        state, remark = TransactionState.ROLLBACK, None
        if result.status is SendStatus.SEND_OK:
            if result.transaction_id:
                known[names.TRANSACTION_ID] = result.transaction_id
            state, remark = await _run(local, message, "executeLocalTransactionBranch")
        try:
            await self._end(result, state, remark)
        except RocketMQError as error:
            log.warning(
                "transaction %s is %s, but the broker was not told: %s", result.msg_id, state.name, error
            )
        return TransactionResult(result, state)

    async def _end(self, result: SendResult, state: TransactionState, remark: str | None) -> None:
        instance = self.instance
        place = parse_offset_id(result.offset_msg_id or result.msg_id)
        found = await instance.locate_broker(result.queue.topic, result.queue.broker_name, only_this=True)
        header = headers.EndTransaction(
            producer_group=self.group,
            tran_state_table_offset=result.queue_offset,
            commit_log_offset=place.commitlog_offset,
            commit_or_rollback=int(state),
            from_transaction_check=False,
            msg_id=result.msg_id,
            transaction_id=result.transaction_id,
            topic=result.queue.topic,
            bname=result.queue.broker_name,
        )
        await calls.end_transaction(instance, found.address, header, remark=remark)

    async def check_transaction(
        self, address: str, message: MessageView, header: headers.CheckTransactionState
    ) -> None:
        async with self._checking:
            state, remark = await _run(self._check, message, "checkLocalTransactionState")
        answer = headers.EndTransaction(
            producer_group=self.group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=int(state),
            from_transaction_check=True,
            msg_id=message.get(names.UNIQ_KEY) or header.msg_id or message.msg_id,
            transaction_id=header.transaction_id,
            # Apache's brokers name their own topic of half messages in the question. To that nobody may publish, and
            # Java's client answers with the message's, too.
            topic=message.topic,
            bname=header.bname,
        )
        try:
            await calls.end_transaction(self.instance, address, answer, remark=remark)
        except RocketMQError as error:
            log.warning("the check of transaction %s was not answered: %s", message.msg_id, error)


async def _run(
    function: Callable[[Any], Outcome | Awaitable[Outcome]], message: Message | MessageView, what: str
) -> tuple[TransactionState, str | None]:
    """The state a transaction function gives, and what to tell the broker if it fails."""
    try:
        if inspect.iscoroutinefunction(function):
            state = await function(message)
        else:
            outcome = await asyncio.to_thread(_caught, function, message)
            state = await outcome if isinstance(outcome, Awaitable) else outcome
        return (TransactionState.UNKNOWN if state is None else TransactionState(state)), None
    except BaseException as error:  # the application's own code: its failure is an outcome here
        if ends_task(error):
            raise
        log.exception("%s of %s failed; the broker will ask", what, message.msg_id)
        return TransactionState.UNKNOWN, f"{what} exception: {type(error).__name__}: {error}"


def _caught(function: Callable[[Any], Any], message: Message | MessageView) -> Any:
    """Calls a plain function in a thread; an exit is a failure of this function, not of the loop that waits for it."""
    try:
        return function(message)
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
