"""The ``gimbalmq`` command line: runs one command, and turns errors into exit codes.

argparse, and imports inside functions: a server keeps for life what its command line imported,
and a person waits for it (docs/HACKING.md has the figures).
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from gimbalmq.cli import nouns
from gimbalmq.cli.command_line import build_parser
from gimbalmq.cli.output import complain, start_logging
from gimbalmq.cli.parsing import command_first
from gimbalmq.cli.server_plans import broker_plan, namesrv_plan, server_plan
from gimbalmq.errors import ConfigError, ListenError, RocketMQError

log = logging.getLogger(__name__)

CLEAN, FAILED, MISUSED = 0, 1, 2
"""Exit codes."""

_METRICS_KEY = "metricsPromExporterPort"

_PLANS = {"server": server_plan, "broker": broker_plan, "namesrv": namesrv_plan}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code."""
    if not __debug__:
        complain("does not run under python -O: its checks of broken invariants are assert statements")
        return MISUSED
    words = sys.argv[1:] if argv is None else list(argv)
    if words and words[0].startswith("-"):
        words = _command_first(words)
    chosen = words[0] if words else None
    runs_broker = chosen is None or nouns.runs_a_broker(words)
    args = build_parser(chosen, runs_broker=runs_broker).parse_args(words)
    try:
        process = "server" if args.command == "server" and args.brokers > 1 else ""
        start_logging("debug" if args.debug else args.log_level, args.log_file, process)
    except OSError as error:
        complain(f"--log-file {args.log_file}: {error.strerror or error}; name a file that can be written")
        return MISUSED
    try:
        if args.command not in _PLANS or hasattr(args, "run"):
            return int(args.run(args))
        plan = _PLANS[args.command](args)
        from gimbalmq.cli.serve import run

        return run(plan)
    except ConfigError as error:
        return _failed(error, MISUSED, args.debug)
    except ListenError as error:
        return _failed(_with_flag(error), FAILED, args.debug)
    except (RocketMQError, OSError) as error:
        return _failed(error, getattr(error, "exit_code", FAILED), args.debug)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        complain(f"stopped by a bug, {type(error).__name__}: {error} (--debug shows where)")
        if args.debug:
            raise
        return FAILED


def _command_first(words: list[str]) -> list[str]:
    from gimbalmq.cli.asking import connection_options

    shared = argparse.ArgumentParser(add_help=False)
    connection_options(shared)
    return command_first(build_parser(), shared, nouns.NOUNS, words)


def _with_flag(error: ListenError) -> ListenError:
    """The broker knows its keys only; whoever typed a command may have said the flag of one."""
    told = str(error).replace(f"another {_METRICS_KEY} ", f"another --metrics-port ({_METRICS_KEY}) ")
    return ListenError(told).with_traceback(error.__traceback__)


def _failed(error: Exception, code: int, debug: bool) -> int:
    complain(error)
    if debug:
        log.debug("the traceback you asked for", exc_info=error)
    return code


if __name__ == "__main__":
    sys.exit(main())
