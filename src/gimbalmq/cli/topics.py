"""``gimbalmq topic``."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from gimbalmq.admin.texts import moment
from gimbalmq.cli.asking import REFUSED, TOPIC, Parser, Parsers, Shown, Verb, add_noun, whole_number
from gimbalmq.cli.terminal import confirmed, table
from gimbalmq.errors import ConfigError

if TYPE_CHECKING:
    from gimbalmq.admin.admin import Admin
    from gimbalmq.model.queues import MessageQueue

MOST_QUEUES = 65_536


def add_commands(commands: Parsers[Parser]) -> None:
    add_noun(
        commands,
        "topic",
        "topics: list, route, stats, create, resize, delete",
        [
            Verb(
                "list",
                "all topics, with their queues",
                _list,
                _list_options,
                mqadmin=("topicList",),
                examples=("topic list", "topic list --all --json"),
            ),
            Verb(
                "route",
                "which brokers serve a topic",
                _route,
                TOPIC.argument,
                mqadmin=("topicRoute",),
                examples=("topic route orders",),
            ),
            Verb(
                "stats",
                "how far each queue reaches",
                _stats,
                TOPIC.argument,
                mqadmin=("topicStatus",),
                examples=("topic stats orders --watch 1",),
            ),
            Verb("groups", "which groups read a topic", _groups, TOPIC.argument),
            Verb(
                "create",
                "make a topic, or change the one there is",
                _create,
                _create_options,
                mqadmin=("updateTopic",),
                watch=False,
                examples=(
                    "topic create orders --queues 16",
                    "updateTopic -c DefaultCluster -t orders -r 8 -w 8",
                ),
            ),
            Verb(
                "resize",
                "another number of queues",
                _resize,
                _resize_options,
                watch=False,
                examples=("topic resize orders 32", "topic resize orders 4   # readers keep the old ones"),
            ),
            Verb(
                "delete",
                "delete a topic with its messages",
                _delete,
                _delete_options,
                mqadmin=("deleteTopic",),
                watch=False,
                examples=("topic delete orders", "topic delete orders --yes"),
            ),
        ],
    )


def _list_options(parser: Parser) -> None:
    parser.add_argument("-c", "--cluster", metavar="NAME", help="of this cluster only")
    parser.add_argument("-a", "--all", action="store_true", help="retry, dead-letter and system topics too")


async def _list(admin: Admin, args: argparse.Namespace) -> Shown:
    views = await admin.topics.all(cluster=args.cluster, system=args.all)
    head = ("TOPIC", "KIND", "BROKERS", "READ", "WRITE", "PERM")
    rows = [
        (view.topic, view.kind, ",".join(view.brokers), view.read_queues, view.write_queues, view.perm)
        for view in views
    ]
    return Shown(table(head, rows, empty="No topic yet."), [asdict(view) for view in views])


async def _route(admin: Admin, args: argparse.Namespace) -> Shown:
    import msgspec

    from gimbalmq.admin.topics import perm_text

    route = await admin.topics.route(TOPIC.of(args))
    brokers = {data.broker_name: data for data in route.broker_datas}
    rows = [
        (
            data.broker_name,
            brokers[data.broker_name].cluster if data.broker_name in brokers else "",
            " ".join(
                f"{key}={value}" for key, value in sorted(brokers[data.broker_name].broker_addrs.items())
            )
            if data.broker_name in brokers
            else "",
            data.read_queue_nums,
            data.write_queue_nums,
            perm_text(data.perm),
        )
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
    ]
    return Shown(
        table(("BROKER", "CLUSTER", "ADDRESSES", "READ", "WRITE", "PERM"), rows), msgspec.to_builtins(route)
    )


async def _stats(admin: Admin, args: argparse.Namespace) -> Shown:
    stats = await admin.topics.stats(TOPIC.of(args))
    rows = [
        (
            item.queue.broker_name,
            item.queue.queue_id,
            item.min_offset,
            item.max_offset,
            item.count,
            moment(item.last_update_ms),
        )
        for item in stats
    ]
    data = [
        {
            "broker": item.queue.broker_name,
            "queueId": item.queue.queue_id,
            "minOffset": item.min_offset,
            "maxOffset": item.max_offset,
            "messages": item.count,
            "lastUpdated": item.last_update_ms,
        }
        for item in stats
    ]
    text = table(("BROKER", "QUEUE", "MIN", "MAX", "MESSAGES", "LAST UPDATED"), rows)
    return Shown(f"{text}\n\n{sum(item.count for item in stats):,} messages", data)


async def _groups(admin: Admin, args: argparse.Namespace) -> Shown:
    groups = await admin.topics.groups(TOPIC.of(args))
    return Shown("\n".join(groups) or "No group has read it.", groups)


def _create_options(parser: Parser) -> None:
    TOPIC.argument(parser)
    add = parser.add_argument
    add(
        "-q",
        "--queues",
        type=whole_number(1, MOST_QUEUES),
        metavar="N",
        help="queues on each broker (default: 8)",
    )
    add(
        "-r",
        "--read-queues",
        type=whole_number(1, MOST_QUEUES),
        metavar="N",
        help="readable ones, where they differ",
    )
    add(
        "-w",
        "--write-queues",
        type=whole_number(0, MOST_QUEUES),
        metavar="N",
        help="writable ones, where they differ",
    )
    add(
        "-p",
        "--perm",
        default="RW",
        metavar="RW|R|W|-",
        help="what clients may do (default: RW); 6, 4, 2, 0 too",
    )
    add(
        "-o",
        "--order",
        nargs="?",
        const="true",
        default="false",
        choices=("true", "false"),
        help="ordered topic",
    )
    add("-b", "--broker", metavar="BROKER", help="on this broker only")
    add("-c", "--cluster", metavar="NAME", help="on this cluster's brokers only")


async def _create(admin: Admin, args: argparse.Namespace) -> Shown:
    topic = TOPIC.of(args)
    queues = args.queues or args.read_queues or 8
    brokers = await admin.topics.create(
        topic,
        queues=args.read_queues or queues,
        write_queues=queues if args.write_queues is None else args.write_queues,
        perm=_perm(args.perm),
        order=args.order == "true",
        broker=args.broker,
        cluster=args.cluster,
    )
    return Shown(
        f"Topic {topic} with {queues} queues is on {', '.join(brokers)}.",
        {"topic": topic, "brokers": brokers},
    )


def _perm(text: str) -> int:
    known = {
        "RW": 6,
        "WR": 6,
        "R": 4,
        "R-": 4,
        "W": 2,
        "-W": 2,
        "-": 0,
        "--": 0,
        "6": 6,
        "4": 4,
        "2": 2,
        "0": 0,
    }
    if text.upper() not in known:
        raise ConfigError("--perm", text, "use RW, R, W or -")
    return known[text.upper()]


def _resize_options(parser: Parser) -> None:
    add = parser.add_argument
    add("topic", metavar="TOPIC", help="name of the topic")
    add("queues", type=whole_number(1, MOST_QUEUES), metavar="QUEUES", help="on each broker")
    add("--at-once", action="store_true", help="take readable queues away too: what lies in them is not read")
    add("-y", "--yes", action="store_true", help="do not ask")


async def _resize(admin: Admin, args: argparse.Namespace) -> Shown:
    route = await admin.topics.route(args.topic)
    fewer = any(data.read_queue_nums > args.queues for data in route.queue_datas)
    if (
        args.at_once
        and fewer
        and not confirmed(
            "Messages in the queues taken away will not be read any more. Go on?", assume_yes=args.yes
        )
    ):
        return Shown("Nothing was changed.", code=REFUSED)
    brokers = await admin.topics.resize(args.topic, args.queues, safely=not args.at_once)
    note = (
        "\nThe queues taken away can still be read; when they are empty, say --at-once."
        if fewer and not args.at_once
        else ""
    )
    return Shown(
        f"Topic {args.topic} has {args.queues} writable queues on {', '.join(brokers)}.{note}",
        {"topic": args.topic, "queues": args.queues, "brokers": brokers},
    )


def _delete_options(parser: Parser) -> None:
    TOPIC.argument(parser)
    parser.add_argument("-c", "--cluster", metavar="NAME", help="from this cluster only")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


async def _delete(admin: Admin, args: argparse.Namespace) -> Shown:
    topic = TOPIC.of(args)
    count = sum(item.count for item in await admin.topics.stats(topic))
    if not confirmed(
        f"Topic {topic} and its {count:,} messages will be deleted. Go on?", assume_yes=args.yes
    ):
        return Shown("Nothing was deleted.", code=REFUSED)
    brokers = await admin.topics.delete(topic, cluster=args.cluster)
    return Shown(f"Topic {topic} is deleted from {', '.join(brokers)}.", {"topic": topic, "brokers": brokers})


async def queues_named(admin: Admin, topic: str, texts: list[str]) -> list[MessageQueue]:
    """A topic's queues by ``BROKER/ID``; all of them if none is named."""
    queues = await admin.topics.queues(topic)
    if not texts:
        return queues
    by_name = {f"{queue.broker_name}/{queue.queue_id}": queue for queue in queues}
    for text in texts:
        if text not in by_name:
            raise ConfigError("--queue", text, f"topic {topic} has {', '.join(by_name)}")
    return [by_name[text] for text in texts]
