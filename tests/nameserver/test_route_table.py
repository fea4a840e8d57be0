"""The pure route table: every rule of registration, expiry and routes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gimbalmq._steps import Steps, run_through
from gimbalmq.errors import InvalidParameterError, ResponseError, TableFullError
from gimbalmq.nameserver.registration import Registration, reading
from gimbalmq.nameserver.route_table import (
    UNIT,
    UNIT_SUBSCRIPTION,
    GoneBroker,
    RegisterResult,
    RouteTable,
)
from gimbalmq.nameserver.served_topics import ROWS_AT_ONCE, TableLimits
from gimbalmq.protocol.bodies import BrokerData, DataVersion, QueueData, TopicConfig
from gimbalmq.protocol.headers.nameserver import RegisterBroker
from tests.nameserver.broker_double import one_topic, register_request, registration, topics
from tests.support import Unwalked


def listed(topics: Steps[list[str]]) -> list[str]:
    return sorted(run_through(topics))


def perms(table: RouteTable, topic: str) -> dict[str, int]:
    route = table.route(topic)
    return {} if route is None else {queue.broker_name: queue.perm for queue in route.queue_datas}


def queues(table: RouteTable, topic: str) -> dict[str, int]:
    route = table.route(topic)
    return {} if route is None else {queue.broker_name: queue.write_queue_nums for queue in route.queue_datas}


# -- section 2: registration ---------------------------------------------------------


def test_first_registration_makes_routes_for_all_topics() -> None:
    table = RouteTable()
    assert table.register(registration(table=topics(T=4)), now=0.0) == RegisterResult()
    route = table.route("T")
    assert route is not None
    assert route.broker_datas == [
        BrokerData(broker_addrs={0: "10.0.0.1:10911"}, broker_name="broker-a", cluster="C")
    ]
    assert route.queue_datas == [
        QueueData(broker_name="broker-a", perm=6, read_queue_nums=4, write_queue_nums=4)
    ]
    assert listed(table.all_topics()) == ["SELF_TEST_TOPIC", "T", "TBW102"]


def test_route_joins_the_queues_of_all_brokers() -> None:
    """S1-08: the name server assembles routes from what brokers report."""
    table = RouteTable()
    table.register(registration("b", address="10.0.0.2:1", table=topics(T=8)), now=0.0)
    table.register(registration("a", address="10.0.0.1:1", table=topics(T=4)), now=0.0)
    assert queues(table, "T") == {"a": 4, "b": 8}
    route = table.route("T")
    assert route is not None
    assert [broker.broker_name for broker in route.broker_datas] == ["a", "b"]


def test_changed_data_version_updates_queues_and_an_equal_one_does_not() -> None:
    """S1-08: a changed topic is in the route as soon as the broker reports it."""
    table = RouteTable()
    table.register(registration(table=topics(T=4)), now=0.0)
    table.register(registration(table=topics(T=9)), now=1.0)
    assert queues(table, "T") == {"broker-a": 4}
    table.register(registration(version=2, table=topics(T=9)), now=2.0)
    assert queues(table, "T") == {"broker-a": 9}


def test_state_version_and_timestamp_count_as_a_change() -> None:
    table = RouteTable()
    table.register(registration(table=topics(T=4)), now=0.0)
    table.register(registration(state_version=1, table=topics(T=9)), now=1.0)
    assert queues(table, "T") == {"broker-a": 9}


def test_topic_new_to_the_broker_is_added_even_when_the_version_is_equal() -> None:
    table = RouteTable()
    table.register(registration(table=topics(T=4)), now=0.0)
    table.register(registration(table=topics(U=2)), now=0.0)
    assert queues(table, "U") == {"broker-a": 2}


def test_update_of_one_topic_leaves_the_others() -> None:
    table = RouteTable()
    table.register(registration(table=topics(T=4, U=4)), now=0.0)
    table.register(registration(version=2, table=one_topic("T", 16)), now=0.0)
    assert queues(table, "T") == {"broker-a": 16}
    assert queues(table, "U") == {"broker-a": 4}


def test_update_of_one_topic_costs_no_walk_over_all() -> None:
    table = RouteTable()
    table.register(registration(table=topics(T=4, U=4)), now=0.0)
    served = table._topics
    served._topics = Unwalked(served._topics)
    served._served["broker-a"] = Unwalked(served._served["broker-a"])
    for name in ("T", "V"):
        table.register(registration(version=2, table=one_topic(name, 8)), now=1.0)
        assert queues(table, name) == {"broker-a": 8}


def test_one_topic_from_a_broker_that_never_registered_is_refused_without_a_trace() -> None:
    table = RouteTable()
    with pytest.raises(ResponseError, match="register broker failed") as caught:
        table.register(registration(table=one_topic("T")), now=0.0)
    assert caught.value.code == 1
    assert table.cluster_info().broker_addr_table == {}
    assert table.cluster_info().cluster_addr_table == {}
    assert table.data_version("C", "10.0.0.1:10911") is None
    table.register(registration(), now=0.0)
    table.register(registration(version=2, table=one_topic("T")), now=0.0)
    with pytest.raises(ResponseError):
        table.register(registration(broker_id=1, address="10.0.0.2:1", table=one_topic("T")), now=0.0)


def test_topic_missing_from_a_registration_stays_unless_the_option_says_otherwise() -> None:
    table = RouteTable()
    table.register(registration(table=topics(T=4, U=4)), now=0.0)
    table.register(registration(version=2, table=topics(U=4)), now=0.0)
    assert queues(table, "T") == {"broker-a": 4}
    table.register(registration(version=3, table=one_topic("U")), now=0.0, delete_missing_topics=True)
    assert queues(table, "T") == {"broker-a": 4}, "an update of one topic is not the whole table"
    table.register(registration(version=4, table=topics(U=4)), now=0.0, delete_missing_topics=True)
    assert queues(table, "T") == {}
    assert queues(table, "U") == {"broker-a": 4}


def test_missing_topic_is_deleted_only_for_the_broker_that_lacks_it() -> None:
    table = RouteTable()
    table.register(registration("a", table=topics(T=4)), now=0.0)
    table.register(registration("b", address="10.0.0.2:1", table=topics(T=4)), now=0.0)
    table.register(registration("a", version=2), now=0.0, delete_missing_topics=True)
    assert queues(table, "T") == {"b": 4}


def test_slave_gives_no_queues_and_learns_its_master() -> None:
    table = RouteTable()
    slave = registration(broker_id=1, address="10.0.0.9:1", table=topics(S=4), acting=None, ha="10.0.0.9:2")
    assert table.register(slave, now=0.0) == RegisterResult()
    assert listed(table.all_topics()) == []
    table.register(registration(table=topics(T=4)), now=0.0)
    assert table.register(slave, now=0.0) == RegisterResult("10.0.0.1:10911", "10.0.0.1:10912")
    assert listed(table.all_topics()) == ["SELF_TEST_TOPIC", "T", "TBW102"]
    assert table.members("broker-a") == {0: "10.0.0.1:10911", 1: "10.0.0.9:1"}


def test_slave_of_5x_with_the_smallest_id_gives_queues_while_there_is_no_master() -> None:
    table = RouteTable()
    table.register(registration(broker_id=1, address="10.0.0.9:1", table=topics(S=4), acting=False), now=0.0)
    assert perms(table, "S") == {"broker-a": 6}
    table.register(registration(table=topics(T=4)), now=0.0)
    table.register(
        registration(broker_id=1, address="10.0.0.9:1", version=2, table=topics(S=9, Z=1), acting=False),
        now=0.0,
    )
    assert queues(table, "S") == {"broker-a": 4}
    assert queues(table, "Z") == {}


def test_slave_that_may_act_as_master_gives_queues_without_the_write_bit() -> None:
    table = RouteTable()
    table.register(registration(broker_id=2, address="10.0.0.9:1", table=topics(S=4), acting=True), now=0.0)
    assert perms(table, "S") == {"broker-a": 4}
    assert perms(table, "TBW102") == {"broker-a": 5}


def test_promoted_slave_keeps_one_record() -> None:
    table = RouteTable()
    table.register(registration(), now=0.0)
    table.register(registration(broker_id=1, address="10.0.0.2:1"), now=0.0)
    table.unregister("C", "broker-a", "10.0.0.1:10911")
    table.register(registration(broker_id=0, address="10.0.0.2:1", version=2, table=topics(T=4)), now=0.0)
    assert table.members("broker-a") == {0: "10.0.0.2:1"}
    assert queues(table, "T") == {"broker-a": 4}


def test_id_held_by_a_living_broker_of_newer_state_is_not_taken_over() -> None:
    table = RouteTable()
    table.register(registration(state_version=5, table=topics(T=4)), now=0.0)
    usurper = registration(address="10.0.0.7:1", state_version=4, version=9, table=topics(T=99))
    assert table.register(usurper, now=0.0) == RegisterResult()
    assert table.members("broker-a") == {0: "10.0.0.1:10911"}
    assert queues(table, "T") == {"broker-a": 4}
    assert table.data_version("C", "10.0.0.7:1") is None


@pytest.mark.parametrize("state_version", [5, 6])
def test_id_passes_to_a_broker_of_equal_or_newer_state(state_version: int) -> None:
    table = RouteTable()
    table.register(registration(state_version=5, table=topics(T=4)), now=0.0)
    heir = registration(address="10.0.0.7:1", state_version=state_version, version=9, table=topics(T=8))
    table.register(heir, now=0.0)
    assert table.members("broker-a") == {0: "10.0.0.7:1"}
    assert queues(table, "T") == {"broker-a": 8}


def test_id_of_a_dead_broker_passes_to_anyone() -> None:
    table = RouteTable()
    table.register(registration(state_version=5), now=0.0)
    table.register(registration(broker_id=1, address="10.0.0.2:1"), now=0.0)
    table.expire(1000.0)
    table.register(registration(address="10.0.0.7:1", state_version=1), now=1000.0)
    assert table.members("broker-a") == {0: "10.0.0.7:1"}


def test_address_that_was_taken_over_goes_without_harm() -> None:
    table = RouteTable()
    table.register(registration(), now=0.0, connection="old")
    table.register(registration(address="10.0.0.7:1"), now=50.0, connection="new")
    assert table.connection_lost("old") == [GoneBroker("C", "10.0.0.1:10911", "old")]
    assert table.members("broker-a") == {0: "10.0.0.7:1"}
    assert table.connection_lost("old") == []


def test_static_topics_bring_their_mappings() -> None:
    table = RouteTable()
    mapped = registration(table=topics(T=4))
    mapped.queue_mappings["T"] = {"bname": "broker-a", "topic": "T", "totalQueues": 4}
    table.register(mapped, now=0.0)
    route = table.route("T")
    assert route is not None
    assert route.topic_queue_mapping_by_broker == {"broker-a": mapped.queue_mappings["T"]}
    plain = table.route("TBW102")
    assert plain is not None
    assert plain.topic_queue_mapping_by_broker is None
    table.unregister("C", "broker-a", "10.0.0.1:10911")
    table.register(registration(table=topics(T=4)), now=0.0)
    route = table.route("T")
    assert route is not None
    assert route.topic_queue_mapping_by_broker is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", " "), ("cluster", ""), ("address", ""), ("address", "10.0.0.1"), ("address", "a:b")],
)
def test_broker_without_name_cluster_or_address_is_refused_by_value(field: str, value: str) -> None:
    with pytest.raises(InvalidParameterError, match=repr(value)) as caught:
        registration(**{field: value})  # type: ignore[arg-type]
    assert caught.value.code == 1


def test_negative_queue_count_is_refused_by_name() -> None:
    request = register_request(table=topics(T=-1))
    header = RegisterBroker.from_ext(request.ext_fields)
    with pytest.raises(InvalidParameterError, match="'T' has -1 read"):
        run_through(reading(header, bytes(request.body), request.version))


# -- sections 3 and 4: going ---------------------------------------------------------


def test_unregistered_broker_takes_its_name_its_topics_and_its_cluster_along() -> None:
    table = RouteTable()
    table.register(registration("a", table=topics(T=4)), now=0.0)
    table.register(registration("b", address="10.0.0.2:1", table=topics(T=4, U=4)), now=0.0)
    table.register(registration("x", address="10.0.0.3:1", cluster="D"), now=0.0)
    table.unregister("C", "b", "10.0.0.2:1")
    assert queues(table, "T") == {"a": 4}
    assert table.route("U") is None
    assert "U" not in listed(table.all_topics())
    assert table.cluster_info().cluster_addr_table == {"C": ["a"], "D": ["x"]}
    table.unregister("C", "a", "10.0.0.1:10911")
    assert table.cluster_info().cluster_addr_table == {"D": ["x"]}
    assert list(table.cluster_info().broker_addr_table) == ["x"]


def test_unregistering_a_stranger_changes_nothing() -> None:
    table = RouteTable()
    table.register(registration(), now=0.0)
    before = table.cluster_info()
    table.unregister("C", "nobody", "10.0.0.1:10911")
    table.unregister("C", "broker-a", "10.9.9.9:1")
    assert table.cluster_info() == before


def test_slave_stays_when_its_master_goes_and_the_route_stays_with_it() -> None:
    table = RouteTable()
    table.register(registration(table=topics(T=4)), now=0.0)
    table.register(registration(broker_id=1, address="10.0.0.2:1"), now=0.0)
    table.unregister("C", "broker-a", "10.0.0.1:10911")
    assert table.members("broker-a") == {1: "10.0.0.2:1"}
    assert perms(table, "T") == {"broker-a": 6}


def test_master_that_goes_takes_the_write_bit_where_a_slave_may_act_for_it() -> None:
    table = RouteTable()
    table.register(registration(table=topics(T=4), acting=True), now=0.0)
    table.register(registration(broker_id=1, address="10.0.0.2:1", acting=True), now=0.0)
    table.register(registration(broker_id=2, address="10.0.0.3:1", acting=True), now=0.0)
    table.unregister("C", "broker-a", "10.0.0.3:1")
    assert perms(table, "T") == {"broker-a": 6}
    table.unregister("C", "broker-a", "10.0.0.1:10911")
    assert perms(table, "T") == {"broker-a": 4}


def test_silent_broker_expires_after_its_time_and_not_before() -> None:
    table = RouteTable()
    table.register(registration("a", table=topics(T=4)), now=0.0, connection="one")
    table.register(registration("b", address="10.0.0.2:1", expiry=10.0), now=0.0, connection="two")
    assert table.expire(10.0) == []
    assert table.expire(10.1) == [GoneBroker("C", "10.0.0.2:1", "two")]
    assert table.expire(120.0) == []
    assert table.expire(120.1) == [GoneBroker("C", "10.0.0.1:10911", "one")]
    assert listed(table.all_topics()) == []
    assert table.cluster_info().broker_addr_table == {}


def test_touch_and_registration_keep_a_broker_alive() -> None:
    table = RouteTable()
    table.register(registration(), now=0.0)
    assert table.touch("C", "10.0.0.1:10911", 100.0)
    assert table.expire(220.0) == []
    table.register(registration(), now=220.0)
    assert table.expire(340.0) == []
    assert len(table.expire(340.1)) == 1
    assert not table.touch("C", "10.0.0.1:10911", 341.0)


def test_lost_connection_drops_every_broker_that_used_it_and_no_other() -> None:
    table = RouteTable()
    table.register(registration("a"), now=0.0, connection="one")
    table.register(registration("b", address="10.0.0.2:1"), now=0.0, connection="one")
    table.register(registration("c", address="10.0.0.3:1"), now=0.0, connection="two")
    table.register(registration("a"), now=1.0, connection="three")
    assert table.connection_lost("one") == [GoneBroker("C", "10.0.0.2:1", "one")]
    assert list(table.cluster_info().broker_addr_table) == ["a", "c"]


def test_topic_of_two_masters_loses_and_regains_the_queues_of_one() -> None:
    """S1-09 (name server's part): 16 queues, 8 after one master died, 16 when it is back."""
    table = RouteTable()
    for name, address in (("a", "10.0.0.1:1"), ("b", "10.0.0.2:1")):
        table.register(registration(name, address=address, table=topics(T=8)), now=0.0, connection=name)
    assert sum(queues(table, "T").values()) == 16
    table.connection_lost("a")
    assert queues(table, "T") == {"b": 8}
    table.register(registration("a", address="10.0.0.1:1", table=topics(T=8)), now=9.0, connection="a2")
    assert queues(table, "T") == {"a": 8, "b": 8}


# -- data version --------------------------------------------------------------------


def test_data_version_is_changed_for_strangers_and_for_other_versions() -> None:
    table = RouteTable()
    version = DataVersion(counter=1, timestamp=5)
    assert table.data_version_changed("C", "10.0.0.1:10911", version)
    table.register(registration(), now=0.0)
    assert not table.data_version_changed("C", "10.0.0.1:10911", version)
    assert table.data_version_changed("C", "10.0.0.1:10911", DataVersion(counter=1, timestamp=6))
    assert table.data_version_changed("C", "10.0.0.1:10911", DataVersion(counter=2, timestamp=5))
    assert table.data_version_changed("other", "10.0.0.1:10911", version)


# -- section 5: routes ---------------------------------------------------------------


def test_unknown_topic_has_no_route() -> None:
    assert RouteTable().route("T") is None


def test_topic_whose_brokers_are_all_unknown_has_no_route() -> None:
    table = RouteTable()
    table.register(registration("a", table=topics(T=4)), now=0.0)
    del table._brokers["a"]
    assert table.route("T") is None


def test_route_is_a_copy() -> None:
    table = RouteTable()
    table.register(registration(table=topics(T=4)), now=0.0)
    route = table.route("T", order_topic_conf="broker-a:4")
    assert route is not None
    assert route.order_topic_conf == "broker-a:4"
    route.broker_datas[0].broker_addrs.clear()
    route.queue_datas[0].perm = 0
    again = table.route("T")
    assert again is not None
    assert again.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}
    assert again.queue_datas[0].perm == 6


def _masterless(acting: bool) -> RouteTable:
    table = RouteTable()
    names = topics(T=4) | one_topic("rmq_sys_SYNC_BROKER_MEMBER_broker-a", 1)
    table.register(registration(table=names, acting=acting), now=0.0)
    table.register(registration(broker_id=3, address="10.0.0.3:1", acting=acting), now=0.0)
    table.register(registration(broker_id=2, address="10.0.0.2:1", acting=acting), now=0.0)
    table.unregister("C", "broker-a", "10.0.0.1:10911")
    return table


@pytest.mark.parametrize(
    ("supported", "acting", "topic", "shown"),
    [
        (True, True, "T", {0: "10.0.0.2:1", 3: "10.0.0.3:1"}),
        (False, True, "T", {2: "10.0.0.2:1", 3: "10.0.0.3:1"}),
        (True, False, "T", {2: "10.0.0.2:1", 3: "10.0.0.3:1"}),
        (True, True, "rmq_sys_SYNC_BROKER_MEMBER_broker-a", {2: "10.0.0.2:1", 3: "10.0.0.3:1"}),
    ],
)
def test_smallest_slave_is_shown_as_master_where_both_sides_allow_it(
    supported: bool, acting: bool, topic: str, shown: dict[int, str]
) -> None:
    table = _masterless(acting)
    route = table.route(topic, acting_master=supported)
    assert route is not None
    assert route.broker_datas[0].broker_addrs == shown
    assert table.members("broker-a") == {2: "10.0.0.2:1", 3: "10.0.0.3:1"}


def test_writable_broker_without_master_is_shown_as_it_is() -> None:
    table = _masterless(True)
    table.add_write_perm("broker-a")
    route = table.route("T", acting_master=True)
    assert route is not None
    assert 0 not in route.broker_datas[0].broker_addrs


def test_zone_keeps_its_own_brokers_and_those_without_master() -> None:
    table = RouteTable()
    table.register(registration("near", zone="East", table=topics(T=1)), now=0.0)
    table.register(registration("far", address="10.0.0.2:1", zone="west", table=topics(T=2)), now=0.0)
    table.register(registration("plain", address="10.0.0.3:1", table=topics(T=3)), now=0.0)
    table.register(
        registration("headless", broker_id=1, address="10.0.0.4:1", zone="west", table=topics(T=4)), now=0.0
    )
    route = table.route("T", zone="EAST")
    assert route is not None
    assert [broker.broker_name for broker in route.broker_datas] == ["headless", "near"]
    assert [queue.broker_name for queue in route.queue_datas] == ["headless", "near"]
    everything = table.route("T")
    assert everything is not None
    assert len(everything.broker_datas) == 4
    assert [broker.zone_name for broker in everything.broker_datas] == ["west", "west", "East", None]


# -- sections 7 to 9 -----------------------------------------------------------------


def test_cluster_info_names_all_brokers_with_all_addresses() -> None:
    table = RouteTable()
    table.register(registration("b", cluster="D", address="10.0.0.2:1"), now=0.0)
    table.register(registration("a"), now=0.0)
    table.register(registration("a", broker_id=1, address="10.0.0.3:1"), now=0.0)
    info = table.cluster_info()
    assert info.cluster_addr_table == {"C": ["a"], "D": ["b"]}
    assert {name: broker.broker_addrs for name, broker in info.broker_addr_table.items()} == {
        "a": {0: "10.0.0.1:10911", 1: "10.0.0.3:1"},
        "b": {0: "10.0.0.2:1"},
    }


def test_topic_lists() -> None:
    table = RouteTable()
    table.register(registration("a", table=topics(T=4)), now=0.0)
    table.register(registration("b", cluster="D", address="10.0.0.2:1", table=topics(U=4)), now=0.0)
    assert listed(table.topics_of_cluster("C")) == ["SELF_TEST_TOPIC", "T", "TBW102"]
    assert listed(table.topics_of_cluster("D")) == ["SELF_TEST_TOPIC", "TBW102", "U"]
    assert listed(table.topics_of_cluster("nowhere")) == []
    system = table.system_topics()
    assert system.topic_list == ["C", "D", "a", "b"]
    assert system.broker_addr == "10.0.0.1:10911"
    assert RouteTable().system_topics().broker_addr is None


def test_unit_lists_go_by_the_flags() -> None:
    table = RouteTable()
    flags = {"none": 0, "unit": UNIT, "sub": UNIT_SUBSCRIPTION, "both": UNIT | UNIT_SUBSCRIPTION}
    table.register(
        registration(
            table={name: TopicConfig(topic_name=name, topic_sys_flag=flag) for name, flag in flags.items()}
        ),
        now=0.0,
    )
    assert listed(table.unit_topics(UNIT)) == ["both", "unit"]
    assert listed(table.unit_topics(UNIT_SUBSCRIPTION)) == ["both", "sub"]
    assert listed(table.unit_topics(UNIT_SUBSCRIPTION, unwanted=UNIT)) == ["sub"]


def test_deleted_topic_goes_everywhere_or_in_one_cluster() -> None:
    table = RouteTable()
    table.register(registration("a", table=topics(T=4, U=4)), now=0.0)
    table.register(registration("b", cluster="D", address="10.0.0.2:1", table=topics(T=4)), now=0.0)
    table.delete_topic("T", "C")
    assert queues(table, "T") == {"b": 4}
    table.delete_topic("T", "nowhere")
    table.delete_topic("T", "D")
    assert table.route("T") is None
    table.delete_topic("U")
    assert "U" not in listed(table.all_topics())
    table.delete_topic("U")


def test_topic_may_be_registered_on_known_brokers_only() -> None:
    table = RouteTable()
    table.register(registration("a", table=topics(T=4)), now=0.0)
    table.register_topic("N", [QueueData(broker_name="a", read_queue_nums=2, write_queue_nums=2)])
    assert queues(table, "N") == {"a": 2}
    table.register_topic("T", [QueueData(broker_name="a", read_queue_nums=9, write_queue_nums=9)])
    assert queues(table, "T") == {"a": 9}
    with pytest.raises(InvalidParameterError, match="'ghost'"):
        table.register_topic("M", [QueueData(broker_name="a"), QueueData(broker_name="ghost")])
    table.register_topic("M", [])
    assert table.route("M") is None


def test_wiped_write_bit_stays_until_a_changed_registration() -> None:
    table = RouteTable()
    table.register(registration("a", table=topics(T=4)), now=0.0)
    table.register(registration("b", address="10.0.0.2:1", table=topics(T=4)), now=0.0)
    assert table.wipe_write_perm("a") == 3
    assert perms(table, "T") == {"a": 4, "b": 6}
    assert perms(table, "TBW102") == {"a": 5, "b": 7}
    table.register(registration("a", table=topics(T=4)), now=0.0)
    assert perms(table, "T") == {"a": 4, "b": 6}
    table.register(registration("a", version=2, table=topics(T=4)), now=0.0)
    assert perms(table, "T") == {"a": 6, "b": 6}
    assert table.wipe_write_perm("nobody") == 0


def test_added_write_bit_makes_every_topic_read_write() -> None:
    table = RouteTable()
    table.register(registration(table=topics(T=4)), now=0.0)
    table.wipe_write_perm("broker-a")
    assert table.add_write_perm("broker-a") == 3
    assert perms(table, "TBW102") == {"broker-a": 6}


# -- whatever happens ----------------------------------------------------------------

NAMES = ["a", "b"]
steps = st.one_of(
    st.tuples(st.just("register"), st.sampled_from(NAMES), st.integers(0, 2), st.integers(1, 3)),
    st.tuples(st.just("unregister"), st.sampled_from(NAMES), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("lost"), st.integers(1, 3), st.just(0), st.just(0)),
    st.tuples(st.just("expire"), st.integers(0, 200), st.just(0), st.just(0)),
)


@given(st.lists(steps, max_size=30), st.booleans())
def test_tables_agree_after_any_history(history: list[tuple[str, int, int, int]], acting: bool) -> None:
    table, now = RouteTable(), 0.0
    for what, first, second, third in history:
        if what == "register":
            address = f"10.0.0.{third}:1"
            entry = registration(str(first), second, address, acting=acting, table=topics(T=4))
            table.register(entry, now=now, connection=third)
        elif what == "unregister":
            table.unregister("C", str(first), f"10.0.0.{second}:1")
        elif what == "lost":
            table.connection_lost(first)
        else:
            now += first
            table.expire(now)
        info = table.cluster_info()
        assert set(info.broker_addr_table) == set(info.cluster_addr_table.get("C", []))
        for broker in info.broker_addr_table.values():
            assert broker.broker_addrs
            assert len(set(broker.broker_addrs.values())) == len(broker.broker_addrs)
        for topic in listed(table.all_topics()):
            route = table.route(topic)
            assert route is not None
            assert {queue.broker_name for queue in route.queue_datas} <= set(info.broker_addr_table)


# -- many and malicious --------------------------------------------------------------


def _crowd(count: int, name: str = "a", address: str = "10.0.0.1:1", version: int = 1) -> Registration:
    table = topics() | {
        f"topic-{number:06d}": TopicConfig(topic_name=f"topic-{number:06d}") for number in range(count)
    }
    return registration(name, address=address, version=version, table=table)


def test_updates_and_deletions_of_a_broker_wipe_nothing_where_missing_topics_are_deleted() -> None:
    """Two topics changed at once, or a deletion (an empty table), once removed all other routes of the broker."""
    table = RouteTable()
    table.register(registration(table=topics(orders=4, billing=4)), now=0.0, delete_missing_topics=True)
    for version, changed in enumerate((one_topic("x") | one_topic("y"), {}, one_topic("z")), start=2):
        table.register(registration(version=version, table=changed), now=0.0, delete_missing_topics=True)
        assert queues(table, "orders") == queues(table, "billing") == {"broker-a": 4}
    part = replace(registration(version=5, table=topics(w=1)), part=True)
    table.register(part, now=0.0, delete_missing_topics=True)
    assert queues(table, "orders") == {"broker-a": 4} and queues(table, "w") == {"broker-a": 1}
    table.register(registration(version=6, table=topics(orders=4)), now=0.0, delete_missing_topics=True)
    assert listed(table.all_topics()) == ["SELF_TEST_TOPIC", "TBW102", "orders"]


def test_registration_and_lists_go_in_steps() -> None:
    table = RouteTable()
    steps = 0
    for _ in table.registering(_crowd(5_000), now=0.0):
        steps += 1
    assert steps >= 5_000 // ROWS_AT_ONCE
    assert sum(1 for _ in table.topics_of_cluster("C")) >= 5_000 // ROWS_AT_ONCE
    assert sum(1 for _ in table.unit_topics(UNIT)) >= 5_000 // ROWS_AT_ONCE


def test_version_of_a_table_is_told_when_all_of_it_is_there() -> None:
    table = RouteTable()
    work = table.registering(_crowd(5_000, version=7), now=0.0)
    next(work)
    assert table.data_version_changed("C", "10.0.0.1:1", DataVersion(counter=7, timestamp=5))
    for _ in work:
        pass
    assert not table.data_version_changed("C", "10.0.0.1:1", DataVersion(counter=7, timestamp=5))


def test_broker_that_goes_while_it_registers_leaves_nothing() -> None:
    table = RouteTable()
    work = table.registering(_crowd(5_000), now=0.0, connection="line")
    next(work)
    assert table.connection_lost("line") == [GoneBroker("C", "10.0.0.1:1", "line")]
    with pytest.raises(ResponseError, match="went away while it registered"):
        for _ in work:
            pass
    while table.sweep():
        pass
    assert listed(table.all_topics()) == []


def test_broker_of_many_topics_goes_at_once_and_its_topics_are_swept_in_steps() -> None:
    table = RouteTable()
    later = []
    table.swept_later = lambda: later.append(True)
    table.register(_crowd(20_000), now=0.0, connection="one")
    table.register(_crowd(10, "b", "10.0.0.2:1"), now=0.0, connection="two")
    table.connection_lost("one")
    assert later, "the rest is for later steps"
    # Nobody sees what is not swept yet.
    assert len(listed(table.all_topics())) == 12
    assert table.route("topic-000000") is not None and queues(table, "topic-000000") == {"b": 16}
    assert [table.route(f"topic-{number:06d}") for number in range(10, 20_000)] == [None] * 19_990
    # The broker is back before the sweep ends; what it brings stays.
    table.register(_crowd(15, version=2), now=0.0, connection="three")
    sweeps = 0
    while table.sweep():
        sweeps += 1
    assert sweeps >= 2
    assert len(listed(table.all_topics())) == 17
    assert queues(table, "topic-000014") == {"a": 16} and queues(table, "topic-000000") == {"a": 16, "b": 16}
    assert table.wipe_write_perm("a") == 17


def test_full_table_keeps_the_brokers_it_has() -> None:
    """One topic too many cost a broker all its routes, 120 s later."""
    table = RouteTable()
    table.limits = TableLimits(topics=20)
    table.register(_crowd(6), now=0.0)
    table.register(
        registration("b", address="10.0.0.2:1", table=topics(**{f"S{n}": 4 for n in range(12)})), now=0.0
    )
    assert len(listed(table.all_topics())) == 20
    more = topics(**{f"topic-{n:06}": 5 for n in range(7)})
    for now in (30.0, 60.0, 90.0, 120.0):
        with pytest.raises(
            TableFullError, match=r": 1 topics of broker a are not .*maxTopicNums is 20; raise it$"
        ):
            table.register(registration("a", address="10.0.0.1:1", table=more, version=2), now=now)
        assert table.data_version_changed("C", "10.0.0.1:1", DataVersion(counter=2, timestamp=5))
    assert [gone.broker_addr for gone in table.expire(121.0)] == ["10.0.0.2:1"]
    # What is known is kept, and kept up to date; what is gone makes room.
    assert queues(table, "topic-000005") == {"a": 5}
    while table.sweep():
        pass
    table.register(registration("a", address="10.0.0.1:1", table=more, version=2), now=130.0)
    assert queues(table, "topic-000006") == {"a": 5}
    assert not table.data_version_changed("C", "10.0.0.1:1", DataVersion(counter=2, timestamp=5))


def test_mappings_that_come_again_are_counted_once() -> None:
    table = RouteTable()
    for now in (0.0, 30.0, 60.0):
        for number in range(9):
            name = f"b{number}"
            mappings = {f"S{n}": {"bname": name, "x": "y" * 90_000} for n in range(20)}
            told = registration(name, address=f"10.0.0.{number}:1", version=int(now) + 1)
            table.register(replace(told, queue_mappings=mappings), now=now)
    with pytest.raises(TableFullError, match=r": \d+ queue mappings of broker b9 are not registered"):
        mappings = {f"S{n}": {"x": "y" * 90_000} for n in range(20)}
        table.register(replace(registration("b9"), queue_mappings=mappings), now=60.0)
    assert queues(table, "TBW102").keys() >= {"b0", "b8", "b9"}


def test_topic_by_request_counts_as_many_routes_as_it_has_brokers() -> None:
    table = RouteTable()
    table.limits = TableLimits(routes=9)
    for number in range(4):
        table.register(registration(f"b{number}", address=f"10.0.0.{number}:1"), now=0.0)
    with pytest.raises(TableFullError, match=r"topic T is not registered: .*maxRouteNums is 9; raise it"):
        table.register_topic("T", [QueueData(broker_name=f"b{number}") for number in range(2)])
    assert table.route("T") is None
    for _ in range(2):
        table.register_topic("T", [QueueData(broker_name="b0")])
    with pytest.raises(TableFullError, match="maxRouteNums is 9"):
        table.register_topic("T", [QueueData(broker_name="b1")])


def test_bounds_refuse_what_is_too_much_and_take_the_rest() -> None:
    table = RouteTable()
    table.limits = TableLimits(brokers=2, topics=10, routes=15)
    table.register(_crowd(5), now=0.0)
    with pytest.raises(TableFullError, match="maxRouteNums is 15"):
        table.register(_crowd(9, "b", "10.0.0.2:1"), now=0.0)
    assert len(listed(table.all_topics())) == 8
    table.unregister("C", "b", "10.0.0.2:1")
    table.register(registration("b", address="10.0.0.2:1"), now=0.0)
    with pytest.raises(TableFullError, match="maxBrokerNums is 2"):
        table.register(registration("c", address="10.0.0.3:1"), now=0.0)
    table.register(_crowd(8, version=2), now=0.0)
    with pytest.raises(TableFullError, match="maxTopicNums is 10"):
        table.register_topic("one more", [QueueData(broker_name="a")])
    with pytest.raises(InvalidParameterError, match="600 characters"):
        table.register_topic("x" * 600, [QueueData(broker_name="a")])
    table.register_topic("topic-000001", [QueueData(broker_name="b")])
    # What goes makes room.
    table.unregister("C", "a", "10.0.0.1:1")
    table.register(_crowd(8, "c", "10.0.0.3:1"), now=0.0)


def test_queue_mappings_are_bounded_altogether() -> None:
    table = RouteTable()
    refused = 0
    for version in range(1, 12):
        mappings = {f"S{version}-{n}": {"bname": f"{n}", "x": "y" * 100_000} for n in range(20)}
        try:
            table.register(replace(registration(version=version), queue_mappings=mappings), now=0.0)
        except TableFullError:
            refused += 1
    assert refused == 3


def test_names_clusters_and_ids_of_one_address_are_bounded_too() -> None:
    """Entries that no silence removes, made by one connection."""
    table = RouteTable()
    table.limits = TableLimits(brokers=50)
    for number in range(50):
        table.register(registration(f"b{number}", cluster=f"C{number}"), now=0.0)
    with pytest.raises(TableFullError, match="50 brokers and maxBrokerNums is 50"):
        table.register(registration("c", cluster="C50"), now=0.0)
    with pytest.raises(TableFullError, match="50 names of brokers"):
        table.register(registration("c", cluster="C0"), now=0.0)
    table.limits = TableLimits(brokers=1000)
    for number in range(1, 100):
        table.register(registration("b1", number, f"10.0.0.1:{number}", cluster="C1"), now=0.0)
    with pytest.raises(TableFullError, match="100 addresses already"):
        table.register(registration("b1", 100, "10.0.0.1:100", cluster="C1"), now=0.0)
    assert len(table.expire(1000.0)) == 149
    info = table.cluster_info()
    assert (info.broker_addr_table, info.cluster_addr_table) == ({}, {}) and listed(table.all_topics()) == []
