"""The table of users and policies, and its two files under ``config/``.

A change is written first and counts when it is durable, so a change that was answered survives a crash, and one that
the disk refused has not happened. A thread writes; changes follow one another. Users and policies are values that are
replaced and never changed, so the thread can read them while requests are served.

If a user goes, its policies go first: a crash in between must not leave policies for the next user of that name.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from gimbalmq.access.policies import Acl, PolicyType, Resource, shown
from gimbalmq.access.private_file import PrivateFile
from gimbalmq.access.users import User, UserType, check_name, check_password
from gimbalmq.errors import (
    InvalidParameterError,
    NoPermissionError,
    RemoteProtocolError,
    ResponseError,
    TableFullError,
)
from gimbalmq.protocol.access_bodies import acl_of, user_of
from gimbalmq.protocol.bodies import without_nulls
from gimbalmq.protocol.fastjson import Rows
from gimbalmq.store.files import Files
from gimbalmq.transport.tasks import uninterrupted

log = logging.getLogger(__name__)

T = TypeVar("T")


class AccessTable:
    """Users and what they may do (Java: AuthenticationMetadataManager, AuthorizationMetadataManager).

    Attributes:
        revision: grows with each change.
        is_copy: the table is a master's, and ``replace`` makes it equal again. Tools tell every broker of a change, so
            one that has come from the master already is none.
        servers_own: name of the SUPER user that servers sign as. No person has its secret at hand, so it does not count
            when the last administrator is about to go.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        files: Files | None = None,
        max_users: int = 10_000,
        max_entries: int = 100_000,
    ) -> None:
        """
        Args:
            folder: of ``users.json`` and ``acls.json``; None keeps the table in memory only.
            max_users: ``create_user`` adds no more.
            max_entries: entries of all users' policies together.
        """
        self.revision = 0
        self.is_copy = False
        self._run = secrets.token_hex(8)
        self.servers_own: str | None = None
        self.max_users = max_users
        self.max_entries = max_entries
        self._users_file = None if folder is None else PrivateFile(folder / "users.json", files)
        self._acls_file = None if folder is None else PrivateFile(folder / "acls.json", files)
        self._users: dict[str, User] = {}
        self._acls: dict[str, Acl] = {}
        self._entries = 0
        self._has_orphans = False
        """The file has other policies than the table, such as those of users who do not exist; it is written with the
        next change, before a user can get such a name."""
        self._has_others = False
        """The file has other users than the table; likewise."""
        self._changing = asyncio.Lock()

    # -- reading -----------------------------------------------------------------------

    def user(self, name: str) -> User | None:
        return self._users.get(name)

    def acl(self, name: str) -> Acl | None:
        return self._acls.get(name)

    def trusts(self, source: str, user: str | None) -> bool:
        """Never: white lists of addresses belong to ``plain_acl.yml``."""
        return False

    def users(self) -> Mapping[str, User]:
        """All of them as they are now; a later change makes another table."""
        return self._users

    def acls(self) -> Mapping[str, Acl]:
        """Likewise, by the user's name."""
        return self._acls

    @property
    def version(self) -> str:
        """Of users and policies together: another text after every change, and in every run."""
        return f"{self._run}-{self.revision}"

    async def replace(self, users: dict[str, User], acls: dict[str, Acl]) -> bool:
        """Takes another server's users and policies in the place of these; whether anything was different.

        A crash at any moment leaves no user with policies that another user of that name had: those of users that come,
        go or change are taken away first, and the new ones are given last.

        Raises:
            StoreError: the files cannot be written; then the table in memory is as before.
        """
        async with self._changing:
            before = (self._users, self._acls)
            if (users, acls) == before:
                return False
            await uninterrupted(self._replace(users, acls))
            return True

    async def _replace(self, users: dict[str, User], acls: dict[str, Acl]) -> None:
        same = {name for name, user in users.items() if self._users.get(name) == user}
        self._has_orphans = True
        if users != self._users or self._has_others:
            await self._save_acls({name: acl for name, acl in acls.items() if name in same})
            self._has_others = True
            await self._save_users(users)
        await self._save_acls(acls)
        self._has_orphans = self._has_others = False
        self._take(users, acls)

    # -- the files ---------------------------------------------------------------------

    def load(self) -> None:
        """Reads the files, if there are any.

        Raises:
            ConfigError: one of them is damaged or says something that cannot be; the text names it.
        """
        if self._users_file is None or self._acls_file is None:
            return
        users = _read(self._users_file, "users", _user_of_row)
        acls = _read(self._acls_file, "acls", _acl_of_row)
        for name in [name for name in acls if name not in users]:
            log.warning(
                "%s has policies of the user %s, who does not exist; they are dropped",
                self._acls_file.path,
                name,
            )
            del acls[name]
            self._has_orphans = True
        self._take(users, acls)

    async def _write(self, users: dict[str, User], acls: dict[str, Acl]) -> None:
        """Makes these the table, once they are durable."""
        await uninterrupted(self._save(users, acls))

    async def _save(self, users: dict[str, User], acls: dict[str, Acl]) -> None:
        if acls is not self._acls or self._has_orphans:
            await self._save_acls(acls)
            self._has_orphans = False
            self._take(self._users, acls)
        if users is not self._users or self._has_others:
            await self._save_users(users)
            self._has_others = False
            self._take(users, acls)

    async def _save_acls(self, acls: Mapping[str, Acl]) -> None:
        rows = Rows(((acls[name].subject, _row_of_acl(acls[name])) for name in sorted(acls)), at_once=1)
        await self._save_file(self._acls_file, {"acls": rows})

    async def _save_users(self, users: Mapping[str, User]) -> None:
        rows = Rows((name, _row_of_user(users[name])) for name in sorted(users))
        await self._save_file(self._users_file, {"users": rows})

    async def _save_file(self, file: PrivateFile | None, document: Mapping[str, object]) -> None:
        if file is not None:
            await asyncio.to_thread(file.save, document)

    def _take(self, users: dict[str, User], acls: dict[str, Acl]) -> None:
        self._users, self._acls = users, acls
        self._entries = sum(acl.entry_count for acl in acls.values())
        self.revision += 1

    # -- users -------------------------------------------------------------------------

    async def create_user(self, user: User) -> None:
        """Adds a user.

        Raises:
            NoPermissionError: there is one of that name (Apache's code for that).
            TableFullError: there are as many as there may be.
            StoreError: the files cannot be written; nothing has changed then, also in what follows.
        """
        async with self._changing:
            if self.is_copy and self._users.get(user.name) == user:
                return
            if user.name in self._users:
                raise NoPermissionError("The user is existed")
            if len(self._users) >= self.max_users:
                raise TableFullError(
                    f"{user.name} is not created: there are {len(self._users)} users; delete some"
                )
            await self._write({**self._users, user.name: user}, self._acls)

    async def change_user(self, name: str, change: Callable[[User], User]) -> None:
        """Puts what ``change`` makes of a user in its place; an error of ``change`` leaves the user as it is.

        Raises:
            NoPermissionError: there is no such user, or nobody would be left who may do everything.
        """
        async with self._changing:
            before = self._users.get(name)
            if before is None:
                raise NoPermissionError("The user is not exist")
            after = change(before)
            assert after.name == name, "a user keeps its name"
            if after == before:
                return
            if not (after.is_super and after.is_enabled):
                self._check_not_last(before)
            await self._write({**self._users, name: after}, self._acls)

    async def delete_user(self, name: str, check: Callable[[User], None] | None = None) -> bool:
        """Removes a user and its policies; whether there was one. An error of ``check`` leaves it there.

        Raises:
            NoPermissionError: nobody would be left who may do everything.
        """
        async with self._changing:
            user = self._users.get(name)
            if user is None:
                return False
            if check is not None:
                check(user)
            self._check_not_last(user)
            acls = _without(self._acls, name) if name in self._acls else self._acls
            await self._write(_without(self._users, name), acls)
            return True

    async def ensure_super(self, name: str, password: str, option: str) -> bool:
        """Creates a user of rank SUPER, as the named option asks for, unless the name is taken; whether it did."""
        found = self._users.get(name)
        if found is None:
            await self.create_user(User(check_name(name), check_password(password), UserType.SUPER))
            return True
        if not (found.is_super and found.is_enabled and found.password == password):
            log.warning(
                "the user %s of %s exists with another password, or is not an enabled SUPER user; it stays as it is",
                name,
                option,
            )
        return False

    def _check_not_last(self, user: User) -> None:
        """Raises an error if this is the only user who may do everything, and so must stay so."""
        if not (user.is_super and user.is_enabled):
            return
        others = (
            other for other in self._users.values() if other is not user and other.name != self.servers_own
        )
        if not any(other.is_super and other.is_enabled for other in others):
            raise NoPermissionError(
                f"{user.name} is the last enabled SUPER user and stays one, because nobody could make another; "
                "create or enable another SUPER user first"
                + ("" if self.servers_own is None else f" ({self.servers_own} is the servers' own)")
            )

    # -- policies ----------------------------------------------------------------------

    async def merge_acl(self, acl: Acl) -> None:
        """Adds policies to those that the user has; an entry replaces the ones for the same resource.

        Raises:
            NoPermissionError: there is no such user.
            InvalidParameterError: the user would have too many entries.
            TableFullError: all users together would.
        """
        async with self._changing:
            self._require_subject(acl.user, f"The subject of {acl.subject} is not exist.")
            before = self._acls.get(acl.user)
            merged = acl if before is None else before.merged(acl.policies)
            if merged == before:
                return
            grown = merged.entry_count - (before.entry_count if before is not None else 0)
            if grown > 0 and self._entries + grown > self.max_entries:
                raise TableFullError(
                    f"the policies of {acl.user} are not added: there would be {self._entries + grown} entries in all, "
                    f"and {self.max_entries} are allowed; delete some, or use prefixes"
                )
            await self._write(self._users, {**self._acls, acl.user: merged})

    async def delete_acl(self, name: str, kind: PolicyType, resource: Resource | None) -> None:
        """Removes the entries for one resource from a user's policy of this type, or all its policies.

        Raises:
            NoPermissionError: there is no such user, or it has no policies.
        """
        async with self._changing:
            self._require_subject(name, "The subject is not exist.")
            before = self._acls.get(name)
            if before is None:
                raise NoPermissionError("The acl is not exist.")
            after = None if resource is None else before.without(kind, resource)
            if after == before:
                return
            acls = _without(self._acls, name) if after is None else {**self._acls, name: after}
            await self._write(self._users, acls)

    def _require_subject(self, name: str, otherwise: str) -> None:
        if name not in self._users:
            raise NoPermissionError(otherwise)


def _without(table: dict[str, T], name: str) -> dict[str, T]:
    return {key: value for key, value in table.items() if key != name}


# -- rows of the files -------------------------------------------------------------------


def _row_of_user(user: User) -> object:
    row = without_nulls(msgspec.to_builtins(user.body(with_password=True)))
    del row["username"]  # the key of the row
    return row


def _row_of_acl(acl: Acl) -> object:
    row = without_nulls(msgspec.to_builtins(acl.body()))
    del row["subject"]  # likewise
    return row


def _user_of_row(name: str, row: object) -> tuple[str, User]:
    return name, User.of(user_of(row), name)


def _acl_of_row(subject: str, row: object) -> tuple[str, Acl]:
    acl = Acl.of(acl_of(row), subject)
    if acl.subject != subject:
        raise InvalidParameterError(f"it has another subject, {acl.subject}")
    return acl.user, acl


def _read(file: PrivateFile, key: str, read: Callable[[str, object], tuple[str, T]]) -> dict[str, T]:
    document = file.load()
    if document is None:
        return {}
    if not isinstance(document, dict) or document.keys() != {key} or not isinstance(document[key], dict):
        raise file.broken(f'is no object with "{key}" and nothing else')
    table = {}
    for name, row in document[key].items():
        try:
            known, value = read(name, row)
        except (ResponseError, RemoteProtocolError) as error:
            why = error.remark if isinstance(error, ResponseError) else str(error)
            raise file.broken(f"is wrong at {shown(name)}: {why}") from error
        table[known] = value
    return table
