"""Apache Kafka and the Spark that has a connector for it, fetched once; a broker of it as a child process.

The jars come from Maven Central, Spark from PyPI into a virtual environment of its own; both are kept in
`$GIMBALMQ_CACHE` or `<root>/.cache/kafka`. A folder there is complete or absent.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
import time
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.peers.process import HOST, PeerError, free_port, tail

ROOT = Path(__file__).resolve().parents[1]

KAFKA = "4.3.1"
SPARK = "4.0.0"  # the newest whose connector Maven Central has in full
SERVER = (f"org.apache.kafka:kafka_2.13:{KAFKA}",)
CONNECTOR = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK}",
    f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{SPARK}",
    "org.apache.kafka:kafka-clients:3.9.0",
    "org.apache.commons:commons-pool2:2.12.0",
)

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>peers</groupId><artifactId>peers</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = (
    "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
    "<version>{version}</version>{exclusions}</dependency>"
)
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


def cache_root() -> Path:
    return Path(os.environ.get("GIMBALMQ_CACHE") or ROOT / ".cache" / "kafka")


def _once(name: str, make: Callable[[Path], None]) -> Path:
    """A folder of the cache, made by `make` the first time."""
    folder = cache_root() / name
    if not folder.is_dir():
        cache_root().mkdir(parents=True, exist_ok=True)
        with (cache_root() / f".{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not folder.is_dir():
                make(folder)
    return folder


def _run(command: Sequence[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        raise PeerError(f"{what}:\n{(done.stdout + done.stderr)[-4000:]}")


def _jars(name: str, coordinates: Sequence[str], *, alone: bool) -> Path:
    """A folder of jars; `alone` leaves out what they depend on, which Spark has."""

    def download(folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as scratch_name:
            scratch = Path(scratch_name)
            dependencies = ""
            for one in coordinates:
                group, artifact, version = one.split(":")
                dependencies += _DEPENDENCY.format(
                    group=group, artifact=artifact, version=version, exclusions=_ALONE if alone else ""
                )
            (scratch / "pom.xml").write_text(_POM.format(dependencies=dependencies))
            command = ["mvn", "-B", "-q", "-f", str(scratch / "pom.xml"), _COPY]
            command += ["-DincludeScope=runtime", f"-DoutputDirectory={scratch / 'jars'}"]
            _run(command, f"Maven could not fetch {', '.join(coordinates)}")
            (scratch / "jars").rename(folder)

    return _once(name, download)


def server_jars() -> Path:
    return _jars(f"server-{KAFKA}", SERVER, alone=False)


def connector_jars() -> list[Path]:
    return sorted(_jars(f"connector-{SPARK}", CONNECTOR, alone=True).glob("*.jar"))


def spark_python() -> Path:
    """The Python of an environment with the Spark that has the connector."""

    def install(folder: Path) -> None:
        try:
            venv.create(folder, with_pip=True)
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            _run([*pip, f"pyspark=={SPARK}"], f"pip could not install pyspark {SPARK}")
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # an environment cannot be moved once it is made
            raise

    return _once(f"spark-{SPARK}", install) / "bin" / "python"


# As bin/kafka-run-class.sh says, the heap apart.
_JAVA = (
    *("java", "-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
)


class Kafka:
    """One broker that is its own controller (KRaft), on the loopback address, with its defaults otherwise."""

    def __init__(self, folder: Path, partitions: int) -> None:
        self.log = folder / "output.log"
        self.port = free_port()
        self._file = folder / "server.properties"
        self._child: subprocess.Popen[bytes] | None = None
        controller = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": folder / "logs",
            "num.partitions": partitions,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
        }
        self._file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pids(self) -> list[int]:
        return [self._child.pid] if self._child is not None else []

    def start(self) -> None:
        classes = ["-cp", f"{server_jars()}/*"]
        storage = [*_JAVA[:1], *classes, "kafka.tools.StorageTool", "format"]
        _run(
            [*storage, "--cluster-id", "MkU3OEVBNTcwNTJENDM2Qg", "--config", str(self._file)],
            "Kafka's storage could not be formatted",
        )
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                [*_JAVA, *classes, "kafka.Kafka", str(self._file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + 90
        while True:
            try:
                socket.create_connection((HOST, self.port), 5).close()
                return
            except OSError:
                if self._child.poll() is not None or time.monotonic() > deadline:
                    self.kill()
                    raise PeerError(f"Kafka does not start:\n{tail(self.log)}") from None
            time.sleep(0.1)

    def kill(self) -> None:
        """Its folder is thrown away, so nothing is lost."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None


def why_not() -> str | None:
    """Why it cannot run here, or None. Fetches everything as a side effect."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    try:
        server_jars()
        connector_jars()
        spark_python()
    except (PeerError, OSError, subprocess.SubprocessError) as error:
        return str(error).splitlines()[0]
    return None
