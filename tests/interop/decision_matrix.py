"""A generated matrix of users with policies, addresses and requests, and what a broker decides about each cell.

Every request is harmless if it passes: what it names is not there, or is made again by the next one. Whether it then
succeeds does not count, only whether access control let it through.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.interop.apache_access import acl_frame, disable_frame, entry, tell, user_frame
from tests.peers.frames import Frame, Keys, ask, refused

CLUSTER = "InteropCluster"
SEED = 20261116
RANDOM_USERS = 16
HOME, AWAY = "127.0.0.1", "127.0.0.2"
"""Two addresses a client on this machine can have."""

TOPICS = ("alpha", "alpha-1", "alpha-12", "beta")
GROUPS = ("readers", "readers-1", "others")
RESOURCES = (
    *("*", "Topic:*", "Topic:alpha*", "Topic:alpha-1*", "Topic:alpha", "Topic:alpha-1", "Topic:beta"),
    *("Topic:%DLQ%readers", "Topic:%RETRY%readers", "Group:*", "Group:readers*", "Group:readers"),
    *("Group:readers-1", "Group:others", "Group:CLIENT_INNER_PRODUCER", "Cluster:*", f"Cluster:{CLUSTER}"),
    *("Cluster:Interop*", "Namespace:*"),
)
NOWHERE = "999999999999"
"""A place of the commit log at which no message lies."""
ACTIONS = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
SOURCES: Sequence[tuple[str, ...]] = (
    (), (), (HOME,), (AWAY,), ("127.0.0.0/8",), ("127.0.0.2/31", "::1"), ("10.0.0.0/8",), ("192.168.0.1", HOME),
)  # fmt: skip


@dataclass(frozen=True)
class Person:
    """A user, what both kinds of policy give it, and how it comes."""

    keys: Keys
    custom: Sequence[Mapping[str, Any]] = ()
    default: Sequence[Mapping[str, Any]] = ()
    kind: str = "Normal"
    disabled: bool = False
    known: bool = True
    shown: Keys | None = None
    """The keys it comes with, if they are not its own."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """From where it is tried: from both, if an entry asks."""
        asked = any("sourceIps" in one for one in (*self.custom, *self.default))
        return (HOME, AWAY) if asked else (HOME,)

    def frames(self) -> Iterator[Frame]:
        if not self.known:
            return
        yield user_frame(self.keys, kind=self.kind)
        if self.custom:
            yield acl_frame(self.keys.access, self.custom)
        if self.default:
            yield acl_frame(self.keys.access, self.default, policy="Default")
        if self.disabled:
            yield disable_frame(self.keys)


@dataclass(frozen=True)
class Asking:
    """A request; its name is what a difference is called by."""

    name: str
    code: int
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, order=True)
class Cell:
    user: str
    address: str
    request: str


def _keys(name: str) -> Keys:
    return Keys(name, f"secret-of-{name}")


def people() -> list[Person]:
    """Chosen ones, then as many as are drawn."""
    many = (entry("*", "Pub", "Sub"), entry("Topic:*", "Pub", "Sub", decision="Deny"))
    chosen: dict[str, dict[str, Any]] = {
        "super": {"kind": "Super"},
        "nothing": {},
        "publisher": {"custom": [entry("Topic:alpha", "Pub")]},
        "subscriber": {"custom": [entry("Topic:alpha*", "Sub"), entry("Group:readers*", "Sub")]},
        "reader": {"custom": [entry("Topic:*", "Sub", "Get"), entry("Group:*", "Sub", "Get")]},
        "getter": {"custom": [entry("*", "Get")]},
        "lister": {"custom": [entry("*", "List")]},
        "creator": {"custom": [entry("Topic:*", "Create"), entry("Group:*", "Create")]},
        "everything": {"custom": [entry("*", "All")]},
        "topics": {"custom": [entry("Topic:*", "All")]},
        "groups": {"custom": [entry("Group:*", "All")]},
        "cluster": {"custom": [entry(f"Cluster:{CLUSTER}", "All")]},
        "other-cluster": {"custom": [entry("Cluster:Elsewhere", "All")]},
        "cluster-getter": {"custom": [entry("Cluster:*", "Get")]},
        "narrow-allow": {"custom": [*many, entry("Topic:alpha*", "Pub", "Sub")]},
        "narrow-deny": {
            "custom": [
                *many,
                entry("Topic:alpha*", "Pub", "Sub"),
                entry("Topic:alpha-1", "Pub", "Sub", decision="Deny"),
            ]
        },
        "prefixes": {
            "custom": [
                entry("Topic:alpha*", "All"),
                entry("Topic:alpha-1*", "All", decision="Deny"),
                entry("Topic:alpha-12", "All"),
            ]
        },
        "custom-first": {
            "custom": [entry("Topic:alpha*", "Pub", decision="Deny")],
            "default": [entry("Topic:*", "Pub")],
        },
        "default-only": {"default": [entry("Topic:alpha*", "Pub", "Sub"), entry("Group:*", "Sub")]},
        "from-home": {"custom": [entry("*", "All", sources=[HOME])]},
        "from-away": {"custom": [entry("*", "All", sources=[AWAY])]},
        "from-nowhere": {"custom": [entry("*", "All", sources=["10.0.0.0/8", "fe80::/10"])]},
        "deny-here": {
            "custom": [entry("*", "All"), entry("Topic:*", "All", sources=[AWAY], decision="Deny")]
        },
        "retry-named": {
            "custom": [entry("Topic:%RETRY%readers", "All"), entry("Group:%RETRY%readers", "All")]
        },
        "dead-letters": {"custom": [entry("Topic:%DLQ%readers", "All")]},
        "inner-producer": {"custom": [entry("Group:CLIENT_INNER_PRODUCER", "Sub")]},
        "disabled": {"custom": [entry("*", "All")], "disabled": True},
        "disabled-super": {"kind": "Super", "disabled": True},
        "unknown": {"known": False},
    }
    found = [Person(_keys(name), **told) for name, told in chosen.items()]
    liar = _keys("wrong-secret")
    found.append(Person(liar, [entry("*", "All")], shown=Keys(liar.access, liar.secret + "x")))
    draw = random.Random(SEED)
    return found + [_drawn(draw, number) for number in range(RANDOM_USERS)]


def _drawn(draw: random.Random, number: int) -> Person:
    """One resource is in at most one entry of a policy: two on the same one are the subject of no rule."""

    def entries(most: int) -> list[dict[str, Any]]:
        resources = draw.sample(RESOURCES, draw.randint(0, most))
        return [
            entry(
                resource,
                *draw.sample(ACTIONS, draw.choice((1, 1, 2, 3))),
                sources=draw.choice(SOURCES),
                decision=draw.choice(("Allow", "Allow", "Deny")),
            )
            for resource in resources
        ]

    return Person(_keys(f"drawn-{number:02d}"), entries(6), entries(3))


def _send(topic: str, group: str = "senders") -> dict[str, str]:
    names = "abcdefgh"
    values = (group, topic, "TBW102", "4", "0", "0", "1700000000000", "0")
    return dict(zip(names, values, strict=True))


def _long_send(topic: str) -> dict[str, str]:
    names = (
        "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag"
    )  # fmt: skip
    return dict(zip(names, _send(topic).values(), strict=True))


def _pull(topic: str, group: str) -> dict[str, str]:
    """Without bit 2 of the flags nobody waits for messages."""
    return {
        "consumerGroup": group, "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4",
        "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        "expressionType": "TAG",
    }  # fmt: skip


def _heartbeat(client: str, consumers: Mapping[str, Sequence[str]], producers: Sequence[str] = ()) -> bytes:
    told = {
        "clientID": client,
        "producerDataSet": [{"groupName": group} for group in producers],
        "consumerDataSet": [
            {
                "groupName": group,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [
                    {"topic": topic, "subString": "*", "expressionType": "TAG", "subVersion": 1, "tagsSet": [],
                     "codeSet": []}
                    for topic in topics
                ],
            }
            for group, topics in consumers.items()
        ],
    }  # fmt: skip
    return json.dumps(told).encode()


def _locks(group: str, *topics: str) -> bytes:
    queues = [{"topic": topic, "brokerName": "nobody", "queueId": 0} for topic in topics]
    return json.dumps({"consumerGroup": group, "clientId": "matrix", "mqSet": queues}).encode()


def requests() -> list[Asking]:
    """Requests of a broker that Apache's rules name, and those they forget; the frequent ones about several names."""
    retry, dead = "%RETRY%readers", "%DLQ%readers"
    found: list[Asking] = []

    def add(code: int, what: str = "", fields: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        found.append(Asking(f"{code} {what}".strip(), code, fields or {}, body))

    for topic in (*TOPICS, dead):
        add(310, topic, _send(topic), b"x")
    add(310, f"{retry} by its group", _send(retry, "readers"), b"x")
    add(310, f"{retry} by Java's consumer", _send(retry, "CLIENT_INNER_PRODUCER"), b"x")
    for topic in ("alpha", "beta", retry):
        add(10, topic, _long_send(topic), b"x")
    add(320, "alpha-1", _send("alpha-1") | {"m": "true"}, b"x")
    add(325, "alpha", _send("alpha"), b"x")
    add(324, "beta", _long_send("beta"), b"x")
    add(370, "alpha", {"producerGroup": "senders", "topic": "alpha", "recallHandle": "x"})
    ending = {
        "producerGroup": "senders", "tranStateTableOffset": "0", "commitLogOffset": NOWHERE, "commitOrRollback": "8",
        "msgId": "x",
    }  # fmt: skip
    add(37, "alpha", ending | {"topic": "alpha"})
    add(37, "of no topic", ending)
    for group in ("readers", "others"):
        add(36, group, {"group": group, "offset": NOWHERE, "delayLevel": "0", "originTopic": "alpha"})
    for topic, group in (
        ("alpha", "readers"),
        ("alpha-1", "readers-1"),
        ("beta", "others"),
        (retry, "readers"),
    ):
        add(11, f"{topic} {group}", _pull(topic, group))
    add(361, "alpha readers", _pull("alpha", "readers") | {"sysFlag": "20"})
    add(361, "beta others", _pull("beta", "others") | {"sysFlag": "20"})
    for topic in ("alpha", "beta", retry):
        times = {"beginTimestamp": "0", "endTimestamp": "1"}
        add(12, topic, {"topic": topic, "key": "k", "maxNum": "1", "_UNIQUE_KEY_QUERY": "false", **times})
    for topic, group in (("alpha", "readers"), ("beta", "others"), (retry, "readers")):
        place = {"topic": topic, "consumerGroup": group, "queueId": "0"}
        add(14, f"{topic} {group}", place)
        add(15, f"{topic} {group}", place | {"commitOffset": "0"})
    add(34, "readers", body=_heartbeat("matrix", {"readers": ["alpha", retry]}))
    add(34, "two groups", body=_heartbeat("matrix", {"readers": ["alpha"], "others": ["beta"]}))
    add(34, "producers only", body=_heartbeat("matrix", {}, ["senders"]))
    add(35, "readers", {"clientID": "matrix", "consumerGroup": "readers"})
    add(35, "producers only", {"clientID": "matrix", "producerGroup": "senders"})
    for group in GROUPS:
        add(38, group, {"consumerGroup": group})
    for code in (41, 42):
        add(code, "readers", body=_locks("readers", "alpha", retry))
        add(code, "others", body=_locks("others", "beta"))
    new_topic = {
        "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    for topic in ("alpha-12", "beta"):
        add(17, topic, new_topic | {"topic": topic})
    # None that is there: Apache's broker crashes if a queue is deleted while 306 reads it.
    for topic in ("alpha-9", "gone"):
        add(215, topic, {"topic": topic})
    add(18, body=b'{"topicConfigList":[]}')
    for group in ("readers", "others"):
        add(207, group, {"groupName": group})
    for topic in ("alpha", "alpha-1", "beta"):
        add(30, topic, {"topic": topic, "queueId": "0"})
        add(202, topic, {"topic": topic})
    add(29, "alpha", {"topic": "alpha", "queueId": "0", "timestamp": "0"})
    add(31, "alpha", {"topic": "alpha", "queueId": "0"})
    add(32, "beta", {"topic": "beta", "queueId": "0"})
    add(33, "alpha", {"topic": "alpha", "offset": NOWHERE})
    add(33, "of no topic", {"offset": NOWHERE})
    add(300, "alpha", {"topic": "alpha"})
    add(351, "alpha", {"topic": "alpha"})
    add(351, retry, {"topic": retry})
    add(323, "alpha", {"topic": "alpha", "msgId": "x"})
    for group in ("readers", "others"):
        add(203, group, {"consumerGroup": group})
        add(343, group, {"group": group})
        add(352, group, {"group": group})
    add(307, "readers", {"consumerGroup": "readers", "clientId": "nobody"})
    add(208, "alpha readers", {"consumerGroup": "readers", "topic": "alpha"})
    add(208, "readers", {"consumerGroup": "readers"})
    add(208, "list", {"consumerGroup": "readers", "topicList": "alpha;beta"})
    add(303, "alpha readers", {"topic": "alpha", "group": "readers"})
    add(
        321,
        "alpha readers",
        {"topic": "alpha", "consumerGroup": "readers", "queueId": "0", "index": "0", "count": "1"},
    )
    add(345, "alpha readers", {"topic": "alpha", "group": "readers"})
    # A broker asks the members of the group and waits for them; of this one there are none.
    add(223, "alpha readers-1", {"topic": "alpha", "group": "readers-1"})
    add(308, "alpha", {"topic": "alpha", "compareGroup": "others", "filterGroups": "readers,readers-1"})
    reset = {"timestamp": "0", "isForce": "false"}
    add(222, "alpha readers", {"topic": "alpha", "group": "readers", **reset})
    add(222, "beta others", {"topic": "beta", "group": "others", **reset})
    add(314, "alpha", {"srcGroup": "readers", "destGroup": "others", "topic": "alpha"})
    add(
        309,
        "alpha readers",
        {"consumerGroup": "readers", "topic": "alpha", "clientId": "nobody", "msgId": "x"},
    )
    popped = {"consumerGroup": "readers", "topic": "alpha", "queueId": "0"}
    add(200050, "alpha readers", popped | {
        "maxMsgNums": "1", "invisibleTime": "1000", "pollTime": "0", "bornTime": "0", "initMode": "0",
    })  # fmt: skip
    handle = {"extraInfo": "0 0 1000 0 0 nobody 0", "offset": "0"}
    add(200051, "alpha readers", popped | handle)
    add(200053, "alpha readers", popped | handle | {"invisibleTime": "1000"})
    add(200055, "alpha readers", popped)
    for code in (3001, 3002, 3003, 3004):
        add(code, fields={"username": "nobody-here"}, body=b"{}" if code < 3003 else b"")
    add(3005, fields={"filter": "nobody-here"})
    for code in (3006, 3007, 3008, 3009):
        body = b'{"subject":"User:nobody-here","policies":[]}' if code < 3008 else b""
        add(code, fields={"subject": "User:nobody-here"}, body=body)
    add(3010, fields={"subjectFilter": "nobody-here"})
    add(204, fields={"producerGroup": "senders"})
    add(315, fields={"statsName": "TOPIC_PUT_NUMS", "statsKey": "alpha"})
    add(317, fields={"isOrder": "false"})
    add(328)
    add(901, "own cluster", {"clusterName": CLUSTER, "brokerName": "nobody"})
    add(901, "another", {"clusterName": "Elsewhere", "brokerName": "nobody"})
    # What Apache's rules leave to every user that can sign.
    add(21)
    add(201)
    add(25, body=b"")
    add(26)
    add(28)
    add(43)
    add(45)
    add(200, "readers", body=b'{"groupName":"readers"}')
    add(200, "others", body=b'{"groupName":"others"}')
    add(225, body=b'{"groupConfigList":[]}')
    add(305)
    add(306)
    add(316)
    add(329)
    add(353, "alpha readers", {"topic": "alpha", "group": "readers"})
    add(400, "readers", body=b'{"consumerGroup":"readers","topic":"alpha","clientId":"matrix","strategyName":"AVG",'
        b'"messageModel":"CLUSTERING"}')  # fmt: skip
    add(
        401, "readers", body=b'{"consumerGroup":"readers","topic":"alpha","mode":"PULL","popShareQueueNum":0}'
    )
    add(907)
    add(200151, "readers", body=b'{"brokerName":"nobody","acks":[]}')
    return found


_LARGEST_BINARY = 32_767


def decisions(broker: str) -> dict[Cell, bool]:
    """Settle everybody at a broker and ask it everything: which cells were refused."""
    everybody, everything = people(), requests()
    tell(broker, [frame for person in everybody for frame in person.frames()])
    found: dict[Cell, bool] = {}
    for row, person in enumerate(everybody):
        keys = person.shown or person.keys
        for address in person.addresses:
            # Both forms of the header are tried, half of the cells each; large codes fit into JSON only.
            frames = [
                Frame(
                    asking.code,
                    asking.fields,
                    asking.body,
                    keys,
                    binary=(row + column) % 2 == 1 and asking.code <= _LARGEST_BINARY,
                )
                for column, asking in enumerate(everything)
            ]
            for asking, answer in zip(everything, ask(broker, frames, source=address), strict=True):
                found[Cell(keys.access, address, asking.name)] = refused(answer)
    return found
