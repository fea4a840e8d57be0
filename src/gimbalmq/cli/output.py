"""What a person reads: one ready line per server on stdout, logs and errors on stderr."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from gimbalmq.errors import (
    ConnectError,
    ConnectionLostError,
    ConsumerNotOnlineError,
    NoPermissionError,
    NoWritableQueueError,
    RequestTimeoutError,
    ResponseError,
    SendFailedError,
    StoreLockedError,
    SubscriptionGroupNotExistError,
    TopicNotExistError,
    TopicRouteNotFoundError,
)

LEVELS = ("debug", "info", "warning", "error")

_REMEDIES: dict[type[Exception], str] = {
    TopicRouteNotFoundError: "gimbalmq topic list shows the topics there are",
    TopicNotExistError: "gimbalmq topic list shows the topics there are",
    NoWritableQueueError: "gimbalmq topic route TOPIC shows its queues and permissions",
    ConsumerNotOnlineError: "gimbalmq group list shows the groups and their members",
    SubscriptionGroupNotExistError: "gimbalmq group list shows the groups there are",
    RequestTimeoutError: "--timeout SECONDS waits longer",
    StoreLockedError: "stop that process, or give this one a folder of its own: --store DIR",
    ConnectError: "gimbalmq server starts one, --namesrv HOST:PORT asks another",
}
"""What a person may do next, if the error itself cannot know that a command was typed."""

_REFUSALS = {
    "username cannot be null": "it asks who you are: --client-file FILE, or --access-key and --secret-key-file",
    "check signature failed": "the secret key is not that user's",
    "needs its client certificate": "show it by --tls-cert and --tls-key; servers must ask for one, by "
    "tls.server.need.client.auth=optional",
    "the decision is deny": "gimbalmq acl show USER shows the entry that denies it, to an administrator",
    "The user is existed": "gimbalmq user update changes it",
    "is not exist": "gimbalmq user list shows the users there are",
}
"""The same for servers that refuse, by a part of what they say; their code has other meanings besides."""

_WANTS_TLS = "does it want TLS?"
_TLS_FAILED = "TLS with "


class LogLines(logging.Formatter):
    """``2026-11-15 09:04:34.120 INFO  broker.registration: text``.

    Args:
        process: stands before the place, if several processes write the log: ``INFO  broker-b broker.registration``.
    """

    default_msec_format = "%s.%03d"

    def __init__(self, process: str = "") -> None:
        whose = process.replace("%", "%%") + " " if process else ""
        super().__init__(f"%(asctime)s %(levelname)-7s {whose}%(place)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        record.place = record.name.removeprefix("gimbalmq.")
        return super().format(record)


def start_logging(level: str, file: Path | None, process: str = "") -> None:
    """Sends all logs to a file (appended, so a rotation may truncate it) or to stderr.

    Args:
        process: what lines call this process, if several write the same log.

    Raises:
        OSError: the file cannot be written.
    """
    handler = (
        logging.StreamHandler(sys.stderr) if file is None else logging.FileHandler(file, encoding="utf-8")
    )
    handler.setFormatter(LogLines(process))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def announce(line: str) -> None:
    """One line on stdout, at once; a reader that has gone away does not end the server."""
    try:
        print(line, flush=True)
    except OSError:
        logging.getLogger(__name__).warning("nobody reads stdout; it would have said: %s", line)


def complain(problem: str | Exception) -> None:
    """One error for a person, without a traceback."""
    text = problem if isinstance(problem, str) else sentence(problem)
    print(f"gimbalmq: {text}", file=sys.stderr, flush=True)


def sentence(error: Exception) -> str:
    """What went wrong and what to do; without the code of an answer if nobody has answered."""
    text = error.remark if isinstance(error, ResponseError) and not error.address else str(error)
    remedy = next((remedy for kind, remedy in _REMEDIES.items() if isinstance(error, kind)), None)
    if isinstance(error, NoPermissionError | SendFailedError):
        remedy = next((remedy for part, remedy in _REFUSALS.items() if part in text), None)
    if isinstance(error, ConnectionLostError) and _WANTS_TLS in text:
        remedy = "TLS is spoken with --client-file FILE, $GIMBALMQ_CLIENT_FILE or --tls-ca FILE"
    if isinstance(error, ConnectError) and _TLS_FAILED in text:
        remedy = None  # somebody listens, and the error says what to do
    return text if remedy is None else f"{text}; {remedy}"
