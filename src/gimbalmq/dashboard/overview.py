"""Pages of the cluster and its topics."""

from __future__ import annotations

import asyncio

from nicegui import ui

from gimbalmq.admin.replica_views import ReplicaView
from gimbalmq.admin.texts import moment, size
from gimbalmq.dashboard.parts import fill, frame, heading, link_to, live, problem, table
from gimbalmq.dashboard.site import Site, Viewer
from gimbalmq.errors import NoPermissionError, TopicRouteNotFoundError


def add_pages(site: Site) -> None:
    @ui.page("/")
    def cluster_page() -> None:
        viewer = site.viewer()
        with frame(viewer, "Cluster"):
            cluster_view(viewer)

    @ui.page("/topics")
    def topics_page() -> None:
        viewer = site.viewer()
        with frame(viewer, "Topics"):
            topics_view(viewer)

    @ui.page("/topic/{topic:path}")
    def topic_page(topic: str) -> None:
        viewer = site.viewer()
        with frame(viewer, f"Topic {topic}", within="Topics"):
            topic_view(viewer, topic)


def cluster_view(viewer: Viewer) -> None:
    async def show() -> None:
        views, copies = await asyncio.gather(
            viewer.admin.clusters.brokers(), viewer.admin.replication.status()
        )
        replicas = {view.address: view for view in copies}
        refused = [view for view in views if view.refused]
        silent = [
            f"{view.broker} at {view.address}: {view.problem}"
            for view in views
            if view.problem and not view.refused
        ]
        silent += [f"{view.title}, does not copy: {view.trouble}" for view in copies if view.trouble]
        problems.clear()
        problems.visible = bool(silent)
        with problems:
            for text in silent:
                problem(text)
        count = f"{len(views)} {'broker' if len(views) == 1 else 'brokers'}"
        put, got = sum(view.put_tps for view in views), sum(view.get_tps for view in views)
        figures.text = count if refused else f"{count}, {put:,.1f} messages/s in, {got:,.1f} out"
        fill(
            brokers,
            [
                {
                    "cluster": view.cluster,
                    "broker": view.broker,
                    "id": view.broker_id,
                    "role": _role(replicas.get(view.address)),
                    "address": view.address,
                    "copies": _copies(replicas.get(view.address)),
                    "behind": _behind(replicas.get(view.address)),
                    "version": view.version or "-",
                    "in": "-" if view.refused else round(view.put_tps, 1),
                    "out": "-" if view.refused else round(view.get_tps, 1),
                    "disk": "-" if view.refused else f"{view.disk_used:.0%}",
                    "up": "-" if view.refused else moment(view.boot_ms)[:19],
                }
                for view in views
            ],
        )
        if refused:
            raise NoPermissionError(refused[0].problem)

    live(viewer, 3.0, show)
    problems = ui.column().classes("w-full")
    problems.visible = False
    figures = ui.label().classes("text-quiet")
    brokers = table(
        (
            ("broker", "Broker"),
            ("cluster", "Cluster"),
            ("id", "Id"),
            ("role", "Role"),
            ("address", "Address"),
            ("copies", "Replication"),
            ("behind", "Behind"),
            ("version", "Version"),
            ("in", "In/s"),
            ("out", "Out/s"),
            ("disk", "Disk"),
            ("up", "Up since"),
        ),
        key="address",
        numbers=("id", "behind", "in", "out", "disk"),
        label="Brokers",
        empty="No broker is registered.",
    )


def _role(view: ReplicaView | None) -> str:
    return "-" if view is None or view.problem else view.role


def _copies(view: ReplicaView | None) -> str:
    """What a slave does; of a master, how many slaves have what it has."""
    if view is None or view.problem or not view.tells_copies:
        return "-"
    if view.is_slave:
        return view.state or "-"
    return f"{view.in_sync_slaves} of {len(view.slaves)} in sync" if view.slaves else "no slave"


def _behind(view: ReplicaView | None) -> str:
    """Bytes that a slave lacks of its master's log."""
    return "-" if view is None or view.behind is None else size(view.behind)


def topics_view(viewer: Viewer) -> None:
    async def show() -> None:
        views = await viewer.admin.topics.all(system=show_all.value)
        fill(
            topics,
            [
                {
                    "topic": view.topic,
                    "topicLink": link_to("topic", view.topic),
                    "kind": view.kind,
                    "brokers": ", ".join(view.brokers),
                    "read": view.read_queues,
                    "write": view.write_queues,
                    "perm": view.perm,
                }
                for view in views
            ],
        )

    again = live(viewer, 5.0, show)
    with ui.row().classes("items-center gap-4"):
        search = ui.input(placeholder="Filter").props('dense outlined clearable aria-label="Filter topics"')
        show_all = ui.switch("Retry, dead-letter and system topics too", on_change=again)
    topics = table(
        (
            ("topic", "Topic"),
            ("kind", "Kind"),
            ("brokers", "Brokers"),
            ("read", "Readable queues"),
            ("write", "Writable queues"),
            ("perm", "Permission"),
        ),
        key="topic",
        numbers=("read", "write"),
        links=("topic",),
        label="Topics",
        empty="No topic yet.",
    )
    search.bind_value_to(topics, "filter")


def topic_view(viewer: Viewer, topic: str) -> None:
    shown: list[str] | None = None

    async def show() -> None:
        nonlocal shown
        try:
            stats = await viewer.admin.topics.stats(topic)
        except TopicRouteNotFoundError:
            fill(queues, [])
            raise
        readers = await viewer.admin.topics.groups(topic)
        if readers != shown:
            shown = readers
            groups.clear()
            with groups:
                if not readers:
                    ui.label("No group has read it.").classes("text-quiet")
                for group in readers:
                    ui.link(group, link_to("group", group))
        figures.text = f"{sum(item.count for item in stats):,} messages in {len(stats)} queues"
        fill(
            queues,
            [
                {
                    "place": f"{item.queue.broker_name}/{item.queue.queue_id}",
                    "min": item.min_offset,
                    "max": item.max_offset,
                    "count": item.count,
                    "updated": moment(item.last_update_ms),
                }
                for item in stats
            ],
        )

    live(viewer, 2.0, show)
    with ui.row().classes("items-center gap-4"):
        figures = ui.label().classes("text-quiet")
        ui.link("Its messages", f"{link_to('messages')}?topic={link_to(topic)[1:]}")
    heading("Groups that read it")
    groups = ui.row().classes("items-center gap-3")
    heading("Queues")
    queues = table(
        (
            ("place", "Queue"),
            ("min", "First offset"),
            ("max", "End"),
            ("count", "Messages"),
            ("updated", "Last written"),
        ),
        key="place",
        numbers=("min", "max", "count"),
        label="Queues",
    )
