"""Requests 50 to 54: accounts of 4.x asked for and changed (mqadmin updateAclConfig, deleteAclConfig and others).

They are for Super users only: in Apache's 4.x every account may make itself an administrator with them. The gate sees
to it, also for addresses of white lists, and it is seen to once more here. Request 54 tells no secrets, whoever asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gimbalmq.access.users import User
from gimbalmq.errors import ConfigError, NoPermissionError, ResponseError
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.plain_acl import (
    AccountVersions,
    DeleteAccount,
    UpdateAccount,
    UpdateGlobalWhiteAddresses,
)
from gimbalmq.transport.channel import Answer, Channel, Handlers

if TYPE_CHECKING:  # a server without such accounts does not load the reader of YAML
    from gimbalmq.access.plain_accounts import PlainAccounts
    from gimbalmq.access.plain_acl import Account

_UPDATE_FAILED = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
_DELETE_FAILED = ResponseCode.DELETE_ACL_CONFIG_FAILED
_WHITE_FAILED = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED


@dataclass(frozen=True, slots=True)
class ServerNames:
    """What the answer of 52 says of the server."""

    broker_name: str
    broker_address: str
    cluster: str


class PlainRequests:
    """The handlers.

    Args:
        accounts: None if ``aclEnable`` is false; every request is then refused.
        who: the user who has proved to have sent a request, see ``Gate.who``.
        names: who the server is.
    """

    def __init__(
        self,
        accounts: PlainAccounts | None,
        who: Callable[[Channel, RemotingCommand], User | None],
        names: Callable[[], ServerNames],
    ) -> None:
        self._accounts = accounts
        self._who = who
        self._names = names

    def register(self, handlers: Handlers) -> None:
        handlers.add(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, self.update, completes=True)
        handlers.add(RequestCode.DELETE_ACL_CONFIG, self.delete, completes=True)
        handlers.add(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, self.versions)
        handlers.add(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, self.update_white, completes=True)
        handlers.add(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, self.list)

    async def update(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = UpdateAccount.from_ext(request.ext_fields)
        with _refused_with(_UPDATE_FAILED):
            accounts = self._known(channel, request)
            await accounts.put(header.access_key.strip(), lambda before: _changed(before, header))
        return request.reply()

    async def delete(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = DeleteAccount.from_ext(request.ext_fields)
        with _refused_with(_DELETE_FAILED):
            if not await self._known(channel, request).remove(header.access_key.strip()):
                raise ConfigError("accessKey", header.access_key, "no file has an account of this key")
        return request.reply()

    async def update_white(self, channel: Channel, request: RemotingCommand) -> Answer:
        from gimbalmq.access.plain_addresses import read_pattern, split_patterns

        header = UpdateGlobalWhiteAddresses.from_ext(request.ext_fields)
        with _refused_with(_WHITE_FAILED):
            accounts = self._known(channel, request)
            named = (header.acl_file_full_path or "").strip()
            patterns = [
                read_pattern(text, "globalWhiteAddrs") for text in split_patterns(header.global_white_addrs)
            ]
            await accounts.set_white(tuple(patterns), Path(named) if named else None)
        return request.reply()

    def versions(self, channel: Channel, request: RemotingCommand) -> Answer:
        with _refused_with(ResponseCode.SYSTEM_ERROR):
            accounts = self._known(channel, request)
        versions = {path: _version(*version) for path, version in accounts.versions().items()}
        names = self._names()
        header = AccountVersions(
            version=_json(versions.get(str(accounts.place.main), _version(0, 0))),
            all_acl_file_version=_json(versions),
            broker_name=names.broker_name,
            broker_addr=names.broker_address,
            cluster_name=names.cluster,
        )
        return request.reply(ext_fields=header.to_ext())

    def list(self, channel: Channel, request: RemotingCommand) -> Answer:
        with _refused_with(ResponseCode.SYSTEM_ERROR):
            accounts = self._known(channel, request)
        body = {
            "globalWhiteAddrs": accounts.white_texts(),
            "plainAccessConfigs": [_shown(account) for account in accounts.accounts()],
        }
        return request.reply(body=fastjson.dumps(body))

    def _known(self, channel: Channel, request: RemotingCommand) -> PlainAccounts:
        """The accounts, for Super users."""
        if self._accounts is None:
            raise ConfigError(
                "aclEnable",
                False,
                "set it to true at the start of the server, or use users and policies of 5.x",
            )
        user = self._who(channel, request)
        if user is None or not user.is_super:
            raise NoPermissionError(f"request {request.code} needs the signature of a Super user")
        return self._accounts


@contextmanager
def _refused_with(code: int) -> Iterator[None]:
    """Turns what went wrong into the answer that mqadmin shows; neither kind of error tells a secret."""
    try:
        yield
    except ConfigError as error:
        raise ResponseError(str(error), code=code) from error
    except OSError as error:
        raise ResponseError(f"the files of accounts cannot be changed: {error}", code=code) from error


def _changed(before: Account | None, header: UpdateAccount) -> Account:
    """The account after request 50: what the request leaves out stays, except ``admin``, which it always says."""
    from gimbalmq.access.plain_acl import Account, check_key, read_groups, read_perm, read_topics
    from gimbalmq.access.plain_addresses import read_pattern

    secret = header.secret_key or (before.secret_key if before is not None else "")
    account = before or Account(check_key(header.access_key.strip(), "accessKey"), "")
    account = replace(account, secret_key=check_key(secret, "secretKey"), admin=header.admin)
    if header.white_remote_address is not None:
        account = replace(account, white=read_pattern(header.white_remote_address))
    if header.default_topic_perm:
        account = replace(account, default_topic=read_perm(header.default_topic_perm, "defaultTopicPerm"))
    if header.default_group_perm:
        account = replace(account, default_group=read_perm(header.default_group_perm, "defaultGroupPerm"))
    if header.topic_perms is not None:
        account = replace(account, topics=read_topics(_listed(header.topic_perms, "topicPerms")))
    if header.group_perms is not None:
        account = replace(account, groups=read_groups(_listed(header.group_perms, "groupPerms")))
    return account


def _listed(text: str, option: str) -> Iterator[tuple[str, str]]:
    return ((item.strip(), option) for item in text.split(",") if item.strip())


def _shown(account: Account) -> dict[str, object]:
    from gimbalmq.access.plain_acl import perm_texts

    return {
        "accessKey": account.access_key,
        "admin": account.admin,
        "defaultGroupPerm": account.default_group.value,
        "defaultTopicPerm": account.default_topic.value,
        "groupPerms": perm_texts(account.groups),
        "topicPerms": perm_texts(account.topics),
        "whiteRemoteAddress": account.white.text,
    }


def _version(counter: int, timestamp: int) -> dict[str, int]:
    return {"counter": counter, "stateVersion": 0, "timestamp": timestamp}


def _json(document: dict[str, int] | dict[str, dict[str, int]]) -> str:
    return fastjson.dumps(document).decode()
