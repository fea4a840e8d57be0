"""Where a command finds its cluster: flags, then the client file, then other variables."""

from __future__ import annotations

import argparse
import ssl
from pathlib import Path
from typing import Any

import pytest

from gimbalmq.cli.asking import admin_options, connection_options, environment_options, namesrv_of
from gimbalmq.cli.completion import words_by_command
from gimbalmq.cli.main import main
from gimbalmq.cli.parsing import CommandParser
from gimbalmq.errors import ConfigError
from gimbalmq.testing import LocalCluster
from tests.transport.wiring import self_signed

VARIABLES = (
    "GIMBALMQ_CLIENT_FILE",
    "NAMESRV_ADDR",
    *("ROCKETMQ_" + name for name in ("ACCESS_KEY", "SECRET_KEY", "TLS", "TLS_CA", "TLS_CERT", "TLS_KEY")),
    "ROCKETMQ_TLS_ANY_HOST",
)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def parsed(*words: object) -> argparse.Namespace:
    parser = CommandParser()
    connection_options(parser)
    return parser.parse_args([str(word) for word in words])


def told(*words: object) -> tuple[str, dict[str, Any]]:
    args = parsed(*words)
    return namesrv_of(args), admin_options(args)


def client_file(folder: Path, *, tls: bool = True) -> Path:
    self_signed(folder, "ca")
    path = folder / "client.toml"
    keys = 'namesrv = "file:9876"\naccess_key = "of-file"\nsecret_key = "secret-of-file"\n'
    path.write_text(keys + ('tls_ca = "ca.pem"\n' if tls else ""))
    path.chmod(0o600)
    return path


def test_a_client_file_tells_everything(tmp_path: Path) -> None:
    namesrv, options = told("--client-file", client_file(tmp_path))
    assert namesrv == "file:9876"
    assert (options["access_key"], options["secret_key"]) == ("of-file", "secret-of-file")
    assert options["tls"].verify_mode is ssl.CERT_REQUIRED and options["tls"].check_hostname


def test_the_variable_names_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIMBALMQ_CLIENT_FILE", str(client_file(tmp_path)))
    assert told()[0] == "file:9876"
    assert environment_options()["access_key"] == "of-file"
    namesrv, options = told("-n", "flag:1")  # as with mqadmin, whose -n does not change who asks
    assert (namesrv, options["access_key"]) == ("flag:1", "of-file")


def test_flags_win_over_the_file_and_the_file_over_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = client_file(tmp_path)
    (tmp_path / "secret").write_text("secret-of-flag\n")
    for name, value in (
        ("NAMESRV_ADDR", "variable:1"),
        ("ROCKETMQ_ACCESS_KEY", "of-variable"),
        ("ROCKETMQ_SECRET_KEY", "secret-of-variable"),
        ("ROCKETMQ_TLS_ANY_HOST", "true"),
        ("ROCKETMQ_TLS_CA", "/nowhere.pem"),
    ):
        monkeypatch.setenv(name, value)
    namesrv, options = told("--client-file", file)
    assert (namesrv, options["access_key"], options["secret_key"]) == (
        *("file:9876", "of-file", "secret-of-file"),
    )
    assert options["tls"].check_hostname
    flags = ("--access-key", "of-flag", "--secret-key-file", tmp_path / "secret", "--tls-any-host")
    _, options = told("--client-file", file, *flags)
    assert (options["access_key"], options["secret_key"]) == ("of-flag", "secret-of-flag")
    assert not options["tls"].check_hostname


def test_a_flag_may_say_that_any_certificate_is_believed(tmp_path: Path) -> None:
    tls = told("--client-file", client_file(tmp_path), "--tls-any-cert")[1]["tls"]
    assert tls.verify_mode is ssl.CERT_NONE


def test_a_key_by_flag_never_takes_the_file_s_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--secret-key-file"):
        told("--client-file", client_file(tmp_path), "--access-key", "of-flag")


def test_a_file_without_tls_leaves_it_to_flags_and_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = client_file(tmp_path, tls=False)
    assert "tls" not in told("--client-file", file)[1]
    assert told("--client-file", file, "--tls-any-cert")[1]["tls"].verify_mode is ssl.CERT_NONE
    monkeypatch.setenv("ROCKETMQ_TLS_CA", str(tmp_path / "ca.pem"))
    assert told("--client-file", file)[1]["tls"].verify_mode is ssl.CERT_REQUIRED


def test_a_wrong_client_file_is_a_wrong_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "list", "--client-file", str(tmp_path / "none")]) == 2
    assert "cannot be read" in capsys.readouterr().err


_ASK_NOBODY = ("balance simulate", "cert", "cluster local", "completion", "server", "broker", "namesrv")


def test_every_command_that_asks_a_cluster_takes_a_client_file() -> None:
    words = words_by_command()
    parents = {path.rpartition(" ")[0] for path in words if " " in path}
    asking = {
        path: options
        for path, options in words.items()
        if path and path not in {*parents, *_ASK_NOBODY} and not path.startswith("pipeline ")
    }
    assert len(asking) > 60
    assert [path for path, options in asking.items() if "--client-file" not in options] == []


def test_commands_reach_a_closed_cluster_by_nothing_but_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalCluster.in_thread(secure=True) as cluster:
        monkeypatch.setenv("GIMBALMQ_CLIENT_FILE", str(cluster.client_file()))
        for line in (
            "topic create orders --queues 2",
            "cluster list",
            "cluster status broker-a",
            "config get broker-a",
            "config get --of-namesrv",
            "topic list",
            "topic route orders",
            "topic stats orders",
            "message send orders hello --key k",
            "message print orders",
            "message key orders k",
            "group create billing",
            "group list",
            "deadletter list",
            "balance preview --topic orders --members a,b",
            "user list",
            "acl list",
            "topic delete orders --yes",
        ):
            assert main(line.split()) == 0, (line, capsys.readouterr())
        shown = capsys.readouterr()
        secret = cluster.client_options()["secret_key"]
        assert secret not in shown.out + shown.err
