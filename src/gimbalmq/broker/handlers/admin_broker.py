"""Administration of the broker itself: configuration, runtime table, statistics, clean-up."""

from __future__ import annotations

import shutil

from gimbalmq._clock import Clock
from gimbalmq._options import did_you_mean, options_by_key
from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.broker.delay_levels import DelayLevels
from gimbalmq.broker.longpoll import LongPoll
from gimbalmq.broker.replication.replication import Replication
from gimbalmq.broker.stats import Stats
from gimbalmq.broker.timers import Timers
from gimbalmq.broker.upkeep import Upkeep
from gimbalmq.errors import (
    ConfigError,
    InvalidParameterError,
    NoPermissionError,
    ResponseError,
    StateError,
)
from gimbalmq.protocol import fastjson, properties_text
from gimbalmq.protocol.bodies import KvTable
from gimbalmq.protocol.codes import OUR_VERSION, RequestCode, version_name
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.management import UpdateBrokerConfig, ViewStats
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.channel import Answer, Channel, Handlers
from gimbalmq.transport.watchdog import LoopWatchdog

_MAX_CHANGES_BYTES = 262_144
_ROLE_KEYS = ("brokerRole", "brokerId")
_REFUSED_KEYS = ("configBlackList", "brokerConfigPath")


class BrokerAdminHandlers:
    """Java: the rest of AdminBrokerProcessor."""

    def __init__(
        self,
        store: MessageStore,
        live: LiveConfig,
        stats: Stats,
        delays: DelayLevels,
        timers: Timers,
        long_poll: LongPoll,
        upkeep: Upkeep,
        clock: Clock,
        replication: Replication,
        watchdog: LoopWatchdog | None = None,
    ) -> None:
        self._store = store
        self._live = live
        self._stats = stats
        self._delays = delays
        self._timers = timers
        self._long_poll = long_poll
        self._upkeep = upkeep
        self._clock = clock
        self._replication = replication
        self._watchdog = watchdog

    def register(self, handlers: Handlers) -> None:
        handlers.add(RequestCode.UPDATE_BROKER_CONFIG, self.update_config, completes=True)
        handlers.add(RequestCode.GET_BROKER_CONFIG, self.get_config)
        handlers.add(RequestCode.GET_BROKER_RUNTIME_INFO, self.runtime)
        handlers.add(RequestCode.VIEW_BROKER_STATS_DATA, self.view_stats)
        handlers.add(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, self.clean, completes=True)
        handlers.add(RequestCode.DELETE_EXPIRED_COMMITLOG, self.clean, completes=True)

    async def update_config(self, channel: Channel, request: RemotingCommand) -> Answer:
        if len(request.body) > _MAX_CHANGES_BYTES:
            raise InvalidParameterError(
                f"the properties are {len(request.body)} bytes; at most {_MAX_CHANGES_BYTES} are read: "
                "change fewer at once"
            )
        try:
            changes = properties_text.loads(bytes(request.body).decode())
        except ValueError as error:
            raise InvalidParameterError(f"the properties cannot be read: {error}") from error
        for key in _REFUSED_KEYS:
            if key in changes:
                raise NoPermissionError(f"Can not update config in black list: {key}")
        before = self._live.now
        try:
            wanted, unknown = before.changed(changes)
            if (wanted.broker_role, wanted.broker_id) != (before.broker_role, before.broker_id):
                header = UpdateBrokerConfig.from_ext(request.ext_fields)
                await self._replication.change(wanted, forced=header.forces_role)
            self._live.update({key: changes[key] for key in changes if key not in _ROLE_KEYS})
        except (ConfigError, StateError) as error:
            raise InvalidParameterError(str(error)) from error
        if unknown and len(unknown) == len(changes):
            asked = did_you_mean(unknown[0], options_by_key(BrokerConfig))
            raise InvalidParameterError(f"{', '.join(unknown)}: no option of this broker{asked}")
        return request.reply()

    def get_config(self, channel: Channel, request: RemotingCommand) -> Answer:
        version = {"counter": self._live.version, "stateVersion": 0, "timestamp": self._stats.boot_ms}
        return request.reply(
            ext_fields={"version": fastjson.dumps(version).decode()},
            body=properties_text.dumps(self._live.now.to_properties()),
        )

    def runtime(self, channel: Channel, request: RemotingCommand) -> Answer:
        return request.reply(body=KvTable(table=self.runtime_table()).dump())

    def runtime_table(self) -> dict[str, str]:
        """What clusterList and brokerStatus read; keys of both generations."""
        store, stats = self._store, self._stats
        now = self._clock.wall_ms()
        disk = shutil.disk_usage(store.config.root)
        used = disk.used / max(1, disk.total)
        put, transferred = stats.rates(stats.put_total), stats.rates(stats.get_transferred)
        put_total, get_total = stats.put_total.value, stats.get_transferred.value
        table = {
            "brokerActive": str(self._replication.roles.services_on).lower(),
            "brokerRole": self._live.now.broker_role,
            "brokerVersion": str(OUR_VERSION),
            "brokerVersionDesc": version_name(OUR_VERSION),
            "bootTimestamp": str(stats.boot_ms),
            "runtime": _duration(now - stats.boot_ms),
            "putTps": put,
            "getTransferedTps": transferred,
            "getTransferredTps": transferred,
            "getFoundTps": stats.rates(stats.get_found),
            "getMissTps": stats.rates(stats.get_miss),
            "getTotalTps": stats.rates(stats.get_found),
            "putMessageTimesTotal": str(put_total),
            "putMessageSizeTotal": str(stats.put_bytes.value),
            "putMessageAverageSize": str(stats.put_bytes.value / max(1, put_total)),
            "msgPutTotalYesterdayMorning": "0",
            "msgPutTotalTodayMorning": "0",
            "msgPutTotalTodayNow": str(put_total),
            "msgGetTotalYesterdayMorning": "0",
            "msgGetTotalTodayMorning": "0",
            "msgGetTotalTodayNow": str(get_total),
            "earliestMessageTimeStamp": str(store.earliest_message_time()),
            "startAcceptSendRequestTimeStamp": "0",
            "commitLogMinOffset": str(store.min_commitlog_offset),
            "commitLogMaxOffset": str(store.max_commitlog_offset),
            "remainHowManyDataToFlush": f"{store.max_commitlog_offset - store.flushed_offset} B",
            "dispatchBehindBytes": str(store.dispatch_behind_bytes),
            "commitLogDiskRatio": f"{used:.4f}",
            "consumeQueueDiskRatio": f"{used:.4f}",
            "commitLogDirCapacity": "",
            "pageCacheLockTimeMills": "0",
            "sendThreadPoolQueueSize": "0",
            "sendThreadPoolQueueCapacity": "10000",
            "sendThreadPoolQueueHeadWaitTimeMills": "0",
            "pullThreadPoolQueueSize": "0",
            "pullThreadPoolQueueCapacity": "100000",
            "pullThreadPoolQueueHeadWaitTimeMills": "0",
            "queryThreadPoolQueueSize": "0",
            "queryThreadPoolQueueHeadWaitTimeMills": "0",
            "EndTransactionQueueSize": "0",
            "timerReadBehind": str(self._timers.seconds_behind),
            "timerOffsetBehind": str(self._timers.offsets_behind),
            "timerCongestNum": str(len(self._timers)),
            "timerEnqueueTps": str(stats.view(self._timers.entered)["statsMinute"]["tps"]),
            "timerDequeueTps": str(stats.view(self._timers.delivered)["statsMinute"]["tps"]),
            "heldPulls": str(len(self._long_poll)),
            "writable": str(store.read_only_reason is None).lower(),
        }
        if store.read_only_reason is not None:
            table["readOnlyReason"] = store.read_only_reason
        if (watchdog := self._watchdog) is not None:
            longest = watchdog.longest.seconds if watchdog.longest is not None else 0.0
            table["loopPauses"] = str(watchdog.pauses)
            table["loopLongestPauseMillis"] = str(round(longest * 1000))
        for level, (done, newest) in self._delays.progress().items():
            table[f"scheduleMessageOffset_{level}"] = f"{done},{newest}"
        return table

    def view_stats(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = ViewStats.from_ext(request.ext_fields)
        counter = self._stats.find(header.stats_name, header.stats_key)
        if counter is None and header.stats_key == self._live.now.broker_cluster_name:
            counter = {
                "BROKER_PUT_NUMS": self._stats.put_total,
                "BROKER_GET_NUMS": self._stats.get_transferred,
            }.get(header.stats_name)
        if counter is None:
            raise ResponseError(f"The stats <{header.stats_name}> <{header.stats_key}> not exist")
        return request.reply(body=fastjson.dumps(self._stats.view(counter)))

    async def clean(self, channel: Channel, request: RemotingCommand) -> Answer:
        await self._upkeep.clean(manual=True)
        return request.reply()


def _duration(millis: int) -> str:
    seconds = millis // 1000
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3600)
    minutes, seconds = divmod(seconds, 60)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
