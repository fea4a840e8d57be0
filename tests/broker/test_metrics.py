"""Prometheus metrics, scraped over HTTP as Prometheus does."""

from __future__ import annotations

import asyncio
import logging
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gimbalmq.errors import ConfigError
from tests.broker.desk import broker_config, open_desk
from tests.peers.process import free_port
from tests.support import ManualClock, run, until


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
            await desk.broker.metrics.start("127.0.0.1", 0)
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


TOKEN = "a-token-of-24-letters-xx"


@pytest.mark.parametrize("from_file", [False, True], ids=["by the option", "from a file"])
def test_a_token_stands_before_everything_on_the_port(tmp_path: Path, from_file: bool) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    keys = {"metricsTokenFile": tmp_path / "token"} if from_file else {"metricsToken": TOKEN}
    port = 0

    def status(path: str, authorization: str | None) -> int:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
        if authorization is not None:
            request.add_header("Authorization", authorization)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                assert error.code != 401 or error.headers["WWW-Authenticate"] == "Bearer"
                return error.code

    async def work() -> None:
        nonlocal port
        async with open_desk(tmp_path / "store", **keys) as desk:
            token = desk.broker.live.now.read_metrics_token()
            await desk.broker.metrics.start("127.0.0.1", 0, token=token)
            port = desk.broker.metrics.port
            wrong = (
                None,
                "",
                TOKEN,
                f"Basic {TOKEN}",
                "Bearer",
                f"Bearer {TOKEN}x",
                f"Bearer {TOKEN[:-1]}",
                "Bearer \xfc",
            )
            for authorization in wrong:
                for path in ("/metrics", "/elsewhere"):
                    found = await asyncio.to_thread(status, path, authorization)
                    assert found == 401, authorization
            assert await asyncio.to_thread(status, "/metrics", f"bearer {TOKEN}") == 200
            assert await asyncio.to_thread(status, "/elsewhere", f"Bearer {TOKEN}") == 404

    run(work())


def test_metrics_stay_on_the_loopback_and_the_token_stays_hidden(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They were served on the broker's own address, so with --host 0.0.0.0 to everybody."""

    async def work() -> None:
        free = free_port()
        keys: dict[str, Any] = {
            "bindAddress": "0.0.0.0",
            "metricsPromExporterPort": free,
            "metricsToken": TOKEN,
        }
        async with open_desk(tmp_path, **keys) as desk:
            assert desk.broker.metrics._server is not None
            assert desk.broker.metrics._server.sockets[0].getsockname() == ("127.0.0.1", free)
            assert not [record for record in caplog.records if record.name.startswith("gimbalmq")]
            config = desk.broker.live.now
            assert TOKEN not in repr(config) + repr(config.to_properties())
            await desk.broker.metrics.close()
            await desk.broker.metrics.start("0.0.0.0", 0)
            assert "say metricsToken or metricsTokenFile" in caplog.text

    with caplog.at_level(logging.WARNING, "gimbalmq.broker.metrics_page"):
        run(work())


def test_a_token_that_is_none_is_refused_without_being_shown(tmp_path: Path) -> None:
    for wrong in ("short", "sixteen letters and a blank", "sixteen-letters-ü"):
        with pytest.raises(ConfigError, match=r"metricsToken=.* 16 or more") as refused:
            broker_config(tmp_path, metricsToken=wrong)
        assert wrong not in str(refused.value)
    with pytest.raises(ConfigError, match="leave it out, or metricsToken"):
        broker_config(tmp_path, metricsToken=TOKEN, metricsTokenFile="x")
    file = tmp_path / "token"
    config = broker_config(tmp_path, metricsTokenFile=file)
    with pytest.raises(ConfigError, match=r"metricsTokenFile=.*No such file"):
        config.read_metrics_token()
    for content in (b"", b"secret-x", b"\xff\xfe"):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match="metricsTokenFile") as refused:
            config.read_metrics_token()
        assert "secret-x" not in str(refused.value)


def test_scrape_during_traffic(tmp_path: Path) -> None:
    """The scraper's thread shows tables that the loop changes all the while."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.broker.metrics.start("127.0.0.1", 0)
            scrapes = [
                asyncio.create_task(asyncio.to_thread(_scrape, desk.broker.metrics.port)) for _ in range(5)
            ]
            number = 0
            while not all(scrape.done() for scrape in scrapes):
                for _ in range(50):
                    desk.broker.stats.item("TOPIC_PUT_NUMS", f"t{number}").add()
                    number += 1
                await asyncio.sleep(0)
            for scrape in scrapes:
                assert ("rocketmq_topic_number", ()) in await scrape

    run(work())


def test_scrape_of_many_groups_comes_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each group the table of all was walked over, in one go: 10,000 groups held the loop for minutes."""
    monkeypatch.setattr("gimbalmq.transport.turns._SLICE_SECONDS", 0.0)  # each step has a turn of its own

    async def work() -> None:
        groups = 3000
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            await desk.client.send()
            for number in range(groups):
                desk.broker.offsets.commit(f"g{number}", "T", 0, 0)
                desk.broker.stats.got("T", f"g{number}", 1, 10)
            turns = 0
            reading = asyncio.create_task(desk.broker.metrics.read())
            while not reading.done():
                await asyncio.sleep(0)
                turns += 1
            # Two counters and a lag for each group, whose one queue is a piece of work, too.
            assert turns >= 4 * groups // 2048
            families = {family.name: family for family in await reading}
            assert len(families["messages_out"].rows) == len(families["consumer_lag_messages"].rows) == groups
            assert (("T", "g7"), 1) in families["consumer_lag_messages"].rows

    run(work())


def test_silent_and_wrong_peers_of_the_metrics_port_take_no_threads_and_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection had a thread of its own, for as long as it liked: 300 silent ones were 300 threads."""
    monkeypatch.setattr("gimbalmq.broker.metrics_page._SCRAPE_SECONDS", 1.5)

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.broker.metrics.start("127.0.0.1", 0)
            port = desk.broker.metrics.port
            threads = threading.active_count()
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
            assert threading.active_count() == threads
            await until(lambda: len(desk.broker.metrics._silent) == 16)
            text = await asyncio.to_thread(
                lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read()
            )
            assert b"rocketmq_topic_number" in text, "who asks is served beside them"
            ends = await asyncio.gather(*(reader.read() for reader, _ in silent), return_exceptions=True)
            assert all(end == b"" or isinstance(end, ConnectionError) for end in ends)
            for request, status in (
                (b"POST /metrics HTTP/1.1\r\n\r\n", b" 405 "),
                (b"GET /etc HTTP/1.1\r\n\r\n", b" 404 "),
                (b"\r\n\r\n", b" 405 "),
                (b"x" * 100_000, b""),
                (b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n", b" 200 "),
            ):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request)
                try:
                    answer = await reader.read()
                except ConnectionError:
                    answer = b""
                assert status in answer[:20] and bool(status) == bool(answer), request[:20]
                writer.close()
            assert b"rocketmq_topic_number" in answer and answer.endswith(b"# EOF\n")
            for _, writer in silent:
                writer.transport.abort()

    run(work())
