"""A controller as brokers see Apache's: one process, no consensus, in memory; tests make it refuse, lose and forget."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self

import msgspec

from gimbalmq.errors import ResponseError
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers import controller as headers
from gimbalmq.protocol.headers.base import Header
from gimbalmq.protocol.headers.replication import BrokerHeartbeat
from gimbalmq.protocol.replication_bodies import (
    ElectMasterBody,
    ReplicaIdentity,
    ReplicasInfo,
    ReplicasTable,
    SyncStateSet,
)
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

    @property
    def is_new(self) -> bool:
        """Nobody was ever elected."""
        return not self.master_epoch


class ControllerDouble:
    """Answers 1001-1006, 1012 and 1013 by the rules of Apache's controller, and hears heartbeats.

    Attributes:
        leads: whether it is the leader; if not, it answers 2007 and names ``leader_address``.
        heard: every request, as (code, header fields).
        swallow: codes whose next request is done and not answered.
        refuse: codes to be answered with another code, once each.
        deny: codes whose next request is done, and answered with another code.
        late: codes whose next request is done when its event is set, whoever still waits, and not answered.
        notify: called after an election with the addresses to be told; tests send 1008 from there.
        garble: codes whose next request is done, and answered with this body.
        denied_late: codes that late requests would have been answered with.
        altered: called when a master has changed the set.
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
        self.late: dict[int, asyncio.Event] = {}
        self.garble: dict[int, bytes] = {}
        self.denied_late: list[int] = []
        self.notify: Callable[[str], None] = lambda name: None
        self.altered: Callable[[], None] = lambda: None
        self._channels: dict[Channel, tuple[str, int]] = {}
        self._later: list[asyncio.Future[None]] = []
        self._heard_at: dict[tuple[str, int], float] = {}
        handlers = Handlers()
        for code, handler in (
            (RequestCode.CONTROLLER_GET_METADATA_INFO, self._metadata),
            (RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, self._next_id),
            (RequestCode.CONTROLLER_APPLY_BROKER_ID, self._apply),
            (RequestCode.CONTROLLER_REGISTER_BROKER, self._register),
            (RequestCode.CONTROLLER_ELECT_MASTER, self._elect),
            (RequestCode.CONTROLLER_GET_REPLICA_INFO, self._info),
            (RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, self._alter),
            (RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, self._sync_state),
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

    def forget_connections(self) -> None:
        """The end of none of them tells it that a broker is gone."""
        self._channels.clear()

    async def close(self) -> None:
        for late in self._later:
            late.cancel()
        self.server.abort_all()
        await self.server.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def count(self, code: int) -> int:
        return sum(heard == code for heard, _ in self.heard)

    # --- elections ---------------------------------------------------------------------------

    def lives(self, name: str, number: int | None) -> bool:
        beat = self.alive.get(name, {}).get(number or 0)
        if beat is None:
            return False
        heard = self._heard_at.get((name, number or 0))
        return heard is None or _now() <= heard + (beat.heartbeat_timeout_mills or 10_000) / 1000

    def elect(self, name: str, wanted: int | None = None, *, by_controller: bool = True) -> bool:
        """Apache's rule: among living members of the set the wanted one, the old master, or the furthest.

        Args:
            by_controller: a broker that asks in vain changes nothing; if the controller itself finds nobody, there is
                no master any more.
        """
        found = self.replicas[name]
        candidates = [number for number in sorted(found.in_sync) if self.lives(name, number)]
        if found.is_new:
            candidates = [wanted] if wanted is not None else []
        if found.master in candidates and wanted in (None, found.master):
            return False
        chosen = wanted if wanted in candidates else None
        if wanted is None and candidates:
            chosen = max(candidates, key=lambda number: _rank(self.alive[name][number]))
        if chosen is None:
            if by_controller:
                found.master = None
                found.master_epoch += 1
            return False
        found.master = chosen
        found.master_epoch += 1
        found.in_sync = {chosen}
        found.set_epoch += 1
        self.notify(name)
        return True

    def missed(self, name: str, number: int) -> None:
        """A broker's heartbeats have not come for long."""
        for channel, who in list(self._channels.items()):
            if who == (name, number):
                del self._channels[channel]
                channel.abort()
        self._died(name, number)

    def clean(self, name: str, number: int) -> None:
        """What 1011 does with one replica, also with one that lives; the epoch of the set stays as it is."""
        found = self.replicas[name]
        found.codes.pop(number)
        found.addresses.pop(number, None)
        found.in_sync.discard(number)

    def scan(self) -> None:
        """What Apache's controller does every 5 s: drops silent brokers, and elects if a master is gone."""
        for name, living in self.alive.items():
            for number in [number for number in living if not self.lives(name, number)]:
                self.missed(name, number)
        for name, found in self.replicas.items():
            if (
                found.master is not None
                and not self.lives(name, found.master)
                and any(self.lives(name, number) for number in found.in_sync)
            ):
                self.elect(name)

    async def crash(self) -> None:
        """It ends and forgets who lives, as another leader would not know it; all else is on its disk."""
        self.alive.clear()
        self._channels.clear()
        await self.close()

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
            late = self.late.pop(request.code, None)
            if late is not None:
                self._later.append(asyncio.ensure_future(self._do_later(late, handler, request)))
                await asyncio.Event().wait()
            answer = handler(request)
            denial = self.deny.pop(request.code, None)
            if denial is not None:
                raise ResponseError("because the test says so", code=denial)
            if request.code in self.swallow:
                self.swallow.remove(request.code)
                await asyncio.Event().wait()
            answer.body = self.garble.pop(request.code, answer.body)
            return answer

        return noted

    async def _do_later(
        self,
        moment: asyncio.Event,
        handler: Callable[[RemotingCommand], RemotingCommand],
        request: RemotingCommand,
    ) -> None:
        await moment.wait()
        try:
            handler(request)
        except ResponseError as error:
            self.denied_late.append(error.code)

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
        lives = self.lives(asked.broker_name, known.master)
        return self._standing(request, known, with_master=lives)

    def _elect(self, request: RemotingCommand) -> RemotingCommand:
        asked = headers.ElectMaster.from_ext(request.ext_fields)
        name, known = asked.broker_name, self.replicas[asked.broker_name]
        wanted = asked.broker_id if known.is_new or asked.designate_elect else None
        code = ResponseCode.SUCCESS
        if not self.elect(name, wanted, by_controller=False):
            if not (known.master in known.in_sync and self.lives(name, known.master)) or (
                wanted not in (None, known.master)
            ):
                raise ResponseError("nobody", code=ResponseCode.CONTROLLER_ELECT_MASTER_FAILED)
            code = ResponseCode.CONTROLLER_MASTER_STILL_EXIST
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

    def _sync_state(self, request: RemotingCommand) -> RemotingCommand:
        table = ReplicasTable()
        for name in msgspec.json.decode(request.body, type=list[str]):
            known = self.replicas.get(name)
            if known is None:
                continue
            listed = [
                ReplicaIdentity(
                    alive=self.lives(name, number),
                    broker_address=known.addresses.get(number),
                    broker_id=number,
                    broker_name=name,
                )
                for number in sorted(known.codes)
            ]
            table.replicas_info_table[name] = ReplicasInfo(
                in_sync_replicas=[one for one in listed if one.broker_id in known.in_sync],
                not_in_sync_replicas=[one for one in listed if one.broker_id not in known.in_sync],
                master_broker_id=known.master,
                master_address=None if known.master is None else known.addresses.get(known.master),
                master_epoch=known.master_epoch,
                sync_state_set_epoch=known.set_epoch,
            )
        return request.reply(body=table.dump())

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
            (not set(wish.sync_state_set) <= known.codes.keys(), ResponseCode.CONTROLLER_INVALID_REPLICAS),
            (
                not all(self.lives(asked.broker_name, number) for number in wish.sync_state_set),
                ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
            ),
            (
                known.master not in wish.sync_state_set,
                ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            ),
        ):
            if wrong:
                raise ResponseError("no", code=code)
        known.in_sync = set(wish.sync_state_set)
        known.set_epoch += 1
        self.altered()
        answer = _answer(request, headers.AlterSyncStateSetReply(new_sync_state_set_epoch=known.set_epoch))
        answer.body = SyncStateSet(
            sync_state_set=sorted(known.in_sync), sync_state_set_epoch=known.set_epoch
        ).dump()
        return answer

    def _heartbeat(self, channel: Channel, request: RemotingCommand) -> None:
        beat = BrokerHeartbeat.from_ext(request.ext_fields)
        assert beat.broker_id is not None
        living = self.alive.setdefault(beat.broker_name, {})
        self._heard_at[beat.broker_name, beat.broker_id] = _now()
        known = living.get(beat.broker_id)
        if known is None:
            # Only the connection of the first heartbeat counts.
            self._channels[channel] = (beat.broker_name, beat.broker_id)
        elif _rank(beat)[:2] <= _rank(known)[:2]:
            # What was told of the log only ever grows.
            beat.epoch, beat.max_offset, beat.confirm_offset = (
                known.epoch,
                known.max_offset,
                known.confirm_offset,
            )
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


def _rank(beat: BrokerHeartbeat) -> tuple[int, int, int]:
    """Who is elected first: the furthest, and of those that are as far the one with the smallest priority."""
    return beat.epoch or 0, beat.max_offset or 0, -(beat.election_priority or 0)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _answer(request: RemotingCommand, header: Header) -> RemotingCommand:
    return request.reply(0, ext_fields=header.to_ext())
