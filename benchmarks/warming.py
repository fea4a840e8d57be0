"""Peers at their best: each broker gets load until it does not get faster any more, and only then is it measured.

Java's compilers go on for millions of messages. A broker gets one window of load after the other, and is warm when the
last three windows agree within 3 %; a window counts accepted requests only. After 5 million messages it is taken as
it is. What it took is printed below the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.loadgen.runner import Load
from benchmarks.subjects import Subject

AGREEMENT = 0.03
AGREEING = 3
MOST_MESSAGES = 5_000_000
MOST_SECONDS = 120.0


@dataclass(frozen=True)
class Warmth:
    """How a broker was warmed: what it accepted until then, and the rate of each window."""

    name: str
    what: str
    messages: int
    rates: tuple[float, ...]

    @property
    def settled(self) -> bool:
        return agree(self.rates)

    def __str__(self) -> str:
        first, last = (f"{rate:,.0f}" for rate in (self.rates[0], self.rates[-1]))
        end = "" if self.settled else ", and was not settled then"
        return f"{self.name}, {self.what}: {self.messages:,} in {len(self.rates)} windows, {first}/s to {last}/s{end}"


warmed: list[Warmth] = []


def agree(rates: tuple[float, ...]) -> bool:
    """Whether the last windows are as good as equal."""
    last = rates[-AGREEING:]
    return len(last) == AGREEING and max(last) - min(last) <= AGREEMENT * max(last)


def warm(
    subject: Subject,
    what: str,
    window: Callable[[], Load],
    *,
    quick: bool = False,
    most_messages: int = MOST_MESSAGES,
    most_seconds: float = MOST_SECONDS,
) -> Warmth:
    """Puts windows of load on a broker, which is awake, until they agree; only one if it is a quick run.

    Args:
        most_seconds: of load; for requests of which millions would take hours.
    """
    rates: list[float] = []
    messages, seconds = 0, 0.0
    while True:
        load = window()
        rates.append(load.per_second)
        messages += load.ok
        seconds += load.ok / load.per_second if load.per_second else most_seconds
        if quick or agree(tuple(rates)) or messages >= most_messages or seconds >= most_seconds:
            break
    found = Warmth(subject.name, what, messages, tuple(rates))
    warmed.append(found)
    return found


def warmth() -> str:
    """What was needed to warm the brokers, a line for each."""
    return "\n".join(f"warmed: {found}" for found in warmed)
