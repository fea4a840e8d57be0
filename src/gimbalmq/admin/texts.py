"""Values as people read them, on a terminal and on a page; nothing from elsewhere keeps control characters."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from datetime import datetime


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


def cell(value: object) -> str:
    """A value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"
    return str(value)


def pairs(items: Iterable[tuple[str, object]]) -> str:
    """``name   value`` lines, values under each other."""
    listed = [(name, printable(cell(value))) for name, value in items]
    size = max((width(name) for name, _ in listed), default=0)
    return "\n".join(f"{name}{' ' * (size - width(name))}  {value}".rstrip() for name, value in listed)


def moment(ms: int) -> str:
    """A time on the wire as people here read it; "-" where there is none."""
    if ms <= 0:
        return "-"
    return datetime.fromtimestamp(ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def size(count: int) -> str:
    """Bytes as people read them: ``0 B``, ``1.5 KiB``."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
