"""Calls of tools about replicas: how a broker copies, who is in step, what a controller knows."""

from __future__ import annotations

import msgspec

from gimbalmq.protocol import properties_text
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.headers import controller as controller_headers
from gimbalmq.protocol.headers import replication as headers
from gimbalmq.protocol.replication_bodies import ElectMasterBody, EpochTable, HaStatus, ReplicasTable
from gimbalmq.rpc.call import Caller, ask

TIMEOUT = 5.0


# --- brokers -------------------------------------------------------------------------------------


async def ha_status(caller: Caller, address: str, *, timeout: float = TIMEOUT) -> HaStatus:
    """907 GET_BROKER_HA_STATUS; brokers of 4.9 do not know it."""
    answer = await ask(caller, address, RequestCode.GET_BROKER_HA_STATUS, timeout=timeout)
    return HaStatus.parse(answer.body)


async def epochs(caller: Caller, address: str, *, timeout: float = TIMEOUT) -> EpochTable:
    """1007 GET_BROKER_EPOCH_CACHE; a broker without a controller refuses it."""
    answer = await ask(caller, address, RequestCode.GET_BROKER_EPOCH_CACHE, timeout=timeout)
    return EpochTable.parse(answer.body)


async def reset_master_flush_offset(
    caller: Caller, address: str, offset: int, *, timeout: float = TIMEOUT
) -> None:
    """908 RESET_MASTER_FLUSH_OFFSET."""
    header = headers.ResetMasterFlushOffset(master_flush_offset=offset)
    await ask(caller, address, RequestCode.RESET_MASTER_FLUSH_OFFSET, header, timeout=timeout)


# --- controllers ---------------------------------------------------------------------------------


async def controller_metadata(
    caller: Caller, controller: str, *, timeout: float = TIMEOUT
) -> controller_headers.ControllerMetadata:
    """1005 CONTROLLER_GET_METADATA_INFO, which any of them answers."""
    answer = await ask(caller, controller, RequestCode.CONTROLLER_GET_METADATA_INFO, timeout=timeout)
    return controller_headers.ControllerMetadata.from_ext(answer.ext_fields)


async def sync_state(
    caller: Caller, leader: str, broker_names: list[str], *, timeout: float = TIMEOUT
) -> ReplicasTable:
    """1006 CONTROLLER_GET_SYNC_STATE_DATA, of the controller that leads."""
    body = msgspec.json.encode(broker_names)
    code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
    return ReplicasTable.parse((await ask(caller, leader, code, None, body, timeout=timeout)).body)


async def elect_master(
    caller: Caller, leader: str, cluster: str, broker: str, broker_id: int, *, timeout: float = TIMEOUT
) -> tuple[controller_headers.MasterReply, ElectMasterBody]:
    """1002 CONTROLLER_ELECT_MASTER with the one that is to become it."""
    header = controller_headers.ElectMaster(
        cluster_name=cluster, broker_name=broker, broker_id=broker_id, designate_elect=True
    )
    answer = await ask(caller, leader, RequestCode.CONTROLLER_ELECT_MASTER, header, timeout=timeout)
    body = ElectMasterBody.parse(answer.body) if answer.body else ElectMasterBody()
    return controller_headers.MasterReply.from_ext(answer.ext_fields), body


async def controller_config(caller: Caller, controller: str, *, timeout: float = TIMEOUT) -> dict[str, str]:
    """1010 GET_CONTROLLER_CONFIG."""
    answer = await ask(caller, controller, RequestCode.GET_CONTROLLER_CONFIG, timeout=timeout)
    return properties_text.loads(bytes(answer.body).decode())


async def update_controller_config(
    caller: Caller, controller: str, settings: dict[str, str], *, timeout: float = TIMEOUT
) -> None:
    """1009 UPDATE_CONTROLLER_CONFIG."""
    body = properties_text.dumps(settings)
    await ask(caller, controller, RequestCode.UPDATE_CONTROLLER_CONFIG, None, body, timeout=timeout)


async def clean_broker_data(
    caller: Caller,
    leader: str,
    broker: str,
    *,
    cluster: str | None = None,
    ids: str | None = None,
    living: bool = False,
    timeout: float = TIMEOUT,
) -> None:
    """1011 CLEAN_BROKER_DATA."""
    header = controller_headers.CleanBrokerData(
        broker_name=broker,
        cluster_name=cluster,
        broker_controller_ids_to_clean=ids,
        is_clean_living_broker=living,
    )
    await ask(caller, leader, RequestCode.CLEAN_BROKER_DATA, header, timeout=timeout)
