"""A full disk: refused in the protocol's words, nothing acknowledged lost, and back when there is room."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gimbalmq.protocol.codes import ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.transport.pool import ChannelPool
from tests.robustness.load import Account, BrokerProcess, read_everything, send_request


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 16 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_full_disk_is_answered_and_survived(small_disk: Path, flush: str) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(8_000_000))
    broker = BrokerProcess(
        small_disk / "store",
        f"flushDiskType={flush}",
        "mappedFileSizeCommitLog=67108864",
        "mappedFileSizeConsumeQueue=200000",
        "maxHashSlotNum=1000",
        "maxIndexNum=400000",
        "diskMaxUsedSpaceRatio=95",
        "cleanFileForciblyEnable=false",
    )
    broker.start()
    account = Account()

    async def scene() -> None:
        pool = ChannelPool()
        names = (b"%06d" % number for number in itertools.count())
        refusal: RemotingCommand | None = None
        padding = b"." * 8000
        while refusal is None:
            body = next(names) + padding
            answer = await pool.call(broker.address, send_request(body, 0), 10.0)
            if answer.code == ResponseCode.SUCCESS:
                account.acknowledged.add(body)
            else:
                refusal = answer
        assert refusal.code == ResponseCode.SERVICE_NOT_AVAILABLE, refusal
        assert refusal.remark is not None
        assert "No space left" in refusal.remark, refusal.remark
        # Reading goes on, and so does the process.
        await read_everything(broker.address, account)
        assert not account.lost, account
        ballast.unlink()
        for body in names:
            answer = await pool.call(broker.address, send_request(body, 1), 10.0)
            if answer.code == ResponseCode.SUCCESS:
                account.acknowledged.add(body)
                break
            await asyncio.sleep(0.05)
        await read_everything(broker.address, account)
        assert not account.lost, account
        await pool.close()

    try:
        asyncio.run(asyncio.wait_for(scene(), 60))
        broker.kill()
        broker.start()
        asyncio.run(read_everything(broker.address, account))
    finally:
        broker.stop()
    print(f"\nfull disk, {flush}: {account}")
    assert not account.lost, account
