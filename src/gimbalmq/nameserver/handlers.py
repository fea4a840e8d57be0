"""Request code to function: everything a name server is asked (Java: DefaultRequestProcessor)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from gimbalmq._clock import Clock
from gimbalmq._steps import Steps
from gimbalmq.errors import (
    InvalidParameterError,
    QueryNotFoundError,
    ResponseError,
    RocketMQError,
    TopicNotExistError,
)
from gimbalmq.nameserver.answers import dump_bare, dump_standard
from gimbalmq.nameserver.kv import ORDER_TOPIC_CONFIG, KvStore
from gimbalmq.nameserver.registration import MOST_TOPICS, ReadingLimits, reading
from gimbalmq.nameserver.route_table import UNIT, UNIT_SUBSCRIPTION, RouteTable
from gimbalmq.nameserver.served_topics import TableLimits
from gimbalmq.nameserver.settings import Settings
from gimbalmq.nameserver.shown_routes import members_body
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.bodies import DataVersion, TopicRoute
from gimbalmq.protocol.codes import V4_9_4, RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers import nameserver as headers
from gimbalmq.protocol.headers.base import Header
from gimbalmq.transport.channel import Channel, Handler, Handlers
from gimbalmq.transport.turns import Turns

H = TypeVar("H", bound=Header)

_SMALL_BODY_BYTES = 65_536
"""Most bytes of a body that names one thing."""

_LARGE = {
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_TOPICS_BY_CLUSTER,
    RequestCode.GET_UNIT_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
}
"""What walks over the whole table."""

_COMPLETED = {RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG}
"""What is changed even if who asked hangs up while the change waits for the one before it.

A registration is none of these: it ends with its connection, and the broker with it. Completed later, it would leave a
broker in the table that no closing connection takes out again.
"""

_FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class NameServerRequests:
    """The handlers and what they work on."""

    def __init__(
        self,
        table: RouteTable,
        kv: KvStore,
        settings: Settings,
        clock: Clock,
        proven: Callable[[Channel, RemotingCommand], bool] | None = None,
    ) -> None:
        """``proven`` says whether a request carries the credentials of a server or an administrator; None if nobody
        needs any."""
        self._table = table
        self._proven = proven
        self._kv = kv
        self._settings = settings
        self._clock = clock
        self._started = clock.monotonic()
        self._turns = Turns(clock)
        self._registering: dict[Channel, asyncio.Lock] = {}

    def disconnected(self, channel: Channel) -> None:
        self._registering.pop(channel, None)
        self._table.connection_lost(channel)

    def install(self, handlers: Handlers) -> None:
        code = RequestCode
        table: dict[int, Handler] = {
            code.PUT_KV_CONFIG: self.put_kv,
            code.GET_KV_CONFIG: self.get_kv,
            code.DELETE_KV_CONFIG: self.delete_kv,
            code.GET_KVLIST_BY_NAMESPACE: self.get_kv_namespace,
            code.REGISTER_BROKER: self.register_broker,
            code.UNREGISTER_BROKER: self.unregister_broker,
            code.QUERY_DATA_VERSION: self.query_data_version,
            code.BROKER_HEARTBEAT: self.heartbeat,
            code.GET_BROKER_MEMBER_GROUP: self.member_group,
            code.GET_ROUTEINFO_BY_TOPIC: self.route,
            code.GET_BROKER_CLUSTER_INFO: self.cluster_info,
            code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.all_topics,
            code.GET_TOPICS_BY_CLUSTER: self.topics_of_cluster,
            code.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            code.GET_UNIT_TOPIC_LIST: self.unit_topics,
            code.GET_HAS_UNIT_SUB_TOPIC_LIST: self.unit_subscription_topics,
            code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.unit_subscription_only_topics,
            code.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            code.REGISTER_TOPIC_IN_NAMESRV: self.register_topic,
            code.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_perm,
            code.ADD_WRITE_PERM_OF_BROKER: self.add_write_perm,
            code.UPDATE_NAMESRV_CONFIG: self.update_config,
            code.GET_NAMESRV_CONFIG: self.get_config,
        }
        for number, handler in table.items():
            handlers.add(number, handler, completes=number in _COMPLETED, large=number in _LARGE)

    # -- brokers ---------------------------------------------------------------------

    async def register_broker(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = _header(request, headers.RegisterBroker)
        config = self._settings.config
        self._table.limits = TableLimits(config.max_broker_nums, config.max_topic_nums, config.max_route_nums)
        # A broker with more topics than there is room for keeps those that are known, so they are read all the same.
        limits = ReadingLimits(max(config.max_topic_nums, MOST_TOPICS), config.max_inflated_registration_size)
        may_replace = self._proven is None or self._proven(channel, request)
        # Others have their turns in between, but a broker's next word waits for its last.
        async with self._registering.setdefault(channel, asyncio.Lock()):
            try:
                registration = await self._turns.run(
                    reading(header, bytes(request.body), request.version, limits)
                )
            except RocketMQError:
                # What it says is refused, but it lives.
                self._check_owner(channel, request, header.broker_addr)
                self._table.touch(header.cluster_name, header.broker_addr, self._clock.monotonic())
                raise
            result = await self._turns.run(
                self._table.registering(
                    registration,
                    now=self._clock.monotonic(),
                    connection=channel,
                    default_expiry=config.broker_channel_expired_time / 1000,
                    delete_missing_topics=config.delete_topic_with_broker_registration,
                    owner=_owner(channel),
                    may_replace=may_replace,
                )
            )
        reply = headers.RegisterBrokerReply(
            ha_server_addr=result.ha_server_addr, master_addr=result.master_addr
        )
        order = self._kv.body(ORDER_TOPIC_CONFIG) if config.return_order_topic_config_to_broker else None
        return request.reply(ext_fields=reply.to_ext(), body=order or b"")

    async def unregister_broker(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = _header(request, headers.BrokerIdentity)
        # A goodbye does not overtake the registration that was sent before it.
        async with self._registering.setdefault(channel, asyncio.Lock()):
            if self._proven is None or not self._proven(channel, request):
                # Brokers say it for themselves only, so no broker is the worse for this where nobody needs credentials.
                self._table.require_owner(header.broker_addr, _owner(channel))
            self._table.unregister(header.cluster_name, header.broker_name, header.broker_addr)
        return request.reply()

    def _check_owner(self, channel: Channel, request: RemotingCommand, broker_addr: str) -> None:
        """Who is let in without credentials speaks for brokers only that nobody else has registered."""
        if self._proven is not None and not self._proven(channel, request):
            self._table.require_owner(broker_addr, _owner(channel))

    def query_data_version(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = _header(request, headers.BrokerIdentity)
        self._check_owner(channel, request, header.broker_addr)
        if not request.body:
            raise InvalidParameterError(
                "the request has no body; a DataVersion belongs there", code=ResponseCode.SYSTEM_ERROR
            )
        theirs = DataVersion.of_request(request.body, limit=_SMALL_BODY_BYTES)
        changed = self._table.data_version_changed(header.cluster_name, header.broker_addr, theirs)
        self._table.touch(header.cluster_name, header.broker_addr, self._clock.monotonic())
        ours = self._table.data_version(header.cluster_name, header.broker_addr)
        return request.reply(
            ext_fields=headers.DataVersionReply(changed=changed).to_ext(),
            body=b"" if ours is None else ours.dump(),
        )

    def heartbeat(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = _header(request, headers.BrokerIdentity)
        self._check_owner(channel, request, header.broker_addr)
        self._table.touch(header.cluster_name, header.broker_addr, self._clock.monotonic())
        return request.reply()

    def member_group(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = _header(request, headers.BrokerNameOnly)
        members = self._table.members(header.broker_name)
        return request.reply(
            body=dump_bare(members_body(header.cluster_name or "", header.broker_name, members))
        )

    def wipe_write_perm(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        count = self._table.wipe_write_perm(_header(request, headers.BrokerNameOnly).broker_name)
        return request.reply(ext_fields=headers.WipeReply(wipe_topic_count=count).to_ext())

    def add_write_perm(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        count = self._table.add_write_perm(_header(request, headers.BrokerNameOnly).broker_name)
        return request.reply(ext_fields=headers.WipeReply(add_topic_count=count).to_ext())

    # -- routes ----------------------------------------------------------------------

    def route(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = _header(request, headers.GetRoute)
        config = self._settings.config
        if config.need_wait_for_service and (
            self._clock.monotonic() - self._started < config.wait_seconds_for_service
        ):
            raise ResponseError("name server not ready")
        zone_mode = (header.zone_mode or "").lower() == "true"
        route = self._table.route(
            header.topic,
            acting_master=config.support_acting_master,
            zone=header.zone_name if zone_mode and (header.zone_name or "").strip() else None,
            order_topic_conf=(
                self._kv.get(ORDER_TOPIC_CONFIG, header.topic) if config.order_message_enable else None
            ),
        )
        if route is None:
            raise TopicNotExistError(
                f"No topic route info in name server for the topic: {header.topic}{_FAQ}"
            )
        standard = request.version >= V4_9_4 or bool(header.accept_standard_json_only)
        return request.reply(body=dump_standard(route) if standard else dump_bare(route))

    def cluster_info(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return request.reply(body=dump_bare(self._table.cluster_info()))

    # -- topics ----------------------------------------------------------------------

    async def all_topics(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        if not self._settings.config.enable_all_topic_list:
            raise ResponseError("disable")
        return await self._listed(request, self._table.all_topics())

    async def topics_of_cluster(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        self._check_topic_lists()
        cluster = _header(request, headers.ClusterOnly).cluster
        return await self._listed(request, self._table.topics_of_cluster(cluster))

    def system_topics(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return request.reply(body=self._table.system_topics().dump())

    async def unit_topics(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        self._check_topic_lists()
        return await self._listed(request, self._table.unit_topics(UNIT))

    async def unit_subscription_topics(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        self._check_topic_lists()
        return await self._listed(request, self._table.unit_topics(UNIT_SUBSCRIPTION))

    async def unit_subscription_only_topics(
        self, _channel: Channel, request: RemotingCommand
    ) -> RemotingCommand:
        self._check_topic_lists()
        return await self._listed(request, self._table.unit_topics(UNIT_SUBSCRIPTION, unwanted=UNIT))

    async def _listed(self, request: RemotingCommand, topics: Steps[list[str]]) -> RemotingCommand:
        return request.reply(body=fastjson.dumps({"topicList": await self._turns.run(topics)}))

    def _check_topic_lists(self) -> None:
        if not self._settings.config.enable_topic_list:
            raise ResponseError("disable")

    def delete_topic(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = _header(request, headers.TopicOnly)
        self._table.delete_topic(header.topic, header.cluster_name)
        return request.reply()

    def register_topic(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = _header(request, headers.TopicOnly)
        if request.body:
            config = self._settings.config
            self._table.limits = TableLimits(
                config.max_broker_nums, config.max_topic_nums, config.max_route_nums
            )
            self._table.register_topic(
                header.topic, TopicRoute.of_request(request.body, limit=_SMALL_BODY_BYTES).queue_datas
            )
        return request.reply()

    # -- KV and configuration --------------------------------------------------------

    async def put_kv(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = _header(request, headers.KvConfig)
        if not header.namespace or not header.key:
            raise InvalidParameterError("namespace or key is null", code=ResponseCode.SYSTEM_ERROR)
        config = self._settings.config
        self._kv.max_entries, self._kv.max_bytes = config.max_kv_config_nums, config.max_kv_config_size
        await self._kv.put(header.namespace, header.key, header.value)
        return request.reply()

    def get_kv(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = _header(request, headers.KvConfig)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            raise QueryNotFoundError(f"No config item, Namespace: {header.namespace} Key: {header.key}")
        return request.reply(ext_fields=headers.KvReply(value=value).to_ext())

    async def delete_kv(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = _header(request, headers.KvConfig)
        await self._kv.delete(header.namespace, header.key)
        return request.reply()

    def get_kv_namespace(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = _header(request, headers.KvConfig)
        body = self._kv.body(header.namespace)
        if body is None:
            raise QueryNotFoundError(f"No config item, Namespace: {header.namespace}")
        return request.reply(body=body)

    async def update_config(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        if len(request.body) > _SMALL_BODY_BYTES:
            raise InvalidParameterError(
                f"the properties have {len(request.body)} bytes; {_SMALL_BODY_BYTES} are allowed",
                code=ResponseCode.SYSTEM_ERROR,
            )
        try:
            text = bytes(request.body).decode()
        except UnicodeDecodeError as error:
            raise InvalidParameterError(
                f"the properties are not UTF-8: {error}", code=ResponseCode.SYSTEM_ERROR
            ) from error
        await self._settings.update(text)
        return request.reply()

    def get_config(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return request.reply(body=self._settings.describe())


def _owner(channel: Channel) -> str:
    """Who a peer is, as far as it shows: the name in its certificate, else its address."""
    shown = channel.peer_certificate
    return channel.host if shown is None else f"CN={shown.name}" if shown.name else shown.fingerprint


def _header(request: RemotingCommand, cls: type[H]) -> H:
    return cls.from_ext(request.ext_fields)
