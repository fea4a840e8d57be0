"""The id that the sink gives each row: which row of which batch it is, however often it is written.

``<query>-<batch>-<partition>-<hash>``, where the hash is that of all the row says: body, topic, key, properties, delay.
Rows of a task that say the same are numbered, ``<query>-<batch>-<partition>.<n>-<hash>`` from the second one on.
So the ids of a task are a set that follows from the set of its rows; in which order they come does not matter.
The query of a batch write says when it began, ``t<milliseconds>r<random>``, both hexadecimal.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gimbalmq.spark.row_hash import Occurrences, RowHashes

HASH_LETTERS: Final = 24
_HEX: Final = np.frombuffer(np.arange(1 << 16, dtype=np.uint16).tobytes().hex().encode(), np.uint32)
"""Four digits for each two bytes, as they lie in memory."""
_DIGITS: Final = np.dtype((np.void, HASH_LETTERS))
_NOTHING: Final = pa.scalar(b"", pa.binary())

_PREFIX: Final = re.compile(r"(?P<query>.+)-(?P<batch>[0-9]+)-[0-9]+(\.[0-9]+)?")
_BATCH_QUERY: Final = re.compile(r"t([0-9a-f]+)r[0-9a-f]+")


def batch_query_id(now_ms: int, chance: int) -> str:
    """The name of a batch write, which has none of its own."""
    return f"t{now_ms:x}r{chance:016x}"


Part: TypeAlias = bytes | pa.Array
"""Something that stands in every row: the same bytes, or those of a binary column."""


class Ids(NamedTuple):
    """The ids of some rows.

    Attributes:
        numbers: how many rows of the task that say the same came before each; None if there is none.
        digits: of each row's hash, a line for each.
    """

    prefix: bytes
    numbers: NDArray[np.int64] | None
    digits: NDArray[np.void]

    def parts(self) -> list[Part]:
        """What they are if they are joined."""
        digits = fixed_width(self.digits)
        if self.numbers is None:
            return [self.prefix + b"-", digits]
        again = pa.array(self.numbers).cast(pa.string()).cast(pa.binary())
        dotted = pc.binary_join_element_wise(pa.scalar(b".", pa.binary()), again, _NOTHING)
        numbered = pc.if_else(pa.array(self.numbers > 0), dotted, _NOTHING)
        return [self.prefix, numbered, b"-", digits]

    def text(self, row: int) -> str:
        number = 0 if self.numbers is None else int(self.numbers[row])
        return f"{self.prefix.decode()}{f'.{number}' if number else ''}-{self.digits[row].tobytes().decode()}"


class RowIds:
    """Makes the ids of one task.

    Args:
        prefix: ``<query>-<batch>-<partition>``.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()
        self._met = Occurrences()

    def of(self, hashes: RowHashes) -> Ids:
        """The ids of the next rows."""
        words = np.empty(len(hashes.high), [("high", ">u8"), ("low", ">u4")])
        words["high"] = hashes.high
        words["low"] = hashes.low >> np.uint64(32)
        digits = _HEX[words.view(np.uint16)].view(_DIGITS)
        return Ids(self._prefix, self._met.before(hashes.high), digits)


def fixed_width(lines: NDArray[Any]) -> pa.Array:
    """The bytes of each line as a binary column, without copying them."""
    lines = np.ascontiguousarray(lines)
    count, width = len(lines), lines.nbytes // max(1, len(lines))
    places = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(places), pa.py_buffer(lines)])


class Group(NamedTuple):
    """All rows of one batch of one query.

    Attributes:
        since_ms: when a batch write began; None for a batch of a stream.
    """

    query: str
    batch: int
    since_ms: int | None


def groups_of(row_ids: pa.Array) -> tuple[list[Group | None], pa.Array]:
    """The batches that row ids belong to, and the number of each row's; null for a row without id.

    None stands for ids that are not ours.
    """
    cut = pc.utf8_slice_codeunits(row_ids, 0, -HASH_LETTERS - 1)
    encoded = cut.dictionary_encode()
    return [group_of(prefix) for prefix in encoded.dictionary.to_pylist()], encoded.indices


def group_of(prefix: str) -> Group | None:
    """The batch of an id without its hash."""
    found = _PREFIX.fullmatch(prefix)
    if found is None:
        return None
    began = _BATCH_QUERY.fullmatch(found["query"])
    return Group(found["query"], int(found["batch"]), None if began is None else int(began[1], 16))
