"""The two message ids, both directions.

An *offset id* names a place: store host and commit-log offset. A *unique id* (property UNIQ_KEY)
is made by the sender: its address, process, time within the month and a counter. Both are upper
case hexadecimal of 16 bytes, or 28 when the address is IPv6; the text does not tell which of
the two it is, only its place does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from operator import length_hint
from typing import NamedTuple

_UNIQUE_TAIL = struct.Struct(">HiIH")  # days 25 to 31 need the sign bit
_PLACE = struct.Struct(">iq")
_PORT_BYTES = 4
_HEX = [f"{byte:02X}" for byte in range(256)]
_RUN = 64
"""So many ids are taken from ``run`` at most before the time is asked for again: most take no step of Python."""

V4_HOST_BYTES = 4 + _PORT_BYTES
V6_HOST_BYTES = 16 + _PORT_BYTES


def pack_host(ip: str, port: int) -> bytes:
    """Address as records and ids carry it: 4 or 16 bytes and an int32 port."""
    return ip_address(ip).packed + port.to_bytes(4, "big", signed=True)


@lru_cache(maxsize=4096)
def unpack_host(packed: bytes) -> tuple[str, int]:
    """What ``pack_host`` was given."""
    return ip_text(packed[:-_PORT_BYTES]), int.from_bytes(packed[-_PORT_BYTES:], "big", signed=True)


@lru_cache(maxsize=4096)
def ip_text(packed: bytes) -> str:
    """Text form of 4 or 16 address bytes."""
    if len(packed) == 4:
        return str(IPv4Address(packed))
    return str(IPv6Address(packed))


class OffsetId(NamedTuple):
    ip: str
    port: int
    commitlog_offset: int


def offset_id(packed_host: bytes, commitlog_offset: int) -> str:
    """The id a broker answers as ``msgId``; ``packed_host`` is the store host (``pack_host``)."""
    return (packed_host + commitlog_offset.to_bytes(8, "big")).hex().upper()


def parse_offset_id(text: str) -> OffsetId:
    """Reads an offset id.

    Raises:
        ValueError: it is not 32 or 56 hexadecimal digits.
    """
    raw = _id_bytes(text)
    port, commitlog_offset = _PLACE.unpack_from(raw, len(raw) - 12)
    return OffsetId(ip_text(raw[:-12]), port, commitlog_offset)


class UniqueId(NamedTuple):
    ip: str
    pid: int
    loader_hash: int
    month_ms: int
    counter: int


def parse_unique_id(text: str) -> UniqueId:
    """Reads a unique id.

    Raises:
        ValueError: it is not 32 or 56 hexadecimal digits.
    """
    raw = _id_bytes(text)
    return UniqueId(ip_text(raw[:-12]), *_UNIQUE_TAIL.unpack_from(raw, len(raw) - 12))


class UniqueIdGenerator:
    """Makes unique ids; one per process (Java's ``MessageClientIDSetter``).

    Args:
        ip: 4 or 16 address bytes.
        pid: process id; its low 16 bits are used.
        loader_hash: any int32 that is stable in this process and likely differs in others.

    Attributes:
        length: of each id, in letters.
        run: a few ids that ``next`` would give if the time were still the same. Whoever needs thousands a second may
            take them from here, and ask ``next`` when there is none left.
    """

    __slots__ = (
        "_next_start",
        "_now",
        "_prefix",
        "_run_end",
        "_run_size",
        "_start",
        "_stem",
        "length",
        "run",
    )

    def __init__(self, ip: bytes, pid: int, loader_hash: int) -> None:
        loader = loader_hash & 0xFFFFFFFF
        self._prefix = (ip + (pid & 0xFFFF).to_bytes(2, "big") + loader.to_bytes(4, "big")).hex().upper()
        self.length = len(self._prefix) + 12
        self._start = self._next_start = 0
        self._now = -1
        self._stem = ""
        """All but the counter, as it is throughout one millisecond."""
        self._run_size = 1
        self._run_end = 0
        """The counter behind the last id of the run."""
        self.run: Iterator[str] = iter(())

    def next(self, now_ms: int) -> str:
        if now_ms == self._now:
            for made in self.run:
                return made
            self._run_size = min(2 * self._run_size, _RUN)
        else:
            self._set_time(now_ms)
            self._run_size = 1  # few are asked for in one millisecond, until more are
        self.end_run()
        high, low = divmod(self._run_end, 256)
        lows = _HEX[low : low + self._run_size]
        # One text that is cut: half the time of as many texts that are put together.
        same = f"{self._stem}{_HEX[high]}"
        self.run = iter((same + f",{same}".join(lows)).split(","))
        self._run_end = (self._run_end + len(lows)) % 65536
        return next(self.run)

    def end_run(self) -> None:
        """The next id asks for the time. No number of the counter is skipped: if the clock steps back, a time comes
        again, and only these tell its ids apart."""
        self._run_end = (self._run_end - length_hint(self.run)) % 65536
        self.run = iter(())

    def _set_time(self, now_ms: int) -> None:
        since = now_ms - self._start
        if now_ms >= self._next_start or since <= -1_000_000:
            self._start, self._next_start = _month(now_ms)
            since = now_ms - self._start
        elif since < 0:  # the clock stepped back over the month's first instant
            since = 0
        self._now = now_ms
        self._stem = f"{self._prefix}{since & 0xFFFFFFFF:08X}"


def _id_bytes(text: str) -> bytes:
    if len(text) not in (32, 56):
        raise ValueError(f"a message id has 32 or 56 digits, not {len(text)}: {text!r}")
    return bytes.fromhex(text)


def _month(now_ms: int) -> tuple[int, int]:
    """First instants of now's month and of the next one, local time."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone()
    # naive values mean local time to timestamp(), with the right offset on either side of a change
    first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    return int(first.timestamp() * 1000), int(following.timestamp() * 1000)
