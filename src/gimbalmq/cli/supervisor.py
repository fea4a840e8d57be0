"""The brokers of ``gimbalmq server --brokers N``: processes that are started, watched, started again and ended.

Users and policies are kept by each broker for itself, as with Apache's. Whoever changes them tells all; a broker that
was not there is given those of the first one when it starts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq.access.table import AccessTable
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.broker.metrics_page import Family, MetricsPage, Rows
from gimbalmq.cli.children import end_child, how_it_ended, start_child
from gimbalmq.cli.output import announce, sentence
from gimbalmq.cli.pipes import Birth, Failed, Metrics, Ready, decode, frame, next_frame
from gimbalmq.errors import RocketMQError
from gimbalmq.transport.tasks import Tasks

log = logging.getLogger(__name__)

_METRICS_SECONDS = 5.0
_STEADY_SECONDS = 60.0
"""A broker that has served so long is started again at once when it ends."""
_PAUSES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)


class BrokerFailedError(RocketMQError):
    """A broker did not start.

    Attributes:
        exit_code: what the command ends with.
    """

    def __init__(self, broker: str, text: str, code: int) -> None:
        super().__init__(f"{broker}: {text}")
        self.exit_code = code


class SupervisedBroker:
    """One broker, and the process in which it runs at the moment."""

    def __init__(self, birth: Birth) -> None:
        self.birth = birth
        self.restarts = 0
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._numbers = 0
        self._asked: dict[int, asyncio.Future[list[Family]]] = {}

    @property
    def name(self) -> str:
        return self.birth.config.broker_name

    async def start(self) -> str:
        """The line that says it is ready; raises BrokerFailedError if it ends instead."""
        self._process = process = await start_child(
            "-m", "gimbalmq.cli.supervised", self.name, stdin=asyncio.subprocess.PIPE
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(frame(pickle.dumps(self.birth)))
        said = await next_frame(process.stdout)
        first = None if said is None else decode(said)
        if isinstance(first, Ready):
            # A free port that it took at first stays its own: the ids of its messages name it.
            self.birth = replace(self.birth, config=replace(self.birth.config, listen_port=first.port))
            self._reading = asyncio.create_task(self._read(process.stdout))
            return first.line
        code = await process.wait()
        if isinstance(first, Failed):
            raise BrokerFailedError(self.name, first.text, first.code)
        raise BrokerFailedError(self.name, f"it ended while it started ({how_it_ended(code)})", 1)

    async def wait(self) -> str:
        """How it ended, once it has."""
        assert self._process is not None and self._reading is not None
        code = await self._process.wait()
        await self._reading
        return how_it_ended(code)

    async def end(self) -> None:
        """Ends it cleanly, however long that takes."""
        if self._process is not None:
            await end_child(self._process, None)
        if self._reading is not None:
            await self._reading

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    async def metrics(self) -> list[Family] | None:
        """Its metrics; None if it does not tell them in time, or does not run."""
        if self._reading is None or self._reading.done():
            return None
        assert self._process is not None and self._process.stdin is not None
        self._numbers = number = self._numbers + 1
        answer: asyncio.Future[list[Family]] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            self._process.stdin.write(frame(number.to_bytes(8, "big")))
            async with asyncio.timeout(_METRICS_SECONDS):
                return await answer
        except (TimeoutError, ConnectionError, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return None
        finally:
            del self._asked[number]

    async def _read(self, pipe: asyncio.StreamReader) -> None:
        """Hands out the answers; who waits for one when the broker ends gets none."""
        while (said := await next_frame(pipe)) is not None:
            try:
                answer = await asyncio.to_thread(decode, said)
            except msgspec.ValidationError as error:
                log.error("%s tells something that has no meaning: %s", self.name, error)
                continue
            if isinstance(answer, Failed):
                log.error("%s: %s", self.name, answer.text)
            elif isinstance(answer, Metrics):
                waiting = self._asked.get(answer.number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer.families)
        for waiting in self._asked.values():
            waiting.cancel()


class Brokers:
    """All of them. ``start`` returns when every one serves; from then on one that ends is started again."""

    def __init__(self, births: Sequence[Birth], *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self.all = [SupervisedBroker(birth) for birth in births]
        self._tasks = Tasks("brokers")
        self.metrics = MetricsOfAll(self.all)

    async def start(self) -> None:
        """Raises what the first broker says that does not start; ``close`` then ends the others."""
        starts = [self._tasks.spawn(self._first_start(broker), broker.name) for broker in self.all]
        for start in asyncio.as_completed(starts):
            problem = await start
            if problem is not None:
                raise problem

    async def _first_start(self, broker: SupervisedBroker) -> Exception | None:
        begun = await self._started(broker)
        if isinstance(begun, Exception):
            return begun
        announce(begun)
        self._tasks.spawn(self._keep(broker), f"watch of {broker.name}")
        return None

    async def close(self) -> None:
        await self._tasks.close()
        await asyncio.gather(*(broker.end() for broker in self.all))
        await self.metrics.close()

    def kill(self) -> None:
        """Ends all at once; the next start recovers their stores."""
        for broker in self.all:
            broker.kill()

    async def _keep(self, broker: SupervisedBroker) -> None:
        """Starts a broker again whenever it has ended."""
        failures = 0
        while True:
            since = self._clock.monotonic()
            how = await broker.wait()
            if self._clock.monotonic() - since >= _STEADY_SECONDS:
                failures = 0
            problem = f"{broker.name} has ended ({how})"
            while problem:
                pause = _PAUSES[min(failures, len(_PAUSES) - 1)]
                failures += 1
                when = f"in {pause:.0f} s" if pause else "now"
                log.error("%s; it is started again %s", problem, when)
                await asyncio.sleep(pause)
                broker.restarts += 1
                begun = await self._started(broker)
                problem = sentence(begun) if isinstance(begun, Exception) else ""
            log.warning("again: %s", begun)

    async def _started(self, broker: SupervisedBroker) -> str | Exception:
        """The line of a broker that is ready, or why it is not."""
        first, config = self.all[0].birth.config, broker.birth.config
        try:
            if broker is not self.all[0]:
                await give_users(first, Path(config.store_path_root_dir) / "config", broker.name)
            return await broker.start()
        except BrokerFailedError as error:
            return error
        except (RocketMQError, OSError) as error:
            return BrokerFailedError(broker.name, sentence(error), 1)


async def give_users(first: BrokerConfig, folder: Path, whom: str) -> None:
    """Gives a server that does not run the users and policies of the first broker; none if there are none yet.

    Raises:
        ConfigError, StoreError: files of either cannot be read, or written.
    """
    if not first.keeps_users:
        return
    given = AccessTable(Path(first.auth_config_path or Path(first.store_path_root_dir) / "config"))
    await asyncio.to_thread(given.load)
    if not given.users():
        return
    table = AccessTable(folder)
    await asyncio.to_thread(table.load)
    folder.mkdir(parents=True, exist_ok=True)
    if await table.replace(dict(given.users()), dict(given.acls())):
        log.info("users and policies of %s are now those of %s", whom, first.broker_name)


class MetricsOfAll(MetricsPage):
    """The metrics of all brokers on one page, each row with the name of its broker."""

    def __init__(self, brokers: Sequence[SupervisedBroker]) -> None:
        super().__init__()
        self._brokers = brokers

    async def read(self) -> list[Family]:
        names = [broker.name for broker in self._brokers]
        told = await asyncio.gather(*(broker.metrics() for broker in self._brokers))
        up: Rows = [((name,), float(found is not None)) for name, found in zip(names, told, strict=True)]
        restarts: Rows = [((broker.name,), float(broker.restarts)) for broker in self._brokers]
        by_broker = {name: found for name, found in zip(names, told, strict=True) if found is not None}
        return [
            Family("gauge", "broker_up", "1 if the broker answers", ("broker",), up),
            Family("counter", "broker_restarts", "How often it was started again", ("broker",), restarts),
            *await asyncio.to_thread(merged, by_broker),
        ]


def merged(by_broker: dict[str, list[Family]]) -> list[Family]:
    """One family of each name, with the rows of all brokers."""
    found: dict[str, Family] = {}
    for name, families in by_broker.items():
        for family in families:
            whole = found.setdefault(family.name, family._replace(labels=("broker", *family.labels), rows=[]))
            whole.rows.extend(((name, *labels), value) for labels, value in family.rows)
    return list(found.values())
