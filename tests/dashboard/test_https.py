"""The dashboard's own certificate: what cannot be used is refused, what changes is loaded."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from pathlib import Path

import pytest

from gimbalmq.dashboard.https import Https
from gimbalmq.errors import ConfigError
from tests.support import run
from tests.transport.wiring import Authority, self_signed


async def shown_by(https: Https, cert: str) -> tuple[bytes, str | None]:
    """What a new connection is shown, by a server that uses the context all the while, and the TLS it speaks."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=https.context)
    async with server:
        trusting = ssl.create_default_context(cafile=cert)
        _, writer = await asyncio.open_connection(
            "127.0.0.1", server.sockets[0].getsockname()[1], ssl=trusting
        )
        shown = writer.get_extra_info("ssl_object")
        found = shown.getpeercert(binary_form=True), shown.version()
        writer.close()
        return found


def test_a_changed_certificate_is_loaded_once_it_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    first, second = authority.sign("first"), authority.sign("second")
    cert, key = str(tmp_path / "used.pem"), str(tmp_path / "used.key")

    def replace(cert_file: str, key_file: str) -> None:
        shutil.copyfile(cert_file, cert)
        shutil.copyfile(key_file, key)

    async def work() -> None:
        replace(first.cert_path, first.key_path)
        https = Https(cert, key, None)
        before, version = await shown_by(https, authority.certificate.cert_path)
        assert version == "TLSv1.3"
        assert not await https.look()
        shutil.copyfile(second.cert_path, cert)
        assert not await https.look(), "it has only just changed"
        assert not await https.look(), "the key does not fit"
        assert "the old one stays" in caplog.text
        assert (await shown_by(https, authority.certificate.cert_path))[0] == before
        shutil.copyfile(second.key_path, key)
        assert not await https.look()
        assert await https.look()
        assert (await shown_by(https, authority.certificate.cert_path))[0] != before

    run(work())


def test_old_versions_of_tls_are_not_spoken(tmp_path: Path) -> None:
    found = self_signed(tmp_path)
    assert Https(found.cert_path, found.key_path, None).context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    locked = self_signed(tmp_path, "locked", password=b"open sesame")
    other = self_signed(tmp_path, "other")
    with pytest.raises(ConfigError, match=r"GIMBALMQ_DASHBOARD_KEY_PASSWORD.*encrypted"):
        Https(locked.cert_path, locked.key_path, None)
    with pytest.raises(ConfigError, match="--https-cert") as refused:
        Https(locked.cert_path, locked.key_path, "wrong word")
    assert "wrong word" not in str(refused.value)
    Https(locked.cert_path, locked.key_path, "open sesame")
    with pytest.raises(ConfigError, match=r"--https-cert=.*absent.pem.*No such file"):
        Https(str(tmp_path / "absent.pem"), None, None)
    with pytest.raises(ConfigError, match=r"key values mismatch"):
        Https(other.cert_path, locked.key_path, "open sesame")
