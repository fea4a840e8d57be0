"""Options: names, types, ranges, and what may change at run time."""

from __future__ import annotations

import pytest

from gimbalmq._options import options, options_by_key
from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.errors import ConfigError


def test_defaults_are_apaches() -> None:
    shown = BrokerConfig().to_properties()
    for key, value in {
        "brokerClusterName": "DefaultCluster",
        "brokerId": "0",
        "listenPort": "10911",
        "brokerPermission": "6",
        "autoCreateTopicEnable": "true",
        "defaultTopicQueueNums": "8",
        "autoCreateSubscriptionGroup": "true",
        "maxMessageSize": "4194304",
        "longPollingEnable": "true",
        "shortPollingTimeMills": "1000",
        "registerNameServerPeriod": "30000",
        "channelExpiredTimeout": "120000",
        "flushConsumerOffsetInterval": "5000",
        "flushDelayOffsetInterval": "10000",
        "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "timerMaxDelaySec": "259200",
        "transactionTimeOut": "6000",
        "transactionCheckMax": "15",
        "transactionCheckInterval": "30000",
        "flushDiskType": "ASYNC_FLUSH",
        "syncFlushTimeout": "5000",
        "mappedFileSizeCommitLog": "1073741824",
        "mappedFileSizeConsumeQueue": "6000000",
        "maxHashSlotNum": "5000000",
        "maxIndexNum": "20000000",
        "deleteWhen": "04",
        "fileReservedTime": "72",
        "diskMaxUsedSpaceRatio": "75",
        "cleanResourceInterval": "10000",
        "regionId": "DefaultRegion",
    }.items():
        assert shown[key] == value, key


def test_every_option_comes_back_from_its_text() -> None:
    config = BrokerConfig(
        broker_name="b", auto_create_topic_enable=False, file_reserved_time=15, tls_server_cert_path="/c"
    )
    again, unknown = BrokerConfig.from_properties(config.to_properties())
    assert (again, unknown) == (config, [])
    assert options(BrokerConfig)["broker_ip1"].key == "brokerIP1"
    also = sum(len(known.also) for known in options(BrokerConfig).values())
    assert len(options_by_key(BrokerConfig)) == len(options(BrokerConfig)) + also


def test_unknown_keys_are_returned_not_swallowed() -> None:
    config, unknown = BrokerConfig.from_properties({"brokerName": " b ", "haConnectionType": "1"})
    assert (config.broker_name, unknown) == ("b", ["haConnectionType"])


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("brokerName", "a b", "letters a-z"),
        ("brokerClusterName", "", "1 to 127"),
        ("brokerIP1", "localhost", "IP address"),
        ("brokerIP2", "300.1.1.1", "IP address"),
        ("flushDiskType", "NEVER", "ASYNC_FLUSH or SYNC_FLUSH"),
        ("brokerId", "1", "add brokerRole=SLAVE"),
        ("brokerId", "-1", "has the id 0"),
        ("brokerRole", "MASTER", "ASYNC_MASTER, SYNC_MASTER or SLAVE"),
        ("listenPort", "70000", "0 to 65535"),
        ("listenPort", "x", "number"),
        ("autoCreateTopicEnable", "yes", "true or false"),
        ("maxMessageSize", "99999999", "16711680"),
        ("maxMessageSize", "16777216", "16711680"),
        ("messageDelayLevel", "1s soon", "s, m, h or d"),
        ("deleteWhen", "four", "hours"),
        ("deleteWhen", "24", "00 to 23"),
        ("deleteWhen", "-1", "00 to 23"),
        ("deleteWhen", ";", "00 to 23"),
        ("fileReservedTime", "long", "number"),
        ("fileReservedTime", "-1", "1 to"),
        ("fileReservedTime", "0", "1 to"),
        ("shortPollingTimeMills", "-1", "1 to 60000"),
        ("timerMaxDelaySec", "0", "1 to"),
        ("transactionTimeOut", "-5", "1 to"),
        ("transactionCheckMax", "-1", "0 to"),
        ("mappedFileSizeCommitLog", "0", "4096 to"),
        ("mappedFileSizeConsumeQueue", "19", "20 to"),
        ("maxHashSlotNum", "0", "1 to"),
        ("maxIndexNum", "1", "2 to"),
        ("defaultTopicQueueNums", "65537", "1 to 65536"),
        ("regionId", "a\x01b", "printable"),
        ("regionId", "r" * 5000, "4096"),
        ("flushDelayOffsetInterval", "-1", "1 to"),
    ],
)
def test_wrong_value_names_the_option_the_value_and_what_is_allowed(key: str, value: str, word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.from_properties({key: value})
    assert key in str(caught.value) and word in str(caught.value)
    assert value in str(caught.value) or repr(value)[1:30] in str(caught.value)


def test_every_number_has_a_range_that_holds_its_default() -> None:
    config = BrokerConfig()
    numbers = [known for known in options(BrokerConfig).values() if known.kind in (int, float)]
    assert len(numbers) > 50
    for known in numbers:
        low, high = known.low, known.high
        assert low <= getattr(config, known.name) <= high, known.name
        for wrong in (low - 1, high + 1, -(1 << 70), 1 << 70):
            with pytest.raises(ConfigError, match=known.key):
                LiveConfig(config).update({known.key: str(wrong)})


def test_name_server_addresses() -> None:
    assert BrokerConfig(namesrv_addr=" a:1; b:2 ;").namesrv_addresses == ["a:1", "b:2"]
    assert BrokerConfig().namesrv_addresses == []


def test_live_configuration_changes_as_a_whole_or_not_at_all() -> None:
    live = LiveConfig(BrokerConfig())
    before = live.now
    with pytest.raises(ConfigError, match="maxMessageSize"):
        live.update({"traceOn": "false", "maxMessageSize": "-1"})
    assert live.now is before and live.version == 0
    assert live.update({"traceOn": "false", "odd": "1"}) == ["odd"]
    assert not live.now.trace_on and live.now is not before and live.version == 1


def test_options_of_the_start_stay() -> None:
    live = LiveConfig(BrokerConfig())
    for key, value in (
        ("listenPort", "1"),
        ("brokerName", "other"),
        ("messageIndexEnable", "false"),
        ("tls.server.certPath", "/c"),
        ("messageDelayLevel", "1s"),
    ):
        with pytest.raises(ConfigError, match="when the server starts") as caught:
            live.update({key: value})
        assert key in str(caught.value) and value in str(caught.value)
    assert live.update({"listenPort": "10911", "messageIndexEnable": "true"}) == []


def test_an_error_shows_the_beginning_of_a_long_value() -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig(flush_disk_type="x" * 5000)
    assert len(str(caught.value)) < 500 and "(5002 letters)" in str(caught.value)
