"""Headers of broker administration."""

from __future__ import annotations

from msgspec import field

from gimbalmq.protocol.headers.base import Header


class CreateTopic(Header):
    """17 UPDATE_AND_CREATE_TOPIC."""

    topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    default_topic: str = "TBW102"
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int | None = None
    order: bool | None = None
    attributes: str | None = None
    force: bool | None = None


class DeleteTopic(Header):
    """215, 202, 300, 351: a topic and nothing else."""

    topic: str


class GroupName(Header):
    """207 DELETE_SUBSCRIPTIONGROUP; the flag was renamed between 4.9 and 5.x."""

    group_name: str
    remove_offset: bool | None = None
    clean_offset: bool | None = None


class GroupField(Header):
    """343, 352: a group under the name ``group``."""

    group: str


class GetConsumeStats(Header):
    """208 GET_CONSUME_STATS."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class ProducerGroup(Header):
    """204 GET_PRODUCER_CONNECTION_LIST."""

    producer_group: str


class ResetOffset(Header):
    """222 INVOKE_BROKER_TO_RESET_OFFSET, and 220 on to the client."""

    topic: str
    group: str
    timestamp: int
    is_force: bool = field(name="isForce", default=False)
    queue_id: int | None = None
    offset: int | None = None


class ConsumerStatus(Header):
    """223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS, and 221 on to the client."""

    topic: str
    group: str
    client_addr: str | None = None


class GroupTopic(Header):
    """303, 345: a group's view of a topic."""

    group: str
    topic: str


class RunningInfo(Header):
    """307 GET_CONSUMER_RUNNING_INFO."""

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


class ConsumeDirectly(Header):
    """309 CONSUME_MESSAGE_DIRECTLY."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None


class CorrectionOffset(Header):
    """308 QUERY_CORRECTION_OFFSET."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


class CloneGroupOffset(Header):
    """314 CLONE_GROUP_OFFSET."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool | None = None


class UpdateBrokerConfig(Header):
    """25 UPDATE_BROKER_CONFIG.

    Attributes:
        forces_role: ours: a slave becomes the master although another master lives.
    """

    forces_role: bool = False


class ViewStats(Header):
    """315 VIEW_BROKER_STATS_DATA."""

    stats_name: str
    stats_key: str


class QueryConsumeQueue(Header):
    """321 QUERY_CONSUME_QUEUE."""

    topic: str
    queue_id: int
    index: int
    count: int
    consumer_group: str | None = None


class GroupForbidden(Header):
    """353 UPDATE_AND_GET_GROUP_FORBIDDEN."""

    group: str
    topic: str
    readable: bool | None = None
