"""A consumer's events and positions as JSON lines."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gimbalmq import ConsumeFromWhere, Message, MessageView, Producer, PushConsumer
from gimbalmq.client.recording import Recorder
from gimbalmq.errors import ConfigError, StateError
from gimbalmq.testing import LocalCluster
from tests.support import run, until


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_events_and_positions_are_lines_with_flat_fields(tmp_path: Path) -> None:
    file = tmp_path / "records" / "one.jsonl"

    async def main() -> None:
        async with LocalCluster() as cluster:
            async with Producer("shop", cluster.namesrv) as producer:
                for number in range(8):
                    await producer.send(Message("orders", f"order {number}"))
            seen: list[bytes] = []

            async def handle(message: MessageView) -> None:
                seen.append(bytes(message.body))

            consumer = PushConsumer(
                "billing",
                cluster.namesrv,
                instance_name="one",
                consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            )
            consumer.subscribe("orders", "*", handle)
            async with Recorder(consumer, file, every=0) as recorder, consumer:
                await until(lambda: len(seen) == 8)
                await recorder.look()

    run(main())
    lines = _lines(file)
    assert {line["group"] for line in lines} == {"billing"}
    assert all(line["member"].endswith("@one") for line in lines)
    assert lines[0]["record"] == "RoundStarted" and lines[0]["reason"] == "start"
    taken = [line for line in lines if line["record"] == "QueueTaken" and line["topic"] == "orders"]
    assert sorted(line["queue_id"] for line in taken) == [0, 1, 2, 3]
    assert all(line["broker"] == "broker-a" and line["offset"] == 0 for line in taken)
    positions = [line for line in lines if line["record"] == "Position" and line["topic"] == "orders"]
    assert [line["newest"] for line in positions] == [2] * 4
    assert all(line["offset"] + line["lag"] == 2 and line["at_ms"] > 0 for line in positions)


def test_positions_are_written_again_and_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with LocalCluster() as cluster:
            async with Producer("shop", cluster.namesrv) as producer:
                await producer.send(Message("orders", "one"))
            consumer = PushConsumer(
                "billing", cluster.namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
            )
            consumer.subscribe("orders", "*", lambda message: None)
            file = tmp_path / "one.jsonl"
            async with Recorder(consumer, file, every=0.01), consumer:
                while sum(line["record"] == "Position" for line in _lines(file)) < 12:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    run(main())


def test_recorder_starts_once_and_closes_as_often_as_one_likes(tmp_path: Path) -> None:
    async def main() -> None:
        consumer = PushConsumer("billing", "127.0.0.1:1")
        recorder = Recorder(consumer, tmp_path / "one.jsonl")
        recorder.start()
        with pytest.raises(StateError, match="already"):
            recorder.start()
        await recorder.close()
        await recorder.close()
        assert (tmp_path / "one.jsonl").read_bytes() == b""

    run(main())


def test_interval_is_checked() -> None:
    consumer = PushConsumer("billing", "127.0.0.1:1")
    with pytest.raises(ConfigError, match="0 writes events only"):
        Recorder(consumer, "x.jsonl", every=-1)
