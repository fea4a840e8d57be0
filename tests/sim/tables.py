"""What servers keep for their peers: nothing of it may be left when the peers are gone."""

from __future__ import annotations

from gimbalmq.broker.broker import Broker
from gimbalmq.nameserver.server import NameServer


def left_in_broker(broker: Broker) -> list[str]:
    """What a broker without clients still keeps for some."""
    name = broker.live.now.broker_name
    found = []
    if len(broker.long_poll):
        found.append(f"{name}: {len(broker.long_poll)} pulls are parked for nobody")
    if broker.consumers.groups():
        found.append(f"{name}: members of {[group.name for group in broker.consumers.groups()]} are listed")
    if broker.producers.groups():
        found.append(f"{name}: producers of {list(broker.producers.groups())} are listed")
    if broker._server.channels:
        found.append(f"{name}: {len(broker._server.channels)} connections are open")
    waiting = sum(len(channel._pending) for channel in broker._pool._channels.values())
    if waiting:
        found.append(f"{name}: {waiting} calls wait for an answer")
    if broker.store.read_only_reason is not None:
        found.append(f"{name}: still read-only: {broker.store.read_only_reason}")
    return found


def left_in_nameserver(server: NameServer, brokers: int) -> list[str]:
    """What a name server keeps for more than its brokers."""
    assert server._remoting is not None
    if len(server._remoting.channels) > brokers:
        return [f"name server: {len(server._remoting.channels)} connections for {brokers} brokers"]
    return []
