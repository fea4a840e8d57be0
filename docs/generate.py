"""Writes the tables of docs/ that can be read off the code: options and request codes.

python docs/generate.py            rewrites them (make docs)
python docs/generate.py --check    says which are out of date; exit code 1 if any (a test runs this)
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
import sys
from pathlib import Path

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
    "clean_file_forcibly_enable": "a nearly full disk deletes old files before their time",
    "tls_server_mode": "`disabled`, `permissive` (plain and TLS on one port) or `enforcing`",
    "tls_server_cert_path": "certificate, PEM",
    "tls_server_key_path": "its key, PEM",
    "tls_server_trust_cert_path": "certificates clients are checked against, PEM",
    "tls_server_need_client_auth": "`none`, `optional` or `require`",
    "metrics_prom_exporter_port": "port of Prometheus metrics; 0 is none",
}

PARTIAL = {
    RequestCode.PULL_MESSAGE: "tag filters; SQL92 is refused",
    RequestCode.LITE_PULL_MESSAGE: "tag filters; SQL92 is refused",
    RequestCode.CHECK_CLIENT_CONFIG: "tag filters; SQL92 is refused",
}
"""Requests that are answered, but not for every use Apache's servers know."""


def broker_options() -> str:
    rows = ["| key | default | at run time | meaning |", "|---|---|---|---|"]
    defaults = BrokerConfig().to_properties()
    for field in dataclasses.fields(BrokerConfig):
        key = property_name(field.name)
        change = "" if field.name in _FIXED_AT_START else "yes"
        rows.append(
            f"| `{key}` | {_code(defaults.get(key, ''))} | {change} | {BROKER_MEANINGS[field.name]} |"
        )
    return "\n".join(rows)


def nameserver_options() -> str:
    meanings = dict(re.findall(r"^ {8}(\w+): (.+?)$", NameServerConfig.__doc__ or "", re.MULTILINE))
    defaults = to_properties(NameServerConfig())
    rows = ["| key | default | at run time | meaning |", "|---|---|---|---|"]
    for key, known in _PROPERTIES.items():
        change = "" if key in FIXED_WHILE_RUNNING else "yes"
        rows.append(f"| `{key}` | {_code(defaults[key])} | {change} | {meanings[known.option].rstrip('.')} |")
    return "\n".join(rows)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def request_codes() -> str:
    broker, nameserver, client = asyncio.run(_handled())
    rows = ["| code | request | broker | name server | client | note |", "|---|---|---|---|---|---|"]
    for code in RequestCode:
        yes = "part" if code in PARTIAL else "yes"
        cells = [yes if code in handled else "" for handled in (broker, nameserver, client)]
        note = PARTIAL.get(code, "" if any(cells) else "answered with code 3, not supported")
        rows.append(f"| {int(code)} | {code.name} | {' | '.join(cells)} | {note} |")
    return "\n".join(rows)


async def _handled() -> tuple[set[int], set[int], set[int]]:
    """Codes that a running broker, a running name server and a client have handlers for."""
    clients = Handlers()
    BrokerRequests(ClientInstance.__new__(ClientInstance)).register(clients)
    async with LocalCluster() as cluster:
        remoting = cluster.nameserver._remoting
        assert remoting is not None
        return set(cluster.broker.handlers.by_code), set(remoting._handlers.by_code), set(clients.by_code)


def spark_source_options() -> str:
    from gimbalmq.spark.options import OPTIONS

    rows = ["| option | default | for | meaning |", "|---|---|---|---|"]
    for option in OPTIONS:
        meaning = option.meaning.replace("|", "\\|")
        rows.append(f"| `{option.name}` | {_code(option.default)} | {option.use} | {meaning} |")
    return "\n".join(rows)


def spark_sink_options() -> str:
    from gimbalmq.spark.option_values import CONNECTION_OPTIONS
    from gimbalmq.spark.sink_options import TABLE

    rows = ["| option | default | meaning |", "|---|---|---|"]
    for option in TABLE:
        if option.name not in CONNECTION_OPTIONS:
            meaning = option.meaning.replace("|", "\\|")
            rows.append(f"| `{option.name}` | {_code(option.default)} | {meaning} |")
    return "\n".join(rows)


TABLES = {
    "broker-options": broker_options,
    "nameserver-options": nameserver_options,
    "request-codes": request_codes,
    "spark-source-options": spark_source_options,
    "spark-sink-options": spark_sink_options,
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
