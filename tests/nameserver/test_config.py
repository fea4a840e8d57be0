"""Options and RocketMQ's names for them."""

from __future__ import annotations

from typing import Any

import pytest

from gimbalmq.errors import ConfigError
from gimbalmq.nameserver.config import NameServerConfig, from_properties, to_properties
from gimbalmq.protocol import properties_text
from gimbalmq.transport.limits import ServerLimits


def test_defaults_are_java_s_but_for_the_loopback_and_the_files() -> None:
    config = NameServerConfig()
    assert (config.host, config.port, config.kv_config_path) == ("127.0.0.1", 9876, None)
    assert (config.scan_interval, config.broker_expiry, config.idle_timeout) == (5.0, 120.0, 120.0)
    assert not config.order_message_enable
    assert config.enable_all_topic_list


@pytest.mark.parametrize(
    ("option", "key", "value"),
    [
        ("max_broker_nums", "maxBrokerNums", 0),
        ("port", "listenPort", -1),
        ("port", "listenPort", 65536),
        ("scan_interval", "scanNotActiveBrokerInterval", 0),
        ("broker_expiry", "brokerChannelExpiredTime", -1.0),
        ("idle_timeout", "serverChannelMaxIdleTimeSeconds", float("nan")),
        ("wait_for_service", "waitSecondsForService", -0.1),
        ("kv_config_path", "kvConfigPath", ""),
        ("config_store_path", "configStorePath", ""),
    ],
)
def test_unusable_value_is_refused_under_its_name_in_files(option: str, key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        NameServerConfig(**{option: value})
    assert caught.value.option == key


def test_properties_use_rocketmq_s_names_and_unknown_ones_are_told() -> None:
    config, unknown = from_properties(
        {
            "listenPort": " 19876 ",
            "bindAddress": "0.0.0.0",
            "kvConfigPath": "/data/kvConfig.json",
            "orderMessageEnable": "TRUE",
            "scanNotActiveBrokerInterval": "2500",
            "waitSecondsForService": "7",
            "needWaitForService": "true",
            "supportActingMaster": "true",
            "deleteTopicWithBrokerRegistration": "true",
            "enableAllTopicList": "false",
            "configBlackList": "a; b",
            "serverWorkerThreads": "8",
            "nonsense": "x",
        }
    )
    assert config == NameServerConfig(
        host="0.0.0.0",
        port=19876,
        kv_config_path="/data/kvConfig.json",
        order_message_enable=True,
        scan_interval=2.5,
        wait_for_service=7,
        need_wait_for_service=True,
        support_acting_master=True,
        delete_topic_with_broker_registration=True,
        enable_all_topic_list=False,
        config_black_list=("a", "b"),
    )
    assert unknown == ["serverWorkerThreads", "nonsense"]


@pytest.mark.parametrize(
    ("key", "value"),
    [("listenPort", "many"), ("orderMessageEnable", "yes"), ("scanNotActiveBrokerInterval", "5s")],
)
def test_unusable_property_is_refused_by_its_rocketmq_name(key: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_properties({key: value})
    assert (caught.value.option, caught.value.value) == (key, value)


def test_configuration_survives_its_own_text() -> None:
    config = NameServerConfig(port=1, kv_config_path="/x", scan_interval=0.5, config_black_list=("a", "b"))
    text = properties_text.dumps(to_properties(config)).decode()
    assert "listenPort=1\n" in text
    assert from_properties(properties_text.loads(text)) == (config, [])


def test_limits_of_the_server_have_the_defaults_that_all_servers_have() -> None:
    assert NameServerConfig().server_limits() == ServerLimits()
