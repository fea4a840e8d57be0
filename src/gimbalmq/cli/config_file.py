"""Configuration files: RocketMQ's ``.properties``, or the same keys as TOML.

Both become a flat ``dict[str, str]`` under RocketMQ's names; what a key means and whether its
value is right is for the configuration classes to say.
"""

from __future__ import annotations

import logging
import stat
from pathlib import Path

from gimbalmq.errors import ConfigError, names_a_secret
from gimbalmq.protocol import properties_text

log = logging.getLogger(__name__)


def read(path: Path) -> dict[str, str]:
    """The keys and values of a file; TOML if its name ends in ``.toml``.

    Raises:
        ConfigError: the file cannot be read or its syntax is wrong.
    """
    try:
        text = path.read_text("utf-8")
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError("-c", str(path), f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError("-c", str(path), f"byte {error.start} is not UTF-8") from error
    try:
        found = parse_toml(text) if path.suffix == ".toml" else properties_text.loads(text)
    except ValueError as error:
        raise ConfigError("-c", str(path), str(error)) from error
    held = sorted(filter(names_a_secret, found))
    if held and mode & stat.S_IROTH:
        log.warning("%s: everybody may read the secret in %s; say chmod 600 %s", path, ", ".join(held), path)
    folder = path.absolute().parent
    if "rocketmqHome" not in found and ((folder / "plain_acl.yml").is_file() or (folder / "acl").is_dir()):
        # Apache's conf folder holds the configuration and the accounts side by side.
        found.setdefault("aclConfigPath", str(folder))
    return found


def parse_toml(text: str) -> dict[str, str]:
    """RocketMQ's keys as TOML; ``[tls.server]`` with ``mode`` is the key ``tls.server.mode``.

    Raises:
        ValueError: not TOML, or a value that no option could have.
    """
    import tomllib

    found: dict[str, str] = {}
    _flatten("", tomllib.loads(text), found)
    return found


def _flatten(prefix: str, table: dict[str, object], found: dict[str, str]) -> None:
    for name, value in table.items():
        key = prefix + name
        if isinstance(value, dict):
            _flatten(key + ".", value, found)
        elif isinstance(value, bool):
            found[key] = str(value).lower()
        elif isinstance(value, str | int | float):
            found[key] = str(value)
        elif isinstance(value, list) and all(isinstance(item, str) for item in value):
            found[key] = ";".join(value)
        else:
            raise ValueError(f"{key} is neither text, number, true/false nor a list of texts")
