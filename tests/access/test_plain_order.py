"""The order of 4.x's checks, row by row, at the gate of a broker with ``aclEnable=true``."""

from __future__ import annotations

from pathlib import Path

import pytest

from gimbalmq.protocol.codes import RequestCode as Code
from gimbalmq.protocol.command import RemotingCommand
from tests.access.plain_gate import PlainGate, signed

FILE = """
globalWhiteRemoteAddresses: [10.10.103.*]
accounts:
- {accessKey: somebody, secretKey: secret-of-some, topicPerms: [orders=PUB], groupPerms: [billing=SUB]}
- {accessKey: trusted0, secretKey: secret-of-trust, whiteRemoteAddress: 192.168.1.*}
- {accessKey: administrator, secretKey: secret-of-admin, admin: true}
- {accessKey: listed-admin, secretKey: secret-of-listed, admin: true, topicPerms: [orders=SUB]}
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> PlainGate:
    conf = tmp_path_factory.mktemp("conf")
    (conf / "plain_acl.yml").write_text(FILE)
    return PlainGate(conf)


def send(key: str, secret: str, topic: str = "orders") -> RemotingCommand:
    return signed(Code.SEND_MESSAGE_V2, key, secret, {"a": "senders", "b": topic})


def unsigned(key: str | None = None, code: int = Code.SEND_MESSAGE_V2) -> RemotingCommand:
    fields = {"a": "senders", "b": "orders"}
    return RemotingCommand(
        code, fields if key is None else {**fields, "AccessKey": key, "Signature": "wrong"}
    )


def test_1_the_global_white_list_needs_no_key(guarded: PlainGate) -> None:
    for command in (unsigned(), unsigned("nobody-known"), unsigned("somebody")):
        assert guarded.told(command, "10.10.103.7") == ""
        assert guarded.told(command, "10.10.104.7") != ""


def test_2_without_a_key_a_request_is_refused(guarded: PlainGate) -> None:
    assert guarded.told(unsigned()) == "username cannot be null."
    assert guarded.told(RemotingCommand(Code.SEND_MESSAGE_V2)) == "username cannot be null."


def test_3_an_unknown_key_is_refused(guarded: PlainGate) -> None:
    assert guarded.told(send("nobody-known", "secret-of-some")) == "User:nobody-known is not found."


def test_4_the_accounts_own_white_list_needs_neither_signature_nor_rights(guarded: PlainGate) -> None:
    assert guarded.told(unsigned("trusted0"), "192.168.1.9") == ""
    assert guarded.told(unsigned("trusted0"), "192.168.2.9") == "check signature failed."
    assert guarded.told(unsigned("somebody"), "192.168.1.9") == "check signature failed."
    assert guarded.told(unsigned(), "192.168.1.9") == "username cannot be null."


def test_5_the_signature_is_that_of_the_accounts_secret(guarded: PlainGate) -> None:
    assert guarded.told(send("somebody", "secret-of-some")) == ""
    assert guarded.told(send("somebody", "secret-of-other")) == "check signature failed."


def test_6_traces_are_for_everybody(guarded: PlainGate) -> None:
    assert guarded.told(send("trusted0", "secret-of-trust", "RMQ_SYS_TRACE_TOPIC")) == ""


def test_7_requests_of_administrators_are_refused_to_others(guarded: PlainGate) -> None:
    def told(key: str, secret: str) -> list[str]:
        create = signed(Code.UPDATE_AND_CREATE_TOPIC, key, secret, {"topic": "orders"})
        change = signed(Code.UPDATE_BROKER_CONFIG, key, secret, {}, b"x=y")
        return [guarded.told(create), guarded.told(change)]

    assert all("no permission" in text for text in told("somebody", "secret-of-some"))
    assert told("administrator", "secret-of-admin") == ["", ""]
    assert told("listed-admin", "secret-of-listed") == ["", ""]


def test_8_a_request_that_is_about_nothing_needs_a_signature_only(guarded: PlainGate) -> None:
    assert guarded.told(signed(Code.CHECK_CLIENT_CONFIG, "trusted0", "secret-of-trust")) == ""
    assert guarded.told(signed(Code.CHECK_CLIENT_CONFIG, "trusted0", "wrong")) != ""


def test_9_an_administrator_without_lists_needs_no_rights_and_one_with_lists_does(guarded: PlainGate) -> None:
    assert guarded.told(send("administrator", "secret-of-admin", "anything")) == ""
    assert "no permission" in guarded.told(send("listed-admin", "secret-of-listed"))


def test_10_each_resource_has_its_listed_right_or_the_default(guarded: PlainGate) -> None:
    assert guarded.told(send("somebody", "secret-of-some", "other")) == (
        "User:somebody has no permission to access Topic:other from 10.0.0.7, no matched policies."
    )
    both = {"consumerGroup": "billing", "topic": "orders"}
    assert "Topic:orders" in guarded.told(signed(Code.PULL_MESSAGE, "somebody", "secret-of-some", both))


@pytest.mark.parametrize("code", [50, 51, 52, 53, 54])
def test_accounts_are_for_super_users(guarded: PlainGate, code: int) -> None:
    fields = {"accessKey": "somebody"}
    assert guarded.told(signed(code, "administrator", "secret-of-admin", fields)) == ""
    for key, secret in (("somebody", "secret-of-some"), ("listed-admin", "secret-of-listed")):
        assert "needs a Super user" in guarded.told(signed(code, key, secret, fields))
    # White lists do not make administrators.
    assert guarded.told(RemotingCommand(code, fields), "10.10.103.7") == "username cannot be null."
    assert guarded.told(unsigned("trusted0", code), "192.168.1.9") == "check signature failed."


def test_decisions_that_are_remembered_go_with_a_change_of_the_file(tmp_path: Path) -> None:
    import asyncio

    main = tmp_path / "plain_acl.yml"
    main.write_text(FILE)
    guarded = PlainGate(tmp_path)
    command = send("somebody", "secret-of-some")
    assert [guarded.told(command), guarded.told(command)] == ["", ""]
    main.write_text(FILE.replace("orders=PUB", "orders=DENY"))
    assert asyncio.run(guarded.accounts.refresh())
    assert "the decision is deny" in guarded.told(command)
    main.write_text(FILE.replace("secret-of-some", "another-secret"))
    assert asyncio.run(guarded.accounts.refresh())
    assert guarded.told(command) == "check signature failed."
    main.write_text("accounts: []")
    assert asyncio.run(guarded.accounts.refresh())
    assert guarded.told(command) == "User:somebody is not found."
