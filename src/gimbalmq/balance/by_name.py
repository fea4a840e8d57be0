"""Strategies by the names that configuration, command line and dashboard use."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gimbalmq.balance.allocate import (
    AllocateStrategy,
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ConsistentHash,
)
from gimbalmq.balance.rooms import NEARBY_PREFIX, ByMachineRoom, MachineRoomNearby, RoomResolver
from gimbalmq.balance.sticky import Sticky
from gimbalmq.errors import ConfigError
from gimbalmq.model.queues import MessageQueue

PLAIN_STRATEGIES = ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "STICKY")
"""Those that need nothing but the two lists."""

STRATEGY_NAMES = (*PLAIN_STRATEGIES, "CONFIG", "MACHINE_ROOM")
"""Names ``strategy_by_name`` knows, besides MACHINE_ROOM_NEARBY-<one of these>."""


def strategy_by_name(
    name: str = "AVG",
    *,
    queues: Sequence[MessageQueue] | None = None,
    rooms: Collection[str] | None = None,
    resolver: RoomResolver | None = None,
    virtual_nodes: int = 10,
) -> AllocateStrategy:
    """The strategy of that name; AVG if none is named.

    Args:
        name: one of ``STRATEGY_NAMES``, or ``MACHINE_ROOM_NEARBY-`` followed by one.
        queues: what CONFIG returns.
        rooms: rooms that MACHINE_ROOM allows (``consumeridcs``).
        resolver: rooms of brokers and members, for MACHINE_ROOM_NEARBY.
        virtual_nodes: places of each member on CONSISTENT_HASH's ring.

    Raises:
        ConfigError: the name is unknown, or the strategy lacks what it needs: by its name alone a member would
            take nothing, and say nothing.
    """
    if name.startswith(NEARBY_PREFIX):
        inner = name.removeprefix(NEARBY_PREFIX)
        if resolver is None:
            raise ConfigError(
                "strategy", name, f'it needs rooms: strategy_by_name("{name}", resolver=RoomsByPrefix(...))'
            )
        return MachineRoomNearby(
            strategy_by_name(inner, queues=queues, rooms=rooms, virtual_nodes=virtual_nodes), resolver
        )
    match name:
        case "AVG":
            return Averagely()
        case "AVG_BY_CIRCLE":
            return AveragelyByCircle()
        case "CONSISTENT_HASH":
            return ConsistentHash(virtual_nodes)
        case "CONFIG":
            if queues is None:
                raise ConfigError(
                    "strategy", name, 'it needs a list of queues: strategy_by_name("CONFIG", queues=[...])'
                )
            return ByConfig(queues)
        case "MACHINE_ROOM":
            if not rooms:
                raise ConfigError(
                    "strategy", name, 'it needs rooms: strategy_by_name("MACHINE_ROOM", rooms=["room-1"])'
                )
            return ByMachineRoom(rooms)
        case "STICKY":
            return Sticky()
    raise ConfigError("strategy", name, f"one of {', '.join(STRATEGY_NAMES)} or {NEARBY_PREFIX}<one of them>")
