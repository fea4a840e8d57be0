"""The name server: who serves which topic."""

from __future__ import annotations

from gimbalmq.nameserver.config import NameServerConfig
from gimbalmq.nameserver.server import NameServer

__all__ = ["NameServer", "NameServerConfig"]
