"""What happens after an attempt to send has failed: how often, where and when the next one is made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from gimbalmq.client.config import ProducerConfig
from gimbalmq.protocol.codes import ResponseCode

RETRY_CODES: Final = frozenset(
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

PATIENT_CODES: Final = RETRY_CODES | {int(ResponseCode.FLOW_CONTROL)}
"""The same for senders that pause between attempts: a broker that is too busy now is asked again later."""


class Place(Enum):
    """Where the next attempt goes."""

    ANYWHERE = "any queue, of another broker if there is one"
    SAME_ID = "the queue of the same number of another broker, if another has it"
    SAME_QUEUE = "the same queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How often and where a send is tried again. A missing answer and a missing route always count as failures.

    Attributes:
        times: further attempts.
        place: where they go.
        codes: error answers after which there is another attempt; any other one is final.
        not_safe: whether "stored, but not flushed or replicated in time" is tried again, too.
        limit_each: whether the time limit is for each attempt; else it is for all of them together.
        first_pause: seconds before the second attempt, doubled before each further one; 0 is no pause.
        longest_pause: seconds that a pause grows to.
        look_again: whether the route is asked for before each further attempt.
        plain: whether the error of a single attempt is raised as it is, not within a SendFailedError.
    """

    times: int
    place: Place = Place.ANYWHERE
    codes: frozenset[int] = RETRY_CODES
    not_safe: bool = False
    limit_each: bool = False
    first_pause: float = 0.0
    longest_pause: float = 0.0
    look_again: bool = False
    plain: bool = False

    def pause_before(self, turn: int) -> float:
        """Seconds to wait before attempt number ``turn``; the first one is number 0."""
        return min(self.first_pause * 2.0 ** (turn - 1), self.longest_pause)


ONCE: Final = Rules(times=0, place=Place.SAME_QUEUE, codes=frozenset(), plain=True)
"""For messages that are bound to a queue: a later attempt could overtake, another queue would be another order."""


def awaited_rules(config: ProducerConfig) -> Rules:
    """Java's synchronous rules: after most failures another broker is tried."""
    return Rules(times=config.retry_times, not_safe=config.retry_another_broker_when_not_store_ok)


def soon_rules(config: ProducerConfig) -> Rules:
    """Java's asynchronous rules: only a missing answer is tried again."""
    return Rules(times=config.retry_times_async, place=Place.SAME_ID, codes=frozenset(), plain=True)
