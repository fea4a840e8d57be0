"""Commands about Apache's controllers: who is in sync, elections, and the controllers themselves."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from gimbalmq.cli.asking import (
    ABSENT,
    REFUSED,
    Parser,
    Shown,
    Verb,
    above_zero,
    asked_first,
    whole_number,
)
from gimbalmq.cli.settings import (
    changed_settings,
    setting_flags,
    settings_argument,
    settings_of,
    shown_settings,
)
from gimbalmq.cli.terminal import confirmed, table
from gimbalmq.errors import ConfigError, ResponseError
from gimbalmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from gimbalmq.admin.admin import Admin
    from gimbalmq.admin.replica_views import SyncStateView

_LARGEST = (1 << 63) - 1
_ITS_CLUSTER = "cluster of the broker (default: what the name servers say)"
_REMEDIES = {
    ResponseCode.CONTROLLER_ELECT_MASTER_FAILED: "gimbalmq broker sync-state shows the replicas that can be elected",
    ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED: "gimbalmq broker sync-state shows the brokers it knows",
    ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA: "stop it first, or say --living",
    ResponseCode.CONTROLLER_MASTER_STILL_EXIST: "it is the master already",
}
"""What a person may do about a controller's refusal."""


def election_verbs() -> list[Verb]:
    """Verbs of ``gimbalmq broker`` that ask controllers."""
    return [
        Verb(
            "sync-state",
            "with a controller: which replicas have all that is acknowledged",
            _sync_state,
            _sync_state_options,
            mqadmin=("getSyncStateSet",),
            examples=("broker sync-state broker-a", "getSyncStateSet -a 127.0.0.1:9878 -b broker-a"),
        ),
        *asked_first(
            Verb(
                "elect",
                "with a controller: make one replica of the set the master",
                _elect,
                examples=("broker elect broker-a 2",),
            ),
            _elect_options,
            mqadmin="electMaster",
            example="electMaster -a 127.0.0.1:9878 -b 2 -bn broker-a -c DefaultCluster",
        ),
    ]


def controller_verbs() -> list[Verb]:
    """Verbs of ``gimbalmq controller``."""
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
        *asked_first(
            Verb(
                "clean",
                "have the controller forget replicas that will not come back",
                _clean,
                examples=("controller clean broker-a --ids '2;3' -c DefaultCluster",),
            ),
            _clean_options,
            mqadmin="cleanBrokerMetadata",
            example="cleanBrokerMetadata -a 127.0.0.1:9878 -bn broker-a -b '2;3' -c DefaultCluster",
        ),
    ]


def interval_option(parser: Parser) -> None:
    parser.add_argument(
        "-i",
        "--interval",
        dest="watch",
        type=above_zero,
        metavar="SECONDS",
        help="show it again every so often",
    )


def _controller_option(parser: Parser) -> None:
    parser.add_argument(
        "-a",
        "--controller",
        "--controllerAddress",
        metavar="HOST:PORT[;...]",
        help="controllers (default: those that a broker was told of)",
    )


async def _controllers(admin: Admin, args: argparse.Namespace, broker: str | None = None) -> str:
    return str(args.controller or await admin.controllers.addresses(broker))


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
    interval_option(parser)


async def _sync_state(admin: Admin, args: argparse.Namespace) -> Shown:
    broker = args.broker_flag or args.broker
    controllers = await _controllers(admin, args, broker)
    views = await admin.controllers.sync_state(controllers, broker, cluster=args.cluster)
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


def _elect_options(parser: Parser, ask: bool) -> None:
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
        view = await admin.controllers.elect(controllers, args.broker, args.id, cluster=args.cluster)
    return Shown(
        f"{view.broker}: replica {view.master_id} at {view.master} is the master now, "
        f"epoch {view.master_epoch}, set epoch {view.set_epoch}.",
        asdict(view),
    )


# -- controllers ----------------------------------------------------------------------


async def _show(admin: Admin, args: argparse.Namespace) -> Shown:
    view = await admin.controllers.show(await _controllers(admin, args))
    rows = [(name, address, name == view.leader_id) for name, address in view.peers.items()]
    head = f"group {view.group}, led by {view.leader_id or 'nobody'}"
    return Shown(f"{head}\n{table(('CONTROLLER', 'ADDRESS', 'LEADS'), rows)}", asdict(view))


def _config_options(parser: Parser) -> None:
    parser.add_argument("keys", nargs="*", metavar="KEY", help="only these settings")
    _controller_option(parser)


async def _config(admin: Admin, args: argparse.Namespace) -> Shown:
    return shown_settings(await admin.controllers.config(await _controllers(admin, args)), args.keys)


def _set_options(parser: Parser) -> None:
    settings_argument(parser)
    _controller_option(parser)


def _update_options(parser: Parser) -> None:
    setting_flags(parser)
    _controller_option(parser)


async def _set(admin: Admin, args: argparse.Namespace) -> Shown:
    settings = settings_of(args)
    changed = await admin.controllers.set_config(await _controllers(admin, args), settings)
    return changed_settings(changed, settings)


def _clean_options(parser: Parser, ask: bool) -> None:
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
        await admin.controllers.clean(
            controllers, args.broker, cluster=args.cluster, ids=args.ids, living=args.living
        )
    return Shown(
        f"The controller has forgotten {which} of {args.broker}.",
        {"broker": args.broker, "ids": args.ids, "living": args.living},
    )
