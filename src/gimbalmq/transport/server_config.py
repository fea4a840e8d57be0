"""What every server can be told: where it listens, its limits, TLS."""

from __future__ import annotations

from dataclasses import dataclass

from gimbalmq._options import option
from gimbalmq.transport.limits import ServerLimits
from gimbalmq.transport.tls_config import TlsConfig


@dataclass(frozen=True, kw_only=True)
class ServerConfig(ServerLimits, TlsConfig):
    """The options that the broker and the name server have in common, but for the port, whose default differs."""

    # Loopback unless asked: a server without passwords does not open itself to a network.
    bind_address: str = option("127.0.0.1", "address to listen on", fixed=True)
