"""Who serves which topic (Java: RouteInfoManager). No network; the time is passed in.

Tables, all rebuilt from what brokers register: topics by broker and brokers by topic (``served_topics``), cluster and
addresses by broker name, broker names by cluster, and who is alive (``live_brokers``).

A call that raises has changed nothing, but for a registration of topics that find no room: its broker lives, and what
has room is taken. Java leaves some rubbish behind (an empty broker after a refused registration, the live entry of an
address that another took over), and we do not; what peers can see on the wire is the same.

Nothing here takes long, however many topics there are: a registration and the lists of topics go in steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from gimbalmq._steps import Steps, run_through
from gimbalmq.errors import InvalidParameterError, NoPermissionError, ResponseError, TableFullError
from gimbalmq.model.flags import PERM_READ, PERM_WRITE
from gimbalmq.model.route import MASTER_ID
from gimbalmq.model.topics import SYNC_MEMBERS_PREFIX
from gimbalmq.nameserver.live_brokers import LiveBrokers, Place
from gimbalmq.nameserver.registration import MAX_NAME_CHARACTERS, Registration
from gimbalmq.nameserver.served_topics import ServedTopics, TableLimits
from gimbalmq.nameserver.shown_routes import MappedRoute, broker_copy, is_near, promote
from gimbalmq.protocol.bodies import BrokerData, ClusterInfo, DataVersion, QueueData, TopicList
from gimbalmq.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

UNIT = 0x1
UNIT_SUBSCRIPTION = 0x2

_ADDRESSES = 100


@dataclass(frozen=True, slots=True)
class RegisterResult:
    """What a slave needs to follow its master; both None if there is none alive."""

    master_addr: str | None = None
    ha_server_addr: str | None = None


@dataclass(frozen=True, slots=True)
class GoneBroker:
    """A broker that was dropped, and the connection it had used (None if unknown)."""

    cluster: str
    broker_addr: str
    connection: object


class RouteTable:
    """The registry of one name server."""

    def __init__(self) -> None:
        self._topics = ServedTopics()
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live = LiveBrokers()
        self.swept_later: Callable[[], None] | None = None
        """Told when there is more to sweep than fits one step; ``sweep`` is then to be called until it says False."""

    @property
    def limits(self) -> TableLimits:
        return self._topics.limits

    @limits.setter
    def limits(self, limits: TableLimits) -> None:
        self._topics.limits = limits

    # -- brokers come ----------------------------------------------------------------

    def register(
        self,
        registration: Registration,
        *,
        now: float,
        connection: object = None,
        default_expiry: float = 120.0,
        delete_missing_topics: bool = False,
        owner: str = "",
        may_replace: bool = True,
    ) -> RegisterResult:
        """Takes up what a broker announces; see ``registering``."""
        return run_through(
            self.registering(
                registration,
                now=now,
                connection=connection,
                default_expiry=default_expiry,
                delete_missing_topics=delete_missing_topics,
                owner=owner,
                may_replace=may_replace,
            )
        )

    def registering(
        self,
        registration: Registration,
        *,
        now: float,
        connection: object = None,
        default_expiry: float = 120.0,
        delete_missing_topics: bool = False,
        owner: str = "",
        may_replace: bool = True,
    ) -> Steps[RegisterResult]:
        """Takes up what a broker announces, a few hundred topics in a step.

        Args:
            owner: who says so: the certificate or the address of the peer.
            may_replace: it may take the place of a broker that somebody else has registered, as a promoted slave does.

        Raises:
            NoPermissionError: it would, and may not.
            ResponseError: an update of one topic from a broker that has not registered before, or the
                broker went away meanwhile.
            TableFullError: the broker is one too many, or some of its topics are; the others are registered then.
        """
        name, broker_id, address = registration.broker_name, registration.broker_id, registration.broker_addr
        known = self._brokers.get(name)
        # One address has one record: a promoted slave leaves its old id.
        addresses = {
            other: taken
            for other, taken in (known.broker_addrs if known is not None else {}).items()
            if taken != address or other == broker_id
        }
        if not may_replace:
            for taken in {address, addresses.get(broker_id, address)}:
                self._live.require_owner(taken, owner)
            _require_own_words(registration)
        if self._loses_to_holder(registration, addresses.get(broker_id)):
            log.warning(
                "%s of %s is held by %s with a newer state: %s is ignored",
                broker_id,
                name,
                addresses[broker_id],
                address,
            )
            self._live.forget((registration.cluster, address))
            return RegisterResult()
        if broker_id not in addresses and len(registration.topics) == 1:
            raise ResponseError("register broker failed")
        leads = broker_id == MASTER_ID or (
            registration.enable_acting_master is not None and broker_id == min([*addresses, broker_id])
        )
        self._check_room(registration)
        first = broker_id not in addresses
        changed = first or self.data_version_changed(registration.cluster, address, registration.data_version)
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
        live = self._live.refresh(registration, now, connection, default_expiry, owner)
        refused: list[str] = []
        if leads:
            for _ in self._topics.take(
                registration, refused, changed=changed, delete_missing=delete_missing_topics
            ):
                yield
                if self._live.get(registration.cluster, address) is not live:
                    raise ResponseError(f"broker {name} ({address}) went away while it registered")
        if refused:
            # The version stays the old one, so the broker comes again with what is missing.
            log.warning("broker %s (%s): %s", name, address, "; ".join(refused))
            raise TableFullError("; ".join(refused))
        live.data_version = registration.data_version
        return self._master_of(registration, broker)

    def _check_room(self, registration: Registration) -> None:
        limits, name = self.limits, registration.broker_name
        address = registration.broker_addr
        for what, unknown, count in (
            ("brokers", self._live.get(registration.cluster, address) is None, len(self._live)),
            ("names of brokers", name not in self._brokers, len(self._brokers)),
            ("clusters", registration.cluster not in self._clusters, len(self._clusters)),
        ):
            if unknown and count >= limits.brokers:
                raise TableFullError(
                    f"broker {name} ({address}) is not registered: this name server knows {count} {what} and "
                    f"maxBrokerNums is {limits.brokers}; raise it"
                )
        broker = self._brokers.get(name)
        if (
            broker is not None
            and registration.broker_id not in broker.broker_addrs
            and len(broker.broker_addrs) >= _ADDRESSES
        ):
            raise TableFullError(
                f"broker {name} ({address}) is not registered: the name has {_ADDRESSES} addresses already"
            )

    def _loses_to_holder(self, registration: Registration, holder: str | None) -> bool:
        if holder is None or holder == registration.broker_addr:
            return False
        live = self._live.get(registration.cluster, holder)
        return live is not None and live.data_version.state_version > registration.data_version.state_version

    def _master_of(self, registration: Registration, broker: BrokerData) -> RegisterResult:
        if registration.broker_id == MASTER_ID:
            return RegisterResult()
        master = broker.broker_addrs.get(MASTER_ID)
        live = None if master is None else self._live.get(registration.cluster, master)
        return RegisterResult() if live is None else RegisterResult(master, live.ha_server_addr)

    def require_owner(self, broker_addr: str, owner: str) -> None:
        """Raises NoPermissionError if the broker of this address was registered by somebody else, in any cluster."""
        self._live.require_owner(broker_addr, owner)

    def touch(self, cluster: str, broker_addr: str, now: float) -> bool:
        """Notes that a broker spoke; False if it is not known."""
        return self._live.touch(cluster, broker_addr, now)

    def data_version(self, cluster: str, broker_addr: str) -> DataVersion | None:
        """What the broker registered last."""
        live = self._live.get(cluster, broker_addr)
        return None if live is None else live.data_version

    def data_version_changed(self, cluster: str, broker_addr: str, version: DataVersion) -> bool:
        return self.data_version(cluster, broker_addr) != version

    # -- brokers go ------------------------------------------------------------------

    def unregister(self, cluster: str, broker_name: str, broker_addr: str) -> None:
        """Forgets one address; with its last address the broker's name goes too."""
        if self._live.forget((cluster, broker_addr)) is not None:
            log.info("broker %s (%s) of %s is gone", broker_name, broker_addr, cluster)
        self._take_address(broker_name, broker_addr)
        self._forget_names()

    def _take_address(self, broker_name: str, broker_addr: str) -> None:
        broker = self._brokers.get(broker_name)
        if broker is None:
            return
        broker.broker_addrs = {
            broker_id: address for broker_id, address in broker.broker_addrs.items() if address != broker_addr
        }
        if not broker.broker_addrs:
            del self._brokers[broker_name]
            self._topics.drop_broker(broker_name)
        elif broker.enable_acting_master and MASTER_ID not in broker.broker_addrs:
            for queues in self._topics.served_by(broker_name).values():
                queues.perm &= ~PERM_WRITE

    def _forget_names(self) -> None:
        """Takes brokers without an address out of the clusters, and begins to sweep their topics."""
        gone = self._topics.unswept
        if not gone:
            return
        names = gone - self._brokers.keys()
        for cluster in list(self._clusters):
            self._clusters[cluster] -= names
            if not self._clusters[cluster]:
                del self._clusters[cluster]
        if self.sweep() and self.swept_later is not None:
            self.swept_later()

    def expire(self, now: float) -> list[GoneBroker]:
        """Drops every broker that was silent for longer than it may be."""
        return self._drop(self._live.silent(now))

    def connection_lost(self, connection: object) -> list[GoneBroker]:
        """Drops the brokers that registered over a connection."""
        return self._drop(self._live.of_connection(connection))

    def _drop(self, keys: list[Place]) -> list[GoneBroker]:
        if not keys:
            return []
        holders: dict[Place, list[str]] = {}
        for broker in self._brokers.values():
            for address in broker.broker_addrs.values():
                holders.setdefault((broker.cluster, address), []).append(broker.broker_name)
        gone = []
        for cluster, address in keys:
            live = self._live.forget((cluster, address))
            assert live is not None
            for name in holders.get((cluster, address), ()):
                log.warning("broker %s (%s) of %s is lost", name, address, cluster)
                self._take_address(name, address)
            gone.append(GoneBroker(cluster, address, live.connection))
        self._forget_names()
        return gone

    def sweep(self) -> bool:
        """Takes some of the topics of brokers that are gone out of the table; True if there are more."""
        return self._topics.sweep()

    # -- topics ----------------------------------------------------------------------

    def register_topic(self, topic: str, queues: list[QueueData]) -> None:
        """Adds a topic on brokers that are known.

        Raises:
            InvalidParameterError: one of them is not, or the topic cannot be one.
            TableFullError: the tables would grow beyond their bounds.
        """
        for queue in queues:
            if queue.broker_name not in self._brokers:
                raise InvalidParameterError(
                    f"topic {topic!r} names broker {queue.broker_name!r}, which is not registered",
                    code=ResponseCode.SYSTEM_ERROR,
                )
            if queue.read_queue_nums < 0 or queue.write_queue_nums < 0:
                raise InvalidParameterError(
                    f"topic {topic!r} has a negative number of queues", code=ResponseCode.SYSTEM_ERROR
                )
        if not topic or len(topic) > MAX_NAME_CHARACTERS:
            raise InvalidParameterError(
                f"topic {topic[:40]!r} has {len(topic)} characters; use 1 to {MAX_NAME_CHARACTERS}",
                code=ResponseCode.SYSTEM_ERROR,
            )
        new = {
            queue.broker_name for queue in queues if topic not in self._topics.served_by(queue.broker_name)
        }
        problem = self._topics.no_room(topic, len(new)) if new else None
        if problem is not None:
            raise TableFullError(f"topic {topic} is not registered: {problem}")
        for queue in queues:
            self._topics.serve(topic, queue)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forgets a topic, or only its part in one cluster."""
        if cluster:
            self._topics.remove([topic], self._clusters.get(cluster, ()))
        else:
            self._topics.remove([topic], self._topics.brokers_of(topic))
            self._topics.mappings.forget_topic(topic)

    def wipe_write_perm(self, broker_name: str) -> int:
        """Takes the write bit from all topics of a broker; answers how many it touched."""
        touched = self._topics.served_by(broker_name)
        for queues in touched.values():
            queues.perm &= ~PERM_WRITE
        return len(touched)

    def add_write_perm(self, broker_name: str) -> int:
        """Makes all topics of a broker readable and writable; answers how many it touched."""
        touched = self._topics.served_by(broker_name)
        for queues in touched.values():
            queues.perm = PERM_READ | PERM_WRITE
        return len(touched)

    # -- answers ---------------------------------------------------------------------

    def route(
        self,
        topic: str,
        *,
        acting_master: bool = False,
        zone: str | None = None,
        order_topic_conf: str | None = None,
    ) -> MappedRoute | None:
        """The route of a topic, made of copies; None if nobody serves it.

        Args:
            acting_master: present a masterless broker's smallest id as the master.
            zone: keep only brokers of this zone, and those without a master.
            order_topic_conf: passed through.
        """
        queues = self._topics.counting(topic)
        if not queues:
            return None
        brokers = [broker_copy(self._brokers[name]) for name in sorted(queues) if name in self._brokers]
        if not brokers:
            return None
        if acting_master and not topic.startswith(SYNC_MEMBERS_PREFIX):
            for broker in brokers:
                promote(broker, queues[broker.broker_name])
        shown = [replace(queues[name]) for name in sorted(queues)]
        if zone:
            far = {broker.broker_name for broker in brokers if not is_near(broker, zone)}
            brokers = [broker for broker in brokers if broker.broker_name not in far]
            shown = [queue for queue in shown if queue.broker_name not in far]
        return MappedRoute(
            broker_datas=brokers,
            order_topic_conf=order_topic_conf,
            queue_datas=shown,
            topic_queue_mapping_by_broker=self._topics.mappings.of(topic),
        )

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            broker_addr_table={name: broker_copy(broker) for name, broker in sorted(self._brokers.items())},
            cluster_addr_table={cluster: sorted(names) for cluster, names in sorted(self._clusters.items())},
        )

    def members(self, broker_name: str) -> dict[int, str]:
        """Address of each id of a broker name; empty if it is not known."""
        broker = self._brokers.get(broker_name)
        return {} if broker is None else dict(sorted(broker.broker_addrs.items()))

    def all_topics(self) -> Steps[list[str]]:
        """In no particular order, as in Java: to sort many names would take too long."""
        return self._topics.names()

    def topics_of_cluster(self, cluster: str) -> Steps[list[str]]:
        names = frozenset(self._clusters.get(cluster, ()))
        return self._topics.chosen(lambda queues: not names.isdisjoint(queues))

    def system_topics(self) -> TopicList:
        """Names of clusters and brokers, which are topics too, and somebody to ask for the rest."""
        names = {name for cluster, brokers in self._clusters.items() for name in (cluster, *brokers)}
        addresses = [self.members(name) for name in sorted(self._brokers)]
        return TopicList(
            broker_addr=next((next(iter(found.values())) for found in addresses if found), None),
            topic_list=sorted(names),
        )

    def unit_topics(self, wanted: int, unwanted: int = 0) -> Steps[list[str]]:
        """Topics whose flags have all the wanted bits and none of the unwanted.

        As in Java one broker's word is enough: here that of the first name.
        """
        return self._topics.chosen(
            lambda queues: _flags_fit(queues[min(queues)].topic_sys_flag, wanted, unwanted)
        )


def _flags_fit(flags: int, wanted: int, unwanted: int) -> bool:
    return flags & wanted == wanted and not flags & unwanted


def _require_own_words(registration: Registration) -> None:
    """Raises NoPermissionError if a broker without credentials speaks for others of its name, or of another name.

    Whoever has the lowest id leads: one below the master's would say which topics the master has.
    """
    name = registration.broker_name
    others = (
        mapping["bname"]
        for mapping in registration.queue_mappings.values()
        if isinstance(mapping, dict) and mapping.get("bname") not in (None, "", name)
    )
    other = next(others, None)
    if registration.broker_id < MASTER_ID or other is not None:
        what = f"has the id {registration.broker_id}" if other is None else f"speaks for {str(other)[:80]}"
        raise NoPermissionError(
            f"the broker {name} at {registration.broker_addr} {what}: sign the request with a server's credentials"
        )
