"""Half messages, their ends, and the questions about those without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gimbalmq.model import topics as names
from gimbalmq.model.ids import parse_offset_id
from gimbalmq.model.record import decode_record
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from tests.broker.desk import Answer, Client, Desk, fields, open_desk
from tests.support import ManualClock, run

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
                group.add(store.queue(OP, 0), b"0,2,", b"TAGS\x01d\x02", 100, 0, 0, 0, host, 0, 0)
            clock.advance(7)
            (question,) = await _asked(desk, desk.client)
            assert fields(question)["tranStateTableOffset"] == "3"

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
