"""Options and RocketMQ's names for them."""

from __future__ import annotations

from typing import Any

import pytest

from gimbalmq.errors import ConfigError
from gimbalmq.nameserver.config import NameServerConfig
from gimbalmq.protocol import properties_text


def test_defaults_are_java_s_but_for_the_loopback_and_the_files() -> None:
    config = NameServerConfig()
    assert (config.bind_address, config.listen_port, config.kv_config_path) == ("127.0.0.1", 9876, None)
    assert (config.scan_not_active_broker_interval, config.broker_channel_expired_time) == (5000, 120_000)
    assert config.server_channel_max_idle_time_seconds == 120
    assert not config.order_message_enable
    assert config.enable_all_topic_list


@pytest.mark.parametrize(
    ("option", "key", "value"),
    [
        ("max_broker_nums", "maxBrokerNums", 0),
        ("listen_port", "listenPort", -1),
        ("listen_port", "listenPort", 65536),
        ("scan_not_active_broker_interval", "scanNotActiveBrokerInterval", 0),
        ("broker_channel_expired_time", "brokerChannelExpiredTime", -1),
        ("server_channel_max_idle_time_seconds", "serverChannelMaxIdleTimeSeconds", float("nan")),
        ("wait_seconds_for_service", "waitSecondsForService", -1),
        ("wait_seconds_for_service", "waitSecondsForService", 1.5),
        ("order_message_enable", "orderMessageEnable", 1),
        ("kv_config_path", "kvConfigPath", ""),
        ("config_store_path", "configStorePath", ""),
    ],
)
def test_unusable_value_is_refused_under_its_name_in_files(option: str, key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        NameServerConfig(**{option: value})
    assert caught.value.option == key


def test_properties_use_rocketmq_s_names_and_unknown_ones_are_told() -> None:
    config, unknown = NameServerConfig.from_properties(
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
        bind_address="0.0.0.0",
        listen_port=19876,
        kv_config_path="/data/kvConfig.json",
        order_message_enable=True,
        scan_not_active_broker_interval=2500,
        wait_seconds_for_service=7,
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
        NameServerConfig.from_properties({key: value})
    assert (caught.value.option, caught.value.value) == (key, value)


def test_configuration_survives_its_own_text() -> None:
    config = NameServerConfig(
        listen_port=1, kv_config_path="/x", scan_not_active_broker_interval=500, config_black_list=("a", "b")
    )
    text = properties_text.dumps(config.to_properties()).decode()
    assert "listenPort=1\n" in text
    assert NameServerConfig.from_properties(properties_text.loads(text)) == (config, [])
