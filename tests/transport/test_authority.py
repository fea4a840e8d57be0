"""A private authority: both makers' certificates are believed for their hosts only, and renewed in place."""

from __future__ import annotations

import shutil
import ssl
import stat
from pathlib import Path

import pytest

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.errors import ConfigError, TransportError
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.transport import certificates
from gimbalmq.transport.authority import OWN_HOSTS, Authority
from gimbalmq.transport.certificates import Maker, find_maker
from gimbalmq.transport.certificates_openssl import OpenSslMaker
from gimbalmq.transport.certificates_package import PackageMaker
from gimbalmq.transport.tls import ServerTls, client_tls
from gimbalmq.transport.tls_config import TlsConfig
from tests.support import run
from tests.transport.wiring import ECHO, wire

OPENSSL = shutil.which("openssl")
DAY_MS = 86_400_000


@pytest.fixture(params=["package", "openssl"])
def maker(request: pytest.FixtureRequest) -> Maker:
    if request.param == "package":
        return PackageMaker()
    if OPENSSL is None:
        pytest.skip("the program openssl is not installed")
    return OpenSslMaker(OPENSSL)


class At:
    """A clock that stands."""

    def __init__(self, wall_ms: int) -> None:
        self._wall_ms = wall_ms

    def monotonic(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return self._wall_ms


async def greets(folder: Path, server: str, client: str | None, *, check_host: bool = True) -> None:
    """One request over TLS; the server asks for a certificate if the client has one."""
    config = TlsConfig(
        tls_server_mode="enforcing",
        tls_server_cert_path=str(folder / f"{server}.pem"),
        tls_server_key_path=str(folder / f"{server}.key"),
        tls_server_trust_cert_path=str(folder / "ca.pem"),
        tls_server_need_client_auth="require" if client else "none",
    )
    own = (str(folder / f"{client}.pem"), str(folder / f"{client}.key")) if client else (None, None)
    context = client_tls(str(folder / "ca.pem"), *own, check_host=check_host)
    async with wire(tls=ServerTls(config), client_tls=context) as line:
        answer = await line.pool.call(line.address, RemotingCommand(ECHO, None, b"hello"), 5.0)
        assert bytes(answer.body) == b"hello"


def test_servers_and_clients_of_an_authority_believe_each_other(tmp_path: Path, maker: Maker) -> None:
    authority = Authority(tmp_path, maker=maker)
    authority.issue("server", OWN_HOSTS)
    authority.issue("alice")
    run(greets(tmp_path, "server", "alice"))


def test_a_certificate_counts_for_its_hosts_only(tmp_path: Path, maker: Maker) -> None:
    authority = Authority(tmp_path, maker=maker)
    made = authority.issue("server", ["broker.example", "10.0.0.5", "[FD00::5]"])
    assert made.hosts == ("broker.example", "10.0.0.5", "fd00::5")
    with pytest.raises(TransportError, match="certificate is not believed"):
        run(greets(tmp_path, "server", None))


def test_a_client_s_certificate_is_no_server_s(tmp_path: Path, maker: Maker) -> None:
    authority = Authority(tmp_path, maker=maker)
    assert authority.issue("alice").hosts == ()
    with pytest.raises(TransportError, match="certificate is not believed"):
        run(greets(tmp_path, "alice", None, check_host=False))


def test_a_certificate_cannot_vouch_for_others(tmp_path: Path, maker: Maker) -> None:
    Authority(tmp_path, maker=maker).issue("server", OWN_HOSTS)
    other = tmp_path / "other"
    other.mkdir()
    for ending in ("pem", "key"):
        shutil.copy(tmp_path / f"server.{ending}", other / f"ca.{ending}")
    with pytest.raises(ConfigError, match="no authority's certificate"):
        Authority(other, maker=maker)


def test_keys_are_private_and_the_folder_too(tmp_path: Path, maker: Maker) -> None:
    folder = tmp_path / "new" / "tls"
    Authority(folder, maker=maker).issue("server", OWN_HOSTS)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {"ca.pem": 0o644, "ca.key": 0o600, "server.pem": 0o644, "server.key": 0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert "PRIVATE KEY" not in repr(Authority(folder, maker=maker)._pair)


def test_a_second_opening_uses_the_authority_there_is(tmp_path: Path, maker: Maker) -> None:
    first = Authority(tmp_path, maker=maker)
    first.issue("server", OWN_HOSTS)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    second = Authority(tmp_path, maker=maker)
    assert (first.made, second.made) == (True, False)
    assert [issued.name for issued in second.all()] == ["server"]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    second.issue("server", OWN_HOSTS)
    assert (tmp_path / "server.key").read_bytes() != before["server.key"]
    assert (tmp_path / "ca.pem").read_bytes() == before["ca.pem"]
    run(greets(tmp_path, "server", None))


def test_one_maker_goes_on_with_what_the_other_made(tmp_path: Path) -> None:
    if OPENSSL is None:
        pytest.skip("the program openssl is not installed")
    Authority(tmp_path, maker=OpenSslMaker(OPENSSL)).issue("server", OWN_HOSTS)
    authority = Authority(tmp_path, maker=PackageMaker())
    assert [issued.hosts for issued in authority.all()] == [OWN_HOSTS]
    authority.issue("alice")
    run(greets(tmp_path, "server", "alice"))


def test_nothing_outlives_its_authority(tmp_path: Path, maker: Maker) -> None:
    authority = Authority(tmp_path, maker=maker, days=30)
    assert authority.issue("server", OWN_HOSTS, days=397).until <= authority.until
    later = At(SYSTEM_CLOCK.wall_ms() + 31 * DAY_MS)
    with pytest.raises(ConfigError, match="its authority ended on"):
        Authority(tmp_path, maker=maker, clock=later)


def test_an_ended_certificate_is_refused(tmp_path: Path) -> None:
    long_ago = At(SYSTEM_CLOCK.wall_ms() - 10 * DAY_MS)
    Authority(tmp_path, clock=long_ago).issue("server", OWN_HOSTS, days=5)
    with pytest.raises(TransportError, match="expired"):
        run(greets(tmp_path, "server", None))


@pytest.mark.parametrize(
    "host", ["", "a b", "a:9876", "1.2.3", "300.1.1.1", "a,DNS:b", "a\nb", "-a", "x" * 254]
)
def test_what_is_no_host_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="HOST"):
        Authority(tmp_path).issue("server", [host])


@pytest.mark.parametrize("name", ["", "ca", "../x", "a/b", ".hidden", "a\nCN=b", "x" * 64])
def test_what_cannot_be_a_file_s_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="NAME"):
        Authority(tmp_path).issue(name)


def test_broken_folders_are_refused_by_name(tmp_path: Path, maker: Maker) -> None:
    (tmp_path / "ca.key").write_text("x")
    with pytest.raises(ConfigError, match=r"ca\.key without ca\.pem"):
        Authority(tmp_path, maker=maker)
    (tmp_path / "ca.pem").write_text("x")
    with pytest.raises(ConfigError, match=r"ca\.pem is no certificate"):
        Authority(tmp_path, maker=maker)
    with pytest.raises(ConfigError, match="cannot be made"):
        Authority(tmp_path / "ca.pem" / "x", maker=maker)


def test_without_package_and_program_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gimbalmq.transport.certificates_package", None)
    if OPENSSL is not None:
        assert isinstance(find_maker(), OpenSslMaker)
    monkeypatch.setattr(certificates.shutil, "which", lambda _name: None)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"pip install 'gimbalmq\[tls\]'"):
        find_maker()


def test_certificates_pass_openssl_s_strict_rules(tmp_path: Path, maker: Maker) -> None:
    authority = Authority(tmp_path, maker=maker)
    authority.issue("server", OWN_HOSTS)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(authority.certificate)

    async def work() -> None:
        config = TlsConfig(
            tls_server_mode="enforcing",
            tls_server_cert_path=str(tmp_path / "server.pem"),
            tls_server_key_path=str(tmp_path / "server.key"),
        )
        async with wire(tls=ServerTls(config), client_tls=context) as line:
            await line.client()

    run(work())
