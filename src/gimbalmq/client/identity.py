"""Who we are: the machine's address, the client id and the maker of message ids."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
from functools import lru_cache

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.client.config import DEFAULT_INSTANCE, ClientConfig
from gimbalmq.model.ids import UniqueIdGenerator, pack_host

_more = itertools.count()


@lru_cache(maxsize=1)
def local_ip() -> str:
    """The address this machine shows to others; an IPv6 one only where there is no IPv4.

    Nothing is sent: connecting a datagram socket only makes the system choose a route. The targets
    are addresses kept for documentation, which nobody has.
    """
    for family, target in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                found = str(probe.getsockname()[0]).partition("%")[0]
        except OSError:
            continue
        if found not in ("0.0.0.0", "::"):
            return found
    return "127.0.0.1"


def client_id(config: ClientConfig, *, keep_instance_name: bool = False) -> str:
    """``ip@instance[@unit]``; the instance name DEFAULT becomes ``pid#nanoseconds``.

    Args:
        keep_instance_name: as broadcasting consumers do, whose local progress is filed under the id.
    """
    name = config.instance_name
    if name == DEFAULT_INSTANCE and not keep_instance_name:
        # The count keeps ids apart where the clock does not move between two of them.
        name = f"{os.getpid()}#{int(SYSTEM_CLOCK.monotonic() * 1e9) + next(_more)}"
    parts = [config.client_ip or local_ip(), name]
    if config.unit_name:
        parts.append(config.unit_name)
    return "@".join(parts)


def id_generator(config: ClientConfig) -> UniqueIdGenerator:
    """Makes message ids for one client instance; the random part keeps two of one process apart."""
    address = pack_host(config.client_ip or local_ip(), 0)[:-4]
    return UniqueIdGenerator(address, os.getpid(), secrets.randbits(32))
