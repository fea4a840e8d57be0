"""The dashboard's own certificate: loaded at the start, and again if its files change."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl

from gimbalmq.errors import ConfigError

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0


class Https:
    """A certificate and its key, PEM.

    Attributes:
        context: for the server; connections made after a reload use what was read.
    """

    def __init__(self, cert: str, key: str | None, password: str | None) -> None:
        """Raises ConfigError for files that cannot be used."""
        self._cert, self._key, self._password = cert, key, password
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.options |= ssl.OP_NO_RENEGOTIATION
        self._loaded = self._seen = self._stamps()
        self._load(self.context)

    async def watch(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> bool:
        """Loads the files again if they have changed and changed no more; whether it did."""
        stamps = await asyncio.to_thread(self._stamps)
        # A certificate and its key are replaced one after the other: wait until nothing moves.
        seen, self._seen = self._seen, stamps
        if stamps == self._loaded or stamps != seen:
            return False
        self._loaded = stamps
        try:
            # Tried on another context first: half a change must not end up in the one that serves.
            await asyncio.to_thread(self._load, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            await asyncio.to_thread(self._load, self.context)
        except ConfigError as error:
            log.error("the changed certificate is not used, the old one stays: %s", error)
            return False
        log.info("the changed certificate was loaded; new connections use it")
        return True

    def _load(self, context: ssl.SSLContext) -> None:
        def password() -> str:
            # Without this OpenSSL would ask on the terminal.
            if self._password is None:
                raise ConfigError(
                    "$GIMBALMQ_DASHBOARD_KEY_PASSWORD", None, "the key is encrypted; give its password"
                )
            return self._password

        try:
            context.load_cert_chain(self._cert, self._key, password)
        except (OSError, ssl.SSLError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            named = self._cert if self._key is None else f"{self._cert} with key {self._key}"
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
            why = reason.lower().replace("_", " ") if isinstance(error, ssl.SSLError) else reason
            raise ConfigError("--https-cert", named, f"cannot be loaded: {why}") from error

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(path) for path in (self._cert, self._key) if path)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
