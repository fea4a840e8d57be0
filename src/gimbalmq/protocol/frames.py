"""Bytes in, frames out.

    0      4    length      = 4 + header length + body length (does not count itself)
    4      4    encoding << 24 | header length
    8      n    header
    8+n    m    body

A socket read usually holds many small frames or a part of a big one. ``feed`` therefore
cuts all complete frames in one pass over one bytes object and keeps only the rest; those of a run
that have equal lengths, as a producer's often have, are cut by one call. A large frame that arrives
in pieces is collected in a list and joined once, not grown byte by byte.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from gimbalmq.errors import RemoteProtocolError

_WORDS = struct.Struct(">iI")

MAX_FRAME_BYTES = 16_777_216
"""Whole frame, length word included (Java: com.rocketmq.remoting.frameMaxLength)."""

_PIECE_BYTES = 64
"""What a piece of a frame costs beside its bytes: a peer may send a frame in very small pieces."""

_LARGE = 65_536
"""The body of a frame of so many bytes is worth being copied only once."""

_LEAST_RUN = 16
"""So many equal frames are worth being cut by one call."""

Frame = tuple[int, bytes, bytes]
"""Header encoding, header, body. A plain tuple: one is made for every message."""


class FrameReader:
    """Cuts a byte stream into frames; holds at most one frame of unfinished bytes, and only those that came.

    Attributes:
        held_bytes: memory that the unfinished frame takes.
        wanted_bytes: what is missing of it, as far as it is known.
    """

    __slots__ = ("_max", "_max_header", "_pieces", "held_bytes", "wanted_bytes")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES, max_header_bytes: int = 0xFFFFFF) -> None:
        self._max = max_frame_bytes
        self._max_header = max_header_bytes
        self._pieces: list[bytes] = []
        self.held_bytes = 0
        self.wanted_bytes = 0

    def feed(self, data: bytes) -> list[Frame]:
        """Takes what the socket gave and returns the frames it completed.

        Raises:
            RemoteProtocolError: an illegal length; nothing after it can be trusted.
        """
        if self._pieces:
            if not data:
                return []
            self._pieces.append(data)
            self.held_bytes += len(data) + _PIECE_BYTES
            self.wanted_bytes -= len(data)
            if self.wanted_bytes > 0:
                return []
            frames, data = self._join()
        else:
            frames = []
        append = frames.append
        words = _WORDS.unpack_from
        position = 0
        end = len(data)
        last_length = last_word = -1
        tries = 2  # of finding more frames like the last one; mixed ones must not pay for each
        while end - position >= 8:
            length, word = words(data, position)
            if length == last_length and word == last_word:
                run = _equal_frames(data, position, length, word & 0xFFFFFF)
                frames += run
                position += len(run) * (length + 4)
                last_length = -1
                if run:
                    continue
                tries -= 1
            if not 4 <= length <= self._max - 4:
                raise RemoteProtocolError(
                    f"frame length {length} is outside 4 to {self._max - 4} "
                    "(frameMaxLength less its length word)"
                )
            header_start = position + 8
            stop = position + 4 + length
            body_start = header_start + (word & 0xFFFFFF)
            if body_start > stop or body_start - header_start > self._max_header:
                raise RemoteProtocolError(
                    f"header length {word & 0xFFFFFF} exceeds the frame of {length} bytes, "
                    f"or {self._max_header}"
                )
            if stop > end:
                self.wanted_bytes = stop - end
                break
            append((word >> 24, data[header_start:body_start], data[body_start:stop]))
            position = stop
            if tries:
                last_length, last_word = length, word
        else:
            self.wanted_bytes = 8 - (end - position)
        if position < end:
            self._pieces.append(data[position:] if position else data)
            self.held_bytes = end - position + _PIECE_BYTES
        return frames

    def _join(self) -> tuple[list[Frame], bytes]:
        """The large frame that the pieces are, and what came behind it; else nothing, and all pieces as one."""
        pieces, self._pieces = self._pieces, []
        self.held_bytes = 0
        first, last = pieces[0], pieces[-1]
        if len(first) >= 8:
            length, word = _WORDS.unpack_from(first)  # checked when they came
            body_start = 8 + (word & 0xFFFFFF)
            if length >= _LARGE and body_start <= len(first):
                # Its body is copied once: not joined with its head and then cut off again.
                used = len(last) - (sum(map(len, pieces)) - 4 - length)
                body = b"".join((memoryview(first)[body_start:], *pieces[1:-1], memoryview(last)[:used]))
                return [(word >> 24, first[8:body_start], body)], last[used:]
        return [], b"".join(pieces)


def _equal_frames(data: bytes, position: int, length: int, header_length: int) -> list[Frame]:
    """The frames from ``position`` on that have the lengths of the first one; none if they are few."""
    size = length + 4
    most = (len(data) - position) // size
    if most < _LEAST_RUN:
        return []
    stop = position + most * size
    # Of the words of all frames the first bytes, the second bytes, ...: as many are equal as are at the begin of each.
    for at in range(position, position + 8):
        column = data[at:stop:size]
        most = min(most, len(column) - len(column.lstrip(column[:1])))
    if most < _LEAST_RUN:
        return []
    cut = _cutter(header_length, length - 4 - header_length)
    return list(cut.iter_unpack(memoryview(data)[position : position + most * size]))


@lru_cache(maxsize=256)
def _cutter(header_length: int, body_length: int) -> struct.Struct:
    return struct.Struct(f">4xB3x{header_length}s{body_length}s")
