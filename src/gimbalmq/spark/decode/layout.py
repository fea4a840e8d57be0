"""Where the parts of many records lie, worked out for all of them at once."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gimbalmq.model.flags import HOST_BITS
from gimbalmq.model.record import HEAD_BYTES, HEADS, MAGIC_V1, MAGIC_V2, head_dtype
from gimbalmq.spark.decode.pieces import Bytes, Ints, Mask, windows
from gimbalmq.spark.decode.slowly import Data

_HEADS: Final = {bits: head_dtype(bits) for bits in HEADS}


class Layout:
    """Where the parts of many records lie, each part an array of positions; and what their heads say."""

    def __init__(self, data: Data, starts: Ints, base: int | None) -> None:
        self.base = base
        self.start = starts
        self.bytes: Bytes = np.frombuffer(data, np.uint8)
        self._plain = windows(data, f"V{HEAD_BYTES}")[starts].view(_HEADS[0])
        self._wide: list[tuple[Ints, npt.NDArray[np.void]]] = []
        """Heads with an IPv6 host: other fields lie further on in them."""
        self.magic = self._plain["magic"].astype(np.uint32)
        self.stop: Ints = starts + self.field("total_size")
        self.flags = self.field("sys_flag")
        body_at: Ints = starts + HEAD_BYTES
        known = (self.magic == MAGIC_V1) | (self.magic == MAGIC_V2)
        if (self.flags & HOST_BITS).any():
            body_at, fits = self._widen(data, body_at)
            known &= fits
        if base is not None:
            known &= self.field("commitlog_offset") == starts + base
        self._find_parts(data, body_at, known)

    def _widen(self, data: Data, body_at: Ints) -> tuple[Ints, Mask]:
        fits = np.ones(body_at.size, np.bool_)
        kinds = self.flags & HOST_BITS
        for bits, head in _HEADS.items():
            of_kind = kinds == bits
            if bits and of_kind.any():
                body_at = body_at + of_kind * (head.itemsize - HEAD_BYTES)
                fits &= ~of_kind | (body_at + 3 <= self.stop)
                rows = np.flatnonzero(of_kind & fits)
                heads = windows(data, f"V{head.itemsize}")[self.start[rows]].view(head)
                self._wide.append((rows, heads))
        return body_at, fits

    def _find_parts(self, data: Data, body_at: Ints, known: Mask) -> None:
        """Follows the lengths; if they lead out of a record, that record is not sound."""
        body_size = self.field("body_size")
        two_wide = self.magic == MAGIC_V2
        any_two_wide = bool(two_wide.any())
        width: Any = 1 + two_wide if any_two_wide else 1
        topic_field = body_at + body_size
        sound = known & (body_size >= 0) & (topic_field + (2 + width) <= self.stop)
        self.all_sound = bool(sound.all())
        self.topic: bytes | None = None
        """The topic, if all records have one and the same."""
        self.body_at, self.body_stop = body_at, topic_field
        if self.all_sound and not any_two_wide and self._find_one_topic(data, topic_field):
            return
        if not self.all_sound:
            topic_field = np.where(sound, topic_field, self.start)
        topic_size = self.bytes[topic_field].astype(np.int64)
        shorts = windows(data, ">i2")
        if any_two_wide:
            rows = np.flatnonzero(two_wide)
            topic_size[rows] = shorts[topic_field[rows]]
            sound &= topic_size >= 0
        topic_at = topic_field + width
        topic_stop = topic_at + topic_size
        sound &= topic_stop + 2 <= self.stop
        self.all_sound = bool(sound.all())
        if not self.all_sound:
            topic_stop = np.where(sound, topic_stop, self.start)
        properties_size = shorts[topic_stop].astype(np.int64)
        properties_at = topic_stop + 2
        sound &= (properties_size >= 0) & (properties_at + properties_size == self.stop)
        self.all_sound = bool(sound.all())
        self.sound: Mask = sound
        self.body_stop = topic_field
        self.topic_at, self.topic_stop = topic_at, topic_stop
        self.properties_at = properties_at

    def _find_one_topic(self, data: Data, topic_field: Ints) -> bool:
        """Follows the lengths of records that have the topic of the first; answers whether all have it."""
        first = int(topic_field[0]) if topic_field.size else 0
        size = int(self.bytes[first]) if topic_field.size else 0
        width = 1 + size + 2
        if not size or int(topic_field.max()) + width > len(data):
            return False
        found = windows(data, f"V{width}")[topic_field]
        same = bytes(memoryview(data)[first : first + width])
        properties_size: Any = int.from_bytes(same[-2:], "big", signed=True)
        if found.tobytes() != same * found.size:
            parts = found.view([("topic", f"V{1 + size}"), ("properties", ">i2")])
            if parts["topic"].tobytes() != same[:-2] * found.size:
                return False
            properties_size = parts["properties"].astype(np.int64)
        self.topic = same[1:-2]
        self.topic_at = topic_field + 1
        self.topic_stop = self.topic_at + size
        self.properties_at = topic_field + width
        self.sound = (properties_size >= 0) & (self.properties_at + properties_size == self.stop)
        self.all_sound = bool(self.sound.all())
        return True

    def plain_heads(self, at: int, dtype: Any) -> npt.NDArray[Any]:
        """A value of each head without IPv6 hosts, nothing copied."""
        return np.ndarray((self.start.size,), dtype, self._plain.view(np.uint8), at, (HEAD_BYTES,))

    def field(self, name: str) -> npt.NDArray[Any]:
        """A number of the heads, in this machine's order."""
        found = self._plain[name]
        values = found.astype(found.dtype.newbyteorder("="))
        for rows, heads in self._wide:
            values[rows] = heads[name]
        return values
