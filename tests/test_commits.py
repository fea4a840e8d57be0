"""Commit subjects fit a line of `git log --oneline`: at most 72 letters (CONTRIBUTING.md)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

SINCE = "99e278ea01f1715cd13b0b5f22e3efcc5e68564e"
"""Older subjects may be longer: history is not written anew."""

MOST_LETTERS = 72


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)


def test_subjects_of_commits_are_short() -> None:
    if not (ROOT / ".git").exists() or _git("--version").returncode:
        pytest.skip("no git, or no checkout of it")
    if _git("merge-base", "--is-ancestor", SINCE, "HEAD").returncode:
        pytest.skip(f"the clone does not reach back to {SINCE[:8]}")
    told = _git("log", "--no-merges", "--format=%h %s", f"{SINCE}..HEAD").stdout.splitlines()
    long = [line for line in told if len(line.split(" ", 1)[1]) > MOST_LETTERS]
    assert not long, f"more than {MOST_LETTERS} letters; git commit --amend or git rebase shorten them"
