"""Calls to a name server: routes, cluster, registration, KV."""

from __future__ import annotations

import zlib

from gimbalmq.errors import (
    NotANameServerError,
    RequestCodeNotSupportedError,
    ResponseError,
    TopicRouteNotFoundError,
)
from gimbalmq.protocol.bodies import (
    ClusterInfo,
    DataVersion,
    KvTable,
    RegisterBrokerBody,
    TopicList,
    TopicRoute,
)
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers import nameserver as headers
from gimbalmq.protocol.headers.base import Header
from gimbalmq.rpc.call import Caller, ask


async def _ask_first(
    caller: Caller, address: str, code: int, header: Header | None = None, *, timeout: float
) -> RemotingCommand:
    """A request that every name server knows, one of those that clients make first; the peer may be none."""
    try:
        return await ask(caller, address, code, header, timeout=timeout)
    except RequestCodeNotSupportedError as error:
        raise NotANameServerError(address, code) from error


async def route(caller: Caller, address: str, topic: str, *, timeout: float = 3.0) -> TopicRoute:
    """Who serves a topic; raises TopicRouteNotFoundError if nobody does."""
    try:
        answer = await _ask_first(
            caller,
            address,
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            headers.GetRoute(topic=topic, accept_standard_json_only=True),
            timeout=timeout,
        )
    except ResponseError as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            raise TopicRouteNotFoundError(f"{address} knows no route for topic {topic}") from error
        raise
    return TopicRoute.parse(answer.body)


async def cluster_info(caller: Caller, address: str, *, timeout: float = 3.0) -> ClusterInfo:
    answer = await _ask_first(caller, address, RequestCode.GET_BROKER_CLUSTER_INFO, timeout=timeout)
    return ClusterInfo.parse(answer.body)


async def all_topics(caller: Caller, address: str, *, timeout: float = 3.0) -> TopicList:
    answer = await _ask_first(
        caller, address, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, timeout=timeout
    )
    return TopicList.parse(answer.body)


async def register_broker(
    caller: Caller,
    address: str,
    header: headers.RegisterBroker,
    body: RegisterBrokerBody | bytes,
    *,
    timeout: float = 6.0,
) -> tuple[headers.RegisterBrokerReply, KvTable]:
    """Announces a broker; answers its master (for a slave) and the order configuration."""
    raw = body if isinstance(body, bytes) else body.dump()
    header.body_crc32 = zlib.crc32(raw) & 0x7FFFFFFF
    answer = await ask(caller, address, RequestCode.REGISTER_BROKER, header, raw, timeout=timeout)
    table = KvTable.parse(answer.body) if answer.body else KvTable()
    return headers.RegisterBrokerReply.from_ext(answer.ext_fields), table


async def unregister_broker(
    caller: Caller, address: str, header: headers.BrokerIdentity, *, timeout: float = 3.0
) -> None:
    await ask(caller, address, RequestCode.UNREGISTER_BROKER, header, timeout=timeout)


async def query_data_version(
    caller: Caller,
    address: str,
    header: headers.BrokerIdentity,
    version: DataVersion,
    *,
    timeout: float = 3.0,
) -> bool:
    """True if the name server's table differs from ``version``; refreshes liveness."""
    answer = await ask(
        caller, address, RequestCode.QUERY_DATA_VERSION, header, version.dump(), timeout=timeout
    )
    return headers.DataVersionReply.from_ext(answer.ext_fields).changed


async def delete_topic(caller: Caller, address: str, topic: str) -> None:
    await ask(caller, address, RequestCode.DELETE_TOPIC_IN_NAMESRV, headers.TopicOnly(topic=topic))
