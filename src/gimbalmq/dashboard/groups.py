"""Pages of groups: who holds which queue, live; lag and rates over time; what changed and why."""

from __future__ import annotations

from nicegui import ui

from gimbalmq.admin.texts import moment
from gimbalmq.dashboard import charts
from gimbalmq.dashboard.observer import Change, GroupHistory
from gimbalmq.dashboard.site import Site, attempt, frame, link_to, problem, table


def add_pages(site: Site) -> None:
    @ui.page("/groups")
    async def groups_page() -> None:
        with frame(site, "Groups"):
            await groups_view(site)

    @ui.page("/group/{group:path}")
    async def group_page(group: str) -> None:
        with frame(site, f"Group {group}"):
            await group_view(site, group)


async def groups_view(site: Site) -> None:
    @ui.refreshable
    async def groups() -> None:
        summaries = await attempt(site.admin.groups.all) or []
        rows = [
            {
                "group": item.group,
                "groupLink": link_to("group", item.group),
                "members": item.members,
                "lag": item.lag,
                "rate": round(item.tps, 1),
                "model": item.message_model or "-",
                "topics": ", ".join(item.topics) or "-",
                "problem": item.problem,
            }
            for item in summaries
        ]
        table(
            (
                ("group", "Group"),
                ("members", "Members"),
                ("lag", "Lag"),
                ("rate", "Out/s"),
                ("model", "Model"),
                ("topics", "Topics"),
                ("problem", "Problem"),
            ),
            rows,
            key="group",
            links=("group",),
            label="Groups",
            empty="No group yet.",
        )

    await groups()
    ui.timer(3.0, groups.refresh)


async def group_view(site: Site, group: str) -> None:
    history = await site.observer.look(group)
    history.lookers += 1

    def leave() -> None:
        history.lookers -= 1

    ui.context.client.on_delete(leave)
    summary = ui.row().classes("items-center gap-4")
    ui.label("Who holds which queue").classes("text-lg").props('role="heading" aria-level="2"')
    picture = ui.echart(charts.ownership(history.last)).classes("w-full")
    picture.props('role="img" aria-label="Queues by members; the table below has the same"')
    queues = table(
        (
            ("queue", "Queue"),
            ("owner", "Owner"),
            ("lag", "Lag"),
            ("rate", "Consumed/s"),
            ("done", "Consumer offset"),
            ("end", "Broker offset"),
        ),
        queue_rows(history),
        key="queue",
        label="Owners of queues",
        empty="The group holds no queue.",
    )
    ui.label("Changes").classes("text-lg").props('role="heading" aria-level="2"')
    changes = table(
        (
            ("at", "When"),
            ("members", "Members"),
            ("moved", "Queues moved"),
            ("reasons", "Reason"),
            ("paused", "Longest pause"),
            ("moves", "Which"),
        ),
        change_rows(history),
        key="number",
        label="Changes of ownership",
        empty="Nothing has changed since this page was opened.",
    )
    ui.label("Lag").classes("text-lg").props('role="heading" aria-level="2"')
    lag = ui.echart(charts.lag_lines(list(history.samples))).classes("w-full h-64")
    ui.label("Rates").classes("text-lg").props('role="heading" aria-level="2"')
    rates = ui.echart(charts.rate_lines(list(history.samples))).classes("w-full h-64")

    shown_ms = 0

    def draw() -> None:
        nonlocal shown_ms
        last = history.last
        if last.at_ms == shown_ms and not history.problem:
            return
        shown_ms = last.at_ms
        summary.clear()
        with summary:
            if history.problem:
                problem(history.problem)
            ui.label(f"{len(last.members)} members").mark("member-count")
            ui.label(f"lag {last.lag:,}")
            unowned = len(set(last.ends) - set(last.owners))
            if last.members and unowned:
                problem(f"{unowned} queues are held by nobody")
            if not last.members:
                problem("nobody consumes")
        picture.style(f"height: {max(120, 26 * len({*last.owners, *last.ends}) + 50)}px")
        for plot, options in (
            (picture, charts.ownership(last)),
            (lag, charts.lag_lines(list(history.samples))),
            (rates, charts.rate_lines(list(history.samples))),
        ):
            plot.options.clear()
            plot.options.update(options)
            plot.update()
        queues.rows = queue_rows(history)
        changes.rows = change_rows(history)

    draw()
    ui.timer(0.5, draw)


def queue_rows(history: GroupHistory) -> list[dict[str, object]]:
    last, rates = history.last, history.rates()
    return [
        {
            "queue": charts.queue_name(queue),
            "owner": last.owners.get(queue, "-"),
            "lag": last.ends.get(queue, 0) - last.done.get(queue, 0) if queue in last.done else 0,
            "rate": round(rates.get(queue, 0.0), 1),
            "done": last.done.get(queue, 0),
            "end": last.ends.get(queue, 0),
        }
        for queue in sorted({*last.owners, *last.ends})
    ]


def change_rows(history: GroupHistory) -> list[dict[str, object]]:
    return [
        {
            "number": number,
            "at": moment(change.at_ms),
            "members": members_text(change),
            "moved": len(change.moves),
            "reasons": "; ".join(change.reasons) or "-",
            "paused": "-" if change.paused is None else f"{change.paused * 1000:.0f} ms",
            "moves": moves_text(change),
        }
        for number, change in sorted(enumerate(history.changes), reverse=True)
    ]


def members_text(change: Change) -> str:
    parts = [f"+ {member}" for member in change.joined] + [f"- {member}" for member in change.left]
    return ", ".join(parts) or "-"


def moves_text(change: Change, most: int = 4) -> str:
    texts = [
        f"{move.queue.queue_id}: {move.before or 'nobody'} → {move.after or 'nobody'}"
        for move in change.moves[:most]
    ]
    more = len(change.moves) - most
    return ", ".join(texts) + (f" and {more} more" if more > 0 else "")
