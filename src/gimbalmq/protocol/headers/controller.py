"""Headers of requests to and from a controller. Ids of brokers are the controller's: 1, 2 and so on."""

from __future__ import annotations

from msgspec import field

from gimbalmq.protocol.headers.base import Header


class ControllerMetadata(Header):
    """1005's answer.

    Attributes:
        peers: ``n0:127.0.0.1:9878;n1:...``.
    """

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = field(name="isLeader", default=False)
    peers: str | None = None


class GetNextBrokerId(Header):
    """1012 CONTROLLER_GET_NEXT_BROKER_ID."""

    cluster_name: str
    broker_name: str


class NextBrokerId(Header):
    """1012's answer."""

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: int = -1


class ApplyBrokerId(Header):
    """1013 CONTROLLER_APPLY_BROKER_ID.

    Attributes:
        register_check_code: ``ip:port;millis``; who sends the same again is given the same id again.
    """

    cluster_name: str
    broker_name: str
    applied_broker_id: int
    register_check_code: str


class RegisterAtController(Header):
    """1003 CONTROLLER_REGISTER_BROKER."""

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_address: str
    invoke_time: int = 0


class MasterReply(Header):
    """1003's, 1002's and 1004's answer. Without a living master the fields are missing, or empty, or -1."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int | None = None
    sync_state_set_epoch: int | None = None


class ElectMaster(Header):
    """1002 CONTROLLER_ELECT_MASTER.

    Attributes:
        broker_id: who asks, or who is to become master; -1 for nobody.
        designate_elect: whether only that one may become it; tools say so.
    """

    cluster_name: str
    broker_name: str
    broker_id: int = -1
    designate_elect: bool = False
    invoke_time: int = 0


class GetReplicaInfo(Header):
    """1004 CONTROLLER_GET_REPLICA_INFO."""

    broker_name: str


class AlterSyncStateSet(Header):
    """1001 CONTROLLER_ALTER_SYNC_STATE_SET; the body is the wished ``SyncStateSet`` with the epoch that is known."""

    broker_name: str
    master_broker_id: int
    master_epoch: int
    invoke_time: int = 0


class AlterSyncStateSetReply(Header):
    """1001's answer."""

    new_sync_state_set_epoch: int = 0


class RoleChange(Header):
    """1008 NOTIFY_BROKER_ROLE_CHANGED; the body is a ``SyncStateSet``."""

    master_address: str | None = None
    master_epoch: int | None = None
    sync_state_set_epoch: int | None = None
    master_broker_id: int | None = None


class CleanBrokerData(Header):
    """1011 CLEAN_BROKER_DATA.

    Attributes:
        broker_controller_ids_to_clean: ``1;2``; None for all that are dead.
    """

    broker_name: str
    cluster_name: str | None = None
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = field(name="isCleanLivingBroker", default=False)
    invoke_time: int = 0
