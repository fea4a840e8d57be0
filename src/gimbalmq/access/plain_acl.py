"""One file of accounts, ``plain_acl.yml`` or one below ``acl/`` (RocketMQ 4.x): what it says, and how it is written.

Its words are Apache's, and so are their meanings, with one exception: an unknown word is refused. Apache's broker takes
an unknown right for DENY, its migration to 5.x takes the same word for "everything is allowed", and both pass over a
misspelt key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from gimbalmq.access import plain_yaml
from gimbalmq.access.plain_addresses import NOBODY, AddressPattern, read_pattern
from gimbalmq.access.plain_yaml import Field
from gimbalmq.errors import ConfigError
from gimbalmq.model.topics import group_problem, topic_problem

LEAST_LETTERS = 7
"""Of a key and of a secret; Apache's broker refuses shorter ones, too."""

MOST_NAMES = 5_000
"""Of one list of an account; each decision that is not remembered looks at all of them."""

_MOST_LETTERS = 1024
_FILE_KEYS = ("globalWhiteRemoteAddresses", "accounts", "dataVersion")
_ACCOUNT_KEYS = (
    "accessKey",
    "secretKey",
    "whiteRemoteAddress",
    "admin",
    "defaultTopicPerm",
    "defaultGroupPerm",
    "topicPerms",
    "groupPerms",
)
_VERSION_KEYS = ("counter", "timestamp", "stateVersion")


class Perm(Enum):
    """A right of 4.x."""

    DENY = "DENY"
    PUB = "PUB"
    SUB = "SUB"
    PUB_SUB = "PUB|SUB"

    @property
    def publishes(self) -> bool:
        return self in (Perm.PUB, Perm.PUB_SUB)

    @property
    def subscribes(self) -> bool:
        return self in (Perm.SUB, Perm.PUB_SUB)


_WORDS = {perm.value: perm for perm in Perm} | {"SUB|PUB": Perm.PUB_SUB}


@dataclass(frozen=True, slots=True)
class Account:
    """One account.

    Attributes:
        white: from these addresses everything is allowed without a signature.
        topics, groups: rights by name; names that are not listed have the default.
    """

    access_key: str
    secret_key: str = field(repr=False)
    white: AddressPattern = NOBODY
    admin: bool = False
    default_topic: Perm = Perm.DENY
    default_group: Perm = Perm.DENY
    topics: Mapping[str, Perm] = field(default_factory=dict)
    groups: Mapping[str, Perm] = field(default_factory=dict)

    def document(self) -> dict[str, object]:
        """What a file says of it."""
        document: dict[str, object] = {"accessKey": self.access_key, "secretKey": self.secret_key}
        if self.white.text:
            document["whiteRemoteAddress"] = self.white.text
        document["admin"] = self.admin
        document["defaultTopicPerm"] = self.default_topic.value
        document["defaultGroupPerm"] = self.default_group.value
        if self.topics:
            document["topicPerms"] = perm_texts(self.topics)
        if self.groups:
            document["groupPerms"] = perm_texts(self.groups)
        return document


@dataclass(frozen=True, slots=True)
class AccountFile:
    """What one file says.

    Attributes:
        white: from these addresses everything is allowed, without a key.
        accounts: in the file's order; if a key comes twice, its first account counts.
        counter, timestamp: the file's version, which requests that change the file raise.
    """

    white: tuple[AddressPattern, ...] = ()
    accounts: tuple[Account, ...] = ()
    counter: int = 0
    timestamp: int = 0

    def find(self, access_key: str) -> Account | None:
        return next((account for account in self.accounts if account.access_key == access_key), None)

    def with_account(self, account: Account) -> AccountFile:
        """With this account instead of the one of the same key, or behind the others."""
        key = account.access_key
        if self.find(key) is None:
            return replace(self, accounts=(*self.accounts, account))
        kept = [old for old in self.accounts if old.access_key != key]
        place = [old.access_key for old in self.accounts].index(key)
        return replace(self, accounts=(*kept[:place], account, *kept[place:]))

    def without_account(self, access_key: str) -> AccountFile:
        return replace(self, accounts=tuple(old for old in self.accounts if old.access_key != access_key))

    def next_version(self, now_ms: int) -> AccountFile:
        return replace(self, counter=self.counter + 1, timestamp=now_ms)

    def text(self) -> bytes:
        """The file. Comments that it had are lost."""
        document: dict[str, object] = {}
        if self.white:
            document["globalWhiteRemoteAddresses"] = [pattern.text for pattern in self.white]
        document["accounts"] = [account.document() for account in self.accounts]
        document["dataVersion"] = [{"counter": self.counter, "timestamp": self.timestamp}]
        return plain_yaml.write(document)


def read_file(data: bytes, file: str) -> AccountFile | None:
    """Reads a file; None if there is nothing in it, or only comments.

    Args:
        file: the name that errors show.

    Raises:
        ConfigError: something in it cannot be understood; the error names file and line, and no secret.
    """
    document = plain_yaml.read(data, file)
    if document is None:
        return None
    parts = document.fields(_FILE_KEYS)
    white = parts.get("globalWhiteRemoteAddresses")
    accounts = parts.get("accounts")
    counter, timestamp = _version(parts.get("dataVersion"))
    return AccountFile(
        () if white is None else tuple(read_pattern(item.text(), item.where) for item in white.items()),
        () if accounts is None else tuple(_account(item) for item in accounts.items()),
        counter,
        timestamp,
    )


def _account(field: Field) -> Account:
    parts = field.fields(_ACCOUNT_KEYS)
    for name in ("accessKey", "secretKey"):
        if name not in parts:
            raise field.refused("...", f"the account that begins here has no {name}: give it one")
    access_key = check_key(parts["accessKey"].text(), parts["accessKey"].where)
    secret_key = check_key(parts["secretKey"].text(), parts["secretKey"].where)
    white = parts.get("whiteRemoteAddress")
    admin = parts.get("admin")
    topics, groups = _rights(parts.get("topicPerms"), parts.get("groupPerms"))
    return Account(
        access_key,
        secret_key,
        NOBODY if white is None else read_pattern(white.text(), white.where),
        admin is not None and admin.boolean(),
        _default(parts.get("defaultTopicPerm")),
        _default(parts.get("defaultGroupPerm")),
        topics,
        groups,
    )


def check_key(text: str, option: str) -> str:
    """Raises ConfigError if it cannot be a key or a secret."""
    if not LEAST_LETTERS <= len(text) <= _MOST_LETTERS:
        raise ConfigError(option, text, f"it has {len(text)} letters; use {LEAST_LETTERS} to {_MOST_LETTERS}")
    if not text.isprintable() or text != text.strip():
        raise ConfigError(option, text, "leave out blanks around it and unprintable letters")
    return text


def _default(field: Field | None) -> Perm:
    return Perm.DENY if field is None else read_perm(field.text(), field.where)


def read_perm(text: str, option: str, shown: str | None = None) -> Perm:
    """The right that a word stands for; raises ConfigError, which shows ``shown`` if the word is only a part of it."""
    perm = _WORDS.get(text.strip())
    if perm is None:
        raise ConfigError(option, shown or text, f"use {', '.join(_WORDS)}, in capital letters")
    return perm


def _rights(topics: Field | None, groups: Field | None) -> tuple[Mapping[str, Perm], Mapping[str, Perm]]:
    return (
        {} if topics is None else read_topics((item.text(), item.where) for item in topics.items()),
        {} if groups is None else read_groups((item.text(), item.where) for item in groups.items()),
    )


def read_topics(texts: Iterable[tuple[str, str]]) -> Mapping[str, Perm]:
    """Rights by topic, from texts ``name=PERM``, each with the place that an error shows; raises ConfigError."""
    return _read_rights(texts, topic_problem, "defaultTopicPerm")


def read_groups(texts: Iterable[tuple[str, str]]) -> Mapping[str, Perm]:
    """Rights by group."""
    return _read_rights(texts, group_problem, "defaultGroupPerm")


def _read_rights(
    texts: Iterable[tuple[str, str]], problem: Callable[[str], str | None], default: str
) -> Mapping[str, Perm]:
    found: dict[str, Perm] = {}
    for text, option in texts:
        name, equals, word = text.partition("=")
        name = name.strip()
        if not equals or not name or "=" in word:
            raise ConfigError(option, text, "write name=PERM")
        if (wrong := problem(name)) is not None:
            raise ConfigError(
                option, text, f"{wrong} Names have no wildcards here; for all other names use {default}"
            )
        perm = read_perm(word, option, text)
        # Apache's broker takes the last. Nobody can have meant both.
        if found.get(name, perm) != perm:
            raise ConfigError(option, text, f"{name} has the right {found[name].value} as well: remove one")
        found[name] = perm
        if len(found) > MOST_NAMES:
            raise ConfigError(
                option, text, f"an account may list {MOST_NAMES} names; for all others use {default}"
            )
    return found


def perm_texts(rights: Mapping[str, Perm]) -> list[str]:
    """The same as texts."""
    return [f"{name}={perm.value}" for name, perm in rights.items()]


def _version(field: Field | None) -> tuple[int, int]:
    if field is None:
        return 0, 0
    items = field.items()
    if not items:
        return 0, 0
    parts = items[0].fields(_VERSION_KEYS)
    return tuple(  # type: ignore[return-value]
        parts[name].number() if name in parts else 0 for name in ("counter", "timestamp")
    )
