"""RocketMQ for Python: name server, broker and clients that speak Apache RocketMQ's formats.

The public names are loaded when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gimbalmq.admin.admin import Admin as Admin
    from gimbalmq.balance.by_name import strategy_by_name as strategy_by_name
    from gimbalmq.balance.rooms import RoomsByPrefix as RoomsByPrefix
    from gimbalmq.broker.broker import Broker as Broker
    from gimbalmq.broker.config import BrokerConfig as BrokerConfig
    from gimbalmq.client.client_file import client_options as client_options
    from gimbalmq.client.config import ProducerConfig as ProducerConfig
    from gimbalmq.client.consumer_config import ConsumeFromWhere as ConsumeFromWhere
    from gimbalmq.client.consumer_config import MessageModel as MessageModel
    from gimbalmq.client.consumer_config import PullConsumerConfig as PullConsumerConfig
    from gimbalmq.client.consumer_config import PushConsumerConfig as PushConsumerConfig
    from gimbalmq.client.consumer_config import QueuePullConsumerConfig as QueuePullConsumerConfig
    from gimbalmq.client.consuming.handlers import ConsumeContext as ConsumeContext
    from gimbalmq.client.consuming.handlers import ConsumeResult as ConsumeResult
    from gimbalmq.client.producer import Producer as Producer
    from gimbalmq.client.pull_consumer import PullConsumer as PullConsumer
    from gimbalmq.client.push_consumer import PushConsumer as PushConsumer
    from gimbalmq.client.queue_pull_consumer import QueuePullConsumer as QueuePullConsumer
    from gimbalmq.client.recording import Recorder as Recorder
    from gimbalmq.client.request_reply import reply as reply
    from gimbalmq.client.request_reply import request as request
    from gimbalmq.client.transaction import TransactionProducer as TransactionProducer
    from gimbalmq.errors import ConfigError as ConfigError
    from gimbalmq.errors import RequestTimeoutError as RequestTimeoutError
    from gimbalmq.errors import ResponseError as ResponseError
    from gimbalmq.errors import RocketMQError as RocketMQError
    from gimbalmq.errors import SendFailedError as SendFailedError
    from gimbalmq.errors import StoreError as StoreError
    from gimbalmq.errors import TopicRouteNotFoundError as TopicRouteNotFoundError
    from gimbalmq.errors import TransportError as TransportError
    from gimbalmq.model.message import Message as Message
    from gimbalmq.model.message import MessageView as MessageView
    from gimbalmq.model.queues import MessageQueue as MessageQueue
    from gimbalmq.model.results import PullResult as PullResult
    from gimbalmq.model.results import PullStatus as PullStatus
    from gimbalmq.model.results import SendResult as SendResult
    from gimbalmq.model.results import TransactionState as TransactionState
    from gimbalmq.nameserver.config import NameServerConfig as NameServerConfig
    from gimbalmq.nameserver.server import NameServer as NameServer
    from gimbalmq.transport.tls import client_tls as client_tls

_HOMES = {
    "Admin": "gimbalmq.admin.admin",
    "Broker": "gimbalmq.broker.broker",
    "BrokerConfig": "gimbalmq.broker.config",
    "client_options": "gimbalmq.client.client_file",
    "client_tls": "gimbalmq.transport.tls",
    "ConfigError": "gimbalmq.errors",
    "ConsumeContext": "gimbalmq.client.consuming.handlers",
    "ConsumeFromWhere": "gimbalmq.client.consumer_config",
    "ConsumeResult": "gimbalmq.client.consuming.handlers",
    "Message": "gimbalmq.model.message",
    "MessageModel": "gimbalmq.client.consumer_config",
    "MessageQueue": "gimbalmq.model.queues",
    "MessageView": "gimbalmq.model.message",
    "NameServer": "gimbalmq.nameserver.server",
    "NameServerConfig": "gimbalmq.nameserver.config",
    "Producer": "gimbalmq.client.producer",
    "ProducerConfig": "gimbalmq.client.config",
    "PullConsumer": "gimbalmq.client.pull_consumer",
    "PullConsumerConfig": "gimbalmq.client.consumer_config",
    "PullResult": "gimbalmq.model.results",
    "PullStatus": "gimbalmq.model.results",
    "PushConsumer": "gimbalmq.client.push_consumer",
    "PushConsumerConfig": "gimbalmq.client.consumer_config",
    "QueuePullConsumer": "gimbalmq.client.queue_pull_consumer",
    "QueuePullConsumerConfig": "gimbalmq.client.consumer_config",
    "Recorder": "gimbalmq.client.recording",
    "reply": "gimbalmq.client.request_reply",
    "request": "gimbalmq.client.request_reply",
    "RequestTimeoutError": "gimbalmq.errors",
    "ResponseError": "gimbalmq.errors",
    "RocketMQError": "gimbalmq.errors",
    "RoomsByPrefix": "gimbalmq.balance.rooms",
    "SendFailedError": "gimbalmq.errors",
    "SendResult": "gimbalmq.model.results",
    "StoreError": "gimbalmq.errors",
    "strategy_by_name": "gimbalmq.balance.by_name",
    "TopicRouteNotFoundError": "gimbalmq.errors",
    "TransactionProducer": "gimbalmq.client.transaction",
    "TransactionState": "gimbalmq.model.results",
    "TransportError": "gimbalmq.errors",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'gimbalmq' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
