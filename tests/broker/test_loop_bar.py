"""Nothing holds the loop of a broker with ten thousand topics and groups for 20 ms of processor time.

Processor time of single turns, not of the clock on the wall: a loaded machine changes nothing.
"""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path

import pytest

from gimbalmq.protocol.bodies import TopicConfig
from gimbalmq.protocol.codes import RequestCode
from tests.broker.desk import Desk, open_desk, topic_fields
from tests.support import freeze_what_is_there, run

MANY = 10_000
BAR_SECONDS = 0.020


class _Longest:
    """The callback of the loop that took most processor time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds, self.what = 0.0, ""
        plain = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            plain(handle)
            took = time.thread_time() - began
            if took > self.seconds:
                self.seconds, self.what = took, repr(handle)

        monkeypatch.setattr(asyncio.Handle, "_run", timed)


async def _fill(desk: Desk) -> None:
    broker = desk.broker
    broker.topics.put(
        *(
            TopicConfig(topic_name=f"t{number}", read_queue_nums=1, write_queue_nums=1)
            for number in range(MANY)
        )
    )
    for number in range(MANY):
        broker.groups.find(f"g{number}")
        broker.offsets.commit(f"g{number}", f"t{number}", 0, 0)
        broker.stats.put(f"t{number}", 1, 10)
        if number % 100 == 0:
            await asyncio.sleep(0)
    await broker.topics.saving.saved()
    await broker.groups.saving.saved()
    gc.collect()
    gc.freeze()


def test_nothing_holds_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        asyncio.get_running_loop().set_debug(False)  # it doubles the cost of all
        async with open_desk(tmp_path, maxTopicsCreatedPerConnection=100_000) as desk:
            await _fill(desk)
            client, broker = desk.client, desk.broker
            longest = _Longest(monkeypatch)
            over: list[str] = []

            async def bar(name: str, doing: object) -> None:
                longest.seconds = 0.0
                await doing  # type: ignore[misc]
                await asyncio.sleep(0)
                if longest.seconds > BAR_SECONDS:
                    over.append(f"{name}: {longest.seconds * 1000:.0f} ms in {longest.what[:200]}")

            for code, ext in (
                (RequestCode.GET_ALL_TOPIC_CONFIG, {}),
                (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}),
                (RequestCode.GET_ALL_CONSUMER_OFFSET, {}),
                (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
                (RequestCode.GET_BROKER_RUNTIME_INFO, {}),
                (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("one-more")),
            ):
                await bar(str(RequestCode(code)), client.ok(code, ext))
            await bar(
                "5 reports at once",
                asyncio.gather(*(client.ok(RequestCode.GET_ALL_TOPIC_CONFIG) for _ in range(5))),
            )
            await bar("a send", client.send("t5"))
            await bar("metrics", broker.metrics.read())
            await bar("statistics", broker._sample())
            await bar("queues", broker.upkeep.write_behind())
            await bar("checkpoint", broker.upkeep.checkpoint())
            assert not over, "\n".join(over)

    try:
        run(work())
    finally:
        freeze_what_is_there()
