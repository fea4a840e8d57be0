"""Every part of the product reaches every other when the servers enforce TLS and ask for certificates."""

from __future__ import annotations

from pathlib import Path

import pytest

from gimbalmq import ConsumeFromWhere, Message, client_tls, sync
from gimbalmq.admin.admin import Admin
from gimbalmq.client.producer import Producer
from gimbalmq.client.pull_consumer import PullConsumer
from gimbalmq.errors import RocketMQError, TransportError
from gimbalmq.testing import LocalCluster, MemoryNetwork
from tests.cli.commands import environment, gimbalmq, serving
from tests.support import run
from tests.transport.wiring import Authority, Certificate, self_signed

FIRST = ConsumeFromWhere.FIRST_OFFSET


def keys_of(certificate: Certificate, **more: str) -> dict[str, str]:
    return {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": certificate.cert_path,
        "tls.server.keyPath": certificate.key_path,
    } | {key.replace("_", "."): value for key, value in more.items()}


def as_words(keys: dict[str, str]) -> list[str]:
    return [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]


def test_a_broker_reaches_a_name_server_that_enforces_tls(tmp_path: Path) -> None:
    async def work() -> None:
        network = MemoryNetwork()
        async with LocalCluster(properties=keys_of(self_signed(tmp_path)), network=network) as cluster:
            assert list(cluster.nameserver.table.cluster_info().broker_addr_table) == ["broker-a"]

    run(work())


def test_the_server_needs_nothing_but_a_certificate_to_find_itself(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    ports = ("--port", 0, "--namesrv-port", 0)
    with serving("server", *ports, "--store", tmp_path / "s", *as_words(keys_of(certificate))) as server:
        namesrv = server.ready_address()
        broker = server.ready_address()
        trusting = ("--namesrv", namesrv, "--tls-ca", certificate.cert_path)
        done = gimbalmq("topic", "create", "orders", *trusting)
        assert done.returncode == 0, done.stderr
        for words in (
            ("cluster", "list"),
            ("topic", "list"),
            ("message", "send", "orders", "hello"),
            ("message", "print", "orders"),
            ("group", "list"),
        ):
            done = gimbalmq(*words, *trusting)
            assert done.returncode == 0, (words, done.stderr)
        assert gimbalmq("topic", "list", "--namesrv", namesrv, "--tls-any-cert").returncode == 0
        believing_nobody = gimbalmq("topic", "list", "--namesrv", namesrv, "--tls")
        assert believing_nobody.returncode == 1 and "not believed" in believing_nobody.stderr
        plain = gimbalmq("topic", "list", "--namesrv", namesrv)
        assert plain.returncode == 1 and "does it want TLS?" in plain.stderr
        stranger = gimbalmq("topic", "list", "--namesrv", namesrv, "--tls-ca", "system")
        assert stranger.returncode == 1 and "certificate is not believed" in stranger.stderr
        assert broker in gimbalmq("cluster", "list", *trusting).stdout
        assert server.end() == 0
        assert "Traceback" not in server.errors and "cannot be told" not in server.errors


def test_separate_servers_that_ask_for_certificates(tmp_path: Path) -> None:
    """Name server, broker, async and blocking clients and commands, each with a certificate of its own."""
    authority = Authority(tmp_path)
    ca = authority.certificate.cert_path
    asking = {
        "tls_server_trustCertPath": ca,
        "tls_server_need_client_auth": "require",
        "tls_client_trustCertPath": ca,
    }

    def keys(name: str) -> list[str]:
        return as_words(keys_of(authority.sign(name), **asking))

    own = authority.sign("client")
    context = client_tls(ca, own.cert_path, own.key_path)

    async def send_and_receive(namesrv: str) -> None:
        async with Producer("p", namesrv, tls=context) as producer:
            await producer.send(Message("T", b"async"))
        async with Admin(namesrv, tls=context) as admin:
            assert "T" in await admin.topics.names()
        consumer = PullConsumer("g", namesrv, tls=context, consume_from_where=FIRST)
        consumer.subscribe("T")
        async with consumer:
            found: list[bytes] = []
            while len(found) < 2:
                found += [view.body for view in await consumer.poll(5.0)]
        assert sorted(found) == [b"async", b"sync"]

    with serving("namesrv", "--port", 0, "--data", tmp_path / "n", *keys("namesrv")) as nameserver:
        namesrv = nameserver.ready_address()
        words = ("--port", 0, "--namesrv", namesrv, "--store", tmp_path / "s")
        with serving("broker", *words, *keys("broker")) as broker:
            broker.ready()
            with sync.Producer("p", namesrv, tls=context) as producer:
                producer.send(Message("T", b"sync"))
            run(send_and_receive(namesrv))
            done = gimbalmq(
                *("topic", "list", "--namesrv", namesrv, "--tls-ca", ca),
                *("--tls-cert", own.cert_path, "--tls-key", own.key_path),
            )
            assert done.returncode == 0 and "T" in done.stdout, done.stderr
            done = gimbalmq("topic", "list", "--namesrv", namesrv, "--tls-ca", ca)
            assert done.returncode == 1 and "certificate required" in done.stderr
            with (
                sync.Admin(namesrv, tls=client_tls(ca)) as stranger,
                pytest.raises(TransportError, match="certificate required"),
            ):
                stranger.topics.names()
            assert broker.end() == 0
            assert nameserver.end() == 0
            for server in (broker, nameserver):
                assert "Traceback" not in server.errors and "cannot be told" not in server.errors


def test_a_broker_that_is_not_believed_says_what_to_do(tmp_path: Path) -> None:
    words = ("--port", 0, "--store", tmp_path / "s")
    with serving(
        "namesrv", "--port", 0, "--data", tmp_path / "n", *as_words(keys_of(self_signed(tmp_path, "n")))
    ) as nameserver:
        namesrv = nameserver.ready_address()
        with serving(
            "broker", *words, "--namesrv", namesrv, *as_words(keys_of(self_signed(tmp_path, "b")))
        ) as broker:
            broker.ready()
            broker.end()
            assert "certificate is not believed" in broker.errors
            assert "tls.client.trustCertPath" in broker.errors


def test_options_of_commands_come_from_the_environment_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = self_signed(tmp_path)
    keys = keys_of(
        certificate, tls_server_trustCertPath=certificate.cert_path, tls_server_need_client_auth="require"
    )
    with LocalCluster.in_thread(properties=keys) as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)
        monkeypatch.setenv("ROCKETMQ_TLS", "true")
        assert environment()["ROCKETMQ_TLS"] == "true"
        done = gimbalmq("topic", "list")
        assert done.returncode == 1 and "not believed" in done.stderr
        monkeypatch.setenv("ROCKETMQ_TLS_ANY_CERT", "true")
        done = gimbalmq("topic", "list")
        assert done.returncode == 1 and "certificate required" in done.stderr
        monkeypatch.setenv("ROCKETMQ_TLS_CERT", certificate.cert_path)
        monkeypatch.setenv("ROCKETMQ_TLS_KEY", certificate.key_path)
        assert gimbalmq("topic", "list").returncode == 0
        monkeypatch.setenv("ROCKETMQ_TLS_CA", "/nowhere.pem")
        done = gimbalmq("topic", "list")
        assert done.returncode == 2 and "--tls-ca='/nowhere.pem' cannot be used" in done.stderr
        monkeypatch.setenv("ROCKETMQ_TLS", "perhaps")
        done = gimbalmq("topic", "list")
        assert done.returncode == 2 and "$ROCKETMQ_TLS='perhaps' cannot be used" in done.stderr


def test_sparks_source_and_sink_reach_servers_that_ask_for_certificates(tmp_path: Path) -> None:
    """Plans of the driver, a task that writes and a task that reads, without Spark's JVM."""
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyspark", reason="the extra gimbalmq[spark] is not installed")
    from gimbalmq.spark import sink, sink_send
    from gimbalmq.spark.sink_options import SinkSettings
    from gimbalmq.spark.source import RocketMQDataSource
    from gimbalmq.spark.wire import close_process_wires

    authority = Authority(tmp_path)
    ca, own = authority.certificate.cert_path, authority.sign("spark")
    keys = keys_of(
        authority.sign("server"),
        tls_server_trustCertPath=ca,
        tls_server_need_client_auth="require",
    )
    with LocalCluster.in_thread(properties=keys) as cluster:
        with sync.Admin(cluster.namesrv, tls=client_tls(ca, own.cert_path, own.key_path)) as admin:
            admin.topics.create("T", queues=2)
        options = {
            "namesrv": cluster.namesrv,
            "tls": "verify",
            "tlstrustfile": ca,
            "tlscertfile": own.cert_path,
            "tlskeyfile": own.key_path,
        }
        batch = pa.record_batch([pa.array([b"1", b"2", b"3"], pa.binary())], names=["body"])
        settings = SinkSettings.read({**options, "topic": "T"})
        try:
            sent = sink.SinkWriter(settings, {"body": 0}, "q").write(iter([batch]))
            assert isinstance(sent, sink_send.Sent)
            source = RocketMQDataSource({**options, "subscribe": "T"})
            reader = source.reader(source.schema())
            found = [
                body
                for partition in reader.partitions()
                for rows in reader.read(partition)
                for body in rows.column("body").to_pylist()  # type: ignore[union-attr]
            ]
            assert sorted(found) == [b"1", b"2", b"3"]
            plain = RocketMQDataSource({"namesrv": cluster.namesrv, "subscribe": "T", "fetchretries": "0"})
            with pytest.raises(RocketMQError, match="does it want TLS"):
                plain.reader(plain.schema()).partitions()
        finally:
            for sender in list(sink_send.Sender._shared.values()):
                sender.close()
            close_process_wires()
