"""The window of pulled messages of one queue.

Messages enter in the order of their offsets and leave when they are settled, in any order. What may be
committed is bound by the oldest one still inside: ``remove`` answers it. All methods run on the event loop's
thread, so there is nothing to lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from gimbalmq.model.message import MessageView


class Window:
    """What one queue has pulled and not yet settled (Java: the maps of ProcessQueue).

    Attributes:
        count, body_bytes: cached messages, those in work included.
        queue_offset_max: largest offset ever put.
        consuming: ordered: a run is under way, or due; it finds new messages by itself.
    """

    __slots__ = ("_in_work", "_messages", "body_bytes", "consuming", "count", "queue_offset_max")

    def __init__(self) -> None:
        self._messages: dict[int, MessageView] = {}
        self._in_work: dict[int, MessageView] = {}
        self.count = 0
        self.body_bytes = 0
        self.queue_offset_max = -1
        self.consuming = False

    # -- concurrent ------------------------------------------------------------------

    def put(self, messages: Iterable[MessageView]) -> bool:
        """Adds messages whose offsets are not there yet.

        Returns:
            Whether an idle queue has become busy, so that an orderly run must be started.
        """
        window = self._messages
        last = next(reversed(window)) if window else -1
        ordered = True
        added = size = 0
        for message in messages:
            offset = message.queue_offset
            if offset <= last:
                if offset in window:
                    continue
                ordered = False
            else:
                last = offset
            window[offset] = message
            added += 1
            size += message.body_size
        self.count += added
        self.body_bytes += size
        if last > self.queue_offset_max:
            self.queue_offset_max = last
        if not ordered:
            self._messages = dict(sorted(window.items()))
        return self.begins_again()

    def begins_again(self) -> bool:
        """Whether there are messages and no run is under way; from now on one is."""
        if self._messages and not self.consuming:
            self.consuming = True
            return True
        return False

    def remove(self, messages: Iterable[MessageView]) -> int:
        """Takes settled messages out.

        Returns:
            The offset that may be committed: the smallest one left, or one after the largest ever put if none
            is left; -1 if the window was empty before.
        """
        window = self._messages
        if not window:
            return -1
        pop = window.pop
        removed = size = 0
        for message in messages:
            if pop(message.queue_offset, None) is not None:
                removed += 1
                size += message.body_size
        self.count -= removed
        self.body_bytes = self.body_bytes - size if self.count else 0
        return next(iter(window)) if window else self.queue_offset_max + 1

    def __contains__(self, message: MessageView) -> bool:
        return message.queue_offset in self._messages

    # -- orderly ---------------------------------------------------------------------

    def take(self, limit: int) -> list[MessageView]:
        """Moves the ``limit`` smallest messages into work; if there is none, the queue goes idle."""
        taken = list(islice(self._messages.items(), limit))
        for offset, message in taken:
            del self._messages[offset]
            self._in_work[offset] = message
        if not taken:
            self.consuming = False
        return [message for _, message in taken]

    def commit(self) -> int:
        """Settles what is in work; answers the offset after it, -1 if nothing was."""
        if not self._in_work:
            return -1
        work = self._in_work
        self.count -= len(work)
        size = sum(message.body_size for message in work.values())
        self.body_bytes = self.body_bytes - size if self.count else 0
        self._in_work = {}
        return max(work) + 1

    def rollback(self) -> None:
        """Puts everything in work back."""
        self.put_back(list(self._in_work.values()))

    def put_back(self, messages: Sequence[MessageView]) -> None:
        """Puts back those of them that are in work, so that they are taken again (makeMessageToConsumeAgain)."""
        for message in messages:
            if self._in_work.pop(message.queue_offset, None) is not None:
                self._messages[message.queue_offset] = message
        self._messages = dict(sorted(self._messages.items()))

    # -- state -----------------------------------------------------------------------

    def clear(self) -> None:
        """Forgets every message; the queue is read from another place."""
        self._messages = {}
        self._in_work = {}
        self.count = self.body_bytes = 0
        self.queue_offset_max = -1
        self.consuming = False

    @property
    def span(self) -> int:
        """Distance between the oldest and the newest cached offset."""
        window = self._messages
        return next(reversed(window)) - next(iter(window)) if window else 0

    @property
    def min_offset(self) -> int | None:
        return next(iter(self._messages), None)

    @property
    def max_offset(self) -> int | None:
        return next(reversed(self._messages), None)

    @property
    def done_until(self) -> int:
        """The offset before which every message that was ever put is settled."""
        oldest = self.min_offset
        return self.queue_offset_max + 1 if oldest is None else oldest

    @property
    def is_empty(self) -> bool:
        return not self._messages

    @property
    def work_offsets(self) -> list[int]:
        """Offsets of the messages that an ordered handler has."""
        return list(self._in_work)

    @property
    def in_work(self) -> int:
        return len(self._in_work)

    def oldest(self, limit: int) -> list[MessageView]:
        return list(islice(self._messages.values(), limit))
