"""Slows down guessing: each address and each user name has few tries, then ever longer pauses between them."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from gimbalmq._clock import Clock

FREE_TRIES = 5
FORGET_SECONDS = 900.0
"""After so long without a wrong try an address or a user name is as good as new."""
LONGEST_OF_ADDRESS = 300.0
LONGEST_OF_USER = 30.0
"""A stranger must not be able to keep a user out for long by trying that user's name."""
MOST_ENTRIES = 5_000
MOST_LETTERS = 255
"""Of a name in the table; no user has a longer one."""


@dataclass(slots=True)
class _Tries:
    wrong: int = 0
    last: float = 0.0
    until: float = 0.0


class _Table:
    """Tries by key; the one that was not tried for longest goes if there are too many."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._tries: dict[str, _Tries] = {}

    def __len__(self) -> int:
        return len(self._tries)

    def wait(self, key: str, now: float) -> float:
        found = self._tries.get(key)
        if found is None:
            return 0.0
        if now - max(found.last, found.until) >= FORGET_SECONDS:
            del self._tries[key]
            return 0.0
        return max(0.0, found.until - now)

    def count(self, key: str, now: float) -> None:
        found = self._tries.pop(key, None) or _Tries()
        while len(self._tries) >= MOST_ENTRIES:
            del self._tries[next(iter(self._tries))]
        found.wrong += 1
        found.last = now
        if found.wrong >= FREE_TRIES:
            # The exponent is bounded, or a patient program would make it a number of thousands of digits.
            found.until = now + min(self._longest, 2.0 ** min(found.wrong - FREE_TRIES + 1, 20))
        self._tries[key] = found

    def take_back(self, key: str) -> None:
        found = self._tries.get(key)
        if found is not None:
            found.wrong -= 1
            if found.wrong < FREE_TRIES:
                found.until = 0.0
            if found.wrong <= 0:
                del self._tries[key]

    def forget(self, key: str) -> None:
        self._tries.pop(key, None)


class LoginLimits:
    """Which login may be tried now.

    A try counts as wrong until it turns out to be right, so that many at once are counted, too. Where a user has logged
    in before, what others do with the user's name does not count: they could else keep the user out for ever.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._addresses = _Table(LONGEST_OF_ADDRESS)
        self._users = _Table(LONGEST_OF_USER)
        self._homes: dict[tuple[str, str], None] = {}
        """Places and names that were right together; the oldest goes first."""

    def begin(self, address: str, user: str) -> float:
        """0 if the login may be tried, which is counted then; else the seconds to wait first."""
        now = self._clock.monotonic()
        place, name = place_of(address), user[:MOST_LETTERS]
        wait = self._addresses.wait(place, now)
        if (place, name) not in self._homes:
            wait = max(wait, self._users.wait(name, now))
        if wait <= 0:
            self._addresses.count(place, now)
            self._users.count(name, now)
        return wait

    def was_right(self, address: str, user: str) -> None:
        """The address keeps what it did wrong before: one who has a login must not guess others' the faster for it."""
        place, name = place_of(address), user[:MOST_LETTERS]
        self._addresses.take_back(place)
        self._users.forget(name)
        self._homes.pop((place, name), None)
        while len(self._homes) >= MOST_ENTRIES:
            del self._homes[next(iter(self._homes))]
        self._homes[place, name] = None

    def was_nothing(self, address: str, user: str) -> None:
        """The cluster could not be asked, so nothing was learned by trying."""
        self._addresses.take_back(place_of(address))
        self._users.take_back(user[:MOST_LETTERS])


def place_of(address: str) -> str:
    """Who is counted as one: an address of IPv4, or the 64 bits of an IPv6 network, whose rest anybody can choose."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))
