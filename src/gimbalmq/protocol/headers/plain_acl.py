"""Headers of the requests about accounts of 4.x, 50 to 54."""

from __future__ import annotations

from gimbalmq.protocol.headers.base import Header


class UpdateAccount(Header):
    """50 UPDATE_AND_CREATE_ACL_CONFIG. Lists have commas between their elements; what is None stays as it is."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None

    def __repr__(self) -> str:
        return f"UpdateAccount(access_key={self.access_key!r})"


class DeleteAccount(Header):
    """51 DELETE_ACL_CONFIG."""

    access_key: str


class UpdateGlobalWhiteAddresses(Header):
    """53 UPDATE_GLOBAL_WHITE_ADDRS_CONFIG."""

    global_white_addrs: str
    acl_file_full_path: str | None = None


class AccountVersions(Header):
    """Answer of 52 GET_BROKER_CLUSTER_ACL_INFO; both versions are JSON."""

    version: str
    all_acl_file_version: str
    broker_name: str
    broker_addr: str
    cluster_name: str
