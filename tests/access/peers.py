"""Doubles for tests of the gate: a peer, users, and requests that they sign."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

from gimbalmq.access.access import Access
from gimbalmq.access.config import AccessConfig
from gimbalmq.access.gate import Gate
from gimbalmq.access.needs import NeedTable
from gimbalmq.access.policies import Acl, Rules
from gimbalmq.access.table import AccessTable
from gimbalmq.access.users import User, UserType
from gimbalmq.errors import AccessRefusedError
from gimbalmq.protocol.access_bodies import AclBody, EntryBody, PolicyBody
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.signing import Signer
from gimbalmq.transport.channel import Channel
from gimbalmq.transport.tls import PeerCertificate
from tests.support import ManualClock

SECRETS = {"root": "root-secret", "ann": "ann-secret", "bob": "bob-secret"}


@dataclass(eq=False)
class Peer:
    """What the gate sees of a connection."""

    host: str = "10.0.0.7"
    peer_certificate: PeerCertificate | None = None
    age: float = 0.0

    @property
    def address(self) -> str:
        return f"{self.host}:50000"

    @property
    def channel(self) -> Channel:
        return cast(Channel, self)


def request(code: int, user: str | None = None, secret: str | None = None, **fields: str) -> RemotingCommand:
    """A request, signed by a user if there is one."""
    command = RemotingCommand(code, fields)
    if user is not None:
        Signer(user, secret if secret is not None else SECRETS[user]).sign(command)
    return command


def send(topic: str, user: str | None = "ann", secret: str | None = None) -> RemotingCommand:
    return request(RequestCode.SEND_MESSAGE_V2, user, secret, a="p", b=topic)


class Guarded:
    """A gate with a super user root, and ann and bob, who have no rights yet."""

    def __init__(
        self, *, nameserver: bool = False, clock: ManualClock | None = None, **options: object
    ) -> None:
        values: dict[str, object] = {"authentication_enabled": True, "authorization_enabled": True, **options}
        self.config = AccessConfig(**values)  # type: ignore[arg-type]
        self.access = Access(self.config, None, clock=clock or ManualClock())
        if nameserver:
            needs = NeedTable.of_nameserver(routes_public=self.config.routes_public)
        else:
            needs = NeedTable.of_broker(Rules(self.config.authorization_rules), "DefaultCluster")
        gate = self.access.gate(needs, self.config)
        assert gate is not None
        self.gate: Gate = gate
        self.add(User("root", SECRETS["root"], UserType.SUPER))
        self.add(User("ann", SECRETS["ann"]))
        self.add(User("bob", SECRETS["bob"]))

    @property
    def table(self) -> AccessTable:
        assert self.access.table is not None
        return self.access.table

    def add(self, user: User) -> None:
        asyncio.run(self.table.create_user(user))

    def change(self, name: str, **parts: object) -> None:
        from dataclasses import replace

        asyncio.run(self.table.change_user(name, lambda user: replace(user, **parts)))  # type: ignore[arg-type]

    def allow(
        self, user: str, resource: str, *actions: str, decision: str = "Allow", sources: tuple[str, ...] = ()
    ) -> None:
        entry = EntryBody(
            actions=list(actions), decision=decision, resource=resource, source_ips=list(sources) or None
        )
        body = AclBody(subject=f"User:{user}", policies=[PolicyBody(entries=[entry], policy_type="Custom")])
        asyncio.run(self.table.merge_acl(Acl.of(body)))

    def refusal(self, command: RemotingCommand, peer: Peer | None = None) -> AccessRefusedError | None:
        try:
            self.gate.check((peer or Peer()).channel, command)
        except AccessRefusedError as error:
            return error
        return None

    def told(self, command: RemotingCommand, peer: Peer | None = None) -> str:
        """What the peer is told; "" if the request passes."""
        refusal = self.refusal(command, peer)
        return "" if refusal is None else refusal.remark
