"""Topics: which there are, where they lie, how full they are; make, resize and delete them."""

from __future__ import annotations

import asyncio

import msgspec

from gimbalmq.admin.connection import AdminConnection
from gimbalmq.admin.views import QueueStats, TopicView
from gimbalmq.errors import ConfigError, NoPermissionError, TopicNotExistError, TopicRouteNotFoundError
from gimbalmq.model.flags import PERM_READ, PERM_WRITE
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.topics import DLQ_PREFIX, RETRY_PREFIX, is_system_topic, topic_problem
from gimbalmq.protocol.bodies import TopicConfig, TopicRoute
from gimbalmq.rpc import management, nameserver

NORMAL, RETRY, DEAD_LETTER, SYSTEM = "normal", "retry", "dead-letter", "system"
_REPLY_SUFFIX = "_REPLY_TOPIC"  # each cluster's topic for request-reply


def kind_of(topic: str) -> str:
    """What a topic's name says of it."""
    if topic.startswith(RETRY_PREFIX):
        return RETRY
    if topic.startswith(DLQ_PREFIX):
        return DEAD_LETTER
    return SYSTEM if is_system_topic(topic) or topic.endswith(_REPLY_SUFFIX) else NORMAL


def perm_text(perm: int) -> str:
    return ("R" if perm & PERM_READ else "-") + ("W" if perm & PERM_WRITE else "-")


class TopicAdmin:
    """``admin.topics``."""

    def __init__(self, connection: AdminConnection) -> None:
        self._at = connection

    async def names(self, *, cluster: str | None = None) -> list[str]:
        """Topics the name server knows; names of clusters and brokers, which are topics too, left out."""
        if cluster is None:
            listed = await self._at.of_nameserver(nameserver.all_topics)
        else:
            await self._at.masters(cluster=cluster)  # says so if there is no such cluster
            listed = await self._at.of_nameserver(
                lambda caller, address: management.topics_by_cluster(caller, address, cluster)
            )
        info = await self._at.cluster_info()
        own = {*info.cluster_addr_table, *info.broker_addr_table}
        return sorted(set(listed.topic_list) - own)

    async def all(self, *, cluster: str | None = None, system: bool = False) -> list[TopicView]:
        """Topics with their spread; retry, dead-letter and the system's own only if asked for.

        Topics that the user may not see are left out.
        """
        names = [topic for topic in await self.names(cluster=cluster) if system or kind_of(topic) == NORMAL]
        views = await asyncio.gather(*(self._view(topic) for topic in names))
        return [view for view in views if view is not None]

    async def _view(self, topic: str) -> TopicView | None:
        try:
            return view_of(topic, await self._at.route(topic))
        except (TopicRouteNotFoundError, NoPermissionError):  # deleted since it was listed, or not for us
            return None

    async def route(self, topic: str) -> TopicRoute:
        """Who serves it, as the name server has it (mqadmin topicRoute)."""
        return await self._at.route(topic)

    async def stats(self, topic: str) -> list[QueueStats]:
        """Each queue's ends, sorted (mqadmin topicStatus)."""
        tables = await self._at.of_each(
            (await self._at.brokers_of(topic)).values(),
            lambda caller, address: management.topic_stats(caller, address, topic),
        )
        return sorted(
            (
                QueueStats(queue, found.min_offset, found.max_offset, found.last_update_timestamp)
                for table in tables
                for queue, found in table.queues.items()
            ),
            key=lambda stats: stats.queue,
        )

    async def groups(self, topic: str) -> list[str]:
        """Consumer groups that have read it or want to."""
        lists = await self._at.of_each(
            (await self._at.brokers_of(topic)).values(),
            lambda caller, address: management.groups_of_topic(caller, address, topic),
        )
        return sorted({group for found in lists for group in found})

    async def create(
        self,
        topic: str,
        *,
        queues: int = 8,
        write_queues: int | None = None,
        perm: int = PERM_READ | PERM_WRITE,
        order: bool = False,
        attributes: dict[str, str] | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> list[str]:
        """Makes a topic, or changes the one there is, on one broker, a cluster's or all; their names.

        Args:
            queues: readable queues on each broker; writable too unless ``write_queues`` says otherwise.
        """
        problem = topic_problem(topic)
        if problem is not None:
            raise ConfigError("topic", topic, problem)
        if not 1 <= queues <= 65_536:
            raise ConfigError("queues", queues, "use 1 to 65536")
        if write_queues is not None and not 0 <= write_queues <= 65_536:
            raise ConfigError("write_queues", write_queues, "use 0 to 65536")
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues if write_queues is None else write_queues,
            perm=perm,
            order=order,
            attributes=attributes or {},
        )
        masters = await self._at.masters(broker=broker, cluster=cluster)
        await self._at.of_each(
            masters.values(), lambda caller, address: management.create_topic(caller, address, config)
        )
        return list(masters)

    async def resize(self, topic: str, queues: int, *, safely: bool = True) -> list[str]:
        """Another number of queues on each broker that has the topic; the brokers changed.

        Args:
            safely: when there are to be fewer, only the writable ones shrink, so that what lies in the
                others can still be read; shrink again without it when they are empty.
        """
        if not 1 <= queues <= 65_536:
            raise ConfigError("queues", queues, "use 1 to 65536")
        places = await self._at.writers_of(topic)
        for address in places.values():
            try:
                tables = await management.all_topic_configs(self._at.caller, address)
                config = tables.topic_config_table[topic]
            except KeyError:
                raise TopicNotExistError(f"{address} has no topic {topic}") from None
            readable = max(queues, config.read_queue_nums) if safely else queues
            changed = msgspec.structs.replace(
                config, topic_name=topic, write_queue_nums=queues, read_queue_nums=readable
            )
            await management.create_topic(self._at.caller, address, changed)
        return sorted(places)

    async def delete(self, topic: str, *, cluster: str | None = None) -> list[str]:
        """Deletes it and its messages from brokers and name servers; the brokers it was on.

        Raises:
            TopicRouteNotFoundError: nobody has it.
            StateError: a broker that has it has no master.
        """
        places = await self._at.writers_of(topic)
        if cluster is not None:
            masters = await self._at.masters(cluster=cluster)
            places = {name: address for name, address in places.items() if name in masters}
        await self._at.of_each(
            places.values(), lambda caller, address: management.delete_topic(caller, address, topic)
        )
        await self._at.of_every_nameserver(
            lambda caller, address: nameserver.delete_topic(caller, address, topic)
        )
        return sorted(places)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Every readable queue, in the order all members of a group use."""
        return list(await self._at.queues_of(topic))


def view_of(topic: str, route: TopicRoute) -> TopicView:
    data = route.queue_datas
    return TopicView(
        topic,
        kind_of(topic),
        tuple(sorted(item.broker_name for item in data)),
        sum(item.read_queue_nums for item in data),
        sum(item.write_queue_nums for item in data),
        "/".join(sorted({perm_text(item.perm) for item in data})),
        bool(route.order_topic_conf),
    )
