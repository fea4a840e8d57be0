"""Two stores, one of which follows the other, on walks of chance: they change roles, crash, are cut and go on.

At every stop the follower's folder is the copy of the other's, and both open as they were left. The seed is in the
test's name.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gimbalmq.model.flags import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from gimbalmq.store import MessageStore
from tests.peers.folders import Log, compare
from tests.store.helpers import FakeClock, open_store, put

SLOTS = 16
TOPICS = ("A", "B", "gone")
STEPS = 120


class Walk:
    """A leader and a follower, and what may happen to them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = FakeClock()
        self.folders = [folder / "one", folder / "other"]
        self.stores = [self._open(0), self._open(1)]
        self.leader = 0
        self.number = 0
        self.done: list[str] = []
        self.stores[1].follow()

    def _open(self, which: int) -> MessageStore:
        return open_store(self.folders[which], self.clock)

    @property
    def master(self) -> MessageStore:
        return self.stores[self.leader]

    @property
    def slave(self) -> MessageStore:
        return self.stores[1 - self.leader]

    # --- what happens ---

    def append(self) -> None:
        for _ in range(self.chance.randrange(1, 12)):
            self.number += 1
            self.clock.now_ms += self.chance.choice([0, 1, 700])
            flag = self.chance.choice(
                [0, 0, 0, TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK]
            )
            body = b"%d-" % self.number + bytes(self.chance.choice([0, 5, 300, 1500, 3500]))
            topic, queue = self.chance.choice(TOPICS), self.chance.randrange(3)
            properties = {"TAGS": f"t{self.number % 3}", "KEYS": f"k{self.number % 9} u{self.number}"}
            put(self.master, topic, queue, body, sys_flag=flag, **properties)

    def delete(self) -> None:
        self.master.delete_topic("gone")

    def send(self) -> None:
        master, slave = self.master, self.slave
        size = self.chance.choice([1, 9, 100, 1000, 5000])
        for _ in range(self.chance.randrange(1, 60)):
            offset = slave.received_offset
            slave.receive(offset, master.log_bytes(offset, self.chance.randrange(1, size + 1)))

    def catch_up(self) -> None:
        master, slave = self.master, self.slave
        while slave.received_offset < master.max_commitlog_offset:
            offset = slave.received_offset
            slave.receive(offset, master.log_bytes(offset, 700))

    def save(self) -> None:
        store = self.chance.choice(self.stores)
        what = self.chance.choice([store.flush, store.flush_queues, store.build_index, store.checkpoint])
        what()

    def crash(self) -> None:
        which = self.chance.randrange(2)
        self.stores[which].abandon()
        self._again(which)

    def restart(self) -> None:
        which = self.chance.randrange(2)
        self.stores[which].close()
        self._again(which)

    def _again(self, which: int) -> None:
        self.stores[which] = self._open(which)
        if which != self.leader:
            self.stores[which].follow()

    def cut(self) -> None:
        """The slave gives up some of its last records, and copies them again."""
        log = Log.read(self.folders[1 - self.leader])
        places = [found.place for found in log.records if found.end <= self.slave.max_commitlog_offset]
        if places:
            self.slave.cut(self.chance.choice(places[-20:]))

    def swap(self) -> None:
        """The slave leads, takes messages of its own, and the old master follows after its end was cut."""
        master, slave = self.master, self.slave
        end = slave.max_commitlog_offset
        slave.lead()
        self.leader = 1 - self.leader
        for _ in range(self.chance.randrange(3)):
            self.append()
        if self.chance.random() < 0.3:
            self.delete()
        master.follow()
        if master.max_commitlog_offset > end:
            report = master.cut(end)
            assert report.begin == end
        assert master.received_offset == end

    # --- the walk ---

    def walk(self, steps: int) -> None:
        choices = [self.append] * 6 + [self.send] * 8 + [self.save] * 3
        choices += [self.catch_up, self.crash, self.restart, self.cut, self.swap, self.delete]
        for _ in range(steps):
            step = self.chance.choice(choices)
            self.done.append(step.__name__)
            step()

    def stop(self) -> None:
        """Both are level, and stopped: cleanly, or as a crash leaves them."""
        self.catch_up()
        for _ in range(2):
            before = self.seen()
            for store in self.stores:
                if self.chance.random() < 0.5:
                    store.close()
                else:
                    store.abandon()
            for which in range(2):
                self._again(which)
            assert self.seen() == before
        for store in self.stores:
            store.close()
        master, slave = self.folders[self.leader], self.folders[1 - self.leader]
        found = compare(master, slave, slots=SLOTS, deleted=frozenset({"gone"}))
        assert found.level and not found.differences, found
        for which in range(2):
            self._again(which)

    def seen(self) -> list[object]:
        """What readers of either store see."""
        return [
            {
                (topic, queue): (
                    store.queue(topic, queue).min_offset,
                    store.entries(topic, queue, 0, 1 << 60),
                )
                for topic in TOPICS
                for queue in range(3)
            }
            for store in self.stores
        ]

    def close(self) -> None:
        for store in self.stores:
            store.abandon()


def stroll(folder: Path, seed: int, stops: int) -> None:
    walk = Walk(folder, seed)
    try:
        for _ in range(stops):
            walk.walk(STEPS)
            walk.catch_up()
            seen = walk.seen()
            assert seen[0] == seen[1]
            walk.stop()
    except BaseException:
        print(f"seed {seed}: {' '.join(walk.done)}")
        raise
    finally:
        walk.close()


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_walk(seed: int, tmp_path: Path) -> None:
    stroll(tmp_path, seed, 2)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 400))
def test_a_long_walk(seed: int, tmp_path: Path) -> None:
    stroll(tmp_path, seed, 5)
