"""Record store folders that Apache's brokers wrote, as golden files for the tests of our store.

    python -m tests.peers.record_store

A fixed scene is sent by Java clients to an Apache broker with tiny files, so that commit log, consume queue and
index all roll over; after a clean stop the folder goes into `tests/golden/store_<version>.tar.xz`, and what was
sent, and what a Java consumer read back, into `store_<version>.json` beside it. The archive holds commitlog/,
consumequeue/, index/, config/ and checkpoint; times, ports and message ids differ from one recording to the next.

The scene is described in the JSON: `sent` has an entry per send call with the Java client's result, `received` has
every message of the user topics as Java decoded it, by commit log offset, `committed` the consumer offsets.
"""

from __future__ import annotations

import dataclasses
import io
import json
import lzma
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.peers.apache import ROOT, ApacheBroker, ApacheNameServer
from tests.peers.driver import JavaClient, JavaProducer, Outgoing, Received, Sent, eventually

GOLDEN = ROOT / "tests" / "golden"
RECORDINGS = {"5.5.0": "5.5.0", "4.9.7": "4.9.8"}  # broker version: client version

SETTINGS: Mapping[str, object] = {
    "brokerClusterName": "GoldenCluster",
    "brokerName": "golden-a",
    "mappedFileSizeCommitLog": 65_536,
    "mappedFileSizeConsumeQueue": 2_000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "maxMessageSize": 32_768,
    "transactionCheckInterval": 600_000,
    # As Apache has them: several outcomes in one record.
    "transactionOpBatchInterval": 3_000,
    "transactionOpMsgMaxSize": 4_096,
}
ORDERS, ROLL, LATER, RETRIED = "golden-orders", "golden-roll", "golden-later", "golden-retried"
TOPICS: Mapping[str, int] = {ORDERS: 4, ROLL: 1, LATER: 2, RETRIED: 1}
GROUP = "golden-group"
ROLL_COUNT = 220
PARTS = ("commitlog", "consumequeue", "index", "config", "checkpoint")

ORDER_MESSAGES = (
    Outgoing(ORDERS, b"plain"),
    Outgoing(ORDERS, b"tagged", tags="TagA"),
    Outgoing(ORDERS, b"one key", tags="TagB", keys="order-1"),
    Outgoing(ORDERS, b"three keys", tags="TagA", keys="order-2 customer-7 invoice-2"),
    Outgoing(ORDERS, "消息 – ünïcödé 🚀".encode(), tags="标签", keys="钥匙", properties={"作者": "Ünï"}),
    Outgoing(ORDERS, b"properties", properties={"a": "1", "b c": "x=y&z", "dots": "a.b:c"}),
    Outgoing(ORDERS, b"flagged", flag=7),
    Outgoing(ORDERS, b"compressed " * 800, tags="Big", keys="big-1"),
    Outgoing(ORDERS, b"for a queue by hash", order="customer-7", keys="hash-1"),
)
BATCH = tuple(Outgoing(ORDERS, f"batch-{i}".encode(), tags="Batch", keys=f"batch-{i}") for i in range(5))
DELAYED = (
    Outgoing(LATER, b"after a second", delay_level=1, tags="Later", keys="later-1"),
    Outgoing(LATER, b"after two hours", delay_level=18, tags="Later", keys="later-2"),
)
TRANSACTIONS = (
    Outgoing(ORDERS, b"half, then committed", tags="Tx", keys="tx-1", properties={"local": "commit"}),
    Outgoing(ORDERS, b"half, then rolled back", tags="Tx", keys="tx-2", properties={"local": "rollback"}),
    Outgoing(ORDERS, b"half and still open", tags="Tx", keys="tx-3", properties={"local": "unknown"}),
)
RETRY = Outgoing(RETRIED, b"fails once, then works", tags="Retry", keys="retry-1")


def roll_messages() -> list[Outgoing]:
    """Enough for three consume-queue files, two index files and several commit log files."""
    return [
        Outgoing(ROLL, f"roll-{i:04d}-".encode() + b"r" * 60, tags=f"T{i % 3}", keys=f"roll-{i}")
        for i in range(ROLL_COUNT)
    ]


def _described(message: Outgoing) -> dict[str, Any]:
    fields = dataclasses.asdict(message)
    fields["body"] = message.body.decode()
    return {name: value for name, value in fields.items() if value not in (None, {})}


def _result(result: Sent) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(result).items() if value is not None}


def _sent(way: str, messages: Iterable[Outgoing], results: Iterable[Sent]) -> list[dict[str, Any]]:
    return [
        {"way": way, "messages": [_described(message)], "result": _result(result)}
        for message, result in zip(messages, results, strict=True)
    ]


def play(java: JavaClient, producer: JavaProducer, transactional: JavaProducer) -> list[dict[str, Any]]:
    """Send the scene; returns one entry per send call."""
    sent = _sent("sync", ORDER_MESSAGES, producer.send(*ORDER_MESSAGES))
    batch_result = _result(producer.send_batch(*BATCH))
    sent.append({"way": "batch", "messages": list(map(_described, BATCH)), "result": batch_result})
    sent += _sent("transaction", TRANSACTIONS, transactional.send_in_transaction(*TRANSACTIONS))
    sent += _sent("delayed", DELAYED, producer.send(*DELAYED))
    sent += _sent("retried", [RETRY], producer.send(RETRY))
    with java.push(GROUP, RETRIED, failures=1) as consumer:
        consumer.wait_for(2, timeout=40.0)
    rolled = roll_messages()
    sent += _sent("sync", rolled, producer.send(*rolled))
    return sent


def read_back(java: JavaClient) -> tuple[list[Received], dict[str, dict[int, int]]]:
    """Every message of the user topics as Java reads it, and the offsets a group committed on the way."""
    received: list[Received] = []
    committed: dict[str, dict[int, int]] = {}
    for topic, expected in ((ORDERS, 15), (LATER, 1), (RETRIED, 1), (ROLL, ROLL_COUNT)):
        with java.lite_pull("golden-reader", manual_commit=True) as reader:
            queues = eventually(partial(reader.fetch_queues, topic), bool, f"queues of {topic}")
            reader.assign(queues)
            received += reader.poll_for(expected)
            reader.commit()
            committed[topic] = {queue.queue_id: reader.committed(queue) for queue in queues}
    return sorted(received, key=lambda message: message.commitlog_offset), committed


def _shown(message: Received) -> dict[str, Any]:
    fields = dataclasses.asdict(message)
    fields["body"] = message.body.decode()
    del fields["at_nanos"], fields["broker"]
    # The consumer added these; they are not in the store.
    added = ("MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME")
    fields["properties"] = {name: value for name, value in message.properties.items() if name not in added}
    return fields


def pack(store: Path, archive: Path, parts: Iterable[str] = PARTS) -> None:
    """The parts of a store folder both sides know, in an archive that depends on nothing but their bytes."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        files = [
            file for part in parts for file in (store / part, *(store / part).rglob("*")) if file.is_file()
        ]
        for file in sorted(files):
            entry = tarfile.TarInfo(file.relative_to(store).as_posix())
            content = file.read_bytes()
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    archive.write_bytes(lzma.compress(raw.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def record(broker_version: str, client_version: str, folder: Path) -> Path:
    """Play the scene to one broker version and write its two golden files."""
    with (
        ApacheNameServer(broker_version, folder / "namesrv") as namesrv,
        ApacheBroker(broker_version, folder / "broker", namesrv=namesrv.address, extra=SETTINGS) as broker,
        JavaClient(client_version, folder / "client", namesrv=namesrv.address) as java,
    ):
        for topic, count in TOPICS.items():
            java.admin("updateTopic", "-b", broker.address, "-t", topic, "-r", str(count), "-w", str(count))
        java.admin("updateSubGroup", "-b", broker.address, "-g", GROUP, "-r", "5")
        producer = java.producer("golden-producers")
        transactional = java.producer("golden-transactions", transactional=True)
        sent = play(java, producer, transactional)
        received, committed = read_back(java)
        java.shutdown(producer, transactional)
        broker.stop()
        scene = {
            "broker_version": broker_version,
            "client_version": client_version,
            "settings": {**SETTINGS, "storeHost": broker.address},
            "topics": TOPICS,
            "sent": sent,
            "received": list(map(_shown, received)),
            "committed": {"golden-reader": committed},
        }
    stem = GOLDEN / f"store_{broker_version.replace('.', '_')}"
    GOLDEN.mkdir(parents=True, exist_ok=True)
    pack(broker.store, stem.with_suffix(".tar.xz"))
    lines = json.dumps(scene, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    # One message a line: a difference between two recordings can be read.
    stem.with_suffix(".json").write_text(lines.replace('},{"', '},\n{"') + "\n", "utf-8")
    return stem.with_suffix(".tar.xz")


def main() -> None:
    for broker_version, client_version in RECORDINGS.items():
        with tempfile.TemporaryDirectory(prefix="record-store-") as folder:
            archive = record(broker_version, client_version, Path(folder))
        print(f"{archive.relative_to(ROOT)}: {archive.stat().st_size} bytes")


if __name__ == "__main__":
    main()
