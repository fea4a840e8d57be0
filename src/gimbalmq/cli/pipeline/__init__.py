"""``gimbalmq pipeline``: Declarative Pipelines projects to start from, and a front for running them.

| module | knows |
|---|---|
| ``projects`` | the templates, and a new project made of one |
| ``run`` | the command: what is checked, what is run, what is said |
| ``checks`` | what can be told before Spark has started |
| ``spark`` | Spark's process: what it is started with, its lines, its end |
| ``progress`` | Spark's lines in, what a person wants to know out |
| ``reasons`` | why a run failed, in a line or two |
| ``compact`` | an archive's small files into large ones |

Spark's engine does the running (``spark-pipelines``). Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from gimbalmq.cli.output import complain

LOG_NAME = "run.log"

_EPILOG = """\
examples:
  gimbalmq pipeline list
  gimbalmq pipeline init archive --set topics=orders,payments
  gimbalmq pipeline run archive
  gimbalmq pipeline compact archive --dry-run

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


_COMPACT_EPILOG = """\
examples:
  gimbalmq pipeline compact archive --dry-run
  gimbalmq pipeline compact archive --target-size 256m
  gimbalmq pipeline compact /lake/messages

DIR is a project, whose archives are all looked at, or the folder of one archive. Files are joined within their
folder. Pipelines and readers of format("rocketmq-archive") may go on meanwhile; others that list the folders
themselves may see some rows twice while it works. A command that was killed can be repeated.

Exit codes: 0 done, or nothing to do, 1 failed, 2 wrong option or value, 130 interrupted.
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Puts ``pipeline list``, ``init``, ``run`` and ``compact`` into the command line."""
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
    _add_compact(verbs)


def _add_list(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "list",
        help="the templates and their settings",
        description="Prints the templates and their settings.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    _common(parser, "projects", "list_templates")


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
    _common(parser, "projects", "init")


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
    add("--client-file", metavar="FILE",
        help="file with keys and TLS of the cluster (default: $GIMBALMQ_CLIENT_FILE); Spark's machines read it "
             "at the same place")  # fmt: skip
    add("--log", type=Path, metavar="FILE", help=f"where Spark's log goes (default: DIR/{LOG_NAME})")
    _common(parser, "run", "run", needs_spark=True)


def _add_compact(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "compact",
        help="join an archive's small files",
        description="Joins the small files of an archive into large ones, while it is in use.",
        epilog=_COMPACT_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("folder", metavar="DIR", type=Path, help="a project, or the folder of one archive")
    add("--target-size", default="128m", metavar="SIZE", help="about how large a file should be (128m)")
    add("--keep", default="24h", metavar="TIME",
        help="how long replaced files stay for readers that have begun (24h)")  # fmt: skip
    add("--dry-run", action="store_true", help="say what would be joined, change nothing")
    add("--json", action="store_true", help="print JSON instead of text")
    _common(parser, "compact", "compact", needs_spark=True)


def _common(
    parser: argparse.ArgumentParser, module: str, function: str, *, needs_spark: bool = False
) -> None:
    """What all commands share. Only the module of the one that is run gets imported."""

    def command(args: argparse.Namespace) -> int:
        if needs_spark:
            from gimbalmq.spark import missing_module

            missing = missing_module(pipelines=True)
            if missing is not None:
                complain(f"this needs {missing}, which is not installed: pip install 'gimbalmq[spark]'")
                return 1
        run: Callable[[argparse.Namespace], int] = getattr(
            import_module(f"gimbalmq.cli.pipeline.{module}"), function
        )
        return run(args)

    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.set_defaults(run=command, log_level="error", log_file=None)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key.strip(), value.strip()
