"""Writes the tables of docs/ that can be read off the code: options and request codes.

python docs/generate.py            rewrites them (make docs)
python docs/generate.py --check    says which are out of date; exit code 1 if any (a test runs this)
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gimbalmq.broker.config import _FIXED_AT_START, BrokerConfig, property_name
from gimbalmq.client.broker_requests import BrokerRequests
from gimbalmq.client.instance import ClientInstance
from gimbalmq.nameserver.config import (
    _PROPERTIES,
    FIXED_WHILE_RUNNING,
    NameServerConfig,
    to_properties,
)
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.testing import LocalCluster
from gimbalmq.transport.channel import Handlers
from gimbalmq.transport.limits import ServerLimits
from gimbalmq.transport.tls_config import TLS_PROPERTY_NAMES, TlsConfig

DOCS = Path(__file__).resolve().parent

BROKER_MEANINGS = {
    "broker_cluster_name": "cluster the broker belongs to",
    "broker_name": "name of the broker; unique in its cluster",
    "broker_id": "0, a master; other values are refused",
    "broker_ip1": "address clients are told",
    "broker_ip2": "address replicas would be told; kept for Apache's tools",
    "bind_address": "address to listen on",
    "listen_port": "port to listen on; 0 takes a free one. Port - 2 is opened too, for clients before 4.5.1",
    "namesrv_addr": "name servers to register with, `host:port;host:port`",
    "store_path_root_dir": "folder of all data; the command's default is `~/.gimbalmq/store`",
    "broker_permission": "2 write + 4 read",
    "auto_create_topic_enable": "a send to an unknown topic creates it",
    "max_topic_nums": "topics of this broker altogether; more are refused",
    "max_subscription_group_nums": "consumer groups of this broker altogether; more are refused",
    "default_topic_queue_nums": "most queues a topic created that way gets",
    "auto_create_subscription_group": "an unknown consumer group is created when it appears",
    "notify_consumer_ids_changed_enable": "tell consumers at once when members of their group come or go",
    "reject_transaction_message": "refuse transaction messages",
    "trace_topic_enable": "create the system trace topic",
    "trace_on": "what clients are told about tracing",
    "region_id": "region written into answers",
    "max_message_size": "largest message in bytes",
    "long_polling_enable": "keep a pull that finds nothing until something comes",
    "short_polling_time_mills": "how long such a pull is kept with long polling off, ms",
    "max_pull_msg_bytes": "most bytes of messages in the answer to a pull that carries `maxMsgBytes`",
    "max_pull_msg_nums": "most messages in the answer to such a pull",
    "max_stats_items": "most counters that are kept for topics and groups, about 350 bytes each when idle; what comes "
    "then is counted in the totals only",
    "long_polling_max_time_mills": "ours: most ms a pull that finds nothing is kept, whatever the client asks for",
    "max_parked_pulls": "ours: most pulls that are kept so; beyond, pulls that find nothing are told SYSTEM_BUSY",
    "max_parked_pulls_per_connection": "ours: the same for one connection",
    "max_heartbeat_bytes": "ours: largest heartbeat in bytes",
    "max_groups_per_connection": "ours: groups, of consumers and producers, that one connection may be in",
    "max_group_members": "ours: members of all groups together",
    "max_subscription_bytes": "ours: memory of all subscriptions together",
    "max_consumer_offset_topics_per_group": "ours: topics for which one group may keep offsets",
    "max_consumer_offset_bytes": "ours: memory of all consumer offsets together, about 500 bytes for a topic and group "
    "and 100 for each further queue; beyond, offsets of new groups, topics and queues are refused",
    "max_queue_locks": "ours: queues locked for ordered consumers, all groups together; beyond, no more are granted",
    "max_topics_created_per_connection": "ours: topics that the sends of one connection may create",
    "max_groups_created_per_connection": "ours: consumer groups that one connection may create by appearing",
    "auto_create_topic_limit": "ours: a broker with so many topics creates none for clients; operators may go on",
    "auto_create_subscription_group_limit": "ours: the same for consumer groups",
    "register_name_server_period": "ms between registrations",
    "force_register": "send the whole table every period; `false` asks each name server first whether it has it",
    "channel_expired_timeout": "ms without a heartbeat after which a client is dropped",
    "flush_consumer_offset_interval": "ms between saves of consumer progress",
    "flush_delay_offset_interval": "ms between saves of the delay levels' progress",
    "message_delay_level": "the delay levels",
    "timer_wheel_enable": "accept messages with a delivery time of their own (5.x)",
    "timer_max_delay_sec": "longest such delay, s",
    "transaction_time_out": "ms before an undecided transaction is first asked about",
    "transaction_check_max": "how often it is asked about before it is dropped",
    "transaction_check_interval": "ms between looks for undecided transactions",
    "flush_disk_type": "`ASYNC_FLUSH`, or `SYNC_FLUSH`: a send is answered when it is on disk",
    "flush_interval_commit_log": "ms between syncs with ASYNC_FLUSH",
    "sync_flush_timeout": "ms a send waits for the disk with SYNC_FLUSH",
    "mapped_file_size_commit_log": "bytes of a commit log file",
    "mapped_file_size_consume_queue": "bytes of a consume queue file",
    "max_hash_slot_num": "hash slots of an index file",
    "max_index_num": "entries of an index file",
    "message_index_enable": "index messages by key",
    "delete_when": "hours of the day at which expired files are deleted, `04` or `02;14`",
    "file_reserved_time": "hours a commit log file is kept",
    "disk_max_used_space_ratio": "percent of the disk in use above which old files go early",
    "clean_resource_interval": "ms between looks for files to delete",
    "loop_pause_warn_millis": "ours: turns of the event loop that take so many ms are counted (metrics, runtime table)",
    "loop_pause_log_millis": "ours: turns that take so many ms are logged, with the stack",
    "clean_file_forcibly_enable": "a nearly full disk deletes old files before their time",
    "metrics_prom_exporter_port": "port of Prometheus metrics; 0 is none",
}

PARTIAL: dict[int, str] = {
    RequestCode.PULL_MESSAGE: "tag filters; SQL92 is refused",
    RequestCode.LITE_PULL_MESSAGE: "tag filters; SQL92 is refused",
    RequestCode.CHECK_CLIENT_CONFIG: "tag filters; SQL92 is refused",
}
"""Requests that are answered, but not for every use Apache's servers know."""

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
    "ACL": {
        50: "UPDATE_AND_CREATE_ACL_CONFIG",
        51: "DELETE_ACL_CONFIG",
        52: "GET_BROKER_CLUSTER_ACL_INFO",
        53: "UPDATE_GLOBAL_WHITE_ADDRS_CONFIG",
        54: "GET_BROKER_CLUSTER_ACL_CONFIG",
        3001: "AUTH_CREATE_USER",
        3002: "AUTH_UPDATE_USER",
        3003: "AUTH_DELETE_USER",
        3004: "AUTH_GET_USER",
        3005: "AUTH_LIST_USER",
        3006: "AUTH_CREATE_ACL",
        3007: "AUTH_UPDATE_ACL",
        3008: "AUTH_DELETE_ACL",
        3009: "AUTH_GET_ACL",
        3010: "AUTH_LIST_ACL",
    },
    "asked by slaves; there are none here": {
        60: "GET_TIMER_CHECK_POINT",
        61: "GET_TIMER_METRICS",
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
        402: "GET_ALL_MESSAGE_REQUEST_MODE",
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
    "replicas": {
        902: "ADD_BROKER",
        903: "REMOVE_BROKER",
        905: "NOTIFY_MIN_BROKER_ID_CHANGE",
        906: "EXCHANGE_BROKER_HA_INFO",
        908: "RESET_MASTER_FLUSH_OFFSET",
    },
    "controller": {
        1001: "CONTROLLER_ALTER_SYNC_STATE_SET",
        1002: "CONTROLLER_ELECT_MASTER",
        1003: "CONTROLLER_REGISTER_BROKER",
        1004: "CONTROLLER_GET_REPLICA_INFO",
        1005: "CONTROLLER_GET_METADATA_INFO",
        1006: "CONTROLLER_GET_SYNC_STATE_DATA",
        1007: "GET_BROKER_EPOCH_CACHE",
        1008: "NOTIFY_BROKER_ROLE_CHANGED",
        1009: "UPDATE_CONTROLLER_CONFIG",
        1010: "GET_CONTROLLER_CONFIG",
        1011: "CLEAN_BROKER_DATA",
        1012: "CONTROLLER_GET_NEXT_BROKER_ID",
        1013: "CONTROLLER_APPLY_BROKER_ID",
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
    rows = ["| key | default | at run time | meaning |", "|---|---|---|---|"]
    defaults = BrokerConfig().to_properties()
    meanings = BROKER_MEANINGS | _attributes(ServerLimits)
    for field in dataclasses.fields(BrokerConfig):
        if field.name in TLS_PROPERTY_NAMES:
            continue  # in a table of their own
        key = property_name(field.name)
        change = "" if field.name in _FIXED_AT_START else "yes"
        rows.append(f"| `{key}` | {_code(defaults.get(key, ''))} | {change} | {meanings[field.name]} |")
    return "\n".join(rows)


def tls_options() -> str:
    defaults = BrokerConfig().to_properties()
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for name, meaning in _attributes(TlsConfig).items():
        key = TLS_PROPERTY_NAMES[name]
        rows.append(f"| `{key}` | {_code(defaults.get(key, ''))} | {meaning.replace('``', '`')} |")
    return "\n".join(rows)


def _attributes(described: type) -> dict[str, str]:
    found = re.findall(r"^ {8}(\w+): (.+?)$", described.__doc__ or "", re.MULTILINE)
    return {name: meaning.rstrip(".") for name, meaning in found}


def nameserver_options() -> str:
    meanings = _attributes(ServerLimits) | _attributes(NameServerConfig)
    defaults = to_properties(NameServerConfig())
    rows = ["| key | default | at run time | meaning |", "|---|---|---|---|"]
    for key, known in _PROPERTIES.items():
        if known.option in TLS_PROPERTY_NAMES:
            continue  # in a table of their own
        change = "" if key in FIXED_WHILE_RUNNING else "yes"
        rows.append(f"| `{key}` | {_code(defaults[key])} | {change} | {meanings[known.option]} |")
    return "\n".join(rows)


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
        name, note = notes.get(code) or (known[code], PARTIAL.get(code, ""))
        here = ("part" if code in PARTIAL else "yes") if who else "no"
        rows.append(f"| {code} | {name} | {here} | {who} | {note} |")
    return "\n".join(rows)


async def _handled() -> tuple[set[int], set[int], set[int]]:
    """Codes that a running broker, a running name server and a client have handlers for."""
    clients = Handlers()
    BrokerRequests(ClientInstance.__new__(ClientInstance)).register(clients)
    async with LocalCluster() as cluster:
        remoting = cluster.nameserver._remoting
        assert remoting is not None
        return set(cluster.broker.handlers.by_code), set(remoting._handlers.by_code), set(clients.by_code)


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
