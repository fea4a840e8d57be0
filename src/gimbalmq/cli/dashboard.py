"""``gimbalmq dashboard``: the page in a browser."""

from __future__ import annotations

import argparse
import os
from errno import EACCES, EADDRINUSE
from pathlib import Path

from gimbalmq.cli.asking import FAILED, OK, admin_options, connection_options, namesrv_of, whole_number
from gimbalmq.cli.output import announce, complain
from gimbalmq.errors import ConfigError

_EPILOG = """\
examples:
  gimbalmq dashboard                                     on http://127.0.0.1:8880, for this machine only
  gimbalmq dashboard --read-only
  GIMBALMQ_DASHBOARD_PASSWORD=... gimbalmq dashboard --host 0.0.0.0

Without a password everybody who reaches the port may look and act, so one is needed to listen on anything
but this machine's own address. Put TLS in front of it where others share the network.

Exit codes: 0 stopped by a signal, 1 could not start, 2 wrong option or value.
"""

_OWN_ADDRESSES = ("127.0.0.1", "localhost", "::1")


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
    add("--user", default="admin", metavar="NAME", help="name of the login (default: admin)")
    add(
        "--password-file",
        type=Path,
        metavar="FILE",
        help="file that holds the password (default: $GIMBALMQ_DASHBOARD_PASSWORD, else no login)",
    )
    add("--read-only", action="store_true", help="show everything, change nothing")
    connection_options(parser)
    parser.set_defaults(run=_run, log_level="warning", log_file=None)


def _run(args: argparse.Namespace) -> int:
    password = _password(args.password_file)
    if password is None and args.host not in _OWN_ADDRESSES:
        raise ConfigError(
            "--host",
            args.host,
            "others could act on the cluster; give --password-file, or listen on 127.0.0.1",
        )
    try:
        from gimbalmq.dashboard.app import build, listen, serve
    except ImportError as error:
        complain(f"the dashboard needs more packages ({error.name}): pip install 'gimbalmq[dashboard]'")
        return FAILED
    namesrv = namesrv_of(args)
    application = build(
        namesrv,
        user=args.user,
        password=password,
        read_only=args.read_only,
        hosts=(*_OWN_ADDRESSES, args.host),
        **admin_options(args),
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
    announce(f"dashboard of {namesrv} ready on http://{host}:{listening.getsockname()[1]}")
    serve(application, listening, debug=args.debug)
    return OK


def _password(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get("GIMBALMQ_DASHBOARD_PASSWORD") or None
    try:
        password = file.read_text().strip()
    except OSError as error:
        raise ConfigError("--password-file", str(file), error.strerror or str(error)) from error
    if not password:
        raise ConfigError("--password-file", str(file), "it is empty; put the password into it")
    return password
