"""What a broker tells Prometheus, read from its counters only when scraped.

The loop walks over its tables in steps and hands plain rows over; a thread makes text of them.
"""

from __future__ import annotations

from gimbalmq._steps import Steps
from gimbalmq.broker.clients import Consumers, Producers
from gimbalmq.broker.consumer_offsets import ConsumerOffsets
from gimbalmq.broker.longpoll import LongPoll
from gimbalmq.broker.metrics_page import Family, MetricsPage, Rows
from gimbalmq.broker.replication.figures import figures
from gimbalmq.broker.replication.replication import Replication
from gimbalmq.broker.stats import Stats
from gimbalmq.broker.topics import Topics
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.turns import Turns
from gimbalmq.transport.watchdog import LoopWatchdog

_STEP = 512


class MetricsServer(MetricsPage):
    """The metrics of one broker."""

    def __init__(
        self,
        store: MessageStore,
        stats: Stats,
        topics: Topics,
        offsets: ConsumerOffsets,
        consumers: Consumers,
        producers: Producers,
        long_poll: LongPoll,
        turns: Turns,
        replication: Replication,
        watchdog: LoopWatchdog | None = None,
    ) -> None:
        super().__init__()
        self._store = store
        self._stats = stats
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        self._producers = producers
        self._long_poll = long_poll
        self._turns = turns
        self._replication = replication
        self._watchdog = watchdog

    async def read(self) -> list[Family]:
        """All metrics as they are now."""
        return await self._turns.run(self._families())

    def _families(self) -> Steps[list[Family]]:
        store, stats = self._store, self._stats
        found: list[Family] = []

        def gauge(name: str, text: str, value: float) -> None:
            found.append(Family("gauge", name, text, (), [((), float(value))]))  # of a truth value, too

        def by_key(name: str, text: str, kind: str, labels: tuple[str, ...]) -> Steps[None]:
            rows: Rows = []
            for key, counter in stats.items(kind).items():
                rows.append((tuple(key.split("@", len(labels) - 1)), counter.value))
                if len(rows) % _STEP == 0:
                    yield
            found.append(Family("counter", name, text, labels, rows))

        topic, both = ("topic",), ("topic", "consumer_group")
        yield from by_key("messages_in", "Messages stored", "TOPIC_PUT_NUMS", topic)
        yield from by_key("throughput_in", "Bytes stored", "TOPIC_PUT_SIZE", topic)
        yield from by_key("messages_out", "Messages pulled", "GROUP_GET_NUMS", both)
        yield from by_key("throughput_out", "Bytes pulled", "GROUP_GET_SIZE", both)
        yield from by_key("send_back", "Messages sent back by consumers", "SNDBCK_PUT_NUMS", both)
        gauge("topic_number", "Topics", len(self._topics))
        gauge("consumer_groups_online", "Groups with a live member", len(self._consumers.groups()))
        gauge("producer_groups_online", "Groups with a live member", len(self._producers.groups()))
        gauge("held_pulls", "Pulls that wait for a message", len(self._long_poll))
        gauge("storage_size", "Bytes in the commit log", self._log_bytes())
        gauge(
            "storage_flush_behind_bytes",
            "Bytes not yet synced",
            store.max_commitlog_offset - store.flushed_offset,
        )
        gauge("storage_dispatch_behind_bytes", "Bytes not yet indexed", store.dispatch_behind_bytes)
        gauge("storage_read_only", "1 while the store refuses writes", store.read_only_reason is not None)
        replication = self._replication
        found += [Family("gauge", *figure) for figure in figures(replication.status(), replication.waiting)]
        if (watchdog := self._watchdog) is not None:
            text = "Turns of the event loop that took too long"
            found.append(Family("counter", "loop_pauses", text, (), [((), watchdog.pauses)]))
            seconds = watchdog.longest.seconds if watchdog.longest is not None else 0.0
            gauge("loop_longest_pause_seconds", "The longest turn of the event loop", seconds)
        lags = yield from self._lags()
        found.append(
            Family("gauge", "consumer_lag_messages", "Messages a group has not committed", both, lags)
        )
        return found

    def _lags(self) -> Steps[Rows]:
        rows: Rows = []
        queues = 0
        for group in self._offsets.all_groups():
            for topic in self._offsets.topics_of(group):
                behind = 0
                offsets = self._offsets.queues(group, topic)
                for queue_id, offset in offsets.items():
                    queue = self._store.find_queue(topic, queue_id)
                    behind += max(0, queue.max_offset - offset) if queue is not None else 0
                rows.append(((topic, group), behind))
                queues += 1 + len(offsets)
                if queues >= _STEP:
                    queues = 0
                    yield
        return rows

    def _log_bytes(self) -> int:
        return self._store.max_commitlog_offset - self._store.min_commitlog_offset
