"""Reader and writer for the JSON dialect of RocketMQ's bodies and files.

Java writes them with fastjson, whose maps may have bare integers, or whole objects, as keys
(``{0:5}``, ``{{"topic":"T"}:5}``), and which replaces a repeated object by
``{"$ref":"$.path"}``. Nearly all documents are standard, so they are tried with msgspec
first. What it refuses is made standard by one regular expression (bare keys get their quotes)
and tried again; only what is stranger still is read by the small scanner below. Both are slow
beside msgspec, so a server bounds what it lets them see (``limit``).

The reader gives an object key back as its compact JSON text; ``queue_key`` turns such a key,
quoted or bare, into a MessageQueue. The writer quotes integer keys, which every Java reads, and
writes queues bare if the caller says that the keys are queues, since only that is read by all.

What is written is read back exactly. Names come from anybody, and one of them may look like the
dialect's own words. So the writer never guesses which key is a queue, and escapes ``$ref``; a
reference that leads nowhere is an object like any other. Java's reader has no such escape: a server
refuses ``MAGIC_KEYS`` from whoever would have it hand them on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from gimbalmq.errors import RemoteProtocolError
from gimbalmq.model.queues import MessageQueue

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

_SPACE = re.compile(r"[ \t\r\n]*")
_BARE = re.compile(r"[^\s:,{}\[\]\"']+")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?[LSBFD]?")
_WORDS = {"true": True, "false": False, "null": None}
_MAX_DEPTH = 64
_STRANGE_KEY = re.compile(
    r'"[^"\\]*(?:\\.[^"\\]*)*"?|(?<=[{,])[ \t\r\n]*([^\s:,{}\[\]"\'\\]+|\{[^{}]*\})[ \t\r\n]*(?=:)', re.DOTALL
)
"""A string, to pass over it, or (group 1) a key that is a bare word or an object.

A string's end is optional: one without end would else be tried again from each of its quotes."""
_SCANNER_SLOWNESS = 8
"""So many times longer takes the scanner than the regular expression."""
_ROWS_AT_ONCE = 200
REQUEST_LIMIT = 64 * 1024
"""Most bytes of a document in the dialect that a server reads from anybody: some milliseconds."""
MAGIC_KEYS = frozenset({"$ref", "@type"})
"""Java takes an object with such a key for something else, or refuses the whole document."""
_OBJECT_KEY = re.compile(rb'("\{\\"(?:[^"\\]|\\.)*"):')
"""A key that is an object's text. A closing quote is never followed by a brace, so it starts there."""
_QUEUE_FIELDS = {"brokerName", "queueId", "topic"}
_STEP = re.compile(r"\.((?:[^.\[\]\\]|\\.)+)|\[(\d+)\]|\[\"([^\"]+)\"\]")
"""Of the path of a reference; Java writes a backslash before what is neither a letter nor a digit."""
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


def loads(data: bytes | str, *, limit: int | None = REQUEST_LIMIT) -> Any:
    """Parses a document of either dialect.

    Args:
        limit: most bytes of a document that is not standard JSON; None for files and for answers we asked for.

    Raises:
        RemoteProtocolError: it is neither, or longer than allowed.
    """
    try:
        value = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _check_length(data, limit, f"is not standard JSON ({error})")
        value = _dialect(data if isinstance(data, str) else _to_text(data), limit)
    if has_references(data):
        _check_length(data, limit, "has references ($ref)")
        try:
            value = _resolve(value, value, [value])
        except RecursionError:
            raise RemoteProtocolError("the JSON is nested too deeply for its references") from None
    return value


def has_references(data: bytes | str) -> bool:
    return ('"$ref"' in data) if isinstance(data, str) else (b'"$ref"' in data)


def _check_length(data: bytes | str, limit: int | None, what: str) -> None:
    if limit is not None and len(data) > limit:
        raise RemoteProtocolError(
            f"the JSON of {len(data)} bytes {what}; such a document may have {limit} bytes here: "
            "write all keys as strings"
        )


def _dialect(text: str, limit: int | None) -> Any:
    try:
        return _decode(_STRANGE_KEY.sub(_quoted, text))
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        pass
    _check_length(text, None if limit is None else limit // _SCANNER_SLOWNESS, "has more than bare keys")
    return _Scanner(text).document()


def _quoted(match: re.Match[str]) -> str:
    key = match.group(1)
    if key is None:
        return match.group()
    if key[0] != "{":
        return f'"{key}"'
    try:
        return _encode(_encode(_decode(key)).decode()).decode()
    except msgspec.MsgspecError:
        return match.group()


def dumps(value: Any, *, queue_keys: bool = False) -> bytes:
    """Compact JSON; integer keys are quoted.

    Args:
        queue_keys: whether keys may be of ``queue_text``, to be written as bare objects. Standard readers do not take
            such a text, so nobody else may choose keys of the document.
    """
    text = without_references(_encode(value))
    return _OBJECT_KEY.sub(_bare, text) if queue_keys else text


def without_references(text: bytes) -> bytes:
    """The same JSON, in which no reader here finds a reference."""
    return text.replace(b'"$ref"', b'"\\u0024ref"')


def _bare(match: re.Match[bytes]) -> bytes:
    key = _decode(match.group(1))
    try:
        is_queue = _decode(key).keys() == _QUEUE_FIELDS
    except (msgspec.MsgspecError, RecursionError):
        is_queue = False
    return bytes(key.encode()) + b":" if is_queue else match.group()


def dumps_pretty(value: Any) -> bytes:
    """For files people open."""
    return without_references(msgspec.json.format(_encode(value), indent=2))


class Rows:
    """A table of a document, row by row, for ``pretty_pieces``; of large rows fewer go into one piece."""

    __slots__ = ("at_once", "rows")

    def __init__(self, rows: Iterable[tuple[str, object]], *, at_once: int = _ROWS_AT_ONCE) -> None:
        self.rows = rows
        self.at_once = at_once


def pretty_pieces(document: Mapping[str, object]) -> Iterator[bytes]:
    """As ``dumps_pretty``, but in pieces that take a millisecond each: ``Rows`` may be many."""
    opening = "{\n"
    for key, value in document.items():
        start = f"{opening}  {_encode(key).decode()}: "
        opening = ",\n"
        if not isinstance(value, Rows):
            yield start.encode() + dumps_pretty(value).replace(b"\n", b"\n  ")
            continue
        rows = iter(value.rows)
        separator = f"{start}{{\n".encode()
        while chunk := dict(islice(rows, value.at_once)):
            # One level deeper than it is, so that its lines are indented; that level's own lines are cut off.
            text = dumps_pretty([chunk])
            yield separator + text[len(b"[\n  {\n") : -len(b"\n  }\n]")]
            separator = b",\n"
        yield f"{start}{{}}".encode() if separator != b",\n" else b"\n  }"
    yield b"{}" if opening == "{\n" else b"\n}"


def queue_key(key: object) -> MessageQueue:
    """A map key that stands for a queue: an object, or the text of one."""
    raw = loads(key) if isinstance(key, str) else key
    if not isinstance(raw, dict):
        raise RemoteProtocolError(f"map key {key!r} is no message queue")
    try:
        return MessageQueue(str(raw["topic"]), str(raw["brokerName"]), int(raw["queueId"]))
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"map key {key!r} is no message queue") from error


def queue_text(queue: MessageQueue) -> str:
    """A queue as a map key; ``dumps`` with ``queue_keys`` writes the bare object that every Java version reads.

    Up to 5.3 Java also reads the quoted text; 5.5 does not.
    """
    return _encode(queue_object(queue)).decode()


def queue_object(queue: MessageQueue) -> dict[str, str | int]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def _to_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"the JSON is not UTF-8: {error}") from error


class _Scanner:
    """Recursive descent over text; depth is bounded, so a hostile document cannot overflow."""

    __slots__ = ("_depth", "_position", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._depth = 0

    def document(self) -> Any:
        value = self._value()
        self._skip_space()
        if self._position != len(self._text):
            raise self._wrong("text after the document")
        return value

    def _wrong(self, what: str) -> RemoteProtocolError:
        near = self._text[self._position : self._position + 20]
        return RemoteProtocolError(f"JSON at character {self._position}: {what}, near {near!r}")

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self._position)
        assert match is not None
        self._position = match.end()

    def _peek(self) -> str:
        self._skip_space()
        return self._text[self._position : self._position + 1]

    def _value(self) -> Any:
        character = self._peek()
        if character == "{":
            return self._object()
        if character == "[":
            return self._array()
        if character in ('"', "'"):
            return self._string(character)
        number = _NUMBER.match(self._text, self._position)
        if number is not None:
            self._position = number.end()
            digits = number.group().rstrip("LSBFD")
            try:
                return float(digits) if number.group(1) or number.group(2) else int(digits)
            except ValueError as error:
                raise self._wrong("a number too long") from error
        word = _BARE.match(self._text, self._position)
        if word is not None and word.group() in _WORDS:
            self._position = word.end()
            return _WORDS[word.group()]
        raise self._wrong("no value")

    def _object(self) -> dict[str, Any]:
        self._enter()
        found: dict[str, Any] = {}
        self._position += 1
        while True:
            character = self._peek()
            if character == "}":
                self._position += 1
                self._depth -= 1
                return found
            if character == ",":
                self._position += 1
                continue
            key = self._key(character)
            if self._peek() != ":":
                raise self._wrong("no colon after a key")
            self._position += 1
            found[key] = self._value()

    def _key(self, character: str) -> str:
        if character in ('"', "'"):
            return self._string(character)
        if character == "{":
            return _encode(self._object()).decode()
        word = _BARE.match(self._text, self._position)
        if word is None:
            raise self._wrong("no key")
        self._position = word.end()
        return word.group()

    def _array(self) -> list[Any]:
        self._enter()
        found: list[Any] = []
        self._position += 1
        while True:
            character = self._peek()
            if character == "]":
                self._position += 1
                self._depth -= 1
                return found
            if character == ",":
                self._position += 1
                continue
            found.append(self._value())

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._wrong(f"nested deeper than {_MAX_DEPTH}")

    def _string(self, quote: str) -> str:
        start = self._position
        if quote == '"':
            try:
                text, self._position = json.decoder.scanstring(self._text, start + 1, False)  # type: ignore[attr-defined]
            except ValueError as error:
                raise self._wrong(f"bad string: {error}") from error
            return self._checked(str(text))
        end = self._text.find(quote, start + 1)
        if end < 0:
            raise self._wrong("string without end")
        self._position = end + 1
        return self._checked(self._text[start + 1 : end])

    def _checked(self, text: str) -> str:
        """Half of a surrogate pair is no text: nothing could write it again."""
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise self._wrong("half of a surrogate pair") from error
        return text


def _resolve(value: Any, root: Any, above: list[Any]) -> Any:
    if isinstance(value, dict):
        if len(value) == 1 and isinstance(value.get("$ref"), str):
            return _follow(value, root, above)
        return {key: _resolve(item, root, [*above, item]) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, root, [*above, item]) for item in value]
    return value


def _follow(reference: dict[str, str], root: Any, above: list[Any]) -> Any:
    """The object a ``$ref`` means; the reference itself if it leads nowhere or would loop."""
    path = reference["$ref"]
    if not path.startswith(("$.", "$[")):
        return reference
    target = root
    for name, index, quoted in _STEP.findall(path):
        try:
            target = target[int(index)] if index else target[_ESCAPE.sub(r"\1", name) or quoted]
        except (KeyError, IndexError, TypeError):
            return reference
    return reference if any(target is item for item in above) else target
