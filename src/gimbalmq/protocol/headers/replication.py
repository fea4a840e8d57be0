"""Headers of what replicas of a broker ask each other: tables, roles, addresses."""

from __future__ import annotations

from gimbalmq.protocol.headers.base import Header


class GetTopicTable(Header):
    """21 GET_ALL_TOPIC_CONFIG. Without a field the whole table is asked for, as 4.9 does.

    Attributes:
        topic_seq: how many topics, in the order of their names, the sender has got.
        max_topic_num: most topics of the answer.
        data_version: of the table that the sender has, as JSON; empty if it has none.
        changes_only: ours: the sender has the whole table of that version, and needs what has changed since.
    """

    topic_seq: int | None = None
    max_topic_num: int | None = None
    data_version: str | None = None
    changes_only: bool | None = None


class TopicTableReply(Header):
    """21's answer; what 4.9 answers has no header.

    Attributes:
        total_topic_num: of the whole table.
        changes_only: ours: the body has only what has changed since the version that the request names; a name in
            ``removed`` of the body is gone.
    """

    total_topic_num: int | None = None
    changes_only: bool | None = None


class GetGroupTable(Header):
    """201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG; as ``GetTopicTable``."""

    group_seq: int | None = None
    max_group_num: int | None = None
    data_version: str | None = None
    changes_only: bool | None = None


class GroupTableReply(Header):
    """201's answer; as ``TopicTableReply``."""

    total_group_num: int | None = None
    changes_only: bool | None = None


class GetOffsetTable(Header):
    """43 GET_ALL_CONSUMER_OFFSET, 45 GET_ALL_DELAY_OFFSET, 60 GET_TIMER_CHECK_POINT; Apache's slaves send no field.

    Attributes:
        data_version: ours: of the table that the sender has, as JSON; empty if it has none. It needs what has changed
            since.
    """

    data_version: str | None = None


class OffsetTableReply(Header):
    """The answer of this library to a slave of this library.

    Attributes:
        changes_only: the body has only what has changed since the version that the request names.
        log_offset: what the table knows to have happened lies before this offset of the commit log. Who has less of the
            log must not take the table yet.
    """

    changes_only: bool | None = None
    log_offset: int | None = None


class TimerCheckpointReply(Header):
    """60's answer of this library to a slave of this library: what Apache's checkpoint has no place for.

    Attributes:
        log_offset: as of ``OffsetTableReply``.
        log_begin: where the commit log begins. The rest is described at ``store.timer_files.TimerCheck``.
    """

    log_offset: int | None = None
    log_begin: int | None = None
    marks_from: int | None = None
    moved_below: int | None = None
    fill_until: int | None = None
    filled_from_ms: int | None = None


class GetAccess(Header):
    """3005 AUTH_LIST_USER and 3010 AUTH_LIST_ACL, from a slave of this library; Apache's brokers pass over it.

    Attributes:
        access_version: of the users and policies that the sender has.
    """

    access_version: str | None = None


class AccessReply(Header):
    """Answers of this library to 3005 and 3010.

    Attributes:
        access_version: one text for users and policies together, another after every change.
        unchanged: it is the one that the request names; then there is no body.
    """

    access_version: str | None = None
    unchanged: bool | None = None


class ExchangeHaInfo(Header):
    """906 EXCHANGE_BROKER_HA_INFO and its answer.

    A request with ``master_ha_address`` says "I am your master"; one without asks a master for the three.
    """

    master_ha_address: str | None = None
    master_flush_offset: int | None = None
    master_address: str | None = None


class ResetMasterFlushOffset(Header):
    """908 RESET_MASTER_FLUSH_OFFSET."""

    master_flush_offset: int


class MemberGroup(Header):
    """901 GET_BROKER_MEMBER_GROUP."""

    cluster_name: str
    broker_name: str


class BrokerHeartbeat(Header):
    """904 BROKER_HEARTBEAT; what follows the address counts at controllers only, which need ``broker_id``."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: int | None = None
    epoch: int | None = None
    max_offset: int | None = None
    confirm_offset: int | None = None
    heartbeat_timeout_mills: int | None = None
    election_priority: int | None = None
