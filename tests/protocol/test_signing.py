"""ACL signatures: made, and verified by the rules of every client."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import BINARY_HEADER, JSON_HEADER, RemotingCommand
from gimbalmq.protocol.frames import FrameReader
from gimbalmq.protocol.serializers import decode_command, encode_frame
from gimbalmq.protocol.signing import SIGNATURE, SecretKey, Signer, signature, signed_text, verified

KEY = SecretKey("12345678")
SIGNER = Signer("RocketMQ", "12345678")


def signed(code: int = 11, fields: dict[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
    command = RemotingCommand(code, fields or {"topic": "TopicA", "queueId": "1"}, body)
    SIGNER.sign(command)
    return command


def received(command: RemotingCommand) -> RemotingCommand:
    """The same as its peer reads it."""
    (frame,) = FrameReader().feed(encode_frame(command))
    return decode_command(*frame)


def test_javas_vector() -> None:
    fields = {"topic": "TopicA", "AccessKey": "RocketMQ", "queueId": "1"}
    assert signature(fields, b"body", "12345678") == "+P19aCLCf5BPFoggxZ6P2j0bAU0="
    # A signature that is there already is no part of what is signed.
    assert signature({**fields, "Signature": "old"}, b"body", "12345678") == "+P19aCLCf5BPFoggxZ6P2j0bAU0="


def test_request_is_signed_with_its_key_and_token() -> None:
    command = RemotingCommand(11, {"topic": "TopicA", "queueId": "1"}, b"body")
    Signer("RocketMQ", "12345678").sign(command)
    assert command.ext_fields == {
        "topic": "TopicA",
        "queueId": "1",
        "AccessKey": "RocketMQ",
        "Signature": "+P19aCLCf5BPFoggxZ6P2j0bAU0=",
    }
    bare = RemotingCommand(34)
    Signer("k", "s", "token").sign(bare)
    assert bare.ext_fields is not None
    assert bare.ext_fields.keys() == {"AccessKey", "SecurityToken", "Signature"}
    assert bare.ext_fields["Signature"] == signature({"AccessKey": "k", "SecurityToken": "token"}, b"", "s")


def test_a_secret_of_any_length_gives_the_signature_that_hmac_gives() -> None:
    import base64
    import hashlib
    import hmac

    for secret in ("", "s", "x" * 64, "x" * 65, "geheim-ü", "x" * 1000):
        expected = hmac.new(secret.encode(), b"textbody", hashlib.sha1).digest()
        assert SecretKey(secret).signature(b"text", b"body") == base64.b64encode(expected)
    assert "12345678" not in repr(KEY)


def test_names_are_sorted_as_java_sorts_them() -> None:
    # 16-bit units: the letter outside of the first plane is two units, of which the first is below U+FFFD.
    assert signed_text({"\ufffd": "2", "\U0001f600": "1", "Z": "0"}) == "012"
    assert signed_text({"b": "2", "B": "1", SIGNATURE: "no"}) == "12"
    assert signed_text({"one": "x"}) == "x"
    assert signed_text({}) == ""


def test_the_order_of_fields_on_the_wire_does_not_matter() -> None:
    assert signed_text({"a": "1", "b": "2", "c": "3"}) == signed_text({"c": "3", "a": "1", "b": "2"}) == "123"


def test_what_has_changed_on_the_way_is_not_verified() -> None:
    command = signed(body=b"body")
    assert verified(command, KEY)
    assert not verified(command, SecretKey("12345679"))
    fields = dict(command.ext_fields or {})
    for changed in (
        {**fields, "topic": "TopicB"},
        {**fields, "more": "1"},
        {name: value for name, value in fields.items() if name != "queueId"},
        {name: value for name, value in fields.items() if name != SIGNATURE},
        {**fields, SIGNATURE: ""},
        {**fields, SIGNATURE: fields[SIGNATURE][:-1]},
        {**fields, SIGNATURE: fields[SIGNATURE] + "="},
        {**fields, SIGNATURE: fields[SIGNATURE].swapcase()},
        {**fields, SIGNATURE: "ü" * 28},
        {},
    ):
        assert not verified(RemotingCommand(11, changed, b"body"), KEY), changed
    assert not verified(RemotingCommand(11, fields, b"bodY"), KEY)
    assert not verified(RemotingCommand(11, None, b"body"), KEY)


def test_a_query_by_unique_key_of_an_old_client_has_one_field_that_is_not_signed() -> None:
    command = signed(RequestCode.QUERY_MESSAGE, {"topic": "T", "key": "k"})
    command.ext_fields = {**(command.ext_fields or {}), "_UNIQUE_KEY_QUERY": "true"}
    command.version = 399
    assert verified(command, KEY)
    command.version = 400
    assert not verified(command, KEY)
    command.version, command.code = 399, RequestCode.PULL_MESSAGE
    assert not verified(command, KEY)
    # Clients from 4.9.4 on sign it, and others may.
    modern = signed(RequestCode.QUERY_MESSAGE, {"topic": "T", "_UNIQUE_KEY_QUERY": "true"})
    for modern.version in (401, 399):
        assert verified(modern, KEY)


def test_a_zone_may_have_been_added_after_the_signature() -> None:
    zone = {"__ZONE_NAME": "z", "__ZONE_MODE": "true"}
    command = signed()
    command.ext_fields = {**(command.ext_fields or {}), **zone}
    assert verified(command, KEY)
    assert verified(signed(fields={"topic": "T", **zone}), KEY)
    command.ext_fields = {**command.ext_fields, "zone": "z"}
    assert not verified(command, KEY)
    # Fields without a value may be there as well.
    command = signed(fields={"a": "1", "nothing": "null"})
    command.ext_fields = {**(command.ext_fields or {}), **zone, "nothing": ""}
    command.serialize_type = BINARY_HEADER
    assert verified(received(command), KEY)


def test_a_large_body_is_hashed_once_only() -> None:
    for size, expected in ((1 << 22, True), ((1 << 22) + 1, False)):
        command = signed(body=bytes(size))
        assert verified(command, KEY)
        command.ext_fields = {**(command.ext_fields or {}), "__ZONE_NAME": "z"}
        assert verified(command, KEY) == expected


def test_so_many_fields_that_only_putting_them_in_order_takes_long_are_not_verified() -> None:
    for count, expected in ((250, True), (300, False)):
        command = RemotingCommand(310, {f"n{number}": "v" for number in range(count)})
        SIGNER.sign(command)
        assert verified(command, KEY) == expected
    empty = signed()
    empty.empty_fields = tuple(f"n{number}" for number in range(300))
    assert not verified(empty, KEY)


def test_a_request_shows_no_signature_and_no_secret() -> None:
    command = RemotingCommand(50, {"accessKey": "ann-1234", "secretKey": "never-shown-1"})
    Signer("abc", "12345678", "never-shown-2").sign(command)
    shown = repr(command)
    assert "ann-1234" in shown and "never-shown" not in shown
    assert (command.ext_fields or {})[SIGNATURE] not in shown


def test_a_field_without_a_value_was_signed_as_nothing_or_as_null() -> None:
    for text, encoding in (("", BINARY_HEADER), ("null", BINARY_HEADER), ("", JSON_HEADER)):
        command = signed(fields={"a": "1", "nothing": text, "z": "2"})
        command.ext_fields = {**(command.ext_fields or {}), "nothing": ""}
        command.serialize_type = encoding
        assert verified(received(command), KEY), (text, encoding)
    command = signed(fields={"a": "1", "nothing": "nil", "z": "2"})
    command.ext_fields = {**(command.ext_fields or {}), "nothing": ""}
    command.serialize_type = BINARY_HEADER
    assert not verified(received(command), KEY)


TEXTS = st.text(max_size=12)
FIELDS = st.dictionaries(TEXTS, TEXTS, max_size=8)
PRINTED = st.text(st.characters(codec="utf-8"), max_size=12)


@given(st.dictionaries(PRINTED.filter(bool), PRINTED, max_size=8), st.binary(max_size=64), TEXTS)
def test_whatever_is_signed_is_verified_and_by_no_other_secret(
    fields: dict[str, str], body: bytes, other: str
) -> None:
    command = RemotingCommand(310, fields, body)
    SIGNER.sign(command)
    assert verified(received(command), KEY)
    # Zeros at the end of a key mean nothing to HMAC.
    assert verified(command, SecretKey(other)) == (other.rstrip("\0") == "12345678")


@given(FIELDS, st.binary(max_size=64), st.one_of(TEXTS, st.text(min_size=28, max_size=28)))
@example({"\ud800": "\udfff"}, b"", "A" * 28)
@example({}, b"", "=" * 28)
def test_garbage_is_never_verified_and_never_an_error(
    fields: dict[str, str], body: bytes, claimed: str
) -> None:
    command = RemotingCommand(
        12, {**fields, SIGNATURE: claimed}, body, empty_fields=("x", "_UNIQUE_KEY_QUERY")
    )
    for version in (0, 399, 513):
        command.version = version
        assert not verified(command, KEY)


@given(st.data(), st.binary(min_size=1, max_size=40))
def test_a_changed_byte_of_a_signed_frame_is_not_verified(data: st.DataObject, body: bytes) -> None:
    """Bytes of values and body; the frame's number, code and flags are not signed."""
    command = signed(310, {"a": "group", "b": "topic", "i": "UNIQ_KEY\x01AB\x02"}, body)
    fields = dict(command.ext_fields or {})
    name = data.draw(st.sampled_from(["a", "b", "i", "AccessKey", "body"]))
    if name == "body":
        place = data.draw(st.integers(0, len(body) - 1))
        changed = bytearray(body)
        changed[place] ^= data.draw(st.integers(1, 255))
        assert not verified(RemotingCommand(310, fields, bytes(changed)), KEY)
        return
    place = data.draw(st.integers(0, len(fields[name]) - 1))
    letter = data.draw(st.characters(codec="ascii").filter(lambda letter: letter != fields[name][place]))
    fields[name] = fields[name][:place] + letter + fields[name][place + 1 :]
    assert not verified(RemotingCommand(310, fields, body), KEY)
