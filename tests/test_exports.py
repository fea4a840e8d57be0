"""The front door: public names load, are documented, and cost nothing until used."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gimbalmq
import gimbalmq.sync
import gimbalmq.testing

ROOT = Path(__file__).resolve().parents[1]


def _documented() -> dict[str, set[str]]:
    """Module to the names in its table of docs/api.md."""
    found: dict[str, set[str]] = {}
    module = ""
    for line in (ROOT / "docs" / "api.md").read_text().splitlines():
        if line.startswith("## "):
            module = line[3:].strip()
        elif row := re.match(r"\| `(\w+)` \|", line):
            found.setdefault(module, set()).add(row.group(1))
    return found


@pytest.mark.parametrize("module", [gimbalmq, gimbalmq.sync, gimbalmq.testing])
def test_public_names_are_the_documented_names(module: object) -> None:
    name: str = module.__name__  # type: ignore[attr-defined]
    assert set(module.__all__) == _documented()[name]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", gimbalmq.__all__)
def test_public_name_loads_and_has_a_docstring(name: str) -> None:
    value = getattr(gimbalmq, name)
    # What an error means stands in the tree at the top of errors.py.
    assert value.__doc__ or issubclass(value, Exception)


@pytest.mark.parametrize("name", gimbalmq.testing.__all__)
def test_testing_name_loads_and_has_a_docstring(name: str) -> None:
    assert getattr(gimbalmq.testing, name).__doc__


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = gimbalmq.Nonsense
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = gimbalmq.testing.Nonsense
    assert "Producer" in dir(gimbalmq)


@pytest.mark.parametrize("module", ["gimbalmq", "gimbalmq.testing"])
def test_type_checkers_see_the_names_that_load(module: str) -> None:
    loaded = importlib.import_module(module)
    assert loaded.__file__ is not None
    seen = {
        alias.name: node.module
        for node in ast.walk(ast.parse(Path(loaded.__file__).read_text()))
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("gimbalmq")
        for alias in node.names
    }
    assert seen == loaded._HOMES


def test_importing_the_package_imports_nothing_else() -> None:
    script = (
        "import sys, gimbalmq\n"
        "print([m for m in sys.modules if m.startswith('gimbalmq.')], 'asyncio' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "src")}
    )
    assert done.stdout == "[] False\n", done.stderr
