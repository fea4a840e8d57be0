"""Settings of running servers on the command line: KEY=VALUE in, ``key=value`` lines out."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from gimbalmq.cli.asking import Parser, Shown
from gimbalmq.cli.parsing import pair
from gimbalmq.errors import ConfigError


def settings_argument(parser: Parser) -> None:
    """KEY=VALUE, as often as wanted."""
    parser.add_argument("settings", nargs="+", type=pair, metavar="KEY=VALUE", help="RocketMQ's keys")
    parser.set_defaults(key=None, value=None)


def setting_flags(parser: Parser) -> None:
    """mqadmin's flags for one setting."""
    parser.add_argument("-k", "--key", required=True, metavar="KEY", help="RocketMQ's key")
    parser.add_argument("-v", "--value", required=True, metavar="VALUE", help="its new value")
    parser.set_defaults(settings=())


def settings_of(args: argparse.Namespace) -> dict[str, str]:
    """What is to be set, whichever way it was written."""
    return dict(args.settings) if args.key is None else {args.key: args.value}


def shown_settings(found: Mapping[str, Mapping[str, str]], keys: Sequence[str]) -> Shown:
    """The settings of each server, or these of them; raises ConfigError if a server does not have one."""
    for settings in found.values():
        for key in keys:
            if key not in settings:
                raise ConfigError("KEY", key, "there is no such setting; leave KEY out to see all")
    kept = {
        owner: {key: value for key, value in sorted(settings.items()) if not keys or key in keys}
        for owner, settings in found.items()
    }
    texts = [
        (f"# {owner}\n" if len(kept) > 1 else "")
        + "\n".join(f"{key}={value}" for key, value in settings.items())
        for owner, settings in kept.items()
    ]
    return Shown("\n\n".join(texts), kept)


def changed_settings(changed: Sequence[str], settings: Mapping[str, str]) -> Shown:
    """What was set, and where."""
    told = ", ".join(f"{key}={value}" for key, value in settings.items())
    return Shown(
        "\n".join(f"{owner}: {told}" for owner in changed), {"changed": changed, "settings": settings}
    )
