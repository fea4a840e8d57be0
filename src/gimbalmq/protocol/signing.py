"""ACL signature of a command: HMAC-SHA1 over the values of the ext-fields, by name, and the body."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping

from gimbalmq.protocol.command import RemotingCommand

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"
SIGNATURE = "Signature"


def signature(fields: Mapping[str, str], body: bytes | bytearray | memoryview, secret_key: str) -> str:
    """The signature of these fields; one that is among them is left out.

    >>> signature({"topic": "TopicA", "queueId": "1", "AccessKey": "RocketMQ"}, b"body", "12345678")
    '+P19aCLCf5BPFoggxZ6P2j0bAU0='
    """
    # Java sorts by UTF-16 unit; field names are ASCII, where that is plain order.
    text = "".join([fields[name] for name in sorted(fields) if name != SIGNATURE])
    digest = hmac.new(secret_key.encode(), text.encode(), hashlib.sha1)
    digest.update(body)
    return base64.b64encode(digest.digest()).decode()


class Signer:
    """Signs requests for one access key (Java: AclClientRPCHook)."""

    __slots__ = ("_access_key", "_secret_key", "_security_token")

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        self._access_key = access_key
        self._secret_key = secret_key
        self._security_token = security_token

    def sign(self, command: RemotingCommand) -> None:
        """Adds key, token and signature to the request's ext-fields."""
        fields = dict(command.ext_fields or {})
        fields[ACCESS_KEY] = self._access_key
        if self._security_token is not None:
            fields[SECURITY_TOKEN] = self._security_token
        fields[SIGNATURE] = signature(fields, command.body, self._secret_key)
        command.ext_fields = fields
