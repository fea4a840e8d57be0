"""What a task does: pulls in flight, joined and decoded; brokers that fail, retention that overtakes."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gimbalmq.errors import ConnectError, DataLossError, RequestTimeoutError, RocketMQError
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.frames import Frame, FrameReader
from gimbalmq.protocol.serializers import decode_command, encode_frame
from gimbalmq.rpc import groups
from gimbalmq.rpc.call import ask
from gimbalmq.spark import columns, duplicates, fetch
from gimbalmq.spark.cluster import Cluster
from gimbalmq.spark.connection import Connection
from gimbalmq.spark.decode import decode
from gimbalmq.spark.fetch import FetchError, PartitionReader
from gimbalmq.spark.options import SourceSettings
from gimbalmq.spark.planning import QueueRange
from gimbalmq.spark.wire import Wire, process_wire
from gimbalmq.testing import LocalCluster
from gimbalmq.testing.cluster import ThreadCluster
from tests.spark.conftest import Topic
from tests.transport.wiring import self_signed

NewTopic = Callable[..., Topic]


def eventually(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.02)


NAMES = ("queueId", "offset", "body")


def settings_for(topic: Topic, **options: object) -> SourceSettings:
    given = {"namesrv": topic.cluster.namesrv, "subscribe": topic.name}
    return SourceSettings.read(given | {k: str(v) for k, v in options.items()}, streaming=False)


class Fetching:
    """A reader of whole topics, with pauses that only count."""

    def __init__(self, topic: Topic, **options: object) -> None:
        self.topic = topic
        self.settings = settings_for(topic, **options)
        self.wire = Wire(self.settings.connection)
        self.pauses: list[float] = []
        self.addresses = {topic.queue(0).broker_name: topic.cluster.broker.address}
        self.on_pause: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.on_pause()

    def batches(self, *ranges: QueueRange, names: Sequence[str] = NAMES) -> list[pa.RecordBatch]:
        if not ranges:
            ranges = self.everything()
        reader = PartitionReader(self.settings, self.wire, self.addresses, sleep=self.sleep)
        return list(reader.batches(ranges, names))

    def everything(self) -> tuple[QueueRange, ...]:
        cluster = Cluster(self.settings, self.wire)
        bounds = cluster.bounds(cluster.queues())
        return tuple(QueueRange(queue, low, high) for queue, (low, high) in bounds.items())

    def numbers(self, *ranges: QueueRange) -> list[int]:
        table = pa.Table.from_batches(self.batches(*ranges), columns.arrow_schema(NAMES))
        return [int(body) for body in table.column("body").to_pylist()]


@pytest.fixture
def fetching() -> Iterator[Callable[..., Fetching]]:
    made: list[Fetching] = []

    def make(topic: Topic, **options: object) -> Fetching:
        made.append(Fetching(topic, **options))
        return made[-1]

    yield make
    for each in made:
        each.wire.close()


MakeFetching = Callable[..., Fetching]


# --- ranges --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def filled(shared_cluster: ThreadCluster) -> Topic:
    topic = Topic(shared_cluster, "fetch-filled")
    topic.send(2000, tags=["A", "B", "AaBB"])
    return topic


@pytest.mark.parametrize("pull_bytes", [1024, 4096, 65_536, 2 << 20])
@pytest.mark.parametrize("in_flight", [1, 2, 32])
def test_every_message_comes_once_and_in_order(
    filled: Topic, fetching: MakeFetching, pull_bytes: int, in_flight: int
) -> None:
    batches = fetching(filled, pullBytes=pull_bytes, pullsInFlight=in_flight).batches()
    table = pa.Table.from_batches(batches)
    for queue_id in range(4):
        mine = table.filter(pa.compute.equal(table.column("queueId"), queue_id))
        assert mine.column("offset").to_pylist() == list(range(500))
        assert [int(body) for body in mine.column("body").to_pylist()] == list(range(queue_id, 2000, 4))


def test_ranges_are_cut_to_the_offset(filled: Topic, fetching: MakeFetching) -> None:
    one, two = filled.queue(1), filled.queue(2)
    found = fetching(filled).numbers(
        QueueRange(one, 10, 13), QueueRange(two, 499, 500), QueueRange(one, 0, 1)
    )
    assert found == [41, 45, 49, 1998, 1]


def test_short_ranges_of_one_broker_share_a_batch(filled: Topic, fetching: MakeFetching) -> None:
    (batch,) = fetching(filled).batches(*(QueueRange(filled.queue(number), 0, 5) for number in range(4)))
    assert batch.num_rows == 20


def test_long_ranges_are_begun_one_after_the_other_and_short_ones_together(
    filled: Topic, fetching: MakeFetching
) -> None:
    """What is under way is held in memory until its turn comes: about twice ``pullBytes``."""
    ranges = fetching(filled).everything()

    def begun(ranges: Sequence[QueueRange]) -> int:
        reading = fetching(filled, pullBytes="64k")
        reader = PartitionReader(reading.settings, reading.wire, reading.addresses)
        answers = reader._answers(tuple(ranges))
        next(answers)
        found = sum(bool(cursor.pieces) for cursor in reader._cursors)
        answers.close()  # type: ignore[attr-defined]
        return found

    assert begun(ranges) == 3
    assert begun([QueueRange(queue, 0, 20) for queue, *_ in ranges]) == 4


def test_filtered_ranges_behind_the_first_do_not_pile_up(filled: Topic, fetching: MakeFetching) -> None:
    """A filtered range is asked for bit by bit; the second one must not keep pace with the first."""
    reading = fetching(filled, pullBytes="1024", tags="A")
    reader = PartitionReader(reading.settings, reading.wire, reading.addresses)
    most = rows = 0
    for _, answer in reader._answers(reading.everything()):
        held = [found for cursor in reader._cursors for piece in cursor.pieces for found in piece.answers]
        most = max(most, sum(len(found.body) for found in held))
        rows += answer.covers
    assert most < 6 * 1024
    assert rows > 1900, "the last ones of a queue need not be covered by an answer"


def test_only_the_columns_that_are_asked_for(filled: Topic, fetching: MakeFetching) -> None:
    (batch,) = fetching(filled).batches(QueueRange(filled.queue(3), 7, 8), names=("key", "topic", "broker"))
    assert batch.to_pylist() == [{"key": "k31", "topic": filled.name, "broker": "broker-a"}]


def test_tags_are_filtered_by_the_broker_and_exactly(filled: Topic, fetching: MakeFetching) -> None:
    # "AaBB" and "BBBB" have one hash code in Java.
    assert fetching(filled, tags="BBBB").numbers() == []
    for pull_bytes in (1024, 2 << 20):
        found = fetching(filled, tags="A || AaBB", pullBytes=pull_bytes)
        assert sorted(found.numbers()) == [number for number in range(2000) if number % 3 != 1]
        piece = QueueRange(filled.queue(0), 100, 110)
        assert found.numbers(piece) == [number for number in range(400, 440, 4) if number % 3 != 1]


def test_a_broker_that_gives_little_is_asked_for_many_pieces_at_once(new_topic: NewTopic) -> None:
    with LocalCluster.in_thread(properties={"maxPullMsgNums": 32}) as cluster:
        topic = new_topic(cluster, 2)
        topic.send(3000)
        fetching = Fetching(topic)
        most = 0
        reader = PartitionReader(fetching.settings, fetching.wire, fetching.addresses)
        for _, answer in reader._answers(fetching.everything()):
            assert answer.covers <= 32
            most = max(most, sum(map(len, reader._out.values())))
        assert most > 16
        assert fetching.numbers() == [*range(0, 3000, 2), *range(1, 3000, 2)]
        fetching.wire.close()


def test_compressed_bodies_come_as_they_were_sent(shared_cluster: ThreadCluster, new_topic: NewTopic) -> None:
    topic = new_topic(shared_cluster, 1)
    from gimbalmq import sync
    from gimbalmq.model.message import Message

    body = b"over and over " * 1000
    with sync.Producer("tests", shared_cluster.namesrv) as producer:
        for _ in range(3):
            producer.send(Message(topic.name, body))
    fetching = Fetching(topic)
    (batch,) = fetching.batches()
    fetching.wire.close()
    assert batch.column("body").to_pylist() == [body] * 3


def test_a_reader_that_stops_early_leaves_clean_connections(filled: Topic, fetching: MakeFetching) -> None:
    found = fetching(filled, pullBytes=1024)
    reader = PartitionReader(found.settings, found.wire, found.addresses)
    batches = reader.batches(found.everything(), NAMES)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert len(found.numbers()) == 2000


@pytest.mark.parametrize("size", [1, 2, 700])
def test_a_batch_does_not_look_at_the_bytes_it_was_made_from(filled: Topic, size: int) -> None:
    """Buffers of answers are used again for the next ones."""
    fetching = Fetching(filled)
    reader = PartitionReader(fetching.settings, fetching.wire, fetching.addresses)
    wanted = (QueueRange(filled.queue(0), 0, min(size, 500)),)
    data = b"".join(bytes(answer.body) for _, answer in reader._answers(wanted))
    fetching.wire.close()
    for names in (tuple(columns.TYPES), ("offset", "body"), ("body",), ("topic", "properties")):
        bytes_of = bytearray(data)
        batch = decode(memoryview(bytes_of), names, broker="b", on_error="keep")
        before = batch.to_pylist()
        np.frombuffer(bytes_of, np.uint8)[:] = 0xFF
        assert batch.to_pylist() == before


# --- duplicates ----------------------------------------------------------------------------------


def test_rows_written_twice_come_once(
    shared_cluster: ThreadCluster, new_topic: NewTopic, fetching: MakeFetching
) -> None:
    topic = new_topic(shared_cluster, 1)
    topic.send(6, row_ids=["q-0-0-1", "q-0-0-2", "q-0-0-1", "q-0-0-3", "q-0-0-2", "q-0-0-4"])
    topic.send(2)
    plain, dropping = fetching(topic), fetching(topic, dropDuplicates="true")
    assert plain.numbers() == list(range(8))
    assert dropping.numbers() == [0, 1, 3, 5, 6, 7]
    queue = topic.queue(0)
    # The first copy lies before the range.
    assert dropping.numbers(QueueRange(queue, 2, 6)) == [3, 5]
    none = fetching(topic, dropDuplicates="true", duplicateLookback=0)
    assert none.numbers(QueueRange(queue, 2, 6)) == [2, 3, 4, 5]
    (batch,) = dropping.batches(QueueRange(queue, 4, 6), names=("rowId", "offset"))
    assert batch.to_pylist() == [{"rowId": "q-0-0-4", "offset": 5}]


def test_copies_are_recognised_however_long_the_ranges_are(
    shared_cluster: ThreadCluster,
    new_topic: NewTopic,
    fetching: MakeFetching,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One queue after the other, the ids of the first one's older batches would be forgotten before the second."""
    monkeypatch.setattr(duplicates, "REMEMBERED", 50)
    monkeypatch.setattr(duplicates, "_AT_LEAST", 10)
    monkeypatch.setattr(fetch, "MAX_COUNT", 5)
    monkeypatch.setattr(fetch, "JOIN_ROWS", 5)
    topic = new_topic(shared_cluster, 2)
    for batch in range(20):
        # Each row was sent to both queues.
        topic.send(40, row_ids=[f"stream-{batch}-0-{number // 2:024x}" for number in range(40)])
        time.sleep(0.003)
    dropping = fetching(topic, dropDuplicates="true", duplicateLookback=80)
    ranges = [QueueRange(topic.queue(number), 0, 400) for number in range(2)]
    found = dropping.numbers(*ranges)
    assert sorted(number // 2 for number in found) == list(range(400))
    # An empty range takes part in the way back only.
    assert dropping.numbers(QueueRange(topic.queue(0), 400, 400), QueueRange(topic.queue(1), 390, 400)) == []


# --- what is lost --------------------------------------------------------------------------------

SMALL_FILES = {
    "mappedFileSizeCommitLog": 65_536,
    "mappedFileSizeConsumeQueue": 20 * 50,
    "fileReservedTime": 1,
}


def remove_old_messages(topic: Topic) -> None:
    """As if an hour had passed: all files of the log but the last go, once they are on the disk."""
    for broker in topic.cluster.brokers:
        long_ago = broker.store_path.stat().st_ctime - 7200
        files = sorted((broker.store_path / "commitlog").iterdir())
        while broker.store.min_commitlog_offset < int(files[-1].name):
            for file in files[:-1]:
                with contextlib.suppress(FileNotFoundError):
                    os.utime(file, (long_ago, long_ago))
            topic.admin(
                lambda wire, address: wire.run(ask(wire, address, RequestCode.DELETE_EXPIRED_COMMITLOG))
            )


@pytest.fixture(scope="module")
def shortened() -> Iterator[Topic]:
    """A topic whose oldest messages are gone."""
    with LocalCluster.in_thread(properties=SMALL_FILES) as cluster:
        topic = Topic(cluster, "shortened", 1)
        topic.send(300, body=lambda number: b"%06d" % number + b" " * 1000)
        remove_old_messages(topic)
        yield topic


def test_messages_that_retention_took_fail_the_task(shortened: Topic, fetching: MakeFetching) -> None:
    found = fetching(shortened)
    (whole,) = found.everything()
    assert 0 < whole.start < 300
    with pytest.raises(
        DataLossError, match=rf"next offset is 3, .*begins at {whole.start}.*failOnDataLoss=false"
    ):
        found.batches(QueueRange(whole.queue, 3, 300))


def test_or_the_task_goes_on_with_what_is_there(shortened: Topic, fetching: MakeFetching) -> None:
    found = fetching(shortened, failOnDataLoss="false")
    (whole,) = found.everything()
    assert found.numbers(QueueRange(whole.queue, 0, 300)) == list(range(whole.start, 300))
    # Beyond the end: a topic that was made anew. Pulls of it are tried again before it is given up.
    assert found.numbers(QueueRange(whole.queue, 290, 310)) == list(range(290, 300))
    assert len(found.pauses) == 10


def test_a_look_back_for_duplicates_stops_at_what_is_there(shortened: Topic, fetching: MakeFetching) -> None:
    found = fetching(shortened, dropDuplicates="true")
    (whole,) = found.everything()
    assert found.numbers(QueueRange(whole.queue, whole.start + 1, 300)) == list(range(whole.start + 1, 300))


# --- failures ------------------------------------------------------------------------------------


def test_a_broker_that_comes_back_is_waited_for(
    cluster: ThreadCluster, new_topic: NewTopic, fetching: MakeFetching
) -> None:
    topic = new_topic(cluster, 2)
    topic.send(100)
    found = fetching(topic)
    ranges = found.everything()
    cluster.stop_broker()

    def after_three_pauses() -> None:
        if len(found.pauses) == 3:
            cluster.start_broker()

    found.on_pause = after_three_pauses
    assert sorted(found.numbers(*ranges)) == list(range(100))
    assert found.pauses[:3] == [0.2, 0.4, 0.8]


def test_a_broker_that_moved_is_found_by_its_name(
    shared_cluster: ThreadCluster, new_topic: NewTopic, fetching: MakeFetching
) -> None:
    topic = new_topic(shared_cluster, 1)
    topic.send(10)
    found = fetching(topic)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        found.addresses = {"broker-a": f"127.0.0.1:{nobody.getsockname()[1]}"}
        assert found.numbers(QueueRange(topic.queue(0), 0, 10)) == list(range(10))
        found.addresses = {}
        assert found.numbers(QueueRange(topic.queue(0), 0, 10)) == list(range(10))


def test_pulls_that_wait_where_a_broker_was_are_made_anew_where_it_is(
    shared_cluster: ThreadCluster, new_topic: NewTopic, fetching: MakeFetching
) -> None:
    """Of two pulls, a slave says to one that it is busy and keeps silent about the other; then its master is back."""
    topic = new_topic(shared_cluster, 2)
    topic.send(20)
    found = fetching(topic)
    ranges = found.everything()

    def refuse_one() -> None:
        with server.accept()[0] as peer:
            reader, frames = FrameReader(), list[Frame]()
            while len(frames) < 2:
                frames += reader.feed(peer.recv(65_536))
            kind, header, _ = frames[0]
            peer.sendall(encode_frame(decode_command(kind, header).reply(ResponseCode.SYSTEM_BUSY, "busy")))
            while peer.recv(65_536):
                pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=refuse_one)
        thread.start()
        found.addresses = {"broker-a": f"127.0.0.1:{server.getsockname()[1]}"}
        assert sorted(found.numbers(*ranges)) == list(range(20))
        thread.join()
    assert len(found.pauses) == 1


def test_a_broker_that_stays_away_fails_the_task_with_advice(
    cluster: ThreadCluster, new_topic: NewTopic, fetching: MakeFetching
) -> None:
    topic = new_topic(cluster, 1)
    topic.send(10)
    found = fetching(topic, fetchRetries=3, retryInterval="1s")
    ranges = found.everything()
    cluster.stop_broker()
    with pytest.raises(FetchError, match=r"after 4 attempts.*fetchRetries"):
        found.batches(*ranges)
    assert found.pauses == [1.0, 2.0, 4.0]


def test_a_slave_is_read_as_far_as_it_goes_and_its_master_waited_for(
    new_topic: NewTopic, fetching: MakeFetching
) -> None:
    """What a slave does not have is not lost, whatever failOnDataLoss says: its master has it when it is back."""
    with LocalCluster.in_thread(replicas=2) as cluster:
        topic = new_topic(cluster, 1)
        topic.send(50)
        cluster.in_step()
        slave = cluster.replica(0, 1)
        eventually(lambda: slave.topics.find(topic.name) is not None)
        cluster.stop_broker(("broker-a", 1))
        topic.send(50)
        found = fetching(topic, failOnDataLoss="false", fetchRetries=100, metadataTtl="1ms")
        assert found.everything() == (QueueRange(topic.queue(0), 0, 100),)
        ranges = QueueRange(topic.queue(0), 0, 10), QueueRange(topic.queue(0), 60, 100)
        cluster.kill_broker()
        cluster.start_broker(("broker-a", 1))

        def master_comes_back() -> None:
            time.sleep(0.05)
            if len(found.pauses) == 8:
                cluster.start_broker()

        found.on_pause = master_comes_back
        assert sorted(found.numbers(*ranges)) == [*range(10), *range(60, 100)]
        assert len(found.pauses) >= 8
        # A query that begins now reads what there is.
        cluster.in_step()
        cluster.kill_broker()
        found.on_pause = lambda: time.sleep(0.05)
        assert found.numbers(*found.everything()) == list(range(100))


def test_what_the_broker_forbids_is_said_at_once(new_topic: NewTopic) -> None:
    with LocalCluster.in_thread(properties={"autoCreateSubscriptionGroup": False}) as cluster:
        topic = new_topic(cluster, 1)
        topic.send(1)
        fetching = Fetching(topic, consumerGroup="unheard-of")
        with pytest.raises(FetchError, match="create the consumer group unheard-of"):
            fetching.batches()
        fetching.wire.close()
    assert fetching.pauses == []


# --- the wire ------------------------------------------------------------------------------------


def test_many_calls_go_out_together(filled: Topic) -> None:
    wire = Wire(Connection(namesrv=filled.cluster.namesrv))
    address = filled.cluster.broker.address
    queues = [filled.queue(number % 4) for number in range(1000)]
    found = wire.gather(groups.max_offset(wire, address, queue) for queue in queues)
    wire.close()
    assert found == [500] * 1000


def test_each_call_of_many_has_its_own_outcome(filled: Topic) -> None:
    wire = Wire(Connection(namesrv=filled.cluster.namesrv, connect_timeout=0.5))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{nobody.getsockname()[1]}"
        good, unreachable = wire.gather(
            groups.max_offset(wire, address, filled.queue(0))
            for address in (filled.cluster.broker.address, dead)
        )
    wire.close()
    assert good == 500
    assert isinstance(unreachable, ConnectError)


def test_a_peer_that_keeps_silent_times_out(filled: Topic) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        wire = Wire(Connection(namesrv="h:1"))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RequestTimeoutError):
            wire.run(groups.max_offset(wire, address, MessageQueue("t", "b", 0), timeout=0.05))
        wire.close()


def test_a_peer_that_hangs_up_fails_the_call() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            server.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        wire = Wire(Connection(namesrv="h:1"))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(RocketMQError, match=r"closed|broke"):
            wire.run(groups.max_offset(wire, address, MessageQueue("t", "b", 0), timeout=5.0))
        wire.close()
        thread.join()


def test_a_connection_that_the_broker_closed_is_made_anew_without_a_failure(
    cluster: ThreadCluster, new_topic: NewTopic, fetching: MakeFetching
) -> None:
    topic = new_topic(cluster, 1)
    topic.send(5)
    found = fetching(topic)
    (whole,) = found.everything()
    assert found.numbers(whole) == [0, 1, 2, 3, 4]
    cluster.restart_broker()
    time.sleep(0.1)
    assert found.numbers(whole) == [0, 1, 2, 3, 4]
    assert found.pauses == []


def test_tasks_of_one_process_share_their_connections() -> None:
    one = Connection(namesrv="h:1")
    assert process_wire(one) is process_wire(replace(one))
    assert process_wire(one) is not process_wire(replace(one, namesrv="h:2"))


def test_signed_requests_are_signed(filled: Topic) -> None:
    wire = Wire(Connection(namesrv="h:1", access_key="who", secret_key="secret"))
    from gimbalmq.protocol.command import RemotingCommand

    command = RemotingCommand(30, {"topic": "t"})
    wire.frame(command)
    fields: dict[str, Any] = dict(command.ext_fields or {})
    assert fields["AccessKey"] == "who"
    assert fields["Signature"]


def test_pulls_go_through_tls_where_it_is_asked_for(
    new_topic: NewTopic, tmp_path_factory: pytest.TempPathFactory
) -> None:
    certificate = self_signed(tmp_path_factory.mktemp("tls"))
    keys = {"tls.server.certPath": certificate.cert_path, "tls.server.keyPath": certificate.key_path}
    with LocalCluster.in_thread(properties=keys) as cluster:
        topic = new_topic(cluster, 1)
        topic.send(400, body=lambda number: b"%06d" % number + b" " * 2000)
        wanted = QueueRange(topic.queue(0), 0, 400)
        for trust in ({"tls": "trust"}, {"tls": "verify", "tlsTrustFile": certificate.cert_path}):
            fetching = Fetching(topic, **trust)
            assert fetching.numbers(wanted) == list(range(400))
            assert isinstance(fetching.wire.link(cluster.broker.address)._socket, ssl.SSLSocket)
            fetching.wire.close()
        stranger = Fetching(topic, tls="verify", fetchRetries=0)
        with pytest.raises(FetchError, match="TLS with"):
            stranger.batches(wanted)
        stranger.wire.close()
