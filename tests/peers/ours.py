"""Our own servers as child processes, started through the command line as a user starts them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.peers.apache import BROKER_DEFAULTS, ROOT, write_properties
from tests.peers.frames import Keys
from tests.peers.probe import wait_registered
from tests.peers.process import HOST, Process, free_port

_ENVIRONMENT = {"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1", "PYTHONASYNCIODEBUG": ""}


def _command(*words: object) -> list[str]:
    return [sys.executable, "-m", "gimbalmq", *map(str, words)]


class OurNameServer(Process):
    """`gimbalmq namesrv`; `extra` are the lines of its configuration file."""

    def __init__(
        self, folder: Path, *, port: int | None = None, extra: Mapping[str, object] | None = None
    ) -> None:
        self.port = port or free_port()
        self.address = f"{HOST}:{self.port}"
        file = () if extra is None else ("-c", write_properties(folder / "namesrv.properties", extra))
        super().__init__(
            "our name server",
            _command("namesrv", "--port", self.port, *file),
            log=folder / "namesrv.out",
            ready="ready",
            environment=_ENVIRONMENT,
            start_timeout=60.0,
            stop_timeout=60.0,
        )


class OurBroker(Process):
    """`gimbalmq broker` on a store folder; `extra` are further lines of its configuration file."""

    def __init__(
        self,
        folder: Path,
        *,
        namesrv: str,
        store: Path | None = None,
        port: int | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        self.port = port or free_port()
        self.address = f"{HOST}:{self.port}"
        self.namesrv = namesrv
        self.store = store or folder / "store"
        self.properties: dict[str, object] = {**BROKER_DEFAULTS, **(extra or {})}
        self.name_of_broker = str(self.properties["brokerName"])
        configuration = write_properties(folder / "broker.properties", self.properties)
        super().__init__(
            "our broker",
            _command(
                *("broker", "--port", self.port, "--namesrv", namesrv),
                *("--store", self.store, "-c", configuration),
            ),
            log=folder / "broker.out",
            ready="ready",
            environment=_ENVIRONMENT,
            start_timeout=60.0,
            stop_timeout=60.0,
        )

    def start(self) -> Self:
        """Start it and wait until the name server knows it."""
        super().start()
        wait_registered(self.namesrv, self.address)
        return self


class OurServer(Process):
    """`gimbalmq server`: name server and broker in one process; `keys` are an administrator's, if they let in nobody
    else."""

    def __init__(
        self, folder: Path, *, extra: Mapping[str, object] | None = None, keys: Keys | None = None
    ) -> None:
        self._keys = keys
        self.namesrv_port = free_port()
        self.port = free_port()
        self.namesrv = f"{HOST}:{self.namesrv_port}"
        self.address = f"{HOST}:{self.port}"
        self.store = folder / "store"
        self.properties: dict[str, object] = {**BROKER_DEFAULTS, **(extra or {})}
        self.name_of_broker = str(self.properties["brokerName"])
        configuration = write_properties(folder / "server.properties", self.properties)
        super().__init__(
            "our server",
            _command(
                *("server", "--namesrv-port", self.namesrv_port, "--port", self.port),
                *("--store", self.store, "-c", configuration),
            ),
            log=folder / "server.out",
            ready="ready",
            environment=_ENVIRONMENT,
            start_timeout=60.0,
            stop_timeout=60.0,
        )

    def start(self) -> Self:
        """Start it and wait until its name server knows its broker."""
        super().start()
        wait_registered(self.namesrv, self.address, keys=self._keys)
        return self
