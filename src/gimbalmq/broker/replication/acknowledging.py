"""When a send is answered, and with which code: what it waits for after it was stored, and whether it is stored at all.

The disk (SYNC_FLUSH) and the slaves (SYNC_MASTER) are waited for side by side, each for its own time from the append
on. If both fail, the slaves' code is the answer. A message that is answered with any of these codes is stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.broker.flush import GroupCommit
from gimbalmq.broker.replication.acks import Need, ReplicaAcks
from gimbalmq.broker.replication.config import SYNC_MASTER
from gimbalmq.broker.waits import TimeLimits, Wait
from gimbalmq.errors import ResponseError
from gimbalmq.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

Settled = ResponseCode | Wait[ResponseCode]
"""The code of an answer, now or later."""


class Acknowledging:
    """What sends wait for.

    Attributes:
        living: how many replicas of this name live, this broker among them; set if slaves may stand in.
        in_set: how many replicas the controller counts as in sync, this broker among them; set if there is one.
        confirmed: waits until all of that set have the log up to an offset, whoever comes or goes meanwhile; set
            while this broker is the master and there is a controller.
    """

    def __init__(self, live: LiveConfig, commit: GroupCommit, acks: ReplicaAcks) -> None:
        self._live = live
        self._commit = commit
        self._acks = acks
        self._limits = TimeLimits()
        self.living: Callable[[], int] | None = None
        self.in_set: Callable[[], int] | None = None
        self.confirmed: Callable[[int], Wait[bool]] | None = None

    @property
    def waits(self) -> bool:
        """Whether messages that do not say WAIT=false are waited for at all."""
        config = self._live.now
        return config.sync_flush or self._waits_for_slaves(config)

    def _waits_for_slaves(self, config: BrokerConfig) -> bool:
        # With a controller every master is one that waits.
        return config.broker_role == SYNC_MASTER or config.enable_controller_mode

    def refusal(self) -> ResponseError | None:
        """Why a message that would be waited for is not even stored; None if it is."""
        config = self._live.now
        if not self._waits_for_slaves(config) or config.replica_rule == "4.9":
            return None
        if self.in_set is not None:
            found, need, option = self.in_set(), config.min_in_sync_replicas, "minInSyncReplicas"
        elif config.enable_slave_acting_master and not config.enable_auto_in_sync_replicas:
            found, need, option = self._in_sync(config), config.in_sync_replicas, "inSyncReplicas"
        elif config.enable_slave_acting_master or config.replica_rule == "safe":
            found, need, option = self._in_sync(config), config.min_in_sync_replicas, "minInSyncReplicas"
        else:
            return None
        if found >= need:
            return None
        return ResponseError(
            f"in-sync replicas not enough: {found}, with the master, and {option} is {need}; "
            "start slaves, or lower it"
        )

    def _in_sync(self, config: BrokerConfig) -> int:
        """Replicas that are in sync, the master among them."""
        found = 1 + self._acks.in_sync(config.ha_max_gap_not_in_sync)
        return found if self.living is None else min(found, self.living())

    def settle(self, end: int) -> Settled:
        """The code of messages that are stored up to ``end`` of the log and say nothing against being waited for."""
        config = self._live.now
        limit = self._limits.limit
        disk = limit(self._commit.wait(end), config.sync_flush_timeout) if config.sync_flush else None
        copies = self._copied(end, config)
        if disk is None and isinstance(copies, Wait):
            return _when_copied(copies)
        waits = [part for part in (disk, copies) if isinstance(part, Wait) and not part.ended]
        if not waits:
            return _code(disk, copies)
        answer: Wait[ResponseCode] = Wait()

        def part_ended(_: bool) -> None:
            if all(wait.ended for wait in waits):
                answer.end(_code(disk, copies))

        for wait in waits:
            wait.then(part_ended)
        return answer

    def settle_silently(self, end: int) -> Wait[ResponseCode] | None:
        """The wait for a message that a consumer sends back; None if it need not wait.

        Its record says WAIT=false, and Apache's brokers answer at once. If the master is lost then, so is the message:
        its group has passed it, and no slave has it for the retry. Whatever comes of the wait, the answer's code is 0,
        because a consumer that is told another code sends the message once more.
        """
        if self._live.now.replica_rule != "safe" or not self.waits:
            return None
        settled = self.settle(end)
        return None if isinstance(settled, ResponseCode) else settled

    def _copied(self, end: int, config: BrokerConfig) -> ResponseCode | Wait[bool]:
        if not self._waits_for_slaves(config):
            return ResponseCode.SUCCESS
        if self.confirmed is not None and config.all_ack_in_sync_state_set:
            return self._limits.limit(self.confirmed(end), config.slave_timeout)
        need = self._need(config)
        if need is None:
            return ResponseCode.SLAVE_NOT_AVAILABLE
        if not need:
            return ResponseCode.SUCCESS
        return self._limits.limit(self._acks.wait(end, need), config.slave_timeout)

    def _need(self, config: BrokerConfig) -> Need | None:
        """The slaves to wait for; None if waiting is of no use, because no slave could confirm."""
        if config.replica_rule == "4.9":
            return 1 if self._acks.in_sync(config.ha_max_gap_not_in_sync) else None
        replicas = config.in_sync_replicas
        safe = config.replica_rule == "safe"
        if config.enable_slave_acting_master and config.enable_auto_in_sync_replicas:
            replicas = max(min(replicas, self._in_sync(config)), config.min_in_sync_replicas)
        elif safe:
            replicas = max(replicas, 2)
        if safe and replicas > 1 and not self._acks.connected:
            return None
        return replicas - 1

    async def settle_change(self, end: int, what: str) -> bool:
        """Waits for a change that is a record of the log, such as a topic's deletion; whether the disk has it.

        Slaves are waited for, too, as long as a send would wait. If they do not have it in time, the change has been
        made all the same, and they get it as they get everything.
        """
        copies = self._copied(end, self._live.now)
        if not await self._commit.wait(end):
            return False
        if isinstance(copies, Wait):
            await copies
        code = _code(None, copies)
        if code is not ResponseCode.SUCCESS:
            log.warning("%s is done here, and not yet at the slaves (%s)", what, code.name)
        return True


def _when_copied(copies: Wait[bool]) -> Settled:
    """The code when slaves have it, for which alone nearly all sends wait."""
    if copies.ended:
        return _code(None, copies)
    answer: Wait[ResponseCode] = Wait()
    copies.then(lambda _: answer.end(_code(None, copies)))
    return answer


def _code(disk: Wait[bool] | None, copies: ResponseCode | Wait[bool]) -> ResponseCode:
    """The code when all waits are over."""
    if isinstance(copies, Wait):
        copies = ResponseCode.SUCCESS if copies.result else ResponseCode.FLUSH_SLAVE_TIMEOUT
    if copies is not ResponseCode.SUCCESS:
        return copies
    return ResponseCode.SUCCESS if disk is None or disk.result else ResponseCode.FLUSH_DISK_TIMEOUT
