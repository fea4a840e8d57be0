"""What Apache's clients and mqadmin put on the wire, fed to a live broker of ours.

Every recorded request to a broker is sent as the bytes Java wrote, in the order recorded, and our
answer is held against Java's: response code, keys of the ext-fields, keys of a JSON body. Requests
36 and 37 name places in the commit log of Java's broker; those numbers alone are replaced.

The record keeps two examples of each exchange, not the whole scene. ``Scene.prepare`` makes up for
what is missing, mostly by bringing the queue in question to the length Java's answer reports.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gimbalmq.model.ids import parse_offset_id
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.frames import FrameReader
from gimbalmq.protocol.serializers import decode_command, encode_frame
from tests.broker.desk import Desk, fields, open_desk
from tests.golden.frames import Exchange, decode, exchanges
from tests.support import run, until

PULLS = (11, 361)

MISSING_FIELDS = {
    # A server that leaves these out gets plain heartbeats, which is what we understand best.
    34: {"IS_SUB_CHANGE", "IS_SUPPORT_HEART_BEAT_V2"},
    # Flags of a topic and a group that only Apache's proxy reads.
    11: {"groupSysFlag", "topicSysFlag"},
    361: {"groupSysFlag", "topicSysFlag"},
}
"""Ext-fields of Java's answers that ours do not have, by request code, with the reason."""

MISSING_PATHS = {
    # Java also lists groups that have nothing to show, with an empty list each.
    317: {".consumeStatsList[].*"},
}
"""Places in the JSON of Java's answers that ours do not have, by request code, with the reason."""

DYNAMIC = {
    "offsetTable",
    "subscriptionTable",
    "subscriptionGroupTable",
    "forbiddenTable",
    "attributes",
    "mqTable",
    "statusTable",
    "properties",
    "consumeStatsList[]",
}
"""JSON objects whose keys are data: queues, topics, groups."""


class Wire:
    """A bare socket: bytes out, commands in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FrameReader()

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self, opaque: int) -> RemotingCommand:
        while True:
            for frame in self._frames.feed(await self._reader.read(1 << 16)):
                command = decode_command(*frame)
                if command.is_response:
                    assert command.opaque == opaque
                    return command

    def close(self) -> None:
        self._writer.close()


class Scene:
    """A broker in the state a recorded exchange needs."""

    def __init__(self, desk: Desk, wire: Wire) -> None:
        self.desk = desk
        self.wire = wire

    async def fill(self, topic: str, queue_id: int, count: int, tag: str) -> None:
        """The queue anew, with exactly so many messages."""
        self.desk.broker.store.delete_topic(topic)
        self.desk.broker.topics.generation += 1
        for number in range(count):
            properties = {"TAGS": tag, "KEYS": f"k{number}"}
            answer = await self.desk.client.send(topic, queue_id=queue_id, properties=properties)
            assert answer.code == 0

    async def prepare(
        self, exchange: Exchange, request: RemotingCommand, java: RemotingCommand | None
    ) -> bytes:
        """Returns the bytes to send."""
        ext = dict(request.ext_fields or {})
        code, desk = exchange.code, self.desk
        if code in PULLS:
            told = fields(java) if java is not None else {}
            length = int(told.get("maxOffset", ext["queueOffset"]))
            unwanted = java is not None and java.code == 20
            await self.fill(ext["topic"], int(ext["queueId"]), length, "other" if unwanted else "red")
            group = desk.broker.consumers.group(ext["consumerGroup"])
            if group is not None and ext["topic"] in group.subscriptions:
                # 25 is what a client hears whose heartbeat has not come yet.
                late = java is not None and java.code == 25
                group.subscriptions[ext["topic"]].sub_version = int(ext["subVersion"]) - late
        elif code in (14, 30, 31, 29, 32) and java is not None and java.code == 0:
            await self.fill(ext["topic"], int(ext["queueId"]), 2, "red")
        elif code == 36:
            await self.fill(ext["originTopic"], 0, 1, "red")
            place = desk.messages(ext["originTopic"])[0].commitlog_offset
            return _changed(request, offset=place)
        elif code == 37:
            properties = {"TRAN_MSG": "true", "PGROUP": "scene_t"}
            half = fields(await desk.client.send("scene_t", b"half", properties=properties))
            place = parse_offset_id(half["msgId"]).commitlog_offset
            return _changed(request, commitLogOffset=place, tranStateTableOffset=half["queueOffset"])
        return exchange.request


def _changed(request: RemotingCommand, **numbers: object) -> bytes:
    request.ext_fields = dict(request.ext_fields or {}) | {key: str(value) for key, value in numbers.items()}
    return encode_frame(request)


def _paths(value: Any, at: str = "") -> set[str]:
    """Every place of a JSON document that holds something, with data keys written as ``*``."""
    if isinstance(value, dict) and value:
        dynamic = at.rpartition(".")[2] in DYNAMIC
        found: set[str] = set()
        for key, item in value.items():
            found |= _paths(item, f"{at}.{'*' if dynamic else key}")
        return found
    if isinstance(value, list) and value:
        return set().union(*(_paths(item, at + "[]") for item in value))
    return {at}


def _json(answer: RemotingCommand) -> Any:
    body = bytes(answer.body)
    return fastjson.loads(body) if body[:1] in (b"{", b"[") else None


def _compare(
    exchange: Exchange, request: RemotingCommand, ours: RemotingCommand, java: RemotingCommand
) -> list[str]:
    wrong = []
    if _is_answer_of_4_9(exchange, ours, java):
        return []
    if ours.code != java.code:
        wrong.append(f"{exchange}: code {ours.code} ({ours.remark}), Java said {java.code} ({java.remark})")
    wanted = set(fields(java)) - MISSING_FIELDS.get(exchange.code, set())
    if set(fields(ours)) != wanted:
        wrong.append(f"{exchange}: fields {sorted(fields(ours))}, Java has {sorted(wanted)}")
    if ours.serialize_type != request.serialize_type:
        # Java 5 answers JSON whatever it was asked in, 4.9 in the asker's encoding; that is always safe.
        wrong.append(f"{exchange}: not in the header encoding of the request")
    if bool(ours.body) != bool(java.body):
        wrong.append(f"{exchange}: a body of {len(ours.body)} bytes, Java's has {len(java.body)}")
    expected, found = _json(java), _json(ours)
    if expected is not None:
        more, less = _paths(found) - _paths(expected), _paths(expected) - _paths(found)
        less -= MISSING_PATHS.get(exchange.code, set())
        if more or less:
            wrong.append(f"{exchange}: body has {sorted(more)} and lacks {sorted(less)}")
    return wrong


def _is_answer_of_4_9(exchange: Exchange, ours: RemotingCommand, java: RemotingCommand) -> bool:
    """Whether ours is what 4.9 answers and 5.5.0, which was recorded, does not.

    S2-36: a new group is told 0 of a queue without messages; 5.1 and later answer 22.
    """
    return (
        exchange.code == RequestCode.QUERY_CONSUMER_OFFSET
        and java.code == ResponseCode.QUERY_NOT_FOUND
        and (ours.code, fields(ours)) == (ResponseCode.SUCCESS, {"offset": "0"})
    )


async def _play(desk: Desk, peers: str) -> list[str]:
    host, port = desk.broker.address.split(":")
    wire = Wire(*await asyncio.open_connection(host, int(port)))
    scene = Scene(desk, wire)
    wrong: list[str] = []
    try:
        for exchange in exchanges():
            if exchange.receiver != "broker" or exchange.peers != peers:
                continue
            request = decode(exchange.request)
            java = None if exchange.response is None else decode(exchange.response)
            data = await scene.prepare(exchange, request, java)
            held = len(desk.broker.long_poll)
            wire.write(data)
            if request.is_oneway:
                # Nothing comes back: whatever is asked next is answered next.
                continue
            waits = exchange.code in PULLS and int((request.ext_fields or {})["sysFlag"]) & 2
            if waits and (java is None or java.code == 19):
                await until(lambda held=held: len(desk.broker.long_poll) == held + 1)  # type: ignore[misc]
                desk.broker.long_poll.wake_all()
            ours = await wire.answer(request.opaque)
            if java is not None:
                wrong += _compare(exchange, request, ours, java)
            elif ours.code not in (0, 19):
                wrong.append(f"{exchange}: {ours}")
    finally:
        wire.close()
    return wrong


@pytest.mark.parametrize(
    "peers", ["client 5.5.0, JSON headers", "client 5.5.0, ROCKETMQ headers", "client 4.9.8, JSON headers"]
)
def test_requests_of_java_clients(tmp_path: Path, peers: str) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            topics = {
                (decode(exchange.request).ext_fields or {}).get("topic", "")
                for exchange in exchanges()
                if exchange.receiver == "broker" and exchange.peers == peers
            }
            scenes = sorted(topic for topic in topics if topic in ("sceneA", "sceneB", "sceneC"))
            wanted = dict.fromkeys([*scenes, "%RETRY%scene_c"], "*")
            await desk.client.heartbeat("c0", group="scene_c", topics=wanted)
            for topic in scenes:
                await desk.create(topic)
            # Another scene's message is sent back in this one.
            for topic in ("sceneA", "sceneB"):
                await desk.create(topic)
            # Queues are locked only where they exist, for groups that do.
            await desk.client.heartbeat("o0", group="scene_o")
            for scene in "ABC":
                await desk.create(f"scene_order{scene}")
            assert await _play(desk, peers) == []
            # One-way requests left their mark: two halves ended, one by commit and one by rollback.
            assert len(desk.messages("RMQ_SYS_TRANS_HALF_TOPIC")) == 2
            assert len(desk.messages("RMQ_SYS_TRANS_OP_HALF_TOPIC")) == 2

    run(work())


def test_requests_of_mqadmin(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, listenPort=0) as desk:
            await desk.create("sceneD")
            for member in ("c0D", "c1D"):
                client = desk.new_client()
                info = next(e for e in exchanges() if e.code == 307 and e.receiver == "broker")
                assert info.response is not None
                client.answers[307] = bytes(decode(info.response).body)
                subscriptions = {"sceneD": "red || green", "%RETRY%scene_c": "*"}
                await client.heartbeat(f"192.0.2.2@{member}", group="scene_c", topics=subscriptions)
            await desk.client.heartbeat("192.0.2.2@pD", producer="scene_p")
            for queue_id in range(4):
                for key in ("k0", "k1"):
                    await desk.client.send(
                        "sceneD", queue_id=queue_id, properties={"TAGS": "red", "KEYS": key}
                    )
                ext = {"consumerGroup": "scene_c", "topic": "sceneD", "queueId": str(queue_id)}
                await desk.client.ok(15, ext | {"commitOffset": "1"})
            assert await _play(desk, "mqadmin 5.5.0") == []

    run(work())


def test_no_recorded_request_is_left_out() -> None:
    played = {"client 5.5.0, JSON headers", "client 5.5.0, ROCKETMQ headers", "client 4.9.8, JSON headers"}
    played.add("mqadmin 5.5.0")
    assert {exchange.peers for exchange in exchanges() if exchange.receiver == "broker"} == played
