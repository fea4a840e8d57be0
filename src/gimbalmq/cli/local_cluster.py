"""``gimbalmq cluster local``: a whole cluster on this machine, for trying out.

Every server is a process of its own, because what one wants to try is to kill one. They end with this command.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import shutil
import signal
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gimbalmq.cli.asking import FAILED, MISUSED, OK, Parser, Parsers, whole_number
from gimbalmq.cli.children import end_child, end_with_parent, how_it_ended, start_child
from gimbalmq.cli.many_brokers import PORT_STEP, nth_name
from gimbalmq.cli.output import announce
from gimbalmq.cli.parsing import set_option
from gimbalmq.cli.terminal import table
from gimbalmq.errors import ConfigError, RocketMQError

HOST = "127.0.0.1"
_READY_SECONDS = 60.0
_LAST_WORDS_SECONDS = 5.0

_EPILOG = """\
examples:
  gimbalmq cluster local                              two brokers, each a master and a slave
  gimbalmq cluster local --brokers 1 --replicas 3 --sync
  gimbalmq cluster local --store ./cluster            kept; without it everything is deleted at the end

Every server is a process of its own, which may be killed; the command says what to try. Ctrl-C ends all of them.
"""


def add_command(commands: Parsers[Parser]) -> None:
    parser = commands.add_parser(
        "local",
        help="start a cluster with replicas on this machine, for trying out",
        description="Runs a name server and brokers with slaves, on this machine only, until SIGTERM or Ctrl-C.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--brokers", type=whole_number(1, 26), default=2, metavar="N", help="broker names, a to z (2)")
    add(
        "--replicas",
        type=whole_number(1, 9),
        default=2,
        metavar="M",
        help="copies of each: 1 is a master alone (2)",
    )
    add("--sync", action="store_true", help="masters answer a send only when a slave has it, too")
    add("--store", type=Path, metavar="DIR", help="keep everything here (default: a folder that is deleted)")
    add("--port", type=whole_number(3, 65000), default=10911, metavar="N", help="of the first broker (10911)")
    add("--namesrv-port", type=whole_number(1, 65535), default=9876, metavar="N", help="(9876)")
    set_option(parser, "any key of brokers; repeatable")
    add("--debug", action="store_true", help="log everything, show tracebacks")
    parser.set_defaults(run=_run, log_level="warning", log_file=None)


class NotStartedError(RocketMQError):
    """A server did not start.

    Attributes:
        exit_code: what the command ends with.
    """

    def __init__(self, text: str, code: int | None) -> None:
        super().__init__(text)
        self.exit_code = MISUSED if code == MISUSED else FAILED


@dataclass
class Child:
    """A server: the command that starts it, and its process once it runs.

    Attributes:
        words: behind ``gimbalmq``.
        log: the file of its log.
    """

    title: str
    words: list[str]
    log: Path
    address: str
    process: asyncio.subprocess.Process | None = None
    ended: bool = field(default=False, init=False)

    @property
    def command(self) -> str:
        """What a person types to start it again."""
        return shlex.join(["gimbalmq", *self.words])

    async def start(self) -> None:
        """Returns when it accepts connections; raises NotStartedError with what it said if it does not."""
        with self.log.open("ab") as log:
            self.process = await start_child("-m", "gimbalmq", *self.words, stderr=log, first=end_with_parent)
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(_READY_SECONDS):
                line = await self.process.stdout.readline()
        except TimeoutError:
            line = b""
        if b"ready" not in line:
            await self._over()
            lines = self.log.read_text(errors="replace").splitlines()
            said = lines[-1].removeprefix("gimbalmq: ") if lines else f"it did not start; see {self.log}"
            raise NotStartedError(f"{self.title}: {said}", self.process.returncode)

    async def _over(self) -> None:
        """It ends, by itself if it can: a signal at that moment would cost its exit code."""
        assert self.process is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await self.process.wait()
        await self.end()

    async def end(self) -> None:
        """Ends it cleanly, or by force if that takes too long."""
        if self.process is not None:
            await end_child(self.process)


def _run(args: argparse.Namespace) -> int:
    last = args.port + PORT_STEP * (args.brokers * args.replicas - 1) + 1
    if last > 65535:
        raise ConfigError(
            "--port", args.port, f"the last port would be {last}; use {args.port - (last - 65535)}"
        )
    if args.sync and args.replicas == 1:
        raise ConfigError("--sync", "", "there is no slave to wait for; use --replicas 2 or more")
    folder = (
        Path(tempfile.mkdtemp(prefix="gimbalmq-"))
        if args.store is None
        else args.store.expanduser().resolve()
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return asyncio.run(_until_signal(args, folder))
    except OSError as error:
        raise ConfigError(
            "--store", str(folder), f"{error.strerror or error}; name a folder that can be made"
        ) from error
    finally:
        if args.store is None:
            shutil.rmtree(folder, ignore_errors=True)


def children(args: argparse.Namespace, folder: Path) -> tuple[Child, list[Child]]:
    """The name server and the brokers, masters before slaves."""
    namesrv = f"{HOST}:{args.namesrv_port}"
    words = ["namesrv", "--port", str(args.namesrv_port), "--data", str(folder / "namesrv")]
    first = Child("name server", words, folder / "namesrv.log", namesrv)
    masters: list[Child] = []
    slaves: list[Child] = []
    for index in range(args.brokers):
        name = nth_name("broker-a", index)
        leads = _promoted(folder, name, args.replicas)
        for replica in range(args.replicas):
            place = f"{name}-{replica}"
            port = args.port + PORT_STEP * (index * args.replicas + replica)
            words = ["broker", "--name", name, "--port", str(port), "--namesrv", namesrv]
            words += ["--store", str(folder / place)]
            # One that was promoted remembers that, and leaves its id to the master that was.
            broker_id = replica or leads
            if broker_id:
                words += ["--slave", str(broker_id)]
            elif args.sync:
                words.append("--sync-master")
            for key, value in args.set:
                words += ["--set", f"{key}={value}"]
            role = "master" if replica == leads else f"slave {broker_id}"
            made = Child(f"{name} {role}", words, folder / f"{place}.log", f"{HOST}:{port}")
            (masters if replica == leads else slaves).append(made)
    return first, masters + slaves


def _promoted(folder: Path, name: str, replicas: int) -> int:
    """Which replica of a kept folder is the master: the first, unless another one was promoted."""
    for replica in range(1, replicas):
        try:
            given = json.loads((folder / f"{name}-{replica}" / "config" / "role.json").read_bytes())["given"]
            if given["brokerRole"] != "SLAVE":
                return replica
        except (OSError, ValueError, LookupError, TypeError):
            continue  # it was given no role
    return 0


async def _until_signal(args: argparse.Namespace, folder: Path) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    nameserver, brokers = children(args, folder)
    try:
        for child in (nameserver, *brokers):
            await child.start()
            if stop.is_set():
                return OK
        announce(_ready(args, folder, nameserver, brokers))
        watchers = [
            asyncio.create_task(_watch(child, args, folder, stop)) for child in (nameserver, *brokers)
        ]
        await stop.wait()
        for watcher in watchers:
            watcher.cancel()
        announce("ending all servers")
        return OK
    finally:
        # Slaves and masters together, the name server last: brokers tell it that they go.
        await asyncio.gather(*(child.end() for child in brokers))
        await nameserver.end()


async def _watch(child: Child, args: argparse.Namespace, folder: Path, stop: asyncio.Event) -> None:
    """Says when a server has ended that was not told to here, and how it is started again in the role it has now."""
    assert child.process is not None
    code = await child.process.wait()
    if stop.is_set():
        return
    nameserver, brokers = children(args, folder)
    now = next(other for other in (nameserver, *brokers) if other.address == child.address)
    lines = [f"{now.title} at {now.address} has ended ({how_it_ended(code)})."]
    if now.title.endswith("master") and args.replicas > 1:
        broker = now.title.split()[0]
        lines.append(
            f"  gimbalmq{_asks(args)} broker promote {broker}     makes its fullest slave the master"
        )
        lines.append("  (or start it again as it was:)")
    lines.append(f"  {now.command}")
    announce("\n".join(lines))


def _asks(args: argparse.Namespace) -> str:
    """How commands find the name server, if it is not where they look."""
    return "" if args.namesrv_port == 9876 else f" -n {HOST}:{args.namesrv_port}"


def _ready(args: argparse.Namespace, folder: Path, nameserver: Child, brokers: list[Child]) -> str:
    rows = [
        (child.title, child.address, child.process.pid if child.process else None, child.log)
        for child in (nameserver, *sorted(brokers, key=lambda child: child.title))
    ]
    asks = _asks(args)
    master = brokers[0]
    assert master.process is not None
    kept = "" if args.store is not None else ", which is deleted at the end"
    lines = [
        f"The cluster is ready. Its files are in {folder}{kept}.",
        "",
        table(("SERVER", "ADDRESS", "PID", "LOG"), rows),
        "",
        "Try, in another terminal:",
    ]
    tries = [
        (f"gimbalmq{asks} topic create orders --queues 4", ""),
        (f"gimbalmq{asks} message send orders hello", ""),
        (f"gimbalmq{asks} broker ha-status", "who copies whom, and how far behind"),
    ]
    if args.replicas > 1:
        tries += [
            (f"kill -9 {master.process.pid}", "broker-a's master is gone"),
            (f"gimbalmq{asks} message print orders", "its messages can still be read"),
            (f"gimbalmq{asks} broker promote broker-a", "its slave becomes the master"),
        ]
    widest = max(len(command) for command, _ in tries)
    lines += [f"  {command:<{widest}}   {about and '# ' + about}".rstrip() for command, about in tries]
    lines.append("Ctrl-C ends all servers.")
    return "\n".join(lines)
