"""What all pages share: the cluster, its history, who may do what, and the frame around each page."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from nicegui import app, ui

from gimbalmq.admin.admin import Admin
from gimbalmq.dashboard.observer import Observer
from gimbalmq.errors import RocketMQError

NAVIGATION = (
    ("Cluster", "/", "dns"),
    ("Topics", "/topics", "topic"),
    ("Groups", "/groups", "groups"),
    ("Messages", "/messages", "search"),
    ("Dead letters", "/dead-letters", "report"),
    ("Balance preview", "/preview", "balance"),
)

OWNER_COLOURS = (
    "#2a78d4", "#e0842b", "#3f9e5a", "#c23b50", "#7d5bc4", "#1a9ba8",
    "#b08a1f", "#d0589b", "#5c7d2f", "#8a5a44", "#5a6f86", "#6b4fbf",
)  # fmt: skip
"""One for each member, in their order, on light and dark ground alike."""


@dataclass
class Site:
    """The dashboard's settings and its view of the cluster.

    Attributes:
        password: what the login asks for; None where everybody who reaches the port may look.
        read_only: nothing can be changed through the page.
    """

    admin: Admin
    observer: Observer
    namesrv: str
    user: str = "admin"
    password: str | None = None
    read_only: bool = False

    def knows(self, user: str, password: str) -> bool:
        """Compared in constant time, so that a wrong one tells nothing of the right one."""
        wanted = self.password or ""
        return hmac.compare_digest(user.encode(), self.user.encode()) & hmac.compare_digest(
            password.encode(), wanted.encode()
        )

    def must_be_writable(self) -> None:
        """The last guard before every change, whatever the page showed."""
        if self.read_only:
            raise PermissionError(
                "this dashboard is read-only; start it without --read-only to change things"
            )


@contextmanager
def frame(site: Site, title: str) -> Iterator[None]:
    """Header, navigation and footer; the page's own content goes inside."""
    ui.page_title(f"{title} · GimbalMQ")
    ui.colors(primary="#27598f", secondary="#5a6f86", accent="#e0842b")
    dark = ui.dark_mode(app.storage.user.get("dark"))
    ui.add_css(
        """
        .q-table td, .q-table th { font-variant-numeric: tabular-nums; }
        a { color: inherit; text-decoration: underline; text-underline-offset: 2px; }
        :focus-visible { outline: 2px solid #e0842b; outline-offset: 2px; }
        .body-text { white-space: pre-wrap; overflow-wrap: anywhere; }
        """
    )

    def switch_dark() -> None:
        dark.value = not dark.value
        app.storage.user["dark"] = dark.value

    with ui.header(elevated=False).classes("items-center gap-2"):
        menu = ui.button(icon="menu").props('flat dense color=white aria-label="Navigation"')
        ui.label("GimbalMQ").classes("text-lg font-medium")
        ui.label(site.namesrv).classes("text-sm opacity-80 gt-xs")
        ui.space()
        if site.read_only:
            ui.badge("read-only", color="accent")
        ui.button(icon="dark_mode", on_click=switch_dark).props(
            'flat dense color=white aria-label="Light or dark"'
        )
        if site.password is not None:
            ui.button(icon="logout", on_click=_log_out).props('flat dense color=white aria-label="Log out"')
    with ui.left_drawer(value=None, bordered=True).props("width=210 breakpoint=900") as drawer:
        for text, link, icon in NAVIGATION:
            with (
                ui.link(target=link).classes("w-full no-underline"),
                ui.row().classes("items-center gap-3 p-1"),
            ):
                ui.icon(icon)
                ui.label(text)
    menu.on_click(drawer.toggle)
    with ui.column().classes("w-full max-w-screen-xl mx-auto p-2 sm:p-4 gap-4"):
        ui.label(title).classes("text-2xl").props('role="heading" aria-level="1"')
        yield


def _log_out() -> None:
    app.storage.user.clear()
    ui.navigate.to("/login")


def table(
    columns: Sequence[tuple[str, str]],
    rows: Sequence[Mapping[str, Any]],
    *,
    key: str,
    links: Sequence[str] = (),
    label: str,
    empty: str = "Nothing here.",
) -> ui.table:
    """A table whose numbers stand to the right; cells named in ``links`` lead to ``<name>Link``.

    Vue writes cell texts as text, so no name or message can become markup.
    """
    made = ui.table(
        columns=[
            {
                "name": name,
                "label": text,
                "field": name,
                "sortable": True,
                "align": "right" if rows and isinstance(rows[0].get(name), int | float) else "left",
            }
            for name, text in columns
        ],
        rows=[dict(row) for row in rows],
        row_key=key,
        pagination=50,
    ).classes("w-full")
    made.props(f'flat bordered dense aria-label="{label}" no-data-label="{empty}"')
    for name in links:
        made.add_slot(
            f"body-cell-{name}",
            f'<q-td :props="props"><a :href="props.row.{name}Link">{{{{ props.value }}}}</a></q-td>',
        )
    return made


def link_to(*parts: str) -> str:
    return "/" + "/".join(quote(part, safe="") for part in parts)


async def attempt(work: Callable[[], Awaitable[Any]]) -> Any:
    """Runs what may fail and tells the viewer why it did; None then."""
    try:
        return await work()
    except (RocketMQError, PermissionError) as error:
        ui.notify(str(error), type="negative", multi_line=True, close_button="Close", timeout=0)
        return None


def problem(text: str) -> None:
    """Something an operator should see at once."""
    with ui.row().classes("items-center gap-2 text-negative").props('role="alert"'):
        ui.icon("error")
        ui.label(text)
