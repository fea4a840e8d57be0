"""Failed messages go back to a broker, which delivers them again after a while."""

from __future__ import annotations

import logging

from gimbalmq.client.consumer_config import ConsumerConfig
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.sending.retry_topic import RetryTopic
from gimbalmq.errors import RocketMQError
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.headers.messages import SendBack
from gimbalmq.rpc import messages as message_calls

log = logging.getLogger(__name__)

UNLIMITED = 0x7FFFFFFF
DEFAULT_TIMES = 16


def max_times(times: int, *, ordered: bool) -> int:
    """How often a message comes again; -1 is the default, which for ordered handlers is without end."""
    if times != -1:
        return times
    return UNLIMITED if ordered else DEFAULT_TIMES


class Returns:
    """Sends messages of one group back.

    Attributes:
        max_times: after so many tries a message goes to the dead letters.
    """

    def __init__(
        self, instance: ClientInstance, config: ConsumerConfig, *, max_times: int, ordered: bool = False
    ) -> None:
        self._instance = instance
        self._config = config
        self._leased = config.handover == "lease" and not ordered
        self.max_times = max_times
        self._retry_topic = RetryTopic(
            instance, config.group, max_times=max_times, unit_mode=config.unit_mode
        )

    async def send_back(self, message: MessageView, delay_level: int, queue: MessageQueue) -> bool:
        """As ``give_back``; False if the message must be consumed again here."""
        try:
            await self.give_back(message, delay_level, queue)
        except RocketMQError as error:
            log.warning(
                "message %s could not be sent back, it is consumed again here: %s", message.msg_id, error
            )
            return False
        return True

    async def give_back(self, message: MessageView, delay_level: int, queue: MessageQueue) -> None:
        """36 to the broker that has the message; if that fails, a send to the retry topic.

        With leases there is no such detour: brokers take the locks of a group for those of an ordered consumer, and
        what is sent to its retry topic for a message that failed for good.

        Raises:
            RocketMQError: no broker took it.
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
        times = message.reconsume_times + 1
        try:
            await message_calls.send_back(self._instance, address, header)
        except RocketMQError as error:
            if self._leased and times <= self.max_times:
                raise
            log.warning(
                "message %s could not be sent back, it goes to the retry topic: %s", message.msg_id, error
            )
        else:
            if delay_level < 0 or message.reconsume_times >= self.max_times:
                self._tell_dead(message)
            return
        await self._retry_topic.deliver(message, times)

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
