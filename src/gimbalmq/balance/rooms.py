"""Strategies that look at where brokers and members stand: MACHINE_ROOM and MACHINE_ROOM_NEARBY."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from gimbalmq.balance.allocate import AllocateStrategy, is_member
from gimbalmq.errors import ConfigError
from gimbalmq.model.queues import MessageQueue, sort_client_ids

_T = TypeVar("_T")

NEARBY_PREFIX = "MACHINE_ROOM_NEARBY-"


@dataclass(frozen=True, slots=True)
class ByMachineRoom:
    """MACHINE_ROOM (AllocateMessageQueueByMachineRoom): only queues of brokers named ``room@name``.

    Of p queues in the allowed rooms each of m members takes a block of p // m, and what is left at
    the tail goes one each to the first members. 5 queues, 2 members: 0,1,4 and 2,3.
    """

    rooms: Collection[str] = ()
    name: str = "MACHINE_ROOM"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if not is_member(group, client_id, queues, client_ids):
            return []
        kept = [queue for queue in queues if self._allows(queue.broker_name)]
        index = client_ids.index(client_id)
        size, remainder = divmod(len(kept), len(client_ids))
        mine = kept[size * index : size * (index + 1)]
        if index < remainder:
            mine.append(kept[index + size * len(client_ids)])
        return mine

    def _allows(self, broker_name: str) -> bool:
        parts = broker_name.split("@")
        while parts and not parts[-1]:  # Java's split drops empty parts at the end
            parts.pop()
        return len(parts) == 2 and parts[0] in self.rooms


class RoomResolver(Protocol):
    """Where brokers and consumers stand (AllocateMachineRoomNearby.MachineRoomResolver)."""

    def room_of_queue(self, queue: MessageQueue) -> str:
        """The room of the queue's broker; never empty."""

    def room_of_client(self, client_id: str) -> str:
        """The room of a member; never empty."""


class RoomsByPrefix:
    """Rooms by the longest prefix of a broker's name or a member's client id (a ``RoomResolver``).

    A client id begins with the member's address, or with ``client_ip`` if that option is set.

    >>> RoomsByPrefix({"broker-": "r1", "10.1.": "r2"}).room_of_client("10.1.0.5@77")
    'r2'

    Args:
        places: prefix to room.
        option: what the user calls the list, for errors.
    """

    def __init__(self, places: Mapping[str, str], *, option: str = "places") -> None:
        self._option = option
        for prefix, room in places.items():
            if not prefix or not room:
                raise ConfigError(option, f"{prefix}={room}", "neither a prefix nor a room may be empty")
        self._places = sorted(places.items(), key=lambda place: -len(place[0]))

    @classmethod
    def parse(cls, option: str, texts: Iterable[str]) -> RoomsByPrefix:
        """From ``PREFIX=ROOM`` each, as the command line and the dashboard take them."""
        places: dict[str, str] = {}
        for text in texts:
            prefix, _, room = text.rpartition("=")
            if not prefix or not room:
                raise ConfigError(option, text, "write PREFIX=ROOM, such as broker-a=room-1")
            places.setdefault(prefix, room)
        return cls(places, option=option)

    @property
    def names(self) -> set[str]:
        return {room for _, room in self._places}

    def room_of_queue(self, queue: MessageQueue) -> str:
        return self.room_of_client(queue.broker_name)

    def room_of_client(self, client_id: str) -> str:
        for prefix, room in self._places:
            if client_id.startswith(prefix):
                return room
        raise ConfigError(
            self._option, client_id, "no room fits this name; add PREFIX=ROOM, such as broker-a=room-1"
        )


@dataclass(frozen=True, slots=True)
class MachineRoomNearby:
    """MACHINE_ROOM_NEARBY-<inner> (AllocateMachineRoomNearby): consume in the own room.

    The queues of a room are shared among its members by the inner strategy; queues of a room without
    members among all members. Rooms A (4 queues, members a1, a2), B (4 queues, nobody), C (2 queues,
    member c1), inner AVG: a1 takes A0,A1,B0,B1; a2 A2,A3,B2; c1 C0,C1,B3.
    """

    inner: AllocateStrategy
    resolver: RoomResolver

    def __post_init__(self) -> None:
        for option in ("inner", "resolver"):
            if getattr(self, option) is None:
                raise ConfigError(option, None, f"{NEARBY_PREFIX}... needs one")

    @property
    def name(self) -> str:
        return NEARBY_PREFIX + self.inner.name

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if not is_member(group, client_id, queues, client_ids):
            return []
        room_queues = _by_room(queues, self.resolver.room_of_queue)
        room_members = _by_room(client_ids, self.resolver.room_of_client)
        own = self.resolver.room_of_client(client_id)
        mine: list[MessageQueue] = []
        if own in room_queues:
            mine += self.inner.allocate(group, client_id, room_queues[own], room_members[own])
        for room in sort_client_ids(room_queues):
            if room not in room_members:
                mine += self.inner.allocate(group, client_id, room_queues[room], client_ids)
        return mine


def _by_room(items: Iterable[_T], room_of: Callable[[_T], str]) -> dict[str, list[_T]]:
    rooms: dict[str, list[_T]] = {}
    for item in items:
        room = room_of(item)
        if not room:
            raise ConfigError("resolver", item, "every queue and every member needs a room")
        rooms.setdefault(room, []).append(item)
    return rooms
