"""Registrations as brokers make them."""

from __future__ import annotations

import zlib

from gimbalmq.nameserver.registration import Registration
from gimbalmq.protocol.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicTable
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.nameserver import RegisterBroker

SYSTEM = {"TBW102": 7, "SELF_TEST_TOPIC": 6}
"""Topics every broker has, and their permissions."""


def topics(**queues: int) -> dict[str, TopicConfig]:
    """The system topics, and one with so many queues for each keyword."""
    table = {
        name: TopicConfig(topic_name=name, perm=perm, read_queue_nums=1, write_queue_nums=1)
        for name, perm in SYSTEM.items()
    }
    table |= {
        name: TopicConfig(topic_name=name, read_queue_nums=count, write_queue_nums=count)
        for name, count in queues.items()
    }
    return table


def one_topic(name: str, queues: int = 4, perm: int = 6) -> dict[str, TopicConfig]:
    """An update of a single topic, as 5.x brokers send it."""
    return {name: TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)}


def registration(
    name: str = "broker-a",
    broker_id: int = 0,
    address: str = "10.0.0.1:10911",
    *,
    cluster: str = "C",
    version: int = 1,
    state_version: int = 0,
    table: dict[str, TopicConfig] | None = None,
    acting: bool | None = False,
    zone: str | None = None,
    expiry: float | None = None,
    ha: str = "10.0.0.1:10912",
) -> Registration:
    return Registration(
        cluster=cluster,
        broker_name=name,
        broker_addr=address,
        broker_id=broker_id,
        ha_server_addr=ha,
        zone_name=zone,
        enable_acting_master=acting,
        expiry=expiry,
        data_version=DataVersion(counter=version, state_version=state_version, timestamp=5),
        topics=topics() if table is None else table,
    )


def register_request(
    name: str = "broker-a",
    address: str = "10.0.0.1:10911",
    *,
    broker_id: int = 0,
    version: int = 1,
    table: dict[str, TopicConfig] | None = None,
    crc: int | None = None,
    zone: str | None = None,
    acting: bool | None = False,
) -> RemotingCommand:
    """Request 103 as a broker sends it."""
    body = RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicTable(
            data_version=DataVersion(counter=version, timestamp=5),
            topic_config_table=topics() if table is None else table,
        )
    ).dump()
    header = RegisterBroker(
        broker_name=name,
        broker_addr=address,
        cluster_name="C",
        ha_server_addr="10.0.0.1:10912",
        broker_id=broker_id,
        body_crc32=zlib.crc32(body) & 0x7FFFFFFF if crc is None else crc,
        enable_acting_master=acting,
        zone_name=zone,
    )
    return RemotingCommand(RequestCode.REGISTER_BROKER, header.to_ext(), body)
