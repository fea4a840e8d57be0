"""What the index notes of records: the hash of each key, with its record's offset and time, as vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gimbalmq.model.javahash import hash_and_power_utf8, java_hash
from gimbalmq.store.append import IndexItem, KeyRun

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Batch = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]

_PREFIXES_KEPT = 100_000


def key_hash(topic: str, key: str) -> int:
    """What the entries of a key have as their hash."""
    found = abs(java_hash(f"{topic}#{key}"))
    return 0 if found > 0x7FFFFFFF else found


class KeyHashes:
    """Hashes the keys of records, thousands at once."""

    def __init__(self) -> None:
        self._prefixes: dict[str, int] = {}
        """Hashes of topics that were met."""

    def batch(self, items: list[IndexItem | KeyRun], indexed: int, *, has_runs: bool) -> Batch | None:
        """Hashes of all keys with their records' offsets and times: UNIQ_KEY first, then each of KEYS; None if no key.

        Args:
            indexed: records at this offset of the log and before it are in the index already.
            has_runs: whether there may be runs among the items.
        """
        batches: list[Batch] = []
        singles: list[IndexItem] = []
        for item in items if has_runs else ():
            if type(item) is KeyRun:
                batches += filter(None, (self._singles(singles, indexed), _run_keys(item, indexed)))
                singles = []
            else:
                singles.append(item)  # type: ignore[arg-type]
        last = self._singles(singles if has_runs else items, indexed)  # type: ignore[arg-type]
        batches += [last] if last is not None else []
        if len(batches) < 2:
            return batches[0] if batches else None
        import numpy as np

        hashes, offsets, times = map(np.concatenate, zip(*batches, strict=True))
        return hashes, offsets, times

    def _singles(self, items: list[IndexItem], indexed: int) -> Batch | None:
        if items and items[0][2] <= indexed:  # indexed before a restart
            items = [item for item in items if item[2] > indexed]
        if not items:
            return None
        topics, datas, places, stored = zip(*items, strict=True)
        keys: list[bytes] = []
        ends: list[int] = []  # how many keys there were after each record
        for data in datas:
            # Of the ways to find two names in a few bytes this one measured fastest, by far. Of a name that is there
            # twice the last counts, as it does for readers.
            data = b"\x02" + data
            _, found, rest = data.rpartition(b"\x02UNIQ_KEY\x01")
            if found and (key := rest.partition(b"\x02")[0]):
                keys.append(key)
            _, found, rest = data.rpartition(b"\x02KEYS\x01")
            if found and (key := rest.partition(b"\x02")[0]):
                if b" " in key:
                    keys += filter(None, key.split(b" "))
                else:
                    keys.append(key)
            ends.append(len(keys))
        if not keys:
            return None
        import numpy as np

        known = self._prefixes
        if len(known) > _PREFIXES_KEPT:
            known.clear()
        for topic in set(topics):
            if topic not in known:
                known[topic] = java_hash(topic + "#") & 0xFFFFFFFF
        prefixes = np.array([known[topic] for topic in topics], dtype=np.uint32)
        counts = np.array(ends, dtype=np.int32)
        counts[1:] -= counts[:-1].copy()
        hashes, powers = hash_and_power_utf8(keys)
        # hash("topic#key") from the two halves; see hash_and_power
        powers = powers * np.repeat(prefixes, counts)
        powers += hashes.view(np.uint32)
        whole = _entry_hashes(powers.view(np.int32))
        offsets = np.repeat(np.array(places, dtype=np.int64), counts)
        times = np.repeat(np.array(stored, dtype=np.int64), counts)
        return whole, offsets, times


def _run_keys(run: KeyRun, indexed: int) -> Batch | None:
    import numpy as np

    first = int(run.places.searchsorted(indexed, "right"))  # an attempt that failed may have come so far
    if first == len(run):
        return None
    offsets = np.repeat(run.places[first:], run.hashes.shape[1])
    return _entry_hashes(run.hashes[first:].ravel()), offsets, np.full(len(offsets), run.timestamp, np.int64)


def _entry_hashes(hashes: NDArray[np.int32]) -> NDArray[np.int32]:
    """Hashes as entries have them: without a sign."""
    import numpy as np

    whole = np.abs(hashes)
    whole[whole < 0] = 0  # abs(-2**31) overflows in Java, too
    return whole
