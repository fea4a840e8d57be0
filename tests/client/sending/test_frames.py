"""Templates make the bytes that the long way makes."""

from __future__ import annotations

import pytest

from gimbalmq.client.config import ProducerConfig
from gimbalmq.client.sending.frames import SendFrames
from gimbalmq.client.sending.prepare import SEND, SEND_BATCH, Prepared
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.command import ONEWAY_FLAG, RemotingCommand
from gimbalmq.protocol.headers.messages import SendMessageV2
from gimbalmq.protocol.serializers import encode_frame

QUEUE = MessageQueue("T%d", "broker-a", 3)


def encoded(prepared: Prepared, queue: MessageQueue, opaque: int, flag: int) -> bytes:
    """The request, field by field."""
    fields = SendMessageV2(
        producer_group="g",
        topic=prepared.topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue.queue_id,
        sys_flag=prepared.sys_flag,
        born_timestamp=prepared.born_ms,
        flag=prepared.flag,
        properties=prepared.properties,
        reconsume_times=prepared.reconsume,
        unit_mode=False,
        max_reconsume_times=prepared.max_reconsume,
        batch=prepared.code == SEND_BATCH,
        bname=queue.broker_name,
        first_id_only=prepared.first_id_only,
    )
    return encode_frame(
        RemotingCommand(prepared.code, fields.to_ext(), prepared.body, opaque=opaque, flag=flag)
    )


@pytest.mark.parametrize("flag", [0, ONEWAY_FLAG])
def test_a_templates_frames_are_those_of_the_long_way(flag: int) -> None:
    frames = SendFrames(ProducerConfig(group="g", namesrv="127.0.0.1:9876"), None)
    other = MessageQueue("T%d", "broker-b", 0)
    for opaque, (code, queue, sys_flag, most, first_only) in enumerate(
        [
            (SEND, QUEUE, 0, None, None),
            (SEND_BATCH, QUEUE, 0, None, None),
            (SEND, other, 1, None, None),
            (SEND_BATCH, other, 0, None, True),
            (SEND_BATCH, other, 0, None, None),
            (SEND, QUEUE, 4, 16, None),
            (SEND, QUEUE, 0, None, None),
        ]
    ):
        prepared = Prepared(
            code, "T%d", b"body%d", 'a\x01"%d\n\x02é\x011\x02', sys_flag, 7, "id", 1790 + opaque
        )
        prepared.max_reconsume, prepared.first_id_only, prepared.reconsume = most, first_only, opaque
        assert frames.frame(prepared, queue, opaque, flag) == encoded(prepared, queue, opaque, flag)
