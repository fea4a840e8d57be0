"""What a Spark worker process does once and when Spark hangs up, and the schema that its rows promise."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec

import pytest

from gimbalmq.errors import ConnectionLostError
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
    is_main(monkeypatch, "pyspark.daemon")
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
    assert gc.get_freeze_count() <= before  # what others have frozen may be freed


class Ended(BaseException):
    """Instead of the end of this process."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(status: int) -> None:
        raise Ended(status)

    monkeypatch.setattr(os, "_exit", end)


def is_main(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec(name, None))


@worker.while_spark_listens
def three() -> Iterator[int]:
    yield from range(3)


def hand_to_spark(rows: Iterator[int], error: BaseException | None) -> None:
    """As Spark's worker: what is left of the rows is closed while the error is on its way."""
    try:
        next(rows)
        if error is not None:
            raise error
    finally:
        rows.close()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("ends")
@pytest.mark.parametrize("error", [BrokenPipeError(), ConnectionResetError()])
def test_a_task_that_spark_has_broken_off_ends_without_a_word(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    is_main(monkeypatch, "pyspark.daemon")
    with pytest.raises(Ended):
        hand_to_spark(three(), error)


@pytest.mark.usefixtures("ends")
def test_other_errors_of_a_task_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokenPipeError):  # in a process that is not Spark's
        hand_to_spark(three(), BrokenPipeError())
    is_main(monkeypatch, "pyspark.daemon")
    with pytest.raises(ValueError, match="odd"):
        hand_to_spark(three(), ValueError("odd"))
    hand_to_spark(three(), None)
    assert list(three()) == [0, 1, 2]


@pytest.mark.usefixtures("ends")
def test_a_planner_that_spark_hung_up_on_ends_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop_after(error: Exception) -> None:
        """As Spark's runner of streams."""
        try:
            raise error
        finally:
            worker.leave_if_spark_hung_up()

    with pytest.raises(EOFError):
        stop_after(EOFError())
    is_main(monkeypatch, "pyspark.sql.streaming.python_streaming_source_runner")
    with pytest.raises(Ended):
        stop_after(EOFError())
    lost = ConnectionLostError("the broker hung up")
    lost.__cause__ = lost.__context__ = EOFError()
    with pytest.raises(ConnectionLostError):
        stop_after(lost)
    with pytest.raises(asyncio.IncompleteReadError):  # an EOFError, too
        stop_after(asyncio.IncompleteReadError(b"", 4))
    worker.leave_if_spark_hung_up()  # stopped in good order


def test_what_is_never_null_says_so() -> None:
    told = table_schema(DEFAULT)
    nullable = {field.name for field in told if field.nullable}
    assert nullable == {"key", "tags", "bornTimestamp", "storeTimestamp"}
    kept = (*DEFAULT, "decodeError")
    assert table_schema(kept) == arrow_schema(kept)
