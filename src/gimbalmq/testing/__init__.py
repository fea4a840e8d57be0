"""For tests of programs that use RocketMQ: a cluster in the test's own process, virtual time, crashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gimbalmq.testing.cluster import LocalCluster as LocalCluster
    from gimbalmq.testing.cluster import ThreadCluster as ThreadCluster
    from gimbalmq.testing.disk import RecordedDisk as RecordedDisk
    from gimbalmq.testing.loop import VirtualClock as VirtualClock
    from gimbalmq.testing.loop import VirtualLoop as VirtualLoop
    from gimbalmq.testing.loop import run_virtual as run_virtual
    from gimbalmq.testing.network import MemoryNetwork as MemoryNetwork

_HOMES = {
    "LocalCluster": "gimbalmq.testing.cluster",
    "MemoryNetwork": "gimbalmq.testing.network",
    "RecordedDisk": "gimbalmq.testing.disk",
    "ThreadCluster": "gimbalmq.testing.cluster",
    "VirtualClock": "gimbalmq.testing.loop",
    "VirtualLoop": "gimbalmq.testing.loop",
    "run_virtual": "gimbalmq.testing.loop",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'gimbalmq.testing' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
