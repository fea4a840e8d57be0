"""Java's mqadmin asks a pair of ours what it asks of Apache's: haStatus and what belongs to it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from gimbalmq import Message
from gimbalmq.sync import Producer
from gimbalmq.testing import LocalCluster
from gimbalmq.testing.cluster import ThreadCluster
from tests.peers.driver import JavaClient, JavaError

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def pair() -> Iterator[ThreadCluster]:
    with LocalCluster.in_thread(replicas=2) as cluster:
        with Producer("senders", cluster.namesrv) as producer:
            for _ in range(10):
                producer.send(Message("orders", b"hello"))
        cluster.in_step()
        yield cluster


@pytest.fixture
def newer(java_clients: dict[str, JavaClient]) -> JavaClient:
    """4.9's mqadmin does not know these commands."""
    return java_clients["5.5.0"]


def _lines(printed: str) -> dict[str, str]:
    """What stands behind ``#Name``."""
    return dict(re.findall(r"^#(\w+)(?:\([^)]*\))?\t(.*)$", printed, re.MULTILINE))


def test_ha_status_of_a_master_and_of_its_slave(newer: JavaClient, pair: ThreadCluster) -> None:
    master, slave = pair.replica(0, 0), pair.replica(0, 1)
    end = master.store.max_commitlog_offset
    printed = newer.admin("haStatus", "-b", master.address, namesrv=pair.namesrv)
    assert _lines(printed) == {
        "MasterAddr": master.address,
        "MasterCommitLogMaxOffset": str(end),
        "SlaveNum": "1",
        "InSyncSlaveNum": "1",
    }
    (row,) = re.findall(r"^127\.0\.0\.1:\d+ .*$", printed, re.MULTILINE)
    _, acked, behind, _, state, sent = row.split()
    assert (acked, behind, state, sent) == (str(end), "0", "OK", str(end))
    assert "InSyncSlaveNum\t1" in newer.admin("haStatus", "-c", "DefaultCluster", namesrv=pair.namesrv)

    newer.admin("resetMasterFlushOffset", "-b", slave.address, "-o", "17", namesrv=pair.namesrv)
    shown = _lines(newer.admin("haStatus", "-b", slave.address, namesrv=pair.namesrv))
    assert shown["MasterAddr"] == master.replication.ha_address
    assert shown["CommitLogMaxOffset"] == str(end) and shown["MasterFlushOffset"] == "17"
    assert shown["LastReadTime"].startswith("20") and shown["LastWriteTime"].startswith("20")


def test_a_broker_without_a_controller_has_no_epochs(newer: JavaClient, pair: ThreadCluster) -> None:
    with pytest.raises(JavaError, match="CODE: 1 "):
        newer.admin("getBrokerEpoch", "-b", "broker-a", namesrv=pair.namesrv)


def test_both_versions_list_a_pair_and_the_status_of_each(java: JavaClient, pair: ThreadCluster) -> None:
    printed = java.admin("clusterList", namesrv=pair.namesrv)
    for broker_id in (0, 1):
        assert re.search(rf"broker-a +{broker_id} +{pair.replica(0, broker_id).address} ", printed), printed
    for broker_id, active in ((0, "true"), (1, "false")):
        address = pair.replica(0, broker_id).address
        status = java.admin("brokerStatus", "-b", address, namesrv=pair.namesrv)
        assert re.search(rf"^brokerActive +: {active}$", status, re.MULTILINE), status
        end = pair.replica(0, broker_id).store.max_commitlog_offset
        assert re.search(rf"^commitLogMaxOffset +: {end}$", status, re.MULTILINE), status
