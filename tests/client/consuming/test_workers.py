"""Handlers run, judged and settled by ``Concurrent`` and ``Ordered``: no network, progress and resends are noted."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from gimbalmq._clock import Clock
from gimbalmq.client.consumer_config import MessageModel, PushConsumerConfig
from gimbalmq.client.consuming.concurrent import Concurrent
from gimbalmq.client.consuming.handlers import (
    ConsumeContext,
    ConsumeResult,
    Handler,
    Listener,
    Listeners,
)
from gimbalmq.client.consuming.held_queue import HeldQueue, State
from gimbalmq.client.consuming.offsets import OffsetStore, RemoteOffsets
from gimbalmq.client.consuming.ordered import Ordered
from gimbalmq.client.consuming.threads import HandlerThreads
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.testing import VirtualClock, run_virtual
from gimbalmq.transport.tasks import Tasks
from tests.support import run

QUEUE = MessageQueue("T", "broker-a", 0)
RETRY = MessageQueue("%RETRY%g", "broker-a", 0)


async def until(condition: Callable[[], object]) -> None:
    """Waits in small steps, so that virtual time moves too."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def no_network() -> RemoteOffsets:
    """Progress that stays in memory."""
    return RemoteOffsets(cast(Any, None), "g")


class Host:
    """A consumer without a network."""

    def __init__(
        self, clock: Clock, *, ordered: bool = False, handler: Handler, batch: bool = False, **options: Any
    ) -> None:
        self.config = PushConsumerConfig(namesrv="localhost:1", group="g", **options)
        self.clock = clock
        self.offsets: OffsetStore = no_network()
        self.max_times = 16 if self.config.max_reconsume_times == -1 else self.config.max_reconsume_times
        self.listeners = Listeners()
        self.listeners.set("T", Listener(handler, batch=batch, ordered=ordered))
        self.table: list[HeldQueue] = []
        self.sent_back: list[tuple[int, int]] = []
        self.resent: list[int] = []
        self.send_back_works = True
        self.lock_works = True
        self.lock_asked = 0
        self.counted: list[tuple[str, int, int, float]] = []
        self.tasks = Tasks("test")
        self.threads = HandlerThreads(self.config.consume_threads, "test")
        me = cast(Any, self)  # failed messages, counts and locks come here
        parts = (self.config, clock, self.listeners, me, me, self.threads, self.tasks)
        self.service: Concurrent | Ordered
        if ordered:
            self.service = Ordered(*parts, None if self.config.broadcasting else me)
        else:
            self.service = Concurrent(*parts)

    async def send_back(self, message: MessageView, delay_level: int, queue: MessageQueue) -> bool:
        if self.send_back_works:
            self.sent_back.append((message.queue_offset, delay_level))
        return self.send_back_works

    async def resend(self, message: MessageView) -> bool:
        self.resent.append(message.queue_offset)
        return self.send_back_works

    def consumed(self, topic: str, ok: int, failed: int, seconds: float) -> None:
        self.counted.append((topic, ok, failed, round(seconds, 3)))

    async def lock(self, held: HeldQueue) -> bool:
        self.lock_asked += 1
        if self.lock_works:
            held.lock_granted(self.clock.monotonic())
        return self.lock_works

    def give(self, *offsets: int, queue: MessageQueue = QUEUE) -> HeldQueue:
        """A queue with these messages pulled and submitted."""
        item = HeldQueue(queue, self.clock, self.offsets)
        item.lock_granted(self.clock.monotonic())
        item.start()
        self.table.append(item)
        self.more(item, *offsets)
        return item

    def more(self, item: HeldQueue, *offsets: int) -> None:
        messages = [view(offset, item.queue) for offset in offsets]
        self.service.submit(item, messages, item.window.put(messages))

    def progress(self, queue: MessageQueue = QUEUE) -> int | None:
        return self.offsets.remembered(queue)

    def look_for_expired(self) -> None:
        """As a push consumer does."""
        service = self.service
        assert isinstance(service, Concurrent)
        self.tasks.every(
            self.config.consume_timeout, lambda: service.send_back_expired(self.table), "expired"
        )

    async def close(self) -> None:
        """As a member closes: no queue begins anything, what runs is waited for."""
        for item in self.table:
            if item.state is State.READING:
                item.drain()
        self.service.close()
        if self.config.await_termination:
            await asyncio.wait([asyncio.ensure_future(item.quiet()) for item in self.table])
        await self.tasks.close()
        self.threads.close()


def view(offset: int, queue: MessageQueue = QUEUE, topic: str | None = None) -> MessageView:
    properties = {"UNIQ_KEY": f"ID{offset}"}
    if queue is RETRY:
        properties["RETRY_TOPIC"] = topic or "T"
    return MessageView.build(queue.topic, b"b", queue=queue, queue_offset=offset, properties=properties)


def virtual(main: Callable[[VirtualClock], Coroutine[Any, Any, None]]) -> None:
    run_virtual(main)


class Seen:
    """An async handler that notes what it was given."""

    def __init__(self, result: object = None) -> None:
        self.given: list[int] = []
        self.result = result

    async def __call__(self, message: MessageView) -> Any:
        self.given.append(message.queue_offset)
        return self.result


# --- concurrent ------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [None, True, ConsumeResult.SUCCESS, ConsumeResult.COMMIT])
def test_success_moves_the_offset_on(result: object) -> None:
    async def scenario(clock: VirtualClock) -> None:
        handler = Seen(result)
        host = Host(clock, handler=handler)
        item = host.give(5, 6, 7)
        await until(lambda: item.window.is_empty)
        assert handler.given == [5, 6, 7]
        assert host.progress() == 8
        await host.close()

    virtual(scenario)


@pytest.mark.parametrize("result", [False, ConsumeResult.LATER, "raise"])
def test_failed_messages_go_back_to_the_broker_and_the_offset_moves_on(result: object) -> None:
    """S3-22, S3-23, S3-24: clustering: sent back by 36, and progress goes on all the same."""

    async def scenario(clock: VirtualClock) -> None:
        async def handler(message: MessageView) -> Any:
            if result == "raise":
                raise ValueError("no")
            return result

        host = Host(clock, handler=handler)
        item = host.give(5, 6)
        await until(lambda: item.window.is_empty)
        assert sorted(host.sent_back) == [(5, 0), (6, 0)]
        assert host.progress() == 7
        await host.close()

    virtual(scenario)


def test_a_strange_return_value_is_success_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(clock: VirtualClock) -> None:
        host = Host(clock, handler=Seen("done"))
        item = host.give(1)
        await until(lambda: item.window.is_empty)
        assert host.progress() == 2
        await host.close()

    with caplog.at_level(logging.ERROR):
        virtual(scenario)
    assert "returned 'done'" in caplog.text


def test_broadcasting_drops_what_failed() -> None:
    """S3-22: broadcasting: dropped, never sent back."""

    async def scenario(clock: VirtualClock) -> None:
        host = Host(clock, handler=Seen(False), message_model=MessageModel.BROADCASTING)
        item = host.give(5)
        await until(lambda: item.window.is_empty)
        assert host.sent_back == []
        assert host.progress() == 6
        await host.close()

    virtual(scenario)


def test_a_failed_send_back_is_consumed_again_after_5_seconds() -> None:
    """S3-32: the message stays, is counted and comes again locally; nothing is lost."""

    async def scenario(clock: VirtualClock) -> None:
        tries: list[tuple[float, int]] = []

        async def handler(message: MessageView) -> bool:
            if message.queue_offset == 6:
                tries.append((clock.monotonic(), message.reconsume_times))
            return message.queue_offset != 6

        host = Host(clock, handler=handler)
        host.send_back_works = False
        item = host.give(5, 6, 7)
        await asyncio.sleep(1)
        assert (host.progress(), item.window.count) == (6, 1)
        await asyncio.sleep(4.5)
        assert tries == [(0.0, 0), (5.0, 1)]
        host.send_back_works = True
        await until(lambda: item.window.is_empty)
        assert host.sent_back == [(6, 0)]
        assert host.progress() == 8
        await host.close()

    virtual(scenario)


def test_batches_have_the_set_size_and_a_batch_fails_as_one() -> None:
    async def scenario(clock: VirtualClock) -> None:
        sizes: list[int] = []

        async def handler(messages: list[MessageView]) -> bool:
            sizes.append(len(messages))
            return messages[0].queue_offset != 3

        host = Host(clock, handler=handler, batch=True, consume_message_batch_max_size=3)
        item = host.give(*range(8))
        await until(lambda: item.window.is_empty)
        assert sizes == [3, 3, 2]
        assert [counts[:3] for counts in host.counted] == [("T", 3, 0), ("T", 0, 3), ("T", 2, 0)]
        assert sorted(host.sent_back) == [(3, 0), (4, 0), (5, 0)]
        assert host.progress() == 8
        await host.close()

    virtual(scenario)


def test_the_context_sets_ack_index_and_delay_level() -> None:
    async def scenario(clock: VirtualClock) -> None:
        async def handler(messages: list[MessageView], context: ConsumeContext) -> None:
            assert context.queue == QUEUE
            context.ack_index = 1
            context.delay_level = -1

        host = Host(clock, handler=handler, batch=True, consume_message_batch_max_size=8)
        item = host.give(0, 1, 2, 3)
        await until(lambda: item.window.is_empty)
        assert host.sent_back == [(2, -1), (3, -1)]
        await host.close()

    virtual(scenario)


def test_a_handler_of_single_messages_is_judged_one_by_one() -> None:
    async def scenario(clock: VirtualClock) -> None:
        async def handler(message: MessageView) -> bool:
            return message.queue_offset != 1

        host = Host(clock, handler=handler, consume_message_batch_max_size=8)
        item = host.give(0, 1, 2)
        await until(lambda: item.window.is_empty)
        assert host.sent_back == [(1, 0)]
        await host.close()

    virtual(scenario)


def test_what_ends_in_one_turn_is_settled_together_failures_apart() -> None:
    async def scenario(clock: VirtualClock) -> None:
        async def handler(message: MessageView) -> bool | None:
            return False if message.queue_offset == 2 else None

        host = Host(clock, handler=handler)
        item = host.give(*range(6))
        await until(lambda: item.window.is_empty and not item.running)
        assert [(ok, failed) for _, ok, failed, _ in host.counted] == [(2, 0), (0, 1), (3, 0)]
        assert host.sent_back == [(2, 0)]
        assert host.progress() == 6
        await host.close()

    virtual(scenario)


def test_an_offset_store_that_raises_does_not_keep_others_from_being_settled() -> None:
    async def scenario(clock: VirtualClock) -> None:
        class Moody(RemoteOffsets):
            def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
                if queue == QUEUE:
                    raise RuntimeError("not today")
                super().update(queue, offset, increase_only=increase_only)

        complaints: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: complaints.append(context.get("exception"))
        )
        host = Host(clock, handler=Seen())
        host.offsets = Moody(cast(Any, None), "g")
        other = MessageQueue("T", "broker-a", 1)
        host.give(1, 2)
        item = host.give(3, 4, queue=other)
        await until(lambda: item.window.is_empty and not item.running)
        assert host.progress(other) == 5
        assert [str(error) for error in complaints] == ["not today"]
        host.table.remove(host.table[0])
        await host.close()

    virtual(scenario)


def test_no_more_batches_at_a_time_than_consume_threads() -> None:
    """S3-20 for ``async def`` handlers."""

    async def scenario(clock: VirtualClock) -> None:
        now = peak = 0

        async def handler(message: MessageView) -> None:
            nonlocal now, peak
            now += 1
            peak = max(peak, now)
            await asyncio.sleep(0.1)
            now -= 1

        host = Host(clock, handler=handler, consume_threads=4)
        item = host.give(*range(20))
        await asyncio.sleep(0.55)
        assert item.window.is_empty
        assert peak == 4
        await host.close()

    virtual(scenario)


def test_plain_functions_run_in_threads_up_to_the_set_number() -> None:
    """S3-20 for plain functions: side by side in at most consume_threads threads, never on the loop."""

    async def scenario() -> None:
        loop_thread = threading.get_ident()
        gate = threading.Barrier(3, timeout=10)
        names: set[int] = set()

        def handler(message: MessageView) -> None:
            names.add(threading.get_ident())
            gate.wait()

        class Real:
            def monotonic(self) -> float:
                return asyncio.get_running_loop().time() if threading.get_ident() == loop_thread else 0.0

            def wall_ms(self) -> int:
                return 0

        host = Host(Real(), handler=handler, consume_threads=3)
        item = host.give(*range(6))
        await until(lambda: item.window.is_empty)
        assert host.progress() == 6
        assert len(names) == 3
        assert loop_thread not in names
        assert host.threads.count == 3
        await host.close()

    run(scenario())


def test_a_result_after_the_consume_timeout_still_counts() -> None:
    """S3-21: judged by its return value, however late; the timer that looks for expired ones runs."""

    async def scenario(clock: VirtualClock) -> None:
        async def handler(message: MessageView) -> bool:
            await asyncio.sleep(20 * 60)
            return message.queue_offset == 1

        host = Host(clock, handler=handler)
        host.look_for_expired()
        item = host.give(1, 2)
        await asyncio.sleep(20 * 60 + 1)
        assert item.window.is_empty
        assert host.sent_back == [(2, 0)]
        assert host.progress() == 3
        await asyncio.sleep(20 * 60)
        assert host.sent_back == [(2, 0)]
        await host.close()

    virtual(scenario)


def test_a_send_back_that_fails_in_a_way_nobody_expected_has_the_message_consumed_again_here() -> None:
    async def scenario(clock: VirtualClock) -> None:
        tried: list[int] = []

        async def handler(message: MessageView) -> bool:
            tried.append(message.queue_offset)
            return len(tried) > 2

        class Broken(Host):
            async def send_back(self, message: MessageView, delay_level: int, queue: MessageQueue) -> bool:
                raise RuntimeError("nobody expected that")

        host = Broken(clock, handler=handler)
        item = host.give(1)
        await asyncio.sleep(4)
        assert (tried, host.progress()) == ([1], 1)
        await asyncio.sleep(10)
        assert (tried, host.progress()) == ([1, 1, 1], 2)
        assert not item.running
        await host.close()

    virtual(scenario)


def test_an_ordered_message_that_cannot_be_given_to_the_broker_comes_again() -> None:
    """Not even if that fails in a way nobody expected."""

    async def scenario(clock: VirtualClock) -> None:
        tried: list[int] = []

        async def handler(message: MessageView) -> bool:
            tried.append(message.queue_offset)
            return len(tried) > 2

        class Broken(Host):
            async def resend(self, message: MessageView) -> bool:
                raise RuntimeError("nobody expected that")

        host = Broken(clock, ordered=True, handler=handler, max_reconsume_times=0)
        item = host.give(1, 2)
        await asyncio.sleep(5)
        assert (tried, host.progress()) == ([1, 1, 1, 2], 3)
        assert (item.window.count, item.window.in_work) == (0, 0)
        await host.close()

    virtual(scenario)


def test_messages_in_work_for_too_long_are_sent_back_with_level_3() -> None:
    async def scenario(clock: VirtualClock) -> None:
        async def handler(message: MessageView) -> bool:
            if message.queue_offset == 1:
                await asyncio.sleep(40 * 60)
            return True

        host = Host(clock, handler=handler, await_termination=0)
        host.look_for_expired()
        item = host.give(1, 2, 3)
        await asyncio.sleep(15 * 60 - 1)
        assert host.sent_back == []
        await asyncio.sleep(15 * 60 + 2)
        assert host.sent_back == [(1, 3)]
        assert item.window.is_empty
        await host.close()

    virtual(scenario)


def test_nothing_of_a_dropped_queue_is_begun_and_its_results_are_ignored() -> None:
    """S1-03, S3-41: what runs finishes unheard; what waits is never given to the handler."""

    async def scenario(clock: VirtualClock) -> None:
        given: list[int] = []

        async def handler(message: MessageView) -> None:
            given.append(message.queue_offset)
            await asyncio.sleep(1)

        host = Host(clock, handler=handler, consume_threads=1)
        item = host.give(1, 2, 3)
        await asyncio.sleep(0.5)
        item.drop()
        await asyncio.sleep(5)
        assert given == [1]
        assert host.progress() is None
        await host.close()

    virtual(scenario)


def test_a_draining_queue_settles_what_runs_and_begins_nothing() -> None:
    """Handover by lease: progress stands exactly after what was begun."""

    async def scenario(clock: VirtualClock) -> None:
        given: list[int] = []

        async def handler(message: MessageView) -> None:
            given.append(message.queue_offset)
            await asyncio.sleep(1)

        host = Host(clock, handler=handler, consume_threads=2)
        item = host.give(1, 2, 3, 4)
        await asyncio.sleep(0.5)
        item.drain()
        await item.quiet()
        assert given == [1, 2]
        assert host.progress() == 3
        await host.close()

    virtual(scenario)


def test_retried_messages_carry_their_own_topic_and_find_its_handler() -> None:
    """S3-34 (client side): the handler sees the topic it subscribed."""

    async def scenario(clock: VirtualClock) -> None:
        seen: list[tuple[str, int]] = []

        async def handler(message: MessageView) -> None:
            seen.append((message.topic, message.queue_offset))

        async def other(message: MessageView) -> None:
            seen.append(("other " + message.topic, message.queue_offset))

        host = Host(clock, handler=handler)
        host.listeners.set("U", Listener(other, batch=False))
        item = host.give(queue=RETRY)
        messages = [view(0, RETRY), view(1, RETRY, "U"), view(2, RETRY, "Gone")]
        item.window.put(messages)
        host.service.submit(item, messages)
        await until(lambda: item.window.is_empty)
        assert seen == [("T", 0), ("other U", 1)]
        assert host.sent_back == [(2, 0)]
        await host.close()

    virtual(scenario)


def test_close_waits_for_what_runs() -> None:
    """S1-24, S3-31: the first step of a stop: running handlers finish and count, waiting ones never begin."""

    async def scenario(clock: VirtualClock) -> None:
        given: list[int] = []

        async def handler(message: MessageView) -> None:
            given.append(message.queue_offset)
            await asyncio.sleep(2)

        host = Host(clock, handler=handler, consume_threads=1)
        host.give(1, 2)
        await asyncio.sleep(0.5)
        await host.close()
        assert clock.monotonic() == pytest.approx(2.0)
        assert given == [1]
        assert host.progress() == 2

    virtual(scenario)


# --- ordered ---------------------------------------------------------------------------------------


def ordered_host(clock: Clock, handler: Handler, **options: Any) -> Host:
    return Host(clock, handler=handler, ordered=True, **options)


def test_ordered_messages_come_one_after_the_other() -> None:
    async def scenario(clock: VirtualClock) -> None:
        now = peak = 0
        given: list[int] = []

        async def handler(message: MessageView) -> None:
            nonlocal now, peak
            now += 1
            peak = max(peak, now)
            await asyncio.sleep(0.01)
            given.append(message.queue_offset)
            now -= 1

        host = ordered_host(clock, handler)
        item = host.give(*range(5))
        host.more(item, 5, 6)
        await asyncio.sleep(1)
        assert given == list(range(7))
        assert peak == 1
        assert host.progress() == 7
        host.more(item, 7)
        await asyncio.sleep(1)
        assert given[-1] == 7
        await host.close()

    virtual(scenario)


def test_a_suspended_queue_waits_and_the_same_message_comes_again() -> None:
    async def scenario(clock: VirtualClock) -> None:
        tries: list[tuple[float, int, int]] = []

        async def handler(message: MessageView) -> ConsumeResult | None:
            tries.append((round(clock.monotonic(), 3), message.queue_offset, message.reconsume_times))
            return ConsumeResult.SUSPEND if message.queue_offset == 1 and len(tries) < 4 else None

        host = ordered_host(clock, handler)
        host.give(0, 1, 2)
        await asyncio.sleep(5)
        assert tries == [(0.0, 0, 0), (0.0, 1, 0), (1.0, 1, 1), (2.0, 1, 2), (2.0, 2, 0)]
        assert host.progress() == 3
        await host.close()

    virtual(scenario)


def test_ordered_batches_come_again_as_a_whole_and_single_messages_one_by_one() -> None:
    async def scenario(clock: VirtualClock) -> None:
        batches: list[list[int]] = []

        async def batch_handler(messages: list[MessageView]) -> bool:
            batches.append([message.queue_offset for message in messages])
            return len(batches) != 1

        host = ordered_host(clock, batch_handler, batch=True, consume_message_batch_max_size=2)
        host.give(0, 1, 2)
        await asyncio.sleep(3)
        assert batches == [[0, 1], [0, 1], [2]]
        await host.close()
        given: list[int] = []

        async def handler(message: MessageView) -> bool:
            given.append(message.queue_offset)
            return message.queue_offset != 1 or given.count(1) > 1

        host = ordered_host(clock, handler, consume_message_batch_max_size=8)
        host.give(0, 1, 2)
        await asyncio.sleep(3)
        assert given == [0, 1, 1, 2]
        assert host.progress() == 3
        await host.close()

    virtual(scenario)


def test_an_ordered_message_that_failed_too_often_goes_to_the_dead_letters() -> None:
    async def scenario(clock: VirtualClock) -> None:
        given: list[int] = []

        async def handler(message: MessageView) -> bool:
            given.append(message.queue_offset)
            return message.queue_offset != 0

        host = ordered_host(clock, handler, max_reconsume_times=2)
        host.give(0, 1)
        await asyncio.sleep(5)
        assert given == [0, 0, 0, 1]
        assert host.resent == [0]
        assert host.progress() == 2
        await host.close()

    virtual(scenario)


def test_without_auto_commit_the_handler_decides() -> None:
    async def scenario(clock: VirtualClock) -> None:
        given: list[int] = []

        async def handler(message: MessageView, context: ConsumeContext) -> ConsumeResult:
            context.auto_commit = False
            given.append(message.queue_offset)
            if message.queue_offset == 2 and given.count(2) == 1:
                return ConsumeResult.ROLLBACK
            return ConsumeResult.COMMIT if message.queue_offset == 3 else ConsumeResult.SUCCESS

        host = ordered_host(clock, handler)
        item = host.give(0, 1, 2, 3, 4)
        await asyncio.sleep(0.5)
        assert given == [0, 1, 2]
        assert host.progress() is None
        await asyncio.sleep(2)
        assert given == [0, 1, 2, 0, 1, 2, 3, 4]
        assert host.progress() == 4
        assert item.window.in_work == 1
        await host.close()

    virtual(scenario)


def test_ordered_consumption_stops_without_the_lock_and_asks_for_it_again() -> None:
    async def scenario(clock: VirtualClock) -> None:
        handler = Seen()
        host = ordered_host(clock, handler)
        host.lock_works = False
        item = host.give()
        item.lock_refused()
        host.more(item, 0)
        await asyncio.sleep(0.15)
        assert host.lock_asked == 1
        assert handler.given == []
        host.lock_works = True
        await asyncio.sleep(3.2)
        assert host.lock_asked == 2
        await asyncio.sleep(0.1)
        assert handler.given == [0]
        await host.close()

    virtual(scenario)


def test_a_lock_counts_as_lost_30_seconds_after_its_renewal() -> None:
    async def scenario(clock: VirtualClock) -> None:
        handler = Seen()
        host = ordered_host(clock, handler)
        item = host.give()
        await asyncio.sleep(30.5)
        host.more(item, 0)
        await asyncio.sleep(0.05)
        assert handler.given == []
        await asyncio.sleep(0.2)
        assert host.lock_asked == 1
        assert handler.given == [0]
        await host.close()

    virtual(scenario)


def test_broadcasting_in_order_needs_no_lock() -> None:
    async def scenario(clock: VirtualClock) -> None:
        handler = Seen()
        host = ordered_host(clock, handler, message_model=MessageModel.BROADCASTING)
        item = host.give()
        item.lock_refused()
        host.more(item, 0)
        await asyncio.sleep(0.01)
        assert handler.given == [0]
        assert host.lock_asked == 0
        await host.close()

    virtual(scenario)


def test_plain_functions_may_be_ordered_too() -> None:
    async def scenario() -> None:
        given: list[int] = []

        def handler(message: MessageView) -> None:
            given.append(message.queue_offset)

        loop = asyncio.get_running_loop()

        class Real:
            def monotonic(self) -> float:
                return loop.time()

            def wall_ms(self) -> int:
                return 0

        host = ordered_host(Real(), handler)
        host.give(0, 1, 2)
        await until(lambda: host.progress() == 3)
        assert given == [0, 1, 2]
        await host.close()

    run(scenario())


def test_threads_that_could_not_be_started_are_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a consumer of one thread would stand still for good."""

    async def work() -> None:
        monkeypatch.setattr("gimbalmq.client.consuming.threads.START_PAUSE", 0.01)
        begin = threading.Thread.start
        failures = 0

        def start(thread: threading.Thread) -> None:
            nonlocal failures
            if failures < 2:
                failures += 1
                raise RuntimeError("can't start new thread")
            begin(thread)

        monkeypatch.setattr(threading.Thread, "start", start)
        threads = HandlerThreads(1, "test")
        try:
            assert await asyncio.wait_for(threads.run(lambda: "done"), 10) == "done"
            assert (failures, threads.count) == (2, 1)
        finally:
            threads.close()

    run(work())
