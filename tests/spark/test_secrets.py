"""No secret reaches what Spark writes: plans, its pages, event logs, checkpoints, logs and the texts of errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

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
