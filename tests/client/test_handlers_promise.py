"""What handlers may do to a consumer: fail in every way there is. No message is committed that was not processed."""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from gimbalmq.client.consuming.handlers import ConsumeContext, ConsumeResult
from gimbalmq.client.consuming.offsets import RemoteOffsets
from gimbalmq.client.events import RoundFinished
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.errors import ConfigError
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.status_bodies import ConsumeDirectlyResult
from tests.client.group_peers import GroupCluster, in_virtual_time, on_sockets, until
from tests.client.test_consumer_cluster import World, in_world, send_all
from tests.support import run

SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
PULL = RequestCode.PULL_MESSAGE
Q0 = MessageQueue("T", "broker-a", 0)


async def started(
    cluster: GroupCluster,
    handler: Any,
    *bodies: str,
    ordered: bool = False,
    batch: bool | None = None,
    **more: Any,
) -> PushConsumer:
    """A consumer of one queue that has these messages."""
    cluster.topic("T", 1)
    cluster.broker.put("T", 0, *bodies)
    cluster.broker.from_start(Q0)
    consumer = cluster.push(**more)
    consumer.subscribe("T", "*", handler, ordered=ordered, batch=batch)
    await cluster.launch(consumer)
    return consumer


def sent_back(cluster: GroupCluster) -> list[str]:
    """Bodies' places of the messages that came back to the broker."""
    return sorted(
        request.fields["originMsgId"].rpartition("-")[2] for request in cluster.broker.of(SEND_BACK)
    )


async def somebody_elses_future() -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


# --- cancellations ---------------------------------------------------------------------------------


def test_a_cancelled_future_in_a_handler_is_a_failure_of_the_message() -> None:
    async def scenario(world: World) -> None:
        producer = await world.producer()
        await world.topic("T", 1, producer)
        bodies = await send_all(producer, "T", 1, 3)
        tried: list[tuple[str, int]] = []

        async def handler(message: MessageView) -> None:
            tried.append((message.body.decode(), message.reconsume_times))
            if message.reconsume_times == 0 and message.body == b"0-0":
                await somebody_elses_future()

        consumer = await world.push(handler)
        await asyncio.sleep(9)
        assert sorted(tried) == [(body, 0) for body in bodies]
        await asyncio.sleep(3)
        assert tried[3:] == [("0-0", 1)]
        await consumer.close()
        again: list[bytes] = []
        await world.push(lambda message: again.append(message.body), group="g")
        await send_all(producer, "T", 1, 1)
        await asyncio.sleep(1)
        assert [len(again)] == [1]

    in_world(scenario)


def test_a_cancelled_future_in_an_ordered_handler_makes_the_message_come_again() -> None:
    async def scenario(world: World) -> None:
        producer = await world.producer()
        await world.topic("T", 1, producer)
        await send_all(producer, "T", 1, 3)
        tried: list[str] = []

        async def handler(message: MessageView) -> None:
            tried.append(message.body.decode())
            if tried == ["0-0"]:
                await somebody_elses_future()

        await world.push(handler, ordered=True)
        await asyncio.sleep(3)
        assert tried == ["0-0", "0-0", "0-1", "0-2"]

    in_world(scenario)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_handler_that_cancels_its_own_task_does_not_stop_the_queue(ordered: bool) -> None:
    """The message is not settled; with the next one of its queue it comes again."""

    async def scenario(cluster: GroupCluster) -> None:
        tried: list[str] = []

        async def handler(message: MessageView) -> None:
            tried.append(message.body.decode())
            if len(tried) == 1:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(1)

        await started(cluster, handler, "a", ordered=ordered)
        await asyncio.sleep(0.5)
        assert tried == ["a"]
        assert cluster.broker.committed(Q0) == 0
        cluster.broker.put("T", 0, "b")
        await asyncio.sleep(6)
        assert sorted(tried) == ["a", "a", "b"]
        assert cluster.broker.committed(Q0) == 2

    in_virtual_time(scenario)


@pytest.mark.parametrize("ordered", [False, True])
def test_what_a_handler_has_cut_short_comes_again_without_another_message(ordered: bool) -> None:
    async def scenario(cluster: GroupCluster) -> None:
        tried: list[str] = []

        async def handler(message: MessageView) -> None:
            tried.append(message.body.decode())
            if len(tried) == 1:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)

        consumer = await started(cluster, handler, "a", ordered=ordered)
        await asyncio.sleep(3)
        assert tried == ["a", "a"]
        await consumer.close()
        assert cluster.broker.committed(Q0) == 1

    in_virtual_time(scenario)


def test_closing_cancels_what_does_not_end_and_commits_nothing_of_it() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        ends: list[str] = []

        async def handler(message: MessageView) -> None:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        consumer = await started(cluster, handler, "a", await_termination=0.5)
        await asyncio.sleep(1)
        await consumer.close()
        assert ends == ["cancelled"]
        assert cluster.broker.committed(Q0) == 0
        assert sent_back(cluster) == []

    in_virtual_time(scenario)


# --- exits -----------------------------------------------------------------------------------------


class Leave(BaseException):
    """Neither an Exception nor one that Python knows."""


EXITS: list[type[BaseException]] = [
    SystemExit,
    KeyboardInterrupt,
    GeneratorExit,
    asyncio.CancelledError,
    Leave,
]


@pytest.mark.parametrize("error", EXITS)
def test_exits_in_plain_handlers_are_failures_and_the_threads_live_on(error: type[BaseException]) -> None:
    async def scenario(cluster: GroupCluster) -> None:
        done: list[str] = []

        def handler(message: MessageView) -> None:
            if message.body == b"bad":
                raise error
            done.append(threading.current_thread().name)

        await started(cluster, handler, *(["bad"] * 10), consume_threads=2)
        await until(lambda: len(sent_back(cluster)) == 10)
        cluster.broker.put("T", 0, *(["good"] * 10))
        await until(lambda: len(done) == 10)
        alive = {thread.name for thread in threading.enumerate()}
        assert len(alive & {"consume-g-1", "consume-g-2"}) == 2
        assert set(done) <= alive

    run(on_sockets(scenario))


@pytest.mark.parametrize("error", EXITS)
def test_exits_in_ordered_plain_handlers_make_the_message_come_again(error: type[BaseException]) -> None:
    async def scenario(cluster: GroupCluster) -> None:
        tried: list[str] = []

        def handler(messages: list[MessageView]) -> None:
            tried.extend(message.body.decode() for message in messages)
            if len(tried) == 1:
                raise error

        await started(
            cluster,
            handler,
            "a",
            "b",
            ordered=True,
            batch=True,
            suspend_current_queue=0.01,
            consume_threads=1,
        )
        await until(lambda: len(tried) == 3)
        assert tried == ["a", "a", "b"]

    run(on_sockets(scenario))


@pytest.mark.parametrize("ordered", [False, True])
def test_sys_exit_in_an_async_handler_is_a_failure_and_the_loop_lives_on(ordered: bool) -> None:
    async def scenario(cluster: GroupCluster) -> None:
        tried: list[str] = []

        async def handler(message: MessageView) -> None:
            tried.append(message.body.decode())
            if len(tried) == 1:
                sys.exit(1)

        await started(cluster, handler, "a", "b", ordered=ordered)
        await asyncio.sleep(2)
        if ordered:
            assert tried == ["a", "a", "b"]
        else:
            assert (tried, sent_back(cluster)) == (["a", "b"], ["0"])

    in_virtual_time(scenario)


# --- batches ---------------------------------------------------------------------------------------


def test_an_ordered_batch_is_done_up_to_its_ack_index() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        calls: list[list[str]] = []

        async def handler(messages: list[MessageView], context: ConsumeContext) -> None:
            calls.append([message.body.decode() for message in messages])
            if len(calls) < 4:
                context.ack_index = 0

        consumer = await started(
            cluster,
            handler,
            *"abcd",
            ordered=True,
            consume_message_batch_max_size=4,
            suspend_current_queue=0.5,
            persist_interval=0.1,
        )
        await asyncio.sleep(0.3)
        assert calls == [["a", "b", "c", "d"]]
        assert cluster.broker.committed(Q0) == 1
        await asyncio.sleep(0.5)
        assert calls[1:] == [["b", "c", "d"]]
        assert cluster.broker.committed(Q0) == 2
        await asyncio.sleep(2)
        assert calls[2:] == [["c", "d"], ["d"]]
        assert cluster.broker.committed(Q0) == 4
        assert await consumer.lag() == {Q0: 0}

    in_virtual_time(scenario)


@pytest.mark.parametrize("ordered", [False, True])
def test_an_ack_index_of_minus_one_fails_the_whole_batch(ordered: bool) -> None:
    async def scenario(cluster: GroupCluster) -> None:
        calls: list[list[str]] = []

        async def handler(messages: list[MessageView], context: ConsumeContext) -> None:
            calls.append([message.body.decode() for message in messages])
            if len(calls) == 1:
                context.ack_index = -1

        await started(
            cluster,
            handler,
            *"abc",
            ordered=ordered,
            consume_message_batch_max_size=4,
            suspend_current_queue=0.5,
            persist_interval=0.1,
        )
        await asyncio.sleep(0.4)
        assert calls == [["a", "b", "c"]]
        if ordered:
            assert cluster.broker.committed(Q0) == 0
            await asyncio.sleep(1)
            assert calls[1:] == [["a", "b", "c"]]
        else:
            assert sent_back(cluster) == ["0", "1", "2"]
        assert (await asyncio.sleep(0.2, cluster.broker.committed(Q0))) == 3

    in_virtual_time(scenario)


def test_without_auto_commit_the_messages_after_the_ack_index_come_again_too() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        calls: list[list[str]] = []

        async def handler(messages: list[MessageView], context: ConsumeContext) -> ConsumeResult:
            calls.append([message.body.decode() for message in messages])
            context.auto_commit = False
            if len(calls) == 1:
                context.ack_index = 1
                return ConsumeResult.SUCCESS
            return ConsumeResult.COMMIT

        await started(
            cluster,
            handler,
            *"abcd",
            ordered=True,
            consume_message_batch_max_size=4,
            suspend_current_queue=0.5,
            persist_interval=0.1,
        )
        await asyncio.sleep(0.3)
        assert (calls, cluster.broker.committed(Q0)) == ([["a", "b", "c", "d"]], 0)
        await asyncio.sleep(1)
        assert (calls[1:], cluster.broker.committed(Q0)) == ([["c", "d"]], 4)

    in_virtual_time(scenario)


@pytest.mark.parametrize("ordered", [False, True])
def test_each_message_of_a_handler_without_batches_has_its_own_context(ordered: bool) -> None:
    """Also if the consumer's batch size is more than one."""

    async def scenario(cluster: GroupCluster) -> None:
        tried: list[str] = []

        async def handler(message: MessageView, context: ConsumeContext) -> None:
            tried.append(message.body.decode())
            if len(tried) == 1:
                context.ack_index = -1
                context.delay_level = 7

        await started(cluster, handler, *"ab", ordered=ordered, batch=False, consume_message_batch_max_size=4)
        await asyncio.sleep(2)
        if ordered:
            assert tried == ["a", "a", "b"]
        else:
            assert (tried, sent_back(cluster)) == (["a", "b"], ["0"])
            assert cluster.broker.of(SEND_BACK)[0].fields["delayLevel"] == "7"

    in_virtual_time(scenario)


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("ack_index", -2, "-1"),
        ("ack_index", "1", "number"),
        ("delay_level", "3", "number"),
        ("delay_level", -2, "-1"),
        ("suspend", "1", "seconds"),
        ("suspend", float("nan"), "seconds"),
        ("auto_commit", "no", "True or False"),
    ],
)
@pytest.mark.parametrize("ordered", [False, True])
def test_a_wrong_value_in_the_context_is_refused_where_it_is_set(
    ordered: bool, name: str, value: Any, remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: GroupCluster) -> None:
        tried: list[str] = []

        async def handler(message: MessageView, context: ConsumeContext) -> None:
            tried.append(message.body.decode())
            if len(tried) == 1:
                setattr(context, name, value)

        await started(cluster, handler, "a", "b", ordered=ordered)
        await asyncio.sleep(2)
        assert sorted(tried) == (["a", "a", "b"] if ordered else ["a", "b"])
        assert sent_back(cluster) == ([] if ordered else ["0"])

    in_virtual_time(scenario)
    assert f"{name}={value!r}" in caplog.text and remedy in caplog.text
    assert 'test_handlers_promise.py"' in caplog.text, "the line that set it is shown"


# --- awaitables ------------------------------------------------------------------------------------


class Handler:
    """A handler in the shapes in which people write one that is async but does not look so."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.begun: list[str] = []

    async def work(self, message: MessageView) -> bool:
        body = message.body.decode()
        self.begun.append(body)
        await asyncio.sleep(0.01)
        self.done.append(body)
        return not (body == "bad" and self.done.count("bad") == 1)

    def decorated(self) -> Callable[[MessageView], Awaitable[bool]]:
        @functools.wraps(self.work)
        def wrapper(message: MessageView) -> Awaitable[bool]:
            return self.work(message)

        return wrapper


SHAPES: list[Callable[[Handler], Any]] = [
    lambda handler: lambda message: handler.work(message),
    lambda handler: handler.decorated(),
    lambda handler: functools.partial(lambda extra, message: handler.work(message), 1),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ordered", [False, True])
def test_an_awaitable_that_a_plain_function_returns_is_awaited(
    ordered: bool, shape: Callable[[Handler], Any]
) -> None:
    async def scenario(cluster: GroupCluster) -> None:
        handler = Handler()
        consumer = await started(
            cluster, shape(handler), "a", "bad", "c", ordered=ordered, suspend_current_queue=0.01
        )
        if ordered:
            await until(lambda: len(handler.done) == 4)
            assert handler.begun == handler.done == ["a", "bad", "bad", "c"]
        else:
            await until(lambda: len(handler.done) == 3 and sent_back(cluster))
            assert sorted(handler.done) == ["a", "bad", "c"]
            assert sent_back(cluster) == ["1"]
        await consumer.close()
        assert cluster.broker.committed(Q0) == 3

    run(on_sockets(scenario))


def test_no_more_awaitables_are_awaited_at_a_time_than_there_are_consume_threads() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        at_work = most = ended = 0

        async def work() -> None:
            nonlocal at_work, most, ended
            at_work += 1
            most = max(most, at_work)
            await asyncio.sleep(0.02)
            at_work -= 1
            ended += 1

        await started(cluster, lambda message: work(), *("x" * 20), consume_threads=3)
        await until(lambda: ended == 20)
        assert most == 3

    run(on_sockets(scenario))


@pytest.mark.parametrize("all_called", [False, True])
def test_an_awaitable_of_a_dropped_queue_is_neither_awaited_nor_complained_about(all_called: bool) -> None:
    """It is one that waits for its turn; warnings are errors here."""

    async def scenario(cluster: GroupCluster) -> None:
        called: list[str] = []
        begun: list[str] = []

        async def work(message: MessageView) -> None:
            begun.append(message.body.decode())
            await asyncio.sleep(0.3)

        def handler(message: MessageView) -> Awaitable[None]:
            called.append(message.body.decode())
            return work(message)

        consumer = await started(cluster, handler, *"abcd", consume_threads=1)
        await until(lambda: begun)
        if all_called:
            await until(lambda: len(called) == 4)
            await asyncio.sleep(0.05)
        await consumer.close()
        assert begun == ["a"]
        assert cluster.broker.committed(Q0) == 1

    run(on_sockets(scenario))


@pytest.mark.parametrize("ordered", [False, True])
def test_consuming_directly_awaits_what_a_plain_function_returns(ordered: bool) -> None:
    async def scenario(cluster: GroupCluster) -> None:
        handler = Handler()
        consumer = await started(cluster, SHAPES[0](handler), ordered=ordered)
        view = MessageView.build("T", b"bad", queue=Q0, queue_offset=0)
        results: list[ConsumeDirectlyResult] = [
            await consumer.member.consume_directly(view, "broker-a") for _ in "12"
        ]
        assert [result.consume_result for result in results] == ["CR_LATER", "CR_SUCCESS"]
        assert handler.done == ["bad", "bad"]

    run(on_sockets(scenario))


@pytest.mark.parametrize("error", EXITS)
def test_consuming_directly_tells_of_exits(error: type[BaseException]) -> None:
    async def scenario(cluster: GroupCluster) -> None:
        def handler(message: MessageView) -> None:
            raise error

        consumer = await started(cluster, handler)
        view = MessageView.build("T", b"x", queue=Q0, queue_offset=0)
        result = await consumer.member.consume_directly(view, "broker-a")
        assert result.consume_result == "CR_THROW_EXCEPTION"
        assert error.__name__ in (result.remark or "")

    run(on_sockets(scenario))


# --- generators ------------------------------------------------------------------------------------


def test_generator_functions_are_refused_as_handlers() -> None:
    """Calling one runs nothing of it, so its messages would be committed unprocessed."""

    def plain(message: MessageView) -> Iterator[None]:
        yield None

    async def asynchronous(message: MessageView) -> AsyncIterator[None]:
        yield None

    consumer = PushConsumer("g", "localhost:9876")
    for handler in (plain, asynchronous, functools.partial(plain)):
        with pytest.raises(ConfigError, match="yield"):
            consumer.subscribe("T", "*", handler)
    assert consumer.subscriptions == {}


@pytest.mark.parametrize("ordered", [False, True])
def test_a_generator_that_a_handler_returns_is_a_failure(
    ordered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: GroupCluster) -> None:
        tried: list[str] = []

        def items() -> Iterator[None]:
            yield None

        async def handler(message: MessageView) -> Any:
            tried.append(message.body.decode())
            return items() if len(tried) == 1 else None

        await started(cluster, handler, "a", ordered=ordered)
        await asyncio.sleep(2)
        assert tried == (["a", "a"] if ordered else ["a"])
        assert sent_back(cluster) == ([] if ordered else ["0"])

    in_virtual_time(scenario)
    assert "generator" in caplog.text


# --- what cannot be settled ------------------------------------------------------------------------


class Moody(RemoteOffsets):
    """An offset store of the application's that fails the first time."""

    failures = 0

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        if self.failures == 0 and offset > 0:
            self.failures += 1
            raise RuntimeError("no database")
        super().update(queue, offset, increase_only=increase_only)


@pytest.mark.parametrize("ordered", [False, True])
def test_an_offset_store_that_raises_does_not_stop_the_queue(ordered: bool) -> None:
    async def scenario(cluster: GroupCluster) -> None:
        tried: list[str] = []

        async def handler(message: MessageView) -> None:
            tried.append(message.body.decode())

        cluster.topic("T", 1)
        cluster.broker.put("T", 0, "a")
        cluster.broker.from_start(Q0)
        options = cluster.client_options("c1#1")
        consumer = PushConsumer("g", cluster.nameserver.address, **options)
        instance = ClientInstance.shared(consumer.config, clock=cluster.clock)
        store = Moody(instance, "g")
        consumer = PushConsumer("g", cluster.nameserver.address, offset_store=store, **options)
        consumer.subscribe("T", "*", handler, ordered=ordered)
        await cluster.launch(consumer)
        await asyncio.sleep(3)
        cluster.broker.put("T", 0, "b")
        await asyncio.sleep(3)
        assert store.failures == 1
        assert tried == ["a", "b"]
        assert consumer.holdings.table[Q0].window.count == 0
        began = cluster.clock.monotonic()
        await consumer.close()
        assert cluster.clock.monotonic() - began < 1, "nothing counts as running any more"
        assert cluster.broker.committed(Q0) == 2

    in_virtual_time(scenario)


def test_after_an_offset_store_has_raised_ordered_messages_that_fail_are_still_kept() -> None:
    """A window that had lost count would take the queue for empty, and answers without messages for progress."""

    async def scenario(cluster: GroupCluster) -> None:
        tried: list[str] = []

        async def handler(message: MessageView) -> bool:
            tried.append(message.body.decode())
            return tried[-1] == "a"

        cluster.topic("T", 1)
        cluster.broker.put("T", 0, "a")
        cluster.broker.from_start(Q0)
        options = cluster.client_options("c1#1") | {"broker_suspend": 0.2}
        consumer = PushConsumer("g", cluster.nameserver.address, **options)
        instance = ClientInstance.shared(consumer.config, clock=cluster.clock)
        consumer = PushConsumer("g", cluster.nameserver.address, offset_store=Moody(instance, "g"), **options)
        consumer.subscribe("T", "*", handler, ordered=True)
        await cluster.launch(consumer)
        await asyncio.sleep(0.1)
        cluster.broker.put("T", 0, "b")
        await asyncio.sleep(5)
        assert tried[:3] == ["a", "b", "b"]
        assert consumer.holdings.table[Q0].window.count == 1
        await consumer.close()
        assert cluster.broker.committed(Q0) == 0, "a could not be noted, and b was never handled"

    in_virtual_time(scenario)


def test_messages_of_an_unsubscribed_topic_are_not_given_to_the_handler_of_another() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.topic("U", 1)
        cluster.broker.put("T", 0, *"abcd")
        cluster.broker.from_start(Q0)
        others: list[str] = []

        async def other(message: MessageView) -> None:
            others.append(message.body.decode())

        consumer = cluster.push()

        async def handler(message: MessageView) -> None:
            consumer.unsubscribe("T")

        consumer.subscribe("T", "*", handler, ordered=True)
        consumer.subscribe("U", "*", other, ordered=True)
        await cluster.launch(consumer)
        await asyncio.sleep(5)
        assert others == []

    in_virtual_time(scenario)


# --- other functions of the application's ----------------------------------------------------------


@pytest.mark.parametrize("how", ["cancelled", "exit"])
def test_listeners_that_fail_in_any_way_do_not_end_the_rounds(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: GroupCluster) -> None:
        async def failing(*_: object) -> None:
            if how == "exit":
                sys.exit(1)
            await somebody_elses_future()

        async def handler(message: MessageView) -> None:
            return None

        cluster.topic("T", 1)
        consumer = cluster.push()
        rounds: list[float] = []

        def note(event: Any) -> None:
            if isinstance(event, RoundFinished):
                rounds.append(cluster.clock.monotonic())

        consumer.on_queues_changed(failing)
        consumer.on_event(failing)
        consumer.on_event(note)
        consumer.subscribe("T", "*", handler)
        await cluster.launch(consumer)
        for queues in (2, 3):
            cluster.topic("T", queues)
            await consumer.instance.refresh_route("T")
            await asyncio.sleep(25)
            assert len(consumer.assignment["T"]) == queues
        before = len(rounds)
        await asyncio.sleep(60)
        assert len(rounds) >= before + 3

    with caplog.at_level(logging.ERROR):
        in_virtual_time(scenario)
    assert "a queue listener failed" in caplog.text
