"""Record what the classes of Apache 5.5.0 decide for random policies and questions, as golden file for our decisions.

    python -m tests.peers.record_decisions

Each line of `tests/golden/decisions_5_5_0.tsv.xz` has the policies as JSON, kind and name of the resource, actions,
address, and "allow" or the text of the refusal. Apache's answer with the same policies must be the same JSON.
"""

from __future__ import annotations

import lzma
import random
import subprocess
import tempfile
from collections.abc import Iterator

from gimbalmq.access.policies import Action, ResourceKind
from gimbalmq.protocol.access_bodies import AclBody, EntryBody, PolicyBody
from tests.peers.apache import ROOT, fetch
from tests.peers.record_store import GOLDEN

VERSION = "5.5.0"
CELLS = 2500
SOURCE = ROOT / "tests" / "peers" / "java_5" / "Decisions.java"

_NAMES = ("a", "b", "ab", "aa", "aab", "ba", "abb")
_KINDS = tuple(kind.value for kind in ResourceKind if kind != ResourceKind.ANY)
_ASKED_KINDS = ("Topic", "Group", "Cluster")
_ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.1.0.1", "192.168.0.1", "2001:db8::7", "2001:db9::7")
_RANGES = ("10.0.0.1", "10.0.0.0/24", "10.0.0.0/8", "0.0.0.0/0", "2001:db8::7", "2001:db8::/32", "::/0")


def _resource(rng: random.Random) -> str:
    chance = rng.random()
    if chance < 0.15:
        return "*"
    kind = rng.choice(_KINDS if chance < 0.25 else _ASKED_KINDS[:2])
    return f"{kind}:*" if chance < 0.4 else f"{kind}:{rng.choice(_NAMES)}{rng.choice(('', '*'))}"


def _entry(rng: random.Random) -> EntryBody:
    granted = [action.value for action in Action if action != Action.ANY]
    some = rng.sample(granted, rng.randint(1, 3))
    return EntryBody(
        resource=_resource(rng),
        actions=sorted(some, key=granted.index),
        decision=rng.choice(("Allow", "Deny")),
        source_ips=rng.sample(_RANGES, rng.choice((0, 0, 1, 2))) or None,
    )


def _questions() -> Iterator[tuple[str, ...]]:
    rng = random.Random(12)
    asked = [action.value for action in Action if action != Action.ALL]
    for _ in range(CELLS):
        custom, default = (
            [_entry(rng) for _ in range(count)] for count in (rng.randint(1, 5), rng.randint(0, 3))
        )
        policies = [PolicyBody(policy_type="Custom", entries=custom)]
        if default:
            policies.append(PolicyBody(policy_type="Default", entries=default))
        body = AclBody(subject="User:u", policies=policies).dump().decode()
        actions = ",".join(rng.sample(asked, rng.randint(1, 2)))
        yield body, rng.choice(_ASKED_KINDS[:2]), rng.choice(_NAMES), actions, rng.choice(_ADDRESSES)


def main() -> None:
    questions = list(_questions())
    with tempfile.TemporaryDirectory(prefix="record-decisions-") as folder:
        libraries = fetch(VERSION)
        subprocess.run(["javac", "-nowarn", "-cp", libraries, "-d", folder, str(SOURCE)], check=True)
        done = subprocess.run(
            ["java", f"-Duser.home={folder}", "-cp", f"{folder}:{libraries}", "Decisions"],
            input="".join("\t".join(question) + "\n" for question in questions),
            capture_output=True,
            text=True,
            check=True,
        )
    lines = []
    for question, answer in zip(questions, done.stdout.splitlines(), strict=True):
        decided, body = answer.split("\t")
        assert body == question[0], f"Apache writes {body} for {question[0]}"
        lines.append("\t".join((*question, decided)) + "\n")
    archive = GOLDEN / f"decisions_{VERSION.replace('.', '_')}.tsv.xz"
    archive.write_bytes(lzma.compress("".join(lines).encode(), preset=9))
    print(f"{archive.relative_to(ROOT)}: {archive.stat().st_size} bytes")


if __name__ == "__main__":
    main()
