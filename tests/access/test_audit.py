"""Audit lines: both forms, the file, and what hostile names cannot do to them."""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path

import pytest

from gimbalmq.access import audit as audit_module
from gimbalmq.access.audit import CHANGES, REFUSED, TOLERATED, Audit
from gimbalmq.access.config import AccessConfig
from gimbalmq.access.needs import Level, NeedTable
from gimbalmq.errors import ConfigError
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.transport.tls import PeerCertificate
from tests.access.peers import Peer
from tests.support import ManualClock

HOSTILE = 'eve\ndecision=allowed user=root "x" \x1b[2J'


def noted(folder: Path, form: str = "text", peer: Peer | None = None, **fields: str) -> list[str]:
    """The lines of a file after one refusal."""
    path = folder / "logs" / "audit.log"
    audit = Audit(AccessConfig(audit_log_path=str(path), audit_log_format=form), ManualClock())
    command = RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, fields)
    audit.note(
        (peer or Peer()).channel, command, fields.get("AccessKey"), REFUSED, wanted=["Topic:T"], reason="no."
    )
    audit.close()
    assert path.stat().st_mode & 0o777 == 0o600
    return path.read_text().splitlines()


def test_a_line_says_who_from_where_what_and_why(tmp_path: Path) -> None:
    shown = Peer(peer_certificate=PeerCertificate("orders", "ab" * 32))
    assert noted(tmp_path, peer=shown, AccessKey="ann", topic="T") == [
        "2023-11-14T22:13:20.000+00:00 decision=refused user=ann source=10.0.0.7:50000 certificate=orders "
        'request=215 name=DELETE_TOPIC_IN_BROKER about="Topic:T topic=T" reason=no.'
    ]


def test_an_unsigned_send_is_known_by_its_topic_and_group(caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit(AccessConfig(), ManualClock())
    send = RemotingCommand(RequestCode.SEND_MESSAGE_V2, {"a": "shop", "b": "orders", "i": "KEYS\x01hush"})
    leave = RemotingCommand(
        RequestCode.UNREGISTER_CLIENT, {"clientID": "10.0.0.7@1", "producerGroup": "shop"}
    )
    with caplog.at_level(logging.INFO, "gimbalmq.audit"):
        for command in (send, leave):
            audit.note(Peer().channel, command, None, REFUSED, reason="no.")
    told = [record.getMessage() for record in caplog.records]
    assert 'about="topic=orders producerGroup=shop" ' in told[0] and "hush" not in told[0]
    assert 'about="producerGroup=shop clientID=10.0.0.7@1" ' in told[1]


def test_a_line_may_be_json(tmp_path: Path) -> None:
    (line,) = noted(tmp_path, "json", AccessKey=HOSTILE, topic="T")
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.000+00:00",
        "decision": "refused",
        "user": HOSTILE,
        "source": "10.0.0.7:50000",
        "request": 215,
        "name": "DELETE_TOPIC_IN_BROKER",
        "about": "Topic:T topic=T",
        "reason": "no.",
    }


def test_names_from_the_wire_make_no_lines_of_their_own(tmp_path: Path) -> None:
    (line,) = noted(tmp_path, AccessKey=HOSTILE, topic="t\r\nuser=root" + "x" * 10_000)
    assert line.isascii() and line.isprintable() and len(line) < 700
    assert f"user={json.dumps(HOSTILE)}" in line


def test_secrets_of_a_request_are_not_written(tmp_path: Path) -> None:
    (line,) = noted(
        tmp_path, AccessKey="ann", Signature="sig-sig", secretKey="hush", value="hush", accessKey="k"
    )
    assert "hush" not in line and "sig-sig" not in line and "accessKey=k" in line


def test_a_file_that_cannot_be_opened_is_refused_by_its_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="auditLogPath"):
        Audit(AccessConfig(audit_log_path=str(tmp_path / "file" / "audit.log")), ManualClock())


def test_lines_are_added_and_a_slow_disk_holds_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit_module, "_MOST_WAITING", 3)
    go_on, begun, write = threading.Event(), threading.Event(), os.write

    def slow(fd: int, data: bytes) -> int:
        begun.set()
        go_on.wait(30)
        return write(fd, data)

    monkeypatch.setattr(os, "write", slow)
    path = tmp_path / "audit.log"
    path.write_text("old\n")
    audit = Audit(AccessConfig(audit_log_path=str(path)), ManualClock())
    with caplog.at_level(logging.INFO, "gimbalmq.audit"):
        audit.note(Peer().channel, RemotingCommand(1), "u0", REFUSED)
        assert begun.wait(30)
        for number in range(1, 10):
            audit.note(Peer().channel, RemotingCommand(1), f"u{number}", REFUSED)
    go_on.set()
    audit.close()
    old, first, *rest = path.read_text().splitlines()
    assert old == "old" and "user=u0" in first
    assert ["user=u1" in rest[0], "user=u2" in rest[1], "user=u3" in rest[2]] == [True] * 3
    assert rest[3:] == ["(6 lines are missing here: the disk was too slow)"]
    assert len(caplog.records) == 10, "the server's log has them all"


def test_a_file_that_was_moved_away_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(AccessConfig(audit_log_path=str(path)), ManualClock())
    audit.note(Peer().channel, RemotingCommand(1), "before", REFUSED)
    while not path.read_text():
        pass
    path.rename(tmp_path / "audit.log.1")
    audit.note(Peer().channel, RemotingCommand(1), "after", REFUSED)
    audit.close()
    audit.close()  # once more does no harm
    assert "user=before" in (tmp_path / "audit.log.1").read_text()
    assert "user=after" in path.read_text() and "before" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_administrators_change_is_all_that_needs_rights_to_change() -> None:
    """Whoever adds a request that only an administrator may send says whether it changes anything."""
    reads = {
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_NAMESRV_CONFIG,
    }
    for table in (NeedTable.of_broker(), NeedTable.of_nameserver()):
        for code, need in table.rows.items():
            words = need.words
            if need.level is Level.SUPER_ONLY:
                assert (code in CHANGES) != (code in reads), RequestCode(code)
            elif any(action in words for action in ("Create", "Delete", "Update")):
                assert code in CHANGES or code == RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode(code)


def test_what_repeats_without_being_slowed_down_has_one_line_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line for each message of a client without a key would fill a disk, and slow everybody down."""
    clock = ManualClock()
    audit = Audit(AccessConfig(), clock)

    def note(host: str = "10.0.0.7", reason: str = "username cannot be null.") -> None:
        audit.note(Peer(host).channel, RemotingCommand(310), None, TOLERATED, reason=reason, sums_up=True)

    with caplog.at_level("INFO", "gimbalmq.audit"):
        for _ in range(1000):
            note()
        note("10.0.0.8")
        note(reason="check signature failed.")
        assert len(caplog.messages) == 3
        clock.advance(60)
        note()
        assert "repeated=999" in caplog.messages[-1]
        monkeypatch.setattr(audit_module, "_MOST_KINDS", 5)
        for number in range(20):
            note(f"10.0.1.{number}")
        assert len(audit._summed) <= 5
        for _ in range(3):
            audit.note(Peer().channel, RemotingCommand(310), None, REFUSED, reason="no")
        assert sum("decision=refused" in text for text in caplog.messages) == 3
