"""From flags and files to the configurations of servers."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gimbalmq.cli.many_brokers import configurations, warn_of_unread_stores
from gimbalmq.errors import ConfigError

if TYPE_CHECKING:
    from gimbalmq.broker.config import BrokerConfig
    from gimbalmq.cli.secure import Secured
    from gimbalmq.cli.serve import ServePlan
    from gimbalmq.nameserver.config import NameServerConfig

log = logging.getLogger(__name__)


def home() -> Path:
    """Where data lies unless told otherwise."""
    named = os.environ.get("GIMBALMQ_HOME")
    return Path(named) if named else Path.home() / ".gimbalmq"


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
