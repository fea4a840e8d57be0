"""``gimbalmq broker VERB`` and ``gimbalmq controller``; without a verb ``gimbalmq broker`` runs a broker."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from gimbalmq.admin.texts import moment, pairs
from gimbalmq.cli.asking import (
    FAILED,
    OK,
    REFUSED,
    Named,
    Parser,
    Parsers,
    Shown,
    Verb,
    add_noun,
    whole_number,
)
from gimbalmq.cli.controllers import controller_verbs, election_verbs, interval_option
from gimbalmq.cli.rejoin import rejoin_verb
from gimbalmq.cli.terminal import confirmed, table

if TYPE_CHECKING:
    from gimbalmq.admin.admin import Admin
    from gimbalmq.admin.replica_views import EpochsView, ReplicaView

_LARGEST = (1 << 63) - 1
_WAITS_FOR_NOBODY = (
    " Its sends wait for no slave; gimbalmq config set {} brokerRole=SYNC_MASTER has them wait."
)
REPLICA = Named(
    "broker",
    ("-b", "--broker", "--brokerAddr"),
    "name or address",
    "name a broker; gimbalmq cluster list shows them",
)
SLAVE = Named(
    "slave",
    ("-b", "--brokerAddr"),
    "address of the slave, or the broker's name: then its fullest slave",
    "give the address of a slave; gimbalmq broker ha-status shows them",
)


def add_commands(commands: Parsers[Parser]) -> None:
    """Puts both nouns into the command line."""
    about = "replicas of brokers: who copies whom, and who is the master"
    add_noun(commands, "broker", about, _broker_verbs())
    add_noun(commands, "controller", "Apache's controllers, which elect masters", controller_verbs())


def _broker_verbs() -> list[Verb]:
    return [
        Verb(
            "ha-status",
            "who copies whom, and how far behind",
            _ha_status,
            _ha_status_options,
            mqadmin=("haStatus",),
            examples=(
                "broker ha-status --watch",
                "broker ha-status broker-a",
                "broker ha-status --max-behind 1000000     # exit code 4 above it",
                "haStatus -b 127.0.0.1:10911",
            ),
        ),
        Verb(
            "promote",
            "make a slave the master, after its master is gone",
            _promote,
            _promote_options,
            watch=False,
            examples=(
                "broker promote 127.0.0.1:10921     # says what it knows, and asks",
                "broker promote broker-a --sync --yes",
            ),
        ),
        rejoin_verb(),
        *election_verbs(),
        Verb(
            "epochs",
            "with a controller: the terms of masters in each replica's log",
            _epochs,
            _epochs_options,
            mqadmin=("getBrokerEpoch",),
            examples=("broker epochs broker-a", "getBrokerEpoch -b broker-a"),
        ),
        Verb(
            "reset-master-flush-offset",
            "change the number that a slave shows as its master's flushed offset",
            _reset_flush_offset,
            _reset_flush_offset_options,
            mqadmin=("resetMasterFlushOffset",),
            watch=False,
            examples=("resetMasterFlushOffset -b 127.0.0.1:10921 -o 0",),
        ),
    ]


# -- who copies whom ------------------------------------------------------------------


def _ha_status_options(parser: Parser) -> None:
    REPLICA.argument(parser)
    parser.add_argument("-c", "--cluster", "--clusterName", metavar="NAME", help="brokers of this cluster")
    parser.add_argument(
        "--max-behind",
        type=whole_number(0),
        metavar="BYTES",
        help="exit code 4 if a slave is further behind, or cannot be asked",
    )
    interval_option(parser)


async def _ha_status(admin: Admin, args: argparse.Namespace) -> Shown:
    broker = args.broker_flag or args.broker
    views = await admin.replication.status(broker, cluster=args.cluster)
    parts = [_replicas(views)]
    if broker is not None:
        parts += [text for view in views if (text := _details(view))]
    parts += [
        f"{view.title}: {view.trouble or view.problem}" for view in views if view.trouble or view.problem
    ]
    code = FAILED if any(view.trouble or view.problem for view in views) else OK
    if args.max_behind is not None:
        slaves = [view for view in views if view.is_slave]
        late = any(view.behind is None or view.behind > args.max_behind for view in slaves)
        code = REFUSED if late else code
    return Shown("\n\n".join(parts), [asdict(view) for view in views], code)


def _replicas(views: list[ReplicaView]) -> str:
    head = ("BROKER", "ID", "ROLE", "ADDRESS", "LOG END", "BEHIND", "STATE")
    rows = [
        (
            view.broker,
            view.broker_id,
            view.role,
            view.address,
            view.log_end,
            view.behind if view.is_slave else "",
            _state(view),
        )
        for view in views
    ]
    return table(head, rows, empty="No broker is registered.")


def _state(view: ReplicaView) -> str:
    if view.problem:
        return "no permission" if view.refused else "cannot be asked"
    if view.is_slave:
        return view.state or "-"
    if not view.tells_copies:
        return "-"
    connected = len(view.slaves)
    return f"{view.in_sync_slaves} of {connected} in sync" if connected else "no slave"


def _details(view: ReplicaView) -> str:
    if view.problem or not view.tells_copies:
        return ""
    if not view.is_slave:
        head = ("SLAVE OF " + view.broker.upper(), "HAS UP TO", "BEHIND", "SENT UP TO", "BYTES/S", "IN SYNC")
        rows = [
            (item.address, item.acked, item.behind, item.sent, item.bytes_per_second, item.in_sync)
            for item in view.slaves
        ]
        return table(head, rows, empty=f"No slave is connected to {view.broker} at {view.address}.")
    return pairs(
        [
            (f"{view.broker}, slave {view.broker_id}", ""),
            ("copies from", view.master or "nobody: no master is known"),
            ("log end", view.log_end),
            ("bytes/s", view.bytes_per_second),
            ("last read", moment(view.last_read_ms)),
            ("last report", moment(view.last_write_ms)),
            ("master flushed", view.master_flush_offset),
        ]
    )


def _reset_flush_offset_options(parser: Parser) -> None:
    SLAVE.argument(parser)
    parser.add_argument(
        "-o", "--offset", type=whole_number(0, _LARGEST), required=True, metavar="N", help="the new number"
    )


async def _reset_flush_offset(admin: Admin, args: argparse.Namespace) -> Shown:
    address = await admin.replication.reset_master_flush_offset(SLAVE.of(args), args.offset)
    return Shown(
        f"{address} shows {args.offset} as its master's flushed offset now.",
        {"address": address, "masterFlushOffset": args.offset},
    )


# -- by hand --------------------------------------------------------------------------


def _promote_options(parser: Parser) -> None:
    SLAVE.argument(parser)
    add = parser.add_argument
    roles = parser.add_mutually_exclusive_group()
    for name, role, does in (
        ("--sync", "SYNC_MASTER", "which answers sends when a slave has them, too"),
        ("--async", "ASYNC_MASTER", "which waits for nobody"),
    ):
        roles.add_argument(
            name,
            dest="role",
            action="store_const",
            const=role,
            help=f"as {role}, {does} (default: what its master was)",
        )
    add("--dry-run", action="store_true", help="only say what is known")
    add("--force", action="store_true", help="even if something is known to be lost")
    add("-y", "--yes", action="store_true", help="do not ask")


async def _promote(admin: Admin, args: argparse.Namespace) -> Shown:
    found = await admin.replication.promotion(SLAVE.of(args))
    data = asdict(found) | {"is_safe": found.is_safe}
    told = "\n".join(found.notes)
    dangers = "".join(f"\n- {danger}" for danger in found.dangers)
    if args.dry_run:
        safe = f"It should not be promoted:{dangers}" if dangers else "Nothing speaks against it."
        return Shown(f"{told}\n{safe}", data, REFUSED if dangers else OK)
    if dangers and not args.force:
        told = f"{found.slave.title} was not promoted:{dangers}\nSay --force to promote it all the same."
        return Shown(told, data | {"promoted": False}, REFUSED)
    if not args.json:
        print(f"{told}{dangers and chr(10) + 'In spite of this:' + dangers}")
    role = found.role(args.role)
    question = f"Make {found.slave.title} the master ({role})?"
    if not confirmed(question, assume_yes=args.yes):
        return Shown("Nothing was changed.", data | {"promoted": False}, REFUSED)
    now = await admin.replication.promote(found, role=role, force=args.force)
    waits = "" if role == "SYNC_MASTER" else _WAITS_FOR_NOBODY.format(now.broker)
    return Shown(
        f"{now.broker} at {now.address} is the master now, as {role}, with the log up to {now.log_end:,}.{waits}\n"
        "The old master must come back as a slave: gimbalmq broker rejoin --help",
        data | {"promoted": True, "now": asdict(now)},
    )


# -- with a controller ----------------------------------------------------------------


def _epochs_options(parser: Parser) -> None:
    parser.add_argument("broker", nargs="?", metavar="BROKER", help="name or address (all)")
    parser.add_argument("-b", "--brokerName", dest="broker_flag", metavar="BROKER", help="the same")
    parser.add_argument("-c", "--cluster", "--clusterName", metavar="NAME", help="brokers of this cluster")
    interval_option(parser)


async def _epochs(admin: Admin, args: argparse.Namespace) -> Shown:
    views = await admin.replication.epochs(args.broker_flag or args.broker, cluster=args.cluster)
    code = FAILED if any(view.problem for view in views) else OK
    return Shown("\n\n".join(map(_epochs_text, views)), [asdict(view) for view in views], code)


def _epochs_text(view: EpochsView) -> str:
    head = f"{view.broker}, id {view.broker_id} at {view.address}"
    if view.problem:
        return f"{head}: {view.problem}"
    rows = [
        (item.epoch, item.start, view.log_end if item.end == _LARGEST else item.end) for item in view.epochs
    ]
    return (
        f"{head}, log up to {view.log_end:,}\n{table(('EPOCH', 'FROM', 'TO'), rows, empty='No epoch yet.')}"
    )
