"""balance.latency: fault records and the three historical rules."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from random import Random

import pytest

from gimbalmq.balance.latency import DEFAULT_RULE, RULES, FaultItem, FaultStrategy, FaultTable
from gimbalmq.balance.select import PublishQueues, Rotation
from gimbalmq.errors import ConfigError
from gimbalmq.model.queues import MessageQueue

BROKERS = ("broker1", "broker2")
COST_MS = {"broker1": 30_000, "broker2": 50_000}
RNG = Random(0)


def topic(*brokers: str, queues: int = 4, write: Mapping[str, int] | None = None) -> PublishQueues:
    listed = [MessageQueue("T", broker, number) for broker in brokers for number in range(queues)]
    return PublishQueues("T", listed, Rotation(Random(0), start=0), write_queue_counts=write)


def strategy(rule: str, *, enabled: bool = True) -> FaultStrategy:
    return FaultStrategy(FaultTable(Random(0), start=0), enabled=enabled, rule=rule)


def attempts(faults: FaultStrategy, sends: int, tries: int, *, failing: bool) -> list[tuple[str, ...]]:
    """Brokers used by each send; each attempt takes as long as its broker needs."""
    queues, now, used = topic(*BROKERS), 0, []
    for _ in range(sends):
        last: str | None = None
        this: list[str] = []
        for _ in range(tries):
            last = faults.select(queues, now_ms=now, rng=RNG, last_broker=last).broker_name
            now += COST_MS[last]
            faults.record(last, COST_MS[last], failed=failing, now_ms=now)
            this.append(last)
        used.append(tuple(this))
    return used


def test_the_switch_is_off_by_default_and_changes_the_rule() -> None:
    """S0-02."""
    off = FaultStrategy(FaultTable(Random(0)))
    assert not off.enabled
    off.table.update("broker1", 1, 600_000, now_ms=0)
    on = FaultStrategy(off.table, enabled=True)
    assert off.select(topic(*BROKERS), now_ms=0, rng=RNG).broker_name == "broker1"
    assert on.select(topic(*BROKERS), now_ms=0, rng=RNG).broker_name == "broker2"


def test_off_a_retry_avoids_the_last_broker_by_rotation() -> None:
    """S0-06, through the strategy."""
    assert strategy("seed", enabled=False).select(
        topic(*BROKERS), now_ms=0, rng=RNG, last_broker="broker1"
    ) == MessageQueue("T", "broker2", 0)


def test_the_seed_rule_takes_only_the_last_broker_on_a_retry() -> None:
    """S0-08: available, and the previous attempt's broker."""
    faults = strategy("seed")
    assert faults.select(topic(*BROKERS), now_ms=0, rng=RNG, last_broker="broker2").broker_name == "broker2"


def test_rotation_passes_over_unavailable_brokers_once() -> None:
    """S0-08, S0-09: broker2 has no record, so it is available."""
    faults = strategy("seed")
    faults.record("broker1", 600, failed=False, now_ms=0)
    queues = topic(*BROKERS)
    assert faults.select(queues, now_ms=0, rng=RNG) == MessageQueue("T", "broker2", 0)
    assert queues.rotation.next() == 1  # the walk itself drew a single count


def test_nothing_is_recorded_while_off_and_every_attempt_while_on() -> None:
    """S0-10."""
    off, on = strategy("seed", enabled=False), strategy("seed")
    for faults in (off, on):
        faults.record("broker1", 10, failed=False, now_ms=0)
        faults.record("broker2", 10, failed=True, now_ms=0)
    assert off.table.items == {}
    assert set(on.table.items) == set(BROKERS)


def test_a_failure_counts_as_30_seconds_but_the_latency_stays_real() -> None:
    """S0-11."""
    faults = strategy("seed")
    faults.record("broker1", 7, failed=True, now_ms=1000)
    faults.record("broker2", 700, failed=False, now_ms=1000)
    assert faults.table.items["broker1"] == FaultItem("broker1", 7, 601_000)
    assert faults.table.items["broker2"] == FaultItem("broker2", 700, 31_000)


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (0, 0), (49, 0), (50, 0), (100, 0), (549, 0), (550, 30_000), (999, 30_000), (1000, 60_000),
        (2000, 120_000), (3000, 180_000), (14_999, 180_000), (15_000, 600_000), (90_000, 600_000),
    ],
)  # fmt: skip
def test_the_old_table(cost: int, expected: int) -> None:
    """S0-12, S0-13: with the boundary values; 4.8 uses the same."""
    assert RULES["seed"].avoidance_ms(cost) == RULES["4.8"].avoidance_ms(cost) == expected


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (549, 0), (550, 2000), (1799, 2000), (1800, 5000), (3000, 6000), (5000, 10_000),
        (14_999, 10_000), (15_000, 30_000),
    ],
)  # fmt: skip
def test_the_new_table(cost: int, expected: int) -> None:
    """S0-25: from 5.1.4; a failure counts as 10 s, which earns 10 s."""
    assert RULES["5.1.4"].avoidance_ms(cost) == expected
    assert RULES["5.1.4"].avoidance_ms(1, failed=True) == 10_000


def test_a_record_ends_at_its_time_and_an_update_overwrites_it() -> None:
    """S0-14."""
    table = FaultTable(Random(0))
    table.update("b", 700, 30_000, now_ms=1000)
    assert not table.is_available("b", 30_999)
    assert table.is_available("b", 31_000)
    table.update("b", 20, 0, now_ms=2000)
    assert table.items["b"] == FaultItem("b", 20, 2000)
    assert table.is_available("b", 2000)


def test_records_rank_by_availability_then_latency_then_time() -> None:
    """S0-15."""
    best = [
        FaultItem("available, slow", 900, 50),
        FaultItem("away, fast, soon", 10, 200),
        FaultItem("away, fast, late", 10, 300),
        FaultItem("away, slow, soon", 20, 150),
    ]
    shuffled = [best[2], best[3], best[0], best[1]]
    assert sorted(shuffled, key=lambda item: item.rank(100)) == best


@pytest.mark.parametrize(
    ("records", "picks"),
    [
        (0, [None, None]),
        (1, ["b0", "b0"]),
        (2, ["b0", "b0"]),
        (3, ["b0", "b0"]),
        (4, ["b0", "b1", "b0", "b1"]),
        (7, ["b0", "b1", "b2", "b0"]),
    ],
)
def test_pick_one_at_least_rotates_over_the_better_half(records: int, picks: list[str | None]) -> None:
    """S0-16."""
    table = FaultTable(Random(0), start=0)
    for number in reversed(range(records)):
        table.update(f"b{number}", 1000 + number, 600_000, now_ms=0)
    assert [table.pick_one_at_least(0, rng=RNG) for _ in picks] == picks


@pytest.mark.parametrize("rule", ["seed", "4.8"])
def test_the_picked_broker_gets_a_queue_by_the_counter(rule: str) -> None:
    """S0-17: queueId = counter mod its writeQueueNums; the topic's own list is not altered."""
    faults = strategy(rule)
    for broker in BROKERS:
        faults.record(broker, 20_000, failed=False, now_ms=0)
    queues = topic(*BROKERS, write={"broker1": 2, "broker2": 2})
    before = queues.queues
    picked = [faults.select(queues, now_ms=1, rng=RNG) for _ in range(2)]
    # Each selection draws three counts: for the walk, for the next queue, for the queue id.
    assert [queue.queue_id for queue in picked] == [2 % 2, 5 % 2]
    assert {queue.broker_name for queue in picked} <= set(BROKERS)
    assert queues.queues == before


def test_a_picked_broker_without_write_queues_is_forgotten() -> None:
    """S0-18: its record goes, plain rotation follows."""
    faults = strategy("seed")
    faults.record("gone", 600, failed=False, now_ms=0)
    faults.record("broker1", 20_000, failed=False, now_ms=0)
    queues = topic("broker1")
    assert faults.select(queues, now_ms=1, rng=RNG) == MessageQueue("T", "broker1", 1)
    assert set(faults.table.items) == {"broker1"}


class Broken(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise RuntimeError("broken")

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize("rule", ["seed", "4.8"])
def test_an_exception_inside_ends_in_rotation(rule: str, caplog: pytest.LogCaptureFixture) -> None:
    """S0-19."""
    faults = strategy(rule)
    faults.record("broker1", 20_000, failed=False, now_ms=0)
    with caplog.at_level(logging.ERROR):
        chosen = faults.select(topic("broker1", write=Broken()), now_ms=1, rng=RNG)
    assert chosen == MessageQueue("T", "broker1", 1)
    assert "rotating instead" in caplog.text


def test_trace_of_successful_sends() -> None:
    """S0-20: broker1, broker2, then broker1 for all later sends."""
    assert attempts(strategy("seed"), 15, 1, failing=False) == [
        ("broker1",),
        ("broker2",),
        *[("broker1",)] * 13,
    ]


def test_trace_of_failing_sends() -> None:
    """S0-21: (1,1), (2,1), then (1,1) always."""
    assert attempts(strategy("seed"), 8, 2, failing=True) == [
        ("broker1", "broker1"),
        ("broker2", "broker1"),
        *[("broker1", "broker1")] * 6,
    ]


def test_the_first_failure_sticks_to_its_broker() -> None:
    """S0-22: every retry of the first send; the next message begins at broker2."""
    assert attempts(strategy("seed"), 2, 3, failing=True) == [
        ("broker1", "broker1", "broker1"),
        ("broker2", "broker1", "broker1"),
    ]


def test_a_retry_chooses_among_the_better_half() -> None:
    """S0-23: of 4 brokers with records the best 2."""
    names = ("b1", "b2", "b3", "b4")
    faults = strategy("seed")
    for latency, name in enumerate(names):
        faults.record(name, 1000 + latency, failed=True, now_ms=0)
    queues = topic(*names)
    used = [faults.select(queues, now_ms=1, rng=RNG, last_broker="b1").broker_name for _ in range(6)]
    assert used == ["b1", "b2"] * 3


@pytest.mark.parametrize("rule", sorted(RULES))
def test_fast_brokers_leave_plain_rotation(rule: str) -> None:
    """S0-24: all latencies below 550 ms."""
    faults, queues = strategy(rule), topic(*BROKERS)
    used = []
    for now in range(16):
        queue = faults.select(queues, now_ms=now, rng=RNG)
        faults.record(queue.broker_name, 549, failed=False, now_ms=now)
        used.append(queue)
    assert used == [*queues.queues, *queues.queues]


def test_the_seed_rule_rotates_when_the_last_broker_left_the_route_and_nothing_is_recorded() -> None:
    """S0-16, S0-17: nothing taken, nothing to pick."""
    chosen = strategy("seed").select(topic(*BROKERS), now_ms=0, rng=RNG, last_broker="gone")
    assert chosen == MessageQueue("T", "broker1", 1)


def test_rule_4_8_leaves_the_failed_broker_at_once() -> None:
    """S0-25: no previous-broker condition."""
    assert attempts(strategy("4.8"), 1, 2, failing=True) == [("broker1", "broker2")]


def test_rule_4_8_returns_to_the_last_broker_if_it_is_available() -> None:
    """S0-25: the last broker does not matter, only availability."""
    assert (
        strategy("4.8").select(topic(*BROKERS), now_ms=0, rng=RNG, last_broker="broker1").broker_name
        == "broker1"
    )


def test_rule_5_1_4_is_the_default_and_wants_another_available_broker() -> None:
    """S0-25: available and other broker."""
    assert DEFAULT_RULE == FaultStrategy(FaultTable(Random(0))).rule.name == "5.1.4"
    faults = strategy("5.1.4")
    for seed in range(20):
        queue = faults.select(topic(*BROKERS), now_ms=0, rng=Random(seed), last_broker="broker1")
        assert queue.broker_name == "broker2"


def test_rule_5_1_4_then_takes_a_reachable_other_broker_then_any() -> None:
    """S0-25: second and third step."""
    faults, queues = strategy("5.1.4"), topic("b1", "b2", "b3")
    faults.record("b2", 9, failed=True, now_ms=0, reachable=False)
    faults.record("b3", 9, failed=True, now_ms=0)
    assert faults.select(queues, now_ms=1, rng=RNG, last_broker="b1").broker_name == "b3"
    faults.record("b3", 9, failed=True, now_ms=0, reachable=False)
    faults.record("b1", 9, failed=True, now_ms=0)
    used = {
        faults.select(queues, now_ms=1, rng=Random(seed), last_broker="b1").broker_name for seed in range(40)
    }
    assert used == {"b1", "b2", "b3"}


def test_rule_5_1_4_restarts_the_rotation_at_random_on_a_retry() -> None:
    """S0-25: retries spread over the other broker's queues."""
    used = {
        strategy("5.1.4").select(topic(*BROKERS), now_ms=0, rng=Random(seed), last_broker="broker1").queue_id
        for seed in range(60)
    }
    assert used == {0, 1, 2, 3}


def test_rule_5_1_4_never_shortens_an_avoidance() -> None:
    """S0-25: the end only moves forward, the latency is rewritten."""
    faults = strategy("5.1.4")
    faults.record("b", 20_000, failed=False, now_ms=0)
    faults.record("b", 10, failed=False, now_ms=100)
    faults.record("b", 600, failed=False, now_ms=200)
    assert faults.table.items["b"] == FaultItem("b", 600, 30_000)
    faults.record("b", 600, failed=False, now_ms=29_000)
    assert faults.table.items["b"].available_from_ms == 31_000


def test_unknown_rules_are_refused_and_removal_forgives() -> None:
    with pytest.raises(ConfigError, match=r"5\.1\.4"):
        strategy("3.0")
    table = FaultTable(Random(0))
    table.remove("never seen")
    assert table.is_reachable("never seen")
