"""What the index notes of records: the hash of each key, with its record's offset and time, as vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gimbalmq.model.javahash import java_hash, key_prefix
from gimbalmq.store.append import IndexItem, KeyRun

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Batch = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]


def key_hash(topic: str, key: str) -> int:
    """What the entries of a key have as their hash."""
    found = abs(java_hash(f"{topic}#{key}"))
    return 0 if found > 0x7FFFFFFF else found


def hashed_keys(items: list[IndexItem | KeyRun], indexed: int, *, has_runs: bool) -> Batch | None:
    """Hashes of all keys with their records' offsets and times: UNIQ_KEY first, then each of KEYS; None if no key.

    Args:
        indexed: records at this offset of the log and before it are in the index already.
        has_runs: whether there may be runs among the items.
    """
    batches: list[Batch] = []
    singles: list[IndexItem] = []
    for item in items if has_runs else ():
        if type(item) is KeyRun:
            batches += filter(None, (_single_keys(singles, indexed), _run_keys(item, indexed)))
            singles = []
        else:
            singles.append(item)  # type: ignore[arg-type]
    last = _single_keys(singles if has_runs else items, indexed)  # type: ignore[arg-type]
    batches += [last] if last is not None else []
    if len(batches) < 2:
        return batches[0] if batches else None
    import numpy as np

    hashes, offsets, times = map(np.concatenate, zip(*batches, strict=True))
    return hashes, offsets, times


def _single_keys(items: list[IndexItem], indexed: int) -> Batch | None:
    if items and items[0][2] <= indexed:  # indexed before a restart
        items = [item for item in items if item[2] > indexed]
    return hashed_singles(items) if items else None


def hashed_singles(items: list[IndexItem]) -> Batch | None:
    """What ``hashed_keys`` tells, of records that are in no run; there must be one."""
    import numpy as np

    from gimbalmq.store.property_vectors import texts_of

    topics, properties, places, stored = zip(*items, strict=True)
    texts = texts_of(properties)
    keys = texts.keys()
    if not len(keys.records):
        return None
    prefixes = np.fromiter(map(key_prefix, topics), np.int64, len(items))
    hashes = _entry_hashes(texts.hashes(keys, prefixes))
    return hashes, np.array(places, np.int64)[keys.records], np.array(stored, np.int64)[keys.records]


def _run_keys(run: KeyRun, indexed: int) -> Batch | None:
    first = int(run.places.searchsorted(indexed, "right"))  # an attempt that failed may have come so far
    if first == len(run):
        return None
    return _entry_hashes(run.hashes[first:]), run.places[first:], run.times[first:]


def _entry_hashes(hashes: NDArray[np.int32]) -> NDArray[np.int32]:
    """Hashes as entries have them: without a sign."""
    import numpy as np

    whole = np.abs(hashes)
    whole[whole < 0] = 0  # abs(-2**31) overflows in Java, too
    return whole
