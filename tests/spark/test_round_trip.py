"""Any message that our producer can send comes out of the source as a consumer of ours sees it."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gimbalmq import sync
from gimbalmq.client.consumer_config import ConsumeFromWhere
from gimbalmq.model.flags import BORN_HOST_V6, STORE_HOST_V6
from gimbalmq.model.message import SYSTEM_PROPERTIES, Message, MessageView
from gimbalmq.spark import columns
from gimbalmq.spark.options import SourceSettings
from gimbalmq.spark.source import BatchReader
from gimbalmq.testing import LocalCluster
from gimbalmq.testing.cluster import ThreadCluster
from tests.spark.test_decode import as_view_says

# No separators of properties, no half of a surrogate pair, which no UTF-8 has.
text = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20
)
word = text.filter(lambda found: found.split() == [found])
name = text.filter(lambda found: found.strip() and found not in SYSTEM_PROPERTIES)
bodies = st.one_of(
    st.binary(min_size=1, max_size=300),
    # Long enough to be compressed, whether that makes them shorter or not.
    st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=9), st.integers(500, 6000)),
    st.integers(4096, 40_000).map(lambda size: bytes((n * n * 31 + (n >> 3)) & 255 for n in range(size))),
)
messages = st.fixed_dictionaries(
    {"body": bodies},
    optional={
        "tags": word,
        "keys": st.lists(word, min_size=1, max_size=3),
        "sharding_key": word,
        "flag": st.integers(-(2**31), 2**31 - 1),
        "properties": st.dictionaries(name, name, max_size=4),
        "wait_store_ok": st.booleans(),
    },
)


@pytest.fixture(scope="module")
def ipv6_cluster() -> Iterator[ThreadCluster]:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    with LocalCluster.in_thread(properties={"bindAddress": "::1", "brokerIP1": "::1"}) as cluster:
        yield cluster


def consumed(namesrv: str, topic: str, count: int) -> list[MessageView]:
    """What a pull consumer gets, queue by queue."""
    found: list[MessageView] = []
    group = f"reader_{uuid.uuid4().hex}"
    with sync.PullConsumer(group, namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer:
        consumer.assign(consumer.queues(topic))
        while len(found) < count:
            found += consumer.poll(5.0)
    return sorted(found, key=lambda view: (view.queue_id, view.queue_offset))


def read(namesrv: str, topic: str, **options: object) -> list[dict[str, Any]]:
    """What the source gives, every column of it."""
    given = {"namesrv": namesrv, "subscribe": topic, "checkCrc": "true"}
    given |= {key: str(value) for key, value in options.items()}
    chosen = SourceSettings.read(given, streaming=False)
    reader = BatchReader(chosen, columns.arrow_schema(columns.TYPES))
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["queueId"], row["offset"]))


def check_round_trip(
    cluster: ThreadCluster, given: list[dict[str, Any]], compression: str, together: bool, pull_bytes: int
) -> list[MessageView]:
    topic = f"trip-{uuid.uuid4().hex}"
    with sync.Producer("trip", cluster.namesrv, compression=compression, compress_over=4096) as producer:
        if together:  # they must agree on whether to wait
            producer.send_batch([Message(topic, **fields | {"wait_store_ok": True}) for fields in given])
        else:
            for fields in given:
                producer.send(Message(topic, **fields))
    views = consumed(cluster.namesrv, topic, len(given))
    assert sorted(view.body for view in views) == sorted(fields["body"] for fields in given)
    assert read(cluster.namesrv, topic, pullBytes=pull_bytes) == [as_view_says(view) for view in views]
    return views


@given(
    st.lists(messages, min_size=1, max_size=12),
    st.sampled_from(["zlib", "lz4", "zstd"]),
    st.booleans(),
    st.sampled_from([1024, 8192, 2 << 20]),
)
@settings(max_examples=25)
def test_any_message_is_a_row_as_a_consumer_sees_it(
    shared_cluster: ThreadCluster,
    given: list[dict[str, Any]],
    compression: str,
    together: bool,
    pull_bytes: int,
) -> None:
    check_round_trip(shared_cluster, given, compression, together, pull_bytes)


@given(st.lists(messages, min_size=1, max_size=6), st.booleans())
@settings(max_examples=8)
def test_also_over_ipv6(ipv6_cluster: ThreadCluster, given: list[dict[str, Any]], together: bool) -> None:
    views = check_round_trip(ipv6_cluster, given, "zlib", together, 2 << 20)
    assert all(view.sys_flag & STORE_HOST_V6 and view.sys_flag & BORN_HOST_V6 for view in views)
    assert all(view.store_host[0] == "::1" for view in views)
