"""Requests that a slave refuses, as Apache's slaves do: what writes the log, and what its master would overwrite.

Everything else a slave answers from what it has copied.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps

from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.replication.role import Role, Roles
from gimbalmq.errors import ResponseError
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.transport.channel import Answer, Channel, Handler, Handlers

_SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)
_CHANGES = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
)
_OFFSETS = (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.CLONE_GROUP_OFFSET)
_TABLES = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_TIMER_CHECK_POINT,
)
_LOCKS = (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ)


class SlaveRefusals:
    """Stands before the handlers of these requests.

    Args:
        master: address of the master, if it is known.
    """

    def __init__(self, roles: Roles, live: LiveConfig, master: Callable[[], str]) -> None:
        self._roles = roles
        self._live = live
        self._master = master

    def install(self, handlers: Handlers) -> None:
        """Puts itself before handlers that are there already."""
        for codes, refusal in (
            (_SENDS, self._no_send),
            (_CHANGES, self._no_change),
            (_OFFSETS, self._no_reset),
            ((RequestCode.CONSUMER_SEND_MSG_BACK,), self._no_send_back),
            ((RequestCode.END_TRANSACTION,), self._no_end),
            (_LOCKS, self._no_lock),
            (_TABLES, self._no_table),
        ):
            for code in codes:
                handlers.by_code[code] = self._before(handlers.by_code[code], refusal)
        # A slave that is becoming the master has a store that takes messages before anybody may send any.
        for code in _SENDS:
            handlers.take_batches_if(code, lambda: self._roles.takes_messages)

    def _before(self, handler: Handler, refusal: Callable[[Role], ResponseError | None]) -> Handler:
        roles = self._roles

        @wraps(handler)
        def guarded(channel: Channel, request: RemotingCommand) -> Answer | Awaitable[Answer]:
            if not roles.takes_messages:
                error = refusal(roles.now)
                if error is not None:
                    raise error
            return handler(channel, request)

        return guarded

    def _who(self) -> str:
        if self._roles.is_master:
            return (
                f"{self._live.now.broker_name} at this address is a master that is not online yet: try again"
            )
        master = self._master()
        where = (
            f"ask its master, {master}" if master else "its master is not known; ask the name servers for it"
        )
        return f"{self._live.now.broker_name} at this address is a slave: {where}"

    def _no_send(self, role: Role) -> ResponseError:
        return ResponseError(
            "service not available now. It may be caused by one of the following reasons: messages are put to the "
            f"slave. {self._who()}",
            code=ResponseCode.SERVICE_NOT_AVAILABLE,
        )

    def _no_change(self, role: Role) -> ResponseError:
        return ResponseError(
            "Can't modify topic or subscription group from slave broker, please execute it from master broker. "
            f"{self._who()}"
        )

    def _no_reset(self, role: Role) -> ResponseError:
        return ResponseError(f"Can not reset offset in slave broker. {self._who()}")

    def _no_send_back(self, role: Role) -> ResponseError:
        return ResponseError(f"no master available along with {self._live.now.broker_ip1}. {self._who()}")

    def _no_end(self, role: Role) -> ResponseError:
        return ResponseError(
            f"a slave ends no transaction. {self._who()}", code=ResponseCode.SLAVE_NOT_AVAILABLE
        )

    def _no_table(self, role: Role) -> ResponseError | None:
        """A master that is not online yet gives no tables: it first has to take back what its slaves have learned."""
        return ResponseError(self._who()) if role.is_master else None

    def _no_lock(self, role: Role) -> ResponseError | None:
        """A lock here would be one beside the master's; only a slave that stands in for it gives locks."""
        return None if role.acting else ResponseError(f"a slave locks no queues. {self._who()}")
