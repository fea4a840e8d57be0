"""Ways around the front door: messages by their place, retry topics, and names that anybody can give himself."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq.access.policies import Acl, Action, Decision, Entry, Policy, PolicyType, Resource
from gimbalmq.access.users import User
from gimbalmq.model.ids import parse_offset_id
from gimbalmq.model.topics import retry_topic
from gimbalmq.protocol.codes import RequestCode as Code
from gimbalmq.protocol.codes import ResponseCode
from gimbalmq.protocol.signing import Signer
from tests.broker.desk import Answer, Client, Desk, fields, open_desk
from tests.support import ManualClock, run

REFUSED = ResponseCode.NO_PERMISSION
KEYS = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": json.dumps({"username": "admin", "password": "secret-of-admin"}),
    "authFailureDelayMillis": 0,
}


def _place(answer: Answer) -> int:
    assert answer.code == 0, answer
    return parse_offset_id(fields(answer)["msgId"]).commitlog_offset


class House:
    """Two users with a topic and a group each: alice has ``alices`` and ``group-of-alice``, mallory the same of his."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.alice, self.mallory, self.admin = (
            desk.new_client(Signer(name, f"secret-of-{name}")) for name in ("alice", "mallory", "admin")
        )

    async def furnish(self) -> None:
        table = self.desk.broker.access.table
        assert table is not None
        actions = frozenset({Action.PUB, Action.SUB, Action.GET})
        for name, client in (("alice", self.alice), ("mallory", self.mallory)):
            await table.create_user(User(name, f"secret-of-{name}"))
            entries = tuple(
                Entry(Resource.parse(text), actions, Decision.ALLOW)
                for text in (f"Topic:{name}s", f"Group:group-of-{name}")
            )
            await table.merge_acl(Acl(name, (Policy(PolicyType.CUSTOM, entries),)))
            await self.admin.ok(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, _group(f"group-of-{name}"))
            assert (
                await client.heartbeat(name, group=f"group-of-{name}", topics={f"{name}s": "*"})
            ).code == 0


def _group(name: str) -> bytes:
    return json.dumps({"groupName": name}).encode()


@asynccontextmanager
async def house(folder: Path, clock: Clock = SYSTEM_CLOCK, **more: object) -> AsyncIterator[House]:
    async with open_desk(folder, clock, **KEYS, **more) as desk:
        found = House(desk)
        await found.furnish()
        yield found


def test_a_message_is_seen_by_those_who_may_read_its_topic(tmp_path: Path) -> None:
    async def work() -> None:
        async with house(tmp_path) as at:
            plain = _place(await at.alice.send("alices"))
            delayed = _place(await at.alice.send("alices", properties={"DELAY": "18"}))
            half = _place(await at.alice.send("alices", properties={"TRAN_MSG": "true", "PGROUP": "p"}))
            for place in (plain, delayed, half):
                asked = {"offset": f"{place}"}
                assert (await at.alice.ask(Code.VIEW_MESSAGE_BY_ID, asked)).code == 0
                for named in (asked, asked | {"topic": "mallorys"}):
                    answer = await at.mallory.ask(Code.VIEW_MESSAGE_BY_ID, named)
                    assert (answer.code, len(answer.body)) == (REFUSED, 0)
                    assert "Topic:alices" in (answer.remark or "")
            missing = await at.mallory.ask(Code.VIEW_MESSAGE_BY_ID, {"offset": f"{1 << 40}"})
            assert missing.code == ResponseCode.SYSTEM_ERROR and "can not find" in (missing.remark or "")

    run(work())


def test_raw_records_are_for_those_who_may_look_at_the_cluster(tmp_path: Path) -> None:
    """A slave compares its log by them: also by records of topics that were deleted, which nobody has rights to."""

    async def work() -> None:
        async with house(tmp_path) as at:
            raw = {"offset": f"{_place(await at.alice.send('alices'))}", "raw": "true"}
            await at.admin.ok(Code.DELETE_TOPIC_IN_BROKER, {"topic": "alices"})
            for client in (at.alice, at.mallory):
                answer = await client.ask(Code.VIEW_MESSAGE_BY_ID, raw)
                assert (answer.code, len(answer.body)) == (REFUSED, 0)
            assert (await at.admin.ok(Code.VIEW_MESSAGE_BY_ID, raw)).body

    run(work())


def test_nobody_has_anothers_message_sent_back_or_handed_over_to_himself(tmp_path: Path) -> None:
    async def work() -> None:
        async with house(tmp_path) as at:
            sent = await at.alice.send("alices")
            back = {"offset": f"{_place(sent)}", "delayLevel": "-1", "originTopic": "mallorys"}
            direct = {"msgId": fields(sent)["msgId"], "topic": "mallorys", "clientId": ""}
            before = at.desk.broker.store.max_commitlog_offset
            for code, asked in (
                (Code.CONSUMER_SEND_MSG_BACK, {**back, "group": "group-of-mallory"}),
                (Code.CONSUMER_SEND_MSG_BACK, {**back, "group": "group-of-alice"}),
                (Code.CONSUME_MESSAGE_DIRECTLY, {**direct, "consumerGroup": "group-of-mallory"}),
                (Code.CONSUME_MESSAGE_DIRECTLY, {**direct, "consumerGroup": "group-of-alice"}),
            ):
                assert (await at.mallory.ask(code, asked)).code == REFUSED, asked
            await at.mallory.pool.oneway(
                at.desk.broker.address,
                _command(Code.CONSUMER_SEND_MSG_BACK, {**back, "group": "group-of-mallory"}),
            )
            assert (await at.mallory.ask(Code.VIEW_MESSAGE_BY_ID, {"offset": "0"})).code == REFUSED
            assert at.desk.broker.store.max_commitlog_offset == before
            assert not [one for one in at.mallory.heard if one.code == Code.CONSUME_MESSAGE_DIRECTLY]
            await at.alice.ok(Code.CONSUMER_SEND_MSG_BACK, {**back, "group": "group-of-alice"})
            assert len(at.desk.messages("%DLQ%group-of-alice")) == 1

    run(work())


def test_a_retry_topic_is_its_groups(tmp_path: Path) -> None:
    async def work() -> None:
        async with house(tmp_path) as at:
            topic = retry_topic("group-of-alice")
            # A consumer of Java's sends there itself, under a name that all of them have.
            own = await at.alice.send(topic, producerGroup="CLIENT_INNER_PRODUCER")
            assert own.code == 0, own
            for group in ("group-of-mallory", "CLIENT_INNER_PRODUCER", "group-of-alice"):
                assert (await at.mallory.send(topic, producerGroup=group)).code == REFUSED
                assert (await at.mallory.pull(topic, group=group)).code == REFUSED
            assert (await at.alice.pull(topic, group="group-of-alice")).code == 0
            for code in (Code.QUERY_CONSUMER_OFFSET, Code.UPDATE_CONSUMER_OFFSET):
                asked = {
                    "consumerGroup": "group-of-mallory",
                    "topic": topic,
                    "queueId": "0",
                    "commitOffset": "1",
                }
                assert (await at.mallory.ask(code, asked)).code == REFUSED
            clone = {"srcGroup": "group-of-alice", "destGroup": "group-of-mallory", "topic": "mallorys"}
            assert (await at.mallory.ask(Code.CLONE_GROUP_OFFSET, clone)).code == REFUSED

    run(work())


def _command(code: int, asked: dict[str, str]) -> Answer:
    return Answer(code, asked)


def test_transactions_are_their_producers_business(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with house(tmp_path, clock, transactionCheckInterval=3_600_000, transactionTimeOut=6000) as at:
            half = await at.alice.send(
                "alices",
                b"the secret",
                properties={"TRAN_MSG": "true", "PGROUP": "p"},
                bornTimestamp=clock.wall,
            )
            end = {
                "producerGroup": "p",
                "tranStateTableOffset": fields(half)["queueOffset"],
                "commitLogOffset": f"{_place(half)}",
                "commitOrRollback": "8",
                "topic": "mallorys",
            }
            assert (await at.mallory.ask(Code.END_TRANSACTION, end)).code == REFUSED
            assert not at.desk.bodies("alices")
            # Anybody may say that he is a producer of this group.
            assert (await at.mallory.heartbeat("m", producer="p")).code == 0
            for seconds in (10, 20):
                clock.advance(seconds)
                await at.desk.broker.transactions.check()
            assert (await at.alice.heartbeat("a", producer="p")).code == 0
            clock.advance(30)
            await at.desk.broker.transactions.check()
            heard = {}
            for client in (at.alice, at.mallory):
                # Answered after what was sent to this client before.
                await client.ok(Code.CHECK_CLIENT_CONFIG, {}, b'{"subscriptionData":{"subString":"*"}}')
                heard[client] = [one for one in client.heard if one.code == Code.CHECK_TRANSACTION_STATE]
            assert not heard[at.mallory]
            (asked,) = heard[at.alice]
            assert b"the secret" in bytes(asked.body)

    run(work())


def test_nobody_takes_back_anothers_timers(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with house(tmp_path, clock) as at:

            async def timer(client: Client, topic: str, body: bytes, **properties: str) -> None:
                due = {"TIMER_DELIVER_MS": f"{clock.wall + 5000}", **properties}
                assert (await client.send(topic, body, properties=due)).code == 0

            for key in ("a", "b", "c"):
                await timer(at.alice, "alices", key.encode(), UNIQ_KEY=key)
            for key in ("a", "alices+b", "mallorys+a"):
                await timer(at.mallory, "mallorys", b"back", TIMER_DEL_UNIQKEY=key)
            await timer(at.alice, "alices", b"back", TIMER_DEL_UNIQKEY="alices+c")
            clock.advance(5)
            while at.desk.broker.timers.tick():
                pass
            assert at.desk.bodies("alices") == [b"a", b"b"]

    run(work())


def test_replies_go_to_the_client_that_asked_and_not_to_one_of_its_name(tmp_path: Path) -> None:
    async def work() -> None:
        async with house(tmp_path) as at:
            assert (await at.alice.heartbeat("a", producer="p")).code == 0
            taken = await at.mallory.heartbeat("a", producer="q")
            assert taken.code == REFUSED and "another user" in (taken.remark or "")
            again = at.desk.new_client(Signer("alice", "secret-of-alice"))
            assert (await again.heartbeat("a", producer="q")).code == 0  # a second connection of hers
            await at.alice.close()
            await again.close()
            other: Client = at.mallory
            while (await other.heartbeat("a", producer="q")).code == REFUSED:
                pass  # the broker has not noticed yet that she is gone

    run(work())


def test_a_client_does_not_learn_the_signature_of_who_asks_for_it(tmp_path: Path) -> None:
    """It chooses its own id, so it would choose what an administrator signs; and codes are not signed."""

    async def work() -> None:
        async with house(tmp_path) as at:
            at.mallory.answers = {307: b"{}", 309: b"{}", 221: b"{}"}
            sent = await at.mallory.send("mallorys")
            named = {"consumerGroup": "group-of-mallory", "clientId": "mallory"}
            await at.admin.ok(Code.GET_CONSUMER_RUNNING_INFO, named)
            await at.admin.ok(Code.CONSUME_MESSAGE_DIRECTLY, named | {"msgId": fields(sent)["msgId"]})
            asked = {"group": "group-of-mallory", "topic": "mallorys"}
            await at.admin.ok(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, asked)
            heard = {one.code: fields(one) for one in at.mallory.heard}
            assert {221, 307, 309} <= heard.keys()
            assert heard[307] == named
            for told in heard.values():
                assert not {"AccessKey", "Signature", "SecurityToken"} & told.keys()

    run(work())


@pytest.mark.parametrize("rules", ["strict", "apache"])
def test_apaches_rules_leave_these_ways_open(tmp_path: Path, rules: str) -> None:
    """They are a choice, and this is what it means."""

    async def work() -> None:
        async with house(tmp_path, authorizationRules=rules) as at:
            place = _place(await at.alice.send("alices"))
            back = {"offset": f"{place}", "delayLevel": "-1", "group": "group-of-mallory"}
            codes = [
                (await at.mallory.ask(Code.VIEW_MESSAGE_BY_ID, {"offset": f"{place}"})).code,
                (await at.mallory.ask(Code.CONSUMER_SEND_MSG_BACK, back)).code,
                (await at.mallory.ask(Code.GET_BROKER_CONFIG)).code,
                (await at.mallory.pull("alices", group="group-of-mallory", code=Code.LITE_PULL_MESSAGE)).code,
            ]
            assert codes == [REFUSED if rules == "strict" else 0] * 4
            if rules == "apache":
                shown = bytes((await at.mallory.ask(Code.GET_BROKER_CONFIG)).body)
                assert b"secret-of" not in shown

    run(work())


def test_nobody_keeps_consumers_out_of_their_group_by_taking_their_client_id(tmp_path: Path) -> None:
    """Every consumer of Java's is a producer, too, and its id may be no more than its address and a number."""

    async def work() -> None:
        async with house(tmp_path) as at:
            assert (await at.mallory.heartbeat("10.0.0.5@1", producer="p")).code == 0
            beat = await at.alice.heartbeat(
                "10.0.0.5@1", group="group-of-alice", topics={"alices": "*"}, producer="CLIENT_INNER_PRODUCER"
            )
            assert beat.code == REFUSED
            assert await at.alice.members("group-of-alice") == ["10.0.0.5@1"]
            assert not at.desk.broker.producers.group("CLIENT_INNER_PRODUCER")

    run(work())
