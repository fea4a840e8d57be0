"""Calls of administration: topics, groups, broker settings, statistics, resets.

Each takes the broker's address; ``admin`` decides whom to ask.
"""

from __future__ import annotations

from collections.abc import Mapping

from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol import properties_text
from gimbalmq.protocol.bodies import (
    ConsumerConnections,
    GroupConfig,
    GroupTable,
    KvTable,
    ProducerConnections,
    TopicConfig,
    TopicList,
    TopicTable,
)
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.headers import groups as group_headers
from gimbalmq.protocol.headers import management as headers
from gimbalmq.protocol.headers import nameserver as nameserver_headers
from gimbalmq.protocol.status_bodies import (
    ConsumerRunningInfo,
    ConsumeStats,
    GroupList,
    QueueOffsets,
    TopicStats,
)
from gimbalmq.rpc.call import Caller, ask

TIMEOUT = 5.0


# --- topics --------------------------------------------------------------------------------------


async def create_topic(
    caller: Caller,
    address: str,
    config: TopicConfig,
    *,
    default_topic: str = "TBW102",
    timeout: float = TIMEOUT,
) -> None:
    """17 UPDATE_AND_CREATE_TOPIC: creates it, or changes the one there is."""
    header = headers.CreateTopic(
        topic=config.topic_name,
        default_topic=default_topic,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=config.topic_filter_type,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=",".join(f"{key}={value}" for key, value in config.attributes.items()) or None,
    )
    await ask(caller, address, RequestCode.UPDATE_AND_CREATE_TOPIC, header, timeout=timeout)


async def delete_topic(caller: Caller, address: str, topic: str, *, timeout: float = TIMEOUT) -> None:
    """215 DELETE_TOPIC_IN_BROKER."""
    header = headers.DeleteTopic(topic=topic)
    await ask(caller, address, RequestCode.DELETE_TOPIC_IN_BROKER, header, timeout=timeout)


async def all_topic_configs(caller: Caller, address: str, *, timeout: float = TIMEOUT) -> TopicTable:
    """21 GET_ALL_TOPIC_CONFIG."""
    answer = await ask(caller, address, RequestCode.GET_ALL_TOPIC_CONFIG, timeout=timeout)
    return TopicTable.parse(answer.body)


async def topic_stats(caller: Caller, address: str, topic: str, *, timeout: float = TIMEOUT) -> TopicStats:
    """202 GET_TOPIC_STATS_INFO: each queue's ends and its last message's time."""
    header = headers.DeleteTopic(topic=topic)
    answer = await ask(caller, address, RequestCode.GET_TOPIC_STATS_INFO, header, timeout=timeout)
    return TopicStats.parse(answer.body)


async def topics_by_cluster(
    caller: Caller, nameserver: str, cluster: str, *, timeout: float = TIMEOUT
) -> TopicList:
    """224 GET_TOPICS_BY_CLUSTER, of a name server."""
    header = nameserver_headers.ClusterOnly(cluster=cluster)
    answer = await ask(caller, nameserver, RequestCode.GET_TOPICS_BY_CLUSTER, header, timeout=timeout)
    return TopicList.parse(answer.body)


async def groups_of_topic(caller: Caller, address: str, topic: str, *, timeout: float = TIMEOUT) -> list[str]:
    """300 QUERY_TOPIC_CONSUME_BY_WHO."""
    header = headers.DeleteTopic(topic=topic)
    answer = await ask(caller, address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header, timeout=timeout)
    return GroupList.parse(answer.body).group_list


# --- groups --------------------------------------------------------------------------------------


async def update_group(
    caller: Caller, address: str, config: GroupConfig, *, timeout: float = TIMEOUT
) -> None:
    """200 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
    await ask(
        caller,
        address,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        None,
        config.dump(),
        timeout=timeout,
    )


async def delete_group(
    caller: Caller, address: str, group: str, *, remove_offset: bool = False, timeout: float = TIMEOUT
) -> None:
    """207 DELETE_SUBSCRIPTIONGROUP; the flag goes under both its names."""
    header = headers.GroupName(group_name=group, remove_offset=remove_offset, clean_offset=remove_offset)
    await ask(caller, address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header, timeout=timeout)


async def all_group_configs(caller: Caller, address: str, *, timeout: float = TIMEOUT) -> GroupTable:
    """201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
    answer = await ask(caller, address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, timeout=timeout)
    return GroupTable.parse(answer.body)


async def consume_stats(
    caller: Caller, address: str, group: str, *, topic: str | None = None, timeout: float = TIMEOUT
) -> ConsumeStats:
    """208 GET_CONSUME_STATS: the group's place in each queue of one topic, or of all of them."""
    header = headers.GetConsumeStats(consumer_group=group, topic=topic)
    answer = await ask(caller, address, RequestCode.GET_CONSUME_STATS, header, timeout=timeout)
    return ConsumeStats.parse(answer.body)


async def consumer_connections(
    caller: Caller, address: str, group: str, *, timeout: float = TIMEOUT
) -> ConsumerConnections:
    """203 GET_CONSUMER_CONNECTION_LIST; raises ConsumerNotOnlineError."""
    header = group_headers.GroupOnly(consumer_group=group)
    answer = await ask(caller, address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header, timeout=timeout)
    return ConsumerConnections.parse(answer.body)


async def producer_connections(
    caller: Caller, address: str, group: str, *, timeout: float = TIMEOUT
) -> ProducerConnections:
    """204 GET_PRODUCER_CONNECTION_LIST."""
    header = headers.ProducerGroup(producer_group=group)
    answer = await ask(caller, address, RequestCode.GET_PRODUCER_CONNECTION_LIST, header, timeout=timeout)
    return ProducerConnections.parse(answer.body)


async def running_info(
    caller: Caller,
    address: str,
    group: str,
    client_id: str,
    *,
    jstack: bool = False,
    timeout: float = 10.0,
) -> ConsumerRunningInfo:
    """307 GET_CONSUMER_RUNNING_INFO, through the broker."""
    header = headers.RunningInfo(consumer_group=group, client_id=client_id, jstack_enable=jstack)
    answer = await ask(caller, address, RequestCode.GET_CONSUMER_RUNNING_INFO, header, timeout=timeout)
    return ConsumerRunningInfo.parse(answer.body)


# --- offsets of groups ---------------------------------------------------------------------------


async def reset_offset(
    caller: Caller,
    address: str,
    group: str,
    topic: str,
    timestamp_ms: int,
    *,
    force: bool = True,
    queue_id: int | None = None,
    queue_offset: int | None = None,
    timeout: float = TIMEOUT,
) -> dict[MessageQueue, int]:
    """222 INVOKE_BROKER_TO_RESET_OFFSET: the offsets set; -1 as time means the newest."""
    header = headers.ResetOffset(
        topic=topic,
        group=group,
        timestamp=timestamp_ms,
        is_force=force,
        queue_id=queue_id,
        offset=queue_offset,
    )
    answer = await ask(caller, address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, timeout=timeout)
    return QueueOffsets.parse(answer.body).queues if answer.body else {}


async def clone_group_offset(
    caller: Caller,
    address: str,
    source: str,
    target: str,
    topic: str,
    *,
    offline: bool = False,
    timeout: float = TIMEOUT,
) -> None:
    """314 CLONE_GROUP_OFFSET."""
    header = headers.CloneGroupOffset(src_group=source, dest_group=target, topic=topic, offline=offline)
    await ask(caller, address, RequestCode.CLONE_GROUP_OFFSET, header, timeout=timeout)


# --- brokers -------------------------------------------------------------------------------------


async def broker_config(caller: Caller, address: str, *, timeout: float = TIMEOUT) -> dict[str, str]:
    """26 GET_BROKER_CONFIG."""
    answer = await ask(caller, address, RequestCode.GET_BROKER_CONFIG, timeout=timeout)
    return properties_text.loads(bytes(answer.body).decode())


async def update_broker_config(
    caller: Caller,
    address: str,
    settings: Mapping[str, str],
    *,
    forces_role: bool = False,
    timeout: float = TIMEOUT,
) -> None:
    """25 UPDATE_BROKER_CONFIG; ``forces_role`` makes a broker of ours the master although another one lives."""
    body = properties_text.dumps(settings)
    header = headers.UpdateBrokerConfig(forces_role=True) if forces_role else None
    await ask(caller, address, RequestCode.UPDATE_BROKER_CONFIG, header, body, timeout=timeout)


async def nameserver_config(caller: Caller, address: str, *, timeout: float = TIMEOUT) -> dict[str, str]:
    """319 GET_NAMESRV_CONFIG."""
    answer = await ask(caller, address, RequestCode.GET_NAMESRV_CONFIG, timeout=timeout)
    return properties_text.loads(bytes(answer.body).decode())


async def update_nameserver_config(
    caller: Caller, address: str, settings: Mapping[str, str], *, timeout: float = TIMEOUT
) -> None:
    """318 UPDATE_NAMESRV_CONFIG."""
    body = properties_text.dumps(settings)
    await ask(caller, address, RequestCode.UPDATE_NAMESRV_CONFIG, None, body, timeout=timeout)


async def wipe_write_perm(
    caller: Caller, nameserver: str, broker_name: str, *, timeout: float = TIMEOUT
) -> int:
    """205 WIPE_WRITE_PERM_OF_BROKER, of a name server: topics changed."""
    header = nameserver_headers.BrokerNameOnly(broker_name=broker_name)
    answer = await ask(caller, nameserver, RequestCode.WIPE_WRITE_PERM_OF_BROKER, header, timeout=timeout)
    return nameserver_headers.WipeReply.from_ext(answer.ext_fields).wipe_topic_count or 0


async def add_write_perm(
    caller: Caller, nameserver: str, broker_name: str, *, timeout: float = TIMEOUT
) -> int:
    """327 ADD_WRITE_PERM_OF_BROKER, of a name server: topics changed."""
    header = nameserver_headers.BrokerNameOnly(broker_name=broker_name)
    answer = await ask(caller, nameserver, RequestCode.ADD_WRITE_PERM_OF_BROKER, header, timeout=timeout)
    return nameserver_headers.WipeReply.from_ext(answer.ext_fields).add_topic_count or 0


async def runtime_info(caller: Caller, address: str, *, timeout: float = TIMEOUT) -> dict[str, str]:
    """28 GET_BROKER_RUNTIME_INFO."""
    answer = await ask(caller, address, RequestCode.GET_BROKER_RUNTIME_INFO, timeout=timeout)
    return KvTable.parse(answer.body).table
