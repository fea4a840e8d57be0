"""Replicas whose master Apache's controller elects, of either kind in one set; sends that follow the master."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.peers.apache import ApacheBroker, ApacheController
from tests.peers.frames import Answer, Frame, _read, one
from tests.peers.replicas import Kind, Replica, ReplicaSet
from tests.peers.traffic import configure, send_frame

_SYNC_STATE_DATA, _ELECT_MASTER, _EPOCHS, _METADATA = 1006, 1002, 1007, 1005
_NOT_LEADER = 2007
_NUDGE_SECONDS = 1.0
"""An Apache slave learns where to copy from when it registers. Told its permission, it does so at once."""

# What an Apache broker would do every 5 s.
_QUICK: Mapping[str, object] = {
    "enableControllerMode": "true",
    "allAckInSyncStateSet": "true",
    "slaveTimeout": 3000,
    "syncBrokerMetadataPeriod": 1000,
    "checkSyncStateSetPeriod": 1000,
}


class ControlledSet(ReplicaSet):
    """Replicas of one broker name under a controller that is running."""

    def __init__(
        self,
        folder: Path,
        name: str,
        controller: ApacheController,
        *others: ApacheController,
        namesrv: str,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        addresses = ";".join(each.address for each in (controller, *others))
        settings = {**_QUICK, "controllerAddr": addresses, **(extra or {})}
        super().__init__(folder, name, namesrv=namesrv, extra=settings)
        self.controllers = [controller, *others]

    @property
    def controller(self) -> ApacheController:
        """The one that leads."""
        deadline = time.monotonic() + 60.0
        while len(self.controllers) > 1:
            for each in self.controllers:
                if each.running:
                    told = one(each.address, Frame(_METADATA)).fields
                    if told.get("controllerLeaderAddress") == each.address and told.get("isLeader") == "true":
                        return each
            assert time.monotonic() < deadline, "no controller leads"
            time.sleep(0.1)
        return self.controllers[0]

    def member(self, kind: Kind, *, store: Path | None = None, port: int | None = None) -> Replica:
        """One that is not started yet."""
        made = self.replica(kind, -1, role="SLAVE", store=store, port=port)
        made.properties["brokerId"] = -1
        return made

    def standing(self) -> dict[str, Any]:
        """What the controller says: masterAddress, masterBrokerId, masterEpoch, inSyncReplicas ..."""
        answer = one(self.controller.address, Frame(_SYNC_STATE_DATA, body=json.dumps([self.name]).encode()))
        if answer.code == _NOT_LEADER:  # it has just started
            return {}
        assert answer.code == 0, answer
        found = json.loads(answer.body)["replicasInfoTable"].get(self.name)
        return dict(found or {})

    def in_sync(self) -> dict[str, int]:
        """Ids of the replicas in sync by their addresses."""
        return {each["brokerAddress"]: each["brokerId"] for each in self.standing().get("inSyncReplicas", [])}

    def wait_for_set(self, *replicas: Replica, seconds: float = 60.0) -> dict[str, int]:
        """Returns when these, and no others, are in sync."""
        wanted = {replica.address for replica in replicas}
        deadline = time.monotonic() + seconds
        nudged = time.monotonic()
        while set(found := self.in_sync()) != wanted:
            assert time.monotonic() < deadline, f"in sync are {found}, and {wanted} should be"
            if time.monotonic() - nudged > _NUDGE_SECONDS:
                nudged = time.monotonic()
                for replica in replicas:
                    if isinstance(replica, ApacheBroker):
                        configure(replica.address, brokerPermission=6)
            time.sleep(0.05)
        return found

    def wait_for_master(self, replica: Replica, seconds: float = 60.0) -> None:
        """Returns when the controller has elected this one."""
        deadline = time.monotonic() + seconds
        while (standing := self.standing()).get("masterAddress") != replica.address:
            assert time.monotonic() < deadline, f"{replica.address} should be the master: {standing}"
            time.sleep(0.02)

    def elect(self, replica: Replica) -> Answer:
        """What mqadmin's electMaster asks for."""
        fields = {
            "clusterName": str(replica.properties["brokerClusterName"]),
            "brokerName": self.name,
            "brokerId": str(self.in_sync()[replica.address]),
            "designateElect": "true",
        }
        return one(self.controller.address, Frame(_ELECT_MASTER, fields))


def epochs(replica: Replica) -> list[tuple[int, int]]:
    """What a running broker says of its epochs (1007)."""
    answer = one(replica.address, Frame(_EPOCHS))
    assert answer.code == 0, answer
    return [(entry["epoch"], entry["startOffset"]) for entry in json.loads(answer.body)["epochList"]]


def epoch_file(replica: Replica) -> list[tuple[int, int]]:
    """What its file says."""
    lines = (replica.store / "epochFileCheckpoint").read_text().splitlines()
    return [(int(epoch), int(start)) for epoch, _, start in (line.partition("-") for line in lines[2:])]


class Pursuit:
    """Sends to whichever of some brokers takes messages, one to each queue in flight, in a thread of its own.

    Apache's broker works on the messages of one connection in any order, so a queue has one on its way at a time.

    Attributes:
        accepted: number, queue, time and broker of every message that was answered 0.
        codes: how often each code came.
    """

    _numbers = itertools.count(1)

    def __init__(self, topic: str, *replicas: Replica, size: int = 300, queues: int = 8) -> None:
        self.topic = topic
        self.addresses = [replica.address for replica in replicas]
        self.size = size
        self.queues = queues
        self.accepted: list[tuple[int, int, float, str]] = []
        self.codes: dict[int, int] = {}
        self.error: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pursuit")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(30)
        if error is None:
            assert self.error is None, self.error

    def wait_for(self, count: int, seconds: float = 60.0) -> None:
        """Returns when so many more messages are accepted."""
        wanted, deadline = len(self.accepted) + count, time.monotonic() + seconds
        while len(self.accepted) < wanted:
            assert self.error is None, self.error
            assert time.monotonic() < deadline, (
                f"{len(self.accepted)} accepted and {wanted} wanted; answers by code: {self.codes}"
            )
            time.sleep(0.005)

    def first_at(self, replica: Replica, moment: float, seconds: float = 60.0) -> float:
        """Seconds from a moment (time.monotonic) to the first message that this broker took after it."""
        deadline = time.monotonic() + seconds
        while True:
            for _, _, when, address in reversed(self.accepted[:]):
                if when < moment:
                    break
                if address == replica.address:
                    found = [when for _, _, when, at in self.accepted if at == address and when >= moment]
                    return found[0] - moment
            assert time.monotonic() < deadline, f"{replica.address} takes no messages: {self.codes}"
            time.sleep(0.005)

    def _run(self) -> None:
        try:
            for address in itertools.cycle(self.addresses):
                if self._stopping.is_set():
                    return
                try:
                    self._stay(address)
                except (OSError, ConnectionError):
                    pass  # it is dead; the next one
                time.sleep(0.01)
        except BaseException as error:
            self.error = error

    def _stay(self, address: str) -> None:
        """Sends to one broker as long as it takes messages."""
        host, port = address.rsplit(":", 1)
        flying: dict[int, int] = {}
        with socket.create_connection((host, int(port)), 5.0) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                idle = set(range(self.queues)).difference(flying.values())
                for queue in idle if not self._stopping.is_set() else ():
                    number = next(self._numbers)
                    flying[number] = queue
                    body = f"#{number:09d}#".encode().ljust(self.size, b"x")
                    connection.sendall(send_frame(self.topic, body, queue_id=queue).encoded(number))
                if not flying:
                    return
                number, answer = _read(connection)
                queue = flying.pop(number)
                self.codes[answer.code] = self.codes.get(answer.code, 0) + 1
                if answer.code == 0:
                    self.accepted.append((number, queue, time.monotonic(), address))
                elif answer.code in (2, 14, 16, 17):  # a slave, or not known here yet
                    return

    def check(self, bodies: Mapping[int, list[bytes]]) -> None:
        """Every accepted message is there, once, in the order of its queue."""
        for queue in range(self.queues):
            stored = [int(body[1:10]) for body in bodies.get(queue, []) if body.startswith(b"#")]
            sent = [number for number, where, *_ in self.accepted if where == queue]
            lost = sorted(set(sent) - set(stored))
            assert not lost, (
                f"queue {queue}: {len(lost)} of {len(sent)} accepted messages are lost: {lost[:20]}"
            )
            assert len(stored) == len(set(stored)), f"queue {queue}: some messages are there twice"
            places = {number: at for at, number in enumerate(stored)}
            order = [places[number] for number in sorted(sent)]
            assert order == sorted(order), f"queue {queue}: accepted messages are out of order"
