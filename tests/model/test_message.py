"""Messages to send, and messages received."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gimbalmq.errors import CorruptRecordError, MessageIllegalError, RemoteProtocolError
from gimbalmq.model import message as message_module
from gimbalmq.model import properties as names
from gimbalmq.model.message import Message, MessageView, decode_views
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.record import decode_properties, encode_properties, encode_record, iter_records

QUEUE = MessageQueue("TopicA", "broker-a", 3)

# made by Java
JAVA_RECORD = bytes.fromhex(
    "0000006f daa320a7 3610a686 00000003 00000000 0000000000000007 00000000000003e8 00000000"
    "0000018bcfe56800 0a010203000015b3 0000018bcfe56801 7f00000100002a9f 00000000 0000000000000000"
    "00000005 68656c6c6f 06 546f70696341 0009 544147530154616741"
)


def test_new_message_has_javas_properties() -> None:
    message = Message("T", "text", tags="TagA", keys=["k1", "k2"], properties={"own": "v"})
    assert message.body == b"text"
    assert message.all_properties() == {"KEYS": "k1 k2", "WAIT": "true", "TAGS": "TagA", "own": "v"}
    assert (message.tags, message.keys, message.delay_level, message.wait_store_ok) == (
        "TagA",
        ("k1", "k2"),
        0,
        True,
    )
    assert message.msg_id is None
    assert names.parse(message.properties_text()) == message.all_properties()
    assert "TagA" in repr(message)


def test_what_is_changed_after_it_was_made_counts() -> None:
    given = {"own": "v"}
    message = Message("T", bytearray(b"x"), keys="k1  k2 ", properties=given)
    given["own"] = "changed"
    assert type(message.body) is bytes and message.keys == ("k1", "k2") and message.properties == {"own": "v"}
    message.tags, message.sharding_key, message.wait_store_ok, message.msg_id = "t", "s", False, "id"
    message.properties["more"] = "w"
    message.system_properties["PGROUP"] = "g"
    assert message.all_properties() == {
        "KEYS": "k1 k2",
        "WAIT": "false",
        "TAGS": "t",
        "__SHARDINGKEY": "s",
        "PGROUP": "g",
        "own": "v",
        "more": "w",
        "UNIQ_KEY": "id",
    }
    other = Message("T", b"x")
    assert (other.properties, other.system_properties) == ({}, {})
    assert Message("T", b"x", keys=None, properties=None).all_properties() == {"WAIT": "true"}


@pytest.mark.parametrize("body", [5, None, [1, 2], {"a": 1}, 1.5, object()])
def test_a_body_that_is_neither_bytes_nor_text_is_refused(body: Any) -> None:
    """``bytes(5)`` would be five zeros."""
    with pytest.raises(MessageIllegalError, match=f"not {type(body).__name__}: encode"):
        Message("T", body)


@pytest.mark.parametrize("table", [{}, MappingProxyType({})])
def test_an_empty_table_that_is_given_stays_the_callers(table: Mapping[str, str]) -> None:
    message = Message("T", b"x", properties=table)
    message.properties["own"] = "v"
    assert table == {} and message.properties == {"own": "v"}


def test_ways_to_delay_exclude_each_other() -> None:
    assert Message("T", b"x", delay_level=18).all_properties()["DELAY"] == "18"
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    assert Message("T", b"x", deliver_at=moment).all_properties()["TIMER_DELIVER_MS"] == "1893456000000"
    assert Message("T", b"x", delay=0.25).all_properties()["TIMER_DELAY_MS"] == "250"
    with pytest.raises(MessageIllegalError, match="one of"):
        Message("T", b"x", delay_level=1, delay=1)
    with pytest.raises(MessageIllegalError, match="levels start at 1"):
        Message("T", b"x", delay_level=-1)
    with pytest.raises(MessageIllegalError, match="before it is sent"):
        Message("T", b"x", delay=-1)
    with pytest.raises(ValueError, match="NaN"):
        Message("T", b"x", deliver_at=float("nan"))


@pytest.mark.parametrize(
    "own", [{"TAGS": "x"}, {"UNIQ_KEY": "x"}, {"": "x"}, {"a": " "}, {"a": "b\x01c"}, {"a\x02": "b"}]
)
def test_reserved_and_unspeakable_properties_are_refused(own: dict[str, str]) -> None:
    with pytest.raises(MessageIllegalError):
        Message("T", b"x", properties=own)


def test_javas_record_is_read() -> None:
    (view,) = decode_views(JAVA_RECORD, QUEUE)
    assert (view.topic, view.body, view.tags, view.keys) == ("TopicA", b"hello", "TagA", ())
    assert (view.queue, view.queue_id, view.queue_offset, view.commitlog_offset) == (QUEUE, 3, 7, 1000)
    assert (view.born_timestamp, view.store_timestamp) == (1_700_000_000_000, 1_700_000_000_001)
    assert (view.born_host, view.store_host) == (("10.1.2.3", 5555), ("127.0.0.1", 10911))
    assert (view.body_size, view.store_size, view.body_crc, view.flag, view.sys_flag) == (
        5,
        111,
        907060870,
        0,
        0,
    )
    assert (view.reconsume_times, view.prepared_transaction_offset) == (0, 0)
    assert view.offset_msg_id == view.msg_id == "7F00000100002A9F00000000000003E8"
    assert view.original_topic == "TopicA" and view.broker_name == "broker-a"


def test_properties_are_split_into_the_applications_and_rocketmqs() -> None:
    raw = encode_properties(
        {
            "UNIQ_KEY": "U1",
            "KEYS": "a b",
            "own": "v",
            "RETRY_TOPIC": "T",
            "DELAY": "3",
            "__SHARDINGKEY": "s",
            "__transactionId__": "tx",
        }
    )
    (view,) = decode_views(encode_record(topic="%RETRY%g", body=b"x", properties=raw, reconsume_times=2))
    assert view.get("own") == "v" and view.get("absent") is None  # before the table is read
    assert view.properties == {"own": "v"}
    assert view.all_properties["KEYS"] == "a b"
    assert view.get("own") == "v" and view.get("absent") is None  # and after
    assert (view.msg_id, view.keys, view.original_topic, view.topic) == ("U1", ("a", "b"), "T", "%RETRY%g")
    assert (view.delay_level, view.sharding_key, view.transaction_id) == (3, "s", "tx")
    assert view.properties_bytes == raw
    view.all_properties["CONSUME_START_TIME"] = "5"
    assert view.get("CONSUME_START_TIME") == "5"
    view.reconsume_times += 1
    view.topic = view.original_topic
    assert (view.reconsume_times, view.topic) == (3, "T")
    assert repr(view) == "<MessageView U1 T queue 0 at 0>"


def test_compressed_body_is_unpacked_when_asked_for() -> None:
    packed = zlib.compress(b"a" * 5000, 5)
    good, bad = decode_views(
        encode_record(topic="T", body=packed, sys_flag=0x301)
        + encode_record(topic="T", body=b"nonsense", sys_flag=1)
    )
    assert good.body_size == len(packed)
    assert good.body == good.body == b"a" * 5000
    # A message that cannot be unpacked hurts nobody else of its batch.
    with pytest.raises(RemoteProtocolError, match="compressed body"):
        _ = bad.body


def test_queues_are_made_where_none_is_given() -> None:
    data = encode_record(topic="A", body=b"x", queue_id=1) + encode_record(topic="B", body=b"y", queue_id=2)
    one, two = decode_views(data, broker_name="b")
    assert (one.queue, two.queue) == (MessageQueue("A", "b", 1), MessageQueue("B", "b", 2))
    assert decode_views(b"") == []


@pytest.mark.parametrize("queue", [None, QUEUE])
@pytest.mark.parametrize("cut", [1, 20, 60, 90, 100, 110])
def test_cut_record_is_named_with_its_place(cut: int, queue: MessageQueue | None) -> None:
    with pytest.raises(CorruptRecordError, match="byte 111"):
        decode_views(JAVA_RECORD + JAVA_RECORD[:cut], queue)


def test_damaged_records_are_found_or_read_as_they_are_whatever_came_before() -> None:
    """Each bit of a record is turned once: behind its like it is read, or refused, as it is at the start."""

    def outcome(data: bytes, queue: MessageQueue | None) -> object:
        try:
            view = decode_views(data, queue)[-1]
        except CorruptRecordError:
            return None
        return (view.body_size, view.queue_offset, view.reconsume_times, view._properties_at, view._record)

    refused = 0
    for bit in range(8 * len(JAVA_RECORD)):
        damaged = bytearray(JAVA_RECORD)
        damaged[bit // 8] ^= 1 << bit % 8
        alone = outcome(bytes(damaged), None)
        refused += alone is None
        assert outcome(JAVA_RECORD + bytes(damaged), QUEUE) == alone, bit
    assert 100 < refused < 300  # sizes, magic number, flags of hosts


def test_a_record_is_not_taken_for_one_with_the_lengths_of_two_before_it() -> None:
    """Its size is that of the first, what it says of its properties is what the second, of an IPv6 host, says."""
    first = encode_record(topic="T", body=b"xx", properties=b"a\x011\x02")
    second = encode_record(topic="T", body=b"xx", properties=b"a\x0122222\x02", born_host=("::1", 5))
    damaged = bytearray(first)
    assert damaged[-5] == 4
    damaged[-5] = 8
    assert len(decode_views(first + second + first, QUEUE)) == 3
    with pytest.raises(CorruptRecordError, match=f"byte {len(first + second)}"):
        decode_views(first + second + damaged, QUEUE)


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=50),
            st.sampled_from(["T", "中文", "x" * 200]),
            st.dictionaries(st.text("abc", min_size=1), st.text("xyz", min_size=1), max_size=3),
            st.sampled_from([("10.0.0.1", 1), ("2001:db8::1", 2)]),
            st.sampled_from([("10.0.0.2", 3), ("2001:db8::2", 4)]),
            st.integers(0, 2**62),
        ),
        max_size=4,
    )
)
def test_views_agree_with_records(
    items: list[tuple[bytes, str, dict[str, str], tuple[str, int], tuple[str, int], int]],
) -> None:
    items = [item for item in items for _ in range(2)]  # most records are like the one before
    data = b"".join(
        encode_record(
            topic=topic,
            body=body,
            properties=encode_properties(own),
            born_host=born,
            store_host=store,
            queue_offset=offset,
            commitlog_offset=offset,
            reconsume_times=times,
            prepared_transaction_offset=9,
            flag=-5,
        )
        for times, (body, topic, own, born, store, offset) in enumerate(items)
    )
    records = list(iter_records(data))
    assert len(records) == len(items)
    for view, record in [
        *zip(decode_views(data), records, strict=True),
        *zip(decode_views(data, QUEUE), records, strict=True),
    ]:
        for name in (
            "topic",
            "body",
            "queue_id",
            "queue_offset",
            "commitlog_offset",
            "sys_flag",
            "flag",
            "born_timestamp",
            "born_host",
            "store_timestamp",
            "store_host",
            "reconsume_times",
            "prepared_transaction_offset",
            "body_crc",
        ):
            assert getattr(view, name) == getattr(record, name), name
        assert view.all_properties == record.properties and view.store_size == record.total_size


def test_view_can_be_built_by_hand() -> None:
    view = MessageView.build("T", b"x", properties={"a": "1"}, queue=QUEUE, queue_offset=5, reconsume_times=1)
    assert (view.body, view.properties, view.queue_id, view.queue_offset) == (b"x", {"a": "1"}, 3, 5)


# --- what is read once ------------------------------------------------------------------------------


def view_of(properties: bytes, body: bytes = b"x", **fields: Any) -> MessageView:
    return decode_views(encode_record(topic="T", body=body, properties=properties, **fields))[0]


def test_views_with_equal_properties_do_not_share_what_may_be_changed() -> None:
    text = b"UNIQ_KEY\x01%d\x02TAGS\x01t\x02own\x01v\x02"
    first, second = view_of(text % 1), view_of(text % 2)
    first.all_properties["own"] = "changed"
    first.properties["more"] = "1"
    second.properties["more"] = "2"
    assert (first.properties, second.properties) == ({"own": "changed"}, {"own": "v"})
    assert second.all_properties == {"UNIQ_KEY": "2", "TAGS": "t", "own": "v"}
    assert (first.msg_id, second.msg_id, second.tags) == ("1", "2", "t")
    first.all_properties["TAGS"] = "other"
    assert (first.tags, view_of(text % 3).tags) == ("other", "t")


@pytest.mark.parametrize(
    ("raw", "msg_id", "properties"),
    [
        (b"UNIQ_KEY\x01a\x02p\x011\x02UNIQ_KEY\x01b\x02", "b", {"p": "1"}),
        (b"p\x011\x02UNIQ_KEY\x01c\x02", "c", {"p": "1"}),
        (b"UNIQ_KEY\x01d", "d", {}),
        (b"UNIQ_KEY\x01d\x02p\x011", "d", {"p": "1"}),
        (b"UNIQ_KEY\x01\x02p\x011\x02", None, {"p": "1"}),
        (b"UNIQ_KEY2\x01e\x02", None, {"UNIQ_KEY2": "e"}),
        (b"", None, {}),
        (b"UNIQ_KEY\x01\xff\x02p\x01\xfe\x02", "\ufffd", {"p": "\ufffd"}),
    ],
)
def test_the_id_counts_wherever_it_stands(raw: bytes, msg_id: str | None, properties: dict[str, str]) -> None:
    view = view_of(raw)
    assert view.msg_id == (msg_id or view.offset_msg_id)
    assert view.properties == properties
    assert view.all_properties == decode_properties(raw)
    assert view.properties_bytes == raw


def test_tables_of_properties_are_bounded() -> None:
    for number in range(3000):
        assert view_of(b"UNIQ_KEY\x01i\x02KEYS\x01%d\x02" % number).tags is None
    assert len(message_module._TABLES) <= 1024
    assert view_of(b"UNIQ_KEY\x01i\x02p\x01" + b"v" * 5000).properties == {"p": "v" * 5000}
    assert all(len(raw) <= 512 for raw in message_module._TABLES)


def test_a_large_body_is_kept_once_and_nothing_else_is_lost() -> None:
    body = bytes(range(256)) * 40
    view = view_of(b"UNIQ_KEY\x01i\x02p\x011\x02", body, store_timestamp=7, queue_offset=3)
    assert view.body == body
    assert view.body is view.body
    assert len(view._record) < 300
    assert (view.msg_id, view.properties, view.store_timestamp) == ("i", {"p": "1"}, 7)
    assert (view.body_size, view.store_size, view.properties_bytes) == (
        len(body),
        len(encode_record(topic="T", body=body, properties=view.properties_bytes)),
        b"UNIQ_KEY\x01i\x02p\x011\x02",
    )


def test_records_of_other_topics_lengths_and_kinds_in_one_answer_are_told_apart() -> None:
    shapes = [
        ("T", b"a\x011\x02"),
        ("T", b"a\x011\x02"),
        ("T", b"a\x0122\x02"),
        ("U", b"a\x0122\x02"),
        ("V" * 200, b"a\x0122\x02"),
        ("V" * 200, b""),
        ("T", b""),
    ]
    hosts: list[dict[str, Any]] = [{}, {"born_host": ("::1", 1)}, {"store_host": ("::2", 2)}]
    made = [(topic, raw, fields) for fields in hosts for topic, raw in shapes]
    data = b"".join(
        encode_record(topic=topic, body=b"b%d" % n, properties=raw, queue_offset=n, **fields)
        for n, (topic, raw, fields) in enumerate(made)
    )
    views = decode_views(data)
    assert [(view.topic, view.properties_bytes) for view in views] == [(topic, raw) for topic, raw, _ in made]
    assert [view.body for view in views] == [b"b%d" % n for n in range(len(made))]
    assert [view.queue_offset for view in views] == list(range(len(made)))
    for cut in range(1, 40):
        with pytest.raises(CorruptRecordError):
            decode_views(data[:-cut])


@pytest.mark.parametrize(
    "options", [{"tags": "a\x02b"}, {"keys": ["a", "b\x02"]}, {"sharding_key": "\x02"}, {"msg_id": "A\x02"}]
)
def test_an_option_that_holds_a_separator_is_refused_by_its_name(options: dict[str, Any]) -> None:
    with pytest.raises(MessageIllegalError, match=f"{next(iter(options))} .*U\\+0002, which ends"):
        Message("orders", b"x", **options)
