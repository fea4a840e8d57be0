"""The store source: ranges of a commit log, torn ends, damage, times, queues, and Spark on top."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, In, LessThan

from gimbalmq import sync
from gimbalmq.errors import ConfigError, CorruptRecordError, DataLossError
from gimbalmq.model.message import Message
from gimbalmq.model.results import TransactionState
from gimbalmq.spark import columns, sink, sink_send, store_source
from gimbalmq.spark.log_ranges import StoreFolder, split_scans
from gimbalmq.spark.sink_options import SinkSettings
from gimbalmq.spark.store_source import PushdownStoreReader, StorePartition, StoreReader, StoreSettings
from gimbalmq.testing import LocalCluster
from gimbalmq.testing.cluster import ThreadCluster
from tests.peers import apache
from tests.peers.apache import ApacheBroker
from tests.peers.ours import OurNameServer
from tests.spark.test_sink import read_topic, table

GOLDEN = Path(__file__).parent.parent / "golden"
FILE_BYTES = 64 << 10
SCHEMA = columns.arrow_schema(columns.DEFAULT)

Row = dict[str, Any]


def reader_of(path: Path | str, names: tuple[str, ...] = columns.DEFAULT, **options: object) -> StoreReader:
    given = {"path": str(path)} | {key: str(value) for key, value in options.items()}
    return StoreReader(StoreSettings.read(given), columns.arrow_schema(names))


def rows_of(reader: StoreReader) -> list[Row]:
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist()]


def read_store(path: Path | str, names: tuple[str, ...] = columns.DEFAULT, **options: object) -> list[Row]:
    return rows_of(reader_of(path, names, **options))


def bodies(rows: list[Row]) -> list[bytes]:
    return [row["body"] for row in rows]


def small(store: Path, **properties: object) -> ThreadCluster:
    """A cluster with small files, whose store stays."""
    return LocalCluster.in_thread(
        store=store, properties={"mappedFileSizeCommitLog": FILE_BYTES} | properties
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics over several files: 900 messages of `many`, 30 of `few`; closed properly."""
    store = tmp_path_factory.mktemp("written")
    with small(store) as cluster, sync.Producer("writer", cluster.namesrv) as producer:
        for number in range(900):
            tags = "even" if number % 2 == 0 else "odd"
            body = b"%d " % number + b"x" * (number % 90)
            producer.send_soon(
                Message("many", body, tags=tags, keys=f"k{number}", properties={"n": str(number)})
            )
            if number % 30 == 0:
                producer.send(Message("few", b"few %d" % number))
        producer.send(Message("many", b"last"))
    return store / "broker-a"


@pytest.fixture
def copied(written: Path, tmp_path: Path) -> Path:
    """The same folder, to be damaged."""
    target = tmp_path / "broker-a"
    shutil.copytree(written, target)
    return target


def in_file(store: Path, offset: int) -> tuple[Path, int]:
    """The file of a physical offset, and the place in it."""
    base = offset - offset % FILE_BYTES
    return store / "commitlog" / f"{base:020d}", offset - base


def overwrite(store: Path, offset: int, data: bytes) -> None:
    path, position = in_file(store, offset)
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def place_of(row: Row) -> int:
    """The physical offset, which the offset id ends with."""
    return int(row["msgId"][-16:], 16)


# --- what is read --------------------------------------------------------------------------------


def test_every_message_is_a_row_as_consumers_see_it(written: Path) -> None:
    rows = read_store(written, (*columns.DEFAULT, "properties"))
    many = [row for row in rows if row["topic"] == "many"]
    assert len(many) == 901 and len(rows) == 931
    assert len(list((written / "commitlog").iterdir())) > 2, "it takes several files"
    first = min(many, key=lambda row: int(row["key"][1:]) if row["key"] else 1000)
    assert (first["broker"], first["tags"], first["key"]) == ("broker-a", "even", "k0")
    assert dict(first["properties"])["n"] == "0"
    for queue in range(4):
        offsets = [row["offset"] for row in many if row["queueId"] == queue]
        assert offsets == list(range(len(offsets)))


@pytest.mark.parametrize("size", [4096, 5000, 60_000, 1 << 30])
@pytest.mark.parametrize("partitions", [1, 7, 150])
def test_however_it_is_cut_each_record_is_read_once(written: Path, size: int, partitions: int) -> None:
    reader = reader_of(written, maxbytesperpartition=size, minpartitions=partitions)
    assert len(reader.partitions()) >= partitions
    assert sorted(bodies(rows_of(reader))) == sorted(bodies(read_store(written)))


def test_pieces_smaller_than_a_record_give_it_to_one_of_them(written: Path) -> None:
    folder = StoreFolder(str(written))
    reader = reader_of(written)
    whole = folder.scans()[0]
    pieces = split_scans([replace(whole, high=3000)], 40)
    parts = [StorePartition("b", scans=(piece,)) for piece in pieces]
    found = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    places = [row["offset"] for row in found if (row["topic"], row["queueId"]) == ("many", 0)]
    assert places == sorted(set(places)) and len(found) > 5


def test_topics_are_chosen_by_name_and_by_pattern(written: Path) -> None:
    assert len(read_store(written, subscribe="few")) == 30
    assert len(read_store(written, topic="few,many")) == 931
    assert len(read_store(written, subscribepattern="f.w")) == 30
    assert len(read_store(written, subscribepattern="f")) == 0
    assert read_store(written, subscribe="none") == []


def test_a_small_topic_is_read_through_its_queues(written: Path) -> None:
    parts = reader_of(written, subscribe="few").partitions()
    assert all(isinstance(part, StorePartition) and part.entries and not part.scans for part in parts)
    through_log = read_store(written, subscribe="few", readthrough="log")
    assert read_store(written, subscribe="few") == through_log
    assert all(isinstance(part, StorePartition) and part.scans for part in reader_of(written).partitions())


@pytest.mark.parametrize("size", [4096, 20_000, 1 << 30])
def test_both_ways_give_the_same_rows(written: Path, size: int) -> None:
    names = (*columns.DEFAULT, "properties")
    ways = [
        read_store(written, names, subscribe="many,few", readthrough=way, maxbytesperpartition=size)
        for way in ("log", "queues")
    ]
    for rows in ways:
        rows.sort(key=lambda row: (row["topic"], row["queueId"], row["offset"]))
    assert ways[0] == ways[1] and len(ways[0]) == 931


def test_tags_and_columns_are_honoured(written: Path) -> None:
    rows = read_store(written, ("offset", "tags"), tags="even")
    assert len(rows) == 450 and set(rows[0]) == {"offset", "tags"}
    assert len(read_store(written, tags="even || odd")) == 900
    assert reader_of(written).settings.column_names == columns.DEFAULT
    kept = reader_of(written, ondecodeerror="keep", includeproperties="true").settings
    assert kept.column_names == (*columns.DEFAULT, "properties", "decodeError")


def test_several_folders_are_one_table(written: Path, copied: Path) -> None:
    rows = read_store(f"{written}, {copied}", brokername="one,two")
    assert {row["broker"] for row in rows} == {"one", "two"} and len(rows) == 2 * 931


def test_the_brokers_name_comes_from_its_configuration_where_that_lies_beside(copied: Path) -> None:
    (copied / "broker.conf").write_text("brokerClusterName = c\nbrokerName = broker-x\n")
    assert read_store(copied)[0]["broker"] == "broker-x"
    assert read_store(copied, brokername="mine")[0]["broker"] == "mine"


def test_a_folder_of_commit_log_files_alone_will_do(copied: Path) -> None:
    shutil.rmtree(copied / "consumequeue")
    (copied / "checkpoint").unlink()
    expected = read_store(copied)
    assert len(expected) == 931
    rows = read_store(copied / "commitlog", brokername="broker-a")
    assert rows == expected


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribes": "x"}, "subscribe"),
        ({"path": ""}, "storePathRootDir"),
        ({"path": "/nowhere/at/all"}, "no such folder"),
        ({"subscribe": "a", "subscribepattern": "b"}, "either"),
        ({"subscribepattern": "("}, "regular expression"),
        ({"brokername": "a,b"}, "one name for each"),
        ({"startingtimestamp": "yesterday"}, "ISO"),
        ({"tags": "||"}, "names no tag"),
        ({"ondecodeerror": "ignore"}, "fail, skip, keep"),
        ({"maxbytesperpartition": "1"}, "4096"),
    ],
)
def test_options_that_cannot_be_used_are_named(written: Path, options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        StoreReader(StoreSettings.read({"path": str(written)} | options), SCHEMA).partitions()


def test_a_folder_without_log_files_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="storePathRootDir"):
        read_store(tmp_path)


def test_a_store_that_was_never_written_is_empty(tmp_path: Path) -> None:
    with small(tmp_path):
        pass
    assert read_store(tmp_path / "broker-a") == []


# --- times ---------------------------------------------------------------------------------------


def test_times_bound_the_rows_and_prune_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gimbalmq.spark.log_ranges.CLOCK_SLACK_MS", 0)
    monkeypatch.setattr("gimbalmq.spark.log_ranges._BISECT_BELOW", 2000)
    edges: list[int] = []
    with small(tmp_path) as cluster, sync.Producer("writer", cluster.namesrv) as producer:
        for part in range(4):
            edges.append(int(time.time() * 1000))
            for number in range(60):
                producer.send(Message("timed", b"%d-%d " % (part, number) + b"x" * 1000))
            time.sleep(0.005)
    store = tmp_path / "broker-a"
    whole = sum(scan.high - scan.low for scan in StoreFolder(str(store)).scans())
    reader = reader_of(store, startingtimestamp=edges[1], endingtimestamp=edges[3])
    found = bodies(rows_of(reader))
    assert sorted({body.split(b"-")[0] for body in found}) == [b"1", b"2"] and len(found) == 120
    assert (
        sum(
            scan.high - scan.low
            for part in reader.partitions()
            if isinstance(part, StorePartition)
            for scan in part.scans
        )
        < 0.75 * whole
    )
    iso = datetime.fromtimestamp(edges[3] / 1000, UTC).isoformat()
    assert len(read_store(store, startingtimestamp=iso)) == 60
    assert len(read_store(store, startingtimestamp=edges[3] + 3_600_000)) == 0
    through_queues = read_store(store, startingtimestamp=edges[2], subscribe="timed", readthrough="queues")
    assert len(through_queues) == 120


# --- torn ends and damage ------------------------------------------------------------------------


def last_record(store: Path) -> tuple[int, int]:
    """Physical offset and size of the log's last record."""
    folder = StoreFolder(str(store))
    end = folder.end
    file = folder.file_at(end - 1)
    assert file is not None
    data = Path(file.path).read_bytes()[: end - file.base]
    start = data.rfind(b"\xda\xa3\x20\xa7") - 4
    return file.base + start, len(data) - start


@pytest.mark.parametrize("queues", ["queues kept", "queues gone"])
@pytest.mark.parametrize("cut", [1, 5, 30, 100])
def test_a_torn_end_is_cut_without_a_word(copied: Path, cut: int, queues: str) -> None:
    start, size = last_record(copied)
    overwrite(copied, start + size - cut, bytes(cut))
    (copied / "abort").write_text("1")
    if queues == "queues gone":
        shutil.rmtree(copied / "consumequeue")
    (copied / "checkpoint").unlink()
    rows = read_store(copied)
    assert len(rows) == 930 and b"last" not in bodies(rows)


def test_half_a_record_behind_the_end_is_no_row(copied: Path) -> None:
    start, size = last_record(copied)
    path, position = in_file(copied, start)
    record = path.read_bytes()[position : position + size]
    overwrite(copied, start + size, record[: size // 2])
    assert len(read_store(copied)) == 931


@pytest.mark.parametrize("partitions", [1, 40])
def test_damage_in_the_middle_is_met_as_the_option_says(copied: Path, partitions: int) -> None:
    offset = FILE_BYTES + FILE_BYTES // 2
    path, position = in_file(copied, offset)
    data = path.read_bytes()
    start = data.find(b"\xda\xa3\x20\xa7", position) - 4
    overwrite(copied, FILE_BYTES + start, b"\xff" * 60)
    with pytest.raises(CorruptRecordError):
        read_store(copied, minpartitions=partitions)
    assert len(read_store(copied, minpartitions=partitions, ondecodeerror="skip")) == 930
    names = (*columns.DEFAULT, "decodeError")
    kept = read_store(copied, names, minpartitions=partitions, ondecodeerror="keep")
    assert len(kept) == 931
    (damaged,) = [row for row in kept if row["decodeError"] is not None]
    assert damaged["topic"] is None or damaged["topic"] in ("many", "few")


def test_bodies_are_compared_with_their_crc_where_asked(copied: Path) -> None:
    start, _ = last_record(copied)
    path, position = in_file(copied, 0)
    body = path.read_bytes().find(b"few 0", position)
    assert 0 < body < start
    overwrite(copied, body, b"FEW")
    assert b"FEW 0" in bodies(read_store(copied))
    with pytest.raises(CorruptRecordError, match="crc"):
        read_store(copied, checkcrc="true")
    assert len(read_store(copied, checkcrc="true", ondecodeerror="skip")) == 930


def test_a_file_that_expired_after_planning_is_said_to_be_gone(copied: Path) -> None:
    reader = reader_of(copied)
    parts = reader.partitions()
    (copied / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(DataLossError, match="run the query again"):
        list(reader.read(parts[0]))
    assert 0 < len(read_store(copied)) < 931, "what is left can be read"


# --- brokers that run, crash, or have unusual records --------------------------------------------


def test_a_running_broker_is_read_up_to_what_it_has_written(tmp_path: Path) -> None:
    with small(tmp_path) as cluster, sync.Producer("writer", cluster.namesrv) as producer:
        store = tmp_path / "broker-a"
        for number in range(300):
            producer.send(Message("live", b"%d" % number))
            if number % 60 == 59:
                assert sorted(bodies(read_store(store)), key=int) == [b"%d" % n for n in range(number + 1)]
                named = read_store(store, subscribe="live", readthrough="queues")
                assert len(named) == number + 1
        cluster.kill_broker()
        assert (store / "abort").exists()
        assert len(read_store(store)) == 300
        assert len(read_store(store, subscribe="live", readthrough="queues")) == 300


def test_internal_topics_are_read_when_asked_for(tmp_path: Path) -> None:
    with small(tmp_path) as cluster, sync.Producer("writer", cluster.namesrv) as producer:
        producer.send(Message("plain", b"now"))
        producer.send(Message("plain", b"much later", delay_level=18))
    store = tmp_path / "broker-a"
    assert bodies(read_store(store)) == [b"now"]
    assert bodies(read_store(store, subscribe="SCHEDULE_TOPIC_XXXX")) == [b"much later"]
    assert sorted(bodies(read_store(store, includeinternal="true"))) == [b"much later", b"now"]


def test_of_transactions_only_what_was_committed_is_read(tmp_path: Path) -> None:
    outcome = {
        b"yes": TransactionState.COMMIT,
        b"no": TransactionState.ROLLBACK,
        b"open": TransactionState.UNKNOWN,
    }
    with (
        small(tmp_path) as cluster,
        sync.TransactionProducer(
            "bank", cluster.namesrv, check=lambda message: TransactionState.UNKNOWN
        ) as producer,
    ):
        for body in outcome:
            producer.send_in_transaction(Message("bank", body), lambda message: outcome[message.body])
        time.sleep(0.3)  # the outcome is told one-way
    assert bodies(read_store(tmp_path / "broker-a")) == [b"yes"]
    assert bodies(read_store(tmp_path / "broker-a", includeinternal="true")).count(b"yes") >= 1


def test_compressed_bodies_are_unpacked(tmp_path: Path) -> None:
    with small(tmp_path) as cluster, sync.Producer("writer", cluster.namesrv) as producer:
        producer.send(Message("packed", b"z" * 20_000))
    assert bodies(read_store(tmp_path / "broker-a")) == [b"z" * 20_000]


@pytest.fixture(params=["4_9_7", "5_5_0"])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    with tarfile.open(GOLDEN / f"store_{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path / "store", filter="data")
    yield tmp_path / "store", json.loads((GOLDEN / f"store_{request.param}.json").read_text())


@pytest.mark.parametrize("way", ["log", "queues"])
def test_javas_folder_holds_what_javas_consumer_received(
    golden: tuple[Path, dict[str, Any]], way: str
) -> None:
    store, told = golden
    topics = ",".join(sorted({one["topic"] for one in told["received"]}))
    names = (*columns.DEFAULT, "properties")
    rows = read_store(store, names, subscribe=topics, readthrough=way, minpartitions=9)
    found = {(row["topic"], row["queueId"], row["offset"]): row for row in rows}
    expected = {(one["topic"], one["queue_id"], one["queue_offset"]): one for one in told["received"]}
    assert set(expected) <= set(found)
    for place, one in expected.items():
        row = found[place]
        assert row["body"].decode() == one["body"]
        assert (row["key"], row["bornTimestamp"].timestamp()) == (one["keys"], one["born_timestamp"] / 1000)
        assert row["tags"] == one["tags"]
        assert int(row["storeTimestamp"].timestamp() * 1000) == one["store_timestamp"]
        assert row["msgId"] == one["message_id"]
    unnamed = read_store(store, names)
    assert len(unnamed) == len(rows)


@pytest.mark.interop
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_what_our_sink_sends_to_javas_broker_is_read_from_its_folder(version: str, tmp_path: Path) -> None:
    reason = apache.available()
    if reason is not None:
        pytest.skip(f"no Apache RocketMQ: {reason}")
    count = 3000
    batch = table(
        body=[b"%d " % n + b"x" * (n % 50) if n % 100 else b"%d " % n + b"L" * 6000 for n in range(count)],
        key=[f"k{n}" for n in range(count)],
        tags=["A" if n % 2 else None for n in range(count)],
        shardingKey=[f"s{n % 5}" if n % 3 == 0 else None for n in range(count)],
        properties=[[("n", str(n))] for n in range(count)],
        delayLevel=[1 if n in (7, 8) else None for n in range(count)],
    )
    options = {"topic": "javas", "batchsize": "100"}
    roles = {name: index for index, name in enumerate(batch.schema.names)}
    expected = sorted(batch.column(0).to_pylist())
    with (
        OurNameServer(tmp_path / "names") as names,
        ApacheBroker(version, tmp_path / "broker", namesrv=names.address, store=tmp_path / "store") as broker,
    ):
        options["namesrv"] = names.address
        sent = sink.SinkWriter(SinkSettings.read(options), roles, "q").write(iter([batch]))
        for sender in list(sink_send.Sender._shared.values()):
            sender.close()
        assert isinstance(sent, sink_send.Sent) and sent.rows == count
        consumed = read_topic(names.address, "javas", count, 60.0)
        assert sorted(view.body for view in consumed) == expected
        names_read = (*columns.DEFAULT, "properties", "rowId")
        rows = read_store(tmp_path / "store", names_read)
        assert sorted(bodies(rows)) == expected
        ids = {row["rowId"] for row in rows}
        assert len(ids) == count and all(re.fullmatch(r"q-0-0-[0-9a-f]{24}", name) for name in ids)
        assert all(dict(row["properties"])["n"] == row["key"][1:] for row in rows)
        broker.kill()
    for way in ("log", "queues"):
        again = read_store(
            tmp_path / "store", names_read, subscribe="javas", readthrough=way, minpartitions=8
        )
        assert sorted(bodies(again)) == expected


# --- filters -------------------------------------------------------------------------------------


def pushed(path: Path, *filters: Filter) -> tuple[PushdownStoreReader, list[Filter]]:
    reader = PushdownStoreReader(
        StoreSettings.read({"path": str(path)}), columns.arrow_schema(columns.DEFAULT)
    )
    return reader, list(reader.pushFilters(list(filters)))


def test_filters_on_topic_and_offset_are_taken_whole(written: Path) -> None:
    reader, left = pushed(
        written, EqualTo(("topic",), "many"), GreaterThanOrEqual(("offset",), 10), LessThan(("offset",), 12)
    )
    assert left == []
    rows = rows_of(reader)
    assert {(row["topic"], row["offset"]) for row in rows} == {("many", 10), ("many", 11)}
    assert len(rows) == 8


def test_filters_on_queue_and_time_are_used_and_left_to_spark(written: Path) -> None:
    later = datetime(2100, 1, 1, tzinfo=UTC)
    reader, left = pushed(written, GreaterThanOrEqual(("storeTimestamp",), later))
    assert len(left) == 1 and rows_of(reader) == []
    reader, left = pushed(written, EqualTo(("topic",), "few"), In(("queueId",), (1, 2)))
    assert len(left) == 1
    assert {row["queueId"] for row in rows_of(reader)} == {1, 2}


def test_a_filter_on_a_topic_that_is_not_read_gives_nothing(written: Path) -> None:
    reader, _ = pushed(written, EqualTo(("topic",), "SCHEDULE_TOPIC_XXXX"))
    assert reader.partitions() == []


# --- under Spark ---------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_store_is_a_table_for_spark(spark: SparkSession, written: Path) -> None:
    table = spark.read.format("rocketmq-store").option("maxBytesPerPartition", "32k").load(str(written))
    assert table.schema.fieldNames() == list(columns.DEFAULT)
    counted = {row["topic"]: row["count"] for row in table.groupBy("topic").count().collect()}
    assert counted == {"many": 901, "few": 30}
    assert table.where("topic = 'few' and offset < 2").count() == len(
        [row for row in read_store(written, subscribe="few") if row["offset"] < 2]
    )
    chosen = spark.read.schema("body binary, offset bigint").format("rocketmq-store").load(str(written))
    assert chosen.count() == 931
    assert spark.read.format("rocketmq-store").option("subscribe", "none").load(str(written)).count() == 0


@pytest.mark.spark
def test_the_arrow_types_are_those_spark_expects(spark: SparkSession, written: Path) -> None:
    table = (
        spark.read.format("rocketmq-store")
        .option("includeProperties", "true")
        .option("onDecodeError", "keep")
        .load(str(written))
    )
    row = table.where("key = 'k7'").collect()[0]
    assert row["properties"]["n"] == "7" and row["decodeError"] is None
    assert isinstance(row["storeTimestamp"], datetime)
    assert store_source.StoreDataSource.name() == "rocketmq-store" and pa.types.is_binary(
        columns.TYPES["body"]
    )
