"""What the benchmarks share: when a broker counts as warm, and which peer a goal is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import warming
from benchmarks.loadgen.runner import Load
from benchmarks.report import Row, plain_table
from benchmarks.subjects import Subject, silent_home


@pytest.fixture
def subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    monkeypatch.setattr(warming, "warmed", [])
    return Subject(tmp_path / "subject", "5.5.0")


def loads(*rates: float) -> list[Load]:
    return [Load(rate, ok=1_000_000) for rate in reversed(rates)]


def test_a_broker_is_warm_when_three_windows_agree(subject: Subject) -> None:
    left = loads(10_000, 20_000, 20_100, 30_000, 30_500, 30_900, 99_000)
    found = warming.warm(subject, "sends", left.pop, most_messages=10**9, most_seconds=10**9)
    assert found.rates == (10_000, 20_000, 20_100, 30_000, 30_500, 30_900)
    assert (found.messages, found.settled, len(left)) == (6_000_000, True, 1)
    assert "5.5.0, sends: 6,000,000 in 6 windows, 10,000/s to 30,900/s" in warming.warmth()


def test_warming_ends_after_so_many_messages_or_seconds_and_says_so(subject: Subject) -> None:
    rising = [float(rate) for rate in range(100_000, 300_000, 20_000)]
    found = warming.warm(subject, "sends", loads(*rising).pop, most_messages=5_000_000, most_seconds=10**9)
    assert (len(found.rates), found.settled) == (5, False)
    found = warming.warm(subject, "sends", loads(*rising).pop, most_messages=10**9, most_seconds=25)
    assert len(found.rates) == 3
    assert warming.warmth().count("was not settled") == 2
    assert len(warming.warm(subject, "sends", loads(*rising).pop, quick=True).rates) == 1
    # A broker that accepts nothing at all does not keep anybody waiting.
    assert warming.warm(subject, "sends", lambda: Load(0.0)).messages == 0


def test_a_goal_is_about_the_peer_that_is_best_at_it() -> None:
    row = Row("sends", "1/s", {"ours": [300.0], "5.5.0": [100.0], "4.9.7": [200.0]}, goal=(">=", 2.0))
    assert (row.ratio, row.reached) == (1.5, False)
    late = Row("p99", "us", {"ours": [300.0], "5.5.0": [100.0], "4.9.7": [600.0]}, goal=("<=", 1.0))
    assert (late.ratio, late.reached) == (3.0, False)
    head, _, first, _ = plain_table([row, late]).splitlines()
    assert head.split()[:9] == ["what", "unit", "ours", "5.5.0", "4.9.7", "/", "5.5.0", "/", "4.9.7"]
    assert first.split()[2:7] == ["300", "100", "200", "3.00", "1.50"]
    assert plain_table([Row("x", "s", {"ours": [1.0], "kafka": [2.0]})]).split()[2:5] == [
        "ours",
        "Kafka",
        "ratio",
    ]


def test_processor_time_is_that_of_accepted_requests() -> None:
    load = Load(0.0, ok=50, subject_cpu=1.0, raw={"codes": {"0": 100, "2": 900}, "answered": 1000})
    assert (load.accepted, load.cpu_us) == (100, 10_000.0)


def test_logging_is_off_in_the_way_of_each_version(tmp_path: Path) -> None:
    home, options = silent_home(tmp_path)
    files = [home / "conf" / "logback_broker.xml", home / "conf" / "logback_namesrv.xml"]
    (named,) = [option.partition("=")[2] for option in options if option.startswith("-Drmq.logback")]
    assert all('level="OFF"' in file.read_text() for file in [*files, Path(named)])
