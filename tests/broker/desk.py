"""A real broker on a free port, and clients that speak raw requests to it over the loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq.broker.broker import Broker
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.model import properties as prop
from gimbalmq.model.record import Record, decode_record, iter_records
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.bodies import ConsumerData, Heartbeat, ProducerData, Subscription
from gimbalmq.protocol.codes import OUR_VERSION, RequestCode
from gimbalmq.protocol.command import JSON_HEADER, RemotingCommand
from gimbalmq.protocol.signing import Signer
from gimbalmq.testing.cluster import SMALL
from gimbalmq.transport.channel import Channel, Handlers
from gimbalmq.transport.pool import ChannelPool
from tests.support import until

SECONDS = 5.0

Answer = RemotingCommand


def broker_config(folder: Path, **properties: object) -> BrokerConfig:
    texts = {key: str(v).lower() if isinstance(v, bool) else str(v) for key, v in properties.items()}
    keys = {**SMALL, "listenPort": "0", "storePathRootDir": str(folder), **texts}
    config, unknown = BrokerConfig.from_properties(keys)
    assert not unknown, unknown
    return config


class Client:
    """One connection to a broker; notes the requests the broker sends over it."""

    def __init__(self, desk: Desk, signer: Signer | None = None) -> None:
        self._desk = desk
        self.heard: list[RemotingCommand] = []
        self.answers: dict[int, bytes] = {}
        """Bodies to answer the broker's requests with, by code."""
        handlers = Handlers(answer_unknown=False)
        for code in (39, 40, 220, 221, 307, 309, 326):
            handlers.add(code, self._note)
        self.pool = ChannelPool(handlers, signer=signer)

    def _note(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        self.heard.append(request)
        if request.code in self.answers:
            return request.reply(0, None, None, self.answers[request.code])
        return None

    async def heard_code(self, code: int, count: int = 1) -> list[RemotingCommand]:
        """Waits until the broker has sent so many requests of a code."""
        await until(lambda: sum(request.code == code for request in self.heard) >= count)
        return [request for request in self.heard if request.code == code]

    async def channel(self) -> Channel:
        return await self.pool.channel(self._desk.broker.address)

    async def call(self, request: RemotingCommand, seconds: float = SECONDS) -> Answer:
        return await self.pool.call(self._desk.broker.address, request, seconds)

    async def ask(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        version: int = OUR_VERSION,
        encoding: int = JSON_HEADER,
    ) -> Answer:
        return await self.call(
            RemotingCommand(code, ext, body, version=version, serialize_type=encoding, language="JAVA")
        )

    async def ok(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> Answer:
        answer = await self.ask(code, ext, body)
        assert answer.code == 0, answer
        return answer

    async def json(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> Any:
        return fastjson.loads(bytes((await self.ok(code, ext, body)).body), limit=None)

    async def tell(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """A one-way request, and then one that is answered, so that the first has been served."""
        await self.pool.oneway(self._desk.broker.address, RemotingCommand(code, ext, body))
        await self.ok(28)

    async def send(
        self,
        topic: str = "T",
        body: bytes = b"body",
        *,
        queue_id: int = 0,
        properties: Mapping[str, str] | None = None,
        text: str | None = None,
        code: int = RequestCode.SEND_MESSAGE_V2,
        encoding: int = JSON_HEADER,
        **fields: object,
    ) -> Answer:
        """One message; with the defaults it takes the fast way once its topic is there."""
        ext = send_fields(topic, queue_id, properties, text, **fields)
        if code == RequestCode.SEND_MESSAGE:
            ext = {V1_NAMES[key]: value for key, value in ext.items()}
        return await self.ask(code, ext, body, encoding=encoding)

    async def pull(
        self,
        topic: str = "T",
        queue_id: int = 0,
        offset: int = 0,
        *,
        group: str = "g",
        flags: int = 4,
        count: int = 32,
        expression: str | None = "*",
        suspend_ms: int = 0,
        commit: int = 0,
        sub_version: int = 0,
        code: int = RequestCode.PULL_MESSAGE,
        **more: str,
    ) -> Answer:
        return await self.ask(
            code,
            pull_fields(
                topic, queue_id, offset, group, flags, count, expression, suspend_ms, commit, sub_version
            )
            | more,
        )

    async def heartbeat(
        self,
        client_id: str = "c1",
        *,
        group: str | None = None,
        topics: Mapping[str, str] | None = None,
        producer: str | None = None,
        sub_version: int = 1,
        without_sub: bool = False,
        liveness_ms: int | None = None,
        **data: Any,
    ) -> Answer:
        beat = Heartbeat(client_id=client_id, without_sub=without_sub)
        if group is not None:
            wanted = {"T": "*"} if topics is None else topics
            subscriptions = [
                Subscription(topic=topic, sub_string=expression, sub_version=sub_version)
                for topic, expression in wanted.items()
            ]
            beat.consumer_data_set.append(
                ConsumerData(
                    group_name=group, subscription_data_set=[] if without_sub else subscriptions, **data
                )
            )
        if producer is not None:
            beat.producer_data_set.append(ProducerData(group_name=producer))
        ext = None if liveness_ms is None else {"livenessMillis": str(liveness_ms)}
        return await self.ask(RequestCode.HEART_BEAT, ext, beat.dump())

    async def members(self, group: str) -> list[str]:
        body = await self.json(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
        ids: list[str] = body["consumerIdList"]
        return ids

    async def cut(self) -> None:
        """Breaks the connection as a crash or a cable would."""
        (await self.channel()).abort()

    async def close(self) -> None:
        await self.pool.close()


class Desk:
    """The broker under test and its clients."""

    def __init__(self, folder: Path, clock: Clock, properties: dict[str, object]) -> None:
        self.folder = folder
        self.clock = clock
        self.properties = properties
        self.clients: list[Client] = []
        self.client = self.new_client()

    def new_client(self, signer: Signer | None = None) -> Client:
        client = Client(self, signer)
        self.clients.append(client)
        return client

    async def start(self) -> None:
        self.broker = Broker(broker_config(self.folder, **self.properties), clock=self.clock)
        await self.broker.start()

    async def restart(self, **properties: object) -> None:
        """Closes the broker cleanly and starts it anew on its folder."""
        await self.broker.close()
        self.properties |= properties
        await self.start()

    async def create(self, topic: str = "T", queues: int = 4, **fields: object) -> None:
        await self.client.ok(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, queues, **fields))

    def messages(self, topic: str, queue_id: int = 0) -> list[Record]:
        """All messages of a queue, read behind the broker's back."""
        queue = self.broker.store.find_queue(topic, queue_id)
        if queue is None:
            return []
        raws = (
            self.broker.store.record_at_queue(topic, queue_id, offset)
            for offset in range(queue.min_offset, queue.max_offset)
        )
        return [decode_record(raw, check_crc=True) for raw in raws if raw is not None]

    def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        return [record.body for record in self.messages(topic, queue_id)]

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        await self.broker.close()


@asynccontextmanager
async def open_desk(folder: Path, clock: Clock = SYSTEM_CLOCK, **properties: object) -> AsyncIterator[Desk]:
    """A broker with RocketMQ's keys, alone: no name server."""
    desk = Desk(folder, clock, properties)
    await desk.start()
    try:
        yield desk
    finally:
        await desk.close()


V1_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
    "n": "bname",
}
_FIELDS = {name: key for key, name in V1_NAMES.items()}


def send_fields(
    topic: str,
    queue_id: int = 0,
    properties: Mapping[str, str] | None = None,
    text: str | None = None,
    **fields: object,
) -> dict[str, str]:
    """Ext-fields of 310; further ones by their long names."""
    if text is None:
        text = prop.dump({prop.UNIQ_KEY: "7F00000100002A9F", **(properties or {})})
    ext = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1", "h": "0"}
    ext["i"] = text
    for name, value in fields.items():
        ext[_FIELDS[name]] = str(value).lower() if isinstance(value, bool) else str(value)
    return ext


def pull_fields(
    topic: str,
    queue_id: int,
    offset: int,
    group: str = "g",
    flags: int = 4,
    count: int = 32,
    expression: str | None = "*",
    suspend_ms: int = 0,
    commit: int = 0,
    sub_version: int = 0,
) -> dict[str, str]:
    ext = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(count),
        "sysFlag": str(flags),
        "commitOffset": str(commit),
        "suspendTimeoutMillis": str(suspend_ms),
        "subVersion": str(sub_version),
    }
    if expression is not None:
        ext["subscription"] = expression
    return ext


def topic_fields(topic: str, queues: int = 4, **fields: object) -> dict[str, str]:
    """Ext-fields of 17."""
    ext = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
    }
    return ext | {key: str(v).lower() if isinstance(v, bool) else str(v) for key, v in fields.items()}


def pulled(answer: Answer) -> list[Record]:
    return list(iter_records(bytes(answer.body), check_crc=True))


def fields(answer: Answer) -> dict[str, str]:
    return dict(answer.ext_fields or {})


async def turns(count: int = 20) -> None:
    """Lets everything that is ready happen, sockets included."""
    for _ in range(count):
        await asyncio.sleep(0)
