"""The role that a running broker was given by hand, kept for its next start (``config/role.json``).

A slave that was made the master, and is started again with the configuration of a slave, must not come back as one:
there would be no master, or an older one. So the role that was given last counts, until somebody changes the
configuration; then that counts.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from gimbalmq.broker.config import BrokerConfig
from gimbalmq.broker.json_file import JsonFile, TableThread
from gimbalmq.errors import ConfigError
from gimbalmq.store.files import Files

log = logging.getLogger(__name__)

_Pair = tuple[str, int]


def _read(document: Any) -> tuple[_Pair, _Pair]:
    given, configured = document["given"], document["configured"]
    return (
        (str(given["brokerRole"]), int(given["brokerId"])),
        (str(configured["brokerRole"]), int(configured["brokerId"])),
    )


class RoleFile:
    """The file, and the configuration that the broker was started with."""

    def __init__(self, folder: Path, files: Files, thread: TableThread, configured: BrokerConfig) -> None:
        self._file = JsonFile(folder / "role.json", files)
        self._thread = thread
        self._configured = (configured.broker_role, configured.broker_id)

    def load(self, config: BrokerConfig) -> BrokerConfig:
        """The configuration with the role that counts."""
        if config.enable_controller_mode:
            return config
        try:
            found = self._file.load(_read)
        except (KeyError, TypeError, ValueError):
            found = None
        if found is None or found[1] != self._configured or found[0] == self._configured:
            return config
        role, broker_id = found[0]
        try:
            changed = replace(config, broker_role=role, broker_id=broker_id)
        except ConfigError:
            return config
        log.warning(
            "this broker starts as brokerRole=%s brokerId=%d, the role it was given while it ran; its configuration "
            "still says brokerRole=%s brokerId=%d: change it there, too",
            role,
            broker_id,
            *self._configured,
        )
        return changed

    async def save(self, config: BrokerConfig) -> None:
        """Keeps the role in force; raises StoreError."""
        role, broker_id = self._configured
        document = {
            "configured": {"brokerId": broker_id, "brokerRole": role},
            "given": {"brokerId": config.broker_id, "brokerRole": config.broker_role},
        }
        await self._thread.run(lambda: self._file.save(document))


def forget_role(store: Path) -> None:
    """Has the configuration count at the next start of a broker that is stopped, whatever it was while it ran."""
    for name in ("role.json.bak", "role.json"):
        (store / "config" / name).unlink(missing_ok=True)
