"""The page that asks who one is, and the two forms: log in, log out."""

from __future__ import annotations

import asyncio
import logging
import math
from urllib.parse import parse_qs, urlencode

from fastapi import Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response
from nicegui import app as pages
from nicegui import ui

from gimbalmq.dashboard.accounts import NotCheckedError, WrongLoginError
from gimbalmq.dashboard.parts import look, problem
from gimbalmq.dashboard.site import LOGIN_KEY, Door, Site
from gimbalmq.errors import ConnectError, RocketMQError

log = logging.getLogger(__name__)

MOST_BYTES = 10_000
MOST_WAITING = 32
"""Logins that are looked at; more are turned away at once."""
REFUSED_AFTER = 1.0
"""Seconds after which a login is refused, whatever was wrong: how long it took must not tell what was."""

_WORDS = {
    "wrong": "Wrong name or secret.",
    "away": "The cluster cannot be asked now. Try again.",
    "unchecked": "The cluster does not check secrets, so nobody can log in. Its log and this one's say more.",
    "busy": "Too many people log in at this moment. Try again.",
}


def add_pages(site: Site) -> None:
    waiting = 0

    @ui.page("/login")
    def login_page(then: str = "/", why: str = "", wait: int = 0) -> None:
        ui.page_title("Log in · GimbalMQ")
        look()
        ui.dark_mode(None)
        of_cluster = site.door is Door.USERS
        with (
            ui.card().classes("absolute-center w-80"),
            ui.element("form").props('method=post action="/login"').classes("w-full column gap-3"),
        ):
            ui.label("GimbalMQ").classes("text-xl font-medium").props('role="heading" aria-level="1"')
            if of_cluster:
                ui.label(f"As a user of the cluster at {site.namesrv}").classes("text-quiet break-words")
            if wait > 0:
                problem(f"Too many wrong tries. The next one counts in {min(wait, 3600)} s.")
            elif why in _WORDS:
                problem(_WORDS[why])
            name = ui.input("Name", value="" if of_cluster else site.user).classes("w-full")
            name.props("name=user autocomplete=username").props("autofocus" if of_cluster else "")
            word = ui.input("Secret" if of_cluster else "Password", password=True).classes("w-full")
            word.props("name=password autocomplete=current-password").props("" if of_cluster else "autofocus")
            hidden = ui.element("input").props("type=hidden name=then")
            hidden.props["value"] = within(then)
            ui.button("Log in").props("type=submit").classes("w-full")

    @pages.post("/login")
    async def log_in(request: Request) -> Response:
        nonlocal waiting
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MOST_BYTES:
                return PlainTextResponse("too long", 413)
        form = parse_qs(body.decode(errors="replace"), keep_blank_values=True)
        user, secret, then = (form.get(name, [""])[0] for name in ("user", "password", "then"))
        if waiting >= MOST_WAITING:
            return _back(then, why="busy")
        waiting += 1
        try:
            return await _decide(site, request, user, secret, within(then))
        finally:
            waiting -= 1

    @pages.post("/logout")
    async def log_out(request: Request) -> Response:
        session = site.sessions.find(request.session.pop(LOGIN_KEY, None))
        if session is not None:
            site.sessions.end(session)
        return RedirectResponse("/login", 303)


async def _decide(site: Site, request: Request, user: str, secret: str, then: str) -> Response:
    address = request.client.host if request.client else "nowhere"
    wait = site.limits.begin(address, user)
    if wait > 0:
        return _back(then, wait=math.ceil(wait))
    loop = asyncio.get_running_loop()
    answer_at = loop.time() + REFUSED_AFTER
    why = "wrong"
    try:
        session = await site.log_in(user, secret)
    except WrongLoginError:
        log.warning("a login from %s failed", address)
    except NotCheckedError as error:
        why = "unchecked"
        log.error("nobody can log in: %s", error)
    except RocketMQError as error:
        why = "away"
        if isinstance(error, ConnectError):  # else the cluster may have been about to refuse
            site.limits.was_nothing(address, user)
        log.warning("a login from %s could not be checked: %s", address, error)
    else:
        site.limits.was_right(address, user)
        before = site.sessions.find(request.session.pop(LOGIN_KEY, None))
        if before is not None:
            site.sessions.end(before)
        request.session[LOGIN_KEY] = session.token
        log.info("%s has logged in from %s", user, address)
        return RedirectResponse(then, 303)
    await asyncio.sleep(answer_at - loop.time())
    return _back(then, why=why)


def _back(then: str, **said: str | int) -> Response:
    return RedirectResponse(f"/login?{urlencode({**said, 'then': within(then)})}", 303)


def within(then: str) -> str:
    """Only ways within this site: an address in a link must not lead away from it."""
    safe = then.startswith("/") and not then.startswith(("//", "/\\")) and then.isprintable()
    return then if safe else "/"
