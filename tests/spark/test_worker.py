"""What a Spark worker process does once, and the schema that its rows promise."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec

import pytest

from gimbalmq.spark import worker
from gimbalmq.spark.columns import DEFAULT, arrow_schema, table_schema
from tests.support import freeze_what_is_there


@pytest.fixture
def thawed() -> Iterator[None]:
    worker._begun.clear()
    yield
    freeze_what_is_there()
    worker._begun.clear()


@pytest.mark.usefixtures("thawed")
def test_the_first_tasks_of_a_worker_take_what_is_loaded_from_the_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("pyspark.daemon", None))
    early = [object()]
    worker.settle()
    assert not seen(early)
    late = [object()]  # as what is imported behind the start
    assert seen(late)
    worker.settle()
    assert not seen(late)
    kept = [object()]
    worker.settle()
    assert seen(kept), "what later tasks leave behind is collected"


def seen(wanted: object) -> bool:
    """Whether the collector looks at it."""
    return any(found is wanted for found in gc.get_objects())


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
