"""Producers for blocking callers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from collections import deque
from collections.abc import Coroutine, Iterable
from typing import Any, Literal, TypeVar, overload

from gimbalmq.client import producer as producers
from gimbalmq.client import request_reply
from gimbalmq.client import transaction as transactions
from gimbalmq.client.config import ProducerConfig
from gimbalmq.client.sending.batch import raise_first
from gimbalmq.client.sending.prepare import items_of
from gimbalmq.client.sending.targets import CALLER
from gimbalmq.errors import StateError
from gimbalmq.model.message import Message, MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import SendResult
from gimbalmq.sync.bridge import blocking
from gimbalmq.sync.client import BlockingClient
from gimbalmq.sync.loop import LoopThread

T = TypeVar("T")


class Producer(BlockingClient[producers.Producer]):
    """Sends messages: ``gimbalmq.Producer``, blocking.

    Args:
        group: the producer group's name.
        namesrv: name servers, ``host:port;host:port``.
        config: a whole configuration instead of the two and the options.
        options: any field of ``ProducerConfig``.
    """

    _kind = "producer"

    def __init__(
        self,
        group: str = "",
        namesrv: str | list[str] | tuple[str, ...] = "",
        *,
        config: ProducerConfig | None = None,
        **options: Any,
    ) -> None:
        self._wrap(producers.Producer(group, namesrv, config=config, **options))

    def _wrap(self, wrapped: producers.Producer) -> None:
        super().__init__(wrapped)
        self._slots = threading.BoundedSemaphore(wrapped.config.max_in_flight)
        self._submitted: deque[tuple[int, Message, dict[str, Any], concurrent.futures.Future[SendResult]]] = (
            deque()
        )
        self._armed = False

    @property
    def config(self) -> ProducerConfig:
        return self._async.config

    def _running(self) -> LoopThread:
        # What this thread asks for takes its context along to the loop: each thread has its own rotation.
        CALLER.set(threading.get_ident())
        return super()._running()

    send = blocking(producers.Producer.send)
    send_oneway = blocking(producers.Producer.send_oneway)
    send_batch = blocking(producers.Producer.send_batch)
    publish_queues = blocking(producers.Producer.publish_queues)

    @overload
    def send_many(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        return_exceptions: Literal[False] = False,
    ) -> list[SendResult]: ...

    @overload
    def send_many(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        return_exceptions: Literal[True],
    ) -> list[SendResult | Exception]: ...

    def send_many(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        return_exceptions: bool = False,
    ) -> list[SendResult] | list[SendResult | Exception]:
        """As ``gimbalmq.Producer.send_many``; an iterable is read to its end before the first message leaves."""
        given = list(items_of(messages))  # here: what makes them may block, which the loop must not
        thread = self._running()
        outcomes = thread.run(self._async.send_many(given, queue=queue, return_exceptions=True))
        if not return_exceptions:
            raise_first(outcomes)
        return outcomes

    def send_soon(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: producers.Selector | None = None,
        argument: Any = None,
        timeout: float | None = None,
    ) -> concurrent.futures.Future[SendResult]:
        """Sends one message without waiting; the future has its result, or any error.

        The quickest way to send many. It waits only while ``max_in_flight`` messages are without answer. Callbacks of
        the future run on the shared loop, where nothing can be waited for. The message is read on the loop, a moment
        later: a program that changes it must make another one for the next send.

        Raises:
            StateError: it was called on the loop, and ``max_in_flight`` messages are without answer.
        """
        thread = self._running()
        future: concurrent.futures.Future[SendResult] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()  # what is on its way cannot be cancelled
        if not self._slots.acquire(blocking=not thread.is_current):
            raise StateError(
                f"{self.config.max_in_flight} messages are without answer, and the event loop cannot wait for them: "
                "send from another thread than the callback of a future, or set max_in_flight higher"
            )
        how = {"queue": queue, "selector": selector, "argument": argument, "timeout": timeout}
        self._submitted.append((threading.get_ident(), message, how, future))
        if not self._armed:
            self._armed = True
            thread.loop.call_soon_threadsafe(self._send_submitted)
        return future

    def _send_submitted(self) -> None:
        """On the loop: starts all sends that have come, so that a burst wakes the loop once."""
        self._armed = False  # first: what comes from here on arms anew
        while self._submitted:
            thread_id, message, how, future = self._submitted.popleft()
            CALLER.set(thread_id)  # in the context of this callback, which ends with it
            try:
                sent = self._async.send_soon(message, **how)
            except Exception as error:
                self._slots.release()
                future.set_exception(error)
            else:
                sent.add_done_callback(functools.partial(self._answered, future))

    def _answered(
        self, future: concurrent.futures.Future[SendResult], sent: asyncio.Future[SendResult]
    ) -> None:
        self._slots.release()
        if sent.cancelled():
            future.set_exception(StateError(f"producer {self.group} was closed before the answer came"))
        elif (error := sent.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(sent.result())


class TransactionProducer(Producer):
    """Sends messages that take effect only if a local transaction does; see the async class.

    Args:
        check: what became of the transaction of this message? Runs in a thread, as the local one does.
        check_concurrency: how many such questions are worked on at a time.
    """

    _async: transactions.TransactionProducer

    def __init__(
        self,
        group: str = "",
        namesrv: str | list[str] | tuple[str, ...] = "",
        *,
        check: transactions.Check,
        check_concurrency: int = 1,
        config: ProducerConfig | None = None,
        **options: Any,
    ) -> None:
        self._wrap(
            transactions.TransactionProducer(
                group,
                namesrv,
                check=check,
                check_concurrency=check_concurrency,
                config=config,
                **options,
            )
        )

    send_in_transaction = blocking(transactions.TransactionProducer.send_in_transaction)


def request(
    producer: Producer,
    message: Message,
    *,
    timeout: float = 3.0,
    queue: MessageQueue | None = None,
    selector: producers.Selector | None = None,
    argument: Any = None,
) -> MessageView:
    """Sends a message and waits for the reply to it.

    Raises:
        RequestTimeoutError: nobody replied in time.
    """
    work = request_reply.request(
        producer._async, message, timeout=timeout, queue=queue, selector=selector, argument=argument
    )
    return _run_for(producer, work)


def reply(producer: Producer, request_message: MessageView, body: bytes | str) -> SendResult:
    """Replies to a request that was received."""
    return _run_for(producer, request_reply.reply(producer._async, request_message, body))


def _run_for(item: BlockingClient[Any], work: Coroutine[Any, Any, T]) -> T:
    try:
        thread = item._running()
    except StateError:
        work.close()
        raise
    return thread.run(work)
