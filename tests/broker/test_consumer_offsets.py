"""Consumed offsets as a table and as a file."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.broker.consumer_offsets import ConsumerOffsets
from gimbalmq.errors import TableFullError
from gimbalmq.model import topics as names
from tests.broker.desk import open_desk
from tests.support import Unwalked, run


def test_offsets_reach_the_file_by_themselves(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, flushConsumerOffsetInterval=10) as desk:
            await desk.create("T")
            await desk.client.ok(
                15, {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "7"}
            )
            path = tmp_path / "config" / "consumerOffset.json"
            while not path.exists():  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert json.loads(path.read_text())["offsetTable"] == {"T@g": {"0": 7}}

    run(work())


def test_offsets_are_found_by_group_and_by_topic_without_walking_over_all(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(tmp_path)
    groups = 10_000
    for number in range(groups):
        for topic in (f"topic-{number % 100}", f"%RETRY%group-{number}"):
            offsets.commit(f"group-{number}", topic, 0, 5)
    begun = time.perf_counter()
    for group in offsets.all_groups():
        assert len(offsets.topics_of(group)) == 2
    # Ten milliseconds in all; by walks over the table it was more than ten seconds.
    assert time.perf_counter() - begun < 1.0
    assert offsets.groups_of("topic-7") == {f"group-{number}" for number in range(7, groups, 100)}


def test_both_indexes_of_offsets_follow_every_change(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(tmp_path)
    offsets.commit("g1", "A", 0, 1)
    offsets.commit("g1", "B", 0, 2)
    offsets.reset("g2", "A", 1, 3)
    offsets.clone("g1", "g3", "A")
    offsets.note_pull("g1", "A", 0, 9)
    offsets.commit("g3", "A", 0, 7)
    assert offsets.get("g1", "A", 0) == 1 and offsets.get("g3", "A", 0) == 7
    run(offsets.finish())
    again = ConsumerOffsets(tmp_path)
    again.load()
    for table in (offsets, again):
        assert table.all_groups() == {"g1", "g2", "g3"}
        assert table.topics_of("g1") == {"A", "B"}
        assert table.groups_of("A") == {"g1", "g2", "g3"}
        table.forget_group("g1")
        assert table.topics_of("g1") == set() and table.groups_of("A") == {"g2", "g3"}
        assert table.groups_of("B") == set() and table.pulled("g1", "A", 0) == -1
        table.forget_topic("A")
        assert table.all_groups() == set() and table.take_reset("g2", "A", 1) is None
        assert table.document() == {"offsetTable": {}}


def _offsets(folder: Path, **settings: int) -> ConsumerOffsets:
    return ConsumerOffsets(folder, live=LiveConfig(BrokerConfig(**settings)))  # type: ignore[arg-type]


def test_offsets_of_one_group_are_bounded(tmp_path: Path) -> None:
    offsets = _offsets(tmp_path, max_consumer_offset_topics_per_group=3)
    for number in range(3):
        offsets.commit("g", f"T{number}", 0, 1)
    with pytest.raises(TableFullError, match=r"3 topics already \(maxConsumerOffsetTopicsPerGroup\)"):
        offsets.commit("g", "T3", 0, 1)
    with pytest.raises(TableFullError, match="maxConsumerOffsetTopicsPerGroup"):
        offsets.reset("g", "T3", 0, 1)
    offsets.commit("h", "T3", 0, 1)
    with pytest.raises(TableFullError, match="maxConsumerOffsetTopicsPerGroup"):
        offsets.clone("h", "g", "T3")
    offsets.commit("g", "T2", 9, 5)
    offsets.clone("h", "g", "T2")
    assert offsets.topics_of("g") == {"T0", "T1", "T2"} and offsets.take_reset("g", "T3", 0) is None
    offsets.forget_topic("T0")
    offsets.commit("g", "T3", 0, 1)


def test_offsets_altogether_are_bounded_and_those_there_are_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = _offsets(tmp_path, max_consumer_offset_bytes=100_000)
    made = 0
    with pytest.raises(TableFullError, match=r"of 100000 bytes \(maxConsumerOffsetBytes\); delete groups"):
        for made in range(10_000):
            offsets.commit(f"g{made}", "T", 0, 1)
    with pytest.raises(TableFullError, match="maxConsumerOffsetBytes"):
        offsets.commit("g0", "T", 1, 1)
    assert 100 < made < 1_000 and offsets.size <= 100_000
    assert [record.message for record in caplog.records] == [
        "consumer offsets take all of maxConsumerOffsetBytes; new ones are refused"
    ]
    offsets.commit("g0", "T", 0, 7)
    assert offsets.get("g0", "T", 0) == 7
    offsets.commit(names.TRANS_GROUP, names.HALF_TOPIC, 0, 7)
    assert offsets.get(names.TRANS_GROUP, names.HALF_TOPIC, 0) == 7, "the broker's own are always kept"
    for number in range(10):
        offsets.forget_group(f"g{number}")
    offsets.commit("new", "T", 0, 1)
    for group in offsets.all_groups():
        offsets.forget_group(group)
    assert offsets.size == 0


def test_marks_and_pulls_are_counted_with_the_offsets(tmp_path: Path) -> None:
    offsets = _offsets(tmp_path, max_consumer_offset_bytes=100_000)
    for number in range(10_000):
        offsets.note_pull(f"g{number % 100}", f"T{number}", number % 7, 1)
    assert 49_000 < offsets.size < 51_000, "pulls leave half of the room to what is committed"
    offsets.note_pull("g1", "T1", 1, 5)
    assert offsets.pulled("g1", "T1", 1) == 5 and offsets.pulled("g99", "T9999", 3) == -1
    with pytest.raises(TableFullError):
        for number in range(10_000):
            offsets.reset("g", f"T{number % 3}", number, 4)
    assert 99_000 < offsets.size <= 100_000
    assert [offsets.take_reset("g", f"T{number % 3}", number) for number in (0, 1, 0)] == [4, 4, None]
    for number in range(10_000):
        offsets.forget_topic(f"T{number}")
    assert offsets.size == 0


def test_offsets_on_disk_are_loaded_however_many(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(tmp_path)
    for number in range(100):
        offsets.commit("g", f"T{number}", number % 3, number)
    run(offsets.finish())
    again = _offsets(tmp_path, max_consumer_offset_bytes=1024, max_consumer_offset_topics_per_group=1)
    again.load()
    assert again.document() == offsets.document() and again.size == offsets.size
    again.commit("g", "T7", 1, 8)
    with pytest.raises(TableFullError):
        again.commit("h", "T7", 1, 8)


def test_offsets_are_listed_and_forgotten_without_a_walk_over_all_at_once(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(tmp_path)
    for group in "gh":
        for topic in "ST":
            offsets.commit(group, topic, 0, 1)
            offsets.note_pull(group, topic, 0, 1)
            offsets.reset(group, topic, 0, 1)
    for table in (offsets._committed, offsets._pulled, offsets._resets):
        table.table = Unwalked(table.table)
    rows = offsets.rows()
    first, _ = next(rows)
    offsets.forget_group("g" if first.endswith("h") else "h")
    assert [key for key, _ in rows] == [f"{'T' if first[0] == 'S' else 'S'}@{first[-1]}"]
    offsets.forget_group("g")
    offsets.forget_topic("S")
    offsets.forget_topic("T")
    assert offsets.size == 0
