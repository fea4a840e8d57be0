"""The parser of the command line: what each command is called, its options and its help."""

from __future__ import annotations

import argparse
from pathlib import Path

from gimbalmq import __version__
from gimbalmq.cli import nouns
from gimbalmq.cli.many_brokers import broker_count
from gimbalmq.cli.output import LEVELS
from gimbalmq.cli.parsing import CommandParser, set_option

_ABOUT = """\
RocketMQ for Python: a name server and a broker that speak Apache RocketMQ's wire and disk formats,
and the tools to run a cluster, Apache's or this one."""

_EXAMPLES = """\
examples:
  gimbalmq server                        name server on 9876 and broker on 10911, for this machine only
  gimbalmq server --store ./data         the same, messages kept in ./data
  gimbalmq server --secure ./data        with users, policies and TLS; tells how to go on
  gimbalmq namesrv --host 0.0.0.0        a name server that other machines reach
  gimbalmq broker --host 10.0.0.5 --namesrv '10.0.0.1:9876;10.0.0.2:9876' -c broker.properties
  gimbalmq topic create orders --queues 16
  gimbalmq message send orders hello     mqadmin's names work too: gimbalmq sendMessage -t orders -p hello
  gimbalmq group progress billing --watch
  gimbalmq balance preview --topic orders=16 --members a,b,c --join d --strategy all

`gimbalmq COMMAND --help` lists the options of a command.
"""

_FILE_HELP = """\
A configuration file has RocketMQ's own keys (brokerName=broker-a), in Java's properties
syntax, or as TOML if its name ends in .toml. Flags win over the file. A key of Apache's
servers that has no meaning here is named on start and passed over; a misspelt one is refused.

Exit codes: 0 stopped by a signal, 1 could not start or failed, 2 wrong option or value.
"""

_SERVER_EPILOG = (
    """\
examples:
  gimbalmq server
  gimbalmq server --namesrv-port 19876 --port 20911 --store ./data --sync-flush
  gimbalmq server -c broker.properties --set autoCreateTopicEnable=false
  gimbalmq server --secure ./data
  gimbalmq server --brokers auto

--secure DIR starts with authentication, authorisation and TLS on. The first start makes certificates, an administrator
and DIR/client.toml, which lets commands and clients in; later ones use them again. Messages are in DIR/store.

--brokers N starts so many brokers, each a process, and starts one again that ends. broker-a is the broker that there is
without the option; broker-b has the folder STORE/broker-b and ports 10 further on, and so on. Topics span them, clients
find them by the name server, and --metrics-port serves the metrics of all (docs/scale.md).

In the file, keys that begin with namesrv. are for the name server (namesrv.listenPort).

"""
    + _FILE_HELP
)

_BROKER_EPILOG = (
    """\
examples:
  gimbalmq broker --namesrv 127.0.0.1:9876 --store ./data
  gimbalmq broker --namesrv '10.0.0.1:9876;10.0.0.2:9876' --host 0.0.0.0 --advertise 10.0.0.5
  gimbalmq broker --namesrv 127.0.0.1:9876 --port 10921 --store ./copy --slave 1

A verb behind the word asks running brokers about their replicas, or changes who is the master:
  gimbalmq broker ha-status              who copies whom, and how far behind
  gimbalmq broker promote ADDR           make a slave the master, if the master is gone
  gimbalmq broker rejoin --store DIR     make a slave of what was a master; cut what the new one does not have
  gimbalmq broker sync-state|epochs|elect    with Apache's controller
`gimbalmq broker VERB --help` lists the options of a verb (docs/replication.md).

"""
    + _FILE_HELP
)

_NAMESRV_EPILOG = (
    """\
examples:
  gimbalmq namesrv
  gimbalmq namesrv --host 0.0.0.0 --port 9876 --data /var/lib/gimbalmq/namesrv

"""
    + _FILE_HELP
)


def _port(text: str) -> str:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; use 0 (any free one) to 65535")
    return text


def _slave_id(text: str) -> str:
    if not text.isdecimal() or not 0 < int(text) < 1 << 63:
        raise argparse.ArgumentTypeError(f"{text!r} is not the id of a slave; use 1, 2, ...")
    return text


def _addresses(text: str) -> str:
    for address in text.split(";"):
        host, colon, port = address.strip().rpartition(":")
        if not (host and colon and port.isdigit() and int(port) < 65536):
            raise argparse.ArgumentTypeError(f"{address!r} is not HOST:PORT")
    return text


def build_parser(chosen: str | None = None, *, runs_broker: bool = True) -> argparse.ArgumentParser:
    """The command line: every command by name, the options of the servers and of the one chosen.

    Args:
        runs_broker: whether the word "broker" is to run one, not the noun that verbs follow.
    """
    if chosen == "broker" and runs_broker:
        chosen = None  # as if nobody had chosen a noun
    parser: argparse.ArgumentParser = CommandParser(
        prog="gimbalmq",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        also_known=nouns.MQADMIN,
    )
    parser.add_argument("--version", action="version", version=f"gimbalmq {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", required=True)

    server = _command(commands, "server", "a name server and one broker or several", _SERVER_EPILOG)
    server.add_argument(
        "--namesrv-port", type=_port, metavar="N", help="port of the name server (default: 9876)"
    )
    server.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of the name server's files (default: STORE/namesrv)"
    )
    server.add_argument(
        "--secure",
        type=Path,
        metavar="DIR",
        help="ask for users and speak TLS only; what that needs is made in DIR, or used again",
    )
    server.add_argument(
        "--brokers",
        type=broker_count,
        default=1,
        metavar="N",
        help="so many brokers, each a process; auto is as many as there are cores (default: 1, in this process)",
    )
    _broker_options(server, namesrv_help="further name servers to register with, separated by ;")

    servers = [server]
    if nouns.home_of(chosen) != nouns.home_of("broker"):
        broker = _command(commands, "broker", nouns.NOUNS["broker"][1], _BROKER_EPILOG, "a broker")
        _broker_options(broker, namesrv_help="name servers to register with, separated by ;")
        _role_options(broker)
        servers.append(broker)

    namesrv = _command(commands, "namesrv", "a name server", _NAMESRV_EPILOG)
    namesrv.add_argument("--port", type=_port, metavar="N", help="port to listen on (default: 9876)")
    namesrv.add_argument("--host", metavar="ADDR", help="address to listen on (default: 127.0.0.1)")
    namesrv.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of kvConfig.json (default: ~/.gimbalmq/namesrv)"
    )
    for command in (*servers, namesrv):
        _common_options(command)
    nouns.add_commands(commands, chosen)
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    about: str,
    epilog: str,
    runs: str | None = None,
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=about,
        description=f"Runs {runs or about} until SIGTERM or Ctrl-C.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _broker_options(parser: argparse.ArgumentParser, namesrv_help: str) -> None:
    add = parser.add_argument
    add("--port", type=_port, metavar="N", help="port of the broker (default: 10911)")
    add("--host", metavar="ADDR", help="address to listen on (default: 127.0.0.1)")
    add("--advertise", metavar="IP", help="address clients are told (default: --host, else 127.0.0.1)")
    add("--namesrv", type=_addresses, metavar="HOST:PORT[;...]", help=namesrv_help)
    add("--store", type=Path, metavar="DIR", help="folder of the messages (default: ~/.gimbalmq/store)")
    add("--name", metavar="NAME", help="name of the broker (default: broker-a)")
    add("--cluster", metavar="NAME", help="cluster it belongs to (default: DefaultCluster)")
    add("--sync-flush", action="store_true", help="answer a send only when it is on disk")
    add("--metrics-port", type=_port, metavar="N", help="serve Prometheus metrics (default: off)")


def _role_options(parser: argparse.ArgumentParser) -> None:
    role = parser.add_mutually_exclusive_group()
    role.add_argument(
        "--slave", type=_slave_id, metavar="ID", help="copy the master of the same name; ID is 1, 2, ..."
    )
    role.add_argument(
        "--sync-master", action="store_true", help="answer a send only when a slave has it, too"
    )


def _common_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-c", "--config", type=Path, metavar="FILE", help="configuration file, .properties or .toml")
    set_option(parser, "any key of the file; repeatable")
    add(
        "--log-level",
        choices=LEVELS,
        default="info",
        help="least important log lines to write (default: info)",
    )
    add("--log-file", type=Path, metavar="FILE", help="append logs to a file instead of stderr")
    add("--debug", action="store_true", help="log everything, show tracebacks, check asyncio's rules")
