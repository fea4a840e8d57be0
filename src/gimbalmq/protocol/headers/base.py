"""Typed headers: one struct for each request's ext-fields.

A field is declared once, in Python's spelling; its wire name is the camelCase of it, or the
name given if RocketMQ's own differs. On the wire every value is a string.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import msgspec

from gimbalmq.errors import InvalidParameterError
from gimbalmq.protocol.codes import ResponseCode


class Header(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """Base of all typed headers."""

    @classmethod
    def from_ext(cls, fields: Mapping[str, str] | None) -> Self:
        """Reads the ext-fields; unknown ones are passed over.

        Raises:
            InvalidParameterError: a field is missing or no number where one belongs.
        """
        try:
            return msgspec.convert(fields or {}, cls, strict=False)
        except (msgspec.ValidationError, UnicodeEncodeError) as error:  # half a surrogate pair is no number
            raise InvalidParameterError(
                f"the header of the request is wrong: {error}", code=ResponseCode.SYSTEM_ERROR
            ) from error

    def to_ext(self) -> dict[str, str]:
        """The ext-fields to send; what is None is left out, as Java does."""
        fields: dict[str, str] = {}
        for attribute, name in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            value = getattr(self, attribute)
            if value is None:
                continue
            if value is True:
                fields[name] = "true"
            elif value is False:
                fields[name] = "false"
            else:
                fields[name] = str(value)
        return fields
