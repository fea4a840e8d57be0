from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gimbalmq.errors import CorruptRecordError, LocalProtocolError
from gimbalmq.model import properties, queue_entry
from gimbalmq.model.flags import BORN_HOST_V6, STORE_HOST_V6
from gimbalmq.model.record import (
    HEADS,
    MAGIC_V1,
    MAGIC_V2,
    Head,
    check_record,
    decode_properties,
    decode_record,
    encode_properties,
    encode_record,
    find_property,
    head_dtype,
    head_subset,
    iter_records,
    places,
)

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "records.json").read_text())["answers"]
VECTOR = bytes.fromhex(
    "0000006f daa320a7 3610a686 00000003 00000000 0000000000000007 00000000000003e8 00000000"
    "0000018bcfe56800 0a010203000015b3 0000018bcfe56801 7f00000100002a9f 00000000 0000000000000000"
    "00000005 68656c6c6f 06 546f70696341 0009 544147530154616741"
)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
hosts = st.tuples(st.ip_addresses().map(str), st.integers(0, 65535))
names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=8
)


def vector() -> bytes:
    return encode_record(
        topic="TopicA",
        body=b"hello",
        properties=encode_properties({"TAGS": "TagA"}, trailing=False),
        queue_id=3,
        queue_offset=7,
        commitlog_offset=1000,
        born_host=("10.1.2.3", 5555),
        born_timestamp=1700000000000,
        store_timestamp=1700000000001,
    )


def test_the_bytes_of_the_reference() -> None:
    assert vector() == VECTOR
    record = decode_record(VECTOR, check_crc=True)
    assert (record.total_size, record.magic, record.body_crc) == (111, MAGIC_V1, 907060870)
    assert (record.queue_id, record.queue_offset, record.commitlog_offset) == (3, 7, 1000)
    assert (record.born_host, record.born_timestamp) == (("10.1.2.3", 5555), 1700000000000)
    assert (record.store_host, record.store_timestamp) == (("127.0.0.1", 10911), 1700000000001)
    assert (record.body, record.topic, record.properties) == (b"hello", "TopicA", {"TAGS": "TagA"})


@pytest.mark.parametrize("answer", GOLDEN)
def test_records_apache_sent_decode_and_encode_back(answer: dict[str, object]) -> None:
    body = bytes.fromhex(str(answer["body"]))
    records = list(iter_records(body, check_crc=True))
    assert len(records) == answer["records"]
    rebuilt = b"".join(
        encode_record(
            topic=r.topic,
            body=r.body,
            properties=r.properties_bytes,
            queue_id=r.queue_id,
            flag=r.flag,
            queue_offset=r.queue_offset,
            commitlog_offset=r.commitlog_offset,
            sys_flag=r.sys_flag,
            born_timestamp=r.born_timestamp,
            born_host=r.born_host,
            store_timestamp=r.store_timestamp,
            store_host=r.store_host,
            reconsume_times=r.reconsume_times,
            prepared_transaction_offset=r.prepared_transaction_offset,
        )
        for r in records
    )
    assert rebuilt == body
    for record in records:
        assert decode_properties(encode_properties(record.properties)) == record.properties
        assert "UNIQ_KEY" in record.properties


@given(
    st.text("abc%_中", min_size=1, max_size=200), st.binary(max_size=60), st.binary(max_size=60), hosts,
    hosts, int32, int64, st.integers(0, 0x3FF),
)  # fmt: skip
def test_round_trip(
    topic: str,
    body: bytes,
    properties: bytes,
    born: tuple[str, int],
    store: tuple[str, int],
    flag: int,
    time: int,
    sys_flag: int,
) -> None:
    data = encode_record(
        topic=topic, body=body, properties=properties, born_host=born, store_host=store, flag=flag,
        born_timestamp=time, store_timestamp=-time - 1, sys_flag=sys_flag, reconsume_times=flag,
    )  # fmt: skip
    record = decode_record(memoryview(b"xx" + data), 2, check_crc=True)
    assert (record.topic, record.body, record.properties_bytes) == (topic, body, properties)
    assert (record.born_host, record.store_host) == (born, store)
    assert (record.flag, record.born_timestamp, record.store_timestamp) == (flag, time, -time - 1)
    assert record.magic == (MAGIC_V2 if len(topic.encode()) > 127 else MAGIC_V1)
    assert bool(record.sys_flag & BORN_HOST_V6) == (":" in born[0])
    assert bool(record.sys_flag & STORE_HOST_V6) == (":" in store[0])
    assert record.total_size == len(data)
    assert check_record(data) is None


def test_every_cut_and_every_changed_byte_of_the_frame_is_noticed() -> None:
    for end in range(len(VECTOR)):
        assert check_record(VECTOR[:end]) is not None
        with pytest.raises(CorruptRecordError):
            decode_record(VECTOR[:end])
    framing = [*range(12), *range(28, 36), *range(84, 94), 100, 101]  # sizes, magic, crc, place, body
    for position in framing:
        broken = bytearray(VECTOR)
        broken[position] ^= 0x41
        assert check_record(bytes(broken), commitlog_offset=1000) is not None, position


@given(st.binary(max_size=200), st.integers(0, 110))
def test_garbage_is_refused_not_crashed_on(noise: bytes, position: int) -> None:
    data = VECTOR[:position] + noise
    valid = check_record(data, check_crc=False) is None
    try:
        decode_record(data)
    except CorruptRecordError:
        assert not valid


def test_the_reason_is_told() -> None:
    assert "magic" in (check_record(bytes(200)) or "")
    assert "crc" in (check_record(VECTOR.replace(b"hello", b"jello")) or "")
    assert "lies at" in (check_record(VECTOR, commitlog_offset=5) or "")
    with pytest.raises(CorruptRecordError, match="crc"):
        decode_record(VECTOR.replace(b"hello", b"jello"), check_crc=True)


def test_both_written_forms_of_properties() -> None:
    expected = {"KEYS": "k1", "WAIT": "true"}
    assert decode_properties(b"KEYS\x01k1\x02WAIT\x01true") == expected
    assert decode_properties(b"KEYS\x01k1\x02WAIT\x01true\x02") == expected
    assert encode_properties({**expected, "NONE": None}) == b"KEYS\x01k1\x02WAIT\x01true\x02"
    assert encode_properties({}) == b""


def test_items_java_ignores() -> None:
    assert decode_properties(b"\x02a\x01\x02\x01b\x02ab\x02x\x01y\x01z\x02") == {"x": "y\x01z"}


@given(st.dictionaries(names, names, max_size=6), st.booleans())
def test_properties_round_trip(properties: dict[str, str], trailing: bool) -> None:
    data = encode_properties(properties, trailing=trailing)
    assert decode_properties(data) == properties
    for name, value in properties.items():
        assert find_property(data, name.encode()) == value.encode()


def test_find_property_is_not_fooled_by_other_names() -> None:
    data = b"MYTAGS\x01no\x02v\x01TAGS\x01no\x02TAGS\x01yes"
    assert find_property(data, b"TAGS") == b"yes"
    assert find_property(data, b"AGS") is None
    assert find_property(b"TAGS\x01\x02", b"TAGS") is None
    assert find_property(b"KEYS\x01yes\x02X_KEYS\x01no\x02v\x01KEYS\x01no", b"KEYS") == b"yes"


# Few letters and both separators: names come twice, end in one another and stand in values.
@given(st.text(alphabet="ab\x01\x02", max_size=24), st.text(alphabet="ab", min_size=1, max_size=3))
@example("a\x011\x02a\x012\x02", "a")
@example("a\x011\x02a\x01\x02", "a")
@example("a\x011\x02ba\x012\x02b\x01a\x013", "a")
def test_one_property_is_what_all_of_them_say(text: str, name: str) -> None:
    expected = decode_properties(text.encode()).get(name)
    found = find_property(text.encode(), name.encode())
    assert (found and found.decode()) == expected
    assert properties.find(text, name) == expected == properties.parse(text).get(name)


def test_what_no_record_can_hold() -> None:
    with pytest.raises(LocalProtocolError):
        encode_record(topic="t", body=b"", properties=bytes(40000))
    with pytest.raises(LocalProtocolError):
        encode_record(topic="t" * 40000, body=b"")


@pytest.mark.parametrize("bits", [0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6])
def test_numpy_and_struct_read_the_same_head(bits: int) -> None:
    kind = head_dtype(bits)
    assert kind.itemsize == HEADS[bits].size
    assert kind.names == Head._fields
    assert kind.fields is not None
    for name in Head._fields:
        assert kind.fields[name][1] == places(name)[bits]
    born_store = (
        ("::1" if bits & BORN_HOST_V6 else "1.2.3.4", 5),
        ("::2" if bits & STORE_HOST_V6 else "5.6.7.8", 9),
    )
    raw = encode_record(
        topic="T",
        body=b"body",
        queue_id=1,
        flag=2,
        queue_offset=3,
        commitlog_offset=4,
        born_timestamp=5,
        born_host=born_store[0],
        store_timestamp=6,
        store_host=born_store[1],
        reconsume_times=7,
        prepared_transaction_offset=-8,
    )
    head = Head._make(HEADS[bits].unpack_from(raw))
    assert (head.sys_flag, head.body_size, head.total_size) == (bits, 4, len(raw))
    found = np.frombuffer(raw[: kind.itemsize], kind)[0]
    for name, value in head._asdict().items():
        assert (found[name].tobytes() if isinstance(value, bytes) else found[name]) == value
    few = head_subset("queue_offset", "body_size")[bits].unpack_from(raw)
    assert few == (3, 4)


def test_numpy_and_struct_read_the_same_queue_entry() -> None:
    raw = queue_entry.ENTRY.pack(1, 2, -3) * 3
    found = np.frombuffer(raw, queue_entry.entry_dtype())
    assert found[["place", "size", "code"]].tolist() == [(1, 2, -3)] * 3
    assert queue_entry.places_and_sizes(3).unpack(raw) == (1, 2) * 3
