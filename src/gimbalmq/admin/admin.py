"""Everything an operator asks of a cluster, by noun: ``admin.topics``, ``admin.groups`` and so on."""

from __future__ import annotations

from typing import Any, Self

from gimbalmq.admin.access import AclAdmin, UserAdmin
from gimbalmq.admin.clusters import ClusterAdmin
from gimbalmq.admin.connection import AdminConnection
from gimbalmq.admin.controllers import ControllerAdmin
from gimbalmq.admin.dead_letters import DeadLetterAdmin
from gimbalmq.admin.groups import GroupAdmin
from gimbalmq.admin.messages import MessageAdmin
from gimbalmq.admin.replication import ReplicationAdmin
from gimbalmq.admin.topics import TopicAdmin
from gimbalmq.client.config import ClientConfig


class Admin:
    """Administration of a cluster, Apache's or ours (Java: DefaultMQAdminExt).

    >>> async with Admin("127.0.0.1:9876") as admin:  # doctest: +SKIP
    ...     progress = await admin.groups.progress("billing")
    ...     print(progress.lag)

    Args:
        namesrv: name servers, ``host:port;host:port``; left out, a client file names them.
        options: further fields of ``ClientConfig``, such as ``access_key`` and ``tls``.

    Attributes:
        clusters, replication, controllers, topics, groups, messages, dead_letters, users, acls: what can be asked and
            done, by noun.
    """

    def __init__(self, namesrv: str | list[str] | tuple[str, ...] = "", **options: Any) -> None:
        self._connection = AdminConnection(ClientConfig.of(namesrv=namesrv, **options))
        self.clusters = ClusterAdmin(self._connection)
        self.replication = ReplicationAdmin(self._connection)
        self.controllers = ControllerAdmin(self._connection)
        self.topics = TopicAdmin(self._connection)
        self.groups = GroupAdmin(self._connection)
        self.messages = MessageAdmin(self._connection)
        self.users = UserAdmin(self._connection)
        self.acls = AclAdmin(self._connection)
        self.dead_letters = DeadLetterAdmin(self._connection, self.topics, self.groups, self.messages)

    async def close(self) -> None:
        await self.messages.close()
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
