"""The id that a controller gave this broker, in Apache's files.

``brokerIdentity`` holds ``cluster#name#id``. While the id is being asked for, ``brokerIdentity-temp`` holds it with the
check code: whoever crashes in between asks for the same id with the same code, and no id is given away twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gimbalmq.broker.config import BrokerConfig
from gimbalmq.errors import ConfigError
from gimbalmq.store.files import Files, store_error


@dataclass(frozen=True, slots=True)
class Applied:
    """An id that was asked for and perhaps not given yet."""

    broker_id: int
    check_code: str


class IdentityFile:
    """Both files of one broker. The methods are short, and the disk is waited for: they run once in a broker's life."""

    def __init__(self, path: Path, cluster: str, broker: str, files: Files | None = None) -> None:
        self.path = path
        self._temp = path.with_name(path.name + "-temp")
        self._names = (cluster, broker)
        self._files = files or Files()

    @classmethod
    def of(cls, config: BrokerConfig, files: Files) -> IdentityFile:
        """That of a broker with this configuration."""
        path = Path(config.store_path_broker_identity or Path(config.store_path_root_dir) / "brokerIdentity")
        return cls(path, config.broker_cluster_name, config.broker_name, files)

    def given(self) -> int | None:
        """The id, None if no controller gave one yet.

        Raises:
            ConfigError: the file cannot be understood, or belongs to another broker.
        """
        fields = self._read(self.path, 3)
        return None if fields is None else self._id(self.path, fields[0])

    def applied(self) -> Applied | None:
        """What was asked for before a crash."""
        fields = self._read(self._temp, 4)
        return None if fields is None else Applied(self._id(self._temp, fields[0]), fields[1])

    def apply(self, applied: Applied) -> None:
        """Notes durably what is about to be asked for."""
        self._write(self._temp, (*self._names, str(applied.broker_id), applied.check_code))

    def give(self, broker_id: int) -> None:
        """Notes durably that the id is this broker's."""
        self._write(self.path, (*self._names, str(broker_id)))
        self.forget_applied()

    def forget_applied(self) -> None:
        try:
            self._files.remove(self._temp)
        except OSError as error:
            raise store_error(error, f"{self._temp} cannot be removed") from error

    def _read(self, path: Path, count: int) -> list[str] | None:
        """What follows the names."""
        try:
            text = path.read_text("utf-8").strip()
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            text = "?"
        except OSError as error:
            raise store_error(error, f"{path} cannot be read") from error
        if not text:
            return None  # Apache's broker makes the file before it writes into it
        fields = text.split("#")
        if len(fields) != count:
            wanted = (
                "cluster#name#id; if the folder is this broker's, write its id there"
                if path == self.path
                else "cluster#name#id#code; remove it, and the controller is asked for an id again"
            )
            raise ConfigError(
                "storePathBrokerIdentity", str(path), f"it holds {text[:100]!r} and not {wanted}"
            )
        if tuple(fields[:2]) != self._names:
            raise ConfigError(
                "brokerName",
                "#".join(self._names),
                f"{path} says that this folder belongs to {'#'.join(fields[:2])}: give the broker that name and that "
                "cluster again, or another folder",
            )
        return fields[2:]

    def _id(self, path: Path, text: str) -> int:
        if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1 << 63:
            raise ConfigError(
                "storePathBrokerIdentity",
                str(path),
                f"it holds the id {text[:100]!r}; a controller's ids are 1, 2 ...",
            )
        return int(text)

    def _write(self, path: Path, fields: tuple[str, ...]) -> None:
        files, aside = self._files, path.with_name(path.name + ".tmp")
        try:
            if not path.parent.exists():
                files.make_folder(path.parent)
                files.sync_folder(path.parent.parent)
            fd = files.open(aside, create=True)
            try:
                files.truncate(fd, 0)
                files.write_at(fd, "#".join(fields).encode(), 0)
                files.sync(fd)
            finally:
                files.close(fd)
            files.replace(aside, path)
            files.sync_folder(path.parent)
        except OSError as error:
            raise store_error(error, f"{path} cannot be written") from error
