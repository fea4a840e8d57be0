"""The kinds of worlds, and what each of them promises beyond "nothing is lost and all comes to rest"."""

from __future__ import annotations

from dataclasses import replace

from tests.sim.schedule import CONNECTIONS, KINDS, PLANNED, SERVER_KINDS, Kind
from tests.sim.world import Report, Settings, some

NO_BROKER_FAULTS = tuple(kind for kind in KINDS if not kind.startswith("broker"))
BESIDE: tuple[Kind, ...] = ("broker restart", "name server", "reset", "partition", "crash", "join", "late")
"""What befalls a world of servers beside their own troubles."""
KILLED: tuple[Kind, ...] = (
    "broker kill",
    *(kind for kind in SERVER_KINDS if kind != "power loss"),
    *BESIDE,
)
DARK: tuple[Kind, ...] = ("power loss", *SERVER_KINDS, *BESIDE)
WHOLE: tuple[Kind, ...] = tuple(kind for kind in KILLED if kind not in ("broker kill", "broker clock"))

GROUPS: dict[str, Settings] = {
    "as Java": Settings(),
    "as Java, in order": Settings(ordered=True),
    "handlers that fail": Settings(failing=0.03),
    "leases": Settings(handover="lease", strategy="STICKY"),
    "leases, in order": Settings(handover="lease", ordered=True),
    "leases, planned": Settings(handover="lease", kinds=(*PLANNED, "resize")),
    "leases, bad lines": Settings(handover="lease", kinds=(*CONNECTIONS, *PLANNED)),
    "leases, brokers stay": Settings(handover="lease", kinds=NO_BROKER_FAULTS),
}
"""What befalls members and their queues."""

_ALL = Settings(
    brokers=1,
    members=2,
    producers=1,
    topics=("T",),
    queues=2,
    faults=7,
    span=100.0,
    delays=True,
    transactions=True,
    recreated=True,
)
SERVERS: dict[str, Settings] = {
    "servers killed": replace(_ALL, kinds=KILLED),
    "servers in the dark": replace(_ALL, kinds=DARK, sync_flush=True),
    "servers in trouble": replace(_ALL, kinds=WHOLE, brokers=2),
    "topics wiped": replace(
        _ALL,
        kinds=(
            "delete topic",
            "resize",
            "name server",
            "broker restart",
            "broker kill",
            "partition",
            "reset",
        ),
        brokers=2,
        nameserver_options=(("deleteTopicWithBrokerRegistration", True),),
    ),
}
"""What befalls brokers, their disks, clocks and topics, with every sort of message on its way."""

WORLDS: dict[str, Settings] = GROUPS | SERVERS


def small(settings: Settings) -> Settings:
    """The same kind of world, so small that ten thousand of them take less than an hour."""
    return replace(
        settings,
        span=50.0,
        faults=4,
        members=2,
        producers=1,
        topics=("T",),
        queues=2,
        pause=(0.2, 0.8),
        special_pause=(0.4, 2.0),
        longest_timer=20.0,
    )


def broken(report: Report) -> list[str]:
    """What a run has broken of its world's promises."""
    problems = list(report.problems)
    account = report.account
    settings = report.settings
    if settings.handover == "lease":
        # Locks live in a broker's memory, as with Apache's: one that was restarted has forgotten them.
        if set(settings.kinds) <= set(NO_BROKER_FAULTS) and account.overlaps:
            problems.append(f"{len(account.overlaps)} messages begun while another held the queue")
        if set(settings.kinds) <= {*PLANNED, "resize"} and account.repeated:
            problems.append(f"{len(account.repeated)} messages repeated by planned changes")
    if "power loss" not in settings.kinds:
        twice = account.in_several_places(account.due)
        if twice:
            problems.append(f"{len(twice)} delayed messages were delivered twice: {some(twice)}")
        twice = account.in_several_places(account.committed)
        if twice:
            problems.append(f"{len(twice)} transactions were committed twice: {some(twice)}")
    return problems
