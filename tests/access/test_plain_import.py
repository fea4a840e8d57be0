"""What accounts of 4.x become: the same decisions as users and policies, and a list of what is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gimbalmq.access.decision import decide
from gimbalmq.access.plain_acl import Account, AccountFile, Perm
from gimbalmq.access.plain_import import plan_import, read_accounts
from gimbalmq.access.plain_rights import acl_of
from gimbalmq.access.policies import Acl, Action, Asked, Resource, ResourceKind
from gimbalmq.access.users import UserType
from gimbalmq.errors import ConfigError
from tests.access.test_plain_acl import ACCOUNTS, SAMPLE


def test_the_sample_becomes_users_and_policies_and_says_what_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_bytes(SAMPLE)
    plan = plan_import(read_accounts(file))
    first, second = plan.accounts
    assert (first.user.name, first.user.password, first.user.type) == (
        "RocketMQ",
        "12345678",
        UserType.NORMAL,
    )
    assert first.acl is not None
    texts = [
        f"{policy.type} {line.resource} {line.decision} {','.join(line.actions or ())}"
        for policy in first.acl.policies
        for line in (entry.body() for entry in policy.entries)
    ]
    assert texts == [
        "Custom Topic:topicA Deny All",
        "Custom Topic:topicB Allow Pub,Sub,Get",
        "Custom Topic:topicC Allow Sub,Get",
        "Custom Topic:RMQ_SYS_TRACE_TOPIC Allow Pub",
        "Custom Group:groupA Deny All",
        "Custom Group:groupB Allow Pub,Sub,Get",
        "Custom Group:groupC Allow Sub,Get",
        "Default Group:* Allow Sub,Get",
    ]
    assert (second.user.name, second.user.type, second.acl) == ("rocketmq2", UserType.SUPER, None)
    assert second.user.source_ips == ()
    assert plan.lost == (
        f"{file}: requests from 10.10.103.*, 192.168.0.* needed no key; from now on they must be signed",
        "account rocketmq2: requests from 192.168.1.* needed no signature; from now on they must be signed",
    )


def test_white_addresses_bind_users_only_if_that_is_asked_for(tmp_path: Path) -> None:
    def planned(white: str) -> tuple[tuple[str, ...], str]:
        file = tmp_path / "plain_acl.yml"
        file.write_text(
            f"accounts: [{{accessKey: somebody, secretKey: secret-of-some, whiteRemoteAddress: '{white}'}}]"
        )
        plan = plan_import(read_accounts(file), bind_sources=True)
        return plan.accounts[0].user.source_ips, " ".join(plan.lost)

    assert planned("192.168.1.*")[0] == ("192.168.1.0/24",)
    assert "may come from nowhere else" in planned("192.168.1.*")[1]
    assert planned("*")[0] == ()
    sources, lost = planned("10.*.*.7")
    assert sources == () and "not bound" in lost
    assert planned("") == ((), "")


def test_a_folder_is_read_as_a_server_reads_it_and_a_file_alone(tmp_path: Path) -> None:
    for name, key in (("plain_acl.yml", "main0000"), ("acl/a.yml", "first000"), ("acl/b.yml", "main0000")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"accounts: [{{accessKey: {key}, secretKey: secret-of-{name}}}]")
    plan = plan_import(read_accounts(tmp_path))
    assert [(one.user.name, one.user.password) for one in plan.accounts] == [
        ("first000", "secret-of-acl/a.yml"),
        ("main0000", "secret-of-acl/b.yml"),
    ]
    assert plan.lost == (f"{tmp_path}/plain_acl.yml: account main0000 came before; this one counts nowhere",)
    alone = plan_import(read_accounts(tmp_path / "plain_acl.yml"))
    assert [one.user.name for one in alone.accounts] == ["main0000"]


def test_what_cannot_be_imported_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_accounts(tmp_path / "none.yml")
    with pytest.raises(ConfigError, match="neither"):
        read_accounts(tmp_path)
    comma = AccountFile(accounts=(Account("some,body", "secret-of-some"),))
    with pytest.raises(ConfigError, match=r"some,body.*cannot be a user"):
        plan_import({tmp_path: comma})
    many = Account("somebody", "secret-of-some", topics={f"t{number}": Perm.PUB for number in range(1_001)})
    with pytest.raises(ConfigError, match="policy entries"):
        plan_import({tmp_path: AccountFile(accounts=(many,))})


@given(
    ACCOUNTS,
    st.sampled_from([ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.CLUSTER]),
    st.sampled_from(["a", "X", "other", "RMQ_SYS_TRACE_TOPIC"]),
    st.sets(st.sampled_from(list(Action)[2:]), min_size=1),
)
def test_policies_that_went_over_the_wire_decide_as_the_account_does(
    account: Account, kind: ResourceKind, name: str, actions: set[Action]
) -> None:
    acl = acl_of(account)
    if acl is None:
        return
    asked = Asked(Resource(kind, name), frozenset(actions))
    assert decide(Acl.of(acl.body()), asked, "10.0.0.1") == decide(acl, asked, "10.0.0.1")
