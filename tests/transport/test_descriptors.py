"""Who gets how many open files."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from gimbalmq.transport.descriptors import budget


@pytest.mark.parametrize("limit", [64, 128, 256, 1024, 10_240, 65_536, 1 << 20])
def test_the_parts_fit_the_limit(limit: int) -> None:
    parts = budget(limit)
    assert parts.queue_files >= 8
    assert parts.log_files >= 2
    assert parts.connections >= 1
    if limit >= 128:
        assert parts.queue_files + 2 * parts.log_files + parts.connections <= limit - 64
        assert parts.connections >= limit // 5


def test_the_limit_in_force_is_asked_for() -> None:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert budget().limit == min(soft, 1 << 20)


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    script = (
        "import resource\n"
        "from gimbalmq.transport.descriptors import raise_limit\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 300))\n"
        "assert raise_limit() == 300, resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, 300)\n"
        "assert raise_limit() == 300\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
