"""``gimbalmq dashboard``: the page in a browser."""

from __future__ import annotations

import argparse
import os
from errno import EACCES, EADDRINUSE
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gimbalmq.cli.asking import FAILED, OK, admin_options, connection_options, namesrv_of, whole_number
from gimbalmq.cli.output import announce, complain
from gimbalmq.errors import ConfigError

if TYPE_CHECKING:
    from gimbalmq.dashboard.site import Door

_EPILOG = """\
examples:
  gimbalmq dashboard                                     on http://127.0.0.1:8880, for this machine only
  gimbalmq dashboard --read-only
  gimbalmq dashboard --host 0.0.0.0 --https-cert mq.pem --https-key mq.key

If the cluster has users (authenticationEnabled), one logs in as one of them, and sees what this user may see. If it
has none, everybody who reaches the port may look and act, unless there is a password; so the dashboard then listens
on this machine's own address only.

Exit codes: 0 stopped by a signal, 1 could not start, 2 wrong option or value.
"""

_OWN_ADDRESSES = ("127.0.0.1", "localhost", "::1")
_KEY_PASSWORD = "GIMBALMQ_DASHBOARD_KEY_PASSWORD"


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "dashboard",
        help="the cluster in a browser, live",
        description="Serves a page that shows the cluster live, until SIGTERM or Ctrl-C.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--port",
        type=whole_number(0, 65535),
        default=8880,
        metavar="N",
        help="port to listen on (default: 8880)",
    )
    add("--host", default="127.0.0.1", metavar="ADDR", help="address to listen on (default: 127.0.0.1)")
    add(
        "--user",
        default="admin",
        metavar="NAME",
        help="name of the one login that has a password (default: admin)",
    )
    add(
        "--password-file",
        type=Path,
        metavar="FILE",
        help="one login for all, with the password in this file (default: $GIMBALMQ_DASHBOARD_PASSWORD, else none)",
    )
    add("--read-only", action="store_true", help="show everything, change nothing")
    add(
        "--users",
        action="store_true",
        help="ask for a user of the cluster (default: if the cluster refuses requests without a signature)",
    )
    add(
        "--idle-minutes",
        type=whole_number(1, 1440),
        default=30,
        metavar="N",
        help="a login ends if nothing is done for so long (default: 30)",
    )
    add(
        "--login-hours",
        type=whole_number(1, 168),
        default=12,
        metavar="N",
        help="a login ends after so long, whatever is done (default: 12)",
    )
    add("--https-cert", metavar="FILE", help="speak HTTPS with this certificate, PEM (default: plain HTTP)")
    add(
        "--https-key",
        metavar="FILE",
        help=f"its key, PEM, if the certificate's file has none; ${_KEY_PASSWORD} opens an encrypted one",
    )
    add(
        "--proxy",
        action="append",
        default=[],
        metavar="ADDR",
        help="address of a proxy in front that speaks HTTPS to browsers; repeatable",
    )
    connection_options(parser)
    parser.set_defaults(run=_run, log_level="warning", log_file=None)


def _run(args: argparse.Namespace) -> int:
    password = _password(args.password_file)
    if password is not None and args.users:
        raise ConfigError("--users", True, "leave it out, or the password: give one of them")
    if args.https_key is not None and args.https_cert is None:
        raise ConfigError("--https-key", args.https_key, "give --https-cert too")
    for proxy in args.proxy:
        _check_address(proxy)
    try:
        from gimbalmq.dashboard.app import build, listen, serve
        from gimbalmq.dashboard.https import Https
        from gimbalmq.dashboard.site import Site
    except ImportError as error:
        complain(f"the dashboard needs more packages ({error.name}): pip install 'gimbalmq[dashboard]'")
        return FAILED
    namesrv, options = namesrv_of(args), admin_options(args)
    door, about = _door(args, password, namesrv, options)
    https = None
    if args.https_cert is not None:
        https = Https(args.https_cert, args.https_key, os.environ.get(_KEY_PASSWORD))
    site = Site(
        namesrv,
        options,
        door=door,
        user=args.user,
        password=password,
        read_only=args.read_only,
        idle=60.0 * args.idle_minutes,
        longest=3600.0 * args.login_hours,
    )
    application = build(
        site, hosts=(*_OWN_ADDRESSES, args.host), secure=bool(https or args.proxy), https=https
    )
    try:
        listening = listen(args.host, args.port)
    except OSError as error:
        other = "--port" if error.errno in (EADDRINUSE, EACCES) else "--host"
        complain(
            f"cannot listen on {args.host}:{args.port}: {error.strerror or error}; choose another {other}"
        )
        return FAILED
    host = f"[{args.host}]" if ":" in args.host else args.host
    scheme = "http" if https is None else "https"
    announce(f"dashboard of {namesrv} ready on {scheme}://{host}:{listening.getsockname()[1]} {about}")
    serve(application, listening, https=https, proxies=tuple(args.proxy), debug=args.debug)
    return OK


def _door(
    args: argparse.Namespace, password: str | None, namesrv: str, options: dict[str, Any]
) -> tuple[Door, str]:
    """Whom to let in, and how to say so; raises ConfigError if that would let in too many."""
    import asyncio

    from gimbalmq.dashboard.accounts import asks_for_users
    from gimbalmq.dashboard.site import Door

    own = args.host in _OWN_ADDRESSES
    if password is not None:
        return Door.PASSWORD, f"for whoever logs in as {args.user}"
    has_users = True if args.users else asyncio.run(asks_for_users(namesrv, options))
    if has_users is None and "access_key" in options:
        has_users = True  # who has a key knows of users
    if has_users:
        if not own and args.https_cert is None and not args.proxy:
            raise ConfigError(
                "--host",
                args.host,
                "secrets would cross the network in the clear; give --https-cert, or --proxy if one in front speaks "
                "HTTPS, or listen on 127.0.0.1",
            )
        return Door.USERS, "for users of the cluster"
    if not own:
        raise ConfigError(
            "--host",
            args.host,
            "others could act on the cluster, which "
            + ("lets everybody in" if has_users is False else "does not answer")
            + "; give --password-file (or --users, if it has users), or listen on 127.0.0.1",
        )
    if has_users is None:
        return (
            Door.OPEN,
            "without a login: the cluster does not answer yet, and if it has users they will be asked for",
        )
    return (
        Door.OPEN,
        "without a login: the cluster lets everybody in, so whoever reaches this address may look and act",
    )


def _check_address(text: str) -> None:
    import ipaddress

    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ConfigError("--proxy", text, "use an IP address or a network such as 10.0.0.0/24") from None


def _password(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get("GIMBALMQ_DASHBOARD_PASSWORD") or None
    from gimbalmq.transport.whole_files import read_secret

    return read_secret(file, "--password-file")
