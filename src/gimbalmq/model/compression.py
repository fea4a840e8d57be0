"""Bodies made smaller: the three methods RocketMQ 5 knows, and what the system flag says of them.

zlib is what every client reads (older ones know nothing else and write no method bits); lz4 and
zstd are what newer ones may send. A compressed body is kept even if it grew, as Java keeps it:
the flag, not the size, says what the bytes are.
"""

from __future__ import annotations

import zlib
from enum import IntEnum

import lz4.frame
import zstandard

from gimbalmq.errors import ConfigError, RemoteProtocolError
from gimbalmq.model.flags import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)

LEVEL = 5
_ZSTD_STEP = 1024
MAX_UNPACKED_BYTES = 64 * 1024 * 1024
"""What one body may grow to when it is unpacked: 16 times the largest a broker stores by default."""


class Compression(IntEnum):
    """A method; its value is its bits in the system flag."""

    LZ4 = COMPRESSION_LZ4
    ZSTD = COMPRESSION_ZSTD
    ZLIB = COMPRESSION_ZLIB

    @classmethod
    def named(cls, name: str | Compression) -> Compression:
        """By RocketMQ's name, in any case; raises ConfigError."""
        if isinstance(name, Compression):
            return name
        try:
            return cls[name.upper()]
        except KeyError:
            raise ConfigError("compression", name, "use zlib, lz4 or zstd") from None


def compress(body: bytes, method: Compression = Compression.ZLIB, level: int = LEVEL) -> bytes:
    if method is Compression.ZLIB:
        return zlib.compress(body, level)
    if method is Compression.LZ4:
        return bytes(lz4.frame.compress(body, compression_level=level))
    return zstandard.ZstdCompressor(level=level, write_content_size=False).compress(body)


def decompress(body: bytes, sys_flag: int, *, limit: int = MAX_UNPACKED_BYTES) -> bytes:
    """The body as it was before ``compress``; the flag says by which method, or that it is plain.

    Raises:
        RemoteProtocolError: the bytes are no such stream, or unpack to more than ``limit``.
    """
    if not sys_flag & COMPRESSED:
        return body
    method = sys_flag & COMPRESSION_MASK or COMPRESSION_ZLIB
    try:
        if method == COMPRESSION_ZLIB:
            return _unzlib(body, limit)
        if method == COMPRESSION_LZ4:
            return _unlz4(body, limit)
        if method == COMPRESSION_ZSTD:
            return _unzstd(body, limit)
    except (zlib.error, RuntimeError, EOFError, zstandard.ZstdError) as error:
        raise RemoteProtocolError(f"the compressed body cannot be read: {error}") from error
    raise RemoteProtocolError(f"compression type {method:#x} is unknown: 0x100, 0x200 and 0x300 are legal")


def _unzlib(body: bytes, limit: int) -> bytes:
    unpacker = zlib.decompressobj()
    plain = unpacker.decompress(body, limit + 1)
    _check_size(len(plain), limit)
    if not unpacker.eof:
        raise RemoteProtocolError("the compressed body ends early")
    return plain


def _unlz4(body: bytes, limit: int) -> bytes:
    unpacker = lz4.frame.LZ4FrameDecompressor()
    plain = bytes(unpacker.decompress(body, max_length=limit + 1))
    _check_size(len(plain), limit)
    if not unpacker.eof:
        raise RemoteProtocolError("the compressed body ends early")
    return plain


def _unzstd(body: bytes, limit: int) -> bytes:
    # Java leaves the content size out, so nothing says beforehand how much will come: go in small steps.
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    pieces: list[bytes] = []
    size = 0
    for start in range(0, len(body), _ZSTD_STEP):
        piece = unpacker.decompress(body[start : start + _ZSTD_STEP])
        size += len(piece)
        _check_size(size, limit)
        pieces.append(piece)
        if unpacker.eof:
            return b"".join(pieces)
    raise RemoteProtocolError("the compressed body ends early")


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise RemoteProtocolError(f"the compressed body unpacks to more than {limit} bytes")
