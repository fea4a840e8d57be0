"""What a terminal shows: tables, progress, questions; nothing a message contains can move its cursor."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from gimbalmq.admin.texts import cell, printable, width


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str = "(none)") -> str:
    """Columns under their names; numbers stand to the right."""
    listed = [tuple(row) for row in rows]
    if not listed:
        return empty
    cells = [[printable(cell(value)) for value in row] for row in listed]
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


class ProgressLine:
    """A bar on stderr while something long runs; silent if stderr is no terminal.

    >>> with ProgressLine("export", 10) as bar:
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
