"""YAML as the files of accounts need it: every value is a text, each error names its line, and none tells a secret.

The document is walked as nodes and never made into objects: an unquoted ``12345678`` stays the text that it is, no tag
can construct anything, and a key that nobody asks for is an error.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

import yaml

from gimbalmq._options import did_you_mean
from gimbalmq.errors import ConfigError

MOST_BYTES = 1024 * 1024
"""A longer file is not read: YAML is slow to read, and this is room for some thousand accounts."""

_TAG = "tag:yaml.org,2002:"
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_PLAIN_NUMBER = re.compile(r"0|-?[1-9][0-9]*")
_TRUE = frozenset({"true", "yes", "on"})
_FALSE = frozenset({"false", "no", "off"})


class Field:
    """One value of a file, with the words that an error needs.

    Attributes:
        name: the key it stands under.
        file: the file's name, as an error shows it.
    """

    def __init__(self, node: yaml.Node, name: str, file: str) -> None:
        self._node = node
        self.name = name
        self.file = file

    @property
    def where(self) -> str:
        """The key, the file and the line. The key comes first: by its name ConfigError knows a secret."""
        return f"{self.name} of {self.file} line {self._node.start_mark.line + 1}"

    def refused(self, value: object, why: str) -> ConfigError:
        """The error for a value."""
        return ConfigError(self.where, value, why)

    @property
    def absent(self) -> bool:
        """Whether nothing stands behind the key, or the word null."""
        return isinstance(self._node, yaml.ScalarNode) and self._tag in ("null", "str") and self._blank

    def fields(self, known: Collection[str]) -> dict[str, Field]:
        """The fields of a mapping; absent ones are left out.

        Raises:
            ConfigError: it is no mapping, or has a key that is not known or comes twice.
        """
        if not isinstance(self._node, yaml.MappingNode):
            raise self.refused(self._kind, f"write a mapping with {', '.join(sorted(known))}")
        found: dict[str, Field] = {}
        for key, value in self._node.value:
            name = Field(key, self.name, self.file).text()
            if name not in known:
                wrong = Field(key, name, self.file)
                raise wrong.refused(name[:80], f"nothing has this name here{did_you_mean(name, known)}")
            if name in found:
                raise Field(key, name, self.file).refused(name, "it stands here twice: remove one")
            found[name] = Field(value, name, self.file)
        return {name: field for name, field in found.items() if not field.absent}

    def items(self) -> list[Field]:
        """The elements of a list.

        Raises:
            ConfigError: it is no list.
        """
        if not isinstance(self._node, yaml.SequenceNode):
            raise self.refused(self._kind, "write a list, each element on a line of its own behind a -")
        return [Field(node, self.name, self.file) for node in self._node.value]

    def text(self) -> str:
        """A single value as it is written.

        Raises:
            ConfigError: it is a list or a mapping, or Apache's broker would read something else than what is written.
        """
        text = self._scalar()
        if self._tag == "int" and not _PLAIN_NUMBER.fullmatch(text):
            raise self.refused(text, "YAML takes it for a number in another notation: put it in quotes")
        if self._tag not in ("str", "int", "null", "bool", "value", "merge"):
            raise self.refused(text, f"YAML takes it for a {self._tag}: put it in quotes")
        return text

    def texts(self) -> list[str]:
        """The elements of a list of single values."""
        return [item.text() for item in self.items()]

    def boolean(self) -> bool:
        text = self._scalar().lower()
        if text in _TRUE:
            return True
        if text in _FALSE:
            return False
        raise self.refused(text, "use true or false")

    def number(self) -> int:
        text = self._scalar()
        if not _PLAIN_NUMBER.fullmatch(text) or len(text) > 19:
            raise self.refused(text[:80], "use a whole number")
        return int(text)

    def _scalar(self) -> str:
        if not isinstance(self._node, yaml.ScalarNode):
            raise self.refused(self._kind, "write a single value")
        value: str = self._node.value
        return value

    @property
    def _blank(self) -> bool:
        return self._tag == "null" or not self._node.value.strip()

    @property
    def _tag(self) -> str:
        tag: str = self._node.tag
        return tag.removeprefix(_TAG)

    @property
    def _kind(self) -> str:
        if isinstance(self._node, yaml.MappingNode):
            return "a mapping"
        return "a list" if isinstance(self._node, yaml.SequenceNode) else "a single value"


def read(data: bytes, file: str) -> Field | None:
    """The document of a file; None if there is none, only comments, or nothing.

    Raises:
        ConfigError: it is no YAML, or longer than ``MOST_BYTES``.
    """
    if len(data) > MOST_BYTES:
        raise ConfigError(
            "aclConfigPath", file, f"it has {len(data)} bytes and may have {MOST_BYTES}: split it"
        )
    try:
        node = yaml.compose(data.decode("utf-8-sig"), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise ConfigError("aclConfigPath", file, f"byte {error.start} is not UTF-8") from None
    except yaml.MarkedYAMLError as error:
        # The error's own text shows the line, and the line may hold a secret.
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        problem = _QUOTED.sub("...", error.problem or "the syntax is wrong")
        raise ConfigError("aclConfigPath", file, f"{line}{problem}") from None
    except yaml.YAMLError:
        raise ConfigError("aclConfigPath", file, "it has characters that YAML does not allow") from None
    except RecursionError:
        raise ConfigError("aclConfigPath", file, "lists and mappings are nested too deep") from None
    if node is None:
        return None
    document = Field(node, "the document", file)
    return None if document.absent else document


def write(document: Any, head: Iterable[str] = ()) -> bytes:
    """The text of a document; Apache's broker and ``read`` read the same values."""
    text: str = yaml.safe_dump(document, sort_keys=False, default_flow_style=False, allow_unicode=True)
    return ("".join(f"# {line}\n" for line in head) + text).encode()
