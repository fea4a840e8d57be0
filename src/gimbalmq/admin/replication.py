"""Replicas: who copies whom, making a slave the master, and making a master a slave."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from gimbalmq.admin.connection import AdminConnection, Place
from gimbalmq.admin.replica_views import (
    MASTER,
    SLAVE,
    EpochsView,
    EpochView,
    Promotion,
    ReplicaView,
    SlaveConnection,
)
from gimbalmq.admin.texts import moment
from gimbalmq.errors import (
    ConfigError,
    ConnectError,
    NoPermissionError,
    RequestCodeNotSupportedError,
    ResponseError,
    RocketMQError,
)
from gimbalmq.model.route import MASTER_ID
from gimbalmq.protocol.codes import ResponseCode
from gimbalmq.protocol.replication_bodies import HaStatus
from gimbalmq.rpc import management
from gimbalmq.rpc import replication as calls
from gimbalmq.rpc.call import Caller

_LOOK_SECONDS = 0.1
_TAKES_OVER_SECONDS = 10.0
_SECOND_LOOK_SECONDS = 2.5
"""A slave whose connection to a name server broke is not listed until it has registered anew, a second later."""
_SETTLED = ("", "catching up", "following", "refused")
"""States that a slave does not leave by itself; a master has none."""
_CONNECTED = ("catching up", "following")
"""States of a slave whose connection to its master stands."""


class ReplicationAdmin:
    """``admin.replication``: masters and slaves."""

    def __init__(self, connection: AdminConnection) -> None:
        self._at = connection

    # -- brokers ----------------------------------------------------------------------

    async def status(self, broker: str | None = None, *, cluster: str | None = None) -> list[ReplicaView]:
        """Every replica, of one broker (name or address) or of a cluster; the master comes first.

        Raises:
            ConfigError: there is no such broker or cluster; the ones there are are named.
        """
        places = await self._at.places(cluster)
        if broker is not None and broker not in {place[1] for place in places}:
            if not any(place[3] == broker for place in places):
                known = ", ".join(sorted({place[1] for place in places})) or "none"
                raise ConfigError("broker", broker, f"no such broker is registered; there is {known}")
            # Its master is asked as well: how far behind a slave is follows from both.
            names = {place[1] for place in places if place[3] == broker}
            views = await self._look_at([place for place in places if place[1] in names])
            return [view for view in views if view.address == broker]
        return await self._look_at([place for place in places if broker in (None, place[1])])

    async def _look_at(self, places: list[Place]) -> list[ReplicaView]:
        views = await asyncio.gather(*(self._look(*place) for place in places))
        ends = {view.broker: view.log_end for view in views if not view.is_slave and view.log_end is not None}
        return [_with_lag(view, ends.get(view.broker)) for view in views]

    async def _look(self, cluster: str, name: str, broker_id: int, address: str) -> ReplicaView:
        said = MASTER if broker_id == MASTER_ID else SLAVE
        try:
            try:
                return _view(
                    cluster, name, broker_id, address, await calls.ha_status(self._at.caller, address)
                )
            except RequestCodeNotSupportedError:  # a broker of 4.9
                runtime = await management.runtime_info(self._at.caller, address)
                end = _log_end(runtime)
                return ReplicaView(cluster, name, broker_id, address, said, log_end=end, tells_copies=False)
        except NoPermissionError as error:
            return ReplicaView(cluster, name, broker_id, address, said, problem=error.remark, refused=True)
        except RocketMQError as error:
            return ReplicaView(cluster, name, broker_id, address, said, problem=str(error))

    async def reset_master_flush_offset(self, broker: str, offset: int) -> str:
        """Sets what a slave believes its master to have flushed, which only tools read; returns the slave's address."""
        _, _, broker_id, address = await self._at.one_broker(broker)
        if broker_id == MASTER_ID:
            raise ConfigError("broker", broker, "a master keeps no such number; name a slave by its address")
        await calls.reset_master_flush_offset(self._at.caller, address, offset)
        return address

    # -- by hand ----------------------------------------------------------------------

    async def promotion(self, broker: str) -> Promotion:
        """What it would mean to make a slave the master: the one at an address, or the fullest one of a name.

        If nothing speaks against it, it looks once more after a while: another slave, which has more, may not have been
        listed just then.

        Raises:
            ConfigError: there is no such slave.
            ConnectError: none of them can be asked.
            ResponseError: a controller decides who is the master there, the slave is Apache's, or we may not ask it.
        """
        first = await self._promotion(broker)
        if not first.is_safe:
            return first
        await asyncio.sleep(_SECOND_LOOK_SECONDS)
        found = await self._promotion(broker)
        more = (first.slave.log_end or 0) - (found.slave.log_end or 0)
        if more <= 0:
            return found
        gone = (
            f"{first.slave.title} had {more:,} bytes more a moment ago, which would be lost, and is not listed any "
            "more: start it"
        )
        return replace(found, dangers=(gone, *found.dangers))

    async def _promotion(self, broker: str) -> Promotion:
        views = await self.status()
        named = [view for view in views if broker in (view.broker, view.address)]
        slaves = [view for view in named if view.is_slave]
        if not slaves:
            raise ConfigError("slave", broker, _no_slave(views, named))
        usable = [view for view in slaves if view.log_end is not None]
        if not usable and slaves[0].refused:
            raise NoPermissionError(slaves[0].problem, address=slaves[0].address)
        if not usable:
            raise ConnectError(f"{slaves[0].title} cannot be asked: {slaves[0].problem}")
        # Of those that have the same, one of ours: Apache's cannot be promoted while they run.
        slave = max(usable, key=lambda view: (view.log_end or 0, bool(view.state), -view.broker_id))
        config = await management.broker_config(self._at.caller, slave.address)
        if config.get("enableControllerMode") == "true":
            raise ResponseError(
                f"{slave.title} is in controller mode, and the controller decides who is the master: "
                "gimbalmq broker elect asks it to",
                code=ResponseCode.SYSTEM_ERROR,
            )
        if not slave.state:
            raise ResponseError(
                f"{slave.title} is Apache's, whose role does not change at run time: stop it, write "
                "brokerRole=ASYNC_MASTER and brokerId=0 into its file, and start it",
                code=ResponseCode.SYSTEM_ERROR,
            )
        others = [view for view in views if view.broker == slave.broker and view != slave]
        master = next((view for view in others if not view.is_slave), None)
        return Promotion(
            slave,
            old_master=master.address if master is not None else "",
            dangers=tuple(_dangers(slave, master, others)),
            notes=tuple(_notes(slave, master)),
        )

    async def promote(
        self, promotion: Promotion, *, role: str | None = None, force: bool = False
    ) -> ReplicaView:
        """Makes a slave the master, and waits until it is one and the name servers say so.

        Args:
            role: ASYNC_MASTER or SYNC_MASTER; by default what its master was.
            force: even if the slave itself finds that its master lives.

        Raises:
            ConfigError: nobody knows what its master was.
            ResponseError: the slave refuses.
        """
        slave = promotion.slave
        settings = {"brokerRole": promotion.role(role), "brokerId": str(MASTER_ID)}
        await management.update_broker_config(self._at.caller, slave.address, settings, forces_role=force)
        return await self._becomes(slave, MASTER_ID)

    async def successor(self, address: str, master: str | None = None) -> tuple[ReplicaView, str]:
        """A running broker that is to become a slave, and its new master: ``master``, or what name servers say.

        The broker need not be registered: name servers list one master of a name, which is the new one by now.

        Raises:
            ConfigError: it is a slave already, or there is no other master.
        """
        config = await management.broker_config(self._at.caller, address)
        cluster, name = config.get("brokerClusterName", ""), config.get("brokerName", "")
        view = await self._look(cluster, name, MASTER_ID, address)
        if view.is_slave:
            raise ConfigError("ADDRESS", address, f"it is a slave of {name} already")
        found = master or await self.master_of(name)
        if found == address:
            raise ConfigError(
                "ADDRESS", address, f"name servers say that it is the master of {name}; promote a slave first"
            )
        return view, found

    async def demote(self, master: ReplicaView, broker_id: int) -> ReplicaView:
        """Makes a running master a slave with that id; returns when it copies, or says why it cannot."""
        await management.update_broker_config(
            self._at.caller, master.address, {"brokerRole": "SLAVE", "brokerId": str(broker_id)}
        )
        return await self._becomes(master, broker_id)

    async def master_of(self, broker: str) -> str:
        """Address of the master of a name."""
        return (await self._at.masters(broker=broker))[broker]

    def caller(self) -> Caller:
        """What signs and sends requests, for code that asks brokers by itself."""
        return self._at.caller

    async def _becomes(self, before: ReplicaView, broker_id: int) -> ReplicaView:
        """The broker once all name servers list it under its new id."""
        place = (before.cluster, before.broker, broker_id, before.address)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _TAKES_OVER_SECONDS
        while True:
            now = await self._look(*place)
            listed = place in await self._at.places()
            has_changed = not now.problem and now.is_slave == (broker_id != MASTER_ID)
            late = loop.time() > deadline
            if listed and has_changed and (now.state in _SETTLED or late):
                return now
            if late:
                what = "name servers do not list it so" if not now.problem else now.problem
                raise ConnectError(
                    f"{before.address} was told to change its role, and after {_TAKES_OVER_SECONDS:g} s {what}"
                )
            await asyncio.sleep(_LOOK_SECONDS)

    # -- terms -------------------------------------------------------------------------

    async def epochs(self, broker: str | None = None, *, cluster: str | None = None) -> list[EpochsView]:
        """The terms of masters in each replica's log."""
        places = [place for place in await self._at.places(cluster) if broker in (None, place[1], place[3])]
        if not places:
            known = ", ".join(sorted({place[1] for place in await self._at.places()})) or "none"
            raise ConfigError("broker", broker or "", f"no such broker is registered; there is {known}")
        return await asyncio.gather(*(self._epochs(*place) for place in places))

    async def _epochs(self, cluster: str, name: str, broker_id: int, address: str) -> EpochsView:
        try:
            table = await calls.epochs(self._at.caller, address)
        except RocketMQError as error:
            return EpochsView(cluster, name, broker_id, address, problem=str(error))
        return EpochsView(
            cluster,
            name,
            broker_id,
            address,
            tuple(EpochView(entry.epoch, entry.start_offset, entry.end_offset) for entry in table.epoch_list),
            table.max_offset,
        )


def _view(cluster: str, name: str, broker_id: int, address: str, status: HaStatus) -> ReplicaView:
    if status.master:
        return ReplicaView(
            cluster,
            name,
            broker_id,
            address,
            MASTER,
            log_end=status.master_commit_log_max_offset,
            in_sync_slaves=status.in_sync_slave_nums,
            trouble=status.trouble or "",
            slaves=tuple(
                SlaveConnection(
                    item.addr,
                    item.slave_ack_offset,
                    item.diff,
                    item.transfer_from_where,
                    item.transferred_byte_in_second,
                    item.in_sync,
                )
                for item in sorted(status.ha_connection_info, key=lambda item: item.addr)
            ),
        )
    copying = status.ha_client_runtime_info
    return ReplicaView(
        cluster,
        name,
        broker_id,
        address,
        SLAVE,
        log_end=copying.max_offset,
        behind=copying.lag,
        master=copying.master_addr or "",
        bytes_per_second=copying.transferred_byte_in_second,
        last_read_ms=copying.last_read_timestamp,
        last_write_ms=copying.last_write_timestamp,
        master_flush_offset=copying.master_flush_offset,
        master_role=copying.master_role or "",
        master_slaves=copying.master_slaves,
        state=copying.state or "",
        trouble=copying.trouble or "",
    )


def _with_lag(view: ReplicaView, end: int | None) -> ReplicaView:
    if not view.is_slave or view.log_end is None or end is None:
        return view
    # Both were asked at the same time, so that a slave may have more than its master said.
    return replace(view, behind=max(0, end - view.log_end))


def _log_end(runtime: dict[str, str]) -> int | None:
    text = runtime.get("commitLogMaxOffset", "")
    return int(text) if text.isdecimal() else None


def _no_slave(views: list[ReplicaView], named: list[ReplicaView]) -> str:
    if named and named[0].broker_id == MASTER_ID and len(named) == 1:
        return f"{named[0].title} is the master already, and no slave of it is registered"
    known = ", ".join(f"{view.address} ({view.broker})" for view in views if view.is_slave)
    return f"no such slave is registered; there is {known or 'none'}"


def _dangers(slave: ReplicaView, master: ReplicaView | None, others: list[ReplicaView]) -> list[str]:
    found = []
    if master is not None and (not master.problem or master.refused):
        lack = "" if not slave.behind else f", and the slave lacks {slave.behind:,} bytes of its log"
        found.append(
            f"the master at {master.address} is up{lack}: there would be two, and what one of them takes is lost "
            "later; stop it first"
        )
    elif slave.state in _CONNECTED:
        found.append(
            f"the slave still copies from its master at {slave.master}, although name servers do not list that; "
            "stop it first"
        )
    elif slave.behind:
        found.append(
            f"the master's log was {slave.behind:,} bytes longer when the slave last heard of it, which would be lost; "
            "start the master again, if that is possible"
        )
    fuller = [view for view in others if view.is_slave and (view.log_end or 0) > (slave.log_end or 0)]
    if fuller:
        best = max(fuller, key=lambda view: view.log_end or 0)
        more = (best.log_end or 0) - (slave.log_end or 0)
        found.append(
            f"{best.title} has {more:,} bytes more, which would be lost; promote that one: "
            f"gimbalmq broker promote {best.address}"
        )
    registered = 1 + sum(view.is_slave for view in others)
    if slave.master_slaves is not None and slave.master_slaves > registered:
        found.append(
            f"the master had {slave.master_slaves} slaves shortly before this one last heard of it, and "
            f"{registered} are registered: one that is missing may have more; start it"
        )
    silent = [view for view in others if view.is_slave and view.problem]
    found += [f"{view.title} cannot be asked whether it has more: {view.problem}" for view in silent]
    if slave.state == "refused":
        found.append(f"the slave does not continue its master's log: {slave.trouble}")
    return found


def _notes(slave: ReplicaView, master: ReplicaView | None) -> list[str]:
    heard = f"last heard of its master on {moment(slave.last_read_ms)}" if slave.last_read_ms else ""
    notes = [
        f"{slave.title} has the log up to {slave.log_end:,}" + (f" and {heard}" if heard else "") + ".",
        "What the old master took and did not get copied is not there. A master that waits for a slave has answered "
        "none of that with SEND_OK; any other may have.",
    ]
    if master is not None and master.problem:
        notes.append(
            f"The old master at {master.address} does not answer here. Make sure that it is off: one that is only cut "
            "off from here would go on taking messages."
        )
    elif master is None:
        notes.append(
            "No master is registered. Make sure that the old one is off, and does not start as a master."
        )
    return notes
