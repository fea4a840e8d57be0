"""Which failures of a send are tried again, and where: Java's rules, the synchronous and the asynchronous."""

from __future__ import annotations

import asyncio

from gimbalmq.balance.select import PublishQueues
from gimbalmq.client.config import ProducerConfig
from gimbalmq.client.flights import TICK, Flights
from gimbalmq.client.prepare import Prepared
from gimbalmq.client.targets import Targets
from gimbalmq.errors import RequestTimeoutError, ResponseError, RouteError, SendFailedError, TransportError
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import SendResult, SendStatus
from gimbalmq.protocol.codes import ResponseCode

RETRY_CODES = frozenset(
    {
        int(ResponseCode.TOPIC_NOT_EXIST),
        int(ResponseCode.SERVICE_NOT_AVAILABLE),
        int(ResponseCode.SYSTEM_ERROR),
        int(ResponseCode.SYSTEM_BUSY),
        int(ResponseCode.NO_PERMISSION),
        204,  # NO_BUYER_ID
        205,  # NOT_IN_CURRENT_UNIT
        int(ResponseCode.GO_AWAY),
    }
)
"""Answers after which another attempt is made (Java: retryResponseCodes)."""


class Retries:
    """Attempts one after the other, until one is stored or the rules say no."""

    def __init__(self, config: ProducerConfig, targets: Targets, flights: Flights) -> None:
        self._config = config
        self._targets = targets
        self._flights = flights
        self._loop = asyncio.get_running_loop()

    async def anywhere(
        self, prepared: Prepared, publish: PublishQueues, limit: float, started: float
    ) -> SendResult:
        """Java's synchronous rules: after most failures another broker is tried."""
        failures: list[tuple[object, Exception]] = []
        last_broker: str | None = None
        unsafe: SendResult | None = None
        remaining = limit
        for _ in range(1 + self._config.retry_times):
            chosen = self._targets.next(publish, last_broker)
            last_broker = chosen.broker_name
            elapsed = self._loop.time() - started
            # The common case keeps the round number: calls of equal timeouts share one deadline queue.
            remaining = limit - elapsed if elapsed > TICK else limit
            if remaining < TICK:
                break
            try:
                result = await self._flights.attempt(prepared, chosen, remaining)
            except (TransportError, RouteError) as error:
                failures.append((chosen, error))
            except ResponseError as error:
                if error.code not in RETRY_CODES:
                    raise
                failures.append((chosen, error))
            else:
                if (
                    result.status is SendStatus.SEND_OK
                    or not self._config.retry_another_broker_when_not_store_ok
                ):
                    return result
                unsafe = result
        if unsafe is not None:
            return unsafe
        failed = SendFailedError(prepared.topic, failures)
        if self._loop.time() - started >= limit - TICK:
            raise RequestTimeoutError(f"the time of {limit:g} s is up: {failed}") from failed
        raise failed

    async def elsewhere(
        self, prepared: Prepared, chosen: MessageQueue, error: Exception, remaining: float
    ) -> SendResult:
        """Java's asynchronous rules, after a first attempt without answer: another broker, the same queue id."""
        failures: list[tuple[object, Exception]] = [(chosen, error)]
        deadline = self._loop.time() + remaining
        publish = self._targets.known.get(prepared.topic)
        for _ in range(self._config.retry_times_async):
            remaining = deadline - self._loop.time()
            if remaining < TICK or publish is None:
                break
            other = self._targets.next(publish, chosen.broker_name)
            chosen = MessageQueue(chosen.topic, other.broker_name, chosen.queue_id)
            try:
                return await self._flights.attempt(prepared, chosen, remaining)
            except (TransportError, RouteError) as failure:
                failures.append((chosen, failure))
        if len(failures) == 1:
            raise error
        raise SendFailedError(prepared.topic, failures)
