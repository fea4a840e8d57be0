"""Prometheus metrics, scraped over HTTP as Prometheus does."""

from __future__ import annotations

import asyncio
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gimbalmq.broker.stats import Stats
from tests.broker.desk import open_desk
from tests.support import ManualClock, run


def _scrape(port: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_is_shown(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, ManualClock()) as desk:
            await desk.create("T")
            for _ in range(3):
                await desk.client.send(body=b"12345")
            await desk.client.pull(count=2)
            await desk.client.heartbeat(group="g", producer="pg")
            await desk.client.ok(
                15, {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"}
            )
            record = desk.messages("T")[0]
            ext = {"offset": str(record.commitlog_offset), "group": "g", "delayLevel": "-1"}
            await desk.client.ok(36, ext)
            desk.broker.metrics.start("127.0.0.1", 0)
            found = await asyncio.to_thread(_scrape, desk.broker.metrics.port)
            topic, both = (("topic", "T"),), (("consumer_group", "g"), ("topic", "T"))
            assert found["rocketmq_messages_in_total", topic] == 3
            assert found["rocketmq_throughput_in_total", topic] == 15
            assert found["rocketmq_messages_out_total", both] == 2
            assert found["rocketmq_throughput_out_total", both] > 10
            assert found["rocketmq_send_back_total", both] == 1
            assert found["rocketmq_consumer_lag_messages", both] == 2
            assert found["rocketmq_topic_number", ()] == len(desk.broker.topics)
            assert found["rocketmq_consumer_groups_online", ()] == 1
            assert found["rocketmq_producer_groups_online", ()] == 1
            assert found["rocketmq_held_pulls", ()] == 0
            assert found["rocketmq_storage_size", ()] == desk.broker.store.max_commitlog_offset
            assert found["rocketmq_storage_read_only", ()] == 0

    run(work())


def test_no_port_where_none_is_asked_for(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            assert desk.broker.metrics.port == 0

    run(work())


def test_scrape_during_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scraper's thread reads tables that the loop changes; it once could meet a dict growing."""
    stats = Stats(ManualClock())
    for number in range(2000):
        stats.item("TOPIC_PUT_NUMS", f"t{number}")
    errors: list[BaseException] = []
    done = threading.Event()

    def scrape() -> None:
        try:
            while not done.is_set():
                stats.items("TOPIC_PUT_NUMS")
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        for number in range(2000, 6000):
            stats.item("TOPIC_PUT_NUMS", f"t{number}")
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert not errors
