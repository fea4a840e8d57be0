"""Calls about users and policies, of a broker or of a name server of ours."""

from __future__ import annotations

from gimbalmq.protocol import fastjson
from gimbalmq.protocol.access_bodies import AclBody, UserBody
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.headers import access as headers
from gimbalmq.rpc.call import Caller, ask

TIMEOUT = 5.0


# --- users ---------------------------------------------------------------------------------------


async def create_user(caller: Caller, address: str, user: UserBody, *, timeout: float = TIMEOUT) -> None:
    """3001 AUTH_CREATE_USER; raises NoPermissionError if there is one of this name."""
    header = headers.UserName(username=user.username)
    await ask(caller, address, RequestCode.AUTH_CREATE_USER, header, user.dump(), timeout=timeout)


async def update_user(caller: Caller, address: str, user: UserBody, *, timeout: float = TIMEOUT) -> None:
    """3002 AUTH_UPDATE_USER: what is None stays as it is."""
    header = headers.UserName(username=user.username)
    await ask(caller, address, RequestCode.AUTH_UPDATE_USER, header, user.dump(), timeout=timeout)


async def delete_user(caller: Caller, address: str, name: str, *, timeout: float = TIMEOUT) -> None:
    """3003 AUTH_DELETE_USER, and its policies; no error if there is none."""
    header = headers.UserName(username=name)
    await ask(caller, address, RequestCode.AUTH_DELETE_USER, header, timeout=timeout)


async def user(caller: Caller, address: str, name: str, *, timeout: float = TIMEOUT) -> UserBody | None:
    """3004 AUTH_GET_USER."""
    header = headers.UserName(username=name)
    answer = await ask(caller, address, RequestCode.AUTH_GET_USER, header, timeout=timeout)
    return UserBody.parse(answer.body) if answer.body else None


async def users(
    caller: Caller, address: str, part: str | None = None, *, timeout: float = TIMEOUT
) -> list[UserBody]:
    """3005 AUTH_LIST_USER: those whose names contain the text."""
    header = headers.ListUsers(filter=part)
    answer = await ask(caller, address, RequestCode.AUTH_LIST_USER, header, timeout=timeout)
    return [UserBody.of(row) for row in fastjson.loads(bytes(answer.body))] if answer.body else []


# --- policies ------------------------------------------------------------------------------------


async def create_acl(caller: Caller, address: str, acl: AclBody, *, timeout: float = TIMEOUT) -> None:
    """3006 AUTH_CREATE_ACL: adds entries; one for a resource that has one replaces it."""
    header = headers.AclSubject(subject=acl.subject)
    await ask(caller, address, RequestCode.AUTH_CREATE_ACL, header, acl.dump(), timeout=timeout)


async def update_acl(caller: Caller, address: str, acl: AclBody, *, timeout: float = TIMEOUT) -> None:
    """3007 AUTH_UPDATE_ACL, which does the same."""
    header = headers.AclSubject(subject=acl.subject)
    await ask(caller, address, RequestCode.AUTH_UPDATE_ACL, header, acl.dump(), timeout=timeout)


async def delete_acl(
    caller: Caller,
    address: str,
    subject: str,
    *,
    resource: str | None = None,
    policy_type: str | None = None,
    timeout: float = TIMEOUT,
) -> None:
    """3008 AUTH_DELETE_ACL: the entries for one resource, or without one all policies of the subject."""
    header = headers.DeleteAcl(subject=subject, policy_type=policy_type, resource=resource)
    await ask(caller, address, RequestCode.AUTH_DELETE_ACL, header, timeout=timeout)


async def acl(caller: Caller, address: str, subject: str, *, timeout: float = TIMEOUT) -> AclBody | None:
    """3009 AUTH_GET_ACL; raises NoPermissionError if there is no such user."""
    header = headers.AclSubject(subject=subject)
    answer = await ask(caller, address, RequestCode.AUTH_GET_ACL, header, timeout=timeout)
    return AclBody.parse(answer.body) if answer.body else None


async def acls(
    caller: Caller,
    address: str,
    subject_part: str | None = None,
    resource_part: str | None = None,
    *,
    timeout: float = TIMEOUT,
) -> list[AclBody]:
    """3010 AUTH_LIST_ACL: those whose texts contain the parts."""
    header = headers.ListAcls(subject_filter=subject_part, resource_filter=resource_part)
    answer = await ask(caller, address, RequestCode.AUTH_LIST_ACL, header, timeout=timeout)
    return [AclBody.of(row) for row in fastjson.loads(bytes(answer.body))] if answer.body else []
