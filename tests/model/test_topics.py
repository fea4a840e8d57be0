"""Which names are legal: by their letters, and by what the longest name made of them needs on disk."""

from __future__ import annotations

import pytest

from gimbalmq.model import topics


def test_longest_names_and_all_that_is_made_of_them_fit_a_folder() -> None:
    group = "g" * topics.MAX_GROUP_LENGTH
    assert topics.group_problem(group) is None
    for derived in (topics.retry_topic(group), topics.dlq_topic(group)):
        assert topics.topic_problem(derived) is None
        assert len(derived.encode()) <= topics.MAX_NAME_BYTES
    assert topics.topic_problem("t" * 127) is None


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("t" * 128, "127"),
        (topics.RETRY_PREFIX + "g" * 249, "255"),
        (topics.DLQ_PREFIX + "g" * 251, "255"),
        (".", "illegal"),
        ("..", "illegal"),
        ("a/b", "illegal"),
        ("a\\b", "illegal"),
        ("a\0b", "illegal"),
        ("a\n", "illegal"),
        ("a.b", "illegal"),
        ("a@b", "illegal"),
        ("ü" * 127, "illegal"),
        ("\u0661", "illegal"),
        ("\ud800", "\\ud800"),
        ("", "blank"),
        (" \t", "blank"),
    ],
)
def test_names_that_no_topic_can_have(name: str, word: str) -> None:
    problem = topics.topic_problem(name)
    assert problem is not None and word in problem
    problem.encode()


@pytest.mark.parametrize(
    ("name", "word"),
    [("g" * 249, "248"), ("ü", "illegal"), ("a@b", "illegal"), ("..", "illegal"), ("", "blank")],
)
def test_names_that_no_group_can_have(name: str, word: str) -> None:
    problem = topics.group_problem(name)
    assert problem is not None and word in problem


def test_a_name_of_megabytes_is_not_repeated_to_its_sender() -> None:
    for problem in (topics.topic_problem("x" * 10_000_000), topics.group_problem("a b" * 1_000_000)):
        assert problem is not None and len(problem) < 300


@pytest.mark.parametrize("name", ["broker-a", "hz@broker-a", "node1.example.org"])
def test_names_that_brokers_have(name: str) -> None:
    """S2-11: MACHINE_ROOM reads the room out of ``room@name``."""
    assert topics.broker_problem(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "a" * 128, "a\n"])
def test_names_that_no_broker_can_have(name: str) -> None:
    assert "127" in (topics.broker_problem(name) or "")
