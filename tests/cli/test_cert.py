"""``gimbalmq cert`` in this process: what is made, kept and renewed, and what is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gimbalmq.cli.main import main


def made(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main(["cert", *map(str, words), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {one["name"]: one for one in found["certificates"]}


def test_one_command_makes_an_authority_and_a_server_s_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cert", str(tmp_path / "tls"), "broker.example"]) == 0
    out = capsys.readouterr().out
    assert "tls.server.certPath=" + str(tmp_path / "tls" / "server.pem") in out
    assert "--tls-ca " + str(tmp_path / "tls" / "ca.pem") in out
    assert "PRIVATE" not in out
    assert max(map(len, out.splitlines()[:4])) < 200 and len(out.splitlines()) < 10


def test_a_certificate_is_only_replaced_if_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(capsys, tmp_path, "10.0.0.5")
    key = (tmp_path / "server.key").read_bytes()
    assert main(["cert", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "--renew makes it anew" in told and "--client NAME" in told
    assert (tmp_path / "server.key").read_bytes() == key
    found = made(capsys, tmp_path, "--renew")
    assert found["server"]["hosts"] == ["localhost", "127.0.0.1", "::1", "10.0.0.5"]
    assert (tmp_path / "server.key").read_bytes() != key


def test_clients_and_further_servers_are_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(capsys, tmp_path)
    found = made(capsys, tmp_path, "--client", "alice", "--client", "bob")
    assert {name: one["new"] for name, one in found.items()} == {"alice": True, "bob": True, "server": False}
    found = made(capsys, tmp_path, "10.0.0.6", "--name", "broker-2")
    assert found["broker-2"]["hosts"][-1] == "10.0.0.6"
    key = (tmp_path / "server.key").read_bytes()
    found = made(capsys, tmp_path, "--renew", "--client", "alice")
    assert [name for name, one in found.items() if one["new"]] == ["alice"]
    assert (tmp_path / "server.key").read_bytes() == key
    found = made(capsys, tmp_path, "--renew")
    assert all(one["new"] for one in found.values()) and len(found) == 4


def test_a_server_s_certificate_does_not_become_a_client_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(capsys, tmp_path)
    assert main(["cert", str(tmp_path), "--renew", "--client", "server"]) == 2
    assert "choose another name" in capsys.readouterr().err
