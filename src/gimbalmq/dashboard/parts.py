"""What pages are made of: the frame around each, tables, and parts that bring themselves up to date."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import quote

from nicegui import ui
from nicegui.events import GenericEventArguments

from gimbalmq.dashboard.site import Viewer
from gimbalmq.errors import NoPermissionError

T = TypeVar("T")

NAVIGATION = (
    ("Cluster", "/", "dns"),
    ("Topics", "/topics", "topic"),
    ("Groups", "/groups", "groups"),
    ("Messages", "/messages", "search"),
    ("Dead letters", "/dead-letters", "report"),
    ("Balance preview", "/preview", "balance"),
)

THEME_COOKIE = "gimbalmq-theme"
REFUSED_SECONDS = 30.0
"""Until a page asks again for what the cluster has refused."""
PAGE_ROWS = 50

_STYLE = """
.q-table td, .q-table th { font-variant-numeric: tabular-nums; }
.q-table th { font-weight: 600; opacity: .85; }
.q-table td.wraps { white-space: normal; overflow-wrap: anywhere; min-width: 12rem; }
.nicegui-content { padding: 0; }
a { color: inherit; text-decoration: underline; text-underline-offset: 2px; }
a.entry { text-decoration: none; }
a.entry:hover { background: rgba(127,127,127,.12); }
.body--light { background: #f7f9fb; }
.body--light .text-quiet { color: #55606b; }
.body--dark .text-quiet { color: #a9b3bd; }
.body--light .text-problem { color: #a3142a; }
.body--dark .text-problem { color: #ff9aa5; }
a.entry[aria-current] { font-weight: 600; box-shadow: inset 3px 0 0 #e0842b; }
.body--light a.entry[aria-current] { color: #27598f; background: #eaf1f8; }
.body--dark a.entry[aria-current] { color: #8ec1ff; background: #26303b; }
.body--dark .q-field, .body--dark .q-btn--flat, .body--dark .q-toggle, .body--dark .q-menu { --q-primary: #8ec1ff; }
:focus-visible { outline: 2px solid #e0842b; outline-offset: 2px; }
.body-text { white-space: pre-wrap; overflow-wrap: anywhere; }
.skip { position: absolute; left: -999px; top: 4px; z-index: 9999; padding: 8px; background: #fff; color: #000; }
.skip:focus { left: 4px; }
#content:focus { outline: none; }
@media (max-width: 599px) {
  .q-table__container td:first-child, .q-table__container th:first-child
    { position: sticky; left: 0; z-index: 1; background: inherit; }
  .body--light .q-table__container tr { background: #fff; }
  .body--dark .q-table__container tr { background: #1d1d1d; }
}
@media (prefers-reduced-motion: reduce) { * { transition: none !important; animation: none !important; } }
"""

_SWITCH_DARK = f"""() => {{
    const dark = !Quasar.Dark.isActive;
    document.cookie = "{THEME_COOKIE}=" + (dark ? "dark" : "light") + "; path=/; max-age=31536000; samesite=strict";
    emit(dark);
}}"""

_GO_TO = """(event) => {
    const name = event.target.value.trim();
    if (name) window.location.href = "/%s/" + encodeURIComponent(name);
}"""


@contextmanager
def frame(viewer: Viewer, title: str, *, within: str = "") -> Iterator[None]:
    """Header, navigation and footer; the page's own content goes inside.

    Args:
        within: the entry of the navigation it belongs to, where that is not its title.
    """
    ui.page_title(f"{title} · GimbalMQ")
    look()
    dark = ui.dark_mode(_wanted_theme())

    def switch_dark(event: GenericEventArguments) -> None:
        dark.value = bool(event.args)
        for element in list(ui.context.client.elements.values()):
            if isinstance(element, ui.echart):
                element.update()  # colours are chosen when it is drawn

    with ui.header(elevated=False).classes("items-center gap-2 px-3 py-2 no-wrap"):
        menu = ui.button(icon="menu").props('flat dense color=white aria-label="Navigation"')
        ui.label("GimbalMQ").classes("text-lg font-medium")
        ui.label(viewer.site.namesrv).classes("text-sm opacity-80 gt-xs ellipsis")
        ui.space()
        if viewer.user:
            ui.label(viewer.user).classes("text-sm ellipsis").props('aria-label="Logged in as"').mark("user")
        if viewer.is_there and viewer.read_only:
            with ui.badge("read-only", color="accent").props("text-color=black"):
                ui.tooltip(viewer.read_only)
        contrast = ui.button(icon="contrast").props('flat dense color=white aria-label="Light or dark"')
        contrast.on("click", switch_dark, js_handler=_SWITCH_DARK)
        if viewer.session is not None:
            with ui.element("form").props('method=post action="/logout"'):
                ui.button(icon="logout").props('flat dense color=white type=submit aria-label="Log out"')
    with ui.left_drawer(value=False, bordered=True).classes("p-0 py-2 gap-0") as drawer:
        drawer.props("show-if-above width=210 breakpoint=900")
        with ui.element("nav").props('aria-label="Pages"').classes("w-full"):
            for text, link, icon in NAVIGATION:
                _entry(text, link, icon, active=text == (within or title))
    menu.on_click(drawer.toggle)
    skip = ui.link("Skip to content", "#content").classes("skip")
    skip.move(ui.context.client.layout, target_index=0)
    with (
        ui.column()
        .classes("w-full max-w-screen-xl mx-auto p-3 sm:p-5 gap-4")
        .props('id="content" tabindex=-1')
    ):
        ui.label(title).classes("text-2xl break-all").props('role="heading" aria-level="1"')
        yield


def look() -> None:
    """Colours and styles of every page, the login too."""
    ui.colors(primary="#27598f", secondary="#5a6f86", accent="#e0a02b")
    ui.add_css(_STYLE)


def _wanted_theme() -> bool | None:
    """What the viewer chose; else None, which is what their system says."""
    return {"dark": True, "light": False}.get(ui.context.client.request.cookies.get(THEME_COOKIE, ""))


def _entry(text: str, link: str, icon: str, *, active: bool) -> None:
    with ui.link(target=link).classes("entry row items-center no-wrap gap-3 px-4 py-2") as entry:
        ui.icon(icon, size="sm")
        ui.label(text)
    if active:
        entry.props('aria-current="page"')


def ask_by_name(kind: str, label: str) -> None:
    """A way to a page for those who may not see the whole list."""
    # The browser goes there by itself: an event for the server would be lost if the page is not connected yet.
    name = ui.input(label).props("dense outlined").classes("w-full sm:w-64")
    name.on("keydown.enter", js_handler=_GO_TO % kind)


def heading(text: str) -> None:
    ui.label(text).classes("text-lg font-medium").props('role="heading" aria-level="2"')


def table(
    columns: Sequence[tuple[str, str]],
    rows: Sequence[Mapping[str, Any]] = (),
    *,
    key: str,
    numbers: Sequence[str] = (),
    links: Sequence[str] = (),
    wraps: Sequence[str] = (),
    label: str,
    empty: str = "Nothing here.",
) -> ui.table:
    """A table whose ``numbers`` stand to the right; cells named in ``links`` lead to ``<name>Link``.

    Vue writes cell texts as text, so no name or message can become markup.
    """
    made = ui.table(
        columns=[
            {
                "name": name,
                "label": text,
                "field": name,
                "sortable": True,
                "align": "right" if name in numbers else "left",
                "classes": "wraps" if name in wraps else "",
            }
            for name, text in columns
        ],
        rows=[dict(row) for row in rows],
        row_key=key,
        pagination=PAGE_ROWS,
    ).classes("w-full")
    made.props(f'flat bordered dense hide-pagination aria-label="{label}" no-data-label="{empty}"')
    with made.add_slot("no-data"):  # Quasar's own has a sign of warning beside it
        ui.element("span").props(':id="undefined" :textContent="props.message"')
    fill(made, made.rows)
    for name in links:
        with cell_of(made, name):
            ui.element("a").props(f':id="undefined" :href="props.row.{name}Link" :textContent="props.value"')
    return made


@contextmanager
def cell_of(made: ui.table, name: str) -> Iterator[None]:
    """What goes inside stands in each cell of a column; ``props`` of its expressions is the cell.

    Elements instead of a template: a template is mounted anew with every change on the page, and whoever
    stands on it with the keyboard would lose their place.
    """
    with made.add_slot(f"body-cell-{name}"), ui.element("q-td").props(':id="undefined" :props="props"'):
        yield


def fill(made: ui.table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Gives a table other rows, if they are others: what stays is not sent again."""
    listed = [dict(row) for row in rows]
    if listed != made.rows:
        made.rows = listed
    fits = len(listed) <= PAGE_ROWS
    if fits != ("hide-pagination" in made.props):
        made.props(**{"add" if fits else "remove": "hide-pagination"})


def link_to(*parts: str) -> str:
    return "/" + "/".join(quote(part, safe="") for part in parts)


# -- what goes wrong -------------------------------------------------------------------


def live(
    viewer: Viewer, every: float, work: Callable[[], Awaitable[object]]
) -> Callable[[], Awaitable[None]]:
    """Runs once the page is there, and again and again while it is open.

    What goes wrong stands here until it works again; the page keeps what it had. What the cluster refuses is asked
    again only now and then, because it notes every refusal. The result runs it at once.
    """
    strip = ui.column().classes("w-full")
    strip.visible = False
    said = ""
    not_before = 0.0

    async def ask() -> None:
        nonlocal said, not_before
        refused = False

        async def watched() -> None:
            nonlocal refused
            try:
                await work()
            except NoPermissionError:
                refused = True
                raise

        text = await viewer.problem_of(watched)
        not_before = asyncio.get_running_loop().time() + REFUSED_SECONDS if refused else 0.0
        if text != said:
            said = text
            strip.clear()
            strip.visible = bool(text)
            if text:
                with strip:
                    problem(text)

    async def turn() -> None:
        if viewer.is_there and asyncio.get_running_loop().time() >= not_before:
            await ask()

    async def again() -> None:
        viewer.did_something()
        await ask()

    ui.timer(every, turn)
    return again


async def attempt(viewer: Viewer, work: Callable[[], Awaitable[T]]) -> T | None:
    """Runs what somebody asked for and tells them why it failed; None then."""
    found: list[T] = []

    async def run() -> None:
        found.append(await work())

    viewer.did_something()
    text = await viewer.problem_of(run)
    if text:
        ui.notify(text, type="negative", multi_line=True, close_button="Close", timeout=10_000)
    return found[0] if found else None


def problem(text: str) -> None:
    """Something an operator should see at once."""
    with ui.row().classes("items-center gap-2 no-wrap text-problem").props('role="alert"'):
        ui.icon("error", size="sm")
        ui.label(text).classes("break-words")
