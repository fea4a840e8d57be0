"""What tests of pairs share: a running master with slaves by name, and the statuses of its answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.peers.folders import Comparison, Log
from tests.peers.ours import OurBroker
from tests.peers.process import Process
from tests.peers.replicas import FILE_BYTES, Kind, Replica, ReplicaSet, copied, paused, traffic
from tests.peers.traffic import Traffic, configure, log_end


def fill_file(master: Replica, sender: Traffic, file: int) -> None:
    """Writes until the log is somewhere in file number `file`, the first being 0."""
    while (end := log_end(master.address)) <= file * FILE_BYTES + FILE_BYTES // 8:
        sender.bytes(min(FILE_BYTES // 2, file * FILE_BYTES + FILE_BYTES // 4 - end))


def file_of(offset: int) -> int:
    return offset // FILE_BYTES


@dataclass
class Scene:
    """A replica set with a running master, and its slaves by name."""

    replicas: ReplicaSet
    master: Replica
    sender: Traffic
    slaves: dict[str, Replica] = field(default_factory=dict)
    watch: Callable[[Process], None] = print
    """Told of every slave that joins."""

    def compare(self, *names: str) -> list[Comparison]:
        """The named slaves, or all that run."""
        running = [self.slaves[name] for name in names or self.slaves if self.slaves[name].running]
        return copied(self.master, *running)

    def next_id(self) -> int:
        return len(self.slaves) + 1

    def join(self, name: str, kind: Kind, **options: object) -> Replica:
        slave = self.replicas.slave(kind, self.next_id(), **options)
        self.watch(slave)
        self.slaves[name] = slave
        return slave


def goes_on(master: Replica, before: Log) -> None:
    """A new master takes messages, and each queue's numbers go on without a gap."""
    sender = traffic(master, "Pairs")
    sender.plain(40)
    assert len(sender.accepted) == 40
    log = Log.read(master.store)
    assert log.end > before.end
    assert log.raw(before.begin, before.records[-1].end) == before.raw(before.begin, before.records[-1].end)
    numbers: dict[tuple[str, int], int] = {}
    for found in log.records:
        if found.record.topic == "Pairs":
            assert found.record.queue_offset == numbers.get(found.queue, found.record.queue_offset)
            numbers[found.queue] = found.record.queue_offset + 1


NO_SLAVE, SLAVE, STALLED = "no slave", "a slave", "a slave that stands still"
SLAVE_TIMEOUT = 1.0

# What a SYNC_MASTER answers: by rule and `inSyncReplicas`, what there is besides the master, and whether the sender
# waits.
STATUSES: dict[tuple[str, int], dict[tuple[str, bool], int]] = {
    ("4.9", 1): {
        (NO_SLAVE, True): 11,
        (NO_SLAVE, False): 0,
        (SLAVE, True): 0,
        (STALLED, True): 12,
        (STALLED, False): 0,
    },
    ("5.x", 1): {
        (NO_SLAVE, True): 0,
        (NO_SLAVE, False): 0,
        (SLAVE, True): 0,
        (STALLED, True): 0,
        (STALLED, False): 0,
    },
    ("5.x", 2): {
        (NO_SLAVE, True): 12,
        (NO_SLAVE, False): 0,
        (SLAVE, True): 0,
        (STALLED, True): 12,
        (STALLED, False): 0,
    },
    ("safe", 1): {
        (NO_SLAVE, True): 11,
        (NO_SLAVE, False): 0,
        (SLAVE, True): 0,
        (STALLED, True): 12,
        (STALLED, False): 0,
    },
    ("safe", 2): {
        (NO_SLAVE, True): 11,
        (NO_SLAVE, False): 0,
        (SLAVE, True): 0,
        (STALLED, True): 12,
        (STALLED, False): 0,
    },
}


def answered(sender: Traffic, waits: bool) -> tuple[int, float]:
    """A send's status and how long that took."""
    begun = time.monotonic()
    (answer,) = sender.plain(1, WAIT="true" if waits else "false")
    return answer.code, time.monotonic() - begun


def statuses(scene: Scene, slave: Replica, replicas: int) -> dict[tuple[str, bool], int]:
    """The row of the table for a running master; its slave is not running, and is killed at the end."""
    if not isinstance(scene.master, OurBroker):
        limit = int(SLAVE_TIMEOUT * 1000)
        settings = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": replicas, "slaveTimeout": limit}
        assert configure(scene.master.address, **settings).code == 0
    found: dict[tuple[str, bool], int] = {}
    times: dict[tuple[str, bool], float] = {}

    def look(what: str, *waits: bool) -> None:
        for waiting in waits:
            found[what, waiting], times[what, waiting] = answered(scene.sender, waiting)

    look(NO_SLAVE, True, False)
    slave.start()
    copied(scene.master, slave)
    look(SLAVE, True)
    with paused(slave):
        look(STALLED, True, False)
    copied(scene.master, slave)
    slave.kill()
    for case, code in found.items():
        if code == 12:
            assert SLAVE_TIMEOUT * 0.9 <= times[case] < SLAVE_TIMEOUT + 2.0, (case, times[case])
        else:
            assert times[case] < SLAVE_TIMEOUT * 0.9, (case, times[case])
    return found
