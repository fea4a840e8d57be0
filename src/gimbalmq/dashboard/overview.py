"""Pages of the cluster and its topics."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from gimbalmq.admin.texts import moment
from gimbalmq.dashboard.site import Site, attempt, frame, link_to, problem, table


def add_pages(site: Site) -> None:
    @ui.page("/")
    async def cluster_page() -> None:
        with frame(site, "Cluster"):
            await cluster_view(site)

    @ui.page("/topics")
    async def topics_page() -> None:
        with frame(site, "Topics"):
            await topics_view(site)

    @ui.page("/topic/{topic:path}")
    async def topic_page(topic: str) -> None:
        with frame(site, f"Topic {topic}"):
            await topic_view(site, topic)


async def cluster_view(site: Site) -> None:
    @ui.refreshable
    async def brokers() -> None:
        views = await attempt(site.admin.clusters.brokers) or []
        for view in views:
            if view.problem:
                problem(f"{view.broker} at {view.address}: {view.problem}")
        rows = [
            {
                "cluster": view.cluster,
                "broker": view.broker,
                "id": view.broker_id,
                "address": view.address,
                "version": view.version,
                "in": round(view.put_tps, 1),
                "out": round(view.get_tps, 1),
                "disk": f"{view.disk_used:.0%}",
                "up": moment(view.boot_ms),
            }
            for view in views
        ]
        table(
            (
                ("cluster", "Cluster"),
                ("broker", "Broker"),
                ("id", "Id"),
                ("address", "Address"),
                ("version", "Version"),
                ("in", "In/s"),
                ("out", "Out/s"),
                ("disk", "Disk"),
                ("up", "Up since"),
            ),
            rows,
            key="address",
            label="Brokers",
            empty="No broker is registered.",
        )

    await brokers()
    ui.timer(5.0, brokers.refresh)


async def topics_view(site: Site) -> None:
    show_all = ui.switch("Retry, dead-letter and system topics too")

    @ui.refreshable
    async def topics() -> None:
        views = await attempt(lambda: site.admin.topics.all(system=show_all.value)) or []
        rows: list[dict[str, Any]] = [
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
        ]
        search = ui.input(placeholder="Filter").props('dense outlined clearable aria-label="Filter topics"')
        made = table(
            (
                ("topic", "Topic"),
                ("kind", "Kind"),
                ("brokers", "Brokers"),
                ("read", "Readable queues"),
                ("write", "Writable queues"),
                ("perm", "Permission"),
            ),
            rows,
            key="topic",
            links=("topic",),
            label="Topics",
            empty="No topic yet.",
        )
        search.bind_value_to(made, "filter")

    await topics()
    show_all.on_value_change(topics.refresh)


async def topic_view(site: Site, topic: str) -> None:
    groups = await attempt(lambda: site.admin.topics.groups(topic)) or []
    with ui.row().classes("items-center gap-2"):
        ui.label("Read by:" if groups else "No group has read it.")
        for group in groups:
            ui.link(group, link_to("group", group))

    @ui.refreshable
    async def queues() -> None:
        stats = await attempt(lambda: site.admin.topics.stats(topic)) or []
        ui.label(f"{sum(item.count for item in stats):,} messages")
        rows = [
            {
                "place": f"{item.queue.broker_name}/{item.queue.queue_id}",
                "min": item.min_offset,
                "max": item.max_offset,
                "count": item.count,
                "updated": moment(item.last_update_ms),
            }
            for item in stats
        ]
        table(
            (
                ("place", "Queue"),
                ("min", "First offset"),
                ("max", "End"),
                ("count", "Messages"),
                ("updated", "Last written"),
            ),
            rows,
            key="place",
            label="Queues",
        )

    await queues()
    ui.timer(2.0, queues.refresh)
