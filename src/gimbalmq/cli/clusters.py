"""``gimbalmq cluster`` and ``gimbalmq config``; ``gimbalmq broker`` itself runs a broker."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from gimbalmq.admin.texts import moment, pairs
from gimbalmq.cli import local_cluster
from gimbalmq.cli.asking import BROKER, FAILED, REFUSED, Parser, Parsers, Shown, Verb, add_noun
from gimbalmq.cli.settings import (
    changed_settings,
    setting_flags,
    settings_argument,
    settings_of,
    shown_settings,
)
from gimbalmq.cli.terminal import confirmed, table
from gimbalmq.errors import ResponseError

if TYPE_CHECKING:
    from gimbalmq.admin.admin import Admin


def add_commands(commands: Parsers[Parser]) -> None:
    """Puts both nouns into the command line."""
    verbs = add_noun(
        commands,
        "cluster",
        "clusters and their brokers",
        [
            Verb(
                "list",
                "every broker of every cluster, with its rates",
                _list,
                mqadmin=("clusterList",),
                examples=("cluster list", "cluster list --watch"),
            ),
            Verb(
                "status",
                "everything one broker tells of itself",
                _status,
                BROKER.argument,
                mqadmin=("brokerStatus",),
                examples=("cluster status broker-a", "brokerStatus -b 127.0.0.1:10911"),
            ),
            Verb(
                "writable",
                "take a broker out of the producers' rotation, or back",
                _writable,
                _writable_options,
                watch=False,
                examples=("cluster writable broker-a no   # before it is taken down",),
            ),
            Verb(
                "",
                "take a broker out of the producers' rotation, without asking",
                _writable,
                lambda parser: _write_perm_options(parser, "no"),
                mqadmin=("wipeWritePerm",),
                watch=False,
                examples=("wipeWritePerm -b broker-a",),
            ),
            Verb(
                "",
                "take a broker back into the producers' rotation",
                _writable,
                lambda parser: _write_perm_options(parser, "yes"),
                mqadmin=("addWritePerm",),
                watch=False,
                examples=("addWritePerm -b broker-a",),
            ),
        ],
    )
    local_cluster.add_command(verbs)
    add_noun(
        commands,
        "config",
        "settings of running brokers and name servers",
        [
            Verb(
                "get",
                "a broker's settings, or the name servers'",
                _get,
                _get_options,
                mqadmin=("getBrokerConfig",),
                examples=("config get broker-a", "config get broker-a fileReservedTime flushDiskType"),
            ),
            Verb(
                "set",
                "change settings of one broker, a cluster's or all",
                _set,
                _set_options,
                watch=False,
                examples=("config set broker-a fileReservedTime=24",),
            ),
            Verb(
                "update",
                "as set, with mqadmin's flags",
                _set,
                _update_options,
                mqadmin=("updateBrokerConfig",),
                watch=False,
                examples=("updateBrokerConfig -b 127.0.0.1:10911 -k fileReservedTime -v 24",),
            ),
        ],
    )


async def _list(admin: Admin, args: argparse.Namespace) -> Shown:
    brokers = await admin.clusters.brokers()
    rows = [
        (
            view.cluster,
            view.broker,
            view.broker_id,
            view.address,
            view.version or "-",
            view.put_tps,
            view.get_tps,
            f"{view.disk_used:.0%}",
            moment(view.boot_ms),
            view.problem,
        )
        for view in brokers
    ]
    head = ("CLUSTER", "BROKER", "ID", "ADDRESS", "VERSION", "IN/S", "OUT/S", "DISK", "UP SINCE", "PROBLEM")
    code = FAILED if any(view.problem for view in brokers) else 0
    return Shown(
        table(head, rows, empty="No broker is registered."), [asdict(view) for view in brokers], code
    )


async def _status(admin: Admin, args: argparse.Namespace) -> Shown:
    view = await admin.clusters.broker(BROKER.of(args))
    if view.problem:
        return Shown(view.problem, asdict(view), FAILED)
    return Shown(pairs(sorted(view.runtime.items())), asdict(view))


def _writable_options(parser: Parser) -> None:
    parser.add_argument("broker", metavar="BROKER", help="name of the broker")
    parser.add_argument("writable", choices=("yes", "no"), help="whether producers may use it")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def _write_perm_options(parser: Parser, writable: str) -> None:
    parser.add_argument(
        "-b", "--brokerName", dest="broker", required=True, metavar="BROKER", help="name of the broker"
    )
    parser.set_defaults(writable=writable, yes=True)


async def _writable(admin: Admin, args: argparse.Namespace) -> Shown:
    wanted = args.writable == "yes"
    if not wanted and not confirmed(
        f"Producers will stop sending to {args.broker}. Go on?", assume_yes=args.yes
    ):
        return Shown("Nothing was changed.", code=REFUSED)
    counts = await admin.clusters.set_writable(args.broker, wanted)
    now = f"topics of {args.broker} are {'writable' if wanted else 'read-only'} now"
    return Shown(
        "\n".join(f"{address}: {count} {now}." for address, count in counts.items()),
        {"broker": args.broker, "writable": wanted, "topics": max(counts.values()), "nameservers": counts},
    )


def _get_options(parser: Parser) -> None:
    BROKER.argument(parser)
    parser.add_argument("keys", nargs="*", metavar="KEY", help="only these settings")
    parser.add_argument("--of-namesrv", action="store_true", help="the name servers' settings instead")


async def _get(admin: Admin, args: argparse.Namespace) -> Shown:
    keys = args.keys
    if args.broker is not None and (args.of_namesrv or args.broker_flag is not None):
        keys, args.broker = [args.broker, *keys], None  # no broker was to be named here
    if args.of_namesrv:
        found = await admin.clusters.nameserver_config()
    else:
        broker = BROKER.of(args)
        found = {broker: await admin.clusters.config(broker)}
    shown = shown_settings(found, keys)
    return shown if args.of_namesrv else replace(shown, data=next(iter(shown.data.values())))


def _set_options(parser: Parser) -> None:
    add = parser.add_argument
    add("broker", metavar="BROKER|all", help="name or address of a broker, or all")
    settings_argument(parser)
    add("-c", "--cluster", metavar="NAME", help="with all: of this cluster only")
    add("--of-namesrv", action="store_true", help="of the name servers instead (BROKER is all)")


def _update_options(parser: Parser) -> None:
    add = parser.add_argument
    add("-b", "--broker", default="all", metavar="BROKER", help="name or address of a broker")
    add("-c", "--cluster", metavar="NAME", help="all brokers of this cluster")
    setting_flags(parser)
    parser.set_defaults(of_namesrv=False)


async def _set(admin: Admin, args: argparse.Namespace) -> Shown:
    settings = settings_of(args)
    try:
        if args.of_namesrv:
            changed = await admin.clusters.set_nameserver_config(settings)
        else:
            broker = None if args.broker == "all" else args.broker
            changed = await admin.clusters.set_config(settings, broker=broker, cluster=args.cluster)
    except ResponseError as error:
        where = "--of-namesrv" if args.of_namesrv else "BROKER"
        told = f"{error.remark}; gimbalmq config get {where} shows keys and values"
        raise ResponseError(told, code=error.code, address=error.address) from error
    return changed_settings(changed, settings)
