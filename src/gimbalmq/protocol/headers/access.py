"""Headers of requests about users and policies."""

from __future__ import annotations

from gimbalmq.protocol.headers.base import Header


class UserName(Header):
    """3001 AUTH_CREATE_USER, 3002 AUTH_UPDATE_USER, 3003 AUTH_DELETE_USER, 3004 AUTH_GET_USER."""

    username: str | None = None


class ListUsers(Header):
    """3005 AUTH_LIST_USER."""

    filter: str | None = None


class AclSubject(Header):
    """3006 AUTH_CREATE_ACL, 3007 AUTH_UPDATE_ACL, 3009 AUTH_GET_ACL."""

    subject: str | None = None


class DeleteAcl(Header):
    """3008 AUTH_DELETE_ACL."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class ListAcls(Header):
    """3010 AUTH_LIST_ACL."""

    subject_filter: str | None = None
    resource_filter: str | None = None
