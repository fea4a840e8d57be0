"""What administration shows of replicas: who copies whom, how far behind, and what a promotion would mean."""

from __future__ import annotations

from dataclasses import dataclass, field

from gimbalmq.errors import ConfigError

MASTER, SLAVE = "master", "slave"


@dataclass(frozen=True, slots=True)
class SlaveConnection:
    """A slave as its master sees it; it does not say its id, so the address is all there is.

    Attributes:
        acked: end of the log that the slave says it has.
        behind: bytes from there to the master's end.
        sent: where the master goes on sending.
    """

    address: str
    acked: int
    behind: int
    sent: int
    bytes_per_second: int
    in_sync: bool


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One broker process and its part in copying (mqadmin haStatus).

    Attributes:
        broker_id: 0 for the master.
        role: master or slave, as the broker says; as the name server says if it could not be asked.
        log_end: end of its commit log; None if it could not be asked.
        behind: bytes that a slave lacks of its master's log, or of what it was when the slave last heard of it; None if
            nobody knows.
        slaves: a master's connections.
        master: address that a slave copies from.
        state: what a slave does, in words of ours; "" from Apache's brokers, which do not say.
        master_role, master_slaves: brokerRole of a slave's master, and how many slaves that had, when the slave last
            heard of it; "" and None if nobody knows.
        trouble: why a slave does not copy its master's log or tables, or why a broker has no part in elections.
        problem: why the broker could not be asked.
        refused: it answered that we may not ask it.
        tells_copies: it says who copies whom; brokers of 4.9 do not.
    """

    cluster: str
    broker: str
    broker_id: int
    address: str
    role: str
    log_end: int | None = None
    behind: int | None = None
    in_sync_slaves: int = 0
    slaves: tuple[SlaveConnection, ...] = ()
    master: str = ""
    bytes_per_second: int = 0
    last_read_ms: int = 0
    last_write_ms: int = 0
    master_flush_offset: int = 0
    master_role: str = ""
    master_slaves: int | None = None
    state: str = ""
    trouble: str = ""
    problem: str = ""
    refused: bool = False
    tells_copies: bool = True

    @property
    def is_slave(self) -> bool:
        return self.role == SLAVE

    @property
    def title(self) -> str:
        """What sentences call it."""
        what = f"slave {self.broker_id}" if self.is_slave else "master"
        return f"{self.broker}, {what} at {self.address}"


@dataclass(frozen=True, slots=True)
class Promotion:
    """What it would mean to make a slave the master.

    Attributes:
        slave: who would become it.
        old_master: address of the master that is or was; "" if nobody knows one.
        dangers: why it should not be done; empty if nothing is known to be lost.
        notes: what to know before it is done all the same.
    """

    slave: ReplicaView
    old_master: str = ""
    dangers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_safe(self) -> bool:
        return not self.dangers

    def role(self, wanted: str | None = None) -> str:
        """The new master's brokerRole: the one that is wanted, else what the old master had.

        Raises:
            ConfigError: nobody knows that.
        """
        found = wanted or self.slave.master_role
        if not found:
            raise ConfigError(
                "role",
                "",
                f"{self.slave.title} never heard whether its master waited for slaves: say --sync (SYNC_MASTER) or "
                "--async (ASYNC_MASTER)",
            )
        return found


@dataclass(frozen=True, slots=True)
class EpochView:
    """A term of one master: from which offset of the log to which; the last one has no end yet."""

    epoch: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class EpochsView:
    """The terms that a replica has in its log (mqadmin getBrokerEpoch)."""

    cluster: str
    broker: str
    broker_id: int
    address: str
    epochs: tuple[EpochView, ...] = ()
    log_end: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaMember:
    """A replica as the controller knows it, by the controller's id."""

    broker_id: int
    address: str
    alive: bool | None


@dataclass(frozen=True, slots=True)
class SyncStateView:
    """Which replicas have all that is acknowledged, as the controller knows it (mqadmin getSyncStateSet).

    Attributes:
        master_id: -1 if there is none.
    """

    broker: str
    master_id: int
    master: str
    master_epoch: int
    set_epoch: int
    in_sync: tuple[ReplicaMember, ...] = ()
    not_in_sync: tuple[ReplicaMember, ...] = ()


@dataclass(frozen=True, slots=True)
class ControllerView:
    """What a controller says of the controllers (mqadmin getControllerMetaData)."""

    group: str
    leader_id: str
    leader: str
    is_leader: bool
    peers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ElectedView:
    """Who was elected (mqadmin electMaster)."""

    broker: str
    master_id: int
    master: str
    master_epoch: int
    set_epoch: int
    members: dict[int, str] = field(default_factory=dict)
