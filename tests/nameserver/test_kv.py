"""The KV table and its file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gimbalmq.errors import ConfigError, StoreIOError
from gimbalmq.nameserver.kv import KvConfig


def test_table_survives_a_restart_in_java_s_form(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kvConfig.json"
    kv = KvConfig(str(path))
    kv.load()
    kv.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4;broker-b:4")
    kv.put("ORDER_TOPIC_CONFIG", "U", "broker-a:1")
    kv.put("other", "主题", "x")
    assert kv.delete("ORDER_TOPIC_CONFIG", "U")
    assert json.loads(path.read_bytes()) == {
        "configTable": {"ORDER_TOPIC_CONFIG": {"T": "broker-a:4;broker-b:4"}, "other": {"主题": "x"}}
    }
    again = KvConfig(str(path))
    again.load()
    assert again.get("ORDER_TOPIC_CONFIG", "T") == "broker-a:4;broker-b:4"
    assert again.namespace("other") == {"主题": "x"}
    assert os.listdir(path.parent) == ["kvConfig.json"]


def test_missing_and_empty_files_are_empty_tables(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    for content in (None, b"", b" \n"):
        if content is not None:
            path.write_bytes(content)
        kv = KvConfig(str(path))
        kv.load()
        assert kv.namespace("any") is None


def test_name_space_stays_when_its_last_key_goes() -> None:
    kv = KvConfig()
    kv.load()
    kv.put("n", "k", "v")
    assert kv.delete("n", "k")
    assert kv.namespace("n") == {}
    assert not kv.delete("n", "k")
    assert not kv.delete("m", "k")
    assert kv.get("n", "k") is None


def test_answers_are_copies() -> None:
    kv = KvConfig()
    kv.put("n", "k", "v")
    found = kv.namespace("n")
    assert found is not None
    found.clear()
    assert kv.get("n", "k") == "v"


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b"{}", b'{"configTable":5}', b'{"configTable":{"n":5}}', b"\xff"]
)
def test_broken_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"kvConfig\.json"):
        KvConfig(str(path)).load()
    assert path.read_bytes() == content


def test_folder_in_place_of_the_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        KvConfig(str(tmp_path)).load()


def test_change_that_cannot_be_written_does_not_happen(tmp_path: Path) -> None:
    folder = tmp_path / "taken"
    folder.write_text("a file where a folder belongs")
    kv = KvConfig(str(folder / "kvConfig.json"))
    with pytest.raises(StoreIOError, match=r"kvConfig\.json"):
        kv.put("n", "k", "v")
    assert kv.get("n", "k") is None


def test_failed_replacement_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kvConfig.json"
    kv = KvConfig(str(path))
    kv.put("n", "k", "old")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(StoreIOError, match="No space left"):
        kv.put("n", "k", "new")
    assert kv.get("n", "k") == "old"
    assert os.listdir(tmp_path) == ["kvConfig.json"]
