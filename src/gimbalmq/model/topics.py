"""Names: which are legal, which are the system's, and the retry and dead-letter names."""

from __future__ import annotations

import re

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
SYSTEM_PREFIX = "rmq_sys_"

AUTO_CREATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
SYNC_MEMBERS_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Brokers of one name find each other through the route of such a topic."""
BENCHMARK_TOPIC = "BenchmarkTest"

FORBIDDEN_TO_SEND = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
"""Topics only the broker itself writes."""

HOLD_OTHERS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, TRANS_CHECK_MAX_TOPIC})
"""Topics in which the broker keeps messages of all others: they wait there, or were given up."""

SYSTEM_TOPICS = FORBIDDEN_TO_SEND | {AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}

TRANS_GROUP = "CID_RMQ_SYS_TRANS"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
BUILT_IN_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANS_GROUP,
)

MAX_NAME_BYTES = 255
"""A topic is a folder of the broker's, and file systems take names of so many bytes."""
MAX_TOPIC_LENGTH = 127
MAX_GROUP_LENGTH = MAX_NAME_BYTES - len(RETRY_PREFIX)
"""A group needs room for the longest topic made of its name. (Apache takes 255, and fails when the first message is
retried.)"""
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")
_ALSO_IN_BROKERS = str.maketrans("@.", "__")
_SHOWN = 80


def _shown(name: str) -> str:
    """A name as an error may show it: a hostile one is megabytes long, or no text at all."""
    cut = name if len(name) <= _SHOWN else name[:_SHOWN] + "..."
    return cut.encode("utf-8", "backslashreplace").decode()


def topic_problem(topic: str) -> str | None:
    """Why a name cannot be a topic; None if it can. Legal names are ASCII, so letters are bytes."""
    if not topic.strip():
        return "The specified topic is blank."
    limit = MAX_NAME_BYTES if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else MAX_TOPIC_LENGTH
    if len(topic) > limit:
        return (
            f"The specified topic[{_shown(topic)}] has {len(topic)} letters and is longer than topic max length "
            f"{limit}; use a shorter name."
        )
    if not _LEGAL.fullmatch(topic):
        return f"The specified topic[{_shown(topic)}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return None


def broker_problem(name: str) -> str | None:
    """Why a name cannot be a broker's or a cluster's; None if it can.

    Each has a topic of its name, so they are legal as topics are, but for two letters: machines have dots in their
    names, and MACHINE_ROOM wants ``room@name``.
    """
    if (
        name.strip(" .")
        and len(name) <= MAX_TOPIC_LENGTH
        and _LEGAL.fullmatch(name.translate(_ALSO_IN_BROKERS))
    ):
        return None
    return f"use 1 to {MAX_TOPIC_LENGTH} of the letters a-z, A-Z, 0-9, %, |, _, -, @ and ."


def group_problem(group: str) -> str | None:
    """Why a name cannot be a group; None if it can."""
    if not group.strip():
        return "The specified group is blank."
    if len(group) > MAX_GROUP_LENGTH:
        return (
            f"The specified group[{_shown(group)}] has {len(group)} letters and is longer than group max length "
            f"{MAX_GROUP_LENGTH}; use a shorter name."
        )
    if not _LEGAL.fullmatch(group):
        return f"The specified group[{_shown(group)}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return None


def is_system_topic(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group
