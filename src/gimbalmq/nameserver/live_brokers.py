"""Which brokers live: when each last spoke, what it said last, and over which connection."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from gimbalmq.errors import NoPermissionError
from gimbalmq.nameserver.registration import Registration
from gimbalmq.protocol.bodies import DataVersion

log = logging.getLogger(__name__)

Place = tuple[str, str]
"""Cluster and address of a broker."""


@dataclass(slots=True)
class Live:
    """One broker that has registered and was not silent for too long."""

    last_seen: float
    expiry: float
    data_version: DataVersion
    connection: object
    ha_server_addr: str
    owner: str
    """Who registered it: the peer's certificate or address."""


class LiveBrokers:
    """All of one name server, by place and by connection."""

    def __init__(self) -> None:
        self._live: dict[Place, Live] = {}
        self._lines: dict[object, set[Place]] = {}

    def __len__(self) -> int:
        return len(self._live)

    def get(self, cluster: str, broker_addr: str) -> Live | None:
        return self._live.get((cluster, broker_addr))

    def refresh(
        self,
        registration: Registration,
        now: float,
        connection: object,
        default_expiry: float,
        owner: str,
    ) -> Live:
        """Notes a broker that registers, in the place of what was known of it."""
        key = registration.cluster, registration.broker_addr
        before = self._live.get(key)
        if before is None:
            log.info("broker %s (%s) of %s registered", registration.broker_name, *reversed(key))
        self.forget(key)
        self._lines.setdefault(connection, set()).add(key)
        # The version is the old one until all topics are taken: nobody hears of a table that is not here yet.
        live = self._live[key] = Live(
            now,
            default_expiry if registration.expiry is None else registration.expiry,
            DataVersion(counter=-1) if before is None else before.data_version,
            connection,
            registration.ha_server_addr,
            owner,
        )
        return live

    def forget(self, key: Place) -> Live | None:
        """What was known of it; None if nothing was."""
        live = self._live.pop(key, None)
        if live is not None:
            keys = self._lines[live.connection]
            keys.discard(key)
            if not keys:
                del self._lines[live.connection]
        return live

    def require_owner(self, broker_addr: str, owner: str) -> None:
        """Raises NoPermissionError if the broker of this address was registered by somebody else, in any cluster."""
        for (cluster, address), live in self._live.items():
            if address == broker_addr and live.owner != owner:
                log.warning(
                    "%s speaks for the broker at %s of %s, which %s has registered: refused",
                    owner,
                    broker_addr,
                    cluster,
                    live.owner,
                )
                raise NoPermissionError(
                    f"the broker at {broker_addr} was registered by another peer; sign the request with a server's "
                    "credentials, or wait until that broker is gone"
                )

    def touch(self, cluster: str, broker_addr: str, now: float) -> bool:
        """Notes that a broker spoke; False if it is not known."""
        live = self._live.get((cluster, broker_addr))
        if live is not None:
            live.last_seen = now
        return live is not None

    def silent(self, now: float) -> list[Place]:
        """Those that have not spoken for longer than they may."""
        return [key for key, live in self._live.items() if live.last_seen + live.expiry < now]

    def of_connection(self, connection: object) -> list[Place]:
        """Those that registered over it."""
        return sorted(self._lines.get(connection, ()))
