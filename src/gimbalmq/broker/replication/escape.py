"""What a slave that stands in for its master cannot store goes to another broker (enableRemoteEscape).

A slave never writes its log, so it can neither deliver delayed messages that fall due nor ask about open transactions
(Java: EscapeBridge). Both go to other brokers: a delayed message as itself, a half message as a half message, about
which the other broker asks the producers. One is done when another broker's master has stored it; until then it is
tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from gimbalmq._clock import Clock
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.replication.config import MASTER_ID
from gimbalmq.broker.writer import Draft
from gimbalmq.errors import NoWritableQueueError, RocketMQError
from gimbalmq.model import properties as prop
from gimbalmq.model import topics
from gimbalmq.model.flags import PERM_WRITE
from gimbalmq.protocol.headers.messages import SendMessageV2
from gimbalmq.rpc import messages, nameserver
from gimbalmq.rpc.call import Caller
from gimbalmq.transport.tasks import Tasks

log = logging.getLogger(__name__)

_GROUP = "InnerProducerGroup"
"""As Apache's brokers name themselves when they send."""
_MOST_UNDER_WAY = 256
_AGAIN_SECONDS = 1.0
_ROUTE_SECONDS = 5.0
_MOST_ROUTES = 1_000
_KEPT_HERE = frozenset({topics.TIMER_TOPIC, topics.SCHEDULE_TOPIC})
"""A message that has to wait once more stays here until the master is back."""

_Target = tuple[str, int]
"""Address of a master, and how many queues of the topic it has."""


class Escape:
    """Sends what is due to other brokers."""

    def __init__(self, live: LiveConfig, caller: Caller, clock: Clock) -> None:
        self._live = live
        self._caller = caller
        self._clock = clock
        self._tasks = Tasks("escape")
        self._done: set[int] = set()
        """Marks of messages that others have, and that have not been passed here."""
        self._under_way: set[int] = set()
        self._not_before: dict[int, float] = {}
        """Marks of messages that nobody took, and when they are tried again."""
        self._routes: dict[str, tuple[float, list[_Target]]] = {}
        self._tried = asyncio.Event()
        self._closings = 0
        self._turn = 0
        self._told: dict[str, str] = {}
        """Why messages of a topic find no other broker, as the log says already."""

    def put(self, drafts: Sequence[Draft]) -> int:
        """How many of these, from the first on, are done; the others are sent and must be given again."""
        settled = 0
        for draft in drafts:
            if draft.topic in _KEPT_HERE or draft.prepared_offset not in self._done:
                break
            settled += 1
        for draft in drafts[:settled]:
            self._done.discard(draft.prepared_offset)
        now = self._clock.monotonic()
        for draft in drafts[settled:]:
            mark = draft.prepared_offset
            if (
                draft.topic not in _KEPT_HERE
                and mark not in self._done
                and mark not in self._under_way
                and now >= self._not_before.get(mark, 0.0)
                and len(self._under_way) < _MOST_UNDER_WAY
            ):
                self._under_way.add(mark)
                self._tasks.spawn(self._send(draft), f"message {mark}")
        return settled

    async def move(self, drafts: Sequence[Draft]) -> int:
        """As ``put``, and waits until the first of them has been tried."""
        closings = self._closings
        while True:
            settled = self.put(drafts)
            if settled or not any(draft.prepared_offset in self._under_way for draft in drafts):
                return settled
            self._tried.clear()
            await self._tried.wait()
            if self._closings != closings:
                return 0

    async def _send(self, draft: Draft) -> None:
        mark = draft.prepared_offset
        try:
            address, queues = await self._target(draft.topic)
            header = SendMessageV2(
                producer_group=draft.properties.get(prop.PRODUCER_GROUP, _GROUP),
                topic=draft.topic,
                default_topic=topics.AUTO_CREATE_TOPIC,
                default_topic_queue_nums=queues,
                queue_id=draft.queue_id % queues,
                sys_flag=draft.sys_flag,
                born_timestamp=draft.born_timestamp,
                flag=draft.flag,
                properties=prop.dump(draft.properties),
                reconsume_times=draft.reconsume_times,
            )
            await messages.send(self._caller, address, header, draft.body)
        except RocketMQError as error:
            self._routes.pop(draft.topic, None)
            self._not_before[mark] = self._clock.monotonic() + _AGAIN_SECONDS
            if self._told.get(draft.topic) != str(error):
                if len(self._told) >= _MOST_ROUTES:
                    self._told.clear()
                self._told[draft.topic] = str(error)
                log.warning(
                    "a message of %s that waits here finds no other broker: %s; tried again",
                    draft.topic,
                    error,
                )
        else:
            self._not_before.pop(mark, None)
            self._told.pop(draft.topic, None)
            self._done.add(mark)
        finally:
            self._under_way.discard(mark)
            self._tried.set()

    async def _target(self, topic: str) -> _Target:
        """The next of the other brokers that take messages of the topic."""
        now = self._clock.monotonic()
        known = self._routes.get(topic)
        if known is None or now - known[0] > _ROUTE_SECONDS:
            known = (now, await self._others(topic))
            if len(self._routes) >= _MOST_ROUTES:
                self._routes.clear()
            self._routes[topic] = known
        if not known[1]:
            raise NoWritableQueueError(f"no other broker takes messages of {topic}")
        self._turn += 1
        return known[1][self._turn % len(known[1])]

    async def _others(self, topic: str) -> list[_Target]:
        config = self._live.now
        last: RocketMQError = NoWritableQueueError(f"there is no name server to ask for the route of {topic}")
        for address in config.namesrv_addresses:
            try:
                route = await nameserver.route(self._caller, address, topic)
            except RocketMQError as error:
                last = error
                continue
            masters = {
                broker.broker_name: broker.broker_addrs.get(MASTER_ID) for broker in route.broker_datas
            }
            return [
                (master, queues.write_queue_nums)
                for queues in route.queue_datas
                if queues.broker_name != config.broker_name
                and queues.perm & PERM_WRITE
                and queues.write_queue_nums > 0
                and (master := masters.get(queues.broker_name))
            ]
        raise last

    async def close(self) -> None:
        """Ends the sends under way. Such a message may have been stored, and is then sent a second time."""
        self._closings += 1
        await self._tasks.close()
        self._tried.set()
        self._done.clear()
        self._under_way.clear()
        self._not_before.clear()
