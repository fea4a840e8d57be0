"""``gimbalmq user``; passwords are shown only to those who ask for them in words."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gimbalmq.cli.access_options import (
    changed,
    copied,
    copy_options,
    listed,
    place_of,
    place_options,
    yes_option,
)
from gimbalmq.cli.asking import (
    ABSENT,
    REFUSED,
    Named,
    Parser,
    Parsers,
    Shown,
    Verb,
    add_noun,
    asked_first,
    client_file_of,
    namesrv_of,
    words_of,
)
from gimbalmq.cli.passwords import given_password, new_secret, password_options
from gimbalmq.cli.terminal import confirmed, table
from gimbalmq.errors import ConfigError

if TYPE_CHECKING:
    from gimbalmq.admin.admin import Admin
    from gimbalmq.admin.views import UserView

USER = Named("user", ("-u", "--username"), "name of the user", "name a user; gimbalmq user list shows them")


def add_commands(commands: Parsers[Parser]) -> None:
    """Puts the noun into the command line."""
    add_noun(commands, "user", "users of a cluster that checks who asks", _verbs())


def _verbs() -> list[Verb]:
    return [
        Verb(
            "create",
            "make a user, on every server",
            _create,
            _create_options,
            mqadmin=("createUser",),
            watch=False,
            examples=(
                "user create alice                                   # asks for a password",
                "user create alice --new-client-file alice.toml      # makes one, and a file that lets alice in",
                "createUser -c DefaultCluster -u alice -p PASSWORD -t Normal",
            ),
        ),
        Verb(
            "update",
            "change a user's password, type, status or binding",
            _update,
            _update_options,
            mqadmin=("updateUser",),
            watch=False,
            examples=(
                "user update alice --status disable",
                "user update alice --sources 10.0.0.0/8",
                "updateUser -c DefaultCluster -u alice -s disable",
            ),
        ),
        *asked_first(
            Verb(
                "delete",
                "delete a user and its policies",
                _delete,
                examples=("user delete alice", "user delete alice --yes"),
            ),
            _delete_options,
            mqadmin="deleteUser",
            example="deleteUser -c DefaultCluster -u alice",
        ),
        Verb(
            "show",
            "one user",
            _show,
            _show_options,
            mqadmin=("getUser",),
            examples=("user show alice", "getUser -b 127.0.0.1:10911 -u alice"),
        ),
        Verb(
            "list",
            "all users",
            _list,
            _list_options,
            mqadmin=("listUser",),
            examples=("user list", "listUser -c DefaultCluster -f ali"),
        ),
        Verb(
            "copy",
            "copy users from one server to another",
            _copy,
            lambda parser: copy_options(parser, "users", ("-u", "--usernames")),
            mqadmin=("copyUser",),
            watch=False,
            examples=(
                "user copy --from broker-a --to broker-b",
                "copyUser -f IP:10911 -t IP:20911 -u alice,bob",
            ),
        ),
    ]


def _binding_options(parser: Parser) -> None:
    group = parser.add_argument_group("binding", "servers of ours only; '' ends it")
    group.add_argument(
        "--sources", metavar="CIDR[,...]", help="addresses and ranges that the user may come from"
    )
    group.add_argument(
        "--certificate",
        metavar="CN=NAME|SHA256",
        help="client certificate that the user must show: its common name, or its fingerprint",
    )


def _secrets_option(parser: Parser) -> None:
    parser.add_argument("--show-secrets", action="store_true", help="print passwords, too")


def _create_options(parser: Parser) -> None:
    USER.argument(parser)
    place_options(parser)
    parser.add_argument(
        *("-t", "--type", "--userType"),
        dest="type",
        default="Normal",
        metavar="TYPE",
        help="Normal, or Super for one who may do everything (default: Normal)",
    )
    parser.add_argument(
        "--new-client-file",
        type=Path,
        metavar="FILE",
        help="write a client file for the user; the password is made if none is given, and not printed",
    )
    password_options(parser)
    _binding_options(parser)


async def _create(admin: Admin, args: argparse.Namespace) -> Shown:
    name = USER.of(args)
    file: Path | None = args.new_client_file
    if file is not None and file.exists():
        raise ConfigError("--new-client-file", str(file), "there is such a file; name another, or move it")
    password = given_password(args, needed=file is None) or new_secret()
    done = await admin.users.create(
        name,
        password,
        type=args.type,
        source_ips=None if args.sources is None else listed(args.sources),
        certificate=args.certificate,
        **place_of(args),
    )
    if file is not None:
        _write_client_file(args, file, name, password)
    shown = changed(done, f"User {name} was made", {"user": name})
    if file is not None:
        shown.text += f" {file} lets it in."
    if args.type.lower() == "normal":
        shown.text += f"\nIt may do nothing yet: gimbalmq acl allow {name} Topic:NAME --actions Pub"
    return shown


def _write_client_file(args: argparse.Namespace, file: Path, name: str, password: str) -> None:
    """The place and the trust of this command's own connection, with the new user's name."""
    from gimbalmq.client.client_file import write_client_file

    told: dict[str, str | bool] = {"namesrv": namesrv_of(args), "access_key": name, "secret_key": password}
    own = client_file_of(args)
    ca = args.tls_ca or (own.tls_ca if own else None)
    if ca:
        told["tls_ca"] = ca if ca == "system" else str(Path(ca).absolute())
    elif args.tls or (own is not None and own.speaks_tls):
        told["tls"] = True
    for name in ("tls_any_host", "tls_any_cert"):
        if getattr(args, name) or (own is not None and getattr(own, name)):
            told[name] = True
    try:
        write_client_file(file, told)
    except OSError as error:
        raise ConfigError(
            "--new-client-file",
            str(file),
            f"{error.strerror or error}; the user was made: user update {name} gives it another password",
        ) from None


def _update_options(parser: Parser) -> None:
    USER.argument(parser)
    place_options(parser)
    parser.add_argument(*("-t", "--type", "--userType"), dest="type", metavar="TYPE", help="Normal or Super")
    parser.add_argument(
        *("-s", "--status", "--userStatus"), dest="status", metavar="STATUS", help="enable or disable"
    )
    password_options(parser)
    _binding_options(parser)


async def _update(admin: Admin, args: argparse.Namespace) -> Shown:
    name = USER.of(args)
    done = await admin.users.update(
        name,
        password=given_password(args, needed=False),
        type=args.type,
        status=args.status,
        source_ips=None if args.sources is None else listed(args.sources),
        certificate=args.certificate,
        **place_of(args),
    )
    return changed(done, f"User {name} was changed", {"user": name})


def _delete_options(parser: Parser, ask: bool) -> None:
    USER.argument(parser)
    place_options(parser)
    yes_option(parser, ask=ask)


async def _delete(admin: Admin, args: argparse.Namespace) -> Shown:
    name = USER.of(args)
    if not confirmed(f"{name} will not be let in any more, and its policies go. Go on?", assume_yes=args.yes):
        return Shown("Nothing was changed.", code=REFUSED)
    done = await admin.users.delete(name, **place_of(args))
    return changed(done, f"There is no user {name} any more", {"user": name})


def _show_options(parser: Parser) -> None:
    USER.argument(parser)
    place_options(parser)
    _secrets_option(parser)


async def _show(admin: Admin, args: argparse.Namespace) -> Shown:
    name = USER.of(args)
    found = await admin.users.get(name, **place_of(args))
    if found is None:
        return Shown(f"There is no user {name}.", {}, ABSENT)
    rows = _users_table([found], show_secrets=args.show_secrets)
    return Shown(rows, _user_data(found, show_secrets=args.show_secrets))


def _list_options(parser: Parser) -> None:
    parser.add_argument("filter", nargs="?", metavar="TEXT", help="only users whose names contain it")
    parser.add_argument("-f", "--filter", dest="filter_flag", metavar="TEXT", help="the same")
    place_options(parser)
    _secrets_option(parser)


async def _list(admin: Admin, args: argparse.Namespace) -> Shown:
    (part,) = words_of(args, "filter")
    found = await admin.users.all(part or "", **place_of(args))
    return Shown(
        _users_table(found, show_secrets=args.show_secrets),
        [_user_data(view, show_secrets=args.show_secrets) for view in found],
    )


def _users_table(users: Sequence[UserView], *, show_secrets: bool) -> str:
    head = ["USER", "TYPE", "STATUS", "SOURCES", "CERTIFICATE"]
    rows: list[list[object]] = [
        [view.name, view.type, view.status, ",".join(view.source_ips) or "-", view.certificate or "-"]
        for view in users
    ]
    if show_secrets:
        head.append("PASSWORD")
        for row, view in zip(rows, users, strict=True):
            row.append(view.password or "(not told)")
    return table(head, rows, empty="No user.")


def _user_data(view: UserView, *, show_secrets: bool) -> dict[str, Any]:
    data = asdict(view)
    if not show_secrets:
        del data["password"]
    return data


async def _copy(admin: Admin, args: argparse.Namespace) -> Shown:
    names = await admin.users.copy(args.source, args.target, [*args.names, *listed(args.names_flag)])
    return copied("users", names, args)
