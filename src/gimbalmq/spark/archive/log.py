"""The log of an archive: which files hold its rows, and which batch brought which of them.

An archive is a folder. Its data are Parquet files below it, in folders by partition; ``_gimbalmq`` holds the
rest, and every reader of Parquet passes over a name that begins so:

    _gimbalmq/log/00000000000000000007.json    change number 7: files added, files replaced
    _gimbalmq/log/00000000000000000100.state   everything up to change 100, so that older ones need not be read
    _gimbalmq/staged/                          files that are being written
    _gimbalmq/old/                             files that were replaced, for readers that began before
    _gimbalmq/lock                             held by whoever adds a change

A change is one file that appears under its name whole: before, nothing has happened; after, everything has.
Moving data files to where the change says comes second. Whoever adds the next change finishes it first, and
readers look for a file in all its places, so a crash at any point is neither seen nor lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq.errors import ConfigError

OWN: Final = "_gimbalmq"
STATE_EVERY: Final = 100
"""Changes between two files of state."""
LONGEST_KEEP: Final = 30 * 86_400.0
"""Seconds that a state remembers when files were replaced."""
_LOOKS: Final = 5

_CHANGE: Final = re.compile(r"(\d{20})\.json")
_STATE: Final = re.compile(r"(\d{20})\.state")


class NotLocalError(ConfigError):
    """The address is not of a folder that can be opened as one."""


def local_folder(text: str, option: str = "path") -> Path:
    """A folder from a path or a ``file:`` address; raises NotLocalError for any other."""
    address = urlsplit(text)
    if address.scheme not in ("", "file") or address.netloc not in ("", "localhost"):
        raise NotLocalError(
            option, text, "an archive is a folder that all workers see; use a path or file:///PATH"
        )
    return Path(unquote(address.path) if address.scheme else text).expanduser().absolute()


class Span(NamedTuple):
    """Offsets of one queue that lie in a piece: from ``first`` to ``last``, both there."""

    topic: str
    broker: str
    queue_id: int
    first: int
    last: int


class Piece(NamedTuple):
    """Neighbouring rows of a file that one batch brought.

    Attributes:
        batch: number of the change that brought them.
        first: index of the first of them in the file.
    """

    batch: int
    first: int
    rows: int
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of rows.

    Attributes:
        path: below the archive's folder, with ``/``; the last part is like no other file's.
        size: in bytes.
    """

    path: str
    size: int
    pieces: tuple[Piece, ...]

    @property
    def folder(self) -> str:
        return str(PurePosixPath(self.path).parent)

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)


@dataclass(slots=True)
class State:
    """What all changes up to one amount to.

    Attributes:
        files: by path.
        writers: the last batch of each query that has written here.
        replaced: names of files that were replaced, with the time in milliseconds.
    """

    version: int = 0
    files: dict[str, DataFile] = field(default_factory=dict)
    writers: dict[str, int] = field(default_factory=dict)
    replaced: dict[str, int] = field(default_factory=dict)

    @property
    def batches(self) -> list[int]:
        """Numbers of the batches that have rows, ascending."""
        return sorted({piece.batch for file in self.files.values() for piece in file.pieces})


class ArchiveLog:
    """The log of the archive in a folder."""

    def __init__(self, root: Path, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.root = root
        self._own = root / OWN
        self._log = self._own / "log"
        self.staged = self._own / "staged"
        self.old = self._own / "old"
        self._clock = clock

    # -- reading -------------------------------------------------------------------------

    def exists(self) -> bool:
        return self._log.is_dir()

    def needed(self, option: str = "path") -> ArchiveLog:
        """This log.

        Args:
            option: what named the folder, for the error.

        Raises:
            ConfigError: the folder is no archive.
        """
        if self.exists():
            return self
        if not self.root.is_dir():
            raise ConfigError(option, str(self.root), "there is no such folder")
        raise ConfigError(
            option,
            str(self.root),
            f"it is no archive, for it has no {OWN}/log; name the folder that format('rocketmq-archive') wrote",
        )

    def state(self) -> State:
        """Everything as of the last change."""
        for _ in range(_LOOKS):
            changes, states = self._numbers()
            state = State()
            try:
                if states:
                    state = _state_from(_read(self._log / f"{states[-1]:020d}.state"))
                for number in range(state.version + 1, max(changes, default=0) + 1):
                    _apply(state, number, _read(self._log / f"{number:020d}.json"))
            except FileNotFoundError as error:
                missing = error.filename
                continue  # a newer state may have come, and the changes before it have gone
            return state
        raise ConfigError("path", str(missing), "this change of the archive's log is missing; restore it")

    def changed_at(self) -> int:
        """When the log last changed, in nanoseconds; two changes at one moment have the same."""
        return os.stat(self._log).st_mtime_ns

    def _numbers(self) -> tuple[list[int], list[int]]:
        changes: list[int] = []
        states: list[int] = []
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._log):
                if found := _CHANGE.fullmatch(name):
                    changes.append(int(found[1]))
                elif found := _STATE.fullmatch(name):
                    states.append(int(found[1]))
        return sorted(changes), sorted(states)

    def find(self, file: DataFile) -> Path:
        """Where a file is: in its folder, not yet there, or not there any more."""
        places = (self.root / file.path, self.staged / file.name, self.old / file.name)
        for place in (*places, places[0]):  # it may have been on its way while the places were looked at
            if place.exists():
                return place
        raise FileNotFoundError(
            f"{places[0]}: this file of the archive is gone; a reader that began long before a compaction must "
            "begin again, anything else means that files were removed by hand"
        )

    # -- adding --------------------------------------------------------------------------

    def prepare(self) -> None:
        """Makes the folders."""
        for folder in (self._log, self.staged, self.old):
            folder.mkdir(parents=True, exist_ok=True)

    def add(self, files: Iterable[DataFile], *, query: str | None = None, batch: int = 0) -> bool:
        """Adds the rows of one batch of a query; the files lie staged under their names.

        Args:
            query: None if it will not be repeated.

        Returns:
            False if this batch of this query has been added before. The staged files are removed then.
        """
        added = list(files)
        with self._locked():
            state = self.state()
            self._settle(state)
            if query is not None and state.writers.get(query, -1) >= batch:
                self.discard(added)
                return False
            number = state.version + 1
            added = [
                replace(file, pieces=tuple(piece._replace(batch=number) for piece in file.pieces))
                for file in added
            ]
            self._write(state, {"query": query, "batch": batch, "add": [_file_data(file) for file in added]})
            self._settle(state)
        return True

    def swap(self, new: DataFile, old: Iterable[DataFile]) -> bool:
        """Puts one file, which lies staged, in the place of others with the same rows.

        Returns:
            False if some of the others are not there any more, because somebody else has replaced them. Nothing
            is changed then, and the staged file is removed.
        """
        gone = [file.path for file in old]
        with self._locked():
            state = self.state()
            self._settle(state)
            if not all(path in state.files for path in gone):
                self.discard([new])
                return False
            now = self._clock.wall_ms()
            self._write(state, {"add": [_file_data(new)], "replace": gone, "at": now})
            self._settle(state)
        return True

    def discard(self, files: Iterable[DataFile]) -> None:
        """Removes staged files."""
        for file in files:
            (self.staged / file.name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.prepare()
        with open(self._own / "lock", "w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield

    def _write(self, state: State, change: dict[str, Any]) -> None:
        number = state.version + 1
        for data in change["add"]:
            _sync(self.staged / PurePosixPath(data["path"]).name)
        _write_whole(self._log / f"{number:020d}.json", change)
        _apply(state, number, change)
        if number % STATE_EVERY == 0:
            forgotten = self._clock.wall_ms() - round(LONGEST_KEEP * 1000)
            state.replaced = {name: at for name, at in state.replaced.items() if at > forgotten}
            _write_whole(self._log / f"{number:020d}.state", _state_data(state))

    def _settle(self, state: State) -> None:
        """Moves the files of the last change to where they belong; what is there already stays."""
        last = self._log / f"{state.version:020d}.json"
        if not state.version or not last.exists():
            return
        change = _read(last)
        for data in change["add"]:
            path = self.root / data["path"]
            if (self.staged / path.name).exists():
                self._move(self.staged / path.name, path)
        for name in change.get("replace", ()):
            if (self.root / name).exists():
                self._move(self.root / name, self.old / PurePosixPath(name).name)

    def _move(self, source: Path, target: Path) -> None:
        """Moves a file so that a power cut does not undo it: later changes do not look at this one again."""
        new = [folder for folder in target.parents if not folder.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, target)
        for folder in {target.parent, source.parent, *(folder.parent for folder in new)}:
            _sync(folder)

    # -- clearing away -------------------------------------------------------------------

    def clear(self, *, keep_seconds: float) -> tuple[int, int]:
        """Removes what nobody needs any more: replaced files, staged files of tasks that failed, old changes.

        Args:
            keep_seconds: how long replaced and staged files stay, for readers and tasks that are under way.

        Returns:
            Files of data that were removed, and their bytes.
        """
        limit = self._clock.wall_ms() - round(keep_seconds * 1000)
        removed = size = 0
        with self._locked():
            state = self.state()
            self._settle(state)
            # Nothing that counts may be removed, wherever it lies.
            counting = {file.name for file in state.files.values()}
            doomed = [
                path
                for path in self.old.iterdir()
                # A name that no state remembers was replaced longer ago than states are kept.
                if path.name not in counting and state.replaced.get(path.name, 0) <= limit
            ]
            doomed += [
                path
                for path in self.staged.iterdir()
                if path.name not in counting and path.stat().st_mtime_ns // 10**6 <= limit
            ]
            for path in doomed:
                size += path.stat().st_size
                removed += 1
                path.unlink()
            changes, states = self._numbers()
            for number in changes:
                # The last change is kept: it says what is still to be moved.
                if states and number <= states[-1] and number != state.version:
                    (self._log / f"{number:020d}.json").unlink()
            for number in states[:-1]:
                (self._log / f"{number:020d}.state").unlink()
        return removed, size


def staged_name() -> str:
    """A name that no other file has."""
    return f"{uuid.uuid4().hex}.parquet"


# --- changes as JSON -----------------------------------------------------------------------------


def _apply(state: State, number: int, change: dict[str, Any]) -> None:
    for path in change.get("replace", ()):
        state.files.pop(path, None)
        state.replaced[PurePosixPath(path).name] = change["at"]
    for data in change["add"]:
        state.files[data["path"]] = _file_from(data)
    if change.get("query") is not None:
        state.writers[change["query"]] = change["batch"]
    state.version = number


def _file_data(file: DataFile) -> dict[str, Any]:
    return {"path": file.path, "size": file.size, "pieces": [list(piece) for piece in file.pieces]}


def _file_from(data: dict[str, Any]) -> DataFile:
    pieces = tuple(
        Piece(batch, first, rows, tuple(Span(*span) for span in spans))
        for batch, first, rows, spans in data["pieces"]
    )
    return DataFile(data["path"], data["size"], pieces)


def _state_data(state: State) -> dict[str, Any]:
    return {
        "version": state.version,
        "files": [_file_data(file) for file in state.files.values()],
        "writers": state.writers,
        "replaced": state.replaced,
    }


def _state_from(data: dict[str, Any]) -> State:
    files = {each["path"]: _file_from(each) for each in data["files"]}
    return State(data["version"], files, data["writers"], data["replaced"])


def _read(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            "path", str(path), f"this change of the archive's log is damaged: {error}"
        ) from None
    return found


def _write_whole(path: Path, data: dict[str, Any]) -> None:
    """The file appears whole or not at all, also after a power cut."""
    half = path.with_suffix(".half")
    with open(half, "w", encoding="utf-8") as file:
        json.dump(data, file, separators=(",", ":"))
        file.flush()
        os.fsync(file.fileno())
    os.replace(half, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
