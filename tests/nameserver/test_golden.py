"""Requests that Apache's programs sent to a Java name server, sent to ours over a socket.

Addresses, topics and counts differ with the scene; codes, keys and types may not.
"""

from __future__ import annotations

from typing import Any

import pytest

from gimbalmq.nameserver import NameServer, NameServerConfig
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.serializers import decode_command
from gimbalmq.transport.channel import Channel
from gimbalmq.transport.pool import ChannelPool
from tests.golden.frames import Exchange, decode, exchanges, one_frame
from tests.nameserver.broker_double import one_topic
from tests.support import run

FOR_US = [exchange for exchange in exchanges() if exchange.receiver == "namesrv"]
(REGISTRATION,) = [exchange for exchange in FOR_US if exchange.code == RequestCode.REGISTER_BROKER]


async def ask(channel: Channel, exchange: Exchange) -> RemotingCommand:
    return await channel.call(decode_command(*one_frame(exchange.request)), 5.0)


async def scene(channel: Channel, exchange: Exchange) -> None:
    """Brings a name server to where Java's was: registered, and the topics of answered routes there."""
    registration = await ask(channel, REGISTRATION)
    assert registration.code == 0
    wanted = decode(exchange.request)
    java = None if exchange.response is None else decode(exchange.response)
    if wanted.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and java is not None and java.code == 0:
        assert wanted.ext_fields is not None
        topic = wanted.ext_fields["topic"]
        if topic != "TBW102":
            update = decode_command(*one_frame(REGISTRATION.request))
            assert update.ext_fields is not None
            update.ext_fields = {**update.ext_fields, "bodyCrc32": "0"}
            table = {
                name: {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4}
                for name in one_topic(topic)
            }
            update.body = fastjson.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": table}})
            assert (await channel.call(update, 5.0)).code == 0


def shape(value: Any) -> Any:
    """Keys and types; of a list only its first item's."""
    if isinstance(value, dict):
        if all(isinstance(item, str) for item in value.values()) and value:
            return dict.fromkeys(value, "str")
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


@pytest.mark.parametrize("exchange", FOR_US, ids=str)
def test_our_answer_has_the_shape_of_java_s(exchange: Exchange) -> None:
    async def work() -> RemotingCommand:
        async with NameServer(NameServerConfig(listen_port=0)) as server:
            pool = ChannelPool()
            channel = await pool.channel(server.address)
            await scene(channel, exchange)
            answer = await ask(channel, exchange)
            await pool.close()
            return answer

    answer = run(work())
    request = decode(exchange.request)
    if exchange.response is None:
        assert answer.code == 0
        assert b"listenPort=" in bytes(answer.body)
        return
    java = decode(exchange.response)
    assert answer.code == java.code
    assert answer.remark == java.remark
    assert answer.serialize_type == request.serialize_type
    assert shape(dict(answer.ext_fields or {})) == shape(dict(java.ext_fields or {}))
    assert bool(answer.body) == bool(java.body)
    if java.body:
        ours, theirs = fastjson.loads(bytes(answer.body)), fastjson.loads(bytes(java.body))
        assert shape(ours) == shape(theirs)
        assert list(ours) == list(theirs)
    if exchange.code in (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO):
        assert bytes(answer.body) == bytes(java.body)
