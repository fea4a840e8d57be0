"""Faults and changes, drawn from a seed before the run begins, so that a schedule can be printed and cut down."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

GroupKind = Literal[
    "join",  # a new member
    "leave",  # a member closes
    "crash",  # a member's process ends without a word: its connections close
    "vanish",  # a member's host falls silent for ever
    "hang",  # a member's handlers do not return for a while
    "stop",  # a member's process is stopped for a while (SIGSTOP)
    "sleep",  # a member's machine is suspended for a while
    "loss",  # segments are lost on all lines
    "late",  # all lines are slow
    "reset",  # every connection of one host breaks
    "tear",  # one breaks in the middle of a frame
    "partition",  # one host reaches nobody
    "broker kill",
    "broker restart",
    "broker move",  # a broker is killed and comes back at another address
    "name server",  # the name server is away
    "resize",  # a topic gets more queues
    "clock",  # a wall clock jumps
]
ServerKind = Literal[
    "power loss",  # a broker's host goes dark: what was not synced is lost
    "disk full",  # a broker's disk has no room for a while
    "no descriptors",  # a broker may open no further files for a while
    "slow disk",  # syncs take long for a while
    "filling disk",  # a broker's disk is so full that the oldest files go
    "broker clock",  # the wall clock of one broker is set
    "delete topic",  # a topic is deleted and made again
    "hostile",  # somebody sends garbage to a server
    "stopped reader",  # somebody pulls and does not read the answers
]
ReplicaKind = Literal[
    "replica killed",
    "replica restarted",
    "replica in the dark",  # its machine loses power: what was not synced is lost
    "replica paused",  # its process is stopped for a while (SIGSTOP)
    "replicas parted",  # one of them and the others
    "replicas parted one way",  # what one of them sends to the others does not arrive
    "replica alone",  # it reaches neither the others, nor controller and name server; clients reach it
    "controller parted",  # one replica and the controller
    "slow replica",  # the lines between one of them and the others are slow
    "replica reset",  # all its connections break
    "replica torn",  # one of them breaks in the middle of a packet
    "connections forgotten",  # they break, and only the replica itself hears of it
    "election",  # somebody asks the controller for another master
    "controller restarted",
    "answer lost",  # the controller takes another set, nobody hears of it, and whoever has joined goes away
    "promotion",  # the master is killed or stopped, or its machine goes dark, and a slave takes its place by hand
]
Kind = GroupKind | ServerKind | ReplicaKind
KINDS: tuple[Kind, ...] = get_args(GroupKind)
SERVER_KINDS: tuple[Kind, ...] = get_args(ServerKind)
REPLICA_KINDS: tuple[Kind, ...] = get_args(ReplicaKind)
PLANNED: tuple[Kind, ...] = ("join", "leave")
"""Changes somebody wanted; with leases they cost nothing."""
CONNECTIONS: tuple[Kind, ...] = ("loss", "late", "reset", "tear")
"""Faults of lines that heal by themselves."""

_SECONDS: Mapping[str, tuple[float, float]] = {
    "hang": (20, 150),
    "stop": (0.5, 60),
    "sleep": (0.5, 60),
    "loss": (5, 40),
    "late": (5, 40),
    "partition": (3, 100),
    "broker kill": (0.5, 50),
    "broker restart": (0.5, 20),
    "broker move": (0.5, 20),
    "name server": (1, 100),
    "clock": (-7200, 7200),
    "power loss": (0.5, 20),
    "disk full": (0.5, 30),
    "no descriptors": (0.5, 30),
    "slow disk": (1, 30),
    "filling disk": (1, 30),
    "broker clock": (-60, 60),
    "delete topic": (0, 20),
    "hostile": (1, 30),
    "stopped reader": (1, 60),
    "replica killed": (0.02, 4),
    "replica restarted": (0.02, 2),
    "replica in the dark": (0.1, 4),
    "replica paused": (0.01, 4),
    "replicas parted": (0.05, 5),
    "replicas parted one way": (0.05, 5),
    "replica alone": (0.05, 5),
    "controller parted": (0.05, 5),
    "slow replica": (0.2, 6),
    "connections forgotten": (0.2, 1),
    "controller restarted": (0.01, 2),
    "answer lost": (0.5, 4),
    "promotion": (0.02, 3),
}


class Fault(NamedTuple):
    """One thing that happens.

    Attributes:
        at: second of the run.
        pick: chooses among whatever is there then; 0 to 1.
        seconds: how long it lasts, or how far a clock is set.
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
        length = low + (high - low) * rng.random() ** (1 if "clock" in kind else 2)
        faults.append(Fault(round(rng.uniform(0, span), 3), kind, rng.random(), round(length, 3)))
    return sorted(faults)
