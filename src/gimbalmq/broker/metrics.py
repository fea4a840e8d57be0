"""Prometheus metrics on a port of their own, read from the counters only when scraped.

The loop walks over its tables in steps and hands plain rows over; a thread makes text of them.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

from gimbalmq._steps import Steps
from gimbalmq.broker.clients import Consumers, Producers
from gimbalmq.broker.consumer_offsets import ConsumerOffsets
from gimbalmq.broker.longpoll import LongPoll
from gimbalmq.broker.replication.figures import figures
from gimbalmq.broker.replication.replication import Replication
from gimbalmq.broker.stats import Stats
from gimbalmq.broker.topics import Topics
from gimbalmq.errors import ListenError
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.turns import Turns
from gimbalmq.transport.watchdog import LoopWatchdog

if TYPE_CHECKING:
    from prometheus_client import Metric

log = logging.getLogger(__name__)

_SCRAPE_SECONDS = 10.0
_SCRAPES_AT_ONCE = 16
"""And as many connections that have yet to ask. They are few of the files that are kept in reserve."""
_HEAD_BYTES = 16_384
_STEP = 512


class Family(NamedTuple):
    """One metric: its rows are labels and a value each."""

    kind: Literal["counter", "gauge"]
    name: str
    text: str
    labels: tuple[str, ...]
    rows: list[tuple[tuple[str, ...], float]]


class MetricsServer:
    """Serves ``/metrics``; prometheus-client is imported only if it is switched on."""

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
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], asyncio.WriteTransport] = {}
        self._silent: dict[asyncio.Task[None], asyncio.WriteTransport] = {}
        """Connections that have yet to say what they want; the oldest stands first."""
        self.port = 0
        self._token: bytes | None = None

    async def start(self, host: str, port: int, *, token: str | None = None) -> None:
        """Listens; raises ListenError.

        Args:
            token: what every scrape must show; None serves everybody who reaches the port.
        """
        self._token = None if token is None else token.encode()
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=_HEAD_BYTES)
        except OSError as error:
            raise ListenError(
                f"the metrics cannot be served on {host}:{port}: {error.strerror or error}; "
                "choose another metricsPromExporterPort or metricsBindAddress"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        if token is None and not _is_loopback(host):
            log.warning(
                "whoever reaches %s:%d reads the metrics, and with them the names of all topics and groups; "
                "say metricsToken or metricsTokenFile to ask for a token",
                host,
                self.port,
            )

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            # Not cancelled: asyncio of Python 3.11 cannot bear that of a stream's task.
            for transport in self._open.values():
                transport.abort()
            await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One scrape; a connection has one. Of those that have asked nothing yet the oldest goes if they are many."""
        task = asyncio.current_task()
        assert task is not None
        if len(self._silent) >= _SCRAPES_AT_ONCE:
            self._silent.pop(next(iter(self._silent))).abort()
        self._silent[task] = writer.transport
        self._open[task] = writer.transport
        try:
            async with asyncio.timeout(_SCRAPE_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                self._silent.pop(task, None)
                if len(self._open) - len(self._silent) <= _SCRAPES_AT_ONCE:
                    writer.write(await self._answer(head))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            pass  # it hung up, said too much or took too long
        finally:
            self._silent.pop(task, None)
            del self._open[task]
            writer.transport.abort()

    async def _answer(self, head: bytes) -> bytes:
        from prometheus_client.exposition import choose_encoder

        request, *fields = head.decode("latin-1").split("\r\n")
        named = (field.partition(":") for field in fields)
        said = {name.strip().lower(): value.strip() for name, _, value in named}
        if not self._lets_in(said.get("authorization", "")):
            return _http("401 Unauthorized", "text/plain", b"a token is needed\n", "WWW-Authenticate: Bearer")
        method, path, *_ = [*request.split(), "", ""]
        if method != "GET":
            return _http("405 Method Not Allowed", "text/plain", b"use GET\n")
        if path.partition("?")[0] not in ("/", "/metrics"):
            return _http("404 Not Found", "text/plain", b"the metrics are at /metrics\n")
        encode, kind = choose_encoder(said.get("accept", ""))
        families = await self.read()
        text = await asyncio.to_thread(lambda: encode(_Collected(families)))
        return _http("200 OK", kind, text)

    def _lets_in(self, authorization: str) -> bool:
        """Compared in constant time, so that a wrong token tells nothing of the right one."""
        if self._token is None:
            return True
        scheme, _, shown = authorization.partition(" ")
        return hmac.compare_digest(shown.strip().encode("latin-1"), self._token) & (
            scheme.lower() == "bearer"
        )

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


def _http(status: str, kind: str, body: bytes, *more: str) -> bytes:
    fields = (f"Content-Type: {kind}", f"Content-Length: {len(body)}", "Connection: close", *more)
    return "\r\n".join((f"HTTP/1.1 {status}", *fields, "", "")).encode() + body


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Collected:
    """What prometheus-client's encoders take for a registry."""

    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return map(_family, self._families)


def _family(family: Family) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    made = kind(f"rocketmq_{family.name}", family.text, labels=family.labels)
    for labels, value in family.rows:
        made.add_metric(labels, value)
    return made
