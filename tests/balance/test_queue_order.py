"""model.queues: the value type and the order all members share."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gimbalmq.model.queues import MessageQueue, java_string_key, sort_client_ids, sort_queues


def test_queues_sort_by_topic_then_broker_then_number() -> None:
    """S1-32: the queue order, numbers as numbers."""
    ordered = [
        MessageQueue("A", "b", 2),
        MessageQueue("A", "b", 10),
        MessageQueue("A", "b-1", 0),
        MessageQueue("B", "a", 0),
    ]
    shuffled = ordered[:]
    Random(3).shuffle(shuffled)
    assert sort_queues(shuffled) == ordered == sorted(shuffled)


def test_client_ids_sort_as_strings_as_javas_do() -> None:
    """S1-32: 10.0.0.10 before 10.0.0.2; a character beyond U+FFFF before U+FF5E, by code unit."""
    assert sort_client_ids(["10.0.0.2@1", "10.0.0.10@1"]) == ["10.0.0.10@1", "10.0.0.2@1"]
    rocket, wide_tilde = "\U0001f680", "\uff5e"
    assert sort_client_ids([wide_tilde, rocket]) == [rocket, wide_tilde]
    assert sorted([wide_tilde, rocket]) == [wide_tilde, rocket]  # Python's own order differs


def test_queues_with_names_beyond_ascii_sort_by_code_unit() -> None:
    first, second = MessageQueue("T", "\U0001f680", 0), MessageQueue("T", "\uff5e", 0)
    assert sort_queues([second, first]) == [first, second] == sorted([second, first])
    assert first < second and first <= second and second > first and second >= first


def test_text_form_is_javas() -> None:
    queue = MessageQueue("TopicA", "broker-a", 7)
    assert str(queue) == f"{queue}" == "MessageQueue [topic=TopicA, brokerName=broker-a, queueId=7]"


def test_duplicate_ids_stay() -> None:
    assert sort_client_ids(["b", "a", "b"]) == ["a", "b", "b"]


@settings(deadline=None)
@given(st.lists(st.text(max_size=4)))
def test_the_fast_path_changes_nothing(ids: list[str]) -> None:
    assert sort_client_ids(ids) == sorted(ids, key=java_string_key)


@settings(deadline=None)
@given(st.lists(st.builds(MessageQueue, st.text(max_size=2), st.text(max_size=2), st.integers(0, 20))))
def test_sort_queues_is_sorted(queues: list[MessageQueue]) -> None:
    assert sort_queues(queues) == sorted(queues)
