"""``gimbalmq pipeline``: what it refuses and how it says so, what it copies, what it makes of Spark's words."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from gimbalmq import Message, sync
from gimbalmq.cli.pipeline.checks import check_places
from gimbalmq.cli.pipeline.progress import Progress
from gimbalmq.cli.pipeline.reasons import explain, root_cause
from gimbalmq.errors import ConfigError
from gimbalmq.spark import pipelines
from gimbalmq.spark.archive.log import ArchiveLog
from gimbalmq.spark.archive.writer import TaskFiles
from gimbalmq.spark.pipelines import copy_out, find_spec, template, templates
from gimbalmq.spark.pipelines.schema import infer
from gimbalmq.testing import LocalCluster
from gimbalmq.testing.cluster import ThreadCluster
from tests.cli.commands import environment, gimbalmq
from tests.support import ManualClock

NAMES = ["archive", "replay", "mirror", "redrive", "balance-report", "blank"]


def test_list_names_every_template_with_its_settings() -> None:
    done = gimbalmq("pipeline", "list")
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines() if line and line[0] != " "] == NAMES
    assert "  topics=orders" in done.stdout
    listed = json.loads(gimbalmq("pipeline", "list", "--json").stdout)
    assert [each["name"] for each in listed] == NAMES
    assert listed[0]["settings"]["namesrv"] == "127.0.0.1:9876"
    assert listed[1]["settings"]["archive"].startswith("DIR/")


@pytest.mark.parametrize("name", NAMES)
def test_every_template_is_whole(name: str, tmp_path: Path) -> None:
    chosen = template(name)
    assert chosen.about.endswith(".") and all(setting.meaning for setting in chosen.settings)
    folder = tmp_path / "a project"
    files = {str(file) for file in copy_out(chosen, folder, [])}
    assert {"README.md", "spark-defaults.conf", "spark-pipeline.yml"} <= files
    assert any(file.startswith("transformations/") for file in files)
    for file in files:
        text = (folder / file).read_text()
        assert "{{" not in text, "every place is filled in"
        if file.endswith(".py"):
            compile(text, file, "exec")
    assert "/a%20project/storage" in (folder / "spark-pipeline.yml").read_text()
    used = "".join((folder / file).read_text() for file in files if not file.endswith((".yml", ".md")))
    for setting in chosen.settings:
        assert f"gimbalmq.{setting.name}" in used, f"{setting.name} is read by something"


@pytest.mark.parametrize("name", NAMES)
def test_specs_are_what_spark_expects(name: str, tmp_path: Path) -> None:
    copy_out(template(name), tmp_path / "p", [])
    spec = yaml.safe_load((tmp_path / "p" / "spark-pipeline.yml").read_text())
    assert spec["name"] == "p" and spec["storage"] == f"{(tmp_path / 'p').as_uri()}/storage"
    assert all(isinstance(value, str) for value in spec["configuration"].values())


@pytest.mark.parametrize(
    ("bodies", "schema"),
    [
        ([{"id": 1, "name": "a"}], "id BIGINT, name STRING"),
        ([{"n": 1}, {"n": 1.5}, {"n": None}], "n DOUBLE"),
        ([{"n": 2**70}], "n DOUBLE"),
        ([{"yes": True}, {"no": None}], "yes BOOLEAN, no STRING"),
        ([{"n": True}, {"n": 1}], "n STRING"),
        ([{"a": {"b": [1, 2.5]}}, {"a": {"c": []}}], "a STRUCT<b: ARRAY<DOUBLE>, c: ARRAY<STRING>>"),
        ([{"a": [{"x": 1}, {"y": "z"}]}], "a ARRAY<STRUCT<x: BIGINT, y: STRING>>"),
        ([{"a": {}}, {"a": [1]}], "a STRING"),
        ([{"a b": 1, "c`d": 2}], "`a b` BIGINT, `c``d` BIGINT"),
        ([[1], "text", 5, {}], None),
        ([], None),
    ],
)
def test_a_schema_is_found_that_holds_every_body(bodies: list[object], schema: str | None) -> None:
    encoded = [json.dumps(body).encode() for body in bodies]
    assert infer([b"<no json>", *encoded, b"\xff"]) == schema


def test_a_schema_that_cannot_be_inferred_is_said_and_nothing_starts(tmp_path: Path) -> None:
    with LocalCluster.in_thread() as cluster:
        with sync.Producer("p", cluster.namesrv) as producer:
            producer.send(Message("orders", b"<order>"))
        folder = tmp_path / "archive"
        copy_out(template("archive"), folder, [("namesrv", cluster.namesrv), ("schema", "infer")])
        done = gimbalmq("pipeline", "run", folder)
    assert done.returncode == 2
    assert (
        "none of 1 messages of orders is a JSON object; write the schema into spark-pipeline.yml"
        in done.stderr
    )
    assert 'gimbalmq.schema: "infer"' in (folder / "spark-pipeline.yml").read_text()


def test_what_is_needed_to_infer_a_schema_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    copy_out(template("archive"), folder, [("namesrv", "127.0.0.1:9"), ("schema", "infer")])
    done = gimbalmq("pipeline", "run", folder)
    assert done.returncode == 2
    assert "gimbalmq.namesrv='127.0.0.1:9'" in done.stderr
    assert "start it, or change it in spark-pipeline.yml" in done.stderr
    spec = folder / "spark-pipeline.yml"
    lines = spec.read_text().splitlines(keepends=True)
    spec.write_text("".join(line for line in lines if "gimbalmq.topics" not in line))
    done = gimbalmq("pipeline", "run", folder)
    assert done.returncode == 2
    assert "gimbalmq.topics" in done.stderr and "spark-pipeline.yml must say it" in done.stderr


def test_init_writes_settings_as_they_were_given(tmp_path: Path) -> None:
    wanted = """tags = 'a"b' AND body LIKE '%\\d: #%'"""
    folder = tmp_path / "mine"
    words = (
        "--set",
        f"where={wanted}",
        "--set",
        "group=billing-2",
        "--set",
        "spark.sql.shuffle.partitions=3",
    )
    done = gimbalmq("pipeline", "init", "redrive", folder, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"next: gimbalmq pipeline run {folder}"
    settings = yaml.safe_load((folder / "spark-pipeline.yml").read_text())["configuration"]
    assert settings["gimbalmq.where"] == wanted
    assert settings["gimbalmq.group"] == "billing-2"
    assert settings["spark.sql.shuffle.partitions"] == "3"


def test_places_are_meant_from_where_the_user_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    copy_out(template("balance-report"), Path("p"), [("records", "my records"), ("page", "out/p.html")])
    text = (tmp_path / "p" / "spark-pipeline.yml").read_text()
    assert f'gimbalmq.records: "{tmp_path.as_uri()}/my%20records"' in text
    assert f'gimbalmq.page: "{tmp_path}/out/p.html"' in text
    copy_out(template("replay"), Path("q"), [("archive", "s3a://lake/messages")])
    assert 'gimbalmq.archive: "s3a://lake/messages"' in (tmp_path / "q" / "spark-pipeline.yml").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("init", "archve"), "TEMPLATE='archve' cannot be used: did you mean archive?"),
        (("init", "zzz"), "there are archive, replay, mirror, redrive, balance-report, blank"),
        (("init", "archive", "DIR", "--set", "topcs=a"), "archive has no such setting; did you mean topics?"),
        (("init", "blank", "DIR", "--set", "zzz=a"), "blank has no such setting; it has namesrv, topics"),
        (("init", "blank", "DIR", "--set", "topic"), "'topic' is not KEY=VALUE"),
        (("init", "blank", "FULL"), "it is there already; name a folder that is new or empty"),
        (("run", "NONE"), "there is no such folder; `gimbalmq pipeline init TEMPLATE DIR` makes one"),
        (("run", "FULL"), "it has no spark-pipeline.yml; `gimbalmq pipeline init TEMPLATE DIR` makes one"),
        (
            ("run", "PROJECT", "--full-refresh-all", "--refresh", "a"),
            "leave --full-refresh and --refresh out",
        ),
        (("run", "PROJECT", "--dry-run", "--full-refresh", "a"), "it moves nothing"),
        (("run", "PROJECT", "--remote", "spark://x:1"), "use sc://HOST:PORT; for other masters --master"),
        (
            ("run", "PROJECT", "--remote", "sc://x:1", "--conf", "a=b"),
            "that server has started; set it there",
        ),
        (("run", "PROJECT", "--remote", "sc://x:1", "--master", "local"), "not allowed with argument"),
        (("run",), "the following arguments are required: DIR"),
        ((), "usage: gimbalmq pipeline [-h] COMMAND ..."),
    ],
)
def test_mistakes_are_named_with_a_remedy(words: tuple[str, ...], told: str, tmp_path: Path) -> None:
    (tmp_path / "FULL").mkdir()
    (tmp_path / "FULL" / "file").write_text("")
    copy_out(template("blank"), tmp_path / "PROJECT", [])
    places = {name: str(tmp_path / name) for name in ("DIR", "FULL", "NONE", "PROJECT")}
    done = gimbalmq("pipeline", *(places.get(word, word) for word in words))
    assert done.returncode == 2, done.stdout + done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "DIR").exists()


def test_folder_that_cannot_be_made_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = gimbalmq("pipeline", "init", "blank", tmp_path / "file" / "x")
    assert done.returncode == 1
    assert "name a folder that can be made" in done.stderr


def test_second_run_of_one_project_at_a_time_is_refused(tmp_path: Path) -> None:
    import fcntl

    copy_out(template("blank"), tmp_path / "p", [])
    with open(tmp_path / "p" / "run.log", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = gimbalmq("pipeline", "run", tmp_path / "p", "--remote", "sc://127.0.0.1:1")
    assert done.returncode == 2
    assert "another run is at work here" in done.stderr


def test_spec_may_be_named_itself(tmp_path: Path) -> None:
    copy_out(template("blank"), tmp_path / "p", [])
    assert find_spec(tmp_path / "p") == find_spec(tmp_path / "p" / "spark-pipeline.yml")
    (tmp_path / "p" / "spark-pipeline.yml").rename(tmp_path / "p" / "spark-pipeline.yaml")
    assert find_spec(tmp_path / "p").suffix == ".yaml"


def test_templates_can_be_copied_from_a_read_only_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    shutil.copytree(pipelines._FOLDER, package)
    monkeypatch.setattr(pipelines, "_FOLDER", package)
    for path in (*package.rglob("*"), package):
        path.chmod(0o555 if path.is_dir() else 0o444)
    for each in templates():
        copy_out(each, tmp_path / each.name, [])
        copied = list((tmp_path / each.name).rglob("*"))
        assert len(copied) > 3
        assert all(path.stat().st_mode & 0o200 for path in copied)
    for path in (package, *package.rglob("*")):
        path.chmod(0o755)  # or pytest cannot clear it away


# -- what Spark says -----------------------------------------------------------------


def _stamp(text: str) -> str:
    return f"2026-11-15 12:00:00: {text}"


def _told(*lines: str, terminal: bool = False, step: float = 1.0) -> tuple[Progress, str]:
    class Out(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    out = Out()
    clock = ManualClock()
    told = Progress(out, clock)
    for line in lines:
        clock.advance(step)
        told.take(line)
    told.rest()
    return told, out.getvalue()


def _rows(name: str, count: int) -> str:
    return f"Streaming query made progress: {json.dumps({'name': name, 'numInputRows': count})}"


RUN = (
    _stamp("Loading pipeline spec from x..."),
    _stamp("Creating Spark session..."),
    "Warning: Ignoring non-Spark config property: gimbalmq.namesrv",
    _stamp("Starting run..."),
    _stamp("Flow spark_catalog.default.messages is QUEUED."),
    _stamp("Flow spark_catalog.default.messages is STARTING."),
    _stamp("Flow spark_catalog.default.messages is RUNNING."),
    _rows("spark_catalog.default.messages", 1200),
    _rows("spark_catalog.default.messages", 34),
    _stamp("Flow spark_catalog.default.messages has COMPLETED."),
    _stamp("Run is COMPLETED."),
)


def test_lines_tell_states_and_rows() -> None:
    told, shown = _told(*RUN)
    assert shown.splitlines() == [
        "  2.0 s  starting Spark",
        "  4.0 s  working out the flows",
        "  7.0 s  messages: running",
        "  8.0 s  messages: running, 1,200 rows read",
        " 10.0 s  messages: completed, 1,234 rows read in 4.0 s",
    ]
    assert not told.failures


def test_terminal_is_rewritten_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    _, shown = _told(*RUN, terminal=True)
    assert "\x1b[2A" in shown, "the block has a line of time and one flow"
    assert shown.rsplit("\x1b[2A", 1)[1].replace("\x1b[2K", "").replace("\x1b[J", "").splitlines() == [
        " 11.0 s",
        "    ok messages  completed, 1,234 rows read in 4.0 s",
    ]


FAILED = (
    _stamp("Flow 'spark_catalog.default.copy' has FAILED."),
    "Error: [STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_EXCEPTION] An exception was thrown:",
    "Traceback (most recent call last):",
    '  File "source.py", line 10, in latestOffset',
    "gimbalmq.errors.ConnectError: no name server of 127.0.0.1:9 answers",
    " SQLSTATE: XXKST",
)


def test_flow_that_failed_is_explained_by_its_innermost_error() -> None:
    told, shown = _told(
        *FAILED, _stamp("Flow 'spark_catalog.default.counts' SKIPPED due to upstream failure(s).")
    )
    assert explain(told, "") == ["copy failed: ConnectError: no name server of 127.0.0.1:9 answers"]
    assert "copy: failed, to be tried again" in shown and "counts: skipped" in shown


def test_flow_that_has_failed_is_never_said_to_have_completed() -> None:
    """Spark says that every query has completed which has ended, and a moment later that it failed."""
    completed = _stamp("Flow spark_catalog.default.copy has COMPLETED.")
    told, shown = _told(_stamp("Flow spark_catalog.default.copy is RUNNING."), completed, *FAILED, step=0.1)
    assert "completed" not in shown and told.flows["copy"].state == "failed, to be tried again"
    assert told.failures
    # Only what nothing else is heard of has completed, and at the time it was said.
    told, shown = _told(_stamp("Flow spark_catalog.default.copy is RUNNING."), completed, step=0.1)
    assert shown.splitlines()[-1] == "  0.2 s  copy: completed in 0.1 s"


def test_flow_that_succeeds_the_second_time_has_not_failed() -> None:
    told, _ = _told(*FAILED, _stamp("Flow spark_catalog.default.copy has COMPLETED."))
    assert not told.failures and told.flows["copy"].state == "completed"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "[TABLE_OR_VIEW_NOT_FOUND] The table or view `mesages` cannot be found. SQLSTATE: 42P01",
            "The table or view `mesages` cannot be found. (TABLE_OR_VIEW_NOT_FOUND)",
        ),
        (
            "org.apache.spark.SparkException: Job aborted\nCaused by: java.io.IOException: disk full",
            "IOException: disk full",
        ),
        ("\n  something else\n", "something else"),
        ("", "no reason was given"),
    ],
)
def test_root_causes(text: str, cause: str) -> None:
    assert root_cause(text) == cause


def test_failure_before_any_flow_names_the_line() -> None:
    failure = {
        "type": "NameError",
        "message": "name 'x' is not defined",
        "where": "transformations/a.py, line 3",
    }
    told, _ = _told(f"gimbalmq-failure {json.dumps(failure)}")
    assert explain(told, "") == ["NameError: name 'x' is not defined (transformations/a.py, line 3)"]


def test_known_troubles_get_a_remedy() -> None:
    told, _ = _told()
    assert explain(told, "x.AnalysisException: Table does not support truncates: rocketmq-archive.") == [
        "an archive only grows, and no refresh empties it: name the other tables with --full-refresh, or begin anew "
        "by removing tables/, metastore/ and storage/"
    ]
    assert (
        "keep metastore/ together with tables/" in explain(told, "[LOCATION_ALREADY_EXISTS] Cannot name")[-1]
    )
    assert (
        "another Spark has this project's metastore/ open"
        in explain(told, "Another instance of Derby may")[-1]
    )
    assert explain(told, "[JAVA_GATEWAY_EXITED] Java gateway") == [
        "Java did not start; its own words are in the log"
    ]


# -- before Spark has started ----------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadCluster]:
    with LocalCluster.in_thread() as cluster:
        with sync.Producer("p", cluster.namesrv) as producer:
            producer.send(Message("orders", b"{}"))
        yield cluster


@pytest.mark.parametrize(
    ("name", "settings", "code", "told"),
    [
        (
            "archive",
            {"topics": "orders, ordrs"},
            2,
            "gimbalmq.topics='ordrs' cannot be used: the name server",
        ),
        ("archive", {"topics": "ordrs"}, 2, "knows no such topic; did you mean orders?"),
        ("blank", {"topics": "zzz"}, 2, "`gimbalmq topic list` shows those there are"),
        ("mirror", {"topics": "zzz"}, 2, "gimbalmq.topics='zzz'"),
        ("mirror", {"target": "127.0.0.1:9"}, 2, "gimbalmq.target='127.0.0.1:9' cannot be used"),
        ("archive", {"namesrv": "127.0.0.1:9"}, 2, "start it, or change it in spark-pipeline.yml"),
        ("redrive", {"group": "nobody"}, 1, "group nobody has no dead letters"),
        ("replay", {}, 2, "gimbalmq.archive="),
    ],
)
def test_what_is_not_there_is_said_before_spark_starts(
    name: str, settings: dict[str, str], code: int, told: str, cluster: ThreadCluster, tmp_path: Path
) -> None:
    known = {"namesrv": cluster.namesrv, "target": cluster.namesrv} if name == "mirror" else {}
    values = {"namesrv": cluster.namesrv, **known, **settings}
    copy_out(template(name), tmp_path / "p", list(values.items()))
    done = gimbalmq("pipeline", "run", tmp_path / "p")
    assert done.returncode == code, done.stdout + done.stderr
    assert told in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "p" / "run.log").exists(), "Spark was not started"


def test_on_a_cluster_only_an_answer_counts(cluster: ThreadCluster, tmp_path: Path) -> None:
    copy_out(template("blank"), tmp_path / "p", [("namesrv", "127.0.0.1:9")])
    check_places(tmp_path / "p" / "spark-pipeline.yml", from_here=False)
    copy_out(template("blank"), tmp_path / "q", [("namesrv", cluster.namesrv), ("topics", "ordrs")])
    with pytest.raises(ConfigError, match="did you mean orders"):
        check_places(tmp_path / "q" / "spark-pipeline.yml", from_here=False)


def test_the_checks_are_let_in_by_the_client_file(tmp_path: Path) -> None:
    with LocalCluster.in_thread(secure=True) as secured:
        with sync.Admin(**secured.client_options()) as admin:
            admin.topics.create("orders", queues=1)
        copy_out(template("blank"), tmp_path / "p", [("namesrv", secured.namesrv), ("topics", "ordrs")])
        done = gimbalmq("pipeline", "run", tmp_path / "p", "--client-file", secured.client_file())
        assert done.returncode == 2 and "did you mean orders" in done.stderr, done.stderr
        settings = [("namesrv", secured.namesrv), ("target", secured.namesrv), ("topics", "orders")]
        wrong = [*settings, ("targetClientFile", str(tmp_path / "nowhere.toml"))]
        copy_out(template("mirror"), tmp_path / "q", wrong)
        done = gimbalmq("pipeline", "run", tmp_path / "q", "--client-file", secured.client_file())
        assert done.returncode == 2 and "nowhere.toml" in done.stderr, done.stderr
    done = gimbalmq("pipeline", "run", tmp_path / "p", "--client-file", tmp_path / "nowhere.toml")
    assert done.returncode == 2 and "client file=" in done.stderr, done.stderr


_WITHOUT_PYSPARK = """
import importlib.machinery as machinery
real = machinery.PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] == "pyspark" else real(name, path, target)
machinery.PathFinder.find_spec = staticmethod(find_spec)
"""


def test_without_the_extra_the_command_and_the_imports_say_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(_WITHOUT_PYSPARK)
    copy_out(template("blank"), tmp_path / "p", [])
    variables = environment()
    variables["PYTHONPATH"] = f"{tmp_path / 'site'}{os.pathsep}{variables['PYTHONPATH']}"

    def python(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *map(str, words)], capture_output=True, text=True, timeout=60, env=variables
        )

    for verb in ("run", "compact"):
        done = python("-m", "gimbalmq", "pipeline", verb, tmp_path / "p")
        assert done.returncode == 1
        assert done.stderr == (
            "gimbalmq: this needs pyspark, which is not installed: pip install 'gimbalmq[spark]'\n"
        )
    assert python("-m", "gimbalmq", "pipeline", "list").returncode == 0
    for line in (
        "from gimbalmq.spark.java import ensure_java",
        "import gimbalmq.spark as s; s.register(None)",
    ):
        done = python("-c", line)
        assert done.stderr.splitlines()[-1] == (
            "ModuleNotFoundError: gimbalmq.spark needs pyspark, which is not installed: "
            "pip install 'gimbalmq[spark]'"
        )


# -- Spark's processes -----------------------------------------------------------------

# Stands for the runner; its child stands for the JVM, which passes over signals and holds the pipe.
_RUNNER = """
import signal, subprocess, sys, time
child = "import signal, time; signal.signal(2, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN); time.sleep(600)"
jvm = subprocess.Popen([sys.executable, "-c", child])
print(f"jvm {jvm.pid}", file=sys.stderr, flush=True)
print("2026-11-15 12:00:00: Creating Spark session...", flush=True)
if sys.argv[1] == "wait":
    time.sleep(600)
"""

_FRONT = """
import os, sys
from pathlib import Path
from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.cli.pipeline import spark
from gimbalmq.cli.pipeline.checks import check_places
from gimbalmq.cli.pipeline.progress import Progress
spark._END_SECONDS = float(sys.argv[3])
with open(sys.argv[2], "a") as log:
    command = [sys.executable, "-c", sys.argv[4], sys.argv[1]]
    try:
        code = spark.run_spark(command, dict(os.environ), Path.cwd(), log, Progress(sys.stdout, SYSTEM_CLOCK))
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(code)
"""


def _jvm_of(log: Path) -> int:
    return int(log.read_text().partition("jvm ")[2].split()[0])


def _is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@contextmanager
def _front(log: Path, mode: str, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """The command's own process, with a runner that stands for Spark; nothing is left of it afterwards."""
    log.touch()
    with subprocess.Popen(
        [sys.executable, "-c", _FRONT, mode, str(log), str(seconds), _RUNNER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    ) as front:
        try:
            yield front
        finally:
            front.kill()
            if "jvm " in log.read_text() and _is_running(_jvm_of(log)):
                os.kill(_jvm_of(log), signal.SIGKILL)


def test_ctrl_c_says_so_and_leaves_no_process(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    with _front(log, "wait", 600.0) as front:
        assert front.stdout is not None and front.stderr is not None
        assert "starting Spark" in front.stdout.readline()
        # As a terminal does it: the whole foreground gets the signal.
        os.killpg(front.pid, signal.SIGINT)
        assert "interrupted: ending Spark" in front.stderr.readline()
        assert _is_running(_jvm_of(log)), "it passes over signals, and there are 600 seconds for it"
        os.killpg(front.pid, signal.SIGINT)
        assert front.wait(30) == 130
        assert not _is_running(_jvm_of(log))


def test_a_process_that_outlives_the_run_is_ended_with_it(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    with _front(log, "end", 0.2) as front:
        assert front.wait(30) == 0
        assert not _is_running(_jvm_of(log))


# -- compaction ------------------------------------------------------------------------


def _archive(folder: Path, batches: int) -> ArchiveLog:
    log = ArchiveLog(folder)
    log.prepare()
    for batch in range(batches):
        files = TaskFiles(log, ["topic"])
        files.write(pa.RecordBatch.from_pydict({"topic": ["orders", "mails"], "n": [batch, batch]}))
        log.add(files.close(), query="q", batch=batch)
    return log


def test_compact_previews_joins_and_can_be_repeated(tmp_path: Path) -> None:
    copy_out(template("archive"), tmp_path / "p", [])
    log = _archive(tmp_path / "p" / "tables" / "messages", 5)
    done = gimbalmq("pipeline", "compact", tmp_path / "p", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()[2:4]] == [
        ["topic=mails", "5"],
        ["topic=orders", "5"],
    ]
    assert done.stdout.splitlines()[-1] == f"{log.root}: 10 files would become 2; nothing was changed"
    assert len(log.state().files) == 10
    done = gimbalmq("pipeline", "compact", tmp_path / "p", "--keep", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{log.root}: 10 files are now 2; 10 old ones removed")
    assert sum(file.rows for file in log.state().files.values()) == 10
    done = gimbalmq("pipeline", "compact", log.root, "--dry-run", "--json")
    (told,) = json.loads(done.stdout)
    assert (told["files"], told["files_after"], told["folders"]) == (2, 2, [])
    assert gimbalmq("pipeline", "compact", log.root).stdout == f"{log.root}: 2 files are now 2\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("NONE",), "there is no such folder; name a project that was run"),
        (("PROJECT",), "it is no archive and has none among its tables"),
        (("PROJECT", "--target-size", "big"), "--target-size='big' cannot be used: use a number of bytes"),
        (("PROJECT", "--keep", "soon"), "--keep='soon' cannot be used: use a time such as"),
    ],
)
def test_mistakes_of_compact_are_named(words: tuple[str, ...], told: str, tmp_path: Path) -> None:
    copy_out(template("archive"), tmp_path / "PROJECT", [])
    done = gimbalmq("pipeline", "compact", tmp_path / words[0], *words[1:])
    assert done.returncode == 2
    assert told in done.stderr and "Traceback" not in done.stderr
