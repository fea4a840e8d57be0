"""Packets of controller mode's stream, by bytes and in pieces of every size."""

from __future__ import annotations

import pytest

from gimbalmq.errors import RemoteProtocolError
from gimbalmq.protocol.ha_epochs import (
    MOST_BODY_BYTES,
    MOST_EPOCHS,
    Epoch,
    FromMaster,
    FromSlave,
    MasterHandshake,
    Report,
    SlaveHandshake,
    Transfer,
    join_transfers,
)

SLAVE = bytes.fromhex("00000001 0000 0000 0000000000000002")
MASTER = bytes.fromhex("00000001 0000000c 00000000000004d2 00000001 00000001 0000000000000000")
REPORT = bytes.fromhex("00000002 00000000000004d2")
HEARTBEAT = bytes.fromhex("00000002 00000000 00000000000004d2 00000001 0000000000000000 00000000000004d2")


def test_packets_have_apaches_bytes() -> None:
    assert SlaveHandshake(2).encode() == SLAVE
    assert SlaveHandshake(2, from_last_file=True, is_learner=True).encode()[4:8] == b"\0\1\0\1"
    assert MasterHandshake(1234, [Epoch(1, 0)]).encode() == MASTER
    assert Report(1234).encode() == REPORT
    assert Transfer(1234, Epoch(1, 0), 1234).encode() == HEARTBEAT


def test_a_master_without_epochs_says_so() -> None:
    answer = MasterHandshake(0, [])
    assert list(FromMaster().feed(answer.encode())) == [answer]
    assert answer.encode()[-4:] == b"\xff" * 4


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 13, 17, 4096])
def test_what_a_slave_sends_is_read_from_pieces_of_any_size(size: int) -> None:
    packets: list[SlaveHandshake | Report] = [
        SlaveHandshake(7, from_last_file=True),
        Report(0),
        Report(99),
        Report(2**62),
    ]
    data = b"".join(packet.encode() for packet in packets)
    reader = FromSlave()
    got = [packet for at in range(0, len(data), size) for packet in reader.feed(data[at : at + size])]
    assert got == packets


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 13, 17, 4096])
def test_what_a_master_sends_is_read_from_pieces_of_any_size(size: int) -> None:
    packets: list[MasterHandshake | Transfer] = [
        MasterHandshake(500, [Epoch(1, 0), Epoch(4, 200)]),
        Transfer(0, Epoch(1, 0), 0, bytes(range(200))),
        Transfer(200, Epoch(4, 200), 150),
        Transfer(-1, Epoch(4, 200), 150, b"x" * 300),
    ]
    data = b"".join(packet.encode() for packet in packets)
    reader = FromMaster()
    got: list[MasterHandshake | Transfer] = []
    for at in range(0, len(data), size):
        for packet in reader.feed(data[at : at + size]):
            before = got[-1] if got else None
            if (
                isinstance(packet, Transfer)
                and isinstance(before, Transfer)
                and packet.epoch == before.epoch
                and before.data
                and packet.offset == before.offset + len(before.data)
            ):
                got[-1] = before._replace(data=bytes(before.data) + packet.data)
            else:
                got.append(packet)
    assert got == packets


def test_bytes_of_the_log_do_not_wait_for_the_rest_of_their_packet() -> None:
    packet = Transfer(100, Epoch(2, 50), 70, b"abcdef").encode()
    reader = FromMaster()
    assert list(reader.feed(packet[:-4])) == [Transfer(100, Epoch(2, 50), 70, b"ab")]
    assert list(reader.feed(packet[-4:])) == [Transfer(102, Epoch(2, 50), 70, b"cdef")]


def test_only_the_newest_epochs_are_told() -> None:
    epochs = [Epoch(number, number * 100) for number in range(MOST_EPOCHS + 5)]
    (answer,) = FromMaster().feed(MasterHandshake(10**9, epochs).encode())
    assert isinstance(answer, MasterHandshake)
    assert list(answer.epochs) == epochs[5:]


def test_another_stream_is_named_and_not_waited_for() -> None:
    plain_report = (1234).to_bytes(8, "big")
    with pytest.raises(RemoteProtocolError, match="enableControllerMode on all replicas or on none"):
        list(FromSlave().feed(plain_report))
    plain_packet = (7 << 32).to_bytes(8, "big") + (5).to_bytes(4, "big")
    with pytest.raises(RemoteProtocolError, match="state 7"):
        list(FromMaster().feed(plain_packet))


def test_impossible_sizes_and_ids_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="haTransferBatchSize"):
        list(FromMaster().feed(HEARTBEAT[:4] + (MOST_BODY_BYTES + 1).to_bytes(4, "big") + HEARTBEAT[8:]))
    with pytest.raises(RemoteProtocolError, match="no list"):
        list(FromMaster().feed(MASTER[:4] + (13).to_bytes(4, "big") + MASTER[8:]))
    with pytest.raises(RemoteProtocolError, match="its id is 0"):
        list(FromSlave().feed(SlaveHandshake(0).encode()))


def test_packets_before_a_mistake_are_given() -> None:
    packets = FromSlave().feed(REPORT + b"\0\0\0\x09")
    assert next(packets) == Report(1234)
    with pytest.raises(RemoteProtocolError):
        next(packets)


def test_packets_of_one_epoch_are_joined_as_far_as_they_follow_each_other() -> None:
    first, second = Epoch(1, 0), Epoch(2, 16)
    packets: list[MasterHandshake | Transfer] = [
        MasterHandshake(20, [first]),
        Transfer(10, first, 3, b"ab"),
        Transfer(12, first, 4, b"cd"),
        Transfer(14, first, 5),
        Transfer(14, first, 6, b"ef"),
        Transfer(16, second, 7, b"gh"),
        Transfer(90, second, 8, b"ij"),
        Transfer(92, second, 9, b"kl"),
    ]
    joined = join_transfers(FromMaster().feed(b"".join(packet.encode() for packet in packets) + b"\xff" * 8))
    found = [next(joined) for _ in range(6)]
    assert found == [
        packets[0],
        Transfer(10, first, 4, b"abcd"),
        *packets[3:6],
        Transfer(90, second, 9, b"ijkl"),
    ]
    with pytest.raises(RemoteProtocolError):
        next(joined)
