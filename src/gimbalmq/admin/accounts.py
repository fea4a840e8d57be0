"""Accounts of 4.x become users and policies on every server of a cluster.

It can be done again at any time: what is there stays as it is, so a second run finishes what a first one began. A user
gets its policies only if the user is the one of the account, and only if it has none yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from gimbalmq.access.plain_import import Imported, ImportPlan
from gimbalmq.access.policies import Acl
from gimbalmq.access.users import User
from gimbalmq.admin.access_servers import AccessServers
from gimbalmq.errors import NoPermissionError, ResponseError, RocketMQError
from gimbalmq.protocol.access_bodies import AclBody, UserBody
from gimbalmq.rpc import access
from gimbalmq.rpc.call import Caller

MADE, THERE, OTHER_USER, OTHER_POLICIES = "made", "there already", "another user", "other policies"


@dataclass(slots=True)
class AccountImport:
    """What became of one account.

    Attributes:
        outcomes: by the server's address: ``made``, ``there already``, or what is there instead, ``another user`` or
            ``other policies``, which stay as they are.
        problems: what servers said against it, by address.
    """

    user: str
    outcomes: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Whether every server has the user and the policies of the account."""
        return not self.problems and set(self.outcomes.values()) <= {MADE, THERE}


async def import_accounts(
    servers: AccessServers, plan: ImportPlan, *, broker: str | None, cluster: str | None
) -> list[AccountImport]:
    """Makes the users and policies of a plan.

    Raises:
        RocketMQError: not even the first account could be made at the first server.
    """
    done: list[AccountImport] = []
    for imported in plan.accounts:
        result = AccountImport(imported.user.name)
        try:
            change = await servers.change(partial(_put, imported, result), broker=broker, cluster=cluster)
            result.problems |= change.problems
        except RocketMQError as error:
            if not done:
                raise
            result.problems[getattr(error, "address", "") or "?"] = str(error)
        done.append(result)
    return done


async def _put(imported: Imported, result: AccountImport, caller: Caller, address: str) -> None:
    user = imported.user
    before = await access.user(caller, address, user.name)
    if before is None:
        await access.create_user(caller, address, user.body(with_password=True))
        if user.source_ips:
            await _check_bound(caller, address, user)
        result.outcomes[address] = MADE
    elif not _is_same_user(before, user):
        result.outcomes[address] = OTHER_USER
        return
    else:
        result.outcomes[address] = THERE
    if imported.acl is None:
        return
    policies = await access.acl(caller, address, imported.acl.subject)
    if policies is None:
        await access.create_acl(caller, address, imported.acl.body())
        result.outcomes[address] = MADE
    elif not _is_same_acl(policies, imported.acl):
        result.outcomes[address] = OTHER_POLICIES


async def _check_bound(caller: Caller, address: str, user: User) -> None:
    found = await access.user(caller, address, user.name)
    if found is None or not found.source_ips:
        # Without policies, which come later, a Normal user may do nothing from anywhere.
        raise NoPermissionError(
            f"{user.name} was made without its addresses, which this server does not know; leave out --bind-sources",
            address=address,
        )


def _is_same_user(found: UserBody, user: User) -> bool:
    """A server that tells no passwords is believed to have the right one."""
    if found.password is not None and found.password != user.password:
        return False
    return (found.user_type or "").lower() == user.type.value.lower()


def _is_same_acl(found: AclBody, acl: Acl) -> bool:
    try:
        there = Acl.of(found)
    except ResponseError:
        return False
    return _entries(there) == _entries(acl)


def _entries(acl: Acl) -> set[tuple[object, ...]]:
    return {
        (policy.type, entry.resource, frozenset(entry.actions), entry.decision, frozenset(entry.sources))
        for policy in acl.policies
        for entry in policy.entries
    }
