"""The checksum of bodies: the same numbers by whatever means."""

from __future__ import annotations

import importlib
import random
import sys
import zlib

import pytest

from gimbalmq.model import crc


def test_the_numbers_are_zlibs() -> None:
    rng = random.Random(1)
    for size in (0, 1, 7, 8, 15, 16, 63, 64, 100, 255, 1024, 5000):
        data = rng.randbytes(size)
        assert crc.crc32(data) == zlib.crc32(data)
        assert crc.crc32(memoryview(data)) == zlib.crc32(data)


def test_without_isal_zlib_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    try:
        assert importlib.reload(crc).crc32 is zlib.crc32
    finally:
        monkeypatch.undo()
        importlib.reload(crc)
