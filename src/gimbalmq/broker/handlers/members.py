"""What name servers tell a broker: that the members of its name have changed (905)."""

from __future__ import annotations

from gimbalmq.broker.replication.acting import ActingMode
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.transport.channel import Answer, Channel, Handlers


class MemberHandlers:
    """Java: the part of AdminBrokerProcessor that hears of the smallest broker id."""

    def __init__(self, acting: ActingMode | None) -> None:
        self._acting = acting

    def register(self, handlers: Handlers) -> None:
        handlers.add(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, self.changed)

    def changed(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Somebody came or went: the name servers are asked who, because anybody can say this."""
        if self._acting is not None:
            self._acting.look_soon()
        return request.reply()
