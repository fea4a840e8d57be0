"""``gimbalmq acl``: what users may do."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from gimbalmq.cli.access_options import (
    changed,
    copied,
    copy_options,
    listed,
    place_of,
    place_options,
    yes_option,
)
from gimbalmq.cli.acl_import import import_verb
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
    words_of,
)
from gimbalmq.cli.terminal import confirmed, table

if TYPE_CHECKING:
    from gimbalmq.admin.admin import Admin
    from gimbalmq.admin.views import AclEntryView, AclView

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
    """Puts the noun into the command line."""
    add_noun(commands, "acl", "what users may do", _verbs())


def _verbs() -> list[Verb]:
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
                lambda admin, args, name=name: _put(admin, args, name),  # type: ignore[misc]
                _put_options,
                mqadmin=(f"{name}Acl",),
                watch=False,
                examples=(f"{name}Acl -c DefaultCluster -s User:alice -r Topic:orders -a Pub,Sub -d Allow",),
            )
            for name in ("create", "update")
        ),
        *asked_first(
            Verb(
                "delete",
                "delete the policy for one resource, or all policies of a user",
                _delete,
                examples=("acl delete alice Topic:orders", "acl delete alice --yes"),
            ),
            _delete_options,
            mqadmin="deleteAcl",
            example="deleteAcl -c DefaultCluster -s User:alice -r Topic:orders",
        ),
        Verb(
            "show",
            "what one user may do",
            _show,
            _show_options,
            mqadmin=("getAcl",),
            examples=("acl show alice", "getAcl -b 127.0.0.1:10911 -s User:alice"),
        ),
        Verb(
            "list",
            "what all users may do",
            _list,
            _list_options,
            mqadmin=("listAcl",),
            examples=("acl list", "acl list --resource Topic:orders"),
        ),
        Verb(
            "copy",
            "copy policies from one server to another",
            _copy,
            lambda parser: copy_options(parser, "users", ("-s", "--subjects")),
            mqadmin=("copyAcl",),
            watch=False,
            examples=(
                "acl copy --from broker-a --to broker-b",
                "copyAcl -f IP:10911 -t IP:20911 -s User:alice",
            ),
        ),
        import_verb(),
    ]


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
    place_options(parser)


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
        **place_of(args),
    )
    after = await _entries(admin, args)
    words = "; ".join(_entry_words(entry) for entry in after if entry not in before) or "nothing new"
    shown = changed(
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
    found = await admin.acls.get(args.user, **place_of(args))
    return () if found is None else found.entries


def _entry_words(entry: AclEntryView) -> str:
    sources = f" from {','.join(entry.source_ips)}" if entry.source_ips else ""
    kind = "" if entry.policy_type == "Custom" else f" ({entry.policy_type})"
    return f"{entry.decision} {','.join(entry.actions)} on {entry.resource}{sources}{kind}"


def _put_options(parser: Parser) -> None:
    parser.add_argument(*SUBJECT.flags, dest="user", required=True, metavar="USER", help=SUBJECT.about)
    parser.add_argument(*("-r", "--resources"), required=True, metavar="RESOURCE[,...]", help=RESOURCE.about)
    parser.add_argument(*("-d", "--decision"), required=True, metavar="DECISION", help="Allow or Deny")
    _entry_options(parser)


async def _put(admin: Admin, args: argparse.Namespace, verb: str) -> Shown:
    put = admin.acls.update if verb == "update" else admin.acls.create
    resources = listed(args.resources)
    done = await put(
        args.user,
        resources,
        listed(args.actions),
        decision=args.decision,
        source_ips=listed(args.sources),
        policy_type=args.policy_type,
        **place_of(args),
    )
    words = f"{args.user}: {args.decision} {args.actions} on {', '.join(resources)}"
    return changed(done, words, {"user": args.user, "resources": resources, "decision": args.decision})


def _delete_options(parser: Parser, ask: bool) -> None:
    SUBJECT.argument(parser)
    RESOURCE.argument(parser)
    _default_option(parser)
    place_options(parser)
    yes_option(parser, ask=ask)


async def _delete(admin: Admin, args: argparse.Namespace) -> Shown:
    word, resource = words_of(args, "user", "resource")
    user = SUBJECT.given(word)
    what = f"The policy of {user} for {resource}" if resource else f"Every policy of {user}"
    if not confirmed(f"{what} will be deleted. Go on?", assume_yes=args.yes):
        return Shown("Nothing was changed.", code=REFUSED)
    done = await admin.acls.delete(user, resource, policy_type=args.policy_type, **place_of(args))
    return changed(done, f"{what} was deleted", {"user": user, "resource": resource})


def _show_options(parser: Parser) -> None:
    SUBJECT.argument(parser)
    place_options(parser)


async def _show(admin: Admin, args: argparse.Namespace) -> Shown:
    user = SUBJECT.of(args)
    found = await admin.acls.get(user, **place_of(args))
    if found is None:
        return Shown(f"{user} has no policies.", {}, ABSENT)
    return Shown(_acls_table([found]), asdict(found))


def _list_options(parser: Parser) -> None:
    SUBJECT.argument(parser)
    parser.add_argument(
        *RESOURCE.flags, dest="resource", metavar="TEXT", help="only entries whose resource contains it"
    )
    place_options(parser)


async def _list(admin: Admin, args: argparse.Namespace) -> Shown:
    (part,) = words_of(args, "user")
    found = await admin.acls.all(part or "", args.resource or "", **place_of(args))
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


async def _copy(admin: Admin, args: argparse.Namespace) -> Shown:
    names = await admin.acls.copy(args.source, args.target, [*args.names, *listed(args.names_flag)])
    return copied("policies of", names, args)
