"""Who serves which topic (Java: RouteInfoManager). No network; the time is passed in.

Four tables, all rebuilt from what brokers register:

    topics     topic -> broker name -> queue data
    brokers    broker name -> cluster and the address of each broker id (0 is the master)
    clusters   cluster -> broker names
    live       (cluster, address) -> when it last spoke, its data version and its connection

A call either changes all of them or, where it raises, none. Where Java leaves rubbish behind
(an empty broker after a refused registration, the live entry of an address that another took
over) we do not; what peers can see on the wire is the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from gimbalmq.errors import InvalidParameterError, ResponseError
from gimbalmq.model.flags import PERM_READ, PERM_WRITE
from gimbalmq.nameserver.registration import Registration
from gimbalmq.protocol.bodies import BrokerData, ClusterInfo, DataVersion, QueueData, TopicList, TopicRoute

log = logging.getLogger(__name__)

MASTER_ID = 0
UNIT = 0x1
UNIT_SUBSCRIPTION = 0x2
SYNC_MEMBERS_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Brokers of one name find each other through such a topic: no stand-ins there."""


class MappedRoute(TopicRoute):
    """A route with the queue mappings of a static topic."""

    topic_queue_mapping_by_broker: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RegisterResult:
    """What a slave needs to follow its master; both None where there is none alive."""

    master_addr: str | None = None
    ha_server_addr: str | None = None


@dataclass(frozen=True, slots=True)
class GoneBroker:
    """A broker that was dropped, and the connection it had used (None where unknown)."""

    cluster: str
    broker_addr: str
    connection: object


@dataclass(slots=True)
class _Live:
    last_seen: float
    expiry: float
    data_version: DataVersion
    connection: object
    ha_server_addr: str


class RouteTable:
    """The registry of one name server."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[tuple[str, str], _Live] = {}
        self._mappings: dict[str, dict[str, Any]] = {}

    # -- brokers come ----------------------------------------------------------------

    def register(
        self,
        registration: Registration,
        *,
        now: float,
        connection: object = None,
        default_expiry: float = 120.0,
        delete_missing_topics: bool = False,
    ) -> RegisterResult:
        """Takes up what a broker announces.

        Raises:
            ResponseError: an update of one topic from a broker that has not registered before.
        """
        name, broker_id, address = registration.broker_name, registration.broker_id, registration.broker_addr
        known = self._brokers.get(name)
        # One address has one record: a promoted slave leaves its old id.
        addresses = {
            other: taken
            for other, taken in (known.broker_addrs if known is not None else {}).items()
            if taken != address or other == broker_id
        }
        if self._loses_to_holder(registration, addresses.get(broker_id)):
            log.warning(
                "%s of %s is held by %s with a newer state: %s is ignored",
                broker_id,
                name,
                addresses[broker_id],
                address,
            )
            self._live.pop((registration.cluster, address), None)
            return RegisterResult()
        if broker_id not in addresses and len(registration.topics) == 1:
            raise ResponseError("register broker failed")
        first = broker_id not in addresses
        addresses[broker_id] = address
        broker = BrokerData(
            broker_addrs=addresses,
            broker_name=name,
            cluster=known.cluster if known is not None else registration.cluster,
            enable_acting_master=bool(registration.enable_acting_master),
            zone_name=registration.zone_name,
        )
        self._brokers[name] = broker
        self._clusters.setdefault(registration.cluster, set()).add(name)
        if broker_id == MASTER_ID or (
            registration.enable_acting_master is not None and broker_id == min(addresses)
        ):
            self._take_topics(registration, first=first, delete_missing=delete_missing_topics)
        return self._refresh(registration, broker, now, connection, default_expiry)

    def _loses_to_holder(self, registration: Registration, holder: str | None) -> bool:
        if holder is None or holder == registration.broker_addr:
            return False
        live = self._live.get((registration.cluster, holder))
        return live is not None and live.data_version.state_version > registration.data_version.state_version

    def _take_topics(self, registration: Registration, *, first: bool, delete_missing: bool) -> None:
        name = registration.broker_name
        # A table of one topic is an update of that topic, not the whole of them.
        if delete_missing and not registration.queue_mappings and len(registration.topics) != 1:
            self._remove_from_topics(
                (topic for topic in list(self._topics) if topic not in registration.topics), [name]
            )
        changed = first or self.data_version_changed(
            registration.cluster, registration.broker_addr, registration.data_version
        )
        stand_in = registration.broker_id != MASTER_ID and bool(registration.enable_acting_master)
        for topic, config in registration.topics.items():
            queues = self._topics.setdefault(topic, {})
            if changed or name not in queues:
                queues[name] = QueueData(
                    broker_name=name,
                    perm=config.perm & ~PERM_WRITE if stand_in else config.perm,
                    read_queue_nums=config.read_queue_nums,
                    topic_sys_flag=config.topic_sys_flag,
                    write_queue_nums=config.write_queue_nums,
                )
        if changed:
            for topic, mapping in registration.queue_mappings.items():
                owner = mapping.get("bname") if isinstance(mapping, dict) else None
                self._mappings.setdefault(topic, {})[str(owner or name)] = mapping

    def _refresh(
        self,
        registration: Registration,
        broker: BrokerData,
        now: float,
        connection: object,
        default_expiry: float,
    ) -> RegisterResult:
        cluster, address = registration.cluster, registration.broker_addr
        if (cluster, address) not in self._live:
            log.info("broker %s (%s) of %s registered", broker.broker_name, address, cluster)
        self._live[cluster, address] = _Live(
            now,
            default_expiry if registration.expiry is None else registration.expiry,
            registration.data_version,
            connection,
            registration.ha_server_addr,
        )
        if registration.broker_id == MASTER_ID:
            return RegisterResult()
        master = broker.broker_addrs.get(MASTER_ID)
        live = None if master is None else self._live.get((cluster, master))
        return RegisterResult() if live is None else RegisterResult(master, live.ha_server_addr)

    def touch(self, cluster: str, broker_addr: str, now: float) -> bool:
        """Notes that a broker spoke; False where it is not known."""
        live = self._live.get((cluster, broker_addr))
        if live is not None:
            live.last_seen = now
        return live is not None

    def data_version(self, cluster: str, broker_addr: str) -> DataVersion | None:
        """What the broker registered last."""
        live = self._live.get((cluster, broker_addr))
        return None if live is None else live.data_version

    def data_version_changed(self, cluster: str, broker_addr: str, version: DataVersion) -> bool:
        return self.data_version(cluster, broker_addr) != version

    # -- brokers go ------------------------------------------------------------------

    def unregister(self, cluster: str, broker_name: str, broker_addr: str) -> None:
        """Forgets one address; with its last address the broker's name goes too."""
        if self._live.pop((cluster, broker_addr), None) is not None:
            log.info("broker %s (%s) of %s is gone", broker_name, broker_addr, cluster)
        broker = self._brokers.get(broker_name)
        if broker is None:
            return
        broker.broker_addrs = {
            broker_id: address for broker_id, address in broker.broker_addrs.items() if address != broker_addr
        }
        if not broker.broker_addrs:
            del self._brokers[broker_name]
            self._remove_from_clusters(broker_name)
            self._remove_from_topics(list(self._topics), [broker_name])
        elif broker.enable_acting_master and MASTER_ID not in broker.broker_addrs:
            for queues in self._topics.values():
                if broker_name in queues:
                    queues[broker_name].perm &= ~PERM_WRITE

    def expire(self, now: float) -> list[GoneBroker]:
        """Drops every broker that was silent for longer than it may be."""
        silent = [key for key, live in self._live.items() if live.last_seen + live.expiry < now]
        return [self._drop(*key) for key in silent]

    def connection_lost(self, connection: object) -> list[GoneBroker]:
        """Drops the brokers that registered over a connection."""
        served = [key for key, live in self._live.items() if live.connection is connection]
        return [self._drop(*key) for key in served]

    def _drop(self, cluster: str, broker_addr: str) -> GoneBroker:
        live = self._live.pop((cluster, broker_addr))
        for broker in list(self._brokers.values()):
            if broker.cluster == cluster and broker_addr in broker.broker_addrs.values():
                log.warning("broker %s (%s) of %s is lost", broker.broker_name, broker_addr, cluster)
                self.unregister(cluster, broker.broker_name, broker_addr)
        return GoneBroker(cluster, broker_addr, live.connection)

    def _remove_from_clusters(self, broker_name: str) -> None:
        for cluster in list(self._clusters):
            self._clusters[cluster].discard(broker_name)
            if not self._clusters[cluster]:
                del self._clusters[cluster]

    def _remove_from_topics(self, topics: Iterable[str], broker_names: Iterable[str]) -> None:
        names = list(broker_names)
        for topic in topics:
            queues = self._topics.get(topic, {})
            mappings = self._mappings.get(topic, {})
            for name in names:
                queues.pop(name, None)
                mappings.pop(name, None)
            if not queues:
                self._topics.pop(topic, None)
            if not mappings:
                self._mappings.pop(topic, None)

    # -- topics ----------------------------------------------------------------------

    def register_topic(self, topic: str, queues: list[QueueData]) -> None:
        """Adds a topic on brokers that are known.

        Raises:
            InvalidParameterError: one of them is not.
        """
        for queue in queues:
            if queue.broker_name not in self._brokers:
                raise InvalidParameterError(
                    f"topic {topic!r} names broker {queue.broker_name!r}, which is not registered", code=1
                )
        if queues:
            self._topics.setdefault(topic, {}).update({queue.broker_name: queue for queue in queues})

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forgets a topic, or only its part in one cluster."""
        if cluster:
            self._remove_from_topics([topic], self._clusters.get(cluster, ()))
        else:
            self._topics.pop(topic, None)
            self._mappings.pop(topic, None)

    def wipe_write_perm(self, broker_name: str) -> int:
        """Takes the write bit from all topics of a broker; answers how many it touched."""
        touched = self._queues_of(broker_name)
        for queues in touched:
            queues.perm &= ~PERM_WRITE
        return len(touched)

    def add_write_perm(self, broker_name: str) -> int:
        """Makes all topics of a broker readable and writable; answers how many it touched."""
        touched = self._queues_of(broker_name)
        for queues in touched:
            queues.perm = PERM_READ | PERM_WRITE
        return len(touched)

    def _queues_of(self, broker_name: str) -> list[QueueData]:
        return [queues[broker_name] for queues in self._topics.values() if broker_name in queues]

    # -- answers ---------------------------------------------------------------------

    def route(
        self,
        topic: str,
        *,
        acting_master: bool = False,
        zone: str | None = None,
        order_topic_conf: str | None = None,
    ) -> MappedRoute | None:
        """The route of a topic, made of copies; None where nobody serves it.

        Args:
            acting_master: present a masterless broker's smallest id as the master.
            zone: keep only brokers of this zone, and those without a master.
            order_topic_conf: passed through.
        """
        queues = self._topics.get(topic)
        if not queues:
            return None
        brokers = [_copy(self._brokers[name]) for name in sorted(queues) if name in self._brokers]
        if not brokers:
            return None
        if acting_master and not topic.startswith(SYNC_MEMBERS_PREFIX):
            for broker in brokers:
                _promote(broker, queues[broker.broker_name])
        shown = [replace(queues[name]) for name in sorted(queues)]
        if zone:
            far = {broker.broker_name for broker in brokers if not _near(broker, zone)}
            brokers = [broker for broker in brokers if broker.broker_name not in far]
            shown = [queue for queue in shown if queue.broker_name not in far]
        mappings = self._mappings.get(topic)
        return MappedRoute(
            broker_datas=brokers,
            order_topic_conf=order_topic_conf,
            queue_datas=shown,
            topic_queue_mapping_by_broker=None if mappings is None else dict(mappings),
        )

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            broker_addr_table={name: _copy(broker) for name, broker in sorted(self._brokers.items())},
            cluster_addr_table={cluster: sorted(names) for cluster, names in sorted(self._clusters.items())},
        )

    def members(self, broker_name: str) -> dict[int, str]:
        """Address of each id of a broker name; empty where it is not known."""
        broker = self._brokers.get(broker_name)
        return {} if broker is None else dict(sorted(broker.broker_addrs.items()))

    def all_topics(self) -> TopicList:
        return TopicList(topic_list=sorted(self._topics))

    def topics_of_cluster(self, cluster: str) -> TopicList:
        names = self._clusters.get(cluster, set())
        return TopicList(
            topic_list=[topic for topic, queues in sorted(self._topics.items()) if names & queues.keys()]
        )

    def system_topics(self) -> TopicList:
        """Names of clusters and brokers, which are topics too, and somebody to ask for the rest."""
        names = {name for cluster, brokers in self._clusters.items() for name in (cluster, *brokers)}
        addresses = [self.members(name) for name in sorted(self._brokers)]
        return TopicList(
            broker_addr=next((next(iter(found.values())) for found in addresses if found), None),
            topic_list=sorted(names),
        )

    def unit_topics(self, wanted: int, unwanted: int = 0) -> TopicList:
        """Topics whose flags have all the wanted bits and none of the unwanted.

        As in Java one broker's word is enough: here that of the first name.
        """
        return TopicList(
            topic_list=[
                topic
                for topic, queues in sorted(self._topics.items())
                if queues and _flags_fit(queues[min(queues)].topic_sys_flag, wanted, unwanted)
            ]
        )


def _copy(broker: BrokerData) -> BrokerData:
    return replace(broker, broker_addrs=dict(sorted(broker.broker_addrs.items())))


def _promote(broker: BrokerData, queues: QueueData) -> None:
    """Shows the smallest id as the master where that is wanted and nothing can be written."""
    if (
        broker.broker_addrs
        and MASTER_ID not in broker.broker_addrs
        and broker.enable_acting_master
        and not queues.perm & PERM_WRITE
    ):
        smallest = min(broker.broker_addrs)
        broker.broker_addrs = {MASTER_ID: broker.broker_addrs.pop(smallest), **broker.broker_addrs}


def _near(broker: BrokerData, zone: str) -> bool:
    return MASTER_ID not in broker.broker_addrs or (broker.zone_name or "").lower() == zone.lower()


def _flags_fit(flags: int, wanted: int, unwanted: int) -> bool:
    return flags & wanted == wanted and not flags & unwanted


def members_body(cluster: str, broker_name: str, members: dict[int, str]) -> dict[str, Any]:
    """Request 901's answer (Java: GetBrokerMemberGroupResponseBody)."""
    group = {"brokerAddrs": members, "brokerName": broker_name, "cluster": cluster}
    return {"brokerMemberGroup": group}
