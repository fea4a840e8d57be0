"""Typed headers: names, types and what is left out."""

from __future__ import annotations

import pytest

from gimbalmq.errors import InvalidParameterError
from gimbalmq.protocol.headers.messages import ViewMessage
from gimbalmq.protocol.headers.nameserver import GetRoute, KvReply, RegisterBroker, WipeReply
from tests.golden.frames import decode, exchanges


def test_registration_of_a_java_broker_is_read_whole() -> None:
    (exchange,) = [found for found in exchanges() if found.code == 103]
    header = RegisterBroker.from_ext(decode(exchange.request).ext_fields)
    assert header == RegisterBroker(
        broker_name="broker-a",
        broker_addr="127.0.0.1:20911",
        cluster_name="DefaultCluster",
        ha_server_addr="192.0.2.2:20912",
        broker_id=0,
        compressed=False,
        body_crc32=246073689,
        enable_acting_master=False,
        heartbeat_timeout_millis=None,
    )


def test_every_value_leaves_as_a_string_and_none_stays_away() -> None:
    header = GetRoute(topic="T", accept_standard_json_only=True, zone_name="z")
    assert header.to_ext() == {"topic": "T", "acceptStandardJsonOnly": "true", "__ZONE_NAME": "z"}
    assert WipeReply(wipe_topic_count=3).to_ext() == {"wipeTopicCount": "3"}
    assert KvReply().to_ext() == {}


def test_unknown_ext_fields_are_passed_over() -> None:
    assert GetRoute.from_ext({"topic": "T", "bname": "b", "ns": "n"}).topic == "T"


def test_missing_field_is_refused_by_name() -> None:
    with pytest.raises(InvalidParameterError, match="topic") as caught:
        GetRoute.from_ext(None)
    assert caught.value.code == 1


def test_text_where_a_number_belongs_is_refused_by_name() -> None:
    with pytest.raises(InvalidParameterError, match="brokerId"):
        RegisterBroker.from_ext(
            {"brokerName": "b", "brokerAddr": "a:1", "clusterName": "c", "brokerId": "zero"}
        )


def test_half_a_surrogate_pair_is_no_number() -> None:
    with pytest.raises(InvalidParameterError, match="header of the request is wrong"):
        ViewMessage.from_ext({"offset": "\ud800"})
