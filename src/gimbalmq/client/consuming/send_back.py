"""Failed messages go back to a broker, which delivers them again after a while."""

from __future__ import annotations

import logging

from gimbalmq.client.consumer_config import PushConsumerConfig
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.sending.retry_topic import RetryTopic
from gimbalmq.errors import RocketMQError
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.headers.messages import SendBack
from gimbalmq.rpc import messages as message_calls

log = logging.getLogger(__name__)

UNLIMITED = 0x7FFFFFFF


class Returns:
    """Sends messages of one group back.

    Attributes:
        max_times: after so many tries a message goes to the dead letters.
    """

    def __init__(self, instance: ClientInstance, config: PushConsumerConfig, *, ordered: bool) -> None:
        self._instance = instance
        self._config = config
        self._leased = config.handover == "lease" and not ordered
        self.max_times = config.max_reconsume_times
        if self.max_times == -1:
            self.max_times = UNLIMITED if ordered else 16
        self._retry_topic = RetryTopic(
            instance, config.group, max_times=self.max_times, unit_mode=config.unit_mode
        )

    async def send_back(self, message: MessageView, delay_level: int, queue: MessageQueue) -> bool:
        """36 to the broker that has the message; if that fails, a send to the retry topic.

        Not with leases: brokers take the locks of a group for those of an ordered consumer, and what is sent to its
        retry topic for a message that failed for good.

        Returns:
            False if the message must be consumed again here.
        """
        header = SendBack(
            offset=message.commitlog_offset,
            group=self._config.group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            unit_mode=self._config.unit_mode,
            max_reconsume_times=self.max_times,
            bname=queue.broker_name,
        )
        host, port = message.store_host
        address = self._instance.master_address(queue.broker_name) or f"{host}:{port}"
        try:
            await message_calls.send_back(self._instance, address, header)
            if delay_level < 0 or message.reconsume_times >= self.max_times:
                self._tell_dead(message)
            return True
        except RocketMQError as error:
            failure = error
        times = message.reconsume_times + 1
        if self._leased and times <= self.max_times:
            log.warning(
                "message %s could not be sent back, it is consumed again here: %s", message.msg_id, failure
            )
            return False
        log.warning(
            "message %s could not be sent back, it goes to the retry topic: %s", message.msg_id, failure
        )
        return await self._retry_topic.send(message, times)

    async def resend(self, message: MessageView) -> bool:
        """Sends an ordered message to the retry topic, from where the broker moves it to the dead letters."""
        sent = await self._retry_topic.send(message, message.reconsume_times)
        if sent:
            self._tell_dead(message)
        return sent

    def _tell_dead(self, message: MessageView) -> None:
        group = self._config.group
        log.error(
            "message %s of topic %s is a dead letter of group %s after %d tries; `gimbalmq deadletter show %s` lists "
            "them all",
            message.msg_id,
            message.topic,
            group,
            message.reconsume_times + 1,
            group,
        )

    def close(self) -> None:
        self._retry_topic.close()
