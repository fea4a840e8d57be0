"""``gimbalmq server --secure DIR``: what closed servers need is made at the first start and used again later.

=====================  ==================================================================================
DIR/client.toml        lets the administrator in: name server, name and secret, whom to believe
DIR/server.properties  settings of the servers, with the credentials that they sign their own calls with
DIR/tls/               the authority and the servers' certificate (``gimbalmq cert DIR/tls`` makes more)
DIR/store/             messages, users and policies, unless ``--store`` names another folder
=====================  ==================================================================================

All of it is for the owner's eyes only. The administrator's secret is in the client file and in the table of users, and
nowhere else: a user who was deleted, or was given another password, does not come back at the next start.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.cli.passwords import new_secret
from gimbalmq.client.client_file import read_client_file, write_client_file
from gimbalmq.errors import ConfigError
from gimbalmq.protocol import properties_text
from gimbalmq.transport.authority import OWN_HOSTS, Authority
from gimbalmq.transport.whole_files import write_whole

log = logging.getLogger(__name__)

ADMINISTRATOR = "admin"

_KEYS = "server.properties"
_SERVER = "server"
_RENEW_BEFORE = timedelta(days=30)

_CLOSED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "accessMode": "enforcing",
    "tls.server.mode": "enforcing",
}
"""What --secure stands for; other values of these contradict it."""


@dataclass(slots=True)
class Secured:
    """What the servers are started with, and what is said when they are ready.

    Attributes:
        keys: settings of both servers.
        trust: the authority, or the certificate, that clients are to believe.
        host: name or address by which clients find the name server.
        secret: of an administrator who was made now; None if there are users already.
    """

    folder: Path
    keys: dict[str, str] = field(repr=False)
    trust: Path
    host: str
    secret: str | None = field(default=None, repr=False)

    @property
    def client_file(self) -> Path:
        return self.folder / "client.toml"

    def namesrv(self, port: int) -> str:
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    def ready(self, port: int, *, show_secret: bool) -> list[str]:
        """Has the client file name the name server that is ready; what a person should know now.

        Args:
            port: of the name server.
            show_secret: whether a person reads it; logs are no place for a secret.
        """
        if self.client_file.exists():
            _tell_namesrv(self.client_file, self.namesrv(port))
        lines = ["requests are signed, users do what their policies allow, and nothing but TLS is spoken"]
        if self.secret is not None:
            shown = self.secret if show_secret else f"in {self.client_file}"
            lines += [
                f"administrator {ADMINISTRATOR}, secret {shown}",
                f"the secret is shown this once; {self.client_file} has it, which only you can read"
                if show_secret
                else "the secret is shown on terminals only",
            ]
        lines += ["next:", f"  export GIMBALMQ_CLIENT_FILE={shlex.quote(str(self.client_file))}"]
        if self.secret is not None:
            lines.append("  gimbalmq user create alice --new-client-file alice.toml")
        return lines


def secure(folder: Path, given: Mapping[str, str], hosts: list[str], users_file: Path, port: int) -> Secured:
    """Makes what DIR lacks.

    Args:
        given: settings of the file and of --set, which win unless they contradict.
        hosts: names and addresses that the servers are reached by, besides this machine's own; the first is told to
            clients.
        users_file: the table of users; if there is none, and no setting names the first, an administrator is made.
        port: of the name server, as far as it is known.

    Raises:
        ConfigError: something in DIR cannot be used, or a setting contradicts.
    """
    _check_closed(given, "leave the one or the other out")
    folder = folder.expanduser().absolute()
    _make_folder(folder)
    kept = _kept_keys(folder)
    _check_closed(kept, f"change it in {folder / _KEYS}")
    if "tls.server.certPath" in given:
        trust = Path(given.get("tls.client.trustCertPath") or given["tls.server.certPath"]).absolute()
    else:
        trust = _certificates(folder / "tls", hosts).certificate
        made = {
            "tls.server.certPath": str(folder / "tls" / f"{_SERVER}.pem"),
            "tls.server.keyPath": str(folder / "tls" / f"{_SERVER}.key"),
            "tls.client.trustCertPath": str(trust),
        }
        if not made.items() <= kept.items():
            kept |= made
            _keep_keys(folder, kept)
    secured = Secured(folder, {**kept, **given}, trust, hosts[0] if hosts else "127.0.0.1")
    if not users_file.exists() and "initAuthenticationUser" not in given:
        secured.secret = _administrator(secured, port)
        first = {"username": ADMINISTRATOR, "password": secured.secret}
        secured.keys["initAuthenticationUser"] = json.dumps(first)
    return secured


def _check_closed(keys: Mapping[str, str], remedy: str) -> None:
    for key, value in _CLOSED.items():
        if keys.get(key, value).strip().lower() != value:
            raise ConfigError(key, keys[key], f"--secure means {value}; {remedy}")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o022:
            raise ConfigError("--secure", str(folder), f"others may write into it; say chmod 700 {folder}")
    except OSError as error:
        raise ConfigError(
            "--secure", str(folder), f"{error.strerror or error}; name another folder"
        ) from error


def _kept_keys(folder: Path) -> dict[str, str]:
    """What an earlier start has written down; else it is made and written down now."""
    path = folder / _KEYS
    try:
        if path.exists():
            if path.stat().st_mode & 0o077:
                raise ConfigError("--secure", str(path), f"others may read it; say chmod 600 {path}")
            kept = properties_text.loads(path.read_text("utf-8"))
        else:
            inner = {
                "accessKey": f"server-{secrets.token_hex(4)}",
                "secretKey": new_secret(),
            }
            kept = {
                **_CLOSED,
                "routesPublic": "false",
                "innerClientAuthenticationCredentials": json.dumps(inner),
            }
            _keep_keys(folder, kept)
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        why = error.strerror if isinstance(error, OSError) else "it is no file of keys"
        raise ConfigError("--secure", str(path), f"cannot be used: {why}") from None
    return kept


def _keep_keys(folder: Path, keys: Mapping[str, str]) -> None:
    text = "# Of gimbalmq server --secure; further brokers of the cluster take it by -c.\n"
    write_whole(folder / _KEYS, text + properties_text.dumps(keys).decode())


def _certificates(folder: Path, hosts: list[str]) -> Authority:
    """The authority, with a certificate for all hosts that counts for a while yet."""
    authority = Authority(folder)
    there = authority.found(_SERVER)
    known = there.hosts if there is not None else OWN_HOSTS
    wanted = tuple(dict.fromkeys((*known, *hosts)))
    now = datetime.fromtimestamp(SYSTEM_CLOCK.wall_ms() / 1000, UTC)
    if there is None or wanted != known or there.until < now + _RENEW_BEFORE:
        if there is not None:
            log.info("the servers' certificate is made anew, for %s", ", ".join(wanted))
        authority.issue(_SERVER, wanted)
    return authority


def _administrator(secured: Secured, port: int) -> str:
    """The secret of the first administrator, kept before the server hears of it."""
    path = secured.client_file
    if path.exists():  # an earlier start got no further
        found = read_client_file(path)
        if found.access_key == ADMINISTRATOR and found.secret_key:
            return found.secret_key
        raise ConfigError(
            "--secure", str(path), f"it is not {ADMINISTRATOR}'s, and there are no users yet; move it away"
        )
    secret = new_secret()
    told = {
        "namesrv": secured.namesrv(port),
        "access_key": ADMINISTRATOR,
        "secret_key": secret,
        "tls_ca": _relative(secured.trust, path),
    }
    write_client_file(path, told)
    return secret


def _relative(path: Path, file: Path) -> str:
    """From the folder of a client file, so that the folder can be moved."""
    return str(path.relative_to(file.parent)) if path.is_relative_to(file.parent) else str(path)


def _tell_namesrv(path: Path, namesrv: str) -> None:
    """Changes the one line; the rest of the file may have been changed by its owner."""
    try:
        if read_client_file(path).namesrv == namesrv:
            return
        text = path.read_text("utf-8")
        changed = re.sub(r"(?m)^namesrv *=.*$", f'namesrv = "{namesrv}"', text, count=1)
        if changed != text:
            write_whole(path, changed)
    except (ConfigError, OSError) as error:  # the servers are ready: whoever uses the file will hear of it
        log.warning("the client file is not up to date: %s", error)
