"""Copied progress is taken when the log has come so far, and none of it is forgotten on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from gimbalmq.broker.consumer_offsets import ConsumerOffsets
from gimbalmq.broker.delay_levels import DelayLevels
from gimbalmq.broker.replication import progress as module
from gimbalmq.broker.replication.progress import CopiedProgress
from gimbalmq.broker.timers import Timers
from gimbalmq.model import topics
from gimbalmq.store.message_store import MessageStore
from gimbalmq.store.timer_files import TimerCheck


class Parts:
    """A store of which only the end counts, and those who are told."""

    def __init__(self) -> None:
        self.max_commitlog_offset = 0
        self.delays: list[Mapping[str, object]] = []
        self.timers: list[TimerCheck] = []
        self.offsets: dict[str, int] = {}

    def take(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        assert (group, queue_id) == (topics.TRANS_GROUP, 0)
        self.offsets[topic] = offset

    def copied(self) -> CopiedProgress:
        class Delays:
            copy = self.delays.append

        class Clocks:
            copy = self.timers.append

        return CopiedProgress(
            cast(MessageStore, self),
            cast(ConsumerOffsets, self),
            cast(DelayLevels, Delays),
            cast(Timers, Clocks),
        )


def test_a_number_waits_until_the_log_has_what_it_tells_of() -> None:
    parts = Parts()
    copied = parts.copied()
    copy = copied.begin()
    copy.delays = {"offsetTable": {"1": 5}, "marksFrom": 40}
    copy.timers = TimerCheck(read_ms=7)
    copy.transactions = {topics.HALF_TOPIC: 3}
    copied.end(copy, 100)
    parts.max_commitlog_offset = 99
    copied.settle()
    assert (parts.delays, parts.timers, parts.offsets) == ([], [], {})
    parts.max_commitlog_offset = 100
    copied.settle()
    assert parts.delays == [{"offsetTable": {"1": 5}, "marksFrom": 40}]
    assert (parts.timers, parts.offsets) == ([TimerCheck(read_ms=7)], {topics.HALF_TOPIC: 3})


def test_a_master_without_marks_is_believed_from_the_end_of_our_log_on() -> None:
    parts = Parts()
    copied = parts.copied()
    parts.max_commitlog_offset = 60
    copy = copied.begin()
    parts.max_commitlog_offset = 90
    copy.delays = {"offsetTable": {}}
    copied.end(copy, 90)
    assert parts.delays == [{"offsetTable": {}, "marksFrom": 60}]


def test_what_a_later_answer_does_not_tell_is_as_the_earlier_one_said() -> None:
    parts = Parts()
    copied = parts.copied()
    for number in range(module._WAITING + 5):
        copy = copied.begin()
        if number in (1, module._WAITING + 1):
            copy.transactions = {(topics.HALF_TOPIC, topics.OP_HALF_TOPIC)[number > 1]: number}
        if number == 2:
            copy.timers = TimerCheck(read_ms=2)
        copied.end(copy, 100 + number)
    parts.max_commitlog_offset = 1000
    copied.settle()
    assert parts.offsets == {topics.HALF_TOPIC: 1, topics.OP_HALF_TOPIC: module._WAITING + 1}
    assert parts.timers == [TimerCheck(read_ms=2)]


def test_the_answers_of_another_master_are_forgotten() -> None:
    parts = Parts()
    copied = parts.copied()
    copy = copied.begin()
    copy.transactions = {topics.HALF_TOPIC: 3}
    copied.end(copy, 100)
    copied.forget()
    parts.max_commitlog_offset = 100
    copied.settle()
    assert parts.offsets == {}
