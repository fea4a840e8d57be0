"""Waits for the disk whose records are cut away meanwhile."""

from __future__ import annotations

from pathlib import Path

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.broker.flush import GroupCommit
from gimbalmq.store import MessageStore
from tests.store.helpers import config_for, put
from tests.support import run


def test_who_waits_for_what_was_cut_away_is_told_so(tmp_path: Path) -> None:
    async def work() -> None:
        store = MessageStore(config_for(tmp_path), SYSTEM_CLOCK)
        store.load()
        put(store, "T", 0, b"kept")
        kept = store.max_commitlog_offset
        put(store, "T", 0, b"cut")
        commit = GroupCommit(store)
        both = [commit.wait(kept), commit.wait(store.max_commitlog_offset)]
        store.follow()
        store.cut(kept)
        assert [await wait for wait in both] == [True, False]
        await commit.close()
        store.close()

    run(work())
