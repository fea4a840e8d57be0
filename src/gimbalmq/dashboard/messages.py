"""Pages of messages: search and view; dead letters and their redrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nicegui import ui

from gimbalmq.admin.admin import Admin
from gimbalmq.admin.message_texts import body_text, message_text
from gimbalmq.admin.moments import parse_moment
from gimbalmq.admin.texts import moment
from gimbalmq.dashboard.site import Site, attempt, frame, link_to, table
from gimbalmq.errors import ConfigError
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue

MOST = 200
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
    async def messages_page(topic: str = "", how: str = "newest", what: str = "") -> None:
        with frame(site, "Messages"):
            await search_view(site, topic, how if how in _HOWS else "newest", what)

    @ui.page("/dead-letters")
    async def dead_letters_page() -> None:
        with frame(site, "Dead letters"):
            await dead_groups_view(site)

    @ui.page("/dead-letters/{group:path}")
    async def dead_group_page(group: str) -> None:
        with frame(site, f"Dead letters of {group}"):
            await dead_letters_view(site, group)


# -- search ---------------------------------------------------------------------------


async def search_view(site: Site, topic: str, how: str, what: str) -> None:
    names = await attempt(site.admin.topics.names) or []
    with ui.row().classes("items-end gap-2 w-full"):
        which = ui.select(names, label="Topic", value=topic if topic in names else None, with_input=True)
        which.classes("min-w-48")
        kind = ui.select(_HOWS, label="By", value=how).classes("min-w-36")
        text = ui.input(label="Value", value=what, placeholder=_HINTS[how]).classes("grow")
        button = ui.button("Search", icon="search")
    kind.on_value_change(lambda event: text.props(f'placeholder="{_HINTS[event.value]}"'))
    results = ui.column().classes("w-full")

    async def search() -> None:
        if not which.value:
            ui.notify("Choose a topic.", type="warning")
            return
        views = await attempt(lambda: find(site.admin, which.value, kind.value, text.value or ""))
        results.clear()
        with results:
            show_messages(views or [], empty="No message was found.")

    button.on_click(search)
    text.on("keydown.enter", search)
    if topic:
        await search()


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
    found: list[MessageView] = []
    async for view in admin.messages.read(topic, dict(ranges)):
        found.append(view)
        if len(found) >= MOST:
            break
    return sorted(found, key=lambda view: view.store_timestamp, reverse=True)


def _place(topic: str, text: str) -> tuple[MessageQueue, int]:
    queue, _, offset = text.partition(" ")
    broker, slash, number = queue.rpartition("/")
    if not slash or not number.isdigit() or not offset.strip().isdigit():
        raise ConfigError("Queue and offset", text, "write it like broker-a/3 100")
    return MessageQueue(topic, broker, int(number)), int(offset)


def show_messages(views: Sequence[MessageView], *, empty: str) -> ui.table:
    """A table of messages; a row opens everything about its message."""
    by_key = {str(number): view for number, view in enumerate(views)}
    rows: list[dict[str, Any]] = [
        {
            "number": number,
            "stored": moment(view.store_timestamp),
            "place": f"{view.broker_name or '-'}/{view.queue_id} @ {view.queue_offset}",
            "tags": view.tags or "",
            "keys": " ".join(view.keys),
            "body": _first_line(view),
        }
        for number, view in by_key.items()
    ]
    made = table(
        (("stored", "Stored"), ("place", "Place"), ("tags", "Tags"), ("keys", "Keys"), ("body", "Body")),
        rows,
        key="number",
        label="Messages",
        empty=empty,
    )
    made.add_slot(
        "body-cell-stored",
        '<q-td :props="props"><q-btn flat dense no-caps color="primary" :label="props.value" '
        "@click=\"() => $parent.$emit('show', props.row.number)\" /></q-td>",
    )

    def open_message(event: Any) -> None:
        with ui.dialog() as dialog, ui.card().classes("w-full max-w-3xl"):
            ui.label(message_text(by_key[str(event.args)])).classes("body-text font-mono text-sm")
            ui.button("Close", on_click=dialog.close)
        dialog.open()

    made.on("show", open_message)
    return made


def _first_line(view: MessageView, most: int = 120) -> str:
    text = body_text(view)[0].replace("\n", " ")
    return text if len(text) <= most else text[:most] + "…"


# -- dead letters ---------------------------------------------------------------------


async def dead_groups_view(site: Site) -> None:
    groups = await attempt(site.admin.dead_letters.groups) or []
    rows = [
        {
            "group": item.group,
            "groupLink": link_to("dead-letters", item.group),
            "count": item.count,
            "last": moment(item.last_ms),
        }
        for item in groups
    ]
    table(
        (("group", "Group"), ("count", "Dead letters"), ("last", "Last")),
        rows,
        key="group",
        links=("group",),
        label="Groups with dead letters",
        empty="No dead letters.",
    )


async def dead_letters_view(site: Site, group: str) -> None:
    @ui.refreshable
    async def letters() -> None:
        views: list[MessageView] = []

        async def read() -> None:
            async for view in site.admin.dead_letters.read(group, everything=not only_new.value):
                views.append(view)
                if len(views) >= MOST:
                    return

        await attempt(read)
        ui.label(f"{len(views)} shown" + (f", the first {MOST}" if len(views) >= MOST else ""))
        show_messages(views, empty="No dead letters.")

    async def redrive() -> None:
        async def work() -> str:
            site.must_be_writable()
            outcome = await site.admin.dead_letters.redrive(group, to_topic=to_topic.value)
            return f"{outcome.sent} dead letters went back."

        dialog.close()
        said = await attempt(work)
        if said:
            ui.notify(said, type="positive")
            letters.refresh()

    with ui.row().classes("items-center gap-4"):
        only_new = ui.switch("Only those never driven back", value=True, on_change=lambda: letters.refresh())
        with ui.dialog() as dialog, ui.card():
            ui.label(f"Send the dead letters of {group} back?")
            to_topic = ui.switch("To their topics, where every group sees them")
            with ui.row():
                ui.button("Redrive", on_click=redrive)
                ui.button("Cancel", on_click=dialog.close).props("flat")
        button = ui.button("Redrive…", icon="replay", on_click=dialog.open)
        if site.read_only:
            button.disable()
            button.tooltip("This dashboard is read-only.")
    await letters()
