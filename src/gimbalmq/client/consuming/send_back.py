"""Failed messages go back to a broker, which delivers them again after a while."""

from __future__ import annotations

import logging

from gimbalmq.client.consumer_config import PushConsumerConfig
from gimbalmq.client.instance import ClientInstance
from gimbalmq.errors import RocketMQError
from gimbalmq.model import properties as names
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.route import publish_queues
from gimbalmq.model.topics import AUTO_CREATE_TOPIC, retry_topic
from gimbalmq.protocol.headers.messages import SendBack, SendMessageV2
from gimbalmq.rpc import messages as message_calls

log = logging.getLogger(__name__)

INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
UNLIMITED = 0x7FFFFFFF
_RESEND_TRIES = 3


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
        return await self._send_to_retry(message, times)

    async def resend(self, message: MessageView) -> bool:
        """Sends an ordered message to the retry topic, from where the broker moves it to the dead letters."""
        return await self._send_to_retry(message, message.reconsume_times)

    async def _send_to_retry(self, message: MessageView, times: int) -> bool:
        """A plain send to ``%RETRY%group``; whoever sends there names the times himself."""
        topic = retry_topic(self._config.group)
        properties = dict(message.all_properties)
        properties[names.RETRY_TOPIC] = message.topic
        properties[names.DELAY] = str(3 + message.reconsume_times)
        properties.setdefault(names.ORIGIN_MESSAGE_ID, message.msg_id)
        properties.pop(names.TRAN_MSG, None)
        properties.pop(names.WAIT, None)
        instance = self._instance
        for attempt in range(_RESEND_TRIES):
            route = instance.route(topic)
            queues = publish_queues(topic, route) if route is not None else ()
            if not queues:
                try:
                    await instance.refresh_route(topic)
                except RocketMQError as error:
                    log.warning("no route for %s: %s", topic, error)
                continue
            queue = queues[(instance.rng.randrange(len(queues)) + attempt) % len(queues)]
            address = instance.master_address(queue.broker_name)
            header = SendMessageV2(
                producer_group=INNER_PRODUCER_GROUP,
                topic=topic,
                default_topic=AUTO_CREATE_TOPIC,
                default_topic_queue_nums=4,
                queue_id=queue.queue_id,
                sys_flag=0,
                born_timestamp=message.born_timestamp,
                flag=message.flag,
                properties=names.dump(properties),
                reconsume_times=times,
                unit_mode=self._config.unit_mode,
                max_reconsume_times=self.max_times,
                batch=False,
                bname=queue.broker_name,
            )
            try:
                if address is not None:
                    await message_calls.send(instance, address, header, message.body)
                    return True
            except RocketMQError as error:
                log.warning("message %s could not be sent to %s: %s", message.msg_id, topic, error)
        return False
