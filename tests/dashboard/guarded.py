"""A cluster with users: root and boss may do all, alice sees orders and billing, eve nothing; ghost is disabled."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from gimbalmq.admin.connection import AdminConnection
from gimbalmq.client.config import ClientConfig
from gimbalmq.protocol.access_bodies import AclBody, EntryBody, PolicyBody, UserBody
from gimbalmq.rpc import access

SECRETS = {name: f"{name}-secret-1" for name in ("root", "boss", "alice", "eve", "ghost")}

RIGHTS = {
    "Topic:orders": ["Get", "Sub"],
    "Group:billing": ["Get", "Sub"],
    "Topic:%DLQ%billing": ["Get", "Sub"],
    "Group:TOOLS_CONSUMER": ["Sub"],
}
"""What alice may do, besides logging in. Tools read messages as the group TOOLS_CONSUMER."""

PROPERTIES = {
    "authFailureDelayMillis": "0",
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
        for name in ("boss", "alice", "eve", "ghost"):
            kind = "Super" if name == "boss" else "Normal"
            user = UserBody(username=name, password=SECRETS[name], user_type=kind)
            await access.create_user(connection.caller, address, user)
        await access.create_acl(connection.caller, address, acl)
        await access.update_user(
            connection.caller, address, UserBody(username="ghost", user_status="disable")
        )
    await connection.close()
