"""What controllers and tools ask a broker about its epochs and its role."""

from __future__ import annotations

from gimbalmq.broker.replication.controller_mode import ControllerMode
from gimbalmq.errors import ResponseError
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.transport.channel import Channel, Handlers


class ControllerHandlers:
    """Java: the part of AdminBrokerProcessor that has to do with the controller."""

    def __init__(self, mode: ControllerMode | None) -> None:
        self._mode = mode

    def register(self, handlers: Handlers) -> None:
        handlers.add(RequestCode.GET_BROKER_EPOCH_CACHE, self._epochs)
        handlers.add(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, self._role_changed)

    def _controlled(self) -> ControllerMode:
        if self._mode is None:
            raise ResponseError("this broker has no controller (enableControllerMode=false)")
        return self._mode

    def _epochs(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """1007 GET_BROKER_EPOCH_CACHE."""
        return request.reply(body=self._controlled().epoch_table().dump())

    def _role_changed(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """1008 NOTIFY_BROKER_ROLE_CHANGED. Anybody could send it, so it is only a reason to ask the controller."""
        self._controlled().elections.notified()
        return request.reply()
