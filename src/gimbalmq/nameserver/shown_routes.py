"""Routes as clients are shown them: copies, with a stand-in for a master that is missing, and by zone (pure)."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gimbalmq.model.flags import PERM_WRITE
from gimbalmq.model.route import MASTER_ID
from gimbalmq.protocol.bodies import BrokerData, QueueData, TopicRoute


class MappedRoute(TopicRoute):
    """A route with the queue mappings of a static topic."""

    topic_queue_mapping_by_broker: dict[str, Any] | None = None


def broker_copy(broker: BrokerData) -> BrokerData:
    """With its addresses in the order of their ids."""
    return replace(broker, broker_addrs=dict(sorted(broker.broker_addrs.items())))


def promote(broker: BrokerData, queues: QueueData) -> None:
    """Shows the smallest id as the master if that is wanted and nothing can be written."""
    if (
        broker.broker_addrs
        and MASTER_ID not in broker.broker_addrs
        and broker.enable_acting_master
        and not queues.perm & PERM_WRITE
    ):
        smallest = min(broker.broker_addrs)
        broker.broker_addrs = {MASTER_ID: broker.broker_addrs.pop(smallest), **broker.broker_addrs}


def is_near(broker: BrokerData, zone: str) -> bool:
    """Whether a client of this zone is to see the broker: also if there is no master."""
    return MASTER_ID not in broker.broker_addrs or (broker.zone_name or "").lower() == zone.lower()


def members_body(cluster: str, broker_name: str, members: dict[int, str]) -> dict[str, Any]:
    """Request 901's answer (Java: GetBrokerMemberGroupResponseBody)."""
    group = {"brokerAddrs": members, "brokerName": broker_name, "cluster": cluster}
    return {"brokerMemberGroup": group}
