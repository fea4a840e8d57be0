"""Every request of both servers over real sockets: unsigned, wrongly signed, by a user without rights, by one with just
the rights it needs, by an administrator. Nothing answers that should not, and nothing changes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest

from gimbalmq._steps import run_through
from gimbalmq.access.needs import Level, NeedTable
from gimbalmq.access.policies import Acl, Asked, Decision, Entry, Policy, PolicyType
from gimbalmq.access.table import AccessTable
from gimbalmq.access.users import User, UserStatus
from gimbalmq.broker.broker import Broker
from gimbalmq.model.topics import retry_topic
from gimbalmq.nameserver.server import NameServer
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import BINARY_HEADER, JSON_HEADER, RemotingCommand
from gimbalmq.protocol.signing import Signer
from gimbalmq.testing import LocalCluster
from gimbalmq.transport.channel import Channel, Handlers
from gimbalmq.transport.pool import ChannelPool
from tests.access.requests import CLIENT, GROUP, PRODUCERS, TOPIC, Sample, broker_samples, nameserver_samples
from tests.broker.desk import send_fields
from tests.support import run, until

SECONDS = 10.0
REFUSED = ResponseCode.NO_PERMISSION
UNKNOWN_CODES = (0, 9, 44, 12345, 200_050, -1)

KEYS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": "admin", "password": "secret-of-admin"}),
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": "servers", "secretKey": "secret-of-servers"}
    ),
    # Hundreds of refusals come from one address here.
    "authFailureDelayMillis": "0",
}

USERS = {
    name: Signer(name, f"secret-of-{name}")
    for name in ("admin", "servers", "plain", "asleep", "granted", "nobody")
}


class Peer:
    """A connection to each server."""

    def __init__(self, signer: Signer | None = None) -> None:
        handlers = Handlers(answer_unknown=False)
        for code in (39, 40, 220, 221, 307, 309, 326):
            handlers.add(code, _obey)
        self._pool = ChannelPool(handlers, signer=signer)

    async def ask(
        self, address: str, code: int, sample: Sample, encoding: int = JSON_HEADER
    ) -> RemotingCommand:
        command = RemotingCommand(code, sample.fields, sample.body, serialize_type=encoding)
        return await self._pool.call(address, command, SECONDS)

    async def tell(self, address: str, code: int, sample: Sample) -> None:
        await self._pool.oneway(address, RemotingCommand(code, sample.fields, sample.body))

    async def close(self) -> None:
        await self._pool.close()


def _obey(_channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
    return None if request.is_oneway else request.reply(body=b"{}")


class Secured:
    """A cluster whose servers check everybody, with a topic, a group and its one member, who is an administrator."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.broker: Broker = cluster.broker
        self.nameserver: NameServer = cluster.nameserver
        self.member = Peer(USERS["admin"])
        self.peers = [self.member]

    def peer(self, signer: Signer | None = None) -> Peer:
        self.peers.append(Peer(signer))
        return self.peers[-1]

    @property
    def tables(self) -> list[AccessTable]:
        found = [self.broker.access.table, self.nameserver.access and self.nameserver.access.table]
        assert all(found)
        return [table for table in found if table]

    async def fill(self) -> None:
        for table in self.tables:
            await table.create_user(User("plain", "secret-of-plain"))
            await table.create_user(User("granted", "secret-of-granted"))
            await table.create_user(User("asleep", "secret-of-asleep", status=UserStatus.DISABLE))
        address = self.broker.address
        samples = broker_samples(0, 0, 0, self.broker.live.now.broker_name)
        keyed = Sample(send_fields(TOPIC, properties={"KEYS": "k"}), b"body")
        sent = await self._done(RequestCode.SEND_MESSAGE_V2, keyed)
        half = await self._done(
            RequestCode.SEND_MESSAGE_V2,
            Sample(send_fields(TOPIC, properties={"TRAN_MSG": "true", "PGROUP": PRODUCERS}), b"half"),
        )
        await self._done(RequestCode.HEART_BEAT, samples[RequestCode.HEART_BEAT])
        # Its retry topic is announced a moment later.
        await until(lambda: self.nameserver.table.route(retry_topic(GROUP)) is not None)
        await self._done(RequestCode.UPDATE_CONSUMER_OFFSET, samples[RequestCode.UPDATE_CONSUMER_OFFSET])
        self.samples: dict[str, dict[int, Sample]] = {
            address: broker_samples(
                _place(sent), _place(half), int((half.ext_fields or {})["queueOffset"]), "broker-a"
            ),
            self.nameserver.address: nameserver_samples("broker-a", address, "DefaultCluster"),
        }
        self.needs: dict[str, NeedTable] = {
            address: NeedTable.of_broker(),
            self.nameserver.address: NeedTable.of_nameserver(),
        }
        self.needs[address].topic_at = lambda _: TOPIC

    async def _done(self, code: int, sample: Sample) -> RemotingCommand:
        answer = await self.member.ask(self.broker.address, code, sample)
        assert answer.code == 0, answer
        return answer

    def every(self) -> Iterable[tuple[str, int, Sample]]:
        """Each code of each server, and some that nobody knows; what takes something away comes last."""
        for address, samples in self.samples.items():
            unknown = [code for code in (*RequestCode, *UNKNOWN_CODES) if code not in samples]
            for code in (*sorted(samples, key=lambda code: samples[code].last), *unknown):
                yield address, int(code), samples.get(code, Sample({"topic": TOPIC}))

    def handled(self, address: str) -> set[int]:
        remoting = self.nameserver._remoting
        assert remoting is not None
        handlers = self.broker.handlers if address == self.broker.address else remoting._handlers
        return set(handlers.by_code)

    async def state(self) -> dict[str, object]:
        """Everything that a request might change, as text."""
        broker, nameserver = self.broker, self.nameserver
        assert broker.access.accounts is not None
        online = [
            (group.name, [member.client_id for member in group.members.values()], repr(group.subscriptions))
            for group in broker.consumers.groups()
        ]
        producers = {
            name: [member.client_id for member in members]
            for name, members in broker.producers.groups().items()
        }
        return {
            "topics": sorted(config.dump() for config in broker.topics.all()),
            "groups": broker.groups.table().dump(),
            "offsets": [(key, dict(row)) for key, row in broker.offsets.rows()],
            "locks": len(broker.locks),
            "online": online,
            "producers": producers,
            "config": broker.live.now,
            "log": broker.store.max_commitlog_offset,
            "held pulls": len(broker.long_poll),
            "users": [repr(sorted(table.users().items())) for table in self.tables],
            "accounts": [repr(broker.access.accounts.accounts()), broker.access.accounts.white_texts()],
            "routes": nameserver.table.cluster_info().dump(),
            "topics of routes": sorted(run_through(nameserver.table.all_topics())),
            "permissions": repr(nameserver.table.route(TOPIC)),
            "settings": nameserver.config,
        }


def _place(answer: RemotingCommand) -> int:
    return int((answer.ext_fields or {})["msgId"][-16:], 16)


@asynccontextmanager
async def secured(**more: str) -> AsyncIterator[Secured]:
    keys = KEYS | more
    # With accounts of 4.x besides, so that the requests about them are answered.
    accounts = {"aclEnable": "true"}
    async with LocalCluster(properties=keys | accounts, namesrv_properties=keys) as cluster:
        found = Secured(cluster)
        try:
            await found.fill()
            yield found
        finally:
            for peer in found.peers:
                await peer.close()


def test_there_is_a_sample_of_every_request_that_a_server_answers() -> None:
    async def work() -> None:
        async with secured() as found:
            for address, samples in found.samples.items():
                assert found.handled(address) - set(samples) == set()

    run(work())


@pytest.mark.parametrize("encoding", [JSON_HEADER, BINARY_HEADER], ids=["JSON", "binary"])
def test_nobody_without_good_credentials_is_served(encoding: int) -> None:
    strangers = {
        "unsigned": None,
        "wrong secret": Signer("admin", "guess"),
        "unknown user": USERS["nobody"],
        "disabled user": USERS["asleep"],
    }

    async def work() -> None:
        async with secured() as found:
            before = await found.state()
            for who, signer in strangers.items():
                peer = found.peer(signer)
                for address, code, sample in found.every():
                    if encoding == BINARY_HEADER and not -32768 <= code <= 32767:
                        continue
                    answer = await peer.ask(address, code, sample, encoding)
                    is_open = found.needs[address].need(code).level is Level.OPEN
                    assert answer.code == (0 if is_open else REFUSED), f"{who}, {address}, {code}: {answer}"
                    if not is_open:
                        assert not answer.body and not answer.ext_fields, f"{code}: {answer}"
                        assert "secret" not in (answer.remark or "")
            assert await found.state() == before

    run(work())


def test_one_way_requests_change_nothing_either() -> None:
    async def work() -> None:
        async with secured() as found:
            before = await found.state()
            for signer in (None, Signer("admin", "guess"), USERS["plain"]):
                peer = found.peer(signer)
                for address, code, sample in found.every():
                    await peer.tell(address, code, sample)
                for address in found.samples:  # answered after all that was sent before it
                    await peer.ask(address, 9, Sample())
            assert await found.state() == before

    run(work())


def test_a_user_without_policies_may_ask_for_nothing_that_needs_rights() -> None:
    async def work() -> None:
        async with secured() as found:
            before, peer = await found.state(), found.peer(USERS["plain"])
            for address, code, sample in found.every():
                answer = await peer.ask(address, code, sample)
                need = found.needs[address].need(code)
                if code not in found.handled(address) and need.level is Level.SIGNED:
                    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, (
                        f"{address}, {code}: {answer}"
                    )
                elif need.level in (Level.SIGNED, Level.OPEN):
                    assert answer.code == 0, f"{address}, {code}: {answer}"
                else:
                    assert answer.code == REFUSED, f"{address}, {code}: {answer}"
                    assert not answer.body and not answer.ext_fields, f"{code}: {answer}"
            assert await found.state() == before

    run(work())


def test_an_administrator_may_ask_for_everything() -> None:
    async def work() -> None:
        async with secured() as found:
            for address, code, sample in found.every():
                answer = await found.member.ask(address, code, sample)
                expected = sample.code if code in found.handled(address) else 3
                assert answer.code == expected, f"{address}, {code}: {answer}"
                if (
                    address == found.broker.address and code == RequestCode.UNREGISTER_CLIENT
                ):  # it was the member itself that left
                    beat = found.samples[address][RequestCode.HEART_BEAT]
                    await found.member.ask(address, RequestCode.HEART_BEAT, beat)

    run(work())


def _granting(wanted: Iterable[Asked]) -> Acl:
    entries = tuple(Entry(one.resource, one.actions, Decision.ALLOW) for one in wanted)
    return Acl("granted", (Policy(PolicyType.CUSTOM, entries),))


def test_each_right_is_needed_and_all_together_are_enough() -> None:
    async def allow(found: Secured, wanted: list[Asked]) -> None:
        for table in found.tables:
            if table.acl("granted") is not None:
                await table.delete_acl("granted", PolicyType.CUSTOM, None)
            if wanted:
                await table.merge_acl(_granting(wanted))

    async def work() -> None:
        async with secured() as found:
            peer, tried = found.peer(USERS["granted"]), 0
            for address, code, sample in found.every():
                table = found.needs[address]
                need = table.need(code)
                if need.level is not Level.RIGHTS or code not in found.handled(address):
                    continue
                if code == RequestCode.HEART_BEAT:
                    # The client id of the member's producers belongs to the member's user.
                    sample = Sample(sample.fields, sample.body.replace(CLIENT.encode(), b"c2"))
                wanted = table.asked(need, RemotingCommand(code, sample.fields, sample.body))
                assert wanted, code
                for missing in wanted:
                    await allow(found, [one for one in wanted if one is not missing])
                    answer = await peer.ask(address, code, sample)
                    assert answer.code == REFUSED, f"{address}, {code} without {missing}: {answer}"
                    assert str(missing.resource) in (answer.remark or ""), answer
                await allow(found, wanted)
                answer = await peer.ask(address, code, sample)
                assert answer.code == sample.code, f"{address}, {code} with {wanted}: {answer}"
                tried += 1
            assert tried > 55

    run(work())
