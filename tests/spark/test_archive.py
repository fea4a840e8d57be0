"""Archives: what a crash at any point leaves, what compaction keeps, in which order rows come."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from gimbalmq.errors import ConfigError, DataLossError, RemoteProtocolError
from gimbalmq.spark.archive import compact
from gimbalmq.spark.archive import log as archive_log
from gimbalmq.spark.archive.log import ArchiveLog, DataFile, State
from gimbalmq.spark.archive.reader import ArchiveReader, ArchiveStreamReader, in_order, slices_of
from gimbalmq.spark.archive.writer import TaskFiles
from tests.support import ManualClock

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("broker", pa.string()),
        ("queueId", pa.int32()),
        ("offset", pa.int64()),
        ("date", pa.string()),
        ("body", pa.binary()),
    ]
)


def rows(queue: int, offsets: range, *, date: str = "2026-11-15", topic: str = "orders") -> pa.RecordBatch:
    values = [
        {
            "topic": topic,
            "broker": "a",
            "queueId": queue,
            "offset": offset,
            "date": date,
            "body": f"{topic}/{queue}/{offset}".encode(),
        }
        for offset in offsets
    ]
    return pa.RecordBatch.from_pylist(values, SCHEMA)


def stage(
    log: ArchiveLog, *batches: pa.RecordBatch, by: tuple[str, ...] = ("topic", "date")
) -> list[DataFile]:
    """What one task writes."""
    log.prepare()
    files = TaskFiles(log, by)
    for batch in batches:
        files.write(batch)
    return files.close()


def add(log: ArchiveLog, batch: int, *batches: pa.RecordBatch) -> bool:
    return log.add(stage(log, *batches), query="q", batch=batch)


def bodies(log: ArchiveLog) -> list[str]:
    reader = ArchiveReader(log.root, SCHEMA, ordered=False)
    return [body for part in reader.partitions() for body in _bodies(reader, part)]


def _bodies(reader: Any, part: Any) -> list[str]:
    return [body.as_py().decode() for batch in reader.read(part) for body in batch.column("body")]


def visible(log: ArchiveLog) -> list[str]:
    """What a reader sees that only lists the folders."""
    return sorted(str(path.relative_to(log.root).parent) for path in log.root.glob("topic=*/**/*.parquet"))


@pytest.fixture
def log(tmp_path: Path) -> ArchiveLog:
    return ArchiveLog(tmp_path / "messages", clock=ManualClock())


# --- writing -------------------------------------------------------------------------------------


def test_rows_lie_in_folders_by_topic_and_day(log: ArchiveLog) -> None:
    assert add(
        log,
        0,
        rows(0, range(3)),
        rows(1, range(2), date="2026-11-16"),
        rows(0, range(1), topic="%RETRY%a b"),
    )
    assert visible(log) == [
        "topic=%25RETRY%25a%20b/date=2026-11-15",
        "topic=orders/date=2026-11-15",
        "topic=orders/date=2026-11-16",
    ]
    assert sorted(bodies(log)) == [
        "%RETRY%a b/0/0",
        "orders/0/0",
        "orders/0/1",
        "orders/0/2",
        "orders/1/0",
        "orders/1/1",
    ]


def test_folders_by_hour_are_written_read_in_order_and_joined_each_by_itself(log: ArchiveLog) -> None:
    def in_hour(hour: int, offsets: range) -> pa.RecordBatch:
        batch = rows(0, offsets)
        return batch.append_column("hour", pa.array([hour] * batch.num_rows, pa.int32()))

    by = ("topic", "date", "hour")
    for number, (hour, offsets) in enumerate([(9, range(2)), (9, range(2, 4)), (13, range(4, 6))]):
        assert log.add(stage(log, in_hour(hour, offsets), by=by), query="q", batch=number)
    day = "topic=orders/date=2026-11-15"
    assert visible(log) == [f"{day}/hour=13", f"{day}/hour=9", f"{day}/hour=9"]
    (join,) = compact.plan(log.state(), 1 << 20)
    assert compact.do(log, join)
    assert sorted(file.folder for file in log.state().files.values()) == [f"{day}/hour=13", f"{day}/hour=9"]
    reader = ArchiveReader(log.root, SCHEMA.append(pa.field("hour", pa.int32())), ordered=True)
    found = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert pa.Table.from_batches(found).select(["offset", "hour"]).to_pydict() == {
        "offset": list(range(6)),
        "hour": [9, 9, 9, 9, 13, 13],
    }


def test_a_row_without_a_topic_has_a_folder_too(log: ArchiveLog) -> None:
    damaged = pa.RecordBatch.from_pylist([{"body": b"?"}], SCHEMA)
    assert add(log, 0, damaged, rows(0, range(1)))
    default = "__HIVE_DEFAULT_PARTITION__"
    assert f"topic={default}/date={default}" in visible(log)
    assert sorted(bodies(log)) == ["?", "orders/0/0"]


def test_a_batch_that_spark_repeats_is_added_once(log: ArchiveLog) -> None:
    assert add(log, 0, rows(0, range(3)))
    assert not add(log, 0, rows(0, range(3)))
    assert add(log, 1, rows(0, range(3, 4)))
    assert log.add(stage(log, rows(0, range(4, 5))), query="another", batch=0)
    assert bodies(log) == [f"orders/0/{offset}" for offset in range(5)]
    assert not list(log.staged.iterdir())


def test_more_partitions_than_files_may_be_open_at_a_time(log: ArchiveLog) -> None:
    days = [f"2026-{month:02d}-{day:02d}" for month in range(1, 7) for day in range(1, 15)]
    assert add(log, 0, *(rows(0, range(at, at + 1), date=day) for at, day in enumerate(days)))
    assert len(visible(log)) == len(days) == len(bodies(log))


# --- crashes -------------------------------------------------------------------------------------


class _CrashError(BaseException):
    pass


def test_a_crash_while_a_batch_is_added_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = set()
    for crash in range(40):
        log = ArchiveLog(tmp_path / str(crash), clock=ManualClock())
        add(log, 0, rows(0, range(3)))
        staged = stage(log, rows(0, range(3, 6)))
        with monkeypatch.context() as patch:
            _crash_after(patch, crash)
            try:
                log.add(staged, query="q", batch=1)
                done = True
            except _CrashError:
                done = False
        seen = len(bodies(log))
        counts.add(seen)
        assert seen in (3, 6), "all of the batch or nothing of it"
        # Spark repeats the batch, with files of its own.
        add(log, 1, rows(0, range(3, 6)))
        add(log, 2, rows(0, range(6, 7)))
        assert bodies(log) == [f"orders/0/{offset}" for offset in range(7)]
        assert len(visible(log)) == 3, "readers that list folders see the same"
        if done:
            break
    assert counts == {3, 6}
    assert crash > 3


def _crash_after(patch: pytest.MonkeyPatch, steps: int) -> None:
    """The disk takes so many changes and no more."""
    left = steps

    def counted(real: Any) -> Any:
        def change(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise _CrashError
            return real(*args, **kwargs)

        return change

    for name in ("replace", "unlink", "fsync"):
        patch.setattr(os, name, counted(getattr(os, name)))


def test_a_crash_while_files_are_joined_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for crash in range(60):
        log = ArchiveLog(tmp_path / str(crash), clock=ManualClock())
        for batch in range(4):
            add(log, batch, rows(0, range(batch * 2, batch * 2 + 2)))
        with monkeypatch.context() as patch:
            _crash_after(patch, crash)
            try:
                for join in compact.plan(log.state(), 1 << 20):
                    compact.do(log, join)
                done = True
            except _CrashError:
                done = False
        wanted = [f"orders/0/{offset}" for offset in range(8)]
        assert bodies(log) == wanted
        for join in compact.plan(log.state(), 1 << 20):
            assert compact.do(log, join)
        add(log, 4, rows(0, range(8, 9)))
        assert bodies(log) == [*wanted, "orders/0/8"]
        assert len(visible(log)) == 2
        if done:
            break
    assert crash > 3


# --- compaction ----------------------------------------------------------------------------------


def test_a_stream_does_not_notice_that_files_were_joined(log: ArchiveLog) -> None:
    for batch in range(6):
        add(log, batch, rows(0, range(batch * 10, batch * 10 + 10)), rows(1, range(batch, batch + 1)))
    stream = ArchiveStreamReader(log.root, SCHEMA, ordered=True, batches=2)
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert end == {"batch": 2}
    before = sorted(body for part in stream.partitions(start, end) for body in _bodies(stream, part))
    planned = stream.partitions(end, {"batch": 4})  # by a reader that is slow to begin
    for join in compact.plan(log.state(), 1 << 20):
        assert compact.do(log, join)
    assert len(log.state().files) == 1
    after = sorted(body for part in stream.partitions(start, end) for body in _bodies(stream, part))
    assert after == before and len(after) == 22
    late = [body for part in planned for body in _bodies(stream, part)]
    assert len(late) == 22 and not set(late) & set(before)
    seen = before + late
    while (more := stream.latestOffset(end, stream.getDefaultReadLimit())) != end:
        if more["batch"] > 4:
            seen += [body for part in stream.partitions(end, more) for body in _bodies(stream, part)]
        end = more
    assert len(seen) == len(set(seen)) == 66


def test_a_stream_at_rest_does_not_read_the_log_again_and_sees_what_comes(
    log: ArchiveLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(log, 0, rows(0, range(1)))
    folder = log.root / "_gimbalmq" / "log"
    os.utime(folder, (1_700_000_000, 1_700_000_000))  # long ago
    stream = ArchiveStreamReader(log.root, SCHEMA, ordered=False, batches=None)
    position = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    with monkeypatch.context() as patch:
        patch.setattr(ArchiveLog, "state", lambda self: pytest.fail("the log was read again"))
        assert stream.latestOffset(position, stream.getDefaultReadLimit()) == position
    add(log, 1, rows(0, range(1, 2)))
    assert stream.latestOffset(position, stream.getDefaultReadLimit()) == {"batch": 2}
    # Twice at one moment: the folder's time is the same, and yet it is seen.
    moment = os.stat(folder).st_mtime_ns
    add(log, 2, rows(0, range(2, 3)))
    os.utime(folder, ns=(moment, moment))
    assert stream.latestOffset(position, stream.getDefaultReadLimit()) == {"batch": 3}


def test_only_small_files_of_one_folder_are_joined_up_to_the_target() -> None:
    def file(name: str, size: int, batch: int) -> DataFile:
        return DataFile(name, size, (archive_log.Piece(batch, 0, 1),))

    files = [
        file("t/1/a", 30, 1),
        file("t/1/b", 30, 2),
        file("t/1/c", 30, 3),
        file("t/1/d", 30, 4),
        file("t/1/large", 60, 5),
        file("t/2/alone", 10, 6),
    ]
    joins = compact.plan(State(6, {each.path: each for each in files}), 100)
    assert [[each.name for each in join.files] for join in joins] == [["a", "b", "c"]]


def test_replaced_files_stay_for_those_who_read_and_go_later(tmp_path: Path) -> None:
    clock = ManualClock()
    log = ArchiveLog(tmp_path / "m", clock=clock)
    add(log, 0, rows(0, range(2)))
    add(log, 1, rows(0, range(2, 4)))
    reader = ArchiveReader(log.root, SCHEMA, ordered=False)
    parts = reader.partitions()
    (join,) = compact.plan(log.state(), 1 << 20)
    assert compact.do(log, join)
    assert log.clear(keep_seconds=3600)[0] == 0
    assert sorted(body for part in parts for body in _bodies(reader, part)) == bodies(log)
    clock.advance(3601)
    assert log.clear(keep_seconds=3600)[0] == 2
    assert len(bodies(log)) == 4
    with pytest.raises(FileNotFoundError, match="must begin again"):
        list(reader.read(parts[0]))


def test_clearing_away_removes_nothing_that_counts_wherever_it_lies(tmp_path: Path) -> None:
    clock = ManualClock()
    log = ArchiveLog(tmp_path / "m", clock=clock)
    for batch in range(3):
        add(log, batch, rows(0, range(batch, batch + 1)))
    first, second, _ = log.state().files.values()
    # As a power cut may leave it on a disk that forgets renames.
    os.replace(log.find(first), log.staged / first.name)
    os.replace(log.find(second), log.old / second.name)
    stray = log.staged / "left-by-a-task.parquet"
    stray.write_bytes(b"half")
    for path in (stray, log.staged / first.name):
        os.utime(path, (0, 0))
    clock.advance(10**6)
    assert log.clear(keep_seconds=0)[0] == 1
    assert not stray.exists()
    assert bodies(log) == ["orders/0/0", "orders/0/1", "orders/0/2"]


def test_two_who_join_the_same_files_do_not_both_succeed(log: ArchiveLog) -> None:
    add(log, 0, rows(0, range(2)))
    add(log, 1, rows(0, range(2, 4)))
    (join,) = compact.plan(log.state(), 1 << 20)
    assert compact.do(log, join)
    assert not compact.do(log, join)
    assert len(bodies(log)) == 4 and not list(log.staged.iterdir())


def test_a_column_that_came_later_is_null_in_older_rows(log: ArchiveLog) -> None:
    add(log, 0, rows(0, range(2)))
    more = pa.Table.from_batches([rows(0, range(2, 3))]).append_column("colour", pa.array(["red"]))
    add(log, 1, more.to_batches()[0])
    (join,) = compact.plan(log.state(), 1 << 20)
    assert compact.do(log, join)
    (file,) = log.state().files.values()
    assert parquet.read_table(log.find(file)).column("colour").to_pylist() == [None, None, "red"]


def test_files_whose_columns_contradict_each_other_are_left_alone(log: ArchiveLog) -> None:
    for batch, value in enumerate((1, "one")):
        table = pa.Table.from_batches([rows(0, range(batch, batch + 1))]).append_column(
            "n", pa.array([value])
        )
        add(log, batch, table.to_batches()[0])
    (join,) = compact.plan(log.state(), 1 << 20)
    assert not compact.do(log, join)
    assert len(log.state().files) == 2


def test_a_file_that_lost_rows_stops_the_joining(log: ArchiveLog) -> None:
    add(log, 0, rows(0, range(2)))
    add(log, 1, rows(0, range(2, 4)))
    (join,) = compact.plan(log.state(), 1 << 20)
    parquet.write_table(pa.Table.from_batches([rows(0, range(1))]), log.find(join.files[0]))
    with pytest.raises(DataLossError, match="nothing was changed"):
        compact.do(log, join)
    assert len(log.state().files) == 2 and not list(log.staged.iterdir())


# --- the log -------------------------------------------------------------------------------------


def test_old_changes_are_not_needed_once_there_is_a_state(
    log: ArchiveLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_log, "STATE_EVERY", 4)
    for batch in range(10):
        add(log, batch, rows(0, range(batch, batch + 1)))
    log.clear(keep_seconds=0)
    names = sorted(os.listdir(log.root / "_gimbalmq" / "log"))
    assert [name.lstrip("0") for name in names] == ["8.state", "9.json", "10.json"]
    assert bodies(log) == [f"orders/0/{batch}" for batch in range(10)]
    assert not add(log, 9, rows(0, range(1))), "the writers are remembered, too"


def test_a_log_with_a_hole_is_refused(log: ArchiveLog) -> None:
    for batch in range(3):
        add(log, batch, rows(0, range(batch, batch + 1)))
    (log.root / "_gimbalmq" / "log" / f"{2:020d}.json").unlink()
    with pytest.raises(ConfigError, match="is missing; restore it"):
        log.state()


def test_a_folder_that_is_no_archive_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such folder"):
        ArchiveLog(tmp_path / "none").needed()
    with pytest.raises(ConfigError, match="it is no archive"):
        ArchiveLog(tmp_path).needed()


def test_a_foreign_checkpoint_is_refused(log: ArchiveLog) -> None:
    stream = ArchiveStreamReader(log.root, SCHEMA, ordered=True, batches=None)
    with pytest.raises(RemoteProtocolError, match="no position in an archive"):
        stream.latestOffset(json.loads('{"orders": {"a": {"0": 5}}}'), stream.getDefaultReadLimit())


# --- order ---------------------------------------------------------------------------------------


def ordered(log: ArchiveLog) -> dict[str, list[int]]:
    """The offsets of each queue as a reader that keeps the order gives them; each queue in one task."""
    reader = ArchiveReader(log.root, SCHEMA, ordered=True)
    found: dict[str, list[int]] = {}
    for part in reader.partitions():
        mine: dict[str, list[int]] = {}
        for body in _bodies(reader, part):
            queue, _, offset = body.rpartition("/")
            mine.setdefault(queue, []).append(int(offset))
        assert not mine.keys() & found.keys(), "a queue in two tasks has no order"
        found |= mine
    return found


def test_each_queue_comes_in_its_order_over_days_tasks_and_batches(log: ArchiveLog) -> None:
    chance = random.Random(7)
    at = dict.fromkeys(range(5), 0)
    for batch in range(12):
        tasks: dict[int, list[pa.RecordBatch]] = {}
        for queue in at:
            count = chance.randrange(1, 6)
            day = "2026-11-15" if batch < 6 else "2026-11-16"
            tasks.setdefault(chance.randrange(3), []).append(
                rows(queue, range(at[queue], at[queue] + count), date=day)
            )
            at[queue] += count
        staged = [file for task in tasks.values() for file in stage(log, *task)]
        chance.shuffle(staged)
        log.add(staged, query="q", batch=batch)
        if batch % 4 == 3:
            for join in compact.plan(log.state(), 1 << 20):
                compact.do(log, join)
    assert ordered(log) == {f"orders/{queue}": list(range(count)) for queue, count in at.items()}
    assert len(in_order(slices_of(log.state(), 0, 12))) <= 5


def test_a_clock_that_was_set_back_does_not_change_the_order(log: ArchiveLog) -> None:
    add(
        log,
        0,
        rows(0, range(3), date="2026-11-16"),
        rows(0, range(3, 6), date="2026-11-15"),
        rows(0, range(6, 9), date="2026-11-16"),
    )
    assert ordered(log) == {"orders/0": list(range(9))}


def test_queues_that_share_nothing_are_read_side_by_side(log: ArchiveLog) -> None:
    log.add([*stage(log, rows(0, range(3))), *stage(log, rows(1, range(3)))], query="q", batch=0)
    assert len(in_order(slices_of(log.state(), 0, 1))) == 2


# --- in Spark ------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_tables_and_streams_are_written_read_and_read_on_after_a_compaction(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = str(tmp_path / "lake")
    columns = ("'orders' AS topic", "date'2026-11-15' AS date", "id", "map('a', string(id)) AS properties")
    for first in (0, 50):
        frame = spark.range(first, first + 50, numPartitions=2).selectExpr(*columns)
        frame.write.format("rocketmq-archive").option("partitionBy", "topic,date").mode("append").save(place)
    log = ArchiveLog(Path(place))
    assert visible(log) == ["topic=orders/date=2026-11-15"] * 4
    read = spark.read.format("rocketmq-archive").load(place)
    assert read.schema["properties"].dataType.simpleString() == "map<string,string>"
    assert [row.id for row in read.orderBy("id").collect()] == list(range(100))
    plain = spark.read.parquet(place)
    assert plain.where("date = '2026-11-15' AND properties['a'] = '7'").count() == 1
    found: list[int] = []

    def take() -> None:
        stream = (
            spark.readStream.format("rocketmq-archive")
            .option("maxBatchesPerTrigger", "1")
            .schema("id BIGINT")
        )
        query = (
            stream.load(place)
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .foreachBatch(lambda batch, _: found.extend(row.id for row in batch.collect()))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    take()
    for join in compact.plan(log.state(), 1 << 20):
        assert compact.do(log, join)
    frame.selectExpr("topic", "date", "id + 50 AS id").write.format("rocketmq-archive").option(
        "partitionBy", "topic,date"
    ).mode("append").save(place)
    take()
    assert sorted(found) == list(range(150)), "each row once"
    with pytest.raises(Exception, match="an archive only grows"):
        frame.write.format("rocketmq-archive").mode("overwrite").save(place)
