"""Wrong signatures by address and user, and from when on none is looked at."""

from __future__ import annotations

import gc

from gimbalmq.access.config import AccessConfig
from gimbalmq.access.guesses import MINUTE, USERS_OF_AN_ADDRESS, Guesses
from gimbalmq.protocol.codes import RequestCode
from tests.access.peers import Guarded, Peer, request, send
from tests.support import ManualClock


def guesses(clock: ManualClock, **options: int) -> Guesses:
    return Guesses(AccessConfig(**options), clock)  # type: ignore[arg-type]


def test_beyond_the_bound_new_connections_wait_for_the_end_of_the_minute() -> None:
    clock = ManualClock()
    counted = guesses(clock, auth_guesses_per_minute=3)
    for _ in range(3):
        assert not counted.closed
        counted.wrong(Peer(), "ann")
        clock.advance(10)
    assert counted.wait(Peer(), "ann") == MINUTE - 30
    assert counted.wait(Peer(), "bob") == counted.wait(Peer("10.0.0.8"), "ann") == 0
    clock.advance(MINUTE - 30)
    assert counted.wait(Peer(), "ann") == 0 and not counted.closed
    counted.wrong(Peer(), "ann")
    assert not counted.closed, "a new minute"


def test_who_was_there_before_goes_on_unless_he_guesses() -> None:
    clock = ManualClock()
    counted = guesses(clock, auth_guesses_per_minute=2)
    honest, guesser = Peer(age=1000.0), Peer(age=1000.0)
    counted.wrong(guesser, "ann")
    clock.advance(20)
    counted.wrong(Peer(), "ann")
    assert counted.wait(honest, "ann") == 0
    assert counted.wait(guesser, "ann") == counted.wait(Peer(age=19.0), "ann") == MINUTE - 20


def test_an_address_has_a_bound_for_all_users_together() -> None:
    counted = guesses(ManualClock(), auth_guesses_per_minute=1)
    for number in range(USERS_OF_AN_ADDRESS):
        assert counted.wait(Peer(), "ann") == 0
        counted.wrong(Peer(), f"user-{number}")
    assert counted.wait(Peer(), "ann") == MINUTE and counted.wait(Peer("10.0.0.8"), "ann") == 0


def test_networks_of_ipv6_count_as_one_and_the_tables_are_bounded() -> None:
    counted = guesses(ManualClock(), auth_guesses_per_minute=1, max_auth_failure_addresses=6)
    counted.wrong(Peer("2001:db8::1"), "ann")
    assert counted.wait(Peer("2001:db8::ffff"), "ann") == MINUTE
    for number in range(50):
        counted.wrong(Peer(f"10.0.1.{number}"), "ann")
    gc.collect()
    assert len(counted) == 6 and len(counted.closed) <= 6 and not counted._guessers


def test_zero_is_no_bound() -> None:
    counted = guesses(ManualClock(), auth_guesses_per_minute=0)
    for _ in range(1000):
        counted.wrong(Peer(), "ann")
    assert not len(counted) and not counted.closed


def test_the_gate_looks_at_no_further_guess_right_or_wrong() -> None:
    clock = ManualClock()
    guarded = Guarded(clock=clock, auth_guesses_per_minute=5)
    guarded.allow("ann", "Topic:T", "Pub")
    at_work = Peer(age=600.0)
    assert guarded.told(send("T"), at_work) == ""
    for _ in range(5):
        assert guarded.told(send("T", "ann", "wrong"), Peer()) == "check signature failed."
    # What is remembered of ann from this address lets nobody guess on.
    for command in (send("T"), send("T", "ann", "wrong"), request(RequestCode.GET_ALL_TOPIC_CONFIG, "ann")):
        told = guarded.told(command, Peer())
        assert "too many wrong signatures of User:ann" in told and "for 60 s" in told
    assert guarded.gate.sender_key(Peer().channel, "ann", "T") is None
    assert guarded.told(send("T"), at_work) == "" and guarded.gate.sender_key(at_work.channel, "ann", "T")
    assert guarded.told(send("T", "root"), Peer()) == "" == guarded.told(send("T"), Peer("10.0.0.9"))
    clock.advance(MINUTE)
    assert guarded.told(send("T"), Peer()) == ""
