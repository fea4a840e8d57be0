"""Who the master is, if name servers disagree, say nothing, or still name ourselves."""

from __future__ import annotations

from gimbalmq.broker.replication.masters import Master, NamedMasters
from gimbalmq.protocol.headers.nameserver import RegisterBrokerReply

OWN = "10.0.0.9:10911"
SERVERS = ["n1:9876", "n2:9876", "n3:9876"]


def named(*answers: tuple[str, str | None, str | None]) -> Master | None:
    masters = NamedMasters()
    for server, address, ha_address in answers:
        masters.heard(server, RegisterBrokerReply(master_addr=address, ha_server_addr=ha_address), OWN)
    return masters.best(SERVERS)


def test_the_one_that_most_name_servers_name() -> None:
    assert named(("n1:9876", "a:1", "a:2"), ("n2:9876", "b:1", "b:2"), ("n3:9876", "b:1", "b:2")) == Master(
        "b:1", "b:2"
    )


def test_with_as_many_votes_the_first_name_server_counts() -> None:
    assert named(("n2:9876", "b:1", "b:2"), ("n1:9876", "a:1", "a:2")) == Master("a:1", "a:2")


def test_who_names_nobody_or_ourselves_has_no_vote() -> None:
    assert named(("n1:9876", None, None), ("n2:9876", "", ""), ("n3:9876", OWN, "10.0.0.9:10912")) is None
    assert named(("n1:9876", "a:1", "a:2"), ("n1:9876", OWN, "x:1")) is None
    assert named(("n1:9876", "a:1", None)) is None


def test_a_name_server_that_is_not_configured_has_no_vote() -> None:
    assert named(("elsewhere:9876", "a:1", "a:2")) is None
