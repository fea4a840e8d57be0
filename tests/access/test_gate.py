"""The gate: who is let in, what they are told if not, and what is remembered."""

from __future__ import annotations

import logging
from functools import partial

import pytest

from gimbalmq.access import gate as gate_module
from gimbalmq.access.decision import Decider, Verdict
from gimbalmq.access.needs import READS_USERS, WRITES_USERS
from gimbalmq.access.policies import Asked
from gimbalmq.access.users import User, UserStatus
from gimbalmq.errors import InvalidParameterError
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.transport.tls import PeerCertificate
from tests.access.peers import Guarded, Peer, request, send
from tests.support import ManualClock

ROOT, ANN = "root", "ann"
UNKNOWN_CODE = 9999


@pytest.fixture
def guarded() -> Guarded:
    return Guarded()


# -- who ---------------------------------------------------------------------------------


def test_refusals_have_apaches_words(guarded: Guarded) -> None:
    assert guarded.told(send("T", None)) == "username cannot be null."
    assert guarded.told(RemotingCommand(RequestCode.SEND_MESSAGE_V2)) == "username cannot be null."
    assert guarded.told(send("T", "eve", "x")) == "User:eve is not found."
    assert guarded.told(send("T", ANN, "wrong")) == "check signature failed."
    unsigned = RemotingCommand(RequestCode.SEND_MESSAGE_V2, {"b": "T", "AccessKey": ROOT})
    assert guarded.told(unsigned) == "check signature failed."
    assert (
        guarded.told(send("T"))
        == "User:ann has no permission to access Topic:T from 10.0.0.7, no matched policies."
    )
    guarded.allow(ANN, "Topic:T", "Pub", decision="Deny")
    assert (
        guarded.told(send("T"))
        == "User:ann has no permission to access Topic:T from 10.0.0.7, the decision is deny."
    )
    guarded.change(ANN, status=UserStatus.DISABLE)
    assert guarded.told(send("T")) == "User:ann is disabled."


def test_a_super_user_may_do_everything_and_others_what_they_are_given(guarded: Guarded) -> None:
    assert guarded.told(send("T", ROOT)) == ""
    assert guarded.told(request(RequestCode.UPDATE_BROKER_CONFIG, ROOT)) == ""
    guarded.allow(ANN, "Topic:T*", "Pub")
    for _ in range(2):  # the second time by what is remembered
        assert guarded.told(send("T1")) == ""
        assert guarded.told(send("X")) != ""
        assert guarded.told(send("T1", "bob")) != ""
        assert guarded.told(request(RequestCode.UPDATE_BROKER_CONFIG, ANN)) != ""


def test_every_resource_that_a_request_names_must_be_allowed(guarded: Guarded) -> None:
    pull = request(RequestCode.PULL_MESSAGE, ANN, topic="T", consumerGroup="g")
    guarded.allow(ANN, "Topic:T", "Sub")
    assert "Group:g" in guarded.told(pull)
    guarded.allow(ANN, "Group:g", "Sub")
    assert guarded.told(pull) == ""
    other = request(RequestCode.PULL_MESSAGE, ANN, topic="T", consumerGroup="h")
    assert "Group:h" in guarded.told(other)


def test_a_request_that_does_not_say_what_it_is_about_does_not_pass(guarded: Guarded) -> None:
    with pytest.raises(InvalidParameterError, match="no field b"):
        guarded.gate.check(Peer().channel, request(RequestCode.SEND_MESSAGE_V2, ANN))


def test_a_number_that_nobody_knows_tells_nothing_without_a_signature(guarded: Guarded) -> None:
    assert guarded.told(RemotingCommand(UNKNOWN_CODE)) == "username cannot be null."
    assert guarded.told(request(UNKNOWN_CODE, ANN)) == ""
    assert guarded.gate._keyed == {}, "numbers that have no row are not kept"


def test_a_user_may_be_bound_to_addresses(guarded: Guarded) -> None:
    guarded.add(User("carl", "secret", source_ips=("10.0.0.0/24",)))
    guarded.allow("carl", "Topic:*", "Pub")
    away = Peer("10.0.1.7")
    assert guarded.told(send("T", "carl", "secret")) == ""
    assert guarded.told(send("T", "carl", "secret"), away) == "User:carl is not allowed from 10.0.1.7."
    # Who has no secret does not learn of it.
    assert guarded.told(send("T", "carl", "guess"), away) == "check signature failed."


def test_a_user_may_be_bound_to_a_certificate(guarded: Guarded) -> None:
    shown = PeerCertificate("orders", "ab" * 32)
    guarded.add(User("carl", "secret", certificate="orders"))
    guarded.add(User("dora", "secret", certificate="ab" * 32))
    for name in ("carl", "dora"):
        guarded.allow(name, "Topic:*", "Pub")
        command = send("T", name, "secret")
        assert guarded.told(command, Peer(peer_certificate=shown)) == ""
        needs = f"User:{name} needs its client certificate."
        # Also after it has passed from the same address.
        assert guarded.told(command) == needs
        assert guarded.told(command, Peer(peer_certificate=PeerCertificate("other", "cd" * 32))) == needs
        assert guarded.gate.sender_key(Peer().channel, name, "T") is None
    nameless = PeerCertificate("", "ef" * 32)
    assert guarded.told(send("T", "carl", "secret"), Peer(peer_certificate=nameless)) != ""


def test_handlers_are_told_who_signed(guarded: Guarded) -> None:
    who = partial(guarded.gate.who, Peer().channel)
    signer = who(send("T", ROOT))
    assert signer is not None and signer.name == ROOT
    for nobody in (send("T", None), send("T", ROOT, "wrong"), send("T", "eve", "x")):
        assert who(nobody) is None
    claimed = RemotingCommand(RequestCode.SEND_MESSAGE_V2, {"AccessKey": ROOT})
    assert who(claimed) is None
    assert who(send("T", ANN)) is not None
    guarded.change(ANN, status=UserStatus.DISABLE)
    assert who(send("T", ANN)) is None
    guarded.change(ROOT, source_ips=("10.1.0.0/16",))
    assert who(send("T", ROOT)) is None
    assert guarded.gate.who(Peer("10.1.0.1").channel, send("T", ROOT)) is not None
    guarded.change(ROOT, source_ips=(), certificate="c")
    assert who(send("T", ROOT)) is None


# -- what is remembered ------------------------------------------------------------------


def test_what_was_allowed_is_forgotten_when_users_or_policies_change(guarded: Guarded) -> None:
    peer = Peer()
    guarded.allow(ANN, "Topic:T", "Pub")
    assert guarded.told(send("T"), peer) == ""
    assert guarded.gate.sender_key(peer.channel, ANN, "T") is not None
    guarded.allow(ANN, "Topic:T", "Pub", decision="Deny")
    assert guarded.gate.sender_key(peer.channel, ANN, "T") is None
    assert "deny" in guarded.told(send("T"), peer)
    guarded.allow(ANN, "Topic:T", "Pub")
    assert guarded.told(send("T"), peer) == ""
    guarded.change(ANN, password="a-new-one")
    assert guarded.told(send("T"), peer) == "check signature failed."
    assert guarded.told(send("T", ANN, "a-new-one"), peer) == ""
    guarded.change(ANN, status=UserStatus.DISABLE)
    assert guarded.gate.sender_key(peer.channel, ANN, "T") is None


def test_a_decision_counts_for_its_user_address_and_resource_only(guarded: Guarded) -> None:
    here, away = Peer("10.0.0.7"), Peer("192.168.0.1")
    guarded.allow(ANN, "Topic:T", "Pub", sources=("10.0.0.0/8",))
    assert guarded.told(send("T"), here) == ""
    guarded.allow(ANN, "Topic:U", "Pub")
    assert guarded.told(send("U"), away) == guarded.told(send("T"), here) == ""
    assert "from 192.168.0.1" in guarded.told(send("T"), away)
    for peer, user, topic in ((away, ANN, "T"), (here, "bob", "T"), (here, ANN, "U")):
        assert guarded.gate.sender_key(peer.channel, user, topic) is None
    # What may be sent may not therefore be pulled.
    assert (
        guarded.told(request(RequestCode.PULL_MESSAGE, ANN, topic="T", consumerGroup="g", b="T"), here) != ""
    )


def test_a_remembered_decision_still_needs_a_right_signature(guarded: Guarded) -> None:
    guarded.allow(ANN, "Topic:T", "Pub")
    assert guarded.told(send("T")) == ""
    assert guarded.told(send("T", ANN, "wrong")) == "check signature failed."


def test_a_decision_is_made_once(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Asked] = []

    class Counting(Decider):
        def decide(self, asked: Asked, source: str) -> Verdict:
            made.append(asked)
            return super().decide(asked, source)

    monkeypatch.setattr(gate_module, "Decider", Counting)
    guarded.allow(ANN, "Topic:*", "Pub")
    for _ in range(3):
        assert guarded.told(send("T")) == ""
        assert guarded.told(send("%RETRY%g")) != ""
    assert len(made) == 2


def test_what_is_remembered_is_bounded(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "_KEPT", 5)
    guarded.allow(ANN, "Topic:*", "Pub")
    gate = guarded.gate
    for number in range(20):
        peer = Peer(f"10.0.0.{number}")
        assert guarded.told(send(f"T{number}"), peer) == ""
        assert guarded.told(send(f"T{number}", "bob"), peer) != ""
    assert guarded.told(send("T" * 5000)) == ""
    kept = (gate._allowed, gate._keys, gate._decisions, gate._senders)
    assert all(0 < len(table) <= 5 for table in kept), [len(table) for table in kept]
    assert all("T" * 5000 not in entry for entry in gate._allowed)


@pytest.mark.parametrize("rules", ["strict", "apache"])
def test_who_sends_to_a_retry_topic_needs_its_group_whatever_he_calls_himself(rules: str) -> None:
    guarded = Guarded(authorization_rules=rules)
    guarded.allow(ANN, "Group:mine", "Sub")
    retry = request(RequestCode.SEND_MESSAGE_V2, ANN, a="mine", b="%RETRY%theirs")
    other = request(RequestCode.SEND_MESSAGE_V2, ANN, a="theirs", b="%RETRY%theirs")
    own = request(RequestCode.SEND_MESSAGE_V2, ANN, a="CLIENT_INNER_PRODUCER", b="%RETRY%mine")
    assert guarded.told(own) == ""
    assert guarded.told(retry) != ""
    assert guarded.told(other) != ""


# -- switches ----------------------------------------------------------------------------


def test_authentication_alone_looks_at_no_policy_but_keeps_administration_shut() -> None:
    guarded = Guarded(authorization_enabled=False)
    assert guarded.told(send("T")) == ""
    assert guarded.told(send("T", None)) == "username cannot be null."
    create = request(RequestCode.AUTH_CREATE_USER, ANN, username="eve")
    assert guarded.told(create) == (
        "User:ann has no permission to send request 3001 from 10.0.0.7, it needs a Super user."
    )
    assert guarded.told(request(RequestCode.AUTH_CREATE_USER, ROOT, username="eve")) == ""


def test_white_lists_of_numbers() -> None:
    guarded = Guarded(authentication_whitelist="34, 10", authorization_whitelist="10")
    sent = {"topic": "T"}
    assert guarded.told(RemotingCommand(RequestCode.SEND_MESSAGE, sent)) == ""
    assert guarded.told(send("T", None)) == "username cannot be null."
    # A name that nobody has proved gives no rights.
    pull = Guarded(authentication_whitelist="11")
    pull.allow(ANN, "*", "All")
    fields = {"topic": "T", "consumerGroup": "g"}
    claimed = RemotingCommand(RequestCode.PULL_MESSAGE, {**fields, "AccessKey": ROOT})
    assert pull.told(claimed) == "User:root not found."
    assert pull.told(RemotingCommand(RequestCode.PULL_MESSAGE, fields)).startswith("Authorization failed.")
    for _ in range(2):
        assert pull.told(request(RequestCode.PULL_MESSAGE, ANN, topic="T", consumerGroup="g")) == ""
        assert pull.told(request(RequestCode.PULL_MESSAGE, ANN, "wrong", topic="T", consumerGroup="g")) != ""


def test_without_authentication_a_name_is_believed_by_apaches_rule_only() -> None:
    guarded = Guarded(authentication_enabled=False, authorization_rules="apache")
    guarded.allow(ANN, "Topic:T", "Pub")
    claimed = RemotingCommand(RequestCode.SEND_MESSAGE_V2, {"a": "p", "b": "T", "AccessKey": ANN})
    assert guarded.told(claimed) == ""
    assert guarded.told(RemotingCommand(RequestCode.SEND_MESSAGE_V2, {"b": "T"})) == (
        "Authorization failed. Please verify your access rights and try again."
    )
    unknown = RemotingCommand(RequestCode.SEND_MESSAGE_V2, {"b": "T", "AccessKey": "eve"})
    assert guarded.told(unknown) == "User:eve not found."


@pytest.mark.parametrize("rules", ["strict", "apache"])
@pytest.mark.parametrize("code", [RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, RequestCode.AUTH_CREATE_USER])
def test_no_list_of_numbers_makes_a_name_an_administrator(code: int, rules: str) -> None:
    guarded = Guarded(authentication_whitelist=f"{code}", authorization_rules=rules)
    assert guarded.told(RemotingCommand(code, {"username": "eve", "AccessKey": ROOT})) != ""
    assert guarded.told(request(code, ROOT, username="eve")) == ""


@pytest.mark.parametrize("rules", ["strict", "apache"])
@pytest.mark.parametrize("code", sorted(WRITES_USERS))
def test_neither_permissive_nor_a_white_list_of_addresses_makes_users(
    code: int, rules: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    permissive = Guarded(access_mode="permissive", authorization_rules=rules)
    listed = Guarded(authorization_rules=rules)
    monkeypatch.setattr(listed.table, "trusts", lambda source, user: True)
    for guarded in (permissive, listed):
        for command in (RemotingCommand(code, {"username": "eve"}), request(code, ANN, username="eve")):
            assert guarded.told(command) != ""


@pytest.mark.parametrize("rules", ["strict", "apache"])
@pytest.mark.parametrize("code", sorted(READS_USERS))
def test_permissive_tells_nobody_who_there_is(code: int, rules: str) -> None:
    guarded = Guarded(access_mode="permissive", authorization_rules=rules)
    for command in (RemotingCommand(code, {"username": "eve"}), request(code, ANN, username="eve")):
        assert guarded.told(command) != ""


def test_permissive_serves_and_notes_but_never_hands_out_administration(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guarded = Guarded(access_mode="permissive")
    with caplog.at_level(logging.INFO, "gimbalmq.audit"):
        assert guarded.told(send("T", None)) == ""
        assert guarded.told(send("T", ANN, "wrong")) == ""
        assert guarded.told(send("T")) == ""
        assert guarded.told(request(RequestCode.AUTH_CREATE_USER, ANN, username="eve")) != ""
        assert guarded.told(RemotingCommand(RequestCode.AUTH_CREATE_USER, {"username": "eve"})) != ""
    decisions = [record.getMessage().split()[0] for record in caplog.records]
    assert decisions == ["decision=tolerated"] * 3 + ["decision=refused"] * 2
    assert guarded.gate.sender_key(Peer().channel, ANN, "T") is None, "what is tolerated is not remembered"


def test_a_white_list_of_addresses_lets_everything_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = Guarded()
    trusted: list[tuple[str, str | None]] = []

    def trusts(source: str, user: str | None) -> bool:
        trusted.append((source, user))
        return source == "127.0.0.1"

    monkeypatch.setattr(guarded.table, "trusts", trusts)
    assert guarded.told(send("T", None), Peer("127.0.0.1")) == ""
    assert guarded.told(send("T", "eve", "x"), Peer("10.0.0.7")) == "User:eve is not found."
    assert trusted == [("127.0.0.1", None), ("10.0.0.7", "eve")]


# -- the name server ---------------------------------------------------------------------


def test_a_broker_registers_as_a_super_user_or_as_a_trusted_server() -> None:
    fields = {"brokerName": "b", "brokerAddr": "10.0.0.9:10911", "clusterName": "c", "brokerId": "0"}
    register = RemotingCommand(RequestCode.REGISTER_BROKER, fields)
    shown = PeerCertificate("broker-1", "ab" * 32)
    guarded = Guarded(nameserver=True, trusted_servers=("10.1.0.0/16", "CN=broker-1"))
    assert guarded.told(register) == "username cannot be null."
    assert guarded.told(request(RequestCode.REGISTER_BROKER, ANN, **fields)).endswith(
        "it needs a server or a Super user."
    )
    assert guarded.told(request(RequestCode.REGISTER_BROKER, ROOT, **fields)) == ""
    assert guarded.told(register, Peer("10.1.2.3")) == ""
    assert guarded.told(register, Peer(peer_certificate=shown)) == ""
    assert guarded.told(register, Peer(peer_certificate=PeerCertificate("broker-2", "ab" * 32))) != ""
    # It is trusted with what brokers do, and nothing else.
    change = RemotingCommand(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"})
    assert guarded.told(change, Peer("10.1.2.3")) == "username cannot be null."


def test_routes_are_public_or_not() -> None:
    route = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert Guarded(nameserver=True).told(route) == ""
    private = Guarded(nameserver=True, routes_public=False)
    assert private.told(route) == "username cannot be null."
    private.allow(ANN, "Topic:T", "Sub")
    assert private.told(request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ANN, topic="T")) == ""


# -- what the peer meets -----------------------------------------------------------------


def test_repeated_refusals_are_delayed_and_strangers_held(guarded: Guarded) -> None:
    peer = Peer("10.0.0.66")
    delays = []
    for _ in range(14):
        refusal = guarded.refusal(send("T", "eve", "x"), peer)
        assert refusal is not None and refusal.holds
        delays.append(refusal.delay)
    assert delays == [0.0] * 10 + [0.1, 0.2, 0.4, 0.8]
    known = guarded.refusal(send("T"), peer)
    assert known is not None and known.delay == 1.6 and not known.holds
    assert guarded.told(send("T", ROOT), peer) == "", "what is allowed is not delayed"
    elsewhere = guarded.refusal(send("T", None), Peer("10.0.0.67"))
    assert elsewhere is not None and elsewhere.delay == 0.0


def test_refusals_and_changes_are_in_the_audit_log_without_secrets(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "gimbalmq.audit"):
        guarded.told(send("T"))
        guarded.told(send("T", ROOT))
        for _ in range(2):  # each time, also if the decision is known
            guarded.told(request(RequestCode.DELETE_TOPIC_IN_BROKER, ROOT, topic="old"))
        command = request(
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, ROOT, accessKey="k", secretKey="hush-hush"
        )
        guarded.told(command)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "decision=refused user=ann source=10.0.0.7:50000 request=310 name=SEND_MESSAGE_V2 about=Topic:T "
        'reason="User:ann has no permission to access Topic:T from 10.0.0.7, no matched policies."',
        "decision=allowed user=root source=10.0.0.7:50000 request=215 name=DELETE_TOPIC_IN_BROKER "
        'about="Topic:old topic=old"',
        "decision=allowed user=root source=10.0.0.7:50000 request=215 name=DELETE_TOPIC_IN_BROKER "
        'about="Topic:old topic=old"',
        "decision=allowed user=root source=10.0.0.7:50000 request=50 name=UPDATE_AND_CREATE_ACL_CONFIG "
        'about="accessKey=k"',
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "INFO", "INFO"]


def test_what_handlers_refuse_by_the_thousand_does_not_fill_the_log(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "gimbalmq.audit"):
        for _ in range(1000):
            guarded.gate.refused(Peer().channel, send("T"), "the topic[T] sending message is forbidden")
    assert len(caplog.messages) == 1


def test_an_address_that_guesses_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    guarded = Guarded(clock=clock)
    with caplog.at_level("INFO", "gimbalmq.audit"):
        for number in range(3000):
            assert guarded.told(send("T", f"eve-{number}", "x")) != ""
        assert len(caplog.messages) == 1001
        assert guarded.told(send("T", "eve", "x"), Peer("10.0.0.9")) != ""
        assert "10.0.0.9" in caplog.messages[-1]
        clock.advance(60)
        assert guarded.told(send("T", "eve", "x")) != ""
        assert caplog.messages[-1].endswith("repeated=1999")
