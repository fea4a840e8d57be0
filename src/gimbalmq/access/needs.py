"""What each request needs: one table for the broker and one for the name server, from a request's code to its rights.

The strict rules are ours and the default. Apache's leave requests open that can destroy or reveal; they count if
``authorizationRules`` is ``apache``. The table of docs/auth.md is made from this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from gimbalmq.access.named import (
    About,
    Actions,
    Cluster,
    Each,
    Group,
    GroupSettings,
    Heard,
    Locked,
    Piece,
    Routed,
    Rows,
    Stored,
    Topic,
    Unnamed,
    WithField,
    cluster_asked,
    ended,
    handed_over,
    sent_back,
    topic_asked,
    viewed,
)
from gimbalmq.access.policies import Action, Asked, ResourceKind, Rules
from gimbalmq.model.topics import HOLD_OTHERS, OP_HALF_TOPIC, TRANS_GROUP
from gimbalmq.protocol.codes import RequestCode as Code
from gimbalmq.protocol.command import RemotingCommand

NAMESERVER_CLUSTER = "nameserver"
"""The cluster that policies name if they are about a name server, which belongs to no cluster of brokers."""


class Level(Enum):
    """Who may send a request at all; the words are those of the documentation."""

    OPEN = "anybody"
    SIGNED = "any user"
    RIGHTS = "rights"
    """Any user, who also needs the rights that the row names, if authorisation is on."""
    SERVER = "a server"
    """A Super user, as whom servers sign their calls, or a trusted server; authorisation on or off."""
    SUPER_ONLY = "Super users only"
    """Authorisation on or off."""


@dataclass(frozen=True, slots=True)
class Need:
    """One row: who may send the request, and which rights it wants."""

    level: Level
    pieces: tuple[Piece, ...] = ()

    @property
    def words(self) -> str:
        """As the documentation says it."""
        return "; ".join(piece.words for piece in self.pieces) or self.level.value


OPEN = Need(Level.OPEN)
SIGNED = Need(Level.SIGNED)
SERVER = Need(Level.SERVER)
SUPER_ONLY = Need(Level.SUPER_ONLY)


def rights(*pieces: Piece) -> Need:
    return Need(Level.RIGHTS, pieces)


_PUB, _SUB, _CREATE, _UPDATE, _DELETE, _GET = (
    frozenset({action})
    for action in (Action.PUB, Action.SUB, Action.CREATE, Action.UPDATE, Action.DELETE, Action.GET)
)
_SUB_GET, _SUB_UPDATE = _SUB | _GET, _SUB | _UPDATE

_CLUSTER_GET = rights(Cluster(_GET))
_CLUSTER_UPDATE = rights(Cluster(_UPDATE))
_TOPIC_GET = rights(Topic("topic", _GET))


def _both(group: str, topic: str, actions: Actions, *, optional_group: bool = False) -> Need:
    return rights(Group(group, actions, optional=optional_group), Topic(topic, actions))


SENT_TO_CLIENTS = (
    Code.CHECK_TRANSACTION_STATE,
    Code.NOTIFY_CONSUMER_IDS_CHANGED,
    Code.RESET_CONSUMER_CLIENT_OFFSET,
    Code.GET_CONSUMER_STATUS_FROM_CLIENT,
    Code.PUSH_REPLY_MESSAGE_TO_CLIENT,
)
"""Requests of brokers to their clients. A server that gets one says that it does not know it."""

SENT_TO_CONTROLLERS = (
    Code.CONTROLLER_ALTER_SYNC_STATE_SET,
    Code.CONTROLLER_ELECT_MASTER,
    Code.CONTROLLER_REGISTER_BROKER,
    Code.CONTROLLER_GET_REPLICA_INFO,
    Code.CONTROLLER_GET_METADATA_INFO,
    Code.CONTROLLER_GET_SYNC_STATE_DATA,
    Code.UPDATE_CONTROLLER_CONFIG,
    Code.GET_CONTROLLER_CONFIG,
    Code.CLEAN_BROKER_DATA,
    Code.CONTROLLER_GET_NEXT_BROKER_ID,
    Code.CONTROLLER_APPLY_BROKER_ID,
)
"""Requests of brokers and tools to a controller, which is Apache's. A server here says that it does not know them."""

_ACCOUNTS = (
    Code.UPDATE_AND_CREATE_ACL_CONFIG,
    Code.DELETE_ACL_CONFIG,
    Code.GET_BROKER_CLUSTER_ACL_INFO,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    Code.GET_BROKER_CLUSTER_ACL_CONFIG,
)
"""About accounts of 4.x. Apache's 4.x lets every account send them, and so become an administrator."""

_SEND = rights(Topic("topic", _PUB, of_retry=_SUB))
_SEND_V2 = rights(Topic("b", _PUB, of_retry=_SUB))

_EITHER: Mapping[int, Need] = {
    # The name of a retry topic says whose it is. What senders call themselves proves nothing, and Java's consumers
    # call themselves CLIENT_INNER_PRODUCER there. (Apache's brokers before 5.5 believed it.)
    Code.SEND_MESSAGE: _SEND,
    Code.SEND_MESSAGE_V2: _SEND_V2,
    Code.SEND_BATCH_MESSAGE: _SEND_V2,
    Code.QUERY_MESSAGE: rights(Topic("topic", _SUB_GET)),
    Code.RECALL_MESSAGE: rights(Topic("topic", _PUB)),
    Code.UNREGISTER_CLIENT: rights(Group("consumerGroup", _SUB, optional=True)),
    Code.GET_CONSUMER_LIST_BY_GROUP: rights(Group("consumerGroup", _SUB_GET)),
    Code.UPDATE_AND_CREATE_TOPIC: rights(Topic("topic", _CREATE)),
    Code.DELETE_TOPIC_IN_BROKER: rights(Topic("topic", _DELETE)),
    Code.DELETE_SUBSCRIPTIONGROUP: rights(Group("groupName", _DELETE)),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _TOPIC_GET,
    Code.GET_MAX_OFFSET: _TOPIC_GET,
    Code.GET_MIN_OFFSET: _TOPIC_GET,
    Code.GET_EARLIEST_MSG_STORETIME: _TOPIC_GET,
    Code.GET_TOPIC_STATS_INFO: _TOPIC_GET,
    Code.QUERY_TOPIC_CONSUME_BY_WHO: _TOPIC_GET,
    Code.GET_TOPIC_CONFIG: _TOPIC_GET,
    Code.RESUME_CHECK_HALF_MESSAGE: rights(Topic("topic", _UPDATE)),
    Code.GET_CONSUMER_CONNECTION_LIST: rights(Group("consumerGroup", _GET)),
    Code.GET_CONSUMER_RUNNING_INFO: rights(Group("consumerGroup", _GET)),
    Code.QUERY_TOPICS_BY_CONSUMER: rights(Group("group", _GET)),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: rights(Group("group", _GET)),
    Code.GET_CONSUME_STATS: rights(
        Group("consumerGroup", _GET),
        Topic("topic", _GET, optional=True),
        Each(ResourceKind.TOPIC, "topicList", ";", _GET),
    ),
    Code.QUERY_CONSUME_TIME_SPAN: _both("group", "topic", _GET),
    Code.QUERY_CONSUME_QUEUE: _both("consumerGroup", "topic", _GET, optional_group=True),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: _both("group", "topic", _GET),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _both("group", "topic", _GET),
    Code.QUERY_CORRECTION_OFFSET: rights(
        Each(ResourceKind.GROUP, "filterGroups", ",", _GET),
        Group("compareGroup", _GET),
        Topic("topic", _GET),
    ),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _both("group", "topic", _UPDATE),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: _both("group", "topic", _UPDATE),
    Code.GET_PRODUCER_CONNECTION_LIST: _CLUSTER_GET,
    Code.VIEW_BROKER_STATS_DATA: _CLUSTER_GET,
    Code.GET_BROKER_CONSUME_STATS: _CLUSTER_GET,
    Code.GET_ALL_PRODUCER_INFO: _CLUSTER_GET,
    # It says whether an expression can be read, and nothing of this broker.
    Code.CHECK_CLIENT_CONFIG: SIGNED,
    **dict.fromkeys(_ACCOUNTS, SUPER_ONLY),
    # It only changes a number that is shown.
    Code.RESET_MASTER_FLUSH_OFFSET: _CLUSTER_UPDATE,
    **dict.fromkeys(SENT_TO_CLIENTS, SIGNED),
    **dict.fromkeys(SENT_TO_CONTROLLERS, SIGNED),
}
"""Requests to a broker of which both rules say the same."""

WRITES_USERS = (
    Code.AUTH_CREATE_USER,
    Code.AUTH_UPDATE_USER,
    Code.AUTH_DELETE_USER,
    Code.AUTH_CREATE_ACL,
    Code.AUTH_UPDATE_ACL,
    Code.AUTH_DELETE_ACL,
)
READS_USERS = (Code.AUTH_GET_USER, Code.AUTH_LIST_USER, Code.AUTH_GET_ACL, Code.AUTH_LIST_ACL)

_BETWEEN_REPLICAS = (
    Code.NOTIFY_MIN_BROKER_ID_CHANGE,
    Code.EXCHANGE_BROKER_HA_INFO,
    Code.NOTIFY_BROKER_ROLE_CHANGED,
)
"""What name servers, brokers of the same name and controllers tell a broker."""

_PULL = _both("consumerGroup", "topic", _SUB)

_STRICT: Mapping[int, Need] = {
    Code.SEND_REPLY_MESSAGE: _SEND,
    Code.SEND_REPLY_MESSAGE_V2: _SEND_V2,
    # No group's messages may be read out of its retry topic under the name of another group.
    Code.PULL_MESSAGE: _PULL,
    Code.LITE_PULL_MESSAGE: _PULL,
    Code.QUERY_CONSUMER_OFFSET: _both("consumerGroup", "topic", _SUB_GET),
    Code.UPDATE_CONSUMER_OFFSET: _both("consumerGroup", "topic", _SUB_UPDATE),
    Code.HEART_BEAT: rights(Heard()),
    Code.LOCK_BATCH_MQ: rights(Locked()),
    Code.UNLOCK_BATCH_MQ: rights(Locked()),
    # These name a message by its place in the log, which may be any message: sent back, it is copied to the sender's
    # own retry topic and read there.
    Code.CONSUMER_SEND_MSG_BACK: rights(Group("group", _SUB), Stored("offset", sent_back, _SUB)),
    Code.VIEW_MESSAGE_BY_ID: rights(Stored("offset", viewed, _GET), WithField("raw", _GET)),
    Code.END_TRANSACTION: rights(Stored("commitLogOffset", ended, _PUB, of_retry=_SUB)),
    Code.CONSUME_MESSAGE_DIRECTLY: rights(
        Group("consumerGroup", _SUB), Stored("msgId", handed_over, _SUB, late=True)
    ),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: rights(Rows(ResourceKind.TOPIC, "topicConfigList")),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: rights(GroupSettings()),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: rights(Rows(ResourceKind.GROUP, "groupConfigList")),
    Code.CLONE_GROUP_OFFSET: rights(
        Group("srcGroup", _GET),
        Group("destGroup", _UPDATE),
        Topic("topic", _UPDATE, optional=True),
        Unnamed("topic", _UPDATE),
    ),
    Code.UPDATE_BROKER_CONFIG: _CLUSTER_UPDATE,
    Code.GET_BROKER_CONFIG: _CLUSTER_GET,
    Code.GET_BROKER_RUNTIME_INFO: _CLUSTER_GET,
    Code.GET_ALL_TOPIC_CONFIG: _CLUSTER_GET,
    Code.GET_ALL_CONSUMER_OFFSET: _CLUSTER_GET,
    Code.GET_ALL_DELAY_OFFSET: _CLUSTER_GET,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _CLUSTER_GET,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _CLUSTER_GET,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _CLUSTER_UPDATE,
    Code.CLEAN_UNUSED_TOPIC: _CLUSTER_UPDATE,
    Code.DELETE_EXPIRED_COMMITLOG: _CLUSTER_UPDATE,
    Code.QUERY_ASSIGNMENT: _CLUSTER_GET,
    Code.SET_MESSAGE_REQUEST_MODE: _CLUSTER_UPDATE,
    Code.GET_ALL_MESSAGE_REQUEST_MODE: _CLUSTER_GET,
    Code.GET_TIMER_CHECK_POINT: _CLUSTER_GET,
    Code.GET_TIMER_METRICS: _CLUSTER_GET,
    Code.GET_BROKER_HA_STATUS: _CLUSTER_GET,
    Code.GET_BROKER_EPOCH_CACHE: _CLUSTER_GET,
    # Whoever sends one of these decides whose log this broker copies, or whether it is the master.
    **dict.fromkeys(_BETWEEN_REPLICAS, SERVER),
    # Who may write policies may give himself every right.
    **dict.fromkeys(WRITES_USERS, SUPER_ONLY),
    **dict.fromkeys(READS_USERS, _CLUSTER_GET),
}
"""Our rules for requests of which Apache's say something else."""


def _but_retry(actions: Actions) -> Need:
    return rights(Group("consumerGroup", actions), Topic("topic", actions, skip_retry=True))


_APACHE: Mapping[int, Need] = {
    Code.SEND_REPLY_MESSAGE: SIGNED,
    Code.SEND_REPLY_MESSAGE_V2: SIGNED,
    Code.PULL_MESSAGE: _but_retry(_SUB),
    Code.LITE_PULL_MESSAGE: SIGNED,
    Code.QUERY_CONSUMER_OFFSET: _but_retry(_SUB_GET),
    Code.UPDATE_CONSUMER_OFFSET: _but_retry(_SUB_UPDATE),
    Code.HEART_BEAT: rights(Heard(skip_retry=True)),
    Code.LOCK_BATCH_MQ: rights(Locked(skip_retry=True)),
    Code.UNLOCK_BATCH_MQ: rights(Locked(skip_retry=True)),
    Code.CONSUMER_SEND_MSG_BACK: rights(Group("group", _SUB)),
    Code.VIEW_MESSAGE_BY_ID: rights(Topic("topic", _GET, optional=True), WithField("raw", _GET)),
    Code.END_TRANSACTION: rights(Topic("topic", _PUB, optional=True)),
    Code.CONSUME_MESSAGE_DIRECTLY: rights(Group("consumerGroup", _SUB), Topic("topic", _SUB, optional=True)),
    Code.CLONE_GROUP_OFFSET: rights(Group("destGroup", _UPDATE), Topic("topic", _UPDATE, optional=True)),
    **dict.fromkeys(
        (
            Code.UPDATE_AND_CREATE_TOPIC_LIST,
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            Code.UPDATE_BROKER_CONFIG,
            Code.GET_BROKER_CONFIG,
            Code.GET_BROKER_RUNTIME_INFO,
            Code.GET_ALL_TOPIC_CONFIG,
            Code.GET_ALL_CONSUMER_OFFSET,
            Code.GET_ALL_DELAY_OFFSET,
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
            Code.CLEAN_EXPIRED_CONSUMEQUEUE,
            Code.CLEAN_UNUSED_TOPIC,
            Code.DELETE_EXPIRED_COMMITLOG,
            Code.QUERY_ASSIGNMENT,
            Code.SET_MESSAGE_REQUEST_MODE,
            Code.GET_ALL_MESSAGE_REQUEST_MODE,
            Code.GET_TIMER_CHECK_POINT,
            Code.GET_TIMER_METRICS,
            Code.GET_BROKER_HA_STATUS,
            Code.GET_BROKER_EPOCH_CACHE,
        ),
        SIGNED,
    ),
    **dict.fromkeys(_BETWEEN_REPLICAS, _CLUSTER_UPDATE),
    **dict.fromkeys(WRITES_USERS, rights(Cluster(_UPDATE, as_named=True))),
    **dict.fromkeys(READS_USERS, rights(Cluster(_GET, as_named=True))),
}
"""Apache's rules for requests of which ours say something else."""


# Clients that read topics by a pattern ask for them.
_LISTS = (
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    Code.GET_TOPICS_BY_CLUSTER,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    Code.GET_UNIT_TOPIC_LIST,
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST,
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
)

_NAMESERVER: Mapping[int, Need] = {
    # What brokers send by themselves.
    Code.REGISTER_BROKER: SERVER,
    Code.UNREGISTER_BROKER: SERVER,
    Code.QUERY_DATA_VERSION: SERVER,
    Code.BROKER_HEARTBEAT: SERVER,
    # What administrators send; a server that is trusted for its address is none.
    Code.PUT_KV_CONFIG: SUPER_ONLY,
    Code.GET_KV_CONFIG: SUPER_ONLY,
    Code.DELETE_KV_CONFIG: SUPER_ONLY,
    Code.GET_KVLIST_BY_NAMESPACE: SUPER_ONLY,
    Code.WIPE_WRITE_PERM_OF_BROKER: SUPER_ONLY,
    Code.ADD_WRITE_PERM_OF_BROKER: SUPER_ONLY,
    Code.DELETE_TOPIC_IN_NAMESRV: SUPER_ONLY,
    Code.REGISTER_TOPIC_IN_NAMESRV: SUPER_ONLY,
    Code.UPDATE_NAMESRV_CONFIG: SUPER_ONLY,
    Code.GET_NAMESRV_CONFIG: SUPER_ONLY,
    **dict.fromkeys(_LISTS, SIGNED),
    **dict.fromkeys(WRITES_USERS, SUPER_ONLY),
    **dict.fromkeys(READS_USERS, _CLUSTER_GET),
    **dict.fromkeys(_ACCOUNTS, SUPER_ONLY),
}

_PUBLIC_ROUTES: Mapping[int, Need] = {
    Code.GET_ROUTEINFO_BY_TOPIC: OPEN,
    Code.GET_BROKER_CLUSTER_INFO: OPEN,
    Code.GET_BROKER_MEMBER_GROUP: OPEN,
}
_PRIVATE_ROUTES: Mapping[int, Need] = {
    Code.GET_ROUTEINFO_BY_TOPIC: rights(Routed()),
    Code.GET_BROKER_CLUSTER_INFO: SIGNED,
    # Brokers of one name find each other by it.
    Code.GET_BROKER_MEMBER_GROUP: SERVER,
}


_TOUCH = frozenset({Action.SUB, Action.CREATE, Action.UPDATE, Action.DELETE})


def _is_the_brokers(wanted: Asked) -> bool:
    """Whether a request reads or moves what the broker keeps for all topics; numbers alone anybody may see."""
    (kind, name, _), actions = wanted
    if kind is ResourceKind.TOPIC:
        return (name in HOLD_OTHERS or name == OP_HALF_TOPIC) and not actions.isdisjoint(_TOUCH)
    return kind is ResourceKind.GROUP and name == TRANS_GROUP and not actions.isdisjoint(_TOUCH)


class NeedTable:
    """The rows that count for one server.

    Attributes:
        cluster: the cluster that requests to this server are about.
        rows: by request code.
        topic_at: set by a broker when its store is open: the topic of the message at an offset of the commit log.
    """

    def __init__(self, rows: Mapping[int, Need], cluster: str, *, guards_waiting: bool = False) -> None:
        self.rows = rows
        self.cluster = cluster
        self.topic_at: Callable[[int], str | None] | None = None
        self._guards_waiting = guards_waiting

    @classmethod
    def of_broker(cls, rules: Rules = Rules.STRICT, cluster: str = "DefaultCluster") -> NeedTable:
        strict = rules is not Rules.APACHE
        return cls({**_EITHER, **(_STRICT if strict else _APACHE)}, cluster, guards_waiting=strict)

    @classmethod
    def of_nameserver(cls, *, routes_public: bool = True) -> NeedTable:
        # Apache's name server has no doors at all, so there is no rule of Apache's to go back to.
        routes = _PUBLIC_ROUTES if routes_public else _PRIVATE_ROUTES
        return cls({**_NAMESERVER, **routes}, NAMESERVER_CLUSTER)

    def need(self, code: int) -> Need:
        """The row of a request. One without a row is a request that no handler here answers."""
        return self.rows.get(code, SIGNED)

    def missing(self, codes: Iterable[int]) -> list[int]:
        """Which of these have no row; servers that answer such a request do not start."""
        return sorted(code for code in codes if code not in self.rows)

    def asked(self, need: Need, command: RemotingCommand) -> list[Asked]:
        """The rights that one request wants, each once; a user must have all of them.

        Messages that wait under a system topic are other topics': whoever may read all topics but some would read those
        there, or have their transactions passed over. So that needs a right to the cluster besides.

        Raises:
            InvalidParameterError, RemoteProtocolError: the request does not say what it is about.
        """
        if not need.pieces:
            return []
        about = About(command, self.cluster, self.topic_at)
        wanted = list(dict.fromkeys(wanted for piece in need.pieces for wanted in piece.asked(about)))
        if self._guards_waiting and any(map(_is_the_brokers, wanted)):
            wanted.append(cluster_asked(self.cluster, _UPDATE))
        return wanted

    def of_send(self, topic: str) -> Asked:
        """What a send (10, 310, 320) to this topic wants; for senders of many."""
        return topic_asked(topic, _PUB, _SUB)
