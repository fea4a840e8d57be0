"""The web application: pages, login, and the server that runs them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, quote

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response
from nicegui import Client, ui
from nicegui import app as pages
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.types import ASGIApp

from gimbalmq.admin.admin import Admin
from gimbalmq.dashboard import groups, messages, overview, preview
from gimbalmq.dashboard.observer import Observer
from gimbalmq.dashboard.site import Site, look, problem

log = logging.getLogger(__name__)

LOGIN_KEY = "login"
MOST_LOGIN_BYTES = 10_000
WRONG_PAUSE = 0.5
"""Seconds one wrong password costs everybody who tries one."""

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
    namesrv: str,
    *,
    user: str,
    password: str | None,
    read_only: bool,
    hosts: tuple[str, ...] = (),
    **options: Any,
) -> FastAPI:
    """The application; it connects to the cluster when it starts and leaves it when it ends.

    Args:
        hosts: names under which a browser may ask where there is no password: another name that leads here
            belongs to a foreign site that wants to read the page through the viewer's browser.
        options: further options of ``Admin``.
    """
    admin = Admin(namesrv, **options)
    site = Site(admin, Observer(admin), namesrv, user, password, read_only)

    @contextlib.asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        site.observer.start()
        try:
            yield
        finally:
            await site.observer.close()
            await admin.close()

    made = FastAPI(title="GimbalMQ", docs_url=None, redoc_url=None, openapi_url=None, lifespan=life)
    pages.add_middleware(_Guard, site=site, hosts=hosts)
    if password is not None:
        _add_login(site)
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
        session_middleware_kwargs={"session_cookie": "gimbalmq-session"},
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
        if self._site.password is None:
            if self._hosts and request.url.hostname not in self._hosts:
                return PlainTextResponse("ask for this page by the address it listens on", 400)
            return None
        path = request.url.path
        if path in ("/login", "/favicon.ico") or path.startswith(("/_nicegui/", "/_nicegui_ws/")):
            return None
        if request.session.get(LOGIN_KEY) in self._site.logins:
            return None
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"/login?then={quote(path + query)}", 303)


def _add_login(site: Site) -> None:
    one_by_one = asyncio.Lock()

    @ui.page("/login")
    def login_page(then: str = "/", wrong: str = "") -> None:
        ui.page_title("Log in · GimbalMQ")
        look()
        ui.dark_mode(None)
        with (
            ui.card().classes("absolute-center w-80"),
            ui.element("form").props('method=post action="/login"').classes("w-full column gap-3"),
        ):
            ui.label("GimbalMQ").classes("text-xl font-medium").props('role="heading" aria-level="1"')
            if wrong:
                problem("Wrong name or password.")
            ui.input("Name", value=site.user).props("name=user autocomplete=username").classes("w-full")
            word = ui.input("Password", password=True).classes("w-full")
            word.props("name=password autocomplete=current-password autofocus")
            hidden = ui.element("input").props("type=hidden name=then")
            hidden.props["value"] = _within(then)
            ui.button("Log in").props("type=submit").classes("w-full")

    @pages.post("/login")
    async def log_in(request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MOST_LOGIN_BYTES:
                return PlainTextResponse("too long", 413)
        form = parse_qs(body.decode(errors="replace"), keep_blank_values=True)
        then = _within(form.get("then", ["/"])[0])
        async with one_by_one:  # so that guessing is slow
            if site.knows(form.get("user", [""])[0], form.get("password", [""])[0]):
                request.session[LOGIN_KEY] = site.new_login()
                return RedirectResponse(then, 303)
            await asyncio.sleep(WRONG_PAUSE)
        log.warning("a login from %s failed", request.client.host if request.client else "nowhere")
        return RedirectResponse(f"/login?wrong=1&then={quote(then)}", 303)

    @pages.post("/logout")
    async def log_out(request: Request) -> Response:
        token = request.session.pop(LOGIN_KEY, "")
        site.logins.pop(token, None)
        # Pages that are open in other tabs of the same viewer go too.
        for client in list(Client.instances.values()):
            if client.request.session.get(LOGIN_KEY) == token:
                client.open("/login")
        return RedirectResponse("/login", 303)


def _within(then: str) -> str:
    """Only ways within this site: an address in a link must not lead away from it."""
    safe = then.startswith("/") and not then.startswith(("//", "/\\")) and then.isprintable()
    return then if safe else "/"


def listen(host: str, port: int) -> socket.socket:
    """The socket to serve on; raises OSError if the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)


def serve(application: FastAPI, listening: socket.socket, *, debug: bool = False) -> None:
    """Runs until SIGTERM or Ctrl-C, and returns then."""
    # The server passes on the signal that ended it; without a handler of ours it would end the process.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    config = uvicorn.Config(
        application,
        log_config=None,
        log_level="debug" if debug else "warning",
        timeout_graceful_shutdown=1,
        server_header=False,
    )
    uvicorn.Server(config).run(sockets=[listening])
