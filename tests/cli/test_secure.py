"""``gimbalmq server --secure``: what a first start makes, what a second uses again, and what nobody sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gimbalmq import Message, sync
from gimbalmq.cli.command_line import build_parser
from gimbalmq.cli.main import main
from gimbalmq.cli.secure import ADMINISTRATOR, Secured, secure
from gimbalmq.cli.server_plans import server_plan
from gimbalmq.client.client_file import read_client_file
from gimbalmq.errors import ConfigError
from gimbalmq.protocol import properties_text
from gimbalmq.transport.authority import OWN_HOSTS, Authority
from tests.cli.commands import Server, serving


def made(folder: Path, *hosts: str, **given: str) -> Secured:
    keys = {name.replace("_", "."): value for name, value in given.items()}
    return secure(folder, keys, list(hosts), folder / "store" / "config" / "users.json", 9876)


def has_users(folder: Path) -> None:
    """As a started server leaves it."""
    (folder / "store" / "config").mkdir(parents=True)
    (folder / "store" / "config" / "users.json").write_text("{}")


def test_a_first_start_makes_everything(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    found = made(folder)
    assert found.secret is not None and len(found.secret) >= 32
    first = json.loads(found.keys["initAuthenticationUser"])
    assert first == {"username": ADMINISTRATOR, "password": found.secret}
    inner = json.loads(found.keys["innerClientAuthenticationCredentials"])
    assert len(inner["secretKey"]) >= 32
    client = read_client_file(folder / "client.toml")
    assert (client.access_key, client.secret_key) == (ADMINISTRATOR, found.secret)
    assert client.tls_ca == str(folder / "tls" / "ca.pem")
    assert 'tls_ca = "tls/ca.pem"' in (folder / "client.toml").read_text()  # the folder may be moved
    kept = properties_text.loads((folder / "server.properties").read_text())
    assert kept == {key: value for key, value in found.keys.items() if key != "initAuthenticationUser"}
    assert kept["tls.server.mode"] == "enforcing" and kept["authorizationEnabled"] == "true"
    modes = {path.name: path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())}
    assert modes == {"new": 0o700, "tls": 0o700, "client.toml": 0o600, "server.properties": 0o600}


def test_a_second_start_uses_it_again(tmp_path: Path) -> None:
    first = made(tmp_path)
    has_users(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    second = made(tmp_path)
    assert second.secret is None
    assert second.ready(9876, show_secret=True)[-1].startswith("  export "), "alice is there already"
    # A deleted administrator, or an old password, does not come back.
    assert "initAuthenticationUser" not in second.keys
    del first.keys["initAuthenticationUser"]
    assert second.keys == first.keys
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_start_that_got_no_further_goes_on_with_its_secret(tmp_path: Path) -> None:
    assert made(tmp_path).secret == made(tmp_path).secret
    (tmp_path / "client.toml").write_text('access_key = "other"\nsecret_key = "x"\n')
    with pytest.raises(ConfigError, match="move it away"):
        made(tmp_path)


def test_a_new_host_gets_a_certificate_of_the_same_authority(tmp_path: Path) -> None:
    made(tmp_path)
    ca = (tmp_path / "tls" / "ca.pem").read_bytes()
    made(tmp_path, "10.0.0.5")
    issued = Authority(tmp_path / "tls").found("server")
    assert issued is not None and issued.hosts == (*OWN_HOSTS, "10.0.0.5")
    assert (tmp_path / "tls" / "ca.pem").read_bytes() == ca


@pytest.mark.parametrize(
    ("words", "namesrv"),
    [
        ((), "127.0.0.1:9876"),
        (("--host", "0.0.0.0", "--advertise", "10.0.0.5", "--namesrv-port", "19876"), "10.0.0.5:19876"),
        (("--host", "::1"), "[::1]:9876"),
        (("--host", "10.0.0.6", "--set", "namesrv.listenPort=1"), "10.0.0.6:1"),
    ],
)
def test_clients_are_told_where_the_servers_are(tmp_path: Path, words: tuple[str, ...], namesrv: str) -> None:
    server_plan(build_parser("server").parse_args(["server", "--secure", str(tmp_path), *words]))
    assert read_client_file(tmp_path / "client.toml").namesrv == namesrv


def test_certificates_that_end_soon_are_renewed(tmp_path: Path) -> None:
    made(tmp_path)
    Authority(tmp_path / "tls").issue("server", OWN_HOSTS, days=20)
    key = (tmp_path / "tls" / "server.key").read_bytes()
    made(tmp_path)
    assert (tmp_path / "tls" / "server.key").read_bytes() != key


def test_own_certificates_may_be_named(tmp_path: Path) -> None:
    other = Authority(tmp_path / "company")
    issued = other.issue("mq", OWN_HOSTS)
    folder = tmp_path / "new"
    found = made(
        folder,
        tls_server_certPath=str(issued.certificate),
        tls_server_keyPath=str(issued.key),
        tls_client_trustCertPath=str(other.certificate),
    )
    assert not (folder / "tls").exists()
    assert found.keys["tls.server.certPath"] == str(issued.certificate)
    assert read_client_file(folder / "client.toml").tls_ca == str(other.certificate)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("authenticationEnabled", "false"),
        ("authorizationEnabled", "FALSE"),
        ("tls.server.mode", "permissive"),
        ("accessMode", "permissive"),
    ],
)
def test_what_contradicts_is_refused_before_anything_is_made(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(ConfigError, match="--secure means"):
        secure(tmp_path / "new", {key: value}, [], tmp_path / "users.json", 1)
    assert not (tmp_path / "new").exists()


def test_what_was_opened_by_hand_is_refused_too(tmp_path: Path) -> None:
    made(tmp_path)
    path = tmp_path / "server.properties"
    path.write_text(path.read_text().replace("authorizationEnabled=true", "authorizationEnabled=false"))
    with pytest.raises(ConfigError, match=r"authorizationEnabled='false'.*server\.properties"):
        made(tmp_path)


def test_another_first_administrator_may_be_named(tmp_path: Path) -> None:
    """Also at a later start, if all administrators are lost."""
    first = json.dumps({"username": "rescue", "password": "x"})
    found = made(tmp_path, initAuthenticationUser=first)
    assert found.secret is None and found.keys["initAuthenticationUser"] == first
    assert not (tmp_path / "client.toml").exists()
    assert "rescue" not in (tmp_path / "server.properties").read_text()


def test_folders_and_files_of_others_are_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="chmod 700"):
        made(tmp_path)
    tmp_path.chmod(0o700)
    made(tmp_path)
    (tmp_path / "server.properties").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        made(tmp_path)


def test_the_secret_is_for_a_person_only(tmp_path: Path) -> None:
    found = made(tmp_path)
    assert found.secret is not None and found.secret not in repr(found)
    shown = "\n".join(found.ready(1, show_secret=True))
    logged = "\n".join(found.ready(1, show_secret=False))
    assert found.secret in shown and found.secret not in logged
    assert len(shown.splitlines()) <= 10
    assert f"export GIMBALMQ_CLIENT_FILE={tmp_path}/client.toml" in logged
    has_users(tmp_path)
    assert found.secret not in "\n".join(made(tmp_path).ready(1, show_secret=True))


def test_the_client_file_follows_the_name_server(tmp_path: Path) -> None:
    found = made(tmp_path)
    path = tmp_path / "client.toml"
    path.write_text(path.read_text() + "# a note\n")
    found.ready(4711, show_secret=False)
    assert read_client_file(path).namesrv == "127.0.0.1:4711"
    assert "# a note" in path.read_text() and path.stat().st_mode & 0o777 == 0o600
    path.write_text("broken by its owner")
    assert found.ready(4712, show_secret=False)  # the servers go on
    path.unlink()
    found.ready(4712, show_secret=False)  # moved by its owner
    assert not path.exists()


def test_both_servers_of_a_plan_are_closed(tmp_path: Path) -> None:
    plan = server_plan(build_parser("server").parse_args(["server", "--secure", str(tmp_path / "d")]))
    assert plan.nameserver is not None and plan.broker is not None
    assert plan.broker.store_path_root_dir == str(tmp_path / "d" / "store")
    for config in (plan.nameserver, plan.broker):
        assert config.authentication_enabled and config.authorization_enabled and config.enforcing
    assert not plan.nameserver.routes_public
    assert plan.secured is not None and plan.secured.secret is not None
    assert plan.secured.secret not in repr(plan)


def said(server: Server) -> list[str]:
    """What a server prints until it has told what to do next; only a first start has a second command."""
    lines = [server.next_line(60)]
    while not lines[-1].startswith("  export "):
        lines.append(server.next_line(60))
    return lines


def test_a_first_hour(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    mine = ("--client-file", folder / "client.toml")

    def command(*words: object) -> tuple[int, str]:
        code = main([str(word) for word in words])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    words = ("server", "--secure", folder, "--port", 0, "--namesrv-port")
    with serving(*words, 0) as server:
        lines = said(server)
        client = read_client_file(folder / "client.toml")
        secret, namesrv = client.secret_key, client.namesrv
        assert secret is not None and secret not in "\n".join(lines)  # a pipe is no person
        assert secret.encode() not in Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        assert command("user", "create", "alice", "--new-client-file", folder / "alice.toml", *mine)[0] == 0
        assert command("acl", "allow", "alice", "Topic:orders", "--actions", "Pub", *mine)[0] == 0
        with sync.Admin(client_file=folder / "client.toml") as admin:
            admin.topics.create("orders", queues=1)
        with sync.Producer("shop", client_file=folder / "alice.toml") as producer:
            producer.send(Message("orders", b"hello"))
        code, told = command("user", "delete", "admin", "--yes", *mine)
        assert code == 1 and "the last enabled SUPER user" in told
        # Both servers of the process know the same users.
        assert list(folder.rglob("users.json")) == [folder / "store" / "config" / "users.json"]
        code, told = command("topic", "list", "--namesrv", namesrv)
        assert code == 1 and "does it want TLS?" in told
        code, told = command("topic", "list", "--namesrv", namesrv, "--tls-ca", folder / "tls" / "ca.pem")
        assert code == 1 and "it asks who you are" in told
        assert server.end() == 0
        assert secret not in server.errors and "Traceback" not in server.errors
    with serving(*words, str(namesrv).rpartition(":")[2]) as server:
        assert not any("secret" in line for line in said(server))
        code, told = command("topic", "list", *mine)
        assert code == 0 and "orders" in told
        with sync.Producer("shop", client_file=folder / "alice.toml") as producer:
            producer.send(Message("orders", b"hello again"))
        assert server.end() == 0


@pytest.mark.parametrize(
    "key", ["initAuthenticationUsr", "firstOne", "innerCredentials", "tls.server.keyPasword"]
)
def test_a_misspelt_key_does_not_tell_its_secret(
    tmp_path: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    value = "s3cret" if "Pas" in key else '{"password": "s3cret"}'
    (tmp_path / "file").write_text(f"{key}={value}\n")
    for words in (("--set", f"{key}={value}"), ("-c", str(tmp_path / "file"), "--set", "wrong=1")):
        assert main(["broker", "--store", str(tmp_path / "s"), *words]) == 2
        shown = capsys.readouterr()
        assert "s3cret" not in shown.out + shown.err
