"""The log says of a failed message what becomes of it: nobody is promised another try after the last."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from gimbalmq import ConsumeContext, ConsumeFromWhere, Message, MessageView, Producer, PushConsumer
from gimbalmq.testing import LocalCluster, MemoryNetwork, VirtualClock, run_virtual


@pytest.mark.parametrize("ordered", [False, True])
def test_the_last_failure_is_told_as_a_dead_letter(
    ordered: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[int] = []

    async def main(clock: VirtualClock) -> None:
        network = MemoryNetwork(seed=1)
        host = network.host("10.0.0.90")
        async with LocalCluster(network=network, clock=clock, store=tmp_path) as cluster:
            async with Producer("writers", cluster.namesrv, network=host) as producer:
                await producer.send(Message("mails", b"to nobody"))
            consumer = PushConsumer(
                "mailers",
                cluster.namesrv,
                network=host,
                consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
                max_reconsume_times=1,
            )

            @consumer.subscribe("mails", ordered=ordered)
            async def send_mail(message: MessageView, context: ConsumeContext) -> None:
                tries.append(message.reconsume_times)
                context.delay_level = 1
                raise ConnectionError("no answer")

            async with consumer:
                await asyncio.sleep(60)

    with caplog.at_level(logging.WARNING):
        run_virtual(main)
    assert tries == [0, 1]
    told = [record.getMessage() for record in caplog.records]
    failed = [text for text in told if text.startswith("the handler of ")]
    dead = [text for text in told if "is a dead letter of group mailers after 2 tries" in text]
    assert len(failed) == 2 and len(dead) == 1
    assert not any("come again" in text for text in told)
    assert told.index(dead[0]) > told.index(failed[1]), "and not before it has happened"
    assert "gimbalmq deadletter show mailers`" in dead[0]
