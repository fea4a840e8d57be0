"""Certificates, users and client files of a cluster that asks for all three."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gimbalmq.access.access import Access
from gimbalmq.access.policies import Acl, Action, Decision, Entry, Policy, PolicyType, Resource, read_word
from gimbalmq.access.users import User, check_name
from gimbalmq.client.client_file import read_client_file, write_client_file
from gimbalmq.errors import ConfigError, ResponseError
from gimbalmq.transport.authority import OWN_HOSTS, Authority

ADMIN = "admin"
_INNER = "servers"

Allowed = Mapping[str, str]
"""Actions by resource: ``{"Topic:orders": "Pub,Sub", "Group:billing*": "Sub"}``."""


class ClusterSecurity:
    """What the servers of one cluster are told, and its clients.

    Args:
        folder: of certificates and client files.
        users: names of ordinary users, and what each may do.
        hosts: what servers are reached by, besides this machine's own names.

    Attributes:
        properties: RocketMQ's keys, for name server and brokers.
    """

    def __init__(self, folder: Path, users: Mapping[str, Allowed], hosts: Iterable[str] = ()) -> None:
        self._folder = folder
        self._users = {name: _acl(name, allowed) for name, allowed in users.items()}
        self._secrets = {name: secrets.token_urlsafe(24) for name in (ADMIN, _INNER, *users)}
        self.authority = Authority(folder / "certificates")
        own = self.authority.issue("server", [*OWN_HOSTS, *hosts])
        self.properties = {
            "tls.server.mode": "enforcing",
            "tls.server.certPath": str(own.certificate),
            "tls.server.keyPath": str(own.key),
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "initAuthenticationUser": json.dumps({"username": ADMIN, "password": self._secrets[ADMIN]}),
            "innerClientAuthenticationCredentials": json.dumps(
                {"accessKey": _INNER, "secretKey": self._secrets[_INNER]}
            ),
        }

    async def make_users(self, access: Access) -> None:
        """Puts the ordinary users into the table."""
        table = access.table
        assert table is not None, "these properties turn authentication on"
        for name, acl in self._users.items():
            await table.create_user(User(name, self._secrets[name]))
            if acl.policies:
                await table.merge_acl(acl)

    def client_file(self, user: str, namesrv: str) -> Path:
        """A client file for a user, for programs and commands."""
        if user not in self._secrets or user == _INNER:
            known = ", ".join(name for name in self._secrets if name != _INNER)
            raise ConfigError("user", user, f"the cluster was made with {known}")
        path = self._folder / f"{user}.toml"
        write_client_file(
            path,
            {
                "namesrv": namesrv,
                "access_key": user,
                "secret_key": self._secrets[user],
                "tls_ca": str(self.authority.certificate),
            },
        )
        return path

    def client_options(self, user: str, namesrv: str) -> dict[str, Any]:
        """The options of a client that is this user."""
        return read_client_file(self.client_file(user, namesrv)).options()


def _acl(name: str, allowed: Allowed) -> Acl:
    try:
        check_name(name)
        entries = tuple(
            Entry(
                Resource.parse(resource),
                frozenset(read_word(Action, word, "the action") for word in actions.split(",")),
                Decision.ALLOW,
            )
            for resource, actions in allowed.items()
        )
    except ResponseError as error:
        raise ConfigError("users", name, error.remark) from None
    if name in (ADMIN, _INNER):
        raise ConfigError("users", name, "the cluster has one of this name already; choose another")
    return Acl(name, (Policy(PolicyType.CUSTOM, entries),) if entries else ())
