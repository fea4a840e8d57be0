"""The living brokers of one name, as a name server lists them."""

from __future__ import annotations

from gimbalmq.broker.config import BrokerConfig
from gimbalmq.errors import RocketMQError, TopicRouteNotFoundError
from gimbalmq.model.topics import SYNC_MEMBERS_PREFIX
from gimbalmq.protocol.bodies import DataVersion
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.headers.nameserver import BrokerIdentity
from gimbalmq.protocol.headers.replication import BrokerHeartbeat, MemberGroup
from gimbalmq.protocol.replication_bodies import MemberGroupBody
from gimbalmq.rpc import nameserver
from gimbalmq.rpc.call import Caller, ask, tell

_SECONDS = 3.0


async def members(caller: Caller, config: BrokerConfig) -> dict[int, str] | None:
    """Addresses by broker id, as the first name server says that answers; None if none does.

    With compatibleWithOldNameSrv they are read from the route of a topic that every broker of the name has for that.
    """
    for address in config.namesrv_addresses:
        try:
            if config.compatible_with_old_name_srv:
                return await _in_route(caller, address, config)
            header = MemberGroup(cluster_name=config.broker_cluster_name, broker_name=config.broker_name)
            answer = await ask(caller, address, RequestCode.GET_BROKER_MEMBER_GROUP, header, timeout=_SECONDS)
        except RocketMQError:
            continue
        found = MemberGroupBody.parse(answer.body).broker_member_group
        return {} if found is None else dict(found.broker_addrs)
    return None


async def _in_route(caller: Caller, address: str, config: BrokerConfig) -> dict[int, str]:
    try:
        route = await nameserver.route(caller, address, SYNC_MEMBERS_PREFIX + config.broker_name)
    except TopicRouteNotFoundError:
        return {}
    for broker in route.broker_datas:
        if broker.broker_name == config.broker_name:
            return dict(broker.broker_addrs)
    return {}


async def beat(
    caller: Caller, config: BrokerConfig, address: str, broker_id: int, version: DataVersion
) -> None:
    """Tells every name server that this broker lives."""
    for name_server in config.namesrv_addresses:
        try:
            if config.compatible_with_old_name_srv:
                identity = BrokerIdentity(
                    broker_name=config.broker_name,
                    broker_addr=address,
                    cluster_name=config.broker_cluster_name,
                    broker_id=broker_id,
                )
                await tell(caller, name_server, RequestCode.QUERY_DATA_VERSION, identity, version.dump())
            else:
                header = BrokerHeartbeat(
                    cluster_name=config.broker_cluster_name,
                    broker_addr=address,
                    broker_name=config.broker_name,
                    broker_id=broker_id,
                )
                await tell(caller, name_server, RequestCode.BROKER_HEARTBEAT, header)
        except RocketMQError:
            pass  # the next registration says whether it can be reached
