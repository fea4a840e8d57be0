"""Our servers with authentication, authorisation and TLS, as a user starts them, for Java's clients and tools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop import conftest
from tests.interop.apache_access import (
    ACCESS_CONTROL,
    CLOSED,
    COPIED,
    GUARDED,
    ORDERS,
    ROOT,
    acl_frame,
    entry,
    settle_people,
    tell,
    topic_frame,
    user_frame,
)
from tests.peers.driver import Login, tls_settings
from tests.peers.frames import Keys
from tests.peers.ours import OurServer
from tests.peers.subject import SETTINGS
from tests.transport.wiring import Authority

BOUND = Keys("bound-user", "bound-secret-1")
"""May do everything, from another address only: the user itself is bound to it, which is ours."""

AT_ONCE = {"authFailureDelayMillis": 0}
"""The tests are refused so often that their answers would be delayed."""


@dataclass(frozen=True)
class Secured:
    """Where our servers are, and how a Java client speaks to them."""

    server: OurServer
    authority: Authority
    folder: Path

    @property
    def namesrv(self) -> str:
        return self.server.namesrv

    @property
    def broker(self) -> str:
        return self.server.address

    @property
    def cluster_name(self) -> str:
        return str(self.server.properties["brokerClusterName"])

    def login(self, keys: Keys | None, *, tls: bool = True) -> Login:
        """Through TLS, with the certificate of the servers verified, or without."""
        trust = self.authority.certificate.cert_path
        file = tls_settings(self.folder / "java-tls.properties", trust=trust) if tls else None
        return Login(None, None, file) if keys is None else Login(keys.access, keys.secret, file)


@pytest.fixture(scope="session")
def secured(java_is_here: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """One for all tests; it takes TLS and plain connections, and nobody whom it does not know."""
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    own = authority.sign("server")
    tls = {
        "tls.server.mode": "permissive",
        "tls.server.certPath": own.cert_path,
        "tls.server.keyPath": own.key_path,
    }
    with OurServer(folder, extra={**SETTINGS, **ACCESS_CONTROL, **AT_ONCE, **tls}, keys=ROOT) as server:
        conftest._running.append((server.name, server.log))
        settle_people(server.address)
        tell(
            server.address,
            [
                user_frame(BOUND, sources=["10.0.0.0/8"]),
                acl_frame(BOUND.access, [entry("*", "All")]),
                *(topic_frame(topic) for topic in (GUARDED, COPIED, ORDERS, CLOSED)),
            ],
        )
        yield Secured(server, authority, folder)
