"""JSON as Java's name server writes it, in its two dialects.

Java's default writer leaves the integer keys of a map bare, which standard parsers refuse;
for peers that say so, or are new enough, route answers are standard. Values that are absent
are left out in both.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from gimbalmq.protocol import fastjson
from gimbalmq.protocol.bodies import without_nulls


def dump_bare(body: object) -> bytes:
    """fastjson's own dialect: ``{"brokerAddrs":{0:"..."}}``."""
    parts: list[str] = []
    _write(msgspec.to_builtins(body), parts)
    return "".join(parts).encode()


def dump_standard(body: object) -> bytes:
    """Standard JSON: keys quoted, maps sorted, everything but ASCII escaped."""
    text = json.dumps(without_nulls(msgspec.to_builtins(body)), sort_keys=True, separators=(",", ":"))
    return fastjson.without_references(text.encode())


def _write(value: Any, parts: list[str]) -> None:
    if isinstance(value, dict):
        separator = "{"
        for key, item in value.items():
            if item is not None:
                parts.append(separator)
                parts.append(f"{key}:" if isinstance(key, int) else f"{fastjson.dumps(key).decode()}:")
                _write(item, parts)
                separator = ","
        parts.append("{}" if separator == "{" else "}")
    elif isinstance(value, list):
        separator = "["
        for item in value:
            parts.append(separator)
            _write(item, parts)
            separator = ","
        parts.append("[]" if separator == "[" else "]")
    else:
        parts.append(fastjson.dumps(value).decode())
