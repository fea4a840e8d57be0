"""The page that shows what a change of members or strategy would move, before anybody does it."""

from __future__ import annotations

from nicegui import ui

from gimbalmq.balance.allocate import shares, strategy_by_name
from gimbalmq.balance.simulate import minimum_moves
from gimbalmq.dashboard import charts
from gimbalmq.dashboard.observer import Sample
from gimbalmq.dashboard.site import Site, attempt, frame, table
from gimbalmq.errors import ConfigError
from gimbalmq.model.queues import MessageQueue, sort_client_ids

STRATEGIES = ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "STICKY")


def add_pages(site: Site) -> None:
    @ui.page("/preview")
    async def preview_page(group: str = "") -> None:
        with frame(site, "Balance preview"):
            await preview_view(site, group)


async def preview_view(site: Site, group: str) -> None:
    ui.label("Who would own which queue after a change; nothing is changed by looking.")
    names = await attempt(site.admin.groups.names) or []
    with ui.row().classes("items-end gap-2 w-full"):
        which = ui.select(names, label="Group", value=group if group in names else None, with_input=True)
        which.classes("min-w-48")
        strategy = ui.select(list(STRATEGIES), label="Strategy", value="AVG").classes("min-w-40")
        joining = ui.input(label="Join (names, separated by commas)").classes("grow")
        leaving = ui.select([], label="Leave", multiple=True).classes("min-w-48")
    results = ui.column().classes("w-full")

    async def members_of_group() -> None:
        members = await attempt(lambda: site.admin.groups.member_ids(which.value)) or []
        leaving.set_options(members, value=[])
        await show()

    async def show() -> None:
        if not which.value:
            return
        found = await attempt(
            lambda: preview(site, which.value, strategy.value, joining.value or "", leaving.value or [])
        )
        results.clear()
        if found is None:
            return
        before, after, least = found
        moved = [queue for queue, owner in before.owners.items() if after.owners.get(queue) != owner]
        with results:
            ui.label(f"{len(moved)} of {len(before.owners)} queues would move; at least {least} have to.")
            with ui.row().classes("w-full gap-4"):
                for title, sample in (("Now", before), ("Then", after)):
                    with ui.column().classes("grow min-w-72"):
                        ui.label(title).classes("text-lg")
                        height = max(120, 26 * len(sample.ends) + 50)
                        plot = ui.echart(charts.ownership(sample)).classes("w-full")
                        plot.style(f"height: {height}px")
            table(
                (("queue", "Queue"), ("before", "Now"), ("after", "Then")),
                [
                    {
                        "queue": charts.queue_name(queue),
                        "before": before.owners.get(queue, "-"),
                        "after": after.owners.get(queue, "-"),
                    }
                    for queue in sorted(moved)
                ],
                key="queue",
                label="Queues that would move",
                empty="Nothing would move.",
            )

    which.on_value_change(members_of_group)
    for field in (strategy, leaving):
        field.on_value_change(show)
    joining.on("keydown.enter", show)
    joining.on("blur", show)
    if which.value:
        await members_of_group()


async def preview(
    site: Site, group: str, strategy_name: str, joining: str, leaving: list[str]
) -> tuple[Sample, Sample, int]:
    """The group under a strategy before and after a change, and the fewest queues that must move."""
    groups = site.admin.groups
    members = await groups.member_ids(group)
    topics = await groups.topics(group)
    if members:
        wanted = (await groups.connections(group)).subscriptions
        topics = sorted({*topics, *(topic for topic in wanted if not topic.startswith("%RETRY%"))})
    queues: list[MessageQueue] = [
        queue for topic in topics for queue in await site.admin.topics.queues(topic)
    ]
    newcomers = [name.strip() for name in joining.split(",") if name.strip()]
    for name in newcomers:
        if name in members:
            raise ConfigError("Join", name, "it is a member already")
    later = sort_client_ids([*(name for name in members if name not in leaving), *newcomers])
    strategy = strategy_by_name(strategy_name)

    def sample(names: list[str]) -> Sample:
        parts = shares(strategy, group, queues, names) if names else {}
        owners = {queue: owner for owner, part in parts.items() for queue in part}
        return Sample(0, tuple(names), owners, dict.fromkeys(queues, 0))

    before, after = sample(sort_client_ids(members)), sample(later)
    return before, after, minimum_moves(dict(before.owners), queues, later)
