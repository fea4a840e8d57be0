"""Requests 50 to 54 at a broker: what mqadmin's commands of 4.x do, and who may send them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gimbalmq.errors import NoPermissionError, ResponseError
from gimbalmq.protocol.codes import RequestCode as Code
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.signing import Signer
from gimbalmq.testing import LocalCluster
from gimbalmq.transport.pool import ChannelPool
from tests.support import run

FILE = """
# written by hand
accounts:
- {accessKey: administrator, secretKey: secret-of-admin, admin: true}
- {accessKey: somebody, secretKey: secret-of-some, topicPerms: [orders=PUB], groupPerms: [billing=SUB]}
"""
ADMIN = ("administrator", "secret-of-admin")
SOMEBODY = ("somebody", "secret-of-some")


@dataclass
class Asker:
    """A client of one account at one broker."""

    address: str
    conf: Path

    async def ask(self, code: int, who: tuple[str, str] | None = ADMIN, /, **fields: str) -> RemotingCommand:
        pool = ChannelPool(signer=None if who is None else Signer(*who))
        try:
            answer = await pool.call(self.address, RemotingCommand(code, dict(fields)), 5.0)
        finally:
            await pool.close()
        if answer.code != 0:
            raise ResponseError.for_code(answer.code, answer.remark)
        return answer

    @property
    def text(self) -> str:
        return (self.conf / "plain_acl.yml").read_text()


@asynccontextmanager
async def asked_broker(folder: Path, text: str = FILE, **properties: object) -> AsyncIterator[Asker]:
    conf = folder / "conf"
    conf.mkdir()
    (conf / "plain_acl.yml").write_text(text)
    given = {"aclEnable": "true", "aclConfigPath": str(conf), "authFailureDelayMillis": 0, **properties}
    async with LocalCluster(properties=given) as cluster:
        yield Asker(cluster.broker.address, conf)


def test_accounts_are_made_changed_and_deleted_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with asked_broker(tmp_path) as broker:
            await broker.ask(
                Code.UPDATE_AND_CREATE_ACL_CONFIG,
                accessKey="newcomer",
                secretKey="secret-of-new",
                admin="false",
                whiteRemoteAddress="",
                defaultTopicPerm="PUB|SUB",
                defaultGroupPerm="SUB",
                topicPerms="a=PUB,b=DENY",
                groupPerms="g=SUB",
            )
            # The account counts at once, and the file has it.
            newcomer = ("newcomer", "secret-of-new")
            assert (
                await broker.ask(Code.GET_MAX_OFFSET, newcomer, topic="SELF_TEST_TOPIC", queueId="0")
            ).code == 0
            with pytest.raises(NoPermissionError, match=r"Topic:b .* the decision is deny"):
                await broker.ask(Code.GET_MAX_OFFSET, newcomer, topic="b", queueId="0")
            assert "newcomer" in broker.text and "# written by hand" not in broker.text

            # What is left out stays, except admin.
            await broker.ask(
                Code.UPDATE_AND_CREATE_ACL_CONFIG, accessKey="newcomer", topicPerms="b=SUB", admin="true"
            )
            body = json.loads(bytes((await broker.ask(Code.GET_BROKER_CLUSTER_ACL_CONFIG)).body))
            [shown] = [row for row in body["plainAccessConfigs"] if row["accessKey"] == "newcomer"]
            assert shown == {
                "accessKey": "newcomer",
                "admin": True,
                "defaultGroupPerm": "SUB",
                "defaultTopicPerm": "PUB|SUB",
                "groupPerms": ["g=SUB"],
                "topicPerms": ["b=SUB"],
                "whiteRemoteAddress": "",
            }
            await broker.ask(
                Code.UPDATE_AND_CREATE_ACL_CONFIG, accessKey="newcomer", secretKey="another-secret"
            )
            body = json.loads(bytes((await broker.ask(Code.GET_BROKER_CLUSTER_ACL_CONFIG)).body))
            [left] = [row for row in body["plainAccessConfigs"] if row["accessKey"] == "newcomer"]
            assert left == {**shown, "admin": False}
            with pytest.raises(NoPermissionError, match="check signature failed"):
                await broker.ask(Code.CHECK_CLIENT_CONFIG, newcomer)

            await broker.ask(Code.DELETE_ACL_CONFIG, accessKey="newcomer")
            with pytest.raises(NoPermissionError, match="is not found"):
                await broker.ask(Code.CHECK_CLIENT_CONFIG, ("newcomer", "another-secret"))
            with pytest.raises(ResponseError, match=r"newcomer.* no file has") as absent:
                await broker.ask(Code.DELETE_ACL_CONFIG, accessKey="newcomer")
            assert absent.value.code == 210

            answer = await broker.ask(Code.GET_BROKER_CLUSTER_ACL_INFO)
            fields = answer.ext_fields or {}
            assert json.loads(fields["version"])["counter"] == 4
            assert json.loads(fields["allAclFileVersion"]) == {
                str(broker.conf / "plain_acl.yml"): json.loads(fields["version"])
            }
            assert fields["brokerName"] == "broker-a" and fields["brokerAddr"] == broker.address
            assert fields["clusterName"] == "DefaultCluster"

    run(work())


WRONG = [
    ({"accessKey": "newcomer"}, "secretKey='' cannot be used: it has 0 letters"),
    ({"accessKey": "newcomer", "secretKey": "short6"}, "secretKey='...'"),
    ({"accessKey": "short6", "secretKey": "secret-of-new"}, "accessKey='short6'"),
    (
        {"accessKey": "newcomer", "secretKey": "secret-of-new", "defaultTopicPerm": "ALL"},
        "defaultTopicPerm='ALL'",
    ),
    ({"accessKey": "newcomer", "secretKey": "secret-of-new", "topicPerms": "a=PUB,b"}, "topicPerms='b'"),
    ({"accessKey": "newcomer", "secretKey": "secret-of-new", "groupPerms": "a*=SUB"}, "groupPerms='a*=SUB'"),
    (
        {"accessKey": "newcomer", "secretKey": "secret-of-new", "whiteRemoteAddress": "10.0.0.0/8"},
        "10.0.0.0/8",
    ),
]


def test_what_cannot_be_used_is_refused_with_apaches_codes_and_nothing_is_written(tmp_path: Path) -> None:
    async def work() -> None:
        async with asked_broker(tmp_path) as broker:
            for fields, text in WRONG:
                with pytest.raises(ResponseError) as refused:
                    await broker.ask(Code.UPDATE_AND_CREATE_ACL_CONFIG, **fields)
                assert refused.value.code == 209 and text in refused.value.remark
                assert "secret-of-new" not in refused.value.remark
            for fields in (
                {"globalWhiteAddrs": "1.2.3"},
                {"globalWhiteAddrs": "*", "aclFileFullPath": "/etc/passwd"},
            ):
                with pytest.raises(ResponseError) as refused:
                    await broker.ask(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, **fields)
                assert refused.value.code == 211
            (broker.conf / "plain_acl.yml").write_text("accounts: [")
            with pytest.raises(ResponseError, match=r"plain_acl\.yml"):
                await broker.ask(
                    Code.UPDATE_AND_CREATE_ACL_CONFIG, accessKey="newcomer", secretKey="secret-of-new"
                )
            assert broker.text == "accounts: ["

    run(work())


def test_nobody_but_a_super_user_may_even_from_an_address_of_a_white_list(tmp_path: Path) -> None:
    async def work() -> None:
        async with asked_broker(tmp_path) as broker:
            fields = {"accessKey": "newcomer", "secretKey": "secret-of-new", "globalWhiteAddrs": "*"}
            for code in (50, 51, 52, 53, 54):
                for who in (SOMEBODY, (ADMIN[0], "wrong"), None):
                    with pytest.raises(NoPermissionError):
                        await broker.ask(code, who, **fields)
            await broker.ask(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, globalWhiteAddrs="127.0.0.{1,2},::1")
            assert "- 127.0.0.{1,2}" in broker.text
            # Everything else is open from there now.
            assert (await broker.ask(Code.GET_ALL_TOPIC_CONFIG, None)).code == 0
            before = broker.text
            for code in (50, 51, 52, 53, 54):
                for who in (SOMEBODY, None):
                    with pytest.raises(NoPermissionError):
                        await broker.ask(code, who, **fields)
            assert broker.text == before
            await broker.ask(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, globalWhiteAddrs="")
            with pytest.raises(NoPermissionError):
                await broker.ask(Code.GET_ALL_TOPIC_CONFIG, None)

    run(work())


def test_secrets_of_accounts_are_told_to_nobody(tmp_path: Path) -> None:
    async def work() -> None:
        async with asked_broker(tmp_path) as broker:
            for code in (
                Code.GET_BROKER_CLUSTER_ACL_CONFIG,
                Code.GET_BROKER_CONFIG,
                Code.GET_BROKER_CLUSTER_ACL_INFO,
            ):
                answer = await broker.ask(code)
                assert b"secret-of" not in bytes(answer.body)
                assert "secret-of" not in str(answer.ext_fields)

    run(work())


def test_without_acl_enable_there_are_no_accounts_to_change(tmp_path: Path) -> None:
    async def work() -> None:
        async with asked_broker(tmp_path, aclEnable="false") as broker:
            for code, refusal in ((50, 209), (51, 210), (53, 211), (52, 1), (54, 1)):
                with pytest.raises(ResponseError, match="aclEnable=False") as refused:
                    await broker.ask(code, None, accessKey="newcomer", globalWhiteAddrs="*")
                assert refused.value.code == refusal
            assert broker.text == FILE

    run(work())
