"""Users and their policies: make, change, delete, show and copy them on every server of a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from gimbalmq.access.policies import Acl, Action, Entry, Policy, subject_of_user, user_of_subject
from gimbalmq.access.users import User, check_name
from gimbalmq.admin.access_servers import AccessServers
from gimbalmq.admin.connection import AdminConnection
from gimbalmq.admin.views import AccessChange, AclEntryView, AclView, UserView
from gimbalmq.errors import (
    ConfigError,
    NoPermissionError,
    QueryNotFoundError,
    ResponseError,
    RocketMQError,
)
from gimbalmq.protocol.access_bodies import AclBody, EntryBody, PolicyBody, UserBody
from gimbalmq.rpc import access
from gimbalmq.rpc.call import Caller

if TYPE_CHECKING:
    from gimbalmq.access.plain_import import ImportPlan
    from gimbalmq.admin.accounts import AccountImport

B = TypeVar("B")
_PutAcl = Callable[[Caller, str, AclBody], Awaitable[None]]

_FOR_CHECKS = "-"
"""Takes the place of a password that stays as it is, when the other values are checked."""


class UserAdmin:
    """``admin.users`` (mqadmin createUser, updateUser, deleteUser, getUser, listUser, copyUser).

    ``broker`` names one broker, with its slaves, or the address of one server. ``cluster`` names the brokers of a
    cluster, and name servers that keep users. Without either all servers are meant. One master answers questions.
    """

    def __init__(self, connection: AdminConnection) -> None:
        self._servers = AccessServers(connection)

    async def create(
        self,
        name: str,
        password: str,
        *,
        type: str = "Normal",
        status: str | None = None,
        source_ips: Sequence[str] | None = None,
        certificate: str | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> AccessChange:
        """Makes a user.

        Args:
            type: ``Normal``, or ``Super`` for one who may do everything.
            status: ``enable`` or ``disable``.
            source_ips: addresses and ranges that the user may come from, else every one; servers of ours only.
            certificate: the client certificate that the user must show, ``CN=name`` or a fingerprint; likewise.

        Raises:
            ConfigError: a value cannot be used.
            NoPermissionError: there is one already, or this client may not.
        """
        body = _checked(
            UserBody(
                username=name,
                password=password,
                user_type=type,
                user_status=status,
                source_ips=None if source_ips is None else list(source_ips),
                certificate=certificate,
            )
        )

        async def is_there(caller: Caller, address: str) -> bool:
            found = await access.user(caller, address, name)
            return found is not None and found.password == password and _same_word(found.user_type, type)

        async def create(caller: Caller, address: str) -> None:
            await access.create_user(caller, address, body)
            try:
                await _check_binding(caller, address, body)
            except RocketMQError:
                await access.delete_user(caller, address, name)  # nobody must come from everywhere meanwhile
                raise

        return await self._servers.change(create, broker=broker, cluster=cluster, done_already=is_there)

    async def update(
        self,
        name: str,
        *,
        password: str | None = None,
        type: str | None = None,
        status: str | None = None,
        source_ips: Sequence[str] | None = None,
        certificate: str | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> AccessChange:
        """Changes what is given; empty ``source_ips`` or an empty ``certificate`` end that binding.

        Raises:
            ConfigError: nothing is to be changed, or a value cannot be used.
            NoPermissionError: there is no such user, or this client may not.
        """
        body = UserBody(
            username=name,
            password=password,
            user_type=type,
            user_status=status,
            source_ips=None if source_ips is None else list(source_ips),
            certificate=certificate,
        )
        if body == UserBody(username=name):
            raise ConfigError(
                "user", name, "say what is to be changed: password, type, status, sources, certificate"
            )
        _checked(body)

        async def update(caller: Caller, address: str) -> None:
            await access.update_user(caller, address, body)
            await _check_binding(caller, address, body)

        return await self._servers.change(update, broker=broker, cluster=cluster)

    async def delete(
        self, name: str, *, broker: str | None = None, cluster: str | None = None
    ) -> AccessChange:
        """Deletes a user and its policies; where there is none, nothing happens."""
        return await self._servers.change(
            lambda caller, address: access.delete_user(caller, address, name), broker=broker, cluster=cluster
        )

    async def get(
        self, name: str, *, broker: str | None = None, cluster: str | None = None
    ) -> UserView | None:
        """One user; None if there is none. Servers tell passwords to users of rank Super only."""
        found = await self._servers.read(
            lambda caller, address: access.user(caller, address, name), broker=broker, cluster=cluster
        )
        return None if found is None else _user_view(found)

    async def all(
        self, part: str = "", *, broker: str | None = None, cluster: str | None = None
    ) -> list[UserView]:
        """The users whose names contain a text."""
        found = await self._servers.read(
            lambda caller, address: access.users(caller, address, part or None),
            broker=broker,
            cluster=cluster,
        )
        return [_user_view(body) for body in found]

    async def copy(self, source: str, target: str, names: Iterable[str] = ()) -> list[str]:
        """Copies users, passwords included, from one server to another; those copied.

        Args:
            source, target: names of brokers, or addresses.
            names: these only.

        Raises:
            QueryNotFoundError: the source has no user of a name.
            NoPermissionError: the source does not tell passwords to this client.
        """
        wanted = list(names)
        found = await self._servers.read(lambda caller, address: access.users(caller, address), broker=source)
        bodies = _named(found, wanted, lambda body: body.username or "", f"{source} has no user")
        for body in bodies:
            if not body.password:
                raise NoPermissionError(f"{source} tells passwords to users of rank Super only")
        for body in bodies:

            async def put(caller: Caller, address: str, body: UserBody = body) -> None:
                there = await access.user(caller, address, body.username or "")
                put = access.create_user if there is None else access.update_user
                await put(caller, address, body)
                await _check_binding(caller, address, body)

            (await self._servers.change(put, broker=target)).raise_problems()
        return [body.username or "" for body in bodies]


class AclAdmin:
    """``admin.acls``: policies of users (mqadmin createAcl, updateAcl, deleteAcl, getAcl, listAcl, copyAcl).

    Users are named ``alice`` or ``User:alice``; ``broker`` and ``cluster`` count as with ``admin.users``.
    """

    def __init__(self, connection: AdminConnection) -> None:
        self._servers = AccessServers(connection)

    async def create(
        self,
        user: str,
        resources: Sequence[str],
        actions: Sequence[str],
        *,
        decision: str = "Allow",
        source_ips: Sequence[str] = (),
        policy_type: str | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> AccessChange:
        """Allows or denies actions on resources; an entry for a resource that has one replaces it.

        Args:
            resources: ``Topic:orders``, ``Topic:ord*``, ``Group:*``, ``Cluster:name``, ``*``.
            actions: ``Pub``, ``Sub``, ``Create``, ``Update``, ``Delete``, ``Get``, ``List``, ``All``.
            source_ips: addresses and ranges it holds for; empty means every one.
            policy_type: ``Custom``, or ``Default`` for what no custom entry matches.

        Raises:
            ConfigError: a word is wrong; nobody was asked.
            NoPermissionError: there is no such user, or this client may not.
        """
        return await self._put(
            access.create_acl,
            _acl_body(user, resources, actions, decision, source_ips, policy_type),
            broker,
            cluster,
        )

    async def update(
        self,
        user: str,
        resources: Sequence[str],
        actions: Sequence[str],
        *,
        decision: str = "Allow",
        source_ips: Sequence[str] = (),
        policy_type: str | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> AccessChange:
        """As ``create``; servers do the same for both."""
        return await self._put(
            access.update_acl,
            _acl_body(user, resources, actions, decision, source_ips, policy_type),
            broker,
            cluster,
        )

    async def add(
        self,
        user: str,
        resources: Sequence[str],
        actions: Sequence[str],
        *,
        decision: str = "Allow",
        source_ips: Sequence[str] = (),
        policy_type: str | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> AccessChange:
        """As ``create``, but the actions join those of an entry that decides alike for the same sources.

        An entry for the same resource that decides otherwise, or for other sources, is replaced: Apache's brokers keep
        one for each resource.
        """
        body = _acl_body(user, resources, actions, decision, source_ips, policy_type)

        async def put(caller: Caller, address: str) -> None:
            there = await access.acl(caller, address, body.subject or "")
            await access.create_acl(caller, address, _joined(body, there))

        return await self._servers.change(put, broker=broker, cluster=cluster)

    async def _put(
        self, call: _PutAcl, body: AclBody, broker: str | None, cluster: str | None
    ) -> AccessChange:
        return await self._servers.change(
            lambda caller, address: call(caller, address, body), broker=broker, cluster=cluster
        )

    async def delete(
        self,
        user: str,
        resource: str | None = None,
        *,
        policy_type: str | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> AccessChange:
        """Deletes the entries for one resource, or without one all policies of the user."""
        subject = _subject(user)
        if resource is not None:
            # Apache's broker deletes everything if it cannot read the resource.
            _acl_body(user, [resource], ["All"], "Allow", (), policy_type)

        async def is_gone(caller: Caller, address: str) -> bool:
            return await access.acl(caller, address, subject) is None

        return await self._servers.change(
            lambda caller, address: access.delete_acl(
                caller, address, subject, resource=resource, policy_type=policy_type
            ),
            broker=broker,
            cluster=cluster,
            done_already=is_gone,
        )

    async def get(
        self, user: str, *, broker: str | None = None, cluster: str | None = None
    ) -> AclView | None:
        """A user's policies; None if there are none. Raises NoPermissionError if there is no such user."""
        found = await self._servers.read(
            lambda caller, address: access.acl(caller, address, _subject(user)),
            broker=broker,
            cluster=cluster,
        )
        return None if found is None else _acl_view(found)

    async def all(
        self, user: str = "", resource: str = "", *, broker: str | None = None, cluster: str | None = None
    ) -> list[AclView]:
        """Policies of the users whose names contain a text, entries whose resources contain another."""
        found = await self._servers.read(
            lambda caller, address: access.acls(caller, address, user or None, resource or None),
            broker=broker,
            cluster=cluster,
        )
        return [_acl_view(body) for body in found]

    async def copy(self, source: str, target: str, users: Iterable[str] = ()) -> list[str]:
        """Copies policies from one server to another, over those that are there; the users whose they are.

        Raises:
            QueryNotFoundError: the source has no policies of a user.
        """
        wanted = [_subject(user) for user in users]
        found = await self._servers.read(lambda caller, address: access.acls(caller, address), broker=source)
        bodies = _named(found, wanted, lambda body: body.subject or "", f"{source} has no policies of")
        for body in bodies:

            async def put(caller: Caller, address: str, body: AclBody = body) -> None:
                there = await access.acl(caller, address, body.subject or "")
                put = access.create_acl if there is None else access.update_acl
                await put(caller, address, body)

            (await self._servers.change(put, broker=target)).raise_problems()
        return [user_of_subject(body.subject) for body in bodies]

    async def import_accounts(
        self, plan: ImportPlan, *, broker: str | None = None, cluster: str | None = None
    ) -> list[AccountImport]:
        """Makes the users and policies that accounts of 4.x become; see ``access.plain_import``.

        What is there already stays as it is, also if it differs; the answer says so for each server.
        """
        from gimbalmq.admin.accounts import import_accounts  # it brings the reader of YAML along

        return await import_accounts(self._servers, plan, broker=broker, cluster=cluster)


# -- values -----------------------------------------------------------------------------


def _checked(body: UserBody) -> UserBody:
    """The same body; raises ConfigError, which shows no password, if a server would not take it."""
    try:
        if body.password is None:
            User(check_name(body.username or ""), _FOR_CHECKS).changed(body)
        else:
            User.of(body)
    except ResponseError as error:
        raise ConfigError("user", body.username, error.remark) from None
    return body


async def _check_binding(caller: Caller, address: str, body: UserBody) -> None:
    """Raises NoPermissionError if a server has taken a user without the binding: Apache's know none."""
    if not body.source_ips and not body.certificate:
        return
    found = await access.user(caller, address, body.username or "")
    if (
        found is None
        or (body.source_ips and not found.source_ips)
        or (body.certificate and not found.certificate)
    ):
        raise NoPermissionError(
            f"this server does not bind {body.username} to addresses or certificates, as Apache's brokers do not; leave"
            " that out, and give the sources in policies",
            address=address,
        )


def _same_word(one: str | None, other: str) -> bool:
    return (one or "").lower() == other.lower()


def _named(found: list[B], wanted: list[str], name: Callable[[B], str], absent: str) -> list[B]:
    by_name = {name(body): body for body in found}
    for known in wanted:
        if known not in by_name:
            raise QueryNotFoundError(f"{absent} {known}")
    return [by_name[known] for known in wanted] if wanted else found


def _user_view(body: UserBody) -> UserView:
    return UserView(
        name=body.username or "",
        type=body.user_type or "",
        status=body.user_status or "",
        source_ips=tuple(body.source_ips or ()),
        certificate=body.certificate,
        password=body.password,
    )


def _acl_view(body: AclBody) -> AclView:
    """As it was told, even words that we would not understand."""
    return AclView(
        user=(body.subject or "").removeprefix("User:"),
        entries=tuple(
            AclEntryView(
                policy_type=policy.policy_type or "Custom",
                resource=entry.resource or "",
                actions=tuple(entry.actions or ()),
                source_ips=tuple(entry.source_ips or ()),
                decision=entry.decision or "",
            )
            for policy in body.policies or ()
            for entry in policy.entries or ()
        ),
    )


def _joined(new: AclBody, there: AclBody | None) -> AclBody:
    """The new entries, with the actions of those that are there for the same resource, decision and sources."""
    if there is None or not there.policies:
        return new
    before = Acl.of(there)
    policies = []
    for policy in new.policies or ():
        wanted = Policy.of(policy)
        entries = tuple(_joined_entry(entry, before.entries(wanted.type)) for entry in wanted.entries)
        told = replace(wanted, entries=entries).body()
        told.policy_type = policy.policy_type
        policies.append(told)
    return AclBody(subject=new.subject, policies=policies)


def _joined_entry(new: Entry, there: tuple[Entry, ...]) -> Entry:
    alike = [entry for entry in there if entry.resource == new.resource]
    if len(alike) != 1 or (alike[0].decision, set(alike[0].sources)) != (new.decision, set(new.sources)):
        return new
    actions = new.actions | alike[0].actions
    return replace(new, actions=frozenset({Action.ALL}) if Action.ALL in actions else actions)


def _subject(user: str) -> str:
    return user if ":" in user else subject_of_user(user)


def _acl_body(
    user: str,
    resources: Sequence[str],
    actions: Sequence[str],
    decision: str,
    source_ips: Sequence[str],
    policy_type: str | None,
) -> AclBody:
    """Raises ConfigError for the first word that is wrong."""
    entries = [
        EntryBody(
            resource=resource, actions=list(actions), decision=decision, source_ips=list(source_ips) or None
        )
        for resource in resources
    ]
    body = AclBody(subject=_subject(user), policies=[PolicyBody(policy_type=policy_type, entries=entries)])
    try:
        checked = Acl.of(body).body()
    except ResponseError as error:
        raise ConfigError("policy", ", ".join(resources), error.remark) from None
    if policy_type is None and checked.policies:
        checked.policies[0].policy_type = None  # as Apache's tools send it
    return checked
