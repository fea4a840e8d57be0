"""What `pip install gimbalmq` gives: the wheel in an empty environment, its command, a server from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import gimbalmq

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.timeout(300)


def _run(*command: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=environment, timeout=280)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    done = _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The bin folder of an environment that has the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("venv")
    assert _run(sys.executable, "-m", "venv", folder).returncode == 0
    done = _run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", wheel)
    if done.returncode and "NewConnectionError" in done.stderr:
        pytest.skip("no package index can be reached, so the wheel's dependencies cannot be installed")
    assert done.returncode == 0, done.stderr
    yield folder / "bin"


SPARK_FINDS_US_BY = {"pyspark_gimbalmq", "pyspark_gimbalmq_archive", "pyspark_gimbalmq_store"}


def test_wheel_holds_the_package_and_its_licence_only(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"gimbalmq", f"gimbalmq-{gimbalmq.__version__}.dist-info", *SPARK_FINDS_US_BY}
    assert "gimbalmq/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_command_answers_from_an_empty_environment(installed: Path, tmp_path: Path) -> None:
    done = _run(installed / "gimbalmq", "--version", cwd=tmp_path)
    assert done.stdout == f"gimbalmq {gimbalmq.__version__}\n", done.stderr


def test_server_starts_and_ends_from_an_empty_environment(installed: Path, tmp_path: Path) -> None:
    command = [
        installed / "gimbalmq",
        "server",
        "--namesrv-port",
        "0",
        "--port",
        "0",
        "--store",
        tmp_path / "s",
    ]
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as server:
        assert server.stdout is not None
        lines = [server.stdout.readline(), server.stdout.readline()]
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=20)
    assert all("ready on 127.0.0.1:" in line for line in lines), errors
    assert server.returncode == 0, errors


def test_all_public_names_load_with_the_declared_dependencies_only(installed: Path, tmp_path: Path) -> None:
    script = (
        "import gimbalmq, gimbalmq.testing\n"
        "for module in (gimbalmq, gimbalmq.testing):\n"
        "    for name in module.__all__: getattr(module, name)\n"
        "print('fine')"
    )
    done = _run(installed / "python", "-c", script, cwd=tmp_path)
    assert done.stdout == "fine\n", done.stderr
