"""``gimbalmq deadletter``: what groups gave up on."""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict
from typing import TYPE_CHECKING

from gimbalmq.admin.message_texts import message_data, message_line, message_text
from gimbalmq.admin.texts import moment
from gimbalmq.cli.asking import (
    ABSENT,
    GROUP,
    OK,
    REFUSED,
    Parser,
    Parsers,
    Shown,
    Verb,
    above_zero,
    add_noun,
    whole_number,
)
from gimbalmq.cli.terminal import ProgressLine, confirmed, table
from gimbalmq.errors import ConfigError, QueryNotFoundError, TopicRouteNotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from gimbalmq.admin.admin import Admin
    from gimbalmq.model.message import MessageView


def add_commands(commands: Parsers[Parser]) -> None:
    add_noun(
        commands,
        "deadletter",
        "dead letters: list, show, redrive",
        [
            Verb("list", "groups that have dead letters, and how many", _list, examples=("deadletter list",)),
            Verb(
                "show",
                "a group's dead letters",
                _show,
                _show_options,
                examples=("deadletter show billing", "deadletter show billing --new --full"),
            ),
            Verb(
                "redrive",
                "send a group's dead letters back to be consumed again",
                _redrive,
                _redrive_options,
                watch=False,
                examples=(
                    "deadletter redrive billing --dry-run",
                    "deadletter redrive billing --tags paid --matching 'order-4\\d+' --rate 100",
                ),
            ),
        ],
    )


async def _list(admin: Admin, args: argparse.Namespace) -> Shown:
    groups = await admin.dead_letters.groups()
    rows = [(item.group, item.count, moment(item.last_ms), item.topic) for item in groups]
    return Shown(
        table(("GROUP", "DEAD LETTERS", "LAST", "TOPIC"), rows, empty="No dead letters."),
        [asdict(item) for item in groups],
    )


def _show_options(parser: Parser) -> None:
    GROUP.argument(parser)
    add = parser.add_argument
    add("--new", action="store_true", help="only those never driven back")
    add("--limit", type=whole_number(1), default=100, metavar="N", help="at most so many (100)")
    add("--full", action="store_true", help="everything about each, not one line")
    _filter_options(parser)


def _filter_options(parser: Parser) -> None:
    parser.add_argument("--tags", metavar="A,B", help="only these tags")
    parser.add_argument("--key", metavar="KEY", help="only with this key")
    parser.add_argument("--matching", metavar="REGEX", help="only where the body matches")


def _keep(args: argparse.Namespace) -> Callable[[MessageView], bool]:
    tags = set(args.tags.split(",")) if args.tags else None
    try:
        pattern = re.compile(args.matching.encode()) if args.matching else None
    except re.error as error:
        raise ConfigError("--matching", args.matching, f"no regular expression: {error}") from error

    def keep(view: MessageView) -> bool:
        return (
            (tags is None or view.tags in tags)
            and (args.key is None or args.key in view.keys)
            and (pattern is None or pattern.search(view.body) is not None)
        )

    return keep


async def _letters(admin: Admin, group: str, *, everything: bool) -> AsyncIterator[MessageView]:
    try:
        async for view in admin.dead_letters.read(group, everything=everything):
            yield view
    except TopicRouteNotFoundError:  # their topic is made with the first of them
        raise QueryNotFoundError(
            f"group {group} has no dead letters; gimbalmq deadletter list shows the groups that have"
        ) from None


async def _show(admin: Admin, args: argparse.Namespace) -> Shown:
    group, keep = GROUP.of(args), _keep(args)
    views: list[MessageView] = []
    async for view in _letters(admin, group, everything=not args.new):
        if keep(view):
            views.append(view)
        if len(views) >= args.limit:
            break
    text = "\n\n".join(map(message_text, views)) if args.full else "\n".join(map(message_line, views))
    return Shown(
        text or f"Group {group} has no such dead letters.",
        [message_data(view) for view in views],
        OK if views else ABSENT,
    )


def _redrive_options(parser: Parser) -> None:
    GROUP.argument(parser)
    add = parser.add_argument
    _filter_options(parser)
    add("--to-topic", action="store_true", help="to the topic they came from, where every group sees them")
    add("--again", action="store_true", help="also those driven back before")
    add("--limit", type=whole_number(1), metavar="N", help="at most so many")
    add("--rate", type=above_zero, metavar="N", help="messages a second")
    add("--dry-run", action="store_true", help="count, and send nothing")
    add("-y", "--yes", action="store_true", help="do not ask")


async def _redrive(admin: Admin, args: argparse.Namespace) -> Shown:
    group, keep = GROUP.of(args), _keep(args)
    found = 0
    async for view in _letters(admin, group, everything=args.again):
        found += keep(view)
        if args.limit is not None and found >= args.limit:
            break
    where = "their topics" if args.to_topic else f"group {group}"
    if args.dry_run or not found:
        return Shown(f"{found:,} dead letters would go back to {where}.", {"group": group, "found": found})
    if not confirmed(f"{found:,} dead letters go back to {where}. Go on?", assume_yes=args.yes):
        return Shown("Nothing was sent.", code=REFUSED)
    with ProgressLine("redriven") as bar:
        outcome = await admin.dead_letters.redrive(
            group,
            keep=keep,
            to_topic=args.to_topic,
            everything=args.again,
            limit=args.limit,
            rate=args.rate,
            on_progress=bar.at,
        )
    text = f"{outcome.sent:,} dead letters went back to {where}, {outcome.skipped:,} were passed over."
    if outcome.skipped:
        text += "\nThose passed over count as seen from now on: redrive --again reaches them."
    return Shown(
        text,
        {"group": group, **asdict(outcome)},
    )
