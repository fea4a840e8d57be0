"""A kill after every change of a file, in a run with timers, levels, saves and deleted files: each comes once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import gimbalmq.broker.timers as timers_module
from gimbalmq._steps import run_through
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
from gimbalmq.store.timer_log import UNIT_BYTES
from gimbalmq.testing import RecordedDisk
from tests.support import ManualClock

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


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
        run_through(self.levels.go_on())
        self.timers.load()
        run_through(self.timers.go_on())

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


class Run:
    """What had happened when, by the number of changes of files so far."""

    def __init__(self) -> None:
        self.accepted: list[tuple[int, str]] = []
        self.seen: list[tuple[int, Counter[str]]] = []
        """What was delivered, while it could still be read."""
        self.clock: list[tuple[int, float, int]] = []


def _play(world: World, disk: RecordedDisk) -> Run:
    run = Run()

    def put(body: str, **properties: str) -> None:
        world.put(body, **properties)
        run.accepted.append((disk.now, body.strip()))

    def tick(seconds: float = 0.0) -> None:
        run.clock.append((disk.now, world.clock.now + seconds, world.clock.wall + round(seconds * 1000)))
        world.tick(seconds)

    world.load()
    for number in range(4):
        put(f"near-{number}", TIMER_DELAY_SEC="1")
        put(f"level-{number}", DELAY="2")
    put("far", TIMER_DELAY_SEC="200")
    put("long", DELAY="9")
    tick()
    world.save()
    tick(1)
    put("next", TIMER_DELAY_SEC="3")
    tick(1)
    world.save()
    for number in range(20):
        put(f"plain-{number}" + " " * 300)
    tick(3)
    run.seen.append((disk.now, world.bodies()))
    for _ in range(3):
        world.clean()
        tick()
        world.save()
    tick(1)
    world.save()
    return run


def test_timers_that_are_not_in_the_wheel_yet_are_put_again_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers_module, "_MAX_UNSAVED_BYTES", 20 * UNIT_BYTES)
    world = World(tmp_path, ManualClock(), Files())
    world.load()
    bodies = [f"message {number}" + " " * 50 for number in range(100)]
    for body in bodies:
        world.put(body, TIMER_DELAY_SEC="3600")
    world.tick()
    assert len(world.timers) < 100  # the others wait for a save
    world.clean()
    for _ in range(5):
        world.tick(0.1)
    for _ in range(20):
        world.save()
        world.tick(0.1)
    world.clean()
    assert world.store.min_commitlog_offset > 0
    for _ in range(10):
        world.tick(400)
        world.save()
    assert world.bodies() == Counter(body.strip() for body in bodies)
    world.abandon()


def test_timers_are_not_put_again_and_again_on_a_disk_that_others_fill(tmp_path: Path) -> None:
    world = World(tmp_path, ManualClock(), Files())
    world.load()
    bodies = [f"message {number}" + " " * 100 for number in range(60)]
    for body in bodies:
        world.put(body, TIMER_DELAY_SEC="200000")

    def rounds(count: int) -> int:
        before = world.store.max_commitlog_offset
        for _ in range(count):
            world.store.delete_expired(world.clock.wall_ms())
            for _ in range(3):
                world.tick(0.5)
                world.save()
        return world.store.max_commitlog_offset - before

    world.tick()
    world.save()
    timers = world.store.max_commitlog_offset
    assert rounds(10) < 4 * timers
    assert rounds(5) == 0
    first = world.store.min_commitlog_offset
    for _ in range(6 * timers // 1000):
        world.writer.put(Draft("F", 0, b"x" * 900, {}, 0, 0, 1, HOST))
    assert rounds(5) > 0 and world.store.min_commitlog_offset > first  # there is other data that can go
    assert rounds(5) == 0
    for _ in range(5):
        world.tick(50_000)
    assert world.bodies() == Counter(body.strip() for body in bodies)
    world.abandon()


def test_timer_that_waits_in_two_stages_holds_up_no_other(tmp_path: Path) -> None:
    world = World(tmp_path, ManualClock(), Files())
    world.load()
    window = timers_module._WINDOW_SECONDS
    far = world.clock.wall_ms() + (window + 50) * 1000
    properties = {"TIMER_OUT_MS": str(far), "REAL_TOPIC": "T", "REAL_QID": "0"}
    world.writer.put(Draft("rmq_sys_wheel_timer", 0, b"far", properties, 0, 0, 1, HOST))
    world.tick()
    for _ in range(4):
        world.tick((window - 5) / 4)
    world.put("near", TIMER_DELAY_SEC="10")
    world.tick()
    world.tick(10)
    assert world.bodies() == Counter(["near"])
    world.tick(44)
    assert world.bodies() == Counter(["near"])
    world.tick(1)
    assert world.bodies() == Counter(["near", "far"])
    world.abandon()


class TickingClock(ManualClock):
    """A millisecond goes by whenever somebody looks."""

    def monotonic(self) -> float:
        self.now += 0.001
        return self.now


def test_levels_make_room_between_two_clean_ups(tmp_path: Path) -> None:
    world = World(tmp_path, TickingClock(), Files())
    world.load()
    bodies = [f"message {number}" for number in range(600)]
    for body in bodies:
        world.put(body, DELAY="18")
    limit = world.store.log.segments[len(world.store.log.segments) - 1].base
    world.store.flush()
    assert world.levels.keep(limit) < limit
    while world.levels.tick():
        pass
    world.store.flush()
    assert world.levels.keep(limit) == limit
    for _ in range(2):
        world.clock.advance(7200)
        while world.levels.tick() or world.timers.tick():
            pass
    assert world.bodies() == Counter(bodies)
    world.abandon()


def test_level_message_put_again_comes_once_after_two_kills(tmp_path: Path) -> None:
    """What is known from marks still waits at its level when another level has gone on and is noted."""
    clock = ManualClock()
    world = World(tmp_path, clock, Files())
    world.load()
    world.put("long", DELAY="18")
    world.tick()
    world.save()
    for _ in range(60):
        world.writer.put(Draft("F", 0, b"x" * 200, {}, 0, 0, 1, HOST))
    world.store.flush()
    world.levels.keep(world.store.log.segments[len(world.store.log.segments) - 1].base)
    world.store.flush()
    for round_ in range(2):
        world.abandon()
        world = World(tmp_path, clock, Files())
        world.load()
        if round_ == 0:
            world.put("short", DELAY="1")
            world.tick()
            world.tick(2)
            world.save()
    for _ in range(4):
        world.tick(3000)
    assert world.bodies() == Counter(["long", "short"])
    world.abandon()


def test_kill_after_every_change_of_a_file(tmp_path: Path) -> None:
    disk = RecordedDisk(tmp_path / "run")
    clock = ManualClock()
    world = World(disk.root, clock, disk)
    run = _play(world, disk)
    world.abandon()
    moments = [
        moment
        for moment, operation in enumerate([*disk.operations, None])
        if operation is None or not operation.kind.startswith("sync")
    ]
    assert len(moments) > 60
    for moment in moments:
        root = tmp_path / str(moment)
        disk.killed(moment, root)
        for at, now, wall in run.clock:
            if at <= moment:
                clock.now, clock.wall = now, wall
        seen: Counter[str] = Counter()
        for at, bodies in run.seen:
            if at <= moment:
                seen |= bodies
        again = World(root, clock, Files())
        again.load()
        kept = again.bodies()
        for seconds in (0, 0, 5, 60, 300):
            again.tick(seconds)
        seen = (seen | kept) + (again.bodies() - kept)
        again.abandon()
        delayed = {body for at, body in run.accepted if at <= moment and not body.startswith("plain")}
        assert {body for body in delayed if seen[body] == 0} == set(), f"lost, killed at change {moment}"
        assert {body: n for body, n in seen.items() if n > 1} == {}, f"repeated, killed at change {moment}"
