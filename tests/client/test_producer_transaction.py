"""Transactions, request and reply, and traces of a producer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gimbalmq.client import request_reply
from gimbalmq.client.producer import Producer
from gimbalmq.client.trace import DELAYED, message_type
from gimbalmq.client.transaction import Outcome, TransactionProducer
from gimbalmq.errors import MessageIllegalError, RequestTimeoutError, SendFailedError
from gimbalmq.model import properties as names
from gimbalmq.model.message import Message, MessageView
from gimbalmq.model.record import encode_properties, encode_record
from gimbalmq.model.results import SendStatus, TransactionState
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.messages import CheckTransactionState, ReplyMessage
from gimbalmq.testing import MemoryNetwork, VirtualClock, run_virtual
from gimbalmq.transport.channel import Channel
from tests.client.scripted import ScriptedCluster, until
from tests.support import run


async def no_check(message: MessageView) -> TransactionState:
    raise AssertionError("nobody was to ask")


async def commits(message: Message) -> Outcome:
    return TransactionState.COMMIT


def rolls_back(message: Message) -> Outcome:
    return TransactionState.ROLLBACK


def forgets(message: Message) -> Outcome:
    return None


def fails(message: Message) -> Outcome:
    raise ValueError("out of stock")


@pytest.mark.parametrize(
    ("local", "state", "wire"),
    [
        (commits, TransactionState.COMMIT, "8"),
        (rolls_back, TransactionState.ROLLBACK, "12"),
        (forgets, TransactionState.UNKNOWN, "0"),
        (fails, TransactionState.UNKNOWN, "0"),
    ],
)
def test_half_message_is_followed_by_its_outcome(
    local: Callable[[Message], Outcome | Awaitable[Outcome]], state: TransactionState, wire: str
) -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            cluster.broker.next_offset = 5
            async with TransactionProducer("tg", cluster.namesrv, check=no_check) as producer:
                result = await producer.send_in_transaction(Message("T", b"x", delay_level=3), local)
                await until(lambda: cluster.broker.of(RequestCode.END_TRANSACTION))
            assert result.state is state
            half = cluster.broker.sends[0].ext_fields or {}
            told = names.parse(half["i"])
            assert half["f"] == "4"
            assert (told["TRAN_MSG"], told["PGROUP"]) == ("true", "tg") and "DELAY" not in told
            (end,) = cluster.broker.of(RequestCode.END_TRANSACTION)
            assert end.flag == 2
            assert (end.remark is not None) == (local is fails)
            if end.remark:
                assert "out of stock" in end.remark
            assert end.ext_fields == {
                "producerGroup": "tg",
                "tranStateTableOffset": "5",
                "commitLogOffset": "5000",
                "commitOrRollback": wire,
                "fromTransactionCheck": "false",
                "msgId": result.send.msg_id,
                "transactionId": "tx",
                "topic": "T",
                "bname": "broker-a",
            }

    run(work())


def _exits(message: object) -> Outcome:
    raise SystemExit(3)


def _interrupts(message: object) -> Outcome:
    raise KeyboardInterrupt


def _stops(message: object) -> Outcome:
    raise StopIteration


async def _exits_on_the_loop(message: object) -> Outcome:
    raise SystemExit(3)


async def _awaits_something_cancelled(message: object) -> Outcome:
    future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    future.cancel()
    return await future


def _asserts(message: object) -> Outcome:
    raise AssertionError("of the application")


def _says_yes(message: object) -> Any:
    return True


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (_asserts, "of the application"),
        (_says_yes, "True is not a valid TransactionState"),
        (_exits, "SystemExit"),
        (_interrupts, "KeyboardInterrupt"),
        (_stops, "StopIteration"),
        (_exits_on_the_loop, "SystemExit"),
        (_awaits_something_cancelled, "CancelledError"),
    ],
)
def test_a_transaction_function_that_fails_in_any_way_leaves_the_outcome_open(
    function: Callable[[object], Outcome | Awaitable[Outcome]], told: str
) -> None:
    """It neither ends the loop nor waits for ever; the broker is told, and asks later."""

    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            async with TransactionProducer("tg", cluster.namesrv, check=no_check) as producer:
                result = await producer.send_in_transaction(Message("T", b"x"), function)
                assert result.state is TransactionState.UNKNOWN
            await until(lambda: cluster.broker.of(RequestCode.END_TRANSACTION))
            (end,) = cluster.broker.of(RequestCode.END_TRANSACTION)
            assert told in (end.remark or "")

    run(work())


def test_half_message_that_is_not_safe_is_rolled_back_unasked() -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            cluster.broker.on_send = lambda channel, request: cluster.broker.stored(request, 12)
            async with TransactionProducer("tg", cluster.namesrv, check=no_check) as producer:
                result = await producer.send_in_transaction(Message("T", b"x"), fails)
                await until(lambda: cluster.broker.of(RequestCode.END_TRANSACTION))
            assert result.send.status is SendStatus.FLUSH_SLAVE_TIMEOUT
            assert result.state is TransactionState.ROLLBACK
            assert (cluster.broker.of(RequestCode.END_TRANSACTION)[0].ext_fields or {})[
                "commitOrRollback"
            ] == "12"

    run(work())


def test_half_message_that_fails_runs_no_transaction() -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            cluster.broker.on_send = lambda channel, request: request.reply(1, "no")
            async with TransactionProducer("tg", cluster.namesrv, check=no_check) as producer:
                with pytest.raises(SendFailedError):
                    await producer.send_in_transaction(Message("T", b"x"), fails)
            assert cluster.broker.of(RequestCode.END_TRANSACTION) == []

    run(work())


def test_question_about_a_transaction_is_answered_to_who_asked() -> None:
    """S1-23: 39."""

    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            asked: list[MessageView] = []

            def check(message: MessageView) -> TransactionState:
                asked.append(message)
                return TransactionState.COMMIT

            async with TransactionProducer("tg", cluster.namesrv, check=check) as producer:
                await producer.send(Message("T", b"x"))
                header = CheckTransactionState(
                    tran_state_table_offset=9,
                    commit_log_offset=900,
                    msg_id="m",
                    transaction_id="tx9",
                    topic="RMQ_SYS_TRANS_HALF_TOPIC",
                    bname="broker-a",
                )
                properties = encode_properties({"PGROUP": "tg", "UNIQ_KEY": "UNIQ9", "TRAN_MSG": "true"})
                record = encode_record(topic="T", body=b"half", properties=properties, queue_id=2)
                for channel in cluster.broker.channels:
                    channel.oneway(
                        RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(), record)
                    )
                await until(lambda: cluster.broker.of(RequestCode.END_TRANSACTION))
            assert asked[0].body == b"half" and asked[0].queue.broker_name == "broker-a"
            (end,) = cluster.broker.of(RequestCode.END_TRANSACTION)
            assert end.flag == 2 and end.ext_fields == {
                "producerGroup": "tg",
                "tranStateTableOffset": "9",
                "commitLogOffset": "900",
                "commitOrRollback": "8",
                "fromTransactionCheck": "true",
                "msgId": "UNIQ9",
                "transactionId": "tx9",
                "topic": "T",
                "bname": "broker-a",
            }

    run(work())


# --- request and reply -----------------------------------------------------------------------------


def push_reply(request: RemotingCommand, body: bytes) -> RemotingCommand:
    """What a broker pushes to the asker."""
    told = names.parse((request.ext_fields or {})["i"])
    header = ReplyMessage(
        producer_group="pg",
        topic="c_REPLY_TOPIC",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
        properties=names.dump({"CORRELATION_ID": told["CORRELATION_ID"], "MSG_TYPE": "reply"}),
        born_host="127.0.0.1:1",
        store_host="127.0.0.1:2",
        store_timestamp=2,
    )
    return RemotingCommand(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, header.to_ext(), body)


def test_request_gets_the_reply_that_names_it() -> None:
    """S1-23: 326."""

    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            pushed: list[RemotingCommand] = []

            async def answer(channel: Channel, request: RemotingCommand) -> RemotingCommand:
                async def push() -> None:
                    pushed.append(await channel.call(push_reply(request, b"pong"), 1.0))
                    pushed.append(await channel.call(push_reply(request, b"again"), 1.0))

                tasks.append(asyncio.get_running_loop().create_task(push()))
                return cluster.broker.stored(request)

            tasks: list[asyncio.Task[None]] = []
            cluster.broker.on_send = answer
            async with Producer("pg", cluster.namesrv) as producer:
                reply = await request_reply.request(producer, Message("T", b"ping"), timeout=2.0)
                assert reply.body == b"pong" and reply.get("MSG_TYPE") == "reply"
                await asyncio.gather(*tasks)
                told = names.parse((cluster.broker.sends[0].ext_fields or {})["i"])
                assert told["REPLY_TO_CLIENT"] == producer.client_id and told["TTL"] == "2000"
                assert [answered.code for answered in pushed] == [0, 1]
                assert producer.instance.replies == {}

    run(work())


def test_request_without_a_reply_times_out_and_is_forgotten() -> None:
    async def work(clock: VirtualClock) -> None:
        network = MemoryNetwork(1).host("127.0.0.1")
        async with ScriptedCluster(network=network) as cluster:
            cluster.add_topic("T")
            async with Producer("pg", cluster.namesrv, network=network) as producer:
                started = clock.monotonic()
                with pytest.raises(RequestTimeoutError, match="no reply within 2 s"):
                    await request_reply.request(producer, Message("T", b"ping"), timeout=2.0)
                assert clock.monotonic() - started == pytest.approx(2.0, abs=0.01)
                assert producer.instance.replies == {}

    run_virtual(work)


def test_reply_goes_to_the_reply_topic_of_the_requests_cluster() -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("c_REPLY_TOPIC")
            asked = MessageView.build(
                "T",
                b"ping",
                properties={
                    "CLUSTER": "c",
                    "CORRELATION_ID": "id1",
                    "REPLY_TO_CLIENT": "asker",
                    "TTL": "3000",
                },
            )
            async with Producer("pg", cluster.namesrv) as producer:
                await request_reply.reply(producer, asked, b"pong")
                with pytest.raises(MessageIllegalError, match="no request"):
                    await request_reply.reply(producer, MessageView.build("T", b"x"), b"pong")
            (request,) = cluster.broker.of(RequestCode.SEND_REPLY_MESSAGE_V2)
            told = names.parse((request.ext_fields or {})["i"])
            assert told["MSG_TYPE"] == "reply" and told["CORRELATION_ID"] == "id1"
            assert told["REPLY_TO_CLIENT"] == "asker" and told["TTL"] == "3000"

    run(work())


# --- traces ----------------------------------------------------------------------------------------


def test_each_send_leaves_a_line_that_javas_tools_can_read() -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            cluster.add_topic("RMQ_SYS_TRACE_TOPIC")
            async with Producer("pg", cluster.namesrv, trace=True) as producer:
                sent = await producer.send(Message("T", b"hello", tags="TagA", keys=["k1", "k2"]))
                cluster.broker.on_send = lambda channel, request: (
                    request.reply(13, "no")
                    if (request.ext_fields or {})["b"] == "T"
                    else cluster.broker.stored(request)
                )
                with pytest.raises(Exception, match="code 13"):
                    await producer.send(Message("T", b"hello"))
            traces = [request for request in cluster.broker.sends if (request.ext_fields or {})["b"] != "T"]
            (request,) = traces
            lines = [line.split("\x01") for line in bytes(request.body).decode().split("\x02")[:-1]]
            good, bad = lines
            assert good[0] == "Pub" and good[3:10] == [
                "pg",
                "T",
                sent.msg_id,
                "TagA",
                "k1 k2",
                f"127.0.0.1:{cluster.broker.server.port}",
                "5",
            ]
            assert good[11:] == ["0", sent.offset_msg_id, "true"] and bad[13] == "false"
            keys = names.parse((request.ext_fields or {})["i"])["KEYS"].split()
            assert keys[:3] == [sent.msg_id, "k1", "k2"] and keys[3] == bad[5]

    run(work())


@pytest.mark.parametrize("name", names.DELAYS)
def test_every_way_to_ask_for_a_delay_is_traced_as_one(name: str) -> None:
    assert message_type({name: "5"}) == DELAYED
