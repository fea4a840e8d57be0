"""Sends as bytes, and their answers as results."""

from __future__ import annotations

import msgspec

from gimbalmq.client.config import ProducerConfig
from gimbalmq.client.sending.prepare import SEND, SEND_BATCH, Prepared
from gimbalmq.errors import RemoteProtocolError, ResponseError
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import SendResult, SendStatus
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.messages import SendMessageV2
from gimbalmq.protocol.serializers import NUMBER, TEXT, encode_frame, header_template, join_frame
from gimbalmq.protocol.signing import Signer
from gimbalmq.rpc.messages import STORED

_encode = msgspec.json.Encoder().encode
_STATUS = {code: SendStatus(code) for code in STORED}


class SendFrames:
    """Makes the requests of one producer. Of fourteen fields a send, of one message or of a batch, changes five: those
    fill a template."""

    def __init__(self, config: ProducerConfig, signer: Signer | None) -> None:
        self._config = config
        self._signer = signer
        self._templates: dict[int, dict[MessageQueue, bytes]] = {SEND: {}, SEND_BATCH: {}}

    def frame(self, prepared: Prepared, chosen: MessageQueue, opaque: int, flag: int = 0) -> bytes:
        """The request as it leaves."""
        code = prepared.code
        templates = self._templates.get(code)
        if (
            templates is not None
            and prepared.max_reconsume is None
            and prepared.first_id_only is None
            and self._signer is None
        ):
            template = templates.get(chosen)
            if template is None:
                template = self._template(templates, prepared, chosen)
            header = template % (
                prepared.sys_flag,
                prepared.born_ms,
                prepared.flag,
                _encode(prepared.properties),
                prepared.reconsume,
                flag,
                opaque,
            )
            return join_frame(code, header, prepared.body)
        fields = self._fields(prepared, chosen)
        command = RemotingCommand(code, fields, prepared.body, opaque=opaque, flag=flag)
        if self._signer is not None:
            self._signer.sign(command)
        return encode_frame(command)

    def _template(
        self, templates: dict[MessageQueue, bytes], prepared: Prepared, chosen: MessageQueue
    ) -> bytes:
        if len(templates) > 10_000:
            templates.clear()
        own = {"f": NUMBER, "g": NUMBER, "h": NUMBER, "i": TEXT, "j": NUMBER}
        made = templates[chosen] = header_template(prepared.code, self._fields(prepared, chosen) | own)
        return made

    def _fields(self, prepared: Prepared, chosen: MessageQueue) -> dict[str, str]:
        config = self._config
        return SendMessageV2(
            producer_group=config.group,
            topic=prepared.topic,
            default_topic=config.create_topic_key,
            default_topic_queue_nums=config.default_topic_queue_nums,
            queue_id=chosen.queue_id,
            sys_flag=prepared.sys_flag,
            born_timestamp=prepared.born_ms,
            flag=prepared.flag,
            properties=prepared.properties,
            reconsume_times=prepared.reconsume,
            unit_mode=config.unit_mode,
            max_reconsume_times=prepared.max_reconsume,
            batch=prepared.code == SEND_BATCH,
            bname=chosen.broker_name,
            first_id_only=prepared.first_id_only,
        ).to_ext()


def read_answer(
    prepared: Prepared, chosen: MessageQueue, answer: RemotingCommand, address: str
) -> SendResult:
    """What a broker has made of a send; raises what it refuses with."""
    status = _STATUS.get(answer.code)
    if status is None:
        raise ResponseError.for_code(answer.code, answer.remark, address)
    fields = answer.ext_fields or {}
    try:
        queue_id = int(fields.get("queueId", chosen.queue_id))
        queue_offset = int(fields.get("queueOffset", -1))
    except ValueError as error:
        raise RemoteProtocolError(f"{address} answered a send with {error}") from error
    if queue_id != chosen.queue_id:
        chosen = MessageQueue(chosen.topic, chosen.broker_name, queue_id)
    return SendResult(
        status,
        prepared.msg_id,
        chosen,
        queue_offset,
        fields.get("msgId", ""),
        fields.get("transactionId"),
        fields.get("MSG_REGION", "DefaultRegion"),
        fields.get("TRACE_ON", "true") != "false",
    )
