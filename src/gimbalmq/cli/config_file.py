"""Configuration files: RocketMQ's ``.properties``, or the same keys as TOML.

Both become a flat ``dict[str, str]`` under RocketMQ's names; what a key means and whether its
value is right is for the configuration classes to say.
"""

from __future__ import annotations

import re
from pathlib import Path

from gimbalmq.errors import ConfigError

_BLANK = " \t\f"
_NAMED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read(path: Path) -> dict[str, str]:
    """The keys and values of a file; TOML where its name ends in ``.toml``.

    Raises:
        ConfigError: the file cannot be read or its syntax is wrong.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ConfigError("-c", str(path), f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError("-c", str(path), f"byte {error.start} is not UTF-8") from error
    try:
        return parse_toml(text) if path.suffix == ".toml" else parse_properties(text)
    except ValueError as error:
        raise ConfigError("-c", str(path), str(error)) from error


def parse_properties(text: str) -> dict[str, str]:
    r"""Java's properties syntax: ``#`` and ``!`` comments, ``=``, ``:`` or a blank between key and
    value, ``\`` at the end of a line to go on, ``\uXXXX`` and the usual escapes. The last of equal
    keys wins.

    Raises:
        ValueError: an escape is broken; the text names the line.
    """
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        end = _key_end(line)
        rest = line[end:].lstrip(_BLANK)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANK)
        found[_unescape(line[:end], number)] = _unescape(rest, number)
    return found


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines with their continuations joined and comments gone, each with its first line's number."""
    lines: list[tuple[int, str]] = []
    pending = ""
    first = 0
    for number, raw in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = raw.lstrip(_BLANK)
        if not first and (not line or line[0] in "#!"):
            continue
        first = first or number
        slashes = len(line) - len(line.rstrip("\\"))
        if slashes % 2:
            pending += line[:-1]
            continue
        lines.append((first, pending + line))
        pending, first = "", 0
    if first:
        lines.append((first, pending))
    return [(number, line) for number, line in lines if line]


def _key_end(line: str) -> int:
    position = 0
    while position < len(line):
        char = line[position]
        if char in "=:" or char in _BLANK:
            return position
        position += 2 if char == "\\" else 1
    return len(line)


def _unescape(text: str, line: int) -> str:
    if "\\" not in text:
        return text

    def plain(match: re.Match[str]) -> str:
        code, char = match.groups()
        if code is not None:
            return chr(int(code, 16))
        if char == "u":
            raise ValueError(f"line {line}: \\u needs four hexadecimal digits")
        return _NAMED.get(char, char)

    found = re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", plain, text)
    # Java writes characters beyond 16 bits as two escapes.
    return found.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def parse_toml(text: str) -> dict[str, str]:
    """RocketMQ's keys as TOML; ``[tls.server]`` with ``mode`` is the key ``tls.server.mode``.

    Raises:
        ValueError: not TOML, or a value that no option could have.
    """
    import tomllib

    found: dict[str, str] = {}
    _flatten("", tomllib.loads(text), found)
    return found


def _flatten(prefix: str, table: dict[str, object], found: dict[str, str]) -> None:
    for name, value in table.items():
        key = prefix + name
        if isinstance(value, dict):
            _flatten(key + ".", value, found)
        elif isinstance(value, bool):
            found[key] = str(value).lower()
        elif isinstance(value, str | int | float):
            found[key] = str(value)
        elif isinstance(value, list) and all(isinstance(item, str) for item in value):
            found[key] = ";".join(value)
        else:
            raise ValueError(f"{key} is neither text, number, true/false nor a list of texts")
