"""The JSON dialect of Java's bodies: bare keys, object keys, references."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gimbalmq.errors import InvalidParameterError, RemoteProtocolError
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.bodies import BrokerData, ClusterInfo, DataVersion, TopicList, TopicRoute


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{0:5}", {"0": 5}),
        ("{-1:5, 2:7}", {"-1": 5, "2": 7}),
        ('{"brokerAddrs":{0:"127.0.0.1:10911",1:"b"}}', {"brokerAddrs": {"0": "127.0.0.1:10911", "1": "b"}}),
        ('{"offsetTable":{"TopicA@g":{0:5,1:7}}}', {"offsetTable": {"TopicA@g": {"0": 5, "1": 7}}}),
        ("{a:1,b:{c:[true,false,null]}}", {"a": 1, "b": {"c": [True, False, None]}}),
        ("{1:'single'}", {"1": "single"}),
        ("{1:2L,3:4.5,5:1e2}", {"1": 2, "3": 4.5, "5": 100.0}),
        ('{1:"a\\u0001\\"b\\n"}', {"1": 'a\x01"b\n'}),
        ("{1:[{},[],{2:{}}]}", {"1": [{}, [], {"2": {}}]}),
        ("{1:1,,2:2,}", {"1": 1, "2": 2}),
        (" { 1 : [ 1 , 2 ] } ", {"1": [1, 2]}),
        ('{1:"主题"}', {"1": "主题"}),
    ],
)
def test_dialect_is_read(text: str, value: object) -> None:
    assert fastjson.loads(text) == value
    assert fastjson.loads(text.encode()) == value


def test_object_key_comes_back_as_its_text_and_names_a_queue() -> None:
    one, two = '{"brokerName":"b","queueId":3,"topic":"T"}', '{"queueId":4,"topic":"T","brokerName":"b"}'
    text = '{"offsetTable":{' + one + ":5," + two + ":6}}"
    table = fastjson.loads(text)["offsetTable"]
    assert {fastjson.queue_key(key): value for key, value in table.items()} == {
        MessageQueue("T", "b", 3): 5,
        MessageQueue("T", "b", 4): 6,
    }


def test_quoted_object_key_names_a_queue_too() -> None:
    queue = MessageQueue("T", "b", 3)
    (key,) = fastjson.loads(json.dumps({fastjson.queue_text(queue): 5}))
    assert fastjson.queue_key(key) == queue
    assert fastjson.queue_key(fastjson.queue_object(queue)) == queue


def test_queue_keys_are_written_bare_and_nothing_else_is_touched() -> None:
    """As Java writes them; its 5.5 reader refuses the quoted form."""
    queue = MessageQueue("T", "b", 3)
    text = fastjson.queue_text(queue)
    value = {text: 5, "as value": text, "n": {"1": [text]}}
    assert fastjson.loads(fastjson.dumps(value)) == value and json.loads(fastjson.dumps(value)) == value
    assert fastjson.dumps(value, queue_keys=True) == (
        b'{{"brokerName":"b","queueId":3,"topic":"T"}:5,'
        b'"as value":"{\\"brokerName\\":\\"b\\",\\"queueId\\":3,\\"topic\\":\\"T\\"}",'
        b'"n":{"1":["{\\"brokerName\\":\\"b\\",\\"queueId\\":3,\\"topic\\":\\"T\\"}"]}}'
    )
    odd = MessageQueue('quo"te\\', "b:{", 0)
    (key,) = fastjson.loads(fastjson.dumps({fastjson.queue_text(odd): 1}, queue_keys=True))
    assert fastjson.queue_key(key) == odd


@pytest.mark.parametrize(
    "key", ["5", "[]", '{"topic":"T"}', '{"topic":"T","brokerName":"b","queueId":"x"}', 5]
)
def test_key_that_is_no_queue_is_refused(key: object) -> None:
    with pytest.raises(RemoteProtocolError, match="no message queue"):
        fastjson.queue_key(key)


def test_reference_to_an_earlier_object_is_followed() -> None:
    text = '{"a":{"b":[{"c":1},{"d":2}]},"x":{"$ref":"$.a.b[1]"},"y":[{"$ref":"$.a.b[0]"}],0:1}'
    value = fastjson.loads(text)
    assert value["x"] == {"d": 2}
    assert value["y"] == [{"c": 1}]
    text = '{"t":{"%RETRY%a.b":{"p":{"c":1}},"x":{"p":{"$ref":"$.t.\\\\%RETRY\\\\%a\\\\.b.p"}}}}'
    assert fastjson.loads(text)["t"]["x"] == {"p": {"c": 1}}


@pytest.mark.parametrize("path", ["$", "@", "..", "$.nothing", "$.list[7]", "$.list.name", "$.self"])
def test_reference_that_leads_nowhere_or_round_is_an_object_like_any_other(path: str) -> None:
    document = {"list": [1], "self": {"inner": {"$ref": path}}}
    assert fastjson.loads(json.dumps(document)) == document


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{1",
        "{1:",
        "{1:}",
        "[1",
        "{1:'a}",
        '{1:"a}',
        "{1:nope}",
        "{1:1} 2",
        "{:1}",
        "{1 2}",
        "{1:\x00}",
    ],
)
def test_broken_document_is_a_protocol_error(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        fastjson.loads(text)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xfe",
        b"{1:" * 100,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"{1:" + b"9" * 10_000 + b"}",
        b'{1:"\\ud800"}',
        b'{{"a":"\\ud800"}:1}',
        b'{1:1,"a":{"$ref":"$.\\ud800"}}',
    ],
)
def test_hostile_document_is_a_protocol_error_or_a_value(data: bytes) -> None:
    try:
        value = fastjson.loads(data)
    except RemoteProtocolError:
        return
    fastjson.dumps(value)


_MAGIC = [
    "$ref",
    "@type",
    "$",
    "@",
    "..",
    "$.a",
    "$[0]",
    "0",
    "null",
    "'",
    '{"',
    '{"x',
    '{"a":1}',
    'x"$ref',
    '\\"$ref',
    "\\u0024ref",
]
words = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    [*_MAGIC, fastjson.queue_text(MessageQueue("T", "b", 0))]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_what_is_written_is_read_back(value: Any) -> None:
    for text in (fastjson.dumps(value), fastjson.dumps_pretty(value)):
        assert fastjson.loads(text, limit=0) == value
        assert json.loads(text) == value
    assert fastjson.loads(fastjson.dumps(value, queue_keys=True)) == value


def test_name_that_looks_like_a_reference_is_kept_in_files_of_older_brokers() -> None:
    """Those did not escape it."""
    for name in ("x", "$", "$.b", "$.a", ".."):
        document = {"a": {"attributes": {"$ref": name}}}
        assert fastjson.loads(json.dumps(document), limit=None) == document


@given(values)
def test_scanner_reads_standard_json_like_everybody(value: Any) -> None:
    standard = json.dumps(value, ensure_ascii=False)
    assert fastjson._Scanner(standard).document() == value


@given(st.text(alphabet="{}[]:,\"'\\u0aL.-$ref1e tn", max_size=40) | st.binary(max_size=40))
def test_random_text_is_a_value_or_a_protocol_error(text: str | bytes) -> None:
    try:
        fastjson.loads(text)
    except RemoteProtocolError:
        pass


def test_bodies_read_either_dialect_and_write_standard_json() -> None:
    bare = b'{"brokerAddrTable":{"a":{"brokerAddrs":{0:"x:1",1:"y:2"},"brokerName":"a","cluster":"C"}}}'
    quoted = bare.replace(b'{0:"', b'{"0":"').replace(b',1:"', b',"1":"')
    assert json.loads(quoted)
    info = ClusterInfo.parse(bare)
    assert info == ClusterInfo.parse(quoted)
    assert info.broker_addr_table["a"] == BrokerData(
        broker_addrs={0: "x:1", 1: "y:2"}, broker_name="a", cluster="C"
    )
    assert json.loads(info.dump())["brokerAddrTable"]["a"]["brokerAddrs"] == {"0": "x:1", "1": "y:2"}


def test_absent_values_are_left_out_of_bodies() -> None:
    assert TopicList(topic_list=["a"]).dump() == b'{"topicList":["a"]}'
    assert b"orderTopicConf" not in TopicRoute().dump()
    assert DataVersion(counter=1, timestamp=2).dump() == b'{"counter":1,"stateVersion":0,"timestamp":2}'


def test_body_of_the_wrong_shape_is_refused_by_name() -> None:
    with pytest.raises(RemoteProtocolError, match="TopicList"):
        TopicList.parse(b'{"topicList":5}')


@pytest.mark.parametrize("count", [0, 1, 199, 200, 201, 1000])
def test_pieces_together_are_the_pretty_text(count: int) -> None:
    table = {f"k{n}": {"a": n, "list": [1, {"x": "a\nb"}], "empty": {}} for n in range(count)}
    for document in ({"version": {"n": 1}, "table": table, "none": {}, "z": 5}, {"table": table}, {}):
        rows = {
            key: fastjson.Rows(table.items()) if key == "table" else value for key, value in document.items()
        }
        assert b"".join(fastjson.pretty_pieces(rows)) == fastjson.dumps_pretty(document)


def test_so_many_rows_as_asked_for_make_a_piece() -> None:
    table = {f"k{n}": {"a": [n]} for n in range(5)}
    for at_once, pieces in ((1, 5), (2, 3), (5, 1), (200, 1)):
        found = list(fastjson.pretty_pieces({"table": fastjson.Rows(table.items(), at_once=at_once)}))
        assert b"".join(found) == fastjson.dumps_pretty({"table": table})
        assert len(found) == pieces + 2


_HOSTILE = {
    "bare keys": b"{" + b",".join(b"%d:1" % n for n in range(200_000)) + b"}",
    "array without end": b"[" + b"1," * 500_000,
    "strings without end": b"{" + b'"\\' * 500_000,
    "object keys": b"{" + b",".join(b'{"a":%d}:1' % n for n in range(100_000)) + b"}",
    "references": b'{"a":{"$ref":"$.b"},"b":[' + b"1," * 500_000 + b"1]}",
}


@pytest.mark.parametrize("document", _HOSTILE.values(), ids=_HOSTILE)
def test_long_document_of_the_dialect_is_refused_before_it_is_read(document: bytes) -> None:
    """16 MB of it once stopped a server for 14 s."""
    with pytest.raises(RemoteProtocolError, match=f"may have {fastjson.REQUEST_LIMIT} bytes here"):
        fastjson.loads(document)
    with pytest.raises(RemoteProtocolError, match=r"may have|is no TopicList"):
        TopicList.of_request(document)


def test_what_only_the_slow_scanner_reads_is_bounded_more_tightly() -> None:
    within, beyond = (b"{1:1,," + b" " * n + b"2:2}" for n in (10, fastjson.REQUEST_LIMIT // 2))
    assert fastjson.loads(within) == {"1": 1, "2": 2}
    assert fastjson.loads(beyond, limit=None) == {"1": 1, "2": 2}
    with pytest.raises(RemoteProtocolError, match="more than bare keys"):
        fastjson.loads(beyond)


def test_string_without_end_costs_no_second_look() -> None:
    """Quadratic, it would take minutes: the time limit of the test is the proof."""
    with pytest.raises(RemoteProtocolError):
        fastjson.loads(b"{" + b'"\\' * 1_000_000, limit=4_000_000)


def test_files_of_the_dialect_are_read_whatever_their_length() -> None:
    """topics.json and consumerOffset.json of Apache's broker may be of the dialect, and large."""
    text = b'{"offsetTable":{' + b",".join(b'"T%d@g":{0:5,1:7}' % n for n in range(20_000)) + b"}}"
    assert len(text) > fastjson.REQUEST_LIMIT
    assert fastjson.loads(text, limit=None)["offsetTable"]["T19999@g"] == {"0": 5, "1": 7}


def test_request_has_a_bound_and_says_which() -> None:
    with pytest.raises(InvalidParameterError, match="body of 101 bytes and may have 100"):
        TopicList.of_request(b'{"topicList":["' + b"a" * 83 + b'"]}', limit=100)


@given(values)
def test_typed_and_untyped_reading_agree(value: Any) -> None:
    text = fastjson.dumps({"topicList": value, "brokerAddr": "x"})
    try:
        quick: object = TopicList.parse(text)
    except RemoteProtocolError:
        quick = None
    try:
        slow: object = TopicList.of(fastjson.loads(text))
    except RemoteProtocolError:
        slow = None
    assert quick == slow
