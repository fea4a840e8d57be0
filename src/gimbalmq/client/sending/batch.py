"""One batch of messages on its way: what it is as a request, and who hears what became of each message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import count, repeat
from typing import Final

from gimbalmq.client.sending.prepare import (
    DOES_NOT_WAIT,
    SEND,
    WAITS,
    Prepared,
    batch_request,
    with_id,
)
from gimbalmq.client.sending.rules import Rules
from gimbalmq.errors import StateError
from gimbalmq.model import properties as names
from gimbalmq.model.batch import ITEM_BYTES, Body, encode_alike, encode_columns
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import SendResult

Kind = tuple[str, bool, "bool | Many"]
"""What messages of one batch have in common: topic, waiting for the flush, and the call that they all came with, or
whether their senders await them, by which the rules for further attempts differ."""

_ID_MARK: Final = f"{names.UNIQ_KEY}\x01"
ID_BYTES: Final = len(with_id("", ""))
"""Of an id's property beside the id."""


class Batch:
    """Messages that leave together; each has its future.

    Of each message only what differs is kept: what they have in common is written when they leave, for all of them at
    once.

    Attributes:
        queue: the queue that all of them are bound to; None is any.
        limit: seconds to send it in, counted from when it has waited for company, and anew from when the one before it
            was stored.
        born_ms: when the first one was sent, ms since 1970.
        plain, plain_bytes: the properties behind the id of a message that has none of its own, and the bytes of such a
            message beside its body.
        size: bytes, as in the request.
        rests: the properties behind the ids, by place, of messages that have more than ``plain`` or brought their ids.
        flags: of the messages, by place; none is 0.
        alone: the only message, if it is one that a batch cannot carry.
        timer: sends it at the latest; None if it is closed.
        ready: when it would have left if its queue had been free; 0.0 if it has not come to that.
    """

    # No msgspec.Struct, like others of its kind: setting an attribute of those takes three times as long.
    __slots__ = (
        "alone",
        "bodies",
        "born_ms",
        "flags",
        "futures",
        "ids",
        "kind",
        "limit",
        "plain",
        "plain_bytes",
        "queue",
        "ready",
        "rests",
        "rules",
        "size",
        "timer",
    )

    def __init__(
        self,
        kind: Kind,
        queue: MessageQueue | None,
        rules: Rules,
        limit: float,
        born_ms: int,
        *,
        id_letters: int = 0,
        alone: Prepared | None = None,
    ) -> None:
        self.kind = kind
        self.queue = queue
        self.rules = rules
        self.limit = limit
        self.born_ms = born_ms
        self.plain = WAITS if kind[1] else DOES_NOT_WAIT
        self.plain_bytes = ITEM_BYTES + ID_BYTES + id_letters + len(self.plain)
        self.size = 0
        self.bodies: list[Body] = []
        self.ids: list[str] = []
        self.futures: list[asyncio.Future[SendResult]] = []
        self.rests: dict[int, str] = {}
        self.flags: dict[int, int] = {}
        self.alone = alone
        self.timer: asyncio.TimerHandle | None = None
        self.ready = 0.0

    def request(self) -> Prepared:
        """All of them in one. Their ids are known here: the request's result names none."""
        rest = self._common_rest()
        if rest is not None:
            body = encode_alike(self.bodies, _ID_MARK, self.ids, f"\x02{rest}")
        else:
            places = range(len(self.ids))
            rests = (self.rests.get(n, self.plain) for n in places)
            properties = [
                with_id(msg_id, rest).encode() for msg_id, rest in zip(self.ids, rests, strict=True)
            ]
            body = encode_columns([self.flags.get(n, 0) for n in places], self.bodies, properties)
        return batch_request(self.kind[0], body, "", self.plain, self.born_ms)

    def _common_rest(self) -> str | None:
        """The properties behind the ids if the messages differ in nothing but bodies and ids, each of one size."""
        if self.flags or len(set(map(len, self.bodies))) > 1:
            return None
        if not self.rests:
            return self.plain
        rests = set(self.rests.values())
        if len(self.rests) < len(self.ids) or len(rests) > 1 or len(set(map(len, self.ids))) > 1:
            return None
        (rest,) = rests
        return rest if rest.isascii() and "".join(self.ids).isascii() else None

    def message(self, place: int) -> Prepared:
        """One of them, to be sent by itself."""
        if self.alone is not None:
            return self.alone
        msg_id = self.ids[place]
        properties = with_id(msg_id, self.rests.get(place, self.plain))
        flag = self.flags.get(place, 0)
        return Prepared(SEND, self.kind[0], self.bodies[place], properties, 0, flag, msg_id, self.born_ms)

    def results(self, result: SendResult) -> Iterator[SendResult]:
        """Of each message, if a broker has stored the batch: they lie one behind the other."""
        offset_ids = result.offset_msg_id.split(",")
        if len(offset_ids) != len(self.ids):  # stored as one record, which has one id
            offset_ids = [result.offset_msg_id] * len(self.ids)
        return map(
            SendResult,
            repeat(result.status),
            self.ids,
            repeat(result.queue),
            count(result.queue_offset),
            offset_ids,
            repeat(None),
            repeat(result.region_id),
            repeat(result.trace_on),
        )

    # -- those who wait for the messages ------------------------------------------------------

    def settle(self, result: SendResult) -> None:
        """A broker has stored it."""
        # All futures are the loop's own. That this takes no step of Python for each saves a tenth of sending it.
        told = map(type(self.futures[0]).set_result, self.futures, self.results(result))
        while True:
            try:
                any(told)
                return
            except asyncio.InvalidStateError:
                pass  # its sender has given up; those behind it come next

    def awaits(self, place: int) -> bool:
        """Whether somebody waits for a message."""
        return not self.futures[place].done()

    def tell(self, place: int, outcome: SendResult | Exception) -> None:
        """What became of one message; whoever has given up is not told."""
        future = self.futures[place]
        if future.done():
            return
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def fail(self, error: Exception) -> None:
        for place in range(len(self.ids)):
            self.tell(place, error)

    def drop_cancelled(self) -> None:
        """Forgets the messages whose senders have given up."""
        if any(map(type(self.futures[0]).done, self.futures)):
            kept = [n for n, future in enumerate(self.futures) if not future.done()]
            self.bodies = [self.bodies[n] for n in kept]
            self.ids = [self.ids[n] for n in kept]
            self.futures = [self.futures[n] for n in kept]
            self.rests = {at: self.rests[n] for at, n in enumerate(kept) if n in self.rests}
            self.flags = {at: self.flags[n] for at, n in enumerate(kept) if n in self.flags}


class Many:
    """What becomes of the messages of one call (``send_many``).

    Attributes:
        outcomes: of each message, in the order in which they came; None as long as there is none.
        given_up: nobody waits any more.
        batch: took the last message.
    """

    def __init__(self) -> None:
        self.outcomes: list[SendResult | Exception | None] = []
        self.given_up = False
        self.batch: BatchOfMany | None = None
        self._settled = 0
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._complete = False
        self._alone: set[asyncio.Future[SendResult]] = set()
        self._alone_bytes = 0
        self._one_less: asyncio.Future[None] | None = None

    def add(self) -> int:
        """One more message; its place."""
        self.outcomes.append(None)
        return len(self.outcomes) - 1

    def settled(self, count: int) -> None:
        """So many more have their outcomes."""
        self._settled += count
        if self._complete and self._settled == len(self.outcomes) and not self._ended.done():
            self._ended.set_result(None)

    def tell(self, place: int, outcome: SendResult | Exception) -> None:
        self.outcomes[place] = outcome
        self.settled(1)

    def follow(self, place: int, size: int, future: asyncio.Future[SendResult]) -> None:
        """A message of so many bytes that is not in a batch of this call."""
        self._alone.add(future)
        self._alone_bytes += size
        future.add_done_callback(partial(self._followed, place, size))

    def _followed(self, place: int, size: int, future: asyncio.Future[SendResult]) -> None:
        self._alone.discard(future)
        self._alone_bytes -= size
        if self._one_less is not None and not self._one_less.done():
            self._one_less.set_result(None)
        try:
            self.tell(place, future.result())
        except asyncio.CancelledError:  # not by who waits for it, unless that has given up
            self.tell(place, StateError("the producer was closed before the answer came"))
        except Exception as error:
            self.tell(place, error)

    def awaits(self, futures: Iterable[asyncio.Future[SendResult]]) -> bool:
        """Whether one of these is of a message of this call."""
        return not self._alone.isdisjoint(futures)

    def has_alone(self, messages: int, size: int) -> bool:
        """Whether so many messages, or bytes, that are in no batch of this call have no outcome yet."""
        return len(self._alone) >= messages or self._alone_bytes >= size

    async def fewer_alone(self, messages: int, size: int) -> None:
        """Returns when it has fewer of them."""
        while self.has_alone(messages, size):
            self._one_less = asyncio.get_running_loop().create_future()
            await self._one_less

    async def complete(self) -> None:
        """No more come; returns when all have their outcomes."""
        self._complete = True
        self.settled(0)
        await self._ended

    def give_up(self) -> None:
        """What has not left shall not."""
        self.given_up = True
        for future in list(self._alone):
            future.cancel()


def raise_first(outcomes: Iterable[object]) -> None:
    """Raises the first error among them, if there is one."""
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


class BatchOfMany(Batch):
    """A batch of messages that came with one call, which waits for all of them: none has a future.

    Attributes:
        many: the call.
        places: of the messages among the call's.
    """

    __slots__ = ("many", "places")

    def __init__(
        self, many: Many, kind: Kind, rules: Rules, limit: float, born_ms: int, *, id_letters: int
    ) -> None:
        super().__init__(kind, None, rules, limit, born_ms, id_letters=id_letters)
        self.many = many
        self.places: list[int] = []

    def settle(self, result: SendResult) -> None:
        first, behind = self.places[0], self.places[-1] + 1
        outcomes = self.many.outcomes
        if behind - first == len(self.places):
            outcomes[first:behind] = self.results(result)
        else:
            for place, one in zip(self.places, self.results(result), strict=True):
                outcomes[place] = one
        self.many.settled(len(self.places))

    def awaits(self, place: int) -> bool:
        return not self.many.given_up and self.many.outcomes[self.places[place]] is None

    def tell(self, place: int, outcome: SendResult | Exception) -> None:
        if self.awaits(place):
            self.many.tell(self.places[place], outcome)

    def drop_cancelled(self) -> None:
        if self.many.given_up:
            self.ids.clear()
