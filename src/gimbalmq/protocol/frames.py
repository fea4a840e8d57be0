"""Bytes in, frames out.

    0      4    length      = 4 + header length + body length (does not count itself)
    4      4    encoding << 24 | header length
    8      n    header
    8+n    m    body

A socket read usually holds many small frames or a part of a big one. ``feed`` therefore
cuts all complete frames in one pass over one bytes object and keeps only the rest; a large
frame that arrives in pieces is collected in a list and joined once, not grown byte by byte.
"""

from __future__ import annotations

import struct

from gimbalmq.errors import RemoteProtocolError

_WORDS = struct.Struct(">iI")

MAX_FRAME_BYTES = 16_777_216
"""Whole frame, length word included (Java: com.rocketmq.remoting.frameMaxLength)."""


Frame = tuple[int, bytes, bytes]
"""Header encoding, header, body. A plain tuple: one is made for every message."""


class FrameReader:
    """Cuts a byte stream into frames; holds at most one frame of unfinished bytes."""

    __slots__ = ("_max", "_missing", "_pieces")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max = max_frame_bytes
        self._pieces: list[bytes] = []
        self._missing = 0
        """Bytes still wanted before another look is worth it."""

    @property
    def buffered_bytes(self) -> int:
        return sum(map(len, self._pieces))

    def feed(self, data: bytes) -> list[Frame]:
        """Takes what the socket gave and returns the frames it completed.

        Raises:
            RemoteProtocolError: an illegal length; nothing after it can be trusted.
        """
        if self._pieces:
            self._pieces.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return []
            data = b"".join(self._pieces)
            self._pieces.clear()
        frames: list[Frame] = []
        append = frames.append
        words = _WORDS.unpack_from
        position = 0
        end = len(data)
        while end - position >= 8:
            length, word = words(data, position)
            if not 4 <= length <= self._max - 4:
                raise RemoteProtocolError(
                    f"frame length {length} is outside 4 to {self._max - 4} "
                    "(frameMaxLength less its length word)"
                )
            header_start = position + 8
            stop = position + 4 + length
            body_start = header_start + (word & 0xFFFFFF)
            if body_start > stop:
                raise RemoteProtocolError(
                    f"header length {word & 0xFFFFFF} exceeds the frame of {length} bytes"
                )
            if stop > end:
                self._missing = stop - end
                break
            append((word >> 24, data[header_start:body_start], data[body_start:stop]))
            position = stop
        else:
            self._missing = 8 - (end - position)
        if position < end:
            self._pieces.append(data[position:] if position else data)
        return frames
