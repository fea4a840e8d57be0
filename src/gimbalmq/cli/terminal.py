"""What a terminal shows: tables, progress, questions; nothing a message contains can move its cursor."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self


def printable(text: str) -> str:
    """Text from elsewhere without control characters, which could repaint the terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else f"\\x{ord(char):02x}" for char in text)


def width(text: str) -> int:
    """Columns a text takes: Chinese, Japanese and Korean characters take two."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str = "(none)") -> str:
    """Columns under their names; numbers stand to the right."""
    listed = [tuple(row) for row in rows]
    if not listed:
        return empty
    cells = [[printable(_cell(value)) for value in row] for row in listed]
    right = [
        all(isinstance(row[index], int | float) or row[index] in ("", None) for row in listed)
        for index in range(len(head))
    ]
    widths = [max(width(line[index]) for line in ([list(head), *cells])) for index in range(len(head))]

    def line(texts: Sequence[str]) -> str:
        padded = [
            " " * (size - width(text)) + text if is_right else text + " " * (size - width(text))
            for text, size, is_right in zip(texts, widths, right, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return "\n".join(line(texts) for texts in [list(head), ["-" * size for size in widths], *cells])


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"
    return str(value)


def pairs(items: Iterable[tuple[str, object]]) -> str:
    """``name   value`` lines, values under each other."""
    listed = [(name, printable(_cell(value))) for name, value in items]
    size = max((width(name) for name, _ in listed), default=0)
    return "\n".join(f"{name}{' ' * (size - width(name))}  {value}".rstrip() for name, value in listed)


def moment(ms: int) -> str:
    """A time on the wire as people here read it; "-" where there is none."""
    if ms <= 0:
        return "-"
    return datetime.fromtimestamp(ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def confirmed(question: str, *, assume_yes: bool) -> bool:
    """Asks before something is changed; without a terminal the answer is no unless ``--yes`` was said."""
    if assume_yes:
        return True
    if not sys.stdin.isatty():
        print(f"{question} Not asked, because nobody is at the terminal; say --yes.", file=sys.stderr)
        return False
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


class Progress:
    """A bar on stderr while something long runs; silent where stderr is no terminal.

    >>> with Progress("export", 10) as bar:
    ...     bar.at(10)
    """

    _WIDTH = 30

    def __init__(self, label: str, total: int | None = None) -> None:
        self._label = label
        self._total = total
        self._live = sys.stderr.isatty()
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def at(self, done: int, total: int | None = None) -> None:
        if not self._live:
            return
        total = self._total if total is None else total
        if total:
            filled = min(self._WIDTH, done * self._WIDTH // total)
            text = f"{self._label} [{'#' * filled}{'.' * (self._WIDTH - filled)}] {done:,}/{total:,}"
        else:
            text = f"{self._label} {done:,}"
        if text != self._shown:
            print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = text

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown:
            print(file=sys.stderr)
