"""Texts of errors that say what to do."""

from __future__ import annotations

import pytest

from gimbalmq.cli.output import complain
from gimbalmq.errors import (
    AccessRefusedError,
    ConnectError,
    ConnectionLostError,
    NoPermissionError,
    ResponseError,
    SendFailedError,
)

REMARK = "User:ann has no permission to access {} from 10.0.0.7, no matched policies."


@pytest.mark.parametrize(
    ("resource", "command"),
    [
        (
            "Topic:orders",
            "gimbalmq acl allow ann Topic:orders --actions ACTIONS: Pub to send, Sub,Get to read, "
            "Create or Delete to manage it",
        ),
        (
            "Topic:%DLQ%g-1",
            "gimbalmq acl allow ann Topic:%DLQ%g-1 --actions ACTIONS: Pub to send, Sub,Get to read, "
            "Create or Delete to manage it",
        ),
        ("Group:billing", "gimbalmq acl allow ann Group:billing --actions ACTIONS: Sub,Get"),
        ("Cluster:c", "gimbalmq acl allow ann Cluster:c --actions ACTIONS: Get to look, Update to change"),
    ],
)
def test_a_missing_policy_names_the_command_that_makes_it(resource: str, command: str) -> None:
    error = ResponseError.for_code(16, REMARK.format(resource), "10.0.0.1:10911")
    assert isinstance(error, NoPermissionError)
    assert str(error).endswith(f"; an administrator allows it by {command}")
    assert error.remark == REMARK.format(resource)


@pytest.mark.parametrize("resource", ["Topic:$(reboot)", "Topic:a;reboot", "Topic:`x`", "Topic:a b"])
def test_no_command_is_made_of_words_that_a_shell_would_run(resource: str) -> None:
    assert "acl allow" not in str(NoPermissionError(REMARK.format(resource), address="10.0.0.1:10911"))


def test_servers_do_not_tell_peers_of_commands() -> None:
    refused = AccessRefusedError(REMARK.format("Topic:orders"))
    assert "acl allow" not in str(refused) and "acl allow" not in refused.remark


def test_a_cause_of_several_attempts_is_told_once() -> None:
    same, other = NoPermissionError("no."), ConnectError("away")
    told = str(SendFailedError("T", [("q1", same), ("q2", other), ("q3", same)]))
    assert told == "sending to T failed after 3 attempt(s): q1, q3: code 16: no.; q2: away"


def test_a_command_says_how_tls_is_spoken(capsys: pytest.CaptureFixture[str]) -> None:
    complain(ConnectionLostError("127.0.0.1:9876", "it hung up without a word; does it want TLS?"))
    assert "--client-file FILE" in capsys.readouterr().err
    complain(
        ConnectError("no name server accepts a connection: TLS with 127.0.0.1:9876 failed: not believed")
    )
    assert "starts one" not in capsys.readouterr().err
    complain(ConnectError("127.0.0.1:9876 cannot be reached"))
    assert "gimbalmq server starts one" in capsys.readouterr().err
