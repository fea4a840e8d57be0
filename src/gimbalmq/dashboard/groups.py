"""Pages of groups: who holds which queue, live; lag and rates over time; what changed and why."""

from __future__ import annotations

from nicegui import ui

from gimbalmq.admin.texts import moment
from gimbalmq.dashboard import charts
from gimbalmq.dashboard.observer import EVERY_MEMBER, Change, GroupHistory
from gimbalmq.dashboard.parts import ask_by_name, fill, frame, heading, link_to, live, problem, table
from gimbalmq.dashboard.site import Site, Viewer
from gimbalmq.errors import NoPermissionError

DRAW_EVERY = 0.25
PLOT_EVERY_MS = 2000


def add_pages(site: Site) -> None:
    @ui.page("/groups")
    def groups_page() -> None:
        viewer = site.viewer()
        with frame(viewer, "Groups"):
            groups_view(viewer)

    @ui.page("/group/{group:path}")
    def group_page(group: str) -> None:
        viewer = site.viewer()
        with frame(viewer, f"Group {group}", within="Groups"):
            group_view(viewer, group)


def groups_view(viewer: Viewer) -> None:
    async def show() -> None:
        try:
            listed = await viewer.admin.groups.all()
        except NoPermissionError:
            groups.visible = False  # an empty list would look as if there were none
            raise
        groups.visible = True
        fill(
            groups,
            [
                {
                    "group": item.group,
                    "groupLink": link_to("group", item.group),
                    "members": item.members,
                    "lag": item.lag,
                    "rate": round(item.tps, 1),
                    "model": item.message_model or "-",
                    "topics": ", ".join(item.topics) or "-",
                    "problem": item.problem or "-",
                }
                for item in listed
            ],
        )

    live(viewer, 3.0, show)
    if viewer.user:
        ask_by_name("group", "A group by its name")
    groups = table(
        (
            ("group", "Group"),
            ("members", "Members"),
            ("lag", "Lag"),
            ("rate", "Out/s"),
            ("model", "Model"),
            ("topics", "Topics"),
            ("problem", "Problem"),
        ),
        key="group",
        numbers=("members", "lag", "rate"),
        links=("group",),
        label="Groups",
        empty="No group yet.",
    )


def group_view(viewer: Viewer, group: str) -> None:
    history = viewer.observer.history(group)
    history.lookers += 1

    def leave() -> None:
        history.lookers -= 1

    ui.context.client.on_delete(leave)
    summary = ui.row().classes("items-center gap-x-6 gap-y-2")
    heading("Who holds which queue")
    picture = ui.echart(charts.ownership(history.last)).classes("w-full")
    picture.props('role="img" aria-label="Queues by members; the table of queues has the same"')
    heading("Changes")
    changes = table(
        (
            ("at", "When"),
            ("members", "Members"),
            ("moved", "Queues moved"),
            ("reasons", "Reason"),
            ("paused", "Longest pause"),
            ("moves", "Which"),
        ),
        key="at",
        numbers=("moved", "paused"),
        wraps=("members", "reasons", "moves"),
        label="Changes of ownership",
        empty="Nothing has changed since the dashboard began to look.",
    )
    heading("Lag")
    lag = ui.echart(charts.lag_lines(())).classes("w-full h-72")
    lag.props('role="img" aria-label="Lag over time"')
    heading("Rates")
    rates = ui.echart(charts.rate_lines(())).classes("w-full h-72")
    rates.props('role="img" aria-label="Messages written and consumed a second, over time"')
    heading("Queues")
    queues = table(
        (
            ("queue", "Queue"),
            ("owner", "Owner"),
            ("lag", "Lag"),
            ("rate", "Consumed/s"),
            ("done", "Consumer offset"),
            ("end", "Broker offset"),
        ),
        key="queue",
        numbers=("lag", "rate", "done", "end"),
        label="Owners of queues",
        empty="The group holds no queue.",
    )

    drawn = -1
    plotted_ms = 0

    def draw() -> None:
        nonlocal drawn, plotted_ms
        last = history.last
        if history.version == drawn or not viewer.is_there:
            return
        drawn = history.version
        summary.clear()
        with summary:
            _summary(history)
        picture.style(f"height: {charts.picture_height(last)}px")
        redraw(picture, charts.ownership(last, history.numbers, history.changes))
        fill(queues, queue_rows(history))
        fill(changes, change_rows(history))
        if last.at_ms - plotted_ms >= PLOT_EVERY_MS:
            plotted_ms = last.at_ms
            samples = list(history.samples)
            redraw(lag, charts.lag_lines(samples))
            redraw(rates, charts.rate_lines(samples))

    ui.timer(DRAW_EVERY, draw)


def _summary(history: GroupHistory) -> None:
    last = history.last
    if history.problem:
        problem(history.problem)
    if not history.samples:
        if not history.problem:
            ui.spinner()
        return
    count = len(last.members)
    ui.label(f"{count} {'member' if count == 1 else 'members'}").classes("font-medium").mark("members")
    ui.label(f"{len(last.queues)} queues").classes("text-quiet")
    if EVERY_MEMBER in last.owners.values():
        ui.label("broadcasting: each member reads every queue and keeps its own offsets").classes(
            "text-quiet"
        )
    else:
        ui.label(f"lag {last.lag:,}").classes("text-quiet")
        ui.label(f"{sum(history.rates().values()):,.1f} consumed/s").classes("text-quiet")
    unowned = len(set(last.ends) - set(last.owners))
    if not last.members:
        problem("nobody consumes")
    elif unowned:
        problem(f"{unowned} {'queue is' if unowned == 1 else 'queues are'} held by nobody")
    for member in last.silent:
        problem(f"{member} does not answer")


def redraw(plot: ui.echart, options: dict[str, object]) -> None:
    """Other options for a plot; nothing is sent where they are the same."""
    if options != plot.options:
        plot.options.clear()
        plot.options.update(options)
        plot.update()


def queue_rows(history: GroupHistory) -> list[dict[str, object]]:
    last, rates = history.last, history.rates()
    return [
        {
            "queue": charts.queue_name(queue),
            "owner": last.owners.get(queue, "-"),
            # Of a group that has committed nothing yet, or keeps its offsets to itself, nobody knows.
            "lag": last.lag_of(queue) if queue in last.done else "-",
            "rate": round(rates.get(queue, 0.0), 1) if queue in last.done else "-",
            "done": last.done.get(queue, "-"),
            "end": last.ends.get(queue, "-"),
        }
        for queue in last.queues
    ]


def change_rows(history: GroupHistory) -> list[dict[str, object]]:
    """Newest first."""
    return [
        {
            "at": moment(change.at_ms)[5:],
            "members": members_text(change),
            "moved": len(change.moves),
            "reasons": "; ".join(change.reasons) or guessed_reason(change),
            "paused": "-" if change.paused is None else f"{change.paused * 1000:.0f} ms",
            "moves": moves_text(change),
        }
        for change in reversed(history.changes)
    ]


def guessed_reason(change: Change) -> str:
    """For members that do not tell theirs."""
    parts = ["a member joined"] * bool(change.joined) + ["a member left"] * bool(change.left)
    return ", ".join(parts) or "-"


def members_text(change: Change) -> str:
    parts = [f"+ {member}" for member in change.joined] + [f"− {member}" for member in change.left]
    return ", ".join(parts) or "-"


def moves_text(change: Change, most: int = 4) -> str:
    members = [name for move in change.moves for name in (move.before, move.after) if name]
    short = charts.short_names(members)
    texts = [
        f"{move.queue.broker_name}/{move.queue.queue_id}: {short.get(move.before, 'nobody')} → "
        f"{short.get(move.after, 'nobody')}"
        for move in change.moves[:most]
    ]
    more = len(change.moves) - most
    return ", ".join(texts) + (f" and {more} more" if more > 0 else "") or "-"
