"""Calls of a broker to the controller that elects its master (Apache's rocketmq-controller 5.x).

All but ``leader`` go to the controller that leads; the others answer with code 2007.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gimbalmq.errors import RemoteProtocolError
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers import controller as headers
from gimbalmq.protocol.headers.replication import BrokerHeartbeat
from gimbalmq.protocol.replication_bodies import ElectMasterBody, SyncStateSet
from gimbalmq.rpc.call import Caller, ask, tell

TIMEOUT = 3.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What a controller says of the replicas of one broker name.

    Attributes:
        master_id: of the master, None if there is none.
        master_epoch: grows with every election, also one that found nobody.
        in_sync: replicas that have everything acknowledged; only these can be elected.
        set_epoch: grows with every change of ``in_sync``.
        is_new: an election that we have just asked for began the master's term.
    """

    master_id: int | None
    master_address: str
    master_epoch: int
    in_sync: frozenset[int]
    set_epoch: int
    is_new: bool = False


def standing_of(header: headers.MasterReply | headers.RoleChange, body: SyncStateSet) -> Standing:
    """What an answer, or a notice, says; without a master its fields are missing or empty."""
    master = header.master_broker_id
    is_there = master is not None and master > 0 and bool(header.master_address)
    return Standing(
        master if is_there else None,
        header.master_address or "",
        header.master_epoch or 0,
        frozenset(body.sync_state_set),
        # 1004 says it in the body only, 1002 in the header only.
        max(body.sync_state_set_epoch, header.sync_state_set_epoch or 0),
    )


async def leader(caller: Caller, address: str, *, timeout: float = TIMEOUT) -> str | None:
    """Address of the controller that leads, as the one at ``address`` knows it (1005)."""
    answer = await ask(caller, address, RequestCode.CONTROLLER_GET_METADATA_INFO, timeout=timeout)
    return headers.ControllerMetadata.from_ext(answer.ext_fields).controller_leader_address or None


async def next_broker_id(
    caller: Caller, address: str, cluster: str, broker: str, *, timeout: float = TIMEOUT
) -> int:
    """The id that nobody has yet (1012); it is not given before ``apply_broker_id``."""
    header = headers.GetNextBrokerId(cluster_name=cluster, broker_name=broker)
    answer = await ask(caller, address, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header, timeout=timeout)
    return headers.NextBrokerId.from_ext(answer.ext_fields).next_broker_id


async def apply_broker_id(
    caller: Caller,
    address: str,
    cluster: str,
    broker: str,
    broker_id: int,
    check_code: str,
    *,
    timeout: float = TIMEOUT,
) -> None:
    """Takes an id (1013); whoever has the same check code may ask again.

    Raises:
        ResponseError: 2014, somebody else has the id.
    """
    header = headers.ApplyBrokerId(
        cluster_name=cluster,
        broker_name=broker,
        applied_broker_id=broker_id,
        register_check_code=check_code,
    )
    await ask(caller, address, RequestCode.CONTROLLER_APPLY_BROKER_ID, header, timeout=timeout)


async def register(
    caller: Caller, address: str, header: headers.RegisterAtController, *, timeout: float = TIMEOUT
) -> Standing:
    """Tells where the broker of an id is now (1003); the answer names a master only while it lives.

    Raises:
        ResponseError: 2010, the controller does not know the id.
    """
    answer = await ask(caller, address, RequestCode.CONTROLLER_REGISTER_BROKER, header, timeout=timeout)
    return standing_of(headers.MasterReply.from_ext(answer.ext_fields), _set(answer))


async def elect(
    caller: Caller, address: str, header: headers.ElectMaster, *, timeout: float = TIMEOUT
) -> Standing:
    """Asks for an election (1002); a master that is still there is the result, too.

    Raises:
        ResponseError: 2012, nobody can be elected; 2010, the controller does not know the broker.
    """
    answer = await ask(
        caller,
        address,
        RequestCode.CONTROLLER_ELECT_MASTER,
        header,
        timeout=timeout,
        accept=(0, ResponseCode.CONTROLLER_MASTER_STILL_EXIST),
    )
    body = ElectMasterBody.parse(answer.body) if answer.body else ElectMasterBody()
    found = standing_of(
        headers.MasterReply.from_ext(answer.ext_fields), SyncStateSet(sync_state_set=body.sync_state_set)
    )
    return replace(found, is_new=answer.code == ResponseCode.SUCCESS)


async def replica_info(caller: Caller, address: str, broker: str, *, timeout: float = TIMEOUT) -> Standing:
    """Who is the master (1004).

    Raises:
        ResponseError: 2008, the controller knows no such broker name.
    """
    header = headers.GetReplicaInfo(broker_name=broker)
    answer = await ask(caller, address, RequestCode.CONTROLLER_GET_REPLICA_INFO, header, timeout=timeout)
    return standing_of(headers.MasterReply.from_ext(answer.ext_fields), _set(answer))


async def alter_sync_state_set(
    caller: Caller,
    address: str,
    header: headers.AlterSyncStateSet,
    wished: Iterable[int],
    known_epoch: int,
    *,
    timeout: float = TIMEOUT,
) -> SyncStateSet:
    """Has the set replaced (1001); answers the set that counts from now on.

    Raises:
        ResponseError: 2000 and 2002, somebody else is the master; 2001, the set is another by now; 2003, 2006 and
            2013, the wish cannot be granted.
        RemoteProtocolError: the answer names another set than the wished one, or none; what counts is not known.
    """
    asked = sorted(wished)
    body = SyncStateSet(sync_state_set=asked, sync_state_set_epoch=known_epoch).dump()
    answer = await ask(
        caller, address, RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header, body, timeout=timeout
    )
    granted = _set(answer)
    if sorted(granted.sync_state_set) != asked:
        raise RemoteProtocolError(
            f"{address} was asked for the set {asked} and granted {granted.sync_state_set}"
        )
    told = headers.AlterSyncStateSetReply.from_ext(answer.ext_fields).new_sync_state_set_epoch
    granted.sync_state_set_epoch = max(granted.sync_state_set_epoch, told)
    return granted


async def heartbeat(caller: Caller, address: str, header: BrokerHeartbeat) -> None:
    """904 to any controller; nobody answers."""
    await tell(caller, address, RequestCode.BROKER_HEARTBEAT, header)


def _set(answer: RemotingCommand) -> SyncStateSet:
    return SyncStateSet.parse(answer.body) if answer.body else SyncStateSet()
