"""A crash at every single change of a file, in a run with timers, levels, saves and files that go: each comes once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.broker.delay_levels import DelayLevels
from gimbalmq.broker.longpoll import LongPoll
from gimbalmq.broker.redelivery import Deliverer
from gimbalmq.broker.stats import Stats
from gimbalmq.broker.timers import Timers
from gimbalmq.broker.writer import Draft, Writer
from gimbalmq.model.record import decode_record
from gimbalmq.store.config import StoreConfig
from gimbalmq.store.files import Files
from gimbalmq.store.message_store import MessageStore
from tests.support import ManualClock

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


class Crash(BaseException):
    """The process ends here."""


class Mortal(Files):
    """Lets so many changes through, and then none."""

    def __init__(self, changes: int) -> None:
        self.left = changes

    def _change(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Crash

    def open(self, path: Path | str, *, create: bool = False) -> int:
        if create:
            self._change()
        return super().open(path, create=create)

    def pwrite(self, fd: int, data: Any, position: int) -> int:
        self._change()
        return super().pwrite(fd, data, position)

    def truncate(self, fd: int, size: int) -> None:
        self._change()
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        self._change()

    def sync_folder(self, folder: Path | str) -> None:
        self._change()

    def remove(self, path: Path | str) -> None:
        self._change()
        super().remove(path)

    def replace(self, path: Path | str, target: Path | str) -> None:
        self._change()
        super().replace(path, target)

    def make_folder(self, folder: Path | str) -> None:
        self._change()
        super().make_folder(folder)


class World:
    """What of a broker delivers delayed messages, by hand."""

    def __init__(self, root: Path, clock: ManualClock, files: Files) -> None:
        config = StoreConfig(
            root=root,
            commitlog_file_bytes=4096,
            queue_file_bytes=2000,
            message_index_enable=False,
            disk_usage=lambda: 0.87,
        )
        self.clock = clock
        self.store = MessageStore(config, clock, files)
        live = LiveConfig(BrokerConfig(store_path_root_dir=str(root)))
        stats = Stats(clock)
        self.writer = Writer(self.store, live, LongPoll(lambda queue, offset: [], live), stats, clock)
        deliverer = Deliverer(self.store, self.writer, lambda topic: 4)
        self.levels = DelayLevels(root / "config", self.store, self.writer, deliverer, clock)
        self.timers = Timers(root, self.store, deliverer, stats, clock)
        self.store.keepers += [self.levels.keep, self.timers.keep]

    def load(self) -> None:
        self.store.load()
        self.levels.load()
        self.timers.load()

    def put(self, body: str, **properties: str) -> None:
        self.writer.put(Draft("T", 0, body.encode(), properties, 0, 0, 1, HOST))

    def tick(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        self.levels.tick()
        self.timers.tick()

    def save(self) -> None:
        document = self.levels.document()
        write = self.timers._files.prepare_save(self.timers._check())
        self.store.flush()
        self.levels.save(document)
        if write is not None:
            write()
            self.timers._files.ended(True)

    def clean(self) -> None:
        self.store.delete_expired(self.clock.wall_ms(), manual=True)

    def bodies(self) -> Counter[str]:
        found: Counter[str] = Counter()
        queue = self.store.find_queue("T", 0)
        for offset in range(queue.min_offset, queue.max_offset) if queue is not None else ():
            raw = self.store.record_at_queue("T", 0, offset)
            if raw is not None:
                found[decode_record(raw).body.decode().strip()] += 1
        return found

    def abandon(self) -> None:
        self.timers.abandon()
        self.store.abandon()


def _play(world: World, accepted: set[str], seen: Counter[str]) -> None:
    """A run; what was accepted, and what was delivered by the time it could still be read."""

    def put(body: str, **properties: str) -> None:
        world.put(body, **properties)
        accepted.add(body)

    for number in range(4):
        put(f"near-{number}", TIMER_DELAY_SEC="1")
        put(f"level-{number}", DELAY="2")
    put("far", TIMER_DELAY_SEC="200")
    put("long", DELAY="9")
    world.tick()
    world.save()
    world.tick(1)
    put("next", TIMER_DELAY_SEC="3")
    world.tick(1)
    world.save()
    for number in range(20):
        put(f"plain-{number}" + " " * 300)
    world.tick(3)
    for body, count in world.bodies().items():
        seen[body] = max(seen[body], count)
    for _ in range(3):
        world.clean()
        world.tick()
        world.save()
    world.tick(1)
    world.save()


def test_crash_at_every_change_of_a_file(tmp_path: Path) -> None:
    changes = 0
    while True:
        root = tmp_path / str(changes)
        clock = ManualClock()
        files = Mortal(changes)
        accepted: set[str] = set()
        seen: Counter[str] = Counter()
        world = World(root, clock, files)
        crashed = False
        try:
            world.load()
            _play(world, accepted, seen)
        except Crash:
            crashed = True
        world.abandon()
        before = {body.strip() for body in accepted}
        again = World(root, clock, Files())
        again.load()
        kept = again.bodies()
        for seconds in (0, 0, 5, 60, 300):
            again.tick(seconds)
        for body, count in (again.bodies() - kept).items():
            seen[body] = max(seen[body], kept[body]) + count
        for body, count in kept.items():
            seen[body] = max(seen[body], count)
        again.abandon()
        delayed = {body for body in before if not body.startswith("plain")}
        assert {body for body in delayed if seen[body] == 0} == set(), f"lost, crash at change {changes}"
        assert {body: n for body, n in seen.items() if n > 1} == {}, f"repeated, crash at change {changes}"
        if not crashed:
            break
        changes += 1
    assert changes > 60
