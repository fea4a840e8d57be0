from __future__ import annotations

import json
import tarfile
import tracemalloc
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gimbalmq.errors import CorruptRecordError
from gimbalmq.model.compression import Compression, compress
from gimbalmq.model.message import MessageView, decode_views
from gimbalmq.model.record import MAGIC_BLANK, decode_properties, encode_properties, encode_record
from gimbalmq.spark.columns import DEFAULT, ROW_ID_PROPERTY, TYPES, arrow_schema
from gimbalmq.spark.decode import decode, find_record_start, record_starts
from gimbalmq.spark.decode import properties as property_columns
from gimbalmq.spark.decode import rows as row_columns
from gimbalmq.spark.decode import slowly as slow

GOLDEN = Path(__file__).parent.parent / "golden"
ANSWERS = json.loads((GOLDEN / "records.json").read_text())["answers"]
ALL = list(TYPES)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNIQUE = "7F000001000018B4AAC2000000000000"


def record(
    offset: int = 0, *, body: bytes = b"body", properties: dict[str, str] | bytes = b"", **more: Any
) -> bytes:
    if isinstance(properties, dict):
        properties = encode_properties(properties)
    fields: dict[str, Any] = {"topic": "orders", "born_timestamp": 1000, "store_timestamp": 2000} | more
    return encode_record(queue_offset=offset, body=body, properties=properties, **fields)


def ordinary(count: int, **more: Any) -> list[bytes]:
    return [
        record(
            number,
            body=b"%d" % number,
            properties={"KEYS": f"k{number}", "UNIQ_KEY": f"{number:032X}", "WAIT": "true", "TAGS": "red"},
            **more,
        )
        for number in range(count)
    ]


def commit_log(bodies: Sequence[bytes], base: int = 0) -> bytes:
    """Records that say where they lie."""
    log = b""
    for offset, body in enumerate(bodies):
        log += record(offset, body=body, commitlog_offset=base + len(log))
    return log


def blank(size: int, written: int | None = None) -> bytes:
    mark = size.to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big")
    return mark + b"\0" * ((size if written is None else written) - 8)


def rows(data: bytes, names: Sequence[str] = ALL, **options: Any) -> list[dict[str, Any]]:
    """What decode gives, after the slow path gave the same."""
    both = [outcome(data, names, slowly, **options) for slowly in (False, True)]
    assert both[0] == both[1]
    assert not isinstance(both[0], str), both[0]
    found: list[dict[str, Any]] = both[0].to_pylist()
    return found


def outcome(data: Any, names: Sequence[str], slowly: bool, **options: Any) -> Any:
    """A batch, or what the error says."""
    try:
        if not slowly:
            batch = decode(data, names, broker="broker-a", **options)
        else:
            how = {name: options.pop(name) for name in ("on_error", "check_crc", "base") if name in options}
            chosen = slow.Selection(**options)
            batch = slow.decode_slowly(data, names, broker="broker-a", selection=chosen, **how)
    except CorruptRecordError as error:
        return str(error)
    batch.validate(full=True)
    assert batch.schema.equals(arrow_schema(names))
    return batch


def as_view_says(view: MessageView) -> dict[str, Any]:
    def time(milliseconds: int) -> datetime:
        return EPOCH + timedelta(milliseconds=milliseconds)

    return {
        "topic": view.topic,
        "broker": "broker-a",
        "queueId": view.queue_id,
        "offset": view.queue_offset,
        "key": view.get("KEYS"),
        "tags": view.tags,
        "body": view.body,
        "bornTimestamp": time(view.born_timestamp),
        "storeTimestamp": time(view.store_timestamp),
        "msgId": view.msg_id,
        "reconsumeTimes": view.reconsume_times,
        "flag": view.flag,
        "rowId": view.get(ROW_ID_PROPERTY),
        "properties": list(view.all_properties.items()),
        "decodeError": None,
    }


# --- records from Java ---------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("times", [1, 100])
def test_what_apache_sent_comes_out_as_message_views_have_it(answer: dict[str, Any], times: int) -> None:
    data = bytes.fromhex(answer["body"]) * times
    found = rows(data, check_crc=True)
    assert len(found) == answer["records"] * times
    assert found == [as_view_says(view) for view in decode_views(data)]


@pytest.mark.parametrize("version", ["4_9_7", "5_5_0"])
def test_commit_logs_of_apache_hold_what_its_client_received(version: str) -> None:
    told = json.loads((GOLDEN / f"store_{version}.json").read_text())
    found = []
    with tarfile.open(GOLDEN / f"store_{version}.tar.xz") as archive:
        for name in sorted(name for name in archive.getnames() if name.startswith("commitlog/")):
            member = archive.extractfile(name)
            assert member is not None
            data, base = member.read(), int(name.split("/")[1])
            found += rows(data, base=base, check_crc=True, skip_unborn=True)
            whole = record_starts(data, base=base)
            assert whole.rest in ("nothing", "unwritten")
            assert decode(data, ALL, broker="b", base=base).num_rows == whole.starts.size
    by_place = {(row["topic"], row["queueId"], row["offset"]): row for row in found}
    assert len(by_place) == len(found) > len(told["received"]) > 200
    for message in told["received"]:
        row = by_place[message["topic"], message["queue_id"], message["queue_offset"]]
        assert (row["key"], row["tags"]) == (message["keys"], message["tags"])
        assert row["msgId"] == message["properties"].get("UNIQ_KEY", message["offset_id"])
        assert row["bornTimestamp"] == EPOCH + timedelta(milliseconds=message["born_timestamp"])
        assert row["storeTimestamp"] == EPOCH + timedelta(milliseconds=message["store_timestamp"])
        assert row["reconsumeTimes"] == message["reconsume_times"]
        assert row["body"].decode() == message["body"]
        assert message["properties"].items() >= dict(row["properties"]).items() - {("WAIT", "true")}


# --- any records, whole and damaged: both paths agree --------------------------------------------

property_bytes = st.one_of(
    st.fixed_dictionaries(
        {"KEYS": st.text("abc", min_size=1, max_size=5), "UNIQ_KEY": st.just(UNIQUE), "WAIT": st.just("true")},
        optional={"TAGS": st.sampled_from(["red", "blue"]), ROW_ID_PROPERTY: st.just("q-1-2-3"), "名": st.just("值")},
    ).flatmap(lambda items: st.booleans().map(lambda end: encode_properties(items, trailing=end))),
    st.just(b""),
    st.lists(
        st.sampled_from([b"\1", b"\2", b"\0", b"KEYS", b"TAGS", b"TAGS\1x\2", b"UNIQ_KEY\1", b"\xe4", b"\xff", b"v"]),
        max_size=9,
    ).map(b"".join),
)  # fmt: skip


@st.composite
def recipes(draw: st.DrawFn) -> dict[str, Any]:
    """One record's fields, its place left open."""
    body = draw(st.one_of(st.binary(max_size=40), st.just(b"\xda\xa3\x20\xa7" * 3), st.just(record(5))))
    flag = draw(st.sampled_from([0, 0, 0, 4, 8, 12]))
    if draw(st.integers(0, 5)) == 0:
        method = draw(st.sampled_from(list(Compression)))
        body = compress(body, method)[: draw(st.sampled_from([None, None, -1]))]
        flag |= 1 | method
    return {
        "topic": draw(st.sampled_from(["orders", "orders", "bills", "t" * 200, "é"])),
        "body": body,
        "properties": draw(property_bytes),
        "queue_id": draw(st.integers(0, 3)),
        "queue_offset": draw(st.integers(0, 50)),
        "sys_flag": flag,
        "born_timestamp": draw(st.sampled_from([1000, -1, 2**62])),
        "store_timestamp": draw(st.integers(0, 99)),
        "born_host": draw(st.sampled_from([("10.0.0.1", 5), ("10.0.0.1", 5), ("::1", 5)])),
        "store_host": draw(st.sampled_from([("10.0.0.1", 5), ("10.0.0.1", 5), ("fe80::1", 5)])),
    }


damages = st.one_of(
    st.tuples(st.just("flip"), st.floats(0, 1), st.integers(1, 255)),
    st.tuples(st.just("cut"), st.floats(0, 1), st.integers(1, 120)),
    st.tuples(st.just("end"), st.floats(0, 1), st.just(0)),
    st.tuples(st.just("zeros"), st.just(0.0), st.integers(1, 200)),
    st.tuples(st.just("blank"), st.just(0.0), st.sampled_from([8, 40, 200])),
)


@st.composite
def buffers(draw: st.DrawFn) -> tuple[bytes, int | None]:
    """Few records or many, alike or mixed, sound or not; and the base of a commit log or None."""
    base = draw(st.sampled_from([None, 0, 4096]))
    made = draw(st.lists(recipes(), min_size=1, max_size=5)) * draw(st.sampled_from([1, 1, 40]))
    plain = draw(st.sampled_from([0, 0, 100]))
    data = bytearray()
    for number in range(plain):
        data += record(
            number, properties={"KEYS": f"k{number}", "TAGS": "red"}, commitlog_offset=(base or 0) + len(data)
        )
    for recipe in made:
        data += encode_record(**recipe, commitlog_offset=(base or 0) + len(data))
    for kind, where, much in draw(st.lists(damages, max_size=4)):
        at = int(where * (len(data) - 1)) if data else 0
        if kind == "flip" and data:
            data[at] ^= much
        elif kind == "cut":
            del data[at : at + much]
        elif kind == "end":
            del data[at:]
        else:
            data += bytes(much) if kind == "zeros" else blank(much)
    return bytes(data), base  # fmt: skip


selections = st.fixed_dictionaries(
    {},
    optional={
        "low": st.integers(0, 50),
        "high": st.integers(0, 60),
        "topics": st.frozensets(st.sampled_from(["orders", "bills", "é", "\ufffd"])),
        "tags": st.frozensets(st.sampled_from(["red", "x"])),
        "store_low_ms": st.integers(0, 50),
        "store_high_ms": st.integers(50, 100),
        "born_low_ms": st.just(0),
        "born_high_ms": st.just(2**61),
        "skip_unborn": st.booleans(),
        "check_crc": st.booleans(),
    },
)


@settings(max_examples=150, deadline=None)
@given(
    buffers(),
    st.permutations(ALL),
    st.integers(1, len(ALL)),
    selections,
    st.sampled_from(["fail", "skip", "keep"]),
)
def test_both_paths_agree_on_any_bytes(
    buffer: tuple[bytes, int | None], names: list[str], count: int, chosen: dict[str, Any], on_error: str
) -> None:
    data, base = buffer
    options = {**chosen, "on_error": on_error, "base": base}
    expected = outcome(data, names[:count], True, **options)
    for kind in (bytes, bytearray, memoryview):
        assert outcome(kind(data), names[:count], False, **options) == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(recipes(), min_size=1, max_size=6), st.sampled_from([1, 30]))
def test_every_row_is_what_message_view_gives(made: list[dict[str, Any]], times: int) -> None:
    sound = [one | {"born_timestamp": 1000} for one in made]
    data = b"".join(encode_record(**one) for one in sound) * times
    found = rows(data, on_error="keep")
    for row, view in zip(found, decode_views(data), strict=True):
        if row["decodeError"] is None:
            assert row == as_view_says(view)


@settings(max_examples=80, deadline=None)
@given(buffers())
def test_record_starts_are_those_of_the_slow_walk(buffer: tuple[bytes, int | None]) -> None:
    data, base = buffer
    found = record_starts(data, base=base)
    expected = []
    for frame in slow.frames(data, base=base):
        if frame.fault is not None:
            assert found.end == frame.start and found.rest in ("partial", "damaged")
            break
        expected.append(frame.start)
    else:
        assert found.rest in ("nothing", "unwritten")
    assert found.starts.tolist() == expected
    whole = decode(data, ALL, broker="b", base=base, starts=found, on_error="keep")
    assert whole == decode(data[: found.end], ALL, broker="b", base=base, on_error="keep")


# --- columns -------------------------------------------------------------------------------------


def test_columns_come_in_the_order_asked_for_and_no_others() -> None:
    data = b"".join(ordinary(3))
    assert rows(data, ["body", "offset"]) == [{"body": b"%d" % n, "offset": n} for n in range(3)]
    assert decode(data, DEFAULT, broker="b").schema.names == list(DEFAULT)
    with pytest.raises(ValueError, match="no such column: bdoy"):
        decode(data, ["bdoy"], broker="b")


@pytest.mark.parametrize("data", [b"", blank(8), blank(500, 8), bytes(100)])
def test_nothing_in_gives_an_empty_batch_of_the_right_schema(data: bytes) -> None:
    assert rows(data) == []
    assert rows(data, ["body"], tags=frozenset({"a"}), topics=frozenset({"b"})) == []


@pytest.mark.parametrize("count", [1, 200])
def test_what_a_record_lacks_is_null(count: int) -> None:
    for properties in (b"", b"\2", b"a\1b", b"KEYS\1\2TAGS\1\2UNIQ_KEY\1\2"):
        for row in rows(record(body=b"", properties=properties, commitlog_offset=0x3039) * count):
            assert (row["key"], row["tags"], row["rowId"], row["decodeError"]) == (None,) * 4
            assert row["msgId"] == "7F00000100002A9F0000000000003039"
            assert row["body"] == b""
            assert dict(row["properties"]) == decode_properties(properties)


def test_an_id_made_from_an_ipv6_place() -> None:
    made = [record(n, commitlog_offset=n, store_host=("fe80::1", 10911)) for n in range(3)]
    plain = [record(n, commitlog_offset=n, born_host=("fe80::1", 1)) for n in range(3)]
    found = [row["msgId"] for row in rows(b"".join(made + plain))]
    assert found[2] == "FE80000000000000000000000000000100002A9F0000000000000002"
    assert found[5] == "7F00000100002A9F0000000000000002"


def test_rows_of_the_sink_carry_their_id() -> None:
    data = b"".join(record(n, properties={"KEYS": "k", ROW_ID_PROPERTY: f"q-0-1-{n}"}) for n in range(120))
    assert [row["rowId"] for row in rows(data, ["rowId"])] == [f"q-0-1-{n}" for n in range(120)]


@pytest.mark.parametrize(
    "odd",
    [
        b"KEYS\1a\1b\2TAGS\1t\2",
        b"KEYS\1first\2KEYS\1second\2TAGS\1t\2",
        b"KEYS\1\2KEYS\1second\2",
        b"xKEYS\1no\2TAGSx\1no\2",
        b"\1KEYS\1no\2\2\2TAGS\1t",
        b"KEYS\1\xff\xfe\2TAGS\1\xe4\xbd\2\xff\1a\2\xfe\1b\2",
        b"KEYS\1k\0k\2TAGS\1t\2",
        b"KEYS\1\xed\xa0\x80\2",
        b"KEYS",
        "KEYS\1钥匙\2TAGS\1标\2".encode(),
    ],
)
def test_odd_properties_are_read_as_message_view_reads_them(odd: bytes) -> None:
    records = ordinary(200)
    records[77] = record(77, properties=odd)
    data = b"".join(records)
    assert rows(data) == [as_view_says(view) for view in decode_views(data)]
    assert rows(records[77] * 3) == [as_view_says(view) for view in decode_views(records[77] * 3)]


def test_two_values_of_changing_length_and_other_orders() -> None:
    names = [
        "KEYS",
        "TAGS",
        "UNIQ_KEY",
        "city",
        "a much longer name of a property",
        "a much longer name of another",
    ]
    records = []
    for number in range(300):
        turned = names[number % 3 :] + names[: number % 3]
        records.append(
            record(number, properties={name: "v" * (1 + number % (3 + at)) for at, name in enumerate(turned)})
        )
    data = b"".join(records)
    assert rows(data) == [as_view_says(view) for view in decode_views(data)]  # fmt: skip


def test_a_value_that_differs_where_nobody_sampled_is_still_seen() -> None:
    records = ordinary(200)
    records[31] = records[31].replace(b"WAIT\1true", b"WAIT\1fals")
    records[32] = records[32].replace(b"TAGS\1red", b"TAGS\1\2ed")
    records[33] = records[33].replace(b"WAIT\1true", b"WIAT\1true")
    data = b"".join(records)
    assert rows(data) == [as_view_says(view) for view in decode_views(data)]


def test_what_came_before_does_not_show_in_what_comes() -> None:
    """Properties are first compared with what the last buffer's were all like."""

    def all_with(count: int, **properties: str) -> bytes:
        more = [{"number": f"{number:03}"} for number in range(count)]
        return b"".join(record(properties=properties | each) for each in more)

    buffers = [
        all_with(100, KEYS="a", TAGS="red"),
        all_with(100, KEYS="b", TAGS="red"),  # another value, but of the same length
        all_with(100, KEYS="a", TAGS="blue"),
        all_with(100, TAGS="red", KEYS="a"),
        all_with(100, KEYS="a", TAGS="red", more="x" * 2000),
        all_with(1, TAGS="t"),  # shorter than what the last ones had in common
        b"".join(ordinary(100)),
        b"".join(ordinary(3)) + record(properties=b""),
    ]
    for first in buffers:
        for second in buffers:
            decode(first, ALL, broker="broker-a")
            assert rows(second) == [as_view_says(view) for view in decode_views(second)]


@pytest.mark.parametrize("before", [True, False], ids=["of the last buffer", "among them"])
def test_a_long_property_of_others_takes_no_memory_for_each_record(before: bool) -> None:
    long = [record(properties={"KEYS": "x" * 30_000})]
    data = b"".join(record(number) for number in range(3000))
    if before:
        decode(b"".join(long * 3), ALL, broker="broker-a")
    else:
        data += long[0]
    tracemalloc.start()
    try:
        found = decode(data, ["key"], broker="broker-a")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.num_rows - found.column(0).null_count == (0 if before else 1)
    assert most < 10 * len(data)


@pytest.mark.parametrize(
    "topics",
    [
        ["orders"] * 40,
        ["orders", "others"] * 20,
        ["orders", "order"] * 20,
        ["order", "orders"] * 20,
        ["T" * 127] * 40,
        ["T" * 127] * 39 + ["short"],
    ],
)
@pytest.mark.parametrize("same", [True, False])
def test_records_of_one_topic_and_of_several(topics: list[str], same: bool) -> None:
    records = [
        record(number, topic=topic, properties={"KEYS": "k" * (5 if same else number + 1)})
        for number, topic in enumerate(topics)
    ]
    data = b"".join(records)
    assert rows(data) == [as_view_says(view) for view in decode_views(data)]
    wrong = bytearray(data)
    wrong[-3 - len(encode_properties({"KEYS": "k" * (5 if same else len(topics))}))] ^= (
        1  # the topic's last letter
    )
    assert [row["topic"] for row in rows(bytes(wrong))][:-1] == topics[:-1]


@pytest.mark.parametrize("size", [0, 8, 10, -1])
def test_a_length_of_properties_that_does_not_lead_to_the_end(size: int) -> None:
    records = [record(number, properties={"KEYS": "abc"}) for number in range(40)]
    at = len(records[0]) - len(encode_properties({"KEYS": "abc"})) - 2
    data = changed(records, 7, at, size.to_bytes(2, "big", signed=True))
    found = rows(data, on_error="keep")
    assert [row["offset"] for row in found if row["decodeError"] is not None] == [7]
    assert [row["offset"] for row in rows(data, on_error="skip")] == [*range(7), *range(8, 40)]


def test_a_value_that_is_no_text_among_values_that_are() -> None:
    records = [record(number, properties={"KEYS": f"{number:04}"}) for number in range(60)]
    records[20] = records[20].replace(b"0020", b"\xff020")
    records[21] = records[21].replace(b"0021", "ü21".encode())
    found = rows(b"".join(records), ["key"])
    assert [row["key"] for row in found[19:23]] == ["0019", "\ufffd020", "ü21", "0022"]


def test_ids_by_place_on_both_sides_of_four_gigabytes() -> None:
    places = [(1 << 32) - 200, (1 << 32) - 100, 1 << 32, 5 << 32]
    data = b"".join(record(commitlog_offset=place) for place in places)
    assert [row["msgId"][16:] for row in rows(data)] == [f"{place:016X}" for place in places]


@pytest.mark.parametrize("method", list(Compression))
def test_compressed_bodies_are_unpacked(method: Compression) -> None:
    records = ordinary(150)
    records[70] = record(70, body=compress(b"long" * 500, method), sys_flag=1 | method)
    found = rows(b"".join(records), ["offset", "body"])
    assert found[70] == {"offset": 70, "body": b"long" * 500}
    assert found[71] == {"offset": 71, "body": b"71"}


def test_only_what_is_odd_is_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    records = ordinary(500)
    records[8] = record(8, properties=b"KEYS\1a\1b\2")
    records[9] = record(9, body=compress(b"x"), sys_flag=1)
    asked = []

    def counted(place: ModuleType, name: str) -> None:
        real = getattr(place, name)

        def call(*given: Any) -> Any:
            asked.append(name)
            return real(*given)

        monkeypatch.setattr(place, name, call)

    counted(property_columns, "find_property")
    counted(property_columns, "decode_properties")
    counted(row_columns, "decompress")
    counted(row_columns, "read_frame")
    assert decode(b"".join(records), ALL, broker="b").num_rows == 500
    # key, tags, msgId and rowId of the one, its table; the body of the other
    assert asked.count("find_property") == 4
    assert asked.count("decode_properties") == 1
    assert asked.count("decompress") == 1
    assert "read_frame" not in asked


def test_times_beyond_microseconds_are_null() -> None:
    edge = (2**63 - 1) // 1000
    times = [edge, edge + 1, -edge, -edge - 1, 2**63 - 1, -(2**63)]
    data = b"".join(record(born_timestamp=time, store_timestamp=5) for time in times)
    born = decode(data, ["bornTimestamp"], broker="b").column(0).cast(pa.int64()).to_pylist()
    assert born == [edge * 1000, None, -edge * 1000, None, None, None]


def test_the_batch_lives_without_the_bytes_it_came_from() -> None:
    data = bytearray(b"".join(ordinary(100)))
    batch = decode(data, ALL, broker="b")
    before = batch.to_pylist()
    data[:] = bytes(len(data))
    data.clear()  # refused while anything refers to it
    assert batch.to_pylist() == before


# --- which rows ----------------------------------------------------------------------------------


def test_offsets_are_kept_from_low_to_below_high() -> None:
    data = b"".join(ordinary(100))
    assert [row["offset"] for row in rows(data, low=10, high=13)] == [10, 11, 12]
    assert [row["offset"] for row in rows(data, low=98)] == [98, 99]
    assert rows(data, low=100) == []


def test_times_topics_and_tags_choose_exactly() -> None:
    data = b"".join(
        record(
            n,
            topic="orders" if n % 2 else "bills",
            properties={"TAGS": "Aa" if n % 3 else "BB"} if n % 5 else {},  # equal hashes
            store_timestamp=n,
            born_timestamp=-n,
        )
        for n in range(100)
    )

    def offsets(**options: Any) -> list[int]:
        return [row["offset"] for row in rows(data, ["offset"], **options)]

    assert offsets(topics=frozenset({"bills"})) == list(range(0, 100, 2))
    assert offsets(topics=frozenset({"other"})) == []
    assert offsets(tags=frozenset({"BB"})) == [n for n in range(100) if n % 5 and not n % 3]
    assert offsets(tags=frozenset({"BB", "Aa"}), topics=frozenset({"bills"}), low=90) == [92, 94, 96, 98]
    assert offsets(store_low_ms=20, store_high_ms=22) == [20, 21]
    assert offsets(born_low_ms=-21, born_high_ms=-19) == [20, 21]


def test_messages_that_were_never_born_can_be_left_out() -> None:
    flags = [0, 4, 8, 12]
    data = b"".join(record(n, sys_flag=flag) for n, flag in enumerate(flags))
    assert [row["offset"] for row in rows(data, skip_unborn=True)] == [0, 2]
    assert len(rows(data)) == 4


# --- damage --------------------------------------------------------------------------------------


def changed(records: list[bytes], which: int, at: int, new: bytes) -> bytes:
    one = bytearray(records[which])
    one[at : at + len(new)] = new
    return b"".join([*records[:which], bytes(one), *records[which + 1 :]])


@pytest.mark.parametrize(
    ("at", "new"), [(4, b"\0"), (87, b"\x09"), (84, b"\xff")], ids=["magic", "body", "negative"]
)
def test_one_damaged_record_costs_only_itself(at: int, new: bytes) -> None:
    records = ordinary(100)
    data = changed(records, 50, at, new)
    assert [row["offset"] for row in rows(data, on_error="skip")] == [*range(50), *range(51, 100)]
    kept = rows(data, on_error="keep")
    assert len(kept) == 100 and kept[50]["offset"] == 50 and kept[50]["queueId"] == 0
    assert kept[50]["decodeError"] and not any(row["decodeError"] for row in kept[:50] + kept[51:])
    with pytest.raises(CorruptRecordError, match=r"broker-a.*queue 0, offset 50.*onDecodeError") as caught:
        decode(data, ["offset"], broker="broker-a")
    assert caught.value.position == len(b"".join(records[:50]))


@pytest.mark.parametrize("size", [0, 90, 400, 2**31 - 1, 2**32 - 1])
def test_behind_a_wrong_size_reading_goes_on_at_the_next_record(size: int) -> None:
    data = changed(ordinary(100), 50, 0, size.to_bytes(4, "big"))
    assert [row["offset"] for row in rows(data, on_error="skip")] == [*range(50), *range(51, 100)]
    kept = rows(data, on_error="keep")
    assert (kept[50]["key"], kept[50]["body"], kept[50]["topic"]) == ("k50", b"50", "orders")
    assert "size" in kept[50]["decodeError"]


def test_bytes_that_are_no_record_make_one_row_without_values() -> None:
    records = ordinary(10)
    data = b"".join(records[:5]) + b"garbage" * 50 + b"".join(records[5:])
    kept = rows(data, on_error="keep")
    assert len(kept) == 11
    assert {name for name, value in kept[5].items() if value is not None} == {"broker", "decodeError"}


def test_a_record_inside_a_body_is_no_record() -> None:
    inner = [record(900 + n, commitlog_offset=7) for n in range(30)]
    log = commit_log([b"x", b"".join(inner)] * 100, 1 << 30)
    assert [row["offset"] for row in rows(log, ["offset"], base=1 << 30)] == list(range(200))
    assert [row["offset"] for row in rows(log, ["offset"])] == list(range(200))
    broken = bytearray(log)
    second = int(record_starts(log).starts[101])
    broken[second : second + 4] = b"\xff\xff\xff\xff"
    found = [row["offset"] for row in rows(bytes(broken), ["offset"], base=1 << 30, on_error="skip")]
    assert found == [*range(101), *range(102, 200)]


def test_a_record_that_lies_elsewhere_than_it_says_is_damaged() -> None:
    log = record(0, commitlog_offset=100) + record(1, commitlog_offset=0)
    with pytest.raises(CorruptRecordError, match="says it lies at 0"):
        decode(log, ["offset"], broker="b", base=100)


def test_crc_is_looked_at_when_asked_and_only_of_wanted_rows() -> None:
    records = ordinary(100)
    data = changed(records, 50, 88, b"x")
    assert rows(data)[50]["body"] == b"x0"
    with pytest.raises(CorruptRecordError, match=r"crc.*topic orders, queue 0, offset 50"):
        decode(data, ["offset"], broker="b", check_crc=True)
    assert len(rows(data, check_crc=True, low=51)) == 49
    assert len(rows(data, check_crc=True, on_error="skip")) == 99
    kept = rows(data, check_crc=True, on_error="keep")
    assert kept[50]["body"] == b"x0" and "crc" in kept[50]["decodeError"]


def test_a_body_that_does_not_unpack() -> None:
    records = ordinary(100)
    records[20] = record(20, body=compress(b"fine" * 9), sys_flag=1)
    records[50] = record(50, body=b"not zlib", sys_flag=1)
    data = b"".join(records)
    with pytest.raises(CorruptRecordError, match=r"cannot be read.*offset 50.*onDecodeError"):
        decode(data, ["body"], broker="b")
    skipped = rows(data, on_error="skip")
    assert len(skipped) == 99 and skipped[20]["body"] == b"fine" * 9
    kept = rows(data, on_error="keep")
    assert kept[50]["body"] == b"not zlib" and kept[50]["decodeError"] and kept[20]["body"] == b"fine" * 9
    assert len(rows(data, ["offset"])) == 100  # nobody asked for the body


def test_more_than_one_batch_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "MAX_DATA", 1000)
    with pytest.raises(ValueError, match="in parts"):
        decode(bytes(1001), ["body"], broker="b")
    monkeypatch.setattr(slow, "MAX_COLUMN", 1000)
    data = record(body=compress(bytes(600)), sys_flag=1)
    assert len(rows(data)) == 1
    for slowly in (True, False):
        with pytest.raises(OverflowError, match="fewer records"):
            outcome(data * 2, ["body"], slowly)


# --- files ---------------------------------------------------------------------------------------


def test_no_bytes_hold_no_records() -> None:
    found = record_starts(b"")
    assert (found.starts.tolist(), found.end, found.rest) == ([], 0, "nothing")
    assert find_record_start(b"") is None
    cut = record_starts(record()[:-1])
    assert (cut.end, cut.rest) == (0, "partial")
    assert decode(record()[:-1], ["body"], broker="b", starts=cut).num_rows == 0


def test_filler_at_the_end_of_a_file_is_passed_over() -> None:
    data = b"".join(ordinary(100))
    for filler in (blank(8), blank(90), blank(4000), blank(4000, 100)):
        assert len(rows(data + filler)) == 100
        found = record_starts(data + filler)
        assert (found.starts.size, found.rest) == (100, "nothing")
        assert found.end == len(data) + int.from_bytes(filler[:4], "big")
    assert len(rows(data + blank(300) + data)) == 200
    assert record_starts(data + bytes(500)) [1:] == (len(data), "unwritten")  # fmt: skip


@pytest.mark.parametrize("missing", [1, 50, 100, 128])
def test_a_record_cut_by_the_end_of_the_piece_is_left_for_the_next(missing: int) -> None:
    records = ordinary(100)
    data = b"".join(records)[:-missing]
    found = record_starts(data)
    assert found[1:] == (len(data) - len(records[-1]) + missing, "partial")
    assert decode(data, ["offset"], broker="b", starts=found).num_rows == 99
    assert len(rows(data, on_error="skip")) == 99
    with pytest.raises(CorruptRecordError):
        decode(data, ["offset"], broker="b")


def test_the_first_record_behind_a_position() -> None:
    inner = record(commitlog_offset=123)
    log = commit_log([inner] * 20, 5000)
    starts = record_starts(log, base=5000).starts.tolist()
    for position in (0, 1, starts[3], starts[3] + 1, starts[4] + 100):
        expected = next(start for start in starts if start >= position)
        for kind in (bytes, bytearray, memoryview):
            assert find_record_start(kind(log), position, base=5000) == expected
    assert find_record_start(log, starts[-1] + 1, base=5000) is None
    # Without a base nothing tells the inner record from a true one.
    assert find_record_start(log, starts[3] + 1) == starts[3] + 88


def test_a_damaged_file_is_read_piece_by_piece() -> None:
    log = bytearray(commit_log([b"x"] * 300))
    starts = record_starts(bytes(log)).starts.tolist()
    log[starts[150] : starts[150] + 4] = b"\0\0\0\1"
    found = record_starts(log, base=0)
    assert (found.end, found.rest) == (starts[150], "damaged")
    resume = find_record_start(log, found.end + 1, base=0)
    assert resume == starts[151]
    kept = rows(bytes(log[found.end : resume]), base=found.end, on_error="keep")
    assert [row["offset"] for row in kept] == [150] and kept[0]["decodeError"]
