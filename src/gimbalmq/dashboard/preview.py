"""The page that shows what a change of members or strategy would move, before anybody does it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from nicegui import ui

from gimbalmq.admin.groups import strategy_of
from gimbalmq.balance.allocate import shares
from gimbalmq.balance.by_name import PLAIN_STRATEGIES, strategy_by_name
from gimbalmq.balance.compare import Comparison, Parts, compare, owners_of
from gimbalmq.balance.rooms import NEARBY_PREFIX, RoomsByPrefix
from gimbalmq.dashboard import charts
from gimbalmq.dashboard.observer import Sample
from gimbalmq.dashboard.parts import attempt, frame, heading, live, table
from gimbalmq.dashboard.parts import problem as show_problem
from gimbalmq.dashboard.site import Site, Viewer
from gimbalmq.errors import ConfigError
from gimbalmq.model.queues import MessageQueue, sort_client_ids
from gimbalmq.model.topics import RETRY_PREFIX

STRATEGIES = (
    *PLAIN_STRATEGIES,
    "MACHINE_ROOM",
    *(f"{NEARBY_PREFIX}{name}" for name in PLAIN_STRATEGIES),
)


def add_pages(site: Site) -> None:
    @ui.page("/preview")
    def preview_page(group: str = "") -> None:
        viewer = site.viewer()
        with frame(viewer, "Balance preview"):
            preview_view(viewer, group)


@dataclass(frozen=True, slots=True)
class Preview:
    """A group as it is and as it would be.

    Attributes:
        compared: the same change under each strategy, by name.
        wanted, in_use: the strategy asked for, and what the members say they use ("" where they do not).
    """

    queues: Sequence[MessageQueue]
    compared: dict[str, Comparison]
    wanted: str
    in_use: str

    @property
    def change(self) -> Comparison:
        return self.compared[self.wanted]

    def sample(self, parts: Parts) -> Sample:
        """One of the two states as the charts draw it."""
        return Sample(0, tuple(sort_client_ids(parts)), owners_of(parts), dict.fromkeys(self.queues, 0))


def preview_view(viewer: Viewer, group: str) -> None:
    wanted = group
    ui.label("Who would own which queue after a change. Looking changes nothing.").classes("text-quiet")

    async def names() -> None:
        nonlocal wanted
        found = await viewer.admin.groups.names()
        if found != which.options:
            which.set_options(found, value=which.value if which.value in found else None)
        if wanted in found:
            which.value, wanted = wanted, ""

    live(viewer, 10.0, names)
    with ui.row().classes("items-end gap-3 w-full"):
        which = ui.select([], label="Group", with_input=True).classes("w-full sm:w-56")
        strategy = ui.select(list(STRATEGIES), label="Strategy", value="AVG").classes("w-full sm:w-64")
        joining = ui.input(label="Join (names, separated by commas)").classes("grow min-w-56")
        leaving = ui.select([], label="Leave", multiple=True).classes("w-full sm:w-64").props("use-chips")
        rooms = ui.input(label="Rooms", placeholder="broker-a=room-1, 10.1.=room-1").classes("grow min-w-56")
        rooms.bind_visibility_from(strategy, "value", backward=lambda name: "MACHINE_ROOM" in (name or ""))
        ui.button("Show", icon="balance", on_click=lambda: show())
    results = ui.column().classes("w-full gap-4")

    async def new_group() -> None:
        if not which.value:
            return
        members = await attempt(viewer, lambda: viewer.admin.groups.member_ids(which.value)) or []
        leaving.set_options(members, value=[])
        used = await attempt(viewer, lambda: strategy_in_use(viewer, which.value, members)) or ""
        if used in STRATEGIES and used != strategy.value:
            strategy.value = used  # shows it, too
        else:
            await show()

    async def show() -> None:
        if not which.value:
            return
        found: list[Preview] = []

        async def work() -> None:
            found.append(
                await preview(
                    viewer,
                    which.value,
                    strategy.value,
                    (joining.value or "").split(","),
                    leaving.value or (),
                    rooms.value or "",
                )
            )

        text = await viewer.problem_of(work)
        results.clear()
        with results:
            if text:
                show_problem(text)
            else:
                draw(found[0])

    which.on_value_change(new_group)
    for field in (strategy, leaving):
        field.on_value_change(show)
    for line in (joining, rooms):
        line.on("keydown.enter", show)
        line.on("blur", show)


def draw(found: Preview) -> None:
    change = found.change
    before, after = found.sample(change.before), found.sample(change.after)
    held, unheld = len(before.owners), len(set(before.owners) - set(after.owners))
    ui.label(
        f"{len(change.moves)} of {held} held {'queue' if held == 1 else 'queues'} would move; "
        f"equal shares need at least {change.minimum}."
    ).classes("font-medium")
    if unheld:
        show_problem(f"{unheld} {'queue' if unheld == 1 else 'queues'} would be held by nobody")
    if found.in_use not in ("", found.wanted):
        ui.label(f"The members use {found.in_use}: some queues move because of the other strategy alone.")
    everybody = sort_client_ids({*before.members, *after.members})
    numbers = {member: number for number, member in enumerate(everybody)}
    with ui.element("div").classes("w-full grid grid-cols-1 md:grid-cols-2 gap-4"):
        for title, sample in (("Now", before), ("Then", after)):
            with ui.column().classes("gap-1 w-full"):
                heading(title)
                plot = ui.echart(charts.ownership(sample, numbers, halved=True)).classes("w-full")
                plot.style(f"height: {charts.picture_height(sample)}px")
                plot.props(f'role="img" aria-label="Queues by members, {title.lower()}"')
    heading("Queues that would move")
    table(
        (("queue", "Queue"), ("before", "Now"), ("after", "Then")),
        [
            {"queue": charts.queue_name(move.queue), "before": move.before, "after": move.after}
            for move in change.moves
        ],
        key="queue",
        label="Queues that would move",
        empty="Nothing would move.",
    )
    heading("The same change under each strategy")
    table(
        (("strategy", "Strategy"), ("moved", "Queues moved"), ("spread", "Largest share minus smallest")),
        [
            {"strategy": name, "moved": len(other.moves), "spread": other.spread}
            for name, other in found.compared.items()
        ],
        key="strategy",
        numbers=("moved", "spread"),
        label="Strategies compared",
    )


async def preview(
    viewer: Viewer,
    group: str,
    strategy_name: str,
    joining: Sequence[str],
    leaving: Collection[str],
    rooms_text: str = "",
) -> Preview:
    """What a change of members would lead to under a strategy, from what the members hold now.

    Where nobody says what it holds, from what the strategy gives the members there are.
    """
    rooms = RoomsByPrefix.parse("Rooms", filter(None, map(str.strip, rooms_text.split(","))))
    if strategy_name == "MACHINE_ROOM" and not rooms.names:
        raise ConfigError("Rooms", rooms_text, "the strategy needs some, such as broker-a=room-1")
    strategies = {
        name: strategy_by_name(name, rooms=rooms.names, resolver=rooms)
        for name in dict.fromkeys((*PLAIN_STRATEGIES, strategy_name))
    }
    groups = viewer.admin.groups
    members = await groups.member_ids(group)
    topics = set(await groups.topics(group))
    if members:
        connections = await groups.connections(group)
        if connections.message_model == "BROADCASTING":
            raise ConfigError(
                "Group", group, "its members broadcast: each reads every queue, so there is nothing to share"
            )
        topics |= set(connections.subscriptions)
    queues = [
        queue
        for topic in sorted(topics)
        if not topic.startswith(RETRY_PREFIX)
        for queue in await viewer.admin.topics.queues(topic)
    ]
    newcomers = [name.strip() for name in joining if name.strip()]
    for name in newcomers:
        if name in members or newcomers.count(name) > 1:
            raise ConfigError("Join", name, "it is a member already")
    later = [*(name for name in members if name not in leaving), *newcomers]
    held = await groups.owners(group)
    before = {member: [queue for queue in queues if held.get(queue) == member] for member in members}
    if not any(before.values()):
        before = shares(strategies[strategy_name], group, queues, members)
    return Preview(
        queues,
        {name: compare(strategy, group, before, queues, later) for name, strategy in strategies.items()},
        strategy_name,
        await strategy_in_use(viewer, group, members),
    )


async def strategy_in_use(viewer: Viewer, group: str, members: Sequence[str]) -> str:
    """What the members say they use; "" where they do not say it, or not the same."""
    told = await viewer.admin.groups.told_by(group, members)
    used = {strategy_of(info) for info in told.values()}
    return used.pop() if len(used) == 1 else ""
