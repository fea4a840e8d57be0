"""The controllers: which of them leads, questions to that one, heartbeats to all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gimbalmq.errors import ConnectError, ResponseError, RocketMQError, TransportError
from gimbalmq.protocol.codes import ResponseCode
from gimbalmq.protocol.headers.replication import BrokerHeartbeat
from gimbalmq.rpc import controller
from gimbalmq.rpc.call import Caller

log = logging.getLogger(__name__)

T = TypeVar("T")


class Controllers:
    """All controllers of a broker.

    Attributes:
        caller: what they are asked by, and replicas too.
        leader: the one that led when it was last asked; None if that is not known.
    """

    def __init__(self, caller: Caller, addresses: list[str]) -> None:
        self.addresses = addresses
        self.leader: str | None = None
        self.caller = caller
        self._silent: set[str] = set()

    async def find_leader(self) -> str:
        """Asks all of them at once; the first that knows a leader is believed.

        Raises:
            ConnectError: none of them answers, or none knows a leader.
        """
        asked = [asyncio.ensure_future(self._leader_by(address)) for address in self.addresses]
        troubles: list[str] = []
        try:
            for answer in asyncio.as_completed(asked):
                try:
                    self.leader = await answer
                    return self.leader
                except RocketMQError as error:
                    troubles.append(str(error))
        finally:
            for question in asked:
                question.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        self.leader = None
        raise ConnectError("no controller leads: " + "; ".join(troubles))

    async def _leader_by(self, address: str) -> str:
        found = await controller.leader(self.caller, address)
        if found is None:
            raise ConnectError(f"{address} knows no leader")
        return found

    async def ask(self, question: Callable[[Caller, str], Awaitable[T]]) -> T:
        """Puts a question to the leader; if another one leads by now, once more to that one.

        Raises:
            ResponseError: the leader refuses.
            TransportError: there is no leader, or it does not answer. What was asked may have been done.
        """
        leader = self.leader
        if leader is None:
            return await question(self.caller, await self.find_leader())
        try:
            return await question(self.caller, leader)
        except ResponseError as error:
            if error.code != ResponseCode.CONTROLLER_NOT_LEADER:
                raise
            self.leader = None
            try:
                return await question(self.caller, await self.find_leader())
            except ConnectError as lost:
                # One that is voted out while it works says that it does not lead; the next one may do what was asked.
                raise TransportError(f"{leader} leads no more, and {lost}") from lost
        except ConnectError:
            pass  # nothing was asked
        except TransportError:
            self.leader = None
            raise
        self.leader = None
        return await question(self.caller, await self.find_leader())

    async def heartbeat(self, header: BrokerHeartbeat, timeout: float) -> None:
        """To every controller, whichever leads: the next leader must know who lives."""
        await asyncio.gather(*(self._beat(address, header, timeout) for address in self.addresses))

    async def _beat(self, address: str, header: BrokerHeartbeat, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await controller.heartbeat(self.caller, address, header)
        except (RocketMQError, TimeoutError) as error:
            if address not in self._silent:
                self._silent.add(address)
                log.warning("controller %s gets no heartbeats: %s", address, error or "no connection in time")
            return
        if address in self._silent:
            self._silent.discard(address)
            log.info("controller %s gets heartbeats again", address)
