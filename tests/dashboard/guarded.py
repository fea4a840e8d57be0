"""A cluster with users: root may do everything, alice sees orders and billing, eve has no rights, ghost is disabled."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from gimbalmq.admin.connection import AdminConnection
from gimbalmq.client.config import ClientConfig
from gimbalmq.protocol.access_bodies import AclBody, EntryBody, PolicyBody, UserBody
from gimbalmq.rpc import access

SECRETS = {
    "root": "root-secret-1",
    "alice": "alice-secret-1",
    "eve": "eve-secret-1",
    "ghost": "ghost-secret-1",
}

RIGHTS = {
    "Topic:orders": ["Get", "Sub"],
    "Group:billing": ["Get", "Sub"],
    "Topic:%DLQ%billing": ["Get", "Sub"],
}
"""What alice may do, besides logging in."""

PROPERTIES = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": "root", "password": SECRETS["root"]}),
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": "servers", "secretKey": "servers-secret-1"}
    ),
}


def keys(user: str) -> dict[str, Any]:
    """Options of a client that is this user."""
    return {"access_key": user, "secret_key": SECRETS[user]}


async def make_users(namesrv: str, servers: Iterable[str]) -> None:
    """Makes the users at each of these servers."""
    entries = [
        EntryBody(resource=resource, actions=actions, decision="Allow")
        for resource, actions in RIGHTS.items()
    ]
    acl = AclBody(subject="User:alice", policies=[PolicyBody(policy_type="Custom", entries=entries)])
    connection = AdminConnection(ClientConfig.of(namesrv=namesrv, **keys("root")))
    for address in servers:
        for name in ("alice", "eve", "ghost"):
            user = UserBody(username=name, password=SECRETS[name], user_type="Normal")
            await access.create_user(connection.caller, address, user)
        await access.create_acl(connection.caller, address, acl)
        await access.update_user(
            connection.caller, address, UserBody(username="ghost", user_status="disable")
        )
    await connection.close()
