"""gimbalmq.sync: the blocking face of the async clients, against a real broker."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gimbalmq
from gimbalmq import ConsumeFromWhere, ConsumeResult, Message, MessageView, TransactionState, sync
from gimbalmq.client import events, request_reply
from gimbalmq.client.members import ProducerMember
from gimbalmq.errors import ConfigError, MessageIllegalError, RequestTimeoutError, StateError
from gimbalmq.model.results import SendResult
from gimbalmq.sync.loop import loop_thread
from gimbalmq.testing import LocalCluster, ThreadCluster
from tests.client.group_peers import until

ROOT = Path(__file__).resolve().parents[1]
FIRST = ConsumeFromWhere.FIRST_OFFSET


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadCluster]:
    with LocalCluster.in_thread(
        # A transaction is asked about when it is older than a decision may take on a busy machine.
        properties={"transactionTimeOut": 2000, "transactionCheckInterval": 200, "messageDelayLevel": "1s 1s"}
    ) as running:
        yield running


# -- the same names ------------------------------------------------------------------

MACHINERY = {
    *("instance", "clock", "member", "offsets", "holdings"),
    *("pull_threshold_for_queue", "pull_threshold_size_for_queue", "take_back"),
}
"""Public in the async classes because the other parts of the client use it."""

SHAPES = (ProducerMember,)


def _for_applications(cls: type) -> set[str]:
    """Public names, without those that exist for the other parts of the client."""
    asked = {name for shape in SHAPES for name in _public(shape)} - {"client_id", "running"}
    # Attributes that __init__ sets are not seen in the class.
    return (_public(cls) - asked - MACHINERY) | {"group", "config"}


CLASSES = ["Producer", "TransactionProducer", "PushConsumer", "PullConsumer", "QueuePullConsumer"]


def _public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


@pytest.mark.parametrize("name", CLASSES)
def test_blocking_class_has_the_names_of_the_async_one(name: str) -> None:
    blocking, wrapped = getattr(sync, name), getattr(gimbalmq, name)
    assert _public(blocking) == _for_applications(wrapped)
    assert ("__iter__" in dir(blocking)) == ("__aiter__" in dir(wrapped))


@pytest.mark.parametrize("name", CLASSES)
def test_blocking_methods_take_the_arguments_of_the_async_ones(name: str) -> None:
    blocking, wrapped = getattr(sync, name), getattr(gimbalmq, name)
    for method in sorted(_public(blocking) | {"__init__"}):
        ours, theirs = getattr(blocking, method), getattr(wrapped, method, None)
        if method == "start" or not callable(theirs):  # start() may join an instance; here it never does
            continue
        told = [list(inspect.signature(one).parameters.values()) for one in (ours, theirs)]
        shapes = [[(p.name, p.kind, p.default) for p in parameters] for parameters in told]
        assert shapes[0] == shapes[1], method
        assert not inspect.iscoroutinefunction(ours), method
        assert ours.__doc__ or not theirs.__doc__, method


def test_request_and_reply_take_the_same_arguments() -> None:
    for name in ("request", "reply"):
        ours, theirs = getattr(sync, name), getattr(request_reply, name)
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


# -- producers -----------------------------------------------------------------------


def test_sends_of_every_kind_are_stored(cluster: ThreadCluster) -> None:
    with sync.Producer("sync-p", cluster.namesrv) as producer:
        first = producer.send(Message("sync-send", b"0", keys="k"))
        assert first.status.name == "SEND_OK"
        queues = producer.publish_queues("sync-send")
        assert first.queue in queues
        producer.send(Message("sync-send", b"1"), queue=queues[0])
        producer.send_oneway(Message("sync-send", b"2"))
        (batch,) = producer.send_batch([Message("sync-send", b"3"), Message("sync-send", b"4")])
        assert batch.msg_id.count(",") == 1
        soon = [producer.send_soon(Message("sync-send", b"%d" % n)) for n in range(5, 200)]
        assert {future.result(10).status.name for future in soon} == {"SEND_OK"}
        assert producer.client_id.count("@") == 1
    with sync.PullConsumer("sync-read", cluster.namesrv, consume_from_where=FIRST) as consumer:
        consumer.subscribe("sync-send")
        seen: set[bytes] = set()
        for message in consumer:
            seen.add(bytes(message.body))
            if len(seen) == 200:
                break
    assert seen == {b"%d" % n for n in range(200)}


def test_many_are_sent_by_one_call(cluster: ThreadCluster) -> None:
    with sync.Producer("pg-many", cluster.namesrv) as producer:
        results = producer.send_many(Message("sync-many", b"%d" % n) for n in range(300))
        assert len({(result.queue, result.queue_offset) for result in results}) == 300
        good, bad = producer.send_many(
            [Message("sync-many", b"x"), Message("sync-many", b"")], return_exceptions=True
        )
        assert isinstance(good, SendResult) and isinstance(bad, MessageIllegalError)
        with pytest.raises(MessageIllegalError):
            producer.send_many([Message("sync-many", b"")])


def test_messages_of_many_threads_share_batches_and_close_sends_the_last(cluster: ThreadCluster) -> None:
    options: dict[str, Any] = {"auto_batch": True, "batch_max_delay": 0.005}
    producer = sync.Producer("sync-batch", cluster.namesrv, **options)
    results: list[SendResult] = []

    def send_some() -> None:
        results.extend(producer.send(Message("sync-batch", b"awaited")) for _ in range(5))

    with producer:
        threads = [threading.Thread(target=send_some) for _ in range(8)]
        for thread in threads:
            thread.start()
        soon = [producer.send_soon(Message("sync-batch", b"soon")) for _ in range(300)]
        for thread in threads:
            thread.join()
    results += [future.result(0) for future in soon]
    assert len({(result.queue, result.queue_offset) for result in results}) == 340
    assert len({result.msg_id for result in results}) == 340


def test_a_signal_that_another_thread_receives_ends_a_wait_of_the_main_thread() -> None:
    thread = loop_thread()
    begun = time.monotonic()
    threading.Timer(0.05, lambda: signal.pthread_kill(thread._thread.ident or 0, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        thread.run(asyncio.sleep(30))
    assert time.monotonic() - begun < 10


def test_a_timeout_of_the_work_itself_is_raised_not_waited_out() -> None:
    async def work() -> None:
        raise RequestTimeoutError("the time is up")

    with pytest.raises(RequestTimeoutError, match="the time is up"):
        loop_thread().run(work())


def test_send_soon_waits_while_too_many_are_out(cluster: ThreadCluster) -> None:
    with sync.Producer("sync-many", cluster.namesrv, max_in_flight=3) as producer:
        soon = [producer.send_soon(Message("sync-many", b"x")) for _ in range(300)]
        assert sum(not future.done() for future in soon) <= 3
        assert all(future.result(10) for future in soon)


def test_send_soon_in_a_callback_does_not_wait_for_the_loop_that_it_holds(cluster: ThreadCluster) -> None:
    """Callbacks run on the loop: an answer that frees a place could not come while one waits for it."""
    told: queue.SimpleQueue[object] = queue.SimpleQueue()
    with sync.Producer("sync-callback", cluster.namesrv, max_in_flight=1) as producer:

        def send_two_more(_: object) -> None:
            told.put(producer.send_soon(Message("sync-callback", b"second")))
            try:
                told.put(producer.send_soon(Message("sync-callback", b"third")))
            except StateError as error:
                told.put(error)

        producer.send_soon(Message("sync-callback", b"first")).add_done_callback(send_two_more)
        second, third = told.get(timeout=10), told.get(timeout=10)
        assert isinstance(second, concurrent.futures.Future) and second.result(10)
        assert isinstance(third, StateError) and "another thread" in str(third)


def test_send_soon_tells_every_error_through_its_future(cluster: ThreadCluster) -> None:
    with sync.Producer("sync-bad", cluster.namesrv, max_in_flight=1) as producer:
        for _ in range(3):
            with pytest.raises(MessageIllegalError):
                producer.send_soon(Message("sync-bad", b"")).result(10)
        assert producer.send(Message("sync-bad", b"still open"))


def test_use_before_start_and_after_close_is_refused(cluster: ThreadCluster) -> None:
    producer = sync.Producer("sync-life", cluster.namesrv)
    with pytest.raises(StateError, match="has not been started: use it in `with`"):
        producer.send(Message("sync-life", b"x"))
    producer.start()
    with pytest.raises(StateError, match="started before"):
        producer.start()
    producer.close()
    producer.close()
    for call in (producer.send, producer.send_soon, producer.send_oneway):
        with pytest.raises(StateError, match="has been closed"):
            call(Message("sync-life", b"x"))
    with pytest.raises(StateError, match="has been closed"):
        sync.request(producer, Message("sync-life", b"x"))
    consumer = sync.PullConsumer("sync-life", cluster.namesrv)
    consumer.subscribe("sync-life")
    with pytest.raises(StateError, match="has not been started"):
        next(iter(consumer))
    with consumer:
        assert consumer.running
    assert not consumer.running
    with pytest.raises(StateError, match="has been closed"):
        consumer.poll()


def test_options_are_checked_when_built() -> None:
    with pytest.raises(ConfigError, match="no_such"):
        sync.Producer("g", "127.0.0.1:9876", no_such=1)
    with pytest.raises(ConfigError, match="nonsense"):
        sync.PushConsumer("g", "nonsense")


def test_a_failed_start_leaves_nothing_behind(cluster: ThreadCluster) -> None:
    consumer = sync.PushConsumer("sync-none", cluster.namesrv)
    with pytest.raises(StateError, match="subscribe a topic"), consumer:
        pass
    consumer.subscribe("sync-none", "*", lambda message: None)
    with consumer:
        assert consumer.running


def test_transactions_commit_roll_back_and_are_asked_about(cluster: ThreadCluster) -> None:
    asked: queue.Queue[bytes] = queue.Queue()

    def check(message: MessageView) -> TransactionState:
        asked.put(bytes(message.body))
        return TransactionState.COMMIT

    received: queue.Queue[bytes] = queue.Queue()
    consumer = sync.PushConsumer("sync-tx-c", cluster.namesrv, consume_from_where=FIRST)
    consumer.subscribe("sync-tx", "*", lambda message: received.put(bytes(message.body)))
    with sync.TransactionProducer("sync-tx", cluster.namesrv, check=check) as producer:
        states: dict[bytes, TransactionState | None]
        states = {b"yes": TransactionState.COMMIT, b"no": TransactionState.ROLLBACK, b"ask": None}
        for body, state in states.items():
            result = producer.send_in_transaction(
                Message("sync-tx", body), lambda message: states[message.body]
            )
            assert result.state is (state or TransactionState.UNKNOWN)
        with consumer:
            assert {received.get(timeout=30), received.get(timeout=30)} == {b"yes", b"ask"}
        assert asked.get(timeout=1) == b"ask"
        assert received.empty()


def test_request_waits_for_the_reply(cluster: ThreadCluster) -> None:
    with sync.Producer("sync-asker", cluster.namesrv) as asker:
        with sync.Producer("sync-answerer", cluster.namesrv) as answerer:
            answerer.send(Message("sync-ask", b"make the topic"))
            consumer = sync.PushConsumer("sync-answers", cluster.namesrv)
            consumer.subscribe(
                "sync-ask", "*", lambda message: sync.reply(answerer, message, message.body.upper()) and None
            )
            with consumer:
                answer = sync.request(asker, Message("sync-ask", b"ping"), timeout=10)
                assert answer.body == b"PING"
        with pytest.raises(RequestTimeoutError, match="no reply"):
            sync.request(asker, Message("sync-ask", b"anyone?"), timeout=2.0)


# -- consumers -----------------------------------------------------------------------


def test_handlers_run_in_the_pool_and_failures_come_again(cluster: ThreadCluster) -> None:
    received: queue.Queue[tuple[str, int]] = queue.Queue()
    consumer = sync.PushConsumer("sync-push", cluster.namesrv, consume_from_where=FIRST, consume_threads=4)

    @consumer.subscribe("sync-push", "good || bad")
    def handle(message: MessageView) -> ConsumeResult:
        received.put((threading.current_thread().name, message.reconsume_times))
        first_time = message.tags == "bad" and not message.reconsume_times
        return ConsumeResult.LATER if first_time else ConsumeResult.SUCCESS

    with sync.Producer("sync-push", cluster.namesrv) as producer, consumer:
        producer.send(Message("sync-push", b"x", tags="good"))
        name, times = received.get(timeout=30)
        assert name.startswith("consume-sync-push") and times == 0
        producer.send(Message("sync-push", b"x", tags="bad"))
        assert [received.get(timeout=30)[1] for _ in range(2)] == [0, 1]
        assert consumer.subscriptions == {"sync-push": "good || bad"}
        assert consumer.members == [consumer.client_id]
        assert set(consumer.assignment) >= {"sync-push"}
        assert not consumer.suspended
        consumer.suspend()
        assert consumer.suspended
        consumer.resume()


def test_a_handler_may_send_and_ask_its_consumer(cluster: ThreadCluster) -> None:
    done: queue.Queue[Any] = queue.Queue()
    with sync.Producer("sync-chain", cluster.namesrv) as producer:
        consumer = sync.PushConsumer("sync-chain", cluster.namesrv, consume_from_where=FIRST)

        def handle(message: MessageView) -> None:
            done.put((producer.send(Message("sync-chained", message.body)).status.name, consumer.lag()))

        consumer.subscribe("sync-chain", "*", handle)
        with consumer:
            producer.send(Message("sync-chain", b"x"))
            status, lag = done.get(timeout=30)
    assert status == "SEND_OK" and set(lag.values()) <= {0, 1}


def test_a_blocking_call_on_the_loop_is_refused_instead_of_hanging(cluster: ThreadCluster) -> None:
    told: queue.Queue[str] = queue.Queue()
    with sync.Producer("sync-loop", cluster.namesrv) as producer:
        consumer = sync.PushConsumer("sync-loop", cluster.namesrv, consume_from_where=FIRST)

        @consumer.subscribe("sync-loop")
        async def handle(message: MessageView) -> None:
            try:
                producer.send(Message("sync-loop", b"never"))
            except StateError as error:
                told.put(str(error))

        with consumer:
            producer.send(Message("sync-loop", b"x"))
            assert "wait for itself" in told.get(timeout=30)


def test_events_arrive_in_order_in_a_thread_that_may_block(cluster: ThreadCluster) -> None:
    seen: queue.Queue[tuple[str, list[str]]] = queue.Queue()
    changed: queue.Queue[tuple[str, int]] = queue.Queue()
    with sync.Producer("sync-ev", cluster.namesrv) as producer:
        producer.send(Message("sync-ev", b"x"))
    consumer = sync.PushConsumer("sync-ev", cluster.namesrv, consume_from_where=FIRST)
    consumer.subscribe("sync-ev", "*", lambda message: None)
    stop = consumer.on_event(lambda event: seen.put((type(event).__name__, sorted(consumer.subscriptions))))
    consumer.on_queues_changed(lambda topic, every, mine, reason: changed.put((topic, len(mine))))
    with consumer:
        assert changed.get(timeout=30) == ("sync-ev", 4)
        assert seen.get(timeout=30) == ("RoundStarted", ["sync-ev"])
        stop()
        stream = consumer.events()
        consumer.rebalance("to see an event")
        asked = (e for e in stream if isinstance(e, events.RoundStarted) and e.reason == "to see an event")
        assert next(asked)
    assert all(isinstance(event, events.BalanceEvent) for event in stream), (
        "the stream ends with the consumer"
    )


def test_messages_that_an_interrupted_poll_has_taken_come_again(
    cluster: ThreadCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the moment in which they come: nobody has seen them, so nothing may commit them."""

    def interrupted(future: concurrent.futures.Future[Any]) -> None:
        future.result()
        raise KeyboardInterrupt

    with sync.Producer("sync-interrupted", cluster.namesrv) as producer:
        queue = producer.send(Message("sync-interrupted", b"seen by nobody")).queue
    with sync.PullConsumer("sync-interrupted", cluster.namesrv, consume_from_where=FIRST) as consumer:
        consumer.assign([queue])
        with monkeypatch.context() as patch:
            patch.setattr("gimbalmq.sync.loop.result_of", interrupted)
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(20)
        assert consumer.position(queue) == 0
        assert [message.body for message in consumer.poll(20)] == [b"seen by nobody"]
        assert consumer.position(queue) == 1


def test_pull_consumer_assigns_seeks_pauses_and_commits(cluster: ThreadCluster) -> None:
    with sync.Producer("sync-pull", cluster.namesrv) as producer:
        producer.send(Message("sync-pull", b"0"))
        queues = producer.publish_queues("sync-pull")
        for number in range(1, 6):
            producer.send(Message("sync-pull", b"%d" % number), queue=queues[0])
    with sync.PullConsumer("sync-pull", cluster.namesrv, consume_from_where=FIRST) as consumer:
        mine = [found for found in consumer.queues("sync-pull") if found == queues[0]]
        consumer.assign(mine)
        first = consumer.poll(20)
        assert first[0].queue_offset == 0
        assert consumer.position(mine[0]) == first[-1].queue_offset + 1
        consumer.commit({mine[0]: 2})
        assert consumer.committed(mine[0]) == 2
        end = consumer.max_offset(mine[0])
        consumer.seek(mine[0], end - 1)
        assert [message.body for message in consumer.poll(20)] == [b"5"]
        consumer.seek_to_begin(mine[0])
        consumer.pause(mine[0])
        assert consumer.poll(0.05) == []
        consumer.resume(mine[0])
        assert consumer.poll(20)[0].queue_offset == consumer.min_offset(mine[0])
        with pytest.raises(ConfigError, match="reaches from"):
            consumer.seek(mine[0], end + 10)


def test_queue_pull_consumer_pulls_and_keeps_what_it_is_told(cluster: ThreadCluster) -> None:
    """S2-23, blocking: nothing is read by itself; the caller names queue and offset, and keeps its progress."""
    with sync.Producer("sync-queue", cluster.namesrv) as producer:
        place = producer.send(Message("sync-queue", b"0")).queue
        for number in range(1, 6):
            producer.send(Message("sync-queue", b"%d" % number), queue=place)
    told: queue.Queue[tuple[str, int]] = queue.Queue()
    with sync.QueuePullConsumer("sync-queue", cluster.namesrv) as consumer:
        assert place in consumer.queues("sync-queue")
        result = consumer.pull(place, 1, max_messages=3)
        assert (result.status.name, result.next_offset, result.max_offset) == ("FOUND", 4, 6)
        assert [message.body for message in result.messages] == [b"1", b"2", b"3"]
        assert consumer.pull(place, 6).status.name == "NO_NEW_MSG"
        consumer.send_back(result.messages[0])
        consumer.commit(place, result.next_offset)
        consumer.on_queues_changed(lambda topic, queues, mine, reason: told.put((topic, len(mine))))
        consumer.subscribe("sync-queue")
        assert told.get(timeout=20) == ("sync-queue", 4)
        assert place in consumer.assignment["sync-queue"]
        assert consumer.committed(place) == consumer.committed(place, from_store=True) == 4
        with pytest.raises(ConfigError, match="offset=-1"):
            consumer.pull(place, -1)


def test_pulls_work_blocking_and_asynchronously(cluster: ThreadCluster) -> None:
    """S3-15: a blocking poll holds its own thread and gets what comes; asynchronous ones wait side by side on one
    loop, which goes on turning."""
    namesrv = cluster.namesrv
    with sync.Producer("sync-both", namesrv) as producer:
        producer.send(Message("sync-both", b"first"))
        with sync.PullConsumer("sync-both-1", namesrv, consume_from_where=FIRST) as consumer:
            consumer.subscribe("sync-both")
            assert [message.body for message in consumer.poll(20)] == [b"first"]
            began = time.monotonic()
            assert consumer.poll(0.2) == []
            assert time.monotonic() - began > 0.19
            sender = threading.Timer(0.2, producer.send, [Message("sync-both", b"second")])
            sender.start()
            assert [message.body for message in consumer.poll(20)] == [b"second"]
            sender.join()

        async def several() -> tuple[list[list[bytes]], int]:
            async with (
                gimbalmq.PullConsumer("sync-both-2", namesrv) as one,
                gimbalmq.PullConsumer("sync-both-3", namesrv) as other,
            ):
                for puller in (one, other):
                    puller.subscribe("sync-both")
                queues = list(await one.queues("sync-both"))
                await until(lambda: one.assignment == other.assignment == {"sync-both": queues})
                for puller in (one, other):
                    while await puller.poll(0.5):  # the first two messages
                        pass
                polls = [asyncio.ensure_future(puller.poll(20)) for puller in (one, other)]
                turns = 0
                while turns < 50:
                    await asyncio.sleep(0)
                    turns += 1
                assert not any(poll.done() for poll in polls)
                await asyncio.to_thread(producer.send, Message("sync-both", b"third"))
                return [[message.body for message in await poll] for poll in polls], turns

        assert asyncio.run(several()) == ([[b"third"]] * 2, 50)


# -- threads, processes and Ctrl-C ---------------------------------------------------


def test_threads_share_one_loop_and_one_producer(cluster: ThreadCluster) -> None:
    with sync.Producer("sync-threads", cluster.namesrv) as producer:
        failures: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(50):
                    producer.send(Message("sync-threads", b"x"))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        loops = [thread for thread in threading.enumerate() if thread.name == "gimbalmq-sync"]
        assert len(loops) == 1


def _run(script: str, *words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )


def test_a_forked_child_starts_its_own_loop(cluster: ThreadCluster) -> None:
    script = """
import os, sys
from gimbalmq import Message, sync
from gimbalmq.errors import StateError
with sync.Producer("parent", sys.argv[1]) as producer:
    producer.send(Message("sync-fork", b"parent"))
    child = os.fork()
    if not child:
        try:
            producer.send(Message("sync-fork", b"x"))
        except StateError as error:
            print(error, flush=True)
        producer.close()
        with sync.Producer("child", sys.argv[1]) as own:
            print(own.send(Message("sync-fork", b"child")).status.name, flush=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    print("parent", producer.send(Message("sync-fork", b"parent")).status.name)
"""
    done = _run(script, cluster.namesrv)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "producer parent was started before a fork; make one in each process",
        "SEND_OK",
        "parent SEND_OK",
    ]


def test_ctrl_c_ends_a_waiting_consumer_cleanly(cluster: ThreadCluster) -> None:
    script = """
import signal, sys
from gimbalmq import sync
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts jobs of its background with it ignored
try:
    with sync.PullConsumer("sync-ctrl-c", sys.argv[1]) as consumer:
        consumer.subscribe("sync-nothing-here")
        print("waiting", flush=True)
        for message in consumer:
            pass
except KeyboardInterrupt:
    print("interrupted", consumer.running)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script, cluster.namesrv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert out == "interrupted False\n", err
    assert process.returncode == 0 and "Traceback" not in err, err


def test_what_nobody_closed_is_closed_at_the_end_of_the_program(cluster: ThreadCluster) -> None:
    script = """
import queue, sys
from gimbalmq import ConsumeFromWhere, Message, sync
producer = sync.Producer("sync-lazy", sys.argv[1])
producer.start()
producer.send(Message("sync-lazy", b"x"))
done = queue.Queue()
consumer = sync.PushConsumer(
    "sync-lazy", sys.argv[1], consume_from_where=ConsumeFromWhere.FIRST_OFFSET, instance_name="lazy"
)
consumer.subscribe("sync-lazy", "*", lambda message: done.put(message.body))
consumer.start()
print(done.get(timeout=30))
"""
    done = _run(script, cluster.namesrv)
    assert (done.returncode, done.stdout, done.stderr) == (0, "b'x'\n", "")
    with sync.PullConsumer("sync-lazy", cluster.namesrv) as consumer:
        consumer.subscribe("sync-lazy")
        committed = [consumer.committed(found) for found in consumer.queues("sync-lazy")]
        assert 1 in committed, "progress was committed at exit"


# -- threads -------------------------------------------------------------------------


@pytest.mark.parametrize("soon", [False, True], ids=["send", "send_soon"])
def test_each_thread_goes_round_the_queues_by_itself(cluster: ThreadCluster, soon: bool) -> None:
    """S0-04: two threads that send in turn each take one queue after the other."""
    topic = f"byThread{soon}"
    with sync.Producer("threads", cluster.namesrv) as producer:
        producer.send(Message(topic, b"makes the topic"))
        count = len(producer.publish_queues(topic))
        assert count >= 4
        taken: dict[str, list[int]] = {"one": [], "two": []}
        turns = {"one": threading.Semaphore(1), "two": threading.Semaphore(0)}

        def work(me: str, other: str) -> None:
            for _ in range(2 * count):
                turns[me].acquire()
                message = Message(topic, me.encode())
                result = producer.send_soon(message).result() if soon else producer.send(message)
                taken[me].append(result.queue.queue_id)
                turns[other].release()

        threads = [threading.Thread(target=work, args=pair) for pair in (("one", "two"), ("two", "one"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for queues in taken.values():
        assert queues == [(queues[0] + step) % count for step in range(2 * count)]
