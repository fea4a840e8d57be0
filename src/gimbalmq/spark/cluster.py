"""What the driver asks of a cluster: which queues there are, where they begin and end, who has read how far.

All calls block. Questions that can be asked at once are, because a planner's time is the query's latency.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from itertools import islice
from typing import Any, Final, TypeVar

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq.errors import (
    ConfigError,
    ConnectError,
    RocketMQError,
    SubscriptionGroupNotExistError,
    TopicRouteNotFoundError,
)
from gimbalmq.model.queues import MessageQueue, sort_queues
from gimbalmq.model.results import PullResult
from gimbalmq.model.route import MASTER_ID, broker_addresses, subscribe_queues
from gimbalmq.model.topics import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from gimbalmq.protocol.bodies import TopicRoute
from gimbalmq.protocol.headers.messages import PullMessage
from gimbalmq.rpc import groups, messages, nameserver
from gimbalmq.spark.offsets import EARLIEST, LATEST, Bounds, Positions
from gimbalmq.spark.options import Place, SourceSettings
from gimbalmq.spark.wire import Wire

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_PAUSE: Final = 5.0
_LOOKS: Final = 3
_SAMPLE: Final = 32
"""Messages looked at if one pull must do: what Apache's broker gives at most."""


def backoff(settings: SourceSettings) -> Iterable[float]:
    """Pauses before each further attempt."""
    for attempt in range(settings.fetch_retries):
        yield min(MAX_PAUSE, settings.retry_interval * 2 ** min(attempt, 30))


class Cluster:
    """One cluster as a source's settings see it.

    Args:
        wire: connections; the caller keeps them.
        sleep: how pauses between attempts are made.
    """

    def __init__(
        self,
        settings: SourceSettings,
        wire: Wire,
        *,
        clock: Clock = SYSTEM_CLOCK,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._wire = wire
        self._clock = clock
        self._sleep = sleep
        self._nameservers = settings.connection.namesrv.split(";")
        self._routes: dict[str, TopicRoute] = {}
        self._addresses: dict[str, str] = {}
        self._replicas: set[str] = set()
        self._asked_at = float("-inf")
        self._lows: dict[MessageQueue, int] = {}
        self._lows_at = float("-inf")

    # -- asking ----------------------------------------------------------------------

    def _patiently(self, what: str, attempt: Callable[[], T], most: int | None = None) -> T:
        """Attempts until one succeeds or the options, or ``most``, say that it is enough."""
        pauses = islice(backoff(self._settings), most)
        while True:
            try:
                return attempt()
            except RocketMQError as error:
                pause = next(pauses, None) if error.retriable else None
                if pause is None:
                    if not error.retriable:
                        raise
                    raise type(error)(
                        f"{what} failed, also when tried again: {error}; check that name servers and brokers run "
                        "and can be reached from here, or raise fetchRetries"
                    ) from error
                log.warning("%s failed, once more in %g s: %s", what, pause, error)
                self._sleep(pause)
                self.forget_routes()

    def _nameserver(self, ask: Callable[[str], Coroutine[Any, Any, T]]) -> T:
        failure: RocketMQError = ConnectError("no name server was given")
        for _ in range(len(self._nameservers)):
            try:
                return self._wire.run(ask(self._nameservers[0]))
            except TopicRouteNotFoundError:
                raise
            except RocketMQError as error:
                if not error.retriable:
                    raise
                failure = error
                self._nameservers.append(self._nameservers.pop(0))
        raise failure

    def _of_queues(
        self,
        what: str,
        queues: Iterable[MessageQueue],
        ask: Callable[[str, MessageQueue], Coroutine[Any, Any, T]],
    ) -> dict[MessageQueue, T]:
        """The same question about many queues, all at once; those that failed are asked about again."""
        missing = list(queues)
        found: dict[MessageQueue, T] = {}

        def attempt() -> None:
            nonlocal missing
            failure: RocketMQError | None = None
            outcomes = self._wire.gather([ask(self.address(queue), queue) for queue in missing])
            left: list[MessageQueue] = []
            for queue, outcome in zip(missing, outcomes, strict=True):
                if isinstance(outcome, RocketMQError):
                    left.append(queue)
                    if failure is None or not outcome.retriable:
                        failure = outcome
                else:
                    found[queue] = outcome
            missing = left
            if failure is not None:
                raise failure

        self._patiently(what, attempt)
        return found

    # -- routes ----------------------------------------------------------------------

    def forget_routes(self) -> None:
        self._asked_at = float("-inf")

    def queues(self) -> list[MessageQueue]:
        """The readable queues of the topics that are read, sorted; routes are asked for when they are old.

        A topic without a route has no queues: it may come, or come back.
        """
        if self._clock.monotonic() - self._asked_at >= self._settings.metadata_ttl or not self._routes:
            self._patiently("looking up the route", self._refresh)
        found = {queue for topic, route in self._routes.items() for queue in subscribe_queues(topic, route)}
        assigned = self._settings.topics.assigned
        return sort_queues(found.intersection(assigned) if assigned else found)

    def _refresh(self) -> None:
        topics = self._settings.topics
        names = list(topics.known) if topics.pattern is None else self._matching(topics.pattern)

        def ask(address: str) -> list[TopicRoute | RocketMQError]:
            timeout = self._settings.request_timeout
            return self._wire.gather(
                [nameserver.route(self._wire, address, topic, timeout=timeout) for topic in names]
            )

        routes: dict[str, TopicRoute] = {}
        for topic, outcome in zip(names, self._from_any(ask), strict=True):
            if isinstance(outcome, TopicRoute):
                routes[topic] = outcome
            elif not isinstance(outcome, TopicRouteNotFoundError):
                raise outcome
        self._routes = routes
        for route in routes.values():
            for broker, replicas in broker_addresses(route).items():
                if replicas:
                    self._addresses[broker] = replicas.get(MASTER_ID) or replicas[min(replicas)]
                    if MASTER_ID in replicas:
                        self._replicas.discard(broker)
                    elif broker not in self._replicas:
                        self._replicas.add(broker)
                        log.warning(
                            "broker %s has no master now; its slave at %s is read, which may lack the last messages",
                            broker,
                            self._addresses[broker],
                        )
        self._asked_at = self._clock.monotonic()

    def _from_any(
        self, ask: Callable[[str], list[TopicRoute | RocketMQError]]
    ) -> list[TopicRoute | RocketMQError]:
        """Routes from the first name server that answers at all."""
        outcomes: list[TopicRoute | RocketMQError] = []
        for _ in range(len(self._nameservers)):
            outcomes = ask(self._nameservers[0])
            if not any(
                isinstance(outcome, RocketMQError)
                and outcome.retriable
                and not isinstance(outcome, TopicRouteNotFoundError)
                for outcome in outcomes
            ):
                break
            self._nameservers.append(self._nameservers.pop(0))
        return outcomes

    def _matching(self, pattern: str) -> list[str]:
        timeout = self._settings.request_timeout
        every = self._nameserver(lambda address: nameserver.all_topics(self._wire, address, timeout=timeout))
        # A pattern like `.*` means the users' topics; who wants retries or dead letters says so.
        hidden = () if pattern.startswith("%") else (RETRY_PREFIX, DLQ_PREFIX)
        wanted = re.compile(pattern)
        return sorted(
            topic
            for topic in every.topic_list
            if wanted.fullmatch(topic) and not is_system_topic(topic) and not topic.startswith(hidden)
        )

    def needed_queues(self) -> list[MessageQueue]:
        """As ``queues``, for the beginning of a query, where nothing to read is an error.

        Raises:
            TopicRouteNotFoundError: a named topic has no route.
            ConfigError: an assigned queue does not exist, or a pattern matches no topic.
        """
        topics = self._settings.topics

        def attempt() -> list[MessageQueue]:
            self._refresh()
            for topic in topics.known:
                if topic not in self._routes:
                    raise TopicRouteNotFoundError(
                        f"the name server {self._settings.connection.namesrv} knows no topic {topic}: create "
                        "it or correct the name; if its broker is starting, try again"
                    )
            return self.queues()

        # A misspelt name should not take half a minute to be told.
        found = self._patiently("looking up the topics", attempt, _LOOKS)
        missing = [queue for queue in topics.assigned if queue not in found]
        if missing:
            raise ConfigError("assign", missing[0], "there is no such queue")
        if topics.pattern is not None and not self._routes:
            log.warning("no topic matches %s yet", topics.pattern)
        return found

    def address(self, queue: MessageQueue) -> str:
        """Where the queue's broker is, as last heard."""
        if self._asked_at == float("-inf"):
            self._refresh()
        address = self._addresses.get(queue.broker_name)
        if address is None:
            raise TopicRouteNotFoundError(f"the broker {queue.broker_name} of topic {queue.topic} is nowhere")
        return address

    def may_be_behind(self, queue: MessageQueue) -> bool:
        """Whether only a slave of the queue's broker is there: its end may lie before what the master had."""
        return queue.broker_name in self._replicas

    def addresses(self, queues: Iterable[MessageQueue]) -> dict[str, str]:
        """Addresses by broker name, for executors."""
        return {queue.broker_name: self._addresses.get(queue.broker_name, "") for queue in queues}

    def brokers_alive(self) -> set[str]:
        """Names of the brokers that the name server has, whatever topics they serve."""
        timeout = self._settings.request_timeout
        info = self._patiently(
            "asking for the brokers",
            lambda: self._nameserver(
                lambda address: nameserver.cluster_info(self._wire, address, timeout=timeout)
            ),
        )
        return set(info.broker_addr_table)

    # -- offsets ---------------------------------------------------------------------

    def bounds(self, queues: Iterable[MessageQueue], *, exact: bool = True) -> dict[MessageQueue, Bounds]:
        """First and one past the last offset of each queue.

        Args:
            exact: False believes first offsets as long as routes. Streams ask many times a second, and a
                beginning that moved is noticed by the pull too.
        """
        wire, timeout = self._wire, self._settings.request_timeout
        wanted = list(queues)
        if exact or self._clock.monotonic() - self._lows_at >= self._settings.metadata_ttl:
            self._lows.clear()
            self._lows_at = self._clock.monotonic()

        async def ask(address: str, queue: MessageQueue) -> Bounds:
            # The beginning first: what is added or removed meanwhile can only make the range longer.
            low = self._lows.get(queue)
            if low is None:
                low = self._lows[queue] = await groups.min_offset(wire, address, queue, timeout=timeout)
            return Bounds(low, await groups.max_offset(wire, address, queue, timeout=timeout))

        return self._of_queues("asking for the ends of queues", wanted, ask)

    def progress(self, group: str, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Where a group is; queues it has not read are left out."""
        timeout = self._settings.request_timeout
        found = self._of_queues(
            f"asking for the progress of {group}",
            queues,
            lambda address, queue: groups.query_offset(
                self._wire, address, group, queue, set_zero_if_not_found=False, timeout=timeout
            ),
        )
        return {queue: offset for queue, offset in found.items() if offset is not None}

    def commit(self, group: str, positions: Positions) -> bool:
        """Tells the brokers how far a group is; for tools to see, so a failure is only logged.

        Returns:
            Whether all of them know it.
        """
        timeout = self._settings.request_timeout
        works = [
            groups.update_offset(self._wire, address, group, queue, position, timeout=timeout)
            for queue, position in positions.items()
            if (address := self._addresses.get(queue.broker_name)) is not None
        ]
        failures = [outcome for outcome in self._wire.gather(works) if isinstance(outcome, RocketMQError)]
        if failures:
            # Apache's broker creates a group with its first pull; before that there is nobody to tell of.
            first = isinstance(failures[0], SubscriptionGroupNotExistError)
            level = logging.INFO if first else logging.WARNING
            log.log(level, "the progress of group %s could not be committed: %s", group, failures[0])
        return not failures and len(works) == len(positions)

    def offsets_at(self, times_ms: Mapping[MessageQueue, int]) -> dict[MessageQueue, int | None]:
        """The first offset stored at or after a time; None if nothing is that late."""
        return self._of_queues(
            "asking for offsets by time",
            times_ms,
            lambda address, queue: self._offset_at(address, queue, times_ms[queue]),
        )

    async def _offset_at(self, address: str, queue: MessageQueue, time_ms: int) -> int | None:
        wire, timeout = self._wire, self._settings.request_timeout
        near = await groups.search_offset(wire, address, queue, max(0, time_ms), timeout=timeout)
        low = await groups.min_offset(wire, address, queue, timeout=timeout)
        high = await groups.max_offset(wire, address, queue, timeout=timeout)
        # Brokers of 4.x answer with whichever neighbour is nearer in time, so look at the messages there.
        # An answer may hold fewer than were asked for: what is known to be earlier is not looked at again.
        at = max(low, min(near, high) - _SAMPLE // 2)
        while at < high:
            pulled = await self._pull(address, queue, at, _SAMPLE)
            later = next((view for view in pulled.messages if view.store_timestamp >= time_ms), None)
            if later is not None and (later is not pulled.messages[0] or at <= low):
                return later.queue_offset
            if later is not None:
                at = max(low, at - _SAMPLE)
            elif pulled.next_offset > at:
                at = low = pulled.next_offset
            else:
                break
        return None

    async def _pull(self, address: str, queue: MessageQueue, offset: int, count: int) -> PullResult:
        header = PullMessage(
            consumer_group=self._settings.pull_group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=messages.PULL_SUBSCRIPTION,
            subscription="*",
            expression_type="TAG",
            bname=queue.broker_name,
        )
        return await messages.pull(self._wire, address, header, queue, timeout=self._settings.pull_timeout)

    def message_bytes(self, start: Positions) -> dict[MessageQueue, float]:
        """The mean size of the next messages of each queue, as stored."""

        async def ask(address: str, queue: MessageQueue) -> float:
            pulled = await self._pull(address, queue, start[queue], _SAMPLE)
            sizes = [view.store_size for view in pulled.messages]
            return sum(sizes) / len(sizes) if sizes else 1.0

        return self._of_queues("sampling message sizes", start, ask)

    # -- places ----------------------------------------------------------------------

    def positions(self, place: Place, bounds: Mapping[MessageQueue, Bounds]) -> dict[MessageQueue, int]:
        """A place as numbers.

        Raises:
            ConfigError: a queue is missing in the place's table, or the table names one that is not there,
                or a queue has no message as late as it says.
        """
        match place.kind:
            case "earliest":
                return {queue: found.low for queue, found in bounds.items()}
            case "latest":
                return {queue: found.high for queue, found in bounds.items()}
            case "group":
                assert self._settings.consumer_group is not None
                done = self.progress(self._settings.consumer_group, bounds)
                return {queue: done.get(queue, found.low) for queue, found in bounds.items()}
            case "offsets":
                given = self._from_table(place, bounds)
                words = {queue: {EARLIEST: found.low, LATEST: found.high} for queue, found in bounds.items()}
                return {queue: words[queue].get(number, number) for queue, number in given.items()}
            case "times":
                return self._by_time(place, bounds)

    def _from_table(self, place: Place, bounds: Mapping[MessageQueue, Bounds]) -> dict[MessageQueue, int]:
        given: dict[MessageQueue, int] = {}
        for queue in bounds:
            number = place.of(queue)
            if number is None:
                raise ConfigError(
                    place.option,
                    dict(place.table),
                    f"it says nothing of {queue.topic} at {queue.broker_name}, queue {queue.queue_id}; name them all",
                )
            given[queue] = number
        if place.everywhere is None:
            topics = {queue.topic for queue in bounds}
            unknown = sorted(set(place.table) - topics)
            if unknown:
                raise ConfigError(place.option, unknown[0], "no such topic is read")
        return given

    def _by_time(self, place: Place, bounds: Mapping[MessageQueue, Bounds]) -> dict[MessageQueue, int]:
        given = self._from_table(place, bounds)
        found = self.offsets_at(given)
        positions: dict[MessageQueue, int] = {}
        for queue, offset in found.items():
            if offset is not None:
                positions[queue] = offset
            elif place.option.startswith("ending") or self._settings.no_later_message == "latest":
                positions[queue] = bounds[queue].high
            else:
                raise ConfigError(
                    place.option,
                    given[queue],
                    f"{queue.topic} at {queue.broker_name}, queue {queue.queue_id}, has no message that late; "
                    "choose an earlier time, or begin at the end with startingOffsetsByTimestampStrategy=latest",
                )
        return positions
