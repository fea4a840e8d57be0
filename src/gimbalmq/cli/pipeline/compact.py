"""``gimbalmq pipeline compact``: an archive's small files into large ones."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from gimbalmq.admin.texts import cell
from gimbalmq.cli.output import announce, complain
from gimbalmq.cli.pipeline.run import INTERRUPTED, tables_folder
from gimbalmq.cli.terminal import ProgressLine, table
from gimbalmq.errors import ConfigError
from gimbalmq.spark.archive.log import LONGEST_KEEP, ArchiveLog
from gimbalmq.spark.option_values import duration, size


def compact(args: argparse.Namespace) -> int:
    """The command; its exit code."""
    target = size(1 << 10, 1 << 40).read("--target-size", args.target_size)
    keep = duration(0.0, LONGEST_KEEP).read("--keep", args.keep)
    try:
        told = [_one(log, target, keep, args) for log in _archives(args.folder.expanduser().absolute())]
    except KeyboardInterrupt:
        complain("interrupted; what was joined stays joined, and the command can be repeated")
        return INTERRUPTED
    if args.json:
        print(json.dumps(told, indent=2))
    return 0


def _archives(folder: Path) -> list[ArchiveLog]:
    """The archive in a folder, or those among a project's tables."""
    if ArchiveLog(folder).exists():
        return [ArchiveLog(folder)]
    tables = tables_folder(folder) if folder.is_dir() else None
    found = (
        [ArchiveLog(path) for path in sorted(tables.iterdir()) if ArchiveLog(path).exists()]
        if tables is not None and tables.is_dir()
        else []
    )
    if not found:
        there = (
            "it is no archive and has none among its tables" if folder.is_dir() else "there is no such folder"
        )
        raise ConfigError(
            "DIR", str(folder), f"{there}; name a project that was run, or the folder of a table messages"
        )
    return found


def _one(log: ArchiveLog, target: int, keep: float, args: argparse.Namespace) -> dict[str, Any]:
    from gimbalmq.spark.archive import compact as work

    state = log.state()
    joins = work.plan(state, target)
    before, total = len(state.files), sum(join.size for join in joins)
    told: dict[str, Any] = {
        "archive": str(log.root),
        "files": before,
        "bytes": sum(file.size for file in state.files.values()),
        "dry_run": args.dry_run,
        "folders": [{"folder": join.folder, "files": len(join.files), "bytes": join.size} for join in joins],
    }
    if args.dry_run:
        told["files_after"] = before - sum(len(join.files) - 1 for join in joins)
        if not args.json:
            _preview(log, joins, told)
        return told
    done = taken = 0
    left = Counter[str]()
    with ProgressLine(f"joining files of {log.root.name}", total) as bar:

        def on_bytes(count: int) -> None:
            nonlocal done
            done += count
            bar.at(done)

        for join in joins:
            if work.do(log, join, on_bytes):
                taken += 1
            else:
                left[join.folder] += len(join.files)
    removed, freed = log.clear(keep_seconds=keep)
    after = len(log.state().files)
    told |= {"files_after": after, "left": dict(left), "removed": removed, "removed_bytes": freed}
    if not args.json:
        announce(
            f"{log.root}: {before:,} files are now {after:,}"
            + (f"; {removed:,} old ones removed ({cell(freed)} bytes)" if removed else "")
        )
        for folder, count in left.items():
            complain(
                f"{folder}: {count} files were left as they are; their columns differ, or they had changed"
            )
    return told


def _preview(log: ArchiveLog, joins: list[Any], told: dict[str, Any]) -> None:
    if not joins:
        announce(f"{log.root}: {told['files']:,} files, and none of them worth joining")
        return
    print(table(("FOLDER", "FILES", "BYTES"), [(join.folder, len(join.files), join.size) for join in joins]))
    announce(f"{log.root}: {told['files']:,} files would become {told['files_after']:,}; nothing was changed")
