"""``gimbalmq message``: send, find, follow, print, export and import."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from gimbalmq.admin.message_texts import message_data, message_line, message_text
from gimbalmq.admin.moments import parse_moment
from gimbalmq.cli.asking import (
    ABSENT,
    OK,
    REFUSED,
    TOPIC,
    Named,
    Parser,
    Parsers,
    Shown,
    Verb,
    above_zero,
    add_noun,
    whole_number,
    words_of,
)
from gimbalmq.cli.terminal import ProgressLine
from gimbalmq.cli.topics import queues_named
from gimbalmq.errors import ConfigError, RocketMQError

if TYPE_CHECKING:
    from gimbalmq.admin.admin import Admin
    from gimbalmq.model.message import Message, MessageView

_ID = Named("id", ("-i", "--msgId"), "offset id or unique id", "give the id that sending it printed")
_KEY = Named("key", ("-k", "--msgKey"), "one of the message's keys", "give the key after the topic")
_BODY = Named(
    "body",
    ("-p", "--body"),
    "text of the message; - for one message a line of standard input",
    "give the text after the topic, or - for lines of standard input",
)
_SENDS_IN_FLIGHT = 256


def add_commands(commands: Parsers[Parser]) -> None:
    add_noun(
        commands,
        "message",
        "messages: send, find, tail, print, export, import",
        [
            Verb(
                "send",
                "send one message, or one for each line of standard input",
                _send,
                _send_options,
                mqadmin=("sendMessage",),
                watch=False,
                examples=(
                    'message send orders "hello" --tags new --key 4711',
                    "seq 100 | gimbalmq message send orders -",
                ),
            ),
            Verb(
                "id",
                "a message by its id: the broker's, or with the topic the sender's",
                _by_id,
                _id_options,
                mqadmin=("queryMsgById", "queryMsgByUniqueKey"),
                watch=False,
                examples=("message id 7F0000010000...", "message id AC11000200002A9F... --topic orders"),
            ),
            Verb(
                "key",
                "messages with a key",
                _by_key,
                _key_options,
                mqadmin=("queryMsgByKey",),
                watch=False,
                examples=("message key orders 4711 --since 1d",),
            ),
            Verb(
                "offset",
                "the message at one place of one queue",
                _by_offset,
                _offset_options,
                mqadmin=("queryMsgByOffset",),
                watch=False,
                examples=(
                    "message offset orders broker-a/3 100",
                    "queryMsgByOffset -t orders -b broker-a -i 3 -o 100",
                ),
            ),
            Verb(
                "print",
                "messages of a time, or the newest of each queue",
                _print,
                _print_options,
                mqadmin=("printMsg",),
                watch=False,
                examples=(
                    "message print orders --newest 5",
                    "message print orders --since 10m --tags 'new || paid'",
                ),
            ),
            Verb(
                "tail",
                "follow a topic live, until Ctrl-C",
                _tail,
                _tail_options,
                watch=False,
                examples=("message tail orders", "message tail orders --newest 10 --json | jq .body"),
            ),
            Verb(
                "export",
                "a topic to a file of JSON lines",
                _export,
                _export_options,
                watch=False,
                examples=("message export orders orders.jsonl --since 1d",),
            ),
            Verb(
                "import",
                "send what a file of JSON lines holds",
                _import,
                _import_options,
                watch=False,
                examples=(
                    "message import orders.jsonl",
                    "message import orders.jsonl --topic copy --rate 500",
                ),
            ),
        ],
    )


def _found(views: list[MessageView], nothing: str) -> Shown:
    if not views:
        return Shown(nothing, [], ABSENT)
    return Shown("\n\n".join(map(message_text, views)), [message_data(view) for view in views])


# -- find -----------------------------------------------------------------------------


def _id_options(parser: Parser) -> None:
    _ID.argument(parser)
    parser.add_argument("-t", "--topic", metavar="TOPIC", help="needed for a sender's unique id")


async def _by_id(admin: Admin, args: argparse.Namespace) -> Shown:
    view = await admin.messages.by_id(_ID.of(args), topic=args.topic)
    return Shown(message_text(view), message_data(view))


def _key_options(parser: Parser) -> None:
    TOPIC.argument(parser)
    _KEY.argument(parser)
    parser.add_argument("--limit", type=whole_number(1), default=64, metavar="N", help="at most so many (64)")
    _time_options(parser)


async def _by_key(admin: Admin, args: argparse.Namespace) -> Shown:
    named = words_of(args, "topic", "key")
    topic, key = TOPIC.given(named[0]), _KEY.given(named[1])
    since, until = _times(args)
    views = await admin.messages.by_key(topic, key, limit=args.limit, begin_ms=since or 0, end_ms=until)
    return _found(views, f"No message of {topic} has the key {key}.")


def _offset_options(parser: Parser) -> None:
    TOPIC.argument(parser)
    add = parser.add_argument
    add("queue", nargs="?", metavar="BROKER/ID", help="the queue")
    add("offset", nargs="?", metavar="OFFSET", help="the offset")
    add("-b", "--brokerName", metavar="BROKER", help="mqadmin's flag: the queue's broker")
    add("-i", "--queueId", metavar="ID", help="mqadmin's flag: the queue's number")
    add("-o", "--offset", dest="offset_flag", metavar="OFFSET", help="mqadmin's flag: the offset")


async def _by_offset(admin: Admin, args: argparse.Namespace) -> Shown:
    from gimbalmq.model.queues import MessageQueue

    if args.brokerName is not None:
        args.queue_flag = f"{args.brokerName}/{args.queueId or ''}"
    topic, queue, offset = words_of(args, "topic", "queue", "offset")
    broker, slash, number = (queue or "").rpartition("/")
    if not slash or not number.isdigit():
        raise ConfigError("BROKER/ID", queue or "", "name the queue like broker-a/3")
    if offset is None or not offset.isdigit():
        raise ConfigError("OFFSET", offset or "", "give a number after the queue")
    place = MessageQueue(TOPIC.given(topic), broker, int(number))
    view = await admin.messages.by_offset(place, int(offset))
    return Shown(message_text(view), message_data(view))


def _time_options(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "--since",
        "--beginTimestamp",
        dest="since",
        metavar="WHEN",
        help="stored at or after: 10m, 2026-11-15 12:00",
    )
    add("--until", "--endTimestamp", dest="until", metavar="WHEN", help="stored before")


def _times(args: argparse.Namespace) -> tuple[int | None, int | None]:
    since = None if args.since is None else parse_moment("--since", args.since)
    until = None if args.until is None else parse_moment("--until", args.until)
    return since, until


def _print_options(parser: Parser) -> None:
    TOPIC.argument(parser)
    _time_options(parser)
    add = parser.add_argument
    add(
        "--newest",
        type=whole_number(1),
        metavar="N",
        help="only the newest N of each queue (10 where no time is given)",
    )
    add("--tags", "-s", dest="tags", default="*", metavar="EXPR", help="only these tags: 'new || paid'")
    add("--limit", type=whole_number(1), default=1000, metavar="N", help="at most so many (1000)")
    add("--full", action="store_true", help="everything about each, not one line")


async def _print(admin: Admin, args: argparse.Namespace) -> Shown:
    topic = TOPIC.of(args)
    since, until = _times(args)
    newest = args.newest if args.newest is not None or since is not None or until is not None else 10
    ranges = await admin.messages.ranges(topic, begin_ms=since, end_ms=until, newest=newest)
    views: list[MessageView] = []
    async for view in admin.messages.read(topic, dict(ranges), tags=args.tags):
        views.append(view)
        if len(views) >= args.limit:
            break
    views.sort(key=lambda view: (view.store_timestamp, view.broker_name, view.queue_id, view.queue_offset))
    if args.full:
        return _found(views, f"Topic {topic} has no such message.")
    return Shown(
        "\n".join(map(message_line, views)) or f"Topic {topic} has no such message.",
        [message_data(view) for view in views],
        OK if views else ABSENT,
    )


def _tail_options(parser: Parser) -> None:
    TOPIC.argument(parser)
    add = parser.add_argument
    add(
        "--newest",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="begin N messages before the end of each queue",
    )
    add("--tags", default="*", metavar="EXPR", help="only these tags: 'new || paid'")
    add("--limit", type=whole_number(1), metavar="N", help="stop after so many")


async def _tail(admin: Admin, args: argparse.Namespace) -> Shown:
    topic = TOPIC.of(args)
    ranges = await admin.messages.ranges(topic, newest=args.newest)
    seen = 0
    following = admin.messages.read(
        topic, {queue: (first, None) for queue, (first, _) in ranges.items()}, tags=args.tags
    )
    async for view in following:
        line = json.dumps(message_data(view), ensure_ascii=False) if args.json else message_line(view)
        print(line, flush=True)
        seen += 1
        if args.limit is not None and seen >= args.limit:
            break
    return Shown("")


# -- send, export, import -------------------------------------------------------------


def _send_options(parser: Parser) -> None:
    TOPIC.argument(parser)
    _BODY.argument(parser)
    add = parser.add_argument
    add("--tags", "-c", dest="tags", metavar="TAG", help="its tag")
    add("--key", "-k", dest="keys", action="append", metavar="KEY", help="a key to find it by; repeatable")
    add("--property", action="append", default=[], metavar="NAME=VALUE", help="a property; repeatable")
    add(
        "--delay-level",
        type=whole_number(0),
        default=0,
        metavar="1-18",
        help="deliver later, by the broker's table",
    )
    add("--delay", type=above_zero, metavar="SECONDS", help="deliver later")
    add("--sharding-key", metavar="KEY", help="equal keys go to one queue")
    add("--queue", metavar="BROKER/ID", help="to this queue")


async def _send(admin: Admin, args: argparse.Namespace) -> Shown:
    named = words_of(args, "topic", "body")
    topic, body = TOPIC.given(named[0]), _BODY.given(named[1])
    queue = None if args.queue is None else (await queues_named(admin, topic, [args.queue]))[0]
    if body != "-":
        result = await admin.messages.send(_message(topic, body.encode(), args), queue=queue)
        place = f"{result.queue.broker_name}/{result.queue.queue_id} at {result.queue_offset}"
        return Shown(
            f"{result.msg_id} is in {place} ({result.status.name})",
            {
                "msgId": result.msg_id,
                "broker": result.queue.broker_name,
                "queueId": result.queue.queue_id,
                "offset": result.queue_offset,
                "status": result.status.name,
            },
        )
    lines = (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
    sent = await _send_all(admin, (_message(topic, line, args) for line in lines), ProgressLine("sent"), None)
    return Shown(f"{sent:,} messages are sent to {topic}.", {"topic": topic, "sent": sent})


def _message(topic: str, body: bytes, args: argparse.Namespace) -> Message:
    from gimbalmq.model.message import Message

    properties: dict[str, str] = {}
    for text in args.property:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError("--property", text, "write NAME=VALUE")
        properties[name] = value
    return Message(
        topic,
        body,
        tags=args.tags,
        keys=args.keys,
        properties=properties,
        delay_level=args.delay_level,
        delay=args.delay,
        sharding_key=args.sharding_key,
    )


async def _send_all(admin: Admin, messages: Iterator[Message], bar: ProgressLine, rate: float | None) -> int:
    """Sends many, a few hundred in flight; the first that fails ends it."""
    producer = await admin.messages.producer()
    free = asyncio.Semaphore(_SENDS_IN_FLIGHT)
    sent = 0

    async def send(message: Message) -> None:
        nonlocal sent
        try:
            await producer.send(message)
        finally:
            free.release()
        sent += 1
        bar.at(sent)

    with bar:
        try:
            async with asyncio.TaskGroup() as sends:
                for message in messages:
                    await free.acquire()
                    sends.create_task(send(message))
                    if rate:
                        await asyncio.sleep(1 / rate)
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
    return sent


def _export_options(parser: Parser) -> None:
    TOPIC.argument(parser)
    add = parser.add_argument
    add("file", nargs="?", metavar="FILE", help="where to; standard output without it")
    _time_options(parser)
    add("--tags", default="*", metavar="EXPR", help="only these tags")


async def _export(admin: Admin, args: argparse.Namespace) -> Shown:
    named = words_of(args, "topic", "file")
    topic, file = TOPIC.given(named[0]), Path(named[1]) if named[1] else None
    since, until = _times(args)
    ranges = await admin.messages.ranges(topic, begin_ms=since, end_ms=until)
    total = sum(end - first for first, end in ranges.values())
    count = 0
    with _output(file) as out, ProgressLine("exported", total) as bar:
        async for view in admin.messages.read(topic, dict(ranges), tags=args.tags):
            out.write(json.dumps(message_data(view), ensure_ascii=False) + "\n")
            count += 1
            if count % 500 == 0:
                bar.at(count)
        bar.at(count)
    if file is None:
        return Shown("")
    return Shown(f"{count:,} messages of {topic} are in {file}.", {"topic": topic, "exported": count})


@contextmanager
def _output(file: Path | None) -> Iterator[IO[str]]:
    if file is None:
        yield sys.stdout
        return
    try:
        out = file.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError("FILE", str(file), error.strerror or str(error)) from error
    with out:
        yield out


def _import_options(parser: Parser) -> None:
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="JSON lines, as export writes them; - for standard input")
    add("-t", "--topic", metavar="TOPIC", help="send to this topic instead of the one in the file")
    add("--rate", type=above_zero, metavar="N", help="messages a second")


async def _import(admin: Admin, args: argparse.Namespace) -> Shown:
    try:
        source = sys.stdin if str(args.file) == "-" else args.file.open(encoding="utf-8")
    except OSError as error:
        raise ConfigError("FILE", str(args.file), error.strerror or str(error)) from error
    unreadable: list[int] = []
    with source:
        messages = _messages_of(source, str(args.file), args.topic, unreadable)
        sent = await _send_all(admin, messages, ProgressLine("imported"), args.rate)
    data = {"sent": sent, "unreadable": unreadable}
    if not unreadable:
        return Shown(f"{sent:,} messages are sent.", data)
    lines = ", ".join(map(str, unreadable[:10])) + (" ..." if len(unreadable) > 10 else "")
    return Shown(
        f"{sent:,} messages are sent. {len(unreadable):,} were passed over, because the export could not read "
        f"their bodies (lines {lines}).",
        data,
        REFUSED,
    )


def _messages_of(lines: IO[str], name: str, topic: str | None, unreadable: list[int]) -> Iterator[Message]:
    """The messages of an export; the numbers of lines whose bodies it had not been able to read are noted."""
    from gimbalmq.model.message import SYSTEM_PROPERTIES, Message

    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            if "bodyError" in data:
                unreadable.append(number)
                continue
            body = base64.b64decode(data["bodyBase64"]) if "bodyBase64" in data else data["body"].encode()
            own = {
                key: str(value)
                for key, value in (data.get("properties") or {}).items()
                if key not in SYSTEM_PROPERTIES
            }
            yield Message(
                topic or data["topic"],
                body,
                tags=data.get("tags"),
                keys=data.get("keys") or None,
                properties=own,
                sharding_key=(data.get("properties") or {}).get("__SHARDINGKEY"),
                flag=int(data.get("flag") or 0),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RocketMQError) as error:
            raise ConfigError(
                f"{name} line {number}",
                line.strip()[:60],
                f"{type(error).__name__}: {error}; each line is a JSON object with topic and body",
            ) from error
