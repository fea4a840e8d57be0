from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gimbalmq.model.ids import (
    UniqueIdGenerator,
    offset_id,
    pack_host,
    parse_offset_id,
    parse_unique_id,
)

ips = st.ip_addresses().map(str)


def local_ms(*date: int) -> int:
    return int(datetime(*date).timestamp() * 1000)  # type: ignore[arg-type]  # noqa: DTZ001


def test_offset_id_of_the_reference() -> None:
    text = offset_id(pack_host("127.0.0.1", 10911), 12345)
    assert text == "7F00000100002A9F0000000000003039"
    assert parse_offset_id(text) == ("127.0.0.1", 10911, 12345)


@given(ips, st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_offset_ids_round_trip(ip: str, port: int, offset: int) -> None:
    text = offset_id(pack_host(ip, port), offset)
    assert len(text) == (56 if ":" in ip else 32)
    assert parse_offset_id(text) == (ip, port, offset)


def test_a_unique_id_java_made() -> None:
    found = parse_unique_id("FD000000000000000000000000000002357D4E0E2F2A4A0B4BE30000")
    assert found.ip == "fd00::2"
    assert (found.pid, found.counter) == (0x357D, 0)


def test_unique_ids_count_up_and_keep_the_time() -> None:
    now = local_ms(2026, 11, 15, 9, 4, 14)
    ids = UniqueIdGenerator(bytes([10, 1, 2, 3]), 0x12345, -2)
    first, second = parse_unique_id(ids.next(now)), parse_unique_id(ids.next(now))
    assert first == ("10.1.2.3", 0x2345, -2, now - local_ms(2026, 11, 1), 0)
    assert second.counter == 1


def test_the_month_turns() -> None:
    ids = UniqueIdGenerator(bytes(4), 1, 1)
    old = ids.next(local_ms(2026, 12, 31, 23, 59, 59))
    assert parse_unique_id(ids.next(local_ms(2027, 1, 1))).month_ms == 0
    assert parse_unique_id(old).month_ms == local_ms(2026, 12, 31, 23, 59, 59) - local_ms(2026, 12, 1)


def test_a_small_step_back_over_the_month_gives_zero_a_large_one_the_old_month() -> None:
    ids = UniqueIdGenerator(bytes(4), 1, 1)
    turn = local_ms(2027, 1, 1)
    ids.next(turn + 5)
    assert parse_unique_id(ids.next(turn - 999_000)).month_ms == 0
    assert parse_unique_id(ids.next(turn - 86_400_000)).month_ms == 30 * 86_400_000


def test_a_clock_that_steps_back_over_the_month_gives_other_ids_nevertheless() -> None:
    ids = UniqueIdGenerator(bytes(4), 1, 1)
    turn = local_ms(2027, 1, 1)
    ids.next(turn + 5)
    made = {ids.next(turn - 900_000 + now) for now in range(5000)}
    assert len(made) == 5000


def test_the_counter_wraps() -> None:
    ids = UniqueIdGenerator(bytes(16), 1, 1)
    made = {ids.next(0) for _ in range(65536)}
    assert len(made) == 65536
    assert parse_unique_id(ids.next(0)).counter == 0


def test_no_number_is_skipped_when_the_time_changes() -> None:
    ids = UniqueIdGenerator(bytes(4), 1, 1)
    made = [ids.next(now) for now in range(100) for _ in range(now % 7)]
    ids.end_run()
    made += [ids.next(100), *ids.run, ids.next(100), next(ids.run)]
    ids.end_run()
    made.append(ids.next(100))
    assert [parse_unique_id(one).counter for one in made] == [n % 65536 for n in range(len(made))]


def test_ids_taken_from_the_run_are_none_that_is_given_again() -> None:
    ids = UniqueIdGenerator(bytes(4), 1, 1)
    made = []
    for now in (5, 5, 7, 7):
        made += [ids.next(now) for _ in range(70)]
        made += [found for found in (next(ids.run, "") for _ in range(50)) if found]
    assert len(set(made)) == len(made) > 4 * 70
    assert {len(found) for found in made} == {ids.length}
    assert {parse_unique_id(found).month_ms for found in made} == {
        parse_unique_id(ids.next(now)).month_ms for now in (5, 7)
    }


@pytest.mark.parametrize("back", [64, 1000, 1024])
def test_a_clock_that_steps_back_gives_no_id_twice(back: int) -> None:
    now = local_ms(2026, 11, 15, 9, 4, 14)
    ids = UniqueIdGenerator(bytes(4), 1, 1)
    made = [ids.next(now + ms) for ms in range(2048)]
    made += [ids.next(now + ms) for ms in range(2048 - back, 4096)]
    assert len(set(made)) == len(made)


def test_ids_differ_while_the_clock_is_back_in_the_last_month() -> None:
    turn = local_ms(2027, 1, 1)
    ids = UniqueIdGenerator(bytes(4), 1, 1)
    ids.next(turn)
    made = [ids.next(turn - 900_000 + ms) for ms in range(5000)]
    assert {parse_unique_id(each).month_ms for each in made} == {0}
    assert len(set(made)) == len(made)


@pytest.mark.parametrize("text", ["", "7F", "Z" * 32, "0" * 33])
def test_what_is_no_id(text: str) -> None:
    with pytest.raises(ValueError):
        parse_offset_id(text)
    with pytest.raises(ValueError):
        parse_unique_id(text)
