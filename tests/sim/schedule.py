"""Faults and changes, drawn from a seed before the run begins, so that a schedule can be printed and cut down."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

Kind = Literal[
    "join",  # a new member
    "leave",  # a member closes
    "crash",  # a member's process ends without a word: its connections close
    "vanish",  # a member's host falls silent for ever
    "hang",  # a member's handlers do not return for a while
    "loss",  # segments are lost on all lines
    "late",  # all lines are slow
    "reset",  # every connection of one host breaks
    "tear",  # one breaks in the middle of a frame
    "partition",  # one host reaches nobody
    "broker kill",
    "broker restart",
    "name server",  # the name server is away
    "resize",  # a topic gets more queues
    "clock",  # a wall clock jumps
]
KINDS: tuple[Kind, ...] = get_args(Kind)
PLANNED: tuple[Kind, ...] = ("join", "leave")
"""Changes somebody wanted; with leases they cost nothing."""
CONNECTIONS: tuple[Kind, ...] = ("loss", "late", "reset", "tear")
"""Faults of lines that heal by themselves."""

_SECONDS: Mapping[str, tuple[float, float]] = {
    "hang": (20, 150),
    "loss": (5, 40),
    "late": (5, 40),
    "partition": (3, 100),
    "broker kill": (0.5, 50),
    "broker restart": (0.5, 20),
    "name server": (1, 100),
    "clock": (-7200, 7200),
}


class Fault(NamedTuple):
    """One thing that happens.

    Attributes:
        at: second of the run.
        pick: chooses among whatever is there then; 0 to 1.
        seconds: how long it lasts, or how far a clock jumps.
    """

    at: float
    kind: Kind
    pick: float
    seconds: float = 0.0


def draw(seed: int, kinds: Sequence[Kind], count: int, span: float) -> list[Fault]:
    """``count`` faults over ``span`` seconds; equal seeds, equal lists."""
    rng = random.Random(seed)
    faults = []
    for _ in range(count):
        kind = rng.choice(kinds)
        low, high = _SECONDS.get(kind, (0.0, 0.0))
        # Short ones are the more frequent: most of what can go wrong does so in the first seconds.
        length = low + (high - low) * rng.random() ** (1 if kind == "clock" else 2)
        faults.append(Fault(round(rng.uniform(0, span), 3), kind, rng.random(), round(length, 3)))
    return sorted(faults)
