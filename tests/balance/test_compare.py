"""balance.compare: what has to move, what does, and who holds what afterwards."""

from __future__ import annotations

import pytest

from gimbalmq.balance.allocate import shares
from gimbalmq.balance.by_name import strategy_by_name
from gimbalmq.balance.compare import Move, compare, moves_between, owners_of
from gimbalmq.balance.rooms import RoomsByPrefix
from gimbalmq.errors import ConfigError
from gimbalmq.model.queues import MessageQueue

Q = [MessageQueue("T", "b", number) for number in range(16)]
AVG = strategy_by_name("AVG")


def test_a_join_is_compared_with_what_the_members_hold() -> None:
    """16 queues, 3 to 4 members: blocks of 6,5,5 become 4,4,4,4; 2, 3 and 4 queues slide on."""
    change = compare(AVG, "g", shares(AVG, "g", Q, "abc"), Q, "abcd")
    assert {member: len(part) for member, part in change.after.items()} == dict.fromkeys("abcd", 4)
    assert (len(change.moves), change.minimum, change.spread, change.idle) == (9, 4, 0, 0)
    assert change.moves[0] == Move(Q[4], "a", "b")


def test_what_is_held_need_not_be_what_the_strategy_would_give() -> None:
    change = compare(AVG, "g", {"a": Q[1:2], "b": Q[0:1]}, Q[:2], "ab")
    assert change.moves == (Move(Q[0], "b", "a"), Move(Q[1], "a", "b"))
    assert change.minimum == 0


def test_queues_that_come_go_or_are_left_to_nobody_have_not_moved() -> None:
    before = {Q[0]: "a", Q[1]: "a", Q[2]: "a"}
    assert moves_between(before, {Q[0]: "a", Q[1]: "b", Q[3]: "b"}) == (Move(Q[1], "a", "b"),)
    left = compare(AVG, "g", {"a": Q}, Q, [])
    assert (left.moves, left.minimum, left.spread, owners_of(left.after)) == ((), 0, 0, {})


def test_members_beyond_the_queues_are_idle() -> None:
    change = compare(AVG, "g", {}, Q[:2], "abcd")
    assert (change.spread, change.idle) == (1, 2)


def test_rooms_go_by_the_longest_prefix() -> None:
    rooms = RoomsByPrefix.parse("--room", ["broker-=r1", "broker-b=r2", "10.1.=r2"])
    assert rooms.names == {"r1", "r2"}
    assert rooms.room_of_queue(MessageQueue("t", "broker-a", 0)) == "r1"
    assert rooms.room_of_queue(MessageQueue("t", "broker-b", 0)) == "r2"
    with pytest.raises(ConfigError, match=r"--room='10\.2\.0\.1@1'.*no room fits"):
        rooms.room_of_client("10.2.0.1@1")
    with pytest.raises(ConfigError, match=r"--room='nonsense'.*PREFIX=ROOM"):
        RoomsByPrefix.parse("--room", ["nonsense"])
