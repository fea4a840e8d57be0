"""What a Spark worker process does once, and the schema that its rows promise."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec

import pytest

from gimbalmq.spark import worker
from gimbalmq.spark.columns import DEFAULT, arrow_schema, table_schema


@pytest.fixture
def thawed() -> Iterator[None]:
    worker._begun.clear()
    yield
    gc.unfreeze()
    worker._begun.clear()


@pytest.mark.usefixtures("thawed")
def test_the_first_tasks_of_a_worker_take_what_is_loaded_from_the_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("pyspark.daemon", None))
    worker.settle()
    first = gc.get_freeze_count()
    assert first > 10_000
    late = [[] for _ in range(1000)]  # type: ignore[var-annotated]  # what is imported behind the start
    worker.settle()
    second = gc.get_freeze_count()
    assert second >= first + len(late)
    kept = [[] for _ in range(1000)]  # type: ignore[var-annotated]
    worker.settle()
    assert gc.get_freeze_count() <= second, "tasks go on to be collected"
    assert len(kept) == 1000


@pytest.mark.usefixtures("thawed")
def test_a_process_that_is_no_worker_keeps_its_collector() -> None:
    before = gc.get_freeze_count()
    worker.settle()
    assert gc.get_freeze_count() == before


def test_what_is_never_null_says_so() -> None:
    told = table_schema(DEFAULT)
    nullable = {field.name for field in told if field.nullable}
    assert nullable == {"key", "tags", "bornTimestamp", "storeTimestamp"}
    kept = (*DEFAULT, "decodeError")
    assert table_schema(kept) == arrow_schema(kept)
