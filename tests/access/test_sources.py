"""Addresses and ranges that requests come from."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gimbalmq.access.sources import check_source, check_sources, matches, place_of
from gimbalmq.errors import InvalidParameterError


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("10.1.2.3", "10.1.2.3", "10.1.2.4"),
        ("10.1.2.3/24", "10.1.2.77", "10.1.3.3"),
        ("128.0.0.0/1", "200.1.1.1", "::1"),
        ("0.0.0.0/0", "10.1.2.3", "::1"),
        ("::ffff:0:0/96", "10.1.2.3", "::1"),
        ("::/0", "10.1.2.3", "?"),
        ("2001:db8::/0", "10.1.2.3", "?"),
        ("::/1", "::1", "127.0.0.1"),
        ("2001:DB8::1", "2001:db8:0:0:0:0:0:1", "2001:db8::2"),
        ("2001:db8::/32", "2001:db8:ffff::", "2001:db9::"),
        ("10.1.2.3", "::ffff:10.1.2.3", "::10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3", "10.1.2.4"),
        ("::ffff:10.0.0.0/104", "10.9.9.9", "11.0.0.1"),
        ("fe80::1", "fe80::1%eth0", "fe80::2%eth0"),
    ],
)
def test_a_range_holds_its_addresses_in_every_spelling(pattern: str, inside: str, outside: str) -> None:
    assert check_source(f" {pattern} ") == pattern
    assert matches((pattern,), inside)
    assert not matches((pattern,), outside)
    assert matches(("192.0.2.1", pattern), inside)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "*",
        "10.1.2",
        "10.1.2.3.4",
        "10.1.2.*",
        "010.1.2.3",
        "10.1.2.3/",
        "10.1.2.3/33",
        "10.1.2.3/-1",
        "10.0.0.0/255.0.0.0",
        "10.0.0.0/0.255.255.255",
        "10.1.2.3/२४",
        "::1/129",
        "fe80::1%eth0",
        "localhost",
        "10.1.2.3,10.1.2.4",
        "1" * 5000,
    ],
)
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameterError, match="The source ip is invalid") as caught:
        check_source(text)
    assert len(caught.value.remark) < 400


def test_nothing_matches_no_address() -> None:
    assert not matches(("0.0.0.0/0", "::/0"), "?")
    assert not matches((), "10.0.0.1")


def test_repetitions_are_left_out() -> None:
    assert check_sources(["10.0.0.1", " 10.0.0.1", "::1"]) == ("10.0.0.1", "::1")


@given(st.text(max_size=20) | st.from_regex(r"[0-9a-f:./]{1,20}", fullmatch=True))
def test_any_text_is_a_range_or_refused(text: str) -> None:
    try:
        kept = check_source(text)
    except InvalidParameterError:
        return
    assert check_source(kept) == kept
    assert matches((kept,), kept.partition("/")[0])


@given(st.integers(0, 2**32 - 1), st.integers(0, 32), st.integers(0, 2**32 - 1))
def test_a_range_compares_the_leading_bits(base: int, length: int, other: int) -> None:
    shift = 32 - length
    pattern = f"{IPv4Address(base)}/{length}"
    assert matches((pattern,), str(IPv4Address(other))) == (base >> shift == other >> shift)


@given(st.ip_addresses(v=6), st.integers(0, 128), st.integers(0, 128))
def test_a_range_of_ipv6_compares_the_leading_bits(base: IPv6Address, length: int, flipped: int) -> None:
    number = int(base) ^ ((1 << 128 - flipped) if flipped else 0)
    other = ip_address(number) if number >> 32 else IPv6Address(number)
    if any(isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None for ip in (base, other)):
        return
    shift = 128 - length
    assert matches((f"{base}/{length}",), str(IPv6Address(number))) == (int(base) >> shift == number >> shift)


def test_who_counts_as_one() -> None:
    assert place_of("2001:db8:1:2::1") == place_of("2001:db8:1:2:ffff::") != place_of("2001:db8:1:3::1")
    assert place_of("::ffff:192.0.2.1") == "192.0.2.1"
    assert place_of("fe80::1%eth0") == "fe80::/64"
    assert place_of("nowhere") == "nowhere"
