"""Certificates by the program ``openssl``, for machines without the package ``cryptography``.

Keys travel in files of a folder that only this user can enter, and that goes away; never as arguments, which
every user of the machine can see.
"""

from __future__ import annotations

import re
import secrets
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from gimbalmq.transport.certificates import Facts, Pair, check_host, is_address

_SECONDS = 30.0
_DAY = 86_400

_CONFIG = """\
[req]
distinguished_name = subject
prompt = no
string_mask = utf8only
[subject]
CN = {name}
[authority]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[issued]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = {uses}
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
{hosts}
"""


class OpenSslMaker:
    """Makes certificates in processes of ``openssl``, 1.1.1 or newer."""

    def __init__(self, program: str) -> None:
        self._program = program

    def authority(self, name: str, now: datetime, until: datetime) -> Pair:
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            self._prepare(work, Facts(name, (), until, authority=True))
            self._run(
                work,
                *("req", "-x509", "-new", "-key", "key", "-sha256", "-config", "config"),
                *("-extensions", "authority", "-days", _days(now, until), "-out", "certificate"),
            )
            return _made(work)

    def issue(self, by: Pair, facts: Facts, now: datetime) -> Pair:
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            self._prepare(work, facts)
            (work / "ca").write_text(by.certificate)
            (work / "ca-key").write_text(by.key)
            self._run(work, "req", "-new", "-key", "key", "-config", "config", "-out", "request")
            self._run(
                work,
                *("x509", "-req", "-in", "request", "-CA", "ca", "-CAkey", "ca-key", "-sha256"),
                *("-set_serial", f"0x{secrets.randbits(158) | 1 << 152:x}", "-days", _days(now, facts.until)),
                *("-extfile", "config", "-extensions", "issued", "-out", "certificate"),
            )
            return _made(work)

    def read(self, certificate: str) -> Facts:
        told = self._run(
            None, *("x509", "-noout", "-text", "-certopt", "no_pubkey,no_sigdump"), given=certificate
        )
        name = re.search(r"Subject:.*?CN ?= ?([^\s,/]+)", told)
        until = re.search(r"Not After *: (\w+ +\d+ \d+:\d+:\d+ \d+) GMT", told)
        if until is None:
            raise ValueError("no certificate")
        hosts = re.findall(r"\b(?:DNS|IP Address):([^\s,]+)", told)
        return Facts(
            name.group(1) if name else "",
            tuple(check_host(host) for host in hosts),
            datetime.strptime(until.group(1), "%b %d %H:%M:%S %Y").replace(tzinfo=UTC),
            "CA:TRUE" in told,
        )

    def _prepare(self, work: Path, facts: Facts) -> None:
        named = ",".join(f"{'IP' if is_address(host) else 'DNS'}:{host}" for host in facts.hosts)
        (work / "config").write_text(
            _CONFIG.format(
                name=facts.name,
                uses="serverAuth, clientAuth" if facts.hosts else "clientAuth",
                hosts=f"subjectAltName = {named}" if named else "",
            )
        )
        self._run(
            work, *("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", "key")
        )

    def _run(self, work: Path | None, *words: str, given: str = "") -> str:
        try:
            done = subprocess.run(
                [self._program, *words],
                cwd=work,
                input=given,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise ValueError(f"openssl {words[0]} does not end") from None
        if done.returncode != 0:
            said = done.stderr.strip().splitlines()
            raise ValueError(f"openssl {words[0]} failed: {said[0] if said else done.returncode}")
        return done.stdout


def _days(now: datetime, until: datetime) -> str:
    """Whole days; rounded down, because a certificate should not outlive its authority."""
    return str(max(1, int((until - now).total_seconds()) // _DAY))


def _made(work: Path) -> Pair:
    return Pair((work / "certificate").read_text(), (work / "key").read_text())
