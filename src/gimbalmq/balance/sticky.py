"""STICKY: even shares that hardly move when the group changes, without history or coordinator.

The problem. AVG cuts the sorted queue list into blocks, so one new member shifts every block: with
1024 queues and 32 members twelve times as many queues move as must. Kafka's sticky assignor
remembers the last assignment, but RocketMQ's members agree only because each computes the same
function of the same two lists. So the function itself has to be sticky.

The idea: rendezvous hashing with bounded shares. Every pair (queue, member) has a weight, a hash
that depends on nothing else. Go through all pairs from the heaviest to the lightest; a queue not yet
placed takes the member if that member has room. Room is n // m queues for everyone and one more for
the first n % m members that ask for it, so counts differ by at most one. A joining member takes the
queues that weigh most with it; the other pairs keep their order, and so nearly all choices stand.
(It is the stable matching in which both sides rank by the same weight.) All topics of the group are
placed together: counts are even over all queues, not topic by topic.

How little moves. What must move when a member joins is its own share, n // m. Beyond that, a member
that gives two queues to the newcomer instead of one draws one from somebody else, and so on. So it
is the share that decides. Measured over 12,000 random joins (m up to 64 members after the join, n from
8 to 2048 queues), moved over minimum:

    n / m**2          below 0.1   0.1-0.25   0.25-0.5   0.5-1   1-1.5   1.5-2   2-3    above
    mean              3.9         2.7        2.3        1.9     1.6     1.5     1.4    1.1
    worst single      12          6          4          2.8     2.0     1.82    1.74   1.62

1024 queues and 32 members: mean 1.7, worst 2.2; AVG 12 and 16. Over all cases no join moved more than
1.8 times the minimum plus 0.6 queues per member. (Means are total over total; the worst leaves out joins
in which nothing had to move.)

Other stateless rules were tried. Their means for 1024 queues on 32 members and for 256 on 32 (a dozen to
forty joins each; this one has 1.7 and 2.2): immediate acceptance 1.7 and 2.3, serial choice 1.8 and
3.0, optimal transport 1.65 and 3.4, weights spread evenly by a finite plane 1.6 and 2.1 (but then a
queue's weight depends on the number of queues), Maglev's draft 2.4 and 3.5, splits down a tree 3.8 and
5.4, joins replayed in a fixed order 5.4 and 13.

No rule without memory can be tight for tiny shares. If some members hold two queues and others one, and a
holder of two was the last to join, then two queues moved although one would have done. And if members
outnumber queues, nothing need move on a join, but such a rule cannot know who was first.

Within a topic the shares are not kept even. Caps per topic were tried: two topics raise 1.7 to 2.0.

How fast. 10,000 queues and 1,000 members make ten million pairs; sorting them all would take
seconds. But most queues settle for one of their best few members, so the pairs are taken in slices of
falling weight, and each slice is computed only for queues still unplaced and members with room. The
result is the same as that of the full sort (a test compares them).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gimbalmq.balance.allocate import is_member
from gimbalmq.errors import ConfigError
from gimbalmq.model.queues import MessageQueue, sort_client_ids, sort_queues

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_WEIGHTS = 1 << 32
_BLOCK = 1 << 15  # pairs hashed at a time: arrays this small stay in the cache and off mmap; twice as fast
_SMALL = 1 << 15  # so few pairs are taken in one slice


@dataclass(frozen=True, slots=True)
class Sticky:
    """STICKY: bounded rendezvous hashing over all topics of a group. Ours; Java has no such class.

    4 members, two topics of 2 queues: every member takes one queue, where AVG leaves two members
    idle. For what moves see the module's text and ``benchmarks/allocation.py``.

    Every member must use it: it does not mix with AVG in one group.
    """

    name: str = "STICKY"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """One member's part. Give it the queues of all topics; of one topic it is only even in itself."""
        if not is_member(group, client_id, queues, client_ids):
            return []
        return self.allocate_all(group, client_ids, queues)[client_id]

    def allocate_all(
        self, group: str, client_ids: Sequence[str], queues: Sequence[MessageQueue]
    ) -> dict[str, list[MessageQueue]]:
        """Every member's queues, each list sorted.

        Args:
            group: salts the hash, so that a client's share in one group says nothing about another.
            client_ids: in any order; an id listed twice counts once.
            queues: of all topics the group subscribes, in any order.
        """
        if not queues:
            raise ConfigError("queues", list(queues), "must not be empty")
        if not client_ids:
            raise ConfigError("client_ids", list(client_ids), "must not be empty")
        members = sort_client_ids(set(client_ids))
        ordered = sort_queues(dict.fromkeys(queues))
        parts: list[list[MessageQueue]] = [[] for _ in members]
        owners = place(_queue_words(group, ordered), _words(group, members))
        for queue, owner in zip(ordered, owners, strict=True):
            parts[owner].append(queue)
        return dict(zip(members, parts, strict=True))


def _words(group: str, texts: Iterable[str]) -> NDArray[np.uint32]:
    """A 32-bit hash of each text, salted with the group."""
    import numpy as np  # here, not above: a producer never needs it

    salt = hashlib.blake2b(group.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    digests = [
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4, key=salt).digest()
        for text in texts
    ]
    return np.frombuffer(b"".join(digests), dtype="<u4").astype(np.uint32)


def _queue_words(group: str, queues: Sequence[MessageQueue]) -> NDArray[np.uint32]:
    """A hash of each queue: one of the text for its topic and broker, stirred with its number."""
    import numpy as np

    homes: dict[tuple[str, str], int] = {}
    indexes = [homes.setdefault((topic, broker), len(homes)) for topic, broker, _ in queues]
    texts = (f"{topic}\0{broker}" for topic, broker in homes)
    numbers = np.fromiter((queue[2] for queue in queues), dtype=np.int64, count=len(queues)).astype(np.uint32)
    return _mix(_words(group, texts)[indexes] ^ numbers * np.uint32(0x9E3779B1))


def place(queue_words: NDArray[np.uint32], member_words: NDArray[np.uint32]) -> list[int]:
    """The index of the member that each queue goes to."""
    import numpy as np

    queue_count, member_count = len(queue_words), len(member_words)
    share, extras = divmod(queue_count, member_count)
    counts = [0] * member_count
    owners = [-1] * queue_count
    rows = np.arange(queue_count)
    columns = np.arange(member_count)
    ceiling, depth = _WEIGHTS, 2  # a first slice that holds about the 2 best members of each queue
    while len(rows):
        small = len(rows) * len(columns) <= _SMALL
        floor = 0 if small else max(0, _WEIGHTS - _WEIGHTS * depth // member_count)
        for row, column in _slice(queue_words, member_words, rows, columns, floor, ceiling):
            if owners[row] >= 0:
                continue
            count = counts[column]
            if count >= share:
                if count > share or not extras:
                    continue
                extras -= 1
            owners[row] = column
            counts[column] = count + 1
        ceiling, depth = floor, depth * 4
        rows = np.flatnonzero(np.array(owners) < 0)
        limit = share + 1 if extras else share
        columns = np.flatnonzero(np.array(counts) < limit)
    return owners


def _slice(
    queue_words: NDArray[np.uint32],
    member_words: NDArray[np.uint32],
    rows: NDArray[np.intp],
    columns: NDArray[np.intp],
    floor: int,
    ceiling: int,
) -> Iterator[tuple[int, int]]:
    """The pairs with floor <= weight < ceiling, heaviest first, equal ones in list order."""
    import numpy as np

    words = member_words[columns]
    height = max(1, _BLOCK // len(columns))
    found: list[NDArray[np.intp]] = []
    weighed: list[NDArray[np.uint32]] = []
    for start in range(0, len(rows), height):
        weights = _mix(queue_words[rows[start : start + height], None] ^ words).ravel()
        inside = weights >= np.uint32(floor)
        if ceiling < _WEIGHTS:
            inside &= weights < np.uint32(ceiling)
        pairs = np.flatnonzero(inside)
        found.append(pairs + start * len(columns))
        weighed.append(weights[pairs])
    order = np.argsort(~np.concatenate(weighed), kind="stable")
    row_index, column_index = np.divmod(np.concatenate(found)[order], len(columns))
    return zip(rows[row_index].tolist(), columns[column_index].tolist(), strict=True)


def _mix(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Scramble in place; the inputs are hashes already, so two rounds do."""
    import numpy as np

    words *= np.uint32(0x7FEB352D)
    words ^= words >> np.uint32(15)
    words *= np.uint32(0x846CA68B)
    return words
