"""The sink: options and columns, rows to requests, requests to brokers, and the whole of it under Spark."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import pickle
import random
import re
import threading
import time
import tracemalloc
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from gimbalmq import sync
from gimbalmq.balance.select import select_by_hash
from gimbalmq.client.consumer_config import ConsumeFromWhere
from gimbalmq.client.producer import Producer
from gimbalmq.errors import (
    ConfigError,
    MessageIllegalError,
    RocketMQError,
    SendFailedError,
    StateError,
    TopicRouteNotFoundError,
)
from gimbalmq.model.batch import split_batch
from gimbalmq.model.compression import decompress
from gimbalmq.model.message import MessageView
from gimbalmq.model.properties import parse
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.spark import sink, sink_encode, sink_send
from gimbalmq.spark.sink_encode import Request, RowEncoder
from gimbalmq.spark.sink_options import SinkSettings, find_roles
from gimbalmq.sync.loop import loop_thread
from gimbalmq.testing import LocalCluster
from gimbalmq.testing.cluster import ThreadCluster
from gimbalmq.transport.channel import Channel
from tests.client.scripted import ScriptedCluster

TASK = "query-3-1"
ROW_ID = re.compile(r"query-3-1(\.\d+)?-[0-9a-f]{24}")


def read_settings(**options: object) -> SinkSettings:
    return SinkSettings.read({"namesrv": "a:9876", "topic": "T"} | {k: str(v) for k, v in options.items()})


def four_queues(topic: str) -> list[MessageQueue]:
    return [MessageQueue(topic, broker, number) for broker in ("a", "b") for number in range(2)]


def encoder_of(batch: pa.RecordBatch, **options: object) -> RowEncoder:
    return RowEncoder(
        read_settings(**options),
        {name: index for index, name in enumerate(batch.schema.names)},
        task=TASK,
        queues=four_queues,
        unique_id=lambda: "0" * 32,
    )


def encode(batch: pa.RecordBatch, **options: object) -> list[Request]:
    return list(encoder_of(batch, **options).encode(batch))


Sent = tuple[MessageQueue, int, bytes, dict[str, str], int]


def messages_of(requests: Sequence[Request]) -> list[Sent]:
    """(queue, row, body, properties, flag) of every message, as a broker would see them."""
    found: list[Sent] = []
    for request in requests:
        if request.batch:
            items = split_batch(bytes(request.body))
            assert len(items) == len(request.rows)
            for row, item in zip(request.rows.tolist(), items, strict=True):
                told = parse(item.properties.decode())
                found.append((request.queue, row, item.body, told, request.sys_flag))
        else:
            (row,) = request.rows.tolist()
            told = parse(request.properties)
            assert told.pop("WAIT") in ("true", "false")
            found.append((request.queue, row, bytes(request.body), told, request.sys_flag))
    return found


def table(**columns: Any) -> pa.RecordBatch:
    types = {
        "body": pa.binary(),
        "topic": pa.string(),
        "key": pa.string(),
        "tags": pa.string(),
        "properties": pa.map_(pa.string(), pa.string()),
        "delayLevel": pa.int32(),
        "deliverTimestamp": pa.timestamp("us", "UTC"),
        "delayMs": pa.int64(),
        "shardingKey": pa.string(),
        "queueId": pa.int32(),
        "flag": pa.int64(),
    }
    return pa.record_batch([pa.array(v, types[k]) for k, v in columns.items()], names=list(columns))


# --- options and columns -------------------------------------------------------------------------


def test_a_misspelt_option_is_answered_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match="batchSize"):
        SinkSettings.read({"namesrv": "a:1", "batchsise": "7"})
    with pytest.raises(ConfigError, match="there are accessKey"):
        SinkSettings.read({"namesrv": "a:1", "zzzzz": "7"})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("batchsize", "0"),
        ("batchbytes", "many"),
        ("sendtimeout", "soon"),
        ("waitstore", "perhaps"),
        ("compression", "rar"),
        ("retries", "-1"),
        ("topic", "no blanks"),
        ("topic", "SCHEDULE_TOPIC_XXXX"),
        ("producergroup", "a b"),
        ("accesskey", "only one of two"),
        ("tls", "sometimes"),
        ("reservedproperties", "keep"),
        ("path", "/tmp/x"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(option: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SinkSettings.read({"namesrv": "a:1", option: value})
    assert value in str(caught.value) or option == "path"


def test_options_have_units() -> None:
    found = read_settings(batchbytes="64k", sendtimeout="2s", compressover="off", waitstore="false")
    assert (found.batch_bytes, found.send_timeout, found.wait_store) == (65536, 2.0, False)
    assert found.compress_over == 2**31 - 1
    assert read_settings(sendtimeout="1500").send_timeout == 1.5


def test_namesrv_is_needed() -> None:
    with pytest.raises(ConfigError, match="namesrv"):
        SinkSettings.read({"topic": "T"})


def test_tls_is_settled_on_the_executor_and_wrong_files_are_named() -> None:
    plain = read_settings().connection
    assert plain.client_options()["tls"] is None
    trusting = read_settings(tls="trust").connection
    assert pickle.loads(pickle.dumps(trusting)).client_options()["tls"] is not None
    with pytest.raises(ConfigError, match=r"nowhere\.pem"):
        read_settings(tls="true", tlstrustfile="/nowhere.pem").connection.client_options()
    secret = read_settings(accesskey="me", secretkey="hidden").connection
    assert secret.client_options()["secret_key"] == "hidden" and "hidden" not in repr(secret)


def test_a_topic_cannot_be_overwritten() -> None:
    with pytest.raises(ConfigError, match="append"):
        sink.writer({"namesrv": "a:1", "topic": "T"}, schema("body binary"), True)


def schema(text: str) -> StructType:
    """``name type, name type`` without the JVM that Spark's own parser needs."""
    kinds: dict[str, DataType] = {
        "string": StringType(),
        "binary": BinaryType(),
        "int": IntegerType(),
        "bigint": LongType(),
        "timestamp": TimestampType(),
        "map<string;int>": MapType(StringType(), IntegerType()),
    }
    pairs = [item.split() for item in text.split(", ")]
    return StructType([StructField(name, kinds[kind]) for name, kind in pairs])


def test_columns_are_found_by_name_in_any_case() -> None:
    found = find_roles(
        schema("KEY string, Value string, offset bigint, storeTimestamp timestamp"), read_settings()
    )
    assert found == {"key": 0, "body": 1}


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ("body binary, shardKey string", {}, "shardingKey"),
        ("body int", {}, "cast"),
        ("body binary, properties map<string;int>", {}, "map<string,string>"),
        ("body binary, value string", {}, "two columns"),
        ("key string", {}, "no column body"),
        ("body binary, deliverTimestamp timestamp, delayMs bigint", {}, "exclude"),
        ("body binary", {"topic": ""}, "topic"),
    ],
)
def test_columns_that_make_no_message_are_refused_before_any_task_runs(
    columns: str, options: dict[str, str], says: str
) -> None:
    with pytest.raises(RocketMQError, match=says):
        find_roles(schema(columns), read_settings(**options))


# --- rows to requests ----------------------------------------------------------------------------


def test_a_plain_row_is_its_body_and_its_row_id() -> None:
    (sent,) = messages_of(encode(table(body=[b"hello"])))
    # The id of a row is written down here: another one would not recognise what older versions have written.
    assert sent == (
        queue_of(b"hello"),
        0,
        b"hello",
        {"SPARK_ROW_ID": "query-3-1-22050e1b735be7923c2febfb"},
        0,
    )


def test_everything_a_row_can_say_becomes_properties() -> None:
    batch = table(
        body=[b"x", b"y", b"z"],
        key=["k1 k2", None, ""],
        tags=["A", "B", None],
        properties=[[("a", "1"), ("b", "2")], None, [("c", "3"), ("none", None), ("empty", "")]],
    )
    sent = sorted(messages_of(encode(batch)), key=lambda sent: sent[1])
    for _, _, _, told, _ in sent:
        assert ROW_ID.fullmatch(told.pop("SPARK_ROW_ID"))
    assert [told for _, _, _, told, _ in sent] == [
        {"KEYS": "k1 k2", "TAGS": "A", "a": "1", "b": "2"},
        {"TAGS": "B"},
        {"c": "3"},
    ]


def test_unique_keys_are_written_where_asked_for() -> None:
    (sent,) = messages_of(encode(table(body=[b"x"]), uniquekeys=True))
    assert sent[3]["UNIQ_KEY"] == "0" * 32


def test_text_is_sent_as_utf8() -> None:
    batch = pa.record_batch([pa.array(["gr\u00fc\u00df"])], names=["body"])
    assert messages_of(encode(batch))[0][2] == "gr\u00fc\u00df".encode()
    large = pa.record_batch([pa.array(["gr\u00fc\u00df"], pa.large_string())], names=["body"])
    assert messages_of(encode(large))[0][2] == "gr\u00fc\u00df".encode()


def queue_of(body: bytes) -> MessageQueue:
    (request,) = encode(table(body=[body]))
    return request.queue


def test_rows_are_spread_over_all_queues_and_requests_have_a_size() -> None:
    rows = 4000
    requests = encode(table(body=[b"%d" % n for n in range(rows)]), batchsize=300)
    counts = Counter(dict.fromkeys(four_queues("T"), 0))
    for request in requests:
        assert 0 < len(request.rows) <= 300
        counts[request.queue] += len(request.rows)
    assert all(abs(count - rows / 4) < rows / 20 for count in counts.values())


# --- row ids and homes -----------------------------------------------------------------------------

Copy = tuple[str, MessageQueue, bytes]


def copies(bodies: Sequence[bytes], queues: Callable[[str], list[MessageQueue]] = four_queues) -> list[Copy]:
    """(row id, queue, body) of each row of a task."""
    batch = table(body=bodies)
    encoder = RowEncoder(read_settings(), {"body": 0}, task=TASK, queues=queues, unique_id=lambda: "0" * 32)
    sent = messages_of(list(encoder.encode(batch)))
    return [(told["SPARK_ROW_ID"], queue, body) for queue, _, body, told, _ in sent]


def test_a_task_repeated_with_its_rows_in_another_order_loses_none() -> None:
    """The first attempt sent some rows and died; the shuffle's blocks then came in another order."""
    first = [copy for copy in copies([b"a", b"b", b"c"]) if copy[2] in (b"a", b"b")]
    kept: dict[str, bytes] = {}
    for row_id, _, body in first + copies([b"c", b"a", b"b"]):
        assert kept.setdefault(row_id, body) == body
    assert sorted(kept.values()) == [b"a", b"b", b"c"]


@given(
    bodies=st.lists(
        st.sampled_from([b"a", b"b", b"c", b"dd" * 40, b"e" * 8, b"e" * 9]), min_size=1, max_size=40
    ),
    chance=st.randoms(use_true_random=False),
    sent=st.floats(0, 1),
)
@settings(max_examples=100)
def test_copies_have_one_id_and_equal_rows_have_several(
    bodies: list[bytes], chance: random.Random, sent: float
) -> None:
    again = bodies[:]
    chance.shuffle(again)
    first, second = copies(bodies), copies(again)
    assert sorted(first) == sorted(second), "the ids and queues of a task follow from the set of its rows"
    assert len({row_id for row_id, _, _ in first}) == len(bodies)
    written = first[: int(sent * len(first))] + second
    assert Counter({row_id: body for row_id, _, body in written}.values()) == Counter(bodies)


def test_rows_that_differ_in_anything_have_different_ids() -> None:
    rows = table(
        body=[b"x", b"x", b"x", b"x", b"x", b"y", b"x"],
        key=["a", "b", None, None, None, None, None],
        tags=[None, None, "a", None, None, None, None],
        topic=["T", "T", "T", "U", "T", "T", "T"],
        queueId=[None, None, None, None, 1, None, None],
    )
    ids = {told["SPARK_ROW_ID"] for *_, told, _ in messages_of(encode(rows))}
    assert len({row_id.rpartition("-")[2] for row_id in ids}) == 7


def test_an_id_is_what_it_was_when_rows_with_it_were_written() -> None:
    ids = [told["SPARK_ROW_ID"] for *_, told, _ in messages_of(encode(table(body=[b"hello", b"hello"])))]
    assert ids == ["query-3-1-22050e1b735be7923c2febfb", "query-3-1.1-22050e1b735be7923c2febfb"]


def test_a_columns_absence_and_its_nulls_are_the_same() -> None:
    (plain,) = messages_of(encode(table(body=[b"x"])))
    (nulls,) = messages_of(
        encode(table(body=[b"x"], key=[None], tags=[""], properties=[None], delayLevel=[None]))
    )
    assert plain == nulls


def test_a_negative_queue_id_asks_for_none_whatever_others_ask_for() -> None:
    (plain,) = messages_of(encode(table(body=[b"x"])))
    for other in (None, 1):
        sent = messages_of(encode(table(body=[b"x", b"y"], queueId=[-5, other])))
        assert plain in sent


def test_compression_does_not_change_an_id() -> None:
    body = b"L" * 5000
    (packed,) = messages_of(encode(table(body=[body])))
    (plain,) = messages_of(encode(table(body=[body]), compressover="off"))
    assert packed[2] != plain[2] and packed[3] == plain[3]


def test_without_one_broker_rows_keep_the_number_of_their_queue_and_others_stay() -> None:
    bodies = [b"%d" % n for n in range(500)]
    everywhere = {row_id: queue for row_id, queue, _ in copies(bodies)}
    alone = {
        row_id: queue
        for row_id, queue, _ in copies(
            bodies, lambda topic: [q for q in four_queues(topic) if q.broker_name == "a"]
        )
    }
    assert everywhere.keys() == alone.keys()
    for row_id, queue in everywhere.items():
        assert alone[row_id] == MessageQueue("T", "a", queue.queue_id)


def test_the_id_of_a_row_depends_on_no_other_row_of_its_slice() -> None:
    """Nor on whether any other has a key, properties or a flag: another order brings other neighbours."""
    columns: dict[str, list[Any]] = {
        "body": [b"plain", b"keyed", b"numbered", b"numbered", b"told"],
        "key": [None, "k", None, None, None],
        "flag": [None, None, 7, 8, None],
        "properties": [None, None, None, None, [("a", "b")]],
    }

    def ids(*orders: list[int]) -> dict[tuple[bytes, object], str]:
        first = table(**{name: values[:1] for name, values in columns.items()})
        encoder, found = encoder_of(first), {}
        for order in orders:
            part = table(**{name: [values[at] for at in order] for name, values in columns.items()})
            for _, row, body, told, _ in messages_of(list(encoder.encode(part))):
                found[body, columns["flag"][order[row - (encoder.row - len(order))]]] = told["SPARK_ROW_ID"]
        return found

    together = ids([0, 1, 2, 3, 4])
    assert len(set(together.values())) == 5
    assert ids([0], [1], [2], [3], [4]) == ids([4, 3], [2, 1, 0]) == together


@given(cuts=st.lists(st.integers(0, 60), max_size=6), columns=st.sampled_from(["plain", "rich"]))
@settings(max_examples=60)
def test_how_arrow_cuts_the_rows_changes_neither_queue_nor_content_nor_order(
    cuts: list[int], columns: str
) -> None:
    rows = 60
    rich: dict[str, list[Any]] = {
        "key": [None if n % 3 else f"k{n}" for n in range(rows)],
        "shardingKey": [f"s{n % 5}" if n % 2 else None for n in range(rows)],
        "topic": ["T" if n % 7 else None for n in range(rows)],
        "properties": [None if n % 4 == 0 else [("n", str(n))] * (n % 3) for n in range(rows)],
        "queueId": [n % 2 if n % 11 == 0 else None for n in range(rows)],
    }
    bodies = [bytes([n]) * (n * 7 % 50 + 1) for n in range(rows)]
    batch = table(body=bodies, **(rich if columns == "rich" else {}))
    whole = sorted(messages_of(encode(batch, batchsize=8)), key=lambda sent: sent[1])
    encoder = encoder_of(batch, batchsize=8)
    edges = sorted({0, rows, *cuts})
    pieces = [batch.slice(low, high - low) for low, high in pairwise(edges)]
    cut = messages_of([request for piece in pieces for request in encoder.encode(piece)])
    by_queue: dict[tuple[MessageQueue, bool], list[int]] = {}
    for queue, row, *_ in cut:
        bound = columns == "rich" and (
            rich["shardingKey"][row] is not None or rich["queueId"][row] is not None
        )
        by_queue.setdefault((queue, bound), []).append(row)
    assert all(found == sorted(found) for found in by_queue.values())
    assert sorted(cut, key=lambda sent: sent[1]) == whole
    assert [row for _, row, *_ in whole] == list(range(rows))


@pytest.mark.parametrize("keyed", [False, True])
def test_rows_that_are_equally_long_are_put_together_as_others_are(
    keyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_encode, "_JOINED_ROWS", 7)
    rows = 100
    bodies = [b"%03d" % n for n in range(rows)]
    keys = {"key": [f"k{n:03d}" for n in range(rows)]} if keyed else {}
    batch = table(body=bodies, **keys).slice(3)
    alike = messages_of(encode(batch, batchsize=9))
    assert sorted((row, body) for _, row, body, _, _ in alike) == list(enumerate(bodies[3:]))
    longer = table(body=[*bodies, b"another"], **({"key": [*keys["key"], "k"]} if keys else {})).slice(3)
    monkeypatch.delattr(sink_encode, "_join_alike")
    others = [sent for sent in messages_of(encode(longer, batchsize=9)) if sent[2] != b"another"]
    assert alike == others


def test_long_rows_are_not_copied_all_at_once() -> None:
    long = pa.array([bytes([n]) * (1 << 19) for n in range(16)], pa.binary())
    totals = np.full(16, 1 << 19)
    tracemalloc.start()
    try:
        data, _ = sink_encode._joined([long], totals, np.arange(16)[::-1])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert bytes(data[:: 1 << 19]) == bytes(range(16))[::-1]
    assert peak < (8 << 20) + (2 << 20)


@pytest.mark.parametrize("sizes", [[1] * 20_000, [50_000] * 40 + [1] * 960, [1] * 960 + [50_000] * 40])
def test_no_more_rows_are_put_together_than_fit_the_memory_for_it(
    sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiny rows are mostly their ids, and the large ones may come all in one place."""
    monkeypatch.setattr(sink_encode, "_SLICE_BYTES", 1 << 20)
    requests = encode(table(body=[b"x" * size for size in sizes]), compressover="off")
    assert sum(len(request.rows) for request in requests) == len(sizes)
    kept = dict(sink_send._memory_of(request) for request in requests)
    assert max(kept.values()) <= 1 << 20
    assert len(kept) <= 8


def test_batches_of_spark_are_joined_until_they_are_many_rows_or_bytes_or_old() -> None:
    def some(rows: int, size: int = 1) -> pa.RecordBatch:
        return table(body=[b"x" * size] * rows)

    def sizes(batches: Sequence[pa.RecordBatch], step: float = 0.0) -> list[int]:
        ticks = itertools.count(step=step)
        return [batch.num_rows for batch in sink.gathered(batches, lambda: next(ticks))]

    assert sizes([]) == [] and sizes([some(0)]) == [0]
    assert sizes([some(10_000)] * 9) == [70_000, 20_000]
    assert sizes([some(2, 5 << 20)] * 3 + [some(1)]) == [4, 3], "16 MB"
    assert sizes([some(10)] * 5, step=0.15) == [20, 20, 10], "rows do not wait long for others"
    joined = list(sink.gathered([table(body=[b"1"], key=["a"]), table(body=[b"2"], key=[None])]))
    assert [batch.to_pydict() for batch in joined] == [{"body": [b"1", b"2"], "key": ["a", None]}]


def test_rows_of_one_sharding_key_share_the_queue_any_producer_would_choose() -> None:
    keys = [f"customer-{n % 7}" for n in range(100)]
    batch = table(body=[b"x"] * 100, shardingKey=keys)
    requests = encode(batch, batchsize=10)
    for queue, row, _, told, _ in messages_of(requests):
        assert queue == select_by_hash(four_queues("T"), keys[row])
        assert told["__SHARDINGKEY"] == keys[row]
    assert all(request.bound for request in requests)


def test_the_topic_column_wins_over_the_option_where_it_is_not_null() -> None:
    batch = table(body=[b"a", b"b", b"c"], topic=["U", None, "V"])
    assert {row: queue.topic for queue, row, *_ in messages_of(encode(batch))} == {0: "U", 1: "T", 2: "V"}


def test_a_queue_id_is_obeyed_on_any_broker_that_has_it() -> None:
    batch = table(body=[b"x"] * 4, queueId=[1, None, 1, 0])
    queues = {row: queue for queue, row, *_ in messages_of(encode(batch, batchsize=1))}
    assert [queues[row].queue_id for row in (0, 2, 3)] == [1, 1, 0]
    with pytest.raises(MessageIllegalError, match=r"row 1 .*no queue 9: use queueId 0 to 1"):
        encode(table(body=[b"x"] * 2, queueId=[0, 9]))


def test_rows_of_a_sharding_key_and_a_queue_id_share_one_of_the_queues_with_this_id() -> None:
    keys = [f"customer-{n % 7}" if n % 3 else None for n in range(100)]
    batch = table(body=[b"%d" % n for n in range(100)], shardingKey=keys, queueId=[1] * 100)
    queues: dict[str | None, set[MessageQueue]] = {}
    for queue, row, *_ in messages_of(encode(batch)):
        assert queue.queue_id == 1
        queues.setdefault(keys[row], set()).add(queue)
    assert len(queues.pop(None)) == 2, "each other row goes to the broker that its hash prefers"
    assert all(len(found) == 1 for found in queues.values())
    assert len(set.union(*queues.values())) == 2, "the keys are spread over the brokers"


def test_requests_end_where_they_are_full() -> None:
    batch = table(body=[b"x" * 400] * 20)
    requests = encode(batch, batchbytes="2k")
    assert all(len(request.body) <= 2048 for request in requests)
    assert [row for request in requests for row in request.rows.tolist()] == list(range(20))
    assert {request.queue for request in requests} == {queue_of(b"x" * 400)}


def test_small_messages_do_not_outgrow_what_apache_stores_of_one_batch() -> None:
    requests = encode(table(body=[b"x"] * 40_000), batchsize=100_000, batchbytes="8m")
    assert len(requests) > 1
    assert max(len(request.body) + 155 * len(request.rows) for request in requests) <= 4 << 20


def test_large_bodies_are_compressed_and_keep_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_encode, "_LEAST_RUN_BYTES", 1000)
    batch = table(body=[b"s", b"L" * 5000, b"s", b"L" * 6000, b"L" * 7000], shardingKey=["k"] * 5)
    requests = encode(batch)
    assert [request.rows.tolist() for request in requests] == [[0], [1], [2], [3, 4]]
    bodies = [decompress(body, flag) for _, _, body, _, flag in messages_of(requests)]
    assert bodies == batch.column(0).to_pylist()


@pytest.mark.parametrize("alike", ["not bound", "bound", "every second one bound"])
@pytest.mark.parametrize("sizes", [(5000, 5000), (4000, 5000), (5000, 100)])
def test_rows_of_two_kinds_in_turn_make_no_request_each(alike: str, sizes: tuple[int, int]) -> None:
    """Of a queue's bound rows one request travels at a time: a request for each row took a journey for each."""
    rows = 600
    choices: dict[str, list[str | None]] = {
        "not bound": [None] * rows,
        "bound": [f"s{n % 5}" for n in range(rows)],
        "every second one bound": [f"s{n % 5}" if n % 2 else None for n in range(rows)],
    }
    keys = choices[alike]
    bodies = [b"%d " % n + bytes([n % 251]) * sizes[n % 2] for n in range(rows)]
    batch = table(body=bodies, shardingKey=keys)
    requests = encode(batch, batchsize=rows, batchbytes="1m")
    assert len(requests) < 40
    found = messages_of(requests)
    assert {row: decompress(body, flag) for _, row, body, _, flag in found} == dict(enumerate(bodies))
    for key in filter(None, set(keys)):
        of_key = [row for _, row, _, told, _ in found if told.get("__SHARDINGKEY") == key]
        assert of_key == sorted(of_key)


def test_rows_that_keep_their_order_are_compressed_if_many_are_alike() -> None:
    bodies = [b"s" * 100] * 200 + [b"L" * 5000] * 200
    requests = encode(table(body=bodies, shardingKey=["k"] * 400))
    assert {bool(request.sys_flag) for request in requests if 200 in request.rows} == {True}
    assert {bool(request.sys_flag) for request in requests if 199 in request.rows} == {False}


@pytest.mark.parametrize("method", ["zlib", "lz4", "zstd"])
def test_a_body_that_would_grow_is_not_compressed(method: str) -> None:
    """It was refused by the broker if it was nearly as large as one may be."""
    noise = random.Random(5).randbytes(1 << 20)
    batch = table(body=[noise, b"L" * 5000], queueId=[0, 1])
    found = messages_of(encode(batch, maxmessagesize="1m", batchbytes="2m", compression=method))
    assert [(len(body), bool(flag)) for _, row, body, _, flag in found if row == 0] == [(1 << 20, False)]
    assert [bool(flag) for _, row, _, _, flag in found if row == 1] == [True]


def test_a_body_that_fills_a_request_travels_alone() -> None:
    rows = table(body=[b"a", b"b" * 2000, b"c"], shardingKey=["k"] * 3)
    requests = encode(rows, batchbytes="1k", compressover="off")
    assert [(request.batch, request.rows.tolist()) for request in requests] == [
        (True, [0]),
        (False, [1]),
        (True, [2]),
    ]
    _, _, body, told, _ = messages_of(requests)[1]
    assert body == b"b" * 2000 and ROW_ID.fullmatch(told["SPARK_ROW_ID"])


def test_delayed_rows_travel_alone() -> None:
    batch = table(
        body=[b"a", b"b", b"c", b"d"],
        delayLevel=[None, 3, 0, None],
        deliverTimestamp=[None, None, None, 1_700_000_000_123_000],
    )
    found = {row: told for _, row, _, told, _ in messages_of(encode(batch))}
    assert found[1]["DELAY"] == "3"
    assert found[3]["TIMER_DELIVER_MS"] == "1700000000123"
    assert "DELAY" not in found[0] and "DELAY" not in found[2]
    assert sorted(len(request.rows) for request in encode(batch) if not request.batch) == [1, 1]
    (later,) = messages_of(encode(table(body=[b"x"], delayMs=[1500])))
    assert later[3]["TIMER_DELAY_MS"] == "1500"


def test_flags_travel_with_their_rows_in_batches_and_alone() -> None:
    batch = table(
        body=[b"a", b"b", b"c", b"d"],
        flag=[1, None, -3, 4],
        delayLevel=[None, None, None, 2],
        queueId=[1, 0, 1, 0],
    )
    found: dict[int, int] = {}
    for request in encode(batch):
        rows = request.rows.tolist()
        if request.batch:
            found |= dict(zip(rows, (item.flag for item in split_batch(bytes(request.body))), strict=True))
        else:
            found[rows[0]] = request.flag
    assert found == {0: 1, 1: 0, 2: -3, 3: 4}


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"body": [b"x", b"y"], "flag": [1, 2**31]}, r"row 1 .*flag \(2147483648\) does not fit 32 bits"),
        ({"body": [b"x", None]}, r"row 1 of query-3-1 cannot .* null or empty"),
        ({"body": [b"x", b"", b""]}, r"rows 1 to 2 of query-3-1 cannot"),
        ({"body": [b"x", b"y" * 2000]}, r"row 1 .*too large \(2000 bytes, maxMessageSize is 1024\)"),
        ({"body": [b"x"], "topic": ["bad topic"]}, "row 0 .*illegal"),
        ({"body": [b"x"], "key": ["a\x01b"]}, r"column key holds .*'a\\x01b'\): remove"),
        ({"body": [b"x"], "properties": [[("a", "b\x02")]]}, r"separate properties \('b\\x02'\)"),
        ({"body": [b"x"], "properties": [[("", "b")]]}, "empty name"),
        ({"body": [b"x", b"y"], "properties": [None, [("KEYS", "b")]]}, "row 1 .*KEYS.*reservedProperties"),
        (
            {"body": [b"x"], "properties": [[("a", "b" * 40_000)]]},
            r"too large \(400\d\d bytes, at most 32255",
        ),
        ({"body": [b"x", b"y"], "delayLevel": [None, -3]}, r"row 1 .*negative \(-3\)"),
        ({"body": [b"x"], "delayLevel": [1], "delayMs": [1]}, "give one of them"),
    ],
)
def test_rows_that_cannot_be_sent_are_named(columns: dict[str, Any], says: str) -> None:
    with pytest.raises(MessageIllegalError, match=says):
        encode(table(**columns), maxmessagesize="1k")


@pytest.mark.parametrize("role", ["topic", "key", "tags", "shardingKey", "properties"])
def test_text_that_is_none_is_refused(role: str) -> None:
    """Spark casts any bytes to a string. Some clients cannot read them, and alone they would be changed."""
    texts = pa.array([b"fine", b"T\xff\xfe"], pa.binary()).view(pa.string())
    if role == "properties":
        column: pa.Array = pa.MapArray.from_arrays([0, 1, 2], pa.array(["a", "b"]), texts)
    else:
        column = texts
    batch = pa.record_batch([pa.array([b"x", b"y"], pa.binary()), column], names=["body", role])
    with pytest.raises(MessageIllegalError, match=r"row 1 of .* not UTF-8 \('T\\xff\\xfe'\): decode\(\)"):
        encode(batch)


def test_a_row_without_topic_is_named() -> None:
    batch = table(body=[b"x", b"y"], topic=["T", None])
    with pytest.raises(MessageIllegalError, match=r"row 1 .*name no topic"):
        encode(batch, topic="")


def test_properties_that_were_read_can_be_written_without_the_brokers_own() -> None:
    told = [("UNIQ_KEY", "1"), ("CLUSTER", "c"), ("SPARK_ROW_ID", "old"), ("own", "1")]
    (sent,) = messages_of(encode(table(body=[b"x"], properties=[told]), reservedproperties="drop"))
    assert ROW_ID.fullmatch(sent[3].pop("SPARK_ROW_ID")) and sent[3] == {"own": "1"}
    (sent,) = messages_of(encode(table(body=[b"x"], properties=[told[2:]])))
    assert ROW_ID.fullmatch(sent[3].pop("SPARK_ROW_ID")) and sent[3] == {"own": "1"}


# --- requests to brokers -------------------------------------------------------------------------


def read_topic(namesrv: str, topic: str, count: int, seconds: float = 20.0) -> list[MessageView]:
    """The first messages of a topic, queue by queue in order."""
    found: list[MessageView] = []
    group = f"reader_{uuid.uuid4().hex}"
    with sync.PullConsumer(group, namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer:
        consumer.assign(consumer.queues(topic))
        deadline = time.monotonic() + seconds
        while len(found) < count and time.monotonic() < deadline:
            found += consumer.poll(0.5)
    return sorted(found, key=lambda view: (view.broker_name, view.queue_id, view.queue_offset))


def write(cluster: ThreadCluster, batch: pa.RecordBatch, topic: str, **options: object) -> sink_send.Sent:
    """One task of a batch query, without Spark."""
    given = {"namesrv": cluster.namesrv, "topic": topic} | {k: str(v) for k, v in options.items()}
    roles = {name: index for index, name in enumerate(batch.schema.names)}
    sent = sink.SinkWriter(SinkSettings.read(given), roles, "q").write(iter([batch]))
    assert isinstance(sent, sink_send.Sent)
    return sent


def eventually(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def no_connection_outlives_its_cluster() -> Iterator[None]:
    yield
    for sender in list(sink_send.Sender._shared.values()):
        sender.close()


def test_what_is_written_is_what_consumers_read(shared_cluster: ThreadCluster) -> None:
    rows = 1000
    batch = table(
        body=[b"%d" % n for n in range(rows)],
        key=[f"k{n}" for n in range(rows)],
        tags=["A" if n % 2 else None for n in range(rows)],
        properties=[[("n", str(n))] for n in range(rows)],
    )
    sent = write(shared_cluster, batch, "roundTrip", batchsize=100)
    assert (sent.rows, sent.resent) == (rows, 0) and sent.requests >= 10
    found = sorted(read_topic(shared_cluster.namesrv, "roundTrip", rows), key=lambda view: int(view.body))
    assert [view.body for view in found] == [b"%d" % n for n in range(rows)]
    assert [view.keys for view in found] == [(f"k{n}",) for n in range(rows)]
    assert [view.tags for view in found] == ["A" if n % 2 else None for n in range(rows)]
    assert [view.properties["n"] for view in found] == [str(n) for n in range(rows)]
    ids = {view.get("SPARK_ROW_ID") or "" for view in found}
    assert len(ids) == rows and all(row_id.startswith("q-0-0-") for row_id in ids)


def test_connections_that_no_task_asks_for_are_given_up_and_made_anew(
    shared_cluster: ThreadCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_send, "IDLE_SECONDS", 0.05)
    with sync.Admin(shared_cluster.namesrv) as admin:
        for _ in range(2):
            write(shared_cluster, table(body=[b"x"]), "idle", producergroup="idlers")
            eventually(lambda: not sink_send.Sender._shared)
            eventually(lambda: not admin.groups.producers("idlers", "idle"))


def test_compressed_and_large_and_plain_rows_arrive_alike(shared_cluster: ThreadCluster) -> None:
    bodies = [b"small", b"L" * 100_000, bytes(range(256)) * 6000, b"small too"]
    write(shared_cluster, table(body=bodies, shardingKey=["k"] * 4), "sizes", compression="zstd")
    assert [view.body for view in read_topic(shared_cluster.namesrv, "sizes", 4)] == bodies


def test_properties_as_large_as_they_may_be_are_stored(shared_cluster: ThreadCluster) -> None:
    """A broker adds its own: one that is not asked to look would store a row that nobody can read."""
    fits = table(body=[b"x"], key=["k" * 32_000])
    with pytest.raises(MessageIllegalError) as refused:
        write(shared_cluster, table(body=[b"x"], key=["k" * 32_255]), "wide")
    too_many = int(str(refused.value).split("(")[1].split()[0]) - 32_255
    topic = "w" * 127
    widest = ["k" * (32_255 - too_many)]
    rows = [fits, table(body=[b"x"], key=widest), table(body=[b"x"], key=[widest[0][20:]], delayLevel=[1])]
    for batch in rows:
        write(shared_cluster, batch, topic)
    assert {len(view.keys[0]) for view in read_topic(shared_cluster.namesrv, topic, 3)} == {
        32_000,
        len(widest[0]),
        len(widest[0]) - 20,
    }


def test_rows_of_a_sharding_key_arrive_in_order(shared_cluster: ThreadCluster) -> None:
    batch = table(body=[b"%d" % n for n in range(5000)], shardingKey=[f"s{n % 9}" for n in range(5000)])
    write(shared_cluster, batch, "sharded", batchbytes="4k", sendsinflight=20)
    by_key: dict[str, list[int]] = {}
    queues: dict[str, set[int]] = {}
    for view in read_topic(shared_cluster.namesrv, "sharded", 5000):
        key = view.sharding_key or ""
        by_key.setdefault(key, []).append(int(view.body))
        queues.setdefault(key, set()).add(view.queue_id)
    assert len(by_key) == 9
    for number in range(9):
        assert by_key[f"s{number}"] == list(range(number, 5000, 9))
        assert len(queues[f"s{number}"]) == 1


def test_delayed_rows_are_delivered_later(shared_cluster: ThreadCluster) -> None:
    batch = table(
        body=[b"now", b"level 1", b"in 0.3 s"], delayLevel=[None, 1, None], delayMs=[None, None, 300]
    )
    started = time.monotonic()
    write(shared_cluster, batch, "delays")
    found = read_topic(shared_cluster.namesrv, "delays", 3)
    assert sorted(view.body for view in found) == [b"in 0.3 s", b"level 1", b"now"]
    assert time.monotonic() - started > 0.9


def test_what_the_broker_refuses_is_said_with_rows_queue_cause_and_remedy(cluster: ThreadCluster) -> None:
    batch = table(body=[b"x" * 500] * 3 + [b"y" * (5 << 20)])
    with pytest.raises(SendFailedError) as caught:
        write(cluster, batch, "refused", compressover="off", maxmessagesize="8m", retries=1)
    said = str(caught.value)
    assert re.search(r"row 3 of q-0-0 \(SPARK_ROW_ID q-0-0-\w{24}\) to MessageQueue \[topic=refused", said)
    assert "maxMessageSize" in said


def test_without_broker_the_rows_are_named_and_the_remedy_too(
    cluster: ThreadCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "_GATHERED_ROWS", 1)

    def rows() -> Iterator[pa.RecordBatch]:
        yield table(body=[b"x"])
        cluster.stop_broker()
        yield table(body=[b"x"] * 10)

    options = {"namesrv": cluster.namesrv, "topic": "gone", "sendtimeout": "2s", "retries": "1"}
    with pytest.raises(SendFailedError) as caught:
        sink.SinkWriter(SinkSettings.read(options), {"body": 0}, "q").write(rows())
    said = str(caught.value)
    # The first row may or may not have got through.
    assert re.search(
        r"row(s 1 to 10| 0) of q-0-0 \(SPARK_ROW_ID q-0-0.*\) to MessageQueue \[topic=gone", said
    )
    assert "2 attempt(s)" in said and "reachable" in said
    with pytest.raises(TopicRouteNotFoundError, match="create"):
        write(cluster, table(body=[b"x"]), "neverThere", retries=1)


def test_a_broker_that_comes_back_gets_what_it_missed(cluster: ThreadCluster) -> None:
    write(cluster, table(body=[b"first"]), "restarted")

    def rows() -> Iterator[pa.RecordBatch]:
        yield table(body=[b"second"])
        cluster.restart_broker()
        yield table(body=[b"third"])

    options = {"namesrv": cluster.namesrv, "topic": "restarted", "sendtimeout": "3s"}
    sent = sink.SinkWriter(SinkSettings.read(options), {"body": 0}, "q").write(rows())
    assert isinstance(sent, sink_send.Sent) and sent.rows == 2
    found = {view.body for view in read_topic(cluster.namesrv, "restarted", 3)}
    assert found == {b"first", b"second", b"third"}


# The broker that is killed may have accepted a connection it never came to see.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_rows_bound_to_no_queue_go_to_the_other_broker_when_one_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sink, "_GATHERED_ROWS", 1)  # the first batch leaves before the broker does
    with LocalCluster.in_thread(brokers=2) as cluster:
        batch = table(body=[b"%d" % n for n in range(8)])

        def rows() -> Iterator[pa.RecordBatch]:
            yield batch
            cluster.kill_broker(0)
            yield batch

        options = {"namesrv": cluster.namesrv, "topic": "two", "sendtimeout": "2s", "batchsize": "1"}
        sent = sink.SinkWriter(SinkSettings.read(options), {"body": 0}, "q").write(rows())
        assert isinstance(sent, sink_send.Sent)
        assert sent.rows == 16 and sent.resent > 0
        cluster.start_broker(0)
        found = read_topic(cluster.namesrv, "two", 16)
        numbers = Counter(int(view.body) for view in found)
        assert set(numbers) == set(range(8)) and all(count >= 2 for count in numbers.values())
        # The rows say the same twice, so they are numbered; copies of a row have one id and one queue number.
        places: dict[str, set[int]] = {}
        for view in found:
            places.setdefault(view.get("SPARK_ROW_ID") or "", set()).add(view.queue_id)
        assert len(places) == 16 and all(len(queue_ids) == 1 for queue_ids in places.values())


def test_nobody_reads_the_message_ids_of_a_batch_so_they_are_not_asked_for(scripted: ScriptedCluster) -> None:
    told: list[tuple[str | None, str | None]] = []

    def answer(channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        sent = dict(request.ext_fields or {})
        told.append((sent.get("m"), sent.get("firstMsgIdOnly")))
        return next(iter(scripted.brokers.values())).stored(request)

    for broker in scripted.brokers.values():
        broker.on_send = answer
    options = {"namesrv": scripted.namesrv, "topic": "T", "batchbytes": "1k"}
    batch = table(body=[b"small", b"l" * 2000])
    sink.SinkWriter(SinkSettings.read(options), {"body": 0}, "q").write(iter([batch]))
    assert sorted(told) == [("false", None), ("true", "true")]


def test_a_second_write_of_the_same_rows_lands_in_the_same_queues(shared_cluster: ThreadCluster) -> None:
    batch = table(body=[b"%d" % n for n in range(500)])
    write(shared_cluster, batch, "again", batchsize=20)
    write(shared_cluster, batch, "again", batchsize=20)
    places: dict[str, list[int]] = {}
    for view in read_topic(shared_cluster.namesrv, "again", 1000):
        places.setdefault(view.get("SPARK_ROW_ID") or "", []).append(view.queue_id)
    assert len(places) == 500
    assert all(len(queues) == 2 and queues[0] == queues[1] for queues in places.values())


@pytest.fixture
def scripted() -> Iterator[ScriptedCluster]:
    """Brokers that do what a test says, on the loop that the sink uses."""
    cluster = ScriptedCluster("a", "b")
    loop_thread().run(cluster.__aenter__())
    cluster.add_topic("T", write=2)
    yield cluster
    for sender in list(sink_send.Sender._shared.values()):
        sender.close()
    loop_thread().run(cluster.__aexit__())


@pytest.mark.parametrize("failure", ["refused", "hung up"])
def test_rows_of_a_sharding_key_keep_their_order_when_a_request_is_sent_again(
    scripted: ScriptedCluster, failure: str
) -> None:
    stored: list[int] = []
    failed: list[RemotingCommand] = []

    def answer(channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        if not failed:
            failed.append(request)
            if failure == "refused":
                return request.reply(2, "busy")
            channel.abort()
            return None
        stored.extend(int(item.body) for item in split_batch(bytes(request.body)))
        return next(iter(scripted.brokers.values())).stored(request)

    for broker in scripted.brokers.values():
        broker.on_send = answer
    options = {"namesrv": scripted.namesrv, "topic": "T", "batchsize": "10", "sendsinflight": "6"}
    batch = table(body=[b"%d" % n for n in range(60)], shardingKey=["one"] * 60)
    writer = sink.SinkWriter(SinkSettings.read(options), {"body": 0, "shardingKey": 1}, "q")
    sent = writer.write(iter([batch]))
    assert isinstance(sent, sink_send.Sent) and (sent.rows, sent.resent) == (60, 1)
    assert stored == list(range(60))


def test_nothing_overtakes_rows_of_a_sharding_key_that_could_not_be_sent(scripted: ScriptedCluster) -> None:
    stored: list[int] = []
    all_given = threading.Event()

    async def answer(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        numbers = [int(item.body) for item in split_batch(bytes(request.body))]
        await asyncio.to_thread(all_given.wait, 20)
        if 20 in numbers:
            return request.reply(13, "no")
        stored.extend(numbers)
        return next(iter(scripted.brokers.values())).stored(request)

    for broker in scripted.brokers.values():
        broker.on_send = answer
    options = {"namesrv": scripted.namesrv, "topic": "T", "batchsize": "10", "sendsinflight": "6"}
    batch = table(body=[b"%d" % n for n in range(60)], shardingKey=["one"] * 60)

    def rows() -> Iterator[pa.RecordBatch]:
        yield batch
        all_given.set()  # all requests wait for their turn

    with pytest.raises(SendFailedError, match="rows 20 to 29"):
        sink.SinkWriter(SinkSettings.read(options), {"body": 0, "shardingKey": 1}, "q").write(rows())
    assert stored == list(range(20))


def test_a_failure_in_the_moment_a_request_gets_its_turn_leaves_nobody_waiting(
    scripted: ScriptedCluster,
) -> None:
    (request,) = encode(table(body=[b"late"]))
    sender = sink_send.Sender(SinkSettings.read({"namesrv": scripted.namesrv, "topic": "T"}))
    encoder = sink_encode.RowEncoder(
        sender.settings, {"body": 0}, task="q-0-0", queues=lambda _: [], unique_id=str
    )
    flight = sink_send.Flight(sender, encoder)

    class FailsMeanwhile(threading.Condition):
        def __exit__(self, *error: Any) -> None:
            super().__exit__(*error)
            flight._failure = flight._failure or (request, SendFailedError("T", []))

    flight._changed = FailsMeanwhile()
    with contextlib.suppress(SendFailedError):
        flight.put(request)
    flight.wait()
    with pytest.raises(SendFailedError):
        flight.check()
    assert flight.sent.rows == 0


def test_small_requests_that_wait_do_not_keep_all_that_was_made_with_them(scripted: ScriptedCluster) -> None:
    """One of 150 bytes keeps the memory of the 8 MB that it lies in, and a slow queue has one of each slice."""
    waiting: list[int] = []
    enough = threading.Event()

    async def answer(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        if len(request.body) < 10_000:
            waiting.append(len(request.body))
            await asyncio.to_thread(enough.wait, 20)
        return next(iter(scripted.brokers.values())).stored(request)

    for broker in scripted.brokers.values():
        broker.on_send = answer
    options = {"namesrv": scripted.namesrv, "topic": "T", "sendsinflight": "100", "compressover": "off"}
    sender = sink_send.Sender(SinkSettings.read(options))
    sender._started = sender._thread.run(sender._start())
    flight = sink_send.Flight(sender, encoder_of(table(body=[b""])))
    batch = table(body=[b"s", b"l" * (1 << 20), b"l" * (1 << 20)], queueId=[0, 1, 1])
    roles = {"body": 0, "queueId": 1}
    encoder = RowEncoder(sender.settings, roles, task="q-0-0", queues=sender.queues, unique_id=str)
    held: list[int] = []

    class Watched(threading.Condition):
        def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> Any:
            if not predicate():
                held.append(flight._held)
            return super().wait_for(predicate, timeout)

    flight._changed = Watched()

    def fill() -> None:
        for _ in range(50):
            for request in encoder.encode(batch):
                flight.put(request)

    filling = threading.Thread(target=fill)
    filling.start()
    eventually(lambda: held)
    assert sink_send.HELD_BYTES - (5 << 20) < held[0] <= sink_send.HELD_BYTES
    enough.set()
    filling.join()
    flight.wait()
    flight.check()
    sender.close()
    assert flight.sent.rows == 150 and flight._held == 0 and not flight._holders


def test_after_a_lost_answer_free_rows_go_to_the_queue_of_the_same_number(scripted: ScriptedCluster) -> None:
    places: dict[str, set[tuple[str, str]]] = {}

    def script(name: str) -> Callable[[Channel, RemotingCommand], RemotingCommand | None]:
        def answer(channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
            queue_id = dict(request.ext_fields or {})["e"]
            for item in split_batch(bytes(request.body)):
                row_id = parse(item.properties.decode())["SPARK_ROW_ID"]
                places.setdefault(row_id, set()).add((name, queue_id))
            if name == "a":
                channel.abort()
                return None
            return scripted.brokers[name].stored(request)

        return answer

    for name, broker in scripted.brokers.items():
        broker.on_send = script(name)
    options = {"namesrv": scripted.namesrv, "topic": "T"}
    batch = table(body=[b"%d" % n for n in range(100)])
    sent = sink.SinkWriter(SinkSettings.read(options), {"body": 0}, "q").write(iter([batch]))
    assert isinstance(sent, sink_send.Sent) and sent.rows == 100
    assert len(places) == 100
    moved = [found for found in places.values() if len(found) == 2]
    assert moved and all({name for name, _ in found} == {"a", "b"} for found in moved)
    assert all(len({queue_id for _, queue_id in found}) == 1 for found in places.values())


def test_a_sender_that_leaves_and_one_that_starts_do_not_wait_for_each_other(
    shared_cluster: ThreadCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving, coming = (
        SinkSettings.read({"namesrv": shared_cluster.namesrv, "topic": topic}) for topic in ("A", "B")
    )
    with sink_send.Sender.lent(leaving) as sender:
        pass
    start = sink_send.Sender._start

    async def slowly(self: sink_send.Sender) -> Producer:
        sender._leave()  # on the loop, while the task waits for the loop
        return await start(self)

    monkeypatch.setattr(sink_send.Sender, "_start", slowly)
    lent: list[sink_send.Sender] = []

    def task() -> None:
        with sink_send.Sender.lent(coming) as found:
            lent.append(found)

    thread = threading.Thread(target=task, daemon=True)
    thread.start()
    thread.join(20)
    assert lent, "both wait for each other"
    assert leaving not in sink_send.Sender._shared


def test_a_sender_that_could_not_start_is_tried_again_by_the_next_task(
    shared_cluster: ThreadCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = SinkSettings.read({"namesrv": shared_cluster.namesrv, "topic": "A"})
    start = sink_send.Sender._start

    async def fails(self: sink_send.Sender) -> Producer:
        monkeypatch.setattr(sink_send.Sender, "_start", start)
        raise StateError("not now")

    monkeypatch.setattr(sink_send.Sender, "_start", fails)
    with pytest.raises(StateError), sink_send.Sender.lent(chosen):
        pass
    with sink_send.Sender.lent(chosen) as found:
        assert found.queues("A")


# --- under Spark ---------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_table_becomes_a_topic(spark: SparkSession, shared_cluster: ThreadCluster) -> None:
    rows = spark.range(0, 20_000, 1, 4).selectExpr(
        "cast(id as string) as value",
        "concat('k', id) as key",
        "if(id % 2 = 0, 'even', 'odd') as tags",
        "map('n', cast(id as string)) as properties",
    )
    written = rows.write.format("rocketmq").mode("append")
    written.option("namesrv", shared_cluster.namesrv).option("topic", "sparkTable").save()
    found = read_topic(shared_cluster.namesrv, "sparkTable", 20_000)
    assert sorted(int(view.body) for view in found) == list(range(20_000))
    for view in found[:100]:
        number = view.body.decode()
        assert view.keys == ("k" + number,)
        assert view.tags == ("odd" if int(number) % 2 else "even")
        assert view.properties["n"] == number
    ids = [(view.get("SPARK_ROW_ID") or "").split("-") for view in found]
    assert all(re.fullmatch("t[0-9a-f]+r[0-9a-f]{16}", row_id[0]) for row_id in ids)
    assert len({row_id[0] for row_id in ids}) == 1, "one query has one id"
    assert {(row_id[1], row_id[2]) for row_id in ids} == {("0", str(n)) for n in range(4)}
    assert len({tuple(row_id) for row_id in ids}) == 20_000


@pytest.mark.spark
def test_a_topic_that_was_read_can_be_written_to_another(
    spark: SparkSession, shared_cluster: ThreadCluster
) -> None:
    write(
        shared_cluster, table(body=[b"%d" % n for n in range(50)], key=[f"k{n}" for n in range(50)]), "from"
    )
    rows = spark.read.format("rocketmq").options(namesrv=shared_cluster.namesrv, includeProperties="true")
    (
        rows.load("from")
        .drop("topic")
        .write.format("rocketmq")
        .mode("append")
        .options(namesrv=shared_cluster.namesrv, topic="to", reservedProperties="drop")
        .save()
    )
    found = read_topic(shared_cluster.namesrv, "to", 50)
    assert sorted((int(view.body), view.keys) for view in found) == [(n, (f"k{n}",)) for n in range(50)]


@pytest.mark.spark
def test_a_query_with_wrong_options_or_rows_fails_and_says_why(
    spark: SparkSession, shared_cluster: ThreadCluster
) -> None:
    rows = spark.createDataFrame([("a", "x"), ("b", None)], "key string, body string").coalesce(1)
    writing: Callable[..., Any] = lambda **options: (  # noqa: E731
        rows.write.format("rocketmq").mode("append").options(namesrv=shared_cluster.namesrv, **options).save()
    )
    with pytest.raises(Exception, match="did you mean topic"):
        writing(topik="T")
    with pytest.raises(Exception, match=r"row 1 of .*null or empty"):
        writing(topic="badRows")
    with pytest.raises(Exception, match="append"):
        rows.write.format("rocketmq").mode("overwrite").options(
            namesrv=shared_cluster.namesrv, topic="T"
        ).save()


@pytest.mark.spark
def test_a_replayed_batch_brings_the_same_ids_to_the_same_queues(
    spark: SparkSession, shared_cluster: ThreadCluster, tmp_path: Path, checkpoint: str
) -> None:
    source = tmp_path / "in"
    source.mkdir()

    def run(topic: str) -> None:
        stream = spark.readStream.schema("n bigint").option("maxFilesPerTrigger", 1).json(str(source))
        query = (
            stream.selectExpr("cast(n as string) as body")
            .writeStream.format("rocketmq")
            .option("namesrv", shared_cluster.namesrv)
            .option("topic", topic)
            .option("batchSize", 10)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)
        assert query.exception() is None

    def put(name: str, numbers: range) -> None:
        (source / f"{name}.json").write_text("".join(f'{{"n": {n}}}\n' for n in numbers))

    put("a", range(100))
    run("replayed")
    put("b", range(100, 200))
    run("replayed")
    # As after a crash between the batch and its commit: Spark runs batch 1 once more.
    for entry in (Path(checkpoint) / "commits").iterdir():
        if entry.name.strip(".").startswith("1"):
            entry.unlink()
    run("replayed")
    places: dict[str, list[tuple[int, bytes]]] = {}
    for view in read_topic(shared_cluster.namesrv, "replayed", 300):
        places.setdefault(view.get("SPARK_ROW_ID") or "", []).append((view.queue_id, view.body))
    assert len(places) == 200
    again = [found for row_id, found in places.items() if row_id.split("-")[-3] == "1"]
    assert len(again) == 100
    assert all(len(found) == 2 and found[0] == found[1] for found in again)
    assert len({row_id.rsplit("-", 3)[0] for row_id in places}) == 1, "the query keeps its id"
    source_rows = spark.read.format("rocketmq").option("namesrv", shared_cluster.namesrv)
    assert source_rows.load("replayed").count() == 300
    seen = source_rows.option("dropDuplicates", "true").load("replayed").select("body").collect()
    assert sorted(int(bytes(row["body"])) for row in seen) == list(range(200))
