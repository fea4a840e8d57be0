"""Apache's mqadmin for users, policies and accounts: the same commands on Apache's broker and on ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.interop import conftest
from tests.interop.apache_access import GUARDED, PLAIN_ACL, READER, ROOT, WORKER, topic_frame
from tests.interop.apache_cluster import NEWEST, OLDEST, ApacheServer
from tests.interop.secured import AT_ONCE, Secured, secured
from tests.interop.test_mqadmin import rows
from tests.peers.apache import CLIENT_VERSIONS
from tests.peers.driver import ANYBODY, JavaClient, JavaError, Login, Outgoing, eventually
from tests.peers.frames import Frame, Keys, one, refused
from tests.peers.ours import OurServer
from tests.peers.subject import APACHE_VERSION, SETTINGS

__all__ = ["secured"]

pytestmark = pytest.mark.interop
pytest_plugins = ["tests.interop.apache_fixtures"]

OLD_TOOL, NEW_TOOL = CLIENT_VERSIONS


def login(keys: Keys) -> Login:
    return Login(keys.access, keys.secret)


@dataclass(frozen=True)
class Place:
    """A broker with access control, and an mqadmin for it."""

    namesrv: str
    broker: str
    cluster_name: str
    java: JavaClient

    def admin(self, *words: str, by: Login | None = None) -> str:
        return self.java.admin(*words, namesrv=self.namesrv, login=login(ROOT) if by is None else by)

    def done(self, *words: str) -> None:
        """A command that says where it succeeded."""
        assert f"{self.broker} success" in self.admin(words[0], "-b", self.broker, *words[1:])

    def users(self, *words: str) -> list[list[str]]:
        """Rows of getUser and listUser: name, password, rank, status."""
        printed = self.admin(words[0], "-b", self.broker, *words[1:])
        return [line.split() for line in printed.splitlines() if line and not line.startswith("#")]

    def acls(self, *words: str) -> list[list[str]]:
        """Rows of getAcl and listAcl: subject, policy, resource, actions, addresses, decision."""
        printed = self.admin(words[0], "-b", self.broker, *words[1:])
        return sorted(
            re.split(r"\s{2,}", line.strip()) for line in printed.splitlines() if line.startswith("User:")
        )


@pytest.fixture
def place(
    request: pytest.FixtureRequest,
    java_clients: dict[str, JavaClient],
    guarded_servers: Callable[[str], ApacheServer],
) -> Place:
    """Ours, or Apache's if the tests are to be proved right."""
    java = java_clients[NEW_TOOL]
    server: Secured | ApacheServer = (
        request.getfixturevalue("secured") if APACHE_VERSION is None else guarded_servers(NEWEST)
    )
    return Place(server.namesrv, server.broker, server.cluster_name, java)


def test_users_are_made_changed_shown_and_deleted(place: Place) -> None:
    place.done("createUser", "-u", "alice", "-p", "alice-secret")
    assert place.users("getUser", "-u", "alice") == [["alice", "alice-secret", "Normal", "enable"]]
    with pytest.raises(JavaError, match="The user is existed"):
        place.done("createUser", "-u", "alice", "-p", "another")

    printed = place.admin("createUser", "-c", place.cluster_name, "-u", "albert", "-p", "b", "-t", "Super")
    assert f"create user to {place.broker} success" in printed
    place.done("updateUser", "-u", "alice", "-s", "disable")
    place.done("updateUser", "-u", "alice", "-p", "changed")
    assert sorted(place.users("listUser", "-f", "al")) == [
        ["albert", "b", "Super", "enable"],
        ["alice", "changed", "Normal", "disable"],
    ]
    place.done("updateUser", "-u", "alice", "-t", "Super")
    assert place.users("getUser", "-u", "alice") == [["alice", "changed", "Super", "disable"]]

    for name in ("alice", "albert"):
        place.done("deleteUser", "-u", name)
        assert place.users("getUser", "-u", name) == []
    assert place.users("listUser", "-f", "al") == []
    with pytest.raises(JavaError, match="CODE: 16  DESC: The user is not exist"):
        place.done("updateUser", "-u", "alice", "-p", "again")


def test_policies_are_made_merged_shown_and_deleted(place: Place) -> None:
    place.done("createUser", "-u", "bob", "-p", "bob-secret")
    bob = ("-s", "User:bob")
    assert place.acls("getAcl", *bob) == []
    entries = ("-r", "Topic:a*,Group:readers", "-a", "Pub,Sub", "-d", "Allow")
    place.done("createAcl", *bob, *entries, "-i", "10.0.0.0/8,127.0.0.1")
    everywhere = "[10.0.0.0/8, 127.0.0.1]"
    assert place.acls("getAcl", *bob) == [
        ["User:bob", "Custom", "Group:readers", "[Pub, Sub]", everywhere, "Allow"],
        ["User:bob", "Custom", "Topic:a*", "[Pub, Sub]", everywhere, "Allow"],
    ]
    # One with the same resource is replaced, another is added.
    place.done("updateAcl", *bob, "-r", "Topic:a*", "-a", "Get", "-d", "Deny")
    place.done("updateAcl", *bob, "-r", "Cluster:*", "-a", "All", "-d", "Allow")
    shown = [[row[2], row[3], row[-1]] for row in place.acls("listAcl", *bob)]
    assert shown == [
        ["Cluster:*", "[All]", "Allow"],
        ["Group:readers", "[Pub, Sub]", "Allow"],
        ["Topic:a*", "[Get]", "Deny"],
    ]
    assert [row[2] for row in place.acls("listAcl", "-r", "Topic:a", *bob)] == ["Topic:a*"]
    place.done("deleteAcl", *bob, "-r", "Topic:a*")
    assert [row[2] for row in place.acls("getAcl", *bob)] == ["Cluster:*", "Group:readers"]
    place.done("deleteAcl", *bob)
    assert place.acls("getAcl", *bob) == []

    with pytest.raises(JavaError, match="CODE: 16"):
        place.done("createAcl", "-s", "User:nobody-here", *entries)
    with pytest.raises(JavaError, match="CODE: "):
        place.done("createAcl", *bob, "-r", "Topic:a", "-a", "Pub", "-d", "Perhaps")
    place.done("deleteUser", "-u", "bob")
    with pytest.raises(JavaError, match="CODE: 16"):
        place.acls("getAcl", *bob)


def test_who_is_no_administrator_changes_nothing(place: Place) -> None:
    for by, why in (
        (ANYBODY, "username cannot be null"),
        (login(Keys(ROOT.access, "wrong")), "check signature failed"),
        (login(Keys("stranger-user", "12345678")), "is not found"),
        (login(WORKER), "CODE: 16"),
    ):
        with pytest.raises(JavaError, match=why):
            place.admin("createUser", "-b", place.broker, "-u", "mallory", "-p", "m", "-t", "Super", by=by)
    with pytest.raises(JavaError, match="CODE: 16"):
        place.admin("listUser", "-b", place.broker, by=login(WORKER))
    assert place.users("getUser", "-u", "mallory") == []


def test_a_right_counts_as_soon_as_it_is_given_and_no_longer_when_it_is_taken(place: Place) -> None:
    """The producer stays connected meanwhile."""
    carol = Keys("carol", "carol-secret")
    place.done("createUser", "-u", carol.access, "-p", carol.secret)
    producer = place.java.producer("carols", namesrv=place.namesrv, login=login(carol), retries=0)
    message = Outgoing(GUARDED, b"by carol")
    for given, words in (
        (False, ()),
        (True, ("createAcl", "-s", "User:carol", "-r", f"Topic:{GUARDED}", "-a", "Pub", "-d", "Allow")),
        (False, ("updateUser", "-u", "carol", "-s", "disable")),
        (True, ("updateUser", "-u", "carol", "-s", "enable")),
        (False, ("deleteAcl", "-s", "User:carol")),
    ):
        if words:
            place.done(*words)
        if given:
            assert producer.send(message)[0].status == "SEND_OK"
        else:
            with pytest.raises(JavaError, match="CODE: 16"):
                producer.send(message)
    producer.abandon()
    place.done("deleteUser", "-u", "carol")


def test_users_and_policies_move_between_apaches_broker_and_ours(
    secured: Secured, guarded_servers: Callable[[str], ApacheServer], java_clients: dict[str, JavaClient]
) -> None:
    apache, java = guarded_servers(NEWEST), java_clients[NEW_TOOL]
    ours = Place(secured.namesrv, secured.broker, secured.cluster_name, java)
    theirs = Place(apache.namesrv, apache.broker, apache.cluster_name, java)
    for number, (source, target) in enumerate(((ours, theirs), (theirs, ours))):
        name = f"moving-{number}"
        source.done("createUser", "-u", name, "-p", f"secret-{number}")
        source.done("updateUser", "-u", name, "-s", "disable")
        policy = ("-r", "Topic:a*,Group:*", "-a", "Pub,Sub", "-i", "10.0.0.0/8", "-d", "Deny")
        source.done("createAcl", "-s", f"User:{name}", *policy)
        way = ("-f", source.broker, "-t", target.broker)
        for _twice in range(2):  # the second time it is there already and is changed
            assert f"copy user of {name} from" in source.admin("copyUser", *way, "-u", name)
            assert f"copy acl of User:{name} from" in source.admin("copyAcl", *way, "-s", f"User:{name}")
        assert target.users("getUser", "-u", name) == [[name, f"secret-{number}", "Normal", "disable"]]
        assert (
            target.acls("getAcl", "-s", f"User:{name}") == source.acls("getAcl", "-s", f"User:{name}") != []
        )
        for place in (ours, theirs):
            place.done("deleteUser", "-u", name)


# --- plain_acl.yml of 4.x ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ours_with_accounts(java_is_here: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurServer]:
    """Our servers with the access file that Apache's old broker has."""
    folder = tmp_path_factory.mktemp("accounts")
    (folder / "conf").mkdir()
    (folder / "conf" / "plain_acl.yml").write_text(PLAIN_ACL)
    settings = {**SETTINGS, **AT_ONCE, "aclEnable": "true", "aclConfigPath": folder / "conf"}
    with OurServer(folder, extra=settings, keys=ROOT) as server:
        conftest._running.append((server.name, server.log))
        yield server


@pytest.fixture
def old_place(
    request: pytest.FixtureRequest,
    java_clients: dict[str, JavaClient],
    guarded_servers: Callable[[str], ApacheServer],
) -> Place:
    java = java_clients[OLD_TOOL]
    if APACHE_VERSION is None:
        server: OurServer = request.getfixturevalue("ours_with_accounts")
        return Place(server.namesrv, server.address, str(server.properties["brokerClusterName"]), java)
    apache = guarded_servers(OLDEST)
    return Place(apache.namesrv, apache.broker, apache.cluster_name, java)


def test_accounts_are_made_changed_and_deleted(old_place: Place) -> None:
    place, java = old_place, old_place.java
    one(place.broker, topic_frame("accounted"))
    dave = Keys("dave-user", "dave-secret")
    account = ("-a", dave.access, "-s", dave.secret)
    place.done("updateAclConfig", *account, "-t", "accounted=PUB", "-i", "DENY", "-u", "SUB")
    producer = java.producer("daves", namesrv=place.namesrv, login=login(dave), retries=0)
    eventually(lambda: producer.queues("accounted"), bool, "the route")
    assert producer.send(Outgoing("accounted", b"by dave"))[0].status == "SEND_OK"
    with pytest.raises(JavaError, match="copied"):
        producer.send(Outgoing("copied", b"no"))

    before = rows(place.admin("clusterAclConfigVersion", "-b", place.broker), place.cluster_name)
    place.done("updateAclConfig", *account, "-t", "accounted=SUB")
    after = rows(place.admin("clusterAclConfigVersion", "-b", place.broker), place.cluster_name)
    (old,), (new,) = before, after
    assert old[3] == new[3] and old[3].endswith("plain_acl.yml")
    assert int(new[4]) == int(old[4]) + 1
    _until_refused(lambda: producer.send(Outgoing("accounted", b"no more")))

    place.done("deleteAclConfig", "-a", dave.access)
    with pytest.raises(JavaError):
        producer.send(Outgoing("accounted", b"gone"))
    with pytest.raises(JavaError, match="CODE: 210"):
        place.done("deleteAclConfig", "-a", dave.access)
    producer.abandon()


def _until_refused(send: Callable[[], object]) -> None:
    """Apache's broker reads its file again within five seconds."""

    def refusal() -> bool:
        try:
            send()
        except JavaError:
            return True
        return False

    eventually(refusal, bool, "a refusal", every=0.3)


def test_java_clients_are_served_by_the_accounts_of_an_old_file(
    java: JavaClient, ours_with_accounts: OurServer
) -> None:
    server = ours_with_accounts
    one(server.address, topic_frame(GUARDED))
    producer = java.producer("keyed", namesrv=server.namesrv, login=login(WORKER))
    eventually(lambda: producer.queues(GUARDED), bool, "the route")
    body = f"by {java.version}".encode()
    producer.send(Outgoing(GUARDED, body))
    consumer = java.push(
        f"old-{java.version.replace('.', '-')}", GUARDED, namesrv=server.namesrv, login=login(READER)
    )
    eventually(lambda: [m.body for m in consumer.received()], lambda seen: body in seen, "the message")
    for keys, topic in ((READER, GUARDED), (WORKER, "closed"), (Keys(WORKER.access, "87654321"), GUARDED)):
        stranger = java.producer("strangers", namesrv=server.namesrv, login=login(keys), retries=0)
        with pytest.raises(JavaError) as refusal:
            stranger.send(Outgoing(topic, b"no"))
        assert refusal.value.code in (1, 16, 17), refusal.value
    assert refused(one(server.address, Frame(10, {"topic": GUARDED}, b"x")))
    consumer.abandon()
