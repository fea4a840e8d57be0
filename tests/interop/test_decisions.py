"""The same users, policies and requests at Apache's broker and at ours: who is let through, cell by cell.

Under Apache's rules (`authorizationRules=apache`) ours decides as Apache's does; under the strict ones, which are the
default, it differs in the rows listed here and in no other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop.apache_access import ACCESS_CONTROL, ROOT
from tests.interop.apache_cluster import NEWEST, ApacheServer
from tests.interop.decision_matrix import Cell, decisions, people, requests
from tests.peers.ours import OurServer

pytestmark = pytest.mark.interop
pytest_plugins = ["tests.interop.apache_fixtures"]

LEAST_CELLS = 2_000

OURS, APACHES = "ours", "Apache's"


@dataclass(frozen=True)
class Difference:
    """Requests of which some are refused on one side only: on which, and why that is right."""

    requests: Sequence[str]
    refused_by: frozenset[str]
    why: str


def different(why: str, *requests: str, by: Sequence[str] = (OURS,)) -> Difference:
    return Difference(requests, frozenset(by), why)


UNDER_BOTH_RULES = (
    different(
        "Our broker serves no such request: whoever has signed it is told so.",
        *("200050 alpha readers", "200051 alpha readers", "200053 alpha readers", "200055 alpha readers"),
        *("901 own cluster", "901 another"),
        by=[APACHES],
    ),
    different(
        "A retry topic belongs to its group in every request here. Apache's broker looks for it among the topics in "
        "this one, so that who may read all topics reads messages of groups that are closed to him.",
        "12 %RETRY%readers",
        by=[OURS, APACHES],
    ),
)

UNDER_STRICT_RULES = (
    different(
        "Apache's broker lets everybody who can sign make groups.",
        *("200 readers", "200 others"),
    ),
    different(
        "Apache's broker lets everybody who can sign send replies to any topic.", "325 alpha", "324 beta"
    ),
    different(
        "Apache's broker lets everybody who can sign read any topic by lite pull.",
        *("361 alpha readers", "361 beta others"),
    ),
    different(
        "Apache's broker lets everybody who can sign change its settings and delete files.",
        *("25", "306", "316", "329", "401 readers"),
    ),
    different(
        "Apache's broker shows its settings, with secrets, and every topic, group and offset to all who can sign.",
        *("21", "26", "28", "43", "45", "201", "305", "400 readers", "907"),
    ),
    different(
        "Who may change the cluster may write policies at Apache's broker, and so give himself every right.",
        *("3001", "3002", "3003", "3006", "3007", "3008"),
    ),
    different(
        "The topic of the stored message counts and not the one that the request names; here there is no message.",
        *("33 alpha", "37 alpha", "309 alpha readers"),
        by=[APACHES],
    ),
    different("Apache's broker copies offsets of groups that the user may not see.", "314 alpha"),
)


@pytest.fixture(scope="module")
def apaches(guarded_servers: Callable[[str], ApacheServer]) -> dict[Cell, bool]:
    return decisions(guarded_servers(NEWEST).broker)


def ours(folder: Path, rules: str) -> dict[Cell, bool]:
    """Without the delays that a row of refusals would cause."""
    settings = {**ACCESS_CONTROL, "authorizationRules": rules, "authFailureDelayMillis": 0}
    with OurServer(folder, extra=settings, keys=ROOT) as server:
        return decisions(server.address)


def differing(ours: Mapping[Cell, bool], apaches: Mapping[Cell, bool]) -> dict[str, dict[str, list[str]]]:
    """By request and by the side that refused: who was let through on the other."""
    assert ours.keys() == apaches.keys()
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for cell in sorted(ours):
        if ours[cell] != apaches[cell]:
            by = OURS if ours[cell] else APACHES
            found[cell.request][by].append(f"{cell.user} from {cell.address}")
    return found


def check(found: Mapping[str, Mapping[str, list[str]]], listed: Sequence[Difference]) -> None:
    """What differs is listed, and what is listed differs, on the side that is named."""
    expected = {name: row.refused_by for row in listed for name in row.requests}
    unlisted = {
        name: dict(sides) for name, sides in found.items() if expected.get(name, frozenset()) != sides.keys()
    }
    assert unlisted == {}
    assert sorted(expected) == sorted(found)


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
    check(differing(ours(tmp_path, "apache"), apaches), UNDER_BOTH_RULES)


def test_the_strict_rules_differ_where_they_say_so(apaches: Mapping[Cell, bool], tmp_path: Path) -> None:
    check(differing(ours(tmp_path, "strict"), apaches), (*UNDER_BOTH_RULES, *UNDER_STRICT_RULES))
