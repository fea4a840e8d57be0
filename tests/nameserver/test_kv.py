"""The KV table and its file."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path

import pytest

from gimbalmq.errors import ConfigError, InvalidParameterError, StoreIOError, TableFullError
from gimbalmq.nameserver.config import NameServerConfig
from gimbalmq.nameserver.kv import KvStore
from gimbalmq.nameserver.server import NameServer
from gimbalmq.nameserver.settings import Settings
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.rpc import nameserver as nameserver_calls
from gimbalmq.transport.pool import ChannelPool
from tests.support import run, until


def test_table_survives_a_restart_in_java_s_form(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kvConfig.json"
    kv = KvStore(str(path))
    kv.load()
    run(kv.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4;broker-b:4"))
    run(kv.put("ORDER_TOPIC_CONFIG", "U", "broker-a:1"))
    run(kv.put("other", "主题", "x"))
    assert run(kv.delete("ORDER_TOPIC_CONFIG", "U"))
    assert json.loads(path.read_bytes()) == {
        "configTable": {"ORDER_TOPIC_CONFIG": {"T": "broker-a:4;broker-b:4"}, "other": {"主题": "x"}}
    }
    again = KvStore(str(path))
    again.load()
    assert again.get("ORDER_TOPIC_CONFIG", "T") == "broker-a:4;broker-b:4"
    assert again.namespace("other") == {"主题": "x"}
    assert os.listdir(path.parent) == ["kvConfig.json"]


def test_missing_and_empty_files_are_empty_tables(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    for content in (None, b"", b" \n"):
        if content is not None:
            path.write_bytes(content)
        kv = KvStore(str(path))
        kv.load()
        assert kv.namespace("any") is None


def test_name_space_stays_when_its_last_key_goes() -> None:
    kv = KvStore()
    kv.load()
    run(kv.put("n", "k", "v"))
    assert run(kv.delete("n", "k"))
    assert kv.namespace("n") == {}
    assert not run(kv.delete("n", "k"))
    assert not run(kv.delete("m", "k"))
    assert kv.get("n", "k") is None


def test_answers_are_copies() -> None:
    kv = KvStore()
    run(kv.put("n", "k", "v"))
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
        KvStore(str(path)).load()
    assert path.read_bytes() == content


def test_folder_in_place_of_the_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        KvStore(str(tmp_path)).load()


def test_change_that_cannot_be_written_does_not_happen(tmp_path: Path) -> None:
    folder = tmp_path / "taken"
    folder.write_text("a file where a folder belongs")
    kv = KvStore(str(folder / "kvConfig.json"))
    with pytest.raises(StoreIOError, match=r"kvConfig\.json"):
        run(kv.put("n", "k", "v"))
    assert kv.get("n", "k") is None


def test_failed_replacement_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kvConfig.json"
    kv = KvStore(str(path))
    run(kv.put("n", "k", "old"))

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(StoreIOError, match="No space left"):
        run(kv.put("n", "k", "new"))
    assert kv.get("n", "k") == "old"
    assert os.listdir(tmp_path) == ["kvConfig.json"]


def test_table_is_bounded(tmp_path: Path) -> None:
    async def work() -> None:
        kv = KvStore(str(tmp_path / "kvConfig.json"), max_entries=3, max_bytes=1000)
        for number in range(3):
            await kv.put(f"n{number}", "k", "v")
        with pytest.raises(TableFullError, match="maxKvConfigNums is 3"):
            await kv.put("n3", "k", "v")
        await kv.put("n2", "k", "other")
        with pytest.raises(TableFullError, match="maxKvConfigSize is 1000"):
            await kv.put("n2", "k", "x" * 1000)
        for texts in (("n" * 40_000, "k", "v"), ("n", "k" * 40_000, "v"), ("n", "k", "v" * 40_000)):
            with pytest.raises(InvalidParameterError, match="40000 characters; 32767 are allowed"):
                await kv.put(*texts)
        assert await kv.delete("n0", "k")
        await kv.put("n3", "k", "v")
        assert kv.body("n2") == b'{"table":{"k":"other"}}' and kv.body("nowhere") is None

    run(work())


def test_value_is_replaced_within_the_bounds() -> None:
    async def work() -> None:
        kv = KvStore(max_bytes=1000)
        await kv.put("n" * 300, "k", "x" * 600)
        await kv.put("n" * 300, "k", "y" * 690)
        await kv.put("n" * 300, "l", "z")
        with pytest.raises(TableFullError, match="would have 1001 characters"):
            await kv.put("n" * 300, "k", "y" * 698)
        kv.max_bytes = 10
        await kv.put("n" * 300, "k", "y" * 600)
        with pytest.raises(TableFullError, match="maxKvConfigSize is 10"):
            await kv.put("n" * 300, "k", "y" * 601)

    run(work())


@pytest.mark.parametrize("name", ["$ref", "@type"])
def test_name_that_java_s_readers_take_for_their_own_is_refused(tmp_path: Path, name: str) -> None:
    """A Java broker gets the order configuration with each registration, and could not read it any more."""
    path = tmp_path / "kvConfig.json"
    path.write_text(json.dumps({"configTable": {"old": {name: "v"}, name: {"k": "v"}}}))
    kv = KvStore(str(path))
    kv.load()
    assert kv.namespace("old") == {name: "v"} and kv.namespace(name) == {"k": "v"}
    for texts in ((name, "k", "v"), ("n", name, "v")):
        with pytest.raises(InvalidParameterError, match="use another"):
            run(kv.put(*texts))
    run(kv.put("n", "k", name))
    again = KvStore(str(path))
    again.load()
    assert again.namespace("n") == {"k": name} and again.namespace("old") == {name: "v"}


def _held_syncs(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """The first sync waits for the first event, and sets the second one before."""
    gate, syncing, real = threading.Event(), threading.Event(), os.fsync

    def slow(descriptor: int) -> None:
        if not syncing.is_set():
            syncing.set()
            assert gate.wait(30)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    return gate, syncing


@pytest.mark.parametrize("change", ["put", "delete"])
def test_change_whose_client_hangs_up_takes_nothing_from_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    async def work() -> None:
        path = tmp_path / "kvConfig.json"
        kv = KvStore(str(path))
        await kv.put("n", "old", "0")
        gate, syncing = _held_syncs(monkeypatch)
        first = asyncio.ensure_future(kv.put("n", "first", "1") if change == "put" else kv.delete("n", "old"))
        await until(syncing.is_set)
        for _ in range(2):
            first.cancel()
            await asyncio.sleep(0)
        second = asyncio.ensure_future(kv.put("n", "second", "2"))
        third = asyncio.ensure_future(kv.put("n", "third", "3"))
        await asyncio.sleep(0)
        assert not second.done()
        third.cancel()
        gate.set()
        await second
        for cancelled in (first, third):
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        kept = {"old": "0", "first": "1", "second": "2"} if change == "put" else {"second": "2"}
        assert kv.namespace("n") == json.loads(path.read_bytes())["configTable"]["n"] == kept

    run(work())


def test_options_whose_client_hangs_up_take_nothing_from_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        path = tmp_path / "namesrv.properties"
        settings = Settings(NameServerConfig(config_store_path=str(path)))
        gate, syncing = _held_syncs(monkeypatch)
        first = asyncio.ensure_future(settings.update("maxTopicNums=1000"))
        await until(syncing.is_set)
        first.cancel()
        await asyncio.sleep(0)
        second = asyncio.ensure_future(settings.update("maxRouteNums=2000"))
        await asyncio.sleep(0)
        gate.set()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (settings.config.max_topic_nums, settings.config.max_route_nums) == (1000, 2000)
        assert path.read_bytes() == settings.describe()

    run(work())


def _kept(path: Path) -> dict[str, str] | None:
    if not path.exists():
        return None
    found: dict[str, str] = json.loads(path.read_bytes())["configTable"]["n"]
    return found


def test_changes_are_made_though_who_asked_hangs_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that waited for the one before them."""
    path = tmp_path / "kvConfig.json"

    async def work() -> None:
        config = NameServerConfig(
            listen_port=0,
            kv_config_path=str(path),
            config_store_path=str(tmp_path / "namesrv.properties"),
        )
        async with NameServer(config) as server:
            pool, watcher = ChannelPool(), ChannelPool()
            await nameserver_calls.all_topics(watcher, server.address)
            channel = await pool.channel(server.address)
            gate, syncing = _held_syncs(monkeypatch)
            for key in ("first", "second"):
                ext = {"namespace": "n", "key": key, "value": "v"}
                channel.oneway(RemotingCommand(RequestCode.PUT_KV_CONFIG, ext))
            channel.oneway(RemotingCommand(RequestCode.DELETE_KV_CONFIG, {"namespace": "n", "key": "first"}))
            for option in (b"maxTopicNums=1000", b"maxRouteNums=2000"):
                channel.oneway(RemotingCommand(RequestCode.UPDATE_NAMESRV_CONFIG, None, option))
            await until(syncing.is_set)
            channel.abort()
            assert server._remoting is not None
            channels = server._remoting.channels
            await until(lambda: len(channels) == 1)
            gate.set()
            await until(lambda: _kept(path) == {"second": "v"})
            await until(lambda: server.config.max_route_nums == 2000)
            assert server.config.max_topic_nums == 1000
            await watcher.close()
            await pool.close()

    run(work())


def test_changes_at_once_are_all_kept(tmp_path: Path) -> None:
    """The file is written by a thread; two changes never write it, or start from one table, at the same time."""

    async def work() -> None:
        path = tmp_path / "kvConfig.json"
        kv = KvStore(str(path))
        await asyncio.gather(*(kv.put("n", f"k{number}", "v") for number in range(20)))
        assert kv.namespace("n") == {f"k{number}": "v" for number in range(20)}
        assert json.loads(path.read_bytes())["configTable"]["n"] == kv.namespace("n")

    run(work())


def test_disk_that_does_not_answer_does_not_stop_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        gate, syncing = threading.Event(), threading.Event()

        def slow(_fd: int) -> None:
            syncing.set()
            assert gate.wait(30)

        monkeypatch.setattr(os, "fsync", slow)
        kv = KvStore(str(tmp_path / "kvConfig.json"))
        putting = asyncio.ensure_future(kv.put("n", "k", "v"))
        await until(syncing.is_set)
        assert kv.get("n", "k") is None
        gate.set()
        await putting
        assert kv.get("n", "k") == "v"

    run(work())
