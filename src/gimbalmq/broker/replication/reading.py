"""Reading from replicas: whom a reader is to ask next, and what a slave may say of offsets.

A reader asks the replica that its last answer named. A master names a slave if what the reader gets lies further behind
the end of the log than memory reaches (``accessMessageInMemoryMaxRatio``): reading old files is then the slave's work,
and the master's memory stays with those who read the end. The slave names the master again as soon as the reader has
caught up with the slave's own memory. All of this needs ``slaveReadEnable``. Without it the master is named always; a
slave that is asked all the same answers, as Apache's 4.9 does, for it is asked only if there is no master.
"""

from __future__ import annotations

from typing import Protocol

from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.replication.config import MASTER_ID
from gimbalmq.protocol.bodies import GroupConfig

OUT_OF_RANGE_SECONDS = 1.0
"""How long a slave keeps a pull at an offset that it does not have: what is missing may be on its way, and a reader
whose master is dead would otherwise come back at once, for ever."""


class RolesLike(Protocol):
    """What reading depends on: ``Roles``."""

    @property
    def is_master(self) -> bool: ...
    @property
    def services_on(self) -> bool: ...


class ReadRules:
    """What a broker tells readers, by its options and by the role it has at the moment."""

    def __init__(self, live: LiveConfig, roles: RolesLike) -> None:
        self._live = live
        self._roles = roles

    def next_replica(self, group: GroupConfig, *, far_behind: bool) -> int:
        """The broker id that a group's reader is to ask next.

        Args:
            far_behind: what it was given lies behind the part of the log that is in memory.
        """
        if not self._live.now.slave_read_enable:
            return MASTER_ID
        return group.which_broker_when_consume_slowly if far_behind else group.broker_id

    @property
    def corrects_offsets(self) -> bool:
        """Whether a reader at an offset that is not here is told another. A slave that has fewer messages than its
        master, or begins later, does not know whether the offset is wrong."""
        return self._roles.is_master or self._live.now.offset_check_in_slave

    @property
    def notes_progress(self) -> bool:
        """Whether progress that a pull carries is noted: by the master, or by a slave that stands in for it."""
        return self._roles.services_on
