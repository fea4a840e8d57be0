"""Replication as rows of metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from gimbalmq.broker.replication.follower import State
from gimbalmq.broker.replication.status import ReplicationStatus, SlaveStatus

Rows = list[tuple[tuple[str, ...], float]]


class Figure(NamedTuple):
    """One gauge: its rows are labels and a value each."""

    name: str
    text: str
    labels: tuple[str, ...]
    rows: Rows


def figures(status: ReplicationStatus, waiting: int) -> Iterator[Figure]:
    """What a scrape shows.

    Args:
        waiting: sends that wait for slaves.
    """

    def gauge(name: str, text: str, value: float) -> Figure:
        return Figure(name, text, (), [((), float(value))])  # of a truth value, too

    role = status.role
    yield gauge("replication_master", "1 if this broker is the master", role.is_master)
    yield gauge("replication_acting_master", "1 if this slave stands in for its master", role.acting)
    yield gauge("replication_broker_id", "Its id among its replicas, 0 for the master", role.broker_id)
    yield gauge("replication_slaves", "Slaves that are connected", len(status.slaves))
    in_sync = sum(slave.in_sync for slave in status.slaves)
    yield gauge("replication_slaves_in_sync", "Slaves that count as in sync", in_sync)
    yield gauge("replication_waiting_sends", "Sends that wait for slaves", waiting)
    names = _names(status.slaves)
    behind: Rows = [((name,), slave.behind) for name, slave in zip(names, status.slaves, strict=True)]
    yield Figure("replication_slave_behind_bytes", "Bytes of our log that a slave lacks", ("slave",), behind)
    late: Rows = [((name,), slave.seconds_behind) for name, slave in zip(names, status.slaves, strict=True)]
    yield Figure("replication_slave_behind_seconds", "Since a slave had all of our log", ("slave",), late)
    yield gauge("replication_trouble", "1 if something hinders replication", status.trouble is not None)
    if role.is_master:
        return
    states: Rows = [((str(state),), float(state == status.state)) for state in State]
    yield Figure("replication_state", "1 for what this slave is doing", ("state",), states)
    yield gauge("replication_behind_bytes", "Bytes of its master's log that this slave lacks", status.lag)
    yield gauge(
        "replication_received_bytes_per_second",
        "Bytes a second that this slave gets",
        status.bytes_per_second,
    )


def _names(slaves: tuple[SlaveStatus, ...]) -> list[str]:
    """What slaves are called: by the id that a controller gave, else by host.

    With its port, which is another one after each reconnection, a slave is named only if there are several on its host.
    """
    hosts = [slave.address.rpartition(":")[0] for slave in slaves]
    many = Counter(hosts)
    return [
        str(slave.slave_id) if slave.slave_id is not None else host if many[host] == 1 else slave.address
        for slave, host in zip(slaves, hosts, strict=True)
    ]
