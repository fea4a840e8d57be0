"""What slaves ask a master for: 21, 201, 43, 45, 60, 61, 402, by Apache's rules and by ours; and 906 to 908."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gimbalmq.broker.handlers.tables import _page
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.bodies import DataVersion, GroupConfig, TopicConfig
from gimbalmq.protocol.codes import RequestCode as Code
from gimbalmq.protocol.replication_bodies import HaStatus, RequestModeTable, TimerCheckpoint
from tests.broker.desk import Client, Desk, open_desk
from tests.support import run, until


def _version(of: Mapping[str, Any]) -> str:
    return json.dumps(of["dataVersion"])


async def _pages(client: Client, code: int, seq: str, most: str, total: str, table: str) -> dict[str, Any]:
    """As Apache 5.x's slaves gather a table: they stop one row before the end."""
    found: dict[str, Any] = {}
    got, version = 0, ""
    for _ in range(100):
        answer = await client.ok(code, {seq: f"{got}", most: "10", "dataVersion": version})
        body = fastjson.loads(bytes(answer.body))
        found |= body[table]
        got += len(body[table])
        version = version or _version(body)
        assert version == _version(body)
        if got >= int((answer.ext_fields or {})[total]) - 1:
            return found
    raise AssertionError("no end")


def test_pages_bring_apaches_slaves_every_row(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            broker = desk.broker
            for count in range(14):
                # So that there is one row behind a full page in some round.
                broker.topics.put(TopicConfig(topic_name=f"T{count:02}"))
                broker.groups.put(GroupConfig(group_name=f"g{count:02}"))
                topics = await _pages(
                    desk.client, 21, "topicSeq", "maxTopicNum", "totalTopicNum", "topicConfigTable"
                )
                assert topics.keys() == {config.topic_name for config in broker.topics.all()}
                groups = await _pages(
                    desk.client, 201, "groupSeq", "maxGroupNum", "totalGroupNum", "subscriptionGroupTable"
                )
                assert groups.keys() == broker.groups.table().subscription_group_table.keys()

    run(work())


@pytest.mark.parametrize(
    ("start", "most", "expected"),
    [(0, 4, 4), (4, 4, 5), (0, 8, 9), (0, 9, 9), (0, None, 9), (9, 4, 0), (99, 4, 0), (-1, 4, 4), (0, 0, 1)],
)
def test_a_page_never_leaves_a_single_row(start: int, most: int | None, expected: int) -> None:
    assert len(_page([f"{number}" for number in range(9)], start, most)) == expected


def test_a_page_of_another_version_begins_anew(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            page = {"topicSeq": "0", "maxTopicNum": "3", "dataVersion": ""}
            first = await desk.client.json(21, page)
            await desk.create("T")
            again = await desk.client.json(21, page | {"topicSeq": "3", "dataVersion": _version(first)})
            assert again["topicConfigTable"].keys() == first["topicConfigTable"].keys()
            assert again["dataVersion"] != first["dataVersion"]
            whole = await desk.client.json(21)  # 4.9's question
            assert "T" in whole["topicConfigTable"] and len(whole["topicConfigTable"]) > 10

    run(work())


async def _changes(desk: Desk, code: int, version: str) -> tuple[bool, Any]:
    header = {"topicSeq": "0", "groupSeq": "0", "dataVersion": version, "changesOnly": "true"}
    answer = await desk.client.ok(code, header)
    return (answer.ext_fields or {})["changesOnly"] == "true", fastjson.loads(bytes(answer.body))


def test_who_has_a_version_gets_only_what_has_changed_since(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            only, topics = await _changes(desk, 21, "")
            assert not only and len(topics["topicConfigTable"]) > 10
            only, same = await _changes(desk, 21, _version(topics))
            assert only and same == {
                "dataVersion": topics["dataVersion"],
                "topicConfigTable": {},
                "removed": [],
            }
            await desk.create("A")
            await desk.create("B")
            await desk.client.ok(215, {"topic": "A"})
            only, changed = await _changes(desk, 21, _version(topics))
            assert only and changed["topicConfigTable"].keys() == {"B"} and changed["removed"] == ["A"]
            await desk.client.ok(215, {"topic": "B"})
            only, changed = await _changes(desk, 21, _version(changed))
            assert only and not changed["topicConfigTable"] and changed["removed"] == ["B"]
            await desk.create("B")

            _, groups = await _changes(desk, 201, "")
            await desk.client.ok(200, None, b'{"groupName":"g"}')
            await desk.client.ok(200, None, b'{"groupName":"h"}')
            await desk.client.ok(353, {"group": "h", "topic": "B", "readable": "false"})
            await desk.client.ok(207, {"groupName": "g"})
            only, changed = await _changes(desk, 201, _version(groups))
            assert only and changed["subscriptionGroupTable"].keys() == {"h"}
            assert changed["forbiddenTable"] == {"h": {"B": 1}} and changed["removed"] == ["g"]
            await desk.restart()
            only, _ = await _changes(desk, 201, _version(groups))
            assert not only, "after a restart nobody remembers"
            only, same = await _changes(desk, 201, _version(changed))
            assert only and not same["subscriptionGroupTable"]

    run(work())


def test_consumer_offsets_have_a_version_that_grows_with_them(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            commit = {"consumerGroup": "g", "topic": "T", "queueId": "0"}
            await desk.create("T")
            first = await desk.client.json(43)
            await desk.client.ok(15, commit | {"commitOffset": "0"})
            second = await desk.client.json(43)
            assert second["dataVersion"]["counter"] > first["dataVersion"]["counter"]
            assert second["offsetTable"]["T@g"] == {"0": 0}
            assert (await desk.client.json(43)) == second
            plain = await desk.client.ok(43)
            assert not plain.ext_fields, "Apache's slaves get no fields that they do not know"

            async def ask(version: str) -> tuple[bool, int, Any]:
                answer = await desk.client.ok(43, {"dataVersion": version})
                fields = answer.ext_fields or {}
                body = fastjson.loads(bytes(answer.body))
                return fields["changesOnly"] == "true", int(fields["logOffset"]), body

            only, end, whole = await ask("")
            assert not only and whole == second and end == desk.broker.store.max_commitlog_offset
            await desk.client.ok(15, commit | {"commitOffset": "0", "consumerGroup": "h"})
            only, _, changed = await ask(_version(whole))
            assert only and changed["offsetTable"] == {"T@h": {"0": 0}}
            await desk.client.ok(215, {"topic": "T"})
            only, end, changed = await ask(_version(whole))
            assert only and changed["offsetTable"] == {"T@h": {}, "T@g": {}}
            assert end == desk.broker.store.max_commitlog_offset
            only, _, none = await ask(_version(changed))
            assert only and not none["offsetTable"]
            await desk.restart()
            assert (await desk.client.json(43))["dataVersion"] == changed["dataVersion"]

    run(work())


def test_nobody_notes_changes_of_offsets_unless_a_slave_asks(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            offsets = desk.broker.offsets
            offsets.commit("g", "T", 0, 0)
            assert offsets._moved is None
            version = offsets.version
            assert offsets.changes_since(version) == frozenset()
            offsets.commit("g", "T", 0, 0)
            assert offsets.changes_since(version) == {("T", "g")}
            for _ in range(30):
                offsets.save()
            assert offsets._moved is None
            assert offsets.changes_since(version) is None

    run(work())


def test_progress_of_delayed_messages_timers_and_request_modes(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            before = await desk.client.json(45)
            assert before["dataVersion"].keys() == {"counter", "stateVersion", "timestamp"}
            await desk.client.send("T", properties={"DELAY": "1"})
            later = f"{desk.broker._clock.wall_ms() + 3_600_000}"
            await desk.client.send("T", properties={"TIMER_DELIVER_MS": later})
            await until(lambda: len(desk.broker.timers) == 1)
            await until(lambda: desk.broker.delays.progress().get(1, (0, 1))[0] == 1)
            after = await desk.client.json(45)
            assert after["offsetTable"] == {"1": 1}
            assert after["dataVersion"]["counter"] > before["dataVersion"]["counter"]
            answer = await desk.client.ok(60)
            checkpoint = TimerCheckpoint.decode(answer.body)
            assert len(answer.body) == 56 and not answer.ext_fields
            assert checkpoint.last_timer_queue_offset == checkpoint.master_timer_queue_offset == 1
            assert abs(checkpoint.last_read_time_ms - desk.broker._clock.wall_ms()) < 60_000
            fields = (await desk.client.ok(60, {"dataVersion": ""})).ext_fields or {}
            assert int(fields["logOffset"]) == desk.broker.store.max_commitlog_offset
            assert 0 <= int(fields["marksFrom"]) <= int(fields["logOffset"])
            metrics = await desk.client.json(61)
            assert metrics["timingCount"]["T"]["count"] == 1 and metrics["timingCount"].keys() == {"T"}
            assert await desk.client.json(402) == {"messageRequestModeMap": {}}
            # What an Apache master has told is kept and handed on.
            modes = {"T": {"g": {"consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0, "topic": "T"}}}
            desk.broker.request_modes.replace(RequestModeTable(message_request_mode_map=modes))
            await desk.restart()
            assert await desk.client.json(402) == {"messageRequestModeMap": modes}

    run(work(), seconds=120)


def test_a_master_says_where_it_is_and_lets_no_other_be_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            asked = (await desk.client.ok(Code.EXCHANGE_BROKER_HA_INFO)).ext_fields or {}
            assert asked["masterAddress"] == desk.broker.address
            assert asked["masterHaAddress"] == desk.broker.replication.ha_address
            assert asked["masterFlushOffset"] == "0"
            claim = {
                "masterHaAddress": "127.0.0.1:1",
                "masterAddress": "127.0.0.1:2",
                "masterFlushOffset": "5",
            }
            refused = await desk.client.ask(Code.EXCHANGE_BROKER_HA_INFO, claim)
            assert refused.code == 1 and "127.0.0.1:2 says that it is" in (refused.remark or "")
            status = HaStatus.parse((await desk.client.ok(907)).body)
            assert status.master and not status.ha_connection_info
            assert status.master_commit_log_max_offset == desk.broker.store.max_commitlog_offset
            assert (await desk.client.ask(908, {"masterFlushOffset": "-1"})).code != 0
            await desk.client.ok(908, {"masterFlushOffset": "7"})
            assert desk.broker.store.master_flushed_offset == 0, "a master has none"

    run(work())


def test_a_term_makes_every_version_newer(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            broker = desk.broker
            for table in (broker.topics, broker.groups, broker.offsets):
                before = table.version
                table.new_term(5)
                assert table.version.state_version == 5 and table.version.counter == before.counter + 1
            assert broker.topics.history.since(DataVersion(counter=-5), broker.topics.version) is None

    run(work())
