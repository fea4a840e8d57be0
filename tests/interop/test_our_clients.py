"""Our producers and consumers against Apache's name server and broker, 5.5.0 and 4.9.7.

Where bytes matter, an unmodified Java client reads what ours wrote, or the other way round.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter, defaultdict
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gimbalmq.client import request_reply
from gimbalmq.client.consumer_config import ConsumeFromWhere, MessageModel
from gimbalmq.client.consuming.handlers import ConsumeContext
from gimbalmq.client.events import QueueTaken
from gimbalmq.client.producer import Producer
from gimbalmq.client.pull_consumer import PullConsumer
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.client.queue_pull_consumer import QueuePullConsumer
from gimbalmq.client.transaction import TransactionProducer
from gimbalmq.errors import RequestTimeoutError, ResponseError
from gimbalmq.model.flags import COMPRESSED
from gimbalmq.model.message import Message, MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import SendStatus, TransactionState
from tests.interop.apache_cluster import ApacheServer, Inbox, off, run, until
from tests.interop.conftest import wait_for_route
from tests.peers.driver import JavaClient, Outgoing, Queue, eventually

pytestmark = pytest.mark.interop
pytest_plugins = ["tests.interop.apache_fixtures"]

FIRST = ConsumeFromWhere.FIRST_OFFSET


def push(apache: ApacheServer, topic: str, handler: Any, **options: Any) -> PushConsumer:
    """A consumer that starts at the first message; not started."""
    expression = options.pop("expression", "*")
    how = {name: options.pop(name) for name in ("ordered", "expression_type") if name in options}
    options.setdefault("consume_from_where", FIRST)
    consumer = PushConsumer(options.pop("group", None) or apache.group(), apache.namesrv, **options)
    consumer.subscribe(topic, expression, handler, **how)
    return consumer


def numbered(count: int, *, start: int = 0) -> list[str]:
    return [f"{i:04d}" for i in range(start, start + count)]


# --- producers -----------------------------------------------------------------------------------


def test_every_way_to_send_reaches_a_java_consumer(apache: ApacheServer, java_550: JavaClient) -> None:
    """S0-01, S0-03: awaited, many in flight, one-way, batch, to a queue, by a function, by sharding key."""

    async def scenario() -> None:
        topic = await apache.topic(4)
        reader = await off(java_550.push, apache.group(), topic, namesrv=apache.namesrv)
        expected: dict[str, str] = {}
        async with apache.producer() as producer:
            queues = await producer.publish_queues(topic)
            assert queues == tuple(MessageQueue(topic, apache.broker_name, i) for i in range(4))

            def plain(body: str, **options: Any) -> Message:
                return Message(topic, body, **options)

            awaited = [
                await producer.send(
                    plain(f"awaited {i}", tags="t", keys=["k", f"k{i}"], properties={"p": "v"})
                )
                for i in range(8)
            ]
            first = awaited[0].queue.queue_id
            assert [result.queue.queue_id for result in awaited] == [(first + i) % 4 for i in range(8)]
            soon = await asyncio.gather(*(producer.send_soon(plain(f"soon {i}")) for i in range(500)))
            (batch,) = await producer.send_batch([plain(f"batch {i}", tags="b") for i in range(20)])
            to_queue = await producer.send(plain("to a queue", flag=7), queue=queues[2])
            chosen = await producer.send(plain("chosen"), selector=lambda all_, _, at: all_[at], argument=3)
            keyed = [await producer.send(plain(f"keyed {i}", sharding_key=f"order-{i}")) for i in range(6)]
            for i in range(5):
                await producer.send_oneway(plain(f"one-way {i}"))

            assert {r.status for r in (*awaited, *soon, batch, to_queue, chosen, *keyed)} == {
                SendStatus.SEND_OK
            }
            assert (to_queue.queue, chosen.queue) == (queues[2], queues[3])
            expected |= {r.msg_id: f"awaited {i}" for i, r in enumerate(awaited)}
            expected |= {r.msg_id: f"soon {i}" for i, r in enumerate(soon)}
            expected |= {name: f"batch {i}" for i, name in enumerate(batch.msg_id.split(","))}
            expected |= {r.msg_id: f"keyed {i}" for i, r in enumerate(keyed)}

            got = await off(reader.wait_for, 541)
            assert len(got) == 541
            by_body = {message.body.decode(): message for message in got}
            assert len(by_body) == 541
            for msg_id, body in expected.items():
                assert by_body[body].message_id == msg_id
            for i, result in enumerate(awaited):
                seen = by_body[f"awaited {i}"]
                assert (seen.tags, seen.keys, seen.properties["p"]) == ("t", f"k k{i}", "v")
                assert (seen.queue_id, seen.queue_offset) == (result.queue.queue_id, result.queue_offset)
                assert seen.offset_id == result.offset_msg_id
            assert by_body["to a queue"].flag == 7
            assert {by_body[f"batch {i}"].queue_id for i in range(20)} == {batch.queue.queue_id}
            assert {f"one-way {i}" for i in range(5)} <= by_body.keys()

        # Java places the same sharding keys on the same queues.
        java = await off(java_550.producer, apache.group(), namesrv=apache.namesrv)
        theirs = await off(java.send, *(Outgoing(topic, b"j", order=f"order-{i}") for i in range(6)))
        assert [sent.queue_id for sent in theirs] == [result.queue.queue_id for result in keyed]

    run(scenario())


def test_automatic_batches_give_each_message_its_place(apache: ApacheServer) -> None:
    async def scenario() -> None:
        topic = await apache.topic(4)
        async with apache.producer(auto_batch=True) as producer:
            anywhere = [producer.send_soon(Message(topic, f"any {i}", tags="t")) for i in range(300)]
            keyed = [
                producer.send_soon(Message(topic, f"{i % 3} {i:03d}", sharding_key=f"k{i % 3}"))
                for i in range(90)
            ]
            results = await asyncio.gather(*anywhere, *keyed)
        assert len({(result.queue, result.queue_offset) for result in results}) == 390
        places = {(r.queue.queue_id, r.queue_offset): r for r in results}
        seen: list[MessageView] = []
        reader = PullConsumer(apache.group(), apache.namesrv, consume_from_where=FIRST)
        reader.subscribe(topic)
        async with reader:
            async with asyncio.timeout(60):
                while len(seen) < 390:
                    seen += await reader.poll(1.0)
        for message in seen:
            sent = places[message.queue_id, message.queue_offset]
            assert (message.msg_id, message.offset_msg_id) == (sent.msg_id, sent.offset_msg_id)
        for key in "012":
            bodies = [
                message.body
                for message in sorted(seen, key=lambda one: (one.queue_id, one.queue_offset))
                if message.body.startswith(f"{key} ".encode())
            ]
            assert bodies == sorted(bodies)
            assert len(bodies) == 30

    run(scenario())


def test_compressed_bodies_are_read_by_the_other_side(apache: ApacheServer, java_550: JavaClient) -> None:
    """zlib, and on 5.5.0 lz4 and zstd; Java's own compression is read by us."""

    async def scenario() -> None:
        topic = await apache.topic(1)
        body = "compressible " * 2000
        kinds = ("zlib", "lz4", "zstd") if apache.is_new else ("zlib",)
        reader = await off(java_550.push, apache.group(), topic, namesrv=apache.namesrv)
        for kind in kinds:
            async with apache.producer(compression=kind) as producer:
                await producer.send(Message(topic, kind + body))
        got = await off(reader.wait_for, len(kinds))
        assert {message.body.decode() for message in got} == {kind + body for kind in kinds}
        for message in got:
            assert message.store_size < len(body) / 4  # Java clears the flag when it unpacks

        java = await off(java_550.producer, apache.group(), namesrv=apache.namesrv, compress_over=100)
        await off(java.send, Outgoing(topic, b"java" + body.encode()))
        inbox = Inbox()
        async with push(apache, topic, inbox):
            got_by_us = await inbox.wait_for(len(kinds) + 1)
        (javas,) = [message for message in got_by_us if message.body.startswith(b"java")]
        assert javas.sys_flag & COMPRESSED
        assert javas.body_size < len(body) / 4
        assert sorted(inbox.bodies) == sorted([*(kind + body for kind in kinds), "java" + body])

    run(scenario())


def test_delayed_messages_come_when_they_are_due(apache: ApacheServer) -> None:
    """A level of the broker's table; on 5.5.0 also any time."""

    async def scenario() -> None:
        topic = await apache.topic(2)
        inbox = Inbox()
        async with push(apache, topic, inbox), apache.producer() as producer:
            # Level 7 is 3 s: time enough for the other message, even where the machine stands still for a moment.
            await producer.send(Message(topic, "level", delay_level=7))
            await producer.send(Message(topic, "at once"))
            expected = {"at once": 0.0, "level": 3.0}
            if apache.is_new:
                await producer.send(Message(topic, "timer", delay=1.5))
                await producer.send(Message(topic, "moment", deliver_at=time.time() + 2.0))
                expected |= {"timer": 1.0, "moment": 1.5}  # the wheel turns by the second
            got = await inbox.wait_for(len(expected))
        assert inbox.bodies[0] == "at once"
        assert sorted(inbox.bodies) == sorted(expected)
        for message in got:
            late = (message.store_timestamp - message.born_timestamp) / 1000
            assert late >= expected[message.body.decode()] * 0.9, (message.body, late)

    run(scenario())


def test_transactions_are_decided_by_us_or_by_the_brokers_question(apache: ApacheServer) -> None:
    """39 and 37: committed, rolled back, asked about; a failing local transaction is asked about too."""

    async def scenario() -> None:
        topic = await apache.topic(2)
        inbox, checks = Inbox(), Counter[str]()
        states = {"C": TransactionState.COMMIT, "R": TransactionState.ROLLBACK, "U": TransactionState.UNKNOWN}

        async def check(message: MessageView) -> TransactionState:
            body = message.body.decode()
            checks[body] += 1
            assert message.topic == topic
            assert message.transaction_id
            return (
                TransactionState.UNKNOWN if body == "UC late" and checks[body] < 2 else states[body[:2][-1]]
            )

        async def local(message: Message) -> TransactionState:
            first = message.body.decode()[0]
            if first == "X":
                raise RuntimeError("as the test asked")
            return states[first]

        group = apache.group()
        async with (
            push(apache, topic, inbox),
            TransactionProducer(group, apache.namesrv, check=check) as producer,
        ):
            # By first letter the local outcome, by second the answer to the broker's question.
            results = {
                body: await producer.send_in_transaction(Message(topic, body, keys=body), local)
                for body in ("C", "R", "UC", "UR", "XC", "UC late")
            }
            assert results["C"].state is TransactionState.COMMIT
            assert results["R"].state is TransactionState.ROLLBACK
            assert results["XC"].state is TransactionState.UNKNOWN
            await until(lambda: set(inbox.bodies), {"C", "UC", "XC", "UC late"}.__eq__, "committed messages")
            await until(lambda: checks["UR"], bool, "the question about the one to be rolled back")
            # One more round of questions: what was rolled back stays away.
            await producer.send_in_transaction(Message(topic, "UC fence", keys="f"), lambda _: None)
            await until(lambda: set(inbox.bodies), lambda seen: "UC fence" in seen, "a later one")
        assert set(inbox.bodies) == {"C", "UC", "XC", "UC late", "UC fence"}
        assert set(checks) >= {"UC", "UR", "XC", "UC late", "UC fence"}  # 5.x may ask about decided ones too
        assert checks["UC late"] >= 2
        sent = {message.body.decode(): message for message in inbox.messages}
        for body in ("C", "UC", "XC"):
            assert sent[body].msg_id == results[body].send.msg_id
            assert sent[body].keys == (body,)

    run(scenario())


def test_request_waits_for_its_reply(apache: ApacheServer) -> None:
    """326: the reply comes down the asker's own connection; without a replier the time runs out."""

    async def scenario() -> None:
        topic, silent = await apache.topic(2), await apache.topic(1)
        async with apache.producer() as replier:

            async def answer(message: MessageView) -> None:
                await request_reply.reply(replier, message, b"re: " + message.body)

            async with push(apache, topic, answer), apache.producer() as asker:
                replies = await asyncio.gather(
                    *(request_reply.request(asker, Message(topic, f"q{i}"), timeout=20.0) for i in range(10))
                )
                assert [reply.body for reply in replies] == [f"re: q{i}".encode() for i in range(10)]
                with pytest.raises(RequestTimeoutError):
                    await request_reply.request(asker, Message(silent, "anyone?"), timeout=0.5)

    run(scenario())


def test_trace_is_found_by_mqadmin(newest: ApacheServer, java_550: JavaClient) -> None:
    async def scenario() -> None:
        topic, group = await newest.topic(1), newest.group()
        async with Producer(group, newest.namesrv, trace=True) as producer:
            sent = await producer.send(Message(topic, "traced", tags="t", keys="find-me"))

        def ask() -> str:
            return java_550.admin(
                "queryMsgTraceById", "-i", sent.msg_id, namesrv=newest.namesrv, tolerant=True
            )

        printed = await off(eventually, ask, lambda text: group in text, "the trace", every=0.3)
        assert "Pub" in printed
        assert "success" in printed

    run(scenario())


# --- push consumers ------------------------------------------------------------------------------


def test_push_consumer_sees_what_a_java_producer_sent(apache: ApacheServer, java_550: JavaClient) -> None:
    """S3-02, S3-16, S4-01: every field of 60 messages on 16 queues; `async def` and plain handlers."""

    async def scenario() -> None:
        topic = await apache.topic(16)
        inbox, plain = Inbox(), list[MessageView]()
        async with push(apache, topic, inbox), push(apache, topic, plain.append):
            java = await off(java_550.producer, apache.group(), namesrv=apache.namesrv)
            messages = [
                Outgoing(topic, f"{i}".encode(), tags=f"t{i % 3}", keys=f"k{i} all", properties={"i": f"{i}"})
                for i in range(60)
            ]
            sent = await off(java.send, *messages)
            got = {message.msg_id: message for message in await inbox.wait_for(60)}
            await until(lambda: len(plain), lambda count: count >= 60, "60 messages in threads")
        assert len(inbox.messages) == len(plain) == 60
        for message, result in zip(messages, sent, strict=True):
            seen = got[result.message_id]
            assert (seen.body, seen.tags, " ".join(seen.keys)) == (message.body, message.tags, message.keys)
            assert seen.properties == message.properties
            assert (seen.topic, seen.queue_id, seen.queue_offset) == (
                topic,
                result.queue_id,
                result.queue_offset,
            )
            assert seen.offset_msg_id == result.offset_id
            assert seen.broker_name == result.broker
            assert seen.reconsume_times == 0

    run(scenario())


def test_waiting_pull_is_answered_as_soon_as_a_message_arrives(apache: ApacheServer) -> None:
    """S3-01."""

    async def scenario() -> None:
        topic = await apache.topic(1)
        inbox, delays = Inbox(), list[float]()
        async with push(apache, topic, inbox), apache.producer() as producer:
            for i in range(6):
                await producer.send(Message(topic, f"{i}"))
                sent = time.monotonic_ns()
                await inbox.wait_for(i + 1)
                delays.append((inbox.times[-1] - sent) / 1e9)
        # A busy machine costs some tenths; a pull that nothing woke would wait for the broker's timer of 5 s.
        assert statistics.median(delays[1:]) < 2.0, delays

    run(scenario())


def test_tag_and_sql_filters(apache: ApacheServer) -> None:
    """S1-21: a condition on properties is refused at start until the broker allows such."""

    async def scenario() -> None:
        topic = await apache.topic(2)
        async with apache.producer() as producer:
            for i in range(30):
                await producer.send(Message(topic, f"{i}", tags="abc"[i % 3], properties={"n": str(i)}))
            await producer.send(Message(topic, "untagged"))
        tagged, by_number = Inbox(), Inbox()
        async with push(apache, topic, tagged, expression="a || c"):
            await tagged.wait_for(20)
            condition = partial(
                push, apache, topic, by_number, expression="n BETWEEN 5 AND 9", expression_type="SQL92"
            )
            with pytest.raises(ResponseError, match="does not support consumer to filter message by SQL92"):
                await condition().start()
            await apache.configure(enablePropertyFilter=True)
            async with condition():
                await by_number.wait_for(5)
                await apache.send(topic, "last", tags="c", properties={"n": "7"})
                await tagged.wait_for(21)
                await by_number.wait_for(6)
            await apache.configure(enablePropertyFilter=False)
        assert sorted(tagged.bodies) == sorted([*(f"{i}" for i in range(30) if i % 3 != 1), "last"])
        assert sorted(by_number.bodies) == ["5", "6", "7", "8", "9", "last"]

    run(scenario())


def test_batch_handler_gets_many_and_names_the_last_good_one(apache: ApacheServer) -> None:
    """S3-08: up to so many at once; what comes after ack_index is delivered again."""

    async def scenario() -> None:
        topic = await apache.topic(1)
        bodies = numbered(200)
        async with apache.producer() as producer:
            await producer.send_batch([Message(topic, body) for body in bodies])
        batches, retried = list[list[str]](), list[tuple[str, int]]()

        async def handler(messages: list[MessageView], context: ConsumeContext) -> None:
            texts = [message.body.decode() for message in messages]
            retried.extend((m.body.decode(), m.reconsume_times) for m in messages if m.reconsume_times)
            batches.append(texts)
            if texts[0] == "0000" and not messages[0].reconsume_times:
                context.ack_index = len(texts) - 3

        async with push(apache, topic, handler, consume_message_batch_max_size=16):
            await until(lambda: retried, lambda seen: len(seen) >= 2, "the two that come again")
            await until(lambda: sum(map(len, batches)), lambda n: n >= 202, "all messages")
        assert max(map(len, batches)) == 16
        assert sorted({text for batch in batches for text in batch}) == bodies
        first = next(batch for batch in batches if batch[0] == "0000")
        assert sorted(retried) == [(body, 1) for body in first[-2:]]

    run(scenario())


def test_ordered_handler_gets_each_queue_in_order_even_when_it_fails(apache: ApacheServer) -> None:
    """S3-06: with the broker's queue lock; each message fails once and comes again before any later one."""

    async def scenario() -> None:
        topic = await apache.topic(3)
        async with apache.producer() as producer:
            for i, body in enumerate(numbered(30)):
                await producer.send(Message(topic, body, sharding_key=str(i % 5)))
        inbox = Inbox(failures=1)
        consumer = push(apache, topic, inbox, ordered=True, suspend_current_queue=0.05)
        async with consumer:
            await inbox.wait_for(60)
        by_queue: dict[int, list[int]] = defaultdict(list)
        for message in inbox.messages:
            by_queue[message.queue_id].append(message.queue_offset)
        assert sum(map(len, by_queue.values())) == 60
        for offsets in by_queue.values():
            assert offsets == [offset for i in range(len(offsets) // 2) for offset in (i, i)]

    run(scenario())


def test_broadcasting_gives_every_member_every_message_and_keeps_its_own_place(
    apache: ApacheServer, tmp_path: Path
) -> None:
    """S2-02, S3-05, S3-09."""

    async def scenario() -> None:
        topic, group = await apache.topic(4), apache.group()

        def member(inbox: Inbox, name: str) -> PushConsumer:
            options = {"message_model": MessageModel.BROADCASTING, "local_offset_folder": tmp_path}
            return push(apache, topic, inbox, group=group, instance_name=name, **options)

        one, two, again = Inbox(), Inbox(), Inbox()
        async with member(one, "one") as first, member(two, "two") as second:
            for consumer in (first, second):
                await until(
                    lambda: [queue.queue_id for queue in consumer.assignment.get(topic, [])],  # noqa: B023
                    [0, 1, 2, 3].__eq__,
                    "all queues",
                )
            await apache.send(topic, *numbered(20))
            for inbox in (one, two):
                await inbox.wait_for(20)
                assert sorted(inbox.bodies) == numbered(20)
        await apache.send(topic, *numbered(8, start=20))
        async with member(again, "one"):
            await again.wait_for(8)
        assert sorted(again.bodies) == numbered(8, start=20)

    run(scenario())


def test_where_a_new_group_begins(apache: ApacheServer) -> None:
    """S2-30, S2-36, S2-38; on 4.9.7 also S2-29, S2-31, S2-37.

    A young topic, all of it in memory, is read from 0 whatever the group wants. 4.9 can be told for a while that
    nothing is in memory; 5.x looks at the pages themselves.
    """

    async def scenario() -> None:
        topic = await apache.topic(1)
        await apache.send(topic, "old 1", "old 2")
        # The text form has whole seconds, and 4.9 takes the message nearest to the moment: with more than two
        # seconds between them, the start of the second "between" is stored in is nearer to it than to "old 2".
        await asyncio.sleep(2.2)
        await apache.send(topic, "between")
        young, first, newest, timed, text = (Inbox() for _ in range(5))
        last = partial(push, apache, topic, consume_from_where=ConsumeFromWhere.LAST_OFFSET)
        async with last(young), push(apache, topic, first):
            await young.wait_for(3)
            await first.wait_for(3)
        assert young.bodies == first.bodies == ["old 1", "old 2", "between"]
        if apache.is_new:
            return

        moment = datetime.fromtimestamp(young.messages[2].store_timestamp / 1000).astimezone()
        await apache.configure(accessMessageInMemoryMaxRatio=0)
        at = partial(push, apache, topic, consume_from_where=ConsumeFromWhere.TIMESTAMP)
        try:
            async with (
                last(newest) as one,
                at(timed, consume_timestamp=moment) as two,
                at(text, consume_timestamp=moment.strftime("%Y%m%d%H%M%S")) as three,
            ):
                for consumer in (one, two, three):  # a queue that is held has its beginning
                    await until(lambda: consumer.assignment.get(topic), bool, "a queue")  # noqa: B023
                await apache.send(topic, "new")
                for inbox, count in ((newest, 1), (timed, 2), (text, 2)):
                    await inbox.wait_for(count)
        finally:
            await apache.configure(accessMessageInMemoryMaxRatio=40)
        assert newest.bodies == ["new"]
        assert timed.bodies == text.bodies == ["between", "new"]

    run(scenario())


def test_failed_message_is_tried_again_and_ends_as_dead_letter(
    apache: ApacheServer, java_550: JavaClient
) -> None:
    """S3-23, S3-24, S3-33, S3-34: two retries allowed, then %DLQ%, where Java's reader finds it."""

    async def scenario() -> None:
        topic, group = await apache.topic(1), apache.group()
        (sent, _) = await apache.send(topic, "poison", "good", tags="t", keys="k", properties={"p": "v"})
        poison, good = Inbox(failures=99), Inbox()

        async def handler(message: MessageView) -> bool:
            return await (poison if message.body == b"poison" else good)(message)

        consumer = push(apache, topic, handler, group=group, max_reconsume_times=2)
        async with consumer:
            attempts = await poison.wait_for(3)
            await good.wait_for(1)
            dead = f"%DLQ%{group}"
            # A Java consumer that finds no topic at its start looks again only at its next round, 20 s later.
            await off(wait_for_route, java_550, dead, namesrv=apache.namesrv)
            reader = await off(java_550.push, apache.group(), dead, namesrv=apache.namesrv)
            (letter,) = await off(reader.wait_for, 1)
        assert [message.reconsume_times for message in attempts] == [0, 1, 2]
        assert {message.topic for message in attempts} == {topic}
        assert {message.msg_id for message in attempts} == {sent.msg_id}
        stored = [message.store_timestamp for message in attempts]
        assert all(later - earlier >= 900 for earlier, later in pairwise(stored))
        assert attempts[1].all_properties["ORIGIN_MESSAGE_ID"] == sent.offset_msg_id
        assert len(poison.messages) == 3
        assert (letter.body, letter.tags, letter.keys) == (b"poison", "t", "k")
        assert letter.properties["p"] == "v"

        successor = Inbox()
        async with push(apache, topic, successor, group=group):
            await apache.send(topic, "next")
            await successor.wait_for(1)
        assert successor.bodies == ["next"]

    run(scenario())


def test_suspended_consumer_rests_until_resumed(apache: ApacheServer) -> None:
    """S0-53: no pull and no round while suspended."""

    async def scenario() -> None:
        topic = await apache.topic(2)
        inbox = Inbox()
        consumer = push(apache, topic, inbox, suspend_delay=0.1)
        async with consumer, apache.producer() as producer:
            consumer.suspend()
            for _ in range(2):  # pulls that wait in the broker may still bring one each
                await producer.send(Message(topic, "before"))
            with suppress(AssertionError):  # not where no pull was waiting
                await inbox.wait_for(2, timeout=3.0)
            for body in numbered(6):
                await producer.send(Message(topic, body))
            assert not await consumer.rebalance()
            await asyncio.sleep(0.7)
            assert set(inbox.bodies) <= {"before"}
            consumer.resume()
            await inbox.wait_for(8)
        assert sorted(inbox.bodies) == [*numbered(6), "before", "before"]

    run(scenario())


def test_clean_stop_leaves_nothing_to_be_consumed_again(apache: ApacheServer) -> None:
    """S1-25, S3-31: handlers at work finish and are committed before the group hears of the leaving."""

    async def scenario() -> None:
        topic, group = await apache.topic(4), apache.group()
        await apache.send(topic, *numbered(120))
        seen: list[str] = []
        for _ in range(4):
            inbox = Inbox(seconds=0.01)
            async with push(apache, topic, inbox, group=group, consume_threads=3, persist_interval=600.0):
                await inbox.wait_for(20)  # and some more until it has ended; the last one must find as many
            seen += inbox.bodies
        rest = Inbox()
        async with push(apache, topic, rest, group=group):
            await until(lambda: len(seen) + len(rest.bodies), lambda n: n >= 120, "the rest")
            await apache.send(topic, "fence", "fence", "fence", "fence")
            await until(lambda: rest.bodies.count("fence"), lambda n: n == 4, "one more of each queue")
        assert sorted(seen + [body for body in rest.bodies if body != "fence"]) == numbered(120)

    run(scenario())


# --- pull consumers ------------------------------------------------------------------------------


def test_pull_consumer_polls_commits_and_goes_on_where_it_stopped(
    apache: ApacheServer, java_550: JavaClient
) -> None:
    """S1-17: what is committed is what Java's reader of the group finds."""

    async def scenario() -> None:
        topic, group = await apache.topic(2), apache.group()
        await apache.send(topic, *numbered(20))
        options: dict[str, Any] = {"consume_from_where": FIRST, "auto_commit": False}

        async def read(count: int, *, commit: bool) -> list[str]:
            consumer = PullConsumer(group, apache.namesrv, **options)
            consumer.subscribe(topic)
            bodies: list[str] = []
            async with consumer:
                while len(bodies) < count:
                    bodies += [message.body.decode() for message in await consumer.poll()]
                if commit:
                    await consumer.commit()
                    for queue in consumer.assignment[topic]:
                        assert await consumer.committed(queue) == consumer.position(queue) == 10
            return bodies

        assert sorted(await read(20, commit=False)) == numbered(20)
        assert sorted(await read(20, commit=True)) == numbered(20)
        java = await off(java_550.lite_pull, group, namesrv=apache.namesrv)
        for i in range(2):
            assert await off(java.committed, Queue(topic, apache.broker_name, i)) == 10
        await off(java.shutdown)
        await apache.send(topic, *numbered(4, start=20))
        assert sorted(await read(4, commit=False)) == numbered(4, start=20)

    run(scenario())


def test_assigned_queues_seek_pause_and_times(apache: ApacheServer, java_550: JavaClient) -> None:
    """S3-17: seeks to an offset, to both ends and to a time; another group's members do not matter."""

    async def scenario() -> None:
        topic = await apache.topic(2)
        queues = [MessageQueue(topic, apache.broker_name, i) for i in range(2)]
        async with apache.producer() as producer:
            for i in range(10):
                await producer.send(Message(topic, f"{i}"), queue=queues[i % 2])
                await asyncio.sleep(0.01)

            async with PullConsumer(apache.group(), apache.namesrv, consume_from_where=FIRST) as consumer:
                assert await consumer.queues(topic) == tuple(queues)
                consumer.assign(queues)

                async def take(count: int) -> list[MessageView]:
                    got: list[MessageView] = []
                    while len(got) < count:
                        got += await consumer.poll()
                    return got

                got = await take(10)
                assert sorted(message.body for message in got) == [f"{i}".encode() for i in range(10)]
                assert [await consumer.min_offset(queue) for queue in queues] == [0, 0]
                assert [await consumer.max_offset(queue) for queue in queues] == [5, 5]

                await consumer.seek(queues[0], 3)
                assert [message.body for message in await take(2)] == [b"6", b"8"]
                await consumer.seek_to_begin(queues[1])
                assert [message.body for message in await take(5)] == [b"1", b"3", b"5", b"7", b"9"]

                third = next(message for message in got if message.body == b"5")
                found = await consumer.offset_for_time(queues[1], third.store_timestamp)
                java = await off(java_550.lite_pull, apache.group(), namesrv=apache.namesrv)
                place = Queue(topic, apache.broker_name, 1)
                assert found == await off(java.offset_for_timestamp, place, third.store_timestamp) == 2
                await consumer.seek_to_time(queues[1], third.store_timestamp)
                assert [message.body for message in await take(3)] == [b"5", b"7", b"9"]

                await consumer.seek_to_end(queues[0])
                consumer.pause(queues[1])
                await producer.send(Message(topic, "held back"), queue=queues[1])
                await producer.send(Message(topic, "free"), queue=queues[0])
                assert [message.body for message in await take(1)] == [b"free"]
                assert await consumer.poll(0.3) == []
                consumer.resume(queues[1])
                assert [message.body for message in await take(1)] == [b"held back"]

    run(scenario())


def test_queue_pull_consumer_reads_where_it_is_told(apache: ApacheServer, java_550: JavaClient) -> None:
    """S2-20, S2-23, S1-39, S3-01: nothing is pulled by a round; what the caller commits is what Java's reader finds."""

    async def scenario() -> None:
        topic, group = await apache.topic(2), apache.group()
        queues = [MessageQueue(topic, apache.broker_name, i) for i in range(2)]
        told: list[tuple[str, list[MessageQueue], list[MessageQueue]]] = []
        taken: list[int] = []
        async with apache.producer() as producer:
            for i in range(10):
                tags = "odd" if i % 2 else "even"
                await producer.send(Message(topic, f"{i}", tags=tags), queue=queues[i // 5])
            consumer = QueuePullConsumer(group, apache.namesrv)
            consumer.on_queues_changed(lambda topic, all_, mine, _: told.append((topic, [*all_], [*mine])))
            consumer.on_event(
                lambda event: taken.append(event.offset) if isinstance(event, QueueTaken) else None
            )
            consumer.subscribe(topic)
            async with consumer:
                assert await consumer.queues(topic) == tuple(queues)
                await until(lambda: consumer.assignment, lambda held: held == {topic: queues}, "both queues")
                assert (told, taken) == ([(topic, queues, queues)], [0, 0])

                async def read(offset: int, **options: Any) -> tuple[str, list[bytes], int]:
                    result = await consumer.pull(queues[1], offset, **options)
                    assert (result.min_offset, result.max_offset) == (0, 5)
                    return (
                        result.status.name,
                        [message.body for message in result.messages],
                        result.next_offset,
                    )

                assert await read(1, max_messages=2) == ("FOUND", [b"6", b"7"], 3)
                assert await read(0, expression="odd") == ("FOUND", [b"5", b"7", b"9"], 5)
                assert await read(0, expression="none") == ("NO_MATCHED_MSG", [], 5)
                assert await read(5) == ("NO_NEW_MSG", [], 5)
                assert await read(99) == ("OFFSET_ILLEGAL", [], 5)
                waiting = asyncio.ensure_future(consumer.pull(queues[0], 5, wait=20))
                await asyncio.sleep(0.5)
                sent = time.monotonic()
                await producer.send(Message(topic, "late"), queue=queues[0])
                late = await waiting
                assert [message.body for message in late.messages] == [b"late"]
                assert time.monotonic() - sent < 5
                await consumer.commit(queues[0], late.next_offset)
                await consumer.commit(queues[1], 3)

                await consumer.send_back(late.messages[0], 1)
                (retries,) = await consumer.queues(f"%RETRY%{group}")
                (again,) = (await consumer.pull(retries, 0, wait=20)).messages
                assert (again.body, again.original_topic, again.reconsume_times) == (b"late", topic, 1)
        java = await off(java_550.lite_pull, group, namesrv=apache.namesrv)
        found = [await off(java.committed, Queue(topic, apache.broker_name, i)) for i in range(2)]
        assert found == [6, 3]

    run(scenario())


# --- what operators ask --------------------------------------------------------------------------


def test_mqadmin_reaches_our_consumer_through_the_broker(newest: ApacheServer, java_550: JavaClient) -> None:
    """S1-14, S1-18, S1-23: who is connected (203), how it runs (307), progress (208), 309 and reset (220)."""

    async def scenario() -> None:
        topic, group = await newest.topic(1), newest.group()

        async def admin(*words: str) -> str:
            return await off(java_550.admin, *words, namesrv=newest.namesrv)

        inbox = Inbox()
        consumer = push(newest, topic, inbox, group=group, persist_interval=0.2, reset_delay=0.2)
        async with consumer:
            sent = await newest.send(topic, "1", "2", "3")
            await inbox.wait_for(3)
            shown = await admin("consumerConnection", "-g", group)
            for word in (consumer.client_id, topic, "CONSUME_PASSIVELY", "CLUSTERING", FIRST.value):
                assert word in shown
            shown = await admin("consumerStatus", "-g", group, "-i", consumer.client_id)
            assert "PROP_CONSUME_TYPE" in shown
            assert topic in shown

            def progress() -> list[str]:
                """Nothing while the group has committed no offset: the broker then answers code 206."""
                printed = java_550.try_admin("consumerProgress", "-g", group, namesrv=newest.namesrv) or ""
                return next(
                    (line.split() for line in printed.splitlines() if line.startswith(f"{topic} ")), []
                )

            await off(eventually, progress, lambda row: row[3:5] == ["3", "3"], "the progress")

            shown = await admin(
                "queryMsgById", "-i", sent[1].msg_id, "-t", topic, "-g", group, "-d", consumer.client_id
            )
            assert "CR_SUCCESS" in shown
            await inbox.wait_for(4)
            assert inbox.bodies[3] == "2"

            await admin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0", "-f", "true")
            await inbox.wait_for(7)
            assert inbox.bodies[4:7] == ["1", "2", "3"]

    run(scenario())
