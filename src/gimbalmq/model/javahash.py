"""Java's ``String.hashCode``: h = 31*h + unit over UTF-16 units, wrapped to int32.

Tags and index keys are found on disk by this hash, so it must agree with Java's to the bit. In a
plain loop it costs more than everything else done for a message. Tags repeat, so they are cached;
keys do not, so a whole batch is hashed by numpy: a hash is the sum of unit * 31**(units after it),
which is one multiplication of two arrays and one sum per word.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def java_hash(text: str) -> int:
    """``text.hashCode()`` as Java computes it, -2**31 .. 2**31-1."""
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        raw = text.encode("utf-16-le", "surrogatepass")
        for low, high in zip(raw[::2], raw[1::2], strict=True):
            value = (31 * value + low + (high << 8)) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


@lru_cache(maxsize=65_536)
def key_prefix(topic: str) -> int:
    """The hash of what stands before a topic's keys in the index, without a sign; cached."""
    return java_hash(topic + "#") & 0xFFFFFFFF


@lru_cache(maxsize=8192)
def tag_hash(tag: str) -> int:
    """The tags code of a tag; cached, 0 for no tag."""
    return java_hash(tag)


def hash_and_power(texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.uint32]]:
    """The hash of each text, and 31**length of it, for all texts at once.

    The power lets a caller put a known prefix before each text without hashing it again:
    hash(prefix + text) = hash(prefix) * power + hash(text), modulo 2**32.
    """
    joined = "".join(texts)
    if joined.isascii():
        return _hash_units(joined.encode("ascii"), "u1", list(map(len, texts)))
    coded = [text.encode("utf-16-le", "surrogatepass") for text in texts]
    return _hash_units(b"".join(coded), "<u2", [len(units) // 2 for units in coded])


def hash_and_power_utf8(texts: Sequence[bytes]) -> tuple[NDArray[np.int32], NDArray[np.uint32]]:
    """The same of UTF-8 bytes, as properties hold them."""
    joined = b"".join(texts)
    if joined.isascii():
        return _hash_units(joined, "u1", list(map(len, texts)))
    return hash_and_power([text.decode("utf-8", "replace") for text in texts])


def hash_and_power_pieces(
    units: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.uint32]]:
    """The same of pieces of UTF-8 in one array."""
    import numpy as np

    longest = int(sizes.max(initial=0))
    if longest > _COLUMNS or int(units.max(initial=0)) > 127:
        data = units.tobytes()
        pieces = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
        return hash_and_power_utf8([data[start:end] for start, end in pieces])
    if longest and int(sizes.min()) == longest:
        rows = units[starts[:, None] + np.arange(longest)]
        return hash_rows(rows), np.full(len(starts), _powers(longest + 1)[longest])
    return _hash_columns(units, starts, sizes), _powers(longest + 1)[sizes]


def _hash_units(data: bytes, dtype: str, sizes: list[int]) -> tuple[NDArray[np.int32], NDArray[np.uint32]]:
    import numpy as np  # here, not above: 13 MB and 80 ms that a client without keys never pays

    units = np.frombuffer(data, dtype=dtype)
    lengths = np.array(sizes, dtype=np.int64)
    longest = int(lengths.max(initial=0))
    ends = np.cumsum(lengths)
    starts = ends - lengths
    powers = _powers(longest + 1)
    if longest <= _COLUMNS:
        return _hash_columns(units, starts, lengths), powers[lengths]
    hashes = np.zeros(len(sizes), dtype=np.uint32)
    filled = lengths > 0  # reduceat would give an empty word its neighbour's first unit
    exponent = np.repeat(ends - 1, lengths) - np.arange(units.size)
    hashes[filled] = np.add.reduceat(units * powers[exponent], starts[filled])
    return hashes.view(np.int32), powers[lengths]


def _hash_columns(
    units: NDArray[np.unsignedinteger[Any]], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Unit j of every word at once; words are sorted so that those that still have one are in front."""
    import numpy as np

    order = np.argsort(-lengths.astype(np.int16), kind="stable")
    at = starts[order]
    left = np.searchsorted(-lengths[order], -np.arange(int(lengths.max(initial=0))), side="left").tolist()
    ordered = np.zeros(len(lengths), dtype=np.uint32)
    for column, words in enumerate(left):
        front = ordered[:words]
        front *= np.uint32(31)
        front += units[at[:words] + column]
    hashes = np.empty(len(lengths), dtype=np.uint32)
    hashes[order] = ordered
    return hashes.view(np.int32)


def hash_rows(units: NDArray[np.uint8], prefix: int = 0) -> NDArray[np.int32]:
    """The hash of each row of ASCII letters, all equally long, behind a prefix of which the hash is given."""
    import numpy as np

    width = units.shape[1]
    powers = _powers(width + 1)
    hashes: NDArray[np.uint32] = units.astype(np.uint32) @ powers[:width][::-1]
    hashes += np.uint32(prefix * int(powers[width]) & 0xFFFFFFFF)
    return hashes.view(np.int32)


_COLUMNS = 128
_power_table: NDArray[np.uint32] | None = None


def _powers(count: int) -> NDArray[np.uint32]:
    global _power_table
    if _power_table is None or len(_power_table) < count:
        import numpy as np

        table = np.full(max(count, 256), 31, dtype=np.uint32)
        table[0] = 1
        _power_table = np.multiply.accumulate(table, dtype=np.uint32)
    return _power_table
