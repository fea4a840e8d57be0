"""One request or response, whatever the header encoding.

A msgspec struct: one is made for nearly every frame, and the JSON decoder makes it in one go.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gimbalmq.protocol.codes import OUR_VERSION

RESPONSE_FLAG = 1
ONEWAY_FLAG = 2

JSON_HEADER = 0
BINARY_HEADER = 1

_SECRET = frozenset({"Signature", "SecurityToken", "secretKey"})
"""Fields whose values are in no log: a signature serves whoever has it."""


class RemotingCommand(msgspec.Struct, eq=False):
    """A request or a response (Java: RemotingCommand).

    Attributes:
        code: request code, or response code in a response.
        opaque: number that ties a response to its request.
        flag: bit 0 response, bit 1 one-way.
        remark: human text, mostly of errors.
        ext_fields: the typed header as strings; absent on the wire when None.
        body: payload; empty means none.
        language: sender's language name.
        version: sender's version number (protocol.codes).
        serialize_type: header encoding it came in or is to leave in.
        empty_fields: ext-fields that came without a value, which are not among ``ext_fields``; a signature may count
            them.
    """

    code: int
    ext_fields: Mapping[str, str] | None = None
    body: bytes | bytearray | memoryview = b""
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: str | None = "PYTHON"
    version: int = OUR_VERSION
    serialize_type: int = JSON_HEADER
    empty_fields: tuple[str, ...] = ()

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY_FLAG)

    def reply(
        self,
        code: int = 0,
        remark: str | None = None,
        ext_fields: Mapping[str, str] | None = None,
        body: bytes | bytearray | memoryview = b"",
    ) -> RemotingCommand:
        """The response to this request, in the encoding the requester used."""
        return RemotingCommand(
            code,
            ext_fields,
            body,
            opaque=self.opaque,
            flag=RESPONSE_FLAG,
            remark=remark,
            serialize_type=self.serialize_type,
        )

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "request"
        fields = {name: "..." if name in _SECRET else text for name, text in (self.ext_fields or {}).items()}
        return (
            f"<{kind} code={self.code} opaque={self.opaque} flag={self.flag} remark={self.remark!r} "
            f"ext_fields={fields!r} body={len(self.body)} bytes>"
        )
