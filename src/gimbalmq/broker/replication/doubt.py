"""What a broker does that may have lost what it had confirmed, and is, or could be, elected all the same.

The controller does not know that a power cut has taken the end of a replica's log. It may elect that replica: because
it has not missed it yet, because the set names it, or because nobody else is heard. From then on that replica is alone
in the set, and nobody else can be elected, though the others may have what it lacks.

So a broker in doubt sends no heartbeats; who is not heard is not elected. If it is named as the master all the same, or
nobody is, it asks the others how far their logs go before it takes the role. If one has more, that one is made the
master: whoever is named as the master may change the set, and the controller elects from the set whom it is told to.

Everybody is asked who may have been answered for: the other members of the set, or all replicas if this broker is alone
in it, because an election leaves nobody else there. One that does not answer may have more, and is waited for. Only if
this broker was alone before its power was cut is nobody waited for: then others have more by chance, if at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from gimbalmq._clock import Clock
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.replication.controller import Controllers
from gimbalmq.broker.replication.wholeness import Wholeness
from gimbalmq.errors import ResponseError, RocketMQError, StateError
from gimbalmq.protocol.codes import ResponseCode
from gimbalmq.protocol.headers.controller import AlterSyncStateSet, ElectMaster
from gimbalmq.protocol.replication_bodies import ReplicaIdentity
from gimbalmq.rpc import controller, replication
from gimbalmq.rpc.controller import Standing

log = logging.getLogger(__name__)

_ASK_SECONDS = 2.0


class LogEnd(NamedTuple):
    """How far a log goes; of two the greater one has more.

    Attributes:
        epoch: of the last byte. A term of which a log has no byte does not count: it may be noted by one that has lost
            what others have of an older term.
        end: of the log.
    """

    epoch: int
    end: int


def log_end(starts: Iterable[tuple[int, int]], end: int) -> LogEnd:
    """The end of a log whose epochs begin there (epoch, start), oldest first."""
    return LogEnd(max((epoch for epoch, start in starts if start < end), default=-1), end)


class Doubt:
    """Ends the doubt of a broker that no master can tell what it lacks.

    Args:
        own_end: how far this broker's log goes.
        beat: tells the controllers once that this broker lives.
        elect: asks the controller for an election.
    """

    def __init__(
        self,
        wholeness: Wholeness,
        controllers: Controllers,
        live: LiveConfig,
        clock: Clock,
        own_end: Callable[[], LogEnd],
        beat: Callable[[], Awaitable[None]],
        elect: Callable[[], Awaitable[Standing]],
    ) -> None:
        self._wholeness = wholeness
        self._controllers = controllers
        self._live = live
        self._clock = clock
        self._own_end = own_end
        self._beat = beat
        self._elect = elect

    async def end(self, own_id: int) -> Standing:
        """Returns when the doubt is over, or another broker is the master, with what the controller says then.

        Raises:
            StateError: it is not over yet; the text says what it waits for, and what to do.
            ResponseError, TransportError: the controller refuses, or does not answer.
        """
        standing, replicas = await self._known()
        if standing.master_id not in (None, own_id):
            return standing
        was_alone = standing.in_sync == {own_id} and standing.set_epoch == self._wholeness.alone_in
        others = replicas.keys() - {own_id}
        may_have_more = standing.in_sync - {own_id} or others
        ends, silent = await self._ask_all(may_have_more, replicas)
        if silent:
            if not (was_alone or self._live.now.ha_lead_in_doubt):
                raise _waits_for(silent)
            # Others may have what only the silent ones are known to have.
            by_chance, _ = await self._ask_all(others - may_have_more, replicas)
            ends |= {number: end for number, end in by_chance.items() if replicas[number].alive}
        if was_alone:
            ends = {number: end for number, end in ends.items() if replicas[number].alive}
        ours = self._own_end()
        fullest = max(
            ends, key=lambda number: (ends[number], bool(replicas[number].alive), -number), default=own_id
        )
        if ends.get(fullest, ours) > ours:
            return await self._hand_over(standing, own_id, fullest, ours, ends[fullest])
        alone = "it was alone in the set, and nobody who can be elected has more"
        await self._over(alone if was_alone else _has_all(ours, silent))
        return standing

    async def compare(self, own_id: int) -> None:
        """Ends the doubt of a slave if it has all that the set has, whether its master can be copied or not.

        After a power cut of all, the one that is named as the master may be in doubt, too, and wait for this one.

        Raises:
            StateError: others may have more: those that do not answer. If a master answers that has more, it is copied.
        """
        standing, replicas = await self._known()
        ends, silent = await self._ask_all(
            standing.in_sync - {own_id} or replicas.keys() - {own_id}, replicas
        )
        ours = self._own_end()
        has_all = all(end <= ours for end in ends.values())
        if silent and not self._live.now.ha_lead_in_doubt:
            if has_all or standing.master_id in silent:
                raise _waits_for(silent)
        elif has_all:
            await self._over(_has_all(ours, silent))

    async def _ask_all(
        self, numbers: Iterable[int], replicas: dict[int, ReplicaIdentity]
    ) -> tuple[dict[int, LogEnd], dict[int, str]]:
        """How far the logs of these go; who of them does not tell, and why."""
        asked = [replicas[number] for number in sorted(numbers)]
        told = await asyncio.gather(*(self._ask(one.broker_id, one.broker_address) for one in asked))
        ends: dict[int, LogEnd] = {}
        silent: dict[int, str] = {}
        for one, end in zip(asked, told, strict=True):
            if isinstance(end, LogEnd):
                ends[one.broker_id] = end
            else:
                silent[one.broker_id] = f"{one.broker_id} at {one.broker_address or 'no address'} ({end})"
        return ends, silent

    async def _known(self) -> tuple[Standing, dict[int, ReplicaIdentity]]:
        """What the controller knows, and all replicas by their ids."""
        name = self._live.now.broker_name
        table = await self._controllers.ask(lambda on, at: replication.sync_state(on, at, [name]))
        known = table.replicas_info_table.get(name)
        if known is None:
            raise StateError(f"the controller knows nothing of {name} yet")
        replicas = [*known.in_sync_replicas, *known.not_in_sync_replicas]
        # Without an address it is nobody: elections that find nobody leave a name with nothing behind it.
        master = known.master_broker_id if known.master_address else None
        standing = Standing(
            master if master and master > 0 else None,
            known.master_address or "",
            known.master_epoch,
            frozenset(replica.broker_id for replica in known.in_sync_replicas),
            known.sync_state_set_epoch,
        )
        return standing, {replica.broker_id: replica for replica in replicas}

    async def _ask(self, number: int, address: str | None) -> LogEnd | str:
        """How far a replica's log goes, or why that is not known."""
        if not address:
            return "the controller does not know where it is"
        try:
            told = await replication.epochs(self._controllers.caller, address, timeout=_ASK_SECONDS)
        except RocketMQError as error:
            return str(error)
        if told.broker_name != self._live.now.broker_name:
            return f"{told.broker_name or 'somebody else'} is there now"
        # The address of one that is gone may be another replica's by now, or even our own. Of Apache's brokers a master
        # says 0, and one without a role -1.
        if told.broker_id > 0 and told.broker_id != number:
            return f"replica {told.broker_id} is there now"
        return log_end(((one.epoch, one.start_offset) for one in told.epoch_list), told.max_offset)

    async def _hand_over(
        self, standing: Standing, own_id: int, fullest: int, ours: LogEnd, theirs: LogEnd
    ) -> Standing:
        lacks = (
            f"this broker has lost the end of its log: {fullest} has epoch {theirs.epoch} up to "
            f"{theirs.end}, this one epoch {ours.epoch} up to {ours.end}"
        )
        if standing.master_id is None and fullest in standing.in_sync:
            raise StateError(f"{lacks}. It waits until {fullest} is elected, which must reach the controller")
        await self._beat()  # the set may only name those who live
        if standing.master_id is None:
            standing = await self._elect()
            if standing.master_id != own_id:
                return standing
        try:
            found = await self._have_elected(standing, own_id, fullest)
        except ResponseError as error:
            raise StateError(
                f"{lacks}. The controller does not make {fullest} the master instead: {error}. Does {fullest} reach "
                "it? If it has lost its power, too, it may wait for others; then its own trouble says so"
            ) from error
        log.warning("%s. The controller has elected %s instead", lacks, found.master_id)
        return found

    async def _have_elected(self, standing: Standing, own_id: int, chosen: int) -> Standing:
        """Has the controller elect another one in the place of this broker, which it names as the master."""
        config, now = self._live.now, self._clock.wall_ms()
        if chosen not in standing.in_sync:
            wish = AlterSyncStateSet(
                broker_name=config.broker_name,
                master_broker_id=own_id,
                master_epoch=standing.master_epoch,
                invoke_time=now,
            )
            wished = standing.in_sync | {chosen}
            await self._controllers.ask(
                lambda on, at: controller.alter_sync_state_set(on, at, wish, wished, standing.set_epoch)
            )
        choice = ElectMaster(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=chosen,
            designate_elect=True,
            invoke_time=now,
        )
        found = await self._controllers.ask(lambda on, at: controller.elect(on, at, choice))
        if found.master_id in (None, own_id):
            raise ResponseError("it named nobody else", code=ResponseCode.CONTROLLER_ELECT_MASTER_FAILED)
        return found

    async def _over(self, why: str) -> None:
        await self._wholeness.is_whole()
        log.warning("this broker can be elected again: %s", why)


def _waits_for(silent: Mapping[int, str]) -> StateError:
    return StateError(
        "the power of this broker's machine was cut, or files of its folder are gone, so it may have lost what it had "
        "confirmed; it does not lead before it knows that others have no more. No answer from "
        f"{', '.join(silent.values())}. Start them; if they are gone for good, set haLeadInDoubt=true at this broker, "
        "and what only they have is lost"
    )


def _has_all(ours: LogEnd, silent: Mapping[int, str]) -> str:
    without = f", except for {', '.join(silent.values())}, by haLeadInDoubt" if silent else ""
    return f"no other replica has more than its {ours.end} bytes of log{without}"
