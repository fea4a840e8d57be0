"""Messages: find them by id, key, place or time; follow a topic; send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import fields

from gimbalmq.admin.connection import AdminConnection
from gimbalmq.client.config import ProducerConfig
from gimbalmq.client.producer import Producer
from gimbalmq.errors import ConfigError, DataLossError, QueryNotFoundError, ResponseError, RocketMQError
from gimbalmq.filter.tags import parse_tags
from gimbalmq.model.ids import parse_offset_id
from gimbalmq.model.message import Message, MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import PullResult, PullStatus, SendResult
from gimbalmq.protocol.headers import messages as headers
from gimbalmq.rpc import groups as group_calls
from gimbalmq.rpc import messages as message_calls
from gimbalmq.rpc.messages import PULL_SUBSCRIPTION, PULL_SUSPEND

TOOLS_GROUP = "TOOLS_CONSUMER"
SENDER_GROUP = "GIMBALMQ_TOOLS"
_FOREVER = 0x7FFFFFFFFFFFFFFF
_READ_BYTES = 2 * 1024 * 1024
_READ_COUNT = 1024
_VAIN_SECONDS = 1.0
"""What a pull that brings nothing new takes at least."""


class MessageAdmin:
    """``admin.messages``."""

    def __init__(self, connection: AdminConnection) -> None:
        self._at = connection
        self._producer: Producer | None = None

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close()

    # -- one or a few -----------------------------------------------------------------

    async def by_id(self, message_id: str, *, topic: str | None = None) -> MessageView:
        """By the broker's offset id or, with its topic, by the sender's unique id.

        Raises:
            QueryNotFoundError: no broker has it.
            ConfigError: it is neither kind of id, or a unique id came without its topic.
        """
        if topic is not None:
            found = await self.by_unique_key(topic, message_id)
            if found:
                return found[0]
        try:
            place = parse_offset_id(message_id)
        except (RocketMQError, ValueError) as error:
            remedy = "no message of the topic has it" if topic else "give the topic for a unique id"
            raise ConfigError("message id", message_id, f"{error}; {remedy}") from error
        address = f"{place.ip}:{place.port}"
        holders, is_known = await self._holders(address)
        failure: RocketMQError = QueryNotFoundError("nobody was asked")
        for replica in holders:
            try:
                view = await message_calls.view_message(
                    self._at.caller, replica, place.commitlog_offset, topic=topic
                )
            except RocketMQError as error:
                failure = error
                continue
            if view.store_host == (place.ip, place.port):
                return view
        if not is_known:
            # A unique id has the same length as an offset id and decodes to an address nobody has.
            remedy = "say --topic if it is a sender's unique id" if topic is None else "it may have expired"
            raise QueryNotFoundError(f"{message_id} names the broker {address}, which is not here; {remedy}")
        if not isinstance(failure, ResponseError):
            raise failure
        raise QueryNotFoundError(
            f"the broker {address} has no message {message_id}, or no more: {failure.remark}"
        ) from failure

    async def _holders(self, address: str) -> tuple[list[str], bool]:
        """Who may have what the broker at an address has stored, that broker first; and whether it is known.

        Messages keep the address of the master that stored them. If nobody has it now, it may be that of a master that
        is gone: then its slave, or whoever is the master now, is among the first of all brokers.
        """
        table = (await self._at.cluster_info()).broker_addr_table
        sets = [
            [replica for _, replica in sorted(data.broker_addrs.items())] for _, data in sorted(table.items())
        ]
        known = [replica for replicas in sets if address in replicas for replica in replicas]
        if known:
            return sorted(known, key=lambda replica: replica != address), True
        return [replicas[0] for replicas in sets if replicas], False

    async def by_unique_key(self, topic: str, message_id: str) -> list[MessageView]:
        """Messages with this sender's id, oldest first (mqadmin queryMsgByUniqueKey)."""
        return await self._query(topic, message_id, unique=True, limit=32, begin_ms=0, end_ms=_FOREVER)

    async def by_key(
        self, topic: str, key: str, *, limit: int = 64, begin_ms: int = 0, end_ms: int | None = None
    ) -> list[MessageView]:
        """Messages with this key, oldest first (mqadmin queryMsgByKey)."""
        return await self._query(
            topic,
            key,
            unique=False,
            limit=limit,
            begin_ms=begin_ms,
            end_ms=_FOREVER if end_ms is None else end_ms,
        )

    async def _query(
        self, topic: str, key: str, *, unique: bool, limit: int, begin_ms: int, end_ms: int
    ) -> list[MessageView]:
        async def one(name: str, address: str) -> list[MessageView]:
            return await message_calls.query_message(
                self._at.caller,
                address,
                topic,
                key,
                max_count=limit,
                begin_ms=begin_ms,
                end_ms=end_ms,
                unique=unique,
                broker_name=name,
            )

        places = await self._at.brokers_of(topic)
        parts = await asyncio.gather(*(one(name, address) for name, address in places.items()))
        found = sorted((view for part in parts for view in part), key=lambda view: view.store_timestamp)
        return found[:limit]

    async def by_offset(self, queue: MessageQueue, queue_offset: int) -> MessageView:
        """The message at one place of one queue (mqadmin queryMsgByOffset).

        Raises:
            QueryNotFoundError: the queue does not reach so far, or no more.
        """
        address = await self._address(queue)
        found = await self._pull(queue, address, queue_offset, count=1)
        if found.messages and found.messages[0].queue_offset == queue_offset:
            return found.messages[0]
        first, last = found.min_offset, found.max_offset - 1
        held = f"holds offsets {first} to {last}, not {queue_offset}" if first <= last else "is empty"
        raise QueryNotFoundError(f"queue {queue.broker_name}/{queue.queue_id} of {queue.topic} {held}")

    async def _address(self, queue: MessageQueue) -> str:
        places = await self._at.queues_of(queue.topic)
        if queue not in places:
            there = ", ".join(f"{item.broker_name}/{item.queue_id}" for item in places)
            raise ConfigError(
                "queue", f"{queue.broker_name}/{queue.queue_id}", f"topic {queue.topic} has {there}"
            )
        return places[queue]

    # -- many -------------------------------------------------------------------------

    async def ranges(
        self,
        topic: str,
        *,
        begin_ms: int | None = None,
        end_ms: int | None = None,
        newest: int | None = None,
    ) -> dict[MessageQueue, tuple[int, int]]:
        """First and end offset of each queue: all there is, what was stored in a time, or the newest few."""
        caller = self._at.caller

        async def one(queue: MessageQueue, address: str) -> tuple[int, int]:
            low, high = await asyncio.gather(
                group_calls.min_offset(caller, address, queue), group_calls.max_offset(caller, address, queue)
            )
            first, end = low, high
            if begin_ms is not None and low < high:
                first = await self._first_since(queue, address, begin_ms, low, high)
            if end_ms is not None and low < high:
                end = await self._first_since(queue, address, end_ms, low, high)
            if newest is not None:
                first = max(first, end - newest)
            return first, max(first, end)

        places = await self._at.queues_of(topic)
        found = await asyncio.gather(*(one(queue, address) for queue, address in places.items()))
        return dict(zip(places, found, strict=True))

    async def _first_since(self, queue: MessageQueue, address: str, moment: int, low: int, high: int) -> int:
        """The first offset stored at or after a time; brokers answer the last message for a later time."""
        caller = self._at.caller
        found = await group_calls.search_offset(caller, address, queue, moment)
        if found == high - 1:
            last = await self._pull(queue, address, found, count=1)
            if last.messages and last.messages[0].store_timestamp < moment:
                return high
        return min(max(found, low), high)

    async def read(
        self,
        topic: str,
        ranges: Mapping[MessageQueue, tuple[int, int | None]] | None = None,
        *,
        tags: str = "*",
    ) -> AsyncIterator[MessageView]:
        """A topic's messages, queues interleaved as they arrive; no group's progress is touched.

        Args:
            ranges: first and end offset by queue, as ``ranges()`` gives them; all there is now where not
                given. An end of None follows the queue for ever.
        """
        if ranges is None:
            ranges = dict(await self.ranges(topic))
        addresses = await self._at.queues_of(topic)
        found: asyncio.Queue[list[MessageView] | RocketMQError | None] = asyncio.Queue(maxsize=16)

        async def follow(queue: MessageQueue, first: int, end: int | None) -> None:
            try:
                async for views in self._follow(queue, addresses[queue], first, end, tags):
                    await found.put(views)
            except RocketMQError as error:
                await found.put(error)
            else:
                await found.put(None)

        tasks = [
            asyncio.get_running_loop().create_task(follow(queue, first, end))
            for queue, (first, end) in ranges.items()
        ]
        try:
            left = len(tasks)
            while left:
                item = await found.get()
                if item is None:
                    left -= 1
                elif isinstance(item, RocketMQError):
                    raise item
                else:
                    for view in item:
                        yield view
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(
        self, queue: MessageQueue, address: str, first: int, end: int | None, tags: str
    ) -> AsyncIterator[list[MessageView]]:
        accepts = parse_tags(tags).accepts
        loop = asyncio.get_running_loop()
        while end is None or first < end:
            begun = loop.time()
            wanted = _READ_COUNT if end is None else min(_READ_COUNT, end - first)
            result = await self._pull(queue, address, first, count=wanted, tags=tags, wait=end is None)
            if result.status is PullStatus.OFFSET_ILLEGAL and result.next_offset < first:
                raise DataLossError(
                    f"queue {queue.broker_name}/{queue.queue_id} of {queue.topic} ends at "
                    f"{result.max_offset}, before {first}: the topic was made anew"
                )
            views = [
                view
                for view in result.messages
                if accepts(view.tags) and (end is None or view.queue_offset < end)
            ]
            if views:
                yield views
            if result.status is PullStatus.NO_NEW_MSG and end is not None:
                return  # retention took the rest meanwhile
            if not result.messages and result.next_offset == first:
                # A broker that keeps the question for a while is asked again at once; some slaves do not.
                await asyncio.sleep(max(0.0, begun + _VAIN_SECONDS - loop.time()))
            first = result.next_offset

    async def _pull(
        self,
        queue: MessageQueue,
        address: str,
        queue_offset: int,
        *,
        count: int,
        tags: str = "*",
        wait: bool = False,
    ) -> PullResult:
        header = headers.PullMessage(
            consumer_group=TOOLS_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            max_msg_nums=count,
            sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if wait else 0),
            suspend_timeout_millis=15_000 if wait else 0,
            subscription=tags,
            expression_type="TAG",
            max_msg_bytes=_READ_BYTES,
            bname=queue.broker_name,
        )
        return await message_calls.pull(self._at.caller, address, header, queue)

    # -- send -------------------------------------------------------------------------

    async def send(self, message: Message, *, queue: MessageQueue | None = None) -> SendResult:
        """Sends one, through a producer that is kept for the next."""
        return await (await self.producer()).send(message, queue=queue)

    async def producer(self) -> Producer:
        """The started producer of this admin object, for many sends."""
        if self._producer is None:
            config = self._at.config
            options = {item.name: getattr(config, item.name) for item in fields(config)}
            producer = Producer(config=ProducerConfig(**options, group=SENDER_GROUP))
            await producer.start()
            self._producer = producer
        return self._producer
