"""How a command asks a cluster: the options they share, JSON or a table, once or again and again."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gimbalmq.cli.output import complain
from gimbalmq.errors import (
    ConfigError,
    ConnectError,
    ConsumerNotOnlineError,
    MessageIllegalError,
    QueryNotFoundError,
    SubscriptionGroupNotExistError,
    TopicNotExistError,
    TopicRouteNotFoundError,
)

if TYPE_CHECKING:
    from ssl import SSLContext

    from gimbalmq.admin.admin import Admin
    from gimbalmq.client.client_file import ClientFile

OK, FAILED, MISUSED, ABSENT, REFUSED = 0, 1, 2, 3, 4
"""Exit codes: done; could not be asked; wrong option; what was asked for is not there; the answer is no."""

EXIT_CODES = (
    "Exit codes: 0 done, 1 the cluster could not be asked or refused, 2 wrong option or value,\n"
    "3 the topic, group, message or user named is not there, 4 a question was answered with no or a limit was passed."
)

_ABSENT_ERRORS = (
    ConsumerNotOnlineError,
    QueryNotFoundError,
    SubscriptionGroupNotExistError,
    TopicNotExistError,
    TopicRouteNotFoundError,
)

Parsers = argparse._SubParsersAction
Parser = argparse.ArgumentParser


@dataclass(slots=True)
class Shown:
    """What a command found: text for people, data for programs."""

    text: str
    data: Any = None
    code: int = OK


@dataclass(slots=True)
class Verb:
    """One command and the names mqadmin has for it; without a name of its own it is known by those only."""

    name: str
    help: str
    run: Callable[[Admin, argparse.Namespace], Awaitable[Shown]]
    options: Callable[[Parser], None] | None = None
    mqadmin: tuple[str, ...] = ()
    watch: bool = True
    examples: tuple[str, ...] = field(default_factory=tuple)


def asked_first(
    verb: Verb, options: Callable[[Parser, bool], None], *, mqadmin: str, example: str
) -> list[Verb]:
    """A verb that asks before it changes something, and mqadmin's name for it, which does not."""
    asks = replace(verb, options=lambda parser: options(parser, True), watch=False)
    silent = replace(
        verb,
        name="",
        help=f"{verb.help}, without asking",
        options=lambda parser: options(parser, False),
        mqadmin=(mqadmin,),
        watch=False,
        examples=(example,),
    )
    return [asks, silent]


@dataclass(frozen=True, slots=True)
class Named:
    """Something a command needs to be told: by its place on the line, or by mqadmin's flag."""

    noun: str
    flags: tuple[str, ...]
    about: str
    remedy: str

    def argument(self, parser: Parser) -> None:
        name = self.noun.upper()
        parser.add_argument(self.noun, nargs="?", metavar=name, help=self.about)
        parser.add_argument(*self.flags, dest=f"{self.noun}_flag", metavar=name, help="the same")

    def of(self, args: argparse.Namespace) -> str:
        """For commands whose only word it is; others ask ``words_of`` and ``given``."""
        return self.given(*words_of(args, self.noun))

    def given(self, word: str | None) -> str:
        if not word:
            raise ConfigError(self.noun.upper(), word or "", self.remedy)
        return word


TOPIC = Named("topic", ("-t", "--topic"), "name of the topic", "name a topic; gimbalmq topic list shows them")
GROUP = Named("group", ("-g", "--group"), "name of the group", "name a group; gimbalmq group list shows them")
BROKER = Named(
    "broker", ("-b", "--broker"), "name or address", "name a broker; gimbalmq cluster list shows them"
)


def words_of(args: argparse.Namespace, *nouns: str) -> list[str | None]:
    """The words of a command in order; one that a flag has named leaves its place to the next."""
    words = [word for noun in nouns if (word := getattr(args, noun)) is not None]
    found: list[str | None] = []
    for noun in nouns:
        flag = getattr(args, f"{noun}_flag", None)
        found.append(flag if flag is not None else words.pop(0) if words else None)
    if words:
        raise ConfigError(nouns[-1].upper(), words[0], "one word too many: a flag has named it already")
    return found


def add_noun(commands: Parsers[Parser], noun: str, about: str, verbs: list[Verb]) -> Parsers[Parser]:
    """``gimbalmq NOUN VERB``, and each verb under mqadmin's name besides; where verbs may be added that ask nobody."""
    parser = commands.add_parser(noun, help=about, description=about.capitalize() + ".", allow_abbrev=False)
    children = parser.add_subparsers(dest="verb", metavar="COMMAND", title="commands", required=True)
    for verb in verbs:
        if verb.name:
            _add_verb(children, verb.name, verb, show=True)
        for alias in verb.mqadmin:
            _add_verb(commands, alias, verb, show=False)
    return children


def _add_verb(parsers: Parsers[Parser], name: str, verb: Verb, *, show: bool) -> None:
    epilog = "\n".join(("examples:", *(f"  gimbalmq {line}" for line in verb.examples), "", EXIT_CODES))
    # Without the word "help" a command works but is not listed: mqadmin's names would fill the screen.
    listed: dict[str, Any] = {"help": verb.help} if show else {}
    parser = parsers.add_parser(
        name,
        **listed,
        description=verb.help[0].upper() + verb.help[1:] + ".",
        epilog=epilog if verb.examples else EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if verb.options is not None:
        verb.options(parser)
    connection_options(parser)
    add = parser.add_argument
    add("--json", action="store_true", help="print JSON instead of a table")
    if verb.watch:
        add(
            "--watch",
            nargs="?",
            type=above_zero,
            const=2.0,
            metavar="SECONDS",
            help="show it again every so often (2), until Ctrl-C",
        )
    parser.set_defaults(run=lambda args: _run(args, verb.run), log_level="warning", log_file=None)


def connection_options(parser: Parser) -> None:
    group = parser.add_argument_group("cluster")
    group.add_argument(
        "-n",
        "--namesrv",
        metavar="HOST:PORT[;...]",
        help="name servers (default: the client file's, else $NAMESRV_ADDR, else 127.0.0.1:9876)",
    )
    group.add_argument(
        "--client-file",
        metavar="FILE",
        help="file with name servers, keys and TLS, which count unless a flag says otherwise "
        "(default: $GIMBALMQ_CLIENT_FILE); Apache's tools.yml may be named",
    )
    group.add_argument("--access-key", metavar="KEY", help="ACL (default: $ROCKETMQ_ACCESS_KEY)")
    group.add_argument(
        "--secret-key-file",
        type=Path,
        metavar="FILE",
        help="file that holds the secret key (default: $ROCKETMQ_SECRET_KEY itself)",
    )
    tls_options(group)
    group.add_argument("--timeout", type=above_zero, default=5.0, metavar="SECONDS", help="for one call (5)")
    group.add_argument("--debug", action="store_true", help="log everything, show tracebacks")


def tls_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--tls",
        action="store_true",
        help="speak TLS (default: $ROCKETMQ_TLS) with servers that the system's authorities vouch for",
    )
    add(
        "--tls-ca",
        metavar="FILE",
        help="speak TLS with servers whose certificates these authorities vouch for, PEM, or the word system "
        "(default: $ROCKETMQ_TLS_CA)",
    )
    add(
        "--tls-any-host",
        action="store_true",
        help="with --tls-ca: a certificate need not be for the address it is met at "
        "(default: $ROCKETMQ_TLS_ANY_HOST)",
    )
    add(
        "--tls-any-cert",
        action="store_true",
        help="speak TLS and believe any certificate, so that anybody may stand in for a server "
        "(default: $ROCKETMQ_TLS_ANY_CERT)",
    )
    add(
        "--tls-cert",
        metavar="FILE",
        help="own certificate for servers that ask for one, PEM (default: $ROCKETMQ_TLS_CERT)",
    )
    add(
        "--tls-key",
        metavar="FILE",
        help="its key, PEM (default: $ROCKETMQ_TLS_KEY); $ROCKETMQ_TLS_KEY_PASSWORD opens an encrypted one",
    )


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """The type of an option that counts something."""
    allowed = f"{least} or more" if most is None else f"{least} to {most}"

    def count(text: str) -> int:
        if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
            raise argparse.ArgumentTypeError(f"{text!r} cannot be used: write a number, {allowed}")
        return int(text)

    return count


def above_zero(text: str) -> float:
    """The type of an option in seconds, or in so many a second."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be used: write a number above 0")
    return value


def client_file_of(args: argparse.Namespace) -> ClientFile | None:
    """The file that a flag or the environment names; None if neither does."""
    from gimbalmq.client.client_file import named_client_file, read_client_file

    named = args.client_file or named_client_file()
    return read_client_file(named) if named else None


def namesrv_of(args: argparse.Namespace) -> str:
    if args.namesrv:
        return str(args.namesrv)
    file = client_file_of(args)
    return (file.namesrv if file else None) or os.environ.get("NAMESRV_ADDR") or "127.0.0.1:9876"


def admin_options(args: argparse.Namespace) -> dict[str, Any]:
    """What ``connection_options`` gathered, as options of the admin object; flags win over the client file."""
    options: dict[str, Any] = {"api_timeout": args.timeout, "connect_timeout": min(args.timeout, 3.0)}
    file = client_file_of(args)
    access = args.access_key or (file.access_key if file else None) or os.environ.get("ROCKETMQ_ACCESS_KEY")
    if access:
        options["access_key"] = access
        if file is not None and file.access_key and not args.access_key and not args.secret_key_file:
            options |= {"secret_key": file.secret_key, "security_token": file.security_token}
        else:
            options["secret_key"] = _secret(args.secret_key_file)
    tls = _tls(args) if file is None or not file.speaks_tls else _tls_of_file(args, file)
    if tls is not None:
        options["tls"] = tls
    return options


def environment_options() -> dict[str, Any]:
    """The same for a command that has no such options: what the environment says."""
    parser = argparse.ArgumentParser()
    connection_options(parser)
    return admin_options(parser.parse_args([]))


def _tls(args: argparse.Namespace) -> SSLContext | None:
    from gimbalmq.client.client_file import said

    environment = os.environ
    ca = args.tls_ca or environment.get("ROCKETMQ_TLS_CA") or None
    cert = args.tls_cert or environment.get("ROCKETMQ_TLS_CERT") or None
    key = args.tls_key or environment.get("ROCKETMQ_TLS_KEY") or None
    if args.tls_key and not cert:
        raise ConfigError("--tls-key", args.tls_key, "give --tls-cert too")
    any_cert = args.tls_any_cert or (not ca and said(environment, "ROCKETMQ_TLS_ANY_CERT"))
    if not (args.tls or said(environment, "ROCKETMQ_TLS") or ca or cert or any_cert):
        return None
    from gimbalmq.transport.tls import client_tls

    return client_tls(
        ca,
        cert,
        key,
        environment.get("ROCKETMQ_TLS_KEY_PASSWORD"),
        verify=not any_cert,
        check_host=not (args.tls_any_host or said(environment, "ROCKETMQ_TLS_ANY_HOST")),
        options=("--tls-ca", "--tls-cert", "$ROCKETMQ_TLS_KEY_PASSWORD"),
    )


def _tls_of_file(args: argparse.Namespace, file: ClientFile) -> SSLContext:
    """What the file says of TLS with what flags say instead; variables, which may say less, do not count."""
    cert, key = args.tls_cert, args.tls_key
    if not cert:
        cert, key = file.tls_cert, key or file.tls_key
    if args.tls_key and not cert:
        raise ConfigError("--tls-key", args.tls_key, "give --tls-cert too")
    any_cert = args.tls_any_cert or (file.tls_any_cert and not args.tls_ca)
    ca = args.tls_ca or (None if args.tls_any_cert else file.tls_ca)
    from gimbalmq.transport.tls import client_tls

    return client_tls(
        ca,
        cert,
        key,
        file.tls_key_password or os.environ.get("ROCKETMQ_TLS_KEY_PASSWORD"),
        verify=not any_cert,
        check_host=not (args.tls_any_host or file.tls_any_host),
        options=("tls_ca of the client file", "tls_cert of the client file", "its tls_key_password"),
    )


def connect(args: argparse.Namespace) -> Admin:
    """The admin object that the options describe."""
    from gimbalmq.admin.admin import Admin

    return Admin(namesrv_of(args), **admin_options(args))


def _secret(file: Path | None) -> str:
    if file is not None:
        from gimbalmq.transport.whole_files import read_secret

        return read_secret(file, "--secret-key-file")
    secret = os.environ.get("ROCKETMQ_SECRET_KEY")
    if not secret:
        raise ConfigError("--access-key", "...", "give --secret-key-file or $ROCKETMQ_SECRET_KEY too")
    return secret


def _run(args: argparse.Namespace, work: Callable[[Admin, argparse.Namespace], Awaitable[Shown]]) -> int:
    import asyncio  # not before a command runs: some only print

    try:
        return asyncio.run(_asked(args, work))
    except _ABSENT_ERRORS as error:
        complain(error)
        return ABSENT
    except ConnectError as error:
        if not _is_of_broker(error, namesrv_of(args)):
            raise
        complain(f"{error}; gimbalmq cluster list shows the brokers there are")
        return FAILED
    except MessageIllegalError as error:
        if error.address:
            raise
        complain(error)  # refused here, before anybody was asked
        return MISUSED
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _is_of_broker(error: ConnectError, namesrv: str) -> bool:
    """Whether a broker does not listen: to ask another name server does not help then."""
    text = str(error)
    unheard = text.startswith("cannot connect to ") or "did not accept a connection" in text
    return unheard and "name server" not in text and not any(at.strip() in text for at in namesrv.split(";"))


async def _asked(
    args: argparse.Namespace, work: Callable[[Admin, argparse.Namespace], Awaitable[Shown]]
) -> int:
    import asyncio

    every: float | None = getattr(args, "watch", None)
    async with connect(args) as admin:
        while True:
            shown = await work(admin, args)
            if every is not None and sys.stdout.isatty() and not args.json:
                print("\x1b[H\x1b[2J", end="")
            show(shown, as_json=args.json)
            if every is None:
                return shown.code
            await asyncio.sleep(every)


def show(shown: Shown, *, as_json: bool) -> None:
    """Prints what was found; nothing if the command has printed itself."""
    if as_json and shown.data is not None:
        print(json.dumps(shown.data, indent=2, ensure_ascii=False, default=str), flush=True)
    elif shown.text:
        print(shown.text, flush=True)
