"""How often addresses were refused of late, and by how much the next refusal is delayed.

Only refusals are delayed, never what is allowed: somebody who guesses from behind the same address as honest clients
does not slow these down. The table is bounded, so that a flood from many addresses costs no memory.
"""

from __future__ import annotations

from collections import OrderedDict

from gimbalmq._clock import Clock
from gimbalmq.access.config import AccessConfig
from gimbalmq.access.sources import place_of

_MOST_DOUBLINGS = 30


class Failures:
    """Refusals by place, see ``sources.place_of``."""

    def __init__(self, config: AccessConfig, clock: Clock) -> None:
        self._free = config.auth_failures_free
        self._first_delay = config.auth_failure_delay_millis / 1000
        self._longest = config.auth_failure_max_delay_millis / 1000
        self._forget = config.auth_failure_forget_seconds
        self._most = config.max_auth_failure_addresses
        self._clock = clock
        self._seen: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Count and time of the last one, the longest silent first."""

    def __len__(self) -> int:
        return len(self._seen)

    def count(self, host: str) -> int:
        """Refusals of an address that are not forgotten."""
        return self._seen.get(place_of(host), (0, 0.0))[0]

    def failed(self, host: str) -> float:
        """Notes a refusal; seconds by which its answer is delayed."""
        now = self._clock.monotonic()
        key = place_of(host)
        count, last = self._seen.pop(key, (0, now))
        if now - last > self._forget:
            count = 0
        count += 1
        self._seen[key] = (count, now)
        if len(self._seen) > self._most:
            self._seen.popitem(last=False)
        over = count - self._free
        if over <= 0 or not self._first_delay:
            return 0.0
        return min(self._longest, self._first_delay * (1 << min(over - 1, _MOST_DOUBLINGS)))
