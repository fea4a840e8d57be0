"""Authentication, authorisation and TLS for both brokers alike: `--auth` and `--tls` of the benchmarks.

The load is signed by a user of rank Normal who may send to every topic, so that both brokers verify each signature and
look at a policy. Both servers know TLS and plain connections; the generator uses TLS, everything else is plain.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.loadgen.runner import CannotMeasure

ADMIN, ADMIN_SECRET = "bench-admin", "secret-of-the-admin"
USER, USER_SECRET = "bench-user", "secret-of-the-user"

_LOCAL = "org.apache.rocketmq.auth.{0}.provider.Local{1}MetadataProvider"


@dataclass(frozen=True)
class Security:
    """What is on."""

    auth: bool = False
    tls: bool = False

    def __bool__(self) -> bool:
        return self.auth or self.tls

    @property
    def words(self) -> str:
        names = [name for name, on in (("signed", self.auth), ("TLS", self.tls)) if on]
        return " + ".join(names) or "open"

    def keys(self) -> dict[str, str]:
        """RocketMQ's keys, which both brokers understand."""
        if not self.auth:
            return {}
        return {
            "authenticationEnabled": "true",
            "authenticationMetadataProvider": _LOCAL.format("authentication", "Authentication"),
            "authorizationEnabled": "true",
            "authorizationMetadataProvider": _LOCAL.format("authorization", "Authorization"),
            "initAuthenticationUser": json.dumps({"username": ADMIN, "password": ADMIN_SECRET}),
            "innerClientAuthenticationCredentials": json.dumps(
                {"accessKey": ADMIN, "secretKey": ADMIN_SECRET}
            ),
        }

    def tls_keys(self, folder: Path) -> dict[str, str]:
        """Of a server that has a certificate and also serves plain connections."""
        if not self.tls:
            return {}
        cert, key = folder / "server.pem", folder / "server.key"
        if not cert.exists():
            _make_certificate(cert, key)
        return {
            "tls.server.mode": "permissive",
            "tls.server.certPath": str(cert),
            "tls.server.keyPath": str(key),
        }

    def load(self) -> dict[str, object]:
        """Options of the generator."""
        options: dict[str, object] = {"tls": True} if self.tls else {}
        return options | ({"user": USER, "secret": USER_SECRET} if self.auth else {})


OPEN = Security()


def signed(fields: Mapping[str, object], body: bytes) -> dict[str, str]:
    """The fields of an administrator's request."""
    texts = {name: str(value) for name, value in fields.items()} | {"AccessKey": ADMIN}
    text = "".join(texts[name] for name in sorted(texts)).encode() + body
    digest = hmac.new(ADMIN_SECRET.encode(), text, hashlib.sha1).digest()
    return texts | {"Signature": base64.b64encode(digest).decode()}


def people() -> list[tuple[int, dict[str, object], bytes]]:
    """Requests that make the user who sends, and allow it to: code, fields, body."""
    user = {"username": USER, "password": USER_SECRET, "userType": "Normal"}
    entry = {"resource": "Topic:*", "actions": ["Pub"], "decision": "Allow"}
    acl = {"subject": f"User:{USER}", "policies": [{"policyType": "Custom", "entries": [entry]}]}
    return [
        (3001, {"username": USER}, json.dumps(user).encode()),
        (3006, {"subject": f"User:{USER}"}, json.dumps(acl).encode()),
    ]


def _make_certificate(cert: Path, key: Path) -> None:
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "30",
        "-subj",
        "/CN=bench",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotMeasure(f"openssl makes no certificate: {error}") from error
