"""Which values of topics and groups are taken.

Requests with others are refused at the door, by name, range and remedy. Files of the broker's own may have been edited,
or come from a broker that takes anything: their values are moved into the range, with a line in the log.
"""

from __future__ import annotations

import logging

from gimbalmq.errors import InvalidParameterError
from gimbalmq.model.topics import group_problem, topic_problem
from gimbalmq.protocol.bodies import GroupConfig, TopicConfig
from gimbalmq.protocol.fastjson import MAGIC_KEYS
from gimbalmq.store.consumequeue import MAX_QUEUES

log = logging.getLogger(__name__)

MAX_RETRY_QUEUES = 1024
_INT = (1 << 31) - 1
_LONG = (1 << 63) - 1
_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
_MAX_SETTINGS_BYTES = 65_536
"""Of one topic or group as JSON: attributes and policies may hold any text, and all of it goes to the name servers."""

_MAX_DEPTH = 32
"""Of objects and lists in a group's policy: readers of JSON have bounds, and ours must read its own file again."""

_TOPIC_RANGES = {
    "read_queue_nums": (0, MAX_QUEUES),
    "write_queue_nums": (0, MAX_QUEUES),
    "perm": (0, 7),
    "topic_sys_flag": (0, _INT),
}
_GROUP_RANGES = {
    "retry_queue_nums": (0, MAX_RETRY_QUEUES),
    "retry_max_times": (-1, _INT),
    "broker_id": (0, _LONG),
    "which_broker_when_consume_slowly": (0, _LONG),
    "consume_timeout_minute": (0, _INT),
    "group_sys_flag": (0, _INT),
}
_MEANINGS = {
    "perm": ": 2 to write, 4 to read, 6 for both",
    "retry_queue_nums": "; 0 means that nothing is retried",
    "retry_max_times": "; 0 means that a message that fails is dead at once",
}


def check_topic(config: TopicConfig) -> None:
    """Raises InvalidParameterError if no topic may be like this."""
    problem = topic_problem(config.topic_name)
    if problem is not None:
        raise InvalidParameterError(problem)
    if config.topic_filter_type not in _FILTER_TYPES:
        raise InvalidParameterError(
            f"topicFilterType of topic {config.topic_name} is {config.topic_filter_type[:40]!a}; "
            f"use {' or '.join(_FILTER_TYPES)}"
        )
    _check_nested(config.attributes, f"attributes of topic {config.topic_name}")
    _check(config, _TOPIC_RANGES, f"topic {config.topic_name}")


def check_group(config: GroupConfig) -> None:
    """Raises InvalidParameterError if no group may be like this."""
    problem = group_problem(config.group_name)
    if problem is not None:
        raise InvalidParameterError(problem)
    for field in ("attributes", "group_retry_policy", "subscription_data_set"):
        _check_nested(getattr(config, field), f"{_wire_name(field)} of group {config.group_name}")
    _check(config, _GROUP_RANGES, f"group {config.group_name}")


def mend_topic(name: str, config: TopicConfig) -> None:
    """Of topics.json."""
    problem = topic_problem(name)
    if problem is not None:
        log.warning("topics.json: %s Its messages stay; new ones are refused.", problem)
    config.topic_name = name
    _mend(config, _TOPIC_RANGES, f"topic {name} of topics.json")


def mend_group(name: str, config: GroupConfig) -> None:
    """Of subscriptionGroup.json."""
    problem = group_problem(name)
    if problem is not None:
        log.warning("subscriptionGroup.json: %s Nothing is retried for it.", problem)
    config.group_name = name
    _mend(config, _GROUP_RANGES, f"group {name} of subscriptionGroup.json")


def _check(config: TopicConfig | GroupConfig, ranges: dict[str, tuple[int, int]], owner: str) -> None:
    for field, (low, high) in ranges.items():
        value = getattr(config, field)
        if not low <= value <= high:
            raise InvalidParameterError(
                f"{_wire_name(field)} of {owner} is {_number(value)}; use {low} to {high}{_MEANINGS.get(field, '')}"
            )
    size = len(config.dump())
    if size > _MAX_SETTINGS_BYTES:
        raise InvalidParameterError(
            f"the settings of {owner} take {size} bytes; at most {_MAX_SETTINGS_BYTES} are kept: use fewer attributes"
        )


def _check_nested(value: object, owner: str) -> None:
    """Of values of any shape: neither too deep nor with keys that mean something else to those who read them."""
    level, depth = [value], 0
    while level:
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                magic = MAGIC_KEYS & item.keys()
                if magic:
                    raise InvalidParameterError(
                        f"{owner} have the key {min(magic)}, which Java's readers of JSON take for their own; "
                        "use another name"
                    )
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        level = [item for item in below if isinstance(item, (dict, list))]
        depth += 1
        if level and depth >= _MAX_DEPTH:
            raise InvalidParameterError(
                f"{owner} are nested deeper than {_MAX_DEPTH} objects and lists; use fewer"
            )


def _mend(config: TopicConfig | GroupConfig, ranges: dict[str, tuple[int, int]], owner: str) -> None:
    for field, (low, high) in ranges.items():
        value = getattr(config, field)
        mended = min(max(value, low), high)
        if mended != value:
            log.warning(
                "%s of %s is %s, which is not within %d to %d; %d is used",
                _wire_name(field),
                owner,
                _number(value),
                low,
                high,
                mended,
            )
            setattr(config, field, mended)


def _wire_name(field: str) -> str:
    head, *rest = field.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _number(value: int) -> str:
    """A number as an error may show it; Python refuses to write one of more than 4,300 digits."""
    return str(value) if -(10**30) < value < 10**30 else "a number of more than 30 digits"
