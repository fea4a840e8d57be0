"""Every template, as ``gimbalmq pipeline init`` writes it, run by ``gimbalmq pipeline run`` against real brokers.

The archive starts a Spark of its own, twice; the others share one Spark Connect server, as jobs on a cluster would.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from gimbalmq import ConsumeFromWhere, Message, MessageView, sync
from gimbalmq.spark.archive import compact
from gimbalmq.spark.archive.log import OWN, ArchiveLog
from gimbalmq.spark.archive.writer import TaskFiles
from gimbalmq.testing import LocalCluster
from gimbalmq.testing.cluster import ThreadCluster
from tests.cli.commands import environment
from tests.spark import jobs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

QUICK = ("--conf", f"spark.driver.extraJavaOptions={jobs.QUICK}")

_SERVER = """
import sys
from gimbalmq.spark.java import ensure_java
ensure_java()
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
    .config("spark.connect.grpc.binding.port", "0")
    .config("spark.connect.grpc.binding.address", "127.0.0.1")
    .config("spark.sql.warehouse.dir", sys.argv[1])
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .getOrCreate()
)
service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
print(getattr(service, "MODULE$").localPort(), flush=True)
sys.stdin.read()
"""


class Remote:
    """A Spark Connect server."""

    def __init__(self, port: int, warehouse: Path) -> None:
        self.words = ("--remote", f"sc://127.0.0.1:{port}")
        self.warehouse = warehouse


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    folder = tmp_path_factory.mktemp("server")
    with (
        open(folder / "log", "w") as log,
        subprocess.Popen(
            [sys.executable, "-c", _SERVER, str(folder / "tables")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
            env=environment() | {"SPARK_LOCAL_IP": "127.0.0.1"},
        ) as server,
    ):
        assert server.stdout is not None and server.stdin is not None
        try:
            line = server.stdout.readline()
            assert line.strip().isdigit(), (folder / "log").read_text()
            yield Remote(int(line), folder / "tables")
        finally:
            server.stdin.close()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()


def pipeline(*words: object, code: int = 0) -> list[str]:
    """Runs the command; the lines it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "gimbalmq", "pipeline", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=500,
        env=environment(),
    )
    assert done.returncode == code, done.stdout + done.stderr
    return (done.stdout + done.stderr).splitlines()


def rows(table: Path) -> list[dict[str, Any]]:
    """What anything sees that lists Parquet files and passes over names that begin with an underscore."""
    files = [file for file in sorted(table.rglob("*.parquet")) if OWN not in file.parts]
    return [row for file in files for row in parquet.ParquetFile(file).read().to_pylist()]


def send(namesrv: str, topic: str, numbers: range) -> None:
    """Every tenth is no JSON."""
    with sync.Producer("shop", namesrv) as producer:
        for number in numbers:
            told = {"id": number, "amount": number / 2, "padding": "x" * 10_000}
            body = json.dumps(told) if number % 10 else f"<order {number}>"
            tag = "new" if number % 2 else "old"
            producer.send(
                Message(
                    topic,
                    body.encode(),
                    tags=tag,
                    keys=f"k{number}",
                    sharding_key=f"s{number % 7}",
                    properties={"colour": "red"},
                    flag=number,
                )
            )


def check_keys(found: list[MessageView]) -> None:
    """Each sharding key is there, in one queue, in the order it was sent; the flags are the numbers."""
    by_key: dict[str | None, list[MessageView]] = {}
    for message in found:
        by_key.setdefault(message.sharding_key, []).append(message)
    assert None not in by_key and len(by_key) > 1
    for key, messages in by_key.items():
        assert len({message.queue_id for message in messages}) == 1, key
        messages.sort(key=lambda message: message.queue_offset)
        numbers = [int(message.keys[0][1:]) for message in messages]
        assert {f"s{number % 7}" for number in numbers} == {key}
        assert numbers == sorted(numbers), key
        assert [message.flag for message in messages] == numbers


def receive(namesrv: str, topic: str, count: int, client_file: Path | None = None) -> list[MessageView]:
    found: list[MessageView] = []
    first = ConsumeFromWhere.FIRST_OFFSET
    with sync.PullConsumer("readers", namesrv, consume_from_where=first, client_file=client_file) as consumer:
        consumer.subscribe(topic)
        for _ in range(100):
            found += consumer.poll(1)
            if len(found) >= count:
                break
        found += consumer.poll(0.3)
    return found


@pytest.fixture(scope="module")
def brokers() -> Iterator[ThreadCluster]:
    with LocalCluster.in_thread() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def archive(brokers: ThreadCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive after its first run."""
    folder = tmp_path_factory.mktemp("lake") / "archive"
    send(brokers.namesrv, "orders", range(60))
    pipeline("init", "archive", folder, "--set", f"namesrv={brokers.namesrv}", "--set", "schema=infer")
    told = pipeline("run", folder, *QUICK)
    schema = "id BIGINT, amount DOUBLE, padding STRING"
    assert any(line.endswith(f"spark-pipeline.yml: {schema}") for line in told), told
    assert f'gimbalmq.schema: "{schema}"' in (folder / "spark-pipeline.yml").read_text()
    assert any(line.endswith("messages: running") for line in told), told
    assert "4 flows completed in" in told[-1]
    assert all(each in told[-1] for each in ("messages 60", "decoded 54", "undecoded 6", "daily_counts 1")), (
        told[-1]
    )
    return folder


def test_archive_decodes_what_it_can_and_puts_the_rest_aside(archive: Path) -> None:
    table = archive / "tables" / "messages"
    days = {path.parent.relative_to(table) for path in table.glob("topic=*/*/*.parquet")}
    assert days and all(str(day).startswith("topic=orders/date=20") for day in days), days
    messages = rows(table)
    assert sorted(row["key"] for row in messages) == sorted(f"k{number}" for number in range(60))
    assert {row["topic"] for row in messages} == {"orders"}
    assert dict(messages[0]["properties"])["colour"] == "red"
    decoded = rows(archive / "tables" / "decoded")
    assert sum(row["value"]["amount"] for row in decoded) == sum(n / 2 for n in range(60) if n % 10)
    undecoded = rows(archive / "tables" / "undecoded")
    assert sorted(bytes(row["body"]).decode() for row in undecoded) == sorted(
        f"<order {n}>" for n in range(0, 60, 10)
    )
    assert {row["reason"] for row in undecoded} == {"no JSON of the schema"}
    (counts,) = rows(archive / "tables" / "daily_counts")
    assert (counts["topic"], counts["messages"], counts["without_key"]) == ("orders", 60, 0)


def test_ctrl_c_says_so_and_the_next_run_goes_on(archive: Path) -> None:
    """The next run is that of the next test."""
    words = [sys.executable, "-m", "gimbalmq", "pipeline", "run", str(archive), *QUICK]
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.rstrip().endswith("working out the flows"):  # the catalog is open
                break
        os.killpg(run.pid, signal.SIGINT)
        _, errors = run.communicate(timeout=200)
    assert run.returncode == 130
    assert "interrupted: ending Spark" in errors
    assert (
        errors.splitlines()[-1]
        == "gimbalmq: interrupted, and Spark has ended; the next run goes on from there"
    )
    left = [path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline") if _names(path, str(archive))]
    assert not left, "no JVM holds the catalog"


def _names(cmdline: Path, place: str) -> bool:
    try:
        return place.encode() in cmdline.read_bytes()
    except OSError:
        return False


def test_ctrl_c_ends_the_run_on_a_server_too(brokers: ThreadCluster, remote: Remote, tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path / "messages")
    log.prepare()
    for batch in range(3):
        _archive_batch(log, batch)
    settings = {"namesrv": brokers.namesrv, "archive": log.root, "topic": "broken-off", "rate": 2}
    pipeline("init", "replay", tmp_path / "p", *_set(settings))
    words = [sys.executable, "-m", "gimbalmq", "pipeline", "run", str(tmp_path / "p"), *remote.words]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.rstrip().endswith("replay: running"):
                break
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=200)
    assert run.returncode == 130
    spec = tmp_path / "p" / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace('gimbalmq.rate: "2"', 'gimbalmq.rate: "0"'))
    pipeline("run", tmp_path / "p", *remote.words)
    found = receive(brokers.namesrv, "broken-off", 60)
    assert {int(message.keys[0][1:]) for message in found} == set(range(60))


def test_second_run_takes_only_what_is_new(archive: Path, brokers: ThreadCluster) -> None:
    send(brokers.namesrv, "orders", range(60, 75))
    told = pipeline("run", archive, *QUICK)
    assert any("messages: completed, 15 rows read" in line for line in told), told
    assert len(rows(archive / "tables" / "messages")) == 75
    (counts,) = rows(archive / "tables" / "daily_counts")
    assert counts["messages"] == 75


def test_compaction_leaves_every_row_where_it_was(archive: Path) -> None:
    """That streams do not notice it is shown in test_archive.py."""
    table = ArchiveLog(archive / "tables" / "messages")
    before = rows(table.root)
    files = len(table.state().files)
    told = pipeline("compact", archive)
    assert told[-1].startswith(f"{table.root}: {files} files are now"), told
    assert len(table.state().files) < files
    assert not compact.plan(table.state(), 128 << 20)

    def by_key(row: dict[str, Any]) -> str:
        return str(row["key"])

    assert sorted(rows(table.root), key=by_key) == sorted(before, key=by_key)


def test_what_a_refresh_cannot_empty_is_explained(archive: Path) -> None:
    before = len(rows(archive / "tables" / "messages"))
    told = pipeline("run", archive, *QUICK, "--full-refresh", "messages", code=1)
    assert any("an archive only grows, and no refresh empties it" in line for line in told), told
    assert len(rows(archive / "tables" / "messages")) == before > 0


def test_replay_sends_what_the_condition_meets_at_the_rate(
    archive: Path, brokers: ThreadCluster, remote: Remote, tmp_path: Path
) -> None:
    settings = {"namesrv": brokers.namesrv, "archive": archive / "tables" / "messages", "topic": "again",
                "where": "tags = 'new'", "rate": 20}  # fmt: skip
    pipeline("init", "replay", tmp_path / "p", *_set(settings))
    told = pipeline("run", tmp_path / "p", *remote.words)
    assert "1 flow completed" in told[-1]
    found = receive(brokers.namesrv, "again", 30)
    check_keys(found)
    numbers = {int(message.keys[0][1:]) for message in found}
    assert numbers in ({n for n in range(60) if n % 2}, {n for n in range(75) if n % 2})
    assert len(found) == len(numbers)
    assert {message.tags for message in found} == {"new"}
    assert {message.get("colour") for message in found} == {"red"}
    times = [message.store_timestamp for message in found]
    assert max(times) - min(times) >= 1300, "30 messages at 20 a second"


def test_replay_sends_in_order_what_is_whole_and_goes_on_after_a_compaction(
    brokers: ThreadCluster, remote: Remote, tmp_path: Path
) -> None:
    """An archive whose files cut each queue into pieces, with damaged rows as ``onDecodeError=keep`` gives them."""
    log = ArchiveLog(tmp_path / "messages")
    log.prepare()
    for batch in range(3):
        _archive_batch(log, batch)
    settings = {"namesrv": brokers.namesrv, "archive": log.root, "topic": "in-order", "rate": 0}
    pipeline("init", "replay", tmp_path / "p", *_set(settings))
    pipeline("run", tmp_path / "p", *remote.words)
    found = receive(brokers.namesrv, "in-order", 60)
    assert len(found) == 60
    check_keys(found)
    for join in compact.plan(log.state(), 1 << 20):
        assert compact.do(log, join)
    _archive_batch(log, 3)
    pipeline("run", tmp_path / "p", *remote.words)
    found += receive(brokers.namesrv, "in-order", 20)
    assert sorted(int(message.keys[0][1:]) for message in found) == list(range(80)), "each once"
    check_keys(found)


def _archive_batch(log: ArchiveLog, batch: int) -> None:
    """20 messages, number by number into two files, and a damaged one in each."""
    kind = pa.map_(pa.string(), pa.string())
    for_date = pa.date32()
    tasks = [TaskFiles(log, ["topic", "date"]) for _ in range(2)]
    for number in range(batch * 20, batch * 20 + 20):
        whole = {
            "topic": "orders",
            "broker": "a",
            "queueId": number % 7,
            "offset": number // 7,
            "date": datetime.date(2026, 11, 15 + number % 2),
            "key": f"k{number}",
            "body": b"whole",
            "flag": number,
            "properties": [("__SHARDINGKEY", f"s{number % 7}"), ("UNIQ_KEY", "old")],
        }
        fields = [("date", for_date), ("properties", kind), ("decodeError", pa.string()), ("body", pa.binary()),
                  *((name, pa.string()) for name in ("topic", "broker", "key", "tags")),
                  ("queueId", pa.int32()), ("flag", pa.int32()), ("offset", pa.int64())]  # fmt: skip
        tasks[number // 3 % 2].write(pa.RecordBatch.from_pylist([whole], pa.schema(fields)))
    for task in tasks:
        damaged = {"broker": "a", "decodeError": "magic is 0", "body": b"what was readable"}
        task.write(pa.RecordBatch.from_pylist([damaged, {**damaged, "body": None}], pa.schema(fields)))
    log.add([file for task in tasks for file in task.close()], query="q", batch=batch)


def test_mirror_keeps_keys_tags_and_properties(
    brokers: ThreadCluster, remote: Remote, tmp_path: Path
) -> None:
    """The cluster on the other side asks for keys and TLS, and has a client file of its own."""
    send(brokers.namesrv, "mirrored", range(20))
    with LocalCluster.in_thread(secure=True) as other:
        settings = {
            "namesrv": brokers.namesrv,
            "target": other.namesrv,
            "targetClientFile": str(other.client_file()),
            "topics": "mirrored",
            "prefix": "eu-",
        }
        pipeline("init", "mirror", tmp_path / "p", *_set(settings))
        pipeline("run", tmp_path / "p", *remote.words)
        secret = other.client_options()["secret_key"]
        for path in (path for path in (tmp_path / "p").rglob("*") if path.is_file()):
            assert secret.encode() not in path.read_bytes(), path
        found = receive(other.namesrv, "eu-mirrored", 20, other.client_file())
        check_keys(found)
        assert sorted(message.keys[0] for message in found) == sorted(f"k{n}" for n in range(20))
        for message in found:
            number = int(message.keys[0][1:])
            assert message.tags == ("new" if number % 2 else "old")
            assert message.get("colour") == "red"
            assert str(number) in bytes(message.body).decode()


def test_mirror_from_now_on_copies_what_comes_after_its_first_run(
    brokers: ThreadCluster, remote: Remote, tmp_path: Path
) -> None:
    send(brokers.namesrv, "later", range(5))
    with LocalCluster.in_thread() as other:
        settings = {"namesrv": brokers.namesrv, "target": other.namesrv, "topics": "later", "start": "latest"}
        pipeline("init", "mirror", tmp_path / "p", *_set(settings))
        pipeline("run", tmp_path / "p", *remote.words)
        send(brokers.namesrv, "later", range(5, 20))
        pipeline("run", tmp_path / "p", *remote.words)
        found = receive(other.namesrv, "later", 15)
        assert sorted(int(message.keys[0][1:]) for message in found) == list(range(5, 20))


def test_redrive_sends_dead_letters_home(brokers: ThreadCluster, remote: Remote, tmp_path: Path) -> None:
    with sync.Producer("shop", brokers.namesrv) as producer:
        for name in ("ada", "bob"):
            producer.send(
                Message(
                    "mails",
                    f"to {name}".encode(),
                    tags="mail",
                    keys=name,
                    sharding_key=f"of {name}",
                    properties={"n": "1"},
                )
            )
    failed = threading.Semaphore(0)

    def fail(message: MessageView) -> bool:
        failed.release()
        return False

    consumer = sync.PushConsumer(
        "mailers", brokers.namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=0
    )
    consumer.subscribe("mails", "*", fail)
    with consumer:
        for _ in range(2):
            assert failed.acquire(timeout=30)
    assert len(receive(brokers.namesrv, "%DLQ%mailers", 2)) == 2
    settings = {
        "namesrv": brokers.namesrv,
        "group": "mailers",
        "where": "body LIKE '%ada%' AND original = 'mails'",
    }
    pipeline("init", "redrive", tmp_path / "p", *_set(settings))
    pipeline("run", tmp_path / "p", *remote.words)
    found = receive(brokers.namesrv, "mails", 3)
    assert sorted(bytes(message.body) for message in found) == [b"to ada", b"to ada", b"to bob"]
    again = max(found, key=lambda message: message.store_timestamp)
    assert (again.keys, again.tags, again.get("n"), again.reconsume_times) == (("ada",), "mail", "1", 0)
    (first,) = (message for message in found if message.keys == ("ada",) and message is not again)
    assert again.sharding_key == first.sharding_key == "of ada"
    assert again.queue_id == first.queue_id


def test_blank_is_a_pipeline(brokers: ThreadCluster, remote: Remote, tmp_path: Path) -> None:
    send(brokers.namesrv, "blank", range(5))
    pipeline("init", "blank", tmp_path / "p", *_set({"namesrv": brokers.namesrv, "topics": "blank"}))
    told = pipeline("run", tmp_path / "p", "--dry-run", *remote.words)
    assert told[-1].startswith("all fits together: nothing was moved")
    assert not (remote.warehouse / "messages").exists() or not rows(remote.warehouse / "messages")
    pipeline("run", tmp_path / "p", *remote.words)
    assert len(rows(remote.warehouse / "messages")) == 5


def test_failures_are_explained(brokers: ThreadCluster, remote: Remote, tmp_path: Path) -> None:
    project = tmp_path / "p"
    send(brokers.namesrv, "failing", range(1))
    words = _set({"namesrv": brokers.namesrv, "topics": "failing", "start": "yesterday"})
    pipeline("init", "mirror", project, *words, "--set", "spark.sql.pipelines.maxFlowRetryAttempts=0")
    told = pipeline("run", project, *remote.words, code=1)
    assert "startingOffsets='yesterday' cannot be used" in told[-2], told
    assert told[-1] == f"gimbalmq: the whole log: {project / 'run.log'}"
    assert "startingOffsets" in (project / "run.log").read_text()
    (project / "transformations" / "wrong.py").write_text("# a comment\nspark = nothing\n")
    told = pipeline("run", project, *remote.words, code=1)
    assert told[-2] == "gimbalmq: NameError: name 'nothing' is not defined (transformations/wrong.py, line 2)"


# -- the balance report --------------------------------------------------------------


def _line(record: str, second: float, member: str, queue: int, **own: object) -> str:
    where = {"topic": "<orders>", "broker": "broker-a", "queue_id": queue}
    fixed = {"record": record, "at_ms": 1_794_000_000_000 + round(second * 1000), "group": "billing"}
    return json.dumps({**fixed, "member": f"10.0.0.1@{member}", **where, **own})


RECORDED = {
    "anna": [
        *(_line("QueueTaken", 0, "anna", queue, offset=0, reason="start") for queue in (0, 1)),
        *(_line("QueueStarted", 0, "anna", queue, paused=0.0) for queue in (0, 1)),
        *(_line("Position", 1, "anna", queue, offset=100, newest=130, lag=30) for queue in (0, 1)),
        _line("QueueDropped", 2, "anna", 1, offset=180, reason="members changed", cached=3),
        _line("Position", 2.5, "anna", 0, offset=250, newest=250, lag=0),
        '{"record": "Position", "at_ms": 17940',
    ],
    "ben": [
        _line("QueueTaken", 2.2, "ben", 1, offset=160, reason="<b>start</b>"),
        _line("QueueStarted", 2.2, "ben", 1, paused=0.2),
        _line("Position", 3, "ben", 1, offset=210, newest=250, lag=40),
        _line("DuplicatesSeen", 3, "ben", 1, count=7, first=1, last=7),
    ],
}


def test_balance_report_finds_moves_pauses_duplicates_and_skew(remote: Remote, tmp_path: Path) -> None:
    project, records = tmp_path / "p", tmp_path / "records"
    records.mkdir()
    for member, lines in RECORDED.items():
        (records / f"{member}.jsonl").write_text("\n".join(lines) + "\n")
    page = tmp_path / "out" / "page.html"
    pipeline("init", "balance-report", project, "--set", f"records={records}", "--set", f"page={page}")
    # This Spark has its tables elsewhere.
    (project / "tables").symlink_to(remote.warehouse)
    told = pipeline("run", project, *remote.words)
    assert told[-1] == f"report: {page}"
    tables = remote.warehouse
    (move,) = rows(tables / "moves")
    assert (move["from_member"], move["to_member"], move["queue_id"]) == ("10.0.0.1@anna", "10.0.0.1@ben", 1)
    assert (move["redelivered"], move["paused_seconds"]) == (20, 0.2)
    consumed = {row["member"].partition("@")[2]: row["messages"] for row in rows(tables / "skew")}
    assert consumed == {"anna": 250 + 180, "ben": 50}
    assert {row["kind"]: row["messages"] for row in rows(tables / "duplicates")} == {
        "moved": 20,
        "seen again": 7,
    }
    (pause,) = rows(tables / "pauses")
    assert (pause["moved"], pause["longest_seconds"]) == (1, 0.2)
    lag = {row["at"].second: row["lag"] for row in rows(tables / "lag")}
    assert sorted(lag.values()) == [0, 40, 60]
    text = page.read_text()
    assert "&lt;orders&gt; 1" in text and "&lt;b&gt;start&lt;/b&gt;" in text
    assert "<orders>" not in text and "<b>start" not in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), "nothing is fetched"


def _set(settings: Mapping[str, object]) -> list[str]:
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
