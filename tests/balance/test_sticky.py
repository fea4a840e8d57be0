"""STICKY: even, agreed, and hardly anything moves.

Figures behind the bounds, from 12,000 random joins (2-64 members after the join, 8-2048 queues): with n
queues and m members after the join, moved <= 1.8 * minimum + 0.57 * m in every one; where n >= 2 * m**2
the worst single join moved 1.74 times the minimum. For 1024 queues and 32 members the mean is 1.72, and
one unlucky join in some hundreds reaches 2.2.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gimbalmq.balance.allocate import shares
from gimbalmq.balance.by_name import strategy_by_name
from gimbalmq.balance.compare import minimum_moves, moves_between
from gimbalmq.balance.simulate import Event, simulate
from gimbalmq.balance.sticky import Sticky, place
from gimbalmq.errors import ConfigError
from gimbalmq.model.queues import MessageQueue


def queues_of(count: int, topic: str = "T", brokers: int = 4) -> list[MessageQueue]:
    return [MessageQueue(topic, f"broker-{n % brokers}", n // brokers) for n in range(count)]


def ids_of(rng: Random, count: int) -> list[str]:
    return [
        f"10.0.{n}.{rng.randrange(255)}@{rng.randrange(65536)}#{rng.getrandbits(47)}" for n in range(count)
    ]


def owners_of(queues: list[MessageQueue], members: list[str]) -> dict[MessageQueue, str]:
    parts = Sticky().allocate_all("g", members, queues)
    return {queue: member for member, part in parts.items() for queue in part}


def place_by_full_sort(queue_words: list[int], member_words: list[int]) -> list[int]:
    """The rule as the module's text states it, with no slices and no numpy."""

    def weight(queue: int, member: int) -> int:
        word = (queue ^ member) * 0x7FEB352D & 0xFFFFFFFF
        return (word ^ word >> 15) * 0x846CA68B & 0xFFFFFFFF

    pairs = sorted(
        (-weight(queue, member), row, column)
        for row, queue in enumerate(queue_words)
        for column, member in enumerate(member_words)
    )
    share, extras = divmod(len(queue_words), len(member_words))
    counts, owners = [0] * len(member_words), [-1] * len(queue_words)
    for _, row, column in pairs:
        if owners[row] < 0 and (counts[column] < share or (counts[column] == share and extras > 0)):
            extras -= counts[column] == share
            counts[column] += 1
            owners[row] = column
    return owners


@pytest.mark.parametrize(
    ("queues", "members"), [(1, 1), (1, 9), (7, 3), (40, 40), (90, 200), (700, 60), (3000, 31)]
)
def test_slices_give_the_result_of_the_full_sort(queues: int, members: int) -> None:
    rng = Random(queues)
    queue_words = [rng.getrandbits(32) for _ in range(queues)]
    member_words = [rng.getrandbits(32) for _ in range(members)]
    sliced = place(np.array(queue_words, dtype=np.uint32), np.array(member_words, dtype=np.uint32))
    assert sliced == place_by_full_sort(queue_words, member_words)


def test_equal_weights_are_settled_by_list_order() -> None:
    twins = np.array([5, 5, 5, 5], dtype=np.uint32)
    assert place(twins, np.array([9, 9], dtype=np.uint32)) == [0, 0, 1, 1]


def test_the_assignment_is_fixed_for_all_releases() -> None:
    """Members of different releases must agree: this vector may never change."""
    parts = Sticky().allocate_all("group", ["c1", "c2", "c3"], [MessageQueue("T", "b", n) for n in range(8)])
    assert {m: [q.queue_id for q in part] for m, part in parts.items()} == {
        "c1": [1, 4, 5],
        "c2": [0, 2, 7],
        "c3": [3, 6],
    }


def test_two_topics_of_two_queues_keep_four_members_busy() -> None:
    """S1-30, the harm removed: AVG leaves two of the four idle."""
    queues = queues_of(2, "X") + queues_of(2, "Y")
    members = ["a", "b", "c", "d"]
    assert [len(part) for part in shares(Sticky(), "g", queues, members).values()] == [1, 1, 1, 1]
    assert [len(part) for part in shares(strategy_by_name("AVG"), "g", queues, members).values()] == [
        2,
        2,
        0,
        0,
    ]


@given(
    st.sets(
        st.builds(MessageQueue, st.sampled_from("XYZ"), st.sampled_from("ab"), st.integers(0, 40)), min_size=1
    ),
    st.sets(st.text(min_size=1, max_size=5), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
)
def test_every_member_computes_the_same_even_shares(
    queues: set[MessageQueue], members: set[str], rng: Random
) -> None:
    """S1-32: whatever the order of its lists; over all topics at once."""
    parts = Sticky().allocate_all("g", sorted(members), sorted(queues))
    sizes = [len(part) for part in parts.values()]
    assert max(sizes) - min(sizes) <= 1
    assert sorted(queue for part in parts.values() for queue in part) == sorted(queues)
    shuffled_queues, shuffled_members = list(queues), list(members)
    rng.shuffle(shuffled_queues)
    rng.shuffle(shuffled_members)
    one = shuffled_members[0]
    assert Sticky().allocate("g", one, shuffled_queues, shuffled_members) == parts[one]


def test_an_id_listed_twice_counts_once() -> None:
    queues = queues_of(9)
    assert Sticky().allocate_all("g", ["a", "b", "a"], queues) == Sticky().allocate_all(
        "g", ["a", "b"], queues
    )


def test_groups_are_salted_apart() -> None:
    queues, members = queues_of(64), ids_of(Random(1), 8)
    assert Sticky().allocate_all("g1", members, queues) != Sticky().allocate_all("g2", members, queues)


def test_empty_inputs_are_refused() -> None:
    with pytest.raises(ConfigError, match="queues"):
        Sticky().allocate_all("g", ["a"], [])
    with pytest.raises(ConfigError, match="client_ids"):
        Sticky().allocate_all("g", [], queues_of(1))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(1, 63), st.integers(8, 1200), st.integers(0, 2**32), st.booleans())
def test_a_join_or_a_leave_moves_little(members: int, count: int, seed: int, join: bool) -> None:
    """At most 1.8 times what must move plus 0.75 queues per member; 1.8 times alone for large shares."""
    ids = ids_of(Random(seed), members + 1)
    queues = queues_of(count)
    small, large = owners_of(queues, ids[:-1]), owners_of(queues, ids)
    before, after, present = (small, large, ids) if join else (large, small, ids[:-1])
    moved, minimum = len(moves_between(before, after)), minimum_moves(before, queues, present)
    assert minimum <= moved <= 1.8 * minimum + 0.75 * len(ids)
    if count >= 2 * len(ids) ** 2:
        assert moved <= 1.8 * minimum


def test_1024_queues_and_32_members_move_less_than_1_8_times_the_minimum_on_average() -> None:
    """Both strategies through the same 60 joins and leaves around 32 members."""
    rng = Random(20)
    ids = ids_of(rng, 62)
    present, schedule = ids[:32], []
    for step, newcomer in enumerate(ids[32:]):
        leaver = present.pop(rng.randrange(32))
        present.append(newcomer)
        schedule += [Event(step * 2, "leave", leaver), Event(step * 2 + 1, "join", newcomer)]
    sticky, averagely = (
        simulate(strategy_by_name(name), queues_of(1024), schedule, members=ids[:32])
        for name in ("STICKY", "AVG")
    )
    assert sticky.ratio <= 1.8
    assert averagely.ratio >= 5 * sticky.ratio
    assert sticky.worst_spread <= 1


def test_more_queues_leave_the_old_ones_mostly_in_place() -> None:
    """A topic that grows by an eighth keeps nine tenths of its queues where they were."""
    members = ids_of(Random(4), 16)
    assert len(moves_between(owners_of(queues_of(512), members), owners_of(queues_of(576), members))) <= 51
