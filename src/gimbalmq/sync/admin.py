"""Administration for blocking callers: each noun with the methods of the async one."""

from __future__ import annotations

from typing import Any, Self

from gimbalmq.admin import admin as admins
from gimbalmq.admin.clusters import Clusters
from gimbalmq.admin.dead_letters import DeadLetters
from gimbalmq.admin.groups import Groups
from gimbalmq.admin.messages import Messages
from gimbalmq.admin.topics import Topics
from gimbalmq.sync.bridge import blocking, reading
from gimbalmq.sync.loop import LoopThread, loop_thread


class _Part:
    """One noun of the admin object, blocking."""

    def __init__(self, wrapped: Any) -> None:
        self._async = wrapped

    def _running(self) -> LoopThread:
        return loop_thread()


class _Clusters(_Part):
    brokers = blocking(Clusters.brokers)
    broker = blocking(Clusters.broker)
    config = blocking(Clusters.config)
    set_config = blocking(Clusters.set_config)
    nameserver_config = blocking(Clusters.nameserver_config)
    set_nameserver_config = blocking(Clusters.set_nameserver_config)
    set_writable = blocking(Clusters.set_writable)


class _Topics(_Part):
    names = blocking(Topics.names)
    all = blocking(Topics.all)
    route = blocking(Topics.route)
    stats = blocking(Topics.stats)
    groups = blocking(Topics.groups)
    create = blocking(Topics.create)
    resize = blocking(Topics.resize)
    delete = blocking(Topics.delete)
    queues = blocking(Topics.queues)


class _Groups(_Part):
    names = blocking(Groups.names)
    all = blocking(Groups.all)
    connections = blocking(Groups.connections)
    producers = blocking(Groups.producers)
    running_info = blocking(Groups.running_info)
    member_ids = blocking(Groups.member_ids)
    told_by = blocking(Groups.told_by)
    owners = blocking(Groups.owners)
    progress = blocking(Groups.progress)
    config = blocking(Groups.config)
    create = blocking(Groups.create)
    delete = blocking(Groups.delete)
    plan_reset = blocking(Groups.plan_reset)
    reset = blocking(Groups.reset)
    clone_offsets = blocking(Groups.clone_offsets)
    topics = blocking(Groups.topics)


class _Messages(_Part):
    by_id = blocking(Messages.by_id)
    by_unique_key = blocking(Messages.by_unique_key)
    by_key = blocking(Messages.by_key)
    by_offset = blocking(Messages.by_offset)
    ranges = blocking(Messages.ranges)
    read = reading(Messages.read)
    send = blocking(Messages.send)


class _DeadLetters(_Part):
    groups = blocking(DeadLetters.groups)
    ranges = blocking(DeadLetters.ranges)
    read = reading(DeadLetters.read)
    redrive = blocking(DeadLetters.redrive)


class Admin:
    """Administration without an event loop; see ``gimbalmq.admin.admin.Admin``.

    >>> with Admin("127.0.0.1:9876") as admin:  # doctest: +SKIP
    ...     print(admin.groups.progress("billing").lag)
    """

    def __init__(self, namesrv: str | list[str] | tuple[str, ...], **options: Any) -> None:
        self._async = admins.Admin(namesrv, **options)
        self.clusters = _Clusters(self._async.clusters)
        self.topics = _Topics(self._async.topics)
        self.groups = _Groups(self._async.groups)
        self.messages = _Messages(self._async.messages)
        self.dead_letters = _DeadLetters(self._async.dead_letters)

    def close(self) -> None:
        loop_thread().run(self._async.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
