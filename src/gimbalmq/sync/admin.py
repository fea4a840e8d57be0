"""Administration for blocking callers: each noun with the methods of the async one."""

from __future__ import annotations

from typing import Any, Self

from gimbalmq.admin import admin as admins
from gimbalmq.admin.access import AclAdmin, UserAdmin
from gimbalmq.admin.clusters import ClusterAdmin
from gimbalmq.admin.controllers import ControllerAdmin
from gimbalmq.admin.dead_letters import DeadLetterAdmin
from gimbalmq.admin.groups import GroupAdmin
from gimbalmq.admin.messages import MessageAdmin
from gimbalmq.admin.replication import ReplicationAdmin
from gimbalmq.admin.topics import TopicAdmin
from gimbalmq.sync.bridge import blocking, reading
from gimbalmq.sync.loop import LoopThread, loop_thread


class _Part:
    """One noun of the admin object, blocking."""

    def __init__(self, wrapped: Any) -> None:
        self._async = wrapped

    def _running(self) -> LoopThread:
        return loop_thread()


class _Clusters(_Part):
    brokers = blocking(ClusterAdmin.brokers)
    broker = blocking(ClusterAdmin.broker)
    config = blocking(ClusterAdmin.config)
    set_config = blocking(ClusterAdmin.set_config)
    nameserver_config = blocking(ClusterAdmin.nameserver_config)
    set_nameserver_config = blocking(ClusterAdmin.set_nameserver_config)
    set_writable = blocking(ClusterAdmin.set_writable)


class _Replication(_Part):
    status = blocking(ReplicationAdmin.status)
    promotion = blocking(ReplicationAdmin.promotion)
    promote = blocking(ReplicationAdmin.promote)
    successor = blocking(ReplicationAdmin.successor)
    demote = blocking(ReplicationAdmin.demote)
    master_of = blocking(ReplicationAdmin.master_of)
    reset_master_flush_offset = blocking(ReplicationAdmin.reset_master_flush_offset)
    epochs = blocking(ReplicationAdmin.epochs)


class _Controllers(_Part):
    addresses = blocking(ControllerAdmin.addresses)
    show = blocking(ControllerAdmin.show)
    sync_state = blocking(ControllerAdmin.sync_state)
    elect = blocking(ControllerAdmin.elect)
    config = blocking(ControllerAdmin.config)
    set_config = blocking(ControllerAdmin.set_config)
    clean = blocking(ControllerAdmin.clean)


class _Topics(_Part):
    names = blocking(TopicAdmin.names)
    all = blocking(TopicAdmin.all)
    route = blocking(TopicAdmin.route)
    stats = blocking(TopicAdmin.stats)
    groups = blocking(TopicAdmin.groups)
    create = blocking(TopicAdmin.create)
    resize = blocking(TopicAdmin.resize)
    delete = blocking(TopicAdmin.delete)
    queues = blocking(TopicAdmin.queues)


class _Groups(_Part):
    names = blocking(GroupAdmin.names)
    all = blocking(GroupAdmin.all)
    connections = blocking(GroupAdmin.connections)
    producers = blocking(GroupAdmin.producers)
    running_info = blocking(GroupAdmin.running_info)
    member_ids = blocking(GroupAdmin.member_ids)
    told_by = blocking(GroupAdmin.told_by)
    owners = blocking(GroupAdmin.owners)
    progress = blocking(GroupAdmin.progress)
    config = blocking(GroupAdmin.config)
    create = blocking(GroupAdmin.create)
    delete = blocking(GroupAdmin.delete)
    plan_reset = blocking(GroupAdmin.plan_reset)
    reset = blocking(GroupAdmin.reset)
    clone_offsets = blocking(GroupAdmin.clone_offsets)
    topics = blocking(GroupAdmin.topics)


class _Messages(_Part):
    by_id = blocking(MessageAdmin.by_id)
    by_unique_key = blocking(MessageAdmin.by_unique_key)
    by_key = blocking(MessageAdmin.by_key)
    by_offset = blocking(MessageAdmin.by_offset)
    ranges = blocking(MessageAdmin.ranges)
    read = reading(MessageAdmin.read)
    send = blocking(MessageAdmin.send)


class _DeadLetters(_Part):
    groups = blocking(DeadLetterAdmin.groups)
    ranges = blocking(DeadLetterAdmin.ranges)
    read = reading(DeadLetterAdmin.read)
    redrive = blocking(DeadLetterAdmin.redrive)


class _Users(_Part):
    create = blocking(UserAdmin.create)
    update = blocking(UserAdmin.update)
    delete = blocking(UserAdmin.delete)
    get = blocking(UserAdmin.get)
    all = blocking(UserAdmin.all)
    copy = blocking(UserAdmin.copy)


class _Acls(_Part):
    create = blocking(AclAdmin.create)
    update = blocking(AclAdmin.update)
    add = blocking(AclAdmin.add)
    delete = blocking(AclAdmin.delete)
    get = blocking(AclAdmin.get)
    all = blocking(AclAdmin.all)
    copy = blocking(AclAdmin.copy)
    import_accounts = blocking(AclAdmin.import_accounts)


class Admin:
    """Administration without an event loop; see ``gimbalmq.admin.admin.Admin``.

    >>> with Admin("127.0.0.1:9876") as admin:  # doctest: +SKIP
    ...     print(admin.groups.progress("billing").lag)
    """

    def __init__(self, namesrv: str | list[str] | tuple[str, ...] = "", **options: Any) -> None:
        self._async = admins.Admin(namesrv, **options)
        self.clusters = _Clusters(self._async.clusters)
        self.replication = _Replication(self._async.replication)
        self.controllers = _Controllers(self._async.controllers)
        self.topics = _Topics(self._async.topics)
        self.groups = _Groups(self._async.groups)
        self.messages = _Messages(self._async.messages)
        self.dead_letters = _DeadLetters(self._async.dead_letters)
        self.users = _Users(self._async.users)
        self.acls = _Acls(self._async.acls)

    def close(self) -> None:
        loop_thread().run(self._async.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
