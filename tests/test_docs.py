"""Pages that cannot lie: tables equal the code, links lead somewhere, first programs run."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gimbalmq.testing import LocalCluster

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
READMES = ["README.md", "README.zh-CN.md"]
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """What `#...` may name on a page: its headings, as GitHub spells them."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_generated_tables_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", _FENCED.sub("", page.read_text())):
        if not target.startswith("http"):
            other = page.parent / target if target else page
            assert other.exists(), target
            assert not anchor or anchor in _anchors(other), f"{target}#{anchor}"


@pytest.mark.parametrize("name", READMES)
def test_readme_links_every_page(name: str) -> None:
    linked = set(re.findall(r"\]\(([^)#]+)", (ROOT / name).read_text()))
    for page in PAGES:
        if page.name != name:
            assert str(page.relative_to(ROOT)) in linked, page.name


_TOLD = [
    "access",
    "store",
    "broker",
    "broker.replication",
    "transport",
    "nameserver",
    "client",
    "client.consuming",
    "cli",
    "dashboard",
    "spark",
]


@pytest.mark.parametrize("package", _TOLD)
def test_newcomers_are_told_of_the_modules_there_are(package: str) -> None:
    text = (ROOT / "docs" / "HACKING.md").read_text()
    table = text.partition(f"| module of `gimbalmq.{package}`")[2].partition("\n\n")[0]
    folder = ROOT / "src" / "gimbalmq" / package.replace(".", "/")
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert modules - set(re.findall(r"`(\w+)`", table)) == set()
    first_cells = " ".join(row.split("|")[1] for row in table.splitlines()[2:])
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert set(re.findall(r"`(\w+)/?`", first_cells)) - modules - packages == set()


def test_refusals_in_the_page_of_replication_are_what_servers_say() -> None:
    """Each part of a quoted message, between what varies, stands in the code, whose strings go over several lines."""
    code = "".join(path.read_text() for path in sorted((ROOT / "src" / "gimbalmq").rglob("*.py")))
    code = re.sub(r'"\s*\n\s*f?"', "", code)
    page = (ROOT / "docs" / "replication.md").read_text()
    table = page.partition("## When something is refused")[2].partition("\n## ")[0]
    quoted = re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)
    assert len(quoted) > 7
    for message in quoted:
        for part in re.split(r"\b[XY]\b|ADDRESS|broker-a|\.\.\.", message):
            assert part.strip() in code, message


def test_make_targets_named_in_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"`make ([a-z]+)", page.read_text()))
        assert named <= targets, page.name


@pytest.mark.parametrize("name", READMES)
def test_readme_is_short(name: str) -> None:
    assert len((ROOT / name).read_text().splitlines()) <= 150


@pytest.mark.parametrize("name", READMES)
def test_first_programs_run(name: str, tmp_path: Path) -> None:
    """Spark's are run by test_docs_code.py, those of docs/ by test_docs_typed.py."""
    programs = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    produce, consume, test = [text for text in programs if "pyspark" not in text]
    with LocalCluster.in_thread() as cluster:
        for name, text in (("produce", produce), ("consume", consume)):
            (tmp_path / f"{name}.py").write_text(text.replace("127.0.0.1:9876", cluster.namesrv))

        async def both() -> None:
            consumer = await asyncio.create_subprocess_exec(
                *(sys.executable, "-u", tmp_path / "consume.py"), stdout=asyncio.subprocess.PIPE
            )
            assert consumer.stdout is not None
            try:
                producer = await asyncio.create_subprocess_exec(
                    sys.executable, tmp_path / "produce.py", stdout=asyncio.subprocess.PIPE
                )
                out, _ = await producer.communicate()
                assert b"SEND_OK" in out, out
                line = await asyncio.wait_for(consumer.stdout.readline(), 30)
                assert b"hello" in line, line
            finally:
                consumer.terminate()
                await consumer.wait()

        asyncio.run(both())
    (tmp_path / "test_readme.py").write_text(test)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path / "test_readme.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
