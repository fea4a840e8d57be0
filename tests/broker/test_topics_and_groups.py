"""Topics and groups as tables and as files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gimbalmq.broker.broker import Broker
from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.broker.consumer_offsets import ConsumerOffsets
from gimbalmq.broker.groups import Groups
from gimbalmq.broker.topics import Topics
from gimbalmq.errors import StoreIOError, SubscriptionGroupNotExistError, TableFullError
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.bodies import GroupConfig, TopicConfig
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.store.files import Files
from gimbalmq.testing import LocalCluster
from gimbalmq.transport.pool import ChannelPool
from tests.broker.desk import broker_config, open_desk, send_fields
from tests.support import ManualClock, Unwalked, run


def _live(**settings: bool) -> LiveConfig:
    return LiveConfig(BrokerConfig(**settings))  # type: ignore[arg-type]


def test_every_change_is_a_new_version_that_others_hear_of(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        topics = Topics(tmp_path, _live(), clock)
        topics.load()
        heard: list[list[str]] = []
        topics.changed = lambda configs: heard.append([config.topic_name for config in configs])
        start = topics.version.counter
        clock.advance(1)
        topics.put(TopicConfig(topic_name="A"), TopicConfig(topic_name="B"))
        assert (topics.version.counter, topics.version.timestamp) == (start + 1, clock.wall)
        made = topics.ensure("C", 2)
        assert topics.ensure("C", 9) is made
        topics.mark_ordered(["A", "unknown"])
        topics.mark_ordered(["A"])
        assert topics.remove("B") and not topics.remove("B")
        assert heard == [["A", "B"], ["C"], ["A"], []]
        assert topics.version.counter == start + 4 == topics.generation + start
        await topics.saving.saved()
        again = Topics(tmp_path, _live(), clock)
        again.load()
        assert again.version == topics.version
        assert {config.topic_name for config in again.all()} == {config.topic_name for config in topics.all()}
        order = again.find("A")
        assert order is not None and order.order

    run(work())


def test_group_is_made_on_first_sight_where_allowed(tmp_path: Path) -> None:
    async def work() -> None:
        groups = Groups(tmp_path, _live(), ManualClock())
        groups.load()
        assert groups.known("g") is None
        made = groups.find("g")
        assert made == GroupConfig(group_name="g") and groups.known("g") is made
        assert groups.find("no good") is None and groups.find("") is None
        await groups.saving.saved()
        stored = json.loads((tmp_path / "subscriptionGroup.json").read_text())
        assert stored["subscriptionGroupTable"]["g"]["retryMaxTimes"] == 16
        closed = Groups(tmp_path / "b", _live(auto_create_subscription_group=False), ManualClock())
        closed.load()
        assert closed.find("g") is None
        with pytest.raises(SubscriptionGroupNotExistError, match=r"\[g\]"):
            closed.require("g")
        assert closed.require("TOOLS_CONSUMER").consume_enable
        assert closed.find("CID_RMQ_SYS_x") is not None
        await closed.saving.saved()

    run(work())


def test_new_topic_survives_a_crash_soon_after(tmp_path: Path) -> None:
    async def work() -> None:
        async with LocalCluster(store=tmp_path) as cluster:
            pool = ChannelPool()
            ext = send_fields("T", queue_id=3)
            await pool.call(cluster.broker.address, RemotingCommand(310, ext, b"x"), 5.0)
            await cluster.kill_broker()
            broker = await cluster.start_broker()
            assert broker.topics.find("T") is not None
            await cluster.kill_broker()
            # Even without its entry in the file: there are messages, so there is a topic.
            for path in (tmp_path / "broker-a" / "config").glob("topics.json*"):
                path.unlink()
            broker = await cluster.start_broker()
            config = broker.topics.find("T")
            assert config is not None and config.write_queue_nums >= 4
            assert broker.recovery is not None and not broker.recovery.clean
            answer = await pool.call(broker.address, RemotingCommand(310, ext, b"y"), 5.0)
            assert answer.code == 0
            await pool.close()

    run(work())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("topics.json", '{"topicConfigTable":{"T":5}}'),
        ("topics.json", "{"),
        ("subscriptionGroup.json", "[]"),
        ("consumerOffset.json", '{"offsetTable":{"T@g":{"0":"x"}}}'),
        ("consumerOffset.json", '{"offsetTable":[1]}'),
        ("delayOffset.json", '{"offsetTable":{"one":2}}'),
    ],
)
def test_damaged_file_stops_the_start_and_is_named(tmp_path: Path, name: str, text: str) -> None:
    async def work() -> None:
        (tmp_path / "config").mkdir()
        path = tmp_path / "config" / name
        path.write_text(text)
        broker = Broker(broker_config(tmp_path))
        with pytest.raises(StoreIOError) as caught:
            await broker.start()
        assert f"{path} is damaged" in str(caught.value) and "mend it or move it away" in str(caught.value)
        await broker.close()
        assert path.read_text() == text, "what might still be mended is not overwritten"
        path.unlink()
        await broker.start()
        await broker.close()

    run(work())


def test_everything_is_saved_when_the_broker_closes(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.client.send("T")
            await desk.client.heartbeat(group="g")
            await desk.client.ok(
                15, {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"}
            )
            await desk.broker.close()
            folder = tmp_path / "config"
            assert "T" in json.loads((folder / "topics.json").read_text())["topicConfigTable"]
            assert (
                "g" in json.loads((folder / "subscriptionGroup.json").read_text())["subscriptionGroupTable"]
            )
            offsets = json.loads((folder / "consumerOffset.json").read_text())
            assert offsets["offsetTable"] == {"T@g": {"0": 1}}
            assert not (tmp_path / "abort").exists()

    run(work())


def test_new_topic_or_group_costs_no_walk_over_all(tmp_path: Path) -> None:
    async def work() -> None:
        topics, groups = Topics(tmp_path, _live(), ManualClock()), Groups(tmp_path, _live(), ManualClock())
        topics.put(TopicConfig(topic_name="first"))
        groups.put(GroupConfig(group_name="first"))
        await topics.saving.finish()
        await groups.saving.finish()
        topics._table, groups._table = Unwalked(topics._table), Unwalked(groups._table)
        topics.put(TopicConfig(topic_name="second"), TopicConfig(topic_name="first", perm=4))
        groups.put(GroupConfig(group_name="second"), GroupConfig(group_name="first"))
        assert topics.ensure("third", 4) and groups.require("third")
        assert topics.remove("second") and groups.remove("second")
        assert len(topics) == len(groups) == 2

    run(work())


def test_topics_beyond_the_bound_are_refused_and_all_others_go_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, maxTopicNums=100, maxSubscriptionGroupNums=100) as desk:
            topics, groups = desk.broker.topics, desk.broker.groups
            await desk.client.send("old")
            while len(topics) < 100:
                topics.ensure(f"filler-{len(topics)}", 1)
            version = topics.version
            answer = await desk.client.send("new")
            assert answer.code == 1 and "maxTopicNums is 100" in (answer.remark or "")
            assert topics.version == version and "new" not in topics
            for refused in (
                lambda: topics.put(TopicConfig(topic_name="old"), TopicConfig(topic_name="new")),
                lambda: topics.ensure("%RETRY%g", 1),
            ):
                with pytest.raises(TableFullError, match="delete topics that nobody needs or raise it"):
                    refused()
            assert (await desk.client.send("old")).code == 0
            topics.put(TopicConfig(topic_name="old", perm=4))
            topics.adopt(TopicConfig(topic_name="has messages"))
            topics.remove("filler-50")
            topics.remove("filler-51")
            topics.ensure("new", 1)
            while groups.known("last") is None:
                groups.find(f"filler-{len(groups.table().subscription_group_table)}")
                if len(groups.table().subscription_group_table) == 99:
                    groups.put(GroupConfig(group_name="last"))
            with pytest.raises(TableFullError, match="maxSubscriptionGroupNums is 100"):
                groups.find("too-many")
            assert groups.find("last") is not None
            assert groups.find("no good") is None

    run(work())


def test_tables_are_written_in_small_pieces_while_they_change(tmp_path: Path) -> None:
    """Megabytes of offsets once were one step of the loop; now no piece has more than some hundred rows."""

    async def work() -> None:
        offsets = ConsumerOffsets(tmp_path)
        for topic in range(1000):
            for queue in range(4):
                offsets.commit("g", f"topic-{topic}", queue, 1)
        pieces = fastjson.pretty_pieces(offsets._rows())
        first = next(pieces)
        assert len(first) < 50_000
        offsets.commit("new", "topic-new", 0, 1)
        offsets.commit("g", "topic-999", 4, 1)
        offsets.forget_topic("topic-998")
        text = b"".join([first, *pieces])
        table = json.loads(text)["offsetTable"]
        assert len(table) == 1000 and "topic-new@new" not in table
        assert table["topic-999@g"] == {"0": 1, "1": 1, "2": 1, "3": 1, "4": 1}

    run(work())


def test_every_table_is_written_by_the_file_layer_that_the_broker_was_given(tmp_path: Path) -> None:
    class Spy(Files):
        def replace(self, source: Path | str, target: Path | str) -> None:
            written.add(Path(target).name)
            super().replace(source, target)

    written: set[str] = set()

    async def work() -> None:
        broker = Broker(broker_config(tmp_path), files=Spy())
        await broker.start()
        try:
            broker.topics.put(TopicConfig(topic_name="T"))
            broker.groups.put(GroupConfig(group_name="g"))
            broker.offsets.commit("g", "T", 0, 0)
        finally:
            await broker.close()
        assert written >= {
            "topics.json",
            "subscriptionGroup.json",
            "consumerOffset.json",
            "delayOffset.json",
        }

    run(work())
