"""Bodies of what replicas of a broker, controllers and tools send each other."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, Self

from msgspec import field

from gimbalmq.errors import RemoteProtocolError
from gimbalmq.protocol.bodies import Body, BrokerData, DataVersion


class DelayOffsetTable(Body):
    """45's answer: by level, the queue offset up to which its messages were delivered.

    Attributes:
        marks_from: ours: marks of what was delivered beyond lie in the log from here on.
    """

    data_version: DataVersion | None = None
    marks_from: int | None = None
    offset_table: dict[int, int] = field(default_factory=dict)


class RequestModeTable(Body):
    """402's answer: by topic, then by group, how a group's members are to ask for messages (pull or pop)."""

    message_request_mode_map: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)


_CHECKPOINT = struct.Struct(">7q")
_OLD_CHECKPOINT = struct.Struct(">4q")


class TimerCheckpoint(NamedTuple):
    """60's answer, which is no JSON: seven numbers of eight bytes each.

    Attributes:
        last_read_time_ms: seconds before this moment were delivered.
        last_timer_log_flush_pos: end of the timer log on the disk.
        last_timer_queue_offset: timers before this offset of the timer topic are in the wheel.
        master_timer_queue_offset: the master's.
    """

    last_read_time_ms: int
    last_timer_log_flush_pos: int
    last_timer_queue_offset: int
    master_timer_queue_offset: int
    version: DataVersion = DataVersion()

    def encode(self) -> bytes:
        version = self.version
        return _CHECKPOINT.pack(*self[:4], version.state_version, version.timestamp, version.counter)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> Self:
        """Raises RemoteProtocolError if it has neither the length of 5.x nor that without a version."""
        if len(data) == _CHECKPOINT.size:
            read_ms, log_end, offset, masters, state, timestamp, counter = _CHECKPOINT.unpack(data)
            version = DataVersion(state_version=state, timestamp=timestamp, counter=counter)
            return cls(read_ms, log_end, offset, masters, version)
        if len(data) == _OLD_CHECKPOINT.size:
            return cls(*_OLD_CHECKPOINT.unpack(data))
        raise RemoteProtocolError(f"a timer checkpoint of {len(data)} bytes; it has 56")


class HaConnection(Body):
    """A slave as its master sees it (Java: HARuntimeInfo.HAConnectionRuntimeInfo)."""

    addr: str = ""
    diff: int = 0
    in_sync: bool = False
    slave_ack_offset: int = 0
    transfer_from_where: int = 0
    transferred_byte_in_second: int = 0


class HaClient(Body):
    """What a slave says of its own copying (Java: HARuntimeInfo.HAClientRuntimeInfo).

    Attributes:
        lag: ours: bytes of the master's log that it lacks, as last heard.
        master_role: ours: brokerRole of its master, as last heard.
        master_slaves: ours: how many slaves its master had, as last heard; None if nobody knows.
        state: ours: stopped, seeking, refused, catching up or following.
        trouble: ours: why it does not copy.
    """

    activated: bool = False
    lag: int | None = None
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_addr: str | None = None
    master_flush_offset: int = 0
    master_role: str | None = None
    master_slaves: int | None = None
    max_offset: int = 0
    state: str | None = None
    transferred_byte_in_second: int = 0
    trouble: str | None = None


class HaStatus(Body):
    """907's answer (Java: HARuntimeInfo).

    Attributes:
        broker_role: ours: a master's, so that its slaves know what it promises.
        slaves: ours: how many slaves copy it for certain, or did a minute ago; one that comes again may leave an old
            connection for a while.
        trouble: ours: what a master's replication lacks, such as a controller.
    """

    broker_role: str | None = None
    ha_client_runtime_info: HaClient = field(default_factory=HaClient)
    ha_connection_info: list[HaConnection] = field(default_factory=list)
    in_sync_slave_nums: int = 0
    master: bool = False
    master_commit_log_max_offset: int = 0
    slaves: int | None = None
    trouble: str | None = None


class EpochEntry(Body):
    """A term of one master: from which offset of the log to which."""

    end_offset: int = (1 << 63) - 1
    epoch: int = 0
    start_offset: int = 0


class EpochTable(Body):
    """1007's answer (Java: EpochEntryCache)."""

    broker_id: int = 0
    broker_name: str = ""
    cluster_name: str = ""
    epoch_list: list[EpochEntry] = field(default_factory=list)
    max_offset: int = 0


class SyncStateSet(Body):
    """Replicas that have all that is acknowledged, by the controller's ids."""

    sync_state_set: list[int] = field(default_factory=list)
    sync_state_set_epoch: int = 0


class MemberGroupBody(Body):
    """901's answer."""

    broker_member_group: BrokerData | None = None


class ElectMasterBody(Body):
    """1002's answer."""

    broker_member_group: BrokerData | None = None
    sync_state_set: list[int] = field(default_factory=list)


class ReplicaIdentity(Body):
    alive: bool | None = None
    broker_address: str | None = None
    broker_id: int = -1
    broker_name: str = ""


class ReplicasInfo(Body):
    in_sync_replicas: list[ReplicaIdentity] = field(default_factory=list)
    master_address: str | None = None
    master_broker_id: int | None = None
    master_epoch: int = 0
    not_in_sync_replicas: list[ReplicaIdentity] = field(default_factory=list)
    sync_state_set_epoch: int = 0


class ReplicasTable(Body):
    """1006's answer, by broker name (Java: BrokerReplicasInfo)."""

    replicas_info_table: dict[str, ReplicasInfo] = field(default_factory=dict)
