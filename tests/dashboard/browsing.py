"""What tests of pages stand on: the command in a process, a browser, and what no page may do."""

from __future__ import annotations

import re
import shutil
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from gimbalmq import ConsumeFromWhere, MessageView
from gimbalmq.sync import PushConsumer
from gimbalmq.testing.cluster import ThreadCluster
from tests.cli.commands import Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Page, Request

pytest.importorskip("nicegui", reason="the extra gimbalmq[dashboard] is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

IN_A_BROWSER = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome is on the PATH"
    ),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("dashboard"),
]

PATIENCE = 40_000


@contextmanager
def dashboard(namesrv: str, *words: object) -> Iterator[str]:
    """The command on a free port: its address. It must end in peace, and nothing may fail meanwhile."""
    with serving("dashboard", "--port", 0, "--namesrv", namesrv, *words) as server:
        yield address_of(server)
        assert server.end() == 0, server.errors
        assert "Traceback" not in server.errors, server.errors


def address_of(server: Server) -> str:
    found = re.search(r"https?://\S+", server.ready())
    assert found is not None
    return found.group(0)


def ignore(message: MessageView) -> None:
    pass


def consumer(
    cluster: ThreadCluster,
    group: str,
    topic: str,
    handler: Callable[[MessageView], object] = ignore,
    **options: Any,
) -> PushConsumer:
    first = ConsumeFromWhere.FIRST_OFFSET
    made = PushConsumer(group, cluster.namesrv, consume_from_where=first, persist_interval=0.1, **options)
    made.subscribe(topic, "*", handler)
    return made


@dataclass
class Watched:
    """What a page did that no page may do."""

    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def attach(self, page: Page) -> None:
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        page.on("request", self._on_request)
        page.on("websocket", lambda socket: self.hosts.add(_host(socket.url)))

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"console: {message.text}")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(("data:", "blob:")):
            self.hosts.add(_host(request.url))


def _host(url: str) -> str:
    return re.sub(r"^\w+://([^/:]+).*", r"\1", url, flags=re.DOTALL)


Open = Callable[..., "Page"]


def expect(found: Any) -> Any:
    return playwright.expect(found)


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def answer_to(
    address: str, body: bytes | None = None, *, headers: dict[str, str] | None = None, ca: str | None = None
) -> tuple[int, dict[str, str]]:
    """Status and headers of one answer; no redirection is followed."""
    request = urllib.request.Request(address, body, headers or {})
    trusting = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca))
    try:
        with urllib.request.build_opener(_Stay, trusting).open(request, timeout=60) as answer:
            return answer.status, {name.lower(): value for name, value in answer.headers.items()}
    except urllib.error.HTTPError as error:
        with error:
            return error.code, {name.lower(): value for name, value in error.headers.items()}
