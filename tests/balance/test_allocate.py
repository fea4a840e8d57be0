"""balance.allocate against vectors of the Java strategies."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gimbalmq.balance.allocate import (
    AllocateStrategy,
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ConsistentHash,
    average_block,
    md5_ring_hash,
    share,
    shares,
)
from gimbalmq.balance.by_name import strategy_by_name
from gimbalmq.balance.rooms import ByMachineRoom, MachineRoomNearby
from gimbalmq.errors import ConfigError
from gimbalmq.model.queues import MessageQueue


def queues_of(count: int, topic: str = "TopicA", broker: str = "broker-a") -> list[MessageQueue]:
    return [MessageQueue(topic, broker, number) for number in range(count)]


def ids_of(count: int) -> list[str]:
    return [f"c{number + 1}" for number in range(count)]


def numbers(strategy: AllocateStrategy, count: int, members: Sequence[str]) -> list[list[int]]:
    """What each member takes of TopicA on broker-a, as queue numbers."""
    taken = (strategy.allocate("g", member, queues_of(count), members) for member in members)
    return [[queue.queue_id for queue in part] for part in taken]


def span(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


@pytest.mark.parametrize(
    ("count", "members", "expected"),
    [
        pytest.param(16, 3, [span(0, 5), span(6, 10), span(11, 15)], id="16/3"),
        pytest.param(10, 3, [span(0, 3), span(4, 6), span(7, 9)], id="10/3"),
        pytest.param(8, 3, [span(0, 2), span(3, 5), span(6, 7)], id="8/3"),
        pytest.param(5, 2, [span(0, 2), span(3, 4)], id="5/2"),
        pytest.param(16, 2, [span(0, 7), span(8, 15)], id="16/2"),
        pytest.param(7, 4, [[0, 1], [2, 3], [4, 5], [6]], id="7/4"),
        pytest.param(5, 3, [[0, 1], [2, 3], [4]], id="5/3"),
        pytest.param(2, 3, [[0], [1], []], id="2/3"),
        pytest.param(1, 2, [[0], []], id="1/2"),
    ],
)
def test_avg_vectors(count: int, members: int, expected: list[list[int]]) -> None:
    """[v] S1-34, S2-08, S3-40, S4-12: AVG's blocks; S1-02, S4-09: surplus members get none."""
    assert numbers(Averagely(), count, ids_of(members)) == expected


def test_avg_block_arithmetic() -> None:
    """S4-11: sizes; S4-12: index 0 of 16/3 gets 6; S4-14: index 2 of 2/3 starts at 4 with length -2."""
    assert average_block(16, 3, 0) == (0, 6)
    assert average_block(16, 3, 1) == (6, 5)
    assert average_block(3, 3, 2) == (2, 1)
    assert average_block(2, 3, 2) == (4, -2)


def test_a_second_member_takes_two_of_five() -> None:
    """S1-01: one member 5; two members 3 and 2."""
    assert [len(part) for part in numbers(Averagely(), 5, ids_of(1))] == [5]
    assert [len(part) for part in numbers(Averagely(), 5, ids_of(2))] == [3, 2]


def test_two_topics_of_two_queues_leave_half_of_four_members_idle() -> None:
    """S1-30: topics are allocated one by one, from the front of the sorted ids."""
    queues = queues_of(2, "X") + queues_of(2, "Y")
    parts = shares(Averagely(), "g", queues, ["d", "c", "b", "a"])
    assert [[(queue.topic, queue.queue_id) for queue in parts[member]] for member in "abcd"] == [
        [("X", 0), ("Y", 0)],
        [("X", 1), ("Y", 1)],
        [],
        [],
    ]


@pytest.mark.parametrize(
    ("count", "members", "expected"),
    [
        pytest.param(8, 3, [[0, 3, 6], [1, 4, 7], [2, 5]], id="8/3"),
        pytest.param(5, 2, [[0, 2, 4], [1, 3]], id="5/2"),
        pytest.param(10, 3, [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]], id="10/3"),
        pytest.param(16, 3, [[0, 3, 6, 9, 12, 15], [1, 4, 7, 10, 13], [2, 5, 8, 11, 14]], id="16/3"),
        pytest.param(2, 3, [[0], [1], []], id="2/3"),
    ],
)
def test_circle_vectors(count: int, members: int, expected: list[list[int]]) -> None:
    """S2-09, S3-40: AVG_BY_CIRCLE deals queues out in turn."""
    assert numbers(AveragelyByCircle(), count, ids_of(members)) == expected


def test_config_returns_exactly_what_is_configured() -> None:
    """S2-10: whatever the inputs, empty ones included; nothing configured is an empty list."""
    chosen = [MessageQueue("other", "b", 9), MessageQueue("other", "b", 1)]
    assert ByConfig(chosen).allocate("g", "", [], []) == chosen
    assert ByConfig(None).allocate("g", "c1", queues_of(3), ["c1"]) == []


def test_machine_room_takes_the_remainder_from_the_tail() -> None:
    """[v] S2-11: 5 kept queues, 2 members: 0,1,4 and 2,3; other rooms and names do not count."""
    kept = queues_of(5, broker="hz@broker-a")
    noise = [MessageQueue("TopicA", name, 0) for name in ("sh@broker", "plain", "hz@x@y", "hz@", "@hz")]
    strategy = ByMachineRoom({"hz"})
    parts = [strategy.allocate("g", member, kept + noise, ["a", "b"]) for member in ("a", "b")]
    assert [[queue.queue_id for queue in part] for part in parts] == [[0, 1, 4], [2, 3]]
    assert all(queue in kept for part in parts for queue in part)
    assert strategy.allocate("g", "a", noise, ["a"]) == []


def test_machine_room_drops_empty_parts_at_the_end_as_javas_split_does() -> None:
    """S2-11: "hz@b@" splits into exactly two parts."""
    odd = [MessageQueue("T", "hz@b@", 0)]
    assert ByMachineRoom({"hz"}).allocate("g", "a", odd, ["a"]) == odd


class FirstLetter:
    """The room is the first letter; an unknown one has no room."""

    def room_of_queue(self, queue: MessageQueue) -> str:
        return queue.broker_name[:1].upper()

    def room_of_client(self, client_id: str) -> str:
        return "" if client_id.startswith("?") else client_id[:1].upper()


def test_nearby_shares_its_own_room_and_unmanned_rooms_only() -> None:
    """S2-12: the three-room example."""
    queues = queues_of(4, broker="A") + queues_of(4, broker="B") + queues_of(2, broker="C")
    strategy = MachineRoomNearby(Averagely(), FirstLetter())
    members = ["a1", "a2", "c1"]
    taken = {
        m: [f"{q.broker_name}{q.queue_id}" for q in share(strategy, "g", m, queues, members)] for m in members
    }
    assert taken == {
        "a1": ["A0", "A1", "B0", "B1"],
        "a2": ["A2", "A3", "B2"],
        "c1": ["C0", "C1", "B3"],
    }


def test_nearby_member_without_queues_in_its_room_still_helps_with_unmanned_rooms() -> None:
    """S2-12: no queue of a manned room is shared."""
    queues = queues_of(2, broker="A") + queues_of(2, broker="B")
    strategy = MachineRoomNearby(Averagely(), FirstLetter())
    assert share(strategy, "g", "z1", queues, ["a1", "z1"]) == queues_of(2, broker="B")[1:]


def test_nearby_refuses_missing_parts_and_rooms() -> None:
    """S2-13: inner strategy, resolver, empty rooms; the name carries the inner one's."""
    with pytest.raises(ConfigError, match="inner"):
        MachineRoomNearby(None, FirstLetter())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="resolver"):
        MachineRoomNearby(Averagely(), None)  # type: ignore[arg-type]
    strategy = MachineRoomNearby(AveragelyByCircle(), FirstLetter())
    assert strategy.name == "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE"
    with pytest.raises(ConfigError, match="room"):
        strategy.allocate("g", "a1", queues_of(1, broker="A"), ["a1", "?1"])
    with pytest.raises(ConfigError, match="room"):
        strategy.allocate("g", "a1", queues_of(1, broker=""), ["a1"])


def test_ring_hash_vectors() -> None:
    """[v] S2-14: MD5, 4 bytes, big endian, unsigned."""
    assert md5_ring_hash("c1-0") == 3886541579
    assert md5_ring_hash("c1-1") == 1895315590
    assert md5_ring_hash("c2-0") == 830676049
    assert md5_ring_hash("c3-9") == 3120299716
    assert md5_ring_hash(str(MessageQueue("TopicA", "broker-a", 0))) == 1888944553
    assert md5_ring_hash(str(MessageQueue("TopicA", "broker-a", 1))) == 2401909506


@pytest.mark.parametrize(
    ("count", "members", "expected"),
    [
        pytest.param(8, ids_of(3), [[0], span(1, 6), [7]], id="8/3"),
        pytest.param(10, ids_of(3), [[0, 8], span(1, 6), [7, 9]], id="10/3"),
        pytest.param(16, ids_of(3), [[0, 8, 14], [*span(1, 6), 15], [7, *span(9, 13)]], id="16/3"),
        pytest.param(16, ids_of(2), [[0, 7, 8, 9, 11, 12, 14], [*span(1, 6), 10, 13, 15]], id="16/2"),
        pytest.param(5, ids_of(3), [[0], span(1, 4), []], id="5/3"),
        pytest.param(7, ids_of(4), [[0], span(3, 6), [], [1, 2]], id="7/4"),
        pytest.param(
            8,
            ["10.0.0.1@1001#111", "10.0.0.2@1002#222", "10.0.0.3@1003#333"],
            [[2], [1, 4, 6, 7], [0, 3, 5]],
            id="8/real-ids",
        ),
    ],
)
def test_consistent_hash_vectors(count: int, members: list[str], expected: list[list[int]]) -> None:
    """[v] S2-14: 10 virtual nodes, clockwise nearest, wrap to the first."""
    assert numbers(ConsistentHash(), count, members) == expected


def test_consistent_hash_takes_an_own_function_and_wraps() -> None:
    """S2-14: own hash; a queue beyond the last node belongs to the first; an equal place counts."""
    places = {"a-0": 10, "b-0": 20} | {str(queue): queue.queue_id * 10 for queue in queues_of(4)}
    strategy = ConsistentHash(1, places.__getitem__)
    assert numbers(strategy, 4, ["a", "b"]) == [[0, 1, 3], [2]]


def test_consistent_hash_refuses_a_negative_node_count_and_zero_means_nobody() -> None:
    """S2-14."""
    with pytest.raises(ConfigError, match="virtual_nodes"):
        ConsistentHash(-1)
    assert numbers(ConsistentHash(0), 4, ids_of(2)) == [[], []]


def test_an_id_listed_twice_stands_at_twice_the_places() -> None:
    asked: list[str] = []

    def listen(text: str) -> int:
        asked.append(text)
        return len(asked)

    ConsistentHash(2, listen).allocate("g", "a", queues_of(1), ["a", "a"])
    assert asked[:4] == ["a-0", "a-1", "a-2", "a-3"]


CHECKED = [
    Averagely(),
    AveragelyByCircle(),
    ByMachineRoom({"hz"}),
    MachineRoomNearby(Averagely(), FirstLetter()),
    ConsistentHash(),
    strategy_by_name("STICKY"),
]


@pytest.mark.parametrize("strategy", CHECKED, ids=lambda strategy: strategy.name)
def test_empty_inputs_are_refused_by_name(strategy: AllocateStrategy) -> None:
    """S2-15, S4-10: empty own id, queues, members."""
    with pytest.raises(ValueError, match=r"^client_id="):
        strategy.allocate("g", "", queues_of(1), ["a"])
    with pytest.raises(ValueError, match=r"^queues="):
        strategy.allocate("g", "a", [], ["a"])
    with pytest.raises(ValueError, match=r"^client_ids="):
        strategy.allocate("g", "a", queues_of(1), [])


@pytest.mark.parametrize("strategy", CHECKED, ids=lambda strategy: strategy.name)
def test_a_stranger_gets_nothing_and_it_is_logged(
    strategy: AllocateStrategy, caplog: pytest.LogCaptureFixture
) -> None:
    """S1-35: own id not among the members."""
    with caplog.at_level(logging.WARNING):
        assert strategy.allocate("g", "stranger", queues_of(4), ["a", "b"]) == []
    assert "stranger" in caplog.text


def test_strategies_by_name() -> None:
    """S1-33: all six; S4-16: AVG when none is named."""
    assert strategy_by_name().name == "AVG"
    for name in ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "STICKY"):
        assert strategy_by_name(name).name == name
    assert strategy_by_name("CONFIG", queues=[]).name == "CONFIG"
    assert strategy_by_name("MACHINE_ROOM", rooms=["hz"]).name == "MACHINE_ROOM"
    nearby = strategy_by_name("MACHINE_ROOM_NEARBY-CONSISTENT_HASH", resolver=FirstLetter())
    assert nearby.name == "MACHINE_ROOM_NEARBY-CONSISTENT_HASH"
    for name, remedy in (
        ("MACHINE_ROOM_NEARBY-AVG", "resolver="),
        ("MACHINE_ROOM", "rooms="),
        ("CONFIG", "queues="),
    ):
        with pytest.raises(ConfigError, match=remedy):  # by its name alone it would take nothing
            strategy_by_name(name)
    with pytest.raises(ConfigError, match="AVG_BY_CIRCLE"):
        strategy_by_name("ROUND_ROBIN")


def test_settings_reach_the_named_strategy() -> None:
    queue = MessageQueue("T", "hz@b", 0)
    assert strategy_by_name("CONFIG", queues=[queue]).allocate("g", "a", [], []) == [queue]
    assert strategy_by_name("MACHINE_ROOM", rooms=["hz"]).allocate("g", "a", [queue], ["a"]) == [queue]
    assert strategy_by_name("CONSISTENT_HASH", virtual_nodes=0).allocate("g", "a", [queue], ["a"]) == []


def test_an_own_strategy_plugs_in() -> None:
    """S4-18: anything with a name and allocate(group, own id, queues, members)."""

    class LastTakesAll:
        name = "LAST"

        def allocate(
            self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
        ) -> list[MessageQueue]:
            return list(queues) if client_id == client_ids[-1] else []

    assert shares(LastTakesAll(), "g", queues_of(2), ["b", "a"]) == {"a": [], "b": queues_of(2)}


def test_queues_without_members_are_nobodys() -> None:
    assert shares(Averagely(), "g", queues_of(2), []) == {}
    assert shares(Averagely(), "g", [], ["a"]) == {"a": []}


def test_messages_reach_only_the_member_that_holds_their_queue() -> None:
    """S4-13: 32 messages over 16 queues, 3 members."""
    parts = shares(Averagely(), "g", queues_of(16), ids_of(3))
    received = {
        member: {number % 16 for number in range(32) if queues_of(16)[number % 16] in part}
        for member, part in parts.items()
    }
    assert received == {"c1": set(span(0, 5)), "c2": set(span(6, 10)), "c3": set(span(11, 15))}


a_strategy = st.sampled_from(["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "STICKY"])


@settings(max_examples=60, deadline=None)
@given(a_strategy, st.integers(1, 80), st.sets(st.text(min_size=1, max_size=6), min_size=1, max_size=20))
def test_shares_are_disjoint_and_complete(name: str, count: int, members: set[str]) -> None:
    """S1-32, S4-08: computed by each member for itself, from lists in any order."""
    strategy = strategy_by_name(name)
    queues = queues_of(count)
    taken = [
        queue
        for turn, member in enumerate(members)
        for queue in share(strategy, "g", member, queues[::-1] if turn % 2 else queues, members)
    ]
    assert len(taken) == count
    assert set(taken) == set(queues)


@settings(deadline=None)
@given(st.sampled_from(["AVG", "AVG_BY_CIRCLE", "STICKY"]), st.integers(1, 200), st.integers(1, 40))
def test_shares_differ_by_at_most_one(name: str, count: int, members: int) -> None:
    """S4-11: balanced; S1-02, S4-09: with fewer queues than members exactly the surplus is idle."""
    sizes = [
        len(part) for part in shares(strategy_by_name(name), "g", queues_of(count), ids_of(members)).values()
    ]
    assert max(sizes) - min(sizes) <= 1
    assert sizes.count(0) == max(0, members - count)
