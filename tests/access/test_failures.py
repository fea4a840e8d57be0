"""Refusals by address, and how long the next one takes."""

from __future__ import annotations

from gimbalmq.access.config import AccessConfig
from gimbalmq.access.failures import Failures
from tests.support import ManualClock


def failures(clock: ManualClock, **options: int) -> Failures:
    return Failures(AccessConfig(**options), clock)  # type: ignore[arg-type]


def test_delays_double_up_to_the_longest() -> None:
    counted = failures(
        ManualClock(), auth_failures_free=2, auth_failure_delay_millis=100, auth_failure_max_delay_millis=500
    )
    assert [counted.failed("10.0.0.1") for _ in range(7)] == [0, 0, 0.1, 0.2, 0.4, 0.5, 0.5]
    for _ in range(3000):
        assert counted.failed("10.0.0.1") == 0.5
    assert counted.failed("10.0.0.2") == 0


def test_a_while_without_refusals_is_a_clean_sheet() -> None:
    clock = ManualClock()
    counted = failures(clock, auth_failures_free=1, auth_failure_forget_seconds=60)
    assert [counted.failed("10.0.0.1") for _ in range(2)] == [0, 0.1]
    clock.advance(59)
    assert counted.failed("10.0.0.1") == 0.2
    clock.advance(61)
    assert counted.failed("10.0.0.1") == 0


def test_nothing_is_delayed_if_the_option_says_so() -> None:
    counted = failures(ManualClock(), auth_failures_free=0, auth_failure_delay_millis=0)
    assert {counted.failed("10.0.0.1") for _ in range(50)} == {0}


def test_the_table_is_bounded_and_the_longest_silent_goes() -> None:
    clock = ManualClock()
    counted = failures(clock, auth_failures_free=0, max_auth_failure_addresses=3)
    for host in ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.1", "10.0.0.4"):
        clock.advance(1)
        counted.failed(host)
    assert len(counted) == 3
    assert counted.failed("10.0.0.1") == 0.4, "it failed again, and stayed"
    assert counted.failed("10.0.0.2") == 0.1, "it was the longest silent"


def test_a_network_of_ipv6_counts_as_one_address() -> None:
    counted = failures(ManualClock(), auth_failures_free=0)
    delays = [
        counted.failed(host)
        for host in ("2001:db8::1", "2001:db8:0:0:ffff::2", "2001:db8::", "2001:db8:0:0:1:2:3:4")
    ]
    assert delays == [0.1, 0.2, 0.4, 0.8]
    assert counted.failed("2001:db8:0:1::1") == 0.1
    assert counted.failed("::1") == 0.1
    assert len(counted) == 3
