"""The page of Prometheus metrics: who may read it, how many at once, and how rows become its text."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple

from gimbalmq.errors import ListenError

if TYPE_CHECKING:
    from prometheus_client import Metric

log = logging.getLogger(__name__)

_SCRAPE_SECONDS = 10.0
_SCRAPES_AT_ONCE = 16
"""And as many connections that have yet to ask. They are few of the files that are kept in reserve."""
_HEAD_BYTES = 16_384


Rows = list[tuple[tuple[str, ...], float]]


class Family(NamedTuple):
    """One metric: its rows are labels and a value each."""

    kind: Literal["counter", "gauge"]
    name: str
    text: str
    labels: tuple[str, ...]
    rows: Rows


class MetricsPage(ABC):
    """Serves ``/metrics`` on a port of its own; prometheus-client is imported only if it is switched on."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], asyncio.WriteTransport] = {}
        self._silent: dict[asyncio.Task[None], asyncio.WriteTransport] = {}
        """Connections that have yet to say what they want; the oldest stands first."""
        self.port = 0
        self._token: bytes | None = None

    @abstractmethod
    async def read(self) -> list[Family]:
        """All metrics as they are now."""

    async def start(self, host: str, port: int, *, token: str | None = None) -> None:
        """Listens; raises ListenError.

        Args:
            token: what every scrape must show; None serves everybody who reaches the port.
        """
        self._token = None if token is None else token.encode()
        # Not at the first scrape: it takes a tenth of a second, in which nobody else would be served.
        await asyncio.to_thread(import_module, "prometheus_client.exposition")
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
