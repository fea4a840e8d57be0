"""What a broker is now: master or slave, with which id. Everybody who acts by that asks here."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from gimbalmq.broker.replication.config import MASTER_ID, SLAVE, ReplicationOptions


class Kind(enum.Enum):
    MASTER = "master"
    SLAVE = "slave"


@dataclass(frozen=True, slots=True)
class Role:
    """A broker's part in its set of replicas.

    Attributes:
        broker_id: 0 for a master; -1 if nobody has said yet which id it has.
        acting: a slave that stands in for a master which is gone.
        epoch: of the master, in controller mode.
        online: name servers may be told of it.
    """

    kind: Kind
    broker_id: int
    acting: bool = False
    epoch: int = 0
    online: bool = True

    @property
    def is_master(self) -> bool:
        return self.kind is Kind.MASTER

    @property
    def services_on(self) -> bool:
        """Whether it does a master's work as far as it can: it is one that serves, or a slave that stands in."""
        return self.online and (self.is_master or self.acting)

    def __str__(self) -> str:
        standing_in = ", standing in for the master" if self.acting else ""
        return f"{self.kind.value} (id {self.broker_id}{standing_in})"

    @classmethod
    def configured(cls, config: ReplicationOptions) -> Role:
        """The role that a broker starts with; with a controller it waits to be given one."""
        if config.enable_controller_mode:
            return cls(Kind.SLAVE, -1, online=False)
        # With slaves that may stand in, a broker asks the others first.
        online = not config.enable_slave_acting_master or config.skip_pre_online
        if config.broker_role == SLAVE:
            return cls(Kind.SLAVE, config.broker_id, online=online)
        return cls(Kind.MASTER, MASTER_ID, online=online)


class Roles:
    """The role in force, and who is told when it changes.

    Attributes:
        has_place: False while a broker that starts as the master does not know yet whether there is another one.
    """

    def __init__(self, now: Role) -> None:
        self.now = now
        self.has_place = True
        self._watchers: list[Callable[[Role, Role], None]] = []

    @property
    def is_master(self) -> bool:
        return self.now.kind is Kind.MASTER

    @property
    def takes_messages(self) -> bool:
        """Whether this is a master that serves."""
        return self.now.is_master and self.now.online and self.has_place

    @property
    def services_on(self) -> bool:
        return self.now.services_on

    def watch(self, callback: Callable[[Role, Role], None]) -> None:
        """``callback`` is told of every change: the role before, the role now."""
        self._watchers.append(callback)

    def change(self, role: Role) -> None:
        before, self.now = self.now, role
        if before != role:
            for callback in self._watchers:
                callback(before, role)
