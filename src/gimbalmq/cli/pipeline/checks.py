"""What can be told before Spark has started: what is missing, which topics there are, the schema of bodies.

Spark needs half a minute to find out that a topic is misspelt, and tries three times.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import logging
from pathlib import Path
from typing import Any, Final

from gimbalmq.admin.admin import Admin
from gimbalmq.cli.asking import environment_options
from gimbalmq.cli.output import announce
from gimbalmq.client.client_file import client_options
from gimbalmq.errors import (
    ConfigError,
    ConnectError,
    QueryNotFoundError,
    RocketMQError,
    TopicRouteNotFoundError,
)
from gimbalmq.model.topics import dlq_topic
from gimbalmq.spark.archive.log import ArchiveLog, NotLocalError, local_folder
from gimbalmq.spark.connection import NO_FILE
from gimbalmq.spark.pipelines import values_in, with_value
from gimbalmq.spark.pipelines.schema import SAMPLE, infer

log = logging.getLogger(__name__)

INFER: Final = "infer"
"""As the setting ``schema``: it is to be found out."""

# -- topics --------------------------------------------------------------------------


def check_places(spec: Path, *, from_here: bool) -> None:
    """Looks for what a project reads: its topics, dead letters, archive.

    Args:
        from_here: whether Spark runs on this machine. A cluster may reach name servers and folders that cannot
            be reached from here, so that only an answer counts then, not silence.

    Raises:
        ConfigError: a name server does not answer or knows no such topic, or there is no such archive.
        QueryNotFoundError: the group of a redrive has no dead letters.
    """
    told = values_in(spec.read_text(encoding="utf-8"))
    if told.get("schema") == INFER:
        for name in ("namesrv", "topics"):
            if not told.get(name):
                raise ConfigError(
                    f"gimbalmq.{name}", None, f"{spec.name} must say it, or the schema cannot be inferred"
                )
    if told.get("archive") and from_here:
        with contextlib.suppress(NotLocalError):
            ArchiveLog(local_folder(told["archive"])).needed("gimbalmq.archive")
    for name in ("namesrv", "target"):
        if not told.get(name):
            continue
        topics = _listed(told.get("topics", "")) if name == "namesrv" else []
        reads_letters = name == "namesrv" and "topics" not in told and "archive" not in told
        try:
            group = told.get("group") if reads_letters else None
            asyncio.run(_look(spec, told[name], topics, group, _options(name, told)))
        except ConnectError as error:
            if from_here:
                raise ConfigError(
                    f"gimbalmq.{name}", told[name], f"{error}; start it, or change it in {spec.name}"
                ) from error
        except (ConfigError, QueryNotFoundError):
            raise
        except RocketMQError as error:
            # The transformations may know keys or certificates that this command does not.
            log.info("%s did not tell whether the topics are there: %s", told[name], error)


def _options(name: str, told: dict[str, str]) -> dict[str, Any]:
    """How a cluster is reached: the one that is written to may have a client file of its own."""
    own = told.get("targetClientFile", "") if name == "target" else ""
    if not own:
        return environment_options()
    return {} if own == NO_FILE else client_options(own) | {"namesrv": told[name]}


async def _look(
    spec: Path, namesrv: str, topics: list[str], group: str | None, options: dict[str, Any]
) -> None:
    async with Admin(**{"namesrv": namesrv} | options) as admin:
        names = await admin.topics.names()
        for topic in topics:
            if topic in names:
                continue
            try:
                await admin.topics.queues(topic)  # a topic may be called as its broker is
            except TopicRouteNotFoundError:
                close = difflib.get_close_matches(topic, names, n=1)
                hint = (
                    f"did you mean {close[0]}?" if close else "`gimbalmq topic list` shows those there are."
                )
                raise ConfigError(
                    "gimbalmq.topics",
                    topic,
                    f"the name server {namesrv} knows no such topic; {hint} Create it, or change {spec.name}",
                ) from None
        if group and dlq_topic(group) not in names:
            raise QueryNotFoundError(
                f"group {group} has no dead letters; `gimbalmq deadletter list` shows the groups that have, and "
                f"gimbalmq.group in {spec.name} says which is meant"
            )


def _listed(text: str) -> list[str]:
    return [name for name in map(str.strip, text.split(",")) if name]


# -- schema --------------------------------------------------------------------------


def infer_schema(spec: Path) -> None:
    """If the schema is to be inferred, it is, from the newest messages, and written down for all runs to come.

    ``check_places`` has been called before.
    """
    text = spec.read_text(encoding="utf-8")
    told = values_in(text)
    if told.get("schema") != INFER:
        return

    async def sample() -> list[bytes]:
        found: list[bytes] = []
        async with Admin(told["namesrv"], **environment_options()) as admin:
            for topic in _listed(told["topics"]):
                queues = max(1, len(await admin.topics.queues(topic)))
                ranges = await admin.messages.ranges(topic, newest=-(-SAMPLE // queues))
                found += [view.body async for view in admin.messages.read(topic, dict(ranges))]
        return found

    try:
        bodies = asyncio.run(sample())
    except ConnectError as error:  # of a cluster that cannot be reached from here
        raise ConfigError(
            "gimbalmq.namesrv",
            told["namesrv"],
            f"asked for messages to infer the schema from: {error}; start it, or write the schema into {spec.name}",
        ) from error
    schema = infer(bodies)
    if schema is None:
        raise ConfigError(
            "gimbalmq.schema",
            INFER,
            f"none of {len(bodies)} messages of {told['topics']} is a JSON object; write the schema into "
            f"{spec.name}, or leave it empty",
        )
    spec.write_text(with_value(text, "schema", schema), encoding="utf-8")
    announce(f"the schema of {len(bodies)} messages is now in {spec.name}: {schema}")
