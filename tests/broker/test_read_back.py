"""Tables and answers are read back exactly as they were written, whatever names and attributes look like."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.broker.consumer_offsets import ConsumerOffsets
from gimbalmq.broker.groups import Groups
from gimbalmq.broker.topics import Topics
from gimbalmq.model.queues import MessageQueue
from gimbalmq.nameserver.kv import KvStore
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.bodies import ConsumerConnections, GroupConfig, Subscription, TopicConfig
from gimbalmq.protocol.codes import RequestCode
from tests.broker.desk import open_desk, topic_fields
from tests.support import ManualClock, run

_QUEUE = fastjson.queue_text(MessageQueue("T", "b", 0))
_MAGIC = [
    "$ref",
    "@type",
    "$",
    "$.topicConfigTable",
    '{"',
    '{"x',
    '{"a":1}',
    _QUEUE,
    'x"$ref',
    "0",
    "null",
    "'",
]
texts = st.sampled_from(_MAGIC) | st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
attributes = st.dictionaries(texts, texts, max_size=3)
policies = st.dictionaries(
    texts,
    st.recursive(
        texts, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2)
    ),
    max_size=2,
)


def _live() -> LiveConfig:
    return LiveConfig(BrokerConfig())


@settings(max_examples=40)
@given(st.dictionaries(texts, attributes, max_size=3))
def test_topics(table: dict[str, dict[str, str]]) -> None:
    async def work(folder: Path) -> None:
        topics = Topics(folder, _live(), ManualClock())
        topics.put(*(TopicConfig(topic_name=name, attributes=kept) for name, kept in table.items()))
        await topics.saving.finish()
        again = Topics(folder, _live(), ManualClock())
        again.load()
        assert {name: topic.attributes for name in table if (topic := again.find(name))} == table
        await again.saving.abandon()

    with tempfile.TemporaryDirectory() as folder:
        run(work(Path(folder)))


@settings(max_examples=40)
@given(st.dictionaries(texts, st.tuples(attributes, policies), max_size=3))
def test_groups(table: dict[str, tuple[dict[str, str], dict[str, Any]]]) -> None:
    async def work(folder: Path) -> None:
        groups = Groups(folder, _live(), ManualClock())
        groups.put(
            *(
                GroupConfig(group_name=name, attributes=kept, group_retry_policy=policy)
                for name, (kept, policy) in table.items()
            )
        )
        await groups.saving.finish()
        again = Groups(folder, _live(), ManualClock())
        again.load()
        found = {name: group for name in table if (group := again.known(name))}
        assert {name: (group.attributes, group.group_retry_policy) for name, group in found.items()} == table
        await again.saving.abandon()

    with tempfile.TemporaryDirectory() as folder:
        run(work(Path(folder)))


@settings(max_examples=40)
@given(st.sets(st.tuples(texts, texts), max_size=3))
def test_offsets(pairs: set[tuple[str, str]]) -> None:
    async def work(folder: Path) -> None:
        offsets = ConsumerOffsets(folder)
        for group, topic in pairs:
            offsets.commit(group, topic, 0, 7)
        await offsets.finish()
        again = ConsumerOffsets(folder)
        again.load()
        assert dict(again.rows()) == dict(offsets.rows())
        await again.abandon()

    with tempfile.TemporaryDirectory() as folder:
        run(work(Path(folder)))


@settings(max_examples=40)
@given(st.dictionaries(texts, attributes.filter(bool), min_size=1, max_size=3))
def test_kv(table: dict[str, dict[str, str]]) -> None:
    async def work(path: str) -> None:
        kv = KvStore(path)
        kept: dict[str, dict[str, str]] = {}
        for space, entries in table.items():
            for key, value in entries.items():
                if not {space, key} & fastjson.MAGIC_KEYS:
                    await kv.put(space, key, value)
                    kept.setdefault(space, {})[key] = value
        again = KvStore(path)
        again.load()
        assert {space: again.namespace(space) for space in kept} == kept
        for space, entries in kept.items():
            assert json.loads(kv.body(space) or b"") == {"table": entries}

    with tempfile.TemporaryDirectory() as folder:
        run(work(f"{folder}/kvConfig.json"))


@given(st.dictionaries(texts, texts, max_size=3))
def test_answers_with_names_of_anybody(names: dict[str, str]) -> None:
    consumers = ConsumerConnections(subscription_table={topic: Subscription() for topic in names})
    assert json.loads(consumers.dump())
    assert ConsumerConnections.parse(consumers.dump()) == consumers


@pytest.mark.parametrize("name", ['{"x', _QUEUE.replace(",", ";"), "$", "{"])
def test_broker_with_an_odd_attribute_starts_again(tmp_path: Path, name: str) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            ext = topic_fields("T") | {"attributes": f"+{name}=1"}
            await desk.client.ok(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
            await desk.create("U")
            answer = await desk.client.ok(RequestCode.GET_ALL_TOPIC_CONFIG)
            table = json.loads(bytes(answer.body))["topicConfigTable"]
            assert table["T"]["attributes"] == {name: "1"}
            await desk.restart()
            topic = desk.broker.topics.find("T")
            assert topic is not None and topic.attributes == {name: "1"}

    run(work())


def test_references_in_files_of_apache_are_followed(tmp_path: Path) -> None:
    """fastjson writes an object once if two fields hold it."""
    text = (
        '{"dataVersion":{"counter":1},"topicConfigTable":{'
        '"A":{"attributes":{"+message.type":"FIFO"},"topicName":"A"},'
        '"B":{"attributes":{"$ref":"$.topicConfigTable.A.attributes"},"topicName":"B"}}}'
    )
    (tmp_path / "topics.json").write_text(text)

    async def work() -> None:
        topics = Topics(tmp_path, _live(), ManualClock())
        topics.load()
        found = topics.find("B")
        assert found is not None and found.attributes == {"+message.type": "FIFO"}
        await topics.saving.abandon()

    run(work())
