"""Sending by both ways in, fast and general: topics, queues, batches, flushes, answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gimbalmq.errors import DiskFullError
from gimbalmq.model import properties as prop
from gimbalmq.model import topics as names
from gimbalmq.model.batch import encode_batch
from gimbalmq.model.ids import parse_offset_id, parse_unique_id
from gimbalmq.model.javahash import tag_hash
from gimbalmq.model.record import decode_record
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import BINARY_HEADER, JSON_HEADER, ONEWAY_FLAG, RemotingCommand
from gimbalmq.protocol.frames import FrameReader
from gimbalmq.protocol.serializers import decode_command, encode_frame
from tests.broker.desk import Desk, fields, open_desk, send_fields, turns
from tests.support import ManualClock, run, until

GENERAL = RequestCode.SEND_MESSAGE
FAST = RequestCode.SEND_MESSAGE_V2


@contextmanager
def general_way_counted(desk: Desk) -> Iterator[list[RemotingCommand]]:
    """Notes every 310 that the fast way did not take."""
    seen: list[RemotingCommand] = []
    handlers = desk.broker.handlers.by_code
    before = handlers[FAST]

    def note(channel: object, request: RemotingCommand) -> object:
        seen.append(request)
        return before(channel, request)  # type: ignore[arg-type]

    handlers[FAST] = note  # type: ignore[assignment]
    try:
        yield seen
    finally:
        handlers[FAST] = before


async def raw_exchange(desk: Desk, data: bytes, answers: int) -> list[RemotingCommand]:
    """Writes bytes in one go on a fresh socket and reads so many answers."""
    host, port = desk.broker.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        frames = FrameReader()
        found: list[RemotingCommand] = []
        while len(found) < answers:
            found += [decode_command(*frame) for frame in frames.feed(await reader.read(65536))]
        return found
    finally:
        writer.close()
        await writer.wait_closed()


# -- topics that are not there yet -----------------------------------------------------------


def test_unknown_topic_is_made_after_its_template(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            assert (await desk.client.send("new")).code == 0
            made = desk.broker.topics.find("new")
            assert made is not None
            assert (made.read_queue_nums, made.write_queue_nums, made.perm, made.topic_sys_flag) == (
                4,
                4,
                6,
                0,
            )
            # Never more queues than the template has, nor fewer than one.
            await desk.client.send("wide", defaultTopicQueueNums=99)
            await desk.client.send("narrow", defaultTopicQueueNums=0)
            wide, narrow = desk.broker.topics.find("wide"), desk.broker.topics.find("narrow")
            assert wide is not None and narrow is not None
            assert (wide.write_queue_nums, narrow.write_queue_nums) == (8, 1)
            await desk.client.send("unit", unitMode=True)
            unit = desk.broker.topics.find("unit")
            assert unit is not None and unit.topic_sys_flag == 1

    run(work())


def test_template_must_exist_and_let_others_inherit(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("plain")
            for template in ("plain", "absent"):
                answer = await desk.client.send("new", defaultTopic=template)
                assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            assert (await desk.client.send("new", defaultTopic="DefaultCluster")).code == 0

    run(work())


def test_no_topic_is_made_where_that_is_switched_off(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, autoCreateTopicEnable=False) as desk:
            assert "TBW102" not in desk.broker.topics
            answer = await desk.client.send("new")
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            assert "new" in (answer.remark or "") and "autoCreateTopicEnable=true" in (answer.remark or "")
            assert fields(answer) == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
            # Retry topics are made all the same.
            assert (await desk.client.send("%RETRY%g")).code == 0
            made = desk.broker.topics.find("%RETRY%g")
            assert made is not None and (made.write_queue_nums, made.perm) == (1, 6)

    run(work())


def test_a_template_left_by_an_earlier_run_does_not_switch_creation_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            await desk.restart(autoCreateTopicEnable=False)
            assert "TBW102" in desk.broker.topics
            assert (await desk.client.send("new")).code == ResponseCode.TOPIC_NOT_EXIST

    run(work())


def test_system_topics_take_no_messages_and_bad_names_are_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            for topic in sorted(names.FORBIDDEN_TO_SEND | {names.TIMER_TOPIC}):
                for code in (FAST, GENERAL):
                    answer = await desk.client.send(topic, code=code)
                    assert answer.code == ResponseCode.NO_PERMISSION and topic in (answer.remark or "")
            for topic in ("a b", "über", "x" * 128, " "):
                answer = await desk.client.send(topic)
                assert answer.code == ResponseCode.INVALID_PARAMETER, topic
                assert topic in (answer.remark or "") or "127" in (answer.remark or "") or not topic.strip()
                assert topic not in desk.broker.topics

    run(work())


# -- queues and permissions ------------------------------------------------------------------


def test_queue_id_must_be_one_of_the_topics(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T", 2, readQueueNums=3)
            for code in (FAST, GENERAL):
                # The larger of read and write numbers counts.
                assert (await desk.client.send(queue_id=2, code=code)).code == 0
                answer = await desk.client.send(queue_id=3, code=code)
                assert answer.code == ResponseCode.INVALID_PARAMETER
                assert "queueId[3]" in (answer.remark or "") and "0 to 2" in (answer.remark or "")
                seen = set()
                for _ in range(40):
                    answer = await desk.client.send(queue_id=-1, code=code)
                    seen.add(fields(answer)["queueId"])
                assert seen == {"0", "1"}, "a random one of the write queues"

    run(work())


def test_topic_and_broker_without_write_permission(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("readonly", perm=4)
            await desk.create("ordered", order=True)
            await desk.create("T")
            answer = await desk.client.send("readonly")
            assert answer.code == ResponseCode.NO_PERMISSION and "readonly" in (answer.remark or "")
            await desk.client.ok(RequestCode.UPDATE_BROKER_CONFIG, None, b"brokerPermission=4\n")
            # Order topics must not silently go on elsewhere; the rest is only steered away by routes.
            assert (await desk.client.send("ordered")).code == ResponseCode.NO_PERMISSION
            assert (await desk.client.send("T")).code == 0

    run(work())


# -- what is stored --------------------------------------------------------------------------


def test_stored_message_carries_hosts_cluster_and_unique_key(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            text = "TAGS\x01blue\x02KEYS\x01k1 k2\x02"
            for code in (FAST, GENERAL):
                answer = await desk.client.send(text=text, code=code, flag=7, bornTimestamp=123)
                assert answer.code == 0
                told = fields(answer)
                assert told["queueId"] == "0"
                record = desk.messages("T")[-1]
                unique = record.properties["UNIQ_KEY"]
                assert unique == told["transactionId"] and parse_unique_id(unique)
                assert record.properties["CLUSTER"] == "DefaultCluster"
                assert (record.properties["TAGS"], record.properties["KEYS"]) == ("blue", "k1 k2")
                assert (record.flag, record.born_timestamp, record.store_timestamp) == (7, 123, clock.wall)
                place = parse_offset_id(told["msgId"])
                assert place.commitlog_offset == record.commitlog_offset
                assert f"{place.ip}:{place.port}" == desk.broker.address
                assert record.store_host == ("127.0.0.1", desk.broker.port)
                born = (await desk.client.channel())._transport
                assert born is not None and record.born_host == born.get_extra_info("sockname")
                assert int(told["queueOffset"]) == record.queue_offset
                entry = desk.broker.store.entries("T", 0, record.queue_offset, 1)
                assert entry[0][2] == tag_hash("blue")

    run(work())


def test_both_header_encodings_store_the_same_message(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, ManualClock()) as desk:
            await desk.create("T")
            text = 'UNIQ_KEY\x01a"b\x02colour\x01蓝\x02TAGS\x01t\x02'
            answers = [await desk.client.send(text=text, encoding=e) for e in (JSON_HEADER, BINARY_HEADER)]
            assert [answer.serialize_type for answer in answers] == [JSON_HEADER, BINARY_HEADER]
            assert [answer.code for answer in answers] == [0, 0]
            first, second = (_neutral(desk, offset) for offset in (0, 1))
            assert first == second
            assert _neutral_answer(answers[0]) == _neutral_answer(answers[1])

    run(work())


def _neutral(desk: Desk, offset: int) -> bytes:
    """A stored record without its two places, which differ by nature."""
    raw = desk.broker.store.record_at_queue("T", 0, offset)
    assert raw is not None
    return raw[:20] + raw[36:]


def _neutral_answer(answer: RemotingCommand) -> tuple[object, ...]:
    told = {k: v for k, v in fields(answer).items() if k not in ("msgId", "queueOffset")}
    return answer.code, answer.remark, answer.flag, answer.language, answer.version, told, bytes(answer.body)


_chars = st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"])
_names = st.one_of(
    st.sampled_from(
        ["TAGS", "KEYS", "MYTAGS", "TAGSX", "MYUNIQ_KEY", "UNIQ_KEYS", "MYWAIT", "WAIT", "KEYSTAGS"]
    ),
    st.text(_chars, min_size=1, max_size=8),
)
_values = st.one_of(
    st.sampled_from(["TAGS\x01x", "UNIQ_KEY\x01y", "false", "true", '"', "\\", "蓝", "\x00", "'"]),
    st.text(_chars, min_size=1, max_size=12),
)


@pytest.fixture
def live_desk(tmp_path: Path) -> Iterator[tuple[asyncio.Runner, Desk]]:
    """A broker that lives through the many examples of one test."""
    with asyncio.Runner() as runner:
        manager = open_desk(tmp_path, ManualClock())
        desk = runner.run(manager.__aenter__())
        runner.run(desk.create("T"))
        yield runner, desk
        runner.run(manager.__aexit__(None, None, None))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    items=st.dictionaries(_names, _values, max_size=6),
    unique=st.text(_chars, min_size=1, max_size=20),
    place=st.integers(0, 6),
    trailing=st.booleans(),
    body=st.binary(min_size=1, max_size=40),
    flag=st.integers(-(2**31), 2**31 - 1),
    compressed=st.sampled_from([0, 1, 0x101, 0x201, 0x301]),
    born=st.integers(0, 2**62),
    again=st.integers(0, 20),
)
def test_fast_and_general_way_agree(
    live_desk: tuple[asyncio.Runner, Desk],
    items: dict[str, str],
    unique: str,
    place: int,
    trailing: bool,
    body: bytes,
    flag: int,
    compressed: int,
    born: int,
    again: int,
) -> None:
    """Byte for byte on the stored record and its queue entry, field by field on the answer."""
    runner, desk = live_desk
    pairs = [pair for pair in items.items() if pair[0] not in ("UNIQ_KEY", "CLUSTER")]
    pairs.insert(place, ("UNIQ_KEY", unique))
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs) + ("\x02" if trailing else "")

    async def both() -> None:
        start = len(desk.messages("T"))
        options: dict[str, Any] = {"flag": flag, "sysFlag": compressed, "bornTimestamp": born}
        options["reconsumeTimes"] = again
        fast, general = [
            await desk.client.send(body=body, text=text, code=code, **options) for code in (FAST, GENERAL)
        ]
        assert _neutral_answer(fast) == _neutral_answer(general)
        assert fields(fast)["transactionId"] == unique
        assert _neutral(desk, start) == _neutral(desk, start + 1)
        (one, other) = desk.broker.store.entries("T", 0, start, 2)
        assert one[1:] == other[1:]
        found = desk.messages("T")[start]
        assert found.properties == dict(pairs) | {"CLUSTER": "DefaultCluster"}
        if start > 50:
            desk.broker.store.delete_topic("T")
            desk.broker.topics.generation += 1

    runner.run(both())


def test_the_fast_way_takes_plain_messages_and_only_those(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            with general_way_counted(desk) as general:
                await desk.client.send(properties={"MYTAGS": "x"})
                assert not general
                for text in (
                    "",  # no unique key: one must be made
                    "UNIQ_KEY\x01\x02",
                    "UNIQ_KEY\x01",
                    "UNIQ_KEY\x01u\x02A\x01\x02B\x01b\x02",  # items without value vanish
                    "UNIQ_KEY\x01u\x02UNIQ_KEY\x01v\x02",  # the last one counts
                    "UNIQ_KEY\x01u\x02DELAY\x011\x02",
                    "UNIQ_KEY\x01u\x02TIMER_DELAY_SEC\x013\x02",
                    "UNIQ_KEY\x01u\x02TRAN_MSG\x01true\x02",
                    "UNIQ_KEY\x01u\x02CLUSTER\x01other\x02",
                ):
                    before = len(general)
                    assert (await desk.client.send(text=text)).code == 0
                    assert len(general) == before + 1, repr(text)
            stored = desk.messages("T")
            assert [r.properties["UNIQ_KEY"] for r in stored].count("v") == 1
            assert all(record.properties["UNIQ_KEY"] for record in stored)
            assert all(record.properties["CLUSTER"] == "DefaultCluster" for record in stored)
            assert [r.properties.get("A") for r in stored if r.properties.get("B")] == [None]

    run(work())


def test_order_within_a_connection_is_kept_when_the_ways_alternate(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            wanted, data = [], b""
            for number in range(60):
                body = b"%d" % number
                wanted.append(body)
                text = f"UNIQ_KEY\x01u{number}\x02" if number % 3 else f"A\x01{number}\x02"
                request = RemotingCommand(FAST, send_fields("T", text=text), body, opaque=number)
                if number % 5 == 4:
                    request.serialize_type = BINARY_HEADER
                data += encode_frame(request)
            with general_way_counted(desk) as general:
                answers = await raw_exchange(desk, data, 60)
            assert 20 < len(general) < 60
            assert desk.bodies("T") == wanted
            assert [answer.opaque for answer in answers] == list(range(60))
            assert [int(fields(answer)["queueOffset"]) for answer in answers] == list(range(60))
            # Nothing is lost from the statistics where one way ends and the other begins.
            counter = desk.broker.stats.find("TOPIC_PUT_NUMS", "T")
            size = desk.broker.stats.find("TOPIC_PUT_SIZE", "T")
            assert counter is not None and counter.value == 60 == desk.broker.stats.put_total.value
            assert size is not None and size.value == sum(map(len, wanted))

    run(work())


def test_one_way_messages_are_stored_and_get_no_answer(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            data = b""
            for number, text in enumerate(
                ("UNIQ_KEY\x01u\x02", "A\x01no key\x02", "UNIQ_KEY\x01v\x02DELAY\x01x\x02")
            ):
                oneway = RemotingCommand(
                    FAST, send_fields("T", text=text), b"quiet", opaque=number, flag=ONEWAY_FLAG
                )
                data += encode_frame(oneway)
            data += encode_frame(RemotingCommand(FAST, send_fields("T"), b"loud", opaque=99))
            (answer,) = await raw_exchange(desk, data, 1)
            assert (answer.opaque, answer.code) == (99, 0)
            # The third was refused (its delay is no number), and nobody is told.
            assert desk.bodies("T") == [b"quiet", b"quiet", b"loud"]

    run(work())


def test_region_and_trace_switch_changed_at_run_time_show_in_both_ways(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            await desk.client.send()
            await desk.client.ok(RequestCode.UPDATE_BROKER_CONFIG, None, b"regionId=West\ntraceOn=false\n")
            for code in (FAST, GENERAL):
                told = fields(await desk.client.send(code=code))
                assert (told["MSG_REGION"], told["TRACE_ON"]) == ("West", "false")

    run(work())


# -- batches ---------------------------------------------------------------------------------


def _batch(*items: tuple[bytes, dict[str, str]]) -> bytes:
    return encode_batch((0, body, prop.dump(properties).encode()) for body, properties in items)


def test_batch_becomes_single_messages_side_by_side(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            await desk.client.send(body=b"before")
            body = _batch(*((b"m%d" % n, {"UNIQ_KEY": f"u{n}", "TAGS": f"t{n}"}) for n in range(3)))
            for code in (RequestCode.SEND_BATCH_MESSAGE, FAST, GENERAL):
                # The field decides, not the code.
                answer = await desk.client.send(
                    body=body, code=code, batch=True, text="UNIQ_KEY\x01u0,u1,u2\x02"
                )
                assert answer.code == 0
            told = fields(answer)
            assert told["queueOffset"] == "7" and told["transactionId"] == "u0,u1,u2"
            stored = desk.messages("T")[7:]
            assert [record.body for record in stored] == [b"m0", b"m1", b"m2"]
            assert [record.properties["UNIQ_KEY"] for record in stored] == ["u0", "u1", "u2"]
            offsets = [parse_offset_id(text).commitlog_offset for text in told["msgId"].split(",")]
            assert offsets == [record.commitlog_offset for record in stored]
            entries = desk.broker.store.entries("T", 0, 7, 3)
            assert [tags for _, _, tags in entries] == [tag_hash(f"t{n}") for n in range(3)]
            # Without the field it is one message whose body happens to be a batch.
            await desk.client.send(body=body, code=RequestCode.SEND_BATCH_MESSAGE)
            assert desk.bodies("T")[-1] == body

    run(work())


@pytest.mark.parametrize("count", [3, 300], ids=["message by message", "by vectors"])
def test_a_sender_that_says_so_is_told_the_first_message_id_only(count: int, tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            body = _batch(*((b"m" * 50, {}) for _ in range(count)))
            ext = send_fields("T", batch=True)
            every = fields(await desk.client.ask(RequestCode.SEND_BATCH_MESSAGE, ext, body))
            assert len(every["msgId"].split(",")) == count
            first = fields(
                await desk.client.ask(RequestCode.SEND_BATCH_MESSAGE, ext | {"firstMsgIdOnly": "true"}, body)
            )
            stored = desk.messages("T")
            assert first["queueOffset"] == str(count)
            assert parse_offset_id(first["msgId"]).commitlog_offset == stored[count].commitlog_offset

    run(work())


@pytest.mark.parametrize(
    ("topic", "body", "word"),
    [
        ("%RETRY%g", _batch((b"m", {})), "%RETRY%g"),
        ("T", b"", "empty"),
        ("T", _batch((b"", {})), "empty"),
        ("T", _batch((b"m", {"DELAY": "3"})), "delayed"),
        ("T", b"\0\0\0\1garbage", "byte 0"),
        ("T", _batch((b"m", {})) + b"\0\0\0", "byte 23"),
        ("T", _batch(*[(b"m", {})] * 2000, (b"m", {"A": "x" * 32_750})), "32767"),
        ("T", _batch(*[(b"m", {"A": "x" * 32_750})] * 50), "32767"),
        ("T", _batch((b"m", {"A": "\0" * 512})), "NUL"),
        ("T", _batch(*[(b"m", {"A": "\0" * 512})] * 50), "NUL"),
        ("T", _batch(*[(b"m", {})] * 2000, (b"m", {"A": "\0" * 512})), "NUL"),
    ],
    ids=[
        *("retry topic", "nothing", "empty body", "delay", "garbage", "cut off", "long", "all long"),
        *("zeros", "all zeros", "zeros behind"),
    ],
)
def test_batches_that_are_refused_store_nothing(tmp_path: Path, topic: str, body: bytes, word: str) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            end = desk.broker.store.max_commitlog_offset
            answer = await desk.client.send(topic, body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL and word in (answer.remark or "")
            assert desk.broker.store.max_commitlog_offset == end

    run(work())


@pytest.mark.parametrize("count", [3, 300], ids=["message by message", "by vectors"])
def test_a_batch_whose_time_fits_no_record_is_refused(count: int, tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            ext = send_fields("T", batch=True, bornTimestamp=1 << 70)
            answer = await desk.client.ask(RequestCode.SEND_BATCH_MESSAGE, ext, _batch(*[(b"m", {})] * count))
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL and "bornTimestamp" in (answer.remark or "")
            assert (await desk.client.send()).code == 0

    run(work())


def test_a_batch_of_many_is_stored_by_vectors_though_its_first_message_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one, tens of thousands would hold up everybody else for seconds."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            monkeypatch.setattr("gimbalmq.broker.handlers.send.split_batch", None)
            body = _batch((b"l" * 20_000, {}), *[(b"m", {})] * 2500)
            answer = await desk.client.send(body=body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
            assert (answer.code, len(desk.messages("T"))) == (0, 2501)

    run(work())


@pytest.mark.parametrize("lengths", [1, 3])
def test_a_batch_of_many_is_stored_by_vectors_though_its_properties_end_without_a_mark(
    lengths: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's clients of 4.9.1 to 5.1.4 write none behind the last value."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T", 2)
            body = encode_batch(
                (0, b"m" * (1 + n % lengths), b"KEYS\x01k%03d\x02WAIT\x01true\x02TAGS\x01t%03d" % (n, n))
                for n in range(100)
            )
            code = RequestCode.SEND_BATCH_MESSAGE
            with monkeypatch.context() as patch:
                patch.setattr("gimbalmq.broker.handlers.send.split_batch", None)
                answer = await desk.client.send(body=body, code=code, batch=True, text="WAIT\x01true")
            monkeypatch.setattr("gimbalmq.store.batch_items.read_items", lambda _: None)
            await desk.client.send(body=body, code=code, batch=True, text="WAIT\x01true", queue_id=1)
            ids = fields(answer)["msgId"].split(",")
            store = desk.broker.store
            for n, (one, other) in enumerate(
                zip(*(store.entries("T", q, 0, 200) for q in (0, 1)), strict=True)
            ):
                assert (int(ids[n][-16:], 16), one[1:]) == (one[0], other[1:])
            for one, other in zip(desk.messages("T"), desk.messages("T", 1), strict=True):
                assert (one.body, list(one.properties.items())) == (
                    other.body,
                    list(other.properties.items()),
                )
            assert len(ids) == len(desk.messages("T")) == 100

    run(work())


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"body": b""}, ["empty"]),
        ({"body": b"x" * 1001}, ["1001", "maxMessageSize is 1000"]),
        ({"properties": {"A": "x" * 32_760}}, ["32767"]),
        ({"properties": {"A": "\U0001f600" * 8_183}}, ["32767"]),
        # Recovery takes it for a sector that was never written, and what followed was lost by a crash.
        ({"properties": {"A": "\0" * 600}}, ["512 NUL"]),
        ({"properties": {"DELAY": "soon"}}, ["DELAY", "'soon'"]),
        ({"properties": {"TIMER_DELAY_SEC": "soon"}}, ["TIMER_DELAY_SEC", "'soon'"]),
        ({"properties": {"TIMER_DELAY_SEC": str(4 * 86_400)}}, ["259200s", "timerMaxDelaySec"]),
        ({"bornTimestamp": 1 << 70}, ["bornTimestamp"]),
        ({"flag": 1 << 31}, ["flag"]),
        ({"sysFlag": 1 << 40}, ["sysFlag"]),
        # It was stored, answered and read, and gone after a crash.
        ({"sysFlag": 0x81}, ["sysFlag 129", "batch queues"]),
        ({"reconsumeTimes": -(1 << 40)}, ["reconsumeTimes"]),
    ],
)
def test_illegal_message_is_refused_by_name_and_harms_nobody(
    tmp_path: Path, change: dict[str, object], words: list[str]
) -> None:
    """One connection's nonsense must not end it, nor the broker: the fast way once left its group open."""

    async def work() -> None:
        async with open_desk(tmp_path, maxMessageSize=1000) as desk:
            await desk.create("T")
            for code in (FAST, GENERAL):
                before = await desk.client.send(body=b"before", code=FAST)
                answer = await desk.client.send(code=code, **change)  # type: ignore[arg-type]
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL, answer
                for word in words:
                    assert word in (answer.remark or ""), answer.remark
                after = await desk.new_client().send(body=b"after")
                assert int(fields(after)["queueOffset"]) == int(fields(before)["queueOffset"]) + 1

    run(work())


def test_header_without_its_fields_is_refused_by_name(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            for missing in "abcdefgh":
                ext = send_fields("T")
                del ext[missing]
                answer = await desk.client.ask(FAST, ext, b"x")
                if missing in "acd":
                    continue  # the fast way does not need them
                assert answer.code != 0 and f"`{missing}`" in (answer.remark or "")
            answer = await desk.client.ask(FAST, send_fields("T") | {"e": "first"}, b"x")
            assert answer.code != 0 and "$.e" in (answer.remark or "")

    run(work())


def test_read_only_store_answers_14_and_says_why(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, flushIntervalCommitLog=60_000) as desk:
            await desk.create("T")
            store = desk.broker.store
            write, failing = store.log.write, True

            def full(chunks: object) -> None:
                if failing:
                    raise DiskFullError("commitlog: No space left on device")
                write(chunks)  # type: ignore[arg-type]

            store.log.write = full  # type: ignore[method-assign, assignment]
            data = b"".join(
                encode_frame(RemotingCommand(FAST, send_fields("T"), b"x", opaque=n)) for n in range(3)
            )
            answers = await raw_exchange(desk, data, 3)
            assert [(a.opaque, a.code) for a in answers] == [(n, 14) for n in range(3)]
            assert "No space left" in (answers[0].remark or "")
            # From now on it is refused before anything is tried.
            for code in (FAST, GENERAL):
                answer = await desk.client.send(code=code)
                assert answer.code == 14 and "No space left" in (answer.remark or "")
                assert fields(answer)["TRACE_ON"] == "true"
            assert desk.messages("T") == []
            failing = False
            assert store.probe_writable()
            assert (await desk.client.send(body=b"room again")).code == 0
            assert desk.bodies("T") == [b"room again"]

    run(work())


# -- synchronous flushing --------------------------------------------------------------------


class Gate:
    """A store's flush that waits for the test."""

    def __init__(self, desk: Desk) -> None:
        self._real: Callable[[], int] = desk.broker.store.flush
        self.open = threading.Event()
        self.calls = 0
        desk.broker.store.flush = self.flush  # type: ignore[method-assign]

    def flush(self) -> int:
        self.calls += 1
        assert self.open.wait(20)
        return self._real()


@pytest.mark.parametrize("code", [FAST, GENERAL])
def test_synchronous_flush_answers_only_after_the_flush(tmp_path: Path, code: int) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, flushDiskType="SYNC_FLUSH", flushIntervalCommitLog=60_000) as desk:
            await desk.create("T")
            gate = Gate(desk)
            sends = [asyncio.ensure_future(desk.client.send(body=b"%d" % n, code=code)) for n in range(5)]
            await until(lambda: gate.calls == 1 and len(desk.messages("T")) == 5)
            await turns()
            assert not any(send.done() for send in sends)
            # One that does not want to wait is answered at once; a name that only ends in WAIT is none.
            quick = await desk.client.send(code=code, properties={"WAIT": "false"})
            assert quick.code == 0
            slow = asyncio.ensure_future(desk.client.send(code=code, properties={"MYWAIT": "false"}))
            await until(lambda: len(desk.messages("T")) == 7)
            await turns()
            assert not slow.done()
            gate.open.set()
            assert [answer.code for answer in await asyncio.gather(*sends, slow)] == [0] * 6
            assert gate.calls <= 3, "sends that arrive during a flush share the next one"

    run(work())


@pytest.mark.parametrize("code", [FAST, GENERAL])
def test_flush_that_takes_too_long_answers_10_with_the_place(tmp_path: Path, code: int) -> None:
    async def work() -> None:
        async with open_desk(
            tmp_path, flushDiskType="SYNC_FLUSH", syncFlushTimeout=30, flushIntervalCommitLog=60_000
        ) as desk:
            await desk.create("T")
            gate = Gate(desk)
            answer = await desk.client.send(code=code)
            assert answer.code == 10
            assert fields(answer)["queueOffset"] == "0" and fields(answer)["msgId"]
            gate.open.set()
            await desk.client.ok(RequestCode.UPDATE_BROKER_CONFIG, None, b"syncFlushTimeout=15000")
            assert (await desk.client.send(code=code)).code == 0

    run(work())


def test_flush_that_fails_answers_10(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, flushDiskType="SYNC_FLUSH", flushIntervalCommitLog=60_000) as desk:
            await desk.create("T")

            def fail() -> int:
                raise DiskFullError("no")

            real, desk.broker.store.flush = desk.broker.store.flush, fail  # type: ignore[method-assign]
            for code in (FAST, GENERAL):
                assert (await desk.client.send(code=code)).code == ResponseCode.FLUSH_DISK_TIMEOUT
            desk.broker.store.flush = real  # type: ignore[method-assign]

    run(work())


def test_asynchronous_flush_happens_by_itself(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, flushIntervalCommitLog=10) as desk:
            await desk.create("T")
            await desk.client.send()
            store = desk.broker.store
            await until(lambda: store.flushed_offset == store.max_commitlog_offset > 0)

    run(work())


def test_no_memory_between_two_messages_of_a_run_leaves_no_group_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            fast = desk.broker.handlers.batches[b"310"].__wrapped__.__self__  # type: ignore[attr-defined]
            read = fast._read_tail

            def short(text: str) -> object:
                if "SHORT" in text:
                    raise MemoryError
                return read(text)

            monkeypatch.setattr(fast, "_read_tail", short)
            frames = [
                RemotingCommand(FAST, send_fields("T", properties=properties), b"x", opaque=number)
                for number, properties in enumerate(({"A": "a"}, {"SHORT": "b"}), 1)
            ]
            reported: list[dict[str, Any]] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
            channel = await desk.client.channel()
            channel.send_bytes(b"".join(map(encode_frame, frames)))
            await until(lambda: channel.closed)
            assert [type(context["exception"]) for context in reported] == [MemoryError]
            assert desk.messages("T") == []  # the first one was not answered either
            assert (await desk.client.send(body=b"next")).code == 0
            assert desk.bodies("T") == [b"next"]

    run(work())


def test_what_is_remembered_of_properties_is_bounded(tmp_path: Path) -> None:
    """The fast way keeps the repeating part of properties; parts that never repeat must not pile up."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            data = b"".join(
                encode_frame(
                    RemotingCommand(FAST, send_fields("T", properties={"K": f"{n}" * length}), b"x", opaque=n)
                )
                for length in (1, 400)
                for n in range(2500)
            )
            await raw_exchange(desk, data, 5000)
            send = desk.broker.handlers.batches[b"310"].__wrapped__.__self__  # type: ignore[attr-defined]
            assert len(send._tails) <= 4096 and max(map(len, send._tails)) <= 512
            assert len(desk.messages("T")) == 5000

    run(work())


# -- replies ---------------------------------------------------------------------------------


def test_reply_goes_straight_to_the_client_that_asked(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            asker = desk.new_client()
            asker.answers[326] = b""
            await asker.heartbeat("asker", producer="pg")
            end = desk.broker.store.max_commitlog_offset
            answer = await desk.client.send(
                "DefaultCluster_REPLY_TOPIC",
                b"42",
                code=RequestCode.SEND_REPLY_MESSAGE_V2,
                properties={"REPLY_TO_CLIENT": "asker", "CORRELATION_ID": "c"},
            )
            assert answer.code == 0
            (push,) = await asker.heard_code(326)
            told = fields(push)
            assert bytes(push.body) == b"42"
            assert prop.parse(told["properties"])["CORRELATION_ID"] == "c"
            assert told["storeHost"] == desk.broker.address
            assert desk.broker.store.max_commitlog_offset == end, "a reply is not stored"
            answer = await desk.client.send(
                "DefaultCluster_REPLY_TOPIC",
                b"42",
                code=RequestCode.SEND_REPLY_MESSAGE_V2,
                properties={"REPLY_TO_CLIENT": "gone"},
            )
            assert answer.code == 1 and "<gone>" in (answer.remark or "")

    run(work())


def test_record_larger_than_a_log_file_is_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, mappedFileSizeCommitLog=4096) as desk:
            await desk.create("T")
            for code in (FAST, GENERAL):
                answer = await desk.client.send(body=b"x" * 5000, code=code)
                assert answer.code == 13 and "4096" in (answer.remark or "")
                assert (await desk.client.send()).code == 0
            assert [decode_record(raw).body for raw in _all_raw(desk)] == [b"body", b"body"]

    run(work())


def _all_raw(desk: Desk) -> list[bytes]:
    raws = (desk.broker.store.record_at_queue("T", 0, offset) for offset in range(2))
    return [raw for raw in raws if raw is not None]
