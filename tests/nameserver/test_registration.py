"""The body of request 103 in all its forms."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gimbalmq._steps import run_through
from gimbalmq.errors import InvalidParameterError, RemoteProtocolError, ResponseError
from gimbalmq.nameserver.registration import ReadingLimits, Registration, reading
from gimbalmq.protocol.bodies import DataVersion, TopicConfig
from gimbalmq.protocol.headers.nameserver import PART_OF_A_TABLE, RegisterBroker
from tests.golden.frames import decode, exchanges

VERSION = DataVersion(counter=3, state_version=1, timestamp=99)


def header(*, compressed: bool = False, crc: int = 0) -> RegisterBroker:
    return RegisterBroker(
        broker_name="a",
        broker_addr="10.0.0.1:10911",
        cluster_name="C",
        ha_server_addr="10.0.0.1:10912",
        compressed=compressed,
        body_crc32=crc,
        heartbeat_timeout_millis=7000,
    )


def block(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def packed(*texts: str, mappings: list[object] | None = None, filters: bytes = b"[]") -> bytes:
    """A compressed body as Java's RegisterBrokerBody.encode(true) writes it."""
    data = block(VERSION.dump()) + struct.pack(">i", len(texts))
    data += b"".join(block(text.encode()) for text in texts) + block(filters)
    if mappings is not None:
        data += struct.pack(">i", len(mappings))
        data += b"".join(block(json.dumps(mapping).encode()) for mapping in mappings)
    return zlib.compress(data, 9)


def read(body: bytes, version: int = 479, *, compressed: bool = True) -> Registration:
    return run_through(reading(header(compressed=compressed), body, version))


def test_registration_of_a_java_broker_is_read_whole() -> None:
    (exchange,) = [found for found in exchanges() if found.code == 103]
    request = decode(exchange.request)
    found = run_through(
        reading(RegisterBroker.from_ext(request.ext_fields), bytes(request.body), request.version)
    )
    assert found.broker_addr == "127.0.0.1:20911"
    assert found.enable_acting_master is False
    assert found.expiry is None
    assert found.data_version == DataVersion(counter=0, state_version=0, timestamp=1794729884618)
    assert found.topics["BenchmarkTest"].read_queue_nums == 1024
    assert found.topics["TBW102"].perm == 7
    assert all(name == topic.topic_name for name, topic in found.topics.items())


def test_wrong_check_sum_is_refused_and_zero_is_not_checked() -> None:
    body = b'{"topicConfigSerializeWrapper":{}}'
    assert run_through(reading(header(crc=0), body, 479)).topics == {}
    run_through(reading(header(crc=zlib.crc32(body) & 0x7FFFFFFF), body, 479))
    with pytest.raises(ResponseError, match="crc32 not match") as caught:
        run_through(reading(header(crc=5), body, 479))
    assert caught.value.code == 1


@pytest.mark.parametrize("version", [0, 36, 37, 409, 479])
def test_no_body_is_an_empty_table(version: int) -> None:
    found = read(b"", version)
    assert (found.topics, found.data_version, found.expiry) == ({}, DataVersion(), 7.0)


def test_brokers_before_3_0_11_send_the_bare_table() -> None:
    table = (
        b'{"dataVersion":{"counter":3,"timestamp":99},"topicConfigTable":{"T":{"topicName":"T","perm":4}}}'
    )
    found = read(table, 36, compressed=False)
    assert found.topics == {"T": TopicConfig(topic_name="T", perm=4)}
    assert found.data_version == DataVersion(counter=3, timestamp=99)
    wrapped = b'{"filterServerList":[],"topicConfigSerializeWrapper":' + table + b"}"
    assert read(wrapped, 37, compressed=False).topics == found.topics


def test_compressed_body_of_4_9_has_neither_attributes_nor_mappings() -> None:
    found = read(packed("T 4 8 6 SINGLE_TAG", "%RETRY%g 1 1 6 SINGLE_TAG"), 409)
    assert found.topics == {
        "T": TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=8, perm=6),
        "%RETRY%g": TopicConfig(topic_name="%RETRY%g", read_queue_nums=1, write_queue_nums=1, perm=6),
    }
    assert found.data_version == VERSION


def test_compressed_body_of_5_x_has_both() -> None:
    mapping = {"topic": "T", "bname": "a", "totalQueues": 4}
    text = 'T 4 8 6 SINGLE_TAG {"+message.type":"DELAY x"}'
    found = read(packed(text, "U 1 1 6 SINGLE_TAG {}", "V 1 1 6 SINGLE_TAG ", mappings=[mapping]))
    assert list(found.topics) == ["T", "U", "V"]
    assert found.topics["T"].write_queue_nums == 8
    assert found.queue_mappings == {"T": mapping}


def test_compressed_body_is_known_where_the_header_denies_it() -> None:
    """Seen on the wire: Apache 5.5.0 with compressedRegister=true sends compressed=false."""
    body = packed("T 4 8 6 SINGLE_TAG {}", mappings=[])
    assert read(body, 513, compressed=False) == read(body, 513, compressed=True)


def test_mapping_section_is_required_from_5_0_on_and_passed_over_before() -> None:
    with pytest.raises(RemoteProtocolError, match="queue mapping"):
        read(packed("T 4 8 6 SINGLE_TAG"), 413)
    assert read(packed("T 4 8 6 SINGLE_TAG", mappings=[]), 412).queue_mappings == {}


def test_plain_body_of_5_x_brings_its_mappings() -> None:
    body = json.dumps({"topicConfigSerializeWrapper": {"topicQueueMappingInfoMap": {"T": {"bname": "a"}}}})
    assert read(body.encode(), compressed=False).queue_mappings == {"T": {"bname": "a"}}


@pytest.mark.parametrize(
    "body",
    [
        b"no zlib",
        zlib.compress(b""),
        zlib.compress(struct.pack(">i", -1)),
        zlib.compress(struct.pack(">i", 2**31 - 1)),
        zlib.compress(block(VERSION.dump()) + struct.pack(">i", -1)),
        zlib.compress(block(VERSION.dump()) + struct.pack(">i", 5)),
        zlib.compress(block(b"[]")),
        packed("T 4 8 6", mappings=[]),
        packed("T four 8 6 SINGLE_TAG", mappings=[]),
        packed(mappings=[5]),
        packed(mappings=[{"bname": "a"}]),
        packed("T 4 8 6 SINGLE_TAG", mappings=[])[:-20],
        zlib.compress(block(VERSION.dump()) + struct.pack(">i", 1) + block(b"\xff 1 1 6 SINGLE_TAG")),
    ],
)
def test_broken_compressed_body_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read(body)


def test_bomb_is_not_inflated() -> None:
    limits = ReadingLimits(inflated_bytes=1000)
    with pytest.raises(RemoteProtocolError, match="past 1000 bytes"):
        run_through(reading(header(compressed=True), zlib.compress(bytes(100_000)), 479, limits))


@given(st.binary(max_size=200), st.booleans(), st.sampled_from([0, 36, 37, 409, 413, 479]))
def test_random_bodies_are_read_or_refused(body: bytes, compressed: bool, version: int) -> None:
    for data in (body, zlib.compress(body)):
        try:
            read(data, version, compressed=compressed)
        except (RemoteProtocolError, ResponseError):
            pass


# -- many and malicious --------------------------------------------------------------


def _plain(count: int, **more: object) -> bytes:
    """As Java writes it, attributes included."""
    table = {
        f"topic-{n}": {
            "attributes": {"+message.type": "NOR}{MAL"},
            "order": False,
            "perm": 6,
            "topicName": f"topic-{n}",
            "readQueueNums": n,
            "writeQueueNums": n,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
        }
        for n in range(count)
    }
    wrapper = {"dataVersion": {"counter": 3}, "mappingDataVersion": {}, "topicConfigTable": table, **more}
    return json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}).encode()


def test_long_table_is_read_in_steps_and_is_the_same() -> None:
    mapping = {"bname": "a", "topic": "S"}
    body = _plain(3_000, topicQueueMappingInfoMap={"S": mapping})
    steps = sum(1 for _ in reading(header(crc=zlib.crc32(body) & 0x7FFFFFFF), body, 479))
    assert steps > 20
    found = read(body, compressed=False)
    assert len(found.topics) == 3_000 and found.topics["topic-2999"].read_queue_nums == 2999
    assert found.data_version == DataVersion(counter=3) and found.queue_mappings == {"S": mapping}
    wrapper = json.loads(body)["topicConfigSerializeWrapper"]
    assert read(json.dumps(wrapper).encode(), 36, compressed=False).topics == found.topics
    small = read(_plain(5), compressed=False)
    assert small.topics == {name: found.topics[name] for name in small.topics}


@pytest.mark.parametrize("count", [100, 300, 2_000])
def test_static_topics_in_apache_s_plain_form_are_read(count: int) -> None:
    """Its numbers of queues are bare keys; 64 KB of them were refused."""
    numbers = ",".join(f"{queue}:{queue}" for queue in range(16))
    mappings = ", ".join(
        f'"S{n}":{{"bname":"b","currIdMap":{{{numbers}}},"dirty":false,"epoch":1,"topic":"S{n}","totalQueues":32}}'
        for n in range(count)
    )
    body = _plain(count, topicQueueMappingInfoMap={"x": 1}).replace(b'{"x": 1}', b"{%b}" % mappings.encode())
    found = read(body, compressed=False)
    assert len(found.topics) == len(found.queue_mappings) == count and not found.part
    assert found.queue_mappings["S7"]["currIdMap"] == {str(queue): queue for queue in range(16)}
    for order in (b'"topicQueueMappingInfoMap"', b'"topicConfigTable"'):
        with pytest.raises(RemoteProtocolError):
            read(body.replace(order + b": {", order + b": {,", 1), compressed=False)


def test_queue_mappings_of_one_registration_are_bounded() -> None:
    mappings = {f"S{n}": {"topic": f"S{n}", "x": "y" * 50_000} for n in range(50)}
    for body, compressed in (
        (_plain(1_000, topicQueueMappingInfoMap=mappings), False),
        (packed(mappings=list(mappings.values())), True),
    ):
        with pytest.raises(RemoteProtocolError, match="bytes of queue mappings or more; 2097152 are read"):
            read(body, compressed=compressed)


def test_mark_of_a_part_is_seen_in_a_long_body() -> None:
    mark = {PART_OF_A_TABLE: {"bname": "b", "topic": PART_OF_A_TABLE}}
    found = read(_plain(1_000, topicQueueMappingInfoMap=mark), compressed=False)
    assert found.part and len(found.topics) == 1_000 and found.queue_mappings == {}


@pytest.mark.parametrize("unit", [b'"":"",', b'"%b":"",' % (b"x" * 1000), b" " * 1000])
def test_one_long_row_is_refused_before_it_is_read(unit: bytes) -> None:
    """One topic of 16 MB took 0.9 s in one step."""
    rows = unit * (4_000_000 // len(unit))
    for key in (b"topicConfigTable", b"topicQueueMappingInfoMap"):
        table = b'"topicConfigTable":{},' if key != b"topicConfigTable" else b""
        body = b'{"topicConfigSerializeWrapper":{%b"%b":{"t":{"attributes":{%b"e":""}}}}}' % (
            table,
            key,
            rows,
        )
        with pytest.raises(RemoteProtocolError, match=r"of more than 73728 bytes there: b'\"t\""):
            read(body, compressed=False)
    with pytest.raises(RemoteProtocolError, match="73728 are read"):
        read(packed(mappings=[{"topic": "t", "x": "y" * 200_000}]))


def test_long_table_without_topics_or_with_nulls_is_read() -> None:
    padding = " " * 200_000
    empty = f'{{"topicConfigSerializeWrapper":{{"topicConfigTable":{{{padding}}}}}}}'.encode()
    assert read(empty, compressed=False).topics == {}
    nulls = _plain(1).replace(
        b'"topicConfigTable": {', b'"topicConfigTable": {"n": null, ' + padding.encode()
    )
    assert list(read(nulls, compressed=False).topics) == ["topic-0"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body[:-3],
        lambda body: body[: len(body) // 2],
        lambda body: body.replace(b'"topic-1500": {', b'"topic-1500": [', 1),
        lambda body: body.replace(b'"topic-1500": {', b"topic-1500: {", 1),
        lambda body: body.replace(b'"readQueueNums": 1500,', b'"readQueueNums": "x",', 1),
        lambda body: body.replace(b'"topicConfigTable"', b'"topics"', 1),
        lambda body: body.replace(b'"topic-1500": {', b'"topic-1500": {"a":{"b":{}},', 1),
        lambda body: body + b"x",
        lambda body: b"[" * len(body),
        lambda body: b'{"topicConfigTable":{' + b'"\\' * len(body),
        lambda body: b'{"topicConfigTable":{"a":{' + b'"b",' * len(body),
        lambda body: b'{"topicConfigTable":{"a":{' + b'{"b"}' * len(body),
    ],
)
def test_long_table_that_is_broken_is_refused_quickly(damage: Callable[[bytes], bytes]) -> None:
    """No expression tries a text twice: a quadratic one would take minutes here."""
    with pytest.raises(RemoteProtocolError):
        read(damage(_plain(3_000)), compressed=False)


def test_bounds_of_one_registration() -> None:
    few = ReadingLimits(topics=100)
    with pytest.raises(RemoteProtocolError, match=r"name server reads 100: .* raise maxTopicNums"):
        run_through(reading(header(), _plain(3_000), 479, few))
    # The count stands before the topics, so a false one costs nothing.
    with pytest.raises(RemoteProtocolError, match="2147483647 topics or more"):
        read(zlib.compress(block(VERSION.dump()) + struct.pack(">i", 2**31 - 1)))
    with pytest.raises(RemoteProtocolError, match="200001 topics"):
        read(packed(*["T 1 1 6 S"] * 200_001, mappings=[]))
    with pytest.raises(InvalidParameterError, match="600 characters"):
        read(packed("x" * 600 + " 1 1 6 S", mappings=[]))
    with pytest.raises(InvalidParameterError, match="clusterName has 600"):
        Registration(cluster="c" * 600, broker_name="a", broker_addr="h:1")
    with pytest.raises(RemoteProtocolError, match="bytes of queue mappings"):
        read(packed(mappings=[{"topic": f"S{n}", "x": "y" * 50_000} for n in range(60)]))


def test_part_of_a_table_says_so_and_keeps_no_mapping() -> None:
    body = _plain(2, topicQueueMappingInfoMap={PART_OF_A_TABLE: {"bname": "a"}})
    found = read(body, compressed=False)
    assert found.part and found.queue_mappings == {}
    assert not read(_plain(2), compressed=False).part
