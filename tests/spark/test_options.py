"""Every option: what it becomes, and what is said of a wrong one."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from gimbalmq.errors import ConfigError
from gimbalmq.model.queues import MessageQueue
from gimbalmq.spark.archive.source import ArchiveSettings
from gimbalmq.spark.connection import Connection
from gimbalmq.spark.declared import Given, options_of
from gimbalmq.spark.options import Place, SourceSettings, TopicChoice
from gimbalmq.spark.sink_options import NEVER, SinkSettings
from gimbalmq.spark.store_source import StoreSettings

A0 = MessageQueue("t", "a", 0)
A1 = MessageQueue("t", "a", 1)


def read(streaming: Any = False, **options: object) -> SourceSettings:
    given = {"namesrv": "h:9876", "subscribe": "t"} | {key: str(value) for key, value in options.items()}
    # Spark lower-cases the names.
    return SourceSettings.read({key.lower(): value for key, value in given.items()}, streaming=streaming)


def only(**options: str) -> SourceSettings:
    return SourceSettings.read({"namesrv": "h:9876", **options}, streaming=False)


EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "failOnDataLoss": ("false", {"fail_on_data_loss": False}),
    "maxOffsetsPerTrigger": ("100", {"max_offsets_per_trigger": 100}),
    "minOffsetsPerTrigger": ("10", {"min_offsets_per_trigger": 10}),
    "maxTriggerDelay": ("2m", {"max_trigger_delay": 120.0}),
    "maxBytesPerTrigger": ("1m", {"max_bytes_per_trigger": 1 << 20}),
    "minPartitions": ("7", {"min_partitions": 7}),
    "maxRecordsPerPartition": ("50", {"max_records_per_partition": 50}),
    "minRecordsPerPartition": ("0", {"min_records_per_partition": 0}),
    "consumerGroup": ("g", {"consumer_group": "g", "pull_group": "g"}),
    "groupIdPrefix": ("p", {"consumer_group": None, "pull_group": "p"}),
    "includeProperties": ("true", {"include_properties": True}),
    "tags": ("A || B", {"tags": "A || B"}),
    "onDecodeError": ("KEEP", {"on_decode_error": "keep"}),
    "checkCrc": ("true", {"check_crc": True}),
    "dropDuplicates": ("true", {"drop_duplicates": True}),
    "duplicateLookback": ("5", {"duplicate_lookback": 5}),
    "fetchRetries": ("2", {"fetch_retries": 2}),
    "retryInterval": ("1s", {"retry_interval": 1.0}),
    "pullTimeout": ("4s", {"pull_timeout": 4.0}),
    "requestTimeout": ("6s", {"request_timeout": 6.0}),
    "metadataTtl": ("0", {"metadata_ttl": 0.0}),
    "pullBytes": ("64k", {"pull_bytes": 65_536}),
    "pullsInFlight": ("3", {"pulls_in_flight": 3}),
    "startingOffsets": ("group", {}),
    "startingTimestamp": ("1000", {"starting": Place("startingTimestamp", "times", everywhere=1000)}),
    "startingOffsetsByTimestamp": (
        '{"t": 5}',
        {"starting": Place("startingOffsetsByTimestamp", "times", {"t": 5})},
    ),
    "startingOffsetsByTimestampStrategy": ("latest", {"no_later_message": "latest"}),
    "endingOffsets": ('{"t": -1}', {"ending": Place("endingOffsets", "offsets", {"t": -1})}),
    "endingTimestamp": (
        "1970-01-01T00:00:01Z",
        {"ending": Place("endingTimestamp", "times", everywhere=1000)},
    ),
    "endingOffsetsByTimestamp": (
        '{"t": {"a": "1970-01-01T00:00:01+00:00"}}',
        {"ending": Place("endingOffsetsByTimestamp", "times", {"t": {"a": 1000}})},
    ),
}
ELSEWHERE = {
    *("namesrv", "subscribe", "subscribePattern", "assign", "connectTimeout"),
    *("accessKey", "secretKey", "securityToken", "tls", "tlsTrustFile", "tlsCertFile", "tlsKeyFile"),
    *("tlsKeyPassword", "tlsCheckHost", "clientFile", "secretKeyFile"),
}


def test_every_option_has_an_example_here() -> None:
    assert {option.name for option in options_of(SourceSettings)} == set(EXAMPLES) | ELSEWHERE


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_option_becomes_a_setting(name: str) -> None:
    text, wanted = EXAMPLES[name]
    extra = {"consumerGroup": "g"} if text == "group" else {}
    settings = read(**{name: text}, **extra)
    assert {key: getattr(settings, key) for key in wanted} == wanted


def test_the_options_of_connections() -> None:
    settings = read(
        accessKey="a", secretKey="s", securityToken="o", tls="trust", connectTimeout="1s", namesrv="x:1;y:2"
    )
    connection = settings.connection
    assert (connection.namesrv, connection.access_key, connection.secret_key) == ("x:1;y:2", "a", "s")
    assert (connection.security_token, connection.tls, connection.connect_timeout) == ("o", "trust", 1.0)
    assert "'s'" not in repr(settings)


def test_settings_travel_to_executors() -> None:
    settings = read(startingOffsets='{"t": {"a": {"0": 3}}}', tags="A")
    assert pickle.loads(pickle.dumps(settings)) == settings


# --- what is read --------------------------------------------------------------------------------


def test_topics_by_any_of_their_names() -> None:
    assert only(subscribe="b, a,b").topics == TopicChoice(named=("b", "a"))
    assert only(topic="t").topics == TopicChoice(named=("t",))
    assert only(path="t").topics == TopicChoice(named=("t",))
    assert only(topic="t", path="t").topics == TopicChoice(named=("t",))
    assert only(subscribepattern="or.*").topics == TopicChoice(pattern="or.*")
    assert only(assign='{"t": {"a": [1, 0]}}').topics == TopicChoice(assigned=(A0, A1))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"subscribe": "t", "assign": '{"t": {"a": [0]}}'},
        {"topic": "t", "path": "u"},
        {"subscribe": " , "},
        {"subscribe": "no blanks"},
        {"subscribePattern": "("},
        {"assign": "[]"},
        {"assign": "{}"},
        {"assign": '{"t": [0]}'},
        {"assign": '{"t": {"a": [-1]}}'},
        {"assign": "t:0"},
    ],
)
def test_what_to_read_must_be_clear(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        only(**options)


# --- places --------------------------------------------------------------------------------------


def test_places_by_queue_broker_or_topic() -> None:
    place = read(startingOffsets='{"t": {"a": {"0": 3, "1": -1}, "b": -2}, "u": 9}').starting
    assert place is not None
    assert [place.of(queue) for queue in (A0, A1, MessageQueue("t", "a", 2))] == [3, -1, None]
    assert place.of(MessageQueue("t", "b", 7)) == -2
    assert place.of(MessageQueue("u", "c", 0)) == 9
    assert place.of(MessageQueue("v", "c", 0)) is None


def test_a_time_for_all_wins_over_times_by_queue_over_offsets() -> None:
    assert read(startingOffsets="earliest").starting == Place("startingOffsets", "earliest")
    both = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"t": 5}'}
    assert read(**both).starting == Place("startingOffsetsByTimestamp", "times", {"t": 5})
    every = read(**both, startingTimestamp="7").starting
    assert every is not None
    assert every.of(A0) == 7


def test_a_stream_may_begin_at_the_end_and_a_batch_may_not() -> None:
    assert read(streaming=True, startingOffsets="latest").starting == Place("startingOffsets", "latest")
    with pytest.raises(ConfigError, match="empty"):
        read(startingOffsets="latest")
    with pytest.raises(ConfigError, match="empty"):
        read(endingOffsets="earliest")


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(ConfigError, match=r"spark\.read"):
        read(streaming=True, **{name: '{"t": 5}'})


# --- wrong ones ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("startingOffset", "startingOffsets"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("failondataloss2", "failOnDataLoss"),
        ("consumer.group", "consumerGroup"),
    ],
)
def test_an_unknown_option_is_told_its_likeness(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean {meant}"):
        read(**{name: "1"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingOffsets", "soon"),
        ("startingOffsets", '{"t": -3}'),
        ("startingOffsets", '{"t": "5"}'),
        ("startingOffsets", '{"t": true}'),
        ("startingOffsets", '{"t": {"a": {"0": {"x": 1}}}}'),
        ("endingOffsets", '{"t": -2}'),
        ("startingOffsets", "group"),
        ("startingTimestamp", "yesterday"),
        ("startingOffsetsByTimestamp", '{"t": 1.5}'),
        ("startingOffsetsByTimestampStrategy", "newest"),
        ("failOnDataLoss", "maybe"),
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "many"),
        ("maxTriggerDelay", "15 parsecs"),
        ("minPartitions", "-1"),
        ("pullBytes", "1g"),
        ("onDecodeError", "explode"),
        ("tags", " || "),
        ("consumerGroup", "not a group"),
        ("tls", "maybe"),
        ("accessKey", "without its secret"),
        ("namesrv", "nowhere"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(**{name: value})
    assert caught.value.option in (name, "address")


def test_limits_must_agree() -> None:
    with pytest.raises(ConfigError, match="maxOffsetsPerTrigger"):
        read(minOffsetsPerTrigger=10, maxOffsetsPerTrigger=5)


def test_kafkas_names_for_retries_are_understood() -> None:
    settings = read(**{"fetchOffset.numRetries": 4, "fetchOffset.retryIntervalMs": 30})
    assert (settings.fetch_retries, settings.retry_interval) == (4, 0.03)


def test_columns_follow_the_options() -> None:
    assert read().column_names[-1] == "reconsumeTimes"
    assert read(includeProperties="true", onDecodeError="keep").column_names[-2:] == (
        "properties",
        "decodeError",
    )


# --- declarations --------------------------------------------------------------------------------

SETTINGS: list[type[Any]] = [SourceSettings, SinkSettings, StoreSettings, ArchiveSettings]


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_default_is_said_once_and_means_what_the_settings_hold(settings: type[Any]) -> None:
    given = Given({}, options_of(settings), what="it")
    values = {option.name: given.value(option) for option in options_of(settings) if not option.needed}
    names = [option.name for option in options_of(settings)]
    assert len(names) == len(set(names))
    assert all(option.meaning and option.kind.type for option in options_of(settings))
    for option in options_of(settings):
        if option.default:
            assert values[option.name] is not None or option.kind.type == "tags"


def test_the_settings_of_a_sink_hold_the_defaults_of_its_options() -> None:
    read_from_nothing = SinkSettings.read({"namesrv": "h:9876"})
    assert read_from_nothing == SinkSettings(connection=Connection(namesrv="h:9876"))
    assert (read_from_nothing.batch_bytes, read_from_nothing.send_timeout) == (1 << 20, 10.0)
    assert (read_from_nothing.compress_over, read_from_nothing.drop_reserved) == (4096, False)
    told = SinkSettings.read({"namesrv": "h:9876", "compressover": "off", "reservedproperties": "DROP"})
    assert (told.compress_over, told.drop_reserved) == (NEVER, True)
    assert SinkSettings.read({"namesrv": "h:9876", "maxrowspersecond": "50"}).batch_size == 5


@pytest.mark.parametrize(
    ("settings", "options", "told"),
    [
        (
            SinkSettings,
            {"namesrv": "h:9876", "batchsizes": "1"},
            "the sink has no such option; did you mean batchSize",
        ),
        (SinkSettings, {"topic": "t"}, "namesrv=None cannot be used: it is needed: host:9876"),
        (SinkSettings, {"PATH": "t"}, r"option\('topic', NAME\)"),
        (
            SinkSettings,
            {"namesrv": "h:9876", "sendtimeout": "soon"},
            "sendTimeout='soon' cannot be used: use a time",
        ),
        (StoreSettings, {"paths": "/x"}, "the store source has no such option; did you mean path"),
        (StoreSettings, {"path": "/x", "readthrough": "air"}, "use one of auto, log, queues"),
        (StoreSettings, {"path": "/x", "topic": "a", "subscribe": "b"}, "says the same thing"),
        (ArchiveSettings, {"path": "s3a://lake/x"}, "a folder that all workers see"),
        (ArchiveSettings, {}, "path=None cannot be used: it is needed: the archive's folder"),
    ],
)
def test_errors_come_from_the_declaration(settings: Any, options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        settings.read(options)


def test_options_of_sparks_own_are_passed_over() -> None:
    own = {"checkpointLocation": "/c", "__queryname": "q", "spark.x": "1"}
    assert SinkSettings.read({"namesrv": "h:9876", **own}) == SinkSettings.read({"namesrv": "h:9876"})


def test_a_secret_is_not_shown() -> None:
    connection = Connection(namesrv="h:9876", access_key="a", secret_key="hidden", security_token="too")
    assert "hidden" not in repr(connection) and "too" not in repr(connection)
