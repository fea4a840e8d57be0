"""Java clients and our servers when those enforce TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from gimbalmq import client_tls, sync
from gimbalmq.testing import LocalCluster
from tests.peers.driver import JavaClient, JavaError, Outgoing
from tests.transport.wiring import Authority

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.mark.parametrize("version", ["4.9.8", "5.5.0"])
def test_java_clients_are_served_with_certificates_both_ways(version: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    ca, own, shown = authority.certificate.cert_path, authority.sign("server"), authority.sign("java")
    keys = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": own.cert_path,
        "tls.server.keyPath": own.key_path,
        "tls.server.trustCertPath": ca,
        "tls.server.need.client.auth": "require",
    }
    told = {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": ca,
        "tls.client.certPath": shown.cert_path,
        "tls.client.keyPath": shown.key_path,
    }
    options = tuple(f"-D{key}={value}" for key, value in told.items())
    bodies = [b"%d" % number for number in range(20)]
    with LocalCluster.in_thread(properties=keys) as cluster:
        with sync.Admin(cluster.namesrv, tls=client_tls(ca, own.cert_path, own.key_path)) as admin:
            admin.topics.create("T", queues=4)
        with JavaClient(version, tmp_path / "java", namesrv=cluster.namesrv, options=options) as java:
            producer = java.producer("p")
            for body in bodies:
                producer.send(Outgoing("T", body))
            consumer = java.lite_pull("g")
            consumer.assign(consumer.fetch_queues("T"))
            assert sorted(message.body for message in consumer.poll_for(20)) == sorted(bodies)
            consumer.abandon()


def test_a_java_client_without_tls_or_certificate_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.sign("server")
    keys = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": own.cert_path,
        "tls.server.keyPath": own.key_path,
        "tls.server.trustCertPath": authority.certificate.cert_path,
        "tls.server.need.client.auth": "require",
    }
    with LocalCluster.in_thread(properties=keys) as cluster:
        for number, options in enumerate(((), ("-Dtls.enable=true",))):
            with (
                JavaClient(
                    "5.5.0", tmp_path / f"java-{number}", namesrv=cluster.namesrv, options=options
                ) as java,
                pytest.raises(JavaError),
            ):
                java.producer("p").send(Outgoing("T", b"x"))
