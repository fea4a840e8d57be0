"""What a slave asks its master before it copies, of a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from gimbalmq.broker.replication import agreement
from gimbalmq.errors import RemoteProtocolError
from gimbalmq.protocol.bodies import KvTable
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.transport.channel import Channel, Handlers
from gimbalmq.transport.pool import ChannelPool
from gimbalmq.transport.server import RemotingServer
from tests.broker.desk import fields, open_desk
from tests.support import run


def test_every_record_can_be_compared_also_one_that_no_queue_has(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            store, pool, address = desk.broker.store, desk.client.pool, desk.broker.address
            await desk.create("T")
            place = int(fields(await desk.client.send())["msgId"][16:], 16)
            await desk.client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
            last = store.last_record()
            assert last is not None and last[0] > place  # what says that the topic was deleted
            for offset in (place, last[0]):
                assert await agreement.record_of(pool, address, offset) == store.record_at(offset)
                answer = await desk.client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
                assert answer.code == 1
            assert await agreement.record_of(pool, address, place + 1) is None
            assert await agreement.bounds(pool, address) == (0, store.max_commitlog_offset)
            found = await agreement.compare(store, pool, address)
            assert found.verdict is agreement.Verdict.CONTINUES and found.place == last[0]

    run(work())


def test_whoever_has_no_log_is_no_master() -> None:
    async def work() -> None:
        handlers = Handlers()

        def say(_: Channel, request: RemotingCommand) -> RemotingCommand:
            return request.reply(body=KvTable(table={"commitLogMinOffset": "many"}).dump())

        handlers.add(RequestCode.GET_BROKER_RUNTIME_INFO, say)
        server, pool = RemotingServer(handlers), ChannelPool()
        await server.start("127.0.0.1", 0)
        try:
            with pytest.raises(RemoteProtocolError, match="does not say where its commit log"):
                await agreement.bounds(pool, f"127.0.0.1:{server.port}")
        finally:
            await pool.close()
            await server.close()

    run(work())


@pytest.mark.parametrize(
    ("verdict", "place", "words"),
    [
        (agreement.Verdict.AHEAD, None, ["ends at 900", "at 500", "400 bytes", "promote", "rejoin"]),
        (agreement.Verdict.BEHIND, None, ["ends at 900", "begins at 100", "empty its store folder"]),
        (agreement.Verdict.BEHIND, 50, ["lies at 50", "begins at 100", "empty its store folder"]),
        (agreement.Verdict.DIFFERENT, 300, ["ends at 900", "ends at 500", "at 300", "rejoin"]),
    ],
)
def test_refusal_says_which_offsets_and_what_to_do(
    verdict: agreement.Verdict, place: int | None, words: list[str]
) -> None:
    problem = agreement.Agreement(verdict, 900, 100, 500, place).problem("10.0.0.1:10911")
    assert problem is not None and "10.0.0.1:10911" in problem
    for word in words:
        assert word in problem


def test_nothing_is_said_against_a_log_that_fits() -> None:
    for verdict in (agreement.Verdict.EMPTY, agreement.Verdict.CONTINUES):
        assert agreement.Agreement(verdict, 0, 0, 0).problem("m:1") is None
