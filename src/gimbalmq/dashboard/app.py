"""The web application: pages, login, and the server that runs them."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from nicegui import app as pages
from nicegui import ui
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint

from gimbalmq.admin.admin import Admin
from gimbalmq.dashboard import groups, messages, overview, preview
from gimbalmq.dashboard.observer import Observer
from gimbalmq.dashboard.site import Site

log = logging.getLogger(__name__)


def build(namesrv: str, *, user: str, password: str | None, read_only: bool, **options: Any) -> FastAPI:
    """The application; it connects to the cluster when it starts and leaves it when it ends."""
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
    if password is not None:
        made.add_middleware(_LoginFirst)
        _add_login(site)
    for module in (overview, groups, messages, preview):
        module.add_pages(site)
    # The key signs the cookie of one run: after a restart everybody logs in again.
    ui.run_with(
        made, title="GimbalMQ", storage_secret=secrets.token_hex(32), show_welcome_message=False, dark=None
    )
    return made


class _LoginFirst(BaseHTTPMiddleware):
    """Nobody sees a page before the login; files of the page library are no secret."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        path = request.url.path
        if path == "/login" or path.startswith("/_nicegui") or pages.storage.user.get("known"):
            return await call_next(request)
        return RedirectResponse(f"/login?then={quote(path)}")


def _add_login(site: Site) -> None:
    @ui.page("/login")
    def login_page(then: str = "/") -> None:
        def check() -> None:
            if site.knows(name.value or "", word.value or ""):
                pages.storage.user["known"] = True
                # Only ways within this site: an address in a link must not lead away from it.
                ui.navigate.to(then if then.startswith("/") and not then.startswith("//") else "/")
            else:
                log.warning("a login as %r failed", name.value)
                ui.notify("Wrong name or password.", type="negative")

        ui.page_title("Log in · GimbalMQ")
        with ui.card().classes("absolute-center"):
            ui.label("GimbalMQ").classes("text-xl")
            name = ui.input("Name", value=site.user).on("keydown.enter", check)
            word = ui.input("Password", password=True).props("autofocus").on("keydown.enter", check)
            ui.button("Log in", on_click=check)


def serve(application: FastAPI, host: str, port: int, *, debug: bool = False) -> None:
    """Runs until SIGTERM or Ctrl-C."""
    config = uvicorn.Config(
        application,
        host=host,
        port=port,
        log_level="debug" if debug else "warning",
        timeout_graceful_shutdown=2,
    )
    uvicorn.Server(config).run()
