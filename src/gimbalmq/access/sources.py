"""Addresses that requests may come from: single ones and ranges (CIDR), of both versions of IP.

An address is compared as a number, so each spelling of an IPv6 address is the same one. (Apache's broker compares plain
addresses as texts.) An IPv4 address that arrives inside an IPv6 one counts as the IPv4 address. ``::/0`` holds every
address of both versions, as with Apache's broker; any other range those of its own version only.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from gimbalmq.errors import InvalidParameterError

_Network = IPv4Network | IPv6Network

_EVERYTHING = IPv6Network("::/0")
_MAPPED_BITS = 96
"""So many lead an IPv4 address inside an IPv6 one."""
_MOST_LETTERS = 64
"""No address is longer."""


def check_source(text: str) -> str:
    """The text of an address or range as it is kept, without blanks around it.

    Raises:
        InvalidParameterError: it is neither.
    """
    stripped = text.strip()
    try:
        _network(stripped)
    except ValueError:
        raise InvalidParameterError(
            f"The source ip is invalid. {text[:_MOST_LETTERS]!r} is neither an address nor a range: use for instance "
            "10.1.2.3, 10.0.0.0/8, 2001:db8::1 or 2001:db8::/32; leave sources out to allow every address"
        ) from None
    return stripped


def check_sources(texts: Iterable[str]) -> tuple[str, ...]:
    """Each of them checked, in the order given and without repetitions."""
    return tuple(dict.fromkeys(check_source(text) for text in texts))


def matches(patterns: tuple[str, ...], ip: str) -> bool:
    """Whether an address is one of those, or in one of the ranges; a text that is no address never is."""
    address = address_of(ip)
    if address is None:
        return False
    return any(address in network or network == _EVERYTHING for network in _networks(patterns))


def place_of(ip: str) -> str:
    """Who counts as one: an address of IPv4, or the 64 bits of an IPv6 network, whose rest anybody there can choose.

    A text that is no address stays as it is.
    """
    address = address_of(ip)
    if address is None:
        return ip
    return str(address if address.version == 4 else ip_network((int(address) >> 64 << 64, 64)))


@lru_cache(maxsize=4096)
def _networks(patterns: tuple[str, ...]) -> tuple[_Network, ...]:
    return tuple(_network(pattern) for pattern in patterns)


def _network(text: str) -> _Network:
    """Raises ValueError."""
    _, slash, length = text.partition("/")
    if slash and not (length.isascii() and length.isdigit()):
        raise ValueError  # ip_network also takes masks, of which some mean their opposite
    if len(text) > _MOST_LETTERS or "%" in text:
        raise ValueError
    network = ip_network(text, strict=False)
    if isinstance(network, IPv6Network) and network.prefixlen >= _MAPPED_BITS:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))
    return network


@lru_cache(maxsize=4096)
def address_of(ip: str) -> IPv4Address | IPv6Address | None:
    """The address of a peer; None if the text is none. One of IPv4 inside one of IPv6 is that of IPv4."""
    try:
        address = ip_address(ip.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
