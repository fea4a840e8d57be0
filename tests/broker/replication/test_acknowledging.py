"""The code of an answer, for each rule: what is waited for, for how long, and what is not even stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.broker.flush import GroupCommit
from gimbalmq.broker.replication.acknowledging import Acknowledging, Settled
from gimbalmq.broker.replication.acks import ReplicaAcks
from gimbalmq.broker.waits import Wait
from gimbalmq.protocol.codes import ResponseCode
from gimbalmq.testing.loop import VirtualClock, run_virtual
from tests.broker.replication.test_acks import Slave

OK = ResponseCode.SUCCESS
NO_DISK = ResponseCode.FLUSH_DISK_TIMEOUT
NO_SLAVE = ResponseCode.SLAVE_NOT_AVAILABLE
SLOW_SLAVE = ResponseCode.FLUSH_SLAVE_TIMEOUT
GAP = 1000
END = 5000


class Disk(GroupCommit):
    """A disk that is done when the test says so."""

    def __init__(self) -> None:
        self.waits: list[Wait[bool]] = []

    def wait(self, commitlog_offset: int) -> Wait[bool]:
        self.waits.append(Wait())
        return self.waits[-1]


class Scene:
    """A master whose log ends at END, with slaves."""

    def __init__(self, acked: list[int], **properties: object) -> None:
        self.slaves = [Slave(end, number) for number, end in enumerate(acked, 1)]
        texts = {key: str(value) for key, value in properties.items()}
        keys = {"brokerRole": "SYNC_MASTER", "haMaxGapNotInSync": str(GAP), **texts}
        config, unknown = BrokerConfig.from_properties(keys)
        assert not unknown
        self.disk = Disk()
        self.acks = ReplicaAcks(self.slaves, lambda: END)
        self.acknowledging = Acknowledging(LiveConfig(config), self.disk, self.acks)

    def ack(self, end: int, which: int = 0) -> None:
        self.slaves[which].acked = end
        self.acks.changed()


def virtual(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def main(_: VirtualClock) -> None:
        await work()

    run_virtual(main)


async def timed(code: Settled) -> tuple[ResponseCode, float]:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    return (code if isinstance(code, ResponseCode) else await code), loop.time() - begun


@pytest.mark.parametrize(
    ("rule", "acked", "options", "expected"),
    [
        # Nobody there.
        ("safe", [], {}, (NO_SLAVE, 0)),
        ("4.9", [], {}, (NO_SLAVE, 0)),
        ("5.x", [], {}, (OK, 0)),
        ("safe", [], {"inSyncReplicas": 2}, (NO_SLAVE, 0)),
        ("4.9", [], {"inSyncReplicas": 2}, (NO_SLAVE, 0)),
        ("5.x", [], {"inSyncReplicas": 2}, (SLOW_SLAVE, 3)),
        # Connected, and has not reported anything.
        ("safe", [-1], {}, (NO_SLAVE, 0)),
        ("4.9", [-1], {}, (NO_SLAVE, 0)),
        # There, and has everything.
        ("safe", [END], {}, (OK, 0)),
        ("4.9", [END], {}, (OK, 0)),
        ("5.x", [END], {"inSyncReplicas": 2}, (OK, 0)),
        # There, and does not come on.
        ("safe", [END - 1], {}, (SLOW_SLAVE, 3)),
        ("4.9", [END - 1], {}, (SLOW_SLAVE, 3)),
        ("5.x", [END - 1], {}, (OK, 0)),
        ("5.x", [END - 1], {"inSyncReplicas": 2, "slaveTimeout": 50}, (SLOW_SLAVE, 0.05)),
        # Far behind: 4.9 does not wait for such a one.
        ("4.9", [END - GAP], {}, (NO_SLAVE, 0)),
        ("4.9", [END - GAP + 1], {}, (SLOW_SLAVE, 3)),
        ("safe", [END - GAP], {}, (SLOW_SLAVE, 3)),
        # Two of two, one of two.
        ("safe", [END, END], {"inSyncReplicas": 3}, (OK, 0)),
        ("safe", [END, 0], {"inSyncReplicas": 3}, (SLOW_SLAVE, 3)),
        ("5.x", [END, 0], {"inSyncReplicas": 3}, (SLOW_SLAVE, 3)),
        ("4.9", [END, 0], {"inSyncReplicas": 3}, (OK, 0)),
        # A slave may stand in for its master: as many as there are, but not fewer than the least.
        ("safe", [], {"enableSlaveActingMaster": "true", "enableAutoInSyncReplicas": "true"}, (OK, 0)),
        (
            "5.x",
            [END, 0],
            {"enableSlaveActingMaster": "true", "enableAutoInSyncReplicas": "true", "inSyncReplicas": 3},
            (OK, 0),
        ),
        (
            "5.x",
            [END, 0],
            {
                "enableSlaveActingMaster": "true",
                "enableAutoInSyncReplicas": "true",
                "inSyncReplicas": 3,
                "minInSyncReplicas": 3,
            },
            (SLOW_SLAVE, 3),
        ),
    ],
)
def test_code_by_rule(
    rule: str, acked: list[int], options: dict[str, object], expected: tuple[ResponseCode, float]
) -> None:
    async def work() -> None:
        scene = Scene(acked, replicaRule=rule, **options)
        code, seconds = await timed(scene.acknowledging.settle(END))
        assert (code, round(seconds, 6)) == expected
        assert not scene.acks.waiting

    virtual(work)


def test_default_waits_for_one_slave() -> None:
    async def work() -> None:
        scene = Scene([0])
        code = scene.acknowledging.settle(END)
        assert not isinstance(code, ResponseCode) and not code.ended
        scene.ack(END)
        assert await code is OK

    virtual(work)


def test_async_master_waits_for_nobody() -> None:
    async def work() -> None:
        scene = Scene([0], brokerRole="ASYNC_MASTER")
        assert scene.acknowledging.settle(END) is OK
        assert not scene.acknowledging.waits and scene.acknowledging.refusal() is None

    virtual(work)


@pytest.mark.parametrize(
    ("disk_says", "slave_acks", "code", "seconds"),
    [
        (True, True, OK, 0),
        (False, True, NO_DISK, 0),
        (None, True, NO_DISK, 5),
        (True, False, SLOW_SLAVE, 3),
        (False, False, SLOW_SLAVE, 3),
        # Both are waited for; the slaves' code is the answer.
        (None, False, SLOW_SLAVE, 5),
    ],
)
def test_disk_and_slaves_are_waited_for_side_by_side(
    disk_says: bool | None, slave_acks: bool, code: ResponseCode, seconds: float
) -> None:
    async def work() -> None:
        scene = Scene([0], flushDiskType="SYNC_FLUSH")
        answer = scene.acknowledging.settle(END)
        if disk_says is not None:
            scene.disk.waits[0].end(disk_says)
        if slave_acks:
            scene.ack(END)
        found, waited = await timed(answer)
        assert found is code and waited == pytest.approx(seconds)

    virtual(work)


def test_disk_is_waited_for_without_slaves_too() -> None:
    async def work() -> None:
        scene = Scene([], flushDiskType="SYNC_FLUSH")
        answer = scene.acknowledging.settle(END)
        assert not isinstance(answer, ResponseCode)
        scene.disk.waits[0].end(True)
        assert await answer is NO_SLAVE

    virtual(work)


@pytest.mark.parametrize(
    ("acked", "options", "refused"),
    [
        ([], {}, False),
        ([], {"minInSyncReplicas": 2, "inSyncReplicas": 2}, True),
        ([END], {"minInSyncReplicas": 2, "inSyncReplicas": 2}, False),
        ([END - GAP], {"minInSyncReplicas": 2, "inSyncReplicas": 2}, True),
        # Apache looks at these only if slaves may stand in.
        ([], {"minInSyncReplicas": 2, "inSyncReplicas": 2, "replicaRule": "5.x"}, False),
        ([], {"minInSyncReplicas": 2, "inSyncReplicas": 2, "replicaRule": "4.9"}, False),
        ([], {"inSyncReplicas": 2, "replicaRule": "5.x", "enableSlaveActingMaster": "true"}, True),
        ([END], {"inSyncReplicas": 2, "replicaRule": "5.x", "enableSlaveActingMaster": "true"}, False),
        (
            [],
            {
                "inSyncReplicas": 2,
                "replicaRule": "5.x",
                "enableSlaveActingMaster": "true",
                "enableAutoInSyncReplicas": "true",
            },
            False,
        ),
        ([], {"minInSyncReplicas": 2, "inSyncReplicas": 2, "brokerRole": "ASYNC_MASTER"}, False),
    ],
)
def test_too_few_replicas_refuse_before_anything_is_stored(
    acked: list[int], options: dict[str, object], refused: bool
) -> None:
    refusal = Scene(acked, **options).acknowledging.refusal()
    assert (refusal is not None) == refused
    if refusal is not None:
        assert refusal.code == 1 and refusal.remark.startswith("in-sync replicas not enough: 1")


def test_replicas_that_are_dead_are_not_in_sync() -> None:
    scene = Scene([END, END], inSyncReplicas=3, enableSlaveActingMaster="true")
    assert scene.acknowledging.refusal() is None
    scene.acknowledging.living = lambda: 2
    assert scene.acknowledging.refusal() is not None


def test_controllers_set_is_waited_for_and_counted() -> None:
    async def work() -> None:
        options = {"enableControllerMode": "true", "controllerAddr": "127.0.0.1:9878", "brokerId": "-1"}
        scene = Scene([END, 0], brokerRole="SLAVE", allAckInSyncStateSet="true", **options)
        acknowledging = scene.acknowledging
        asked: list[tuple[int, Wait[bool]]] = []

        def confirmed(end: int) -> Wait[bool]:
            asked.append((end, Wait()))
            return asked[-1][1]

        acknowledging.confirmed = confirmed
        answer = acknowledging.settle(END)
        assert not isinstance(answer, ResponseCode) and asked[0][0] == END
        asked[0][1].end(True)
        assert await answer is OK
        answer = acknowledging.settle(END + 1)
        assert not isinstance(answer, ResponseCode)
        assert await answer is ResponseCode.FLUSH_SLAVE_TIMEOUT
        two = Scene([], minInSyncReplicas=2, inSyncReplicas=2, brokerRole="SLAVE", **options).acknowledging
        two.in_set = lambda: 1
        assert two.refusal() is not None
        two.in_set = lambda: 2
        assert two.refusal() is None

    virtual(work)


def test_change_is_done_when_the_disk_has_it() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        scene = Scene([0])
        change = asyncio.ensure_future(scene.acknowledging.settle_change(END, "the change"))
        await asyncio.sleep(0)
        scene.disk.waits[0].end(True)
        await asyncio.sleep(1)
        assert not change.done()  # the slave is waited for as a send would
        scene.ack(END)
        assert await change and loop.time() == 1
        late = asyncio.ensure_future(scene.acknowledging.settle_change(END + 1, "the change"))
        await asyncio.sleep(0)
        scene.disk.waits[1].end(True)
        assert await late and loop.time() == 4
        refused = asyncio.ensure_future(scene.acknowledging.settle_change(END, "the change"))
        await asyncio.sleep(0)
        scene.disk.waits[2].end(False)
        assert not await refused

    virtual(work)
