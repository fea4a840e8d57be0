"""The configuration in force: read by all parts, changed by request 318."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gimbalmq._options import did_you_mean, options_by_key
from gimbalmq.errors import ConfigError, InvalidParameterError, NoPermissionError
from gimbalmq.nameserver.config import ALWAYS_BLACK_LISTED, NameServerConfig
from gimbalmq.nameserver.kv import write_atomically
from gimbalmq.protocol import properties_text
from gimbalmq.protocol.codes import ResponseCode
from gimbalmq.transport.tasks import uninterrupted


class Settings:
    """Holds the configuration that applies now."""

    def __init__(self, config: NameServerConfig) -> None:
        self.config = config
        self._changing = asyncio.Lock()

    def describe(self) -> bytes:
        """All options as properties text."""
        return properties_text.dumps(self.config.to_properties())

    async def update(self, text: str) -> None:
        """Applies properties text, and keeps it if a file for that is configured.

        Raises:
            NoPermissionError: a key is black-listed.
            InvalidParameterError: a key is unknown or fixed while running, or a value is wrong.
            StoreIOError: the file cannot be written; nothing has changed then.
        """
        try:
            properties = properties_text.loads(text)
        except ValueError as error:
            raise InvalidParameterError(
                f"the properties cannot be read: {error}", code=ResponseCode.SYSTEM_ERROR
            ) from error
        async with self._changing:
            await uninterrupted(self._apply(properties))

    async def _apply(self, properties: dict[str, str]) -> None:
        if {*ALWAYS_BLACK_LISTED, *self.config.config_black_list} & properties.keys():
            raise NoPermissionError("Can not update config in black list.")
        try:
            config, unknown = self.config.changed(properties)
        except ConfigError as error:
            raise InvalidParameterError(str(error), code=ResponseCode.SYSTEM_ERROR) from error
        if unknown:
            asked = did_you_mean(unknown[0], options_by_key(NameServerConfig))
            raise InvalidParameterError(
                f"{', '.join(sorted(unknown))} is no option of this name server{asked}",
                code=ResponseCode.SYSTEM_ERROR,
            )
        if config.config_store_path is not None and config != self.config:
            path, kept = Path(config.config_store_path), properties_text.dumps(config.to_properties())
            await asyncio.to_thread(write_atomically, path, kept)
        self.config = config
