"""What ``gimbalmq pipeline run`` starts: Spark's own pipelines command, in a process of its own.

``spark-pipelines`` is a JVM that starts this same Python code, which starts another JVM; leaving the first
one out saves its start. What it prints is the interface: the parent reads lines of stdout. One line is
ours: ``FAILURE`` and JSON, so that the parent need not guess from a traceback.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

FAILURE: Final = "gimbalmq-failure "
PORT: Final = "GIMBALMQ_CONNECT_PORT"


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gimbalmq.spark.pipelines.runner")
    parser.add_argument("spec", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--full-refresh-all", action="store_true")
    parser.add_argument("--full-refresh", action="append", default=[])
    parser.add_argument("--refresh", action="append", default=[])
    args = parser.parse_args(argv)
    # The parent ends a run by SIGTERM. Spark's command then gives its session back, or a server would go on with it.
    signal.signal(signal.SIGTERM, _interrupt)
    _use_port(os.environ.pop(PORT, ""))
    try:
        from pyspark.pipelines import cli

        cli.run(
            spec_path=args.spec,
            full_refresh=args.full_refresh,
            full_refresh_all=args.full_refresh_all,
            refresh=args.refresh,
            dry=args.dry_run,
        )
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        traceback.print_exc()
        print(FAILURE + json.dumps(_told(error, args.spec.parent)), flush=True)
        return 1
    return 0


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _use_port(text: str) -> None:
    """Pipelines need Spark Connect, and its local server is looked for at one fixed port of the machine.

    So that two pipelines can run at a time, the parent picks a free port and says so to the server; the
    client has no setting for it.
    """
    if not text:
        return
    from pyspark.sql.connect.client.core import DefaultChannelBuilder

    if hasattr(DefaultChannelBuilder, "default_port"):
        DefaultChannelBuilder.default_port = staticmethod(lambda: int(text))  # type: ignore[method-assign]


def _told(error: Exception, folder: Path) -> dict[str, str]:
    """The error, and the line of the project's own files that it came through."""
    where = ""
    for frame in traceback.extract_tb(error.__traceback__):
        file = Path(frame.filename)
        if file.is_relative_to(folder.resolve()) and "site-packages" not in file.parts:
            where = f"{file.relative_to(folder.resolve())}, line {frame.lineno}"
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{os.path.basename(error.filename)}, line {error.lineno}"
    return {"type": type(error).__name__, "message": str(error), "where": where}


if __name__ == "__main__":
    # Lines must leave as they come: the parent shows them.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(main(sys.argv[1:]))
