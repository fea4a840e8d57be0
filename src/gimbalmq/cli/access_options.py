"""What the commands of users and of policies share: options, and how a change is told."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gimbalmq.cli.asking import FAILED, Parser, Shown
from gimbalmq.cli.output import complain
from gimbalmq.errors import ConfigError

if TYPE_CHECKING:
    from gimbalmq.admin.views import AccessChange


def place_options(parser: Parser) -> None:
    """Which servers: all of the cluster, if nothing is said."""
    parser.add_argument(
        *("-b", "--broker", "--brokerAddr"),
        dest="broker",
        metavar="BROKER",
        help="only this broker, by name, or only the server of this address",
    )
    parser.add_argument(
        *("-c", "--cluster", "--clusterName"),
        dest="cluster",
        metavar="NAME",
        help="only brokers of this cluster, and the name servers",
    )


def place_of(args: argparse.Namespace) -> dict[str, str | None]:
    """The servers that ``place_options`` name, as arguments of Admin's calls."""
    if args.broker is not None and args.cluster is not None:
        raise ConfigError("--broker", args.broker, "give --broker or --cluster, not both")
    return {"broker": args.broker, "cluster": args.cluster}


def yes_option(parser: Parser, *, ask: bool) -> None:
    """``--yes``, or no question at all: mqadmin asks none."""
    if ask:
        parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    else:
        parser.set_defaults(yes=True)


def listed(text: str | None) -> list[str]:
    """``a, b`` as a list."""
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def changed(done: AccessChange, what: str, data: dict[str, Any]) -> Shown:
    """What was done, at which servers, and at which not."""
    for address, problem in done.problems.items():
        complain(f"not at {address}: {problem}")
    text = f"{what} at {', '.join(done.servers)}."
    return Shown(text, {**data, **asdict(done)}, FAILED if done.problems else 0)


def copy_options(parser: Parser, noun: str, flags: tuple[str, str]) -> None:
    """From one server to another, all or some."""
    parser.add_argument("names", nargs="*", metavar="USER", help=f"only these {noun}")
    parser.add_argument(*flags, dest="names_flag", metavar="USER[,...]", help="the same")
    parser.add_argument(
        *("-f", "--from", "--fromBroker"),
        dest="source",
        required=True,
        metavar="BROKER",
        help="name or address of the server to read",
    )
    parser.add_argument(
        *("-t", "--to", "--toBroker"),
        dest="target",
        required=True,
        metavar="BROKER",
        help="name or address of the server to change",
    )


def copied(what: str, names: list[str], args: argparse.Namespace) -> Shown:
    """What was copied, by the names of the users."""
    data = {"from": args.source, "to": args.target, "copied": names}
    if not names:
        return Shown(f"There is nothing to copy at {args.source}.", data)
    return Shown(f"From {args.source} to {args.target}: {what} {', '.join(names)}.", data)
