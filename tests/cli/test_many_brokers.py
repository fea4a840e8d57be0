"""From one broker's configuration to those of several, and what is said about stores that are left behind."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path

import pytest

from gimbalmq.broker.config import BrokerConfig
from gimbalmq.cli.command_line import build_parser
from gimbalmq.cli.main import main
from gimbalmq.cli.many_brokers import (
    broker_count,
    configurations,
    nth_name,
    warn_of_unread_stores,
)
from gimbalmq.cli.serve import ServePlan
from gimbalmq.cli.server_plans import server_plan


@pytest.mark.parametrize(
    ("first", "index", "name"),
    [
        ("broker-a", 0, "broker-a"),
        ("broker-a", 1, "broker-b"),
        ("broker-c", 2, "broker-e"),
        ("broker-a", 25, "broker-z"),
        ("broker-a", 26, "broker-aa"),
        ("broker-y", 3, "broker-ab"),
        ("shop", 0, "shop"),
        ("shop", 1, "shop-b"),
        ("shop-eu", 2, "shop-eu-c"),
    ],
)
def test_names_go_on_from_the_first(first: str, index: int, name: str) -> None:
    assert nth_name(first, index) == name


def test_auto_is_as_many_as_this_process_has_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3), raising=False)
    assert broker_count("auto") == 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(200), raising=False)
    assert broker_count("auto") == 64
    assert broker_count("64") == 64
    for wrong in ("0", "65", "-1", "two", "²", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="use 1 to 64, or auto"):
            broker_count(wrong)


def test_each_broker_has_its_own_name_ports_and_folder_and_the_first_is_unchanged(tmp_path: Path) -> None:
    alone = BrokerConfig(
        store_path_root_dir=str(tmp_path),
        listen_port=20911,
        ha_listen_port=30000,
        max_message_size=1000,
        auth_config_path="/users",
        access_message_in_memory_max_ratio=40,
        metrics_prom_exporter_port=5557,
        metrics_token="sixteen-letters-x",
    )
    first, second, third = configurations(alone, 3)
    assert (first.broker_name, first.listen_port, first.store_path_root_dir) == (
        "broker-a",
        20911,
        str(tmp_path),
    )
    assert first.auth_config_path == "/users" and second.auth_config_path is None
    assert [config.broker_name for config in (second, third)] == ["broker-b", "broker-c"]
    assert [config.listen_port for config in (second, third)] == [20921, 20931]
    assert [config.ha_listen_port for config in (first, second, third)] == [30000, 30010, 30020]
    assert second.store_path_root_dir == str(tmp_path / "broker-b")
    for config in (first, second, third):
        assert config.max_message_size == 1000
        assert config.access_message_in_memory_max_ratio == 14
        assert (config.metrics_prom_exporter_port, config.metrics_token) == (0, None)
    assert configurations(alone, 1) == (alone,)


def test_free_ports_stay_free_and_accounts_of_4x_are_the_same_for_all(tmp_path: Path) -> None:
    alone = BrokerConfig(store_path_root_dir=str(tmp_path), listen_port=0, acl_enable=True)
    brokers = configurations(alone, 2)
    assert [config.listen_port for config in brokers] == [0, 0]
    assert [config.ha_listen_port for config in brokers] == [0, 0]
    assert {config.acl_config_path for config in brokers} == {str(tmp_path / "conf")}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("haMasterAddress=127.0.0.1:10912", "it can only be meant for one of 2 brokers"),
        ("haCutTailFrom=0", "it can only be meant for one of 2 brokers"),
        ("storePathEpochFile=/x", "it can only be meant for one of 2 brokers"),
        ("storePathBrokerIdentity=/x", "it can only be meant for one of 2 brokers"),
        ("listenPort=65530", "the last of 2 brokers would have port 65541; use at most 65524"),
        ("haListenPort=65530", "the last of 2 brokers would have port 65540; use at most 65525"),
    ],
)
def test_what_brokers_cannot_share_is_refused(
    given: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["server", "--brokers", "2", "--store", str(tmp_path), "--set", given]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"gimbalmq: {given.partition('=')[0]}=") and told in error


def plan(store: Path, *words: str) -> ServePlan:
    return server_plan(build_parser("server").parse_args(["server", "--store", str(store), *words]))


def test_the_name_server_has_a_table_of_users_of_its_own(tmp_path: Path) -> None:
    keys = ("--set", "authenticationEnabled=true", "--set", f"authConfigPath={tmp_path / 'users'}")
    several = plan(tmp_path, "--brokers", "2", *keys)
    assert several.nameserver is not None and several.nameserver.auth_config_path is None
    assert [config.auth_config_path for config in several.many] == [str(tmp_path / "users"), None]
    named = plan(tmp_path, "--brokers", "2", *keys, "--set", "namesrv.authConfigPath=/there")
    assert named.nameserver is not None and named.nameserver.auth_config_path == "/there"
    alone = plan(tmp_path, *keys)
    assert alone.nameserver is not None and alone.nameserver.auth_config_path == str(tmp_path / "users")
    assert alone.broker is not None and not alone.many


def test_stores_that_are_left_unread_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("broker-b", "broker-c", "other"):
        (tmp_path / name / "commitlog").mkdir(parents=True)
    (tmp_path / "namesrv").mkdir()
    alone = BrokerConfig(store_path_root_dir=str(tmp_path))
    with caplog.at_level(logging.WARNING):
        warn_of_unread_stores(configurations(alone, 2))
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert f"{tmp_path / 'broker-c'} holds the messages" in told[0] and "--brokers 3 serves" in told[0]
    assert "gimbalmq broker --name other --store" in told[1]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        plan(tmp_path)
    assert ["--brokers 2" in record.getMessage() for record in caplog.records] == [True, False, False]
