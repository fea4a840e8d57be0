"""Compressed bodies."""

from __future__ import annotations

import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gimbalmq.errors import ConfigError, RemoteProtocolError
from gimbalmq.model.compression import Compression, compress, decompress
from gimbalmq.model.flags import COMPRESSED


@given(st.binary(max_size=5000), st.sampled_from(list(Compression)))
def test_every_method_gives_the_body_back(body: bytes, method: Compression) -> None:
    assert decompress(compress(body, method), COMPRESSED | method) == body


def test_zlib_is_what_java_writes() -> None:
    body = b"hello " * 1000
    assert compress(body) == zlib.compress(body, 5)
    # Senders before 4.9.4 write no method bits.
    assert decompress(zlib.compress(body, 5), COMPRESSED) == body


def test_zstd_frames_leave_the_content_size_out_and_both_kinds_are_read() -> None:
    body = b"hello " * 1000
    packed = compress(body, Compression.ZSTD)
    assert zstandard.frame_content_size(packed) == -1
    assert decompress(zstandard.ZstdCompressor().compress(body), 0x201) == body


def test_plain_bodies_pass() -> None:
    assert decompress(b"plain", 0) == b"plain"
    assert decompress(b"plain", 0x300) == b"plain"


@pytest.mark.parametrize("flag", [0x1, 0x101, 0x201, 0x301, 0x401])
def test_bytes_that_are_no_such_stream_are_refused(flag: int) -> None:
    with pytest.raises(RemoteProtocolError):
        decompress(b"nonsense", flag)


@pytest.mark.parametrize("method", list(Compression))
def test_body_that_ends_early_is_refused(method: Compression) -> None:
    packed = compress(bytes(range(256)) * 40, method)
    with pytest.raises(RemoteProtocolError):
        decompress(packed[: len(packed) // 2], COMPRESSED | method)


@pytest.mark.parametrize("method", list(Compression))
def test_body_that_would_fill_the_memory_is_refused(method: Compression) -> None:
    packed = compress(b"\0" * 100_000, method)
    with pytest.raises(RemoteProtocolError, match="more than 99999"):
        decompress(packed, COMPRESSED | method, limit=99_999)
    assert len(decompress(packed, COMPRESSED | method, limit=100_000)) == 100_000


def test_methods_by_name() -> None:
    assert Compression.named("LZ4") is Compression.named("lz4") is Compression.named(Compression.LZ4)
    with pytest.raises(ConfigError, match="zlib, lz4 or zstd"):
        Compression.named("snappy")
