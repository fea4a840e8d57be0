"""The page that shows what a change of members or strategy would move, before anybody does it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from nicegui import ui

from gimbalmq.balance.allocate import NEARBY_PREFIX, AllocateStrategy, shares, strategy_by_name
from gimbalmq.balance.simulate import minimum_moves
from gimbalmq.dashboard import charts
from gimbalmq.dashboard.observer import Move, Sample
from gimbalmq.dashboard.site import Site, attempt, frame, heading, live, problem_of, table
from gimbalmq.dashboard.site import problem as show_problem
from gimbalmq.errors import ConfigError
from gimbalmq.model.queues import MessageQueue, sort_client_ids
from gimbalmq.model.topics import RETRY_PREFIX

PLAIN = ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "STICKY")
"""Strategies that need nothing but the two lists; the page compares them."""
STRATEGIES = (*PLAIN, "MACHINE_ROOM", *(f"{NEARBY_PREFIX}{name}" for name in PLAIN))


def add_pages(site: Site) -> None:
    @ui.page("/preview")
    def preview_page(group: str = "") -> None:
        with frame(site, "Balance preview"):
            preview_view(site, group)


@dataclass(frozen=True, slots=True)
class Preview:
    """A group as it is and as it would be.

    Attributes:
        least: the fewest queues that must move for equal shares.
        compared: strategy, queues it would move, largest share minus smallest.
        wanted, in_use: the strategy asked for, and what the members say they use ("" where they do not).
    """

    before: Sample
    after: Sample
    moves: tuple[Move, ...]
    least: int
    compared: tuple[tuple[str, int, int], ...]
    wanted: str
    in_use: str


class Rooms:
    """Rooms by the longest prefix of a broker's or a member's name: ``broker-a=r1, 10.1.=r1``."""

    def __init__(self, text: str) -> None:
        self._places: list[tuple[str, str]] = []
        for part in filter(None, map(str.strip, text.split(","))):
            prefix, equals, room = part.rpartition("=")
            if not equals or not prefix or not room:
                raise ConfigError("Rooms", part, "write it like broker-a=room-1, 10.1.=room-1")
            self._places.append((prefix, room))
        self._places.sort(key=lambda place: -len(place[0]))

    @property
    def names(self) -> set[str]:
        return {room for _, room in self._places}

    def room_of_queue(self, queue: MessageQueue) -> str:
        return self.room_of_client(queue.broker_name)

    def room_of_client(self, client_id: str) -> str:
        for prefix, room in self._places:
            if client_id.startswith(prefix):
                return room
        raise ConfigError("Rooms", client_id, "no room fits this name; write one, such as broker-a=room-1")


def preview_view(site: Site, group: str) -> None:
    wanted = group
    ui.label("Who would own which queue after a change. Looking changes nothing.").classes("text-quiet")

    async def names() -> None:
        nonlocal wanted
        found = await site.admin.groups.names()
        if found != which.options:
            which.set_options(found, value=which.value if which.value in found else None)
        if wanted in found:
            which.value, wanted = wanted, ""

    live(10.0, names)
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
        members = await attempt(lambda: site.admin.groups.member_ids(which.value)) or []
        leaving.set_options(members, value=[])
        used = await attempt(lambda: strategy_in_use(site, which.value, members)) or ""
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
                    site,
                    which.value,
                    strategy.value,
                    (joining.value or "").split(","),
                    leaving.value or (),
                    rooms.value or "",
                )
            )

        text = await problem_of(work)
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
    held = len(found.before.owners)
    ui.label(
        f"{len(found.moves)} of {held} held {'queue' if held == 1 else 'queues'} would move; "
        f"equal shares need at least {found.least}."
    ).classes("font-medium")
    if found.in_use not in ("", found.wanted):
        ui.label(f"The members use {found.in_use}: some queues move because of the other strategy alone.")
    everybody = sort_client_ids({*found.before.members, *found.after.members})
    numbers = {member: number for number, member in enumerate(everybody)}
    with ui.element("div").classes("w-full grid grid-cols-1 md:grid-cols-2 gap-4"):
        for title, sample in (("Now", found.before), ("Then", found.after)):
            with ui.column().classes("gap-1 w-full"):
                heading(title)
                plot = ui.echart(charts.ownership(sample, numbers, halved=True)).classes("w-full")
                plot.style(f"height: {charts.picture_height(sample)}px")
                plot.props(f'role="img" aria-label="Queues by members, {title.lower()}"')
    heading("Queues that would move")
    table(
        (("queue", "Queue"), ("before", "Now"), ("after", "Then")),
        [
            {
                "queue": charts.queue_name(move.queue),
                "before": move.before or "-",
                "after": move.after or "-",
            }
            for move in found.moves
        ],
        key="queue",
        label="Queues that would move",
        empty="Nothing would move.",
    )
    heading("The same change under each strategy")
    table(
        (("strategy", "Strategy"), ("moved", "Queues moved"), ("spread", "Largest share minus smallest")),
        [{"strategy": name, "moved": moved, "spread": spread} for name, moved, spread in found.compared],
        key="strategy",
        numbers=("moved", "spread"),
        label="Strategies compared",
    )


async def preview(
    site: Site,
    group: str,
    strategy_name: str,
    joining: Sequence[str],
    leaving: Collection[str],
    rooms_text: str = "",
) -> Preview:
    """What a change of members would lead to under a strategy, from what the members hold now.

    Where nobody says what it holds, from what the strategy gives the members there are.
    """
    rooms = Rooms(rooms_text)
    strategy = strategy_by_name(strategy_name, rooms=rooms.names, resolver=rooms)
    groups = site.admin.groups
    members = await groups.member_ids(group)
    topics = set(await groups.topics(group))
    if members:
        topics |= set((await groups.connections(group)).subscriptions)
    queues = [
        queue
        for topic in sorted(topics)
        if not topic.startswith(RETRY_PREFIX)
        for queue in await site.admin.topics.queues(topic)
    ]
    newcomers = [name.strip() for name in joining if name.strip()]
    for name in newcomers:
        if name in members or newcomers.count(name) > 1:
            raise ConfigError("Join", name, "it is a member already")
    later = sort_client_ids([*(name for name in members if name not in leaving), *newcomers])
    now = {queue: owner for queue, owner in (await groups.owners(group)).items() if queue in set(queues)}
    owners = now or owners_under(strategy, group, queues, members)
    then = owners_under(strategy, group, queues, later)
    compared = []
    for name in dict.fromkeys((*PLAIN, strategy_name)):
        other = strategy_by_name(name, rooms=rooms.names, resolver=rooms)
        held = owners_under(other, group, queues, later)
        counts = [sum(owner == member for owner in held.values()) for member in later]
        compared.append(
            (name, len(moves_between(owners, held)), max(counts, default=0) - min(counts, default=0))
        )
    ends = dict.fromkeys(queues, 0)
    return Preview(
        Sample(0, tuple(sort_client_ids(members)), owners, ends),
        Sample(0, tuple(later), then, ends),
        moves_between(owners, then),
        minimum_moves(owners, queues, later),
        tuple(compared),
        strategy_name,
        await strategy_in_use(site, group, members),
    )


async def strategy_in_use(site: Site, group: str, members: Sequence[str]) -> str:
    """What the members say they use; "" where they do not say it, or not the same."""
    told = await site.admin.groups.told_by(group, members)
    used = {info.properties.get("allocateMessageQueueStrategy", "") for info in told.values()}
    return used.pop() if len(used) == 1 else ""


def owners_under(
    strategy: AllocateStrategy, group: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> dict[MessageQueue, str]:
    parts = shares(strategy, group, queues, members)
    return {queue: owner for owner, part in parts.items() for queue in part}


def moves_between(before: dict[MessageQueue, str], after: dict[MessageQueue, str]) -> tuple[Move, ...]:
    """Queues that somebody holds and another would."""
    return tuple(
        Move(queue, owner, after.get(queue, ""))
        for queue, owner in sorted(before.items())
        if after.get(queue, "") != owner
    )
