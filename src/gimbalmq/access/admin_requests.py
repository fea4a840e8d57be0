"""Requests 3001 to 3010, by which administrators make users and policies; both servers answer them.

Whether the sender may ask at all was decided before, by the gate. What is left to decide here depends on the data: only
a SUPER user changes SUPER users, and only a SUPER user is told passwords. If the server checks nothing at all,
everybody counts as one, as with Apache's broker.

Answers are Apache's, with these differences. An unreadable resource does not delete all policies of a user; unknown
words and fields are refused; the last SUPER user stays; a body must not speak of another subject than the header, which
is the one that the audit log names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq._steps import Steps
from gimbalmq.access.policies import Acl, PolicyType, Resource, read_word, user_of_subject
from gimbalmq.access.table import AccessTable
from gimbalmq.access.users import User
from gimbalmq.errors import InvalidParameterError, NoPermissionError
from gimbalmq.protocol.access_bodies import acl_of_request, user_of_request
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.access import AclSubject, DeleteAcl, ListAcls, ListUsers, UserName
from gimbalmq.protocol.headers.replication import AccessReply, GetAccess
from gimbalmq.transport.channel import Answer, Channel, Handlers
from gimbalmq.transport.turns import Turns

_ONLY_SUPER_CREATES = "The super user can only be create by super user"
_ONLY_SUPER_UPDATES = "The super user can only be update by super user"


class Callers(Protocol):
    """Who sends requests; the gate is one."""

    def who(self, channel: Channel, command: RemotingCommand) -> User | None:
        """The user who has proved to have sent it; None if nobody has."""
        ...


class AccessRequests:
    """Java: the part of AdminBrokerProcessor that is about authentication and authorisation."""

    def __init__(self, table: AccessTable, callers: Callers | None, clock: Clock = SYSTEM_CLOCK) -> None:
        """
        Args:
            callers: None if the server lets everybody do everything.
        """
        self._table = table
        self._callers = callers
        self._turns = Turns(clock)

    def install(self, handlers: Handlers) -> None:
        handlers.add(RequestCode.AUTH_CREATE_USER, self.create_user, completes=True)
        handlers.add(RequestCode.AUTH_UPDATE_USER, self.update_user, completes=True)
        handlers.add(RequestCode.AUTH_DELETE_USER, self.delete_user, completes=True)
        handlers.add(RequestCode.AUTH_GET_USER, self.get_user)
        handlers.add(RequestCode.AUTH_LIST_USER, self.list_users, large=True)
        handlers.add(RequestCode.AUTH_CREATE_ACL, self.merge_acl, completes=True)
        handlers.add(RequestCode.AUTH_UPDATE_ACL, self.merge_acl, completes=True)
        handlers.add(RequestCode.AUTH_DELETE_ACL, self.delete_acl, completes=True)
        handlers.add(RequestCode.AUTH_GET_ACL, self.get_acl)
        handlers.add(RequestCode.AUTH_LIST_ACL, self.list_acls, large=True)

    def _by_super(self, channel: Channel, request: RemotingCommand) -> bool:
        if self._callers is None:
            return True
        caller = self._callers.who(channel, request)
        return caller is not None and caller.is_super

    # -- users -------------------------------------------------------------------------

    async def create_user(self, channel: Channel, request: RemotingCommand) -> Answer:
        name = _username(request)
        user = User.of(user_of_request(request.body), name)
        if user.is_super and not self._by_super(channel, request):
            raise NoPermissionError(_ONLY_SUPER_CREATES, code=ResponseCode.SYSTEM_ERROR)
        await self._table.create_user(user)
        return request.reply()

    async def update_user(self, channel: Channel, request: RemotingCommand) -> Answer:
        name = _username(request)
        body = user_of_request(request.body)
        caller = None if self._callers is None else self._callers.who(channel, request)
        by_super = self._callers is None or (caller is not None and caller.is_super)

        def change(user: User) -> User:
            after = user.changed(body)
            bound = (after.source_ips, after.certificate) != (user.source_ips, user.certificate)
            if bound and caller is not None and caller.name == name:
                _check_still_let_in(after, channel)
            if after.is_super and not user.is_super and not by_super:
                raise NoPermissionError(_ONLY_SUPER_UPDATES, code=ResponseCode.SYSTEM_ERROR)
            if user.is_super and not by_super:
                raise NoPermissionError(_ONLY_SUPER_UPDATES)
            return after

        await self._table.change_user(name, change)
        return request.reply()

    async def delete_user(self, channel: Channel, request: RemotingCommand) -> Answer:
        name = _username(request)
        by_super = self._by_super(channel, request)

        def check(user: User) -> None:
            if user.is_super and not by_super:
                raise NoPermissionError(_ONLY_SUPER_UPDATES)

        await self._table.delete_user(name, check)
        return request.reply()

    def get_user(self, channel: Channel, request: RemotingCommand) -> Answer:
        user = self._table.user(_username(request))
        if user is None:
            return request.reply()
        return request.reply(body=user.body(with_password=self._by_super(channel, request)).dump())

    async def list_users(self, channel: Channel, request: RemotingCommand) -> Answer:
        wanted = ListUsers.from_ext(request.ext_fields).filter or ""
        with_passwords = self._by_super(channel, request)
        version = self._version(request) if with_passwords else None
        if version is not None and version.unchanged:
            return request.reply(ext_fields=version.to_ext())
        users = self._table.users()
        names = sorted(name for name in users if not wanted.strip() or wanted in name)
        rows = (users[name].body(with_password=with_passwords).dump() for name in names)
        body = await self._turns.run(_joined(rows))
        return request.reply(ext_fields=None if version is None else version.to_ext(), body=body)

    def _version(self, request: RemotingCommand) -> AccessReply | None:
        """For a slave that copies users and policies; None if somebody else asks.

        If everybody may make users here, nobody should copy them.
        """
        known = GetAccess.from_ext(request.ext_fields).access_version
        if known is None or self._callers is None:
            return None
        version = self._table.version
        return AccessReply(access_version=version, unchanged=known == version)

    # -- policies ----------------------------------------------------------------------

    async def merge_acl(self, channel: Channel, request: RemotingCommand) -> Answer:
        subject = AclSubject.from_ext(request.ext_fields).subject
        acl = Acl.of(acl_of_request(request.body), subject)
        if subject and user_of_subject(subject) != acl.user:
            raise InvalidParameterError(
                f"the header is about {subject[:80]} and the body about {acl.subject[:80]}: send one request for each"
            )
        await self._table.merge_acl(acl)
        return request.reply()

    async def delete_acl(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = DeleteAcl.from_ext(request.ext_fields)
        user = user_of_subject(header.subject)
        kind = PolicyType.CUSTOM
        if header.policy_type:
            kind = read_word(PolicyType, header.policy_type, "the policy's type")
        resource = None
        if header.resource is not None:
            if not header.resource.strip():
                raise InvalidParameterError(
                    "The resource is blank. Name the one whose entry is to go, or leave the field out to delete all "
                    f"policies of {header.subject}"
                )
            resource = Resource.parse(header.resource)
        await self._table.delete_acl(user, kind, resource)
        return request.reply()

    def get_acl(self, channel: Channel, request: RemotingCommand) -> Answer:
        name = user_of_subject(AclSubject.from_ext(request.ext_fields).subject)
        if self._table.user(name) is None:
            raise NoPermissionError("The subject is not exist.")
        acl = self._table.acl(name)
        return request.reply() if acl is None else request.reply(body=acl.body().dump())

    async def list_acls(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = ListAcls.from_ext(request.ext_fields)
        wanted, resource = header.subject_filter or "", header.resource_filter or ""
        version = self._version(request)
        acls = self._table.acls()
        named = (acls[name] for name in sorted(acls) if not wanted.strip() or wanted in acls[name].subject)
        filtered = (acl.filtered(resource) for acl in named)
        rows = (acl.body().dump() for acl in filtered if acl is not None)
        body = await self._turns.run(_joined(rows))
        return request.reply(ext_fields=None if version is None else version.to_ext(), body=body)


def _check_still_let_in(user: User, channel: Channel) -> None:
    """Raises an error if who changes himself could not send another request from where he is."""
    if not (user.may_come_from(channel.host) and user.may_present(channel.peer_certificate)):
        raise InvalidParameterError(
            f"{user.name} comes from {channel.host} and would be let in no more; add this address, or the certificate "
            "that is shown, or have another SUPER user make the change"
        )


def _username(request: RemotingCommand) -> str:
    name = UserName.from_ext(request.ext_fields).username
    if not name or not name.strip():
        raise InvalidParameterError("The username is blank")
    return name


def _joined(rows: Iterable[bytes]) -> Steps[bytes]:
    """A JSON array of these rows, which are computed while they are walked over; nothing if there are none."""
    parts = []
    for row in rows:
        parts.append(row)
        yield
    return b"[%b]" % b",".join(parts) if parts else b""
