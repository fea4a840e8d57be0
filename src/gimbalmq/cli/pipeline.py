"""``gimbalmq pipeline``: Declarative Pipelines projects to start from, and a front for running them.

Spark's engine does the running (``spark-pipelines``); this picks its Java and Python, keeps its log in a
file, shows what the flows do, and says in a line or two why one failed. Nothing heavy is imported before a
command runs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from gimbalmq.cli.output import announce, complain
from gimbalmq.errors import ConfigError, ConnectError

if TYPE_CHECKING:
    import subprocess

    from gimbalmq._clock import Clock

LOG_NAME: Final = "run.log"
_REDRAW: Final = 0.2
_SAY_ROWS: Final = 5.0
_MOST_FILES: Final = 1000
"""A table of more files is not counted after a run."""

_EPILOG = """\
examples:
  gimbalmq pipeline list
  gimbalmq pipeline init archive --set topics=orders,payments
  gimbalmq pipeline run archive

`gimbalmq pipeline COMMAND --help` has more.
"""

_INIT_EPILOG = """\
examples:
  gimbalmq pipeline init archive
  gimbalmq pipeline init mirror to-paris --set namesrv=10.0.0.1:9876 --set target=10.1.0.1:9876 --set topics=orders
  gimbalmq pipeline init blank mine --set spark.sql.shuffle.partitions=16

The settings land in spark-pipeline.yml, where they can be changed at any time; `gimbalmq pipeline list`
names them. The folder is yours: edit, add and remove transformations.

Exit codes: 0 written, 1 could not be written, 2 wrong option or value.
"""

_RUN_EPILOG = """\
examples:
  gimbalmq pipeline run archive
  gimbalmq pipeline run archive --dry-run
  gimbalmq pipeline run archive --full-refresh decoded,undecoded
  gimbalmq pipeline run archive --master spark://10.0.0.7:7077 --conf spark.executor.memory=4g
  gimbalmq pipeline run archive --remote sc://10.0.0.7:15002

A run takes what is new since the last one and ends. Spark's log goes to run.log in the folder.

Exit codes: 0 all flows completed, 1 one failed or Spark did not start, 2 wrong option or value,
130 interrupted.
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Puts ``pipeline list``, ``init`` and ``run`` into the command line."""
    pipeline = commands.add_parser(
        "pipeline",
        help="Spark pipelines: archive, replay, mirror, redrive, balance report",
        description="Declarative Pipelines of Spark over topics: templates, and a front for running them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    verbs = pipeline.add_subparsers(dest="verb", metavar="COMMAND", title="commands", required=True)
    _add_list(verbs)
    _add_init(verbs)
    _add_run(verbs)


def _add_list(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "list",
        help="the templates and their settings",
        description="Prints the templates and their settings.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    _common(parser, list_templates)


def _add_init(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "init",
        help="make a project from a template",
        description="Makes a folder with a pipeline to edit and run.",
        epilog=_INIT_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("template", metavar="TEMPLATE", help="archive, replay, mirror, redrive, balance-report or blank")
    add("folder", metavar="DIR", type=Path, nargs="?", help="the new folder (default: the template's name)")
    add("--set", type=_pair, action="append", default=[], metavar="KEY=VALUE", help="a setting; repeatable")
    _common(parser, init)


def _add_run(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "run",
        help="run a project",
        description="Runs a pipeline once, over what is new.",
        epilog=_RUN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("folder", metavar="DIR", type=Path, help="folder with spark-pipeline.yml")
    add("--dry-run", action="store_true", help="check that all tables and flows fit together, move nothing")
    add("--full-refresh", action="append", default=[], metavar="TABLE[,...]",
        help="empty these tables and compute them from the beginning; repeatable")  # fmt: skip
    add("--full-refresh-all", action="store_true", help="the same for all tables")
    add("--refresh", action="append", default=[], metavar="TABLE[,...]",
        help="update only these tables; repeatable")  # fmt: skip
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--master", metavar="URL", help="where Spark runs (default: local[*])")
    where.add_argument("--remote", metavar="sc://HOST:PORT", help="a Spark Connect server that is running")
    add("--conf", type=_pair, action="append", default=[], metavar="KEY=VALUE",
        help="a setting of Spark's that must be known before it starts; repeatable")  # fmt: skip
    add("--log", type=Path, metavar="FILE", help=f"where Spark's log goes (default: DIR/{LOG_NAME})")
    _common(parser, run)


def _common(parser: argparse.ArgumentParser, command: Callable[[argparse.Namespace], int]) -> None:
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.set_defaults(run=command, log_level="error", log_file=None)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key.strip(), value.strip()


# -- list and init -------------------------------------------------------------------


def list_templates(args: argparse.Namespace) -> int:
    """The command; its exit code."""
    from gimbalmq.spark.pipelines import templates

    def shown(value: str) -> str:
        return value.replace("{{uri}}", "DIR").replace("{{path}}", "DIR")

    found = templates()
    if args.json:
        listed = [
            {
                "name": each.name,
                "about": each.about,
                "settings": {setting.name: shown(setting.value) for setting in each.settings},
            }
            for each in found
        ]
        print(json.dumps(listed, indent=2))
        return 0
    for number, each in enumerate(found):
        if number:
            print()
        print(f"{each.name}: {each.about}")
        width = max((len(f"{setting.name}={shown(setting.value)}") for setting in each.settings), default=0)
        for setting in each.settings:
            print(f"  {f'{setting.name}={shown(setting.value)}':<{width}}  {setting.meaning}".rstrip())
    return 0


def init(args: argparse.Namespace) -> int:
    """The command; its exit code."""
    from gimbalmq.spark.pipelines import SPEC, copy_out, template

    chosen = template(args.template)
    folder = args.folder or Path(chosen.name)
    try:
        files = copy_out(chosen, folder, args.set)
    except OSError as error:
        raise OSError(f"{folder}: {error.strerror or error}; name a folder that can be made") from error
    print(f"{folder}: {', '.join(map(str, files))}")
    given = {key.removeprefix("gimbalmq.") for key, _ in args.set}
    left = [setting.name for setting in chosen.settings if setting.name not in given]
    if left:
        print(f"settings in {folder / SPEC} to look at: {', '.join(left)}")
    print(f"next: gimbalmq pipeline run {shlex.quote(str(folder))}")
    return 0


# -- run -----------------------------------------------------------------------------


def run(args: argparse.Namespace) -> int:
    """The command; its exit code."""
    import fcntl

    from gimbalmq._clock import SYSTEM_CLOCK
    from gimbalmq.spark.pipelines import AFTER, find_spec

    if args.full_refresh_all and (args.full_refresh or args.refresh):
        raise ConfigError(
            "--full-refresh-all", True, "it covers all tables; leave --full-refresh and --refresh out"
        )
    if args.dry_run and (args.full_refresh_all or args.full_refresh or args.refresh):
        raise ConfigError("--dry-run", True, "it moves nothing; leave the --refresh options out")
    spec = find_spec(args.folder.expanduser().absolute())
    folder = spec.parent
    _check_installed()
    _infer_schema(spec)
    environment = _environment(args, folder)
    log = args.log or folder / LOG_NAME
    with open(log, "a", encoding="utf-8") as kept:
        try:
            fcntl.flock(kept, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                "DIR", str(args.folder), f"another run is at work here ({log} is its log); wait until it ends"
            ) from None
        kept.truncate(0)
        told = Progress(sys.stdout, SYSTEM_CLOCK, dry=args.dry_run)
        failure = _run_spark(_command(args, spec), environment, folder, kept, told)
        if failure is not None:
            for line in failure:
                complain(line)
            complain(f"the whole log: {log}")
            return 1
        if args.remote is None:
            _count_rows(told, folder)
        told.end()
        if not args.dry_run and (folder / AFTER).is_file():
            return _run_after(folder, environment)
    return 0


def _infer_schema(spec: Path) -> None:
    """Where the schema is to be inferred it is, from the newest messages, and written down for all runs to come."""
    import asyncio

    from gimbalmq.admin.admin import Admin
    from gimbalmq.cli.asking import environment_options
    from gimbalmq.spark.pipelines import values_in, with_value
    from gimbalmq.spark.pipelines.schema import SAMPLE, infer

    text = spec.read_text(encoding="utf-8")
    told = values_in(text)
    if told.get("schema") != "infer":
        return
    for name in ("namesrv", "topics"):
        if not told.get(name):
            raise ConfigError(
                f"gimbalmq.{name}", None, f"{spec.name} must say it, or the schema cannot be inferred"
            )

    async def sample() -> list[bytes]:
        found: list[bytes] = []
        async with Admin(told["namesrv"], **environment_options()) as admin:
            for topic in filter(None, map(str.strip, told["topics"].split(","))):
                queues = max(1, len(await admin.topics.queues(topic)))
                ranges = await admin.messages.ranges(topic, newest=-(-SAMPLE // queues))
                found += [view.body async for view in admin.messages.read(topic, dict(ranges))]
        return found

    try:
        bodies = asyncio.run(sample())
    except ConnectError as error:
        raise ConfigError(
            "gimbalmq.namesrv",
            told["namesrv"],
            f"asked for messages to infer the schema from: {error}; start it, or change it in {spec.name}",
        ) from error
    schema = infer(bodies)
    if schema is None:
        raise ConfigError(
            "gimbalmq.schema",
            "infer",
            f"none of {len(bodies)} messages of {told['topics']} is a JSON object; write the schema into "
            f"{spec.name}, or leave it empty",
        )
    spec.write_text(with_value(text, "schema", schema), encoding="utf-8")
    announce(f"the schema of {len(bodies)} messages is now in {spec.name}: {schema}")


def _check_installed() -> None:
    from importlib.util import find_spec as find_module

    for module in ("pyspark", "pyarrow", "yaml", "grpc"):
        if find_module(module) is None:
            raise ConfigError(module, None, "it is not installed; pip install 'gimbalmq[spark]'")


def _command(args: argparse.Namespace, spec: Path) -> list[str]:
    words = [sys.executable, "-m", "gimbalmq.spark.pipelines.runner", str(spec)]
    words += ["--dry-run"] if args.dry_run else []
    words += ["--full-refresh-all"] if args.full_refresh_all else []
    for option, lists in (("--full-refresh", args.full_refresh), ("--refresh", args.refresh)):
        for name in (name.strip() for text in lists for name in text.split(",")):
            words += [option, name] if name else []
    return words


def _environment(args: argparse.Namespace, folder: Path) -> dict[str, str]:
    """Everything that must be settled before Spark starts travels in the environment."""
    from gimbalmq.spark.java import ensure_java
    from gimbalmq.spark.pipelines import DEFAULTS
    from gimbalmq.spark.pipelines.runner import PORT

    if args.remote is not None:
        if not args.remote.startswith("sc://"):
            raise ConfigError("--remote", args.remote, "use sc://HOST:PORT; for other masters --master")
        if args.conf:
            raise ConfigError("--conf", "=".join(args.conf[0]), "that server has started; set it there")
        return {**os.environ, "SPARK_REMOTE": args.remote}
    ensure_java(announce)
    environment = dict(os.environ)
    environment.pop("SPARK_REMOTE", None)
    master = args.master or environment.get("MASTER") or "local[*]"
    port = _free_port()
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.connect.grpc.binding.port": str(port),
        **_java_options(args, folder),
    }
    if master.startswith("local"):
        conf["spark.connect.grpc.binding.address"] = "127.0.0.1"
        # A laptop's own name may lead nowhere; what runs in one process need not be found by others.
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    words = []
    if (folder / DEFAULTS).is_file():
        words += ["--properties-file", str(folder / DEFAULTS)]
    given = [pair for pair in args.conf if pair[0] != _JAVA_OPTIONS]
    for key, value in [*conf.items(), *given]:
        words += ["--conf", f"{key}={value}"]
    environment |= {
        "PYSPARK_SUBMIT_ARGS": shlex.join([*words, "pyspark-shell"]),
        "SPARK_API_MODE": "connect",
        "MASTER": master,
        PORT: str(port),
    }
    return environment


_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"


def _java_options(args: argparse.Namespace, folder: Path) -> dict[str, str]:
    """Ours, before what the project and the user say."""
    from gimbalmq.spark.pipelines import DEFAULTS, runner

    logging = Path(runner.__file__).with_name("log4j2.properties")
    options = [f"-Dlog4j2.configurationFile={logging.as_uri()}", f"-Dderby.stream.error.file={os.devnull}"]
    if (folder / DEFAULTS).is_file():
        text = (folder / DEFAULTS).read_text(encoding="utf-8")
        options += re.findall(rf"^{re.escape(_JAVA_OPTIONS)}[ \t=:]+(.*?)\s*$", text, re.MULTILINE)
    options += [value for key, value in args.conf if key == _JAVA_OPTIONS]
    return {_JAVA_OPTIONS: " ".join(options)}


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _run_spark(
    command: list[str], environment: dict[str, str], folder: Path, log: TextIO, told: Progress
) -> list[str] | None:
    """Runs Spark to its end; None, or why it failed."""
    import signal
    import subprocess

    def stop(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    try:
        for line in _lines(process):
            if line is None:
                told.draw()
                continue
            log.write(f"{line}\n")
            log.flush()
            told.take(line)
        code = process.wait()
    finally:
        told.rest()
        _end(process)
        signal.signal(signal.SIGTERM, before)
    if code == 0 and not told.failures:
        return None
    if code == 130:
        raise KeyboardInterrupt
    log.flush()
    return explain(told, Path(log.name).read_text(encoding="utf-8", errors="replace"))


def _lines(process: subprocess.Popen[str]) -> Iterator[str | None]:
    """Lines as they come, None when there has been none for a moment.

    Ends with the process, not with the pipe: Spark's JVM holds that open a little longer.
    """
    import queue
    import threading

    waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    out = process.stdout
    assert out is not None

    def read() -> None:
        for line in out:
            waiting.put(line.rstrip("\n"))

    threading.Thread(target=read, daemon=True).start()
    while True:
        ended = process.poll() is not None
        try:
            yield waiting.get(timeout=_REDRAW)
        except queue.Empty:
            if ended:
                return
            yield None


def _end(process: subprocess.Popen[str]) -> None:
    """Spark gets some seconds to stop; its JVM goes when this process has gone."""
    import subprocess

    if process.poll() is None:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _run_after(folder: Path, environment: dict[str, str]) -> int:
    import subprocess

    from gimbalmq.spark.pipelines import AFTER

    code = subprocess.run([sys.executable, AFTER], cwd=folder, env=environment).returncode
    if code:
        complain(f"{folder / AFTER} failed with code {code}; the tables are written")
        return 1
    return 0


def _count_rows(told: Progress, folder: Path) -> None:
    """Rows of the tables, where they are files that can be looked at."""
    from gimbalmq.spark.pipelines import DEFAULTS

    if not (folder / DEFAULTS).is_file():
        return
    found = re.search(
        r"^spark\.sql\.warehouse\.dir[ \t=:]+file://(/\S*)", (folder / DEFAULTS).read_text(), re.MULTILINE
    )
    if found is None:
        return
    from itertools import islice
    from urllib.parse import unquote

    from pyarrow import ArrowException, parquet

    for name, flow in told.flows.items():
        table = Path(unquote(found[1])) / name
        if flow.state != "completed" or not table.is_dir():
            continue
        try:
            files = list(islice(table.rglob("*.parquet"), _MOST_FILES + 1))
            if len(files) <= _MOST_FILES:
                flow.rows = sum(parquet.read_metadata(file).num_rows for file in files)
        except (OSError, ArrowException):
            continue


# -- what is shown -------------------------------------------------------------------

_EVENT: Final = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d: (.*)$")
_STATE: Final = re.compile(r"^Flow '?([^' ]+)'? (?:is|has) ([A-Z]+)(.*)$")
_PROGRESS: Final = "Streaming query made progress: "
_STEPS: Final = {
    "Creating Spark session": "starting Spark",
    "Creating dataflow graph": "opening the catalog",
    "Registering graph elements": "reading the transformations",
    "Starting run": "working out the flows",
}
_MARKS: Final = {"completed": "ok", "failed": "!!", "skipped": "--", "running": ">>"}


@dataclass(slots=True)
class Flow:
    """One flow's way through a run."""

    state: str = "queued"
    read: int | None = None
    """Rows a stream has taken in this run."""
    rows: int | None = None
    """Rows its table has in all, when the run is over."""
    begun: float | None = None
    seconds: float | None = None
    failures: int = 0


@dataclass(slots=True)
class Progress:
    """Lines of Spark's in, what a person wants to know out.

    On a terminal a block that is rewritten in place; otherwise a line for each change.
    """

    out: TextIO
    clock: Clock
    dry: bool = False
    flows: dict[str, Flow] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Flow to the text of its last error; a flow that was tried again with success is not there."""
    failure: dict[str, str] | None = None
    """What the runner says it ended with."""
    _step: str = "starting Python"
    _begun: float = 0.0
    _drawn: int = 0
    _continues: str | None = None
    _said_rows: float = 0.0

    def __post_init__(self) -> None:
        self._begun = self.clock.monotonic()

    @property
    def _in_place(self) -> bool:
        return self.out.isatty() and os.environ.get("TERM", "") != "dumb"

    def take(self, line: str) -> None:
        """One line of stdout."""
        from gimbalmq.spark.pipelines.runner import FAILURE

        if line.startswith(FAILURE):
            self.failure = json.loads(line.removeprefix(FAILURE))
            return
        if line.startswith(_PROGRESS):
            self._take_progress(line.removeprefix(_PROGRESS))
            return
        event = _EVENT.match(line)
        if event is None:
            # An error may have several lines; a transformation may print.
            if self._continues is not None:
                self.failures[self._continues] += f"\n{line}"
            return
        self._continues = None
        text = event[1]
        for words, step in _STEPS.items():
            if text.startswith(words):
                self._change(step)
        changed = _STATE.match(text.replace("' SKIPPED", "' is SKIPPED"))
        if changed is not None:
            self._take_state(_short(changed[1]), changed[2].lower(), changed[3])
        self.draw()

    def _take_state(self, name: str, state: str, rest: str) -> None:
        flow = self.flows.setdefault(name, Flow())
        now = self.clock.monotonic()
        if state in ("planning", "starting"):
            state = "starting"
        if flow.begun is None and state != "queued":
            flow.begun = now
        if state == "failed":
            flow.failures += 1
            self.failures[name] = ""
            self._continues = name
            if "will not be restarted" not in rest:
                state = "failed, to be tried again"
        elif state == "completed":
            self.failures.pop(name, None)
        ended = state in ("completed", "failed", "skipped")
        flow.seconds = now - (flow.begun or now) if ended else None
        if state != flow.state:
            flow.state = state
            if state not in ("queued", "starting") and not self._in_place:
                self._say(f"{name}: {self._state_of(flow)}")

    def _take_progress(self, text: str) -> None:
        try:
            told: dict[str, Any] = json.loads(text)
        except ValueError:
            return
        flow = self.flows.setdefault(_short(str(told.get("name"))), Flow())
        flow.read = (flow.read or 0) + int(told.get("numInputRows") or 0)
        now = self.clock.monotonic()
        if not self._in_place and flow.state == "running" and now - self._said_rows > _SAY_ROWS:
            self._said_rows = now
            self._say(f"{_short(str(told.get('name')))}: {self._state_of(flow)}")
        self.draw()

    def _change(self, step: str) -> None:
        if not self._in_place and step != self._step:
            self._say(step)
        self._step = step

    def _say(self, text: str) -> None:
        print(f"{self.clock.monotonic() - self._begun:5.1f} s  {text}", file=self.out, flush=True)

    @staticmethod
    def _state_of(flow: Flow) -> str:
        rows = "" if flow.read is None else f", {flow.read:,} row{'s' if flow.read != 1 else ''} read"
        seconds = "" if flow.seconds is None else f" in {flow.seconds:.1f} s"
        return f"{flow.state}{rows}{seconds}"

    # -- drawing

    def draw(self) -> None:
        """The block, over the last one."""
        if not self._in_place:
            return
        import shutil

        columns = shutil.get_terminal_size().columns - 1
        lines = [f"{self.clock.monotonic() - self._begun:5.1f} s  {self._step}"]
        width = max(map(len, self.flows), default=0)
        for name, flow in self.flows.items():
            lines.append(f"    {_MARKS.get(flow.state, '  ')} {name:<{width}}  {self._state_of(flow)}")
        if self.flows:
            lines[0] = f"{self.clock.monotonic() - self._begun:5.1f} s"
        back = f"\x1b[{self._drawn}A" if self._drawn else ""
        self.out.write(back + "".join(f"\x1b[2K{line[:columns]}\n" for line in lines) + "\x1b[J")
        self.out.flush()
        self._drawn = len(lines)

    def rest(self) -> None:
        """The last drawing stays; what comes next goes below it."""
        self.draw()
        self._drawn = 0

    def end(self) -> None:
        """The closing line."""
        seconds = self.clock.monotonic() - self._begun
        if self.dry:
            announce(f"all fits together: nothing was moved ({seconds:.1f} s)")
            return
        tables = ", ".join(
            f"{name} {flow.rows:,}" for name, flow in self.flows.items() if flow.rows is not None
        )
        rows = f"; rows now: {tables}" if tables else ""
        count = f"{len(self.flows)} flow{'s' if len(self.flows) != 1 else ''}"
        announce(f"{count} completed in {seconds:.1f} s{rows}")


def _short(name: str) -> str:
    """Without the catalog and the database."""
    return name.replace("`", "").removeprefix("spark_catalog.").removeprefix("default.")


# -- why -----------------------------------------------------------------------------

_RAISED: Final = re.compile(
    r"^\s*(?:Caused by: )?(?:[\w$]+\.)*([\w$]*(?:Error|Exception|Exit)): (\S.*)$", re.MULTILINE
)
_CLASS: Final = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] (.*?)(?: SQLSTATE: \w+)?\s*$", re.MULTILINE)
_WRAPPERS: Final = ("PySpark", "SparkException", "StreamingQueryException", "PythonException", "AnalysisException",
                    "TableMaterializationException", "SparkRuntimeException")  # fmt: skip


def root_cause(text: str) -> str:
    """The innermost error of a text that wraps errors in errors, on one line."""
    raised = [found for found in _RAISED.findall(text) if not found[0].startswith(_WRAPPERS)]
    if raised:
        kind, message = raised[-1]
        return f"{kind}: {message.strip()}"
    found = _CLASS.search(text)
    if found is not None:
        return f"{found[2].strip()} ({found[1]})"
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason was given")


def explain(told: Progress, log: str) -> list[str]:
    """Why a run failed, in a few lines."""
    lines = [f"{name} failed: {root_cause(text)}" for name, text in told.failures.items()]
    if not lines and told.failure is not None:
        where = f" ({told.failure['where']})" if told.failure["where"] else ""
        message = told.failure["message"]
        cause = root_cause(message) if message.strip() else "no reason was given"
        kind = told.failure["type"]
        shown = (
            cause
            if kind.startswith(("PySpark", "Unknown", "Analysis", "Parse", "Spark"))
            else f"{kind}: {cause}"
        )
        lines = [f"{shown}{where}"]
    if "LOCATION_ALREADY_EXISTS" in log:
        lines.append(
            "a table's folder is there, but this catalog does not know it: keep metastore/ together with tables/, "
            "or remove both and run again"
        )
    elif "Another instance of Derby" in log:
        lines.append("another Spark has this project's metastore/ open; wait until it ends")
    elif "JAVA_GATEWAY_EXITED" in log or (not lines and "Error occurred during initialization of VM" in log):
        lines = ["Java did not start; its own words are in the log"]
    return lines or [f"Spark ended before it ran anything: {root_cause(log)}"]
