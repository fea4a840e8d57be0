"""Declarative Pipelines projects that ``gimbalmq pipeline init`` copies out, and what runs them.

A template is a folder here: ``spark-pipeline.yml`` with its settings under ``configuration``,
``spark-defaults.conf`` with what must be known before Spark starts, ``transformations/`` and a README.
Nothing in this module needs Spark.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gimbalmq.errors import ConfigError

SPEC: Final = "spark-pipeline.yml"
SPECS: Final = (SPEC, "spark-pipeline.yaml")
DEFAULTS: Final = "spark-defaults.conf"
AFTER: Final = "after_run.py"
"""Run by ``gimbalmq pipeline run`` when all flows have completed: for what is no table."""

_FOLDER: Final = Path(__file__).resolve().parent
_NAMES: Final = ("archive", "replay", "mirror", "redrive", "balance-report", "blank")
_SETTING: Final = re.compile(r'^  gimbalmq\.(\w+): ("(?:[^"\\]|\\.)*")[ \t]*(?:# (.*))?$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Setting:
    """One line under ``configuration``: ``gimbalmq.<name>: "<value>"  # <meaning>``."""

    name: str
    value: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Template:
    """A project to start from.

    Attributes:
        about: the first sentence of its README.
    """

    name: str
    about: str
    settings: tuple[Setting, ...]

    @property
    def folder(self) -> Path:
        return _FOLDER / self.name


def templates() -> list[Template]:
    return [template(name) for name in _NAMES]


def template(name: str) -> Template:
    """Raises ConfigError: there is none of that name."""
    if name not in _NAMES:
        close = difflib.get_close_matches(name, _NAMES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(_NAMES)}"
        raise ConfigError("TEMPLATE", name, hint)
    folder = _FOLDER / name
    _, _, text = (folder / "README.md").read_text(encoding="utf-8").partition("\n\n")
    about = " ".join(text.partition("\n\n")[0].split())
    settings = tuple(
        Setting(key, json.loads(value), meaning)
        for key, value, meaning in _SETTING.findall((folder / SPEC).read_text(encoding="utf-8"))
    )
    return Template(name, about, settings)


def copy_out(chosen: Template, folder: Path, values: Iterable[tuple[str, str]]) -> list[Path]:
    """Writes the project; the files, relative to the folder.

    Args:
        values: settings by name, and any ``spark.*`` key of the configuration.

    Raises:
        ConfigError: a setting is unknown, or the folder holds something already.
        OSError: it cannot be written.
    """
    folder = folder.expanduser().absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError("DIR", str(folder), "it is there already; name a folder that is new or empty")
    sources = sorted(
        path for path in chosen.folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    spec = _with_values((chosen.folder / SPEC).read_text(encoding="utf-8"), chosen, dict(values))
    # Spark takes no relative places, so they are written out here, once, as its own `init` does.
    places = {"{{name}}": folder.name, "{{uri}}": folder.as_uri(), "{{path}}": str(folder)}
    written = []
    for source in sources:
        name = source.relative_to(chosen.folder)
        text = spec if str(name) == SPEC else source.read_text(encoding="utf-8")
        for mark, value in places.items():
            text = text.replace(mark, value)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
        written.append(name)
    return written


def values_in(spec: str) -> dict[str, str]:
    """The settings of a specification, as long as they are written as the templates write them."""
    return {name: json.loads(value) for name, value, _ in _SETTING.findall(spec)}


def with_value(spec: str, name: str, value: str) -> str:
    """The specification with another value for one of its settings."""
    quoted = json.dumps(value, ensure_ascii=False)
    return re.sub(
        rf'^(  gimbalmq\.{name}: )"(?:[^"\\]|\\.)*"',
        lambda found: f"{found[1]}{quoted}",
        spec,
        flags=re.MULTILINE,
    )


def _with_values(spec: str, chosen: Template, values: Mapping[str, str]) -> str:
    known = {setting.name: setting.value for setting in chosen.settings}
    for key, value in values.items():
        name = key.removeprefix("gimbalmq.")
        if "{{" in known.get(name, "") and "://" not in value:
            # A place: said from where the user is, read from where Spark will be.
            path = Path(value).expanduser().absolute()
            value = path.as_uri() if known[name].startswith("{{uri}}") else str(path)
        quoted = json.dumps(value, ensure_ascii=False)  # YAML's double quotes are JSON's
        if name in known:
            spec = with_value(spec, name, value)
        elif key.startswith("spark."):
            spec = re.sub(rf"^  {re.escape(key)}: .*\n", "", spec, flags=re.MULTILINE)
            spec = re.sub(
                r"^configuration:\n",
                lambda found, line=f"  {key}: {quoted}\n": f"{found[0]}{line}",  # type: ignore[misc]
                spec,
                flags=re.MULTILINE,
            )
        else:
            close = difflib.get_close_matches(name, known, n=1)
            there = ", ".join(sorted(known)) or "nothing but keys that begin with spark."
            hint = f"did you mean {close[0]}?" if close else f"it has {there}"
            raise ConfigError("--set", f"{key}={value}", f"{chosen.name} has no such setting; {hint}")
    return spec


def find_spec(folder: Path) -> Path:
    """The specification of a project.

    Raises:
        ConfigError: there is none.
    """
    if folder.is_file() and folder.suffix in (".yml", ".yaml"):
        return folder
    for name in SPECS:
        if (folder / name).is_file():
            return folder / name
    there = f"it has no {SPEC}" if folder.is_dir() else "there is no such folder"
    raise ConfigError("DIR", str(folder), f"{there}; `gimbalmq pipeline init TEMPLATE DIR` makes one")
