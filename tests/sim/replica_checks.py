"""What replicated clusters promise, checked while they run and when they have healed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from gimbalmq.broker.broker import Broker
from gimbalmq.broker.replication.acknowledging import Settled
from gimbalmq.protocol.codes import ResponseCode
from tests.sim.machines import Machine

TAIL_BYTES = 300
"""So much of the log before an offset is compared to see that two logs have the same up to there."""
_MARK = re.compile(rb"#[0-9]{8}#")
"""What the body of a message begins with, and what tells it from all others."""
AGAIN = 20
"""So many messages of a queue that were looked at before are looked at again: they may have been cut meanwhile."""
MOST_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class Answer:
    """A send that was answered with success: where its message lies, as the answer says."""

    mark: bytes
    queue_id: int
    queue_offset: int
    log_offset: int
    at: float


class Checks:
    """Notes what was answered and by whom, and compares it with the machines' logs.

    Args:
        needed: how many machines, the master's among them, must have a message when it is answered with success.
        must_have: further machines that must have it then.
        may_answer: asked when a broker answers with success whether it may; says why not.
        kept: whether what was answered with success is never lost.

    Attributes:
        problems: what was broken.
        answers: of sends that were answered with success, by their marks.
    """

    def __init__(
        self,
        machines: Sequence[Machine],
        *,
        needed: int,
        must_have: Callable[[], list[Machine]],
        may_answer: Callable[[Machine], str | None],
        kept: bool,
    ) -> None:
        self.problems: list[str] = []
        self.answers: dict[bytes, Answer] = {}
        self._machines = machines
        self._needed = needed
        self._must_have = must_have
        self._may_answer = may_answer
        self._kept = kept
        self._masters: dict[int, int] = {}
        """By epoch, which machine took messages in it."""
        self._seen: dict[tuple[int, int], int] = {}
        """How many answers a master of an epoch was found to have."""
        self._shown: dict[tuple[int, int], bytes] = {}
        """What readers were shown, by queue and offset."""
        self._looked: dict[tuple[int, int], int] = {}
        """Up to which offset the queues of a machine were looked at."""
        self._compared: dict[tuple[int, int, str], int] = {}

    def found(self, problem: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(f"{asyncio.get_running_loop().time():.3f} s: {problem}")

    # --- while it runs -----------------------------------------------------------------------

    def watch(self, machine: Machine, broker: Broker) -> None:
        """Hears of every send that this broker stores, and how it answers."""
        settle = broker.acknowledging.settle

        def settled(end: int) -> Settled:
            self._stored(machine, broker)
            code = settle(end)
            if isinstance(code, ResponseCode):
                self._answered(machine, broker, end, code)
            else:
                code.then(partial(self._answered, machine, broker, end))
            return code

        broker.acknowledging.settle = settled  # type: ignore[method-assign]

    def _stored(self, machine: Machine, broker: Broker) -> None:
        epoch = broker.roles.now.epoch
        if epoch and self._masters.setdefault(epoch, machine.number) != machine.number:
            self.found(
                f"{machine.number} took a message in epoch {epoch}, in which {self._masters[epoch]} is the master"
            )
        if not broker.roles.is_master:
            self.found(f"{machine.number} took a message and is a slave")

    def _answered(self, machine: Machine, broker: Broker, end: int, code: ResponseCode) -> None:
        if code is not ResponseCode.SUCCESS or machine.broker is not broker:
            return
        why = self._may_answer(machine)
        if why is not None:
            self.found(f"{machine.number} answered with success, and {why}")
        begin = max(0, end - TAIL_BYTES)
        tail = machine.log(begin, end)
        having = [other.number for other in self._machines if other.has_had(begin, tail)]
        if len(having) < self._needed:
            self.found(
                f"{machine.number} answered with success up to {end}, and only {having} have that, not {self._needed}"
            )
        for other in self._must_have():
            if other.number not in having:
                self.found(
                    f"{machine.number} answered with success up to {end}, and {other.number}, which may be elected, "
                    "does not have that"
                )

    def accepted(self, answer: Answer) -> None:
        """A sender has heard of success."""
        self.answers[answer.mark] = answer

    def look(self) -> None:
        """Compares the logs of slaves with that of the master they copy, as far as both have come."""
        by_host = {machine.host: machine for machine in self._machines if machine.is_up}
        for machine in by_host.values():
            assert machine.broker is not None
            if not machine.broker.roles.is_master:
                continue
            for replica in machine.broker.source.replicas:
                slave = by_host.get(replica.host)
                if slave is None or replica.acked < 0 or slave.broker is None:
                    continue
                link = slave.broker.replication.follower._link
                if link is None or not link.is_open or link._transport is None:
                    continue
                host, port = link._transport.get_extra_info("sockname")
                if f"{host}:{port}" == replica.address:
                    self._compare(machine, slave, replica.address)

    def _compare(self, master: Machine, slave: Machine, line: str) -> None:
        """What was compared on one connection need not be compared again: no log is cut while it lasts."""
        key = (master.number, slave.number, line)
        begin = self._compared.get(key, 0)
        end = min(master.end, slave.end)
        if slave.end > master.end:
            self.found(
                f"{slave.number} copies {master.number} and has {slave.end - master.end} bytes more: {slave.end}"
            )
        if slave.log(begin, end) != master.log(begin, end):
            self.found(
                f"the logs of {slave.number} and of its master {master.number} differ before {end}: "
                f"{difference(slave.log(), master.log())}"
            )
        self._compared[key] = end

    def has_all(self, machine: Machine, epoch: int, who: str) -> None:
        """Whoever was elected has all that was answered with success."""
        if not self._kept:
            return
        key = (machine.number, epoch)
        answers = list(self.answers.values())
        lost = [answer.mark for answer in answers[self._seen.get(key, 0) :] if not self._has(machine, answer)]
        if lost:
            self.found(f"{who} lacks {len(lost)} of {len(answers)}: {b' '.join(lost[:5]).decode()}")
        self._seen[key] = len(answers)

    def joined(self) -> None:
        """The controller has another set: whoever is in it may be elected, and has all that was answered."""
        for machine in self._must_have():
            lost = [answer.mark for answer in self.answers.values() if not self._has(machine, answer)]
            if lost:
                self.found(f"{machine.number} is in the set and lacks {len(lost)}: {lost[0].decode()}")

    def _has(self, machine: Machine, answer: Answer) -> bool:
        return answer.mark in machine.log(answer.log_offset, answer.log_offset + TAIL_BYTES)

    def cuts(self, machine: Machine, begin: int, end: int) -> None:
        """A log is about to be cut: its master has all that was answered, so nothing of that goes."""
        if not self._kept:
            return
        cut = [
            answer.mark
            for answer in self.answers.values()
            if begin <= answer.log_offset < end and self._has(machine, answer)
        ]
        if cut:
            self.found(
                f"{machine.number} cuts its log from {begin} on, and {len(cut)} answered: {cut[0].decode()}"
            )

    def goes_dark(self, dark: Machine) -> None:
        """A machine is about to lose power: another one has all that was answered, or it is lost."""
        if not self._kept:
            return
        others = [machine for machine in self._machines if machine is not dark]
        alone = [
            answer.mark
            for answer in self.answers.values()
            if not any(self._has(other, answer) for other in others)
        ]
        if alone:
            self.found(f"nobody but {dark.number}, which loses power, has {len(alone)}: {alone[0].decode()}")

    def show(self, machine: Machine, topic: str) -> None:
        """Readers that were shown a message are never shown another one in its place."""
        assert machine.broker is not None
        store = machine.broker.store
        for queue_id in store.queue_ids(topic):
            queue = store.find_queue(topic, queue_id)
            assert queue is not None
            looked, end = self._looked.get((machine.number, queue_id), 0), store.readable_max(queue)
            self._looked[machine.number, queue_id] = end
            for offset in range(max(queue.min_offset, min(looked, end) - AGAIN), end):
                key = (queue_id, offset)
                raw = store.record_at_queue(topic, queue_id, offset)
                mark = mark_of(raw)
                if self._shown.setdefault(key, mark) != mark:
                    self.found(
                        f"readers of {machine.number} see {mark.decode()} in queue {queue_id} at {offset}, where "
                        f"{self._shown[key].decode()} was shown"
                    )
                    return

    # --- in the end --------------------------------------------------------------------------

    def judge(self, topic: str) -> None:
        """All have healed and are at rest: all logs are the same, and what was answered is where it was said to be."""
        first = self._machines[0]
        log = first.log()
        for other in self._machines[1:]:
            if other.log() != log:
                self.found(
                    f"the logs of {first.number} and {other.number} differ: {difference(log, other.log())}"
                )
        for machine in self._machines:
            self._judge_queues(machine, topic)

    def _judge_queues(self, machine: Machine, topic: str) -> None:
        assert machine.broker is not None
        store = machine.broker.store
        placed: dict[tuple[int, int], tuple[bytes, int]] = {}
        marks: dict[bytes, int] = {}
        for queue_id in store.queue_ids(topic):
            queue = store.find_queue(topic, queue_id)
            assert queue is not None
            entries = store.entries(topic, queue_id, 0, queue.max_offset)
            for offset, (place, _, _) in enumerate(entries):
                raw = store.record_at(place)
                mark = mark_of(raw)
                placed[queue_id, offset] = (mark, place)
                marks[mark] = marks.get(mark, 0) + 1
        twice = [mark for mark, count in marks.items() if count > 1]
        if twice:
            self.found(f"{machine.number} has {len(twice)} messages twice: {b' '.join(twice[:5]).decode()}")
        if not self._kept:
            return
        lost = [
            answer
            for answer in self.answers.values()
            if placed.get((answer.queue_id, answer.queue_offset)) != (answer.mark, answer.log_offset)
        ]
        if lost:
            gone = [answer.mark for answer in lost if answer.mark not in marks]
            self.found(
                f"{machine.number}: of {len(self.answers)} answered with success {len(gone)} are lost and "
                f"{len(lost) - len(gone)} are elsewhere: {', '.join(map(str, lost[:3]))}"
            )


def mark_of(record: bytes | None) -> bytes:
    found = None if record is None else _MARK.search(record)
    return b"" if found is None else found.group()


def difference(one: bytes, other: bytes) -> str:
    """Where two logs part."""
    shorter = min(len(one), len(other))
    place = next((at for at in range(shorter) if one[at] != other[at]), shorter)
    return f"{len(one)} and {len(other)} bytes, the same up to {place}"
