"""Java consumers joining and leaving see each other, through the broker, and share the queues.

The members find their shares themselves (AVG); what is tested is that the broker lists them all and tells them of
each change. Java's own timer would repair a lost notice only after 20 s, so the deadlines here are shorter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.interop.conftest import MakeGroup, MakeTopic, queue_ids, wait_for_route
from tests.peers.driver import JavaClient, JavaPushConsumer, Outgoing, eventually
from tests.peers.subject import Cluster

pytestmark = pytest.mark.interop

NOTICED = 15.0  # seconds; below the 20 s after which a member looks by itself


def shares(members: Sequence[JavaPushConsumer], topic: str) -> dict[str, list[int]]:
    """Which queues each member holds, by client id."""
    return {member.client_id: queue_ids(member.queues(topic)) for member in members}


def settle(
    members: Sequence[JavaPushConsumer],
    topic: str,
    expected: Sequence[Sequence[int]],
    *,
    timeout: float = NOTICED,
) -> None:
    """Wait until the members, sorted by client id, hold just these queues."""
    ids = sorted(member.client_id for member in members)
    wanted = {client_id: list(queues) for client_id, queues in zip(ids, expected, strict=True)}
    eventually(
        lambda: shares(members, topic), lambda held: held == wanted, f"shares {wanted}", timeout=timeout
    )


def numbers(members: Sequence[JavaPushConsumer]) -> list[int]:
    """The bodies all members got, as numbers."""
    return sorted(int(message.body) for member in members for message in member.received())


def test_five_queues_are_split_when_a_second_member_joins_and_joined_when_it_leaves(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    """S1-01, S1-11."""
    topic, group = make_topic(queues=5), make_group()
    first = java.push(group, topic)
    settle([first], topic, [range(5)])
    second = java.push(group, topic)
    settle([first, second], topic, [range(3), range(3, 5)])
    second.shutdown()
    settle([first], topic, [range(5)])


def test_three_members_share_sixteen_queues_and_get_only_their_own_messages(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    """S4-12, S4-13: 0-5, 6-10 and 11-15, each of 32 messages exactly once."""
    topic, group = make_topic(queues=16), make_group()
    members = sorted((java.push(group, topic) for _ in range(3)), key=lambda member: member.client_id)
    expected = [range(6), range(6, 11), range(11, 16)]
    settle(members, topic, expected)

    messages = [Outgoing(topic, f"{i}".encode()) for i in range(32)]
    java.producer(make_group()).send(*messages)
    counts = [12, 10, 10]
    for member, count, own in zip(members, counts, expected, strict=True):
        got = member.wait_for(count)
        assert len(got) == count
        assert {message.queue_id for message in got} == set(own)
    every = [message.body for member in members for message in member.received()]
    assert sorted(every) == sorted(message.body for message in messages)


def test_surplus_member_idles_until_another_leaves(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    """S1-02, S4-09, S4-14, S4-15: 2 queues, 3 members."""
    topic, group = make_topic(queues=2), make_group()
    members = sorted((java.push(group, topic) for _ in range(3)), key=lambda member: member.client_id)
    settle(members, topic, [[0], [1], []])
    members[0].shutdown()
    settle(members[1:], topic, [[0], [1]])


def test_members_of_both_versions_form_one_group(
    both: list[JavaClient], cluster: Cluster, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    """S4-03: the broker lists every member, whatever its version."""
    topic, group = make_topic(queues=16), make_group()
    old, new = (java.push(group, topic, instance=f"member-{java.version}") for java in both)
    settle([old, new], topic, [range(8), range(8, 16)])

    messages = [Outgoing(topic, f"{i}".encode()) for i in range(48)]
    both[0].producer(make_group()).send(*messages)
    assert len(old.wait_for(24)) == 24
    assert len(new.wait_for(24)) == 24
    got = [message.body for member in (old, new) for message in member.received()]
    assert sorted(got) == sorted(message.body for message in messages)

    printed = both[0].admin("consumerConnection", "-g", group)
    assert old.client_id in printed
    assert new.client_id in printed


def test_broken_connection_removes_the_member_and_the_others_take_over(
    java: JavaClient, cluster: Cluster, make_topic: MakeTopic, make_group: MakeGroup, tmp_path: Path
) -> None:
    """S1-12: a JVM is killed; nothing unregisters."""
    topic, group = make_topic(queues=4), make_group()
    survivor = java.push(group, topic, instance="survivor")
    with JavaClient(java.version, tmp_path, namesrv=cluster.namesrv) as other:
        victim = other.push(group, topic, instance="victim")
        settle([survivor, victim], topic, [[0, 1], [2, 3]])
    settle([survivor], topic, [range(4)])

    java.producer(make_group()).send(*(Outgoing(topic, f"{i}".encode()) for i in range(8)))
    assert sorted(int(message.body) for message in survivor.wait_for(8)) == list(range(8))


def test_orderly_members_hand_queues_over_without_breaking_the_order(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    """The broker's queue locks (LOCK_BATCH_MQ, UNLOCK_BATCH_MQ): nothing lost, each queue in order."""
    topic, group = make_topic(queues=4), make_group()
    producer = java.producer(make_group())
    producer.send(*(Outgoing(topic, f"{i:04d}".encode(), order=str(i)) for i in range(60)))
    first = java.push(group, topic, orderly=True, handler_ms=5)
    first.wait_for(60)
    second = java.push(group, topic, orderly=True, handler_ms=5)
    producer.send(*(Outgoing(topic, f"{i:04d}".encode(), order=str(i)) for i in range(60, 120)))
    # 4.9 asks for a refused lock again only at its next round, and keeps one with messages in hand for 20 s.
    settle([first, second], topic, [[0, 1], [2, 3]], timeout=90.0)

    def everything() -> list[bytes]:
        return [message.body for member in (first, second) for message in member.received()]

    eventually(everything, lambda got: len(set(got)) == 120, "all 120 messages")
    by_queue: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for message in first.received() + second.received():
        by_queue[message.queue_id].append((message.at_nanos, message.queue_offset))
    assert set(by_queue) == {0, 1, 2, 3}
    for visits in by_queue.values():
        offsets = [offset for _, offset in sorted(visits)]
        assert list(dict.fromkeys(offsets)) == list(range(max(offsets) + 1))


def test_new_queue_number_is_taken_up_without_restarting_anyone(
    both: list[JavaClient], cluster: Cluster, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    """S1-06, S4-17: updateTopic at run time; here the members' own 20 s timer is what they act on."""
    topic = make_topic(queues=2)
    groups = [
        [java.push(make_group_of, topic) for _ in range(2)]
        for java in both
        for make_group_of in [make_group()]
    ]
    for members in groups:
        settle(members, topic, [[0], [1]])
    both[0].admin("updateTopic", "-b", cluster.broker, "-t", topic, "-r", "6", "-w", "6")
    for members in groups:
        settle(members, topic, [range(3), range(3, 6)], timeout=60.0)

    both[0].producer(make_group()).send(*(Outgoing(topic, f"{i}".encode()) for i in range(12)))
    for members in groups:
        eventually(partial(numbers, members), lambda got: got == list(range(12)), "each message once")


def test_first_heartbeat_makes_the_retry_topic_with_one_queue(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    """S0-37: `%RETRY%group` exists and has a route once a consumer of the group is there."""
    topic, group = make_topic(queues=1), make_group()
    java.push(group, topic)
    wait_for_route(java, f"%RETRY%{group}")
    reader = java.lite_pull(make_group())
    assert queue_ids(reader.fetch_queues(f"%RETRY%{group}")) == [0]
