"""``gimbalmq pipeline run``: a project's flows, over what is new."""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.cli.output import complain
from gimbalmq.cli.pipeline import LOG_NAME
from gimbalmq.cli.pipeline.checks import check_places, infer_schema
from gimbalmq.cli.pipeline.progress import Progress
from gimbalmq.cli.pipeline.reasons import explain
from gimbalmq.cli.pipeline.spark import command, environment, run_spark, runs_here
from gimbalmq.client.client_file import VARIABLE, named_client_file, read_client_file
from gimbalmq.errors import ConfigError
from gimbalmq.spark.pipelines import AFTER, DEFAULTS, find_spec

_MOST_FILES: Final = 1000
"""A table of more files is not counted after a run."""

FAILED, INTERRUPTED = 1, 130


def run(args: argparse.Namespace) -> int:
    """The command; its exit code."""
    if args.full_refresh_all and (args.full_refresh or args.refresh):
        raise ConfigError(
            "--full-refresh-all", True, "it covers all tables; leave --full-refresh and --refresh out"
        )
    if args.dry_run and (args.full_refresh_all or args.full_refresh or args.refresh):
        raise ConfigError("--dry-run", True, "it moves nothing; leave the --refresh options out")
    spec = find_spec(args.folder.expanduser().absolute())
    _settle_client_file(args.client_file)
    variables = environment(args, spec.parent)
    check_places(spec, from_here=runs_here(args, variables))
    infer_schema(spec)
    log = args.log or spec.parent / LOG_NAME
    # Spark's processes get a file of their own: a lock is held by all who share the one it was taken on.
    with open(log, "a", encoding="utf-8") as lock, open(log, "a", encoding="utf-8") as kept:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                "DIR", str(args.folder), f"another run is at work here ({log} is its log); wait until it ends"
            ) from None
        kept.truncate(0)
        told = Progress(sys.stdout, SYSTEM_CLOCK, dry=args.dry_run)
        try:
            code = run_spark(command(args, spec), variables, spec.parent, kept, told)
        except KeyboardInterrupt:
            complain("interrupted, and Spark has ended; the next run goes on from there")
            return INTERRUPTED
        if code or told.failures or told.failure is not None:
            for line in explain(told, log.read_text(encoding="utf-8", errors="replace")):
                complain(line)
            complain(f"the whole log: {log}")
            return FAILED
        if args.remote is None:
            _count_rows(told, spec.parent)
        told.end()
        if not args.dry_run and (spec.parent / AFTER).is_file():
            return _run_after(spec.parent, variables)
    return 0


def _settle_client_file(named: str | None) -> None:
    """Has the checks, Spark and its workers find the file, whose name may be relative to this folder."""
    named = named or named_client_file()
    if named:
        read_client_file(named)  # what is wrong with it is told now, and not by Spark in half a minute
        os.environ[VARIABLE] = str(Path(named).expanduser().absolute())


def _run_after(folder: Path, variables: dict[str, str]) -> int:
    code = subprocess.run([sys.executable, AFTER], cwd=folder, env=variables).returncode
    if code:
        complain(f"{folder / AFTER} failed with code {code}; the tables are written")
        return FAILED
    return 0


def tables_folder(folder: Path) -> Path | None:
    """Where a project's tables are, if that is a folder which can be looked at."""
    if not (folder / DEFAULTS).is_file():
        return None
    found = re.search(
        r"^spark\.sql\.warehouse\.dir[ \t=:]+file://(/\S*)", (folder / DEFAULTS).read_text(), re.MULTILINE
    )
    return None if found is None else Path(unquote(found[1]))


def _count_rows(told: Progress, folder: Path) -> None:
    """Counts the rows of the tables, if they are files that can be looked at."""
    tables = tables_folder(folder)
    if tables is None:
        return
    for name, flow in told.flows.items():
        if flow.state == "completed" and (tables / name).is_dir():
            flow.rows = _rows_of(tables / name)


def _rows_of(table: Path) -> int | None:
    from pyarrow import ArrowException, parquet

    from gimbalmq.spark.archive.log import OWN, ArchiveLog

    log = ArchiveLog(table)
    if log.exists():
        return sum(file.rows for file in log.state().files.values())
    try:
        found = (file for file in table.rglob("*.parquet") if OWN not in file.parts)
        files = list(islice(found, _MOST_FILES + 1))
        if len(files) <= _MOST_FILES:
            return sum(int(parquet.read_metadata(file).num_rows) for file in files)
    except (OSError, ArrowException):
        pass
    return None
