"""Users and policies of a master, copied by its slave, if both check who sends requests.

They are asked for by the requests of administrators (3005, 3010), which Apache's brokers from 5.3 on answer, too,
signed by the servers' own user. Passwords are in the answers, so a slave asks only if it checks signatures itself, and
nothing of an answer is ever shown. The master's table is taken whole, or not at all.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gimbalmq._steps import Steps
from gimbalmq.access.access import Access
from gimbalmq.access.config import AccessConfig, Credentials
from gimbalmq.access.policies import Acl
from gimbalmq.access.table import AccessTable
from gimbalmq.access.users import User
from gimbalmq.errors import ProtocolError, RemoteProtocolError, ResponseError
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.access_bodies import acl_of, user_of
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.headers.replication import AccessReply, GetAccess
from gimbalmq.rpc.call import Caller, ask
from gimbalmq.transport.turns import Turns

_SECONDS = 5.0
_ATTEMPTS = 3
_ROWS_AT_ONCE = 8

_read_rows = msgspec.json.Decoder(list[msgspec.Raw]).decode


class UserCopies:
    """Keeps the users of one broker equal to those of its master."""

    def __init__(self, access: Access, config: AccessConfig, caller: Caller, turns: Turns) -> None:
        self._table = access.table
        self._own = config.inner_credentials() if config.authenticates else None
        self._caller = caller
        self._turns = turns
        self._version = ""
        self._revision = -1

    def begin(self) -> None:
        """Another master: what was copied before says nothing of its users."""
        self._version, self._revision = "", -1

    def end(self) -> None:
        """The users are this broker's own from now on."""
        if self._table is not None:
            self._table.is_copy = False

    async def copy(self, master: str, *, is_ours: bool) -> None:
        """Takes the master's users and policies, if they have changed.

        Raises:
            RocketMQError: they cannot be had, or must not be taken; the text says why, and shows none of them.
        """
        table, own = self._table, self._own
        if table is None or own is None:
            return
        for _ in range(_ATTEMPTS):
            known = self._version if table.revision == self._revision else ""
            answer = await self._ask(master, RequestCode.AUTH_LIST_USER, known)
            if answer is None:
                return
            reply, body = answer
            if is_ours and reply.access_version is None:
                raise RemoteProtocolError(
                    f"{master} does not check who sends requests, so its users are not copied: switch authentication "
                    "on there, or off here"
                )
            if reply.unchanged:
                return
            users = await self._turns.run(_users(body))
            policies = await self._ask(master, RequestCode.AUTH_LIST_ACL, "")
            if policies is None or policies[0].access_version != reply.access_version:
                continue  # they were changed between the two questions
            acls = await self._turns.run(_acls(policies[1], users))
            await self._take(table, own, master, users, acls)
            self._version, self._revision = reply.access_version or "", table.revision
            return

    async def _ask(self, master: str, code: RequestCode, known: str) -> tuple[AccessReply, bytes] | None:
        """None if the master keeps no users."""
        try:
            answer = await ask(self._caller, master, code, GetAccess(access_version=known), timeout=_SECONDS)
        except ResponseError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return None
            raise
        return AccessReply.from_ext(answer.ext_fields), bytes(answer.body)

    async def _take(
        self,
        table: AccessTable,
        own: Credentials,
        master: str,
        users: dict[str, User],
        acls: dict[str, Acl],
    ) -> None:
        user = users.get(own.name)
        if user is None or not (user.is_super and user.is_enabled and user.password == own.secret):
            raise RemoteProtocolError(
                f"the users of {master} are not taken, because this broker could not come in there with them: its own "
                f"user {own.name} (innerClientAuthenticationCredentials) is not among them as an enabled SUPER user "
                "with that password; give both brokers the same credentials"
            )
        table.is_copy = True
        await table.replace(users, acls)


def _raw_rows(body: bytes) -> list[Any]:
    if not body:
        return []
    try:
        if not fastjson.has_references(body):
            return [msgspec.json.decode(row) for row in _read_rows(body)]
        found = fastjson.loads(body, limit=None)
    except (msgspec.MsgspecError, UnicodeDecodeError, ProtocolError):
        # The reader's words would show what stands near the mistake, which may be a password.
        raise RemoteProtocolError("the master's answer about its users is no JSON") from None
    if not isinstance(found, list):
        raise RemoteProtocolError("the master's answer about its users is no list")
    return found


def _users(body: bytes) -> Steps[dict[str, User]]:
    users: dict[str, User] = {}
    for number, row in enumerate(_raw_rows(body), 1):
        try:
            user = User.of(user_of(row))
        except (ResponseError, ProtocolError) as error:
            raise RemoteProtocolError(f"a user of the master cannot be kept here: {_why(error)}") from None
        users[user.name] = user
        if number % _ROWS_AT_ONCE == 0:
            yield
    return users


def _acls(body: bytes, users: dict[str, User]) -> Steps[dict[str, Acl]]:
    acls: dict[str, Acl] = {}
    for number, row in enumerate(_raw_rows(body), 1):
        try:
            acl = Acl.of(acl_of(row))
        except (ResponseError, ProtocolError) as error:
            raise RemoteProtocolError(f"a policy of the master cannot be kept here: {_why(error)}") from None
        if acl.user in users:
            acls[acl.user] = acl
        if number % _ROWS_AT_ONCE == 0:
            yield
    return acls


def _why(error: Exception) -> str:
    return error.remark if isinstance(error, ResponseError) else str(error)
