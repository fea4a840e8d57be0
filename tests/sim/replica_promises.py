"""The kinds of replicated worlds: for each what its brokers are told, what befalls it, and what it promises."""

from __future__ import annotations

from dataclasses import replace

from tests.sim.replica_world import ReplicaSettings
from tests.sim.schedule import REPLICA_KINDS, Kind

_BY_CONTROLLER: tuple[Kind, ...] = (
    "election",
    "controller parted",
    "controller restarted",
    "answer lost",
)
WITH_CONTROLLER: tuple[Kind, ...] = tuple(
    kind for kind in REPLICA_KINDS if kind not in ("promotion", "replica in the dark")
)
BY_HAND: tuple[Kind, ...] = (
    *(kind for kind in REPLICA_KINDS if kind not in (*_BY_CONTROLLER, "replica in the dark")),
    "promotion",
    "promotion",
)
_DARK: tuple[Kind, ...] = ("replica in the dark", "replica in the dark", "replica in the dark")

_ALL_OF_SET = ReplicaSettings(
    kinds=WITH_CONTROLLER,
    confirmed=True,
    options=(("allAckInSyncStateSet", "true"), ("minInSyncReplicas", 2)),
)
_HAND = ReplicaSettings(controller=False, kinds=BY_HAND)


def _told(settings: ReplicaSettings, **options: object) -> ReplicaSettings:
    return replace(settings, options=tuple((dict(settings.options) | options).items()))


REPLICATED: dict[str, ReplicaSettings] = {
    "all of three": _told(_ALL_OF_SET, inSyncReplicas=2),
    "all of two": replace(_told(_ALL_OF_SET, inSyncReplicas=2), replicas=2),
    "all, or one alone": replace(_told(_ALL_OF_SET, minInSyncReplicas=1), needed=1),
    "all of three, dark": replace(_told(_ALL_OF_SET, inSyncReplicas=2), kinds=(*WITH_CONTROLLER, *_DARK)),
    "two of three": replace(_told(ReplicaSettings(kinds=WITH_CONTROLLER), inSyncReplicas=2), kept=False),
    "one of two": replace(ReplicaSettings(kinds=WITH_CONTROLLER), replicas=2),
    "by hand": _HAND,
    "by hand, two": replace(_HAND, replicas=2),
    "by hand, all of three": replace(_told(_HAND, inSyncReplicas=3, minInSyncReplicas=2), needed=3),
    "by hand, 4.9": _told(_HAND, replicaRule="4.9"),
    "by hand, 5.x": _told(_HAND, replicaRule="5.x", inSyncReplicas=2),
    "by hand, 5.x alone": replace(_told(_HAND, replicaRule="5.x"), needed=1, kept=False),
    "by hand, dark": replace(_HAND, kinds=(*BY_HAND, *_DARK)),
}
