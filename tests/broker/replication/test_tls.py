"""The log goes by TLS, with the certificates of the ordinary port (haTlsEnable)."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from gimbalmq.broker.broker import Broker
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.broker.replication.follower import State
from gimbalmq.errors import ConfigError, ConnectError
from gimbalmq.transport.authority import OWN_HOSTS, Authority
from gimbalmq.transport.network import split_address
from gimbalmq.transport.tls import client_tls
from gimbalmq.transport.tls_stream import connect_tls
from tests.broker.replication.pairs import Pair, log_of, pair
from tests.broker.replication.test_replication import RawSlave, raw_slave

Properties = dict[str, object]


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Properties:
    """What a server needs to speak TLS."""
    folder = tmp_path_factory.mktemp("authority")
    authority = Authority(folder)
    authority.issue("server", OWN_HOSTS)
    return {
        "tls.server.certPath": folder / "server.pem",
        "tls.server.keyPath": folder / "server.key",
        "tls.server.trustCertPath": folder / "ca.pem",
        "tls.client.trustCertPath": folder / "ca.pem",
        "tls.enable": "true",
    }


async def connect(pair: Pair, broker: Broker, context: ssl.SSLContext) -> RawSlave:
    host, port = split_address(broker.replication.ha_address)
    network = pair.network.host("10.0.0.77")
    found = await connect_tls(network, RawSlave, host, port, 1.0, context)
    assert isinstance(found, RawSlave)
    return found


def test_a_slave_copies_by_tls_and_nobody_else_does(
    certified: Properties, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(pair: Pair) -> None:
        await pair.send(*(f"{number:04} " * 100 for number in range(200)))
        await pair.copied()
        assert log_of(pair.slave) == log_of(pair.master)
        assert pair.slave.replication.follower.state is State.FOLLOWING
        plain = await raw_slave(pair, pair.master.replication.ha_address)
        plain.report(0)
        await pair.until(lambda: plain.is_lost)
        assert "no TLS with 10.0.0.77" in caplog.text
        assert len(pair.master.source.replicas) == 1
        # Those that say nothing at all are not waited for, and are not many.
        silent = [await raw_slave(pair, pair.master.replication.ha_address) for _ in range(70)]
        await pair.until(lambda: sum(one.is_lost for one in silent) == 6, 1.0)
        await pair.until(lambda: all(one.is_lost for one in silent), 15.0)
        assert pair.master.source._shaking == 0

    pair(body, namesrv=certified, properties={**certified, "haTlsEnable": "true"})


def test_a_slave_that_shows_a_certificate_is_let_in_from_anywhere(certified: Properties) -> None:
    async def body(pair: Pair) -> None:
        assert pair.master.live.now.guards_log and not pair.master.live.now.ha_allowed_addresses
        trusts = client_tls(str(certified["tls.client.trustCertPath"]), check_host=False)
        try:
            stranger = await connect(pair, pair.master, trusts)
            await pair.until(lambda: stranger.is_lost)
        except ConnectError:
            pass  # TLS 1.2 says so during the handshake
        assert len(pair.master.source.replicas) == 1

    require: Properties = {**certified, "tls.server.need.client.auth": "require"}
    pair(body, namesrv=require, properties={**require, "haTlsEnable": "true"})


def test_without_certificates_of_slaves_a_guarded_log_stays_here(certified: Properties) -> None:
    async def body(pair: Pair) -> None:
        guarded = pair.slave
        guarded.live.swap(_enforcing(guarded.live.now))
        trusts = client_tls(str(certified["tls.client.trustCertPath"]), check_host=False)
        stranger = await connect(pair, guarded, trusts)
        await pair.until(lambda: stranger.is_lost)
        assert not guarded.source.replicas

    pair(body, namesrv=certified, properties={**certified, "haTlsEnable": "true"})


def _enforcing(config: BrokerConfig) -> BrokerConfig:
    properties = {key: value for key, value in config.to_properties().items() if value}
    return BrokerConfig.from_properties({**properties, "tls.server.mode": "enforcing"})[0]


def test_a_slave_that_speaks_tls_to_a_plain_master_is_told_so(
    certified: Properties, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(pair: Pair) -> None:
        with pytest.raises(ConnectError, match="no TLS with"):
            await connect(pair, pair.master, client_tls(str(certified["tls.client.trustCertPath"])))
        assert "haTlsEnable must be the same" in caplog.text

    pair(body)


@pytest.mark.parametrize("missing", ["tls.server.certPath", "tls.enable"])
def test_tls_needs_certificates_at_both_ends(certified: Properties, missing: str, tmp_path: Path) -> None:
    properties = {key: str(value) for key, value in certified.items() if key != missing}
    if missing == "tls.server.certPath":
        del properties["tls.server.keyPath"]
    with pytest.raises(ConfigError, match="haTlsEnable"):
        BrokerConfig.from_properties({**properties, "haTlsEnable": "true"})
