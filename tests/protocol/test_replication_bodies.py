"""Bodies and headers that replicas and controllers send each other: as Apache writes them, and as we do."""

from __future__ import annotations

import pytest

from gimbalmq.errors import RemoteProtocolError
from gimbalmq.protocol.bodies import DataVersion
from gimbalmq.protocol.headers.controller import CleanBrokerData, ControllerMetadata, MasterReply
from gimbalmq.protocol.headers.replication import BrokerHeartbeat, ExchangeHaInfo, GetTopicTable
from gimbalmq.protocol.replication_bodies import (
    DelayOffsetTable,
    ElectMasterBody,
    EpochTable,
    HaConnection,
    HaStatus,
    MemberGroupBody,
    ReplicasTable,
    RequestModeTable,
    SyncStateSet,
    TimerCheckpoint,
)


def test_a_timer_checkpoint_is_seven_numbers_in_apaches_order() -> None:
    found = TimerCheckpoint(1, 2, 3, 4, DataVersion(state_version=5, timestamp=6, counter=7))
    data = found.encode()
    assert data == b"".join(number.to_bytes(8, "big") for number in range(1, 8))
    assert TimerCheckpoint.decode(data) == found
    assert TimerCheckpoint.decode(data[:32]) == TimerCheckpoint(1, 2, 3, 4)


@pytest.mark.parametrize("length", [0, 31, 55, 57])
def test_a_checkpoint_of_another_length_is_none(length: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"{length} bytes"):
        TimerCheckpoint.decode(bytes(length))


def test_tables_of_apaches_are_read_with_their_bare_numbers() -> None:
    assert DelayOffsetTable.parse(b'{"offsetTable":{1:0,18:4}}').offset_table == {1: 0, 18: 4}
    modes = RequestModeTable.parse(
        b'{"messageRequestModeMap":{"T":{"g":{"consumerGroup":"g","mode":"POP","popShareQueueNum":0,"topic":"T"}}}}'
    )
    assert modes.message_request_mode_map["T"]["g"]["mode"] == "POP"


def test_what_controllers_answer_is_read() -> None:
    assert SyncStateSet.parse(b'{"syncStateSet":[1,2],"syncStateSetEpoch":3}').sync_state_set == [1, 2]
    elected = ElectMasterBody.parse(
        b'{"brokerMemberGroup":{"brokerAddrs":{1:"h:1"},"brokerName":"b","cluster":"c"},"syncStateSet":[1]}'
    )
    assert elected.broker_member_group is not None
    assert elected.broker_member_group.broker_addrs == {1: "h:1"}
    group = MemberGroupBody.parse(b'{"brokerMemberGroup":{"brokerAddrs":{"0":"h:1"},"brokerName":"b"}}')
    assert group.broker_member_group is not None and group.broker_member_group.broker_addrs == {0: "h:1"}
    replicas = ReplicasTable.parse(
        b'{"replicasInfoTable":{"b":{"inSyncReplicas":[{"alive":true,"brokerAddress":"h:1","brokerId":1}],'
        b'"masterAddress":"h:1","masterBrokerId":1,"masterEpoch":2,"notInSyncReplicas":[],"syncStateSetEpoch":3}}}'
    )
    assert replicas.replicas_info_table["b"].in_sync_replicas[0].broker_address == "h:1"


def test_the_state_of_replication_is_written_by_javas_names() -> None:
    status = HaStatus(master=True, ha_connection_info=[HaConnection(addr="h:1", in_sync=True)])
    text = status.dump()
    assert b'"haConnectionInfo":[{"addr":"h:1","diff":0,"inSync":true,"slaveAckOffset":0,' in text
    assert b'"inSyncSlaveNums":0,"master":true,"masterCommitLogMaxOffset":0' in text
    assert HaStatus.parse(text) == status
    assert b'"epochList":[]' in EpochTable(broker_name="b").dump()


def test_headers_have_javas_names() -> None:
    assert BrokerHeartbeat(
        cluster_name="c", broker_addr="h:1", broker_name="b", broker_id=2, heartbeat_timeout_mills=10_000
    ).to_ext() == {
        "clusterName": "c",
        "brokerAddr": "h:1",
        "brokerName": "b",
        "brokerId": "2",
        "heartbeatTimeoutMills": "10000",
    }
    assert ControllerMetadata.from_ext({"isLeader": "true", "peers": "n0:h:1;"}).is_leader
    assert CleanBrokerData(broker_name="b").to_ext() == {
        "brokerName": "b",
        "isCleanLivingBroker": "false",
        "invokeTime": "0",
    }
    assert MasterReply.from_ext({}).master_epoch is None
    assert ExchangeHaInfo().to_ext() == {}
    # 4.9's request has no fields, and 5.x's first has no version.
    assert GetTopicTable.from_ext(None).topic_seq is None
    asked = GetTopicTable.from_ext({"topicSeq": "0", "maxTopicNum": "2000", "dataVersion": ""})
    assert (asked.topic_seq, asked.max_topic_num, asked.data_version) == (0, 2000, "")
