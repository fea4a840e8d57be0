"""gimbalmq balance: previews and simulated days, offline and against a running cluster."""

from __future__ import annotations

import json
import logging
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from gimbalmq import Message, sync
from gimbalmq.balance.simulate import Event, Report, simulate
from gimbalmq.balance.sticky import Sticky
from gimbalmq.cli.main import main
from gimbalmq.cli.picture import day_svg
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.topics import retry_topic
from gimbalmq.testing import LocalCluster
from tests.cli.commands import gimbalmq

PREVIEW = ("balance", "preview")
SIMULATE = ("balance", "simulate")


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """The command sets up logging for its process; this one goes on."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def _run(*words: object) -> int:
    try:
        return main([str(word) for word in words])
    except SystemExit as ended:
        return int(ended.code or 0)


# -- preview -------------------------------------------------------------------------


def test_preview_prints_who_owns_what_before_and_after(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(*PREVIEW, "--topic", "orders=16", "--members", "a,b,c", "--join", "d") == 0
    assert capsys.readouterr().out == (
        "AVG\n"
        "  member  before        after\n"
        "  ------  ------------  ------------\n"
        "  a       orders 0-5    orders 0-3\n"
        "  b       orders 6-10   orders 4-7\n"
        "  c       orders 11-15  orders 8-11\n"
        "  d       (not there)   orders 12-15\n"
        "  moved 9 of 16, minimum 4 (2.25x); counts differ by 0, 0 idle\n"
        "\n"
    )


def test_preview_without_a_change_prints_the_shares(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--topic", "x=2", "--topic", "y=2", "--members", 4)
    assert _run(*PREVIEW, *words) == 0
    out = capsys.readouterr().out
    assert "member-1  x 0; y 0" in out and "member-4  -" in out
    assert "moved" not in out and "counts differ by 2, 2 idle" in out


def test_preview_compares_all_strategies(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--topic", "t=16", "--members", "a,b,c", "--leave", "a", "--strategy", "all")
    assert _run(*PREVIEW, *words) == 0
    lines = capsys.readouterr().out.splitlines()
    table = [line.split() for line in lines[lines.index("") + 1 :] if "x " in line and line[0] != " "]
    assert [row[0] for row in table] == ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "STICKY"]
    assert all(int(moved) >= int(least) for name, moved, least, *_ in table if name != "CONSISTENT_HASH")


def test_preview_as_json_names_every_move(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--topic", "t=4", "--members", "a,b", "--resize", "t=8", "--json")
    assert _run(*PREVIEW, *words) == 0
    (found,) = json.loads(capsys.readouterr().out)["strategies"]
    assert found["before"]["a"] == [["t", "broker-a", 0], ["t", "broker-a", 1]]
    assert found["moved"] == [
        {"queue": ["t", "broker-a", number], "from": "b", "to": "a"} for number in (2, 3)
    ]
    assert (found["minimum"], found["spread"]) == (0, 0)


def test_preview_knows_brokers_and_rooms(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--topic", "t=2", "--brokers", "east@1,west@1", "--members", "e1,w1")
    nearby = ("--strategy", "MACHINE_ROOM_NEARBY-AVG", "--room", "east@=E", "--room", "west@=W")
    assert _run(*PREVIEW, *words, *nearby, "--room", "e=E", "--room", "w=W") == 0
    out = capsys.readouterr().out
    assert "e1      t@east@1 0-1" in out and "w1      t@west@1 0-1" in out
    assert _run(*PREVIEW, *words, "--strategy", "MACHINE_ROOM", "--room", "x=east") == 0
    assert "t@west" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--members", "a"), "--topic"),
        (("--topic", "t=4"), "--members a,b,c"),
        (("--topic", "t=0", "--members", "a"), "t=0"),
        (("--topic", "t=x", "--members", "a"), "t=x"),
        (("--topic", "t=4", "--members", "a,a"), "a is named twice"),
        (("--topic", "t=4", "--members", "0"), "1 to 10000"),
        (("--topic", "t=4", "--members", "a", "--join", "a"), "a member already"),
        (("--topic", "t=4", "--members", "a", "--leave", "z"), "no such member; there is a"),
        (("--topic", "t=4", "--members", "a", "--resize", "u=4"), "no topic 'u'"),
        (("--topic", "t=4", "--members", "a", "--strategy", "BEST"), "'BEST'"),
        (("--topic", "t=4", "--members", "a", "--strategy", "CONFIG"), "list of your own"),
        (
            ("--topic", "t=4", "--members", "a", "--strategy", "MACHINE_ROOM_NEARBY-AVG"),
            "no room fits this name",
        ),
        (("--topic", "t=4", "--members", "a", "--strategy", "MACHINE_ROOM"), "add --room"),
        (("--topic", "t=4", "--members", "a", "--room", "x"), "PREFIX=ROOM"),
    ],
)
def test_wrong_values_are_named_with_a_remedy(
    words: tuple[object, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(*PREVIEW, *words) == 2
    assert told in capsys.readouterr().err


def test_preview_reads_a_running_group(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The printed owners are the ones the group has."""
    with LocalCluster.in_thread() as cluster:
        with sync.Producer("p", cluster.namesrv) as producer:
            producer.send(Message("orders", b"x"))
        consumers = [
            sync.PushConsumer("g", cluster.namesrv, instance_name=name, strategy="STICKY") for name in "ab"
        ]
        for consumer in consumers:
            consumer.subscribe("orders", "*", lambda message: None)
            consumer.start()
        ids = [consumer.client_id for consumer in consumers]
        words = ("--namesrv", cluster.namesrv, "--group", "g", "--strategy", "STICKY", "--json")
        try:
            assert _run(*PREVIEW, *words) == 0
            shown = json.loads(capsys.readouterr().out)["strategies"][0]["after"]
            assert sorted(shown) == sorted(ids)
            topics = {queue[0] for part in shown.values() for queue in part}
            assert topics == {"orders", retry_topic("g")}, "consumers balance their retry topic too"
            for consumer in consumers:
                wanted = sorted(shown[consumer.client_id])
                changes = consumer.events()
                while _held(consumer) != wanted:  # the route of the retry topic comes a moment later
                    next(changes)
            assert _run(*PREVIEW, *words, "--topic", "orders", "--leave", ids[0]) == 0
            (found,) = json.loads(capsys.readouterr().out)["strategies"]
            assert list(found["after"]) == [ids[1]] and len(found["after"][ids[1]]) == 4
        finally:
            for consumer in consumers:
                consumer.close()
        monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)
        assert _run(*PREVIEW, "--group", "nobody", "--topic", "orders") == 2
        assert "no member now" in capsys.readouterr().err
        assert _run(*PREVIEW, "--topic", "unknown", "--members", 2) == 1
        assert "unknown" in capsys.readouterr().err
        assert _run(*PREVIEW, "--topic", "orders", "--members", 2) == 0
        assert "member-2  orders 2-3" in capsys.readouterr().out
        # The first of several name servers that answers is asked.
        assert (
            _run(*PREVIEW, "-n", f"127.0.0.1:1;{cluster.namesrv}", "--topic", "orders", "--members", 2) == 0
        )
        capsys.readouterr()
    assert _run(*PREVIEW, "--topic", "orders", "--members", 2) == 1
    told = capsys.readouterr().err
    assert os.environ["NAMESRV_ADDR"] in told and "--topic NAME=16" in told
    assert _run(*PREVIEW, "--topic", "orders=4", "--members", 2, "--group", "g") == 0, "nobody is asked"


def _held(consumer: sync.PushConsumer) -> list[list[object]]:
    return sorted([*queue] for part in consumer.assignment.values() for queue in part)


def test_preview_is_quick_and_imports_no_network() -> None:
    done = gimbalmq(*PREVIEW, "--topic", "t=16", "--members", "a,b", flags=("-X", "importtime"))
    assert done.returncode == 0
    for heavy in ("asyncio", "numpy", "gimbalmq.client", "gimbalmq.transport"):
        assert not re.search(rf"\|\s+{heavy}$", done.stderr, re.MULTILINE), heavy
    assert re.search(r"\|\s+gimbalmq.balance.allocate$", done.stderr, re.MULTILINE), "the pattern fits"


# -- simulate ------------------------------------------------------------------------


def test_simulate_prints_a_row_per_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(*SIMULATE, "--queues", 64, "--members", 8, "--events", 30, "--seed", 7) == 0
    first = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in first.splitlines()[3:]}
    assert list(rows) == ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "STICKY"]
    assert int(rows["STICKY"][1]) < int(rows["AVG"][1])
    _run(*SIMULATE, "--queues", 64, "--members", 8, "--events", 30, "--seed", 7)
    assert capsys.readouterr().out == first, "equal seeds, equal days"


def test_simulate_as_json_lists_the_changes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--queues", 32, "--topics", 4, "--members", 4, "--events", 12, "--strategies", "AVG,STICKY")
    assert _run(*SIMULATE, *words, "--no-resizes", "--json") == 0
    found = json.loads(capsys.readouterr().out)["strategies"]
    assert [one["strategy"] for one in found] == ["AVG", "STICKY"]
    assert len(found[0]["changes"]) == 12
    assert {change["kind"] for change in found[0]["changes"]} <= {"join", "leave", "crash", "lost"}
    assert sum(change["moved"] for change in found[0]["changes"]) == found[0]["moved"]


def test_simulate_draws_the_day(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "day.svg"
    words = ("--queues", 64, "--members", 8, "--events", 20)
    assert _run(*SIMULATE, *words, "--svg", file) == 0
    root = ElementTree.fromstring(file.read_text())
    told = "".join(root.itertext())
    for text in (
        "Queues moved in a day",
        "64 queues, 8 members",
        "STICKY",
        "least for even shares",
        "time of day",
    ):
        assert text in told
    assert _run(*SIMULATE, *words, "--svg", tmp_path / "none" / "day.svg") == 1
    assert "can be written" in capsys.readouterr().err


def test_png_without_a_converter_names_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ("--queues", 8, "--members", 2, "--events", 3, "--png", tmp_path / "day.png")
    assert _run(*SIMULATE, *words) == 2
    assert "librsvg2-bin" in capsys.readouterr().err
    converter = tmp_path / "rsvg-convert"
    converter.write_text("#!/bin/sh\nexec /bin/cat\n")
    os.chmod(converter, 0o755)
    assert _run(*SIMULATE, *words) == 0
    assert (tmp_path / "day.png").read_text().startswith("<svg")
    converter.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    assert _run(*SIMULATE, *words) == 1
    assert "broken" in capsys.readouterr().err


def test_wrong_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("--queues", 0), ("--events", "many"), ("--queues", 2, "--topics", 3)):
        assert _run(*SIMULATE, *words) == 2
        assert str(words[-1]) in capsys.readouterr().err


def test_a_day_without_changes_has_a_picture() -> None:
    empty = Report("AVG", ())
    assert "<svg" in day_svg("nothing", [empty]) and "<svg" in day_svg("nobody", [])
    queues = [MessageQueue("t", "b", number) for number in range(4)]
    one = simulate(Sticky(), queues, [Event(60, "join", "b")], members=["a"])
    assert "STICKY 2" in day_svg("<one & only>", [one])


# -- allocateMQ ----------------------------------------------------------------------


def test_allocate_mq_prints_what_mqadmin_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """S1-37: for a topic and a list of ips, the AVG result as JSON."""
    with LocalCluster.in_thread() as cluster, sync.Producer("p", cluster.namesrv) as producer:
        producer.send(Message("shared", b"makes the topic with four queues"))
        words = ("allocateMQ", "-n", cluster.namesrv, "-t", "shared", "-i", "10.0.0.1,10.0.0.2,10.0.0.3")
        assert _run(*words) == 0
        printed = json.loads(capsys.readouterr().out)
        assert {ip: [queue["queueId"] for queue in share] for ip, share in printed["result"].items()} == {
            "10.0.0.1": [0, 1],
            "10.0.0.2": [2],
            "10.0.0.3": [3],
        }
        assert printed["result"]["10.0.0.2"] == [{"brokerName": "broker-a", "queueId": 2, "topic": "shared"}]
        assert _run("allocateMQ", "-n", cluster.namesrv, "-t", "nothing", "-i", "a") == 1
        assert "nothing" in capsys.readouterr().err
    assert _run("allocateMQ", "-t", "shared", "-i", ",") == 2
