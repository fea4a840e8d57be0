"""Java clients and our servers when those enforce TLS and want certificates; one JVM per version for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gimbalmq import client_tls, sync
from gimbalmq.testing import LocalCluster
from tests.peers.driver import ANYBODY, JavaClient, JavaError, Login, Outgoing, tls_settings
from tests.transport.wiring import Authority, Certificate

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC = "T"
EXPIRED = 30
"""Days of a certificate that ended in January 2020."""


@dataclass(frozen=True)
class Enforcing:
    """A cluster that lets in whoever shows a certificate of its authority, and one whose own certificate is too old."""

    folder: Path
    authority: Authority
    namesrv: str
    expired_namesrv: str

    @property
    def trust(self) -> str:
        return self.authority.certificate.cert_path

    def login(self, name: str, shown: Certificate | None = None, *, trust: str = "") -> Login:
        certificate, key = ("", "") if shown is None else (shown.cert_path, shown.key_path)
        file = self.folder / f"{name}.properties"
        return Login(tls=tls_settings(file, trust=trust, certificate=certificate, key=key))


def server_settings(authority: Authority, own: Certificate, asks: str) -> dict[str, str]:
    return {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": own.cert_path,
        "tls.server.keyPath": own.key_path,
        "tls.server.trustCertPath": authority.certificate.cert_path,
        "tls.server.need.client.auth": asks,
    }


@pytest.fixture(scope="module")
def enforcing(java_is_here: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Enforcing]:
    folder = tmp_path_factory.mktemp("enforcing")
    authority = Authority(folder)
    own, old = authority.sign("server"), authority.sign("old-server", days=EXPIRED)
    told = server_settings(authority, own, "require")
    with (
        LocalCluster.in_thread(properties=told) as cluster,
        # Its broker would not trust the name server either: the registration is not waited for.
        LocalCluster.in_thread(
            properties=server_settings(authority, old, "none") | {"tls.client.authServer": "false"}
        ) as expired,
    ):
        context = client_tls(authority.certificate.cert_path, own.cert_path, own.key_path)
        with sync.Admin(cluster.namesrv, tls=context) as admin:
            admin.topics.create(TOPIC, queues=4)
        yield Enforcing(folder, authority, cluster.namesrv, expired.namesrv)


def test_java_clients_are_served_with_certificates_both_ways(java: JavaClient, enforcing: Enforcing) -> None:
    login = enforcing.login("right", enforcing.authority.sign("java"), trust=enforcing.trust)
    bodies = [b"%d by %s" % (number, java.version.encode()) for number in range(20)]
    producer = java.producer("p", namesrv=enforcing.namesrv, login=login)
    for body in bodies:
        producer.send(Outgoing(TOPIC, body))
    consumer = java.lite_pull(f"g-{java.version.replace('.', '-')}", namesrv=enforcing.namesrv, login=login)
    consumer.assign(consumer.fetch_queues(TOPIC))
    found = {message.body for message in consumer.poll_for(20)}
    while not set(bodies) <= found:
        found |= {message.body for message in consumer.poll()}
    assert TOPIC in java.admin("topicList", namesrv=enforcing.namesrv, login=login).split()
    consumer.abandon()


@pytest.mark.parametrize(
    "who", ["without TLS", "without a certificate", "with an expired one", "with another's"]
)
def test_who_has_no_valid_certificate_is_refused(
    java: JavaClient, enforcing: Enforcing, who: str, tmp_path: Path
) -> None:
    login = {
        "without TLS": lambda: ANYBODY,
        "without a certificate": lambda: enforcing.login("none"),
        "with an expired one": lambda: enforcing.login(
            "expired", enforcing.authority.sign("old-java", days=EXPIRED)
        ),
        "with another's": lambda: enforcing.login("other", Authority(tmp_path).sign("java")),
    }[who]()
    producer = java.producer("p", namesrv=enforcing.namesrv, login=login, retries=0)
    with pytest.raises(JavaError):
        producer.send(Outgoing(TOPIC, b"x"))


def test_a_java_client_that_verifies_refuses_an_expired_server(
    java: JavaClient, enforcing: Enforcing
) -> None:
    trusting, verifying = enforcing.login("any"), enforcing.login("verifies", trust=enforcing.trust)
    assert java.admin("clusterList", namesrv=enforcing.expired_namesrv, login=trusting, tolerant=True)
    producer = java.producer("p", namesrv=enforcing.expired_namesrv, login=verifying, retries=0)
    with pytest.raises(JavaError):
        producer.send(Outgoing(TOPIC, b"x"))
