"""The web application: who gets to which page, and the server that runs it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import signal
import socket
from collections.abc import AsyncIterator
from urllib.parse import quote, urlsplit

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response
from nicegui import app as pages
from nicegui import ui
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.types import ASGIApp

from gimbalmq.dashboard import groups, login, messages, overview, preview
from gimbalmq.dashboard.https import Https
from gimbalmq.dashboard.site import LOGIN_KEY, Door, Site

_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><circle cx="16" cy="16" r="13" fill="none" '
    'stroke="#27598f" stroke-width="3"/><ellipse cx="16" cy="16" rx="13" ry="5" fill="none" stroke="#e0842b" '
    'stroke-width="3"/><circle cx="16" cy="16" r="4" fill="#27598f"/></svg>'
)

# The page library evaluates code that it made itself, hence unsafe-eval; nothing is loaded from elsewhere.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; font-src 'self' data:; connect-src 'self'; object-src 'none'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}


def build(
    site: Site, *, hosts: tuple[str, ...] = (), secure: bool = False, https: Https | None = None
) -> FastAPI:
    """The application; it connects to the cluster when it starts and leaves it when it ends.

    Args:
        hosts: names under which a browser may ask if there is no login: another name that leads here
            belongs to a foreign site that wants to read the page through the viewer's browser.
        secure: the browser speaks HTTPS, so its cookie may not travel without.
        https: whose files are watched for changes.
    """

    @contextlib.asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        site.start()
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(site.look_after())]
        if https is not None:
            tasks.append(loop.create_task(https.watch()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await site.close()

    made = FastAPI(title="GimbalMQ", docs_url=None, redoc_url=None, openapi_url=None, lifespan=life)
    pages.add_middleware(_Guard, site=site, hosts=hosts)
    login.add_pages(site)
    for module in (overview, groups, messages, preview):
        module.add_pages(site)
    ui.run_with(
        made,
        title="GimbalMQ",
        favicon=_ICON,
        language="en-US",
        dark=None,
        # The key signs the cookies of one run: after a restart everybody logs in again.
        storage_secret=secrets.token_hex(32),
        session_middleware_kwargs={
            # Cookies know no ports; the prefix keeps everybody but this host's HTTPS from setting one.
            "session_cookie": "__Host-gimbalmq-session" if secure else "gimbalmq-session",
            "max_age": math.ceil(site.longest),
            "same_site": "lax",
            "https_only": secure,
        },
        show_welcome_message=False,
    )
    return made


class _Guard(BaseHTTPMiddleware):
    """Nobody sees a page before the login; files of the page library are no secret."""

    def __init__(self, app: ASGIApp, *, site: Site, hosts: tuple[str, ...]) -> None:
        super().__init__(app)
        self._site = site
        self._hosts = hosts

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = self._refused(request) or await call_next(request)
        response.headers.update(_HEADERS)
        return response

    def _refused(self, request: Request) -> Response | None:
        site, path = self._site, request.url.path
        if not of_our_pages(request):
            return PlainTextResponse("another site has sent this form", 403)
        if site.door is Door.OPEN:
            if self._hosts and request.url.hostname not in self._hosts:
                return PlainTextResponse("ask for this page by the address it listens on", 400)
            return RedirectResponse("/", 303) if path in ("/login", "/logout") else None
        if path in ("/login", "/favicon.ico") or path.startswith(("/_nicegui/", "/_nicegui_ws/")):
            return None
        session = site.sessions.find(request.session.get(LOGIN_KEY))
        if session is not None:
            site.sessions.use(session)
            return None
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"/login?then={quote(path + query)}", 303)


def of_our_pages(request: Request) -> bool:
    """Whether a request that changes something comes from a page of ours, or from no page at all.

    The cookie alone would stop other sites from acting for somebody who is logged in, but not from logging somebody in
    under a foreign name.
    """
    if request.method in ("GET", "HEAD", "OPTIONS") or request.url.path.startswith("/_nicegui"):
        return True
    fetched_by = request.headers.get("sec-fetch-site")
    if fetched_by is not None:
        return fetched_by in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


def listen(host: str, port: int) -> socket.socket:
    """The socket to serve on; raises OSError if the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)


def serve(
    application: FastAPI,
    listening: socket.socket,
    *,
    https: Https | None = None,
    proxies: tuple[str, ...] = (),
    debug: bool = False,
) -> None:
    """Runs until SIGTERM or Ctrl-C, and returns then.

    Args:
        proxies: addresses of proxies in front of it, whose word counts for where a request comes from.
    """
    # The server passes on the signal that ended it; without a handler of ours it would end the process.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    config = uvicorn.Config(
        application,
        log_config=None,
        log_level="debug" if debug else "warning",
        timeout_graceful_shutdown=1,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
        ssl_context_factory=None if https is None else lambda *_: https.context,
    )
    uvicorn.Server(config).run(sockets=[listening])
