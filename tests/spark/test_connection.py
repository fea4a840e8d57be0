"""Where source and sink take name servers, keys and TLS from: options, then a client file, then the environment."""

from __future__ import annotations

import os
import pickle
import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest

from gimbalmq.client.client_file import VARIABLE, write_client_file
from gimbalmq.errors import ConfigError
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.spark.connection import CONNECTION_OPTIONS, Connection
from gimbalmq.spark.declared import Given
from gimbalmq.spark.wire import close_process_wires, process_wire
from tests.transport.wiring import Authority, Certificate

SECRET = "canary-secret"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def own(authority: Authority) -> Certificate:
    return authority.sign("spark")


@pytest.fixture
def file(tmp_path: Path, authority: Authority, own: Certificate) -> str:
    path = tmp_path / "client.toml"
    write_client_file(
        path,
        {
            "namesrv": "file:9876",
            "access_key": "filed",
            "secret_key": SECRET,
            "tls_ca": authority.certificate.cert_path,
            "tls_cert": own.cert_path,
            "tls_key": own.key_path,
        },
    )
    return str(path)


def read(options: Mapping[str, str], environment: Mapping[str, str] | None = None) -> Connection:
    return Connection.read(Given(options, CONNECTION_OPTIONS, what="the source"), environment or {})


def keys(connection: Connection) -> tuple[object, object]:
    told = connection.client_options()
    return told["access_key"], told["secret_key"]


def test_a_client_file_says_everything_and_its_secret_does_not_travel(file: str) -> None:
    for connection in (read({"clientFile": file}), read({}, {VARIABLE: file})):
        assert connection.namesrv == "file:9876" and keys(connection) == ("filed", SECRET)
        tls = connection.client_options()["tls"]
        assert tls.verify_mode is ssl.CERT_REQUIRED and tls.check_hostname and len(tls.get_ca_certs()) == 1
        assert SECRET.encode() not in pickle.dumps(connection)
        travelled: Connection = pickle.loads(pickle.dumps(connection))
        assert keys(travelled) == ("filed", SECRET)
    Path(file).unlink()  # an executor that was not given it
    with pytest.raises(ConfigError, match=r"clientFile=.*every machine that runs Spark needs it"):
        travelled.client_options()


def test_a_file_may_believe_any_certificate_unless_an_option_asks_for_more(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    write_client_file(path, {"namesrv": "h:1", "tls_any_cert": True})
    told = {"clientFile": str(path)}
    assert read(told).client_options()["tls"].verify_mode is ssl.CERT_NONE
    assert read({**told, "tls": "verify"}).client_options()["tls"].verify_mode is ssl.CERT_REQUIRED


def test_options_count_before_the_file_and_the_file_before_the_environment(file: str, tmp_path: Path) -> None:
    environment = {
        VARIABLE: file,
        "NAMESRV_ADDR": "environment:9876",
        "ROCKETMQ_ACCESS_KEY": "environment",
        "ROCKETMQ_SECRET_KEY": "environment-secret",
        "ROCKETMQ_TLS_ANY_CERT": "true",
    }
    told = read({"namesrv": "option:1"}, environment)
    assert told.namesrv == "option:1" and keys(told) == ("filed", SECRET)
    assert told.client_options()["tls"].verify_mode is ssl.CERT_REQUIRED
    told = read({"accessKey": "me", "secretKey": "mine", "tls": "off"}, environment)
    assert keys(told) == ("me", "mine") and told.client_options()["tls"] is None
    told = read({"clientFile": "none"}, environment)
    assert told.namesrv == "environment:9876" and keys(told) == ("environment", "environment-secret")
    assert told.client_options()["tls"].verify_mode is ssl.CERT_NONE
    told = read({"accessKey": "me", "clientFile": "none"}, environment)
    assert keys(told) == ("me", "environment-secret")
    # Never one's name with another's secret.
    with pytest.raises(ConfigError, match="together"):
        read({"accessKey": "me", "clientFile": file})
    with pytest.raises(ConfigError, match="together"):
        read({"secretKey": "mine", "clientFile": file})


def test_the_environment_says_as_much_as_it_does_to_commands(authority: Authority, own: Certificate) -> None:
    environment = {"NAMESRV_ADDR": "h:1", "ROCKETMQ_TLS_CA": authority.certificate.cert_path}
    assert read({}, environment).client_options()["tls"].check_hostname
    environment |= {
        "ROCKETMQ_TLS_ANY_HOST": "true",
        "ROCKETMQ_TLS_CERT": own.cert_path,
        "ROCKETMQ_TLS_KEY": own.key_path,
        "ROCKETMQ_TLS_KEY_PASSWORD": SECRET,
    }
    told = read({}, environment)
    assert not told.client_options()["tls"].check_hostname and told.tls_key_password == SECRET
    assert SECRET not in repr(told)
    assert read({"tls": "off"}, environment).client_options()["tls"] is None
    with pytest.raises(ConfigError, match=r"\$ROCKETMQ_TLS='perhaps'"):
        read({}, {"NAMESRV_ADDR": "h:1", "ROCKETMQ_TLS": "perhaps"})


def test_trust_without_tls_is_tls(authority: Authority) -> None:
    """Somebody who names whom to believe does not want to be overheard."""
    told = read({"namesrv": "h:1", "tlsTrustFile": authority.certificate.cert_path})
    assert told.client_options()["tls"].verify_mode is ssl.CERT_REQUIRED


def test_a_secret_may_be_in_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    told = read({"namesrv": "h:1", "accessKey": "me", "secretKeyFile": str(path)})
    assert keys(told) == ("me", SECRET) and SECRET.encode() not in pickle.dumps(told)
    path.write_text(f"{SECRET}\nmore\n")
    with pytest.raises(ConfigError, match="one line, and nothing else") as caught:
        told.client_options()
    assert SECRET not in str(caught.value)
    path.unlink()
    with pytest.raises(ConfigError, match=r"secretKeyFile=.*every machine that runs Spark needs it"):
        told.client_options()


def test_files_are_named_by_whole_paths_for_executors(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text(SECRET)
    told = (
        read({"clientFile": "client.toml"}),
        read({"namesrv": "h:1", "accessKey": "me", "secretKeyFile": "secret"}),
    )
    monkeypatch.chdir("/")
    assert [keys(each)[1] for each in told] == [SECRET, SECRET]


def test_a_new_secret_counts_from_the_next_task_on(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("old")
    told = read({"namesrv": "h:1", "accessKey": "me", "secretKeyFile": str(path)})

    def signed() -> bytes:
        process_wire(told)._opaque = 0
        return process_wire(told).frame(RemotingCommand(1))

    try:
        first = signed()
        assert signed() == first
        path.write_text("renewed")
        assert signed() != first
        path.write_text("old")
        os.utime(path, ns=(1, 1))
        assert signed() == first
    finally:
        close_process_wires()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"secretKey": SECRET}, "accessKey=None cannot be used: give accessKey and secretKeyFile"),
        ({"accessKey": "me"}, "accessKey='me' cannot be used: give accessKey and secretKeyFile"),
        ({"accessKey": "me", "secretKey": SECRET, "secretKeyFile": "/f"}, "give one of them"),
        ({"securityToken": SECRET}, "give the keys it belongs to"),
        ({"tls": "trust", "tlsTrustFile": "/ca.pem"}, "say tls=verify"),
        ({"tlsKeyFile": "/key.pem"}, "give tlsCertFile"),
        ({"clientFile": "/nowhere.toml"}, "no such file; every machine that runs Spark needs it"),
    ],
)
def test_what_cannot_be_used_is_told(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read({"namesrv": "h:1", **options})
    assert told in str(caught.value) and SECRET not in str(caught.value)


def test_name_servers_must_come_from_somewhere() -> None:
    with pytest.raises(ConfigError, match="namesrv=None cannot be used: it is needed"):
        read({})
