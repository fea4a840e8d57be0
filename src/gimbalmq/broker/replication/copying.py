"""Whom a slave copies: the master that name servers, a controller or the configuration name, and how far it is."""

from __future__ import annotations

from collections.abc import Callable

from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.registration import Registrar
from gimbalmq.broker.replication import agreement
from gimbalmq.broker.replication.follower import Follower
from gimbalmq.broker.replication.masters import Master, NamedMasters
from gimbalmq.broker.replication.progress import CopiedProgress
from gimbalmq.broker.replication.role import Roles
from gimbalmq.errors import RocketMQError
from gimbalmq.protocol.headers.nameserver import RegisterBrokerReply
from gimbalmq.rpc.call import Caller


class CopiedMaster:
    """The master of a slave; nobody while this broker is the master itself.

    Attributes:
        follower: copies its log.
        progress: how far it has come with what only masters do.
        only: with a controller, the ordinary address of the master that it has named; no other one is copied.
        begin: where its log begins; None if it has not been asked.
        on_copying: told when this broker begins to copy a master (its ordinary address), and with None when it stops.
    """

    def __init__(
        self,
        live: LiveConfig,
        caller: Caller,
        roles: Roles,
        registration: Registrar,
        progress: CopiedProgress,
        follower: Follower,
    ) -> None:
        self._live = live
        self._caller = caller
        self._roles = roles
        self._registration = registration
        self._named = NamedMasters()
        self.follower = follower
        self.progress = progress
        self.only: str | None = None
        self.begin: int | None = None
        self.on_copying: list[Callable[[str | None], None]] = []
        registration.answered = self._answered

    @property
    def address(self) -> str:
        """Where clients reach it; empty if that is not known."""
        target = self.follower.target
        return target.master_address if target is not None and not self._roles.is_master else ""

    def _answered(self, name_server: str, answer: RegisterBrokerReply) -> None:
        self._named.heard(name_server, answer, self._registration.address)
        if not self._roles.is_master:
            self.aim_at_named()

    def aim_at_named(self) -> None:
        """Copies the master that is known; one that is not named any more is still tried."""
        config = self._live.now
        master = self._named.best(config.namesrv_addresses)
        if config.ha_master_address and not config.enable_controller_mode:
            self.aim(Master(master.address if master is not None else "", config.ha_master_address))
        elif master is not None and self.only in (None, master.address):
            self.aim(master)

    def aim(self, master: Master) -> None:
        """Has this slave copy that master."""
        before = self.follower.target
        self.follower.aim(master.ha_address, master.address or None)
        if self.follower.target != before:
            self.begin = None
            self.progress.forget()
            self.tell(self.address)

    def forget_named(self) -> None:
        """What name servers have said so far is old."""
        self._named.forget()

    def forget(self) -> None:
        """Nothing is copied until somebody says whom."""
        self._named.forget()
        self.follower.aim(None, None)

    def tell(self, master: str | None) -> None:
        """Tells those who copy other things of the master's whom they are to ask now."""
        if self._roles.now.acting:
            master = None
        for hear in self.on_copying:
            hear(master)

    async def look(self) -> None:
        """Asks which files the master has deleted, because then we may delete them, too."""
        target = self.follower.target
        if target is None or not self.follower.is_connected:
            return
        try:
            begin, _ = await agreement.bounds(self._caller, target.master_address)
        except RocketMQError:
            return  # the stream shows whether it lives
        if target == self.follower.target and not self._roles.is_master:
            self.begin = begin
