"""Failed messages of a consumer on their way to its retry topic, if their broker does not take them back."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from gimbalmq.client.config import ProducerConfig
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.sending.loop import Sending
from gimbalmq.client.sending.prepare import SEND, Prepared
from gimbalmq.client.sending.rules import PATIENT_CODES, Rules
from gimbalmq.errors import RocketMQError
from gimbalmq.model import properties as names
from gimbalmq.model.message import MessageView
from gimbalmq.model.topics import RETRY_PREFIX, retry_topic

log = logging.getLogger(__name__)

INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
"""The producer group that clients themselves send under."""

RULES: Final = Rules(times=2, codes=PATIENT_CODES, limit_each=True, look_again=True)
"""Three attempts, each at another broker if there is one; a resend that is lost here comes again anyway."""

SECONDS: Final = 3.0
"""For each attempt."""


class RetryTopic:
    """Sends messages to ``%RETRY%group``.

    Args:
        group: the consumer group.
        max_times: how often a message is delivered again before it becomes a dead letter.
    """

    def __init__(
        self, instance: ClientInstance, group: str, *, max_times: int, unit_mode: bool = False
    ) -> None:
        self.topic = retry_topic(group)
        self._max_times = max_times
        self._loop = asyncio.get_running_loop()
        config = ProducerConfig(
            group=INNER_PRODUCER_GROUP, namesrv=instance.config.namesrv, unit_mode=unit_mode
        )
        self._sending = Sending(instance, config)

    def close(self) -> None:
        self._sending.close()

    async def send(self, message: MessageView, times: int) -> bool:
        """As ``deliver``; False if no broker took it."""
        try:
            await self.deliver(message, times)
        except RocketMQError as error:
            log.warning("message %s could not be sent to %s: %s", message.msg_id, self.topic, error)
            return False
        return True

    async def deliver(self, message: MessageView, times: int) -> None:
        """Sends a message that could not be consumed.

        Args:
            times: how often it has come again; whoever sends to a retry topic says so himself.

        Raises:
            RocketMQError: no broker took it.
        """
        properties = dict(message.all_properties)
        # A message that was pulled from a retry topic is still called by that name.
        again = message.topic.startswith(RETRY_PREFIX)
        properties[names.RETRY_TOPIC] = message.original_topic if again else message.topic
        properties[names.DELAY] = str(3 + message.reconsume_times)
        properties.setdefault(names.ORIGIN_MESSAGE_ID, message.msg_id)
        properties.pop(names.TRAN_MSG, None)
        properties.pop(names.WAIT, None)
        prepared = Prepared(
            code=SEND,
            topic=self.topic,
            body=message.body,
            properties=names.dump(properties),
            sys_flag=0,
            flag=message.flag,
            msg_id=message.msg_id,
            born_ms=message.born_timestamp,
            reconsume=times,
            max_reconsume=self._max_times,
        )
        await self._sending.deliver(prepared, RULES, SECONDS, started=self._loop.time())
