"""Prometheus metrics on a port of their own, read from the counters only when scraped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from gimbalmq.broker.clients import Consumers, Producers
from gimbalmq.broker.longpoll import LongPoll
from gimbalmq.broker.metadata import ConsumerOffsets, Topics
from gimbalmq.broker.stats import Stats
from gimbalmq.errors import ConnectError
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.watchdog import LoopWatchdog

_SCRAPE_SECONDS = 10.0


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
        watchdog: LoopWatchdog | None = None,
    ) -> None:
        self._store = store
        self._stats = stats
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        self._producers = producers
        self._long_poll = long_poll
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
                return asyncio.run_coroutine_threadsafe(owner._read(), loop).result(_SCRAPE_SECONDS)

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

    async def _read(self) -> list[object]:
        return list(self._collect())

    def _collect(self) -> Iterable[object]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        store, stats = self._store, self._stats

        def gauge(name: str, text: str, value: float) -> object:
            return GaugeMetricFamily(f"rocketmq_{name}", text, value=value)

        def by_topic(name: str, text: str, kind: str) -> object:
            family = CounterMetricFamily(f"rocketmq_{name}", text, labels=["topic"])
            for topic, counter in stats.items(kind).items():
                family.add_metric([topic], counter.value)
            return family

        def by_group(name: str, text: str, kind: str) -> object:
            family = CounterMetricFamily(f"rocketmq_{name}", text, labels=["topic", "consumer_group"])
            for key, counter in stats.items(kind).items():
                topic, _, group = key.partition("@")
                family.add_metric([topic, group], counter.value)
            return family

        yield by_topic("messages_in", "Messages stored", "TOPIC_PUT_NUMS")
        yield by_topic("throughput_in", "Bytes stored", "TOPIC_PUT_SIZE")
        yield by_group("messages_out", "Messages pulled", "GROUP_GET_NUMS")
        yield by_group("throughput_out", "Bytes pulled", "GROUP_GET_SIZE")
        yield by_group("send_back", "Messages sent back by consumers", "SNDBCK_PUT_NUMS")
        yield gauge("topic_number", "Topics", len(self._topics))
        yield gauge("consumer_groups_online", "Groups with a live member", len(self._consumers.groups()))
        yield gauge("producer_groups_online", "Groups with a live member", len(self._producers.groups()))
        yield gauge("held_pulls", "Pulls that wait for a message", len(self._long_poll))
        yield gauge("storage_size", "Bytes in the commit log", self._log_bytes())
        yield gauge(
            "storage_flush_behind_bytes",
            "Bytes not yet synced",
            store.max_commitlog_offset - store.flushed_offset,
        )
        yield gauge("storage_dispatch_behind_bytes", "Bytes not yet indexed", store.dispatch_behind_bytes)
        yield gauge(
            "storage_read_only", "1 while the store refuses writes", store.read_only_reason is not None
        )
        if (watchdog := self._watchdog) is not None:
            pauses = CounterMetricFamily("rocketmq_loop_pauses", "Turns of the event loop that took too long")
            pauses.add_metric([], watchdog.pauses)
            yield pauses
            seconds = watchdog.longest.seconds if watchdog.longest is not None else 0.0
            yield gauge("loop_longest_pause_seconds", "The longest turn of the event loop", seconds)
        lag = GaugeMetricFamily(
            "rocketmq_consumer_lag_messages",
            "Messages a group has not committed",
            labels=["topic", "consumer_group"],
        )
        for group in self._offsets.all_groups():
            for topic in self._offsets.topics_of(group):
                behind = 0
                for queue_id, offset in self._offsets.queues(group, topic).items():
                    queue = store.find_queue(topic, queue_id)
                    behind += max(0, queue.max_offset - offset) if queue is not None else 0
                lag.add_metric([topic, group], behind)
        yield lag

    def _log_bytes(self) -> int:
        return self._store.max_commitlog_offset - self._store.min_commitlog_offset
