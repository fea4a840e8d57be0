"""The fast way of signed sends against the plain one: it admits nothing that the plain check would refuse."""

from __future__ import annotations

import json
from typing import cast

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from gimbalmq.access.gate import Gate, NotAdmitted
from gimbalmq.broker.handlers import send_header
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.frames import Frame
from gimbalmq.protocol.serializers import decode_command
from gimbalmq.protocol.signing import SIGNATURE, SecretKey, Signer, verified
from gimbalmq.transport.channel import Channel

KEY = SecretKey("secret")


class Known:
    """A gate that knows one user, whose sends to the topic T are allowed."""

    def sender_key(self, _channel: Channel, name: str, topic: str) -> SecretKey | None:
        return KEY if (name, topic) == ("ann", "T") else None


def admitted(frame: Frame) -> object:
    try:
        return send_header.admitted(cast(Gate, Known()), cast(Channel, None), frame)
    except (NotAdmitted, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def frame_of(pairs: list[tuple[str, object]], body: bytes, code: int) -> Frame:
    """A frame whose header may have a field twice, which no encoder of ours writes."""
    fields = ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in pairs)
    header = f'{{"code":{code},"extFields":{{{fields}}},"flag":0,"language":"JAVA","opaque":7,"version":513}}'
    return (0, header.encode(), body)


NAMES = [name for name in send_header._SignedFields.__struct_fields__ if name not in ("AccessKey", SIGNATURE)]
NUMBERS = st.sampled_from(["0", "1", "7", "1700000000000", "-1", "", "x", "1_0", "٣", "9" * 30])
VALUES = st.one_of(
    NUMBERS, st.text(st.characters(codec="utf-8"), max_size=6), st.sampled_from(["true", "false"])
)
FIELDS = st.dictionaries(st.sampled_from([*NAMES, "z", "Zone"]), VALUES, max_size=12)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from([*NAMES, "z", "AccessKey", SIGNATURE]),
        st.one_of(VALUES, st.none(), st.integers(0, 9)),
    ),
    max_size=2,
)


@given(
    FIELDS,
    CHANGES,
    st.binary(max_size=8),
    st.booleans(),
    st.sampled_from(["secret", "guess"]),
    st.sampled_from([310, 311]),
)
@example({}, [("z", "1")], b"", False, "secret", 310)
@example({"m": "true"}, [], b"", False, "secret", 310)
@example({"g": "\u0663"}, [], b"", False, "secret", 310)
@example({"e": "1_0"}, [], b"", False, "secret", 310)
def test_whatever_is_admitted_is_signed_by_the_user_and_read_as_it_was_signed(
    fields: dict[str, str],
    changes: list[tuple[str, object]],
    body: bytes,
    touched: bool,
    secret: str,
    code: int,
) -> None:
    command = RemotingCommand(
        code, {"e": "0", "f": "0", "g": "1700000000000", "h": "0", **fields, "b": "T"}, body
    )
    Signer("ann", secret).sign(command)
    frame = frame_of([*(command.ext_fields or {}).items(), *changes], body + b"!" * touched, code)
    header = admitted(frame)
    if header is None:
        return
    assert not touched and secret == "secret" and code == 310
    plain = decode_command(*frame)
    assert verified(plain, KEY)
    seen = plain.ext_fields or {}
    assert msgspec.convert(seen, type(header.extFields), strict=False) == header.extFields  # type: ignore[attr-defined]


@given(st.sets(st.sampled_from(NAMES)))
def test_a_send_as_clients_sign_it_is_admitted(more: set[str]) -> None:
    needed = {"b": "T", "e": "3", "f": "0", "g": "1700000000000", "h": "0"}
    # Each value is another one, so that their order counts.
    fields = {**{name: f"<{name}>" for name in more}, "j": "1", "m": "false", **needed}
    command = RemotingCommand(310, fields, b"body")
    Signer("ann", "secret").sign(command)
    header = admitted(frame_of(list((command.ext_fields or {}).items()), b"body", 310))
    assert header is not None and header.extFields.e == 3  # type: ignore[attr-defined]
