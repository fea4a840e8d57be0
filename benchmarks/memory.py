"""Memory as on a machine that has run for a day: none is free, what programs do not use is file cache.

A hypervisor may take back what its guest has free (free page reporting; within four seconds here), and then hands it
out again at 8 us a page, many times what the write itself costs. A broker that fills a new log on an idle machine pays
that for every page, and the figure would be the hypervisor's. A machine that has been used has no free memory: new
pages come out of the file cache, at 0.7 to 1.5 us. So the cache is filled before each measurement, by reading a file of
holes.

    python benchmarks/memory.py        # what a page costs on this machine, before and after
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

PIECE = 1 << 20
STEP = 256  # pieces between two looks at what is free
LITTLE = STEP * PIECE // 4  # a step that leaves no more than so much less free has come to the end
HOLES = 1 << 42  # more than any machine reads

wanted = True  # a quick run does not wait for it: the first time, 20 GB take most of a minute
_file: IO[bytes] | None = (
    None  # what was read of it stays in the cache until others need the room, or it is closed
)
_place = 0
_floor = 0  # what was free when the cache was full


def fill_cache() -> None:
    """Read holes until that leaves no less memory free than before."""
    global _file, _place, _floor, wanted
    free = first = _free_bytes()
    if not wanted or free < _floor + LITTLE:
        return
    if _file is None:
        print(f"memory: {free >> 30} GB that are free become file cache ...", file=sys.stderr, flush=True)
        _file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - open until the process ends
        try:
            _file.truncate(HOLES)
        except OSError as error:
            wanted = False
            print(
                f"memory: no file of holes can be made in {tempfile.gettempdir()}: {error}", file=sys.stderr
            )
            return
    _file.seek(_place)
    buffer = bytearray(PIECE)
    while True:
        for _ in range(STEP):
            _file.readinto(buffer)  # type: ignore[attr-defined]
        _place += STEP * PIECE
        left = _free_bytes()
        if free - left < LITTLE:
            break
        free = left
    if not _floor and first - left < LITTLE < first // 16:
        print(
            f"memory: holes of a file in {tempfile.gettempdir()} take no memory, so {left >> 30} GB stay free: "
            "set TMPDIR to a folder on a disk",
            file=sys.stderr,
        )
    _floor = left


def _free_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemFree:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo does not say what memory is free")


def main() -> None:
    """Write half a gigabyte four times and print what a page of 4 KB took."""
    print(f"memory that was free at the start      {_page_us():5.2f} us a page")
    time.sleep(10)
    print(f"10 s after that file was deleted       {_page_us():5.2f}")
    began = time.monotonic()
    fill_cache()
    print(f"the cache filled, in {time.monotonic() - began:3.0f} s             {_page_us():5.2f}")
    fill_cache()
    print(f"what that file had filled again        {_page_us():5.2f}")


def _page_us() -> float:
    """Processor time to write a page of a new file, microseconds."""
    block = bytes(PIECE)
    pages = 512 * PIECE // resource.getpagesize()
    with tempfile.TemporaryFile(buffering=0) as file:
        began = time.process_time()
        for _ in range(512):
            file.write(block)
        return (time.process_time() - began) / pages * 1e6


if __name__ == "__main__":
    main()
