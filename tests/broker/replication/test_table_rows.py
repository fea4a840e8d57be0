"""Tables out of answers: both dialects, in steps."""

from __future__ import annotations

import pytest

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq._steps import run_through
from gimbalmq.broker.replication import table_rows
from gimbalmq.broker.replication.table_rows import (
    masks_in,
    names_in,
    offsets_in,
    pairs_of,
    parts_of,
    rows_in,
    version_in,
)
from gimbalmq.errors import RemoteProtocolError
from gimbalmq.protocol.bodies import DataVersion, GroupConfig, TopicConfig
from gimbalmq.transport.turns import Turns
from tests.support import run


def _parts(text: bytes) -> table_rows.Parts:
    return run(parts_of(text, Turns(SYSTEM_CLOCK)))


def _offsets(text: bytes) -> table_rows.Offsets:
    return run_through(offsets_in(_parts(text)))


def test_offsets_of_apaches_with_bare_numbers_are_read_without_the_slow_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_rows, "_tolerantly", None)
    rows = [f'"T{number}@%RETRY%g{number}":{{0:{number},1:{number + 1},10:7}}' for number in range(5000)]
    version = b'{"counter":12,"stateVersion":0,"timestamp":9}'
    text = b'{"dataVersion":%b,"offsetTable":{%b}}' % (version, ",".join(rows).encode())
    assert len(text) > 4 * table_rows._PIECE_BYTES
    parts = _parts(text)
    assert version_in(parts) == DataVersion(counter=12, timestamp=9)
    found = run_through(offsets_in(parts))
    assert len(found) == 5000
    for number in range(5000):
        assert found[f"T{number}", f"%RETRY%g{number}"] == {0: number, 1: number + 1, 10: 7}
    pairs = run_through(pairs_of(found))
    assert pairs.table == found and pairs.topics_of("%RETRY%g7") == {"T7"}


def test_other_dialects_are_read_too() -> None:
    assert _offsets(b'{"offsetTable":{"T@g":{"0":5}}}') == {("T", "g"): {0: 5}}
    assert _offsets(b'{"offsetTable":{"T@g":{ 0 : 5 }, "U@g" : {}}}') == {("T", "g"): {0: 5}, ("U", "g"): {}}
    assert _offsets(b'{"offsetTable":{"T@g":{0:5},"U@g":{"$ref":"$.offsetTable.T@g"}}}')["T", "g"] == {0: 5}
    assert _offsets(b"{}") == {}
    assert version_in(_parts(b'{"offsetTable":{}}')) is None
    for text in (b"[]", b"{", b"", b'{"offsetTable":7}', b'{"offsetTable":{"T@g":{"0":"x"}}}'):
        with pytest.raises(RemoteProtocolError):
            _offsets(text)


def test_rows_become_settings_in_steps() -> None:
    topics = ",".join(f'"T{number}":{{"topicName":"T{number}","perm":4}}' for number in range(100))
    parts = _parts(b'{"removed":["a","b"],"topicConfigTable":{%b}}' % topics.encode())
    steps = rows_in(parts, "topicConfigTable", TopicConfig)
    assert next(steps) is None and next(steps) is None, "a hundred rows are more than one step"
    found = run_through(rows_in(parts, "topicConfigTable", TopicConfig))
    assert found["T7"] == TopicConfig(topic_name="T7", perm=4) and len(found) == 100
    assert names_in(parts, "removed") == ["a", "b"] and names_in(parts, "else") == []
    groups = _parts(b'{"forbiddenTable":{"g":{"T":1}},"subscriptionGroupTable":{"g":{"groupName":"g"}}}')
    assert run_through(rows_in(groups, "subscriptionGroupTable", GroupConfig)) == {
        "g": GroupConfig(group_name="g")
    }
    assert run_through(masks_in(groups, "forbiddenTable")) == {"g": {"T": 1}}
    with pytest.raises(RemoteProtocolError):
        run_through(masks_in(_parts(b'{"forbiddenTable":{"g":7}}'), "forbiddenTable"))
