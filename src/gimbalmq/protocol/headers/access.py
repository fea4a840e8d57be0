"""Headers of the requests about users and policies, 3001 to 3010."""

from __future__ import annotations

from gimbalmq.protocol.headers.base import Header


class UserName(Header):
    """3001 to 3004: a user."""

    username: str | None = None


class ListUsers(Header):
    """3005 AUTH_LIST_USER: a part of the name, or all."""

    filter: str | None = None


class Subject(Header):
    """3006, 3007, 3009: ``User:name``."""

    subject: str | None = None


class DeleteAcl(Header):
    """3008 AUTH_DELETE_ACL: without a resource the whole Acl."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class ListAcls(Header):
    """3010 AUTH_LIST_ACL: parts of the subject's and the resource's text."""

    subject_filter: str | None = None
    resource_filter: str | None = None
