"""Peers that read slowly are served slowly, not cut off."""

from __future__ import annotations

from pathlib import Path

from tests.broker.desk import open_desk, pulled
from tests.support import run


def test_answers_to_pulls_become_small_before_slow_readers_are_closed(tmp_path: Path) -> None:
    """Each of 110 consumers that caught up had 256 KB waiting, and together they were too many: 50 were closed."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            for _ in range(20):
                await desk.client.send(body=bytes(8000))
            load = desk.broker.load
            most = load.limits.max_pending_write_bytes
            counts = []
            for part in (0.0, 0.6, 0.8):
                load.waiting_bytes = int(most * part)
                counts.append(len(pulled(await desk.client.pull(maxMsgBytes=str(1 << 20)))))
            load.waiting_bytes = int(most * 0.8)
            await desk.client.send(body=bytes(100_000), queue_id=1)
            assert len(pulled(await desk.client.pull(queue_id=1))) == 1, "one message always fits"
            load.waiting_bytes = 0
            assert counts == [20, 20, 4]

    run(work())
