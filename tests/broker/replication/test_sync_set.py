"""Who is in sync: joining, leaving, answers that are lost, and what is confirmed meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import pytest

from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.broker.replication.sync_set import SyncSet
from tests.support import ManualClock


@dataclass(eq=False)
class Slave:
    slave_id: int | None
    acked: int = -1


class Desk:
    """A master with id 1 and a log of which only the end is known."""

    def __init__(self, *, all_ack: bool = True) -> None:
        self.clock = ManualClock()
        self.end = 10_000_000
        self.slaves: list[Slave] = []
        self.live = LiveConfig(BrokerConfig(store_path_root_dir="unused", all_ack_in_sync_state_set=all_ack))
        self.set = SyncSet(1, self.slaves, lambda: self.end, self.live, self.clock)
        self.wishes = 0
        self.set.wish = self._wish
        self.set.begin([1], 1, 0, goes_on=False)

    def _wish(self) -> None:
        self.wishes += 1

    def connect(self, who: int, acked: int) -> Slave:
        slave = Slave(who, acked)
        self.slaves.append(slave)
        self.set.reported(slave)
        return slave

    def report(self, slave: Slave, acked: int) -> None:
        slave.acked = acked
        self.set.reported(slave)

    def leave(self, slave: Slave) -> None:
        self.slaves.remove(slave)
        self.set.left(slave)

    def says_the_same(self) -> None:
        """The controller is asked for the set that we know."""
        self.set.unchanged(self.set.asking(self.set.members))

    def grant(self, *members: int) -> None:
        assert self.set.wished() == frozenset(members)
        self.set.asking(self.set.wished())
        assert self.set.take(members, self.set.epoch + 1)


def joined(*, all_ack: bool = True) -> tuple[Desk, Slave]:
    desk = Desk(all_ack=all_ack)
    slave = desk.connect(2, desk.end)
    desk.grant(1, 2)
    return desk, slave


def test_alone_everything_is_confirmed_at_once() -> None:
    desk = Desk()
    desk.end += 500
    desk.set.advance()
    assert desk.set.confirm == desk.end


@pytest.mark.parametrize(("rule", "suffices"), [("safe", False), ("5.x", True)])
def test_a_set_that_shrinks_below_the_least_while_a_send_waits_does_not_suffice(
    rule: str, suffices: bool
) -> None:
    """Apache's master answers with success what it alone has, if the others have left the set meanwhile."""

    async def work() -> None:
        desk, slave = joined()
        desk.live.swap(replace(desk.live.now, in_sync_replicas=2, min_in_sync_replicas=2, replica_rule=rule))
        desk.end += 100
        wait = desk.set.wait(desk.end)
        assert not wait.ended
        desk.leave(slave)
        desk.grant(1)
        assert desk.set.confirm == desk.end
        assert wait.result is suffices
        assert desk.set.wait(desk.end).result is suffices

    asyncio.run(work())


def test_a_slave_far_behind_is_not_counted() -> None:
    desk = Desk()
    desk.connect(2, 5)
    assert desk.set.counted == {1} and not desk.wishes
    desk.end += 100
    desk.set.advance()
    assert desk.set.confirm == desk.end


def test_a_slave_is_counted_before_the_controller_is_asked() -> None:
    desk = Desk()
    slave = desk.connect(2, desk.end - 1000)
    assert desk.set.counted == {1, 2} and desk.set.wished() == {1}
    confirmed = desk.set.confirm
    target = desk.end
    desk.end += 5000  # sends go on
    desk.set.advance()
    assert desk.set.confirm == confirmed, "a slave that may be elected soon lacks it"
    desk.report(slave, target - 1)
    assert desk.set.wished() == {1}
    desk.report(slave, target)
    assert desk.wishes == 1 and desk.set.wished() == {1, 2}
    desk.grant(1, 2)
    assert desk.set.confirm == target
    desk.report(slave, desk.end)
    assert desk.set.confirm == desk.end


def test_a_slave_that_is_counted_and_stalls_holds_sends_for_two_seconds_only() -> None:
    desk = Desk()
    desk.connect(2, desk.end - 1000)
    desk.end += 5000
    desk.clock.now += 1.9
    desk.set.check()
    assert desk.set.confirm < desk.end
    desk.clock.now += 0.2
    desk.set.check()
    assert desk.set.confirm == desk.end and desk.set.counted == {1}


def test_a_slave_that_the_controller_does_not_take_holds_sends_for_15_seconds_only() -> None:
    desk = Desk()
    slave = desk.connect(2, desk.end)
    had = desk.end
    desk.set.refused(desk.set.asking(desk.set.wished()))
    assert desk.set.counted == {1, 2}
    desk.end += 1_000_000
    for _ in range(3):
        desk.clock.advance(5.0)
        desk.report(slave, had)
        desk.set.check()
        assert desk.set.confirm == had
    desk.clock.advance(5.0)
    desk.report(slave, had)
    desk.set.check()
    assert desk.set.counted == {1} and desk.set.confirm == desk.end


def test_all_of_the_set_confirm() -> None:
    desk, second = joined()
    third = desk.connect(3, desk.end)
    desk.grant(1, 2, 3)
    desk.end += 300
    desk.report(second, desk.end)
    assert desk.set.confirm == desk.end - 300
    desk.report(third, desk.end - 100)
    assert desk.set.confirm == desk.end - 100
    desk.report(third, desk.end)
    assert desk.set.confirm == desk.end


def test_who_leaves_counts_until_the_controller_agrees() -> None:
    desk, slave = joined()
    desk.leave(slave)
    assert desk.wishes == 2 and desk.set.wished() == {1}
    desk.end += 100
    desk.set.asking(desk.set.wished())
    desk.set.advance()
    assert desk.set.confirm == desk.end - 100, "the controller may elect the one that left"
    desk.set.take([1], desk.set.epoch + 1)
    assert desk.set.confirm == desk.end


def test_a_lost_answer_counts_until_the_epoch_tells() -> None:
    desk, slave = joined()
    third = desk.connect(3, desk.end)
    desk.set.asking(desk.set.wished())  # and the answer is lost
    desk.leave(third)
    desk.end += 100
    desk.report(slave, desk.end)
    assert desk.set.confirm == desk.end - 100
    before = desk.set.asking(desk.set.wished())
    desk.set.refused(before)  # this time an answer: no
    assert desk.set.confirm == desk.end - 100, "the first question may still be granted"
    assert not desk.set.take([1, 2], desk.set.epoch), "nothing new: it may still be granted"
    assert desk.set.confirm == desk.end - 100
    assert desk.set.take([1, 2], desk.set.epoch + 1)
    assert desk.set.confirm == desk.end


def test_a_question_without_an_answer_is_void_when_the_set_has_stayed_the_same_for_a_while() -> None:
    desk, slave = joined()
    third = desk.connect(3, desk.end)
    desk.set.asking(desk.set.wished())  # and the answer is lost
    desk.leave(third)
    desk.end += 100
    desk.report(slave, desk.end)

    def says_the_same_after(seconds: float) -> bool:
        desk.clock.now += seconds
        desk.says_the_same()
        assert desk.set.is_uncertain == (desk.set.confirm < desk.end)
        return desk.set.is_uncertain

    assert says_the_same_after(5.0) and says_the_same_after(9.9)
    desk.set.asking(frozenset((1, 2, 3)))  # lost, too
    assert says_the_same_after(5.0) and says_the_same_after(9.9)
    assert not says_the_same_after(0.2)


def test_a_question_without_an_answer_about_who_should_leave_is_not_waited_for() -> None:
    """Whoever it would leave in the set counts in any case."""
    desk, _ = joined()
    desk.set.asking(frozenset((1,)))  # and the answer is lost
    desk.says_the_same()
    assert not desk.set.is_uncertain


def test_who_does_not_catch_up_for_15_seconds_leaves() -> None:
    desk, slave = joined()
    for _ in range(60):  # half a second behind all the time, which is in step
        desk.clock.now += 0.5
        desk.end += 1000
        desk.report(slave, desk.end - 1000)
    desk.set.check()
    assert desk.set.wished() == {1, 2}
    desk.end += 10_000
    for _ in range(16):
        desk.clock.now += 1
        desk.report(slave, slave.acked + 1)
    desk.set.check()
    assert desk.set.wished() == {1}


def test_a_member_that_never_came_has_a_moment_to_do_so() -> None:
    desk = Desk()
    desk.set.begin([1, 2], 7, desk.end, goes_on=True)
    desk.set.check()
    assert desk.set.wished() == {1, 2}
    desk.clock.now += 4.9
    desk.set.check()
    assert desk.set.wished() == {1, 2}
    desk.clock.now += 0.2
    desk.set.check()
    assert desk.set.wished() == {1}


def test_a_member_that_has_lost_what_it_confirmed_leaves() -> None:
    desk, slave = joined()
    desk.end += 500
    desk.report(slave, desk.end)
    desk.leave(slave)
    again = desk.connect(2, desk.end - 100)  # it comes back at once, and the power has cost it 100 bytes
    assert desk.set.wished() == {1}
    desk.report(again, desk.end)
    assert desk.set.wished() == {1}, "the controller could have elected it; it leaves and joins anew"
    desk.grant(1)
    desk.report(again, desk.end)
    desk.grant(1, 2)


def test_of_two_connections_of_one_slave_the_newer_counts() -> None:
    desk, old = joined()
    desk.end += 1000
    newer = Slave(2, -1)
    desk.slaves.append(newer)  # it has not said yet how much it has
    desk.report(old, desk.end)
    assert desk.set.confirm == desk.end - 1000
    desk.leave(old)
    assert desk.set.wished() == {1, 2}
    desk.report(newer, desk.end)
    assert desk.set.confirm == desk.end


def test_without_all_ack_the_end_is_confirmed() -> None:
    desk, _ = joined(all_ack=False)
    desk.end += 100
    desk.set.advance()
    assert desk.set.confirm == desk.end


def test_confirm_never_goes_back() -> None:
    desk, slave = joined()
    confirmed = desk.set.confirm
    desk.connect(3, desk.end - 50)
    assert desk.set.confirm == confirmed
    desk.leave(slave)
    assert desk.set.confirm == confirmed


def test_waits_are_over_in_order_and_at_the_end_of_a_term() -> None:
    async def scenario() -> None:
        desk, slave = joined()
        desk.end += 300
        waits = [desk.set.wait(desk.end - 200), desk.set.wait(desk.end - 100), desk.set.wait(desk.end)]
        assert desk.set.waiting == 3
        desk.report(slave, desk.end - 100)
        assert [wait.ended for wait in waits] == [True, True, False]
        desk.set.give_up()
        assert waits[2].result is False and waits[0].result is True
        assert (desk.set.wait(desk.end - 100)).result is True

    asyncio.run(scenario())


def test_an_option_may_change_while_sends_wait() -> None:
    desk, _ = joined()
    desk.end += 100
    desk.set.advance()
    assert desk.set.confirm < desk.end
    desk.live.now = replace(desk.live.now, all_ack_in_sync_state_set=False)
    desk.set.advance()
    assert desk.set.confirm == desk.end


@pytest.mark.parametrize("all_ack", [True, False])
def test_a_new_term_begins_with_all_of_the_log(all_ack: bool) -> None:
    desk, _ = joined(all_ack=all_ack)
    desk.end += 100
    desk.set.begin([1], 9, desk.end - 100, goes_on=False)
    assert desk.set.confirm == desk.end and desk.set.counted == {1} and desk.set.epoch == 9


def test_a_master_started_again_in_its_term_confirms_nothing_by_itself() -> None:
    """It may have messages that no slave had: they were shown, and then another was elected that lacks them."""
    desk = Desk()
    desk.set.begin([1, 2, 3], 9, desk.end - 100, goes_on=True)
    assert desk.set.confirm == desk.end - 100
    desk.connect(2, desk.end)
    assert desk.set.confirm == desk.end - 100, "nobody knows yet what 3 has"
    desk.connect(3, desk.end - 40)
    assert desk.set.confirm == desk.end - 100, "nobody knows yet whether a fourth was asked for"
    desk.says_the_same()
    desk.clock.now += 10
    desk.says_the_same()
    assert desk.set.confirm == desk.end - 40
    assert desk.set.wished() == {1, 2, 3}, "who lacks what was never confirmed has lost nothing"


def test_what_the_process_before_asked_is_void_when_the_set_is_another() -> None:
    desk = Desk()
    desk.set.begin([1], 9, desk.end - 100, goes_on=True)
    assert desk.set.is_uncertain and not desk.set.is_alone
    desk.connect(2, desk.end)
    assert desk.set.confirm == desk.end - 100
    desk.grant(1, 2)
    assert desk.set.confirm == desk.end and not desk.set.is_uncertain


def test_what_the_process_before_asked_is_void_after_a_while_of_answers() -> None:
    """A controller that gives no answers may stand still with the question."""
    desk = Desk()
    desk.set.begin([1], 9, desk.end - 100, goes_on=True)
    desk.says_the_same()
    desk.clock.now += 6
    desk.set.asking(desk.set.members)  # and the answer is lost
    desk.clock.now += 6
    desk.says_the_same()
    assert desk.set.is_uncertain and desk.set.confirm == desk.end - 100
    desk.clock.now += 6
    desk.set.not_asked(desk.set.asking(desk.set.members))
    desk.clock.now += 6
    desk.says_the_same()
    assert desk.set.is_uncertain and desk.set.confirm == desk.end - 100
    desk.clock.now += 10
    desk.says_the_same()
    assert desk.set.is_alone and desk.set.confirm == desk.end


def test_a_smaller_set_of_the_same_epoch_is_the_newer_one() -> None:
    """An operator has had the controller forget a member; it may still grant what was asked for before."""
    desk, slave = joined()
    third = desk.connect(3, desk.end)
    desk.grant(1, 2, 3)
    desk.set.asking(frozenset((1, 3)))  # and the answer is lost
    desk.leave(slave)
    desk.leave(third)
    desk.end += 100
    assert not desk.set.take([2], desk.set.epoch) and not desk.set.take([1, 2, 4], desk.set.epoch)
    assert desk.set.take([1], desk.set.epoch)
    assert desk.set.members == {1} and desk.set.confirm == desk.end - 100, "the third may be a member again"
    assert not desk.set.take([1, 2, 3], desk.set.epoch), "this was said before"
    assert desk.set.take([1], desk.set.epoch + 1) and desk.set.confirm == desk.end


def test_a_refusal_between_two_answers_that_the_set_is_the_same_has_no_effect_later() -> None:
    desk = Desk()
    desk.set.begin([1], 9, desk.end - 100, goes_on=True)
    desk.says_the_same()
    desk.clock.now += 10
    desk.set.refused(desk.set.asking(frozenset((1, 3))))
    assert desk.set.is_uncertain
    desk.says_the_same()
    assert desk.set.is_alone
