"""Consumer groups: members, progress, owners of queues; settings; offsets set back or forth."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec

from gimbalmq.admin.connection import AdminConnection
from gimbalmq.admin.topics import NORMAL, RETRY, kind_of
from gimbalmq.admin.views import (
    ClientView,
    GroupConnections,
    GroupProgress,
    GroupSummary,
    OffsetChange,
    QueueProgress,
)
from gimbalmq.errors import (
    ConfigError,
    ConsumerNotOnlineError,
    NoPermissionError,
    ResponseError,
    RocketMQError,
    StateError,
    SubscriptionGroupNotExistError,
    TopicRouteNotFoundError,
)
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.topics import BUILT_IN_GROUPS, SYSTEM_GROUP_PREFIX, group_problem, retry_topic
from gimbalmq.protocol.bodies import ClientConnection, ConsumerConnections, GroupConfig
from gimbalmq.protocol.codes import ResponseCode, version_name
from gimbalmq.protocol.status_bodies import ConsumerRunningInfo
from gimbalmq.rpc import groups as group_calls
from gimbalmq.rpc import management

EARLIEST, LATEST = "earliest", "latest"


def is_system_group(group: str) -> bool:
    return group in BUILT_IN_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


class GroupAdmin:
    """``admin.groups``."""

    def __init__(self, connection: AdminConnection) -> None:
        self._at = connection

    # -- who --------------------------------------------------------------------------

    async def names(self, *, system: bool = False) -> list[str]:
        """Groups that brokers have settings for or messages to retry."""
        brokers = await self._at.readers()
        tables = await self._at.of_each(brokers.values(), management.all_group_configs)
        found = {group for table in tables for group in table.subscription_group_table}
        return sorted(group for group in found if system or not is_system_group(group))

    async def all(self, *, system: bool = False) -> list[GroupSummary]:
        """Every group with its members, lag and what is wrong with it."""
        return await asyncio.gather(*(self._summary(group) for group in await self.names(system=system)))

    async def _summary(self, group: str) -> GroupSummary:
        try:
            try:
                connections = await self.connections(group)
            except ConsumerNotOnlineError:
                connections = GroupConnections(group, ())
            progress = await self.progress(group)
        except NoPermissionError:
            return GroupSummary(group, 0, "", "", (), 0, 0.0, "not allowed")
        topics = {item.queue.topic for item in progress.queues} | set(connections.subscriptions)
        problem = "" if connections.members or not progress.lag else "nobody consumes"
        return GroupSummary(
            group,
            len(connections.members),
            connections.message_model,
            connections.consume_type,
            tuple(sorted(topic for topic in topics if kind_of(topic) != RETRY)),
            progress.lag,
            progress.tps,
            problem,
        )

    async def connections(self, group: str) -> GroupConnections:
        """Members and what they subscribe to (mqadmin consumerConnection).

        Raises:
            ConsumerNotOnlineError: nobody is connected.
        """
        members: dict[tuple[str, str], ClientView] = {}
        found: GroupConnections | None = None
        for answer in await self._ask_brokers(group):
            for connection in answer.connection_set:
                members.setdefault((connection.client_id, connection.client_addr), client_view(connection))
            subscriptions = {
                topic: item.sub_string or "*" for topic, item in sorted(answer.subscription_table.items())
            }
            found = GroupConnections(
                group,
                (),
                answer.consume_type or "",
                answer.message_model or "",
                answer.consume_from_where or "",
                {**(found.subscriptions if found else {}), **subscriptions},
            )
        if found is None:
            raise ConsumerNotOnlineError(f"no consumer of group {group} is connected to any broker")
        unique = {view.client_id: view for view in members.values()}
        return GroupConnections(
            group,
            tuple(unique[name] for name in sorted(unique)),
            found.consume_type,
            found.message_model,
            found.consume_from,
            found.subscriptions,
        )

    async def _ask_brokers(self, group: str) -> list[ConsumerConnections]:
        async def one(address: str) -> ConsumerConnections | None:
            try:
                return await management.consumer_connections(self._at.caller, address, group)
            except ConsumerNotOnlineError:
                return None

        brokers = await self._at.readers()
        answers = await asyncio.gather(*(one(address) for address in brokers.values()))
        return [answer for answer in answers if answer is not None]

    async def producers(self, group: str, topic: str) -> list[ClientView]:
        """Connected members of a producer group, asked at the topic's brokers (mqadmin producerConnection)."""
        found: dict[str, ClientView] = {}
        for address in (await self._at.brokers_of(topic)).values():
            try:
                answer = await management.producer_connections(self._at.caller, address, group)
            except ResponseError as error:
                if error.code != ResponseCode.SYSTEM_ERROR:
                    raise
                continue  # Apache's word for "no such producer group here"
            for connection in answer.connection_set:
                found.setdefault(connection.client_id, client_view(connection))
        return [found[name] for name in sorted(found)]

    async def running_info(self, group: str, client_id: str, *, jstack: bool = False) -> ConsumerRunningInfo:
        """What a member says of itself, asked through a broker it is connected to (mqadmin consumerStatus)."""
        failure: RocketMQError | None = None
        for address in (await self._at.readers()).values():
            try:
                return await management.running_info(
                    self._at.caller, address, group, client_id, jstack=jstack
                )
            except RocketMQError as error:
                failure = error
        assert failure is not None
        raise failure

    async def member_ids(self, group: str) -> list[str]:
        """Client ids of the members, sorted; none if nobody is connected."""
        try:
            return [member.client_id for member in (await self.connections(group)).members]
        except ConsumerNotOnlineError:
            return []

    async def told_by(self, group: str, members: Iterable[str]) -> dict[str, ConsumerRunningInfo]:
        """What these members say of themselves; the silent ones are left out."""

        async def one(client_id: str) -> tuple[str, ConsumerRunningInfo | None]:
            try:
                return client_id, await self.running_info(group, client_id)
            except RocketMQError:
                return client_id, None

        answers = await asyncio.gather(*map(one, members))
        return {client_id: info for client_id, info in answers if info is not None}

    async def owners(self, group: str) -> dict[MessageQueue, str]:
        """Which member holds which queue, as the members themselves say; silent members are left out."""
        told = await self.told_by(group, await self.member_ids(group))
        return {
            queue: client_id
            for client_id, info in told.items()
            for queue, state in info.queues.items()
            if not state.dropped
        }

    # -- how far ----------------------------------------------------------------------

    async def progress(self, group: str, *, topic: str | None = None, owners: bool = False) -> GroupProgress:
        """Where the group stands in each queue (mqadmin consumerProgress); empty if it never read.

        Args:
            owners: ask every member which queues it holds, too.
        """
        try:
            places = await self._at.brokers_of(retry_topic(group) if topic is None else topic)
        except TopicRouteNotFoundError:
            if topic is not None:
                raise
            # A group without a retry topic yet (broadcasting, or never connected) may still have offsets.
            places = await self._at.readers()
        held = await self.owners(group) if owners else {}
        found: dict[MessageQueue, QueueProgress] = {}
        tps = 0.0
        for address in places.values():
            try:
                stats = await management.consume_stats(self._at.caller, address, group, topic=topic)
            except NoPermissionError:
                raise  # nothing told is something else than nothing known
            except ResponseError:
                continue  # it does not know the group
            tps += stats.consume_tps
            for queue, pair in stats.queues.items():
                found[queue] = QueueProgress(
                    queue, pair.broker_offset, pair.consumer_offset, pair.last_timestamp, held.get(queue, "")
                )
        return GroupProgress(group, tuple(found[queue] for queue in sorted(found)), tps)

    # -- settings ---------------------------------------------------------------------

    async def config(self, group: str) -> dict[str, GroupConfig]:
        """The group's settings by broker; raises SubscriptionGroupNotExistError if no broker has them."""
        brokers = await self._at.readers()
        tables = await self._at.of_each(brokers.values(), management.all_group_configs)
        found = {
            name: table.subscription_group_table[group]
            for name, table in zip(brokers, tables, strict=True)
            if group in table.subscription_group_table
        }
        if not found:
            raise SubscriptionGroupNotExistError(f"no broker has settings of group {group}")
        return found

    async def create(
        self,
        group: str,
        settings: Mapping[str, object] | None = None,
        *,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> list[str]:
        """Makes a group or changes the one there is (mqadmin updateSubGroup); the brokers told.

        Args:
            settings: fields of ``GroupConfig`` by their Python names, such as ``retry_max_times``.
        """
        problem = group_problem(group)
        if problem is not None:
            raise ConfigError("group", group, problem)
        known = set(GroupConfig.__struct_fields__)
        for name, value in (settings or {}).items():
            if name not in known:
                raise ConfigError(name, value, f"no such setting; there are {', '.join(sorted(known))}")
        masters = await self._at.masters(broker=broker, cluster=cluster)
        for address in masters.values():
            tables = await management.all_group_configs(self._at.caller, address)
            there = tables.subscription_group_table.get(group, GroupConfig(group_name=group))
            changed = msgspec.structs.replace(there, group_name=group, **(settings or {}))
            await management.update_group(self._at.caller, address, changed)
        return list(masters)

    async def delete(self, group: str, *, remove_offsets: bool = True) -> list[str]:
        """Deletes its settings and, unless told otherwise, its progress; the brokers told."""
        masters = await self._at.masters()
        await self._at.of_each(
            masters.values(),
            lambda caller, address: management.delete_group(
                caller, address, group, remove_offset=remove_offsets
            ),
        )
        return list(masters)

    # -- offsets ----------------------------------------------------------------------

    async def plan_reset(
        self, group: str, topic: str, to: str | int | Mapping[MessageQueue, int]
    ) -> list[OffsetChange]:
        """What a reset would do, queue by queue; nothing is changed.

        Args:
            to: ``earliest``, ``latest``, a time in ms since 1970, or an offset for each queue.
        """
        places = await self._at.queues_of(topic)
        if not places:
            raise TopicRouteNotFoundError(f"topic {topic} has no readable queue")
        if isinstance(to, Mapping):
            strange = [queue for queue in to if queue not in places]
            if strange:
                raise ConfigError("to", str(strange[0]), f"no queue of topic {topic}")
            places = {queue: address for queue, address in places.items() if queue in to}

        async def one(queue: MessageQueue, address: str) -> OffsetChange:
            caller = self._at.caller
            before, low, high = await asyncio.gather(
                group_calls.query_offset(caller, address, group, queue),
                group_calls.min_offset(caller, address, queue),
                group_calls.max_offset(caller, address, queue),
            )
            if isinstance(to, Mapping):
                after = to[queue]
                if not low <= after <= high:
                    raise ConfigError(
                        "to", after, f"queue {queue.broker_name}/{queue.queue_id} holds {low} to {high}"
                    )
            elif to == EARLIEST:
                after = low
            elif to == LATEST:
                after = high
            elif isinstance(to, int):
                found = await group_calls.search_offset(caller, address, queue, to)
                after = min(max(found, low), high)
            else:
                raise ConfigError("to", to, f"use {EARLIEST}, {LATEST}, a time or offsets")
            return OffsetChange(queue, before, after, high - after)

        return list(await asyncio.gather(*(one(queue, address) for queue, address in places.items())))

    async def reset(
        self, group: str, topic: str, to: str | int | Mapping[MessageQueue, int]
    ) -> list[OffsetChange]:
        """Carries out what ``plan_reset`` shows: running members are told by the broker and go on from there,
        a stopped group's offsets are set.

        Raises:
            StateError: members are running and a broker before 5.0 cannot set single queues under them, or a broker
                has no master.
        """
        changes = await self.plan_reset(group, topic, to)
        writers = await self._at.writers_of(topic)
        addresses = {change.queue: writers[change.queue.broker_name] for change in changes}
        caller = self._at.caller
        if not await self._ask_brokers(group):
            await asyncio.gather(
                *(
                    group_calls.update_offset(
                        caller, addresses[change.queue], group, change.queue, change.after
                    )
                    for change in changes
                )
            )
        elif isinstance(to, Mapping):
            for address in {addresses[change.queue] for change in changes}:
                await self._must_set_single_queues(address)
            for change in changes:
                await management.reset_offset(
                    caller,
                    addresses[change.queue],
                    group,
                    topic,
                    -1,
                    queue_id=change.queue.queue_id,
                    queue_offset=change.after,
                )
        else:
            moment = {EARLIEST: 0, LATEST: -1}.get(to, 0) if isinstance(to, str) else to
            for address in sorted(set(addresses.values())):
                await management.reset_offset(caller, address, group, topic, moment)
        return changes

    async def _must_set_single_queues(self, address: str) -> None:
        """A 4.x broker passes over queue and offset of the request and would reset all queues by time."""
        version = (await management.runtime_info(self._at.caller, address)).get("brokerVersionDesc", "")
        if version.startswith(("V3", "V4")):
            raise StateError(
                f"the broker at {address} ({version}) cannot set offsets of single queues while members run; "
                "stop the consumers first, or reset by time"
            )

    async def clone_offsets(self, source: str, target: str, topic: str, *, offline: bool = True) -> None:
        """Gives one group the progress of another (mqadmin cloneGroupOffset)."""
        for address in (await self._at.writers_of(topic)).values():
            await management.clone_group_offset(
                self._at.caller, address, source, target, topic, offline=offline
            )

    async def topics(self, group: str) -> list[str]:
        """Topics the group has read; its retry topic left out."""
        progress = await self.progress(group)
        return sorted({item.queue.topic for item in progress.queues if kind_of(item.queue.topic) == NORMAL})


_JAVA_STRATEGIES = {
    "AllocateMessageQueueAveragely": "AVG",
    "AllocateMessageQueueAveragelyByCircle": "AVG_BY_CIRCLE",
    "AllocateMessageQueueByConfig": "CONFIG",
    "AllocateMessageQueueByMachineRoom": "MACHINE_ROOM",
    "AllocateMessageQueueConsistentHash": "CONSISTENT_HASH",
}


def strategy_of(info: ConsumerRunningInfo) -> str:
    """The name of the strategy a member says it uses; "" where it does not say.

    Java's members tell the object instead, ``org.apache...AllocateMessageQueueAveragely@22ce3ff9``; where it
    is none of RocketMQ's plain ones, the name of its class has to do.
    """
    told = info.properties.get("allocateMessageQueueStrategy", "")
    of_class = told.partition("@")[0].rpartition(".")[2]
    return _JAVA_STRATEGIES.get(of_class, of_class)


def client_view(connection: ClientConnection) -> ClientView:
    return ClientView(
        connection.client_id,
        connection.client_addr,
        connection.language or "",
        version_name(connection.version),
    )
