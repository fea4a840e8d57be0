"""The header of an ordinary send (310, JSON), decoded in one go; of a signed one if the gate lets it pass."""

from __future__ import annotations

import msgspec

from gimbalmq.access.gate import Gate, NotAdmitted
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.frames import Frame
from gimbalmq.protocol.signing import text_verified
from gimbalmq.transport.channel import Channel

SEND = int(RequestCode.SEND_MESSAGE_V2)


class SendFields(msgspec.Struct, gc=False):
    """Those fields of a send that an ordinary one needs, under the names of request 310."""

    b: str
    e: int
    f: int
    g: int
    h: int
    i: str = ""
    j: int = 0
    m: bool = False


class SendHeader(msgspec.Struct, gc=False):
    code: int
    opaque: int
    extFields: SendFields
    flag: int = 0


class _SignedFields(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """Every field that clients send, as text: the signature is over all of them, in the order of their names.

    One that is missing adds nothing to what is signed, and neither does an empty text. A send with any other field
    goes the plain way.
    """

    AccessKey: str
    Signature: str
    b: str
    e: str
    f: str
    g: str
    h: str
    SecurityToken: str = ""
    a: str = ""
    bname: str = ""
    c: str = ""
    d: str = ""
    i: str = ""
    j: str = ""
    k: str = ""
    l: str = ""  # noqa: E741
    m: str = ""
    n: str = ""
    ns: str = ""
    nsd: str = ""
    oway: str = ""


class _SignedHeader(msgspec.Struct, gc=False):
    code: int
    opaque: int
    extFields: _SignedFields
    flag: int = 0


decode_header = msgspec.json.Decoder(SendHeader, strict=False).decode
_decode_signed = msgspec.json.Decoder(_SignedHeader).decode

_NUMBERS = {str(number): number for number in range(1024)}
"""Queue ids and flags of sends that go the fast way; the plain way reads the others."""
_MOST_DIGITS = 18


def admitted(gate: Gate, channel: Channel, frame: Frame) -> SendHeader:
    """The header of a signed send that the gate lets pass.

    It is read once: what was signed is what is used.
    """
    header = _decode_signed(frame[1])
    of = header.extFields
    key = gate.sender_key(channel, of.AccessKey, of.b)
    if key is None or header.code != SEND:
        raise NotAdmitted
    text = (
        f"{of.AccessKey}{of.SecurityToken}{of.a}{of.b}{of.bname}{of.c}{of.d}{of.e}{of.f}{of.g}{of.h}{of.i}"
        f"{of.j}{of.k}{of.l}{of.m}{of.n}{of.ns}{of.nsd}{of.oway}"
    )
    born = of.g
    if (
        not text_verified(text, frame[2], of.Signature, key)
        or len(born) > _MOST_DIGITS
        or not (born.isascii() and born.isdigit())
        or of.m not in ("", "false")
    ):
        raise NotAdmitted
    try:
        fields = SendFields(
            of.b, _NUMBERS[of.e], _NUMBERS[of.f], int(born), _NUMBERS[of.h], of.i, _NUMBERS[of.j or "0"]
        )
    except KeyError:
        raise NotAdmitted from None
    return SendHeader(SEND, header.opaque, fields, header.flag)
