"""The stream of controller mode, as bytes (Apache 5.x: AutoSwitchHAClient and AutoSwitchHAConnection).

It uses the replication port but is not the stream of ``ha``: both sides begin with a handshake in which the master
names its epochs, and every packet says to which epoch its bytes belong and up to where the log is confirmed.

    slave  -> master   state 1, flags, id of the slave             16 bytes
    master -> slave    state 1, length, its end, last epoch, then  20 bytes, 12 for each epoch
    slave  -> master   state 2, its end                            12 bytes
    master -> slave    state 2, length, offset, epoch, start of that epoch, confirm offset, then bytes of the log
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gimbalmq.errors import RemoteProtocolError
from gimbalmq.protocol.ha import join_runs

HANDSHAKE, TRANSFER = 1, 2

MOST_EPOCHS = 1000
"""Apache's master has room for so many in its handshake."""

MOST_BODY_BYTES = 16 * 1024 * 1024
"""Of one packet; Apache's slave has room for 4 MiB, and its master sends 32 KiB unless it was told otherwise."""

_STATE = struct.Struct(">i")
_SLAVE_HANDSHAKE = struct.Struct(">ihhq")
_MASTER_HANDSHAKE = struct.Struct(">iiqi")
_REPORT = struct.Struct(">iq")
_TRANSFER = struct.Struct(">iiqiqq")
_EPOCH = struct.Struct(">iq")


class Epoch(NamedTuple):
    """A master's term, and where the log stood when it began."""

    epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class SlaveHandshake:
    """The first packet of a slave.

    Attributes:
        broker_id: what the controller calls the slave; never 0.
        from_last_file: a slave without any data wants the master's last file only.
        is_learner: the slave never counts as in sync.
    """

    broker_id: int
    from_last_file: bool = False
    is_learner: bool = False

    def encode(self) -> bytes:
        return _SLAVE_HANDSHAKE.pack(HANDSHAKE, self.from_last_file, self.is_learner, self.broker_id)


@dataclass(frozen=True, slots=True)
class Report:
    """How far a slave has the log."""

    offset: int

    def encode(self) -> bytes:
        return _REPORT.pack(TRANSFER, self.offset)


@dataclass(frozen=True, slots=True)
class MasterHandshake:
    """The master's answer to a handshake: its epochs, oldest first, and its end."""

    end: int
    epochs: Sequence[Epoch]

    def encode(self) -> bytes:
        """The newest epochs, if there are more than fit: those are what a slave looks for."""
        epochs = self.epochs[-MOST_EPOCHS:]
        last = epochs[-1].epoch if epochs else -1
        head = _MASTER_HANDSHAKE.pack(HANDSHAKE, len(epochs) * _EPOCH.size, self.end, last)
        return head + b"".join(_EPOCH.pack(*epoch) for epoch in epochs)


class Transfer(NamedTuple):
    """Bytes of the log from ``offset`` on, a packet or a piece of one; a packet without bytes is a heartbeat."""

    offset: int
    epoch: Epoch
    confirm: int
    data: bytes | memoryview = b""

    def encode(self) -> bytes:
        return transfer_header(len(self.data), self.offset, self.epoch, self.confirm) + self.data


FromMasterPacket = MasterHandshake | Transfer


def transfer_header(size: int, offset: int, epoch: Epoch, confirm: int) -> bytes:
    """What stands before ``size`` bytes of the log."""
    return _TRANSFER.pack(TRANSFER, size, offset, epoch.epoch, epoch.start, confirm)


class FromSlave:
    """What a slave sends, read from pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes | bytearray | memoryview) -> Iterator[SlaveHandshake | Report]:
        """The packets that ``piece`` completes.

        Raises:
            RemoteProtocolError: this is no such stream; packets before the mistake were given.
        """
        data = self._rest + piece
        at = 0
        try:
            while len(data) - at >= _STATE.size:
                (state,) = _STATE.unpack_from(data, at)
                if state == TRANSFER:
                    if len(data) - at < _REPORT.size:
                        return
                    _, offset = _REPORT.unpack_from(data, at)
                    at += _REPORT.size
                    yield Report(offset)
                elif state == HANDSHAKE:
                    if len(data) - at < _SLAVE_HANDSHAKE.size:
                        return
                    _, last_file, learner, broker_id = _SLAVE_HANDSHAKE.unpack_from(data, at)
                    at += _SLAVE_HANDSHAKE.size
                    if broker_id <= 0:
                        raise RemoteProtocolError(
                            f"a slave says that its id is {broker_id}; a controller's ids begin with 1"
                        )
                    yield SlaveHandshake(broker_id, last_file == 1, learner == 1)
                else:
                    raise RemoteProtocolError(_stranger("a slave", state))
        finally:
            self._rest = data[at:]


class FromMaster:
    """What a master sends, read from pieces of any size. Bytes of the log are handed on as they come."""

    def __init__(self) -> None:
        self._head = b""
        self._transfer = Transfer(0, Epoch(0, 0), 0)
        self._left = 0
        """Bytes of the packet at hand that have not come yet."""

    def feed(self, piece: bytes | bytearray | memoryview) -> Iterator[FromMasterPacket]:
        """What these bytes bring, in order; go through it before the next bytes come.

        Raises:
            RemoteProtocolError: this is no such stream; what came before the mistake was given.
        """
        view = memoryview(piece)
        while view:
            if self._left:
                data, view = view[: self._left], view[self._left :]
                now = self._transfer
                self._left -= len(data)
                self._transfer = now._replace(offset=now.offset + len(data))
                yield now._replace(data=data)
                continue
            view = self._fill(view, _STATE.size + 4)
            if len(self._head) < _STATE.size + 4:
                return
            state, size = struct.unpack_from(">ii", self._head)
            head_bytes = _header_bytes(state, size)
            need = head_bytes if state == TRANSFER else head_bytes + size
            view = self._fill(view, need)
            if len(self._head) < need:
                return
            head, self._head = self._head, b""
            if state == HANDSHAKE:
                _, _, end, _ = _MASTER_HANDSHAKE.unpack_from(head)
                yield MasterHandshake(
                    end, [Epoch(*entry) for entry in _EPOCH.iter_unpack(head[_MASTER_HANDSHAKE.size :])]
                )
                continue
            _, self._left, offset, epoch, start, confirm = _TRANSFER.unpack(head)
            self._transfer = Transfer(offset, Epoch(epoch, start), confirm)
            if not self._left:
                yield self._transfer

    def _fill(self, view: memoryview, size: int) -> memoryview:
        """Completes the head as far as there are bytes for it; returns what is left of them."""
        missing = max(0, size - len(self._head))
        self._head += view[:missing]
        return view[missing:]


def join_transfers(packets: Iterator[FromMasterPacket]) -> Iterator[FromMasterPacket]:
    """The same in fewer packets: bytes of one epoch that follow each other become one, with what the last one confirms.

    An error comes behind the packets that came before it.
    """
    return join_runs(packets, _follows, _join)


def _follows(before: FromMasterPacket, packet: FromMasterPacket) -> bool:
    if not isinstance(before, Transfer) or not isinstance(packet, Transfer):
        return False
    if not before.data or not packet.data:
        return False
    return before.epoch == packet.epoch and before.offset + len(before.data) == packet.offset


def _join(run: list[FromMasterPacket]) -> FromMasterPacket:
    transfers = [packet for packet in run if isinstance(packet, Transfer)]
    data = b"".join(packet.data for packet in transfers)
    return transfers[-1]._replace(offset=transfers[0].offset, data=data)


def _header_bytes(state: int, size: int) -> int:
    """Of a master's packet; raises RemoteProtocolError if there is no such packet."""
    if state == TRANSFER:
        if not 0 <= size <= MOST_BODY_BYTES:
            raise RemoteProtocolError(
                f"the master sends a packet of {size} bytes and may send {MOST_BODY_BYTES}; "
                "lower its haTransferBatchSize"
            )
        return _TRANSFER.size
    if state == HANDSHAKE:
        if size % _EPOCH.size or not 0 <= size <= MOST_EPOCHS * _EPOCH.size:
            raise RemoteProtocolError(f"the master's handshake has {size} bytes of epochs, which is no list")
        return _MASTER_HANDSHAKE.size
    raise RemoteProtocolError(_stranger("the master", state))


def _stranger(who: str, state: int) -> str:
    return (
        f"{who} sends a packet of state {state}, and 1 and 2 are known: it does not speak the stream of controller "
        "mode; set enableControllerMode on all replicas or on none"
    )
