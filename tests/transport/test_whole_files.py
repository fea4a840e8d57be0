"""Small files: replaced whole, watched, and read if they hold a secret."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gimbalmq.errors import ConfigError
from gimbalmq.transport.whole_files import PUBLIC, read_secret, stamp_of, write_whole


def test_a_file_is_replaced_with_its_mode_and_seen_to_change(tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert stamp_of(str(file)) is None
    write_whole(file, "één")
    before = stamp_of(str(file))
    assert file.read_text("utf-8") == "één" and stat.S_IMODE(file.stat().st_mode) == 0o600
    write_whole(file, b"two", PUBLIC)
    assert file.read_bytes() == b"two" and stat.S_IMODE(file.stat().st_mode) == 0o644
    assert stamp_of(str(file)) != before
    assert os.listdir(tmp_path) == ["file"]


def test_what_cannot_be_put_into_its_place_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError):
        write_whole(tmp_path / "file", "text")
    assert os.listdir(tmp_path) == ["file"]


def test_a_secret_is_all_that_its_file_holds(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b" the-secret\r\n")
    assert read_secret(file, "--secret-key-file") == "the-secret"
    with pytest.raises(ConfigError, match=r"no' cannot be used: cannot be read: No such file.*; say so"):
        read_secret(tmp_path / "no", "--secret-key-file", "; say so")
    for content, said in (
        (b"\n", "it is empty"),
        (b"the-secret\nof two lines", "one line, and nothing else"),
        (b"the-secret" * 1000, "one line, and nothing else"),
        (b"the-secret\xff", "not UTF-8"),
    ):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=said) as refused:
            read_secret(file, "--secret-key-file")
        assert "the-secret" not in str(refused.value)
