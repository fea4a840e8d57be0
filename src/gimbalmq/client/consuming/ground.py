"""What all parts of one member of a group stand on."""

from __future__ import annotations

from gimbalmq.client.consumer_config import ConsumerConfig
from gimbalmq.client.consuming.locks import Locks
from gimbalmq.client.consuming.offsets import (
    LocalOffsets,
    OffsetStore,
    RemoteOffsets,
    local_offset_folder,
)
from gimbalmq.client.consuming.queue_ends import Starts
from gimbalmq.client.consuming.rounds import Rounds
from gimbalmq.client.consuming.subscriptions import Announcer, Subscriptions
from gimbalmq.client.consuming.wakes import Wakes
from gimbalmq.client.events import Events
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.rates import Rates
from gimbalmq.transport.tasks import Tasks


class Ground:
    """The client instance, the configuration, and the parts that do not know which queues are held.

    Attributes:
        locks: None if queues are taken without the broker's lock on them: neither ordered nor by lease.
        wakes: asks for rounds.
        started_ms: when the consumer was started, ms since 1970.
    """

    def __init__(
        self,
        instance: ClientInstance,
        config: ConsumerConfig,
        subscriptions: Subscriptions,
        sink: Events,
        tasks: Tasks,
        offset_store: OffsetStore | None,
        *,
        ordered: bool,
    ) -> None:
        self.instance = instance
        self.clock = instance.clock
        self.config = config
        self.group = config.group
        self.subscriptions = subscriptions
        self.events = sink
        self.tasks = tasks
        self.started_ms = instance.clock.wall_ms()
        self.offsets = offset_store or _offsets(instance, config)
        self.locks = _locks(instance, config, tasks, ordered=ordered)
        self.starts = Starts(instance, config, self.offsets, self.started_ms)
        self.rounds = Rounds.of(instance)
        self.wakes = Wakes(self.rounds, tasks)
        self.announcer = Announcer(instance, config.group, subscriptions, tasks)
        self.rates = Rates(instance.clock.monotonic())


def _offsets(instance: ClientInstance, config: ConsumerConfig) -> OffsetStore:
    if config.broadcasting:
        folder = local_offset_folder(config.local_offset_folder, instance.client_id, config.group)
        return LocalOffsets(folder)
    return RemoteOffsets(instance, config.group)


def _locks(instance: ClientInstance, config: ConsumerConfig, tasks: Tasks, *, ordered: bool) -> Locks | None:
    by_lease = config.handover == "lease"
    if config.broadcasting or not (ordered or by_lease):
        return None
    if not by_lease:
        return Locks(instance, config.group, tasks)
    return Locks(
        instance,
        config.group,
        tasks,
        margin=config.lease_margin,
        grace=config.lease_orphan_grace,
        handler_wait=config.handover_wait,
    )
