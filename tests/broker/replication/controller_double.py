"""A controller as brokers see Apache's: one process, no consensus, in memory; tests make it refuse, lose and forget."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self

from gimbalmq.errors import ResponseError
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers import controller as headers
from gimbalmq.protocol.headers.base import Header
from gimbalmq.protocol.headers.replication import BrokerHeartbeat
from gimbalmq.protocol.replication_bodies import ElectMasterBody, SyncStateSet
from gimbalmq.transport.channel import Channel, Handlers
from gimbalmq.transport.network import Network
from gimbalmq.transport.server import RemotingServer


@dataclass
class Replicas:
    """What the controller knows of one broker name."""

    codes: dict[int, str] = field(default_factory=dict)
    addresses: dict[int, str] = field(default_factory=dict)
    master: int | None = None
    master_epoch: int = 0
    in_sync: set[int] = field(default_factory=set)
    set_epoch: int = 0


class ControllerDouble:
    """Answers 1001-1005, 1012 and 1013 by the rules of Apache's controller, and hears heartbeats.

    Attributes:
        leads: whether it is the leader; if not, it answers 2007 and names ``leader_address``.
        heard: every request, as (code, header fields).
        swallow: codes whose next request is done and not answered.
        refuse: codes to be answered with another code, once each.
        deny: codes whose next request is done, and answered with another code.
        notify: called after an election with the addresses to be told; tests send 1008 from there.
    """

    def __init__(self, network: Network | None = None) -> None:
        self.replicas: dict[str, Replicas] = {}
        self.alive: dict[str, dict[int, BrokerHeartbeat]] = {}
        self.leads = True
        self.leader_address = ""
        self.heard: list[tuple[int, dict[str, str]]] = []
        self.swallow: list[int] = []
        self.refuse: dict[int, int] = {}
        self.deny: dict[int, int] = {}
        self.notify: Callable[[str], None] = lambda name: None
        self._channels: dict[Channel, tuple[str, int]] = {}
        handlers = Handlers()
        for code, handler in (
            (RequestCode.CONTROLLER_GET_METADATA_INFO, self._metadata),
            (RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, self._next_id),
            (RequestCode.CONTROLLER_APPLY_BROKER_ID, self._apply),
            (RequestCode.CONTROLLER_REGISTER_BROKER, self._register),
            (RequestCode.CONTROLLER_ELECT_MASTER, self._elect),
            (RequestCode.CONTROLLER_GET_REPLICA_INFO, self._info),
            (RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, self._alter),
        ):
            handlers.add(code, self._noted(handler))
        handlers.add(RequestCode.BROKER_HEARTBEAT, self._heartbeat)
        handlers.closed = self._closed
        self.server = RemotingServer(handlers, network=network)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> Self:
        await self.server.start(host, port)
        self.address = f"{host}:{self.server.port}"
        self.leader_address = self.leader_address or self.address
        return self

    async def close(self) -> None:
        self.server.abort_all()
        await self.server.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def count(self, code: int) -> int:
        return sum(heard == code for heard, _ in self.heard)

    # --- elections ---------------------------------------------------------------------------

    def elect(self, name: str, wanted: int | None = None) -> bool:
        """Apache's rule: among living members of the set the wanted one, the old master, or the furthest."""
        found = self.replicas[name]
        living = self.alive.get(name, {})
        candidates = [number for number in found.in_sync if number in living]
        if not found.master_epoch:  # the first ever
            candidates = [wanted] if wanted is not None else []
        if found.master in candidates and wanted is None:
            return False
        found.master_epoch += 1
        if not candidates or (wanted is not None and found.in_sync and wanted not in candidates):
            found.master = None
            return False
        chosen = wanted if wanted in candidates else None
        if chosen is None:
            chosen = max(candidates, key=lambda one: (living[one].epoch or 0, living[one].max_offset or 0))
        found.master = chosen
        found.in_sync = {chosen}
        found.set_epoch += 1
        self.notify(name)
        return True

    def missed(self, name: str, number: int) -> None:
        """A broker's heartbeats have not come for long."""
        for channel, who in list(self._channels.items()):
            if who == (name, number):
                del self._channels[channel]
        self._died(name, number)

    def _closed(self, channel: Channel) -> None:
        name, number = self._channels.pop(channel, ("", 0))
        if name:
            self._died(name, number)

    def _died(self, name: str, number: int) -> None:
        self.alive[name].pop(number, None)
        if self.replicas.get(name, Replicas()).master == number:
            self.elect(name)

    # --- requests ----------------------------------------------------------------------------

    def _noted(
        self, handler: Callable[[RemotingCommand], RemotingCommand]
    ) -> Callable[[Channel, RemotingCommand], Awaitable[RemotingCommand]]:
        async def noted(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            self.heard.append((request.code, dict(request.ext_fields or {})))
            if request.code != RequestCode.CONTROLLER_GET_METADATA_INFO and not self.leads:
                raise ResponseError("not the leader", code=ResponseCode.CONTROLLER_NOT_LEADER)
            refusal = self.refuse.pop(request.code, None)
            if refusal is not None:
                raise ResponseError("because the test says so", code=refusal)
            answer = handler(request)
            denial = self.deny.pop(request.code, None)
            if denial is not None:
                raise ResponseError("because the test says so", code=denial)
            if request.code in self.swallow:
                self.swallow.remove(request.code)
                await asyncio.Event().wait()
            return answer

        return noted

    def _metadata(self, request: RemotingCommand) -> RemotingCommand:
        return _answer(
            request,
            headers.ControllerMetadata(controller_leader_address=self.leader_address, is_leader=self.leads),
        )

    def _next_id(self, request: RemotingCommand) -> RemotingCommand:
        asked = headers.GetNextBrokerId.from_ext(request.ext_fields)
        known = self.replicas.get(asked.broker_name, Replicas()).codes
        return _answer(request, headers.NextBrokerId(next_broker_id=max(known, default=0) + 1))

    def _apply(self, request: RemotingCommand) -> RemotingCommand:
        asked = headers.ApplyBrokerId.from_ext(request.ext_fields)
        known = self.replicas.setdefault(asked.broker_name, Replicas())
        if known.codes.get(asked.applied_broker_id, asked.register_check_code) != asked.register_check_code:
            raise ResponseError("taken", code=ResponseCode.CONTROLLER_BROKER_ID_INVALID)
        known.codes[asked.applied_broker_id] = asked.register_check_code
        return _answer(request, Header())

    def _register(self, request: RemotingCommand) -> RemotingCommand:
        asked = headers.RegisterAtController.from_ext(request.ext_fields)
        known = self.replicas.get(asked.broker_name)
        if known is None or asked.broker_id not in known.codes:
            raise ResponseError("who?", code=ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED)
        known.addresses[asked.broker_id] = asked.broker_address
        lives = known.master in self.alive.get(asked.broker_name, {})
        return self._standing(request, known, with_master=lives)

    def _elect(self, request: RemotingCommand) -> RemotingCommand:
        asked = headers.ElectMaster.from_ext(request.ext_fields)
        known = self.replicas[asked.broker_name]
        living = self.alive.get(asked.broker_name, {})
        if known.master in living and not asked.designate_elect:
            code = ResponseCode.CONTROLLER_MASTER_STILL_EXIST
        else:
            first = not known.master_epoch
            if asked.broker_id not in living:
                raise ResponseError("it is dead", code=ResponseCode.CONTROLLER_ELECT_MASTER_FAILED)
            wanted = asked.broker_id if first or asked.designate_elect else None
            if not self.elect(asked.broker_name, wanted):
                raise ResponseError("nobody", code=ResponseCode.CONTROLLER_ELECT_MASTER_FAILED)
            code = ResponseCode.SUCCESS
        answer = self._standing(request, known, with_master=True)
        answer.code = code
        answer.body = ElectMasterBody(sync_state_set=sorted(known.in_sync)).dump()
        return answer

    def _info(self, request: RemotingCommand) -> RemotingCommand:
        asked = headers.GetReplicaInfo.from_ext(request.ext_fields)
        known = self.replicas.get(asked.broker_name)
        if known is None:
            raise ResponseError("who?", code=ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST)
        return self._standing(request, known, with_master=known.master is not None)

    def _alter(self, request: RemotingCommand) -> RemotingCommand:
        asked = headers.AlterSyncStateSet.from_ext(request.ext_fields)
        known = self.replicas[asked.broker_name]
        wish = SyncStateSet.parse(request.body)
        for wrong, code in (
            (known.in_sync == set(wish.sync_state_set), ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
            (known.master != asked.master_broker_id, ResponseCode.CONTROLLER_INVALID_MASTER),
            (known.master_epoch != asked.master_epoch, ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH),
            (
                known.set_epoch != wish.sync_state_set_epoch,
                ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            ),
            (
                not set(wish.sync_state_set) <= self.alive.get(asked.broker_name, {}).keys(),
                ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
            ),
        ):
            if wrong:
                raise ResponseError("no", code=code)
        known.in_sync = set(wish.sync_state_set)
        known.set_epoch += 1
        answer = _answer(request, headers.AlterSyncStateSetReply(new_sync_state_set_epoch=known.set_epoch))
        answer.body = SyncStateSet(
            sync_state_set=sorted(known.in_sync), sync_state_set_epoch=known.set_epoch
        ).dump()
        return answer

    def _heartbeat(self, channel: Channel, request: RemotingCommand) -> None:
        beat = BrokerHeartbeat.from_ext(request.ext_fields)
        assert beat.broker_id is not None
        living = self.alive.setdefault(beat.broker_name, {})
        if beat.broker_id not in living:
            self._channels[channel] = (beat.broker_name, beat.broker_id)
        living[beat.broker_id] = beat

    def _standing(self, request: RemotingCommand, known: Replicas, *, with_master: bool) -> RemotingCommand:
        header = headers.MasterReply(master_epoch=known.master_epoch)
        if with_master and known.master is not None:
            header.master_broker_id = known.master
            header.master_address = known.addresses.get(known.master, "")
            header.sync_state_set_epoch = known.set_epoch
        answer = _answer(request, header)
        answer.body = SyncStateSet(
            sync_state_set=sorted(known.in_sync), sync_state_set_epoch=known.set_epoch
        ).dump()
        return answer


def _answer(request: RemotingCommand, header: Header) -> RemotingCommand:
    return request.reply(0, ext_fields=header.to_ext())
