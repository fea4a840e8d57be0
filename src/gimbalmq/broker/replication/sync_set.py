"""Which replicas are in sync, as the master of a term sees it, and up to where the log is confirmed.

The controller keeps the set and elects masters from it. So whoever is in it, or may be, must have everything that was
answered. The master asks the controller to change the set; until it hears the answer, both the old set and the wished
one count, and if the answer is lost, both count until the set's epoch shows what became of the question. What a process
before this one asked in the same term nobody knows, so after a restart anybody may be in the set soon.

A slave that joins is counted before the controller is asked: from then on sends wait for it, too. The controller is
asked when the slave has all that was in the log at that moment. So nothing was answered that it lacks, and a steady
stream of sends does not keep it out.

With ``allAckInSyncStateSet`` the log is confirmed up to where all of them have it: sends are answered, and readers see
it, up to there. Otherwise it is confirmed to its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gimbalmq._clock import Clock
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.waits import Wait, ended
from gimbalmq.transport.pool import GIVE_UP_SECONDS

_JOIN_SECONDS = 2.0
"""A slave that is counted and does not get all of the log in this time has to catch up once more."""


_LATE_SECONDS = GIVE_UP_SECONDS + 2.0
"""A question that was not answered may reach the controller behind later ones: it waited in a process that stood still,
or on a connection that died and was replaced, or a leader that is none any more answered the later ones. Nothing takes
so long once the controller answers again. What was written to the connection before is taken by the controller's
system within ``GIVE_UP_SECONDS``, or never: then the connection is over, and nothing of it is sent any more. The rest
is for the way, and for the process to read it."""


class Member(Protocol):
    """A connected slave (``replica.Replica``)."""

    @property
    def slave_id(self) -> int | None: ...
    @property
    def acked(self) -> int: ...


@dataclass(slots=True)
class _Pace:
    """How far behind a slave is in time.

    It has had, at some moment, all that the log held at ``caught_up``. Next it has to reach ``mark``, where the log
    ended at ``marked_at``.
    """

    caught_up: float
    mark: int
    marked_at: float


class Before(NamedTuple):
    """What was known before a question, for those whose answer tells nothing new."""

    asked: frozenset[int]
    same_since: float | None


class SyncSet:
    """The set of one master.

    Args:
        slaves: connected slaves that may be in the set, whether they are or not.
        end: where the log ends.

    Attributes:
        own_id: this broker's.
        members: the set, as the controller last said.
        epoch: of that set.
        confirm: up to where the log is confirmed.
        wish: called when the controller should be asked for another set.
        confirmed: called when ``confirm`` has grown.
    """

    def __init__(
        self,
        own_id: int,
        slaves: Iterable[Member],
        end: Callable[[], int],
        live: LiveConfig,
        clock: Clock,
    ) -> None:
        self.own_id = own_id
        self.members: frozenset[int] = frozenset((own_id,))
        self.epoch = 0
        self.confirm = 0
        self.wish: Callable[[], None] = _nothing
        self.confirmed: Callable[[], None] = _nothing
        self._slaves = slaves
        self._end = end
        self._live = live
        self._now = clock.monotonic
        self._asked: frozenset[int] = frozenset()
        """All that was asked for without an answer."""
        self._others_asked = False
        """Whether a process before this one may have asked for anybody in this term."""
        self._same_since: float | None = None
        """Since when the controller answers every question, and has the set that we know."""
        self._joining: dict[int, tuple[int, float]] = {}
        """Who is counted already: the end of the log then, and when that was."""
        self._paces: dict[int, _Pace] = {}
        self._poorer: set[int] = set()
        """Members that have lost what they had confirmed: they have to leave, and to join anew."""
        self._missing: dict[int, float] = {}
        """Since when a member has had no connection."""
        self._waits: deque[tuple[int, Wait[bool]]] = deque()

    # --- what counts -------------------------------------------------------------------------

    @property
    def counted(self) -> frozenset[int]:
        """Everybody who is in the set or may be."""
        return self.members | self._asked | self._joining.keys()

    @property
    def size(self) -> int:
        """How many are in sync for certain."""
        return len(self.members)

    def begin(self, members: Iterable[int], epoch: int, known: int, *, goes_on: bool) -> None:
        """A term begins, or goes on after a restart: of the set only what the controller says counts.

        At the begin of a term the set is this broker alone, and all of its log is confirmed. A master that was started
        again in its own term still has the others in its set, who need not have the end of its log: until they say that
        they have it, nobody is shown more than was confirmed before. The process before may have asked for more of
        them, and the controller grants that as long as the set's epoch is the same. In a new term it does not.

        Args:
            known: up to where the log is known to be confirmed.
            goes_on: a process before this one may have led this term.
        """
        self.members, self.epoch = frozenset(members), epoch
        self._asked = frozenset()
        self._others_asked = goes_on
        self._same_since = None
        self._joining.clear()
        self._missing.clear()
        self._poorer.clear()
        self._paces.clear()
        self.confirm = min(known, self._end())
        self._look()

    def take(self, members: Iterable[int], epoch: int) -> bool:
        """What the controller says of the set; False if that is not newer than what we know."""
        told = frozenset(members)
        if epoch == self.epoch and self.own_id in told and told < self.members:
            self._forgotten(told)
            return True
        if epoch <= self.epoch:
            return False
        self.members, self.epoch = told, epoch
        self._nothing_asked()  # whatever was asked with the epoch before is void
        self._same_since = None
        for joined in self.members & self._joining.keys():
            del self._joining[joined]
        self._poorer &= self.members
        self._look()
        return True

    def _forgotten(self, left: frozenset[int]) -> None:
        """The controller was made to forget members (1011), which does not change the set's epoch.

        With one epoch a set only gets smaller, so this is newer. What was asked may still be granted.
        """
        self.members = left
        self._same_since = None
        self._poorer &= left
        self._look()

    # --- slaves ------------------------------------------------------------------------------

    def reported(self, slave: Member) -> None:
        """A slave that may be in the set has reported."""
        who = slave.slave_id
        assert who is not None
        now, end = self._now(), self._end()
        self._missing.pop(who, None)
        pace = self._paces.get(who)
        if pace is None:
            self._paces[who] = _Pace(now, end, now)
        elif slave.acked >= pace.mark:
            self._paces[who] = _Pace(now if slave.acked >= end else pace.marked_at, end, now)
        lacks = slave.acked < self.confirm and self._live.now.all_ack_in_sync_state_set
        if lacks and who in self.members and who not in self._poorer:
            self._poorer.add(who)
            self.wish()
        near = 4 * self._live.now.ha_transfer_batch_size
        if who not in self.members and who not in self._joining and slave.acked >= end - near:
            # What it lacks is on its way to it.
            self._joining[who] = (end, now)
        since = self._joining.get(who)
        if since is not None and slave.acked >= since[0] and who not in self._asked:
            self.wish()
        self._look()

    def left(self, slave: Member) -> None:
        """The connection of a slave has ended."""
        who = slave.slave_id
        if who is None or any(other.slave_id == who for other in self._slaves):
            return  # it has another connection by now
        self._joining.pop(who, None)
        self._paces.pop(who, None)
        if who in self.counted:
            # The time of grace is for members that have not come yet; this one was here.
            self._missing.setdefault(who, self._now() - self._grace())
            self.wish()
        self._look()

    def _grace(self) -> float:
        return self._live.now.check_sync_state_set_period / 1000

    def _patience(self) -> float:
        return self._live.now.ha_max_time_slave_not_catchup / 1000

    def check(self) -> None:
        """Looks who has fallen behind or never came; for a timer."""
        now = self._now()
        ends = self._ends()
        for who in self.members - {self.own_id}:
            if who in ends:
                self._missing.pop(who, None)
            else:
                self._missing.setdefault(who, now)
        for who, (target, since) in list(self._joining.items()):
            late = ends.get(who, -1) < target and now - since > _JOIN_SECONDS
            pace = self._paces.get(who)
            # A slave that the controller does not take does not count for ever, either.
            late = late or (pace is not None and now - pace.caught_up > self._patience())
            if who not in self._asked and (who not in ends or late):
                del self._joining[who]
        self._look()
        if self.wished() != self.members:
            self.wish()

    def wished(self) -> frozenset[int]:
        """The set that should be: who leaves is out, who has everything is in."""
        now = self._now()
        ends = self._ends()
        wished = {self.own_id}
        for who in self.members - wished - self._poorer:
            if who not in ends:
                if now - self._missing.get(who, now) < self._grace():
                    wished.add(who)
            else:
                # One that is connected and has not reported yet is taken for one that has everything now.
                pace = self._paces.setdefault(who, _Pace(now, self._end(), now))
                if now - pace.caught_up <= self._patience():
                    wished.add(who)
        wished |= {who for who, (target, _) in self._joining.items() if ends.get(who, -1) >= target}
        return frozenset(wished)

    def asking(self, wished: frozenset[int]) -> Before:
        """The controller is about to be asked; returns what the answer's method needs.

        Without an answer none is called: then nobody knows what becomes of the question, nor what the controller does.
        """
        before = Before(self._asked, self._same_since)
        self._asked = before.asked | wished
        self._same_since = None
        return before

    def not_asked(self, before: Before) -> None:
        """It was not reached: what was asked just now is void, unlike what was not answered before."""
        self._asked = before.asked
        self._look()

    def refused(self, before: Before) -> None:
        """It said no, and so what was asked just now has no effect later, either."""
        self._same_since = before.same_since
        self.not_asked(before)

    def unchanged(self, before: Before) -> None:
        """The controller's set is the one we know. It may still be about to deal with what was asked before."""
        now = self._now()
        self._same_since = since = now if before.same_since is None else before.same_since
        may_come = self._others_asked or not self._asked <= self.members
        if not may_come or now - since >= _LATE_SECONDS:
            self._nothing_asked()
            self._look()

    def _nothing_asked(self) -> None:
        self._asked = frozenset()
        self._others_asked = False

    @property
    def is_uncertain(self) -> bool:
        """Whether something was, or may have been, asked without an answer."""
        return self._others_asked or bool(self._asked)

    @property
    def is_alone(self) -> bool:
        """Whether nobody else is in the set, or may be."""
        return self.counted == {self.own_id} and not self._others_asked

    # --- the confirm offset ------------------------------------------------------------------

    def advance(self) -> None:
        """The log has grown, or an option was changed."""
        self._look()

    def wait(self, end: int) -> Wait[bool]:
        """Ends when the log is confirmed up to ``end``; with False if this master's term is over, or the set too small.

        Whoever waits no longer ends the wait itself.
        """
        self._look()
        if self.confirm >= end:
            return ended(self._suffices())
        waits = self._waits
        while waits and waits[0][1].ended:
            waits.popleft()
        wait: Wait[bool] = Wait()
        waits.append((end, wait))
        return wait

    @property
    def waiting(self) -> int:
        return sum(not wait.ended for _, wait in self._waits)

    def give_up(self) -> None:
        """The term is over: what is not confirmed now never will be by us."""
        waits, self._waits = self._waits, deque()
        for _, wait in waits:
            wait.end(False)

    def _look(self) -> None:
        reached = self._reached()
        if reached <= self.confirm:
            return
        self.confirm = reached
        waits = self._waits
        while waits and (waits[0][0] <= reached or waits[0][1].ended):
            waits.popleft()[1].end(self._suffices())
        self.confirmed()

    def _suffices(self) -> bool:
        """Whether what all of the set have is on enough replicas.

        A send is stored only if the set is large enough (minInSyncReplicas). The set may shrink while the send waits,
        down to this broker alone, and then nobody else need have the message.
        """
        config = self._live.now
        return config.replica_rule != "safe" or self.size >= config.min_in_sync_replicas

    def _reached(self) -> int:
        """Up to where everybody who counts has the log; -1 if somebody's log is not known."""
        end = self._end()
        if not self._live.now.all_ack_in_sync_state_set:
            return end
        if self._others_asked:
            return -1
        others = self.counted - {self.own_id}
        if not others:
            return end
        ends = self._ends()
        return min(end, *(ends.get(who, -1) for who in others))

    def _ends(self) -> dict[int, int]:
        """Where the logs of connected slaves end; of two connections of one slave the newer counts."""
        return {slave.slave_id: slave.acked for slave in self._slaves if slave.slave_id is not None}


def _nothing() -> None:
    pass
