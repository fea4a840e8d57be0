"""What the interop tests test: our servers, or, to prove the tests themselves right, Apache's.

`GIMBALMQ_INTEROP_SUBJECT=apache` (or `apache-4.9.7`) puts Apache's name server and broker where ours would be.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.peers.apache import ApacheBroker, ApacheNameServer
from tests.peers.ours import OurBroker, OurNameServer, OurServer
from tests.peers.process import Process

SUBJECT = os.environ.get("GIMBALMQ_INTEROP_SUBJECT", "ours")
APACHE_VERSION = {"ours": None, "apache": "5.5.0", "apache-5.5.0": "5.5.0", "apache-4.9.7": "4.9.7"}[SUBJECT]

# Retries and delays in seconds instead of minutes (a first retry uses level 3), transactions checked every second
# once they are 3 s old: a decision needs milliseconds, but on a busy machine a second may pass.
SETTINGS: Mapping[str, object] = {
    "messageDelayLevel": "1s 2s 1s 1s 1s 1s 3s 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    "transactionCheckInterval": 1000,
    "transactionTimeOut": 3000,
}


@dataclass(frozen=True)
class Cluster:
    """A running name server with one broker."""

    namesrv: str
    broker: str
    broker_name: str
    cluster_name: str
    processes: tuple[Process, ...]

    def kill(self) -> None:
        for process in reversed(self.processes):
            process.kill()


def name_server(folder: Path) -> OurNameServer | ApacheNameServer:
    if APACHE_VERSION is None:
        return OurNameServer(folder)
    return ApacheNameServer(APACHE_VERSION, folder)


def broker(
    folder: Path,
    *,
    namesrv: str,
    store: Path | None = None,
    port: int | None = None,
    extra: Mapping[str, object] | None = None,
) -> OurBroker | ApacheBroker:
    settings = {**SETTINGS, **(extra or {})}
    if APACHE_VERSION is None:
        return OurBroker(folder, namesrv=namesrv, store=store, port=port, extra=settings)
    return ApacheBroker(APACHE_VERSION, folder, namesrv=namesrv, store=store, port=port, extra=settings)


def cluster(folder: Path) -> Cluster:
    """Start name server and broker: ours in one process, as `gimbalmq server` runs them."""
    if APACHE_VERSION is None:
        server = OurServer(folder, extra=SETTINGS).start()
        cluster_name = str(server.properties["brokerClusterName"])
        return Cluster(server.namesrv, server.address, server.name_of_broker, cluster_name, (server,))
    namesrv = ApacheNameServer(APACHE_VERSION, folder / "namesrv").start()
    try:
        apache = ApacheBroker(
            APACHE_VERSION, folder / "broker", namesrv=namesrv.address, extra=SETTINGS
        ).start()
    except BaseException:
        namesrv.kill()
        raise
    cluster_name = str(apache.properties["brokerClusterName"])
    return Cluster(namesrv.address, apache.address, apache.name_of_broker, cluster_name, (namesrv, apache))
