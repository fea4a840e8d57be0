"""Attempts one after the other, until a broker has stored the message or the rules say that it is enough."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from gimbalmq.client.config import ProducerConfig
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.sending.attempts import TICK, Attempt, Attempts
from gimbalmq.client.sending.lines import Lines
from gimbalmq.client.sending.prepare import Prepared
from gimbalmq.client.sending.rules import Rules
from gimbalmq.client.sending.targets import Targets
from gimbalmq.errors import (
    RequestTimeoutError,
    ResponseError,
    RocketMQError,
    RouteError,
    SendFailedError,
    TransportError,
)
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import SendResult, SendStatus

log = logging.getLogger(__name__)

_T = TypeVar("_T")

Failures = list[tuple[object, Exception]]
"""Attempts that failed: each one's queue and error."""


class Sending:
    """Sends messages for one producer group of one client instance.

    Attributes:
        targets: the queues of topics.
        attempts: what is on its way.
        lines: what is bound to a queue and could not leave at once.
    """

    def __init__(self, instance: ClientInstance, config: ProducerConfig) -> None:
        self._instance = instance
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.targets = Targets(instance, config)
        self.attempts = Attempts(instance, config, self.targets, self._lost)
        self.lines = Lines()

    def close(self) -> None:
        """Ends what waits; what is in the air ends with its connection."""
        for task in list(self._tasks):
            task.cancel()
        self.targets.close()
        self.attempts.close()

    async def deliver(
        self,
        prepared: Prepared,
        rules: Rules,
        limit: float,
        *,
        started: float,
        chosen: MessageQueue | None = None,
        failures: Failures | None = None,
    ) -> SendResult:
        """Sends until a broker has stored the message.

        Args:
            limit: seconds, from ``started`` on, or for each attempt if the rules say so.
            chosen: the queue of the first attempt; None is any.
            failures: attempts that were made before and count; the failures of this call are added to it.

        Raises:
            TopicRouteNotFoundError, NoWritableQueueError: the topic has no queue to send to.
            RequestTimeoutError: the time is up; the outcome is unknown.
            ResponseError: a broker refused in a way that the rules call final.
            SendFailedError: every attempt failed.
        """
        failed: Failures = [] if failures is None else failures
        targets = self.targets
        unsafe: SendResult | None = None
        for turn in range(len(failed), 1 + rules.times):
            if turn:
                if rules.first_pause:
                    await asyncio.sleep(rules.pause_before(turn))
                if rules.look_again:
                    await self._look_again(prepared.topic)
                chosen = targets.another(prepared.topic, chosen, rules.place)
            elif chosen is None:
                publish = targets.known.get(prepared.topic) or await targets.find(prepared.topic, limit)
                chosen = targets.next(publish, None)
            if rules.limit_each:
                remaining = limit
            else:
                elapsed = self._loop.time() - started
                # The common case keeps the round number: calls of equal timeouts share one deadline queue.
                remaining = limit - elapsed if elapsed > TICK else limit
                if remaining < TICK:
                    break
            try:
                result = await self.attempts.attempt(prepared, chosen, remaining)
            except (TransportError, RouteError) as error:
                failed.append((chosen, error))
            except ResponseError as error:
                if error.code not in rules.codes:
                    raise
                failed.append((chosen, error))
            else:
                if result.status is SendStatus.SEND_OK or not rules.not_safe:
                    return result
                failed.append((chosen, ResponseError(f"stored as {result.status.name}", code=result.status)))
                unsafe = result
        if unsafe is not None:
            return unsafe
        if rules.plain and len(failed) == 1:
            raise failed[0][1]
        failure = SendFailedError(prepared.topic, failed)
        if not rules.limit_each and self._loop.time() - started >= limit - TICK:
            raise RequestTimeoutError(f"the time of {limit:g} s is up: {failure}") from failure
        raise failure

    async def deliver_again(
        self,
        prepared: Prepared,
        rules: Rules,
        limit: float,
        *,
        started: float,
        chosen: MessageQueue,
        error: RocketMQError,
    ) -> SendResult:
        """``deliver`` after a first attempt that failed.

        Raises:
            ResponseError: the error itself, if the rules call it final; all else as ``deliver``.
        """
        if isinstance(error, ResponseError) and error.code not in rules.codes:
            raise error
        return await self.deliver(
            prepared, rules, limit, started=started, chosen=chosen, failures=[(chosen, error)]
        )

    async def _look_again(self, topic: str) -> None:
        try:
            await self._instance.refresh_route(topic)
        except RocketMQError as error:
            log.info("the route of %s could not be asked for: %s", topic, error)

    # -- sends that nobody awaits ---------------------------------------------------------

    def own(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """A task that ends with this object; its error is its awaiter's affair."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _lost(self, attempt: Attempt, error: RocketMQError) -> None:
        """An attempt that was started with rules got no answer."""
        self.own(self._send_again(attempt, error))

    async def _send_again(self, attempt: Attempt, error: RocketMQError) -> None:
        future, rules = attempt.future, attempt.rules
        assert rules is not None
        try:
            result = await self.deliver_again(
                attempt.prepared,
                rules,
                attempt.limit,
                started=attempt.started,
                chosen=attempt.chosen,
                error=error,
            )
        except RocketMQError as failure:
            if not future.done():
                future.set_exception(failure)
        except asyncio.CancelledError:
            if not future.done():
                future.set_exception(error)
            raise
        else:
            if not future.done():
                future.set_result(result)
