"""Record a store folder with timers that Apache's broker 5.5.0 wrote, as golden file for our timers.

    python -m tests.peers.record_timers

Three timers fall due while the broker runs, four later: two in the same second, and one so far away that Apache
keeps it in two stages. After a clean stop the folder goes into `tests/golden/timers_5_5_0.tar.xz`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from gimbalmq import Message
from gimbalmq.sync import Producer
from tests.peers.apache import ROOT, ApacheBroker, ApacheNameServer
from tests.peers.record_store import GOLDEN, pack

VERSION = "5.5.0"
SETTINGS: Mapping[str, object] = {"mappedFileSizeTimerLog": 5200}
TOPIC = "TimerT"
NEAR = (1, 2, 3)
FAR = (3600, 3600, 7200, 250_000)
PARTS = ("commitlog", "consumequeue", "config", "checkpoint", "timerlog", "timerwheel")


def record(folder: Path) -> Path:
    with ApacheNameServer(VERSION, folder / "namesrv") as namesrv:
        broker = ApacheBroker(VERSION, folder / "broker", namesrv=namesrv.address, extra=SETTINGS)
        with broker, Producer("golden-timers", namesrv.address) as producer:
            producer.send(Message(TOPIC, b"at once"))
            now = time.time()
            for name, delays in (("short", NEAR), ("long", FAR)):
                for seconds in delays:
                    producer.send(Message(TOPIC, f"{name}-{seconds}".encode(), deliver_at=now + seconds))
            time.sleep(NEAR[-1] + 5)
            broker.stop()
    archive = GOLDEN / f"timers_{VERSION.replace('.', '_')}.tar.xz"
    pack(broker.store, archive, PARTS)
    return archive


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="record-timers-") as folder:
        archive = record(Path(folder))
    print(f"{archive.relative_to(ROOT)}: {archive.stat().st_size} bytes")


if __name__ == "__main__":
    main()
