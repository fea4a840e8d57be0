"""Sends that are alike are taken by vectors: the same records, entries, keys and answers as one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gimbalmq.broker.handlers import send_fast, send_runs
from gimbalmq.broker.handlers.send_header import decode_header
from gimbalmq.errors import DiskFullError
from gimbalmq.model.flags import PERM_READ
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import ONEWAY_FLAG, RemotingCommand
from gimbalmq.protocol.frames import Frame, FrameReader
from gimbalmq.protocol.serializers import decode_command, encode_frame
from gimbalmq.store.append import KeyRun
from gimbalmq.store.index_keys import hashed_keys
from tests.broker.desk import Desk, fields, open_desk, send_fields
from tests.support import ManualClock, run, until

LEAST = send_fast._LEAST_RUN
SEND = int(RequestCode.SEND_MESSAGE_V2)


class Line:
    """A connection as far as the fast way needs one; notes what is written and what goes the plain way."""

    def __init__(self, host: bytes = b"\x0a\0\0\x01\0\0\0\x05") -> None:
        self.peer_bytes = host
        self.address = "10.0.0.1:5"
        self.written = bytearray()
        self.plain: list[Frame] = []
        self.waiting = 0

    def send_bytes(self, data: bytes) -> None:
        self.written += data

    def send(self, command: RemotingCommand) -> None:
        self.written += encode_frame(command)

    def handle_frame(self, frame: Frame) -> None:
        self.plain.append(frame)

    def began(self, count: int) -> None:
        self.waiting += count

    def finished(self, count: int) -> None:
        self.waiting -= count

    def answers(self) -> list[RemotingCommand]:
        found = [decode_command(*frame) for frame in FrameReader().feed(bytes(self.written))]
        self.written.clear()
        return found


def frame(
    number: int,
    text: str,
    body: bytes = b"body",
    *,
    queue_id: int = 0,
    topic: str = "T",
    header_flag: int = 0,
    **changed: object,
) -> Frame:
    ext = send_fields(topic, queue_id, None, text, **changed)
    command = RemotingCommand(SEND, ext, body, opaque=100_000 + number, language="JAVA", flag=header_flag)
    (made,) = FrameReader().feed(encode_frame(command))
    return made


def texts(count: int, form: str = "UNIQ_KEY\x01ID{0:05}\x02WAIT\x01true\x02") -> list[str]:
    return [form.format(number) for number in range(count)]


class Bench:
    """A broker, and lines to its fast way."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.runs: list[int] = []
        """How many frames each call has taken by vectors."""

    def take(self, line: Line, frames: list[Frame]) -> None:
        handler: Callable[[Any, list[Frame]], int] = self.desk.broker.handlers.batches[b"310"]
        while frames:
            frames = frames[handler(line, frames) :]

    def raw(self, queue_id: int, offset: int) -> bytes:
        """A record without its places."""
        raw = self.desk.broker.store.record_at_queue("T", queue_id, offset)
        assert raw is not None
        return raw[:20] + raw[36:]

    def end(self, queue_id: int) -> int:
        found = self.desk.broker.store.find_queue("T", queue_id)
        return 0 if found is None else found.max_offset

    def keys(self) -> list[int]:
        """Hashes of the keys that wait, which wait no longer then."""
        index = self.desk.broker.store._index
        assert index is not None
        found = hashed_keys(index.pending, index.end_offset, has_runs=True)
        index.build()
        return [] if found is None else found[0].tolist()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[asyncio.Runner, Bench]]:
    with asyncio.Runner() as runner:
        manager = open_desk(tmp_path, ManualClock())
        desk = runner.run(manager.__aenter__())
        runner.run(desk.create("T", 4))
        made = Bench(desk)
        before = send_fast.FastSendHandlers._take_run

        def noted(self: Any, *arguments: Any) -> int:
            made.runs.append(before(self, *arguments))
            return made.runs[-1]

        monkeypatch.setattr(send_fast.FastSendHandlers, "_take_run", noted)
        yield runner, made
        runner.run(manager.__aexit__(None, None, None))


def told(answer: RemotingCommand) -> tuple[object, ...]:
    rest = {name: text for name, text in fields(answer).items() if name not in ("msgId", "queueOffset")}
    return answer.opaque, answer.code, answer.flag, answer.language, answer.version, answer.remark, rest


def both_ways(
    bench: Bench, frames: list[Frame], queue_ids: list[int], host: bytes = b"\x0a\0\0\x01\0\0\0\x05"
) -> None:
    """The frames in one go, then one by one."""
    bench.keys()
    line, other = Line(host), Line(host)
    starts = {queue_id: bench.end(queue_id) for queue_id in set(queue_ids)}
    bench.take(line, frames)
    keys = bench.keys()
    middles = {queue_id: bench.end(queue_id) for queue_id in starts}
    for each in frames:
        bench.take(other, [each])
    assert bench.keys() == keys
    assert not line.plain
    assert not other.plain
    first, second = line.answers(), other.answers()
    assert sorted(map(told, first), key=repr) == sorted(map(told, second), key=repr)
    by_opaque = {answer.opaque: fields(answer) for answer in first}
    store = bench.desk.broker.store
    for queue_id, start in starts.items():
        middle, end = middles[queue_id], bench.end(queue_id)
        assert middle - start == end - middle == queue_ids.count(queue_id)
        assert [bench.raw(queue_id, at) for at in range(start, middle)] == [
            bench.raw(queue_id, at) for at in range(middle, end)
        ]
        entries = store.entries("T", queue_id, start, end - start)
        assert [entry[1:] for entry in entries[: middle - start]] == [
            entry[1:] for entry in entries[middle - start :]
        ]
        sent = [each for each, at in zip(frames, queue_ids, strict=True) if at == queue_id]
        for offset, (each, entry) in enumerate(zip(sent, entries, strict=False), start):
            answer = by_opaque[decode_header(each[1]).opaque]
            assert (answer["queueOffset"], int(answer["msgId"][-16:], 16)) == (str(offset), entry[0])


@pytest.mark.parametrize(("least", "sizes"), [(1, 50), (50, 1), (2000, 1)])
def test_a_run_is_stored_and_answered_as_one_by_one(
    bench: tuple[asyncio.Runner, Bench], least: int, sizes: int
) -> None:
    """Bodies of many sizes, of one, and of one for which its records are put together in another way."""
    runner, made = bench

    async def work() -> None:
        count = LEAST * 2
        queue_ids = [number * number % 4 for number in range(count)]
        frames = [
            frame(
                number, text, bytes([65 + number % 26]) * (least + number % sizes), queue_id=queue_ids[number]
            )
            for number, text in enumerate(texts(count))
        ]
        both_ways(made, frames, queue_ids)
        assert made.runs[0] == count
        both_ways(made, frames, queue_ids, bytes(16) + b"\0\0\0\x07")

    runner.run(work())


_forms = st.sampled_from(
    [
        "UNIQ_KEY\x01ID{0:05}\x02WAIT\x01true\x02",
        "UNIQ_KEY\x01ID{0:05}\x02WAIT\x01true\x02TAGS\x01tag{1}\x02",
        "KEYS\x01order-{0:06} k{1} same\x02UNIQ_KEY\x01ID{0:05}\x02TAGS\x01t{1}",
        'UNIQ_KEY\x01ID{0:05}\x02KEYS\x01a{1}\x02colour\x01蓝\x02x\x01"\\\x02',
        "UNIQ_KEY\x01ID-{0:05}.{1}:\x02MYKEYS\x01z\x02MYTAGS\x01y\x02",
        "A\x01b\x02UNIQ_KEY\x01ID{0:05}\x02KEYS\x01k  {1}\x02TAGS\x01t\x02TAGS\x01u\x02",
    ]
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    form=_forms,
    flag=st.integers(-(2**31), 2**31 - 1),
    compressed=st.sampled_from([0, 1, 0x101, 0x301]),
    born=st.integers(1, 10**17),
    again=st.integers(0, 20),
    queues=st.integers(1, 4),
)
def test_any_run_is_stored_and_answered_as_one_by_one(
    bench: tuple[asyncio.Runner, Bench],
    form: str,
    flag: int,
    compressed: int,
    born: int,
    again: int,
    queues: int,
) -> None:
    runner, made = bench
    made.runs.clear()
    changed: dict[str, Any] = {"flag": flag, "sysFlag": compressed, "reconsumeTimes": again}

    async def work() -> None:
        queue_ids = [number % queues for number in range(LEAST)]
        frames = [
            frame(
                number,
                form.format(number, number % 7),
                queue_id=queue_ids[number],
                bornTimestamp=born + number % 9,
                **changed,
            )
            for number in range(LEAST)
        ]
        both_ways(made, frames, queue_ids)

    runner.run(work())
    if len(str(born)) == len(str(born + 8)):
        assert made.runs[0] == LEAST, form


_kinds = [
    ("UNIQ_KEY\x01ID{0:05}\x02WAIT\x01true\x02TAGS\x01paid\x02", {}),
    ("UNIQ_KEY\x01ID{0:05}\x02KEYS\x01order-{0:04} k{1}\x02", {"flag": -7, "reconsumeTimes": 3}),
    ("UNIQ_KEY\x01ID{0:05}\x02WAIT\x01true\x02TAGS\x01{1:04}\x02", {"sysFlag": 0x101}),
    ("UNIQ_KEY\x01{0}\x02KEYS\x01{2} 蓝\x02TAGS\x01{2}\x02", {"flag": 5, "sysFlag": 1}),
]
"""Of the last no two are equally long."""


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    order=st.lists(st.sampled_from([0, 0, 0, 1, 1, 1, 2, 2, 2, 3]), min_size=LEAST * 2, max_size=LEAST * 2),
    queues=st.integers(1, 4),
)
def test_a_run_of_several_kinds_is_stored_and_answered_as_one_by_one(
    bench: tuple[asyncio.Runner, Bench], order: list[int], queues: int
) -> None:
    runner, made = bench
    made.runs.clear()

    async def work() -> None:
        queue_ids = [number * 7 % 5 % queues for number in range(len(order))]
        frames = [
            frame(
                number,
                _kinds[kind][0].format(number, number % 7, "x" * (number + 1)),
                b"b" * (1 + number % 40),
                queue_id=queue_ids[number],
                bornTimestamp=1_700_000_000_000 + number,
                **_kinds[kind][1],  # type: ignore[arg-type]
            )
            for number, kind in enumerate(order)
        ]
        both_ways(made, frames, queue_ids)

    runner.run(work())
    counts = [order.count(kind) for kind in range(3)]
    if min(counts) >= send_runs._LEAST_PART:
        assert made.runs[0] == len(order)


def test_a_run_may_have_several_topics_and_each_counts_what_it_got(
    bench: tuple[asyncio.Runner, Bench],
) -> None:
    runner, made = bench

    async def work() -> None:
        await made.desk.create("U", 4)
        line = Line()
        topics = [("T", "U", "U")[number % 3] for number in range(LEAST * 2)]
        topics[20:22] = "T", "U"
        odd = {20: "UNIQ_KEY\x01one that is longer\x02", 21: "UNIQ_KEY\x01short\x02"}
        frames = [
            frame(n, odd.get(n, text), b"x" * (1 + n % 5), topic=topics[n], queue_id=n % 4)
            for n, text in enumerate(texts(LEAST * 2))
        ]
        made.take(line, frames)
        assert made.runs == [LEAST * 2]
        answers = {answer.opaque - 100_000: fields(answer) for answer in line.answers()}
        store = made.desk.broker.store
        ends: dict[tuple[str, int], int] = {}
        for number, topic in enumerate(topics):
            offset = ends.get((topic, number % 4), 0)
            ends[topic, number % 4] = offset + 1
            answer = answers[number]
            assert (answer["queueId"], answer["queueOffset"]) == (str(number % 4), str(offset))
            (entry,) = store.entries(topic, number % 4, offset, 1)
            assert int(answer["msgId"][-16:], 16) == entry[0]
            raw = store.record_at_queue(topic, number % 4, offset)
            assert raw is not None
            assert odd.get(number, f"ID{number:05}").encode() in raw
            assert b"\x01" + topic.encode() + b"\0" in raw[-200:]  # between body and properties
        places = [int(answers[number]["msgId"][-16:], 16) for number in range(len(topics))]
        assert places == sorted(places)
        stats = made.desk.broker.stats
        for topic in "TU":
            sent = [len(each[2]) for each, other in zip(frames, topics, strict=True) if other == topic]
            assert stats.item("TOPIC_PUT_NUMS", topic).value == len(sent)
            assert stats.item("TOPIC_PUT_SIZE", topic).value == sum(sent)

    runner.run(work())


def test_a_connection_whose_sends_are_of_too_many_kinds_is_not_asked_every_time(
    bench: tuple[asyncio.Runner, Bench],
) -> None:
    runner, made = bench

    async def work() -> None:
        line, other = Line(), Line()
        mixed = [frame(n, f"UNIQ_KEY\x01{'i' * (n + 1)}\x02") for n in range(LEAST)]
        alike = [frame(n, text) for n, text in enumerate(texts(LEAST))]
        for _ in range(200):
            made.take(line, mixed)
        assert made.runs == [0] * 9  # after 1, 2, 4 ... 64 that were not asked
        made.take(other, alike)
        assert made.runs.pop() == LEAST
        for _ in range(send_fast._MOST_SKIPPED + 1):
            made.take(line, alike)
        made.take(line, alike)
        assert made.runs[-2:] == [LEAST, LEAST]
        made.take(line, mixed)
        made.take(line, alike)
        made.take(line, alike)
        assert made.runs[-2:] == [0, LEAST]
        assert not line.plain

    runner.run(work())


@pytest.mark.parametrize(
    ("what", "text", "changed"),
    [
        ("a delay", "UNIQ_KEY\x01ID{0:05}\x02DELAY\x01{1}\x02", {}),
        ("no unique key", "KEYS\x01ID{0:05}\x02WAIT\x01{1}\x02", {}),
        ("two unique keys", "UNIQ_KEY\x01ID{0:05}\x02UNIQ_KEY\x01{1}\x02", {}),
        ("a batch", "UNIQ_KEY\x01ID{0:05}\x02A\x01{1}\x02", {"batch": "true"}),
    ],
)
def test_a_run_of_what_is_not_ordinary_goes_the_plain_way(
    bench: tuple[asyncio.Runner, Bench], what: str, text: str, changed: dict[str, Any]
) -> None:
    runner, made = bench

    async def work() -> None:
        line = Line()
        frames = [frame(number, text.format(number, number % 7), **changed) for number in range(LEAST)]
        made.take(line, frames)
        assert line.plain == frames, what
        assert not any(made.runs)

    runner.run(work())


def _odd(before: bytes, after: bytes) -> Frame:
    """One of the others, with something changed in its header that leaves it as long."""
    kind, header, body = frame(7, texts(8)[7])
    assert before in header
    assert len(before) == len(after)
    return kind, header.replace(before, after), body


@pytest.mark.parametrize(
    ("middle", "stored"),
    [
        (_odd(b'"b":"T"', b'"b":"U"'), None),
        (_odd(b'"e":"0"', b'"e":"x"'), None),
        (_odd(b'"g":"1"', b'"g":"?"'), None),
        (_odd(b'"opaque":100007', b'"opaque":000007'), None),
        (_odd(b'"code":310', b'"code":311'), None),
        (_odd(b"ID00007", b"ID\\t007"), "ID\t007"),
        (_odd(b"ID00007", b"ID 0007"), "ID 0007"),
        (frame(7, "UNIQ_KEY\x01longer than others\x02WAIT\x01true\x02"), "longer than others"),
        ((0, frame(7, texts(8)[7])[1], b""), None),
    ],
)
def test_one_that_differs_is_taken_by_itself_and_order_is_kept(
    bench: tuple[asyncio.Runner, Bench], middle: Frame, stored: str | None
) -> None:
    runner, made = bench

    async def work() -> None:
        line = Line()
        frames = [frame(number, text) for number, text in enumerate(texts(LEAST * 2))]
        made.take(line, [*frames[:LEAST], middle, *frames[LEAST:]])
        assert line.plain == ([] if stored else [middle])
        found = [record.properties["UNIQ_KEY"] for record in made.desk.messages("T")]
        ids = [f"ID{number:05}" for number in range(LEAST * 2)]
        assert found == [*ids[:LEAST], *([stored] if stored else []), *ids[LEAST:]]

    runner.run(work())


def test_a_run_that_ends_before_those_that_are_alike_is_taken_one_by_one(
    bench: tuple[asyncio.Runner, Bench],
) -> None:
    runner, made = bench

    async def work() -> None:
        line = Line()
        odd = [frame(n, f"UNIQ_KEY\x01{'i' * (n + 1)}\x02") for n in range(LEAST)]
        alike = [frame(LEAST + n, text) for n, text in enumerate(texts(LEAST))]
        alike[0] = (*alike[0][:2], b"")
        made.take(line, [*odd, *alike])
        assert line.plain == [alike[0]]
        assert made.end(0) == len(line.answers()) == LEAST * 2 - 1

    runner.run(work())


def test_one_way_runs_are_stored_and_get_no_answer(bench: tuple[asyncio.Runner, Bench]) -> None:
    runner, made = bench

    async def work() -> None:
        line = Line()
        made.take(line, [frame(n, text, header_flag=ONEWAY_FLAG) for n, text in enumerate(texts(LEAST))])
        assert made.runs == [LEAST]
        assert (made.end(0), line.answers()) == (LEAST, [])

    runner.run(work())


def test_a_run_to_a_queue_that_is_not_there_goes_the_plain_way(bench: tuple[asyncio.Runner, Bench]) -> None:
    runner, made = bench

    async def work() -> None:
        line = Line()
        frames = [frame(n, text, queue_id=n % 9) for n, text in enumerate(texts(LEAST))]
        made.take(line, frames)
        assert line.plain == [each for number, each in enumerate(frames) if number % 9 >= 4]
        topic = made.desk.broker.topics.find("T")
        assert topic is not None
        topic.perm = PERM_READ
        made.desk.broker.topics.generation += 1
        line = Line()
        made.take(line, frames)
        assert len(line.plain) == LEAST

    runner.run(work())


def test_a_run_that_the_disk_does_not_take_is_refused_as_a_whole(
    bench: tuple[asyncio.Runner, Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, made = bench

    async def work() -> None:
        line = Line()
        frames = [frame(n, text) for n, text in enumerate(texts(LEAST))]
        with monkeypatch.context() as patch:

            def full(_chunks: object) -> int:
                raise DiskFullError("no room")

            patch.setattr(made.desk.broker.store.log, "write", full)
            made.take(line, frames)
        answers = line.answers()
        assert {answer.code for answer in answers} == {ResponseCode.SERVICE_NOT_AVAILABLE}
        assert [answer.opaque for answer in answers] == [100_000 + n for n in range(LEAST)]
        assert made.end(0) == 0
        made.take(line, frames)  # the store is read-only now, which the plain way tells
        assert line.plain == frames

    runner.run(work())


def test_a_run_waits_for_the_disk_if_its_messages_do(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, flushDiskType="SYNC_FLUSH") as desk:
            await desk.create("T")
            line, made = Line(), Bench(desk)
            made.take(line, [frame(n, text) for n, text in enumerate(texts(LEAST))])
            assert (line.waiting, line.answers()) == (LEAST, [])
            waits, other = texts(LEAST), texts(LEAST, "UNIQ_KEY\x01ID{0:05}\x02WAIT\x01false\x02")
            quick = Line()
            made.take(quick, [frame(n, text) for n, text in enumerate(other)])
            assert (quick.waiting, len(quick.answers())) == (0, LEAST)
            await until(lambda: not line.waiting)
            answers = line.answers()
            assert [answer.code for answer in answers] == [0] * LEAST
            assert desk.broker.store.flushed_offset > 0
            alternating = [(waits if n % 2 else other)[n] for n in range(LEAST)]
            alternating[9] = "UNIQ_KEY\x01another\x02"
            made.take(line, [frame(n, text) for n, text in enumerate(alternating)])
            at_once = [answer.opaque for answer in line.answers()]
            assert sorted(at_once) == [100_000 + n for n in range(0, LEAST, 2)]
            assert line.waiting == LEAST // 2
            await until(lambda: not line.waiting)
            assert sorted(answer.opaque for answer in line.answers()) == [
                100_000 + n for n in range(1, LEAST, 2)
            ]

    run(work())


def test_queue_offsets_of_different_lengths_in_one_run(bench: tuple[asyncio.Runner, Bench]) -> None:
    runner, made = bench

    async def work() -> None:
        queue_ids = [0] * 8 + [1] * (LEAST * 3 - 8)
        frames = [frame(n, text, queue_id=queue_ids[n]) for n, text in enumerate(texts(LEAST * 3))]
        both_ways(made, frames, queue_ids)

    runner.run(work())


def test_records_that_fit_no_file_leave_the_run_to_the_plain_way(bench: tuple[asyncio.Runner, Bench]) -> None:
    runner, made = bench

    async def work() -> None:
        line = Line()
        large = b"x" * (made.desk.broker.store.config.commitlog_file_bytes - 100)
        frames = [frame(n, text) for n, text in enumerate(texts(LEAST))]
        frames[5] = (0, frames[5][1], large)
        made.take(line, frames)
        assert line.plain == [frames[5]]
        assert made.end(0) == LEAST - 1

    runner.run(work())


def test_a_message_of_many_keys_is_not_taken_by_vectors() -> None:
    # A step for each key of thousands would hold up everybody else.
    for keys in (send_runs._MOST_KEYS, send_runs._MOST_KEYS + 1):
        raw = frame(0, f"KEYS\x01{'k ' * keys}\x02UNIQ_KEY\x01ID\x02")[1]
        assert (send_runs.find_spans(raw) is None) == (keys > send_runs._MOST_KEYS)


def test_shapes_kept_are_bounded() -> None:
    shapes = send_runs.Shapes(lambda raw: send_runs.Ordinary(decode_header(raw), b"", 9, "ID", 0, True))
    for number in range(send_runs._SHAPES_KEPT + 10):
        raw = frame(0, f"UNIQ_KEY\x01ID\x02P{number:04}\x01v\x02")[1]
        shape = shapes.find(raw)
        assert shape is not None
        assert shapes.find(raw) is shape
    assert len(shapes._known) <= send_runs._SHAPES_KEPT
    long = frame(0, "UNIQ_KEY\x01ID\x02P\x01" + "v" * send_runs._LONGEST_KEPT + "\x02")[1]
    shape = shapes.find(long)
    assert shape is not None
    assert shapes.find(long) is not shape


@pytest.mark.parametrize(
    "header",
    [
        # A field that is there twice: the last one counts, and it is not the one that was found first.
        b'{"code":310,"extFields":{"b":"T","e":"1","e":"2","f":"0","g":"123","h":"0",'
        b'"i":"UNIQ_KEY\\u0001ab\\u0002"},"opaque":12}',
        b'{"code":310,"opaque":11,"extFields":{"b":"T","e":"1","f":"0","g":"123","h":"0",'
        b'"i":"UNIQ_KEY\\u0001ab\\u0002"},"opaque":12}',
        # A name that ends as another begins.
        b'{"code":310,"extFields":{"x\\"e":"7","b":"T","e":"1","f":"0","g":"123","h":"0",'
        b'"i":"UNIQ_KEY\\u0001ab\\u0002"},"opaque":12}',
        # A unique key that is not among the properties.
        b'{"code":310,"extFields":{"a":"UNIQ_KEY\\u0001xy\\u0002","b":"T","e":"1","f":"0","g":"123","h":"0",'
        b'"i":"UNIQ_KEY\\u0001ab\\u0002"},"opaque":12}',
        # Another name that ends as the one that is looked for, behind a value that is not plain.
        b'{"code":310,"extFields":{"b":"T","e":"1","f":"0","g":"123","h":"0",'
        b'"i":"UNIQ_KEY\\u0001a\\"b\\u0002MYUNIQ_KEY\\u0001ab\\u0002"},"opaque":12}',
    ],
)
def test_a_place_that_was_guessed_wrongly_gives_no_shape(header: bytes) -> None:
    first = send_runs.Ordinary(decode_header(header), b"UNIQ_KEY\x01ab\x02", 9, "ab", 0, True)
    assert send_runs.find_spans(header) is not None
    assert send_runs.Shapes(lambda _: first).find(header) is None


def test_a_group_cut_in_the_middle_of_a_run_keeps_the_keys_before(
    bench: tuple[asyncio.Runner, Bench],
) -> None:
    runner, made = bench

    async def work() -> None:
        made.keys()
        made.take(Line(), [frame(n, text) for n, text in enumerate(texts(LEAST))])
        index = made.desk.broker.store._index
        assert index is not None
        (kept,) = index.pending
        assert isinstance(kept, KeyRun)
        assert index.waiting == LEAST
        index.cut(int(kept.places[10]))
        assert index.waiting == 10
        assert made.keys() == [abs(value) for value in kept.hashes[:10].tolist()]
        assert index.waiting == 0

    runner.run(work())
