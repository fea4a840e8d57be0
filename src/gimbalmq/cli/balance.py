"""``gimbalmq balance``: who would own which queue, and what a day of changes would move.

Both commands run the same pure functions that consumers run (gimbalmq.balance), so what they print is
what a group will do. Nothing heavy is imported before a command runs, and a cluster is asked only for
what the command line leaves open.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

from gimbalmq.balance.allocate import AllocateStrategy, Averagely, shares
from gimbalmq.balance.by_name import PLAIN_STRATEGIES, strategy_by_name
from gimbalmq.balance.compare import Comparison, Parts, compare, owners_of
from gimbalmq.balance.rooms import RoomsByPrefix
from gimbalmq.cli.asking import connect, connection_options, whole_number
from gimbalmq.cli.terminal import table
from gimbalmq.errors import ConfigError, ConnectError, ConsumerNotOnlineError
from gimbalmq.model.queues import MessageQueue, sort_queues

if TYPE_CHECKING:
    from gimbalmq.balance.simulate import Report

_PREVIEW_EPILOG = """\
examples:
  gimbalmq balance preview --topic orders=16 --members a,b,c --join d
  gimbalmq balance preview --topic orders=16 --topic refunds=8 --members 4 --leave member-2 --strategy all
  gimbalmq balance preview --topic orders=8 --members a,b --resize orders=12 --strategy STICKY
  gimbalmq balance preview --group billing --join newcomer --strategy STICKY

The cluster is asked only for what is left open: --topic NAME without a number reads the topic's queues, --group
without --members the members and, without --topic, the subscriptions. STICKY depends on the group's name.

Exit codes: 0 printed, 1 a server could not be asked, 2 wrong option or value.
"""

_SIMULATE_EPILOG = """\
examples:
  gimbalmq balance simulate
  gimbalmq balance simulate --queues 64 --members 8 --events 50 --seed 7 --svg day.svg
  gimbalmq balance simulate --strategies AVG,STICKY --no-resizes --json

moved       queues that changed owner although they existed before and after
minimum     the fewest that had to, for shares that differ by at most one, given who held what
worst       largest moved / minimum of a single change
spread      largest share minus smallest, at its worst
unserved    queue-seconds without a live owner (hosts that fall silent are noticed after 120 s)

Exit codes: 0 printed, 1 a file could not be written, 2 wrong option or value.
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Puts ``balance preview`` and ``balance simulate`` into the command line."""
    balance = commands.add_parser(
        "balance",
        help="preview and simulate who owns which queue",
        description="Who would own which queue, and what changes would move.",
        allow_abbrev=False,
    )
    verbs = balance.add_subparsers(dest="verb", metavar="COMMAND", title="commands", required=True)
    _add_preview(verbs)
    _add_simulate(verbs)
    _add_allocate(commands)


def _add_preview(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "preview",
        help="who owns what before and after a change, and what moves",
        description="Prints who owns what before and after a change of members or queues, and what moves.",
        epilog=_PREVIEW_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--topic",
        action="append",
        default=[],
        metavar="NAME[=QUEUES]",
        help="a topic and its queues on each broker; repeatable. Without a number it is asked for",
    )
    add("--brokers", default="broker-a", metavar="A,B", help="brokers of --topic (default: broker-a)")
    add("--members", metavar="A,B,...|N", help="client ids, or how many (member-1, member-2, ...)")
    add("--join", action="append", default=[], metavar="A[,B]", help="members that join; repeatable")
    add("--leave", action="append", default=[], metavar="A[,B]", help="members that leave; repeatable")
    add("--resize", action="append", default=[], metavar="NAME=QUEUES", help="a topic's new size; repeatable")
    add("--strategy", default="AVG", metavar="NAME", help=f"AVG (default), {', '.join(PLAIN_STRATEGIES[1:])}, "
        "MACHINE_ROOM, MACHINE_ROOM_NEARBY-<one of them>, or all")  # fmt: skip
    add("--room", action="append", default=[], metavar="PREFIX=ROOM",
        help="brokers and members whose names begin so stand in this room; repeatable")  # fmt: skip
    add("--group", metavar="NAME", help="the consumer group")
    _add_json(parser)
    connection_options(parser)
    _runs(parser, preview)


def _add_allocate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """mqadmin's own command, for scripts that know it."""
    parser = commands.add_parser(
        "allocateMQ",
        help="a topic's queues over a list of addresses, as JSON (mqadmin's command)",
        description="Prints how AVG divides a topic's queues among clients, as mqadmin allocateMQ does.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-t", "--topic", required=True, metavar="TOPIC", help="whose queues")
    add("-i", "--ipList", required=True, dest="members", metavar="IP,IP", help="the clients, in this order")
    connection_options(parser)
    _runs(parser, allocate)


def _add_simulate(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "simulate",
        help="a day of joins, crashes and resizes under each strategy",
        description="Runs a day of joins, crashes and resizes in virtual time and compares strategies.",
        epilog=_SIMULATE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    size = whole_number(1, 1_000_000)
    add("--queues", type=size, default=1024, metavar="N", help="queues at the start (default: 1024)")
    add("--topics", type=size, default=1, metavar="N", help="topics they belong to (default: 1)")
    add("--members", type=size, default=32, metavar="N", help="members at the start (default: 32)")
    add("--events", type=size, default=100, metavar="N", help="changes in the day (default: 100)")
    add("--seed", type=whole_number(0), default=1, metavar="N", help="equal seeds, equal days (default: 1)")
    add("--no-resizes", action="store_true", help="only members change, no topic does")
    add("--strategies", default="all", metavar="A,B", help=f"default: {','.join(PLAIN_STRATEGIES)}")
    pictures = parser.add_mutually_exclusive_group()
    pictures.add_argument("--svg", type=Path, metavar="FILE", help="write the picture of the day")
    pictures.add_argument("--png", type=Path, metavar="FILE", help="the same, by way of rsvg-convert")
    _add_json(parser)
    add("--debug", action="store_true", help="show tracebacks")
    _runs(parser, simulate)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _runs(parser: argparse.ArgumentParser, run: Any) -> None:
    parser.set_defaults(run=run, log_level="error", log_file=None)


# -- preview -------------------------------------------------------------------------


def preview(args: argparse.Namespace) -> int:
    """The command; its exit code."""
    brokers = _names("--brokers", args.brokers)
    queues: dict[str, list[MessageQueue]] = {}
    unread: list[str] = []
    for text in args.topic:
        name, equals, count = text.partition("=")
        if equals:
            queues[name] = _queues_of("--topic", name, count, brokers)
        else:
            unread.append(name)
    members = _members(args.members) if args.members is not None else None
    read_group = args.group is not None and (members is None or not args.topic)
    if unread or read_group:
        members = _read_cluster(args, queues, unread, members, read_group=read_group)
    if not queues:
        raise ConfigError("--topic", "", "name at least one topic, such as --topic orders=16")
    if not members:
        raise ConfigError("--members", args.members or "", "name at least one, such as --members a,b,c")
    later_queues = dict(queues)
    for text in args.resize:
        name, _, count = text.partition("=")
        if name not in queues:
            raise ConfigError("--resize", text, f"there is no topic {name!r}; there is {', '.join(queues)}")
        homes = list(dict.fromkeys(queue.broker_name for queue in queues[name]))
        later_queues[name] = _queues_of("--resize", name, count, homes)
    later_members = _changed(members, args.join, args.leave)
    group = args.group or "preview"
    changes = {
        strategy.name: _compared(strategy, group, (queues, later_queues), (members, later_members))
        for strategy in _strategies("--strategy", args.strategy, args.room)
    }
    is_change = later_queues != queues or later_members != members
    if args.json:
        print(json.dumps(_preview_json(group, changes, is_change), indent=2))
    else:
        _print_preview(changes, is_change)
    return 0


def _queues_of(option: str, topic: str, count: str, brokers: Sequence[str]) -> list[MessageQueue]:
    if not topic or not count.isdigit() or not 1 <= int(count) <= 65_536:
        raise ConfigError(option, f"{topic}={count}", "use NAME=QUEUES with 1 to 65536 queues")
    return [MessageQueue(topic, broker, number) for broker in brokers for number in range(int(count))]


def _names(option: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    twice = {name for name in names if names.count(name) > 1}
    if twice or not names:
        raise ConfigError(
            option, text, f"{sorted(twice)[0]} is named twice" if twice else "name at least one"
        )
    return names


def _members(text: str) -> list[str]:
    if text.isdigit():
        if not 1 <= int(text) <= 10_000:
            raise ConfigError("--members", text, "use 1 to 10000, or client ids separated by commas")
        width = len(text)
        return [f"member-{number:0{width}}" for number in range(1, int(text) + 1)]
    return _names("--members", text)


def _changed(members: list[str], joining: list[str], leaving: list[str]) -> list[str]:
    later = list(members)
    for name in _names("--leave", ",".join(leaving)) if leaving else []:
        if name not in later:
            raise ConfigError("--leave", name, f"no such member; there is {', '.join(later)}")
        later.remove(name)
    for name in _names("--join", ",".join(joining)) if joining else []:
        if name in later:
            raise ConfigError("--join", name, "a member already; choose another name")
        later.append(name)
    return later


def _strategies(option: str, text: str, rooms: Sequence[str] = ()) -> list[AllocateStrategy]:
    names = PLAIN_STRATEGIES if text == "all" else _names(option, text)
    if "CONFIG" in names:
        raise ConfigError(option, "CONFIG", "it takes a list of your own, so there is nothing to compute")
    places = RoomsByPrefix.parse("--room", rooms)
    if "MACHINE_ROOM" in names and not rooms:
        raise ConfigError(
            option, "MACHINE_ROOM", "it needs rooms: add --room PREFIX=ROOM, such as --room hz=hz"
        )
    return [strategy_by_name(name, rooms=places.names, resolver=places) for name in names]


def _compared(
    strategy: AllocateStrategy,
    group: str,
    queues: tuple[dict[str, list[MessageQueue]], dict[str, list[MessageQueue]]],
    members: tuple[list[str], list[str]],
) -> Comparison:
    now, later = ([queue for part in state.values() for queue in part] for state in queues)
    return compare(strategy, group, shares(strategy, group, now, members[0]), later, members[1])


def _print_preview(changes: dict[str, Comparison], is_change: bool) -> None:
    for strategy, change in changes.items():
        rows = [
            (name, _part(change.before, name), _part(change.after, name))
            for name in dict.fromkeys([*change.before, *change.after])
        ]
        if is_change:
            text = table(("member", "before", "after"), rows)
        else:
            text = table(("member", "queues"), (row[:2] for row in rows))
        told = f"counts differ by {change.spread}, {change.idle} idle"
        if is_change:
            moved, total = len(change.moves), len(owners_of(change.before))
            ratio = _ratio(moved, change.minimum)
            told = f"moved {moved} of {total}, minimum {change.minimum} ({ratio}); {told}"
        print(strategy, indent(f"{text}\n{told}\n", "  "), sep="\n")
    if len(changes) > 1 and is_change:
        heads = ("strategy", "moved", "minimum", "ratio", "spread", "idle")
        print(table(heads, (_change_row(strategy, change) for strategy, change in changes.items())))


def _change_row(strategy: str, change: Comparison) -> tuple[object, ...]:
    moved = len(change.moves)
    return strategy, moved, change.minimum, _ratio(moved, change.minimum), change.spread, change.idle


def _part(state: Parts, member: str) -> str:
    if member not in state:
        return "(not there)"
    return _ranges(state[member]) or "-"


def _ranges(queues: Iterable[MessageQueue]) -> str:
    """``orders 0-5, 9; refunds 0``; the broker is named if a topic has queues of several."""
    numbers: dict[tuple[str, str], list[int]] = {}
    for topic, broker, number in sort_queues(queues):
        numbers.setdefault((topic, broker), []).append(number)
    parts = []
    for (topic, broker), found in numbers.items():
        runs: list[list[int]] = []
        for number in found:
            if runs and number == runs[-1][1] + 1:
                runs[-1][1] = number
            else:
                runs.append([number, number])
        told = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
        parts.append(f"{topic}@{broker} {told}" if broker != "broker-a" else f"{topic} {told}")
    return "; ".join(parts)


def _preview_json(group: str, changes: dict[str, Comparison], is_change: bool) -> dict[str, Any]:
    def listed(state: Parts) -> dict[str, list[list[object]]]:
        return {member: [list(queue) for queue in part] for member, part in state.items()}

    return {
        "group": group,
        "change": is_change,
        "strategies": [
            {
                "strategy": strategy,
                "before": listed(change.before),
                "after": listed(change.after),
                "moved": [
                    {"queue": list(move.queue), "from": move.before, "to": move.after}
                    for move in change.moves
                ],
                "minimum": change.minimum,
                "spread": change.spread,
                "idle": change.idle,
            }
            for strategy, change in changes.items()
        ],
    }


def _read_cluster(
    args: argparse.Namespace,
    queues: dict[str, list[MessageQueue]],
    unread: list[str],
    members: list[str] | None,
    *,
    read_group: bool,
) -> list[str] | None:
    """Fills in the queues of topics and says the members, as the cluster has them."""
    import asyncio

    async def read() -> list[str] | None:
        found, topics = members, unread
        async with connect(args) as admin:
            if read_group:
                try:
                    group = await admin.groups.connections(args.group)
                except ConsumerNotOnlineError:
                    remedy = "it has no member now; say --members A,B and --topic NAME"
                    raise ConfigError("--group", args.group, remedy) from None
                found = members or [member.client_id for member in group.members]
                topics = unread if args.topic else list(group.subscriptions)
            for topic in topics:
                queues[topic] = await admin.topics.queues(topic)
        return found

    try:
        return asyncio.run(read())
    except ConnectError as error:
        raise ConnectError(f"{error}; say --topic NAME=16 --members A,B to ask nobody") from error


# -- allocateMQ ----------------------------------------------------------------------


def allocate(args: argparse.Namespace) -> int:
    """The command; its exit code."""
    import asyncio

    from gimbalmq.protocol.fastjson import queue_object

    members = [member.strip() for member in args.members.split(",") if member.strip()]
    if not members:
        raise ConfigError("-i", args.members, "name at least one client")

    async def read() -> list[MessageQueue]:
        async with connect(args) as admin:
            return await admin.topics.queues(args.topic)

    strategy, queues = Averagely(), asyncio.run(read())
    result = {
        member: [queue_object(queue) for queue in strategy.allocate("", member, queues, members)]
        for member in members
    }
    print(json.dumps({"result": result}, separators=(",", ":")))
    return 0


# -- simulate ------------------------------------------------------------------------


def simulate(args: argparse.Namespace) -> int:
    """The command; its exit code."""
    from gimbalmq.balance.simulate import day_of_changes
    from gimbalmq.balance.simulate import simulate as run_day

    if args.topics > args.queues:
        raise ConfigError("--topics", args.topics, f"every topic needs a queue; --queues is {args.queues}")
    strategies = _strategies("--strategies", args.strategies)
    queues = [
        MessageQueue(f"topic-{number % args.topics}", "broker-a", number // args.topics)
        for number in range(args.queues)
    ]
    members = [f"10.1.{number // 250}.{number % 250 + 1}@{4000 + number}" for number in range(args.members)]
    largest = max(64, 2 * args.members)
    day = day_of_changes(
        args.seed,
        queues,
        members,
        events=args.events,
        largest_group=largest,
        resizes=not args.no_resizes,
    )
    reports = [run_day(strategy, queues, day, members=members) for strategy in strategies]
    title = (
        f"{args.queues} queues, {args.members} members at the start, {args.events} changes (seed {args.seed})"
    )
    if args.json:
        print(
            json.dumps({"title": title, "strategies": [_report_json(report) for report in reports]}, indent=2)
        )
    else:
        print(title, _report_table(reports), sep="\n")
    if args.svg is not None or args.png is not None:
        _write_picture(args, title, reports)
    return 0


def worst_ratio(report: Report) -> float:
    """Largest moved / minimum of a single change, of those that had to move something."""
    return max((item.moved / item.minimum for item in report.outcomes if item.minimum), default=1.0)


def _report_table(reports: Sequence[Report]) -> str:
    return table(
        ("strategy", "moved", "minimum", "ratio", "worst", "spread", "unserved queue-seconds"),
        [
            (
                report.strategy,
                f"{report.moved:,}",
                f"{report.minimum:,}",
                _ratio(report.moved, report.minimum),
                f"{worst_ratio(report):.2f}x",
                str(report.worst_spread),
                f"{report.unserved_seconds:,.0f}",
            )
            for report in reports
        ],
    )


def _report_json(report: Report) -> dict[str, Any]:
    return {
        "strategy": report.strategy,
        "moved": report.moved,
        "minimum": report.minimum,
        "ratio": report.ratio if report.minimum else None,
        "worst": worst_ratio(report),
        "spread": report.worst_spread,
        "unserved_seconds": report.unserved_seconds,
        "changes": [
            {
                "at": outcome.at,
                "kind": outcome.event.kind,
                "members": outcome.members,
                "queues": outcome.queues,
                "moved": outcome.moved,
                "minimum": outcome.minimum,
            }
            for outcome in report.outcomes
        ],
    }


def _write_picture(args: argparse.Namespace, title: str, reports: Sequence[Report]) -> None:
    from gimbalmq.cli.picture import day_svg

    text = day_svg(title, reports)
    if args.svg is not None:
        _write(args.svg, "--svg", text.encode())
        return
    import shutil
    import subprocess

    converter = shutil.which("rsvg-convert")
    if converter is None:
        raise ConfigError(
            "--png",
            str(args.png),
            "needs rsvg-convert (Debian: librsvg2-bin); or use --svg, which needs nothing",
        )
    done = subprocess.run([converter, "--zoom", "2"], input=text.encode(), capture_output=True)
    if done.returncode:
        raise OSError(f"rsvg-convert failed: {done.stderr.decode(errors='replace').strip()}")
    _write(args.png, "--png", done.stdout)


def _write(file: Path, option: str, data: bytes) -> None:
    try:
        file.write_bytes(data)
    except OSError as error:
        raise OSError(f"{option} {file}: {error.strerror}; name a file that can be written") from error


def _ratio(moved: int, minimum: int) -> str:
    if minimum:
        return f"{moved / minimum:.2f}x"
    return "-" if moved else "1.00x"
