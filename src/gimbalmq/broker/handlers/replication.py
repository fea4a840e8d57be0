"""What brokers of one name tell each other about the stream, and what tools ask about it: 906, 907 and 908."""

from __future__ import annotations

from collections.abc import Callable

from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.replication.follower import State
from gimbalmq.broker.replication.masters import Master
from gimbalmq.broker.replication.replication import Replication
from gimbalmq.errors import ConfigError, InvalidParameterError, ResponseError
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.replication import ExchangeHaInfo, ResetMasterFlushOffset
from gimbalmq.protocol.replication_bodies import HaClient, HaConnection, HaStatus
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.channel import Answer, Channel, Handlers
from gimbalmq.transport.network import split_address

_LONG = (1 << 63) - 1


class ReplicationHandlers:
    """Java: the part of AdminBrokerProcessor that asks HAService.

    Args:
        address: where clients reach this broker.
    """

    def __init__(
        self, store: MessageStore, replication: Replication, live: LiveConfig, address: Callable[[], str]
    ) -> None:
        self._store = store
        self._replication = replication
        self._live = live
        self._address = address
        self._first_end = store.max_commitlog_offset
        """Where the log ended when the broker started: all of that was on the disk."""

    def register(self, handlers: Handlers) -> None:
        handlers.add(RequestCode.EXCHANGE_BROKER_HA_INFO, self.exchange)
        handlers.add(RequestCode.GET_BROKER_HA_STATUS, self.status)
        handlers.add(RequestCode.RESET_MASTER_FLUSH_OFFSET, self.reset_flushed)

    def exchange(self, channel: Channel, request: RemotingCommand) -> Answer:
        """A master says that it is there, or a slave asks a master where to copy from."""
        header = ExchangeHaInfo.from_ext(request.ext_fields)
        is_master = self._replication.roles.is_master
        if header.master_ha_address is None:
            if not is_master:
                return request.reply()
            found = ExchangeHaInfo(
                master_ha_address=self._replication.ha_address,
                master_flush_offset=self._first_end,
                master_address=self._address(),
            )
            return request.reply(ext_fields=found.to_ext())
        if is_master:
            raise ResponseError(
                f"{self._address()} is the master of {self._live.now.broker_name}, and "
                f"{header.master_address or header.master_ha_address} says that it is: two must not be; stop one of "
                "them or start it as a slave"
            )
        if self._live.now.enable_controller_mode:
            raise ResponseError("the controller says who is the master here")
        self._aim(header.master_ha_address, header.master_address or "")
        if header.master_flush_offset is not None and not self._store.master_flushed_offset:
            self._store.master_flushed_offset = _checked(header.master_flush_offset)
        return request.reply()

    def _aim(self, ha_address: str, address: str) -> None:
        for text in filter(None, (ha_address, address)):
            try:
                split_address(text)
            except ConfigError as error:
                raise InvalidParameterError(f"{text[:100]!r} is no address: use host:port") from error
        # An address of the configuration counts before what anybody says.
        self._replication.master.aim(Master(address, self._live.now.ha_master_address or ha_address))

    def status(self, channel: Channel, request: RemotingCommand) -> Answer:
        now = self._replication.status()
        if now.role.is_master:
            slaves = [
                HaConnection(
                    addr=slave.address,
                    diff=slave.behind,
                    in_sync=slave.in_sync,
                    slave_ack_offset=slave.acked,
                    transfer_from_where=slave.sent,
                    transferred_byte_in_second=slave.bytes_per_second,
                )
                for slave in now.slaves
            ]
            status = HaStatus(
                master=True,
                master_commit_log_max_offset=now.log_end,
                ha_connection_info=slaves,
                in_sync_slave_nums=sum(slave.in_sync for slave in now.slaves),
                broker_role=self._live.now.broker_role,
                slaves=now.slave_count,
                trouble=now.trouble,
            )
        else:
            client = HaClient(
                activated=now.state in (State.CATCHING_UP, State.FOLLOWING),
                lag=now.lag,
                last_read_timestamp=now.last_read_ms,
                last_write_timestamp=now.last_write_ms,
                master_addr=now.master_ha or None,
                master_flush_offset=self._store.master_flushed_offset,
                master_role=now.master_role or None,
                master_slaves=None if now.master_slaves < 0 else now.master_slaves,
                max_offset=now.log_end,
                state=now.state,
                transferred_byte_in_second=now.bytes_per_second,
                trouble=now.trouble,
            )
            status = HaStatus(master=False, ha_client_runtime_info=client)
        return request.reply(body=status.dump())

    def reset_flushed(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Only a number that is shown and kept in the checkpoint; a master has none."""
        offset = _checked(ResetMasterFlushOffset.from_ext(request.ext_fields).master_flush_offset)
        if not self._replication.roles.is_master:
            self._store.master_flushed_offset = offset
        return request.reply()


def _checked(offset: int) -> int:
    if not 0 <= offset <= _LONG:
        raise InvalidParameterError(f"masterFlushOffset={offset} is no offset of a log: use 0 or more")
    return offset
