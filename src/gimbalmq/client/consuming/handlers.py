"""Handlers: what they are called with, what they may say, and what that means for a batch.

``Outcome`` is the one place in which a handler's word becomes "these are done, these come again".
"""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from gimbalmq.client.consuming.held_queue import Work
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.topics import RETRY_PREFIX

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

    Attributes:
        queue: where the messages come from.
        delay_level: when failed messages come again: 0 the broker's choice, -1 never (dead letters), a level.
        ack_index: of a batch that succeeded, the last message that did; those after it come again.
        auto_commit: ordered: success commits.
        suspend: ordered: seconds to wait before another try; None is the consumer's setting.
    """

    __slots__ = ("ack_index", "auto_commit", "delay_level", "queue", "suspend")

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.delay_level = 0
        self.ack_index: int | None = None
        self.auto_commit = True
        self.suspend: float | None = None


Handler = Callable[..., Any]


class Listener:
    """A user's function and how to call it.

    Args:
        function: ``f(message)``, or ``f(messages)`` for a batch; a second parameter gets the context.
        batch: whether it takes a list.
        ordered: whether it wants each queue's messages one after the other.
    """

    __slots__ = ("batch", "function", "is_async", "ordered", "wants_context")

    def __init__(self, function: Handler, *, batch: bool, ordered: bool = False) -> None:
        self.function = function
        self.batch = batch
        self.ordered = ordered
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object whose call is async, not "callable?"
        )
        self.wants_context = _positional_parameters(function) >= 2

    def run(self, messages: list[MessageView], context: ConsumeContext) -> Outcome:
        """Calls a plain function; in a thread of the pool."""
        outcome: Outcome | None = None
        function, extra = self.function, (context,) if self.wants_context else ()
        if self.batch:
            try:
                result = function(messages, *extra)
            except Exception:
                outcome = Outcome()
                outcome.failed_by_exception(messages, context)
            else:
                if result is not None or extra:
                    outcome = Outcome()
                    outcome.add(result, messages, context)
            return outcome or _ALL_WELL
        for message in messages:
            try:
                result = function(message, *extra)
            except Exception:
                outcome = outcome or Outcome()
                outcome.failed_by_exception([message], context)
            else:
                if result is not None:
                    outcome = outcome or Outcome()
                    outcome.add(result, [message], context)
        return outcome or _ALL_WELL

    async def run_async(self, messages: list[MessageView], context: ConsumeContext) -> Outcome:
        """Awaits an ``async def`` function."""
        outcome: Outcome | None = None
        function, extra = self.function, (context,) if self.wants_context else ()
        if self.batch:
            try:
                result = await function(messages, *extra)
            except Exception:
                outcome = Outcome()
                outcome.failed_by_exception(messages, context)
            else:
                if result is not None or extra:
                    outcome = Outcome()
                    outcome.add(result, messages, context)
            return outcome or _ALL_WELL
        for message in messages:
            try:
                result = await function(message, *extra)
            except Exception:
                outcome = outcome or Outcome()
                outcome.failed_by_exception([message], context)
            else:
                if result is not None:
                    outcome = outcome or Outcome()
                    outcome.add(result, [message], context)
        return outcome or _ALL_WELL


def _positional_parameters(function: Handler) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in kinds and parameter.default is parameter.empty for parameter in parameters)


class Outcome:
    """What became of one batch: which messages failed, and the last word of the handler."""

    __slots__ = ("error", "failed", "result")

    def __init__(self) -> None:
        self.failed: list[MessageView] = []
        self.result = ConsumeResult.SUCCESS
        self.error: str | None = None

    def add(self, result: Any, messages: Sequence[MessageView], context: ConsumeContext) -> None:
        verdict = _RESULTS.get(result) if isinstance(result, ConsumeResult | bool | None) else None
        if verdict is None:
            log.error(
                "a handler of %s returned %r, taken as success; return None, True, False or a ConsumeResult",
                context.queue,
                result,
            )
            verdict = ConsumeResult.SUCCESS
        if verdict is ConsumeResult.LATER:
            self.failed += messages
        elif context.ack_index is not None and context.ack_index < len(messages) - 1:
            self.failed += messages[context.ack_index + 1 :]
        if self.result is not ConsumeResult.LATER:
            self.result = verdict

    def failed_by_exception(self, messages: Sequence[MessageView], context: ConsumeContext) -> None:
        self.error = traceback.format_exc()
        log.warning(
            "the handler of %s raised; %d message(s) from offset %d failed:\n%s",
            context.queue,
            len(messages),
            messages[0].queue_offset,
            self.error,
        )
        self.failed += messages
        self.result = ConsumeResult.LATER


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
        if listener is None and len(self._by_topic) == 1:
            return next(iter(self._by_topic.values()))
        return listener

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
    """

    listener: Listener = NOBODY
    context: ConsumeContext | None = None

    def own_context(self) -> ConsumeContext:
        if self.context is None:
            self.context = ConsumeContext(self.held.queue)
        return self.context
