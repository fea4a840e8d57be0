"""Java's properties text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gimbalmq.protocol import properties_text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=1\nb = two words\n", {"a": "1", "b": "two words"}),
        ("# no\n! no\n\n  a : b\n", {"a": "b"}),
        ("a b\n", {"a": "b"}),
        ("a=\n", {"a": ""}),
        ("alone", {"alone": ""}),
        ("a=b=c", {"a": "b=c"}),
        ("a=x\\\n   y", {"a": "xy"}),
        ("k\\=1=\\u4e3b\\t\\\\", {"k=1": "主\t\\"}),
        ("a=1\r\nb=2", {"a": "1", "b": "2"}),
    ],
)
def test_java_s_properties_format_is_read(text: str, found: dict[str, str]) -> None:
    assert properties_text.loads(text) == found


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_with_its_line(text: str) -> None:
    try:
        properties_text.loads(text)
    except ValueError as error:
        assert str(error).startswith("line ")


@given(st.dictionaries(st.text("abcXYZ._-", min_size=1), st.text("abc 012;:/.", max_size=9).map(str.strip)))
def test_what_is_written_is_read_back(properties: dict[str, str]) -> None:
    assert properties_text.loads(properties_text.dumps(properties).decode()) == properties
