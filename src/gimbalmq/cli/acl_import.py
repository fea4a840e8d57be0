"""``gimbalmq acl import``: accounts of ``plain_acl.yml`` become users and policies; it shows first what it would do."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gimbalmq.cli.asking import FAILED, REFUSED, Parser, Shown, Verb
from gimbalmq.cli.output import complain
from gimbalmq.cli.terminal import confirmed, table

if TYPE_CHECKING:
    from gimbalmq.access.plain_import import ImportPlan
    from gimbalmq.admin.accounts import AccountImport
    from gimbalmq.admin.admin import Admin

_NOT_CARRIED_OVER = "Not carried over:"


def import_verb() -> Verb:
    return Verb(
        "import",
        "make users and policies of the accounts of plain_acl.yml (4.x); shows them first",
        _import,
        _options,
        watch=False,
        examples=(
            "acl import conf/plain_acl.yml --dry-run   # only shows what it would make",
            "acl import conf                           # conf/plain_acl.yml and conf/acl/*.yml; asks before it begins",
            "acl import conf --yes --bind-sources",
        ),
    )


def _options(parser: Parser) -> None:
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="plain_acl.yml, or the folder that holds it and acl/")
    add(
        "--bind-sources",
        action="store_true",
        help="a user whose account has a whiteRemoteAddress may come from there only; servers of ours know that",
    )
    add("-b", "--broker", metavar="BROKER", help="only this broker, by name, or the server of this address")
    add("-c", "--cluster", metavar="NAME", help="only brokers of this cluster, and the name servers")
    add("--dry-run", action="store_true", help="change nothing")
    add("-y", "--yes", action="store_true", help="do not ask")


async def _import(admin: Admin, args: argparse.Namespace) -> Shown:
    from gimbalmq.access.plain_import import plan_import, read_accounts
    from gimbalmq.errors import ConfigError

    if args.broker is not None and args.cluster is not None:
        raise ConfigError("--broker", args.broker, "give --broker or --cluster, not both")
    plan = plan_import(read_accounts(args.file), bind_sources=args.bind_sources)
    data: dict[str, Any] = {"changed": False, **_plan_data(plan)}
    if not plan.accounts:
        return Shown("\n\n".join((*_lost(plan), "There is no account to import.")), data)
    text = _plan_text(plan)
    if args.dry_run:
        return Shown(f"{text}\n\nNothing was changed.", data)
    if not args.json:
        print(f"{text}\n", flush=True)
    if not confirmed(f"Make {_users(len(plan.accounts))} with these policies?", assume_yes=args.yes):
        return Shown("Nothing was changed.", data, REFUSED)
    done = await admin.acls.import_accounts(plan, broker=args.broker, cluster=args.cluster)
    return _done(done, data)


def _users(count: int) -> str:
    return "one user" if count == 1 else f"{count} users"


def _plan_text(plan: ImportPlan) -> str:
    users = table(
        ("USER", "TYPE", "SOURCES"),
        [
            (one.user.name, one.user.type.value, ", ".join(one.user.source_ips) or "-")
            for one in plan.accounts
        ],
    )
    policies = table(
        ("USER", "POLICY", "RESOURCE", "DECISION", "ACTIONS"),
        _policy_rows(plan),
        empty="No policies: Super users need none.",
    )
    return "\n\n".join((users, policies, *_lost(plan)))


def _lost(plan: ImportPlan) -> list[str]:
    return ["\n".join((_NOT_CARRIED_OVER, *(f"- {text}" for text in plan.lost)))] if plan.lost else []


def _policy_rows(plan: ImportPlan) -> list[tuple[str, ...]]:
    return [
        (
            one.user.name,
            policy.type.value,
            entry.resource or "",
            entry.decision or "",
            ",".join(entry.actions or ()),
        )
        for one in plan.accounts
        if one.acl is not None
        for policy in one.acl.policies
        for entry in (line.body() for line in policy.entries)
    ]


def _plan_data(plan: ImportPlan) -> dict[str, Any]:
    return {
        "files": [str(path) for path in plan.files],
        "users": [
            {"user": one.user.name, "type": one.user.type.value, "sources": list(one.user.source_ips)}
            for one in plan.accounts
        ],
        "policies": [
            dict(zip(("user", "policy", "resource", "decision", "actions"), row, strict=True))
            for row in _policy_rows(plan)
        ],
        "lost": list(plan.lost),
    }


def _done(done: list[AccountImport], data: dict[str, Any]) -> Shown:
    for one in done:
        for address, problem in one.problems.items():
            complain(f"{one.user} at {address}: {problem}")
    rows = [(one.user, address, outcome) for one in done for address, outcome in one.outcomes.items()]
    complete = all(one.is_done for one in done)
    end = "" if complete else "\n\nWhat is there instead was left as it is; the command can be run again."
    results = [{"user": one.user, "servers": one.outcomes, "problems": one.problems} for one in done]
    return Shown(
        table(("USER", "SERVER", "IMPORT"), rows) + end,
        {**data, "changed": True, "results": results},
        0 if complete else FAILED,
    )
