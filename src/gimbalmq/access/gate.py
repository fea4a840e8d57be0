"""The one place that every request of a server passes: who sent it, and may they do that?

Authentication: the request names a user and carries the signature that the user's secret gives it; the user is
enabled, and if it is bound to addresses or a certificate, comes from there and with that. Authorisation: ``needs`` says
which rights the request wants, and the user's policies whether they are given. Super users have all rights.

A signature says nothing of when it was made (see ``protocol.signing``): whoever has seen a request can send it again,
from wherever the user may come from. Nothing here can tell the two apart.

Signatures are verified each time. Decisions are kept, by user, request, resource and address, until the users or
policies change; what is kept is bounded.

A request that fails for a fault of ours is refused: every way out of ``check`` but its end is an error.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from gimbalmq.access import audit as events
from gimbalmq.access.audit import CHANGES, Audit
from gimbalmq.access.config import AccessConfig
from gimbalmq.access.decision import Decider, Verdict
from gimbalmq.access.directory import Directory
from gimbalmq.access.failures import Failures
from gimbalmq.access.guesses import Guesses
from gimbalmq.access.named import Group, Topic
from gimbalmq.access.needs import READS_USERS, WRITES_USERS, Level, Need, NeedTable
from gimbalmq.access.policies import Asked, Rules
from gimbalmq.access.users import MAX_NAME_LETTERS, User
from gimbalmq.errors import AccessRefusedError, RocketMQError
from gimbalmq.model.topics import RETRY_PREFIX
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.signing import ACCESS_KEY, SecretKey, verified
from gimbalmq.transport.channel import Channel
from gimbalmq.transport.tls import PeerCertificate

log = logging.getLogger(__name__)

_KEPT = 10_000
"""So many users' keys and so many decisions are remembered; then they are worked out anew."""
_LONGEST_KEPT = 600
"""Letters of the names in a decision that is remembered; longer ones seldom repeat."""
_TOLD_RESOURCES = 10
_MOST_LINES = 1000
"""So many refusals of an address have a line each."""

_ALWAYS_CLOSED = (Level.SERVER, Level.SUPER_ONLY)
"""Also if authorisation is off."""

_SEND = int(RequestCode.SEND_MESSAGE_V2)

_Identity = tuple[str, str, PeerCertificate | None]
"""A user's name, an address and a certificate under which the user may come."""


class NotAdmitted(Exception):
    """Raised by fast ways for a request that is not known to pass: it has to go the plain way, which asks ``check``."""


class Gate:
    """Implements ``transport.channel.RequestGate`` for one server; ``needs`` are that server's.

    Attributes:
        authenticates: whether signatures are checked.
    """

    def __init__(
        self,
        directory: Directory,
        needs: NeedTable,
        config: AccessConfig,
        failures: Failures,
        guesses: Guesses,
        audit: Audit,
    ) -> None:
        self._directory = directory
        self._needs = needs
        self._failures = failures
        self._guesses = guesses
        self._audit = audit
        self.authenticates = config.authenticates
        self._authorizes = config.authorizes
        self._permissive = config.access_mode == "permissive"
        self._believes = config.authorization_rules == Rules.APACHE
        self._unsigned = config.unsigned_codes()
        self._unchecked = config.unchecked_codes()
        self._trusted = config.trusted()
        self._seen_revision = -1
        self._keys: dict[_Identity, SecretKey] = {}
        self._allowed: set[tuple[object, ...]] = set()
        self._senders: dict[tuple[str, str, str, PeerCertificate | None], SecretKey] = {}
        self._deciders: dict[str, Decider] = {}
        self._decisions: dict[tuple[str, Asked, str], Verdict] = {}
        self._keyed: dict[int, Callable[[Mapping[str, str]], tuple[str, ...]] | None] = {}

    # -- for the transport and the handlers ------------------------------------------

    @property
    def revision(self) -> int:
        """Changes when users or policies do; whatever was allowed before has to be asked for again."""
        return self._directory.revision

    def check(self, channel: Channel, command: RemotingCommand) -> None:
        """Raises AccessRefusedError, in Apache's words, if the request must not reach its handler.

        Raises:
            ResponseError, ProtocolError: it does not say what it is about.
        """
        if not self.knows(channel, command):
            self._check_slowly(channel, command, (command.ext_fields or {}).get(ACCESS_KEY))

    def knows(self, channel: Channel, command: RemotingCommand) -> bool:
        """Whether the request is signed, and one like it was let in before; if not, ``check`` has to be asked.

        Nothing is noted, so whoever is not known may be asked about again.
        """
        if self._seen_revision != self._directory.revision:
            self._forget()
        fields = command.ext_fields or {}
        name = fields.get(ACCESS_KEY)
        if name is None or (self._guesses.closed and self._guesses.wait(channel, name)):
            return False
        key = self._keys.get((name, channel.host, channel.peer_certificate))
        return key is not None and self._remembered(channel, command, fields) and verified(command, key)

    def refused(self, channel: Channel, command: RemotingCommand, remark: str) -> None:
        """Notes what a handler refused: one that looks at more than users and policies."""
        name = (command.ext_fields or {}).get(ACCESS_KEY)
        # Nothing slows these down: a topic that was closed for writing has thousands a second, of honest producers.
        self._audit.note(channel, command, name, events.REFUSED, reason=remark, sums_up=True)

    def sender_key(self, channel: Channel, name: str, topic: str) -> SecretKey | None:
        """The key that a send (310) must be signed with if this user's sends to this topic are known to pass.

        None means that ``check`` has to be asked.
        """
        if self._seen_revision != self._directory.revision:
            self._forget()
        if self._guesses.closed and self._guesses.wait(channel, name):
            return None
        return self._senders.get((name, topic, channel.host, channel.peer_certificate))

    def who(self, channel: Channel, command: RemotingCommand) -> User | None:
        """The user who has proved to have sent a request; None if nobody has.

        Requests of white lists and of trusted servers reach their handlers without a proof.
        """
        if self._seen_revision != self._directory.revision:
            self._forget()
        try:
            return self._proved(channel, command, (command.ext_fields or {}).get(ACCESS_KEY))
        except _Refused:
            return None

    @property
    def is_permissive(self) -> bool:
        """Whether what should be refused is only noted."""
        return self._permissive

    @property
    def is_strict(self) -> bool:
        """Whether our rules count, and what they forbid is refused."""
        return not self._believes and not self._permissive

    def allows(self, channel: Channel, name: str | None, wanted: Asked) -> bool:
        """Whether the user of this name, who has proved it on the connection, has a right.

        For what a server sends by itself, and strict rules: Apache's look at nothing that is sent to clients.
        """
        if not self._authorizes or not self.is_strict:
            return True
        if self._directory.trusts(channel.host, name):
            return True
        user = None if name is None else self._directory.user(name)
        if user is None or not user.is_enabled:
            return False
        if self._seen_revision != self._directory.revision:
            self._forget()
        return user.is_super or self._decide(user.name, wanted, channel.host).allowed

    # -- inside ----------------------------------------------------------------------

    def _forget(self) -> None:
        self._seen_revision = self._directory.revision
        self._keys.clear()
        self._allowed.clear()
        self._senders.clear()
        self._deciders.clear()
        self._decisions.clear()

    def _check_slowly(self, channel: Channel, command: RemotingCommand, name: str | None) -> None:
        need = self._needs.need(command.code)
        if need.level is Level.OPEN:
            return
        # Who may use an address of a white list today must not become an administrator for ever.
        if not _administers(need, command.code) and self._directory.trusts(channel.host, name):
            self._note_change(channel, command, name, need)
            return
        if need.level is Level.SERVER and self._trusts_server(channel):
            return
        try:
            user = self._authenticate(channel, command, need, name)
            self._authorize(channel, command, need, user, name)
        except _Refused as refused:
            self._refuse(channel, command, need, name, refused)
            return
        self._note_change(channel, command, name, need)
        if user is not None and self.authenticates:
            self._remember(channel, command, user)

    def _trusts_server(self, channel: Channel) -> bool:
        return bool(self._trusted) and self._trusted.includes(channel.host, channel.peer_certificate)

    def _authenticate(
        self, channel: Channel, command: RemotingCommand, need: Need, name: str | None
    ) -> User | None:
        """Who sent it. None if nobody has proved to be anybody, and need not."""
        is_closed = need.level is Level.SERVER or _administers(need, command.code)
        if self.authenticates and (is_closed or command.code not in self._unsigned):
            return self._proved(channel, command, name)
        user = None if name is None else self._directory.user(name)
        if user is None or self._believes:
            # Apache's rule: without authentication a name is believed, and with it every right of its user.
            return user
        try:
            return self._proved(channel, command, name)
        except _Refused:
            return None

    def _proved(self, channel: Channel, command: RemotingCommand, name: str | None) -> User:
        if not name:
            raise _Refused("username cannot be null.", unknown=True)
        user = self._directory.user(name)
        if user is None:
            raise _Refused(f"User:{name[:MAX_NAME_LETTERS]} is not found.", unknown=True)
        if not user.is_enabled:
            raise _Refused(f"User:{name} is disabled.", unknown=True)
        certificate = channel.peer_certificate
        identity = (name, channel.host, certificate)
        key = self._keys.get(identity) or SecretKey(user.password)
        if self._guesses.closed and (seconds := self._guesses.wait(channel, name)):
            raise _Refused(
                f"too many wrong signatures of User:{name} came from {channel.host}; those of new connections are not "
                f"looked at for {math.ceil(seconds)} s.",
                unknown=True,
            )
        if not verified(command, key):
            self._guesses.wrong(channel, name)
            raise _Refused("check signature failed.", unknown=True)
        # Who does not have the secret does not learn what the user is bound to.
        if not user.may_come_from(channel.host):
            raise _Refused(f"User:{name} is not allowed from {channel.host}.", unknown=True)
        if not user.may_present(certificate):
            raise _Refused(f"User:{name} needs its client certificate.", unknown=True)
        if len(self._keys) >= _KEPT:
            self._keys.clear()
        self._keys[identity] = key
        return user

    def _authorize(
        self, channel: Channel, command: RemotingCommand, need: Need, user: User | None, name: str | None
    ) -> None:
        if user is not None and user.is_super:
            return
        if need.level in _ALWAYS_CLOSED:
            who = "nobody" if name is None else f"User:{name[:MAX_NAME_LETTERS]}"
            whom = "a Super user" if need.level is Level.SUPER_ONLY else "a server or a Super user"
            raise _Refused(
                f"{who} has no permission to send request {command.code} from {channel.host}, it needs {whom}.",
                unknown=user is None,
            )
        if not self._authorizes or command.code in self._unchecked or need.level is not Level.RIGHTS:
            return
        wanted = self._needs.asked(need, command)
        if not wanted:
            return
        if user is None:
            raise _Refused(
                "Authorization failed. Please verify your access rights and try again."
                if name is None
                else f"User:{name[:MAX_NAME_LETTERS]} not found.",
                wanted,
                unknown=True,
            )
        for one in wanted:
            allowed, reason = self._decide(user.name, one, channel.host)
            if not allowed:
                raise _Refused(
                    f"User:{user.name} has no permission to access {one.resource} from {channel.host}, {reason}.",
                    [one],
                )

    def _decide(self, name: str, wanted: Asked, host: str) -> Verdict:
        key = (name, wanted, host)
        known = self._decisions.get(key)
        if known is None:
            decider = self._deciders.get(name)
            if decider is None:
                if len(self._deciders) >= _KEPT:
                    self._deciders.clear()
                decider = self._deciders[name] = Decider(self._directory.acl(name))
            known = decider.decide(wanted, host)
            if len(wanted.resource.name) <= _LONGEST_KEPT:
                if len(self._decisions) >= _KEPT:
                    self._decisions.clear()
                self._decisions[key] = known
        return known

    def _refuse(
        self, channel: Channel, command: RemotingCommand, need: Need, name: str | None, why: _Refused
    ) -> None:
        wanted = [f"{one.resource}" for one in why.wanted[:_TOLD_RESOURCES]]
        # Who may only watch must not be able to make users, by any rules and however long the change to signed requests
        # takes; nor are strangers told who there is. Brokers that do not sign yet stay registered meanwhile.
        if self._permissive and not _administers(need, command.code) and command.code not in READS_USERS:
            self._audit.note(
                channel, command, name, events.TOLERATED, wanted=wanted, reason=why.remark, sums_up=True
            )
            return
        delay = self._failures.failed(channel.host)
        self._audit.note(
            channel,
            command,
            name,
            events.REFUSED,
            wanted=wanted,
            reason=why.remark,
            by_address=self._failures.count(channel.host) > _MOST_LINES,
        )
        raise AccessRefusedError(why.remark, delay=delay, holds=why.unknown) from None

    def _note_change(self, channel: Channel, command: RemotingCommand, name: str | None, need: Need) -> None:
        if command.code not in CHANGES:
            return
        try:
            wanted = self._needs.asked(need, command)
        except RocketMQError:
            wanted = []  # its handler will say so
        resources = [f"{one.resource}" for one in wanted[:_TOLD_RESOURCES]]
        self._audit.note(channel, command, name, events.CHANGED, wanted=resources)

    # -- decisions that are remembered -----------------------------------------------

    def _remembered(self, channel: Channel, command: RemotingCommand, fields: Mapping[str, str]) -> bool:
        values = self._values(command.code, fields)
        return (
            values is not None and (command.code, fields[ACCESS_KEY], channel.host, *values) in self._allowed
        )

    def _remember(self, channel: Channel, command: RemotingCommand, user: User) -> None:
        values = self._values(command.code, command.ext_fields or {})
        if values is None or sum(map(len, values)) > _LONGEST_KEPT:
            return
        if len(self._allowed) >= _KEPT:
            self._allowed.clear()
            self._senders.clear()
        self._allowed.add((command.code, user.name, channel.host, *values))
        # Of a retry topic the topic alone does not decide by Apache's rule.
        if command.code == _SEND and not values[0].startswith(RETRY_PREFIX):
            identity = (user.name, channel.host, channel.peer_certificate)
            key = self._keys.get(identity)
            if key is not None:
                self._senders[user.name, values[0], *identity[1:]] = key

    def _values(self, code: int, fields: Mapping[str, str]) -> tuple[str, ...] | None:
        """What of a request decides whether it is allowed; None if that is more than fields."""
        try:
            read = self._keyed[code]
        except KeyError:
            read = self._reader(code)
        if read is None:
            return None
        try:
            return read(fields)
        except KeyError:
            return None

    def _reader(self, code: int) -> Callable[[Mapping[str, str]], tuple[str, ...]] | None:
        if code not in self._needs.rows:
            return None  # no handler has it; and there are more numbers than anybody wants to keep
        # Every change is noted, so none of them takes the short way.
        read = self._keyed[code] = None if code in CHANGES else _field_reader(self._needs.need(code))
        return read


def _administers(need: Need, code: int) -> bool:
    """Whether a request is for administrators; those that make users are, by any rules."""
    return need.level is Level.SUPER_ONLY or code in WRITES_USERS


def _field_reader(need: Need) -> Callable[[Mapping[str, str]], tuple[str, ...]] | None:
    """Reads the fields on which a need depends; None if it depends on anything else."""
    if need.level not in (Level.RIGHTS, Level.SIGNED):
        return None
    names: list[str] = []
    for piece in need.pieces:
        if isinstance(piece, Topic | Group) and not piece.optional:
            names.append(piece.field)
        else:
            return None
    if not names:
        return lambda fields: ()
    if len(names) == 1:
        only = names[0]
        return lambda fields: (fields[only],)
    getter: itemgetter[Any] = itemgetter(*names)
    return getter


class _Refused(Exception):
    """A request is not to pass.

    Attributes:
        remark: what the peer is told.
        wanted: the rights that are missing.
        unknown: nobody has proved who sent it.
    """

    def __init__(self, remark: str, wanted: list[Asked] | None = None, *, unknown: bool = False) -> None:
        super().__init__(remark)
        self.remark = remark
        self.wanted = wanted or []
        self.unknown = unknown
