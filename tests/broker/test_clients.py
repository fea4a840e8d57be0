"""Heartbeats, membership and who is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gimbalmq.model.record import iter_records
from gimbalmq.protocol.bodies import CheckClientConfig, GroupConfig, Subscription
from gimbalmq.protocol.codes import OUR_VERSION, RequestCode, ResponseCode
from tests.broker.desk import Client, fields, open_desk, turns
from tests.support import ManualClock, run, until

NOTICE = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


async def _told(client: Client) -> int:
    """Notices so far; a request goes first, so that none is still on its way."""
    await client.ok(RequestCode.GET_BROKER_RUNTIME_INFO)
    notices = [request for request in client.heard if request.code == NOTICE]
    assert all(request.is_oneway and fields(request) == {"consumerGroup": "g"} for request in notices)
    return len(notices)


def test_heartbeat_makes_the_retry_topic(tmp_path: Path) -> None:
    """S0-37, S0-38, S0-49: %RETRY%group is there afterwards, read and write, with the group's queue
    number, with the unit flag for unit mode; an existing one is left alone; the answer is 0."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            assert (await desk.client.heartbeat(group="g")).code == 0
            made = desk.broker.topics.find("%RETRY%g")
            assert made is not None
            assert (made.read_queue_nums, made.write_queue_nums, made.perm, made.topic_sys_flag) == (
                1,
                1,
                6,
                0,
            )
            await desk.client.heartbeat(group="unit", unit_mode=True)
            unit = desk.broker.topics.find("%RETRY%unit")
            assert unit is not None and unit.topic_sys_flag == 2
            config = GroupConfig(group_name="wide", retry_queue_nums=3)
            await desk.client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config.dump())
            await desk.client.heartbeat(group="wide")
            wide = desk.broker.topics.find("%RETRY%wide")
            assert wide is not None and wide.write_queue_nums == 3
            config.retry_queue_nums = 5
            await desk.client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config.dump())
            await desk.client.heartbeat(group="wide", unit_mode=True)
            wide = desk.broker.topics.find("%RETRY%wide")
            assert wide is not None and (wide.write_queue_nums, wide.topic_sys_flag) == (3, 0)

    run(work())


def test_unknown_group_that_may_not_be_made_is_passed_over(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, autoCreateSubscriptionGroup=False) as desk:
            assert (await desk.client.heartbeat(group="g", producer="p")).code == 0
            assert desk.broker.consumers.group("g") is None
            assert "%RETRY%g" not in desk.broker.topics
            assert [member.client_id for member in desk.broker.producers.group("p")] == ["c1"]
            # The system's own groups always exist.
            await desk.client.heartbeat(group="CID_RMQ_SYS_x")
            assert await desk.client.members("CID_RMQ_SYS_x") == ["c1"]

    run(work())


def test_joining_is_told_to_every_connection_of_the_group(tmp_path: Path) -> None:
    """S0-39, S0-40, S0-45: a connection's first heartbeat is a change, told one-way by request 40 to
    all, the newcomer included; a repeated one only refreshes."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            first, second, stranger = desk.client, desk.new_client(), desk.new_client()
            await first.heartbeat("c1", group="g")
            assert await _told(first) == 1
            await stranger.heartbeat("c3", group="other")
            await second.heartbeat("c2", group="g")
            assert (await _told(first), await _told(second)) == (2, 1)
            clock.advance(30)
            await first.heartbeat("c1", group="g")
            assert (await _told(first), await _told(second)) == (2, 1)
            group = desk.broker.consumers.group("g")
            assert group is not None
            assert {m.client_id: m.last_seen for m in group.members.values()} == {"c1": 1030.0, "c2": 1000.0}
            assert sorted(await stranger.members("g")) == ["c1", "c2"]

    run(work())


def test_other_client_id_on_a_known_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """S0-41: logged, replaced, not a new member."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.client.heartbeat("old", group="g")
            await desk.client.heartbeat("new", group="g")
            assert await _told(desk.client) == 1
            assert await desk.client.members("g") == ["new"]

    with caplog.at_level("WARNING", "gimbalmq.broker.clients"):
        run(work())
    assert any("old" in text and "new" in text for text in caplog.messages)


def test_subscriptions_follow_the_last_heartbeat(tmp_path: Path) -> None:
    """S0-42 new topic: changed. S0-43 higher version: stored, no change. S0-44 missing topic: removed,
    changed."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            client = desk.client

            def subscriptions() -> dict[str, tuple[str | None, int]]:
                group = desk.broker.consumers.group("g")
                assert group is not None
                return {t: (s.sub_string, s.sub_version) for t, s in group.subscriptions.items()}

            await client.heartbeat(group="g", topics={"T": "a"}, sub_version=5)
            assert await _told(client) == 1
            await client.heartbeat(group="g", topics={"T": "b"}, sub_version=6)
            assert (await _told(client), subscriptions()) == (1, {"T": ("b", 6)})
            await client.heartbeat(group="g", topics={"T": "c"}, sub_version=6)
            await client.heartbeat(group="g", topics={"T": "d"}, sub_version=5)
            assert (await _told(client), subscriptions()) == (1, {"T": ("b", 6)})
            await client.heartbeat(group="g", topics={"T": "b", "U": "*"}, sub_version=6)
            assert (await _told(client), subscriptions()) == (2, {"T": ("b", 6), "U": ("*", 6)})
            await client.heartbeat(group="g", topics={"U": "*"}, sub_version=6)
            assert (await _told(client), subscriptions()) == (3, {"U": ("*", 6)})
            await client.ok(RequestCode.UNREGISTER_CLIENT, {"clientID": "c1", "consumerGroup": "g"})
            assert desk.broker.consumers.group("g") is None

    run(work())


def test_a_heartbeat_changes_what_pulls_are_filtered_by(tmp_path: Path) -> None:
    """S0-47: every heartbeat refreshes the group's filter, whichever member sends it; it goes with the last."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            first, second = desk.client, desk.new_client()
            for tag in ("a", "b", "a", "c"):
                await first.send("T", tag.encode(), properties={"TAGS": tag})

            async def pulled(sub_version: int) -> tuple[int, list[bytes]]:
                answer = await second.pull("T", flags=0, sub_version=sub_version)
                return answer.code, [record.body for record in iter_records(bytes(answer.body))]

            assert (await pulled(0))[0] == ResponseCode.SUBSCRIPTION_NOT_EXIST
            await first.heartbeat("c1", group="g", topics={"T": "a"}, sub_version=1)
            assert await pulled(1) == (0, [b"a", b"a"])
            await second.heartbeat("c2", group="g", topics={"T": "b || c"}, sub_version=2)
            assert await pulled(2) == (0, [b"b", b"c"])
            await first.heartbeat("c1", group="g", topics={"T": "*"}, sub_version=3)
            assert await pulled(3) == (0, [b"a", b"b", b"a", b"c"])
            await second.ok(RequestCode.UNREGISTER_CLIENT, {"clientID": "c2", "consumerGroup": "g"})
            assert await pulled(3) == (0, [b"a", b"b", b"a", b"c"])
            await first.cut()
            await until(lambda: desk.broker.consumers.group("g") is None)
            assert (await pulled(3))[0] == ResponseCode.SUBSCRIPTION_NOT_EXIST
            # A filter with a lower version than before: nothing of the old one is left.
            await second.heartbeat("c2", group="g", topics={"T": "c"}, sub_version=1)
            assert await pulled(1) == (0, [b"c"])

    run(work())


@pytest.mark.parametrize("where", ["group", "broker"])
def test_notices_can_be_switched_off(tmp_path: Path, where: str) -> None:
    """S0-46: by the group's notifyConsumerIdsChangedEnable=false, and by the broker's."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            if where == "broker":
                await desk.client.ok(
                    RequestCode.UPDATE_BROKER_CONFIG, None, b"notifyConsumerIdsChangedEnable=false\n"
                )
            else:
                config = GroupConfig(group_name="g", notify_consumer_ids_changed_enable=False)
                await desk.client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config.dump())
            other = desk.new_client()
            await desk.client.heartbeat(group="g")
            await other.heartbeat("c2", group="g")
            await other.ok(RequestCode.UNREGISTER_CLIENT, {"clientID": "c2", "consumerGroup": "g"})
            assert await _told(desk.client) == 0
            assert await desk.client.members("g") == ["c1"]

    run(work())


def test_producers_are_registered_with_their_connection(tmp_path: Path) -> None:
    """S0-48; and they leave by request 35 or with their connection."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            other = desk.new_client()
            await desk.client.heartbeat("c1", producer="pg")
            await other.heartbeat("c2", producer="pg")
            body = await desk.client.json(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "pg"})
            assert {c["clientId"] for c in body["connectionSet"]} == {"c1", "c2"}
            await desk.client.ok(RequestCode.UNREGISTER_CLIENT, {"clientID": "c1", "producerGroup": "pg"})
            assert [member.client_id for member in desk.broker.producers.group("pg")] == ["c2"]
            await other.cut()
            await until(lambda: not desk.broker.producers.group("pg"))
            answer = await desk.client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "pg"})
            assert answer.code == 1 and "[pg]" in (answer.remark or "")

    run(work())


def test_leaving_is_told_to_the_others(tmp_path: Path) -> None:
    """S1-11: request 35 removes the member and notifies the rest, even where nothing was removed."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            stays, leaves = desk.client, desk.new_client()
            await stays.heartbeat("c1", group="g")
            await leaves.heartbeat("c2", group="g")
            assert await _told(stays) == 2
            for times in (3, 4):
                await leaves.ok(RequestCode.UNREGISTER_CLIENT, {"clientID": "c2", "consumerGroup": "g"})
                assert await _told(stays) == times
                assert await stays.members("g") == ["c1"]
            assert await _told(leaves) == 1, "who has left is not told"

    run(work())


def test_broken_connection_is_told_to_the_others(tmp_path: Path) -> None:
    """S1-12."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            stays, dies = desk.client, desk.new_client()
            await stays.heartbeat("c1", group="g")
            await dies.heartbeat("c2", group="g")
            await dies.cut()
            await stays.heard_code(NOTICE, 3)
            assert await stays.members("g") == ["c1"]

    run(work())


def test_silent_clients_are_dropped_without_a_notice(tmp_path: Path) -> None:
    """Older than 120 s: out of the table, connection closed; the others notice at their own rebalance."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            stays, silent = desk.client, desk.new_client()
            await stays.heartbeat("c1", group="g", producer="pg")
            await silent.heartbeat("c2", group="g", producer="pg")
            connection = await silent.channel()
            clock.advance(120)
            await stays.heartbeat("c1", group="g", producer="pg")
            desk.broker._expire_clients()
            assert len(await stays.members("g")) == 2, "120 s exactly is not yet too long"
            clock.advance(0.001)
            desk.broker._expire_clients()
            assert await stays.members("g") == ["c1"]
            assert [member.client_id for member in desk.broker.producers.group("pg")] == ["c1"]
            await connection.wait_closed()
            await turns()
            assert await _told(stays) == 2

    run(work())


def test_a_member_that_misses_three_signs_of_life_is_taken_out_and_the_group_is_told(tmp_path: Path) -> None:
    """Its connection stays; the next heartbeat makes it a member again and is answered with what happened."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            java, hangs = desk.client, desk.new_client()
            assert fields(await java.heartbeat("c1", group="g")) == {}
            answer = await hangs.heartbeat("c2", group="g", producer="pg", liveness_ms=3000)
            assert fields(answer) == {"livenessMillis": "3000"}

            def pass_seconds(count: int) -> None:
                for _ in range(count):
                    clock.advance(1.0)
                    desk.broker._expel_silent()

            pass_seconds(9)
            assert await java.members("g") == ["c1", "c2"]
            told = await _told(java)
            pass_seconds(1)
            assert await java.members("g") == ["c1"]
            assert await _told(java) == told + 1
            pass_seconds(100)
            assert await java.members("g") == ["c1"], "who said nothing of signs of life has 120 s"
            assert not (await hangs.channel()).closed
            answer = await hangs.heartbeat("c2", group="g", liveness_ms=3000)
            assert fields(answer) == {"livenessMillis": "3000", "expelledGroups": "g=1"}
            assert await java.members("g") == ["c1", "c2"]
            assert await _told(java) == told + 2
            answer = await hangs.heartbeat("c2", group="g", liveness_ms=3000)
            assert fields(answer)["expelledGroups"] == "g=1", "the answer before may have been lost"
            pass_seconds(10)
            answer = await hangs.heartbeat("c2", group="g", liveness_ms=3000)
            assert fields(answer)["expelledGroups"] == "g=2"

    run(work())


def test_a_broker_that_was_asleep_itself_takes_nobody_for_hung(tmp_path: Path) -> None:
    """What was sent meanwhile has not been read yet."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.client.heartbeat("c1", group="g", liveness_ms=1)
            clock.advance(60)
            desk.broker._expel_silent()
            assert await desk.client.members("g") == ["c1"]
            for _ in range(4):  # one second is the shortest interval that is agreed to
                clock.advance(1.0)
                desk.broker._expel_silent()
            assert desk.broker.consumers.group("g") is None

    run(work())


def test_short_heartbeats_keep_the_subscriptions(tmp_path: Path) -> None:
    """Heartbeat V2: withoutSub refreshes the member and leaves the topics alone."""

    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.client.heartbeat(group="g", topics={"T": "a"})
            clock.advance(100)
            assert (await desk.client.heartbeat(group="g", without_sub=True)).code == 0
            group = desk.broker.consumers.group("g")
            assert group is not None and set(group.subscriptions) == {"T"}
            assert [member.last_seen for member in group.members.values()] == [1100.0]
            assert await _told(desk.client) == 1
            other = desk.new_client()
            await other.heartbeat("c2", group="g", without_sub=True)
            assert await _told(desk.client) == 2, "a new connection is a change all the same"
            assert set(group.subscriptions) == {"T"}

    run(work())


def test_group_without_members(tmp_path: Path) -> None:
    """S2-07."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            answer = await desk.client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
            assert (answer.code, answer.remark) == (1, "no consumer for this group, g")

    run(work())


def test_connections_of_a_group(tmp_path: Path) -> None:
    """S1-14: per member id, address, language and version; per topic the expression; type, model, start."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.client.heartbeat(
                group="g",
                topics={"T": "a || b"},
                consume_type="CONSUME_ACTIVELY",
                message_model="BROADCASTING",
                consume_from_where="CONSUME_FROM_TIMESTAMP",
            )
            body = await desk.client.json(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
            (connection,) = body["connectionSet"]
            transport = (await desk.client.channel())._transport
            assert transport is not None
            host, port = transport.get_extra_info("sockname")
            assert connection == {
                "clientId": "c1",
                "clientAddr": f"{host}:{port}",
                "language": "JAVA",
                "version": OUR_VERSION,
            }
            assert body["subscriptionTable"]["T"]["subString"] == "a || b"
            assert body["consumeType"] == "CONSUME_ACTIVELY"
            assert body["messageModel"] == "BROADCASTING"
            assert body["consumeFromWhere"] == "CONSUME_FROM_TIMESTAMP"
            # Every heartbeat overwrites them.
            await desk.client.heartbeat(group="g", topics={"T": "a || b"})
            body = await desk.client.json(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
            assert (body["consumeType"], body["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")

    run(work())


def test_check_of_a_subscription(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:

            async def check(kind: str, expression: str) -> tuple[int, str]:
                wanted = Subscription(topic="T", expression_type=kind, sub_string=expression)
                body = CheckClientConfig(client_id="c", group="g", subscription_data=wanted).dump()
                answer = await desk.client.ask(RequestCode.CHECK_CLIENT_CONFIG, None, body)
                return answer.code, answer.remark or ""

            assert (await check("TAG", "a || b"))[0] == 0
            code, remark = await check("SQL92", "a > 1")
            assert code == 1 and "SQL92" in remark
            code, remark = await check("TAG", "||")
            assert code == ResponseCode.SUBSCRIPTION_PARSE_FAILED and "'||'" in remark

    run(work())


@pytest.mark.parametrize("body", [b"", b"not json", b"[1]", b'{"consumerDataSet":5}'])
def test_heartbeat_that_is_none_is_refused(tmp_path: Path, body: bytes) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            answer = await desk.client.ask(RequestCode.HEART_BEAT, None, body)
            assert answer.code == ResponseCode.SYSTEM_ERROR and answer.remark
            assert (await desk.client.heartbeat(group="g")).code == 0

    run(work())


def test_one_connection_in_two_groups_leaves_both(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            dies = desk.new_client()
            await dies.heartbeat(group="g")
            await dies.heartbeat(group="h", producer="pg")
            await dies.cut()
            await until(lambda: not desk.broker.consumers.groups() and not desk.broker.producers.groups())

    run(work())
