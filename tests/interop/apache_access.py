"""Apache's brokers with access control, with the same people: 5.5.0 by users and policies, 4.9.7 by plain_acl.yml.

Name servers of either release ask nobody who they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.interop.apache_cluster import NEWEST, ApacheServer, start_servers
from tests.peers.apache import ApacheBroker, ApacheNameServer, prepare_home
from tests.peers.frames import Answer, Frame, Keys, ask

CREATE_TOPIC, CREATE_USER, UPDATE_USER, CREATE_ACL = 17, 3001, 3002, 3006

ROOT = Keys("administrator", "root-secret-1")
WORKER = Keys("worker-user", "12345678")  # digits: YAML reads them as a number
READER = Keys("reader-user", "reader-secret-1")
DISABLED = Keys("disabled-user", "disabled-secret-1")
ELSEWHERE = Keys("elsewhere-user", "elsewhere-secret-1")

GUARDED, COPIED, ORDERS, CLOSED = "guarded", "copied", "orders", "closed"

PLAIN_ACL = f"""\
accounts:
  - accessKey: {ROOT.access}
    secretKey: {ROOT.secret}
    admin: true
  - accessKey: {WORKER.access}
    secretKey: {WORKER.secret}
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - {GUARDED}=PUB|SUB
      - {COPIED}=PUB|SUB
      - {ORDERS}=PUB|SUB
  - accessKey: {READER.access}
    secretKey: {READER.secret}
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - {GUARDED}=SUB
"""

_LOCAL = "org.apache.rocketmq.auth.{0}.provider.Local{1}MetadataProvider"
ACCESS_CONTROL: Mapping[str, object] = {
    "authenticationEnabled": "true",
    "authenticationMetadataProvider": _LOCAL.format("authentication", "Authentication"),
    "authorizationEnabled": "true",
    "authorizationMetadataProvider": _LOCAL.format("authorization", "Authorization"),
    "initAuthenticationUser": json.dumps({"username": ROOT.access, "password": ROOT.secret}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": ROOT.access, "secretKey": ROOT.secret}),
}
"""A broker of 5.x, Apache's or ours, that lets in its administrator only."""


def entry(
    resource: str, *actions: str, sources: Sequence[str] = (), decision: str = "Allow"
) -> dict[str, Any]:
    """One entry of a policy as requests and files write it."""
    shown: dict[str, Any] = {"resource": resource, "actions": [*actions], "decision": decision}
    return shown | ({"sourceIps": [*sources]} if sources else {})


def user_frame(keys: Keys, *, kind: str = "Normal", sources: Sequence[str] = (), by: Keys = ROOT) -> Frame:
    """Request 3001: a new user; addresses that it is bound to are ours."""
    told: dict[str, Any] = {"username": keys.access, "password": keys.secret, "userType": kind}
    if sources:
        told["sourceIps"] = [*sources]
    return Frame(CREATE_USER, {"username": keys.access}, json.dumps(told).encode(), keys=by)


def acl_frame(
    name: str, entries: Iterable[Mapping[str, Any]], *, policy: str = "Custom", by: Keys = ROOT
) -> Frame:
    """Request 3006: further entries of a user's policy."""
    subject = f"User:{name}"
    told = {"subject": subject, "policies": [{"policyType": policy, "entries": [*entries]}]}
    return Frame(CREATE_ACL, {"subject": subject}, json.dumps(told).encode(), keys=by)


def disable_frame(keys: Keys, *, by: Keys = ROOT) -> Frame:
    """Request 3002; 3001 creates every user enabled."""
    told = {"username": keys.access, "userStatus": "disable"}
    return Frame(UPDATE_USER, {"username": keys.access}, json.dumps(told).encode(), keys=by)


def topic_frame(topic: str, queues: int = 4, *, by: Keys = ROOT) -> Frame:
    """Request 17: a topic."""
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues),
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    return Frame(CREATE_TOPIC, fields, keys=by)


def tell(broker: str, frames: Iterable[Frame]) -> list[Answer]:
    """Changes, one after the other, each of which must be taken."""
    answers = ask(broker, frames, window=1)
    assert {answer.code for answer in answers} <= {0}, answers
    return answers


def settle_people(broker: str) -> None:
    """The users above and what they may do."""
    topics = [entry(f"Topic:{name}", "Pub", "Sub", "Get") for name in (GUARDED, COPIED, ORDERS)]
    groups = entry("Group:*", "Sub", "Get")
    tell(
        broker,
        [
            *(user_frame(keys) for keys in (WORKER, READER, DISABLED, ELSEWHERE)),
            disable_frame(DISABLED),
            acl_frame(WORKER.access, [*topics, groups]),
            acl_frame(READER.access, [entry(f"Topic:{GUARDED}", "Sub", "Get"), groups]),
            acl_frame(DISABLED.access, [*topics, groups]),
            acl_frame(ELSEWHERE.access, [entry("*", "All", sources=["10.0.0.0/8"])]),
        ],
    )


def start_guarded(version: str, folder: Path) -> tuple[ApacheServer, tuple[ApacheNameServer, ApacheBroker]]:
    """A name server and a broker of this version that lets in those above."""
    if version == NEWEST:
        server, processes = start_servers(version, folder, extra=ACCESS_CONTROL, keys=ROOT)
        try:
            settle_people(server.broker)
        except BaseException:
            for process in processes:
                process.kill()
            raise
        return server, processes
    (prepare_home(folder / "broker") / "conf" / "plain_acl.yml").write_text(PLAIN_ACL)
    return start_servers(version, folder, extra={"aclEnable": "true"}, keys=ROOT)
