"""No secret reaches what Spark writes: plans, its pages, event logs, checkpoints, logs and the texts of errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gimbalmq import Message, sync
from gimbalmq.testing import LocalCluster
from gimbalmq.testing.cluster import ThreadCluster
from tests.spark.conftest import Topic
from tests.spark.submit import Job

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SECRETS = {
    "secretKey": "canary-secret-key",
    "securityToken": "canary-security-token",
    "tlsKeyPassword": "canary-key-password",
}
VISIBLE = "topic-that-may-be-seen"


def files_with(folder: Path, text: str) -> list[str]:
    wanted = text.encode()
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and wanted in path.read_bytes()
    )


def test_secrets_given_as_options_stay_out_of_everything_that_spark_writes(
    shared_cluster: ThreadCluster, new_topic: Callable[..., Topic], tmp_path: Path
) -> None:
    topic = new_topic(shared_cluster, name=VISIBLE)
    topic.send(20)
    given = tmp_path / "given.json"
    given.write_text(json.dumps({"accessKey": "somebody", **SECRETS}))
    folder = tmp_path / "job"
    with Job(
        "keeping_secrets",
        folder,
        namesrv=shared_cluster.namesrv,
        topic=topic.name,
        target=f"{VISIBLE}-copy",
        secrets=str(given),
    ) as job:
        assert job.result() == {"rows": 20}
        said = job.said()
    # What may be seen is, so this would find what may not.
    seen = files_with(folder, VISIBLE)
    assert any(name.startswith("events/") for name in seen), (seen, said)
    assert "texts" in seen and "driver.log" in seen, seen
    assert any(name.startswith("checkpoint/") for name in seen), seen
    found = {text: files_with(folder, text) for text in SECRETS.values()}
    assert found == {text: [] for text in SECRETS.values()}


def test_a_client_file_lets_source_and_sink_in(spark: SparkSession, checkpoint: str) -> None:
    """Batch and stream, read and write, with users, policies and TLS; and a user who may not."""
    users = {
        "spark": {"Topic:orders": "Sub,Get", "Topic:copies": "Pub,Sub,Get", "Group:*": "Sub"},
        "nobody": {},
    }
    with LocalCluster.in_thread(secure=True, users=users) as cluster:
        with sync.Admin(**cluster.client_options()) as admin:
            for name in ("orders", "copies"):
                admin.topics.create(name, queues=2)
        with sync.Producer("shop", **cluster.client_options()) as producer:
            for number in range(10):
                producer.send(Message("orders", str(number).encode()))
        told = {"clientFile": str(cluster.client_file("spark"))}
        orders = spark.read.format("rocketmq").options(**told).load("orders")
        assert orders.count() == 10
        orders.select("body").write.format("rocketmq").mode("append").options(**told, topic="copies").save()
        streamed = (
            spark.readStream.format("rocketmq").options(**told, startingOffsets="earliest").load("orders")
        )
        query = (
            streamed.select("body")
            .writeStream.format("rocketmq")
            .options(**told, topic="copies", checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert spark.read.format("rocketmq").options(**told).load("copies").count() == 20
        for user in ("spark", "nobody"):
            refused = {"clientFile": str(cluster.client_file(user)), "topic": "orders"}
            with pytest.raises(Exception, match="orders") as caught:
                orders.limit(1).select("body").write.format("rocketmq").mode("append").options(
                    **refused
                ).save()
            assert cluster.client_options(user)["secret_key"] not in str(caught.value)
        plain = {"namesrv": cluster.namesrv, "fetchRetries": "0"}
        with pytest.raises(Exception, match="does it want TLS"):
            spark.read.format("rocketmq").options(**plain).load("orders").count()
