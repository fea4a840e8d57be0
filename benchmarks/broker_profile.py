"""Where our broker's time goes under a load: a sampling profile by function and by line.

    python benchmarks/broker_profile.py [--load send|send1k|keys|sync|pull] [--seconds S] [--json FILE]

A timer that counts processor time (ITIMER_PROF) interrupts the server every few milliseconds of work and
notes the Python stack. That costs next to nothing; cProfile would double the cost of small functions and so
hide the rest. Python runs signal handlers between bytecodes: time in C code (the kernel's too) shows on the
line that called it, or, for uvloop's own reads and writes outside any call, on the line that Python ran next.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.loadgen.runner import Load, run_c
from benchmarks.subjects import Ours, cpu_seconds_of, scratch_folder

QUEUES = 8
INTERVAL = 0.001
LOADS: dict[str, dict[str, object]] = {
    "send": {"connections": 4, "window": 2000, "body": 100},
    "send1k": {"connections": 4, "window": 2000, "body": 1024},
    "keys": {"connections": 4, "window": 2000, "body": 100, "keys": True, "tags": True},
    "sync": {"connections": 1, "window": 1, "body": 100},
    "pull": {"connections": 4},
}


# ---- inside the server ----


def serve(output: Path, arguments: list[str]) -> None:
    """Run `gimbalmq` with the sampler on; SIGUSR2 starts it, the end of the process writes what it saw."""
    lines: Counter[tuple[str, str, int]] = Counter()
    inclusive: Counter[tuple[str, str]] = Counter()

    def sample(number: int, frame: FrameType | None) -> None:
        seen: set[tuple[str, str]] = set()
        first = True
        while frame is not None:
            code = frame.f_code
            if first:
                lines[code.co_filename, code.co_qualname, frame.f_lineno] += 1
                first = False
            seen.add((code.co_filename, code.co_qualname))
            frame = frame.f_back
        inclusive.update(seen)

    def begin(number: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)

    signal.signal(signal.SIGPROF, sample)
    signal.signal(signal.SIGUSR2, begin)
    sys.argv = ["gimbalmq", *arguments]
    try:
        runpy.run_module("gimbalmq", run_name="__main__", alter_sys=True)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        found = {
            "lines": [[*key, number] for key, number in lines.most_common()],
            "inclusive": [[*key, number] for key, number in inclusive.most_common()],
        }
        output.write_text(json.dumps(found))


class Profiled(Ours):
    """Our server with the sampler in it."""

    @property
    def output(self) -> Path:
        return self.folder / "profile.json"

    def commands(self) -> list[tuple[list[str], dict[str, str]]]:
        return [
            ([command[0], __file__, "--serve", str(self.output), *command[3:]], environment)
            for command, environment in super().commands()
        ]


# ---- outside ----


def short(file: str) -> str:
    _, found, rest = file.rpartition("/gimbalmq/")
    return rest if found else Path(file).name


def run_load(subject: Profiled, kind: str, seconds: float) -> tuple[Load, float]:
    """The load and the processor time the broker used for it."""
    shape: dict[str, object] = {"topic": "profile", "queues": QUEUES, **LOADS[kind]}
    subject.create_topics(["profile"], queues=QUEUES)
    if kind == "pull":
        filling = {"topic": "profile", "queues": QUEUES, "connections": 4, "window": 400}
        run_c("send", port=subject.port, count=200_000, **filling)
        run_c("pull", port=subject.port, seconds=1, group="profile_warm", **shape)
    else:
        run_c("send", port=subject.port, seconds=1, **shape)
    for pid in subject.pids:
        os.kill(pid, signal.SIGUSR2)
    time.sleep(0.1)
    before = cpu_seconds_of(subject.pids)
    load = run_c("pull" if kind == "pull" else "send", port=subject.port, seconds=seconds, **shape)
    return load, cpu_seconds_of(subject.pids) - before


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(Path(sys.argv[2]), sys.argv[3:])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--load", choices=list(LOADS), default="send")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--top", type=int, default=20)
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    with scratch_folder() as folder:
        subject = Profiled(folder / "ours")
        try:
            subject.start()
            load, cpu = run_load(subject, asked.load, asked.seconds)
            subject.stop()
            found = json.loads(subject.output.read_text())
        finally:
            subject.kill()
    each = cpu / load.raw["answered"] * 1e6
    print(f"{asked.load}: {load.per_second:,.0f} messages/s, {each:.2f} us of processor per request")
    samples = sum(line[3] for line in found["lines"]) or 1
    own: Counter[tuple[str, str]] = Counter()
    for file, function, _, number in found["lines"]:
        own[file, function] += number
    print(f"\n{samples} samples; self time by function (share, us per request)")
    for (file, function), number in own.most_common(asked.top):
        print(f"  {number / samples:6.1%} {number / samples * each:6.2f}  {short(file)}: {function}")
    print("\nwith what it calls")
    for file, function, number in found["inclusive"][: asked.top]:
        print(f"  {number / samples:6.1%} {number / samples * each:6.2f}  {short(file)}: {function}")
    print("\nself time by line")
    for file, function, line, number in found["lines"][: asked.top]:
        print(f"  {number / samples:6.1%} {number / samples * each:6.2f}  {short(file)}:{line} {function}")
    if asked.json:
        asked.json.write_text(json.dumps({"us_per_request": each, "load": load.raw, **found}))


if __name__ == "__main__":
    main()
