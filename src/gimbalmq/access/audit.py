"""The audit log: one line for every request that is refused, and for every change that an administrator makes.

Refusals of the gate are slowed down, so each has its line, until an address has had a thousand: one that guesses has a
line a minute from then on, or it would fill the disk. What is tolerated in permissive mode, and what handlers
refuse, may come in thousands a second: the first of each kind has a line, and then one a minute, with their number.

Lines go to the logger ``gimbalmq.audit`` and, if there is one, to a file of their own, which a thread writes: a slow
disk must not hold the event loop. What comes from the wire is escaped and cut, so nobody can write lines of his own.
Secrets are in none of it: of a request it names the sender, the code and what it is about, never values or bodies.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gimbalmq._clock import Clock
from gimbalmq.access.config import AccessConfig
from gimbalmq.errors import ConfigError
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.transport.channel import Channel

log = logging.getLogger("gimbalmq.audit")

REFUSED = "refused"
TOLERATED = "tolerated"
"""It would have been refused, were the mode not ``permissive``."""
CHANGED = "allowed"

CHANGES = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.RESET_MASTER_FLUSH_OFFSET,
        RequestCode.AUTH_CREATE_USER,
        RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_DELETE_USER,
        RequestCode.AUTH_CREATE_ACL,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_DELETE_ACL,
    }
)
"""Requests of administrators that change something."""

_TOLD_FIELDS = (
    "topic",
    "group",
    "groupName",
    "consumerGroup",
    "producerGroup",
    "clientID",
    "srcGroup",
    "destGroup",
    "username",
    "subject",
    "accessKey",
    "resource",
    "policyType",
    "namespace",
    "key",
    "brokerName",
    "clusterName",
)
"""Fields that say what a request is about. Nothing else of it is written: request 50 has a secret among its fields."""

_SHORT_FIELDS = {"b": "topic", "a": "producerGroup"}
_WITH_SHORT_FIELDS = frozenset(
    {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}
)
"""Sends whose fields have one letter each; without their names nobody knows whose keys are missing."""

_MOST_LETTERS = 200
_MOST_WAITING = 10_000
_SUMMED_SECONDS = 60.0
_MOST_KINDS = 10_000


@dataclass(frozen=True, slots=True)
class Event:
    """What one line says.

    Attributes:
        user: whom the request names; nobody has proved it if it was refused.
        about: the resources that it wants, or the fields that name what it is about.
        decision: ``refused``, ``tolerated`` or ``allowed``.
        reason: why, as the peer was told.
        repeated: how many others of its kind have no line of their own.
    """

    user: str | None
    source: str
    certificate: str | None
    request: int
    about: str
    decision: str
    reason: str = ""
    repeated: int = 0


class Audit:
    """Writes the lines; ``close`` ends the file's thread after what it was given."""

    def __init__(self, config: AccessConfig, clock: Clock) -> None:
        """Raises ConfigError if the file cannot be opened."""
        self._json = config.audit_log_format == "json"
        self._clock = clock
        self._summed: dict[tuple[str, str, int, str], list[float]] = {}
        """By kind, the longest known first: when the last line was written, and how many came since."""
        self._file = None if config.audit_log_path is None else _AuditFile(Path(config.audit_log_path))

    def note(
        self,
        channel: Channel,
        command: RemotingCommand,
        user: str | None,
        decision: str,
        *,
        wanted: Iterable[object] = (),
        reason: str = "",
        sums_up: bool = False,
        by_address: bool = False,
    ) -> None:
        """One line about a request.

        Args:
            sums_up: one a minute for all of its kind (user, address, request, reason); for what may come in thousands a
                second, which nothing slows down.
            by_address: one a minute for everything from this address; for one that guesses names and secrets.
        """
        repeated = 0
        if sums_up or by_address:
            kind = (_cut(user or ""), channel.host, command.code, _cut(reason))
            passed_over = self._repeated(("", channel.host, 0, "") if by_address else kind)
            if passed_over is None:
                return
            repeated = passed_over
        certificate = channel.peer_certificate
        event = Event(
            user,
            channel.address,
            None if certificate is None else certificate.name or certificate.fingerprint,
            command.code,
            _about(command, wanted),
            decision,
            reason,
            repeated,
        )
        line = _as_json(event) if self._json else _as_text(event)
        log.log(logging.INFO if decision == CHANGED else logging.WARNING, "%s", line)
        if self._file is not None:
            when = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat(
                timespec="milliseconds"
            )
            self._file.write(f'{{"time":"{when}",{line[1:]}' if self._json else f"{when} {line}")

    def _repeated(self, kind: tuple[str, str, int, str]) -> int | None:
        """How many of a kind were passed over since the last line; None if this one is, too.

        A line for each message of a client without a key would cost more than the message.
        """
        now = self._clock.monotonic()
        told = self._summed.get(kind)
        if told is not None and now - told[0] < _SUMMED_SECONDS:
            told[1] += 1
            return None
        self._summed.pop(kind, None)
        self._summed[kind] = [now, 0]
        while len(self._summed) > _MOST_KINDS:
            del self._summed[next(iter(self._summed))]
        return 0 if told is None else int(told[1])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _about(command: RemotingCommand, wanted: Iterable[object]) -> str:
    fields = command.ext_fields or {}
    words = [f"{name}={fields[name]}" for name in _TOLD_FIELDS if name in fields]
    resources = [*map(str, wanted)]
    if not resources and command.code in _WITH_SHORT_FIELDS:
        words += [f"{name}={fields[short]}" for short, name in _SHORT_FIELDS.items() if short in fields]
    return " ".join([*resources, *words])


def _name(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return ""


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}..."


def _parts(event: Event) -> dict[str, str | int]:
    parts: dict[str, str | int] = {"decision": event.decision, "user": _cut(event.user or "-")}
    parts |= {"source": event.source}
    if event.certificate is not None:
        parts["certificate"] = _cut(event.certificate)
    parts |= {"request": event.request, "name": _name(event.request), "about": _cut(event.about)}
    if event.reason:
        parts["reason"] = _cut(event.reason)
    if event.repeated:
        parts["repeated"] = event.repeated
    return parts


def _as_json(event: Event) -> str:
    return json.dumps(_parts(event), separators=(",", ":"))


def _as_text(event: Event) -> str:
    """``decision user source ...`` as ``key=value``; a value with anything but plain letters is in quotes."""
    return " ".join(f"{name}={_quoted(value)}" for name, value in _parts(event).items() if value != "")


def _quoted(value: str | int) -> str:
    text = str(value)
    plain = text.isascii() and text.isprintable() and not set(text) & set(' "\\=')
    return text if plain else json.dumps(text)


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


class _AuditFile:
    """A file to which a thread adds lines; readable by its owner only."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = _open(path)
        except OSError as error:
            raise ConfigError("auditLogPath", str(path), f"cannot be opened: {error.strerror}") from error
        self._path = path
        self._lines: queue.Queue[str | None] = queue.Queue(_MOST_WAITING)
        self._lost = 0
        self._complained = False
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            # The disk is slower than what comes. The logger has the line; the file says how many it lacks.
            self._lost += 1

    def close(self) -> None:
        if self._thread.is_alive():
            self._lines.put(None)
            self._thread.join()
            os.close(self._fd)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            lines = [line]
            ended = False
            with contextlib.suppress(queue.Empty):
                while len(lines) < 1000:
                    following = self._lines.get_nowait()
                    if following is None:
                        ended = True
                        break
                    lines.append(following)
            lost, self._lost = self._lost, 0
            if lost:
                lines.append(f"({lost} lines are missing here: the disk was too slow)")
            self._add("".join(f"{text}\n" for text in lines).encode())
            if ended:
                return

    def _reopen(self) -> None:
        """Opens the file anew if it was moved away, as tools that rotate logs do."""
        try:
            there = self._path.stat()
        except FileNotFoundError:
            there = None
        ours = os.fstat(self._fd)
        if there is None or (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
            os.close(self._fd)
            self._fd = _open(self._path)

    def _add(self, data: bytes) -> None:
        try:
            self._reopen()
            while data:
                data = data[os.write(self._fd, data) :]
            self._complained = False
        except OSError as error:
            if not self._complained:
                self._complained = True
                logging.getLogger(__name__).error(
                    "%s cannot be written: %s; the server's log has the lines", self._path, error.strerror
                )
