"""``gimbalmq broker VERB`` and ``gimbalmq controller``; without a verb ``gimbalmq broker`` runs a broker."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from gimbalmq.admin.texts import moment, pairs
from gimbalmq.cli.asking import (
    ABSENT,
    FAILED,
    OK,
    REFUSED,
    Named,
    Parser,
    Parsers,
    Shown,
    Verb,
    above_zero,
    add_noun,
    whole_number,
)
from gimbalmq.cli.rejoin import rejoin_verb
from gimbalmq.cli.terminal import confirmed, table
from gimbalmq.errors import ConfigError, ResponseError
from gimbalmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from gimbalmq.admin.admin import Admin
    from gimbalmq.admin.replica_views import EpochsView, ReplicaView, SyncStateView

_LARGEST = (1 << 63) - 1
_ITS_CLUSTER = "cluster of the broker (default: what the name servers say)"
_WAITS_FOR_NOBODY = (
    " Its sends wait for no slave; gimbalmq config set {} brokerRole=SYNC_MASTER has them wait."
)
_REMEDIES = {
    ResponseCode.CONTROLLER_ELECT_MASTER_FAILED: "gimbalmq broker sync-state shows the replicas that can be elected",
    ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED: "gimbalmq broker sync-state shows the brokers it knows",
    ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA: "stop it first, or say --living",
    ResponseCode.CONTROLLER_MASTER_STILL_EXIST: "it is the master already",
}
"""What a person may do about a controller's refusal."""

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
    add_noun(commands, "controller", "Apache's controllers, which elect masters", _controller_verbs())


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
        Verb(
            "sync-state",
            "with a controller: which replicas have all that is acknowledged",
            _sync_state,
            _sync_state_options,
            mqadmin=("getSyncStateSet",),
            examples=("broker sync-state broker-a", "getSyncStateSet -a 127.0.0.1:9878 -b broker-a"),
        ),
        Verb(
            "epochs",
            "with a controller: the terms of masters in each replica's log",
            _epochs,
            _epochs_options,
            mqadmin=("getBrokerEpoch",),
            examples=("broker epochs broker-a", "getBrokerEpoch -b broker-a"),
        ),
        Verb(
            "elect",
            "with a controller: make one replica of the set the master",
            _elect,
            lambda parser: _elect_options(parser, ask=True),
            watch=False,
            examples=("broker elect broker-a 2",),
        ),
        Verb(
            "",
            "make one replica of the set the master, without asking",
            _elect,
            lambda parser: _elect_options(parser, ask=False),
            mqadmin=("electMaster",),
            watch=False,
            examples=("electMaster -a 127.0.0.1:9878 -b 2 -bn broker-a -c DefaultCluster",),
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


def _controller_verbs() -> list[Verb]:
    return [
        Verb(
            "show",
            "which controllers there are, and which one leads",
            _show,
            _controller_option,
            mqadmin=("getControllerMetaData",),
            examples=("controller show", "getControllerMetaData -a 127.0.0.1:9878"),
        ),
        Verb(
            "config",
            "settings of controllers",
            _config,
            _config_options,
            mqadmin=("getControllerConfig",),
            examples=(
                "controller config scanNotActiveBrokerInterval",
                "getControllerConfig -a 127.0.0.1:9878",
            ),
        ),
        Verb(
            "set",
            "change settings of controllers",
            _set,
            _set_options,
            watch=False,
            examples=("controller set scanNotActiveBrokerInterval=2000",),
        ),
        Verb(
            "update",
            "as set, with mqadmin's flags",
            _set,
            _update_options,
            mqadmin=("updateControllerConfig",),
            watch=False,
            examples=("updateControllerConfig -a 127.0.0.1:9878 -k scanNotActiveBrokerInterval -v 2000",),
        ),
        Verb(
            "clean",
            "have the controller forget replicas that will not come back",
            _clean,
            lambda parser: _clean_options(parser, ask=True),
            watch=False,
            examples=("controller clean broker-a --ids '2;3' -c DefaultCluster",),
        ),
        Verb(
            "",
            "have the controller forget replicas, without asking",
            _clean,
            lambda parser: _clean_options(parser, ask=False),
            mqadmin=("cleanBrokerMetadata",),
            watch=False,
            examples=("cleanBrokerMetadata -a 127.0.0.1:9878 -bn broker-a -b '2;3' -c DefaultCluster",),
        ),
    ]


# -- who copies whom ------------------------------------------------------------------


def _interval_option(parser: Parser) -> None:
    parser.add_argument(
        "-i",
        "--interval",
        dest="watch",
        type=above_zero,
        metavar="SECONDS",
        help="show it again every so often",
    )


def _ha_status_options(parser: Parser) -> None:
    REPLICA.argument(parser)
    parser.add_argument("-c", "--cluster", "--clusterName", metavar="NAME", help="brokers of this cluster")
    parser.add_argument(
        "--max-behind",
        type=whole_number(0),
        metavar="BYTES",
        help="exit code 4 if a slave is further behind, or cannot be asked",
    )
    _interval_option(parser)


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
    add("--sync", action="store_true", help="as SYNC_MASTER, which answers sends when a slave has them, too")
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
    role = "SYNC_MASTER" if args.sync else "ASYNC_MASTER"
    question = f"Make {found.slave.title} the master ({role})?"
    if not confirmed(question, assume_yes=args.yes):
        return Shown("Nothing was changed.", data | {"promoted": False}, REFUSED)
    now = await admin.replication.promote(found, role=role)
    waits = "" if args.sync else _WAITS_FOR_NOBODY.format(now.broker)
    return Shown(
        f"{now.broker} at {now.address} is the master now, as {role}, with the log up to {now.log_end:,}.{waits}\n"
        "The old master must come back as a slave: gimbalmq broker rejoin --help",
        data | {"promoted": True, "now": asdict(now)},
    )


# -- with a controller ----------------------------------------------------------------


def _controller_option(parser: Parser) -> None:
    parser.add_argument(
        "-a",
        "--controller",
        "--controllerAddress",
        metavar="HOST:PORT[;...]",
        help="controllers (default: those that a broker was told of)",
    )


async def _controllers(admin: Admin, args: argparse.Namespace, broker: str | None = None) -> str:
    return str(args.controller or await admin.replication.controllers(broker))


@contextmanager
def _told() -> Iterator[None]:
    """Adds to a controller's refusal what to do about it."""
    try:
        yield
    except ResponseError as error:
        remedy = _REMEDIES.get(ResponseCode(error.code)) if error.code in set(ResponseCode) else None
        if remedy is None:
            raise
        raise ResponseError(f"{error.remark}; {remedy}", code=error.code, address=error.address) from error


def _sync_state_options(parser: Parser) -> None:
    parser.add_argument("broker", nargs="?", metavar="BROKER", help="name of the broker (all)")
    parser.add_argument("-b", "--brokerName", dest="broker_flag", metavar="BROKER", help="the same")
    parser.add_argument("-c", "--cluster", "--clusterName", metavar="NAME", help="brokers of this cluster")
    _controller_option(parser)
    _interval_option(parser)


async def _sync_state(admin: Admin, args: argparse.Namespace) -> Shown:
    broker = args.broker_flag or args.broker
    controllers = await _controllers(admin, args, broker)
    views = await admin.replication.sync_state(controllers, broker, cluster=args.cluster)
    if not views:
        return Shown("The controller knows no such broker.", [], ABSENT)
    return Shown("\n\n".join(map(_set_text, views)), [asdict(view) for view in views])


def _set_text(view: SyncStateView) -> str:
    master = f"{view.master_id} at {view.master}" if view.master else "nobody"
    head = f"{view.broker}: master {master}, epoch {view.master_epoch}, set epoch {view.set_epoch}"
    rows = [
        (member.broker_id, member.address, in_sync, member.alive)
        for members, in_sync in ((view.in_sync, True), (view.not_in_sync, False))
        for member in members
    ]
    return f"{head}\n{table(('ID', 'ADDRESS', 'IN SYNC', 'ALIVE'), rows)}"


def _epochs_options(parser: Parser) -> None:
    parser.add_argument("broker", nargs="?", metavar="BROKER", help="name or address (all)")
    parser.add_argument("-b", "--brokerName", dest="broker_flag", metavar="BROKER", help="the same")
    parser.add_argument("-c", "--cluster", "--clusterName", metavar="NAME", help="brokers of this cluster")
    _interval_option(parser)


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


def _elect_options(parser: Parser, *, ask: bool) -> None:
    _controller_option(parser)
    add = parser.add_argument
    add("-c", "--cluster", "--clusterName", metavar="NAME", help=_ITS_CLUSTER)
    if ask:
        add("broker", metavar="BROKER", help="name of the broker")
        add("id", type=whole_number(1, _LARGEST), metavar="ID", help="the controller's id of the replica")
        add("-y", "--yes", action="store_true", help="do not ask")
    else:
        add("-bn", "--brokerName", dest="broker", required=True, metavar="BROKER", help="name of the broker")
        add(
            "-b",
            "--brokerId",
            dest="id",
            type=whole_number(1, _LARGEST),
            required=True,
            metavar="ID",
            help="the controller's id of the replica",
        )
        parser.set_defaults(yes=True)


async def _elect(admin: Admin, args: argparse.Namespace) -> Shown:
    controllers = await _controllers(admin, args, args.broker)
    question = f"Make replica {args.id} the master of {args.broker}? Sends fail until it is."
    if not confirmed(question, assume_yes=args.yes):
        return Shown("Nothing was changed.", code=REFUSED)
    with _told():
        view = await admin.replication.elect(controllers, args.broker, args.id, cluster=args.cluster)
    return Shown(
        f"{view.broker}: replica {view.master_id} at {view.master} is the master now, "
        f"epoch {view.master_epoch}, set epoch {view.set_epoch}.",
        asdict(view),
    )


# -- controllers ----------------------------------------------------------------------


async def _show(admin: Admin, args: argparse.Namespace) -> Shown:
    view = await admin.replication.controller(await _controllers(admin, args))
    rows = [(name, address, name == view.leader_id) for name, address in view.peers.items()]
    head = f"group {view.group}, led by {view.leader_id or 'nobody'}"
    return Shown(f"{head}\n{table(('CONTROLLER', 'ADDRESS', 'LEADS'), rows)}", asdict(view))


def _config_options(parser: Parser) -> None:
    parser.add_argument("keys", nargs="*", metavar="KEY", help="only these settings")
    _controller_option(parser)


async def _config(admin: Admin, args: argparse.Namespace) -> Shown:
    found = await admin.replication.controller_config(await _controllers(admin, args))
    for settings in found.values():
        for key in args.keys:
            if key not in settings:
                raise ConfigError("KEY", key, "there is no such setting; leave KEY out to see all")
    kept = {
        address: {key: value for key, value in sorted(settings.items()) if not args.keys or key in args.keys}
        for address, settings in found.items()
    }
    texts = [
        (f"# {address}\n" if len(kept) > 1 else "")
        + "\n".join(f"{key}={value}" for key, value in kept[address].items())
        for address in kept
    ]
    return Shown("\n\n".join(texts), kept)


def _set_options(parser: Parser) -> None:
    parser.add_argument("settings", nargs="+", metavar="KEY=VALUE", help="RocketMQ's keys")
    parser.set_defaults(key=None, value=None)
    _controller_option(parser)


def _update_options(parser: Parser) -> None:
    parser.add_argument("-k", "--key", required=True, metavar="KEY", help="RocketMQ's key")
    parser.add_argument("-v", "--value", required=True, metavar="VALUE", help="its new value")
    parser.set_defaults(settings=())
    _controller_option(parser)


async def _set(admin: Admin, args: argparse.Namespace) -> Shown:
    settings = {} if args.key is None else {args.key: args.value}
    for text in args.settings:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError("KEY=VALUE", text, "write a key, = and its value")
        settings[key.strip()] = value.strip()
    changed = await admin.replication.set_controller_config(await _controllers(admin, args), settings)
    told = ", ".join(f"{key}={value}" for key, value in settings.items())
    return Shown(
        "\n".join(f"{address}: {told}" for address in changed), {"changed": changed, "settings": settings}
    )


def _clean_options(parser: Parser, *, ask: bool) -> None:
    _controller_option(parser)
    add = parser.add_argument
    if ask:
        add("broker", metavar="BROKER", help="name of the broker")
        add("--ids", metavar="ID[;...]", help="the controller's ids (default: all of the broker)")
        add("--living", action="store_true", help="even replicas that are alive")
        add("-y", "--yes", action="store_true", help="do not ask")
    else:
        add("-bn", "--brokerName", dest="broker", required=True, metavar="BROKER", help="name of the broker")
        add("-b", "--brokerControllerIdsToClean", dest="ids", metavar="ID[;...]", help="the controller's ids")
        add("-l", "--cleanLivingBroker", dest="living", action="store_true", help="even those that are alive")
        parser.set_defaults(yes=True)
    add("-c", "--cluster", "--clusterName", metavar="NAME", help=_ITS_CLUSTER)


async def _clean(admin: Admin, args: argparse.Namespace) -> Shown:
    if args.ids is not None and not all(word.strip().isdecimal() for word in args.ids.split(";")):
        raise ConfigError("--ids", args.ids, "write the controller's ids, separated by ;")
    controllers = await _controllers(admin, args, args.broker)
    which = f"replicas {args.ids}" if args.ids else "all replicas"
    if not confirmed(f"Have the controller forget {which} of {args.broker}?", assume_yes=args.yes):
        return Shown("Nothing was changed.", code=REFUSED)
    with _told():
        await admin.replication.clean(
            controllers, args.broker, cluster=args.cluster, ids=args.ids, living=args.living
        )
    return Shown(
        f"The controller has forgotten {which} of {args.broker}.",
        {"broker": args.broker, "ids": args.ids, "living": args.living},
    )
