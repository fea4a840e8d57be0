"""What replication does at this moment, for tools and metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gimbalmq.broker.replication.replica import Replica
from gimbalmq.broker.replication.role import Role


@dataclass(frozen=True, slots=True)
class SlaveStatus:
    """A slave, as its master sees it."""

    address: str
    slave_id: int | None
    acked: int
    sent: int
    behind: int
    bytes_per_second: int
    in_sync: bool
    seconds_behind: float
    """How long ago it had all that the master had."""
    is_sure: bool = True
    """False if the same slave may have a newer connection."""


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
    """What replication does at this moment, for tools.

    Attributes:
        role: master or slave, and which id.
        log_end: where its own log ends; at a slave the bytes received count.
        master, master_ha: whom a slave copies; empty if it does not know, and at a master.
        state: what a slave is doing; empty at a master.
        trouble: why a slave does not follow, or a controller is not heard; None if all is well.
        lag: bytes of the master's log that a slave does not have.
        bytes_per_second: what a slave receives.
        last_read_ms, last_write_ms: when a slave last heard of its master, and told it something.
        master_role, master_slaves: what a slave last heard of its master (``heard``).
        slaves: those that copy this broker.
        slave_count: how many there are for certain, or were a minute ago (``headcount``).
    """

    role: Role
    log_end: int
    master: str = ""
    master_ha: str = ""
    state: str = ""
    trouble: str | None = None
    lag: int = 0
    bytes_per_second: int = 0
    last_read_ms: int = 0
    last_write_ms: int = 0
    master_role: str = ""
    master_slaves: int = -1
    slaves: tuple[SlaveStatus, ...] = ()
    slave_count: int = 0


def slave_status(replica: Replica, now: float, in_set: Callable[[Replica], bool] | None) -> SlaveStatus:
    """A slave's.

    Args:
        in_set: with a controller, whether a slave is in its set of replicas in sync.
    """
    return SlaveStatus(
        replica.address,
        replica.slave_id,
        replica.acked,
        replica.sent,
        replica.behind,
        replica.bytes_per_second,
        replica.in_sync if in_set is None else in_set(replica),
        0.0 if not replica.behind else max(0.0, now - replica.caught_up_at),
        replica.is_sure,
    )
