"""Answers to sends that are alike, made by vectors: they differ in few places, as their requests do."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gimbalmq.store.vectors import Numbers

Letters = NDArray[np.uint8]
"""A row for each message, a column for each letter."""


class AnswerLetters(NamedTuple):
    """What an answer repeats of its request."""

    opaques: Letters
    queues: Letters
    uniques: Letters


class AnswerTexts(NamedTuple):
    """What stands between the values of an answer.

    Each stands before a value: the offset id's last half, the queue id, the queue offset, the unique key, the opaque.
    The last one ends the answer.
    """

    head: str
    queue_id: str
    queue_offset: str
    unique: str
    opaque: str
    end: str


def answers(texts: AnswerTexts, letters: AnswerLetters, places: Numbers, offsets: Numbers) -> bytes:
    """The frames of answers; those whose queue offset has as many digits are made together."""
    low, high = len(str(int(offsets.min()))), len(str(int(offsets.max())))
    if low == high:
        return _equal_answers(texts, letters, places, offsets, low)
    made: list[bytes] = []
    for width in range(low, high + 1):
        chosen = np.flatnonzero((offsets < 10**width) & (offsets >= (10 ** (width - 1) if width > 1 else 0)))
        if len(chosen):
            some = AnswerLetters(*(part[chosen] for part in letters))
            made.append(_equal_answers(texts, some, places[chosen], offsets[chosen], width))
    return b"".join(made)


def _equal_answers(
    texts: AnswerTexts, letters: AnswerLetters, places: Numbers, offsets: Numbers, width: int
) -> bytes:
    hexadecimal = places.astype(">i8").tobytes().hex().upper().encode()
    values = (
        np.frombuffer(hexadecimal, np.uint8).reshape(-1, 16),
        letters.queues,
        _decimal(offsets, width),
        letters.uniques,
        letters.opaques,
    )
    row, columns = _template(texts, tuple(value.shape[1] for value in values))
    made = np.empty((len(places), len(row)), np.uint8)
    made[:] = row
    for column, value in zip(columns, values, strict=True):
        made[:, column] = value
    return made.tobytes()


@lru_cache(maxsize=64)
def _template(texts: AnswerTexts, widths: tuple[int, ...]) -> tuple[Letters, list[slice]]:
    """An answer's frame without its values, and where they go."""
    length = sum(map(len, texts)) + sum(widths)
    row = (length + 4).to_bytes(4, "big") + length.to_bytes(4, "big") + texts.head.encode()
    columns: list[slice] = []
    for text, width in zip(texts[1:], widths, strict=True):
        columns.append(slice(len(row), len(row) + width))
        row += bytes(width) + text.encode()
    return np.frombuffer(row, np.uint8), columns


def _decimal(numbers: Numbers, width: int) -> Letters:
    made = np.empty((len(numbers), width), np.uint8)
    for column in range(width - 1, 0, -1):
        rest = numbers // 10
        made[:, column] = numbers - rest * 10
        numbers = rest
    made[:, 0] = numbers
    made += 0x30
    return made
