"""A broker's gate over files of accounts, and requests that accounts sign."""

from __future__ import annotations

from pathlib import Path

from gimbalmq.access.access import Access
from gimbalmq.access.config import AccessConfig
from gimbalmq.access.gate import Gate
from gimbalmq.access.needs import NeedTable
from gimbalmq.access.plain_accounts import PlainAccounts
from gimbalmq.access.policies import Rules
from gimbalmq.errors import AccessRefusedError
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.signing import Signer
from tests.access.peers import Peer
from tests.support import ManualClock


class PlainGate:
    """Built as a broker with ``aclEnable=true`` builds it; refusals are never delayed."""

    def __init__(self, conf: Path) -> None:
        config = AccessConfig(acl_enable=True, acl_config_path=str(conf), auth_failure_delay_millis=0)
        self.access = Access(config, None, clock=ManualClock())
        self.access.load()
        self.needs = NeedTable.of_broker(Rules.STRICT, "DefaultCluster")
        gate = self.access.gate(self.needs, config)
        assert gate is not None and self.access.accounts is not None
        self.gate: Gate = gate
        self.accounts: PlainAccounts = self.access.accounts

    def told(self, command: RemotingCommand, host: str = "10.0.0.7") -> str:
        """What the peer is told; "" if the request passes."""
        try:
            self.gate.check(Peer(host).channel, command)
        except AccessRefusedError as refusal:
            return refusal.remark
        return ""


def signed(
    code: int, key: str, secret: str, fields: dict[str, str] | None = None, body: bytes = b""
) -> RemotingCommand:
    command = RemotingCommand(code, dict(fields or {}), body)
    Signer(key, secret).sign(command)
    return command
