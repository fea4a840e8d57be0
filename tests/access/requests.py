"""One request of every code, such that a server that lets it in would do what it says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from gimbalmq.model.batch import encode_batch
from gimbalmq.model.ids import pack_host
from gimbalmq.protocol.codes import RequestCode as Code
from tests.broker.desk import V1_NAMES, pull_fields, send_fields, topic_fields
from tests.nameserver.broker_double import register_request

TOPIC, GROUP, PRODUCERS, CLIENT = "T", "g", "p", "c1"
"""All of them exist, and the client is online; the broker's requests to it are answered."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A request, and what a user who may do everything gets.

    Attributes:
        code: of the answer; 0 unless there is a reason that has nothing to do with rights.
        last: it takes away what the others need.
    """

    fields: Mapping[str, str] | None = None
    body: bytes = b""
    code: int = 0
    last: bool = False


def _body(value: object) -> bytes:
    return json.dumps(value).encode()


def broker_samples(place: int, half_place: int, half_offset: int, broker_name: str) -> dict[int, Sample]:
    """By code.

    Args:
        place: of a message in the commit log.
        half_place, half_offset: of a half message, and its offset in the queue of half messages.
    """
    send = send_fields(TOPIC)
    batch = send_fields(TOPIC, batch=True)
    both = {"consumerGroup": GROUP, "topic": TOPIC}
    queue = {"topic": TOPIC, "queueId": "0"}
    offset_id = (pack_host("127.0.0.1", 10911) + place.to_bytes(8, "big")).hex().upper()
    subscription = {"topic": TOPIC, "subString": "*", "expressionType": "TAG", "subVersion": 1}
    beat = {
        "clientID": CLIENT,
        "consumerDataSet": [{"groupName": GROUP, "subscriptionDataSet": [subscription]}],
        "producerDataSet": [{"groupName": PRODUCERS}],
    }
    locks = {
        "clientId": CLIENT,
        "consumerGroup": GROUP,
        "mqSet": [{"topic": TOPIC, "brokerName": broker_name, "queueId": 0}],
    }
    reply = send_fields(TOPIC, properties={"REPLY_TO_CLIENT": CLIENT, "CORRELATION_ID": "1"})
    named = {"topic": TOPIC, "group": GROUP}
    users = _body({"username": "u", "password": "secret-of-u"})
    entry = {"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}
    policies = _body({"subject": "User:u", "policies": [{"policyType": "Custom", "entries": [entry]}]})
    return {
        Code.SEND_MESSAGE: Sample({V1_NAMES[key]: value for key, value in send.items()}, b"body"),
        Code.SEND_MESSAGE_V2: Sample(send, b"body"),
        Code.SEND_BATCH_MESSAGE: Sample(batch, encode_batch([(0, b"body", b"")])),
        Code.SEND_REPLY_MESSAGE: Sample({V1_NAMES[key]: value for key, value in reply.items()}, b"body"),
        Code.SEND_REPLY_MESSAGE_V2: Sample(reply, b"body"),
        Code.PULL_MESSAGE: Sample(pull_fields(TOPIC, 0, 0, GROUP)),
        Code.LITE_PULL_MESSAGE: Sample(pull_fields(TOPIC, 0, 0, GROUP)),
        Code.QUERY_MESSAGE: Sample(
            {"topic": TOPIC, "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": f"{1 << 62}"}
        ),
        Code.QUERY_CONSUMER_OFFSET: Sample({**both, "queueId": "0"}),
        Code.UPDATE_CONSUMER_OFFSET: Sample({**both, "queueId": "0", "commitOffset": "1"}),
        Code.UPDATE_AND_CREATE_TOPIC: Sample(topic_fields("new")),
        Code.UPDATE_AND_CREATE_TOPIC_LIST: Sample(body=_body({"topicConfigList": [{"topicName": "newer"}]})),
        Code.GET_ALL_TOPIC_CONFIG: Sample(),
        Code.UPDATE_BROKER_CONFIG: Sample(body=b"maxPullMsgNums=77\n", last=True),
        Code.GET_BROKER_CONFIG: Sample(),
        Code.GET_BROKER_RUNTIME_INFO: Sample(),
        Code.SEARCH_OFFSET_BY_TIMESTAMP: Sample({**queue, "timestamp": "0"}),
        Code.GET_MAX_OFFSET: Sample(queue),
        Code.GET_MIN_OFFSET: Sample(queue),
        Code.GET_EARLIEST_MSG_STORETIME: Sample(queue),
        Code.VIEW_MESSAGE_BY_ID: Sample({"offset": f"{place}"}),
        Code.HEART_BEAT: Sample(body=_body(beat)),
        Code.UNREGISTER_CLIENT: Sample({"clientID": CLIENT, "consumerGroup": GROUP}),
        Code.CONSUMER_SEND_MSG_BACK: Sample({"offset": f"{place}", "group": GROUP, "delayLevel": "0"}),
        Code.END_TRANSACTION: Sample(
            {
                "producerGroup": PRODUCERS,
                "tranStateTableOffset": f"{half_offset}",
                "commitLogOffset": f"{half_place}",
                "commitOrRollback": "8",
                "msgId": "id",
            },
            last=True,
        ),
        Code.GET_CONSUMER_LIST_BY_GROUP: Sample({"consumerGroup": GROUP}),
        Code.LOCK_BATCH_MQ: Sample(body=_body(locks)),
        Code.UNLOCK_BATCH_MQ: Sample(body=_body(locks)),
        Code.GET_ALL_CONSUMER_OFFSET: Sample(),
        Code.GET_ALL_DELAY_OFFSET: Sample(),
        Code.GET_TIMER_CHECK_POINT: Sample(),
        Code.GET_TIMER_METRICS: Sample(),
        Code.GET_ALL_MESSAGE_REQUEST_MODE: Sample(),
        Code.NOTIFY_MIN_BROKER_ID_CHANGE: Sample({"brokerName": "broker-a", "minBrokerId": "0"}),
        Code.EXCHANGE_BROKER_HA_INFO: Sample(),
        Code.GET_BROKER_HA_STATUS: Sample(),
        Code.RESET_MASTER_FLUSH_OFFSET: Sample({"masterFlushOffset": "1"}),
        # There is no controller here.
        Code.GET_BROKER_EPOCH_CACHE: Sample(code=1),
        Code.NOTIFY_BROKER_ROLE_CHANGED: Sample(code=1),
        Code.CHECK_CLIENT_CONFIG: Sample(
            body=_body({"clientId": CLIENT, "group": GROUP, "subscriptionData": subscription})
        ),
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Sample(body=_body({"groupName": "new"})),
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Sample(
            body=_body({"groupConfigList": [{"groupName": "newer"}]})
        ),
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Sample(),
        Code.GET_TOPIC_STATS_INFO: Sample({"topic": TOPIC}),
        Code.GET_CONSUMER_CONNECTION_LIST: Sample({"consumerGroup": GROUP}),
        Code.GET_PRODUCER_CONNECTION_LIST: Sample({"producerGroup": PRODUCERS}),
        Code.DELETE_SUBSCRIPTIONGROUP: Sample({"groupName": GROUP, "cleanOffset": "true"}, last=True),
        Code.GET_CONSUME_STATS: Sample({"consumerGroup": GROUP}),
        Code.DELETE_TOPIC_IN_BROKER: Sample({"topic": TOPIC}, last=True),
        Code.INVOKE_BROKER_TO_RESET_OFFSET: Sample({**named, "timestamp": "0", "isForce": "true"}),
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Sample(named),
        Code.QUERY_TOPIC_CONSUME_BY_WHO: Sample({"topic": TOPIC}),
        Code.QUERY_CONSUME_TIME_SPAN: Sample(named),
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Sample(),
        Code.CLEAN_EXPIRED_CONSUMEQUEUE: Sample(),
        Code.GET_CONSUMER_RUNNING_INFO: Sample({"consumerGroup": GROUP, "clientId": CLIENT}),
        Code.QUERY_CORRECTION_OFFSET: Sample({"compareGroup": GROUP, "topic": TOPIC, "filterGroups": "f"}),
        Code.CONSUME_MESSAGE_DIRECTLY: Sample(
            {"consumerGroup": GROUP, "clientId": CLIENT, "msgId": offset_id, "topic": TOPIC}
        ),
        Code.CLONE_GROUP_OFFSET: Sample({"srcGroup": GROUP, "destGroup": "TOOLS_CONSUMER", "topic": TOPIC}),
        Code.VIEW_BROKER_STATS_DATA: Sample({"statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC}),
        Code.CLEAN_UNUSED_TOPIC: Sample(),
        Code.GET_BROKER_CONSUME_STATS: Sample({"isOrder": "false"}),
        Code.QUERY_CONSUME_QUEUE: Sample({**both, "queueId": "0", "index": "0", "count": "1"}),
        Code.GET_ALL_PRODUCER_INFO: Sample(),
        Code.DELETE_EXPIRED_COMMITLOG: Sample(),
        Code.QUERY_TOPICS_BY_CONSUMER: Sample({"group": GROUP}),
        Code.QUERY_SUBSCRIPTION_BY_CONSUMER: Sample(named),
        Code.GET_TOPIC_CONFIG: Sample({"topic": TOPIC}),
        Code.GET_SUBSCRIPTIONGROUP_CONFIG: Sample({"group": GROUP}),
        Code.UPDATE_AND_GET_GROUP_FORBIDDEN: Sample({**named, "readable": "true"}),
        **user_samples(users, policies),
        **ACCOUNT_SAMPLES,
    }


ACCOUNT_SAMPLES: dict[int, Sample] = {
    Code.UPDATE_AND_CREATE_ACL_CONFIG: Sample({"accessKey": "account", "secretKey": "secret-of-account"}),
    Code.GET_BROKER_CLUSTER_ACL_INFO: Sample(),
    Code.GET_BROKER_CLUSTER_ACL_CONFIG: Sample(),
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: Sample({"globalWhiteAddrs": "10.9.9.9"}),
    Code.DELETE_ACL_CONFIG: Sample({"accessKey": "account"}),
}
"""While ``aclEnable`` is true; in this order: an account is made, and in the end taken away."""


def user_samples(users: bytes, policies: bytes) -> dict[int, Sample]:
    """In this order: a user is made, and in the end taken away."""
    return {
        Code.AUTH_CREATE_USER: Sample({"username": "u"}, users),
        Code.AUTH_UPDATE_USER: Sample({"username": "u"}, users),
        Code.AUTH_GET_USER: Sample({"username": "plain"}),
        Code.AUTH_LIST_USER: Sample({"filter": ""}),
        Code.AUTH_CREATE_ACL: Sample({"subject": "User:u"}, policies),
        Code.AUTH_UPDATE_ACL: Sample({"subject": "User:u"}, policies),
        Code.AUTH_GET_ACL: Sample({"subject": "User:plain"}),
        Code.AUTH_LIST_ACL: Sample({"subjectFilter": ""}),
        Code.AUTH_DELETE_ACL: Sample({"subject": "User:u"}),
        Code.AUTH_DELETE_USER: Sample({"username": "u"}),
    }


def nameserver_samples(broker: str, address: str, cluster: str) -> dict[int, Sample]:
    """By code; the broker is registered, and serves the topic."""
    register = register_request(broker, "10.9.9.9:10911")
    identity = {"brokerName": broker, "brokerAddr": address, "clusterName": cluster, "brokerId": "0"}
    pair = {"namespace": "n", "key": "k", "value": "v"}
    version = _body({"counter": 1, "stateVersion": 0, "timestamp": 5})
    route = _body(
        {"queueDatas": [{"brokerName": broker, "perm": 6, "readQueueNums": 1, "writeQueueNums": 1}]}
    )
    users = _body({"username": "u", "password": "secret-of-u"})
    entry = {"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}
    policies = _body({"subject": "User:u", "policies": [{"policyType": "Custom", "entries": [entry]}]})
    return {
        Code.PUT_KV_CONFIG: Sample(pair),
        Code.GET_KV_CONFIG: Sample(pair),
        Code.GET_KVLIST_BY_NAMESPACE: Sample(pair),
        Code.DELETE_KV_CONFIG: Sample(pair),
        Code.GET_ROUTEINFO_BY_TOPIC: Sample({"topic": TOPIC}),
        Code.GET_BROKER_CLUSTER_INFO: Sample(),
        Code.GET_BROKER_MEMBER_GROUP: Sample({"brokerName": broker, "clusterName": cluster}),
        Code.QUERY_DATA_VERSION: Sample(identity, version),
        Code.BROKER_HEARTBEAT: Sample(identity),
        Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Sample(),
        Code.GET_TOPICS_BY_CLUSTER: Sample({"cluster": cluster}),
        Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: Sample(),
        Code.GET_UNIT_TOPIC_LIST: Sample(),
        Code.GET_HAS_UNIT_SUB_TOPIC_LIST: Sample(),
        Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Sample(),
        Code.WIPE_WRITE_PERM_OF_BROKER: Sample({"brokerName": broker}),
        Code.ADD_WRITE_PERM_OF_BROKER: Sample({"brokerName": broker}),
        Code.REGISTER_TOPIC_IN_NAMESRV: Sample({"topic": "new"}, route),
        Code.DELETE_TOPIC_IN_NAMESRV: Sample({"topic": "new"}),
        Code.GET_NAMESRV_CONFIG: Sample(),
        Code.UPDATE_NAMESRV_CONFIG: Sample(body=b"orderMessageEnable=true\n"),
        Code.REGISTER_BROKER: Sample(register.ext_fields, bytes(register.body), last=True),
        Code.UNREGISTER_BROKER: Sample(identity, last=True),
        **user_samples(users, policies),
    }
