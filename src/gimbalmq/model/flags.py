"""System-flag and permission bits, as plain integers: they are masked millions of times."""

from __future__ import annotations

from typing import Final

# --- SYSFLAG of a stored message ---------------------------------------------------------------
COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2

TRANSACTION_MASK: Final = 0xC
TRANSACTION_NOT: Final = 0x0
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC

BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
HOST_BITS: Final = BORN_HOST_V6 | STORE_HOST_V6
NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80

COMPRESSION_MASK: Final = 0x700
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300  # 0 means zlib too: senders before 4.9.4 write no type

# --- permissions of a topic or a broker --------------------------------------------------------
PERM_PRIORITY: Final = 0x8
PERM_READ: Final = 0x4
PERM_WRITE: Final = 0x2
PERM_INHERIT: Final = 0x1


def enters_queue(sys_flag: int) -> bool:
    """Whether such a record gets a consume-queue entry: half and rollback records do not."""
    return sys_flag & TRANSACTION_PREPARED == 0


def enters_index(sys_flag: int) -> bool:
    """Whether such a record's keys are indexed: all but rollback records."""
    return sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK
