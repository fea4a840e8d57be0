"""What a broker does that may have lost what it had confirmed, and is, or could be, elected all the same.

The controller does not know that a power cut has taken the end of a replica's log. It may elect that replica: because
it has not missed it yet, because the set names it, or because nobody else is heard. From then on that replica is alone
in the set, and nobody else can be elected, though the others may have what it lacks.

So a broker in doubt sends no heartbeats; who is not heard is not elected. If it is named as the master all the same, or
nobody is, it asks the others how far their logs go before it takes the role. If one has more, that one is made the
master: whoever is named as the master may change the set, and the controller elects from the set whom it is told to.

Everybody is asked who may have been answered for: the other members of the set, or all replicas if this broker is alone
in it, because an election leaves nobody else there. One that does not answer may have more, and is waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
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
    """How far a log goes; of two the greater one has more."""

    epoch: int
    end: int


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
        if standing.in_sync == {own_id} and standing.set_epoch == self._wholeness.alone_in:
            await self._over("it was alone in the set, so no other replica has what it may have lost")
            return standing
        ends, silent = await self._ask_all(standing, own_id, replicas)
        if silent and not self._live.now.ha_lead_in_doubt:
            raise _waits_for(silent)
        ours = self._own_end()
        fullest = max(
            ends, key=lambda number: (ends[number], bool(replicas[number].alive), -number), default=own_id
        )
        if ends.get(fullest, ours) > ours:
            return await self._hand_over(standing, own_id, fullest, ours, ends[fullest])
        await self._over(_has_all(ours, silent))
        return standing

    async def compare(self, own_id: int) -> None:
        """Ends the doubt of a slave if it has all that the set has, whether its master can be copied or not.

        After a power cut of all, the one that is named as the master may be in doubt, too, and wait for this one.

        Raises:
            StateError: it has not, or that is not known, and the master does not answer.
        """
        standing, replicas = await self._known()
        ends, silent = await self._ask_all(standing, own_id, replicas)
        ours = self._own_end()
        if silent and not self._live.now.ha_lead_in_doubt:
            if standing.master_id in silent:
                raise _waits_for(silent)
        elif all(end <= ours for end in ends.values()):
            await self._over(_has_all(ours, silent))

    async def _ask_all(
        self, standing: Standing, own_id: int, replicas: dict[int, ReplicaIdentity]
    ) -> tuple[dict[int, LogEnd], dict[int, str]]:
        """How far the logs of those go who may have more; who of them does not tell, and why."""
        asked = [
            replicas[number] for number in sorted(standing.in_sync - {own_id} or replicas.keys() - {own_id})
        ]
        told = await asyncio.gather(*(self._ask(one.broker_address) for one in asked))
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

    async def _ask(self, address: str | None) -> LogEnd | str:
        """How far a replica's log goes, or why that is not known."""
        if not address:
            return "the controller does not know where it is"
        try:
            told = await replication.epochs(self._controllers.caller, address, timeout=_ASK_SECONDS)
        except RocketMQError as error:
            return str(error)
        if told.broker_name != self._live.now.broker_name:
            return f"{told.broker_name or 'somebody else'} is there now"
        return LogEnd(told.epoch_list[-1].epoch if told.epoch_list else -1, told.max_offset)

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
                f"{lacks}. The controller does not make {fullest} the master instead: {error}. Does {fullest} reach it?"
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
        "the power of this broker's machine was cut, or its folder emptied, so it may have lost what it had confirmed; "
        "it does not lead before it knows that others have no more. No answer from "
        f"{', '.join(silent.values())}. Start them; if they are gone for good, set haLeadInDoubt=true at this broker, "
        "and what only they have is lost"
    )


def _has_all(ours: LogEnd, silent: Mapping[int, str]) -> str:
    without = f", except for {', '.join(silent.values())}, by haLeadInDoubt" if silent else ""
    return f"no other replica has more than its {ours.end} bytes of log{without}"
