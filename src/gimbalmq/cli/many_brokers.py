"""From the configuration of one broker to those of several on this machine, and back to fewer of them.

The first one is the broker that there would be alone, with its folder, name and ports. Each further one has a folder in
the first one's, its own name, and ports ten further on.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING

from gimbalmq.errors import ConfigError

if TYPE_CHECKING:
    from gimbalmq.broker.config import BrokerConfig

log = logging.getLogger(__name__)

PORT_STEP = 10
"""A broker listens at its port, two before it and one behind it."""
MOST_BROKERS = 64
_MOST_PORT = 65535


def broker_count(text: str) -> int:
    """What follows ``--brokers``: a number, or ``auto`` for as many as there are cores."""
    if text == "auto":
        return min(MOST_BROKERS, _cores())
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MOST_BROKERS):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be used: use 1 to {MOST_BROKERS}, or auto")
    return int(text)


def _cores() -> int:
    """Those that this process may use: a container may have fewer than the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def nth_name(first: str, index: int) -> str:
    """``broker-a``, ``broker-b`` and so on; ``shop`` is followed by ``shop-b``, and ``-z`` by ``-aa``."""
    head, dash, letter = first.rpartition("-")
    if dash and len(letter) == 1 and letter in ascii_lowercase:
        return f"{head}-{_letters(ascii_lowercase.index(letter) + index)}"
    return first if index == 0 else f"{first}-{_letters(index)}"


def _letters(number: int) -> str:
    text = ""
    while number >= 0:
        number, place = divmod(number, 26)
        text = ascii_lowercase[place] + text
        number -= 1
    return text


def configurations(first: BrokerConfig, count: int) -> tuple[BrokerConfig, ...]:
    """One configuration for each broker; the metrics are served for all of them together, so none serves its own.

    Raises:
        ConfigError: an option can only be meant for one broker, or there are not so many ports.
    """
    if count == 1:
        return (first,)
    _check_shared(first, count)
    store = Path(first.store_path_root_dir)
    shared = replace(
        first,
        metrics_prom_exporter_port=0,
        metrics_token=None,
        metrics_token_file=None,
        # A share of the machine's memory, which they have together; 0 would mean that nothing is in memory.
        access_message_in_memory_max_ratio=-(-first.access_message_in_memory_max_ratio // count),
    )
    if first.acl_enable and not (first.acl_config_path or first.rocketmq_home):
        shared = replace(shared, acl_config_path=str(store / "conf"))
    return tuple(_nth(shared, index, store) for index in range(count))


def _nth(first: BrokerConfig, index: int, store: Path) -> BrokerConfig:
    if index == 0:
        return first
    name = nth_name(first.broker_name, index)
    return replace(
        first,
        broker_name=name,
        store_path_root_dir=str(store / name),
        listen_port=first.listen_port and first.listen_port + PORT_STEP * index,
        ha_listen_port=first.ha_listen_port and first.ha_listen_port + PORT_STEP * index,
        auth_config_path=None,
    )


def _check_shared(first: BrokerConfig, count: int) -> None:
    remedy = (
        f"it can only be meant for one of {count} brokers: leave it out, or start that one by gimbalmq broker"
    )
    for key, value, unset in (
        ("haMasterAddress", first.ha_master_address, ""),
        ("haCutTailFrom", first.ha_cut_tail_from, -1),
        ("storePathEpochFile", first.store_path_epoch_file, ""),
        ("storePathBrokerIdentity", first.store_path_broker_identity, ""),
    ):
        if value != unset:
            raise ConfigError(key, value, remedy)
    for key, port, behind in (
        ("listenPort", first.listen_port, 1),
        ("haListenPort", first.ha_listen_port, 0),
    ):
        last = port + PORT_STEP * (count - 1) + behind
        if port and last > _MOST_PORT:
            raise ConfigError(
                key,
                port,
                f"the last of {count} brokers would have port {last}; use at most {port - (last - _MOST_PORT)}",
            )


def warn_of_unread_stores(brokers: Iterable[BrokerConfig]) -> None:
    """Names the folders of brokers that were started with the first of these at some time, and now are not."""
    used = [Path(broker.store_path_root_dir) for broker in brokers]
    first = next(iter(brokers))
    try:
        found = sorted(used[0].iterdir())
    except OSError:
        return
    unread = [folder for folder in found if folder not in used and (folder / "commitlog").is_dir()]
    names = {nth_name(first.broker_name, index): index + 1 for index in range(MOST_BROKERS)}
    for folder in unread:
        wanted = names.get(folder.name)
        remedy = f"--brokers {wanted}" if wanted else f"gimbalmq broker --name {folder.name} --store {folder}"
        log.warning(
            "%s holds the messages of a broker that is not started now, so nobody can read them; %s serves them again",
            folder,
            remedy,
        )
