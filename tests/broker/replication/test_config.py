"""Options of replicas: Apache's keys, and combinations that cannot work."""

from __future__ import annotations

import pytest

from gimbalmq.broker.config import BrokerConfig
from gimbalmq.errors import ConfigError


def test_a_slave_has_an_id_of_its_own() -> None:
    config, unknown = BrokerConfig.from_properties({"brokerRole": "slave", "brokerId": "2"})
    assert (config.broker_role, config.broker_id, unknown) == ("SLAVE", 2, [])


def test_defaults_are_apaches() -> None:
    shown = BrokerConfig().to_properties()
    for key, value in {
        "brokerRole": "ASYNC_MASTER",
        "brokerId": "0",
        "haSendHeartbeatInterval": "5000",
        "haHousekeepingInterval": "20000",
        "haTransferBatchSize": "32768",
        "haMaxGapNotInSync": "268435456",
        "slaveTimeout": "3000",
        "inSyncReplicas": "1",
        "minInSyncReplicas": "1",
        "totalReplicas": "1",
        "enableAutoInSyncReplicas": "false",
        "allAckInSyncStateSet": "false",
        "haFlowControlEnable": "false",
        "maxHaTransferByteInSecond": "104857600",
        "slaveReadEnable": "false",
        "offsetCheckInSlave": "false",
        "accessMessageInMemoryMaxRatio": "40",
        "enableSlaveActingMaster": "false",
        "enableRemoteEscape": "false",
        "skipPreOnline": "false",
        "compatibleWithOldNameSrv": "true",
        "brokerHeartbeatInterval": "1000",
        "sendHeartbeatTimeoutMillis": "1000",
        "brokerNotActiveTimeoutMillis": "10000",
        "syncBrokerMemberGroupPeriod": "1000",
        "enableControllerMode": "false",
        "controllerAddr": "",
        "syncBrokerMetadataPeriod": "5000",
        "checkSyncStateSetPeriod": "5000",
        "syncControllerMetadataPeriod": "10000",
        "controllerHeartBeatTimeoutMills": "10000",
        "brokerElectionPriority": "2147483647",
        "haMaxTimeSlaveNotCatchup": "15000",
        "syncFromLastFile": "false",
        "asyncLearner": "false",
    }.items():
        assert shown[key] == value, key
    assert "haSlaveFallbehindMax" not in shown


@pytest.mark.parametrize(
    ("properties", "word"),
    [
        ({"brokerRole": "SLAVE"}, "use 1, 2 ..."),
        ({"brokerRole": "SLAVE", "brokerId": "-1"}, "use 1, 2 ..."),
        ({"brokerRole": "SYNC_MASTER", "brokerId": "3"}, "for a slave add brokerRole=SLAVE"),
        ({"enableControllerMode": "true"}, "needs the controllers"),
        ({"enableControllerMode": "true", "controllerAddr": "here"}, "use host:port"),
        (
            {
                "enableControllerMode": "true",
                "controllerAddr": "10.0.0.1:9878",
                "enableSlaveActingMaster": "true",
            },
            "leave one of the two out",
        ),
        (
            {"enableControllerMode": "true", "controllerAddr": "10.0.0.1:9878", "replicaRule": "4.9"},
            "use safe or 5.x",
        ),
        ({"haMasterAddress": "10.0.0.1"}, "use host:port"),
        ({"haMasterAddress": "10.0.0.1:99999"}, "use host:port"),
        ({"haHousekeepingInterval": "500"}, "between two heartbeats"),
        ({"minInSyncReplicas": "2"}, "inSyncReplicas=1"),
        ({"totalReplicas": "2", "inSyncReplicas": "3"}, "could never have a message"),
        ({"enableRemoteEscape": "true"}, "enableSlaveActingMaster"),
        ({"haAllowedAddresses": "10.0.0.1;somewhere"}, "addresses and ranges"),
        ({"haMaxGapNotInSync": "9", "haSlaveFallbehindMax": "8"}, "haMaxGapNotInSync says otherwise"),
    ],
)
def test_a_combination_that_cannot_work_says_what_to_do(properties: dict[str, str], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        BrokerConfig.from_properties(properties)


def test_the_controller_gives_roles_and_ids() -> None:
    config, _ = BrokerConfig.from_properties(
        {
            "enableControllerMode": "true",
            "controllerAddr": "10.0.0.1:9878;10.0.0.2:9878",
            "brokerRole": "SLAVE",
            "brokerId": "-1",
        }
    )
    assert config.controller_addresses == ["10.0.0.1:9878", "10.0.0.2:9878"]


def test_both_versions_names_of_a_key_are_read() -> None:
    for key in ("haMaxGapNotInSync", "haSlaveFallbehindMax"):
        config, unknown = BrokerConfig.from_properties({key: "1234"})
        assert (config.ha_max_gap_not_in_sync, unknown) == (1234, [])
