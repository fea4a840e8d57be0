"""Versions of tables and the changes between them."""

from __future__ import annotations

import random

from gimbalmq.broker.versions import History, is_as_new, next_version, version_of
from gimbalmq.protocol.bodies import DataVersion
from tests.support import ManualClock


def _versions(count: int) -> list[DataVersion]:
    clock, found = ManualClock(), [DataVersion()]
    for _ in range(count):
        found.append(next_version(found[-1], clock))
    return found


def test_a_version_grows_and_keeps_its_term() -> None:
    clock = ManualClock()
    first = next_version(DataVersion(state_version=3, counter=7), clock)
    assert first == DataVersion(state_version=3, counter=8, timestamp=clock.wall)
    assert next_version(first, clock, 4).state_version == 4
    assert is_as_new(next_version(first, clock, 4), first) and not is_as_new(
        first, next_version(first, clock)
    )
    # A new term counts more than any number of changes of an old one.
    assert is_as_new(DataVersion(state_version=4), DataVersion(state_version=3, counter=1000))


def test_history_tells_all_rows_that_changed_since_a_version() -> None:
    history: History[int] = History()
    versions = _versions(50)
    rng = random.Random(7)
    changes = [[rng.randrange(10) for _ in range(rng.randrange(4))] for _ in range(50)]
    for before, keys in zip(versions, changes, strict=False):
        history.note(before, keys)
    now = versions[-1]
    for number, version in enumerate(versions):
        expected = {key for keys in changes[number:] for key in keys}
        assert history.since(version, now) == expected
    assert history.since(DataVersion(counter=999), now) is None
    history.clear()
    assert history.since(versions[3], now) is None
    assert history.since(now, now) == frozenset()


def test_history_is_bounded_and_says_when_it_has_forgotten() -> None:
    history: History[int] = History(most_rows=20)
    versions = _versions(100)
    for number, before in enumerate(versions[:-1]):
        history.note(before, [number])
    assert history._rows <= 20 and len(history._numbers) == len(history._changes) == 10
    assert history.since(versions[89], versions[-1]) is None
    assert history.since(versions[90], versions[-1]) == set(range(90, 100))
    # One change that is too large by itself leaves nothing.
    history.note(versions[-1], range(30))
    assert history.since(versions[99], versions[-1]) is None


def test_a_version_that_cannot_be_read_is_none() -> None:
    assert (
        version_of(None) is version_of("") is version_of(" ") is version_of("{") is version_of("[]") is None
    )
    assert version_of('{"counter":3,"stateVersion":1,"timestamp":9}') == DataVersion(
        counter=3, state_version=1, timestamp=9
    )
