"""``gimbalmq broker rejoin``: what was a master becomes a slave of the new one."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq.cli.asking import FAILED, OK, REFUSED, Parser, Shown, Verb, namesrv_of, whole_number
from gimbalmq.cli.parsing import set_option
from gimbalmq.cli.terminal import confirmed, table
from gimbalmq.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gimbalmq.admin.admin import Admin
    from gimbalmq.broker.config import BrokerConfig
    from gimbalmq.store.message_store import MessageStore

_LARGEST = (1 << 63) - 1
_TOPICS = Path("config", "topics.json")


def rejoin_verb() -> Verb:
    return Verb(
        "rejoin",
        "make a slave of what was a master; cut what the new master does not have, if told to",
        _rejoin,
        _options,
        watch=False,
        examples=(
            "broker rejoin --store ./data                      # a broker that is stopped: says what would be lost",
            "broker rejoin --store ./data -c broker.properties --cut",
            "broker rejoin 127.0.0.1:10911 --id 1              # one that runs: it becomes a slave",
        ),
    )


def _options(parser: Parser) -> None:
    add = parser.add_argument
    add("broker", nargs="?", metavar="ADDRESS", help="of a broker that runs; or --store of one that does not")
    add("--store", type=Path, metavar="DIR", help="folder of a broker that is stopped")
    add("--name", metavar="NAME", help="name of the broker (default: the file's, else broker-a)")
    add("--id", type=whole_number(1, _LARGEST), default=1, metavar="ID", help="its id as a slave (1)")
    add("--master", metavar="HOST:PORT", help="the new master (default: what the name servers say)")
    add("--cut", action="store_true", help="cut what the new master does not have, for good")
    add("-c", "--config", type=Path, metavar="FILE", help="the broker's own configuration file")
    set_option(parser, "any key of the file; repeatable")
    add("-y", "--yes", action="store_true", help="do not ask")


async def _rejoin(admin: Admin, args: argparse.Namespace) -> Shown:
    if args.store is not None:
        if args.broker is not None:
            raise ConfigError(
                "ADDRESS", args.broker, "name a broker that runs, or the --store of one that does not"
            )
        return await _of_folder(admin, args)
    if args.broker is None:
        raise ConfigError(
            "--store", "", "name the folder of a broker that is stopped, or the address of one that runs"
        )
    if args.cut:
        raise ConfigError(
            "--cut",
            args.broker,
            "name the --store of a broker that is stopped; one that runs is told by gimbalmq config set "
            f"{args.broker} haCutTailFrom=OFFSET",
        )
    return await _of_running(admin, args)


# -- one that runs --------------------------------------------------------------------


async def _of_running(admin: Admin, args: argparse.Namespace) -> Shown:
    before, master = await admin.replication.successor(args.broker, args.master)
    question = f"Make {before.title} a slave (id {args.id}) of {master}? It takes no messages from then on."
    if not confirmed(question, assume_yes=args.yes):
        return Shown("Nothing was changed.", code=REFUSED)
    now = await admin.replication.demote(before, args.id)
    if now.trouble:
        return Shown(
            f"{now.title} does not copy: {now.trouble}\nStop it; gimbalmq broker rejoin --store DIR says what it has "
            "that its master has not, and cuts that if told to.",
            asdict(now),
            FAILED,
        )
    return Shown(f"{now.broker} at {now.address} is slave {now.broker_id} now.", asdict(now))


# -- one that is stopped --------------------------------------------------------------


async def _of_folder(admin: Admin, args: argparse.Namespace, clock: Clock = SYSTEM_CLOCK) -> Shown:
    from gimbalmq.broker.replication.role_file import forget_role

    config = _config(args)
    name = config.broker_name
    master = args.master or await admin.replication.master_of(name)
    if not _may_be_of(args.store.expanduser(), name):
        raise ConfigError(
            "--name",
            name,
            f"the folder {args.store} is another broker's: {_TOPICS} in it has no topic of that name, and each broker "
            "makes one of its own; say --name NAME, or its -c FILE",
        )
    with _opened(config, clock) as store:
        tail = await _tail(store, admin, master, clock)
        data: dict[str, Any] = asdict(tail) | {"broker": name, "master": master, "cut": False}
        ends = f"The log in {args.store} ends at {tail.end:,}, that of {name}'s master {master} at {tail.master_end:,}."
        start = _start(args, config)
        if tail.begin == tail.end:
            forget_role(store.config.root)
            return Shown(f"{ends}\nThe master has all of it: nothing is to be cut.\n{start}", data)
        lost = _lost(tail)
        if not args.cut:
            return Shown(
                f"{ends}\n{lost}\nNothing was changed. --cut cuts that off for good; copy the folder first if "
                "somebody may want it.",
                data,
                REFUSED,
            )
        if not args.json:
            print(f"{ends}\n{lost}")
        if not confirmed(f"Cut {tail.end - tail.begin:,} bytes off, for good?", assume_yes=args.yes):
            return Shown("Nothing was changed.", data, REFUSED)
        store.follow()
        store.cut(tail.begin)
        forget_role(store.config.root)
    return Shown(f"The log ends at {tail.begin:,} now.\n{start}", data | {"cut": True}, OK)


@dataclass(frozen=True, slots=True)
class Tail:
    """What a folder has and its master has not: between which offsets, and what by topic."""

    begin: int
    end: int
    master_end: int
    messages: dict[str, int]
    message_bytes: dict[str, int]


async def _tail(store: MessageStore, admin: Admin, master: str, clock: Clock) -> Tail:
    from gimbalmq.broker.replication.agreement import bounds
    from gimbalmq.broker.replication.rejoining import last_common
    from gimbalmq.store.dispatcher import LogScanner
    from gimbalmq.transport.turns import Turns

    caller, end = admin.replication.caller(), store.max_commitlog_offset
    _, master_end = await bounds(caller, master)
    begin = await last_common(store, caller, master, Turns(clock)) if store.last_record() else end
    messages: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for found in LogScanner(store.log.segments, begin, end):
        messages[found.topic] += 1
        sizes[found.topic] += found.size
    return Tail(begin, end, master_end, dict(messages), dict(sizes))


def _config(args: argparse.Namespace) -> BrokerConfig:
    from gimbalmq.cli import config_file
    from gimbalmq.cli.server_plans import broker_config

    keys = {} if args.config is None else config_file.read(args.config)
    keys |= dict(args.set) | {"storePathRootDir": str(args.store)}
    if args.name is not None:
        keys["brokerName"] = args.name
    if not (args.store.expanduser() / "commitlog").is_dir():
        raise ConfigError(
            "--store", str(args.store), "there is no folder commitlog in it; name a broker's store"
        )
    return broker_config(keys)[0]


def _may_be_of(folder: Path, name: str) -> bool:
    """False if the broker of that name has never run on the folder. The log of another one would be cut as a whole."""
    from gimbalmq.broker.json_file import JsonFile

    with suppress(StoreError):  # a table that cannot be read tells nothing
        topics = JsonFile(folder / _TOPICS).load(lambda table: set(table.get("topicConfigTable") or ()))
        return not topics or name in topics
    return True


@contextmanager
def _opened(config: BrokerConfig, clock: Clock) -> Iterator[MessageStore]:
    """The store as the broker itself would open it; raises StoreLockedError if the broker runs."""
    from gimbalmq.store.message_store import MessageStore
    from gimbalmq.transport.descriptors import budget

    store = MessageStore(config.store_config(config.listen_port, budget()), clock)
    store.keep_mark = not store.load().clean  # the broker may have lost what it had, and has to know
    try:
        yield store
    finally:
        store.close()


def _lost(tail: Tail) -> str:
    rows = [(topic, count, tail.message_bytes[topic]) for topic, count in sorted(tail.messages.items())]
    count = sum(tail.messages.values())
    return (
        f"Both are the same up to {tail.begin:,}. Behind that the folder has {count:,} "
        f"{'message' if count == 1 else 'messages'} that the master has not:\n\n"
        f"{table(('TOPIC', 'MESSAGES', 'BYTES'), rows)}\n"
    )


def _start(args: argparse.Namespace, config: BrokerConfig) -> str:
    # The folder does not know the port, and beside other brokers the usual one is taken.
    told = args.config is not None or "listenPort" in dict(args.set)
    how = "" if told else f" (with its --port, if that was not {config.listen_port})"
    return f"Start it as a slave{how}: {_command(args, config)}"


def _command(args: argparse.Namespace, config: BrokerConfig) -> str:
    words = ["gimbalmq", "broker", "--slave", str(args.id), "--store", str(args.store)]
    if args.config is not None:
        words += ["-c", str(args.config)]
    else:
        words += ["--name", config.broker_name, "--namesrv", namesrv_of(args)]
    for key, value in args.set:
        words += ["--set", f"{key}={value}"]
    return shlex.join(words)
