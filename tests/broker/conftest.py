"""Broker tests wait for no disk: what they look at is in the page cache, synced or not."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_disk_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fsync", "fdatasync", "sync"):
        if hasattr(os, name):
            monkeypatch.setattr(os, name, lambda *_: None)
