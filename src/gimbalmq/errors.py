"""Every exception of the package.

    RocketMQError                     retriable, stale_route: whether and how to try again
    |- ConfigError (ValueError)       an option: its name, its value, what is allowed
    |- StateError                     used before start or after close
    |- ProtocolError                  abstract
    |  |- LocalProtocolError          we built something the wire cannot carry
    |  `- RemoteProtocolError         the peer sent something illegal; its channel closes
    |- TransportError                 retriable
    |  |- ConnectError                nobody answered at the address
    |  |- ListenError                 a server cannot have its port; not retriable
    |  |- ConnectionLostError         the connection broke while a call was out
    |  |- OverloadedError             too many calls in flight
    |  `- RequestTimeoutError         (TimeoutError) no answer in time; the outcome is unknown
    |- RouteError                     retriable, stale_route
    |  |- TopicRouteNotFoundError     no name server knows the topic
    |  `- NoWritableQueueError        known, but nowhere to write
    |- ResponseError                  the peer answered with an error code
    |  |- SystemBusyError 2, FlowControlError 215          retriable
    |  |- ServiceNotAvailableError 14                      retriable
    |  |- TopicNotExistError 17                            retriable, stale_route
    |  |- MessageIllegalError 13, NoPermissionError 16, SubscriptionGroupNotExistError 26
    |  |  `- AccessRefusedError 16                         inside a server: its gate stays shut
    |  |- TableFullError 1                                 a bound of the server, named in the text
    |  |- InvalidParameterError 29, QueryNotFoundError 22, ConsumerNotOnlineError 206
    |  `- RequestCodeNotSupportedError 3
    |     `- NotANameServerError      a request for a name server reached a broker, or something else
    |- SendFailedError                every attempt with its queue and cause
    |- DataLossError                  the offsets asked for are gone
    |- ReplicationError
    |  |- CopyRefusedError            a slave's log does not continue its master's
    |  `- ReplicaRefusedError         a master does not take a connection for one of its slaves
    `- StoreError
       |- CorruptRecordError          file and position
       |- StoreLockedError            another process owns the folder
       |- DiskFullError               no space left: read-only until there is
       |- ResourceShortageError       no descriptor or memory to be had: read-only until there is
       `- StoreIOError                any other failure of the disk: read-only until a restart

Broker handlers raise the same ``ResponseError`` classes that clients catch; the transport
alone turns them into responses.
"""

from __future__ import annotations

import re
from typing import ClassVar


class RocketMQError(Exception):
    """Root of the tree.

    Attributes:
        retriable: the same call may succeed later, or elsewhere. Whoever reads goes by this flag. A send goes by the
            code of the answer, as in Java: there are codes after which another broker may well take the message.
        stale_route: the route is asked for again before the next attempt.
    """

    retriable: ClassVar[bool] = False
    stale_route: ClassVar[bool] = False


_MOST_LETTERS = 300
"""An error shows so much of a value; a path of ordinary length is shown whole."""


_SECRET_NAME = re.compile(r"secret|pas+wo?r?d|token|credential|init_?authentication_?user", re.IGNORECASE)
_MEANT = re.compile(r"did you mean (\S+?)\?")
_FILE_NAME = re.compile(r"(file|path|folder|dir)$", re.IGNORECASE)


def names_a_secret(option: str) -> bool:
    """Whether an option of this name, spelt right or wrong, holds a secret; the file that holds one is none.

    >>> names_a_secret("tls.server.keyPasword"), names_a_secret("--secret-key-file")
    (True, False)
    """
    name = option.partition(" of ")[0]
    return _SECRET_NAME.search(name) is not None and _FILE_NAME.search(name) is None


def _is_misspelt_secret(option: str, allowed: str) -> bool:
    """Whether the remedy says that the option was meant to be one that holds a secret."""
    meant = _MEANT.search(allowed)
    if meant is None or not names_a_secret(meant[1]):
        return False
    from difflib import SequenceMatcher  # large, and few errors need it

    # It may also speak of the value, which is a name then and no secret.
    return SequenceMatcher(None, option.lower(), meant[1].lower()).ratio() > 0.6


class ConfigError(RocketMQError, ValueError):
    """An option has a value that cannot be used; one whose name says that it is secret is not shown."""

    def __init__(self, option: str, value: object, allowed: str) -> None:
        if (
            value is not None
            and value != ""
            and (names_a_secret(option) or _is_misspelt_secret(option, allowed))
        ):
            value = "..."
        text = repr(value)
        if len(text) > _MOST_LETTERS:
            text = f"{text[: _MOST_LETTERS - 20]}... ({len(text)} letters)"
        super().__init__(f"{option}={text} cannot be used: {allowed}")
        self.option = option
        self.value = value


class StateError(RocketMQError):
    """The object was used before start() or after close()."""


class ProtocolError(RocketMQError):
    """Abstract: either side broke the protocol."""


class LocalProtocolError(ProtocolError):
    """We were asked to build something the wire format cannot carry."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something illegal; the channel is closed."""


class TransportError(RocketMQError):
    retriable = True


class ConnectError(TransportError):
    """No connection to the address could be made."""


class ListenError(TransportError):
    """A server cannot listen on its address: another has the port, or the address is not this machine's."""

    retriable = False


class ConnectionLostError(TransportError):
    """The connection broke while the call was out; its outcome is unknown."""


class OverloadedError(TransportError):
    """Too many calls are in flight on this side."""


class RequestTimeoutError(TransportError, TimeoutError):
    """No answer arrived in time; the outcome is unknown."""


class RouteError(RocketMQError):
    retriable = True
    stale_route = True


class TopicRouteNotFoundError(RouteError):
    """No name server knows a route for the topic."""


class NoWritableQueueError(RouteError):
    """The topic's route has no queue that may be written."""


class ResponseError(RocketMQError):
    """The peer answered with an error code.

    Attributes:
        code: the response code on the wire.
        remark: the peer's own words.
        address: who said so ("" inside the server that raises it).
    """

    default_code: ClassVar[int] = 1

    def __init__(self, remark: str = "", *, code: int | None = None, address: str = "") -> None:
        self.code = self.default_code if code is None else code
        self.remark = remark
        self.address = address
        where = f" from {address}" if address else ""
        super().__init__(f"code {self.code}{where}: {remark}")

    @staticmethod
    def for_code(code: int, remark: str | None, address: str = "") -> ResponseError:
        """The class callers act on for this code, else ``ResponseError`` itself."""
        cls = _BY_CODE.get(code, ResponseError)
        return cls(remark or "", code=code, address=address)


class SystemBusyError(ResponseError):
    default_code = 2
    retriable = True


class RequestCodeNotSupportedError(ResponseError):
    default_code = 3


class NotANameServerError(RequestCodeNotSupportedError):
    """The peer does not know a request that every name server knows."""

    def __init__(self, address: str, request: int) -> None:
        super().__init__(f"request type {request} not supported", address=address)
        self.args = (
            f"{address} is no name server: it does not know request {request}. Is it a broker's port? Give the address "
            "of a name server, whose port is 9876 unless it was told another",
        )


class MessageIllegalError(ResponseError):
    default_code = 13


class ServiceNotAvailableError(ResponseError):
    default_code = 14
    retriable = True


_NO_POLICY = re.compile(
    r"User:([\w.@%-]{1,255}) has no permission to access ((Topic|Group|Cluster):[\w.@%-]{1,255}) from \S+, "
    r"no matched policies"
)
"""Only with names that a shell takes for words: people paste what the error tells them."""

_ACTIONS_TO_ALLOW = {
    "Topic": "Pub to send, Sub,Get to read, Create or Delete to manage it",
    "Group": "Sub,Get",
    "Cluster": "Get to look, Update to change",
}


class NoPermissionError(ResponseError):
    """The server does not allow it; if a policy is missing, the text names the command that makes one."""

    default_code = 16

    def __init__(self, remark: str = "", *, code: int | None = None, address: str = "") -> None:
        super().__init__(remark, code=code, address=address)
        refused = _NO_POLICY.match(remark) if address else None
        if refused is not None:
            user, resource, kind = refused.groups()
            self.args = (
                f"{self.args[0].removesuffix('.')}; an administrator allows it by gimbalmq acl allow {user} {resource} "
                f"--actions ACTIONS: {_ACTIONS_TO_ALLOW[kind]}",
            )


class AccessRefusedError(NoPermissionError):
    """A server does not let a request in: nobody signed it, or its user may not do that. Clients see the class above.

    Attributes:
        delay: seconds that the answer is held back, because this address was refused so often.
        holds: nothing else of the connection is handled meanwhile; for peers that have not proved who they are.
    """

    def __init__(self, remark: str, *, delay: float = 0.0, holds: bool = False) -> None:
        super().__init__(remark)
        self.delay = delay
        self.holds = holds


class TopicNotExistError(ResponseError):
    default_code = 17
    retriable = True
    stale_route = True


class QueryNotFoundError(ResponseError):
    default_code = 22


class SubscriptionGroupNotExistError(ResponseError):
    default_code = 26


class InvalidParameterError(ResponseError):
    default_code = 29


class ConsumerNotOnlineError(ResponseError):
    default_code = 206


class TableFullError(ResponseError):
    """A server has as many topics, groups or other entries as it may have; the text says how to go on."""

    default_code = 1


class FlowControlError(ResponseError):
    default_code = 215
    retriable = True


_BY_CODE: dict[int, type[ResponseError]] = {
    cls.default_code: cls
    for cls in (
        SystemBusyError,
        RequestCodeNotSupportedError,
        MessageIllegalError,
        ServiceNotAvailableError,
        NoPermissionError,
        TopicNotExistError,
        QueryNotFoundError,
        SubscriptionGroupNotExistError,
        InvalidParameterError,
        ConsumerNotOnlineError,
        FlowControlError,
    )
}


class SendFailedError(RocketMQError):
    """Every attempt to send failed.

    Attributes:
        attempts: (queue, cause) of each attempt, in order.
    """

    def __init__(self, topic: str, attempts: list[tuple[object, Exception]]) -> None:
        self.topic = topic
        self.attempts = attempts
        queues: dict[str, list[str]] = {}  # by what went wrong there, so that it is told once
        for queue, cause in attempts:
            queues.setdefault(str(cause), []).append(str(queue))
        told = "; ".join(f"{', '.join(where)}: {cause}" for cause, where in queues.items())
        told = told or "no attempt was possible"
        super().__init__(f"sending to {topic} failed after {len(attempts)} attempt(s): {told}")


class DataLossError(RocketMQError):
    """The offsets asked for are no longer in the broker."""


class ReplicationError(RocketMQError):
    """A log and its copy do not fit together; the text says which offsets and what to do."""


class CopyRefusedError(ReplicationError):
    """A slave's log does not continue its master's."""


class ReplicaRefusedError(ReplicationError):
    """A master does not take a connection for one of its slaves."""


class StoreError(RocketMQError):
    pass


class CorruptRecordError(StoreError):
    """A stored record fails its checks.

    Attributes:
        file: the file it lies in.
        position: byte position of the record in the file.
    """

    def __init__(self, file: str, position: int, reason: str) -> None:
        self.file = file
        self.position = position
        super().__init__(f"{file} at byte {position}: {reason}")


class StoreLockedError(StoreError):
    """Another process owns the store folder."""


class DiskFullError(StoreError):
    """No space left; the store is read-only until the disk has room again."""


class ResourceShortageError(StoreError):
    """The system had no file descriptor or memory left; the store is read-only until it has."""


class StoreIOError(StoreError):
    """The disk failed; the store is read-only."""


class StoreFollowsError(StoreError):
    """The store copies a master's log, so it takes no messages of its own."""


class OutOfStepError(StoreError):
    """Bytes of a log were given, or asked for, at an offset at which they cannot be.

    Attributes:
        offset: where they should have been.
        begin, end: the log has the bytes from ``begin`` to ``end``.
    """

    def __init__(self, offset: int, begin: int, end: int, what: str) -> None:
        self.offset = offset
        self.begin = begin
        self.end = end
        super().__init__(f"{what} at commit-log offset {offset}: our log is from {begin} to {end}")


class DamagedCopyError(StoreError):
    """Bytes that a master sent are no log: nothing from ``offset`` on was taken.

    Attributes:
        offset: where in the log.
        reason: what is wrong there.
    """

    def __init__(self, offset: int, reason: str) -> None:
        self.offset = offset
        self.reason = reason
        super().__init__(f"what the master sent for commit-log offset {offset} is no record: {reason}")
