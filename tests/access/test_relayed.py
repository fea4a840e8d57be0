"""Requests that a broker hands on to clients carry nobody's signature: it would serve for other requests, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gimbalmq.protocol.codes import RequestCode as Code
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.signing import ACCESS_KEY, SIGNATURE
from tests.access.test_detours import REFUSED, House, house
from tests.broker.desk import fields
from tests.support import run


async def _relayed(at: House, code: int, client_id: str) -> RemotingCommand:
    """What mallory's client is sent if the administrator looks at it, or hands it a message."""
    beat = await at.mallory.heartbeat(client_id, group="group-of-mallory", topics={"mallorys": "*"})
    assert beat.code == 0
    at.mallory.answers[code] = b"{}"
    sent = await at.mallory.send("mallorys")
    asked = {"consumerGroup": "group-of-mallory", "clientId": client_id}
    if code == Code.CONSUME_MESSAGE_DIRECTLY:
        asked["msgId"] = fields(sent)["msgId"]
    await at.admin.ok(code, asked)
    return (await at.mallory.heard_code(code))[-1]


@pytest.mark.parametrize("code", [Code.GET_CONSUMER_RUNNING_INFO, Code.CONSUME_MESSAGE_DIRECTLY])
def test_a_client_is_not_shown_the_signature_of_who_asks_for_it(tmp_path: Path, code: Code) -> None:
    async def work() -> None:
        async with house(tmp_path) as at:
            given = dict((await _relayed(at, code, "client-of-mallory")).ext_fields or {})
            assert given["consumerGroup"] == "group-of-mallory"
            assert given["clientId"] == "client-of-mallory"
            assert ACCESS_KEY not in given and SIGNATURE not in given

    run(work())


def test_nobody_turns_a_look_at_his_client_into_the_administrators_password(tmp_path: Path) -> None:
    """The text that is signed knows no codes and no names of fields, and a part of it is the client's own id."""

    async def work() -> None:
        async with house(tmp_path) as at:
            given = dict(
                (await _relayed(at, Code.GET_CONSUMER_RUNNING_INFO, "admin--mallory")).ext_fields or {}
            )
            text = "admin--mallory" + "group-of-mallory"
            forged = {
                "AccessKey": "admin",
                "Signature": given.get(SIGNATURE, "A" * 27 + "="),
                "username": text[: len("admin")],
                "z": text[len("admin") :],
            }
            stranger = at.desk.new_client()
            answer = await stranger.ask(Code.AUTH_GET_USER, forged)
            assert answer.code == REFUSED, json.loads(bytes(answer.body))

    run(work())
