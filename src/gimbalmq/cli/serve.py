"""Runs servers until a signal: start in order, say so, close in reverse.

Everything a process has only one of is decided here and nowhere below: the event loop, signal
handlers, the garbage collector, the exit code.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.access.config import AccessConfig, Credentials
from gimbalmq.cli.output import announce
from gimbalmq.transport.descriptors import budget, raise_limit
from gimbalmq.transport.limits import MOST_CONNECTIONS
from gimbalmq.transport.watchdog import LoopWatchdog

if TYPE_CHECKING:
    from gimbalmq.access.access import Access
    from gimbalmq.broker.broker import Broker
    from gimbalmq.broker.config import BrokerConfig
    from gimbalmq.cli.secure import Secured
    from gimbalmq.cli.supervised import Parent
    from gimbalmq.cli.supervisor import Brokers
    from gimbalmq.nameserver.config import NameServerConfig

log = logging.getLogger(__name__)

_COLLECT_EVERY = (1000, 5, 5)
"""A full collection for every 25,000 objects more: some milliseconds."""

_FEW_CONNECTIONS = 100
"""A broker with room for fewer is told of at the start with a remedy."""

WILDCARDS = frozenset({"", "0.0.0.0", "::", "*"})


def _new_credentials() -> Credentials:
    """Of servers that start together: nobody else knows the secret, and it is kept nowhere."""
    return Credentials(f"process-{secrets.token_hex(8)}", secrets.token_urlsafe(32))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """What one process is to run: a name server, a broker, or a broker that uses the name server.

    Attributes:
        many: brokers that use the name server, each a process of its own; then there is no ``broker``.
        metrics_of: the configuration that says how the metrics of ``many`` are served.
        secured: of ``--secure``; it has more to say when all are ready.
        of_the_run: what the broker signs its calls with unless its configuration says otherwise; the process that has
            started it uses the same.
        parent: that process.
        log_level, log_file: of this process, for those that it starts.
    """

    nameserver: NameServerConfig | None = None
    broker: BrokerConfig | None = None
    many: tuple[BrokerConfig, ...] = ()
    metrics_of: BrokerConfig | None = None
    secured: Secured | None = None
    of_the_run: Credentials = field(default_factory=_new_credentials)
    parent: Parent | None = None
    log_level: str = "info"
    log_file: Path | None = None
    debug: bool = False


def run(plan: ServePlan) -> int:
    """Serves until SIGINT, SIGTERM or SIGHUP; the exit code.

    Raises:
        RocketMQError, OSError: a server could not be started.
    """
    raise_limit()
    with asyncio.Runner(debug=plan.debug, loop_factory=_loop_factory()) as runner:
        return runner.run(_until_signal(plan))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _until_signal(plan: ServePlan) -> int:
    others: list[Brokers] = []
    task = asyncio.ensure_future(_serve(plan, others))
    stop = _StopOnSignal(asyncio.get_running_loop(), task, others, is_child=plan.parent is not None)
    with stop:
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not stop.asked:
                raise
    log.info("stopped")
    return 0


class _StopOnSignal:
    """The first signal cancels the task, whose clean-up closes the servers; the second ends all processes.

    Plain signal handlers, not the loop's: they run even while the loop is busy, so the second
    signal works when the first one hangs.

    Args:
        is_child: another process has started this one. Whoever stops both, as systemd does, signals this one twice:
            directly and through the other, which kills it if that is what is wanted. So the second signal is nothing.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        task: asyncio.Future[None],
        others: list[Brokers],
        *,
        is_child: bool,
    ) -> None:
        self._is_child = is_child
        self._loop = loop
        self._task = task
        self._others = others
        self._before: dict[signal.Signals, object] = {}
        self.asked = False

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, self._handle)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self.asked and self._is_child:
            return
        if self.asked:
            os.write(2, f"gimbalmq: {name} again: ending at once\n".encode())
            for brokers in self._others:
                brokers.kill()
            os._exit(1)
        self.asked = True
        self._loop.call_soon_threadsafe(self._stop, name)

    def _stop(self, name: str) -> None:
        log.info("%s: shutting down%s", name, "" if self._is_child else "; a second signal ends at once")
        self._task.cancel()


async def _serve(plan: ServePlan, others: list[Brokers]) -> None:
    async with AsyncExitStack() as stack:
        plan = share_connections(plan)
        watchdog = _watchdog(plan.broker)
        access = await _shared_access(plan, stack)
        port = 0
        if plan.nameserver is not None:
            from gimbalmq.nameserver.server import NameServer

            nameserver = NameServer(plan.nameserver, access=access)
            stack.push_async_callback(nameserver.close)
            await nameserver.start()
            announce(f"name server ready on {nameserver.address}")
            port = nameserver.port
            plan = _registering(plan, f"{_reachable(plan.nameserver.bind_address)}:{port}")
        if plan.broker is not None:
            await _start_broker(plan, plan.broker, stack, watchdog, access)
        if plan.many:
            await _start_many(plan, stack, others)
        if plan.secured is not None:
            for line in plan.secured.ready(port, show_secret=sys.stdout.isatty()):
                announce(line)
        _keep_collections_short(stack)
        watchdog.start()  # only now: reading modules and the store takes long, and nobody is served yet
        stack.callback(watchdog.close)
        await asyncio.get_running_loop().create_future()


def _registering(plan: ServePlan, namesrv: str) -> ServePlan:
    """The brokers register with this name server, too."""

    def also(config: BrokerConfig) -> BrokerConfig:
        known = dict.fromkeys([namesrv, *config.namesrv_addresses])
        return replace(config, namesrv_addr=";".join(known))

    broker = None if plan.broker is None else also(plan.broker)
    return replace(plan, broker=broker, many=tuple(map(also, plan.many)))


async def _start_broker(
    plan: ServePlan,
    config: BrokerConfig,
    stack: AsyncExitStack,
    watchdog: LoopWatchdog,
    access: Access | None,
) -> None:
    from gimbalmq.broker.broker import Broker

    broker = Broker(config, watchdog=watchdog, access=access)
    begun = SYSTEM_CLOCK.monotonic()
    stack.push_async_callback(broker.close)
    await broker.start()
    line = _broker_ready(broker, config.broker_name, SYSTEM_CLOCK.monotonic() - begun)
    _tell_room(config.broker_name, broker.load.most_connections)
    if plan.parent is None:
        announce(line)
    else:
        stack.push_async_callback(plan.parent.close)
        plan.parent.ready(broker, line)


async def _start_many(plan: ServePlan, stack: AsyncExitStack, others: list[Brokers]) -> None:
    """Brokers in processes of their own, and one page of metrics for all."""
    from gimbalmq.cli.pipes import Birth
    from gimbalmq.cli.supervisor import Brokers

    brokers = Brokers(
        [Birth(config, plan.of_the_run, plan.log_level, plan.log_file, plan.debug) for config in plan.many]
    )
    others.append(brokers)
    stack.push_async_callback(brokers.close)
    await brokers.start()
    told = plan.metrics_of
    if told is not None and told.metrics_prom_exporter_port:
        await brokers.metrics.start(
            told.metrics_bind_address, told.metrics_prom_exporter_port, token=told.read_metrics_token()
        )
    announce(f"all {len(plan.many)} brokers ready")


async def _shared_access(plan: ServePlan, stack: AsyncExitStack) -> Access | None:
    """One table of users for both servers of a process; None if one of them is not there, or keeps none.

    If brokers are processes of their own, each of them and the name server has a table, and they believe each other.
    """
    nameserver, broker = plan.nameserver, plan.broker
    if plan.many and nameserver is not None and nameserver.keeps_users:
        from gimbalmq.cli.supervisor import give_users

        assert nameserver.kv_config_path is not None, "the command names a folder"
        folder = Path(nameserver.kv_config_path).parent
        await give_users(plan.many[0], Path(nameserver.auth_config_path or folder), "the name server")
        return await _access(nameserver, folder, folder, plan, stack)
    if broker is None or not broker.keeps_users:
        return None
    if plan.parent is None and (nameserver is None or not nameserver.keeps_users):
        return None
    store = Path(broker.store_path_root_dir)
    return await _access(broker, store / "config", store, plan, stack)


async def _access(
    config: AccessConfig, folder: Path, home: Path, plan: ServePlan, stack: AsyncExitStack
) -> Access:
    from gimbalmq.access.access import Access

    access = Access(config, folder, home, of_the_run=plan.of_the_run)
    stack.push_async_callback(access.close)
    access.load()
    await access.start()
    return access


def share_connections(plan: ServePlan) -> ServePlan:
    """Two servers of one process share its descriptors: the name server gets a quarter at most, the broker the rest."""
    if plan.nameserver is None or plan.broker is None:
        return plan
    room = budget().connections
    wanted = plan.nameserver.server_max_connections or MOST_CONNECTIONS
    of_nameserver = max(1, min(wanted, room // 4))
    wanted = plan.broker.server_max_connections or MOST_CONNECTIONS
    of_broker = max(1, min(wanted, room - of_nameserver))
    return replace(
        plan,
        nameserver=replace(plan.nameserver, server_max_connections=of_nameserver),
        broker=replace(plan.broker, server_max_connections=of_broker),
    )


def _keep_collections_short(stack: AsyncExitStack) -> None:
    """Sees to it that the garbage collector never looks at all there is: with 10,000 topics that takes 100 ms.

    What exists when the servers are ready, and what has outlived a full collection, is not looked at again. It is still
    freed when nobody refers to it any more; only cycles would stay, and servers do not leave any.
    """

    def freeze(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            gc.freeze()

    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_EVERY)
    gc.callbacks.append(freeze)
    stack.callback(gc.set_threshold, *before)
    stack.callback(gc.callbacks.remove, freeze)


def _tell_room(name: str, connections: int) -> None:
    room = budget()
    text = f"up to {connections:,} connections and {room.queue_files:,} open queue files"
    if connections < _FEW_CONNECTIONS:
        log.warning(
            "broker %s can only hold %s; raise the limit of open files (ulimit -n), which is %d",
            name,
            text,
            room.limit,
        )
    else:
        log.info("broker %s can hold %s (limit of open files %d)", name, text, room.limit)


def _watchdog(config: BrokerConfig | None) -> LoopWatchdog:
    if config is None:
        return LoopWatchdog()
    return LoopWatchdog(config.loop_pause_warn_millis / 1000, config.loop_pause_log_millis / 1000)


def _reachable(host: str) -> str:
    """An address at which this machine reaches a server bound to ``host``."""
    if host in WILDCARDS:
        return "[::1]" if host == "::" else "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _broker_ready(broker: Broker, name: str, seconds: float) -> str:
    report = broker.recovery
    assert report is not None, "a started broker has recovered its store"
    for note in report.notes:
        log.warning("store: %s", note)
    if report.truncated_bytes:
        log.warning(
            "store: %d bytes behind the last valid record were cut off (%s)",
            report.truncated_bytes,
            report.end_reason,
        )
    after = "" if report.clean else " after an unclean end"
    return (
        f"broker {name} ready on {broker.address}, store {broker.store_path}, "
        f"recovered {report.records_scanned} records in {seconds:.2f} s{after}"
    )
