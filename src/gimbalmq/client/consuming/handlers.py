"""Handlers: what they are called with, what they may say, and what that means for a batch.

``Outcome`` is the one place in which a handler's word becomes "these are done, these come again".
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any

from gimbalmq.client.consuming.held_queue import Work
from gimbalmq.errors import ConfigError
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.topics import RETRY_PREFIX
from gimbalmq.transport.tasks import ends_task

log = logging.getLogger(__name__)


class ConsumeResult(Enum):
    """What a handler may return. None and True mean SUCCESS, False and an exception mean LATER."""

    SUCCESS = "success"
    LATER = "later"
    SUSPEND = "later"  # noqa: PIE796 - the same verdict, in the words of ordered handlers
    """Ordered handlers: the queue waits a moment and the same messages come again."""
    COMMIT = "commit"
    """Ordered handlers without auto commit: everything up to here is done."""
    ROLLBACK = "rollback"
    """Ordered handlers without auto commit: everything since the last commit comes again."""


class ConsumeContext:
    """What a handler with a second parameter gets (Java: ConsumeConcurrentlyContext, ConsumeOrderlyContext).

    A value that cannot be used is refused where the handler sets it, with a ConfigError.

    Attributes:
        queue: where the messages come from.
    """

    __slots__ = ("_ack_index", "_auto_commit", "_delay_level", "_suspend", "queue")

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self._delay_level = 0
        self._ack_index: int | None = None
        self._auto_commit = True
        self._suspend: float | None = None

    @property
    def delay_level(self) -> int:
        """When failed messages come again: 0 the broker's choice, -1 never (dead letters), a level."""
        return self._delay_level

    @delay_level.setter
    def delay_level(self, level: int) -> None:
        if not isinstance(level, int) or level < -1:
            raise ConfigError("delay_level", level, "a number: 0, -1 for the dead letters, or a delay level")
        self._delay_level = level

    @property
    def ack_index(self) -> int | None:
        """Of a batch that succeeded, the last message that did; those after it come again. -1: none did."""
        return self._ack_index

    @ack_index.setter
    def ack_index(self, index: int | None) -> None:
        if index is not None and (not isinstance(index, int) or index < -1):
            raise ConfigError("ack_index", index, "a number: the last message that succeeded, -1 for none")
        self._ack_index = index

    @property
    def auto_commit(self) -> bool:
        """Ordered handlers: success commits."""
        return self._auto_commit

    @auto_commit.setter
    def auto_commit(self, commit: bool) -> None:
        if not isinstance(commit, bool):
            raise ConfigError("auto_commit", commit, "True or False")
        self._auto_commit = commit

    @property
    def suspend(self) -> float | None:
        """Ordered handlers: seconds to wait before another try; None is the consumer's setting."""
        return self._suspend

    @suspend.setter
    def suspend(self, seconds: float | None) -> None:
        if seconds is not None and not (isinstance(seconds, int | float) and seconds >= 0):
            raise ConfigError("suspend", seconds, "seconds, 0 or more")
        self._suspend = seconds


Handler = Callable[..., Any]


class Listener:
    """A user's function and how to call it.

    Whatever comes out of the function is an outcome of its messages. Only what is meant for the task that runs it
    passes through: its cancellation, and Ctrl-C.

    Args:
        function: ``f(message)``, or ``f(messages)`` for a batch; a second parameter gets the context.
        batch: whether it takes a list; if not, it is run with one message at a time.
        ordered: whether it wants each queue's messages one after the other.

    Raises:
        ConfigError: the function is a generator.
    """

    __slots__ = ("batch", "function", "is_async", "ordered", "wants_context")

    def __init__(self, function: Handler, *, batch: bool, ordered: bool = False) -> None:
        shapes = (function, getattr(function, "__call__", None))  # noqa: B004 - the call of an object, not "callable?"
        if any(inspect.isgeneratorfunction(shape) or inspect.isasyncgenfunction(shape) for shape in shapes):
            raise ConfigError(
                "handler", function, "it has a yield, so a call would run nothing of it; use return instead"
            )
        self.function = function
        self.batch = batch
        self.ordered = ordered
        self.is_async = any(inspect.iscoroutinefunction(shape) for shape in shapes)
        self.wants_context = _positional_parameters(function) >= 2

    def run(self, messages: list[MessageView], context: ConsumeContext) -> Outcome:
        """Calls a plain function, in a thread of the pool.

        If it returns an awaitable, the outcome is not known yet: ``finish`` awaits it, on the loop.
        """
        try:
            result = self._call(messages, context)
            if result is not None and inspect.isawaitable(result):
                return Unfinished(result)
            return self._judge(result, messages, context)
        except BaseException:
            return _failed(messages, context)

    async def run_async(self, messages: list[MessageView], context: ConsumeContext) -> Outcome:
        """Awaits an ``async def`` function."""
        try:
            result = await self._call(messages, context)
            while result is not None and inspect.isawaitable(result):
                result = await result
            return self._judge(result, messages, context)
        except BaseException as error:
            if ends_task(error):
                raise
            return _failed(messages, context)

    async def finish(
        self, unfinished: Unfinished, messages: list[MessageView], context: ConsumeContext
    ) -> Outcome:
        """Awaits what a plain function has returned."""
        try:
            result: Any = unfinished.awaitable
            while result is not None and inspect.isawaitable(result):
                result = await result
            return self._judge(result, messages, context)
        except BaseException as error:
            if ends_task(error):
                raise
            return _failed(messages, context)

    def _call(self, messages: list[MessageView], context: ConsumeContext) -> Any:
        given = messages if self.batch else messages[0]
        return self.function(given, context) if self.wants_context else self.function(given)

    def _judge(self, result: Any, messages: list[MessageView], context: ConsumeContext) -> Outcome:
        if result is None and not self.wants_context:
            return _ALL_WELL
        if inspect.isgenerator(result) or inspect.isasyncgen(result):
            raise TypeError(f"the handler returned a generator, of which nothing has run: {result!r}")
        if result is ConsumeResult.ROLLBACK and not self.ordered:
            log.error(
                "a handler of %s returned ROLLBACK, which only ordered handlers have; taken as LATER",
                context.queue,
            )
            result = ConsumeResult.LATER
        return Outcome.of(result, messages, context)


def _positional_parameters(function: Handler) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in kinds and parameter.default is parameter.empty for parameter in parameters)


class Outcome:
    """What became of one batch.

    Attributes:
        failed: the messages that failed.
        result: the handler's last word.
        error: the traceback of the exception it raised.
    """

    __slots__ = ("error", "failed", "result")

    def __init__(
        self,
        result: ConsumeResult = ConsumeResult.SUCCESS,
        failed: Sequence[MessageView] = (),
        error: str | None = None,
    ) -> None:
        self.result = result
        self.failed = list(failed)
        self.error = error

    @classmethod
    def of(cls, result: Any, messages: Sequence[MessageView], context: ConsumeContext) -> Outcome:
        """What a handler has said by its result, and by the context."""
        verdict = _RESULTS.get(result) if isinstance(result, ConsumeResult | bool | None) else None
        if verdict is None:
            log.error(
                "a handler of %s returned %r, taken as success; return None, True, False or a ConsumeResult",
                context.queue,
                result,
            )
            verdict = ConsumeResult.SUCCESS
        if verdict is ConsumeResult.LATER:
            return cls(verdict, messages)
        done = len(messages) if context.ack_index is None else context.ack_index + 1
        if done == 0 and verdict is not ConsumeResult.ROLLBACK:
            verdict = ConsumeResult.LATER
        return cls(verdict, messages[done:])


class Unfinished(Outcome):
    """A plain function has returned an awaitable: its messages are neither done nor failed yet."""

    __slots__ = ("awaitable",)

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        super().__init__()
        self.awaitable = awaitable

    def give_up(self) -> None:
        """Nobody will await it: a coroutine that never ran says nothing of that."""
        if inspect.iscoroutine(self.awaitable):
            self.awaitable.close()
        elif isinstance(self.awaitable, asyncio.Future):
            self.awaitable.cancel()


def _failed(messages: Sequence[MessageView], context: ConsumeContext) -> Outcome:
    """The exception that is being handled came out of the handler."""
    error = traceback.format_exc()
    log.warning(
        "the handler of %s raised; %d message(s) from offset %d failed:\n%s",
        context.queue,
        len(messages),
        messages[0].queue_offset,
        error,
    )
    return Outcome(ConsumeResult.LATER, messages, error)


_ALL_WELL = Outcome()
"""Nothing failed and nothing was said: the outcome of nearly every batch, never changed."""

_RESULTS: dict[object, ConsumeResult] = {
    None: ConsumeResult.SUCCESS,
    True: ConsumeResult.SUCCESS,
    False: ConsumeResult.LATER,
    **{result: result for result in ConsumeResult},
}


class Listeners:
    """The handlers of a consumer, by topic."""

    def __init__(self) -> None:
        self._by_topic: dict[str, Listener] = {}

    def __bool__(self) -> bool:
        return bool(self._by_topic)

    def set(self, topic: str, listener: Listener) -> None:
        self._by_topic[topic] = listener

    def remove(self, topic: str) -> None:
        self._by_topic.pop(topic, None)

    def of(self, message: MessageView) -> Listener | None:
        """Whose message it is, by its original topic."""
        listener = self._by_topic.get(message.topic)
        if listener is None and message.topic.startswith(RETRY_PREFIX):
            return self.only  # it does not say what its topic was
        return listener

    @property
    def only(self) -> Listener | None:
        """The one handler there is; None if there are several."""
        return next(iter(self._by_topic.values())) if len(self._by_topic) == 1 else None

    def runs(self, messages: list[MessageView]) -> list[tuple[Listener | None, list[MessageView]]]:
        """Runs of messages with one handler; retried ones get their own topic back."""
        runs: list[tuple[Listener | None, list[MessageView]]] = []
        for message in messages:
            if message.topic.startswith(RETRY_PREFIX):
                message.topic = message.original_topic
            listener = self.of(message)
            if runs and runs[-1][0] is listener:
                runs[-1][1].append(message)
            else:
                runs.append((listener, [message]))
        return runs


def _nobody(message: MessageView) -> ConsumeResult:
    return ConsumeResult.LATER


NOBODY = Listener(_nobody, batch=False)
"""Stands for the handler of messages that have none."""


class Batch(Work, eq=False):
    """Messages one handler call gets.

    Attributes:
        context: the call's own; one that no handler sees stays as it was made, and many batches share it.
        unfinished: an awaitable that the handler, a plain function, has returned; it waits to be awaited.
    """

    listener: Listener = NOBODY
    context: ConsumeContext | None = None
    unfinished: Unfinished | None = None

    def own_context(self) -> ConsumeContext:
        if self.context is None:
            self.context = ConsumeContext(self.held.queue)
        return self.context

    def leave(self) -> None:
        if self.unfinished is not None:
            self.unfinished.give_up()
