"""The ``gimbalmq`` command line: flags and files to configurations, errors to exit codes.

argparse, and imports inside functions: a server keeps for life what its command line imported,
and a person waits for it (docs/HACKING.md has the figures).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gimbalmq import __version__
from gimbalmq.cli import nouns
from gimbalmq.cli.many_brokers import broker_count, configurations, warn_of_unread_stores
from gimbalmq.cli.output import LEVELS, complain, start_logging
from gimbalmq.cli.parsing import CommandParser, command_first
from gimbalmq.errors import ConfigError, RocketMQError

if TYPE_CHECKING:
    from gimbalmq.broker.config import BrokerConfig
    from gimbalmq.cli.secure import Secured
    from gimbalmq.cli.serve import ServePlan
    from gimbalmq.nameserver.config import NameServerConfig

log = logging.getLogger(__name__)

CLEAN, FAILED, MISUSED = 0, 1, 2
"""Exit codes."""

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


def home() -> Path:
    """Where data lies unless told otherwise."""
    named = os.environ.get("GIMBALMQ_HOME")
    return Path(named) if named else Path.home() / ".gimbalmq"


# -- the parser ----------------------------------------------------------------------


def _port(text: str) -> str:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; use 0 (any free one) to 65535")
    return text


def _slave_id(text: str) -> str:
    if not text.isdecimal() or not 0 < int(text) < 1 << 63:
        raise argparse.ArgumentTypeError(f"{text!r} is not the id of a slave; use 1, 2, ...")
    return text


def pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key.strip(), value.strip()


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

    server = _command(commands, "server", "a name server and a broker, or several", _SERVER_EPILOG)
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
    add(
        "--set",
        type=pair,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any key of the file; repeatable",
    )
    add(
        "--log-level",
        choices=LEVELS,
        default="info",
        help="least important log lines to write (default: info)",
    )
    add("--log-file", type=Path, metavar="FILE", help="append logs to a file instead of stderr")
    add("--debug", action="store_true", help="log everything, show tracebacks, check asyncio's rules")


# -- from arguments to configurations ------------------------------------------------


def _broker_flags(args: argparse.Namespace) -> dict[str, str]:
    """Flags under the keys they stand for."""
    pairs = {
        "listenPort": args.port,
        "bindAddress": args.host,
        "brokerIP1": args.advertise,
        "namesrvAddr": args.namesrv,
        "storePathRootDir": None if args.store is None else str(args.store),
        "brokerName": args.name,
        "brokerClusterName": args.cluster,
        "flushDiskType": "SYNC_FLUSH" if args.sync_flush else None,
        "metricsPromExporterPort": args.metrics_port,
    }
    if getattr(args, "slave", None) is not None:
        pairs |= {"brokerRole": "SLAVE", "brokerId": args.slave}
    elif getattr(args, "sync_master", False):
        pairs["brokerRole"] = "SYNC_MASTER"
    return {key: value for key, value in pairs.items() if value is not None}


def broker_config(properties: Mapping[str, str]) -> tuple[BrokerConfig, list[str]]:
    """The configuration of a broker and the keys that mean nothing to it."""
    from gimbalmq.broker.config import BrokerConfig
    from gimbalmq.cli.serve import WILDCARDS

    properties = dict(properties)
    store = Path(properties.get("storePathRootDir") or home() / "store")
    properties["storePathRootDir"] = str(store.expanduser().resolve())
    host = properties.get("bindAddress", "")
    if "brokerIP1" not in properties and host:
        if host in WILDCARDS:
            log.warning(
                "listening on %s, but clients are told 127.0.0.1; say --advertise IP (brokerIP1) "
                "if other machines are to reach this broker",
                host,
            )
        elif host != "localhost":
            properties["brokerIP1"] = host
    if "brokerIP1" in properties:
        properties.setdefault("brokerIP2", properties["brokerIP1"])
    return BrokerConfig.from_properties(properties)


def nameserver_config(properties: Mapping[str, str], data: Path) -> tuple[NameServerConfig, list[str]]:
    """The configuration of a name server and the keys that mean nothing to it."""
    from gimbalmq.nameserver.config import NameServerConfig

    data = data.expanduser().resolve()
    keys = {
        "kvConfigPath": str(data / "kvConfig.json"),
        "configStorePath": str(data / "namesrv.properties"),
        **properties,
    }
    return NameServerConfig.from_properties(keys)


def _file_keys(args: argparse.Namespace) -> dict[str, str]:
    if args.config is None:
        return {}
    from gimbalmq.cli import config_file

    return config_file.read(args.config)


def _pass_over(unknown: Mapping[str, str], typed: Sequence[tuple[str, str]], known: Collection[str]) -> None:
    """Warns of keys that mean nothing here; refuses those that are misspelt, and all that were typed with --set.

    A file may be Apache's own, with hundreds of keys that only a server in Java has.
    """
    from gimbalmq._options import did_you_mean, misspelt, options_by_key
    from gimbalmq.access.config import AccessConfig
    from gimbalmq.transport.tls_config import TlsConfig

    doors = options_by_key(AccessConfig).keys() | options_by_key(TlsConfig).keys()
    for key, value in unknown.items():
        # Credentials are JSON. An unknown key may be theirs, misspelt, so that an error must not show them.
        text = "..." if value.lstrip().startswith("{") else value
        if key in dict(typed):
            remedy = did_you_mean(key, known) or "; leave it out (docs/running.md lists them all)"
            raise ConfigError(key, text, f"there is no such option here{remedy}")
        meant = misspelt(key, known)
        if meant is not None:
            raise ConfigError(key, text, f"there is no such option; did you mean {meant}?")
        # A section of TOML, or a table in place of a text: a server must not start open because of it.
        inside = next(
            (name for name in doors if key.endswith(f".{name}") or key.startswith(f"{name}.")), None
        )
        if inside is not None and not key.startswith("namesrv."):  # those are for the other server
            raise ConfigError(
                key,
                "...",
                f"there is no such option; write {inside} = ... before all sections, with a plain value",
            )
        log.warning("%s is not an option here; passed over", key)


def _usable(folder: str, option: str) -> None:
    """Makes a data folder, or says why it cannot be one."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            option, folder, f"{error.strerror or error}; name a folder that can be made"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(option, folder, "the folder may not be written by this user")


# -- the commands --------------------------------------------------------------------


def namesrv_plan(args: argparse.Namespace) -> ServePlan:
    from gimbalmq._options import options_by_key
    from gimbalmq.cli.serve import ServePlan

    flags = {key: value for key, value in (("listenPort", args.port), ("bindAddress", args.host)) if value}
    properties = {**_file_keys(args), **dict(args.set), **flags}
    config, unknown = nameserver_config(properties, args.data or home() / "namesrv")
    _pass_over({key: properties[key] for key in unknown}, args.set, options_by_key(type(config)))
    if args.data is not None:
        _usable(str(args.data.expanduser()), "--data")
    return ServePlan(nameserver=config, debug=args.debug)


def broker_plan(args: argparse.Namespace) -> ServePlan:
    from gimbalmq._options import options_by_key
    from gimbalmq.cli.serve import ServePlan

    properties = {**_file_keys(args), **dict(args.set), **_broker_flags(args)}
    config, unknown = broker_config(properties)
    _pass_over({key: properties[key] for key in unknown}, args.set, options_by_key(type(config)))
    _usable(config.store_path_root_dir, "--store")
    if not config.namesrv_addresses:
        log.warning("no name server is named (--namesrv); clients will not find this broker")
    return ServePlan(broker=config, debug=args.debug)


def _reaches_both(key: str) -> bool:
    """Whether a key in the file of `gimbalmq server` is for both servers; other keys both know are the broker's."""
    from gimbalmq._options import options_by_key
    from gimbalmq.access.config import AccessConfig

    return key == "bindAddress" or key.startswith("tls.") or key in options_by_key(AccessConfig)


def server_plan(args: argparse.Namespace) -> ServePlan:
    from gimbalmq._options import options_by_key
    from gimbalmq.broker.config import BrokerConfig
    from gimbalmq.cli.serve import ServePlan
    from gimbalmq.nameserver.config import NameServerConfig

    keys = {**_file_keys(args), **dict(args.set)}
    secured = _secured(args, keys)
    if secured is not None:
        keys = secured.keys
    of_broker, of_nameserver = options_by_key(BrokerConfig), options_by_key(NameServerConfig)
    known = [*of_broker, *of_nameserver, *(f"namesrv.{key}" for key in of_nameserver)]
    _pass_over({key: text for key, text in keys.items() if key not in known}, args.set, known)
    own = {key.removeprefix("namesrv."): keys.pop(key) for key in list(keys) if key.startswith("namesrv.")}
    for_broker, _ = broker_config({**keys, **_broker_flags(args)})
    wanted = {key: text for key, text in keys.items() if key not in of_broker or _reaches_both(key)}
    if args.host is not None:
        wanted["bindAddress"] = args.host
    wanted |= own
    if args.namesrv_port is not None:
        wanted["listenPort"] = args.namesrv_port
    store = Path(for_broker.store_path_root_dir)
    for_nameserver, _ = nameserver_config(wanted, args.data or store / "namesrv")
    brokers = configurations(for_broker, args.brokers)
    for each in brokers:
        _usable(each.store_path_root_dir, "--store")
    warn_of_unread_stores(brokers)
    if len(brokers) == 1:
        return ServePlan(nameserver=for_nameserver, broker=for_broker, secured=secured, debug=args.debug)
    if "authConfigPath" not in own:
        for_nameserver = replace(for_nameserver, auth_config_path=None)  # the first broker's
    if "aclConfigPath" not in own:
        for_nameserver = replace(for_nameserver, acl_config_path=brokers[0].acl_config_path)
    return ServePlan(
        nameserver=for_nameserver,
        many=brokers,
        metrics_of=for_broker,
        secured=secured,
        log_level="debug" if args.debug else args.log_level,
        log_file=args.log_file,
        debug=args.debug,
    )


def _secured(args: argparse.Namespace, given: Mapping[str, str]) -> Secured | None:
    """What --secure makes or finds; the store is in its folder unless another is named."""
    if args.secure is None:
        return None
    from gimbalmq.cli.secure import secure
    from gimbalmq.cli.serve import WILDCARDS

    if args.store is None and "storePathRootDir" not in given:
        args.store = args.secure / "store"
    store = Path(str(args.store or given["storePathRootDir"])).expanduser()
    users = Path(given.get("authConfigPath") or store / "config") / "users.json"
    named = (args.host or given.get("bindAddress"), args.advertise or given.get("brokerIP1"))
    hosts = [host for host in named if host and host not in WILDCARDS]
    port = args.namesrv_port or given.get("namesrv.listenPort", "")
    return secure(args.secure, given, hosts, users, int(port) if port.isdecimal() else 9876)


_PLANS = {"server": server_plan, "broker": broker_plan, "namesrv": namesrv_plan}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code."""
    if not __debug__:
        complain("does not run under python -O: its checks of broken invariants are assert statements")
        return MISUSED
    words = sys.argv[1:] if argv is None else list(argv)
    if words and words[0].startswith("-"):
        words = _command_first(words)
    chosen = words[0] if words else None
    runs_broker = chosen is None or nouns.runs_a_broker(words)
    args = build_parser(chosen, runs_broker=runs_broker).parse_args(words)
    try:
        process = "server" if args.command == "server" and args.brokers > 1 else ""
        start_logging("debug" if args.debug else args.log_level, args.log_file, process)
    except OSError as error:
        complain(f"--log-file {args.log_file}: {error.strerror or error}; name a file that can be written")
        return MISUSED
    try:
        if args.command not in _PLANS or hasattr(args, "run"):
            return int(args.run(args))
        plan = _PLANS[args.command](args)
        from gimbalmq.cli.serve import run

        return run(plan)
    except ConfigError as error:
        return _failed(error, MISUSED, args.debug)
    except (RocketMQError, OSError) as error:
        return _failed(error, getattr(error, "exit_code", FAILED), args.debug)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        complain(f"stopped by a bug, {type(error).__name__}: {error} (--debug shows where)")
        if args.debug:
            raise
        return FAILED


def _command_first(words: list[str]) -> list[str]:
    from gimbalmq.cli.asking import connection_options

    shared = argparse.ArgumentParser(add_help=False)
    connection_options(shared)
    return command_first(build_parser(), shared, nouns.NOUNS, words)


def _failed(error: Exception, code: int, debug: bool) -> int:
    complain(error)
    if debug:
        log.debug("the traceback you asked for", exc_info=error)
    return code


if __name__ == "__main__":
    sys.exit(main())
