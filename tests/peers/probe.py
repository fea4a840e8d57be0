"""Is a broker known to its name server? Asked with bytes written here, not with our own protocol code."""

from __future__ import annotations

import json
import socket
import struct
import time

from tests.peers.process import PeerError

UPDATE_BROKER_CONFIG = 25
GET_BROKER_CLUSTER_INFO = 106


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise ConnectionError("the server closed the connection")
        data += piece
    return data


def request(address: str, code: int, body: bytes = b"") -> bytes:
    """The body of a server's answer to one request without header fields."""
    host, port = address.rsplit(":", 1)
    header = json.dumps({"code": code, "language": "JAVA", "version": 0, "opaque": 1, "flag": 0}).encode()
    frame = struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body
    with socket.create_connection((host, int(port)), timeout=10.0) as connection:
        connection.sendall(frame)
        (length,) = struct.unpack(">i", _exactly(connection, 4))
        answer = _exactly(connection, length)
    (header_length,) = struct.unpack(">i", answer[:4])
    return answer[4 + (header_length & 0xFFFFFF) :]


def wait_registered(namesrv: str, broker: str, *, nudge: bool = False, timeout: float = 60.0) -> None:
    """Return when the name server knows the broker at this address.

    A Java 5.x broker is up before it has found a name server, and then registers only after ten seconds; a nudge
    (its permission set to what it is) makes it register all its topics at once.
    """
    deadline = time.monotonic() + timeout
    known = ""
    for attempt in range(1_000_000):
        try:
            if nudge and attempt % 10 == 0:
                request(broker, UPDATE_BROKER_CONFIG, b"brokerPermission=6")
            known = request(namesrv, GET_BROKER_CLUSTER_INFO).decode()
        except OSError as error:
            known = str(error)
        if f'"{broker}"' in known:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    raise PeerError(f"{broker} did not register with {namesrv} in {timeout:.0f} s; it knows: {known}")
