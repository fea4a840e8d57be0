"""``gimbalmq cert``: a private authority and certificates for a cluster, in one command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gimbalmq.cli.asking import OK, Shown, show, whole_number
from gimbalmq.cli.terminal import table
from gimbalmq.errors import ConfigError

if TYPE_CHECKING:
    from gimbalmq.transport.authority import Authority, Issued

_SERVER = "server"

_EPILOG = """\
examples:
  gimbalmq cert tls                              for servers on this machine
  gimbalmq cert tls broker-1.example 10.0.0.5    and for servers that are reached so
  gimbalmq cert tls 10.0.0.6 --name broker-2     another server's, by the same authority
  gimbalmq cert tls --client alice               a certificate for a client
  gimbalmq cert tls --renew                      everything anew but the authority; servers load it by themselves

DIR/ca.pem goes to everybody who is to believe the servers. DIR/ca.key makes certificates that they all believe:
keep it off the servers. Keys have the mode 0600. For one machine or a test; a company has its own authority.

Exit codes: 0 done, 1 failed, 2 wrong option or value.
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "cert",
        help="a private authority and certificates for TLS, in a folder",
        description="Makes a private authority, if DIR has none yet, and certificates of it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("folder", type=Path, metavar="DIR", help="folder of the authority and its certificates")
    add(
        "hosts",
        nargs="*",
        metavar="HOST",
        help="names and addresses that the server is reached by, besides localhost, 127.0.0.1 and ::1",
    )
    add("--name", metavar="NAME", help="name of the server's certificate and files (default: server)")
    add(
        "--client",
        action="append",
        default=[],
        metavar="NAME",
        help="a certificate for a client of this name; repeatable",
    )
    add("--days", type=whole_number(1, 3650), metavar="N", help="how long they count (default: 397)")
    add("--renew", action="store_true", help="make them anew: those named, or all that there are")
    add("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=_run, log_level="warning", log_file=None, debug=False)


def _run(args: argparse.Namespace) -> int:
    from gimbalmq.transport.authority import CERTIFICATE_DAYS, Authority

    authority = Authority(args.folder.expanduser().absolute())
    made = {issued.name for issued in _issue(authority, args, args.days or CERTIFICATE_DAYS)}
    show(_shown(authority, made), as_json=args.json)
    return OK


def _issue(authority: Authority, args: argparse.Namespace, days: int) -> list[Issued]:
    """Makes what is named; a certificate that is there already only if it is to be renewed."""
    from gimbalmq.transport.authority import OWN_HOSTS

    there = {issued.name: issued for issued in authority.all()}
    wanted: dict[str, tuple[str, ...]] = {}
    named = args.name is not None or args.hosts or not (args.client or args.renew)
    if named or not there:
        name = args.name or _SERVER
        known = there[name].hosts if name in there else OWN_HOSTS
        wanted[name] = (*known, *args.hosts) if args.renew else (*OWN_HOSTS, *args.hosts)
    wanted |= dict.fromkeys(args.client, ())
    if args.renew and not (named or args.client):
        wanted |= {issued.name: issued.hosts for issued in there.values()}
    for name in wanted:
        if name in there and not args.renew:
            until = there[name].until
            raise ConfigError(
                "NAME",
                name,
                f"{there[name].certificate} counts until {until:%Y-%m-%d}; --renew makes it anew, "
                "--name NAME makes one for another server, --client NAME one for a client",
            )
        if name in args.client and name in there and there[name].hosts:
            raise ConfigError("--client", name, "that is a server's certificate; choose another name")
    return [authority.issue(name, hosts, days=days) for name, hosts in wanted.items()]


def _shown(authority: Authority, made: set[str]) -> Shown:
    rows: list[tuple[object, ...]] = [
        (
            "authority",
            authority.certificate,
            f"{authority.until:%Y-%m-%d}",
            "",
            "new" if authority.made else "",
        )
    ]
    data: dict[str, Any] = {
        "authority": {"certificate": str(authority.certificate), "until": authority.until}
    }
    data["certificates"] = []
    found = authority.all()
    for issued in found:
        what = ", ".join(issued.hosts) or "a client"
        new = "new" if issued.name in made else ""
        rows.append((issued.name, issued.certificate, f"{issued.until:%Y-%m-%d}", what, new))
        data["certificates"].append(
            {
                "name": issued.name,
                "certificate": str(issued.certificate),
                "key": str(issued.key),
                "hosts": issued.hosts,
                "until": issued.until,
                "new": bool(new),
            }
        )
    text = table(("NAME", "CERTIFICATE", "UNTIL", "FOR", ""), rows)
    server = next((issued for issued in found if issued.hosts), None)
    if server is not None:
        text += (
            f"\n\nservers: --set tls.server.mode=enforcing --set tls.server.certPath={server.certificate} "
            f"--set tls.server.keyPath={server.key}\ncommands: --tls-ca {authority.certificate}"
        )
    return Shown(text, data)
