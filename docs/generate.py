"""Writes the tables of docs/ that can be read off the code: options and request codes.

python docs/generate.py            rewrites them (make docs)
python docs/generate.py --check    says which are out of date; exit code 1 if any (a test runs this)
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gimbalmq._options import ConfigOption, Configuration, options
from gimbalmq.access.needs import SENT_TO_CLIENTS, SENT_TO_CONTROLLERS, NeedTable
from gimbalmq.access.policies import Rules
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.client.broker_requests import BrokerRequests
from gimbalmq.client.instance import ClientInstance
from gimbalmq.nameserver.config import NameServerConfig
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.testing import LocalCluster
from gimbalmq.transport.channel import Handlers
from gimbalmq.transport.tls_config import TlsConfig

DOCS = Path(__file__).resolve().parent

PARTIAL: dict[int, str] = {
    RequestCode.PULL_MESSAGE: "tag filters; SQL92 is refused",
    RequestCode.LITE_PULL_MESSAGE: "tag filters; SQL92 is refused",
    RequestCode.CHECK_CLIENT_CONFIG: "tag filters; SQL92 is refused",
}
"""Requests that are answered, but not for every use Apache's servers know."""

ELSEWHERE: dict[int, str] = {
    **dict.fromkeys(SENT_TO_CONTROLLERS, "sent to a controller, which is Apache's"),
}
"""Requests that are sent here, and answered by others."""

ABSENT: dict[str, dict[int, str]] = {
    "": {
        13: "QUERY_BROKER_OFFSET",
        22: "GET_TOPIC_CONFIG_LIST",
        23: "GET_TOPIC_NAME_LIST",
        27: "TRIGGER_DELETE_FILES",
        47: "GET_CLIENT_CONFIG",
        209: "SUSPEND_CONSUMER",
        210: "RESUME_CONSUMER",
        211: "RESET_CONSUMER_OFFSET_IN_CONSUMER",
        212: "RESET_CONSUMER_OFFSET_IN_BROKER",
        213: "ADJUST_CONSUMER_THREAD_POOL",
        214: "WHO_CONSUME_THE_MESSAGE",
    },
    "timers in RocksDB": {
        5001: "SWITCH_TIMER_ENGINE",
    },
    "filter servers": {
        301: "REGISTER_FILTER_SERVER",
        302: "REGISTER_MESSAGE_FILTER_CLASS",
    },
    "RocksDB": {
        354: "CHECK_ROCKSDB_CQ_WRITE_PROGRESS",
        355: "EXPORT_ROCKSDB_CONFIG_TO_JSON",
    },
    "POP": {
        200050: "POP_MESSAGE",
        200051: "ACK_MESSAGE",
        200052: "PEEK_MESSAGE",
        200053: "CHANGE_MESSAGE_INVISIBLETIME",
        200054: "NOTIFICATION",
        200055: "POLLING_INFO",
        200056: "POP_ROLLBACK",
        200151: "BATCH_ACK_MESSAGE",
    },
    "static topics": {
        513: "UPDATE_AND_CREATE_STATIC_TOPIC",
    },
    "several brokers in one process": {
        902: "ADD_BROKER",
        903: "REMOVE_BROKER",
    },
    "controllers among themselves": {
        1014: "BROKER_CLOSE_CHANNEL_REQUEST",
        1015: "CHECK_NOT_ACTIVE_BROKER_REQUEST",
        1016: "GET_BROKER_LIVE_INFO_REQUEST",
        1017: "GET_SYNC_STATE_DATA_REQUEST",
        1018: "RAFT_BROKER_HEART_BEAT_EVENT_REQUEST",
    },
    "cold data": {
        2001: "UPDATE_COLD_DATA_FLOW_CTR_CONFIG",
        2002: "REMOVE_COLD_DATA_FLOW_CTR_CONFIG",
        2003: "GET_COLD_DATA_FLOW_CTR_INFO",
        2004: "SET_COMMITLOG_READ_MODE",
    },
    "lite topics": {
        200070: "POP_LITE_MESSAGE",
        200071: "LITE_SUBSCRIPTION_CTL",
        200072: "ACK_LITE_MESSAGE",
        200073: "NOTIFY_UNSUBSCRIBE_LITE",
        200074: "GET_BROKER_LITE_INFO",
        200075: "GET_PARENT_TOPIC_INFO",
        200076: "GET_LITE_TOPIC_INFO",
        200077: "GET_LITE_CLIENT_INFO",
        200078: "GET_LITE_GROUP_INFO",
        200079: "TRIGGER_LITE_DISPATCH",
    },
}
"""Requests of Apache RocketMQ 4.9.7 or 5.5.0 that `RequestCode` does not name, by what they belong to."""


def broker_options() -> str:
    return _servers_options(BrokerConfig)


def nameserver_options() -> str:
    return _servers_options(NameServerConfig)


def _servers_options(configuration: type[Configuration]) -> str:
    rows = ["| key | default | values | at run time | meaning |", "|---|---|---|---|---|"]
    for known in options(configuration).values():
        if known.name not in options(TlsConfig):  # these have a table of their own
            change = "" if known.fixed else "yes"
            rows.append(
                f"| `{known.key}` | {_default(known)} | {_values(known)} | {change} | {known.meaning} |"
            )
    return "\n".join(rows)


def tls_options() -> str:
    rows = ["| key | default | meaning |", "|---|---|---|"]
    rows += [
        f"| `{known.key}` | {_default(known)} | {known.meaning} |" for known in options(TlsConfig).values()
    ]
    return "\n".join(rows)


def _default(known: ConfigOption) -> str:
    return _code(known.write(known.default))


def _values(known: ConfigOption) -> str:
    if known.choices:
        return ", ".join(_code(choice) for choice in known.choices)
    if known.kind in (int, float):
        return f"{known.low} to {known.high}" if known.low < known.high else str(known.low)
    return "true, false" if known.kind is bool else ""


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def request_codes() -> str:
    broker, nameserver, client = asyncio.run(_handled())
    answering = {"broker": broker, "name server": nameserver, "client": client}
    known = {int(code): code.name for code in RequestCode}
    notes = {code: (name, area) for area, found in ABSENT.items() for code, name in found.items()}
    assert not known.keys() & notes.keys()
    rows = ["| code | request | here | answered by | note |", "|---|---|---|---|---|"]
    for code in sorted(known | notes):
        who = ", ".join(name for name, handled in answering.items() if code in handled)
        name, note = notes.get(code) or (known[code], PARTIAL.get(code) or ELSEWHERE.get(code, ""))
        here = ("part" if code in PARTIAL else "yes") if who else "no"
        rows.append(f"| {code} | {name} | {here} | {who} | {note} |")
    return "\n".join(rows)


async def _handled() -> tuple[set[int], set[int], set[int]]:
    """Codes that a running broker, a running name server and a client have handlers for."""
    clients = Handlers()
    BrokerRequests(ClientInstance.__new__(ClientInstance)).register(clients)
    keeping_users = {"authenticationMetadataProvider": "any"}
    async with LocalCluster(properties=keeping_users, namesrv_properties=keeping_users) as cluster:
        remoting = cluster.nameserver._remoting
        assert remoting is not None
        return set(cluster.broker.handlers.by_code), set(remoting._handlers.by_code), set(clients.by_code)


def broker_needs() -> str:
    strict, apache = NeedTable.of_broker(Rules.STRICT), NeedTable.of_broker(Rules.APACHE)
    rows = ["| code | request | needs | `authorizationRules=apache` |", "|---|---|---|---|"]
    for code in sorted(strict.rows):
        if code not in SENT_TO_CLIENTS and code not in SENT_TO_CONTROLLERS:
            ours, theirs = strict.rows[code].words, apache.rows[code].words
            differs = theirs if theirs != ours else ""
            rows.append(f"| {code} | {RequestCode(code).name} | {ours} | {differs} |")
    return "\n".join(rows)


def nameserver_needs() -> str:
    public = NeedTable.of_nameserver(routes_public=True)
    private = NeedTable.of_nameserver(routes_public=False)
    rows = ["| code | request | needs | `routesPublic=false` |", "|---|---|---|---|"]
    for code in sorted(public.rows):
        open_to, closed = public.rows[code].words, private.rows[code].words
        rows.append(
            f"| {code} | {RequestCode(code).name} | {open_to} | {closed if closed != open_to else ''} |"
        )
    return "\n".join(rows)


def _spark_options(settings: type[Any], *, without: Iterable[Any] = (), use: bool = False) -> str:
    """The options that a class of settings declares, what is needed first."""
    from gimbalmq.spark.declared import options_of

    left_out = set(without)
    rows = ["| option | type | default | meaning |", "|---|---|---|---|"]
    if use:
        rows = ["| option | type | default | for | meaning |", "|---|---|---|---|---|"]
    for option in sorted(options_of(settings), key=lambda each: not each.needed):
        if option in left_out:
            continue
        cells = [f"`{option.name}`", option.kind.type, _code(option.shown_default)]
        cells += [option.use] if use else []
        rows.append(f"| {' | '.join([*cells, option.meaning.replace('|', chr(92) + '|')])} |")
    return "\n".join(rows)


def spark_source_options() -> str:
    from gimbalmq.spark.options import SourceSettings

    return _spark_options(SourceSettings, use=True)


def spark_sink_options() -> str:
    from gimbalmq.spark.connection import CONNECTION_OPTIONS
    from gimbalmq.spark.sink_options import SinkSettings

    return _spark_options(SinkSettings, without=CONNECTION_OPTIONS)


def spark_store_options() -> str:
    from gimbalmq.spark.store_source import StoreSettings

    return _spark_options(StoreSettings)


def spark_archive_options() -> str:
    from gimbalmq.spark.archive.source import ArchiveSettings

    return _spark_options(ArchiveSettings)


TABLES = {
    "broker-options": broker_options,
    "nameserver-options": nameserver_options,
    "tls-options": tls_options,
    "request-codes": request_codes,
    "broker-needs": broker_needs,
    "nameserver-needs": nameserver_needs,
    "spark-source-options": spark_source_options,
    "spark-sink-options": spark_sink_options,
    "spark-store-options": spark_store_options,
    "spark-archive-options": spark_archive_options,
}
_MARK = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def renewed(text: str) -> str:
    """A page with its generated parts written anew."""
    return _MARK.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", text)


def main(words: list[str]) -> int:
    stale = []
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text()
        fresh = renewed(text)
        if fresh != text:
            stale.append(page.name)
            if "--check" not in words:
                page.write_text(fresh)
                print(f"{page.name} written")
    if "--check" in words and stale:
        print(f"out of date, run make docs: {', '.join(stale)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
