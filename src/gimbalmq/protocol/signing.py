"""ACL signature of a command: HMAC-SHA1 over the values of the ext-fields, by name, and the body.

What it proves: whoever made the request held the secret, and the values of its fields and its body are as they were
then. What it does not prove: the text has neither the request's code, nor its number, nor a time, nor a nonce. So a
request that somebody has seen can be sent again for as long as the secret stays the same, and, because there is nothing
between two values, letters may be moved from the end of one to the beginning of the next. Only TLS keeps others from
seeing requests; users that are bound to addresses or to a client certificate limit who can use what was seen.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"
SIGNATURE = "Signature"

_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
"""Clients up to 4.9.3 add it to the fields of request 12 after they have signed them."""

_V4_9_3 = 399

_ZONE = ("__ZONE_NAME", "__ZONE_MODE")
"""Java's clients since 5.0 add them after they have signed; they mean nothing here."""

_MOST_BYTES_AGAIN = 4 << 20
"""A body of more is hashed once only, because the event loop would wait for it."""

_BLOCK_BYTES = 64
_ORDERS_KEPT = 512
_FIELDS_KEPT = 64
_MOST_FIELDS = 256
"""No client signs so many; more of them are not put in order, because the event loop would wait for it."""
_DIGEST_LETTERS = 28

_orders: dict[tuple[str, ...], itemgetter[Any]] = {}
"""Fields in the order in which a peer writes them, to fields in the order in which they are signed."""


class SecretKey:
    """A secret made ready for many signatures: its two blocks are hashed once, which is half of the work."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: str) -> None:
        raw = secret.encode("utf-8", "surrogatepass")
        if len(raw) > _BLOCK_BYTES:
            raw = hashlib.sha1(raw).digest()
        raw = raw.ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha1(bytes(byte ^ 0x36 for byte in raw))
        self._outer = hashlib.sha1(bytes(byte ^ 0x5C for byte in raw))

    def __repr__(self) -> str:
        return "SecretKey(...)"

    def signature(self, text: bytes, body: bytes | bytearray | memoryview) -> bytes:
        """The signature of these bytes, in Base64."""
        inner = self._inner.copy()
        inner.update(text)
        if body:
            inner.update(body)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return base64.b64encode(outer.digest())


def signed_text(fields: Mapping[str, str]) -> str:
    """The values of all fields but the signature itself, by the fields' names."""
    names = tuple(fields)
    order = _orders.get(names)
    if order is None:
        order = _remember_order(names)
    if order is None:
        return "".join([fields[name] for name in _sorted(names)])
    return "".join(order(fields))


def _remember_order(names: tuple[str, ...]) -> itemgetter[Any] | None:
    """None if there are too few names for it to work, or too many to keep."""
    wanted = _sorted(names)
    if not 1 < len(wanted) <= _FIELDS_KEPT or sum(map(len, names)) > _FIELDS_KEPT * 32:
        return None
    if len(_orders) >= _ORDERS_KEPT:
        _orders.clear()
    order = _orders[names] = itemgetter(*wanted)
    return order


def _sorted(names: Sequence[str]) -> list[str]:
    signed = [name for name in names if name != SIGNATURE]
    if all(map(str.isascii, signed)):
        return sorted(signed)
    # Java compares 16-bit units.
    return sorted(signed, key=lambda name: name.encode("utf-16-be", "surrogatepass"))


def signature(fields: Mapping[str, str], body: bytes | bytearray | memoryview, secret_key: str) -> str:
    """The signature of these fields; one that is among them is left out.

    >>> signature({"topic": "TopicA", "queueId": "1", "AccessKey": "RocketMQ"}, b"body", "12345678")
    '+P19aCLCf5BPFoggxZ6P2j0bAU0='
    """
    return SecretKey(secret_key).signature(signed_text(fields).encode(), body).decode()


def fields_verified(fields: Mapping[str, str], body: bytes | bytearray | memoryview, key: SecretKey) -> bool:
    """Whether these fields carry the signature that this key gives them; compared in constant time."""
    given = fields.get(SIGNATURE)
    return given is not None and text_verified(signed_text(fields), body, given, key)


def text_verified(text: str, body: bytes | bytearray | memoryview, given: str, key: SecretKey) -> bool:
    """The same of fields whose values were joined already."""
    if len(given) != _DIGEST_LETTERS:
        return False
    try:
        return hmac.compare_digest(key.signature(text.encode(), body), given.encode("ascii"))
    except UnicodeEncodeError:  # half a surrogate pair is in no text that anybody could have signed
        return False


def verified(command: RemotingCommand, key: SecretKey) -> bool:
    """Whether a request carries the signature that this key gives it, by the rules of every client since 4.4.

    Some clients add fields after they have signed: ``_UNIQUE_KEY_QUERY`` of request 12 up to 4.9.3, and their zone
    since 5.0; such a field counts or does not. A field without a value in RocketMQ's own header may have been signed as
    nothing, or as the four letters that Java writes for no value.
    """
    fields = command.ext_fields
    if not fields or SIGNATURE not in fields:
        return False
    if len(fields) + len(command.empty_fields) > _MOST_FIELDS:
        return False
    if fields_verified(fields, command.body, key):
        return True
    late = {name for name in _ZONE if name in fields}
    if (
        command.code == RequestCode.QUERY_MESSAGE
        and command.version <= _V4_9_3
        and _UNIQUE_KEY_QUERY in fields
    ):
        late.add(_UNIQUE_KEY_QUERY)
    if not (late or command.empty_fields) or len(command.body) > _MOST_BYTES_AGAIN:
        return False
    signed = {name: value for name, value in fields.items() if name not in late}
    return (bool(late) and fields_verified(signed, command.body, key)) or (
        bool(command.empty_fields)
        and fields_verified({**dict.fromkeys(command.empty_fields, "null"), **signed}, command.body, key)
    )


def unsigned_fields(command: RemotingCommand) -> dict[str, str]:
    """The ext-fields of a request that is passed on, without what its sender has signed it with.

    Whoever gets such a signature can send the request again, and under another code: that is not signed. Clients choose
    their own ids, so they could even choose what an administrator who asks for them signs.
    """
    fields = command.ext_fields or {}
    return {
        name: value for name, value in fields.items() if name not in (ACCESS_KEY, SECURITY_TOKEN, SIGNATURE)
    }


class Signer:
    """Signs requests for one access key (Java: AclClientRPCHook)."""

    __slots__ = ("_access_key", "_key", "_security_token")

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        self._access_key = access_key
        self._key = SecretKey(secret_key)
        self._security_token = security_token

    def sign(self, command: RemotingCommand) -> None:
        """Adds key, token and signature to the request's ext-fields."""
        fields = dict(command.ext_fields or {})
        fields[ACCESS_KEY] = self._access_key
        if self._security_token is not None:
            fields[SECURITY_TOKEN] = self._security_token
        text = signed_text(fields).encode()
        fields[SIGNATURE] = self._key.signature(text, command.body).decode()
        command.ext_fields = fields
