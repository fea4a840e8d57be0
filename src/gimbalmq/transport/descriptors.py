"""How many files and connections this process may have open, and who gets how many.

Every connection and every open file is a descriptor, and a process has a limited number of them. What runs out
of them last must be the store: a broker that cannot open a queue file cannot work, one that refuses a
connection can. So the store and a reserve get their part first, connections get the rest, and the server
refuses more than that.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

_RESERVE = 64
"""For listening ports, the loop, connections to name servers, a JSON file being saved, files on their way to
the disk, an administrator's shell."""
_STORE_PART = 4
"""The store gets one of so many ..."""
_MOST_STORE_FILES = 4096
"""... but no more than this: opening one costs microseconds, so more would not be felt."""
_LEAST_STORE_FILES = 16
_UNLIMITED = 1 << 20


@dataclass(frozen=True, slots=True)
class DescriptorBudget:
    """Parts of the limit.

    Attributes:
        limit: descriptors the process may have.
        queue_files: queue files the store keeps open.
        log_files: commit-log files the store keeps open for reading; each takes two descriptors.
        connections: how many may be open at once, of all ports together.
    """

    limit: int
    queue_files: int
    log_files: int
    connections: int


def budget(limit: int | None = None) -> DescriptorBudget:
    """Divides the limit; None asks for the one in force."""
    if limit is None:
        limit = _soft_limit()
    store = max(_LEAST_STORE_FILES, min(_MOST_STORE_FILES, limit // _STORE_PART))
    log_files = max(2, store // 16)
    queue_files = store - 2 * log_files
    return DescriptorBudget(limit, queue_files, log_files, max(1, limit - store - _RESERVE))


def raise_limit() -> int:
    """Raises the limit in force to the most this process is allowed; what it is then.

    For the process's own start only: a library must not change what belongs to its host.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS says "unlimited" and then refuses more than OPEN_MAX.
        for wanted in (hard, _open_max(), 10_240):
            if wanted != resource.RLIM_INFINITY and wanted <= soft:
                continue
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            except (ValueError, OSError):
                continue
            break
    return _soft_limit()


def _soft_limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _UNLIMITED if soft == resource.RLIM_INFINITY else min(soft, _UNLIMITED)


def _open_max() -> int:
    try:
        return os.sysconf("SC_OPEN_MAX")
    except (ValueError, OSError):
        return 0
