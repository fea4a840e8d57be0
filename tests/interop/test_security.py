"""Access keys and TLS against Apache's broker, which checks every signature: our clients, and Spark's source and sink.

The broker is 4.9.7 with its access file; name servers of that release ask nobody who they are. A broker that is told
nothing of TLS serves it too, with a certificate it made up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'gimbalmq[spark]'")

from pyspark.sql import SparkSession

from gimbalmq import ConsumeFromWhere, Message, sync
from gimbalmq.errors import SendFailedError
from gimbalmq.transport.tls import client_tls
from tests.interop.apache_cluster import OLDEST
from tests.peers.apache import ApacheBroker, ApacheNameServer, prepare_home
from tests.spark.conftest import spark

__all__ = ["spark"]

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

KEYS: dict[str, Any] = {"access_key": "GimbalUser", "secret_key": "12345678"}
SPARK_KEYS = {"accessKey": KEYS["access_key"], "secretKey": KEYS["secret_key"]}

ACCOUNTS = """\
accounts:
  - accessKey: GimbalUser
    secretKey: 12345678
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - guarded=PUB|SUB
      - copied=PUB|SUB
"""


@pytest.fixture(scope="module")
def guarded(java_is_here: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of a broker that lets in whom it knows."""
    folder = tmp_path_factory.mktemp("guarded")
    (prepare_home(folder / "broker") / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    with (
        ApacheNameServer(OLDEST, folder / "namesrv") as nameserver,
        ApacheBroker(
            OLDEST, folder / "broker", namesrv=nameserver.address, extra={"aclEnable": "true"}
        ) as _broker,
    ):
        yield nameserver.address


@pytest.fixture(scope="module")
def sent(guarded: str) -> list[bytes]:
    """What a producer with the right keys has sent, through TLS."""
    bodies = [f"secret {number} 密".encode() for number in range(40)]
    with sync.Producer("keyed", guarded, tls=client_tls(verify=False), **KEYS) as producer:
        for number, body in enumerate(bodies):
            producer.send(Message("guarded", body, tags="T", keys=f"键{number}", properties={"a b": "c=d"}))
    return bodies


def test_what_is_signed_is_taken_and_given(guarded: str, sent: list[bytes]) -> None:
    first = ConsumeFromWhere.FIRST_OFFSET
    found: list[bytes] = []
    with sync.PullConsumer("readers", guarded, consume_from_where=first, **KEYS) as consumer:
        consumer.assign(consumer.queues("guarded"))
        while len(found) < len(sent):
            found += [bytes(view.body) for view in consumer.poll(5)]
    assert sorted(found) == sorted(sent)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({}, "No accessKey is configured"),
        (KEYS | {"secret_key": "87654321"}, "Check signature failed for accessKey=GimbalUser"),
        (KEYS | {"access_key": "Stranger"}, "No acl config for Stranger"),
    ],
)
def test_nobody_else_gets_in(guarded: str, sent: list[bytes], keys: dict[str, Any], why: str) -> None:
    with (
        sync.Producer("strangers", guarded, **keys) as producer,
        pytest.raises(SendFailedError, match=why),
    ):
        producer.send(Message("guarded", b"no"))


def test_spark_signs_what_it_asks_for_and_what_it_writes(
    spark: SparkSession, guarded: str, sent: list[bytes]
) -> None:
    for tls in ("off", "trust"):
        options = {"namesrv": guarded, "tls": tls, **SPARK_KEYS}
        rows = spark.read.format("rocketmq").options(**options).load("guarded")
        assert sorted(bytes(row.body) for row in rows.collect()) == sorted(sent)
        rows.select("body", "key").write.format("rocketmq").options(topic="copied", **options).mode(
            "append"
        ).save()
    copies = spark.read.format("rocketmq").options(**options).load("copied")
    assert sorted(bytes(row.body) for row in copies.collect()) == sorted(2 * sent)


def test_spark_says_who_was_refused(spark: SparkSession, guarded: str, sent: list[bytes]) -> None:
    wrong = SPARK_KEYS | {"secretKey": "87654321"}
    reader = spark.read.format("rocketmq").options(namesrv=guarded, fetchRetries=0, **wrong)
    with pytest.raises(Exception, match="Check signature failed for accessKey=GimbalUser"):
        reader.load("guarded").collect()
