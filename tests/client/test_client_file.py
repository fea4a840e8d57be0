"""The client file: what it says reaches clients, what is wrong with it is told, and its secrets never are."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from gimbalmq import Admin, Producer, client_options
from gimbalmq.client.client_file import (
    VARIABLE,
    read_client_file,
    write_client_file,
)
from gimbalmq.client.config import ClientConfig, ProducerConfig
from gimbalmq.errors import ConfigError
from tests.transport.wiring import self_signed

SECRET = "s3cr3t-word"


def written(folder: Path, text: str, name: str = "client.toml", mode: int = 0o600) -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    return path


def full(folder: Path) -> Path:
    """A file with all there is, its certificates beside it."""
    self_signed(folder, "ca")
    self_signed(folder, "me")
    return written(
        folder,
        f"""
        namesrv = ["a:9876", "b:9876"]
        access_key = "admin"
        secret_key = "{SECRET}"
        tls_ca = "ca.pem"
        tls_cert = "me.pem"
        tls_key = "me.key"
        """,
    )


def test_a_file_becomes_the_options_of_a_client(tmp_path: Path) -> None:
    options = client_options(full(tmp_path))
    tls = options.pop("tls")
    assert options == {"namesrv": "a:9876;b:9876", "access_key": "admin", "secret_key": SECRET}
    assert isinstance(tls, ssl.SSLContext)
    assert tls.verify_mode is ssl.CERT_REQUIRED and tls.check_hostname
    assert [ca["subject"] for ca in tls.get_ca_certs()] == [((("commonName", "ca"),),)]


def test_any_host_is_said_in_words(tmp_path: Path) -> None:
    path = full(tmp_path)
    path.write_text(path.read_text() + "tls_any_host = true\n")
    tls = client_options(path)["tls"]
    assert tls.verify_mode is ssl.CERT_REQUIRED and not tls.check_hostname


def test_any_certificate_is_believed_only_in_words(tmp_path: Path) -> None:
    assert client_options(written(tmp_path, "tls = true"))["tls"].verify_mode is ssl.CERT_REQUIRED
    assert client_options(written(tmp_path, "tls_any_cert = true"))["tls"].verify_mode is ssl.CERT_NONE


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full(tmp_path)
    monkeypatch.chdir(tmp_path)
    found = read_client_file("client.toml")
    monkeypatch.chdir("/")
    assert found.tls_cert == str(tmp_path / "me.pem")
    assert found.options()["tls"] is not None


def test_a_client_takes_the_file_it_is_told(tmp_path: Path) -> None:
    config = Producer("orders", client_file=full(tmp_path)).config
    assert (config.namesrv, config.access_key, config.secret_key) == ("a:9876;b:9876", "admin", SECRET)
    assert config.tls is not None
    assert SECRET not in repr(config)


def test_what_a_client_is_told_wins_over_its_file(tmp_path: Path) -> None:
    config = ClientConfig.of(
        namesrv="c:1", access_key="other", secret_key="mine", tls=None, client_file=full(tmp_path)
    )
    assert (config.namesrv, config.access_key, config.secret_key) == ("c:1", "other", "mine")
    assert config.tls is not None  # None says nothing, so the file's counts


def test_one_party_s_key_never_goes_with_another_s_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give access_key and secret_key together"):
        ClientConfig.of(access_key="other", client_file=full(tmp_path))


def test_the_variable_counts_for_a_client_without_name_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(full(tmp_path)))
    assert Producer("orders").config.access_key == "admin"
    assert Admin()._connection.config.namesrv == "a:9876;b:9876"


def test_the_variable_changes_nothing_for_a_client_that_was_told_where_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "there is none"))
    config = Producer("orders", "c:1").config
    assert (config.access_key, config.tls) == (None, None)
    whole = ProducerConfig(group="orders", namesrv="c:1")
    assert Producer(config=whole, retry_times=1).config.access_key is None


def test_a_whole_configuration_can_be_changed_by_a_file(tmp_path: Path) -> None:
    whole = ProducerConfig(group="orders", namesrv="c:1", retry_times=7)
    config = Producer(config=whole, client_file=full(tmp_path)).config
    assert (config.namesrv, config.access_key, config.retry_times) == ("a:9876;b:9876", "admin", 7)


def test_without_any_file_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ConfigError, match="GIMBALMQ_CLIENT_FILE"):
        client_options()
    with pytest.raises(ConfigError, match="or a client file that names one"):
        Producer("orders")


def test_apache_s_tools_file_is_read_with_secrets_of_digits(tmp_path: Path) -> None:
    path = written(tmp_path, "accessKey: RocketMQ\nsecretKey: 012345670\n", "tools.yml")
    assert client_options(path) == {"access_key": "RocketMQ", "secret_key": "012345670"}


def test_a_written_file_is_read_again_and_private(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_text("old")
    path.chmod(0o666)
    write_client_file(path, {"access_key": 'a"b\\c', "secret_key": "ü😀", "tls": True})
    assert path.stat().st_mode & 0o777 == 0o600
    found = read_client_file(path)
    assert (found.access_key, found.secret_key, found.tls) == ('a"b\\c', "ü😀", True)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        (f'secret_key = "{SECRET}"\naccess_key = "a"', 0o604, "everybody may read .* chmod 600"),
        ('namesrv = "a:1"', 0o620, "others may change it"),
        ('namesrv = "a:1"', 0o602, "others may change it"),
        (f'secret_key = "{SECRET}"', 0o600, "access_key of .* together"),
        (f'access_key = "a"\nsecret_kee = "{SECRET}"', 0o600, "did you mean secret_key"),
        (f'access_key = "a"\nsecret_key = \'{SECRET}', 0o600, "not TOML at"),
        (f'access_key = "a"\nsecret_key = ["{SECRET}"]', 0o600, "secret_key of .* a text that is not empty"),
        (f'access_key = "a"\nsecret_key = " "\n# {SECRET}', 0o600, "a text that is not empty"),
        ('namesrv = "nowhere"', 0o600, "use host:port"),
        ("namesrv = 3", 0o600, "host:port;host:port"),
        ('tls_key = "k"', 0o600, "tls_cert of"),
        ('tls = "yes"', 0o600, "true or false"),
        ('tls = false\ntls_ca = "ca.pem"', 0o600, "leave it out"),
        ('tls_any_cert = true\ntls_ca = "ca.pem"', 0o600, "count for nothing"),
    ],
)
def test_a_wrong_file_is_refused_and_its_secret_not_told(
    tmp_path: Path, text: str, mode: int, told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        read_client_file(written(tmp_path, text, mode=mode))
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_group_may_read_a_mounted_secret(tmp_path: Path) -> None:
    path = written(tmp_path, f'access_key = "a"\nsecret_key = "{SECRET}"', mode=0o440)
    assert read_client_file(path).secret_key == SECRET


@pytest.mark.parametrize("text", ["accessKey: [", f"secretKey: {SECRET}\n - x", "other: 1", ""])
def test_wrong_yaml_is_refused_without_its_text(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_client_file(written(tmp_path, text, "tools.yml"))
    assert SECRET not in str(caught.value)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.toml"):
        with pytest.raises(ConfigError, match=str(path)):
            read_client_file(path)
    with pytest.raises(ConfigError, match="another file"):
        read_client_file(written(tmp_path, "#" * 70_000))
    (tmp_path / "raw.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="byte 0"):
        read_client_file(tmp_path / "raw.toml")


def test_a_missing_certificate_names_file_and_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tls_ca of .*client\.toml.*gone\.pem"):
        client_options(written(tmp_path, 'tls_ca = "gone.pem"'))


def test_the_value_does_not_show_its_secrets(tmp_path: Path) -> None:
    path = full(tmp_path)
    path.write_text(path.read_text() + f'tls_key_password = "{SECRET}"\nsecurity_token = "{SECRET}"\n')
    assert SECRET not in repr(read_client_file(path))
