"""What a run shows: Spark's lines in, what a person wants to know out."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TextIO

from gimbalmq.cli.output import announce

if TYPE_CHECKING:
    from gimbalmq._clock import Clock

_SAY_ROWS: Final = 5.0
_BELIEVE: Final = 1.0
"""Seconds until a flow that is said to have completed is believed. Spark says so of every query that has ended, and
only then that it failed."""
_EVENT: Final = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d: (.*)$")
_STATE: Final = re.compile(r"^Flow '?([^' ]+)'? (?:is|has) ([A-Z]+)(.*)$")
_PROGRESS: Final = "Streaming query made progress: "
_STEPS: Final = {
    "Creating Spark session": "starting Spark",
    "Creating dataflow graph": "opening the catalog",
    "Registering graph elements": "reading the transformations",
    "Starting run": "working out the flows",
}
_MARKS: Final = {"completed": "ok", "failed": "!!", "skipped": "--", "running": ">>"}


@dataclass(slots=True)
class Flow:
    """One flow's way through a run."""

    state: str = "queued"
    read: int | None = None
    """Rows a stream has taken in this run."""
    rows: int | None = None
    """Rows its table has in all, when the run is over."""
    begun: float | None = None
    seconds: float | None = None
    failures: int = 0


@dataclass(slots=True)
class Progress:
    """Lines of Spark's in, what a person wants to know out.

    On a terminal a block that is rewritten in place; otherwise a line for each change.
    """

    out: TextIO
    clock: Clock
    dry: bool = False
    flows: dict[str, Flow] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Flow to the text of its last error; a flow that was tried again with success is not there."""
    failure: dict[str, str] | None = None
    """What the runner says it ended with."""
    _step: str = "starting Python"
    _begun: float = 0.0
    _drawn: int = 0
    _continues: str | None = None
    _said_rows: float = 0.0
    _ended: dict[str, float] = field(default_factory=dict)
    """Flows that are said to have completed, with the time, and that are not believed yet."""

    def __post_init__(self) -> None:
        self._begun = self.clock.monotonic()

    @property
    def _in_place(self) -> bool:
        return self.out.isatty() and os.environ.get("TERM", "") != "dumb"

    def take(self, line: str) -> None:
        """One line of stdout."""
        from gimbalmq.spark.pipelines.runner import FAILURE

        if line.startswith(FAILURE):
            self.failure = json.loads(line.removeprefix(FAILURE))
            return
        if line.startswith(_PROGRESS):
            self._take_progress(line.removeprefix(_PROGRESS))
            return
        event = _EVENT.match(line)
        if event is None:
            # An error may have several lines; a transformation may print.
            if self._continues is not None:
                self.failures[self._continues] += f"\n{line}"
            return
        self._continues = None
        text = event[1]
        for words, step in _STEPS.items():
            if text.startswith(words):
                self._change(step)
        changed = _STATE.match(text.replace("' SKIPPED", "' is SKIPPED"))
        if changed is not None:
            self._take_state(_short(changed[1]), changed[2].lower(), changed[3])
        self.draw()

    def _take_state(self, name: str, state: str, rest: str) -> None:
        flow = self.flows.setdefault(name, Flow())
        now = self.clock.monotonic()
        if state in ("planning", "starting"):
            state = "starting"
        if flow.begun is None and state != "queued":
            flow.begun = now
        if state == "failed":
            flow.failures += 1
            self.failures[name] = ""
            self._continues = name
            if "will not be restarted" not in rest:
                state = "failed, to be tried again"
        elif state == "completed":
            self._ended[name] = now
            return
        self._ended.pop(name, None)
        ended = state in ("failed", "skipped")
        flow.seconds = now - (flow.begun or now) if ended else None
        if state != flow.state:
            flow.state = state
            if state not in ("queued", "starting") and not self._in_place:
                self._say(f"{name}: {self._state_of(flow)}")

    def _believe(self, *, all_of_them: bool = False) -> None:
        """Takes flows for completed that nothing else was heard of since."""
        now = self.clock.monotonic()
        for name, at in list(self._ended.items()):
            if all_of_them or now - at >= _BELIEVE:
                del self._ended[name]
                self.failures.pop(name, None)
                flow = self.flows[name]
                flow.state, flow.seconds = "completed", at - (at if flow.begun is None else flow.begun)
                if not self._in_place:
                    self._say(f"{name}: {self._state_of(flow)}", at)

    def _take_progress(self, text: str) -> None:
        try:
            told: dict[str, Any] = json.loads(text)
        except ValueError:
            return
        flow = self.flows.setdefault(_short(str(told.get("name"))), Flow())
        flow.read = (flow.read or 0) + int(told.get("numInputRows") or 0)
        now = self.clock.monotonic()
        if not self._in_place and flow.state == "running" and now - self._said_rows > _SAY_ROWS:
            self._said_rows = now
            self._say(f"{_short(str(told.get('name')))}: {self._state_of(flow)}")
        self.draw()

    def _change(self, step: str) -> None:
        if not self._in_place and step != self._step:
            self._say(step)
        self._step = step

    def _say(self, text: str, at: float | None = None) -> None:
        seconds = (self.clock.monotonic() if at is None else at) - self._begun
        print(f"{seconds:5.1f} s  {text}", file=self.out, flush=True)

    @staticmethod
    def _state_of(flow: Flow) -> str:
        rows = "" if flow.read is None else f", {flow.read:,} row{'s' if flow.read != 1 else ''} read"
        seconds = "" if flow.seconds is None else f" in {flow.seconds:.1f} s"
        return f"{flow.state}{rows}{seconds}"

    # -- drawing

    def draw(self) -> None:
        """The block, over the last one."""
        self._believe()
        if not self._in_place:
            return
        import shutil

        columns = shutil.get_terminal_size().columns - 1
        lines = [f"{self.clock.monotonic() - self._begun:5.1f} s  {self._step}"]
        width = max(map(len, self.flows), default=0)
        for name, flow in self.flows.items():
            lines.append(f"    {_MARKS.get(flow.state, '  ')} {name:<{width}}  {self._state_of(flow)}")
        if self.flows:
            lines[0] = f"{self.clock.monotonic() - self._begun:5.1f} s"
        back = f"\x1b[{self._drawn}A" if self._drawn else ""
        self.out.write(back + "".join(f"\x1b[2K{line[:columns]}\n" for line in lines) + "\x1b[J")
        self.out.flush()
        self._drawn = len(lines)

    def rest(self) -> None:
        """The last drawing stays; what comes next goes below it."""
        self._believe(all_of_them=True)
        self.draw()
        self._drawn = 0

    def end(self) -> None:
        """The closing line."""
        seconds = self.clock.monotonic() - self._begun
        if self.dry:
            announce(f"all fits together: nothing was moved ({seconds:.1f} s)")
            return
        tables = ", ".join(
            f"{name} {flow.rows:,}" for name, flow in self.flows.items() if flow.rows is not None
        )
        rows = f"; rows now: {tables}" if tables else ""
        count = f"{len(self.flows)} flow{'s' if len(self.flows) != 1 else ''}"
        announce(f"{count} completed in {seconds:.1f} s{rows}")


def _short(name: str) -> str:
    """Without the catalog and the database."""
    return name.replace("`", "").removeprefix("spark_catalog.").removeprefix("default.")
