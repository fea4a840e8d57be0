"""What a person reads: one ready line per server on stdout, logs and errors on stderr."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

LEVELS = ("debug", "info", "warning", "error")


class LogLines(logging.Formatter):
    """``2026-11-15 09:04:34.120 INFO  broker.registration: text``."""

    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(place)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        record.place = record.name.removeprefix("gimbalmq.")
        return super().format(record)


def start_logging(level: str, file: Path | None) -> None:
    """Sends all logs to a file (appended, so a rotation may truncate it) or to stderr.

    Raises:
        OSError: the file cannot be written.
    """
    handler = (
        logging.StreamHandler(sys.stderr) if file is None else logging.FileHandler(file, encoding="utf-8")
    )
    handler.setFormatter(LogLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def announce(line: str) -> None:
    """One line on stdout, at once; a reader that has gone away does not end the server."""
    try:
        print(line, flush=True)
    except OSError:
        logging.getLogger(__name__).warning("nobody reads stdout; it would have said: %s", line)


def complain(text: str) -> None:
    """One error for a person, without a traceback."""
    print(f"gimbalmq: {text}", file=sys.stderr, flush=True)
