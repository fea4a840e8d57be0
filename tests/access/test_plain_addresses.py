"""Address patterns of 4.x: every form of the table, what it matches, and that nothing else is taken."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gimbalmq.access.plain_addresses import read_pattern, split_patterns
from gimbalmq.errors import ConfigError

FORMS = [
    # pattern, addresses that it means, addresses that it does not
    ("", [], ["127.0.0.1", "::1", ""]),
    ("  ", [], ["127.0.0.1", "::1"]),
    ("*", ["127.0.0.1", "::1"], []),
    ("*.*.*.*", ["127.0.0.1", "::1"], []),
    ("*:*:*:*:*:*:*:*", ["127.0.0.1", "::1"], []),
    ("1.2.3.4", ["1.2.3.4", "::ffff:1.2.3.4"], ["1.2.3.5", "1.2.3.44", "::1"]),
    ("::1", ["::1", "0:0:0:0:0:0:0:1"], ["::2", "127.0.0.1", "0.0.0.1"]),
    ("FE80::a", ["fe80::A"], ["fe80::b"]),
    ("1.2.3.4,1.2.3.6,::1", ["1.2.3.4", "1.2.3.6", "::1"], ["1.2.3.5", "::2"]),
    ("1.2.3.{4,5}", ["1.2.3.4", "1.2.3.5"], ["1.2.3.6", "1.2.4.4"]),
    ("1050::5:600:300c:{1,2,a}", ["1050::5:600:300c:1", "1050::5:600:300c:a"], ["1050::5:600:300c:3"]),
    ("1.2.3.*", ["1.2.3.0", "1.2.3.255"], ["1.2.4.1", "1.2.30.1", "::1"]),
    ("0.0.0.*", ["0.0.0.9"], ["::", "::9"]),
    ("1.2.3.10-20", ["1.2.3.10", "1.2.3.20"], ["1.2.3.9", "1.2.3.21", "1.2.3.100"]),
    ("1.2.*.*", ["1.2.0.0", "1.2.255.255"], ["1.3.0.0", "1.20.0.0"]),
    ("127.*.*.*", ["127.0.0.1"], ["128.0.0.1"]),
    ("1.2.3-9.*", ["1.2.3.1", "1.2.9.255"], ["1.2.2.1", "1.2.10.1"]),
    ("192.100-150.*.*", ["192.130.0.2"], ["192.99.0.2", "192.151.0.2"]),
    # In 4.x parts behind the first range are not looked at. Nobody who wrote the 5 means 1.2.9.9.
    ("1.2.*.5", ["1.2.9.5"], ["1.2.9.9"]),
    ("1050::5:600:300c:*", ["1050::5:600:300c:0", "1050::5:600:300c:ffff"], ["1050::5:600:300d:1"]),
    ("1050::5:600:300c:1-200", ["1050::5:600:300c:1", "1050::5:600:300c:200"], ["1050::5:600:300c:201"]),
    ("1050::5:1-20:*", ["1050::5:1:0", "1050::5:20:ffff"], ["1050::5:21:0", "1050::6:1:0"]),
    ("1050:5:600:300c:3261:*", ["1050:5:600:300c:3261:7:8:9"], ["1050:5:600:300c:3262:7:8:9"]),
]


@pytest.mark.parametrize(("text", "meant", "others"), FORMS, ids=[repr(form[0]) for form in FORMS])
def test_every_form_of_the_table_means_what_it_means_in_4_x(
    text: str, meant: list[str], others: list[str]
) -> None:
    pattern = read_pattern(text)
    assert [address for address in meant if not pattern.matches(address)] == []
    assert [address for address in others if pattern.matches(address)] == []


REFUSED = [
    "10.0.0.0/8",
    "1.2.3",
    "1.2.3.4.5",
    "256.0.0.1",
    "::1ggg",
    "localhost",
    "127.0.0.1,2,3}",
    "::1,2,3}",
    "1.2.3.{}",
    "1.2.{3,4}.5",
    "{1,2}",
    "*.1.2.3",
    "1-2.0.0.1",
    "1.2.3.5-1",
    "1.2.3.-4",
    "1.2.3.4-",
    "1.2.3.1-256",
    "1.2.3.04",
    "1.2.3.0-010",
    "1.2.3.**",
    "1.*.*",
    "a:*:b",
    "::*",
    "::*:*",
    "1::*:5",
    "1:2:3-4",
    "*:1",
    "1:2:3:4:5:6:7:8:*",
    "fe80::1%eth0",
    "1::2::*",
    "1.2.3.4,1.2.3.*",
    "1.2.3.4;1.2.3.5",
    "１.2.3.*",
    "1::g-h",
    "1::1-12345",
]


@pytest.mark.parametrize("text", REFUSED)
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="globalWhiteRemoteAddresses") as refused:
        read_pattern(text, "globalWhiteRemoteAddresses")
    assert repr(text) in str(refused.value)


def test_commas_in_braces_do_not_end_a_pattern() -> None:
    assert split_patterns("1.2.3.{4,5}, 10.0.0.*,,::1") == ["1.2.3.{4,5}", "10.0.0.*", "::1"]


@given(
    st.text(st.sampled_from("0123456789abcfF.:,*-{} /%"), max_size=40) | st.text(max_size=20),
    st.ip_addresses(),
)
def test_no_text_is_taken_for_more_than_it_says(text: str, address: object) -> None:
    try:
        pattern = read_pattern(text)
    except ConfigError as error:
        assert error.option == "whiteRemoteAddress"
        return
    assert isinstance(pattern.matches(str(address)), bool)
    assert pattern.everybody == (text.strip() in ("*", "*.*.*.*", "*:*:*:*:*:*:*:*"))
    assert not pattern.matches("no address") or pattern.everybody


PART = st.integers(0, 255)
RANGE = st.tuples(PART, PART).map(lambda pair: f"{min(pair)}-{max(pair)}")


@given(
    st.lists(PART, min_size=1, max_size=3),
    st.lists(RANGE | st.just("*"), min_size=3, max_size=3),
    st.lists(PART, min_size=4, max_size=4),
)
def test_ranges_and_their_networks_mean_the_same_addresses(
    fixed: list[int], free: list[str], asked: list[int]
) -> None:
    words = ([*map(str, fixed), *free])[:4]
    pattern = read_pattern(".".join(words))
    near = [part if place >= len(fixed) else fixed[place] for place, part in enumerate(asked)]
    for parts in (asked, near):
        address = ".".join(map(str, parts))
        expected = all(_in(part, word) for part, word in zip(parts, words, strict=True))
        assert pattern.matches(address) == expected
        networks = pattern.networks()
        if networks is not None:
            assert any(ip_address(address) in ip_network(one) for one in networks) == expected


def _in(part: int, word: str) -> bool:
    if word == "*":
        return True
    low, _, high = word.partition("-")
    return int(low) <= part <= int(high or low)


def test_a_pattern_becomes_the_networks_that_policies_know() -> None:
    assert read_pattern("10.1.*.*").networks() == ("10.1.0.0/16",)
    assert read_pattern("10.1.2.{3,4}").networks() == ("10.1.2.3/32", "10.1.2.4/32")
    assert read_pattern("1050:5::1:*").networks() == ("1050:5::1:0/112",)
    assert read_pattern("*").networks() == ("0.0.0.0/0", "::/0")
    assert read_pattern("").networks() == ()
    assert read_pattern("10.*.*.7").networks() is None
