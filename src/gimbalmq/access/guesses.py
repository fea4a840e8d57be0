"""How many wrong signatures of a user are looked at.

A refusal that comes late slows down one connection; whoever guesses opens another. So wrong signatures are counted by
address and user, and by address alone, and beyond a number in a minute none from there is looked at, right or wrong,
until the minute is over. Connections that were there before the minute began, and have sent no wrong one, go on.
The tables are bounded.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import Protocol

from gimbalmq._clock import Clock
from gimbalmq.access.config import AccessConfig
from gimbalmq.access.sources import place_of

MINUTE = 60.0
USERS_OF_AN_ADDRESS = 10
"""So many times as many wrong signatures are looked at of all users of an address together."""

_LOOK_SECONDS = 1.0
"""At most so often what is open again is looked for: requests come more often."""

_Key = tuple[str, str | None]


class Connection(Protocol):
    """What is asked of a channel."""

    @property
    def host(self) -> str: ...
    @property
    def age(self) -> float: ...


class Guesses:
    """Wrong signatures of the running minute, by place (see ``sources.place_of``) and user.

    Attributes:
        closed: what is not looked at, and until when. Whoever finds it empty need not ask further.
    """

    def __init__(self, config: AccessConfig, clock: Clock) -> None:
        self._most = config.auth_guesses_per_minute
        self._most_kept = config.max_auth_failure_addresses
        self._clock = clock
        self._counts: OrderedDict[_Key, tuple[float, int]] = OrderedDict()
        """Begin of the minute and count, the longest silent first."""
        self._guessers: weakref.WeakSet[Connection] = weakref.WeakSet()
        self.closed: dict[_Key, float] = {}
        self._look_at = 0.0

    def __len__(self) -> int:
        return len(self._counts)

    def wrong(self, connection: Connection, name: str) -> None:
        """Counts a wrong signature."""
        if not self._most:
            return
        self._guessers.add(connection)
        place = place_of(connection.host)
        self._count((place, name), self._most)
        self._count((place, None), self._most * USERS_OF_AN_ADDRESS)
        while len(self._counts) > self._most_kept:
            key, _ = self._counts.popitem(last=False)
            self.closed.pop(key, None)

    def _count(self, key: _Key, most: int) -> None:
        now = self._clock.monotonic()
        since, count = self._counts.pop(key, (now, 0))
        if now >= since + MINUTE:
            since, count = now, 0
        self._counts[key] = (since, count + 1)
        if count + 1 >= most:
            self.closed[key] = since + MINUTE

    def wait(self, connection: Connection, name: str) -> float:
        """Seconds until a signature of this user on this connection is looked at; 0 is now."""
        now = self._clock.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            for key in [key for key, until in self.closed.items() if now >= until]:
                del self.closed[key]
        place = place_of(connection.host)
        until = max(self.closed.get((place, name), now), self.closed.get((place, None), now))
        if until <= now:
            return 0.0
        was_there = connection.age > now - (until - MINUTE)
        return 0.0 if was_there and connection not in self._guessers else until - now
