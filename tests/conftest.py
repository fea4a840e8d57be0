"""Settings of the whole suite."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support import freeze_what_is_there, memory_folder

# Machines here are small and busy: how long one example takes says nothing about the code.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every program that they start:
# those that are tested for what they do at Ctrl-C could not be ended by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests sync many thousands of files. A disk makes them wait for that, and shows nothing by it: what a power cut leaves
# is worked out by `testing.RecordedDisk`.
if (folder := memory_folder()) is not None:
    tempfile.tempdir = folder
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", folder)


def pytest_collection_finish() -> None:
    """Thousands of tests and all that they import stay until the end: the garbage collector need not look at them again
    after every test (see `support.run`)."""
    freeze_what_is_there()


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """A command that runs in a test sends all logs to that test's stderr, which is closed after it.

    Servers that outlive the test, in threads of their own, would then find a handler that cannot write.
    """
    root = logging.getLogger()
    before, level = set(root.handlers), root.level
    yield
    for handler in set(root.handlers) - before:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)
