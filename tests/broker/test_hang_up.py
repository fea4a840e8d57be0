"""Whoever asks for a change may hang up: the change is made as a whole."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from gimbalmq.protocol import fastjson
from gimbalmq.protocol.codes import RequestCode as Code
from gimbalmq.protocol.command import RemotingCommand
from tests.broker.desk import Desk, open_desk, topic_fields
from tests.support import run, until

MANY = 1000
"""More than is done in one turn of the loop."""

ANSWERS = {
    Code.QUERY_MESSAGE,
    Code.GET_ALL_TOPIC_CONFIG,
    Code.GET_TOPIC_STATS_INFO,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    Code.GET_CONSUME_STATS,
    Code.GET_BROKER_CONSUME_STATS,
    Code.QUERY_CONSUME_TIME_SPAN,
    Code.GET_ALL_CONSUMER_OFFSET,
    Code.GET_TIMER_METRICS,
    Code.GET_ALL_MESSAGE_REQUEST_MODE,
    Code.QUERY_CORRECTION_OFFSET,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    Code.GET_CONSUMER_RUNNING_INFO,
    Code.CONSUME_MESSAGE_DIRECTLY,
}
"""Requests that take several turns and change nothing."""


def _topics(count: int) -> bytes:
    configs = [
        {"topicName": f"T{number}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        for number in range(count)
    ]
    return fastjson.dumps({"topicConfigList": configs})


def _groups(count: int) -> bytes:
    return fastjson.dumps({"groupConfigList": [{"groupName": f"g{number}"} for number in range(count)]})


def _is_reset(desk: Desk) -> bool:
    return all(desk.broker.offsets.get("g", "Wide", queue) == 0 for queue in range(MANY))


CHANGES: dict[int, tuple[dict[str, str], bytes, Callable[[Desk], bool]]] = {
    Code.UPDATE_AND_CREATE_TOPIC: (topic_fields("New"), b"", lambda desk: "New" in desk.broker.topics),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: (
        {},
        _topics(MANY),
        lambda desk: all(f"T{number}" in desk.broker.topics for number in range(MANY)),
    ),
    Code.DELETE_TOPIC_IN_BROKER: (
        {"topic": "Wide"},
        b"",
        lambda desk: (
            "Wide" not in desk.broker.topics and not (desk.folder / "consumequeue" / "Wide").exists()
        ),
    ),
    Code.CLEAN_UNUSED_TOPIC: ({}, b"", lambda desk: set(desk.broker.store.topics()) <= {"Wide"}),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (
        {},
        fastjson.dumps({"groupName": "new"}),
        lambda desk: desk.broker.groups.known("new") is not None,
    ),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: (
        {},
        _groups(MANY),
        lambda desk: all(desk.broker.groups.known(f"g{number}") for number in range(MANY)),
    ),
    Code.DELETE_SUBSCRIPTIONGROUP: (
        {"groupName": "g", "cleanOffset": "true"},
        b"",
        lambda desk: desk.broker.groups.known("g") is None and not desk.broker.offsets.topics_of("g"),
    ),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: (
        {"group": "g", "topic": "Wide", "readable": "false"},
        b"",
        lambda desk: not desk.broker.groups.may_read("g", "Wide"),
    ),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: (
        {"group": "g", "topic": "Wide", "timestamp": "0", "isForce": "true"},
        b"",
        _is_reset,
    ),
    Code.CLONE_GROUP_OFFSET: (
        {"srcGroup": "g", "destGroup": "h", "topic": ""},
        b"",
        lambda desk: len(desk.broker.offsets.topics_of("h")) == MANY + 1,
    ),
    Code.UPDATE_BROKER_CONFIG: (
        {},
        b"brokerRole=SLAVE\nbrokerId=1\n",
        lambda desk: (desk.folder / "config" / "role.json").exists(),
    ),
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: ({}, b"", lambda desk: True),
    Code.DELETE_EXPIRED_COMMITLOG: ({}, b"", lambda desk: True),
}


ACCOUNTS = {
    Code.UPDATE_AND_CREATE_ACL_CONFIG,
    Code.DELETE_ACL_CONFIG,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
}
"""This broker has none; tests/access/test_plain_accounts.py cancels changes of a broker that has."""


@pytest.mark.parametrize("code", CHANGES, ids=lambda code: Code(code).name)
def test_change_is_whole_though_who_asked_hangs_up(tmp_path: Path, code: int) -> None:
    ext, body, is_done = CHANGES[code]

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            broker = desk.broker
            await desk.create("Wide", queues=MANY)
            await desk.client.send("Wide")
            for name in "gh":
                broker.groups.find(name)
            for queue in range(MANY):
                broker.offsets.commit("g", "Wide", queue, 1)
            if code == Code.CLONE_GROUP_OFFSET:
                await desk.client.ok(Code.UPDATE_AND_CREATE_TOPIC_LIST, {}, _topics(MANY))
                for number in range(MANY):
                    broker.offsets.commit("g", f"T{number}", 0, 1)
            if code == Code.CLEAN_UNUSED_TOPIC:
                for number in range(MANY):
                    broker.store.queue(f"orphan{number}", 0)
            hasty = desk.new_client()
            channel = await hasty.channel()
            channel.oneway(RemotingCommand(code, ext, body))
            await until(lambda: broker.load.in_flight)
            channel.abort()
            await until(lambda: not broker.load.in_flight)
            assert is_done(desk)

    run(work())


def test_whatever_takes_several_turns_completes_or_only_answers(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            handlers = desk.broker.handlers
            long = {
                code
                for code, handler in handlers.by_code.items()
                if inspect.iscoroutinefunction(inspect.unwrap(handler))
            }
            kept = {code for code in long if handlers.owner_of(code, set()) is handlers.owner_of(17, set())}
            assert long - kept == ANSWERS
            assert kept == CHANGES.keys() | ACCOUNTS

    run(work())
