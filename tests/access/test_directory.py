"""Several directories as one; servers that are trusted by address or certificate."""

from __future__ import annotations

import pytest

from gimbalmq.access.directory import Directories
from gimbalmq.access.policies import Acl
from gimbalmq.access.trusted_servers import TrustedServers
from gimbalmq.access.users import User
from gimbalmq.errors import InvalidParameterError
from gimbalmq.transport.tls import PeerCertificate


class Listed:
    """Users by name, some of them trusted by address."""

    def __init__(self, *names: str, white: dict[str | None, str] | None = None) -> None:
        self.revision = 1
        self._users = {name: User(name, f"{name}-secret") for name in names}
        self._acls = {name: Acl(name) for name in names if name != "bare"}
        self._white = white or {}

    def user(self, name: str) -> User | None:
        return self._users.get(name)

    def acl(self, name: str) -> Acl | None:
        return self._acls.get(name)

    def trusts(self, source: str, user: str | None) -> bool:
        return source in (self._white.get(None), self._white.get(user))


def test_the_first_that_knows_a_user_has_the_word() -> None:
    table, plain = Listed("ann", "bare"), Listed("ann", "bare", "bob")
    joined = Directories([table, plain])
    assert joined.user("ann") is table.user("ann")
    assert joined.user("bob") is plain.user("bob")
    assert joined.user("eve") is None and joined.acl("eve") is None
    # A user of the first without policies does not get those of a namesake.
    assert joined.acl("bare") is None
    plain._acls["bare"] = Acl("bare")
    assert joined.acl("bare") is None
    assert joined.acl("bob") is plain.acl("bob")


def test_a_change_of_any_part_is_a_change() -> None:
    parts = [Listed(), Listed()]
    joined = Directories(parts)
    seen = {joined.revision}
    for part in parts:
        part.revision += 1
        assert joined.revision not in seen
        seen.add(joined.revision)


def test_the_white_list_of_an_account_is_not_one_for_its_namesake() -> None:
    table = Listed("ann")
    plain = Listed("ann", "bob", white={None: "10.0.0.1", "ann": "10.0.0.2", "bob": "10.0.0.3"})
    joined = Directories([table, plain])
    assert joined.trusts("10.0.0.1", None) and joined.trusts("10.0.0.1", "ann")
    assert not joined.trusts("10.0.0.2", "ann"), "the user of the table counts, who has no white list"
    assert joined.trusts("10.0.0.3", "bob")
    assert not joined.trusts("10.0.0.3", None) and not joined.trusts("10.0.0.3", "eve")


def test_trusted_servers_are_known_by_address_or_certificate() -> None:
    digits = "ab" * 32
    written = ":".join(["AB"] * 32)
    trusted = TrustedServers(["10.0.0.0/24", "2001:db8::1", "CN=broker 1", written])
    assert trusted.includes("10.0.0.200", None) and trusted.includes("2001:db8:0::1", None)
    assert not trusted.includes("10.0.1.1", None)
    assert trusted.includes("10.9.9.9", PeerCertificate("broker 1", "cd" * 32))
    assert trusted.includes("10.9.9.9", PeerCertificate("", digits))
    assert not trusted.includes("10.9.9.9", PeerCertificate("broker 2", "cd" * 32))
    assert not trusted.includes("10.9.9.9", PeerCertificate("", "cd" * 32))
    assert not trusted.includes("10.9.9.9", PeerCertificate(digits, "cd" * 32)), "a name is no fingerprint"
    assert not TrustedServers([]) and not TrustedServers([]).includes("10.0.0.1", None)


@pytest.mark.parametrize("text", ["", "CN=", "broker-1", "10.0.0.300", "ab" * 31, "10.0.0.0/99"])
def test_what_names_no_server_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameterError):
        TrustedServers([text])
