"""Apache's brokers at our name server when that asks servers who they are."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.interop.apache_access import ACCESS_CONTROL, ROOT
from tests.interop.apache_cluster import NEWEST
from tests.interop.secured import AT_ONCE
from tests.peers.apache import ApacheBroker
from tests.peers.frames import Frame, Keys, one, refused
from tests.peers.ours import OurNameServer
from tests.peers.probe import GET_BROKER_CLUSTER_INFO, request, wait_registered

pytestmark = pytest.mark.interop

INNER = f'{{"accessKey":"{ROOT.access}","secretKey":"{ROOT.secret}"}}'
SETTINGS: Mapping[str, object] = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "innerClientAuthenticationCredentials": INNER,
    **AT_ONCE,
}
PUT_KV, REGISTER = 100, 103


def brokers(namesrv: str) -> str:
    """What the name server knows, as text."""
    return request(namesrv, GET_BROKER_CLUSTER_INFO, keys=ROOT).decode()


def test_brokers_that_sign_are_taken_and_others_only_from_listed_addresses(tmp_path: Path) -> None:
    """One of them signs with its inner credentials, one has none, and one has wrong ones.

    The careful name server asks everybody; the other trusts whoever comes from this machine.
    """
    with (
        OurNameServer(tmp_path / "careful", extra=SETTINGS) as careful,
        OurNameServer(tmp_path / "trusting", extra={**SETTINGS, "trustedServers": "127.0.0.1"}) as trusting,
    ):
        both = f"{careful.address};{trusting.address}"

        def broker(name: str, **extra: object) -> ApacheBroker:
            settings = {"brokerName": name, **extra}
            return ApacheBroker(
                NEWEST, tmp_path / name, namesrv=both, extra=settings, registers_at=trusting.address
            )

        provider = ACCESS_CONTROL["authenticationMetadataProvider"]
        signing = broker(
            "signing", innerClientAuthenticationCredentials=INNER, authenticationMetadataProvider=provider
        )
        silent = broker("silent")
        try:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(ApacheBroker.start, (signing, silent)))
            wait_registered(careful.address, signing.address, keys=ROOT)
            assert f'"{silent.address}"' in brokers(trusting.address)
            assert f'"{silent.address}"' not in brokers(careful.address)
            # A trusted address is a server's and no administrator's.
            kv = {"namespace": "n", "key": "k", "value": "v"}
            for address in (careful.address, trusting.address):
                assert refused(one(address, Frame(PUT_KV, kv)))
                assert one(address, Frame(PUT_KV, kv, keys=ROOT)).code == 0

            # Nobody takes the place of a broker without its credentials.
            false = {
                "brokerName": "signing", "brokerAddr": "127.0.0.1:1", "clusterName": "InteropCluster",
                "haServerAddr": "127.0.0.1:2", "brokerId": "0", "compressed": "false", "bodyCrc32": "0",
            }  # fmt: skip
            for keys in (None, Keys(ROOT.access, "wrong")):
                assert refused(one(careful.address, Frame(REGISTER, false, b"{}", keys=keys)))
            assert '"127.0.0.1:1"' not in brokers(careful.address)
        finally:
            signing.kill()
            silent.kill()
