"""The same users, policies and requests at Apache's broker and at ours: who is let through, cell by cell.

Under Apache's rules (`authorizationRules=apache`) ours decides as Apache's does; under the strict ones, which are the
default, it differs in the rows listed here and in no other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.interop.apache_access import ACCESS_CONTROL, ROOT
from tests.interop.apache_cluster import NEWEST, ApacheServer
from tests.interop.decision_matrix import Cell, decisions, people, requests
from tests.peers.ours import OurServer

pytestmark = pytest.mark.interop
pytest_plugins = ["tests.interop.apache_fixtures"]

LEAST_CELLS = 2_000

NOT_SERVED = "no such request here: every signed one is told so, whoever sent it"

# Requests of which our decision differs under Apache's rules, and why.
DIFFERENT: Mapping[str, str] = {
    "200050 alpha readers": NOT_SERVED,
}

# The same under the strict rules; what differs under both is in the table above.
STRICTER: Mapping[str, str] = {}


@pytest.fixture(scope="module")
def apaches(guarded_servers: Callable[[str], ApacheServer]) -> dict[Cell, bool]:
    return decisions(guarded_servers(NEWEST).broker)


def ours(folder: Path, rules: str) -> dict[Cell, bool]:
    """Without the delays that a row of refusals would cause."""
    settings = {**ACCESS_CONTROL, "authorizationRules": rules, "authFailureDelayMillis": 0}
    with OurServer(folder, extra=settings, keys=ROOT) as server:
        return decisions(server.address)


def differing(ours: Mapping[Cell, bool], apaches: Mapping[Cell, bool]) -> dict[str, list[str]]:
    """By request: who was refused here and not there, or the other way round."""
    assert ours.keys() == apaches.keys()
    found: dict[str, list[str]] = defaultdict(list)
    for cell in sorted(ours):
        if ours[cell] != apaches[cell]:
            by = "ours" if ours[cell] else "Apache's"
            found[cell.request].append(f"{cell.user} from {cell.address} refused by {by}")
    return found


def test_the_matrix_is_large_and_both_answers_occur_in_every_row(apaches: Mapping[Cell, bool]) -> None:
    assert len(apaches) >= LEAST_CELLS
    assert len({cell.user for cell in apaches}) == len(people())
    by_request: dict[str, set[bool]] = defaultdict(set)
    for cell, refusal in apaches.items():
        by_request[cell.request].add(refusal)
    # Strangers are refused everything, administrators nothing.
    assert [name for name, seen in by_request.items() if seen != {True, False}] == []
    assert len(by_request) == len(requests())


def test_under_apaches_rules_ours_decides_as_apaches_broker(
    apaches: Mapping[Cell, bool], tmp_path: Path
) -> None:
    found = differing(ours(tmp_path, "apache"), apaches)
    assert {name: who for name, who in found.items() if name not in DIFFERENT} == {}
    assert sorted(DIFFERENT) == sorted(found), "a difference that is listed and does not occur"


def test_the_strict_rules_differ_where_they_say_so(apaches: Mapping[Cell, bool], tmp_path: Path) -> None:
    found = differing(ours(tmp_path, "strict"), apaches)
    listed = {**DIFFERENT, **STRICTER}
    assert {name: who for name, who in found.items() if name not in listed} == {}
    assert sorted(listed) == sorted(found), "a difference that is listed and does not occur"
