"""Address patterns of ``plain_acl.yml``: which peers a white list means.

The forms are those of RocketMQ 4.x and no others; there is no CIDR among them::

    *                 everybody, also written *.*.*.* and *:*:*:*:*:*:*:*
    1.2.3.4   ::1     one address
    1.2.3.4,1.2.3.5   any of these addresses
    1.2.3.{4,5}       alternatives of the last part, IPv6 too
    1.2.3.*   1.2.3.10-20   1.2.*.*   1.2.3-9.*
    1::2:*    1::2:1-200    1::1-20:*      hexadecimal, the last group or the last two

A blank pattern means nobody. Anything else is refused: a white list that is misread lets strangers in.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from gimbalmq.access.sources import address_of
from gimbalmq.errors import ConfigError

EVERYBODY = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})

_MOST_LETTERS = 4096
_MOST_NETWORKS = 64
_FORMS = (
    "use an address, several with commas between them, 1.2.3.{4,5}, 1.2.3.*, 1.2.3.10-20, 1.2.*.*, the same forms of "
    "IPv6, or * for everybody"
)

Parts = tuple[tuple[int, int], ...]
"""The least and the most of each part of an address: four parts of IPv4, eight of IPv6."""


@dataclass(frozen=True, slots=True)
class AddressPattern:
    """One pattern.

    Attributes:
        text: as it was written.
        everybody: it matches every address.
        alternatives: it matches an address that one of these matches.
    """

    text: str
    everybody: bool = False
    alternatives: tuple[Parts, ...] = ()

    def matches(self, address: str) -> bool:
        """Whether the address of a peer is meant; a text that is no address is not, unless everybody is."""
        if self.everybody:
            return True
        if not self.alternatives:
            return False
        asked = _parts_of(address)
        return asked is not None and any(_holds(parts, asked) for parts in self.alternatives)

    def networks(self) -> tuple[str, ...] | None:
        """The same addresses as CIDR, which policies and users know; None if that would be very many.

        An empty tuple stands for nobody.
        """
        if self.everybody:
            return ("0.0.0.0/0", "::/0")
        found: list[str] = []
        for parts in self.alternatives:
            heads = math.prod(high - low + 1 for low, high in parts[: _last_narrow(parts)])
            if heads > _MOST_NETWORKS:
                return None
            found += _networks_of(parts)
            if len(found) > _MOST_NETWORKS:
                return None
        return tuple(dict.fromkeys(found))


NOBODY = AddressPattern("")


def read_pattern(text: str, option: str = "whiteRemoteAddress") -> AddressPattern:
    """Reads one pattern.

    Args:
        option: what an error calls the place that the text stands in.

    Raises:
        ConfigError: it is none of the known forms.
    """
    written = text.strip()
    if not written:
        return NOBODY
    if written in EVERYBODY:
        return AddressPattern(written, everybody=True)
    try:
        if len(written) > _MOST_LETTERS:
            raise ValueError(f"it has {len(written)} letters and may have {_MOST_LETTERS}")
        return AddressPattern(written, alternatives=tuple(_alternatives(written)))
    except ValueError as error:
        raise ConfigError(option, written, f"{error}; {_FORMS}") from None


def split_patterns(text: str) -> list[str]:
    """The patterns of a list with commas between them; commas in braces belong to a pattern."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth <= 0:
            found.append("")
        else:
            found[-1] += letter
    return [pattern.strip() for pattern in found if pattern.strip()]


def _alternatives(text: str) -> Iterator[Parts]:
    if text.endswith("}"):
        yield from _in_braces(text)
    elif "," in text:
        yield from (_one(address.strip()) for address in text.split(",") if address.strip())
    elif "*" in text or "-" in text:
        yield _ipv6_range(text) if ":" in text else _ipv4_range(text)
    else:
        yield _one(text)


def _in_braces(text: str) -> Iterator[Parts]:
    head, _, inside = text[:-1].partition("{")
    if not head.endswith((".", ":")) or not inside.replace(",", "").strip():
        raise ValueError("braces hold the alternatives of the last part")
    yield from (_one(head + last.strip()) for last in inside.split(",") if last.strip())


def _one(text: str) -> Parts:
    parts = _parts_of(text)
    if parts is None:
        raise ValueError(f"{text[:80]!r} is no address")
    return tuple((part, part) for part in parts)


@lru_cache(maxsize=4096)
def _parts_of(text: str) -> tuple[int, ...] | None:
    address = None if "%" in text else address_of(text)
    if address is None:
        return None
    packed = address.packed
    if address.version == 4:
        return tuple(packed)
    return tuple(packed[place] << 8 | packed[place + 1] for place in range(0, 16, 2))


def _ipv4_range(text: str) -> Parts:
    words = [word.strip() for word in text.split(".")]
    if len(words) != 4:
        raise ValueError("an address of IPv4 has four parts")
    if not words[0].isdigit():
        raise ValueError("the first part is a number")
    return tuple(_bounds(word, 255, 10) for word in words)


def _ipv6_range(text: str) -> Parts:
    head, gap, tail = text.partition("::")
    before = head.split(":") if head else []
    after = tail.split(":") if tail else []
    written = before + after
    ranged = [place for place, word in enumerate(written) if word == "*" or "-" in word]
    last = len(written) - 1
    if ranged not in ([last], [last - 1, last]) or last == 0 or (len(ranged) == 2 and written[last] != "*"):
        raise ValueError(
            "the last group is * or a range, and the one before it may be a range if the last is *"
        )
    if len(ranged) == 2 and written[last - 1] == "*":
        raise ValueError("only the last group is *; leave out the groups behind it")
    missing = 8 - len(written)
    if gap:
        if missing < 1 or "::" in tail or not after:
            raise ValueError(":: stands for groups of zeros, once, and not at the end")
        before += ["0"] * missing
    elif missing:
        if missing < 0 or written[last] != "*":
            raise ValueError("an address of IPv6 has eight groups")
        after = ["*"] * missing  # as in 4.x: a * at the end stands for all groups that are left out behind it
    return tuple(_bounds(word, 0xFFFF, 16) for word in before + after)


def _bounds(word: str, most: int, base: int) -> tuple[int, int]:
    if word == "*":
        return 0, most
    low, minus, high = word.partition("-")
    bounds = (_number(low, base), _number(high if minus else low, base))
    if not bounds[0] <= bounds[1] <= most:
        raise ValueError(f"{word[:80]!r} is no part of an address")
    return bounds


def _number(word: str, base: int) -> int:
    digits = "0123456789abcdef"[:base]
    plain = word.strip().lower()
    longest = 3 if base == 10 else 4
    if not plain or len(plain) > longest or plain.strip(digits):
        raise ValueError(f"{word[:80]!r} is no part of an address")
    if base == 10 and len(plain) > 1 and plain[0] == "0":
        raise ValueError(f"{word[:80]!r} begins with 0, which some read as octal")
    return int(plain, base)


def _holds(parts: Parts, asked: tuple[int, ...]) -> bool:
    return len(parts) == len(asked) and all(
        low <= part <= high for (low, high), part in zip(parts, asked, strict=True)
    )


def _last_narrow(parts: Parts) -> int:
    """The place of the last part that is not free; every part behind it is."""
    most = 255 if len(parts) == 4 else 0xFFFF
    place = len(parts) - 1
    while place > 0 and parts[place] == (0, most):
        place -= 1
    return place


def _networks_of(parts: Parts) -> Iterator[str]:
    narrow = _last_narrow(parts)
    free = len(parts) - narrow - 1
    width = 1 if len(parts) == 4 else 2
    low, high = parts[narrow]
    for head in product(*(range(least, most + 1) for least, most in parts[:narrow])):
        first = _packed((*head, low), width) + bytes(width * free)
        last = _packed((*head, high), width) + b"\xff" * (width * free)
        ends = ipaddress.ip_address(first), ipaddress.ip_address(last)
        yield from (str(network) for network in ipaddress.summarize_address_range(*ends))


def _packed(parts: tuple[int, ...], width: int) -> bytes:
    return b"".join(part.to_bytes(width, "big") for part in parts)
