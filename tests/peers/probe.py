"""Is a broker known to its name server? Asked with bytes written in `frames`, not with our own protocol code."""

from __future__ import annotations

import time

from tests.peers.frames import Frame, Keys, one
from tests.peers.process import PeerError

UPDATE_BROKER_CONFIG = 25
GET_BROKER_CLUSTER_INFO = 106


def request(address: str, code: int, body: bytes = b"", *, keys: Keys | None = None) -> bytes:
    """The body of a server's answer to one request without header fields, or with those of a signature only."""
    return one(address, Frame(code, body=body, keys=keys), timeout=10.0).body


def wait_registered(
    namesrv: str, broker: str, *, nudge: bool = False, keys: Keys | None = None, timeout: float = 60.0
) -> None:
    """Return when the name server knows the broker at this address; keys sign what is asked of servers that want them.

    A Java 5.x broker is up before it has found a name server, and then registers only after ten seconds; a nudge
    (its permission set to what it is) makes it register all its topics at once.
    """
    deadline = time.monotonic() + timeout
    known = ""
    for attempt in range(1_000_000):
        try:
            if nudge and attempt % 10 == 0:
                request(broker, UPDATE_BROKER_CONFIG, b"brokerPermission=6", keys=keys)
            known = request(namesrv, GET_BROKER_CLUSTER_INFO, keys=keys).decode()
        except OSError as error:
            known = str(error)
        if f'"{broker}"' in known:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    raise PeerError(f"{broker} did not register with {namesrv} in {timeout:.0f} s; it knows: {known}")
