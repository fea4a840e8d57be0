"""Apache RocketMQ from Maven Central: fetch it once, run its name server, broker and mqadmin.

The jars land in `$GIMBALMQ_CACHE/<version>` or `<root>/.cache/apache/<version>`; a folder there is complete or
absent, so an interrupted download is repeated and two test runs at once wait for each other.

Java cannot be told to bind every port to the loopback address (4.9 and the replication port ignore
`bindAddress`), so these servers are for a machine or container that nobody else can reach.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests.peers.frames import Keys
from tests.peers.probe import wait_registered
from tests.peers.process import HOST, PeerError, Process, free_port

ROOT = Path(__file__).resolve().parents[2]
JAVA_SOURCES = Path(__file__).with_name("java")

# What Maven Central has in full; other releases lack jars (a broker without its store, tools without client).
ARTIFACTS: Mapping[str, tuple[str, ...]] = {
    "5.5.0": ("namesrv", "broker", "tools", "client"),
    "4.9.8": ("client", "tools"),
    "4.9.7": ("namesrv", "broker", "tools", "client"),
}
CLIENT_VERSIONS = ("4.9.8", "5.5.0")
BROKER_VERSIONS = ("4.9.7", "5.5.0")

# The broker reads sun.nio.ch and jdk.internal.ref to unmap files, fastjson and netty reflect on the rest.
_OPENINGS = (
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.lang.reflect=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
)
# Short runs on few cores: the first compiler is enough, the serial collector starts no threads.
_QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto")

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>peers</groupId><artifactId>peers</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = (
    "<dependency><groupId>org.apache.rocketmq</groupId>"
    "<artifactId>rocketmq-{artifact}</artifactId><version>{version}</version></dependency>"
)
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"

_EMPTY_LOGBACK = "<configuration/>\n"


def cache_root() -> Path:
    """Where jars and compiled drivers are kept between runs."""
    return Path(os.environ.get("GIMBALMQ_CACHE") or ROOT / ".cache" / "apache")


@contextmanager
def _lock(name: str) -> Iterator[None]:
    folder = cache_root()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def fetch(version: str) -> str:
    """The class path of one release; downloads it the first time.

    Raises:
        PeerError: Maven failed; its output is in the text.
    """
    folder = cache_root() / version
    if not folder.is_dir():
        with _lock(version):
            if not folder.is_dir():
                _download(version, folder)
    return f"{folder}/*"


def _download(version: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{version}-") as scratch_name:
        scratch = Path(scratch_name)
        dependencies = "".join(_DEPENDENCY.format(artifact=a, version=version) for a in ARTIFACTS[version])
        (scratch / "pom.xml").write_text(_POM.format(dependencies=dependencies))
        command = ["mvn", "-B", "-q", "-f", str(scratch / "pom.xml"), _COPY]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={scratch / 'jars'}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
        if done.returncode != 0:
            raise PeerError(
                f"Maven could not fetch RocketMQ {version}:\n{(done.stdout + done.stderr)[-4000:]}"
            )
        (scratch / "jars").rename(folder)


@functools.cache
def available() -> str | None:
    """Why Apache RocketMQ cannot run here, or None when it can. Fetches every release as a side effect."""
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    try:
        for version in ARTIFACTS:
            fetch(version)
    except (PeerError, subprocess.TimeoutExpired, OSError) as error:
        return str(error).splitlines()[0]
    return None


def compile_driver(version: str) -> str:
    """The class path of our driver, compiled against one release, with that release behind it."""
    libraries = fetch(version)
    sources = sorted(JAVA_SOURCES.glob("*.java"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    folder = cache_root() / f"driver-{version}-{digest}"
    if not folder.is_dir():
        with _lock(f"driver-{version}"):
            if not folder.is_dir():
                with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".driver-") as scratch:
                    command = ["javac", "-nowarn", "-encoding", "UTF-8", "-cp", libraries]
                    command += ["-d", f"{scratch}/classes", *map(str, sources)]
                    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
                    if done.returncode != 0:
                        raise PeerError(f"driver does not compile on {version}:\n{done.stderr[-4000:]}")
                    Path(scratch, "classes").rename(folder)
    return f"{folder}:{libraries}"


def prepare_home(folder: Path) -> Path:
    """A ROCKETMQ_HOME: 4.9 reads a logback file per program from it, and an empty one serves."""
    configuration = folder / "conf"
    configuration.mkdir(parents=True, exist_ok=True)
    for program in ("namesrv", "broker", "tools", "controller"):
        (configuration / f"logback_{program}.xml").write_text(_EMPTY_LOGBACK)
    return folder


def java(classpath: str, home: Path, *arguments: str, heap: str, options: tuple[str, ...] = ()) -> list[str]:
    """The command line of one JVM whose home folder, and so its logs, is `home`."""
    return [
        *("java", f"-Xms{heap}", f"-Xmx{heap}", *_QUICK, *_OPENINGS, f"-Duser.home={home}"),
        *(*options, "-cp", classpath, *arguments),
    ]


def write_properties(file: Path, properties: Mapping[str, object]) -> Path:
    """Write a RocketMQ configuration file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return file


class ApacheNameServer(Process):
    """Apache's name server; `address` is what clients are given, `extra` further lines of its configuration file."""

    def __init__(
        self,
        version: str,
        folder: Path,
        *,
        port: int | None = None,
        extra: Mapping[str, object] | None = None,
        heap: str = "256m",
    ) -> None:
        self.version = version
        self.port = port or free_port()
        self.address = f"{HOST}:{self.port}"
        home = prepare_home(folder)
        properties = {"listenPort": self.port, "bindAddress": HOST, **(extra or {})}
        configuration = write_properties(folder / "namesrv.properties", properties)
        main = ("org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(configuration))
        super().__init__(
            f"Apache name server {version}",
            java(fetch(version), home, *main, heap=heap),
            log=folder / "namesrv.out",
            ready="boot success",
            environment={"ROCKETMQ_HOME": str(home)},
        )


class ApacheController(Process):
    """Apache's controller; `address` is what brokers are given. Without `ports` it is alone, else number `number` of
    those at these ports."""

    def __init__(
        self,
        folder: Path,
        *,
        version: str = "5.5.0",
        ports: Sequence[int] = (),
        number: int = 0,
        extra: Mapping[str, object] | None = None,
        heap: str = "256m",
    ) -> None:
        ports = ports or (free_port(),)
        self.port = ports[number]
        self.address = f"{HOST}:{self.port}"
        home = prepare_home(folder)
        properties = {
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": ";".join(f"n{each}-{HOST}:{port}" for each, port in enumerate(ports)),
            "controllerDLegerSelfId": f"n{number}",
            "controllerStorePath": folder / "controller",
            "mappedFileSize": 1 << 20,
            **(extra or {}),
        }
        configuration = write_properties(folder / "controller.properties", properties)
        main = ("org.apache.rocketmq.controller.ControllerStartup", "-c", str(configuration))
        super().__init__(
            f"Apache controller {version}",
            java(fetch(version), home, *main, heap=heap),
            log=folder / "controller.out",
            ready="boot success",
            environment={"ROCKETMQ_HOME": str(home)},
        )


# Small files, so that a test folder stays small.
BROKER_DEFAULTS: Mapping[str, object] = {
    "brokerClusterName": "InteropCluster",
    "brokerName": "interop-a",
    "brokerId": 0,
    "brokerIP1": HOST,
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 120_000,
    "maxIndexNum": 4000,
    "maxHashSlotNum": 1000,
    "maxMessageSize": 65_536,
}
# No refusal when two busy cores let a request wait, or a busy disk lets an append wait.
_PATIENCE: Mapping[str, object] = {
    "waitTimeMillsInSendQueue": 10_000,
    "waitTimeMillsInPullQueue": 20_000,
    "osPageCacheBusyTimeOutMills": 10_000,
}
# Without these a broker of 5.x keeps one core busy. Its thread for transaction metrics spins until the first interval
# is over. The one that writes outcomes down in batches spins as soon as its last batch is older than the interval: a
# long one lets it sleep, and a small size has each outcome written at once. Brokers of 4.9 know none of the three.
_CALM: Mapping[str, object] = {
    "transactionMetricFlushInterval": 500,
    "transactionOpBatchInterval": 3_600_000,
    "transactionOpMsgMaxSize": 1,
}


class ApacheBroker(Process):
    """Apache's broker on a store folder; `extra` are further lines of its configuration file, `keys` those of an
    administrator if it lets in nobody else, `registers_at` the name server at which its start waits for it."""

    def __init__(
        self,
        version: str,
        folder: Path,
        *,
        namesrv: str,
        store: Path | None = None,
        port: int | None = None,
        extra: Mapping[str, object] | None = None,
        heap: str = "768m",
        keys: Keys | None = None,
        registers_at: str | None = None,
    ) -> None:
        self.version = version
        self._keys = keys
        self._registers_at = registers_at or namesrv
        self.port = port or free_port()
        self.address = f"{HOST}:{self.port}"
        self.store = store or folder / "store"
        self.properties: dict[str, object] = {
            **BROKER_DEFAULTS,
            **_PATIENCE,
            **_CALM,
            "listenPort": self.port,
            "haListenPort": self.port + 1,
            "bindAddress": HOST,
            "namesrvAddr": namesrv,
            "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog",
            **(extra or {}),
        }
        self.name_of_broker = str(self.properties["brokerName"])
        home = prepare_home(folder)
        configuration = write_properties(folder / "broker.properties", self.properties)
        main = ("org.apache.rocketmq.broker.BrokerStartup", "-c", str(configuration))
        super().__init__(
            f"Apache broker {version}",
            java(fetch(version), home, *main, heap=heap, options=("-XX:MaxDirectMemorySize=512m",)),
            log=folder / "broker.out",
            ready="boot success",
            environment={"ROCKETMQ_HOME": str(home)},
        )

    def start(self) -> Self:
        """Start it and wait until the name server knows it."""
        super().start()
        wait_registered(self._registers_at, self.address, nudge=True, keys=self._keys)
        return self


def mqadmin(version: str, *arguments: str, folder: Path) -> tuple[int, str]:
    """Run one mqadmin command in a JVM of its own: its exit status, and what it printed.

    Both streams count; what logback says of its own configuration is left out.
    """
    home = prepare_home(folder)
    command = java(
        fetch(version), home, "org.apache.rocketmq.tools.command.MQAdminStartup", *arguments, heap="256m"
    )
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "ROCKETMQ_HOME": str(home)},
    )
    printed = (done.stdout + done.stderr).splitlines()
    return done.returncode, "\n".join(line for line in printed if " |-" not in line)
