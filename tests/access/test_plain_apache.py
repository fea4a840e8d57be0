"""Decisions over accounts of 4.x, compared with those of Apache's broker 4.9.7.

``APACHE`` is what that broker asks for, code by code; ``apache_allows`` is its order of checks from the signature on.
Ours may refuse what it allows, for a reason that stands in ``STRICTER``, and does not allow what it refuses, except for
the requests in ``WIDER``.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from itertools import product

import pytest

from gimbalmq.access.plain_acl import Account, AccountFile, Perm
from gimbalmq.protocol.codes import RequestCode as Code
from tests.access.plain_gate import PlainGate, signed
from tests.access.test_plain_acl import SECRET

TOPIC, GROUP, PLACE = "orders", "billing", 4096

FIELDS = {
    **dict.fromkeys(("topic", "b"), TOPIC),
    **dict.fromkeys(("group", "consumerGroup", "groupName", "compareGroup", "srcGroup", "destGroup"), GROUP),
    **dict.fromkeys(("producerGroup", "a"), "senders"),
    "queueId": "0",
    "offset": f"{PLACE}",
    "commitLogOffset": f"{PLACE}",
    "tranStateTableOffset": "0",
    "commitOrRollback": "8",
    "delayLevel": "0",
    "clientId": "c1",
    "msgId": f"7F00000100002A9F{PLACE:016X}",
}

BODIES: dict[int, object] = {
    Code.HEART_BEAT: {
        "clientID": "c1",
        "consumerDataSet": [
            {
                "groupName": GROUP,
                "subscriptionDataSet": [
                    {"topic": name, "subString": "*", "subVersion": 1} for name in (TOPIC, f"%RETRY%{GROUP}")
                ],
            }
        ],
        "producerDataSet": [{"groupName": "senders"}],
    },
    Code.LOCK_BATCH_MQ: {
        "clientId": "c1",
        "consumerGroup": GROUP,
        "mqSet": [{"topic": TOPIC, "brokerName": "a", "queueId": 0}],
    },
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {"groupName": GROUP},
}
BODIES[Code.UNLOCK_BATCH_MQ] = BODIES[Code.LOCK_BATCH_MQ]


@dataclass(frozen=True)
class Wants:
    """What Apache's broker asks for."""

    topic: str = ""
    group: str = ""
    admin: bool = False


APACHE: dict[int, Wants] = {
    Code.SEND_MESSAGE: Wants(topic="PUB"),
    Code.SEND_MESSAGE_V2: Wants(topic="PUB"),
    Code.CONSUMER_SEND_MSG_BACK: Wants(group="SUB"),
    Code.PULL_MESSAGE: Wants(topic="SUB", group="SUB"),
    Code.QUERY_MESSAGE: Wants(topic="SUB"),
    Code.HEART_BEAT: Wants(topic="SUB", group="SUB"),
    Code.UNREGISTER_CLIENT: Wants(group="SUB"),
    Code.GET_CONSUMER_LIST_BY_GROUP: Wants(group="SUB"),
    Code.UPDATE_CONSUMER_OFFSET: Wants(topic="SUB", group="SUB"),
    Code.UPDATE_AND_CREATE_TOPIC: Wants(admin=True),
    Code.UPDATE_BROKER_CONFIG: Wants(admin=True),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Wants(admin=True),
    Code.DELETE_SUBSCRIPTIONGROUP: Wants(admin=True),
    Code.DELETE_TOPIC_IN_BROKER: Wants(admin=True),
}
SIGNATURE_ONLY = (
    *(14, 21, 26, 28, 29, 30, 31, 32, 33, 37, 41, 42, 43, 45, 46, 50, 51, 52, 53, 54),
    *(
        201,
        202,
        203,
        204,
        208,
        222,
        223,
        300,
        303,
        305,
        306,
        307,
        308,
        309,
        314,
        315,
        316,
        317,
        320,
        321,
        323,
    ),
    *(324, 325, 328, 329),
)
"""Of the codes that our broker knows."""

_READS_GROUP = "reads a group's state, which in 4.9 every account may: it needs SUB on it"
_READS_TOPIC = "reads a topic's state or messages, which in 4.9 every account may: it needs SUB on it"
_MOVES = "changes a group's or a topic's state, which in 4.9 every account may: for administrators"
_SERVER = "reveals or changes the whole broker, which in 4.9 every account may: for administrators"
_ACCOUNTS = "makes administrators, which in 4.9 every account may: for Super users"
_DENIED = "a name that is listed with DENY is denied to an administrator, too"

STRICTER: dict[int, str] = {
    14: _READS_GROUP,
    **dict.fromkeys((203, 208, 223, 303, 307, 308, 321), _READS_GROUP),
    **dict.fromkeys((29, 30, 31, 32, 33, 202, 300), _READS_TOPIC),
    36: "a message that is sent back is copied to the group's retry topic: SUB on the message's own topic, too",
    37: "ends a transaction: PUB on the topic of the half message",
    **dict.fromkeys((41, 42), "takes or frees locks of a group: SUB on topic and group"),
    **dict.fromkeys((320, 324, 325), "sends, which 4.9 forgot: PUB, as with any other send"),
    309: "hands a message to a consumer: SUB on its topic and on the group",
    **dict.fromkeys((222, 314, 323), _MOVES),
    **dict.fromkeys((21, 26, 28, 43, 45, 201, 204, 305, 306, 315, 316, 317, 328, 329), _SERVER),
    **dict.fromkeys((50, 51, 52, 53, 54), _ACCOUNTS),
    **dict.fromkeys((17, 200, 207, 215), _DENIED),
}
"""Codes that we refuse to some accounts although Apache's broker allows them, and why."""


WIDER = {
    15: "commits a group's offsets: an administrator with lists, who moves them by 222 in 4.9, too",
    38: "lists the members of a group: an administrator with lists, who sees them by 203 in 4.9, too",
}
"""Codes that we allow to some accounts although Apache's broker refuses them, and why."""


def apache_allows(account: Account, wants: Wants) -> bool:
    if wants.admin and not account.admin:
        return False
    if not wants.topic and not wants.group:
        return True
    if account.admin and not account.topics and not account.groups:
        return True
    asked = (
        (wants.topic, account.topics.get(TOPIC, account.default_topic)),
        (wants.group, account.groups.get(GROUP, account.default_group)),
    )
    return all(right.publishes if word == "PUB" else right.subscribes for word, right in asked if word)


def _accounts() -> list[Account]:
    of_topics = list(product(Perm, [None, *Perm]))
    of_groups = [(Perm.DENY, None), (Perm.DENY, Perm.SUB), (Perm.SUB, Perm.DENY), (Perm.PUB_SUB, Perm.PUB)]
    return [
        Account(
            f"account{number:03}",
            SECRET,
            admin=admin,
            default_topic=topic,
            default_group=group,
            topics={} if listed is None else {TOPIC: listed},
            groups={} if of_group is None else {GROUP: of_group},
        )
        for number, (admin, (topic, listed), (group, of_group)) in enumerate(
            product((False, True), of_topics, of_groups)
        )
    ]


@pytest.fixture(scope="module")
def decisions(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, Account, bool, bool]]:
    """Every code, every account, whether Apache's broker allows it, whether we do."""
    conf = tmp_path_factory.mktemp("conf")
    accounts = _accounts()
    (conf / "plain_acl.yml").write_bytes(AccountFile(accounts=tuple(accounts)).text())
    audit = logging.getLogger("gimbalmq.audit")
    guarded = PlainGate(conf)
    guarded.needs.topic_at = {PLACE: TOPIC}.get
    found = []
    audit.disabled = True  # it would say thousands of times what is expected here
    for code in (*APACHE, *SIGNATURE_ONLY):
        body = json.dumps(BODIES[code]).encode() if code in BODIES else b""
        for account in accounts:
            ours = guarded.told(signed(code, account.access_key, SECRET, FIELDS, body)) == ""
            found.append((code, account, apache_allows(account, APACHE.get(code, Wants())), ours))
    audit.disabled = False
    return found


def test_nothing_that_apaches_broker_refuses_is_allowed_but_two_requests_of_administrators(
    decisions: list[tuple[int, Account, bool, bool]],
) -> None:
    assert len(decisions) > 5_000
    wider = [(code, account) for code, account, apache, ours in decisions if ours and not apache]
    assert {code for code, _ in wider} == set(WIDER)
    assert all(account.admin for _, account in wider)


def test_what_is_refused_besides_has_a_reason_code_by_code(
    decisions: list[tuple[int, Account, bool, bool]],
) -> None:
    stricter = {code for code, _, apache, ours in decisions if apache and not ours}
    assert stricter == set(STRICTER)


def test_an_account_with_all_rights_can_do_what_clients_do(
    decisions: list[tuple[int, Account, bool, bool]],
) -> None:
    """Stricter must not mean useless: who may send and read does so with every request of a producer or consumer."""
    clients = {10, 310, 320, 37, 324, 325, 11, 12, 14, 15, 29, 30, 31, 32, 33, 34, 35, 36, 38, 41, 42}
    for code, account, _, ours in decisions:
        topic = account.topics.get(TOPIC, account.default_topic)
        group = account.groups.get(GROUP, account.default_group)
        if code in clients and topic is Perm.PUB_SUB and group.subscribes:
            assert ours, (code, account)


def test_an_administrator_without_lists_may_do_everything(
    decisions: list[tuple[int, Account, bool, bool]],
) -> None:
    for code, account, _, ours in decisions:
        if account.admin and not account.topics and not account.groups:
            assert ours, (code, account)
