"""Why a run failed: the innermost reason out of errors that wrap errors, and what to do about the known ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gimbalmq.cli.pipeline.progress import Progress

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
    if "does not support truncates: rocketmq-archive" in log:
        lines = [
            "an archive only grows, and no refresh empties it: name the other tables with --full-refresh, or begin "
            "anew by removing tables/, metastore/ and storage/"
        ]
    elif "LOCATION_ALREADY_EXISTS" in log:
        lines.append(
            "a table's folder is there, but this catalog does not know it: keep metastore/ together with tables/, "
            "or remove both and run again"
        )
    elif "Another instance of Derby" in log:
        lines.append("another Spark has this project's metastore/ open; wait until it ends")
    elif "JAVA_GATEWAY_EXITED" in log or (not lines and "Error occurred during initialization of VM" in log):
        lines = ["Java did not start; its own words are in the log"]
    return lines or [f"Spark ended before it ran anything: {root_cause(log)}"]
