"""Pages of messages: search and view; dead letters and their redrive."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

from nicegui import ui
from nicegui.events import GenericEventArguments

from gimbalmq.admin.admin import Admin
from gimbalmq.admin.message_texts import body_text
from gimbalmq.admin.moments import parse_moment
from gimbalmq.admin.texts import moment, printable
from gimbalmq.dashboard.parts import attempt, cell_of, fill, frame, link_to, live, table
from gimbalmq.dashboard.site import Site, Viewer
from gimbalmq.errors import ConfigError, TopicRouteNotFoundError
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue

log = logging.getLogger(__name__)

MOST = 200
MOST_BODY = 100_000
_HOWS = {
    "newest": "Newest",
    "key": "Key",
    "id": "Message id",
    "place": "Queue and offset",
    "since": "Stored since",
}
_HINTS = {
    "newest": "how many of each queue (10)",
    "key": "a key of the message",
    "id": "offset id or unique id",
    "place": "broker-a/3 100",
    "since": "15m, or 2026-11-15 12:00",
}


def add_pages(site: Site) -> None:
    @ui.page("/messages")
    def messages_page(topic: str = "", how: str = "newest", what: str = "") -> None:
        viewer = site.viewer()
        with frame(viewer, "Messages"):
            search_view(viewer, topic, how if how in _HOWS else "newest", what)

    @ui.page("/dead-letters")
    def dead_letters_page() -> None:
        viewer = site.viewer()
        with frame(viewer, "Dead letters"):
            dead_groups_view(viewer)

    @ui.page("/dead-letters/{group:path}")
    def dead_group_page(group: str) -> None:
        viewer = site.viewer()
        with frame(viewer, f"Dead letters of {group}", within="Dead letters"):
            dead_letters_view(viewer, group)


# -- search ---------------------------------------------------------------------------


def search_view(viewer: Viewer, topic: str, how: str, what: str) -> None:
    wanted = topic

    async def names() -> None:
        nonlocal wanted
        found = await viewer.admin.topics.names()
        if found != which.options:
            which.set_options(found, value=which.value if which.value in found else None)
        if wanted in found:
            which.value, wanted = wanted, ""
            await search()

    live(viewer, 10.0, names)
    with ui.row().classes("items-end gap-3 w-full"):
        which = ui.select([], label="Topic", with_input=True).classes("w-full sm:w-64")
        kind = ui.select(_HOWS, label="By", value=how).classes("w-full sm:w-44")
        text = ui.input(label="Value", value=what, placeholder=_HINTS[how]).classes("grow min-w-48")
        button = ui.button("Search", icon="search")

    def hint() -> None:
        text.props["placeholder"] = _HINTS[kind.value]
        text.update()

    kind.on_value_change(hint)
    results = ui.column().classes("w-full")

    async def search() -> None:
        if not which.value:
            ui.notify("Choose a topic.", type="warning")
            return
        views = await attempt(viewer, lambda: find(viewer.admin, which.value, kind.value, text.value or ""))
        results.clear()
        if views is not None:
            with results:
                count = f"the first {MOST}" if len(views) >= MOST else str(len(views))
                ui.label(f"{count} found" if views else "").classes("text-quiet")
                show_messages(views, empty="No message was found.")

    button.on_click(search)
    text.on("keydown.enter", search)


async def find(admin: Admin, topic: str, how: str, what: str) -> Sequence[MessageView]:
    """Messages as the form describes them, at most ``MOST``."""
    what = what.strip()
    if how == "key":
        return await admin.messages.by_key(topic, what, limit=MOST)
    if how == "id":
        return [await admin.messages.by_id(what, topic=topic)]
    if how == "place":
        return [await admin.messages.by_offset(*_place(topic, what))]
    if how == "since":
        ranges = await admin.messages.ranges(topic, begin_ms=parse_moment("Stored since", what or "15m"))
    else:
        if what and not what.isdigit():
            raise ConfigError("Newest", what, "write a number")
        ranges = await admin.messages.ranges(topic, newest=int(what or 10))
    found = await first(admin.messages.read(topic, dict(ranges)))
    return sorted(found, key=lambda view: view.store_timestamp, reverse=True)


async def first(reading: AsyncIterator[MessageView], most: int = MOST) -> list[MessageView]:
    """The first few of a stream, which is ended then."""
    found: list[MessageView] = []
    async for view in reading:
        found.append(view)
        if len(found) >= most:
            break
    if isinstance(reading, AsyncGenerator):
        await reading.aclose()
    return found


def _place(topic: str, text: str) -> tuple[MessageQueue, int]:
    queue, _, offset = text.partition(" ")
    broker, slash, number = queue.rpartition("/")
    if not slash or not number.isdigit() or not offset.strip().isdigit():
        raise ConfigError("Queue and offset", text, "write it like broker-a/3 100")
    return MessageQueue(topic, broker, int(number)), int(offset)


def show_messages(views: Sequence[MessageView], *, empty: str) -> ui.table:
    """A table of messages; a button of each row opens everything about its message."""
    by_key = {str(number): view for number, view in enumerate(views)}
    made = table(
        (("stored", "Stored"), ("place", "Place"), ("tags", "Tags"), ("keys", "Keys"), ("body", "Body")),
        message_rows(views),
        key="number",
        wraps=("body",),
        label="Messages",
        empty=empty,
    )
    with cell_of(made, "stored"):
        button = ui.element("q-btn").props('flat dense no-caps padding="0 4px" color=primary')
        button.props(':id="undefined" :label="props.value"')
    with ui.dialog().props('aria-label="Message"') as dialog:
        card = ui.card().classes("w-full max-w-3xl")

    def open_message(event: GenericEventArguments) -> None:
        view = by_key.get(str(event.args))
        if view is not None:
            card.clear()
            with card:
                show_message(view, dialog.close)
            dialog.open()

    button.on("click", open_message, js_handler="() => emit(props.row.number)")
    return made


def message_rows(views: Sequence[MessageView]) -> list[dict[str, Any]]:
    return [
        {
            "number": str(number),
            "stored": moment(view.store_timestamp)[5:],
            "place": f"{view.broker_name or '-'}/{view.queue_id} @ {view.queue_offset}",
            "tags": view.tags or "",
            "keys": " ".join(view.keys),
            "body": _first_line(view),
        }
        for number, view in enumerate(views)
    ]


def show_message(view: MessageView, close: Callable[[], object]) -> None:
    """Everything about one message. Labels hold text, never markup."""
    body, form = body_text(view)
    with ui.row().classes("w-full items-center justify-between no-wrap"):
        ui.label("Message").classes("text-lg font-medium").props('role="heading" aria-level="2"')
        ui.button(icon="close", on_click=close).props('flat dense aria-label="Close"')
    with ui.element("dl").classes("w-full grid grid-cols-1 sm:grid-cols-[9rem_1fr] gap-x-4 gap-y-1 m-0"):
        for name, value in message_facts(view):
            with ui.element("dt").classes("text-quiet"):
                ui.label(name).classes("body-text")
            with ui.element("dd").classes("m-0"):
                ui.label(value).classes("body-text")
    ui.label("Body, as base64" if form == "bodyBase64" else "Body").classes("text-quiet")
    shown = printable(body[:MOST_BODY]) + ("…" if len(body) > MOST_BODY else "")
    ui.label(shown).classes("body-text font-mono text-sm w-full")


def message_facts(view: MessageView) -> list[tuple[str, str]]:
    facts = [
        ("Message id", view.msg_id),
        ("Offset id", view.offset_msg_id),
        ("Topic", view.topic),
        ("Queue", f"{view.broker_name or '-'}/{view.queue_id} at {view.queue_offset}"),
        ("Tags", view.tags or "-"),
        ("Keys", " ".join(view.keys) or "-"),
        ("Born", f"{moment(view.born_timestamp)} at {view.born_host[0]}:{view.born_host[1]}"),
        ("Stored", f"{moment(view.store_timestamp)} at {view.store_host[0]}:{view.store_host[1]}"),
        ("Tries", str(view.reconsume_times)),
    ]
    facts += [(f"Property {name}", value) for name, value in sorted(view.all_properties.items())]
    return [(printable(name), printable(value or "-")) for name, value in facts]


def _first_line(view: MessageView, most: int = 120) -> str:
    text = body_text(view)[0].replace("\n", " ")
    return text if len(text) <= most else text[:most] + "…"


# -- dead letters ---------------------------------------------------------------------


def dead_groups_view(viewer: Viewer) -> None:
    async def show() -> None:
        fill(
            groups,
            [
                {
                    "group": item.group,
                    "groupLink": link_to("dead-letters", item.group),
                    "count": item.count,
                    "last": moment(item.last_ms),
                }
                for item in await viewer.admin.dead_letters.groups()
            ],
        )

    live(viewer, 5.0, show)
    groups = table(
        (("group", "Group"), ("count", "Dead letters"), ("last", "Last")),
        key="group",
        numbers=("count",),
        links=("group",),
        label="Groups with dead letters",
        empty="No dead letters.",
    )


def dead_letters_view(viewer: Viewer, group: str) -> None:
    shown: list[str] | None = None

    async def show() -> None:
        nonlocal shown
        reading = viewer.admin.dead_letters.read(
            group, everything=not only_new.value, unlock=not viewer.read_only
        )
        try:
            views = await first(reading)
        except TopicRouteNotFoundError:  # made with the first dead letter
            views = []
        ids = [view.offset_msg_id for view in views]
        if ids != shown:
            shown = ids
            letters.clear()
            with letters:
                count = f"the first {MOST}" if len(views) >= MOST else str(len(views))
                ui.label(f"{count} dead letters" if views else "").classes("text-quiet")
                show_messages(views, empty="No dead letters.")

    async def send_back() -> None:
        dialog.close()
        button.disable()
        try:
            sent = await attempt(viewer, lambda: redrive(viewer, group, to_topic=to_topic.value))
        finally:
            button.enable()
        if sent is not None:
            ui.notify(f"{sent} {'dead letter' if sent == 1 else 'dead letters'} went back.", type="positive")
            await again()

    again = live(viewer, 5.0, show)
    with ui.row().classes("items-center gap-4"):
        only_new = ui.switch("Only those never driven back", value=True, on_change=again)
        with ui.dialog() as dialog, ui.card():
            ui.label(f"Send the dead letters of {group} back?")
            ui.label(
                "Those never driven back go to the group's retry topic: only this group sees them again."
            )
            to_topic = ui.switch("To the topics they came from instead, where every group sees them")
            with ui.row():
                ui.button("Redrive", on_click=send_back)
                ui.button("Cancel", on_click=dialog.close).props("flat")
        button = ui.button("Redrive…", icon="replay", on_click=dialog.open)
        if viewer.read_only:
            button.disable()
            ui.label(viewer.read_only).classes("text-quiet")
    letters = ui.column().classes("w-full")


async def redrive(viewer: Viewer, group: str, *, to_topic: bool) -> int:
    """Sends a group's dead letters back; how many."""
    viewer.must_be_writable()
    async with viewer.site.redriving:
        log.info("dead letters of %s are driven back by %s", group, viewer.user or "nobody by name")
        return (await viewer.admin.dead_letters.redrive(group, to_topic=to_topic)).sent
