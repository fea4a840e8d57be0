"""Asking producers what became of a transaction, and what a round of such questions tells the log."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from gimbalmq._clock import Clock
from gimbalmq.broker.clients import Member, Producers
from gimbalmq.broker.config import LiveConfig
from gimbalmq.errors import RocketMQError
from gimbalmq.model import properties as prop
from gimbalmq.model import topics
from gimbalmq.model.ids import offset_id
from gimbalmq.model.record import Record, encode_record
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.messages import CheckTransactionState
from gimbalmq.transport.channel import Channel

log = logging.getLogger(__name__)

_NAMES_LOGGED = 10
_PRODUCERS_TRIED = 8
_READ_SECONDS = 1.0
_ROUND_PATIENCE_SECONDS = 10.0
"""A round waits so long for one producer that reads slowly, and for all together."""


class Tally:
    """What a round tells the log: a line for each kind of thing, however many there were."""

    def __init__(self) -> None:
        self.unreadable = 0
        self.given_up: list[str] = []
        self.nobody: Counter[str] = Counter()
        self.asked: Channel | None = None
        self.behind: set[Channel] = set()
        """Producers that do not read what they are asked."""
        self.patience = _ROUND_PATIENCE_SECONDS

    def report(self) -> None:
        if self.unreadable:
            log.error("%d half messages cannot be read and are passed over", self.unreadable)
        if self.given_up:
            log.warning(
                "%d transactions are given up, as too old or asked about too often, and kept in %s: %s",
                len(self.given_up),
                topics.TRANS_CHECK_MAX_TOPIC,
                ", ".join(self.given_up[:_NAMES_LOGGED]),
            )
        for channel in list(self.behind)[:_NAMES_LOGGED]:
            log.warning("producer %s does not read what it is asked about transactions", channel.address)
        for group, count in self.nobody.most_common(_NAMES_LOGGED):
            log.info("no producer of group %s is connected to be asked about %d transactions", group, count)


class ProducerQuestions:
    """Request 39: producers are asked about halves that they have not ended."""

    def __init__(self, producers: Producers, live: LiveConfig, store_host: bytes, clock: Clock) -> None:
        self._producers = producers
        self._live = live
        self._store_host = store_host
        self._clock = clock
        self.may_see: Callable[[str, Member], bool] | None = None
        """Whether a producer may be shown a message to a topic; anybody can name himself after a group."""

    def producer_of(self, half: Record, tally: Tally) -> Channel | None:
        """Who can be asked; one that is behind only if there is no other among the next few."""
        may = None
        if self.may_see is not None:
            may = partial(self.may_see, half.properties.get(prop.REAL_TOPIC, half.topic))
        for _ in range(_PRODUCERS_TRIED):
            channel = self._producers.pick(half.properties.get(prop.PRODUCER_GROUP, ""), may)
            if channel not in tally.behind:
                break
        return channel

    def ask(
        self,
        half: Record,
        properties: Mapping[str, str],
        queue_offset: int,
        commitlog_offset: int,
        tally: Tally,
    ) -> None:
        """Request 39 to one producer of the group; the record carries its real topic."""
        channel = self.producer_of(half, tally)
        if channel is None:
            tally.nobody[half.properties.get(prop.PRODUCER_GROUP, "")] += 1
            return
        tally.asked = channel
        topic = properties.get(prop.REAL_TOPIC, half.topic)
        unique = properties.get(prop.UNIQ_KEY)
        queue_id = number_of(properties.get(prop.REAL_QUEUE_ID), 0)
        header = CheckTransactionState(
            tran_state_table_offset=queue_offset,
            commit_log_offset=commitlog_offset,
            msg_id=unique,
            transaction_id=unique,
            offset_msg_id=offset_id(self._store_host, commitlog_offset),
            topic=topic,
            bname=self._live.now.broker_name,
        )
        try:
            record = encode_record(
                topic=topic,
                body=half.body,
                properties=prop.dump(properties).encode(),
                queue_id=queue_id if 0 <= queue_id < 1 << 31 else 0,
                flag=half.flag,
                queue_offset=queue_offset,
                commitlog_offset=commitlog_offset,
                sys_flag=half.sys_flag,
                born_timestamp=half.born_timestamp,
                born_host=half.born_host,
                store_timestamp=half.store_timestamp,
                store_host=half.store_host,
                reconsume_times=half.reconsume_times,
            )
            channel.oneway(RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(), record))
        except RocketMQError as error:
            log.error(
                "%s cannot be asked about the half message at %d: %s",
                channel.address,
                commitlog_offset,
                error,
            )

    async def until_read(self, producer: Channel, tally: Tally) -> None:
        """Waits a moment for a producer that is behind; in vain, it is asked no more in this round."""
        started = self._clock.monotonic()
        try:
            async with asyncio.timeout(min(_READ_SECONDS, tally.patience)):
                await producer.writable()
        except TimeoutError:
            tally.behind.add(producer)
        tally.patience -= self._clock.monotonic() - started


def number_of(text: str | None, default: int) -> int:
    """A property as a number; the default if it is none."""
    try:
        return int(text) if text else default
    except ValueError:
        return default
