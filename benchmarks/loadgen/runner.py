"""Build the generators (C and Java) once, run them, and read the one line of JSON they print."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.peers import apache

HERE = Path(__file__).resolve().parent
JAVA_VERSION = "5.5.0"


class CannotMeasure(RuntimeError):
    """Something a benchmark needs is not on this machine; the text says what."""


class LoadFailed(RuntimeError):
    """The generator ran and could not finish: what it said."""


def _cached(name: str, *sources: Path) -> Path:
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    return apache.cache_root() / f"{name}-{digest}"


def build_c(tls: bool = False) -> Path:
    """The compiled C generator; compiles it when the source has changed. TLS needs OpenSSL's headers."""
    source = HERE / "loadgen.c"
    program = _cached("loadgen-tls" if tls else "loadgen", source)
    libraries = ["-DWITH_TLS", "-lssl", "-lcrypto"] if tls else []
    if not program.exists():
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise CannotMeasure("no C compiler (cc or gcc): the load generator cannot be built")
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent, prefix=".loadgen-") as scratch:
            made = Path(scratch, "loadgen")
            done = subprocess.run(
                [compiler, "-O2", "-o", str(made), str(source), *libraries], capture_output=True, text=True
            )
            if done.returncode != 0:
                raise CannotMeasure(f"loadgen.c does not compile:\n{done.stderr[-2000:]}")
            made.rename(program)
    return program


def build_java() -> str:
    """The class path of ClientLoad with the Java client behind it."""
    if shutil.which("javac") is None:
        raise CannotMeasure("no javac: the Java client cannot be measured")
    source = HERE / "ClientLoad.java"
    libraries = apache.fetch(JAVA_VERSION)
    classes = _cached("clientload", source)
    if not classes.is_dir():
        with tempfile.TemporaryDirectory(dir=classes.parent, prefix=".clientload-") as scratch:
            command = ["javac", "-nowarn", "-cp", libraries, "-d", f"{scratch}/classes", str(source)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if done.returncode != 0:
                raise CannotMeasure(f"ClientLoad.java does not compile:\n{done.stderr[-2000:]}")
            Path(scratch, "classes").rename(classes)
    return f"{classes}:{libraries}"


@dataclass
class Load:
    """What one run of a generator measured."""

    per_second: float
    mb_per_second: float = 0.0
    ok: int = 0
    refused: int = 0
    p50_us: float = 0.0
    p99_us: float = 0.0
    max_us: float = 0.0
    generator_us: float = 0.0
    subject_cpu: float = 0.0  # seconds of processor the broker used meanwhile, warm-up included
    foreign_cores: float = 0.0  # processors taken by everybody else meanwhile
    raw: dict[str, Any] = field(default_factory=dict)

    @property
    def accepted(self) -> int:
        """Requests answered with success, those of the warm-up too: what `subject_cpu` was used for."""
        return int(self.raw.get("codes", {}).get("0", self.ok))

    @property
    def cpu_us(self) -> float:
        """Processor time of the broker for a request that it accepted."""
        return self.subject_cpu / max(1, self.accepted) * 1e6


def read_result(text: str) -> Load:
    """Turn a generator's line into a `Load`; a line that names an error is raised."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if not lines:
        raise LoadFailed(f"the generator printed no result: {text[-1000:]!r}")
    raw: dict[str, Any] = json.loads(lines[-1])
    if "error" in raw:
        raise LoadFailed(str(raw["error"]))
    latency = raw.get("latency_us", {})
    cost = raw.get("generator_cpu", {})
    codes: dict[str, int] = raw.get("codes", {})
    if "16" in codes:
        raise LoadFailed(f"the broker did not let {codes['16']} requests in (code 16)")
    return Load(
        per_second=float(raw["per_second"]),
        mb_per_second=float(raw.get("mb_per_second", 0.0)),
        ok=int(raw["ok"]),
        refused=sum(number for code, number in codes.items() if code != "0"),
        p50_us=float(latency.get("p50", 0.0)),
        p99_us=float(latency.get("p99", 0.0)),
        max_us=float(latency.get("max", 0.0)),
        generator_us=float(cost.get("user_us_each", 0.0)) + float(cost.get("system_us_each", 0.0)),
        raw=raw,
    )


def arguments(options: dict[str, object]) -> list[str]:
    """`{"window": 8, "keys": True}` as `--window 8 --keys`."""
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is not False and value is not None:
            words += [flag, str(value)]
    return words


def run_c(mode: str, *, port: int, **options: object) -> Load:
    """Run the C generator: `send` or `pull`."""
    command = [str(build_c(bool(options.get("tls")))), mode, *arguments({"port": port, **options})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    return read_result(done.stdout)


def run_java(mode: str, *, namesrv: str, home: Path, **options: object) -> Load:
    """Run the Java client: `async`, `sync` or `consume`."""
    command = ["java", "-Xms512m", "-Xmx512m", "-XX:-UsePerfData", f"-Duser.home={home}"]
    command += ["-Djava.net.preferIPv4Stack=true", "-Drocketmq.client.logUseSlf4j=true"]
    command += ["-cp", build_java(), "ClientLoad", mode, *arguments({"namesrv": namesrv, **options})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    try:
        return read_result(done.stdout)
    except LoadFailed as error:
        raise LoadFailed(f"Java client, {mode}: {error}\n{done.stderr[-1500:]}") from None
