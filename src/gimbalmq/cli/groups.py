"""``gimbalmq group``."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gimbalmq.admin.moments import parse_moment
from gimbalmq.admin.texts import moment, pairs
from gimbalmq.cli.asking import (
    GROUP,
    OK,
    REFUSED,
    TOPIC,
    Parser,
    Parsers,
    Shown,
    Verb,
    add_noun,
    whole_number,
    words_of,
)
from gimbalmq.cli.terminal import confirmed, table
from gimbalmq.cli.topics import queues_named
from gimbalmq.errors import ConfigError, ConsumerNotOnlineError

if TYPE_CHECKING:
    from gimbalmq.admin.admin import Admin
    from gimbalmq.admin.views import OffsetChange, QueueProgress
    from gimbalmq.model.queues import MessageQueue


def add_commands(commands: Parsers[Parser]) -> None:
    add_noun(
        commands,
        "group",
        "consumer groups: list, connections, progress, reset offsets",
        [
            Verb(
                "list",
                "all groups, with members and lag",
                _list,
                _list_options,
                examples=("group list --watch",),
            ),
            Verb(
                "progress",
                "where a group stands in each queue, and who holds it",
                _progress,
                _progress_options,
                mqadmin=("consumerProgress",),
                examples=(
                    "group progress billing --watch 1",
                    "group progress billing --max-lag 1000   # exit code 4 above it",
                ),
            ),
            Verb(
                "connections",
                "members of a group and their subscriptions",
                _connections,
                GROUP.argument,
                mqadmin=("consumerConnection",),
                examples=("group connections billing",),
            ),
            Verb(
                "producers",
                "connected members of a producer group",
                _producers,
                _producers_options,
                mqadmin=("producerConnection",),
                examples=("group producers senders --topic orders",),
            ),
            Verb(
                "show",
                "a group's settings on each broker",
                _show,
                GROUP.argument,
                examples=("group show billing",),
            ),
            Verb(
                "create",
                "make a group, or change its settings",
                _create,
                _create_options,
                mqadmin=("updateSubGroup",),
                watch=False,
                examples=("group create billing --retries 5",),
            ),
            Verb(
                "delete",
                "delete a group's settings and progress",
                _delete,
                _delete_options,
                mqadmin=("deleteSubGroup",),
                watch=False,
            ),
            Verb(
                "reset",
                "set offsets back or forth: by time, to an offset, to either end",
                _reset,
                _reset_options,
                mqadmin=("resetOffsetByTime",),
                watch=False,
                examples=(
                    "group reset billing orders --to 2h          # two hours back; shows a preview and asks",
                    "group reset billing orders --to latest --yes",
                    "group reset billing orders --to-offset 100 --queue broker-a/3 --dry-run",
                ),
            ),
        ],
    )


def _list_options(parser: Parser) -> None:
    parser.add_argument("-a", "--all", action="store_true", help="the system's own groups too")


async def _list(admin: Admin, args: argparse.Namespace) -> Shown:
    groups = await admin.groups.all(system=args.all)
    head = ("GROUP", "MEMBERS", "LAG", "OUT/S", "MODEL", "TYPE", "TOPICS", "PROBLEM")
    rows = [
        (
            item.group,
            item.members,
            item.lag,
            item.tps,
            item.message_model or "-",
            item.consume_type or "-",
            ",".join(item.topics) or "-",
            item.problem,
        )
        for item in groups
    ]
    return Shown(table(head, rows, empty="No group yet."), [asdict(item) for item in groups])


def _progress_options(parser: Parser) -> None:
    GROUP.argument(parser)
    add = parser.add_argument
    add("-t", "--topic", metavar="TOPIC", help="in this topic only")
    add("--no-owners", action="store_true", help="do not ask the members which queues they hold")
    add("--max-lag", type=whole_number(0), metavar="N", help="exit with 4 where more messages wait")


async def _progress(admin: Admin, args: argparse.Namespace) -> Shown:
    if not (args.group or args.group_flag):
        return await _list(admin, argparse.Namespace(all=False))
    progress = await admin.groups.progress(GROUP.of(args), topic=args.topic, owners=not args.no_owners)
    empty = ""
    if not progress.queues:
        await admin.groups.config(progress.group)  # a name nobody knows is no group without lag
        empty = await _why_no_progress(admin, progress.group)
    head = ("TOPIC", "BROKER", "QUEUE", "BROKER OFFSET", "CONSUMER OFFSET", "LAG", "OWNER", "LAST CONSUMED")
    rows = [
        (
            item.queue.topic,
            item.queue.broker_name,
            item.queue.queue_id,
            item.broker_offset,
            item.consumer_offset,
            item.lag,
            item.owner or "-",
            moment(item.last_ms),
        )
        for item in progress.queues
    ]
    text = table(head, rows, empty=empty)
    over = args.max_lag is not None and progress.lag > args.max_lag
    data = {
        "group": progress.group,
        "lag": progress.lag,
        "tps": progress.tps,
        "queues": [_progress_data(item) for item in progress.queues],
    }
    total = f"\n\nlag {progress.lag:,}, consumed {progress.tps:.2f}/s" if rows else ""
    return Shown(text + total, data, REFUSED if over else OK)


async def _why_no_progress(admin: Admin, group: str) -> str:
    try:
        found = await admin.groups.connections(group)
    except ConsumerNotOnlineError:
        return f"Group {group} has no progress: it never committed an offset, and no member is connected."
    if found.message_model == "BROADCASTING":
        return f"Group {group} broadcasts: each member keeps its progress to itself."
    members = "a member is" if len(found.members) == 1 else f"{len(found.members)} members are"
    return (
        f"Group {group} has not committed anything yet, though {members} connected. Consumers commit every 5 s unless "
        "told otherwise (persist_interval): ask again in a moment, or with --watch."
    )


def _progress_data(item: QueueProgress) -> dict[str, Any]:
    return {
        "topic": item.queue.topic,
        "broker": item.queue.broker_name,
        "queueId": item.queue.queue_id,
        "brokerOffset": item.broker_offset,
        "consumerOffset": item.consumer_offset,
        "lag": item.lag,
        "owner": item.owner,
        "lastConsumed": item.last_ms,
    }


async def _connections(admin: Admin, args: argparse.Namespace) -> Shown:
    found = await admin.groups.connections(GROUP.of(args))
    members = table(
        ("CLIENT ID", "ADDRESS", "LANGUAGE", "VERSION"),
        [(item.client_id, item.address, item.language, item.version) for item in found.members],
    )
    wants = table(("TOPIC", "EXPRESSION"), found.subscriptions.items())
    about = pairs(
        (
            ("consume type", found.consume_type),
            ("message model", found.message_model),
            ("begins at", found.consume_from),
        )
    )
    return Shown(f"{members}\n\n{wants}\n\n{about}", asdict(found))


def _producers_options(parser: Parser) -> None:
    GROUP.argument(parser)
    parser.add_argument("-t", "--topic", required=True, metavar="TOPIC", help="whose brokers to ask")


async def _producers(admin: Admin, args: argparse.Namespace) -> Shown:
    group = GROUP.of(args)
    found = await admin.groups.producers(group, args.topic)
    rows = [(item.client_id, item.address, item.language, item.version) for item in found]
    return Shown(
        table(
            ("CLIENT ID", "ADDRESS", "LANGUAGE", "VERSION"),
            rows,
            empty=f"No producer of group {group} is connected to a broker of {args.topic}.",
        ),
        [asdict(item) for item in found],
    )


async def _show(admin: Admin, args: argparse.Namespace) -> Shown:
    import msgspec

    found = await admin.groups.config(GROUP.of(args))
    data = {broker: msgspec.to_builtins(config) for broker, config in found.items()}
    texts = [f"# {broker}\n{pairs(settings.items())}" for broker, settings in data.items()]
    return Shown("\n\n".join(texts), data)


_SETTINGS = {
    "retries": "retry_max_times",
    "retry_queues": "retry_queue_nums",
    "enabled": "consume_enable",
    "broadcast": "consume_broadcast_enable",
    "orderly": "consume_message_orderly",
    "from_min": "consume_from_min_enable",
    "notify": "notify_consumer_ids_changed_enable",
}


def _create_options(parser: Parser) -> None:
    GROUP.argument(parser)
    add = parser.add_argument
    add(
        "-r",
        "--retries",
        type=whole_number(0),
        metavar="N",
        help="tries before a message is a dead letter (16)",
    )
    add("-q", "--retry-queues", type=whole_number(0), metavar="N", help="queues of the retry topic (1)")
    for flags, name, about in (
        (("-s", "--enabled"), "enabled", "whether it may consume"),
        (("-d", "--broadcast"), "broadcast", "whether it may broadcast"),
        (("-o", "--orderly"), "orderly", "whether it consumes in order"),
        (("-m", "--from-min"), "from_min", "whether it may begin at the oldest"),
        (("-a", "--notify"), "notify", "whether members hear of changes at once"),
    ):
        add(*flags, dest=name, choices=("true", "false"), metavar="true|false", help=about)
    add("-b", "--broker", metavar="BROKER", help="on this broker only")
    add("-c", "--cluster", metavar="NAME", help="on this cluster's brokers only")


async def _create(admin: Admin, args: argparse.Namespace) -> Shown:
    given = {name: getattr(args, option) for option, name in _SETTINGS.items()}
    settings = {
        name: value == "true" if isinstance(value, str) else value
        for name, value in given.items()
        if value is not None
    }
    group = GROUP.of(args)
    brokers = await admin.groups.create(group, settings, broker=args.broker, cluster=args.cluster)
    return Shown(f"Group {group} is set on {', '.join(brokers)}.", {"group": group, "brokers": brokers})


def _delete_options(parser: Parser) -> None:
    GROUP.argument(parser)
    parser.add_argument("--keep-offsets", action="store_true", help="keep its progress")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


async def _delete(admin: Admin, args: argparse.Namespace) -> Shown:
    group = GROUP.of(args)
    await admin.groups.config(group)  # says so if there is no such group
    loss = "" if args.keep_offsets else " and its progress"
    if not confirmed(f"Group {group}{loss} will be deleted. Go on?", assume_yes=args.yes):
        return Shown("Nothing was deleted.", code=REFUSED)
    brokers = await admin.groups.delete(group, remove_offsets=not args.keep_offsets)
    return Shown(f"Group {group} is deleted from {', '.join(brokers)}.", {"group": group, "brokers": brokers})


def _reset_options(parser: Parser) -> None:
    GROUP.argument(parser)
    TOPIC.argument(parser)
    add = parser.add_argument
    to = parser.add_mutually_exclusive_group()
    to.add_argument(
        "--to",
        "-s",
        "--timestamp",
        dest="to",
        metavar="WHEN",
        help="earliest, latest, now, 15m (ago), 2026-11-15 12:00, or milliseconds since 1970",
    )
    to.add_argument(
        "--to-offset",
        type=whole_number(0),
        metavar="N",
        help="to this offset (with --queue, or in all queues)",
    )
    add("--queue", action="append", default=[], metavar="BROKER/ID", help="only this queue; repeatable")
    add("--dry-run", action="store_true", help="show what would change, and change nothing")
    add("-y", "--yes", action="store_true", help="do not ask")


async def _reset(admin: Admin, args: argparse.Namespace) -> Shown:
    named = words_of(args, "group", "topic")
    group, topic = GROUP.given(named[0]), TOPIC.given(named[1])
    to = await _target(admin, group, topic, args)
    plan = await admin.groups.plan_reset(group, topic, to)
    text = table(
        ("BROKER", "QUEUE", "NOW AT", "GOES TO", "MOVES BY", "LAG THEN"),
        [
            (item.queue.broker_name, item.queue.queue_id, item.before, item.after, item.moved, item.lag)
            for item in plan
        ],
    )
    data = {"group": group, "topic": topic, "changed": False, "queues": [_change_data(item) for item in plan]}
    again = sum(max(0, -item.moved) for item in plan)
    skipped = sum(max(0, item.moved) for item in plan)
    summary = f"{again:,} messages will come again, {skipped:,} will be passed over"
    if args.dry_run:
        return Shown(f"{text}\n\n{summary} (nothing was changed)", data)
    if not args.json:
        print(f"{text}\n")
    if not confirmed(f"{summary}. Reset {group}?", assume_yes=args.yes):
        return Shown("Nothing was changed.", data, REFUSED)
    await admin.groups.reset(group, topic, to)
    return Shown(f"Group {group} is reset in {len(plan)} queues of {topic}.", {**data, "changed": True})


async def _target(
    admin: Admin, group: str, topic: str, args: argparse.Namespace
) -> str | int | dict[MessageQueue, int]:
    chosen = await queues_named(admin, topic, args.queue)
    if args.to_offset is not None:
        return dict.fromkeys(chosen, args.to_offset)
    if args.to is None:
        raise ConfigError("--to", "", "say where to: earliest, latest, a time, or --to-offset")
    if args.to == "-1":
        to: str | int = "latest"
    else:
        to = args.to if args.to in ("earliest", "latest") else parse_moment("--to", args.to)
    if not args.queue:
        return to
    plan = await admin.groups.plan_reset(group, topic, to)
    return {item.queue: item.after for item in plan if item.queue in chosen}


def _change_data(item: OffsetChange) -> dict[str, Any]:
    return {
        "broker": item.queue.broker_name,
        "queueId": item.queue.queue_id,
        "before": item.before,
        "after": item.after,
        "lag": item.lag,
    }
