"""Sets of defaults by name: each makes our clients behave as those of a certain RocketMQ do.

An option that the application sets itself counts more than the profile. docs/balancing.md lists what a profile
changes, and a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gimbalmq.errors import ConfigError

PROFILES: Mapping[str, Mapping[str, Any]] = {
    "4.9": {
        "fault_rule": "seed",
        "rebalance_on_route_change": False,
        "unbalanced_delay": None,
        "check_group_interval": 0.0,
        "liveness_interval": 0.0,
        "push.exception_delay": 3.0,
        "push.offset_illegal_delay": 10.0,
        "push.await_termination": 0.0,
    },
}
"""Profile to option to value. A prefix names the one kind of client an option counts for."""


def profile_options(name: str, kind: str, known: set[str]) -> dict[str, Any]:
    """What a profile sets in a client.

    Args:
        kind: ``push``, ``pull`` or ``producer``.
        known: the client's options; others of the profile are left out.
    """
    if not isinstance(name, str) or name not in PROFILES:
        raise ConfigError("profile", name, f"use one of {', '.join(PROFILES)}, or none for our own defaults")
    options: dict[str, Any] = {}
    for key, value in PROFILES[name].items():
        of, _, option = key.rpartition(".")
        if option in known and of in ("", kind):
            options[option] = value
    return options
