"""Where a command gets a password from: a prompt, a file, the environment; from its own words only with a warning."""

from __future__ import annotations

import argparse
import getpass
import os
import secrets
import sys
from pathlib import Path

from gimbalmq.cli.output import complain
from gimbalmq.errors import ConfigError

VARIABLE = "GIMBALMQ_USER_PASSWORD"

_MOST_BYTES = 4096


def password_options(parser: argparse.ArgumentParser) -> None:
    """The ways to give a user's password."""
    group = parser.add_argument_group("password", "one of these")
    group.add_argument(
        "--ask-password", action="store_true", help="ask for it, without showing what is typed"
    )
    group.add_argument(
        "--password-file",
        type=Path,
        metavar="FILE",
        help="file whose first line it is, or - for standard input",
    )
    group.add_argument("--password-env", action="store_true", help=f"it is in the variable {VARIABLE}")
    group.add_argument(
        *("-p", "--password"),
        metavar="PASSWORD",
        help="the password itself; others see it in the list of processes",
    )


def new_secret() -> str:
    """One that nobody can guess."""
    return secrets.token_urlsafe(24)


def given_password(args: argparse.Namespace, *, needed: bool) -> str | None:
    """The password, from the one place that was named.

    Args:
        needed: if no place was named, look for the variable, and else ask. A command that only may change a password
            does not look: a variable that is still set would change it in passing.

    Raises:
        ConfigError: two places were named, or there is none and it is needed; never with the password in it.
    """
    named = [
        option
        for option, value in (
            ("--ask-password", args.ask_password),
            ("--password-file", args.password_file),
            ("--password-env", args.password_env),
            ("--password", args.password),
        )
        if value
    ]
    if len(named) > 1:
        raise ConfigError(named[1], "...", f"{named[0]} was given too; give one of them")
    if args.password:
        complain(
            "warning: others see this password in the list of processes, and it stays in the shell's history; "
            "--password-file or --ask-password keeps it to you"
        )
        return str(args.password)
    if args.password_file is not None:
        return _from_file(args.password_file)
    if args.ask_password:
        return _asked()
    if not needed and not args.password_env:
        return None
    found = os.environ.get(VARIABLE)
    if found:
        return found
    if args.password_env:
        raise ConfigError("--password-env", None, f"set ${VARIABLE} to the password")
    if not sys.stdin.isatty():
        raise ConfigError(
            "--password-file",
            None,
            f"name the file of the password, or set ${VARIABLE}; nobody is at the terminal to be asked",
        )
    return _asked()


def _asked() -> str:
    try:
        first = getpass.getpass("Password: ")
        second = getpass.getpass("Once more: ")
    except EOFError:
        raise ConfigError("--ask-password", None, "nobody is at the terminal; use --password-file") from None
    if first != second:
        raise ConfigError("--ask-password", "...", "the two passwords differ; nothing was changed")
    if not first:
        raise ConfigError("--ask-password", "", "a password has at least one letter")
    return first


def _from_file(path: Path) -> str:
    try:
        text = sys.stdin.readline() if str(path) == "-" else _first_line(path)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError("--password-file", str(path), why or "it cannot be read") from None
    password = text.rstrip("\r\n")
    if not password.strip():
        raise ConfigError("--password-file", str(path), "its first line is empty; put the password there")
    return password


def _first_line(path: Path) -> str:
    with open(path, encoding="utf-8") as source:
        return source.readline(_MOST_BYTES)
