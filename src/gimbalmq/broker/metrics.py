"""Prometheus metrics on a port of their own, read from the counters only when scraped.

The loop walks over its tables in steps and hands plain rows over; the thread of the scrape makes text of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from gimbalmq._steps import Steps
from gimbalmq.broker.clients import Consumers, Producers
from gimbalmq.broker.longpoll import LongPoll
from gimbalmq.broker.metadata import ConsumerOffsets, Topics
from gimbalmq.broker.stats import Stats
from gimbalmq.errors import ConnectError
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.turns import Turns
from gimbalmq.transport.watchdog import LoopWatchdog

_SCRAPE_SECONDS = 10.0
_STEP = 512


class Family(NamedTuple):
    """One metric: its rows are labels and a value each."""

    kind: Literal["counter", "gauge"]
    name: str
    text: str
    labels: tuple[str, ...]
    rows: list[tuple[tuple[str, ...], float]]


class MetricsServer:
    """Serves ``/metrics``; prometheus-client is imported only where it is switched on."""

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
        watchdog: LoopWatchdog | None = None,
    ) -> None:
        self._store = store
        self._stats = stats
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        self._producers = producers
        self._long_poll = long_poll
        self._turns = turns
        self._watchdog = watchdog
        self._stop: Callable[[], None] | None = None
        self.port = 0

    def start(self, host: str, port: int) -> None:
        from prometheus_client import CollectorRegistry, start_http_server
        from prometheus_client.registry import Collector

        owner = self
        loop = asyncio.get_running_loop()

        class _Collector(Collector):
            def describe(self) -> Iterable[object]:
                return ()

            def collect(self) -> Iterable[object]:  # type: ignore[override]
                # A scrape comes on a thread of its own; the tables are the loop's to read.
                families = asyncio.run_coroutine_threadsafe(owner.read(), loop).result(_SCRAPE_SECONDS)
                return map(_family, families)

        registry = CollectorRegistry()
        registry.register(_Collector())
        try:
            server, thread = start_http_server(port, host, registry)
        except OSError as error:
            raise ConnectError(
                f"the metrics cannot be served on {host}:{port}: {error.strerror or error}; "
                "choose another metricsPromExporterPort"
            ) from error
        self.port = server.server_address[1]

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        self._stop = stop

    async def close(self) -> None:
        if self._stop is not None:
            # Off the loop: a scrape under way still has to be answered by it.
            await asyncio.to_thread(self._stop)
            self._stop = None

    async def read(self) -> list[Family]:
        """All metrics as they are now."""
        return await self._turns.run(self._families())

    def _families(self) -> Steps[list[Family]]:
        store, stats = self._store, self._stats
        found: list[Family] = []

        def gauge(name: str, text: str, value: float) -> None:
            found.append(Family("gauge", name, text, (), [((), value)]))

        def by_key(name: str, text: str, kind: str, labels: tuple[str, ...]) -> Steps[None]:
            rows: list[tuple[tuple[str, ...], float]] = []
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

    def _lags(self) -> Steps[list[tuple[tuple[str, ...], float]]]:
        rows: list[tuple[tuple[str, ...], float]] = []
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


def _family(family: Family) -> object:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    made = kind(f"rocketmq_{family.name}", family.text, labels=family.labels)
    for labels, value in family.rows:
        made.add_metric(labels, value)
    return made
