"""Half messages, their ends, and the questions about those without one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq._steps import run_through
from gimbalmq.broker.half_check import HalfCheck
from gimbalmq.broker.half_ledger import HalfLedger
from gimbalmq.broker.writer import Draft
from gimbalmq.errors import LocalProtocolError
from gimbalmq.model import properties as prop
from gimbalmq.model import topics as names
from gimbalmq.model.ids import offset_id, parse_offset_id
from gimbalmq.model.record import decode_record, encode_record
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.messages import EndTransaction
from gimbalmq.transport.channel import Channel
from gimbalmq.transport.turns import Turns
from tests.broker.desk import Answer, Client, Desk, fields, open_desk
from tests.support import ManualClock, run
from tests.transport.wiring import raw_peer

HALF, OP = names.HALF_TOPIC, names.OP_HALF_TOPIC
CHECK = RequestCode.CHECK_TRANSACTION_STATE
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


async def _half(desk: Desk, body: bytes = b"half", queue_id: int = 1, **properties: str) -> dict[str, str]:
    """Sends a half message; the fields an end of it needs."""
    wanted = {"TRAN_MSG": "true", "PGROUP": "pg", "TAGS": "t", **properties}
    born = desk.clock.wall_ms()
    answer = await desk.client.send(
        body=body, queue_id=queue_id, properties=wanted, sysFlag=4, bornTimestamp=born
    )
    assert answer.code == 0, answer
    told = fields(answer)
    return {
        "producerGroup": "pg",
        "tranStateTableOffset": told["queueOffset"],
        "commitLogOffset": str(parse_offset_id(told["msgId"]).commitlog_offset),
        "msgId": told["transactionId"],
    }


async def _end(client: Client, end: dict[str, str], how: int) -> Answer:
    return await client.ask(RequestCode.END_TRANSACTION, end | {"commitOrRollback": str(how)})


async def _asked(desk: Desk, producer: Client) -> list[RemotingCommand]:
    """Runs a check and returns all questions the producer has got so far."""
    await desk.broker.transactions.check()
    await producer.ok(RequestCode.GET_BROKER_RUNTIME_INFO)
    return [request for request in producer.heard if request.code == CHECK]


def _flush(desk: Desk) -> None:
    """Now the walk's progress may be noted."""
    desk.broker.store.flush()
    desk.broker.transactions.note_durable_progress()


def _answer(question: RemotingCommand) -> dict[str, str]:
    told = fields(question)
    names_ = ("tranStateTableOffset", "commitLogOffset", "msgId", "transactionId")
    return {"producerGroup": "pg", "fromTransactionCheck": "true"} | {name: told[name] for name in names_}


def test_half_message_is_hidden_until_it_is_committed(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, ManualClock()) as desk:
            await desk.create("T")
            end = await _half(desk)
            assert desk.messages("T", 1) == []
            (kept,) = desk.messages(HALF)
            assert kept.sys_flag & 12 == 0
            assert (kept.properties["REAL_TOPIC"], kept.properties["REAL_QID"]) == ("T", "1")
            assert (await _end(desk.client, end, COMMIT)).code == 0
            (real,) = desk.messages("T", 1)
            assert (real.body, real.sys_flag & 12) == (b"half", COMMIT)
            assert real.prepared_transaction_offset == kept.commitlog_offset
            assert real.properties["UNIQ_KEY"] == kept.properties["UNIQ_KEY"]
            assert real.properties["TAGS"] == "t" and real.properties["WAIT"] == "false"
            assert not {"REAL_TOPIC", "REAL_QID", "TRAN_MSG"} & real.properties.keys()
            (op,) = desk.messages(OP)
            assert (op.body, op.properties["TAGS"]) == (b"0", "d")
            # The same end again changes nothing.
            assert (await _end(desk.client, end, COMMIT)).code == 0
            assert (len(desk.messages("T", 1)), len(desk.messages(OP))) == (1, 1)

    run(work())


def test_a_commit_counts_though_the_producer_had_said_rollback_when_it_was_asked(tmp_path: Path) -> None:
    """It may be asked before its own work is done, if a slow disk keeps the half's answer, and not know of it yet."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            await desk.client.heartbeat(producer="pg")
            end = await _half(desk)
            clock.advance(7)
            (question,) = await _asked(desk, desk.client)
            assert (await _end(desk.client, _answer(question), ROLLBACK)).code == 0
            for _ in range(2):
                assert (await _end(desk.client, end, COMMIT)).code == 0
                assert desk.bodies("T", 1) == [b"half"]
            assert (await _end(desk.client, end, ROLLBACK)).code == 0
            assert desk.bodies("T", 1) == [b"half"]

    run(work())


def test_rolled_back_message_never_shows(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            await desk.client.heartbeat(producer="pg")
            end = await _half(desk)
            assert (await _end(desk.client, end, ROLLBACK)).code == 0
            assert len(desk.messages(OP)) == 1
            clock.advance(100)
            assert await _asked(desk, desk.client) == []
            assert desk.messages("T", 1) == [] and len(desk.messages(HALF)) == 1

    run(work())


def test_end_that_does_not_fit_is_refused_with_apaches_words(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, ManualClock()) as desk:
            await desk.create("T")
            await desk.client.send()
            plain = desk.messages("T")[0].commitlog_offset
            end = await _half(desk)
            for change, words in (
                ({"commitLogOffset": "1"}, "Find prepared transaction message failed"),
                ({"commitLogOffset": str(plain)}, "Find prepared transaction message failed"),
                ({"producerGroup": "other"}, "The producer group wrong"),
                ({"tranStateTableOffset": "7"}, "The transaction state table offset wrong"),
            ):
                answer = await _end(desk.client, end | change, COMMIT)
                assert (answer.code, answer.remark) == (1, words)
            assert desk.messages("T", 1) == [] and desk.messages(OP) == []

    run(work())


def test_open_half_is_asked_about_at_its_new_place(tmp_path: Path) -> None:
    """Old enough and without an end: stored anew, one more check noted, its producer asked about that."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            producer = desk.new_client()
            await producer.heartbeat(producer="pg")
            await _half(desk, __transactionId__="tx")
            clock.advance(6)
            assert await _asked(desk, producer) == [], "6 s exactly is not yet too old"
            clock.advance(0.001)
            (question,) = await _asked(desk, producer)
            old, renewed = desk.messages(HALF)
            assert renewed.properties["TRANSACTION_CHECK_TIMES"] == "1" and renewed.body == old.body
            told = fields(question)
            assert question.is_oneway
            assert int(told["tranStateTableOffset"]) == renewed.queue_offset == 1
            assert int(told["commitLogOffset"]) == renewed.commitlog_offset
            assert told["msgId"] == told["transactionId"] == old.properties["UNIQ_KEY"]
            assert parse_offset_id(told["offsetMsgId"]).commitlog_offset == renewed.commitlog_offset
            shown = decode_record(bytes(question.body), check_crc=True)
            assert (shown.topic, shown.queue_id, shown.body) == ("T", 1, b"half")
            # "Unknown" leaves it for the next round; it is not answered.
            await producer.tell(RequestCode.END_TRANSACTION, _answer(question) | {"commitOrRollback": "0"})
            clock.advance(7)
            _, question = await _asked(desk, producer)
            assert (await _end(producer, _answer(question), COMMIT)).code == 0
            clock.advance(7)
            assert len(await _asked(desk, producer)) == 2
            assert desk.bodies("T", 1) == [b"half"]

    run(work())


def test_settled_ones_ahead_do_not_hide_an_open_one(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            await desk.client.heartbeat(producer="pg")
            ends = [await _half(desk, b"%d" % n) for n in range(5)]
            for number, how in ((0, COMMIT), (2, ROLLBACK), (4, COMMIT)):
                await _end(desk.client, ends[number], how)
            clock.advance(10)
            questions = await _asked(desk, desk.client)
            assert [decode_record(bytes(q.body)).body for q in questions] == [b"1", b"3"]
            for question in questions:
                await _end(desk.client, _answer(question), COMMIT)
            clock.advance(10)
            assert len(await _asked(desk, desk.client)) == 2
            assert desk.bodies("T", 1) == [b"0", b"4", b"1", b"3"]
            group, offsets = names.TRANS_GROUP, desk.broker.offsets
            _flush(desk)
            assert offsets.get(group, HALF, 0) == len(desk.messages(HALF)) == 7
            assert offsets.get(group, OP, 0) == len(desk.messages(OP)) == 5

    run(work())


def test_after_fifteen_checks_it_is_given_up(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            await desk.client.heartbeat(producer="pg")
            await _half(desk)
            for times in range(1, 16):
                clock.advance(30)
                assert len(await _asked(desk, desk.client)) == times
            clock.advance(30)
            assert len(await _asked(desk, desk.client)) == 15
            (given_up,) = desk.messages(names.TRANS_CHECK_MAX_TOPIC)
            assert given_up.body == b"half" and given_up.properties["REAL_TOPIC"] == "T"
            clock.advance(30)
            assert len(await _asked(desk, desk.client)) == 15
            assert len(desk.messages(names.TRANS_CHECK_MAX_TOPIC)) == 1

    run(work())


def test_older_than_the_files_are_kept_it_is_given_up(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock, fileReservedTime=1) as desk:
            await desk.create("T")
            await _half(desk)
            clock.advance(3600.001)
            await desk.broker.transactions.check()
            assert len(desk.messages(names.TRANS_CHECK_MAX_TOPIC)) == 1

    run(work())


def test_half_that_asks_for_more_time_gets_it_and_blocks_nobody(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            await desk.client.heartbeat(producer="pg")
            await _half(desk, b"patient", CHECK_IMMUNITY_TIME_IN_SECONDS="100")
            await _half(desk, b"usual")
            clock.advance(7)
            (question,) = await _asked(desk, desk.client)
            assert decode_record(bytes(question.body)).body == b"usual"
            await _end(desk.client, _answer(question), COMMIT)
            clock.advance(90)
            assert len(await _asked(desk, desk.client)) == 1
            clock.advance(7)
            questions = await _asked(desk, desk.client)
            assert [decode_record(bytes(q.body)).body for q in questions] == [b"usual", b"patient"]
            assert desk.messages(HALF)[-1].properties["TRANSACTION_CHECK_TIMES"] == "1"

    run(work())


def test_client_with_a_fast_clock_blocks_nobody(tmp_path: Path) -> None:
    """A half born in the future is asked about at once; it used to hold up all behind it."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            await desk.client.heartbeat(producer="pg")
            tx = {"TRAN_MSG": "true", "PGROUP": "pg"}
            await desk.client.send(body=b"fast", properties=tx, bornTimestamp=clock.wall + 86_400_000)
            await _half(desk, b"right")
            clock.advance(7)
            questions = await _asked(desk, desk.client)
            assert [decode_record(bytes(q.body)).body for q in questions] == [b"fast", b"right"]

    run(work())


def test_restart_keeps_open_halves_and_ends(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            ends = [await _half(desk, b"%d" % n) for n in range(3)]
            await _end(desk.client, ends[1], COMMIT)
            await desk.restart()
            # Ended before: an end that comes again finds that out without waiting for a check.
            assert (await _end(desk.client, ends[1], COMMIT)).code == 0
            assert desk.bodies("T", 1) == [b"1"]
            producer = desk.new_client()
            await producer.heartbeat(producer="pg")
            clock.advance(7)
            questions = await _asked(desk, producer)
            assert [decode_record(bytes(q.body)).body for q in questions] == [b"0", b"2"]
            await _end(producer, _answer(questions[0]), COMMIT)
            await desk.restart()
            producer = desk.new_client()
            await producer.heartbeat(producer="pg")
            clock.advance(7)
            (question,) = await _asked(desk, producer)
            assert decode_record(bytes(question.body)).body == b"2"
            assert desk.bodies("T", 1) == [b"1", b"0"]

    run(work())


async def _same(desk: Desk) -> None:
    pass


async def _restart(desk: Desk) -> None:
    await desk.restart()


async def _kill(desk: Desk) -> None:
    """As kill -9: nothing is saved."""
    await desk.broker.abandon()
    await desk.start()


BETWEEN = pytest.mark.parametrize("between", [_same, _restart, _kill])


@BETWEEN
@pytest.mark.parametrize("how", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("late_first", [True, False])
def test_end_of_an_old_place_and_of_the_new_one_are_one_end(
    tmp_path: Path, between: Callable[[Desk], Awaitable[None]], how: int, late_first: bool
) -> None:
    """Each of them committed the message."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            producer = desk.new_client()
            await producer.heartbeat(producer="pg")
            late = await _half(desk)
            for _ in range(2):
                clock.advance(7)
                questions = await _asked(desk, producer)
            ends = [late, *map(_answer, questions)]
            committed = [b"half"] if how == COMMIT else []
            await between(desk)
            for end in ends if late_first else reversed(ends):
                assert (await _end(desk.new_client(), end, how)).code == 0
                assert desk.bodies("T", 1) == committed
                await between(desk)
            assert desk.messages(OP)[-1].body == b"2", "the newest place is the one that is open"
            producer = desk.new_client()
            await producer.heartbeat(producer="pg")
            clock.advance(7)
            assert await _asked(desk, producer) == []
            await between(desk)
            for end in ends:
                assert (await _end(desk.new_client(), end, how)).code == 0
            assert desk.bodies("T", 1) == committed and len(desk.messages(OP)) == 1

    run(work())


def test_half_stored_anew_before_a_kill_is_not_stored_anew_once_more(tmp_path: Path) -> None:
    """The walk begins where it was when offsets were saved last."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            for number in range(3):
                await _half(desk, b"%d" % number)
            clock.advance(7)
            await desk.broker.transactions.check()
            assert len(desk.messages(HALF)) == 6
            await _kill(desk)
            assert desk.broker.transactions._ledger.walked_to == 0
            producer = desk.new_client()
            await producer.heartbeat(producer="pg")
            clock.advance(7)
            questions = await _asked(desk, producer)
            assert [fields(question)["tranStateTableOffset"] for question in questions] == ["6", "7", "8"]

    run(work())


def test_what_is_remembered_of_halves_stored_anew_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gimbalmq.broker.half_ledger.ENDED_KEPT", 4)

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            await desk.client.heartbeat(producer="pg")
            transactions = desk.broker.transactions
            for _ in range(3):
                for number in range(8):
                    await _half(desk, b"%d" % number)
                clock.advance(7)
                for question in (await _asked(desk, desk.client))[-8:]:
                    await _end(desk.client, _answer(question), COMMIT)
                assert len(transactions._ledger.newest) <= 12
                await transactions.check()
            assert len(desk.messages("T", 1)) == 24

    run(work())


def test_questions_go_round_the_groups_connections(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            producers = [desk.new_client() for _ in range(3)]
            for number, producer in enumerate(producers):
                await producer.heartbeat(f"c{number}", producer="pg")
            stranger = desk.new_client()
            await stranger.heartbeat("x", producer="other")
            for _ in range(6):
                await _half(desk)
            clock.advance(7)
            await desk.broker.transactions.check()
            for producer in producers:
                assert len(await producer.heard_code(CHECK, 2)) == 2
            assert not stranger.heard

    run(work())


def test_nobody_to_ask(tmp_path: Path) -> None:
    """The check counts all the same, and goes on when a producer is back."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            await _half(desk)
            clock.advance(7)
            await desk.broker.transactions.check()
            assert desk.messages(HALF)[-1].properties["TRANSACTION_CHECK_TIMES"] == "1"
            await desk.client.heartbeat(producer="pg")
            clock.advance(7)
            assert len(await _asked(desk, desk.client)) == 1

    run(work())


def test_ops_of_apache_5_name_several_halves(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            await desk.client.heartbeat(producer="pg")
            for _ in range(3):
                await _half(desk)
            store = desk.broker.store
            with store.group() as group:
                host = store.config.store_host
                group.add(
                    store.queue(OP, 0),
                    b"0,2,3,999999999999,%b," % (b"9" * 5000),
                    b"TAGS\x01d\x02",
                    100,
                    0,
                    0,
                    0,
                    host,
                    0,
                    0,
                )
            clock.advance(7)
            (question,) = await _asked(desk, desk.client)
            assert fields(question)["tranStateTableOffset"] == "3"
            # Offset 3 was not there when the op named it.
            clock.advance(7)
            assert fields((await _asked(desk, desk.client))[-1])["tranStateTableOffset"] == "4"
            _flush(desk)
            assert desk.broker.offsets.get(names.TRANS_GROUP, OP, 0) == 1

    run(work())


@pytest.mark.parametrize(
    ("settings", "properties", "code", "word"),
    [
        ({"rejectTransactionMessage": True}, {}, ResponseCode.NO_PERMISSION, "transaction"),
        ({}, {"DELAY": "2"}, ResponseCode.MESSAGE_ILLEGAL, "DELAY"),
        ({}, {"TIMER_DELAY_SEC": "2"}, ResponseCode.MESSAGE_ILLEGAL, "TIMER_DELAY_SEC"),
    ],
)
def test_half_messages_that_are_refused(
    tmp_path: Path, settings: dict[str, object], properties: dict[str, str], code: int, word: str
) -> None:
    """With a delay too: its real topic would be lost on the way through the delay's topic."""

    async def work() -> None:
        async with open_desk(tmp_path, ManualClock(), **settings) as desk:
            await desk.create("T")
            answer = await desk.client.send(properties={"TRAN_MSG": "true", "PGROUP": "pg", **properties})
            assert answer.code == code and word in (answer.remark or "")
            assert desk.broker.store.max_commitlog_offset == 0

    run(work())


def _forged(offset: int, topic: str, queue_offset: int, **properties: str) -> bytes:
    """A record as the body of a message may hold it, at its true place in the log."""
    text = prop.dump(properties).encode()
    return encode_record(
        topic=topic, body=b"from nowhere", queue_offset=queue_offset, commitlog_offset=offset, properties=text
    )


def test_record_inside_a_body_is_no_half(tmp_path: Path) -> None:
    """It used to be taken for one: any topic could be written, and another's transaction was settled by it."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            await desk.client.heartbeat(producer="pg")
            victim = await _half(desk, b"victim")
            store = desk.broker.store
            for claim in (int(victim["tranStateTableOffset"]), 1, 7):
                place = store.max_commitlog_offset + 88
                forged = _forged(place, HALF, claim, REAL_TOPIC=OP, REAL_QID="0", PGROUP="evil")
                await desk.client.send(body=forged)
                assert store.record_at(place) is not None, "the bytes do check as a record"
                end = {
                    "producerGroup": "evil",
                    "tranStateTableOffset": str(claim),
                    "commitLogOffset": str(place),
                }
                answer = await _end(desk.client, end, COMMIT)
                assert (answer.code, answer.remark) == (1, "Find prepared transaction message failed")
                assert desk.messages(OP) == []
                # Nor is it a message for anybody else.
                shown = await desk.client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(place)})
                assert shown.code != 0
                back = {"offset": str(place), "group": "g", "delayLevel": "-1"}
                assert (await desk.client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code != 0
            clock.advance(7)
            (question,) = await _asked(desk, desk.client)
            assert decode_record(bytes(question.body)).body == b"victim"

    run(work())


def test_record_inside_a_body_is_not_given_to_a_consumer(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            store = desk.broker.store
            place = store.max_commitlog_offset + 88
            await desk.client.send(body=_forged(place, "T", 0))
            await desk.client.heartbeat(group="g")
            desk.client.answers[309] = b"{}"
            host = store.config.store_host
            for offset, code in ((place, 1), (0, 0)):
                ext = {"consumerGroup": "g", "clientId": "c1", "msgId": offset_id(host, offset)}
                assert (await desk.client.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)).code == code

    run(work())


def test_half_without_room_for_the_count_of_checks_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            refused: list[str] = []
            for pad in range(32_767, 32_500, -1):
                answer = await desk.client.send(
                    properties={"TRAN_MSG": "true", "PGROUP": "pg", "pad": "p" * pad},
                    bornTimestamp=clock.wall_ms(),
                )
                if answer.code == 0:
                    break
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL
                refused.append(answer.remark or "")
            assert "room for the count" in refused[-1]
            # The largest that is taken can be checked as often as any other.
            await desk.client.heartbeat(producer="pg")
            for times in range(1, 16):
                clock.advance(30)
                assert len(await _asked(desk, desk.client)) == times
            assert desk.messages(names.TRANS_CHECK_MAX_TOPIC) == []

    run(work())


def _put_half(desk: Desk, properties: dict[str, str], body: bytes = b"odd", born: int | None = None) -> None:
    """A half as an earlier version, or another broker, may have stored it."""
    store = desk.broker.store
    text = prop.dump({"REAL_TOPIC": "T", "REAL_QID": "1", "PGROUP": "pg", **properties}).encode()
    with store.group() as group:
        host = store.config.store_host
        born = desk.clock.wall_ms() if born is None else born
        group.add(store.queue(HALF, 0), body, text, 0, 0, 0, born, host, 0, 0)


def test_a_producer_that_reads_slowly_is_asked_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All halves were sent to it at once: with more than 32 MB of them it was cut off."""
    monkeypatch.setattr("gimbalmq.broker.producer_questions._READ_SECONDS", 0.05)

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            for number in range(190):
                _put_half(desk, {"UNIQ_KEY": str(number)}, bytes(200_000))
            clock.advance(7)
            async with raw_peer(desk.broker.port) as slow:
                body = b'{"clientID":"slow","consumerDataSet":[],"producerDataSet":[{"groupName":"pg"}]}'
                slow.send(RemotingCommand(RequestCode.HEART_BEAT, None, body))
                assert (await slow.receive()).code == 0
                await desk.broker.transactions.check()
                (channel,) = [desk.broker.producers.pick("pg")]
                assert channel is not None and not channel.closed
                assert channel.unwritten_bytes < 4_000_000
                asked = [r for r in desk.messages(HALF)[190:] if "TRANSACTION_CHECK_TIMES" in r.properties]
                assert len(desk.messages(HALF)) == 380 and 0 < len(asked) < 100
                got = [await slow.receive() for _ in asked]
                assert all(request.code == RequestCode.CHECK_TRANSACTION_STATE for request in got)
                # It reads now, and is asked about all in one round.
                checking = asyncio.create_task(desk.broker.transactions.check())
                for _ in range(190):
                    assert (await slow.receive()).code == RequestCode.CHECK_TRANSACTION_STATE
                await checking

    run(work())


def test_half_that_cannot_be_stored_anew_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The walk used to stay at it for ever. Its producer is asked once, and a copy is kept with those given up."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            await desk.client.heartbeat(producer="pg")
            _put_half(desk, {"UNIQ_KEY": "k", "pad": "p" * 32_705}, b"full")
            await _half(desk, b"usual")
            clock.advance(7)
            full, usual = await _asked(desk, desk.client)
            assert decode_record(bytes(usual.body)).body == b"usual"
            assert [record.body for record in desk.messages(names.TRANS_CHECK_MAX_TOPIC)] == [b"full"]
            # The one question is about its old place, and the answer counts.
            assert fields(full)["tranStateTableOffset"] == "0"
            assert (await _end(desk.client, _answer(full), COMMIT)).code == 0
            assert desk.bodies("T", 1) == [b"full"]
            clock.advance(7)
            assert len(await _asked(desk, desk.client)) == 3, "the usual one again, and nothing else"

    run(work())
    assert "cannot be stored anew" in caplog.text and "1 transactions are given up" in caplog.text


@pytest.mark.parametrize(
    "properties",
    [
        {"TRANSACTION_CHECK_TIMES": "-9999999"},
        {"TRANSACTION_CHECK_TIMES": "many"},
        {"TRANSACTION_CHECK_TIMES": "9" * 5000},
        {"CHECK_IMMUNITY_TIME_IN_SECONDS": "9" * 400},
        {"CHECK_IMMUNITY_TIME_IN_SECONDS": "-5"},
        {"CHECK_IMMUNITY_TIME_IN_SECONDS": "soon"},
        {"REAL_QID": "9" * 30},
        {"REAL_QID": "-1"},
        {"REAL_TOPIC": "x" * 20_000},
        {"PGROUP": "nobody"},
    ],
)
@pytest.mark.parametrize("born", [None, 1 << 62, -(1 << 62), 0])
def test_absurd_half_stops_nobody(tmp_path: Path, properties: dict[str, str], born: int | None) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            await desk.client.heartbeat(producer="pg")
            _put_half(desk, properties, born=born)
            await _half(desk, b"usual")
            clock.advance(7)
            questions = await _asked(desk, desk.client)
            assert b"usual" in [decode_record(bytes(q.body)).body for q in questions]

    run(work())


def test_count_of_checks_is_the_brokers(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, ManualClock()) as desk:
            await desk.create("T")
            await _half(desk, TRANSACTION_CHECK_TIMES="-1000000")
            assert "TRANSACTION_CHECK_TIMES" not in desk.messages(HALF)[0].properties

    run(work())


def test_producer_that_cannot_be_asked_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            await desk.client.heartbeat(producer="pg")
            for number in range(3):
                await _half(desk, b"%d" % number)

            def fail(_channel: Channel, _command: RemotingCommand) -> None:
                raise LocalProtocolError("the frame is too large")

            with monkeypatch.context() as patch:
                patch.setattr(Channel, "oneway", fail)
                clock.advance(7)
                await desk.broker.transactions.check()
            assert len(desk.messages(HALF)) == 6
            clock.advance(7)
            assert len(await _asked(desk, desk.client)) == 3

    run(work())


def test_check_on_a_full_disk_goes_on_when_there_is_room(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            await desk.client.heartbeat(producer="pg")
            await _half(desk)
            clock.advance(7)
            desk.broker.store.trouble.reason = "the disk is full"
            assert await _asked(desk, desk.client) == []
            desk.broker.store.trouble.reason = None
            assert len(await _asked(desk, desk.client)) == 1

    run(work())


def test_walk_that_is_ahead_of_a_log_that_lost_its_end(tmp_path: Path) -> None:
    """Its offset is on disk, the halves are not: halves that come to their places are asked about."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            for topic in (HALF, OP):
                desk.broker.offsets.commit(names.TRANS_GROUP, topic, 0, 50)
            run_through(desk.broker.transactions.go_on())
            await desk.client.heartbeat(producer="pg")
            ends = [await _half(desk, b"%d" % number) for number in range(3)]
            await _end(desk.client, ends[1], COMMIT)
            clock.advance(7)
            questions = await _asked(desk, desk.client)
            assert [decode_record(bytes(q.body)).body for q in questions] == [b"0", b"2"]
            offsets = desk.broker.offsets
            _flush(desk)
            assert offsets.get(names.TRANS_GROUP, HALF, 0) == 3 and offsets.get(names.TRANS_GROUP, OP, 0) == 1

    run(work())


def test_walk_is_noted_no_further_than_the_log_is_durable(tmp_path: Path) -> None:
    """A half that was stored anew, and its new place lost with the power, is asked about again."""

    async def work() -> None:
        clock = ManualClock()
        never = {"flushIntervalCommitLog": 60_000, "flushConsumerOffsetInterval": 60_000}
        async with open_desk(tmp_path / "a", clock, **never) as desk:
            await desk.create("T")
            await _half(desk)
            await desk.broker.upkeep.checkpoint()
            durable = desk.broker.store.max_commitlog_offset
            clock.advance(7)
            await desk.broker.transactions.check()
            assert len(desk.messages(HALF)) == 2 and desk.broker.store.flushed_offset == durable
            assert desk.broker.offsets.get(names.TRANS_GROUP, HALF, 0) < 1
            _flush(desk)
            assert desk.broker.offsets.get(names.TRANS_GROUP, HALF, 0) == 1
        async with open_desk(tmp_path / "a", clock, **never) as desk:
            assert desk.broker.transactions._ledger.walked_to == 1
            clock.advance(7)
            await desk.broker.transactions.check()
        async with open_desk(tmp_path / "a", clock, **never) as desk:
            assert desk.broker.transactions._ledger.walked_to == 2  # the end of a broker flushes first

    run(work())


def test_broker_whose_clock_was_set_back_checks_on(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            await desk.client.heartbeat(producer="pg")
            await _half(desk, b"patient", CHECK_IMMUNITY_TIME_IN_SECONDS="100")
            await _half(desk, b"usual")
            clock.wall -= 3_600_000
            assert len(await _asked(desk, desk.client)) == 2

    run(work())


def test_check_of_many_halves_comes_in_steps_and_ends_meanwhile_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gimbalmq.transport.turns._MOST_STEPS", 1)  # each step has a turn of its own

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            await _half(desk)
            for number in range(300):
                _put_half(desk, {"UNIQ_KEY": str(number)}, b"%d" % number)
            clock.advance(7)
            last = desk.messages(HALF)[-1]
            transactions, turns = desk.broker.transactions, 0
            check = asyncio.create_task(transactions.check())
            while not check.done():
                await asyncio.sleep(0)
                turns += 1
                if turns == 2:
                    transactions.end(
                        EndTransaction(
                            producer_group="pg",
                            tran_state_table_offset=last.queue_offset,
                            commit_log_offset=last.commitlog_offset,
                            commit_or_rollback=COMMIT,
                        )
                    )
            await check
            assert turns > 4
            assert desk.bodies("T", 1) == [b"299"]
            renewed = [record.body for record in desk.messages(HALF)[301:]]
            assert len(renewed) == 300 and b"299" not in renewed
            _flush(desk)
            progress = desk.broker.offsets.get(names.TRANS_GROUP, HALF, 0)
            assert progress == 301

    run(work())


def test_what_is_remembered_of_ended_transactions_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gimbalmq.broker.half_ledger.ENDED_KEPT", 4)

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            ends = [await _half(desk, b"%d" % number) for number in range(8)]
            for end in ends:
                await _end(desk.client, end, COMMIT)
            clock.advance(7)
            transactions = desk.broker.transactions
            await transactions.check()
            ledger = transactions._ledger
            assert (len(ledger.settled), len(ledger._ops), len(ledger.ended)) == (0, 0, 4)
            # An end that comes again soon after the walk has passed is still the same end.
            assert (await _end(desk.client, ends[-1], COMMIT)).code == 0
            assert len(desk.messages("T", 1)) == 8

    run(work())


def test_open_halves_that_retention_deleted_are_reported_and_passed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T")
            ends = [await _half(desk, b"%d" % number) for number in range(4)]
            await _end(desk.client, ends[1], ROLLBACK)
            queue = desk.broker.store.find_queue(HALF, 0)
            assert queue is not None
            queue.min_offset = 3
            await desk.client.heartbeat(producer="pg")
            clock.advance(7)
            (question,) = await _asked(desk, desk.client)
            assert decode_record(bytes(question.body)).body == b"3"
            assert not desk.broker.transactions._ledger.settled

    run(work())
    assert "2 open transactions, half offsets 0 to 2, were deleted" in caplog.text


def test_half_as_large_as_a_file_of_the_log_stops_nobody(tmp_path: Path) -> None:
    """It is too large as soon as the count of its checks is added."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock, mappedFileSizeCommitLog=65_536) as desk:
            await desk.create("T")
            await desk.client.heartbeat(producer="pg")
            answer = await desk.client.send(body=bytes(65_536))
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL and "65536" in (answer.remark or "")
            for size in range(65_536, 60_000, -1):
                properties = {"TRAN_MSG": "true", "PGROUP": "pg"}
                answer = await desk.client.send(
                    body=bytes(size), properties=properties, bornTimestamp=clock.wall_ms()
                )
                if answer.code == 0:
                    break
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            await _half(desk, b"usual")
            clock.advance(7)
            bodies = [decode_record(bytes(q.body)).body for q in await _asked(desk, desk.client)]
            assert len(bodies) == 2 and bodies[1] == b"usual"

    run(work())


def test_a_slave_that_passes_many_halves_lets_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves that were stored anew, or cannot be read, are passed without anybody being waited for."""

    async def elsewhere(drafts: list[Draft]) -> int:
        raise AssertionError("there is nothing to give away")

    async def work() -> None:
        check, ledger = HalfCheck.__new__(HalfCheck), HalfLedger.__new__(HalfLedger)
        check._ledger, check.elsewhere, check._turns = ledger, elsewhere, Turns(SYSTEM_CLOCK)
        ledger.settled, ledger.ended, ledger.walked_to, ledger.is_resting = set(), {}, 0, False
        monkeypatch.setattr(ledger, "record", lambda topic, offset: None)
        monkeypatch.setattr(ledger, "note_progress", lambda: None)
        moving = asyncio.ensure_future(check._move_open(2_000, 0, elsewhere))
        turns = 0
        while not moving.done():
            turns += 1
            await asyncio.sleep(0)
        assert ledger.walked_to == 2_000 and turns > 5

    run(work())


def test_a_slave_passes_as_many_halves_as_ended_before_it_stood_in(monkeypatch: pytest.MonkeyPatch) -> None:
    async def elsewhere(drafts: list[Draft]) -> int:
        raise AssertionError("there is nothing to give away")

    async def work() -> None:
        check, ledger = HalfCheck.__new__(HalfCheck), HalfLedger.__new__(HalfLedger)
        check._ledger, check.elsewhere, check._turns = ledger, elsewhere, Turns(SYSTEM_CLOCK)
        ledger.settled, ledger.ended, ledger.walked_to, ledger.is_resting = set(range(100)), {}, 0, False
        monkeypatch.setattr("gimbalmq.broker.half_check.ENDED_KEPT", 30)
        monkeypatch.setattr(ledger, "note_progress", lambda: None)
        await check._move_open(100, 0, elsewhere)
        assert ledger.walked_to == 100 and not ledger.settled

    run(work())
