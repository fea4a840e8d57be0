"""ACL signatures."""

from __future__ import annotations

from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.signing import Signer, signature


def test_javas_vector() -> None:
    fields = {"topic": "TopicA", "AccessKey": "RocketMQ", "queueId": "1"}
    assert signature(fields, b"body", "12345678") == "+P19aCLCf5BPFoggxZ6P2j0bAU0="
    # A signature that is there already is no part of what is signed.
    assert signature({**fields, "Signature": "old"}, b"body", "12345678") == "+P19aCLCf5BPFoggxZ6P2j0bAU0="


def test_request_is_signed_with_its_key_and_token() -> None:
    command = RemotingCommand(11, {"topic": "TopicA", "queueId": "1"}, b"body")
    Signer("RocketMQ", "12345678").sign(command)
    assert command.ext_fields == {
        "topic": "TopicA",
        "queueId": "1",
        "AccessKey": "RocketMQ",
        "Signature": "+P19aCLCf5BPFoggxZ6P2j0bAU0=",
    }
    bare = RemotingCommand(34)
    Signer("k", "s", "token").sign(bare)
    assert bare.ext_fields is not None
    assert bare.ext_fields.keys() == {"AccessKey", "SecurityToken", "Signature"}
    assert bare.ext_fields["Signature"] == signature({"AccessKey": "k", "SecurityToken": "token"}, b"", "s")
