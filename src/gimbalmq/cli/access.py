"""``gimbalmq user`` and ``gimbalmq acl``; passwords are shown only to those who ask for them in words."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gimbalmq.cli.acl_import import import_verb
from gimbalmq.cli.asking import (
    ABSENT,
    FAILED,
    REFUSED,
    Named,
    Parser,
    Parsers,
    Shown,
    Verb,
    add_noun,
    client_file_of,
    namesrv_of,
    words_of,
)
from gimbalmq.cli.output import complain
from gimbalmq.cli.passwords import given_password, new_secret, password_options
from gimbalmq.cli.terminal import confirmed, table
from gimbalmq.errors import ConfigError

if TYPE_CHECKING:
    from gimbalmq.admin.admin import Admin
    from gimbalmq.admin.views import AccessChange, AclEntryView, AclView, UserView

USER = Named("user", ("-u", "--username"), "name of the user", "name a user; gimbalmq user list shows them")
SUBJECT = Named(
    "user",
    ("-s", "--subject"),
    "name of the user, alice or User:alice",
    "name a user; gimbalmq user list shows them",
)
RESOURCE = Named(
    "resource",
    ("-r", "--resource", "--resources"),
    "Topic:orders, Topic:ord*, Group:*, Cluster:NAME or *",
    "name a resource, such as Topic:orders",
)


def add_commands(commands: Parsers[Parser]) -> None:
    """Puts both nouns into the command line."""
    add_noun(commands, "user", "users of a cluster that checks who asks", _user_verbs())
    add_noun(commands, "acl", "what users may do", _acl_verbs())


def _user_verbs() -> list[Verb]:
    return [
        Verb(
            "create",
            "make a user, on every server",
            _create_user,
            _create_user_options,
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
            _update_user,
            _update_user_options,
            mqadmin=("updateUser",),
            watch=False,
            examples=(
                "user update alice --status disable",
                "user update alice --sources 10.0.0.0/8",
                "updateUser -c DefaultCluster -u alice -s disable",
            ),
        ),
        Verb(
            "delete",
            "delete a user and its policies",
            _delete_user,
            lambda parser: _delete_user_options(parser, ask=True),
            watch=False,
            examples=("user delete alice", "user delete alice --yes"),
        ),
        Verb(
            "",
            "delete a user and its policies, without asking",
            _delete_user,
            lambda parser: _delete_user_options(parser, ask=False),
            mqadmin=("deleteUser",),
            watch=False,
            examples=("deleteUser -c DefaultCluster -u alice",),
        ),
        Verb(
            "show",
            "one user",
            _show_user,
            _show_user_options,
            mqadmin=("getUser",),
            examples=("user show alice", "getUser -b 127.0.0.1:10911 -u alice"),
        ),
        Verb(
            "list",
            "all users",
            _list_users,
            _list_users_options,
            mqadmin=("listUser",),
            examples=("user list", "listUser -c DefaultCluster -f ali"),
        ),
        Verb(
            "copy",
            "copy users from one server to another",
            _copy_users,
            lambda parser: _copy_options(parser, "users", ("-u", "--usernames")),
            mqadmin=("copyUser",),
            watch=False,
            examples=(
                "user copy --from broker-a --to broker-b",
                "copyUser -f IP:10911 -t IP:20911 -u alice,bob",
            ),
        ),
    ]


def _acl_verbs() -> list[Verb]:
    return [
        Verb(
            "allow",
            "let a user do something, besides what it may do already",
            lambda admin, args: _decide(admin, args, "Allow"),
            _decide_options,
            watch=False,
            examples=(
                "acl allow alice Topic:orders --actions Pub",
                "acl allow alice Topic:orders Group:billing --actions Sub,Get --sources 10.0.0.0/8",
            ),
        ),
        Verb(
            "deny",
            "keep a user from something that a wider pattern allows",
            lambda admin, args: _decide(admin, args, "Deny"),
            _decide_options,
            watch=False,
            examples=("acl deny alice Topic:orders-secret --actions All",),
        ),
        *(
            Verb(
                name,
                f"{name} policies, with mqadmin's flags",
                lambda admin, args, name=name: _put_acl(admin, args, name),  # type: ignore[misc]
                _put_acl_options,
                mqadmin=(f"{name}Acl",),
                watch=False,
                examples=(f"{name}Acl -c DefaultCluster -s User:alice -r Topic:orders -a Pub,Sub -d Allow",),
            )
            for name in ("create", "update")
        ),
        Verb(
            "delete",
            "delete the policy for one resource, or all policies of a user",
            _delete_acl,
            lambda parser: _delete_acl_options(parser, ask=True),
            watch=False,
            examples=("acl delete alice Topic:orders", "acl delete alice --yes"),
        ),
        Verb(
            "",
            "delete the policy for one resource, or all policies of a user, without asking",
            _delete_acl,
            lambda parser: _delete_acl_options(parser, ask=False),
            mqadmin=("deleteAcl",),
            watch=False,
            examples=("deleteAcl -c DefaultCluster -s User:alice -r Topic:orders",),
        ),
        Verb(
            "show",
            "what one user may do",
            _show_acl,
            _show_acl_options,
            mqadmin=("getAcl",),
            examples=("acl show alice", "getAcl -b 127.0.0.1:10911 -s User:alice"),
        ),
        Verb(
            "list",
            "what all users may do",
            _list_acls,
            _list_acls_options,
            mqadmin=("listAcl",),
            examples=("acl list", "acl list --resource Topic:orders"),
        ),
        Verb(
            "copy",
            "copy policies from one server to another",
            _copy_acls,
            lambda parser: _copy_options(parser, "users", ("-s", "--subjects")),
            mqadmin=("copyAcl",),
            watch=False,
            examples=(
                "acl copy --from broker-a --to broker-b",
                "copyAcl -f IP:10911 -t IP:20911 -s User:alice",
            ),
        ),
        import_verb(),
    ]


# -- options that several have ---------------------------------------------------------


def _place_options(parser: Parser) -> None:
    parser.add_argument(
        *("-b", "--broker", "--brokerAddr"),
        dest="broker",
        metavar="BROKER",
        help="only this broker, by name, or only the server of this address",
    )
    parser.add_argument(
        *("-c", "--cluster", "--clusterName"),
        dest="cluster",
        metavar="NAME",
        help="only brokers of this cluster, and the name servers",
    )


def _place(args: argparse.Namespace) -> dict[str, str | None]:
    if args.broker is not None and args.cluster is not None:
        raise ConfigError("--broker", args.broker, "give --broker or --cluster, not both")
    return {"broker": args.broker, "cluster": args.cluster}


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


def _yes_option(parser: Parser, *, ask: bool) -> None:
    if ask:
        parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    else:
        parser.set_defaults(yes=True)


def _secrets_option(parser: Parser) -> None:
    parser.add_argument("--show-secrets", action="store_true", help="print passwords, too")


def listed(text: str | None) -> list[str]:
    """``a, b`` as a list."""
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _changed(done: AccessChange, what: str, data: dict[str, Any]) -> Shown:
    for address, problem in done.problems.items():
        complain(f"not at {address}: {problem}")
    text = f"{what} at {', '.join(done.servers)}."
    return Shown(text, {**data, **asdict(done)}, FAILED if done.problems else 0)


# -- users -----------------------------------------------------------------------------


def _create_user_options(parser: Parser) -> None:
    USER.argument(parser)
    _place_options(parser)
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


async def _create_user(admin: Admin, args: argparse.Namespace) -> Shown:
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
        **_place(args),
    )
    if file is not None:
        _write_client_file(args, file, name, password)
    shown = _changed(done, f"User {name} was made", {"user": name})
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


def _update_user_options(parser: Parser) -> None:
    USER.argument(parser)
    _place_options(parser)
    parser.add_argument(*("-t", "--type", "--userType"), dest="type", metavar="TYPE", help="Normal or Super")
    parser.add_argument(
        *("-s", "--status", "--userStatus"), dest="status", metavar="STATUS", help="enable or disable"
    )
    password_options(parser)
    _binding_options(parser)


async def _update_user(admin: Admin, args: argparse.Namespace) -> Shown:
    name = USER.of(args)
    done = await admin.users.update(
        name,
        password=given_password(args, needed=False),
        type=args.type,
        status=args.status,
        source_ips=None if args.sources is None else listed(args.sources),
        certificate=args.certificate,
        **_place(args),
    )
    return _changed(done, f"User {name} was changed", {"user": name})


def _delete_user_options(parser: Parser, *, ask: bool) -> None:
    USER.argument(parser)
    _place_options(parser)
    _yes_option(parser, ask=ask)


async def _delete_user(admin: Admin, args: argparse.Namespace) -> Shown:
    name = USER.of(args)
    if not confirmed(f"{name} will not be let in any more, and its policies go. Go on?", assume_yes=args.yes):
        return Shown("Nothing was changed.", code=REFUSED)
    done = await admin.users.delete(name, **_place(args))
    return _changed(done, f"There is no user {name} any more", {"user": name})


def _show_user_options(parser: Parser) -> None:
    USER.argument(parser)
    _place_options(parser)
    _secrets_option(parser)


async def _show_user(admin: Admin, args: argparse.Namespace) -> Shown:
    name = USER.of(args)
    found = await admin.users.get(name, **_place(args))
    if found is None:
        return Shown(f"There is no user {name}.", {}, ABSENT)
    rows = _users_table([found], show_secrets=args.show_secrets)
    return Shown(rows, _user_data(found, show_secrets=args.show_secrets))


def _list_users_options(parser: Parser) -> None:
    parser.add_argument("filter", nargs="?", metavar="TEXT", help="only users whose names contain it")
    parser.add_argument("-f", "--filter", dest="filter_flag", metavar="TEXT", help="the same")
    _place_options(parser)
    _secrets_option(parser)


async def _list_users(admin: Admin, args: argparse.Namespace) -> Shown:
    (part,) = words_of(args, "filter")
    found = await admin.users.all(part or "", **_place(args))
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


def _copy_options(parser: Parser, noun: str, flags: tuple[str, str]) -> None:
    parser.add_argument("names", nargs="*", metavar="USER", help=f"only these {noun}")
    parser.add_argument(*flags, dest="names_flag", metavar="USER[,...]", help="the same")
    parser.add_argument(
        *("-f", "--from", "--fromBroker"),
        dest="source",
        required=True,
        metavar="BROKER",
        help="name or address of the server to read",
    )
    parser.add_argument(
        *("-t", "--to", "--toBroker"),
        dest="target",
        required=True,
        metavar="BROKER",
        help="name or address of the server to change",
    )


async def _copy_users(admin: Admin, args: argparse.Namespace) -> Shown:
    copied = await admin.users.copy(args.source, args.target, [*args.names, *listed(args.names_flag)])
    return _copied("users", copied, args)


async def _copy_acls(admin: Admin, args: argparse.Namespace) -> Shown:
    copied = await admin.acls.copy(args.source, args.target, [*args.names, *listed(args.names_flag)])
    return _copied("policies of", copied, args)


def _copied(what: str, names: list[str], args: argparse.Namespace) -> Shown:
    data = {"from": args.source, "to": args.target, "copied": names}
    if not names:
        return Shown(f"There is nothing to copy at {args.source}.", data)
    return Shown(f"From {args.source} to {args.target}: {what} {', '.join(names)}.", data)


# -- policies --------------------------------------------------------------------------


def _entry_options(parser: Parser) -> None:
    parser.add_argument(
        *("-a", "--actions"),
        required=True,
        metavar="ACTION[,...]",
        help="Pub, Sub, Create, Update, Delete, Get, List or All",
    )
    parser.add_argument(
        *("-i", "--sources", "--sourceIp"),
        dest="sources",
        metavar="CIDR[,...]",
        help="addresses and ranges that it holds for (default: every one)",
    )
    _default_option(parser)
    _place_options(parser)


def _default_option(parser: Parser) -> None:
    parser.add_argument(
        "--default",
        action="store_const",
        const="Default",
        dest="policy_type",
        help="in the default policy, which counts for what no other entry matches",
    )


def _decide_options(parser: Parser) -> None:
    parser.add_argument("user", metavar="USER", help=SUBJECT.about)
    parser.add_argument("resources", nargs="+", metavar="RESOURCE", help=RESOURCE.about)
    _entry_options(parser)


async def _decide(admin: Admin, args: argparse.Namespace, decision: str) -> Shown:
    """Says what counts from now on, and what no longer does."""
    before = await _entries(admin, args)
    done = await admin.acls.add(
        args.user,
        args.resources,
        listed(args.actions),
        decision=decision,
        source_ips=listed(args.sources),
        policy_type=args.policy_type,
        **_place(args),
    )
    after = await _entries(admin, args)
    words = "; ".join(_entry_words(entry) for entry in after if entry not in before) or "nothing new"
    shown = _changed(
        done,
        f"{args.user}: {words}",
        {"user": args.user, "resources": args.resources, "decision": decision},
    )
    places = {(entry.policy_type, entry.resource, entry.decision, entry.source_ips) for entry in after}
    for entry in before:
        if (entry.policy_type, entry.resource, entry.decision, entry.source_ips) not in places:
            shown.text += f"\nThis no longer counts: {_entry_words(entry)}"
    return shown


async def _entries(admin: Admin, args: argparse.Namespace) -> tuple[AclEntryView, ...]:
    found = await admin.acls.get(args.user, **_place(args))
    return () if found is None else found.entries


def _entry_words(entry: AclEntryView) -> str:
    sources = f" from {','.join(entry.source_ips)}" if entry.source_ips else ""
    kind = "" if entry.policy_type == "Custom" else f" ({entry.policy_type})"
    return f"{entry.decision} {','.join(entry.actions)} on {entry.resource}{sources}{kind}"


def _put_acl_options(parser: Parser) -> None:
    parser.add_argument(*SUBJECT.flags, dest="user", required=True, metavar="USER", help=SUBJECT.about)
    parser.add_argument(*("-r", "--resources"), required=True, metavar="RESOURCE[,...]", help=RESOURCE.about)
    parser.add_argument(*("-d", "--decision"), required=True, metavar="DECISION", help="Allow or Deny")
    _entry_options(parser)


async def _put_acl(admin: Admin, args: argparse.Namespace, verb: str) -> Shown:
    return await _put(admin, args, args.user, listed(args.resources), args.decision, verb)


async def _put(
    admin: Admin, args: argparse.Namespace, user: str, resources: list[str], decision: str, verb: str
) -> Shown:
    put = admin.acls.update if verb == "update" else admin.acls.create
    done = await put(
        user,
        resources,
        listed(args.actions),
        decision=decision,
        source_ips=listed(args.sources),
        policy_type=args.policy_type,
        **_place(args),
    )
    words = f"{user}: {decision} {args.actions} on {', '.join(resources)}"
    return _changed(done, words, {"user": user, "resources": resources, "decision": decision})


def _delete_acl_options(parser: Parser, *, ask: bool) -> None:
    SUBJECT.argument(parser)
    RESOURCE.argument(parser)
    _default_option(parser)
    _place_options(parser)
    _yes_option(parser, ask=ask)


async def _delete_acl(admin: Admin, args: argparse.Namespace) -> Shown:
    word, resource = words_of(args, "user", "resource")
    user = SUBJECT.given(word)
    what = f"The policy of {user} for {resource}" if resource else f"Every policy of {user}"
    if not confirmed(f"{what} will be deleted. Go on?", assume_yes=args.yes):
        return Shown("Nothing was changed.", code=REFUSED)
    done = await admin.acls.delete(user, resource, policy_type=args.policy_type, **_place(args))
    return _changed(done, f"{what} was deleted", {"user": user, "resource": resource})


def _show_acl_options(parser: Parser) -> None:
    SUBJECT.argument(parser)
    _place_options(parser)


async def _show_acl(admin: Admin, args: argparse.Namespace) -> Shown:
    user = SUBJECT.of(args)
    found = await admin.acls.get(user, **_place(args))
    if found is None:
        return Shown(f"{user} has no policies.", {}, ABSENT)
    return Shown(_acls_table([found]), asdict(found))


def _list_acls_options(parser: Parser) -> None:
    SUBJECT.argument(parser)
    parser.add_argument(
        *RESOURCE.flags, dest="resource", metavar="TEXT", help="only entries whose resource contains it"
    )
    _place_options(parser)


async def _list_acls(admin: Admin, args: argparse.Namespace) -> Shown:
    (part,) = words_of(args, "user")
    found = await admin.acls.all(part or "", args.resource or "", **_place(args))
    return Shown(_acls_table(found), [asdict(view) for view in found])


def _acls_table(acls: Sequence[AclView]) -> str:
    head = ("USER", "POLICY", "RESOURCE", "DECISION", "ACTIONS", "SOURCES")
    rows = [
        (
            view.user,
            entry.policy_type,
            entry.resource,
            entry.decision,
            ",".join(entry.actions),
            ",".join(entry.source_ips) or "-",
        )
        for view in acls
        for entry in view.entries
    ]
    return table(head, rows, empty="No policies.")
